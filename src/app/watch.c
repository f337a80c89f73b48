/* `freshet watch`: a dictionary's changes on standard output, each once, for as long as they come. A connection
 * that ends is made again from the last version that was complete; what was printed since is known, and left out. */
#include <stdio.h>

#include "app/commands.h"
#include "app/follow.h"
#include "app/options.h"
#include "app/watch.h"
#include "app/watch_seen.h"
#include "base/json.h"

struct watch {
    const char *command;
    struct str tenant, code;
    int64_t after;          /* all up to this version has been printed; -1 = as the pod likes */
    struct watch_seen seen; /* what was printed since */
    int64_t said_up_to_date;
    uint64_t count_left; /* changes still wanted */
    struct arena arena;
};

/* ---- lines ---- */

/* The pod says that all up to this version has come: from here a new connection can go on. */
static void complete(struct watch *watch, int64_t version)
{
    watch->after = version;
    watch_seen_clear(&watch->seen);
}

static enum follow_step take_change(struct watch *watch, struct str line, int64_t version,
                                    const struct json_value *key)
{
    if (!watch_seen_add(&watch->seen, version, json_str_decode(key->raw, &watch->arena)))
        return FOLLOW_ON; /* it came before the connection broke */
    (void)follow_print(line);
    return --watch->count_left == 0 ? FOLLOW_DONE : FOLLOW_ON;
}

static enum follow_step take_object(struct watch *watch, struct str line, const struct json_value *object)
{
    struct json_value member, key;
    int64_t version;
    if (json_get(object, STR("version"), &member) && json_to_i64(&member, &version) &&
        json_get(object, STR("key"), &key) && key.type == JSON_STRING)
        return take_change(watch, line, version, &key);
    if (json_get(object, STR("heartbeat"), &member) && json_to_i64(&member, &version)) {
        complete(watch, version);
        return FOLLOW_ON;
    }
    if (!json_get(object, STR("upToDate"), &member) || !json_to_i64(&member, &version))
        return FOLLOW_STRANGE;
    complete(watch, version);
    if (version > watch->said_up_to_date)
        (void)follow_print(line);
    watch->said_up_to_date = version;
    return FOLLOW_ON;
}

static enum follow_step take_line(void *context, struct str line)
{
    struct watch *watch = context;
    struct json_value object;
    if (json_parse_stored(line, JSON_DEPTH_LIMIT, &object, NULL) != STATUS_OK)
        return FOLLOW_STRANGE;
    enum follow_step step = take_object(watch, line, &object);
    arena_reset(&watch->arena);
    return step;
}

/* ---- where it stands ---- */

static void set_call(void *context, struct pod_call *call, struct buf *text)
{
    const struct watch *watch = context;
    buf_put_str(text, STR("/watch"));
    if (watch->after >= 0)
        buf_printf(text, "?after=%lld", (long long)watch->after);
    call->code = watch->code;
    call->rest = buf_str(text);
}

static void put_place(void *context, struct buf *out)
{
    const struct watch *watch = context;
    buf_printf(out, "version %lld", (long long)watch->after);
}

static void explain_too_old(void *context)
{
    const struct watch *watch = context;
    fprintf(
        stderr,
        "freshet %s: read it anew (`freshet get %.*s %.*s --all`), then watch from the version that was read\n",
        watch->command, STR_ARG(watch->tenant), STR_ARG(watch->code));
}

/* ---- the call ---- */

int watch_run(const struct watch_call *call)
{
    struct watch watch = {.command = call->command,
                          .tenant = str_from(call->tenant),
                          .code = str_from(call->code),
                          .after = -1,
                          .said_up_to_date = -1,
                          .count_left = UINT64_MAX};
    const char *mistake = NULL;
    if (!str_is_name(watch.tenant) || !str_is_name(watch.code))
        mistake = "TENANT and DICT are 1 to 64 of A-Z a-z 0-9 . _ -";
    else if (call->after && (!str_to_i64(str_from(call->after), &watch.after) || watch.after < 0))
        mistake = "--after takes a version";
    else if (call->count && (!str_to_u64(str_from(call->count), &watch.count_left) || watch.count_left == 0))
        mistake = "--count takes a number from 1";
    if (mistake) {
        fprintf(stderr, "freshet %s: %s; `freshet %s --help` says more\n", call->command, mistake,
                call->command);
        return 2;
    }
    arena_init(&watch.arena, 2048);
    int exit_status = follow_run(&(struct follow){.command = call->command,
                                                  .url = call->url,
                                                  .token = call->token,
                                                  .tenant = watch.tenant,
                                                  .context = &watch,
                                                  .set_call = set_call,
                                                  .take_line = take_line,
                                                  .put_place = put_place,
                                                  .explain_too_old = explain_too_old});
    arena_deinit(&watch.arena);
    watch_seen_deinit(&watch.seen);
    return exit_status;
}

static const char summary[] =
    "Prints every change of a dictionary as it is committed, a JSON line each in version order:\n"
    "{\"version\",\"key\",\"op\",\"payload\"}, and {\"upToDate\":N} once all that was there has come. A connection that is\n"
    "lost is made again, and goes on where it was. Exit status 0 behind --count changes, 1 when the pod refuses or\n"
    "was never there, 3 when changes since --after are no longer kept: then read the dictionary anew.\n\n"
    "  freshet watch demo COUNTRY\n"
    "  freshet watch demo COUNTRY --after 17 --count 1";

int app_watch(int argc, char **argv)
{
    struct option_words words;
    struct watch_call call = {.command = "watch"};
    const struct option_row rows[] = {
        {"--after", "N", "changes behind version N (default: from now on)", .into = &call.after},
        {"--count", "N", "end after N changes", .into = &call.count},
        {"--url", "URL", POD_URL_HELP, .into = &call.url},
        {"--token", "TOKEN", POD_TOKEN_HELP, .into = &call.token},
        {.name = NULL},
    };
    enum options_outcome outcome = options_read_words(argc, argv, "TENANT DICT", summary, rows, &words);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    if (words.count != 2) {
        fprintf(stderr, "freshet watch: TENANT and DICT are needed; `freshet watch --help` says more\n");
        return 2;
    }
    call.tenant = words.items[0];
    call.code = words.items[1];
    return watch_run(&call);
}
