/* `freshet watch` and `freshet tail`: a stream of lines from a pod, followed over as many connections as it takes; a pod that
 * answered once is waited for.
 *
 * The changes of a dictionary go to standard output, each once: a connection that ends is made again from the last complete
 * version, and changes that were printed since then are known by a hash (64 bits) and left out. The events of a chat are a line
 * each; a new connection continues after the last one that was printed. */
#include <stdio.h>

#include "app/client.h"
#include "app/commands.h"
#include "app/terminal.h"
#include "base/backoff.h"
#include "base/json.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/uuid.h"

enum { EXIT_TOO_OLD = 3 };

enum step {
    STEP_ON,
    STEP_DONE,    /* --count is reached */
    STEP_STRANGE, /* not a line of such a stream */
};

struct follow {
    struct client client;
    int64_t after; /* printed up to this version or sequence; -1 = from where the pod begins */
    int64_t count; /* lines still wanted; 0 = no limit */
    bool is_chat;  /* else a dictionary */
    bool as_json;  /* of a chat */
    struct pod_lines lines;
    struct arena arena; /* of the current line */
    enum step step;
    bool has_begun;
    struct backoff backoff;
    /* of a dictionary */
    struct map seen; /* printed since the version `after` was complete */
    struct arena seen_arena;
    int64_t printed_up_to_date;
};

static void print_line(struct str line)
{
    (void)fwrite(line.ptr, 1, line.len, stdout);
    (void)fputc('\n', stdout);
}

static enum step print_counted(struct follow *follow, struct str line)
{
    print_line(line);
    return follow->count && --follow->count == 0 ? STEP_DONE : STEP_ON;
}

/* ---- a dictionary ---- */

static enum step take_change(struct follow *follow, struct str line, const struct json_value *object)
{
    struct json_value key;
    int64_t version;
    if (json_get_i64(object, STR("version"), &version) && json_get_string(object, STR("key"), &key)) {
        struct str name = json_str_decode(key.raw, &follow->arena);
        uint64_t hash = hash_item(str_of((const char *)&version, sizeof version), name).low;
        if (map_first(&follow->seen, hash)) /* it was printed before the connection broke */
            return STEP_ON;
        map_add(&follow->seen, arena_alloc(&follow->seen_arena, sizeof(struct map_node)), hash);
        return print_counted(follow, line);
    }
    bool is_up_to_date = json_get_i64(object, STR("upToDate"), &version);
    if (!is_up_to_date && !json_get_i64(object, STR("heartbeat"), &version))
        return STEP_STRANGE;
    /* All changes up to this version have arrived: a new connection can continue from here. */
    follow->after = version;
    map_deinit(&follow->seen);
    arena_reset(&follow->seen_arena);
    if (is_up_to_date && version > follow->printed_up_to_date) {
        print_line(line);
        follow->printed_up_to_date = version;
    }
    return STEP_ON;
}

/* ---- a chat ---- */

static void put_text(struct buf *out, struct str text)
{
    terminal_put_lines(out, text, STR("\n    "));
}

static enum step take_event(struct follow *follow, struct str line, const struct json_value *object)
{
    struct json_value event_id;
    struct buf text = {0};
    int64_t sequence;
    struct str type = json_get_text(object, STR("event_type"), &follow->arena);
    if (!type.len)
        return STEP_STRANGE;
    if (!json_get(object, STR("event_id"), &event_id))
        return STEP_ON; /* up to date, a heartbeat, or a warning before the end */
    if (!json_get_i64(object, STR("sequence"), &sequence))
        return STEP_STRANGE;
    if (sequence <= follow->after)
        return STEP_ON;
    follow->after = sequence;
    if (!follow->as_json) { /* "07:10:00 #1 user: hello": the time of day is UTC's */
        struct arena *arena = &follow->arena;
        struct str at = json_get_text(object, STR("created_at"), arena);
        struct json_value payload = {0};
        (void)json_get(object, STR("payload"), &payload);
        bool is_switch = str_eq(type, STR("agent_switched"));
        put_text(&text, at.len >= 19 ? str_of(at.ptr + 11, 8) : at);
        buf_printf(&text, " #%lld %s", (long long)sequence, is_switch ? "— " : "");
        put_text(&text, json_get_text(&payload, is_switch ? STR("from") : STR("role"), arena));
        buf_put_str(&text, is_switch ? STR(" hands over to ") : STR(": "));
        put_text(&text, json_get_text(&payload, is_switch ? STR("to") : STR("content"), arena));
    }
    enum step step = print_counted(follow, follow->as_json ? line : buf_str(&text));
    buf_deinit(&text);
    return step;
}

/* ---- following ---- */

static bool take_line(void *context, struct str line)
{
    struct follow *follow = context;
    struct json_value object;
    follow->step = STEP_STRANGE;
    if (json_parse_stored(line, JSON_DEPTH_LIMIT, &object, NULL) == STATUS_OK)
        follow->step = (follow->is_chat ? take_event : take_change)(follow, line, &object);
    arena_reset(&follow->arena);
    return follow->step == STEP_ON;
}

static bool take_bytes(void *context, struct str bytes)
{
    struct follow *follow = context;
    follow->has_begun = true;
    backoff_reset(&follow->backoff);
    bool goes_on = pod_take_lines(&follow->lines, bytes);
    return fflush(stdout) == 0 && !ferror(stdout) && goes_on;
}

/* One connection; OPTIONS_RUN = another one may continue, else the exit status: 0 done, 1 refused or never there, 3 for a 410. */
static int follow_once(struct follow *follow)
{
    const struct client *client = &follow->client;
    struct pod_call call = client->call;
    struct error error = {0};
    struct buf target = {0}, body;
    int http_status = 0;
    buf_clear(&follow->lines.line);
    if (follow->is_chat)
        buf_printf(&target, "/my/projects/%s/chat/%s/stream", client->words.items[1], client->words.items[2]);
    else
        buf_put_str(&target, STR("/watch"));
    if (follow->after >= 0)
        buf_printf(&target, "?after=%lld", (long long)follow->after);
    call.code = client->code;
    *(follow->is_chat ? &call.path : &call.rest) = buf_str(&target);
    call.accept = "application/x-ndjson";
    call.on_body = take_bytes;
    call.context = follow;
    call.http_status = &http_status;
    enum status status = pod_get(&call, &body, &error);
    buf_deinit(&body);
    buf_deinit(&target);
    if (follow->step == STEP_DONE)
        return 0;
    if (follow->step == STEP_STRANGE)
        error_set(&error, STATUS_BAD_REQUEST, CLIENT_STRANGE_ANSWER);
    if (ferror(stdout))
        error_set(&error, STATUS_CANCELLED, "standard output cannot be written");
    if ((status != STATUS_OK && !pod_is_away(status)) || !follow->has_begun) {
        (void)app_fail(client->command, "%s", error.message);
        return http_status == 410 ? EXIT_TOO_OLD : 1;
    }
    (void)app_fail(client->command, "%s; continuing from %s %lld",
                   status == STATUS_OK ? "the pod ended the stream" : error.message,
                   follow->is_chat ? "sequence" : "version",
                   (long long)(follow->after < 0 ? 0 : follow->after));
    return OPTIONS_RUN;
}

static int run_follow(struct client *client)
{
    struct follow *follow = CONTAINER_OF(client, struct follow, client);
    int exit_status = OPTIONS_RUN;
    follow->lines = (struct pod_lines){.take_line = take_line, .context = follow};
    follow->backoff = (struct backoff){.min_ms = 100, .max_ms = 5000};
    follow->printed_up_to_date = -1;
    follow->arena = ARENA(2048);
    follow->seen_arena = ARENA(2048);
    while (exit_status == OPTIONS_RUN) {
        /* for each connection: the token's end may have ended the last one */
        exit_status = client_connect(client) ? follow_once(follow) : 1;
        if (exit_status == OPTIONS_RUN)
            pod_pause(backoff_next_ms(&follow->backoff));
    }
    if (exit_status == EXIT_TOO_OLD && follow->is_chat)
        (void)app_fail(client->command,
                       "read its history, then follow without --after, from the oldest event that is kept");
    else if (exit_status == EXIT_TOO_OLD)
        (void)app_fail(
            client->command,
            "read the dictionary again (`freshet get %.*s %.*s --all`), then watch from the version that was read",
            STR_ARG(client->tenant), STR_ARG(client->code));
    map_deinit(&follow->seen);
    arena_deinit(&follow->seen_arena);
    arena_deinit(&follow->arena);
    buf_deinit(&follow->lines.line);
    return exit_status;
}

/* ---- the commands ---- */

int app_watch(int argc, char **argv)
{
    struct follow follow = {.after = -1, .client.call = {.patience_ms = POD_ANSWER_MS, .single = true}};
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
            .run = run_follow,
        });
}

static int run_tail(struct client *client)
{
    struct follow *follow = CONTAINER_OF(client, struct follow, client);
    struct uuid id;
    follow->is_chat = client->words.count == 3;
    if (!str_is_name(client->tenant) || (!follow->is_chat && !str_is_name(client->code)))
        return app_misuse("tail", CLIENT_NAME_MISTAKE);
    if (follow->is_chat &&
        (!uuid_parse(client->code, &id) || !uuid_parse(str_from(client->words.items[2]), &id)))
        return app_misuse("tail", "PROJECT and SESSION must be UUIDs");
    return run_follow(client);
}

int app_tail(int argc, char **argv)
{
    struct follow follow = {.after = -1, .client.call = {.patience_ms = POD_ANSWER_MS, .single = true}};
    const struct option_row rows[] = {
        {"--after", "N", "events after sequence N (default: from the oldest), or changes after version N",
         .number = &follow.after},
        {"--count", "N", "end after N events", .number = &follow.count, .min = 1},
        {"--json", NULL, "lines as the pod sends them; those of a dictionary always are",
         .flag = &follow.as_json},
        CLIENT_ROWS(follow.client),
    };
    return client_main(
        argc, argv, &follow.client,
        &(struct client_command){
            .usage = "TENANT PROJECT SESSION|TENANT DICT",
            .words_min = 2,
            .words_max = 3,
            .summary =
                "Follows a chat in the terminal, a line a message; with TENANT and DICT, the changes of a dictionary, as\n"
                "`freshet watch` does. A lost connection is made again and continues where it ended. Exit status 0 after\n"
                "--count events, 1 when the pod refuses or never answered, 3 when events after --after are no longer\n"
                "kept. The chat must belong to the token's user; that of a development token is `developer`.\n\n"
                "  freshet tail demo 0a4f5a3e-52a4-4a0e-8d3c-2f0c1d8f7a01 6f1b7c1e-8f0a-4f57-9a51-7d3f3f0b9b10\n"
                "  freshet tail demo COUNTRY",
            .rows = rows,
            .run = run_tail,
        });
}
