/* Following a stream over one connection after the other, and `freshet watch`: the changes of a dictionary on standard output,
 * each once. A connection that ends is made again from the last complete version; changes that were printed since then are
 * known by a hash (64 bits) and left out. */
#include "app/watch.h"

#include <stdio.h>

#include "app/commands.h"
#include "base/json.h"
#include "base/map.h"
#include "base/memory.h"

enum { PAUSE_MIN_MS = 100, PAUSE_MAX_MS = 5000 };

/* ---- following ---- */

void follow_print(struct str line)
{
    (void)fwrite(line.ptr, 1, line.len, stdout);
    (void)fputc('\n', stdout);
}

enum follow_step follow_count(struct follow *follow)
{
    return follow->count && --follow->count == 0 ? FOLLOW_DONE : FOLLOW_ON;
}

static bool take_follow_line(void *context, struct str line)
{
    struct follow *follow = context;
    follow->step = follow->take_line(follow->context, line);
    return follow->step == FOLLOW_ON;
}

static bool take_follow_bytes(void *context, struct str bytes)
{
    struct follow *follow = context;
    follow->has_begun = true;
    follow->pause_ms = PAUSE_MIN_MS;
    bool goes_on = pod_take_lines(&follow->lines, bytes);
    return fflush(stdout) == 0 && !ferror(stdout) && goes_on;
}

/* One connection until it ends. */
static enum status follow_once(struct follow *follow, int *http_status, struct error *error)
{
    struct pod_call call = follow->client.call;
    struct buf text = {0}, body;
    buf_clear(&follow->lines.line);
    call.accept = "application/x-ndjson";
    call.on_body = take_follow_bytes;
    call.context = follow;
    call.http_status = http_status;
    follow->set_call(follow->context, &call, &text);
    enum status status = pod_get(&call, &body, error);
    buf_deinit(&body);
    buf_deinit(&text);
    return status;
}

static int follow_all(struct follow *follow)
{
    const char *command = follow->client.command;
    for (;;) {
        struct error error = {0};
        int http_status = 0;
        enum status status = follow_once(follow, &http_status, &error);
        if (follow->step == FOLLOW_DONE)
            return 0;
        if (follow->step == FOLLOW_STRANGE)
            error_set(&error, STATUS_BAD_REQUEST, CLIENT_STRANGE_ANSWER);
        if (ferror(stdout))
            error_set(&error, STATUS_CANCELLED, "standard output cannot be written");
        if ((status != STATUS_OK && !pod_is_away(status)) || !follow->has_begun) {
            (void)app_fail(command, "%s", error.message);
            if (http_status != 410)
                return 1;
            follow->explain_too_old(follow->context);
            return FOLLOW_EXIT_TOO_OLD;
        }
        (void)app_fail(command, "%s; continuing from %s %lld",
                       status == STATUS_OK ? "the pod ended the stream" : error.message, follow->unit,
                       (long long)(follow->after < 0 ? 0 : follow->after));
        pod_pause(follow->pause_ms);
        follow->pause_ms = follow->pause_ms * 2 < PAUSE_MAX_MS ? follow->pause_ms * 2 : PAUSE_MAX_MS;
        if (!client_connect(&follow->client)) /* the token's end may have ended the stream */
            return 1;
    }
}

int follow_run(struct follow *follow)
{
    follow->lines = (struct pod_lines){.take_line = take_follow_line, .context = follow};
    follow->pause_ms = PAUSE_MIN_MS;
    int exit_status = follow_all(follow);
    buf_deinit(&follow->lines.line);
    return exit_status;
}

/* ---- a dictionary ---- */

struct watch {
    struct follow *follow;
    struct map seen; /* printed since the version `after` was complete */
    struct arena seen_arena;
    int64_t printed_up_to_date;
    struct arena arena; /* of the line at hand */
};

/* False when it was printed before the connection broke. */
static bool add_seen(struct watch *watch, int64_t version, struct str key)
{
    uint64_t hash = hash_item(str_of((const char *)&version, sizeof version), key).low;
    if (map_first(&watch->seen, hash))
        return false;
    struct map_node *node = arena_alloc(&watch->seen_arena, sizeof *node);
    map_add(&watch->seen, node, hash);
    return true;
}

/* All changes up to this version have arrived: a new connection can continue from here. */
static void complete_version(struct watch *watch, int64_t version)
{
    watch->follow->after = version;
    map_deinit(&watch->seen);
    arena_reset(&watch->seen_arena);
}

static enum follow_step take_change(struct watch *watch, struct str line, const struct json_value *object)
{
    struct json_value member, key;
    int64_t version;
    if (json_get(object, STR("version"), &member) && json_to_i64(&member, &version) &&
        json_get_string(object, STR("key"), &key)) {
        if (!add_seen(watch, version, json_str_decode(key.raw, &watch->arena)))
            return FOLLOW_ON;
        follow_print(line);
        return follow_count(watch->follow);
    }
    if (json_get(object, STR("heartbeat"), &member) && json_to_i64(&member, &version)) {
        complete_version(watch, version);
        return FOLLOW_ON;
    }
    if (!json_get(object, STR("upToDate"), &member) || !json_to_i64(&member, &version))
        return FOLLOW_STRANGE;
    complete_version(watch, version);
    if (version > watch->printed_up_to_date)
        follow_print(line);
    watch->printed_up_to_date = version;
    return FOLLOW_ON;
}

static enum follow_step take_watch_line(void *context, struct str line)
{
    struct watch *watch = context;
    struct json_value object;
    if (json_parse_stored(line, JSON_DEPTH_LIMIT, &object, NULL) != STATUS_OK)
        return FOLLOW_STRANGE;
    enum follow_step step = take_change(watch, line, &object);
    arena_reset(&watch->arena);
    return step;
}

static void set_watch_call(void *context, struct pod_call *call, struct buf *text)
{
    const struct watch *watch = context;
    buf_put_str(text, STR("/watch"));
    if (watch->follow->after >= 0)
        buf_printf(text, "?after=%lld", (long long)watch->follow->after);
    call->code = watch->follow->client.code;
    call->rest = buf_str(text);
}

static void explain_version_too_old(void *context)
{
    const struct client *client = &((const struct watch *)context)->follow->client;
    (void)app_fail(
        client->command,
        "read the dictionary again (`freshet get %.*s %.*s --all`), then watch from the version that was read",
        STR_ARG(client->tenant), STR_ARG(client->code));
}

int watch_run(struct follow *follow)
{
    struct watch watch = {.follow = follow, .printed_up_to_date = -1};
    arena_init(&watch.arena, 2048);
    arena_init(&watch.seen_arena, 2048);
    follow->context = &watch;
    follow->unit = "version";
    follow->set_call = set_watch_call;
    follow->take_line = take_watch_line;
    follow->explain_too_old = explain_version_too_old;
    int exit_status = follow_run(follow);
    map_deinit(&watch.seen);
    arena_deinit(&watch.arena);
    arena_deinit(&watch.seen_arena);
    return exit_status;
}

static const char *check_watch(struct client *client)
{
    return str_is_name(client->tenant) && str_is_name(client->code) ? NULL : CLIENT_NAME_MISTAKE;
}

static int run_watch(struct client *client)
{
    return watch_run(CONTAINER_OF(client, struct follow, client));
}

int app_watch(int argc, char **argv)
{
    struct follow follow = {.after = -1};
    const struct option_row rows[] = {
        {"--after", "N", "changes after version N (default: from now on)", .number = &follow.after},
        {"--count", "N", "end after N changes", .number = &follow.count, .min = 1},
        CLIENT_ROWS(follow.client),
    };
    return client_main(
        argc, argv, &follow.client,
        &(struct client_command){
            .usage = "TENANT DICT",
            .words_min = 2,
            .words_max = 2,
            .summary =
                "Prints every change of a dictionary as it is committed, a JSON line each in version order:\n"
                "{\"version\",\"key\",\"op\",\"payload\"}, and {\"upToDate\":N} when no older change is left. A lost connection\n"
                "is made again and continues where it ended. Exit status 0 after --count changes, 1 when the pod refuses\n"
                "or never answered, 3 when changes after --after are no longer kept: then read the dictionary again.\n\n"
                "  freshet watch demo COUNTRY\n"
                "  freshet watch demo COUNTRY --after 17 --count 1",
            .rows = rows,
            .check = check_watch,
            .run = run_watch,
        });
}
