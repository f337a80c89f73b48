/* `freshet tail`: a chat as it happens, a line a message; or a dictionary, as `freshet watch` prints it. A lost connection is made
 * again and continues after the last event that was printed. */
#include <stdio.h>

#include "app/commands.h"
#include "app/watch.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/uuid.h"

struct tail {
    struct follow follow;
    const char *project, *session;
    bool as_json;
    struct arena arena; /* of the line at hand */
};

/* ---- lines for a person ---- */

/* The text of a message is untrusted: it must not move the cursor of this terminal. */
static void put_safely(struct buf *out, struct str text)
{
    while (text.len) {
        size_t len = str_utf8_char(text);
        unsigned char c = (unsigned char)text.ptr[0], next = len == 2 ? (unsigned char)text.ptr[1] : 0;
        bool is_control = c < 0x20 || c == 0x7f || (c == 0xc2 && next < 0xa0); /* C0, DEL, C1 */
        len = len ? len : 1;
        if (c == '\n')
            buf_put_str(out, STR("\n    "));
        else if (c == '\t')
            buf_put_char(out, '\t');
        else if (is_control)
            buf_put_char(out, '?');
        else
            buf_put(out, text.ptr, len);
        text = str_of(text.ptr + len, text.len - len);
    }
}

/* "07:10:00 #1 user: hello": the time of day is UTC's. */
static void print_event(struct tail *tail, const struct json_value *event, int64_t sequence)
{
    struct str at = json_get_text(event, STR("created_at"), &tail->arena);
    struct json_value payload = {0};
    struct buf line = {0};
    (void)json_get(event, STR("payload"), &payload);
    put_safely(&line, at.len >= 19 ? str_of(at.ptr + 11, 8) : at);
    buf_printf(&line, " #%lld ", (long long)sequence);
    if (str_eq(json_get_text(event, STR("event_type"), &tail->arena), STR("agent_switched"))) {
        buf_put_str(&line, STR("— "));
        put_safely(&line, json_get_text(&payload, STR("from"), &tail->arena));
        buf_put_str(&line, STR(" hands over to "));
        put_safely(&line, json_get_text(&payload, STR("to"), &tail->arena));
    } else {
        put_safely(&line, json_get_text(&payload, STR("role"), &tail->arena));
        buf_put_str(&line, STR(": "));
        put_safely(&line, json_get_text(&payload, STR("content"), &tail->arena));
    }
    follow_print(buf_str(&line));
    buf_deinit(&line);
}

/* ---- the stream ---- */

static enum follow_step take_event(struct tail *tail, struct str line, const struct json_value *object)
{
    struct json_value member;
    int64_t sequence;
    struct str type = json_get_text(object, STR("event_type"), &tail->arena);
    if (!type.len)
        return FOLLOW_STRANGE;
    if (!json_get(object, STR("event_id"), &member))
        return FOLLOW_ON; /* up to date, a heartbeat, or a warning before the end */
    if (!json_get(object, STR("sequence"), &member) || !json_to_i64(&member, &sequence))
        return FOLLOW_STRANGE;
    if (sequence <= tail->follow.after)
        return FOLLOW_ON;
    if (tail->as_json)
        follow_print(line);
    else
        print_event(tail, object, sequence);
    tail->follow.after = sequence;
    return follow_count(&tail->follow);
}

static enum follow_step take_tail_line(void *context, struct str line)
{
    struct tail *tail = context;
    struct json_value object;
    if (json_parse_stored(line, JSON_DEPTH_LIMIT, &object, NULL) != STATUS_OK)
        return FOLLOW_STRANGE;
    enum follow_step step = take_event(tail, line, &object);
    arena_reset(&tail->arena);
    return step;
}

static void set_tail_call(void *context, struct pod_call *call, struct buf *text)
{
    const struct tail *tail = context;
    buf_printf(text, "/my/projects/%s/chat/%s/stream", tail->project, tail->session);
    if (tail->follow.after >= 0)
        buf_printf(text, "?after=%lld", (long long)tail->follow.after);
    call->path = buf_str(text);
}

static void explain_sequence_too_old(void *context)
{
    (void)context;
    (void)app_fail("tail",
                   "read its history, then follow without --after, from the oldest event that is kept");
}

/* ---- the command ---- */

static const char *check_tail(struct client *client)
{
    struct tail *tail = CONTAINER_OF(client, struct tail, follow.client);
    struct uuid id;
    if (!str_is_name(client->tenant) || (client->words.count == 2 && !str_is_name(client->code)))
        return CLIENT_NAME_MISTAKE;
    if (client->words.count == 2)
        return NULL;
    tail->project = client->words.items[1];
    tail->session = client->words.items[2];
    return uuid_parse(str_from(tail->project), &id) && uuid_parse(str_from(tail->session), &id)
               ? NULL
               : "PROJECT and SESSION must be UUIDs";
}

static int run_tail(struct client *client)
{
    struct tail *tail = CONTAINER_OF(client, struct tail, follow.client);
    if (!tail->project)
        return watch_run(&tail->follow);
    arena_init(&tail->arena, 2048);
    tail->follow.context = tail;
    tail->follow.unit = "sequence";
    tail->follow.set_call = set_tail_call;
    tail->follow.take_line = take_tail_line;
    tail->follow.explain_too_old = explain_sequence_too_old;
    int exit_status = follow_run(&tail->follow);
    arena_deinit(&tail->arena);
    return exit_status;
}

int app_tail(int argc, char **argv)
{
    struct tail tail = {.follow.after = -1};
    const struct option_row rows[] = {
        {"--after", "N", "events after sequence N (default: from the oldest), or changes after version N",
         .number = &tail.follow.after},
        {"--count", "N", "end after N events", .number = &tail.follow.count, .min = 1},
        {"--json", NULL, "lines as the pod sends them; those of a dictionary always are",
         .flag = &tail.as_json},
        CLIENT_ROWS(tail.follow.client),
    };
    return client_main(
        argc, argv, &tail.follow.client,
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
            .check = check_tail,
            .run = run_tail,
        });
}
