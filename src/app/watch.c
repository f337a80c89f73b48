/* `freshet watch`: a dictionary's changes on standard output, each once, for as long as they come. A connection
 * that ends is made again from the last version that was complete; what was printed since is known, and left out. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "app/commands.h"
#include "app/options.h"
#include "app/pod.h"
#include "app/watch_seen.h"
#include "base/clock.h"
#include "base/json.h"

enum { PAUSE_MIN_MS = 100, PAUSE_MAX_MS = 5000, EXIT_TOO_OLD = 3 };

struct watch {
    struct str tenant, code;
    const char *url, *token;
    int64_t after;          /* all up to this version has been printed; -1 = as the pod likes */
    struct watch_seen seen; /* what was printed since */
    int64_t said_up_to_date;
    uint64_t count_left; /* changes still wanted */
    struct buf line;     /* not whole yet */
    struct arena arena;
    bool has_begun, is_done, is_strange;
    int exit_status; /* of a call that can't be made, which has been said */
    int64_t pause_ms;
};

/* ---- lines ---- */

static bool print_line(struct str line)
{
    return fwrite(line.ptr, 1, line.len, stdout) == line.len && fputc('\n', stdout) != EOF;
}

/* The pod says that all up to this version has come: from here a new connection can go on. */
static void complete(struct watch *watch, int64_t version)
{
    watch->after = version;
    watch_seen_clear(&watch->seen);
}

static bool take_change(struct watch *watch, struct str line, int64_t version, const struct json_value *key)
{
    if (!watch_seen_add(&watch->seen, version, json_str_decode(key->raw, &watch->arena)))
        return true; /* it came before the connection broke */
    if (!print_line(line))
        return false;
    watch->is_done = --watch->count_left == 0;
    return !watch->is_done;
}

/* False ends the stream. */
static bool take_line(struct watch *watch, struct str line)
{
    struct json_value object, member, key;
    int64_t version;
    if (json_parse(line, JSON_DEPTH_LIMIT, &object, NULL) == STATUS_OK) {
        if (json_get(&object, STR("version"), &member) && json_to_i64(&member, &version) &&
            json_get(&object, STR("key"), &key) && key.type == JSON_STRING)
            return take_change(watch, line, version, &key);
        if (json_get(&object, STR("heartbeat"), &member) && json_to_i64(&member, &version))
            return complete(watch, version), true;
        if (json_get(&object, STR("upToDate"), &member) && json_to_i64(&member, &version)) {
            complete(watch, version);
            bool is_news = version > watch->said_up_to_date;
            watch->said_up_to_date = version;
            return !is_news || print_line(line);
        }
    }
    watch->is_strange = true;
    return false;
}

static bool take_bytes(void *context, struct str bytes)
{
    struct watch *watch = context;
    bool goes_on = true;
    watch->has_begun = true;
    watch->pause_ms = PAUSE_MIN_MS;
    while (goes_on && bytes.len) {
        const char *end = memchr(bytes.ptr, '\n', bytes.len);
        size_t len = end ? (size_t)(end - bytes.ptr) : bytes.len;
        buf_put(&watch->line, bytes.ptr, len);
        if (!end)
            break;
        goes_on = take_line(watch, buf_str(&watch->line));
        buf_clear(&watch->line);
        arena_reset(&watch->arena);
        bytes = str_of(end + 1, bytes.len - len - 1);
    }
    return fflush(stdout) == 0 && goes_on;
}

/* ---- connections ---- */

/* One connection until it ends; its token is made anew, since it may have been the old one's end. */
static enum status follow(struct watch *watch, int *http_status, struct error *error)
{
    struct pod_session session;
    struct buf rest, body;
    enum status status = STATUS_CANCELLED;
    buf_init(&rest);
    buf_clear(&watch->line);
    if (watch->after >= 0)
        buf_printf(&rest, "/watch?after=%lld", (long long)watch->after);
    else
        buf_put_str(&rest, STR("/watch"));
    watch->exit_status = pod_session_open(&session, "watch", watch->url, watch->token, watch->tenant);
    if (watch->exit_status == 0) {
        session.call.code = watch->code;
        session.call.rest = buf_str(&rest);
        session.call.accept = "application/x-ndjson";
        session.call.on_body = take_bytes;
        session.call.context = watch;
        session.call.http_status = http_status;
        status = pod_get(&session.call, &body, error);
        buf_deinit(&body);
    }
    pod_session_close(&session);
    buf_deinit(&rest);
    return status;
}

static int give_up(const struct watch *watch, int http_status, const struct error *error)
{
    fprintf(stderr, "freshet watch: %s\n", error->message);
    if (http_status != 410)
        return 1;
    fprintf(
        stderr,
        "freshet watch: read it anew (`freshet get %.*s %.*s --all`), then watch from the version that was read\n",
        STR_ARG(watch->tenant), STR_ARG(watch->code));
    return EXIT_TOO_OLD;
}

static void wait_a_little(struct watch *watch, const char *why)
{
    struct timespec time = {.tv_sec = watch->pause_ms / 1000,
                            .tv_nsec = watch->pause_ms % 1000 * CLOCK_NS_PER_MS};
    fprintf(stderr, "freshet watch: %s; going on from version %lld\n", why, (long long)watch->after);
    nanosleep(&time, NULL);
    watch->pause_ms = watch->pause_ms * 2 < PAUSE_MAX_MS ? watch->pause_ms * 2 : PAUSE_MAX_MS;
}

static int run(struct watch *watch)
{
    for (;;) {
        struct error error = {0};
        int http_status = 0;
        enum status status = follow(watch, &http_status, &error);
        if (watch->is_done || watch->exit_status)
            return watch->exit_status;
        if (watch->is_strange)
            error_set(&error, STATUS_BAD_REQUEST, "the answer is not one of freshet's");
        if (ferror(stdout))
            error_set(&error, STATUS_CANCELLED, "standard output cannot be written");
        bool is_passing = status == STATUS_OK || status == STATUS_IO || status == STATUS_TIMEOUT ||
                          status == STATUS_UNAVAILABLE;
        if (!is_passing || !watch->has_begun)
            return give_up(watch, http_status, &error);
        wait_a_little(watch, status == STATUS_OK ? "the pod ended the stream" : error.message);
    }
}

/* ---- the call ---- */

static const char summary[] =
    "Prints every change of a dictionary as it is committed, a JSON line each in version order:\n"
    "{\"version\",\"key\",\"op\",\"payload\"}, and {\"upToDate\":N} once all that was there has come. A connection that is\n"
    "lost is made again, and goes on where it was. Exit status 0 behind --count changes, 1 when the pod refuses or\n"
    "was never there, 3 when changes since --after are no longer kept: then read the dictionary anew.\n\n"
    "  freshet watch demo COUNTRY\n"
    "  freshet watch demo COUNTRY --after 17 --count 1";

int app_watch(int argc, char **argv)
{
    const char *after = NULL, *count = NULL;
    struct option_words words;
    struct watch watch = {.after = -1, .said_up_to_date = -1, .pause_ms = PAUSE_MIN_MS};
    const struct option_row rows[] = {
        {"--after", "N", "changes behind version N (default: from now on)", .into = &after},
        {"--count", "N", "end after N changes", .into = &count},
        {"--url", "URL", POD_URL_HELP, .into = &watch.url},
        {"--token", "TOKEN", POD_TOKEN_HELP, .into = &watch.token},
        {.name = NULL},
    };
    enum options_outcome outcome = options_read_words(argc, argv, "TENANT DICT", summary, rows, &words);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    watch.tenant = str_from(words.count > 0 ? words.items[0] : NULL);
    watch.code = str_from(words.count > 1 ? words.items[1] : NULL);
    const char *mistake = NULL;
    if (words.count != 2)
        mistake = "TENANT and DICT are needed";
    else if (!str_is_name(watch.tenant) || !str_is_name(watch.code))
        mistake = "TENANT and DICT are 1 to 64 of A-Z a-z 0-9 . _ -";
    else if (after && (!str_to_i64(str_from(after), &watch.after) || watch.after < 0))
        mistake = "--after takes a version";
    else if (count && (!str_to_u64(str_from(count), &watch.count_left) || watch.count_left == 0))
        mistake = "--count takes a number from 1";
    if (mistake) {
        fprintf(stderr, "freshet watch: %s; `freshet watch --help` says more\n", mistake);
        return 2;
    }
    if (!count)
        watch.count_left = UINT64_MAX;
    arena_init(&watch.arena, 2048);
    int exit_status = run(&watch);
    buf_deinit(&watch.line);
    arena_deinit(&watch.arena);
    watch_seen_deinit(&watch.seen);
    return exit_status;
}
