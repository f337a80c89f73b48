/* `freshet tail`: a chat as it happens, a line a message; or a dictionary, as `freshet watch` prints it. A connection that is
 * lost is made again and goes on behind the last event that was printed. */
#include <stdio.h>

#include "app/commands.h"
#include "app/follow.h"
#include "app/options.h"
#include "app/watch.h"
#include "base/json.h"
#include "base/uuid.h"

struct tail {
    const char *project, *session;
    int64_t after; /* printed up to here; -1 = nothing yet */
    uint64_t count_left;
    bool as_json;
    struct arena arena;
};

/* ---- lines for a person ---- */

/* What a message holds is somebody else's: nothing of it may move the cursor of this terminal. */
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

static struct str text_of(struct tail *tail, const struct json_value *object, struct str name)
{
    struct json_value member;
    return json_get(object, name, &member) && member.type == JSON_STRING
               ? json_str_decode(member.raw, &tail->arena)
               : STR_NONE;
}

/* "07:10:00 #1 user: hello": the time of day is UTC's. */
static void print_event(struct tail *tail, const struct json_value *event, int64_t sequence)
{
    struct str at = text_of(tail, event, STR("created_at"));
    struct json_value payload = {0};
    struct buf line;
    buf_init(&line);
    (void)json_get(event, STR("payload"), &payload);
    put_safely(&line, at.len >= 19 ? str_of(at.ptr + 11, 8) : at);
    buf_printf(&line, " #%lld ", (long long)sequence);
    if (str_eq(text_of(tail, event, STR("event_type")), STR("agent_switched"))) {
        buf_put_str(&line, STR("— "));
        put_safely(&line, text_of(tail, &payload, STR("from")));
        buf_put_str(&line, STR(" hands over to "));
        put_safely(&line, text_of(tail, &payload, STR("to")));
    } else {
        put_safely(&line, text_of(tail, &payload, STR("role")));
        buf_put_str(&line, STR(": "));
        put_safely(&line, text_of(tail, &payload, STR("content")));
    }
    (void)follow_print(buf_str(&line));
    buf_deinit(&line);
}

/* ---- the stream ---- */

static enum follow_step take_object(struct tail *tail, struct str line, const struct json_value *object)
{
    struct json_value member;
    int64_t sequence;
    struct str type = text_of(tail, object, STR("event_type"));
    if (!type.len)
        return FOLLOW_STRANGE;
    if (!json_get(object, STR("event_id"), &member))
        return FOLLOW_ON; /* up to date, alive, or about to be cut off: what follows is known */
    if (!json_get(object, STR("sequence"), &member) || !json_to_i64(&member, &sequence))
        return FOLLOW_STRANGE;
    if (sequence <= tail->after)
        return FOLLOW_ON;
    if (tail->as_json)
        (void)follow_print(line);
    else
        print_event(tail, object, sequence);
    tail->after = sequence;
    return --tail->count_left == 0 ? FOLLOW_DONE : FOLLOW_ON;
}

static enum follow_step take_line(void *context, struct str line)
{
    struct tail *tail = context;
    struct json_value object;
    if (json_parse_stored(line, JSON_DEPTH_LIMIT, &object, NULL) != STATUS_OK)
        return FOLLOW_STRANGE;
    enum follow_step step = take_object(tail, line, &object);
    arena_reset(&tail->arena);
    return step;
}

static void set_call(void *context, struct pod_call *call, struct buf *text)
{
    const struct tail *tail = context;
    buf_printf(text, "/my/projects/%s/chat/%s/stream", tail->project, tail->session);
    if (tail->after >= 0)
        buf_printf(text, "?after=%lld", (long long)tail->after);
    call->path = buf_str(text);
}

static void put_place(void *context, struct buf *out)
{
    const struct tail *tail = context;
    buf_printf(out, "sequence %lld", (long long)(tail->after < 0 ? 0 : tail->after));
}

static void explain_too_old(void *context)
{
    (void)context;
    fprintf(stderr,
            "freshet tail: read its history, then follow without --after, from the oldest that is kept\n");
}

/* ---- the call ---- */

static const char summary[] =
    "Follows a chat in the terminal, a line a message, for as long as messages come; with TENANT and DICT alone, the changes\n"
    "of a dictionary, as `freshet watch` does. A connection that is lost is made again, and goes on where it was. Exit\n"
    "status 0 behind --count events, 1 when the pod refuses or was never there, 3 when events since --after are no longer\n"
    "kept. The chat must be the token's user's; a development token's is `developer`.\n\n"
    "  freshet tail demo 0a4f5a3e-52a4-4a0e-8d3c-2f0c1d8f7a01 6f1b7c1e-8f0a-4f57-9a51-7d3f3f0b9b10\n"
    "  freshet tail demo COUNTRY";

static const char *find_mistake(struct tail *tail, const struct watch_call *call)
{
    struct uuid id;
    if (!str_is_name(str_from(call->tenant)))
        return "TENANT is 1 to 64 of A-Z a-z 0-9 . _ -";
    if (!uuid_parse(str_from(tail->project), &id) || !uuid_parse(str_from(tail->session), &id))
        return "PROJECT and SESSION are UUIDs";
    if (call->after && (!str_to_i64(str_from(call->after), &tail->after) || tail->after < 0))
        return "--after takes a sequence";
    if (call->count && (!str_to_u64(str_from(call->count), &tail->count_left) || tail->count_left == 0))
        return "--count takes a number from 1";
    return NULL;
}

static int follow_chat(struct tail *tail, const struct watch_call *call)
{
    const char *mistake = find_mistake(tail, call);
    if (mistake) {
        fprintf(stderr, "freshet tail: %s; `freshet tail --help` says more\n", mistake);
        return 2;
    }
    arena_init(&tail->arena, 2048);
    int exit_status = follow_run(&(struct follow){.command = "tail",
                                                  .url = call->url,
                                                  .token = call->token,
                                                  .tenant = str_from(call->tenant),
                                                  .context = tail,
                                                  .set_call = set_call,
                                                  .take_line = take_line,
                                                  .put_place = put_place,
                                                  .explain_too_old = explain_too_old});
    arena_deinit(&tail->arena);
    return exit_status;
}

int app_tail(int argc, char **argv)
{
    struct option_words words;
    struct watch_call call = {.command = "tail"};
    struct tail tail = {.after = -1, .count_left = UINT64_MAX};
    const struct option_row rows[] = {
        {"--after", "N", "events behind sequence N (default: from the oldest), or changes behind version N",
         .into = &call.after},
        {"--count", "N", "end after N events", .into = &call.count},
        {"--json", NULL, "lines as the pod sends them; a dictionary's always are", .flag = &tail.as_json},
        {"--url", "URL", POD_URL_HELP, .into = &call.url},
        {"--token", "TOKEN", POD_TOKEN_HELP, .into = &call.token},
        {.name = NULL},
    };
    enum options_outcome outcome =
        options_read_words(argc, argv, "TENANT PROJECT SESSION|TENANT DICT", summary, rows, &words);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    if (words.count < 2 || words.count > 3) {
        fprintf(stderr, "freshet tail: TENANT, PROJECT and SESSION are needed, or TENANT and DICT; "
                        "`freshet tail --help` says more\n");
        return 2;
    }
    call.tenant = words.items[0];
    call.code = words.items[1];
    if (words.count == 2)
        return watch_run(&call);
    tail.project = words.items[1];
    tail.session = words.items[2];
    return follow_chat(&tail, &call);
}
