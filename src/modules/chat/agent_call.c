/* Asking an agent elsewhere, before any transaction: one POST with a deadline. Whatever goes wrong with it is told in the
 * chat by a system message, and in the log by its reason; the user's message is kept either way. */
#include "modules/chat/agent_call.h"

#include "base/json.h"
#include "base/log.h"
#include "fetch/fetch.h"

enum { CONNECT_MS = 2000, ENVELOPE_BYTES = 4096, ESCAPED_BYTES = 6 };

static void write_question(struct buf *body, const struct chat_agent *agent, const struct chat_caller *caller,
                           struct str content)
{
    buf_put_char(body, '{');
    json_put_member_str(body, "agent", agent->name);
    json_put_member_str(body, "tenant_id", caller->tenant);
    json_put_member_str(body, "project_id", str_from(caller->project));
    json_put_member_str(body, "session_id", str_from(caller->session));
    json_put_member_str(body, "user_id", str_from(caller->user));
    json_put_member_str(body, "content", content);
    buf_put_char(body, '}');
}

/* {"reply": "…"}, something that can be stored. */
static enum status read_reply(const struct fetch_answer *answer, size_t bytes_max, struct arena *arena,
                              struct str *reply, struct error *error)
{
    struct json_value body, member;
    if (answer->status < 200 || answer->status > 299)
        return error_set(error, STATUS_UNAVAILABLE, "answered %d", answer->status);
    enum status status = json_parse(buf_str(&answer->body), JSON_DEPTH_MAX, &body, error);
    if (status != STATUS_OK)
        return status;
    if (!json_get(&body, STR("reply"), &member) || member.type != JSON_STRING)
        return error_set(error, STATUS_BAD_REQUEST, "answered without a reply");
    if (json_has_nul_escape(member.raw))
        return error_set(error, STATUS_BAD_REQUEST, "replied what cannot be stored");
    *reply = arena_str(arena, json_str_decode(member.raw, arena));
    if (reply->len == 0 || reply->len > bytes_max)
        return error_set(error, STATUS_BAD_REQUEST, "replied %zu bytes", reply->len);
    return STATUS_OK;
}

enum status chat_agent_ask(const struct chat_agent *agent, const struct chat_caller *caller,
                           struct str content, size_t bytes_max, struct arena *arena, struct str *reply,
                           struct error *error)
{
    static const char *const headers[] = {"Content-Type: application/json", "Accept: application/json", NULL};
    struct fetch_answer answer = {0};
    struct buf body;
    buf_init(&body);
    buf_init(&answer.body);
    write_question(&body, agent, caller, content);
    enum status status = fetch_run(
        &(struct fetch_request){
            .method = "POST",
            .url = agent->url,
            .headers = headers,
            .body = buf_str(&body),
            .connect_timeout_ms = agent->timeout_ms < CONNECT_MS ? agent->timeout_ms : CONNECT_MS,
            .timeout_ms = agent->timeout_ms,
            .answer_bytes_max = bytes_max * ESCAPED_BYTES + ENVELOPE_BYTES,
        },
        &answer, error);
    if (status == STATUS_OK)
        status = read_reply(&answer, bytes_max, arena, reply, error);
    if (status != STATUS_OK)
        log_warn("chat_agent_failed", LOG_STR("agent", agent->name), LOG_STR("tenantId", caller->tenant),
                 LOG_CSTR("sessionId", caller->session), LOG_ERROR_FIELDS(error));
    buf_deinit(&answer.body);
    buf_deinit(&body);
    return status;
}
