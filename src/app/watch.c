/* Following a stream over one connection after the other, and `freshet watch`: the changes of a dictionary on standard output,
 * each once. A connection that ends is made again from the last complete version; changes that were printed since then are
 * known by a hash (64 bits) and left out. */
#include "app/watch.h"

#include <stdio.h>

#include "app/commands.h"
#include "base/map.h"
#include "base/memory.h"

enum { PAUSE_MIN_MS = 100, PAUSE_MAX_MS = 5000 };

/* ---- following ---- */

static void print_line(struct str line)
{
    (void)fwrite(line.ptr, 1, line.len, stdout);
    (void)fputc('\n', stdout);
}

enum follow_step follow_print(struct follow *follow, struct str line)
{
    print_line(line);
    return follow->count && --follow->count == 0 ? FOLLOW_DONE : FOLLOW_ON;
}

static bool take_follow_line(void *context, struct str line)
{
    struct follow *follow = context;
    struct json_value object;
    follow->step = FOLLOW_STRANGE;
    if (json_parse_stored(line, JSON_DEPTH_LIMIT, &object, NULL) == STATUS_OK)
        follow->step = follow->take_line(follow->context, line, &object, &follow->arena);
    arena_reset(&follow->arena);
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

/* One connection after the other. */
static int follow_all(struct follow *follow, struct buf *path)
{
    const char *command = follow->client.command;
    for (;; follow->pause_ms = follow->pause_ms * 2 < PAUSE_MAX_MS ? follow->pause_ms * 2 : PAUSE_MAX_MS) {
        struct pod_call call = follow->client.call;
        struct error error = {0};
        struct buf body;
        int http_status = 0;
        buf_clear(&follow->lines.line);
        buf_clear(path);
        buf_put_str(path, follow->path);
        if (follow->after >= 0)
            buf_printf(path, "?after=%lld", (long long)follow->after);
        call.path = buf_str(path);
        call.accept = "application/x-ndjson";
        call.on_body = take_follow_bytes;
        call.context = follow;
        call.http_status = &http_status;
        enum status status = pod_get(&call, &body, &error);
        buf_deinit(&body);
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
            (void)app_fail(command, "%s", follow->too_old);
            return FOLLOW_EXIT_TOO_OLD;
        }
        (void)app_fail(command, "%s; continuing from %s %lld",
                       status == STATUS_OK ? "the pod ended the stream" : error.message, follow->unit,
                       (long long)(follow->after < 0 ? 0 : follow->after));
        pod_pause(follow->pause_ms);
        if (!client_connect(&follow->client)) /* the token's end may have ended the stream */
            return 1;
    }
}

int follow_run(struct follow *follow)
{
    struct buf path = {0};
    follow->lines = (struct pod_lines){.take_line = take_follow_line, .context = follow};
    follow->pause_ms = PAUSE_MIN_MS;
    follow->arena = ARENA(2048);
    int exit_status = client_connect(&follow->client) ? follow_all(follow, &path) : 1;
    arena_deinit(&follow->arena);
    buf_deinit(&follow->lines.line);
    buf_deinit(&path);
    return exit_status;
}

/* ---- a dictionary ---- */

struct watch {
    struct follow *follow;
    struct map seen; /* printed since the version `after` was complete */
    struct arena seen_arena;
    int64_t printed_up_to_date;
};

static enum follow_step take_change(void *context, struct str line, const struct json_value *object,
                                    struct arena *arena)
{
    struct watch *watch = context;
    struct json_value member, key;
    int64_t version;
    if (json_get(object, STR("version"), &member) && json_to_i64(&member, &version) &&
        json_get_string(object, STR("key"), &key)) {
        uint64_t hash =
            hash_item(str_of((const char *)&version, sizeof version), json_str_decode(key.raw, arena)).low;
        if (map_first(&watch->seen, hash)) /* it was printed before the connection broke */
            return FOLLOW_ON;
        map_add(&watch->seen, arena_alloc(&watch->seen_arena, sizeof(struct map_node)), hash);
        return follow_print(watch->follow, line);
    }
    bool is_heartbeat = json_get(object, STR("heartbeat"), &member);
    if ((!is_heartbeat && !json_get(object, STR("upToDate"), &member)) || !json_to_i64(&member, &version))
        return FOLLOW_STRANGE;
    /* All changes up to this version have arrived: a new connection can continue from here. */
    watch->follow->after = version;
    map_deinit(&watch->seen);
    arena_reset(&watch->seen_arena);
    if (is_heartbeat)
        return FOLLOW_ON;
    if (version > watch->printed_up_to_date)
        print_line(line);
    watch->printed_up_to_date = version;
    return FOLLOW_ON;
}

int watch_run(struct follow *follow)
{
    struct watch watch = {.follow = follow, .printed_up_to_date = -1};
    const struct client *client = &follow->client; /* whose names need no encoding */
    struct arena texts = ARENA(512);
    watch.seen_arena = ARENA(2048);
    struct str advice = arena_printf(
        &texts,
        "read the dictionary again (`freshet get %.*s %.*s --all`), then watch from the version that was read",
        STR_ARG(client->tenant), STR_ARG(client->code));
    follow->path = arena_printf(&texts, "/v1/tenants/%.*s/dictionaries/%.*s/watch", STR_ARG(client->tenant),
                                STR_ARG(client->code));
    follow->context = &watch;
    follow->unit = "version";
    follow->too_old = advice.ptr;
    follow->take_line = take_change;
    int exit_status = follow_run(follow);
    map_deinit(&watch.seen);
    arena_deinit(&watch.seen_arena);
    arena_deinit(&texts);
    return exit_status;
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
            .names_dictionary = true,
            .summary =
                "Prints every change of a dictionary as it is committed, a JSON line each in version order:\n"
                "{\"version\",\"key\",\"op\",\"payload\"}, and {\"upToDate\":N} when no older change is left. A lost connection\n"
                "is made again and continues where it ended. Exit status 0 after --count changes, 1 when the pod refuses\n"
                "or never answered, 3 when changes after --after are no longer kept: then read the dictionary again.\n\n"
                "  freshet watch demo COUNTRY\n"
                "  freshet watch demo COUNTRY --after 17 --count 1",
            .rows = rows,
            .run = run_watch,
        });
}
