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

enum action { ACTION_KILL, ACTION_STOP, ACTION_ABORT, ACTION_SLEEP };

struct rule {
    char name[NAME_BYTES];
    enum action action;
    uint64_t sleep_ms;
    double probability; /* 1 unless said otherwise */
    uint64_t only;      /* this hit alone, counted from 1; 0 = every one */
    _Atomic uint64_t hits;
};

static struct rule rules[RULES_MAX];
static size_t rule_count;
static pthread_once_t environment_read = PTHREAD_ONCE_INIT;

/* Takes what stands behind `mark` off the end of *text; false when there is no mark. */
static bool take_tail(struct str *text, char mark, struct str *tail)
{
    const char *at = memrchr(text->ptr, mark, text->len);

    if (!at)
        return false;
    *tail = str_of(at + 1, text->len - (size_t)(at + 1 - text->ptr));
    text->len = (size_t)(at - text->ptr);
    return true;
}

static bool parse_probability(struct str text, double *probability)
{
    char digits[32];
    char *end;

    if (text.len == 0 || text.len >= sizeof(digits))
        return false;
    memcpy(digits, text.ptr, text.len);
    digits[text.len] = '\0';
    *probability = strtod(digits, &end);
    return *end == '\0' && *probability >= 0 && *probability <= 1;
}

static bool parse_action(struct str text, struct rule *rule)
{
    const struct str sleep = STR("sleep-");

    if (str_starts_with(text, sleep)) {
        rule->action = ACTION_SLEEP;
        return str_to_u64(str_skip(text, sleep.len), &rule->sleep_ms) && rule->sleep_ms <= SLEEP_MS_MAX;
    }
    if (str_eq(text, STR("kill")))
        rule->action = ACTION_KILL;
    else if (str_eq(text, STR("stop")))
        rule->action = ACTION_STOP;
    else if (str_eq(text, STR("abort")))
        rule->action = ACTION_ABORT;
    else
        return false;
    return true;
}

/* name=action, then :probability or #number, in this order where there are both. */
static bool parse_rule(struct str text, struct rule *rule)
{
    const char *equals = memchr(text.ptr, '=', text.len);
    size_t name_bytes = equals ? (size_t)(equals - text.ptr) : 0;
    struct str tail;

    if (name_bytes == 0 || name_bytes >= NAME_BYTES)
        return false;
    memcpy(rule->name, text.ptr, name_bytes);
    rule->probability = 1;
    struct str action = str_of(equals + 1, text.len - name_bytes - 1);
    if (take_tail(&action, '#', &tail) && (!str_to_u64(tail, &rule->only) || rule->only == 0))
        return false;
    if (take_tail(&action, ':', &tail) && !parse_probability(tail, &rule->probability))
        return false;
    return parse_action(action, rule);
}

static bool parse_rules(struct str rest)
{
    struct str part;

    if (rest.len == 0)
        return true;
    while (str_split(&rest, ',', &part)) {
        if (rule_count == RULES_MAX || !parse_rule(part, &rules[rule_count]))
            return false;
        rule_count++;
    }
    return true;
}

static void read_environment(void)
{
    if (parse_rules(str_from(getenv("FRESHET_FAILPOINTS"))))
        return;
    log_error("failpoints_refused", LOG_CSTR("failpoints", getenv("FRESHET_FAILPOINTS")));
    _exit(2);
}

static bool falls_due(struct rule *rule)
{
    uint64_t hit = atomic_fetch_add(&rule->hits, 1) + 1;

    if (rule->only != 0 && hit != rule->only)
        return false;
    if (rule->probability >= 1)
        return true;
    uint32_t draw;
    random_bytes(&draw, sizeof(draw));
    return (double)draw / 4294967296.0 < rule->probability;
}

static void act(const struct rule *rule)
{
    static const char *const names[] = {"kill", "stop", "abort", "sleep"};

    log_warn("failpoint_reached", LOG_CSTR("failpoint", rule->name), LOG_CSTR("action", names[rule->action]));
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
    }
}

void failpoint_hit(const char *name)
{
    pthread_once(&environment_read, read_environment);
    for (size_t i = 0; i < rule_count; i++)
        if (strcmp(rules[i].name, name) == 0 && falls_due(&rules[i]))
            act(&rules[i]);
}

bool failpoint_is_armed(const char *name)
{
    pthread_once(&environment_read, read_environment);
    for (size_t i = 0; i < rule_count; i++)
        if (strcmp(rules[i].name, name) == 0)
            return true;
    return false;
}
