/* The rules of FRESHET_FAILPOINTS, read once into a small table that every hit walks. A hit without a rule costs a
 * few comparisons, a build without the option nothing. What happened is logged before it happens: a test that
 * killed a process looks there for the place. */
#include "base/failpoint.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/str.h"

enum { RULES_MAX = 64, NAME_BYTES = 64, SLEEP_MS_MAX = 600000 };

enum action { ACTION_KILL, ACTION_STOP, ACTION_ABORT, ACTION_SLEEP, ACTIONS };

static const char *const action_names[ACTIONS] = {"kill", "stop", "abort", "sleep"};

struct rule {
    char name[NAME_BYTES];
    enum action action;
    uint64_t sleep_ms;
    double probability; /* 1 unless given */
    uint64_t only;      /* this hit alone, counted from 1; 0 = every one */
    _Atomic uint64_t hits;
};

static struct rule rules[RULES_MAX];
static size_t rule_count;
static pthread_once_t environment_read = PTHREAD_ONCE_INIT;

/* Takes what follows the last `mark` off the end of *text; false when there is no mark. */
static bool take_tail(struct str *text, char mark, struct str *tail)
{
    const char *at = memrchr(text->ptr, mark, text->len);

    if (!at)
        return false;
    *tail = str_of(at + 1, text->len - (size_t)(at + 1 - text->ptr));
    text->len = (size_t)(at - text->ptr);
    return true;
}

/* name=action, then :probability or #number, in this order where there are both. */
static bool parse_rule(struct str text, struct rule *rule)
{
    const char *equals = memchr(text.ptr, '=', text.len);
    size_t name_bytes = equals ? (size_t)(equals - text.ptr) : 0;
    struct str tail, sleep_ms;
    char digits[32], *end;

    if (name_bytes == 0 || name_bytes >= NAME_BYTES)
        return false;
    memcpy(rule->name, text.ptr, name_bytes);
    rule->probability = 1;
    struct str action = str_skip(text, name_bytes + 1);
    if (take_tail(&action, '#', &tail) && (!str_to_u64(tail, &rule->only) || rule->only == 0))
        return false;
    if (take_tail(&action, ':', &tail)) {
        if (tail.len == 0 || tail.len >= sizeof(digits))
            return false;
        str_copy(digits, sizeof(digits), tail);
        rule->probability = strtod(digits, &end);
        if (*end != '\0' || !(rule->probability >= 0 && rule->probability <= 1))
            return false;
    }
    bool sleeps = take_tail(&action, '-', &sleep_ms);
    while (rule->action < ACTIONS && !str_eq(action, str_from(action_names[rule->action])))
        rule->action++;
    if (sleeps && (!str_to_u64(sleep_ms, &rule->sleep_ms) || rule->sleep_ms > SLEEP_MS_MAX))
        return false;
    return rule->action < ACTIONS && sleeps == (rule->action == ACTION_SLEEP);
}

static void read_environment(void)
{
    struct str rest = str_from(getenv("FRESHET_FAILPOINTS")), part;
    bool are_valid = true;

    if (rest.len == 0)
        return;
    while (are_valid && str_split(&rest, ',', &part))
        are_valid = rule_count < RULES_MAX && parse_rule(part, &rules[rule_count++]);
    if (are_valid)
        return;
    log_error("failpoints_refused", LOG_CSTR("failpoints", getenv("FRESHET_FAILPOINTS")));
    _exit(2);
}

static void act(const struct rule *rule)
{
    log_warn("failpoint_reached", LOG_CSTR("failpoint", rule->name),
             LOG_CSTR("action", action_names[rule->action]));
    switch (rule->action) {
    case ACTION_KILL: kill(getpid(), SIGKILL); break;
    case ACTION_STOP: raise(SIGSTOP); break; /* this very thread, here and now */
    case ACTION_ABORT: abort();
    case ACTION_SLEEP: {
        struct timespec left = {.tv_sec = (time_t)(rule->sleep_ms / 1000),
                                .tv_nsec = (long)(rule->sleep_ms % 1000) * 1000000};
        while (nanosleep(&left, &left) != 0) {}
        break;
    }
    case ACTIONS: break;
    }
}

void failpoint_hit(const char *name)
{
    pthread_once(&environment_read, read_environment);
    for (size_t i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (strcmp(rule->name, name) != 0)
            continue;
        uint64_t hit = atomic_fetch_add(&rule->hits, 1) + 1;
        bool is_lucky =
            rule->probability >= 1 || (double)(uint32_t)random_u64() / 4294967296.0 < rule->probability;
        if ((rule->only == 0 || hit == rule->only) && is_lucky)
            act(rule);
    }
}

bool failpoint_is_armed(const char *name)
{
    pthread_once(&environment_read, read_environment);
    for (size_t i = 0; i < rule_count; i++)
        if (strcmp(rules[i].name, name) == 0)
            return true;
    return false;
}
