/* POST …/message. The agent is chosen, and called, before the transaction; everything that is written is one call of
 * chat.post_message() (sql/chat), whose answer is stored under the Idempotency-Key in the same commit. */
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/json_texts.h"
#include "base/log.h"
#include "modules/chat/chat.h"

enum { DATABASE_MS = 5000 };

struct metric_family chat_messages_family = {
    .name = "chat_messages_total",
    .help =
        "Messages received by POST: answered, agent_failed (kept, with a system message), not_found, rejected (other 4xx), "
        "unavailable (5xx). Replays are not counted.",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};

static void count_message(const char *result)
{
    metric_add(metric_series_get(&chat_messages_family, (struct str[]){str_from(result)}), 1);
}

/* The statement sees the session as it was before the message: did its agent change? By the primary key; for metrics. */
static const struct db_statement post_sql =
    DB_STATEMENT("select p.status, p.body, coalesce(s.agent <> $6, false)::int"
                 " from chat.post_message($1, $2, $3, $4, $5, $6, $7::text::numeric, $8, $9, $10) p"
                 " left join chat.chat_sessions s on s.tenant_id = $1 and s.session_id = $3");
enum post_column { POST_STATUS, POST_BODY, POST_IS_SWITCHED };

/* ---- the body ---- */

enum { CONTENT, TEXTS };
static const struct json_text members[] = {
    [CONTENT] = {"content", 0, UINT32_MAX, .is_optional = false}, /* its bytes are checked below */
    {.name = NULL},
};

struct posting {
    struct chat_key caller;
    struct str content;
    struct chat_choice choice;
    struct str role, reply; /* of the answer */
};

static enum status read_post(struct http_request *request, struct posting *posting, struct error *error)
{
    static const char *const no_parameters[] = {NULL};
    const struct chat *chat = request->context;
    size_t bytes_max = (size_t)chat->settings->content_bytes_max;
    struct str texts[TEXTS];
    struct buf others = {0};
    enum status status = http_request_query_only(request, no_parameters, error);
    if (status == STATUS_OK)
        status = chat_key_read(request, &posting->caller, error);
    if (status == STATUS_OK)
        status = json_texts_read(request->body, members, texts, &others, request->arena, error);
    buf_deinit(&others);
    if (status != STATUS_OK)
        return status;
    posting->content = texts[CONTENT];
    if (posting->content.len == 0 || posting->content.len > bytes_max)
        return error_set_field(error, STATUS_BAD_REQUEST, "content", "must be 1 to %zu bytes", bytes_max);
    return kernel_store_require(chat->kernel, error);
}

/* ---- the transaction ---- */

static void commit_message(struct http_request *request, const struct posting *posting)
{
    struct chat *chat = request->context;
    const struct chat_key *caller = &posting->caller;
    struct idempotency_outcome outcome;
    const struct db_param *params =
        DB_PARAMS(db_text(caller->tenant), db_uuid(caller->project), db_uuid(caller->session),
                  db_uuid(caller->user), db_text(posting->content), db_text(posting->choice.agent->name),
                  db_text(arena_printf(request->arena, "%g", (double)posting->choice.score / 1000)),
                  db_text(posting->role), db_text(posting->reply),
                  db_text(trace_text(&request->trace, request->arena)));
    /* The key's scope includes the session: the route's pattern is the same for all sessions. */
    struct str owner = arena_printf(request->arena, "%s/%s", caller->user.ptr, caller->session.ptr);
    FAILPOINT("chat.before_commit");
    idempotency_run(&(struct idempotency_call){.pool = kernel_store(chat->kernel)->pool,
                                               .table = &chat->keys,
                                               .request = request,
                                               .tenant = caller->tenant,
                                               .subject = owner,
                                               .statement = &post_sql,
                                               .params = params,
                                               .deadline_ns = clock_deadline_ms(DATABASE_MS)},
                    &outcome);
    FAILPOINT("chat.after_commit");
    if (outcome.has_effect && outcome.rows && outcome.status < 400) {
        outbox_count_enqueued(&chat_outbox_table, STR("message_created"), 2); /* the user's and the answer */
        outbox_count_enqueued(&chat_outbox_table, STR("agent_switched"),
                              (size_t)db_result_i64(outcome.rows, 0, POST_IS_SWITCHED));
    }
    if (outcome.has_effect) {
        log_debug("outbox_event_enqueued", LOG_CSTR("module", chat_outbox_table.module),
                  LOG_STR("tenantId", caller->tenant), LOG_STR("sessionId", caller->session));
        outbox_wake(chat->publisher);
    }
    if (!outcome.replayed)
        count_message(outcome.error.status != STATUS_OK      ? "unavailable"
                      : outcome.status == 404                ? "not_found"
                      : str_eq(posting->role, STR("system")) ? "agent_failed"
                                                             : "answered");
    idempotency_send(request, &outcome, STR_NONE);
}

/* On a thread of `agent_callers`, so that an agent that hangs delays only messages to such agents. */
static void call_agent_and_commit(struct http_request *request)
{
    const struct chat *chat = request->context;
    struct posting *posting = request->handler_data;
    const struct chat_agent *agent = posting->choice.agent;
    struct error error = {0};
    if (chat_agent_call(agent, &posting->caller, posting->content, request,
                        (size_t)chat->settings->content_bytes_max, &posting->reply, &error) != STATUS_OK) {
        posting->role = STR("system");
        posting->reply = arena_printf(request->arena, "The agent %.*s did not answer.", STR_ARG(agent->name));
    }
    commit_message(request, posting);
}

void chat_post_message(struct http_request *request)
{
    struct chat *chat = request->context;
    struct posting *posting = arena_zalloc(request->arena, sizeof *posting);
    struct error error = {0};
    enum status status = read_post(request, posting, &error);
    if (status != STATUS_OK) {
        count_message(status == STATUS_UNAVAILABLE ? "unavailable" : "rejected");
        http_send_error(request, &error);
        return;
    }
    posting->choice = chat_agent_choose(chat->settings, posting->content, request->arena);
    posting->role = STR("assistant");
    const struct chat_agent *agent = posting->choice.agent;
    if (agent->url.len) {
        request->handler_data = posting;
        http_request_hand_on(request, chat->agent_callers, call_agent_and_commit);
        return;
    }
    posting->reply = chat_agent_fill(agent->reply, posting->content,
                                     (size_t)chat->settings->content_bytes_max, request->arena);
    commit_message(request, posting);
}
