/* `freshet tail`: a chat as it happens, a line a message; or a dictionary, as `freshet watch` prints it. A lost connection is made
 * again and continues after the last event that was printed. */
#include <stdio.h>

#include "app/commands.h"
#include "app/watch.h"
#include "base/memory.h"
#include "base/uuid.h"

struct tail {
    struct follow follow;
    bool as_json;
};

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
static void put_event(struct buf *line, const struct json_value *event, int64_t sequence, struct arena *arena)
{
    struct str at = json_get_text(event, STR("created_at"), arena);
    struct json_value payload = {0};
    (void)json_get(event, STR("payload"), &payload);
    bool is_switch = str_eq(json_get_text(event, STR("event_type"), arena), STR("agent_switched"));
    put_safely(line, at.len >= 19 ? str_of(at.ptr + 11, 8) : at);
    buf_printf(line, " #%lld %s", (long long)sequence, is_switch ? "— " : "");
    put_safely(line, json_get_text(&payload, is_switch ? STR("from") : STR("role"), arena));
    buf_put_str(line, is_switch ? STR(" hands over to ") : STR(": "));
    put_safely(line, json_get_text(&payload, is_switch ? STR("to") : STR("content"), arena));
}

static enum follow_step take_event(void *context, struct str line, const struct json_value *object,
                                   struct arena *arena)
{
    struct tail *tail = context;
    struct json_value member;
    struct buf text = {0};
    int64_t sequence;
    if (!json_get_text(object, STR("event_type"), arena).len)
        return FOLLOW_STRANGE;
    if (!json_get(object, STR("event_id"), &member))
        return FOLLOW_ON; /* up to date, a heartbeat, or a warning before the end */
    if (!json_get(object, STR("sequence"), &member) || !json_to_i64(&member, &sequence))
        return FOLLOW_STRANGE;
    if (sequence <= tail->follow.after)
        return FOLLOW_ON;
    tail->follow.after = sequence;
    if (!tail->as_json)
        put_event(&text, object, sequence, arena);
    enum follow_step step = follow_print(&tail->follow, tail->as_json ? line : buf_str(&text));
    buf_deinit(&text);
    return step;
}

/* ---- the command ---- */

static int run_tail(struct client *client)
{
    struct tail *tail = CONTAINER_OF(client, struct tail, follow.client);
    struct buf path = {0};
    struct uuid id;
    if (!str_is_name(client->tenant) || (client->words.count == 2 && !str_is_name(client->code)))
        return app_misuse("tail", CLIENT_NAME_MISTAKE);
    if (client->words.count == 2)
        return watch_run(&tail->follow);
    const char *project = client->words.items[1], *session = client->words.items[2];
    if (!uuid_parse(str_from(project), &id) || !uuid_parse(str_from(session), &id))
        return app_misuse("tail", "PROJECT and SESSION must be UUIDs");
    buf_printf(&path, "/my/projects/%s/chat/%s/stream", project, session);
    tail->follow.path = buf_str(&path);
    tail->follow.context = tail;
    tail->follow.unit = "sequence";
    tail->follow.too_old =
        "read its history, then follow without --after, from the oldest event that is kept";
    tail->follow.take_line = take_event;
    int exit_status = follow_run(&tail->follow);
    buf_deinit(&path);
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
            .run = run_tail,
        });
}
