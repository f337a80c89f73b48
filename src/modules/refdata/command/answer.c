/* The answer to a POST of an update, by its result and its decision. */
#include <string.h>

#include "base/json.h"
#include "idempotency/idempotency.h"
#include "modules/refdata/command/command.h"

enum update_result { ACCEPTED, REPLAYED, REJECTED, UNAVAILABLE };
static const char *const result_names[] = {
    [ACCEPTED] = "accepted", [REPLAYED] = "replayed", [REJECTED] = "rejected", [UNAVAILABLE] = "unavailable"};

struct metric_family refdata_updates_family = {
    .name = "refdata_updates_total",
    .help = "Updates received by POST: accepted, replayed (known before), rejected (4xx), unavailable (503).",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};

static void count_update(enum update_result result)
{
    metric_add(metric_series_get(&refdata_updates_family, (struct str[]){str_from(result_names[result])}), 1);
}

void refdata_answer_count_unavailable(void)
{
    count_update(UNAVAILABLE);
}

static void send_json(struct http_request *request, int status, struct buf *headers, struct buf *body)
{
    buf_put_char(body, '}');
    http_send(request,
              &(struct http_response){.status = status, .headers = buf_str(headers), .body = buf_str(body)});
    buf_deinit(headers);
    buf_deinit(body);
}

static void send_state(struct http_request *request, const struct refdata_post *post,
                       const struct refdata_state *state)
{
    struct str event_id = str_from(state->event_id);
    struct buf headers = {0}, body = {0};
    int status = 200;
    count_update(post->result == REFDATA_POST_REPLAYED ? REPLAYED : ACCEPTED);
    if (post->acceptance.is_key_known)
        buf_put_str(&headers, STR("Idempotency-Replayed: true\r\n"));
    buf_put_char(&body, '{');
    /* The code comes from the row, since a newer program may have written a code that this one does not know. */
    if (state->decision == REFDATA_FAILED) {
        status = strcmp(state->code, status_code(STATUS_STALE_SOURCE_REVISION)) == 0 ? 409 : 422;
        json_put_member_str(&body, "code", str_from(state->code));
        json_put_member_str(&body, "message", str_from(state->reason));
    }
    json_put_member_str(&body, "eventId", event_id);
    json_put_member_str(&body, "status", str_from(refdata_decision_name(state->decision)));
    if (state->decision == REFDATA_COMMITTED)
        json_put_member_i64(&body, "committedVersion", state->version);
    if (state->decision == REFDATA_PENDING) {
        struct str url =
            arena_printf(request->arena, "/v1/tenants/%s/updates/%s", post->tenant, state->event_id);
        status = 202;
        json_put_member_str(&body, "statusUrl", url);
        buf_printf(&headers, "Location: %.*s\r\n", STR_ARG(url));
    }
    send_json(request, status, &headers, &body);
}

void refdata_answer_error(struct http_request *request, const struct error *error)
{
    count_update(status_http(error->status) < 500 ? REJECTED : UNAVAILABLE);
    if (error->status == STATUS_IDEMPOTENCY_KEY_CONFLICT ||
        error->status == STATUS_IDEMPOTENCY_KEY_PROCESSING)
        idempotency_send_error(request, error, request->idempotency_key);
    else
        http_send_error(request, error);
}

void refdata_answer_unknown(struct http_request *request, const struct refdata_post *post)
{
    struct buf headers = {0}, body = {0};
    count_update(UNAVAILABLE);
    buf_put_str(&headers, STR("Retry-After: 1\r\n"));
    buf_put_char(&body, '{');
    json_put_member_str(&body, "code", str_from(status_code(STATUS_UNAVAILABLE)));
    json_put_member_str(
        &body, "message",
        STR("it is not known whether the update was accepted; send it again with this eventId: it takes "
            "effect once"));
    if (post->update.event_id[0])
        json_put_member_str(&body, "eventId", str_from(post->update.event_id));
    send_json(request, 503, &headers, &body);
}

/* The answer of a post that has its result. While it is listed another thread may write the waiter's decision. */
void refdata_answer_post(struct http_request *request, const struct refdata_post *post)
{
    bool is_accepted = post->result == REFDATA_POST_ACCEPTED || post->result == REFDATA_POST_REPLAYED;
    bool is_decided = !post->is_listed && post->waiter.decision.decision != REFDATA_PENDING;
    struct refdata_state state = is_decided ? post->waiter.decision : post->acceptance.state;
    if (!request->idempotency_key.ptr)
        ; /* nothing to count */
    else if (post->acceptance.is_key_known)
        idempotency_count(request->route, IDEMPOTENCY_HIT);
    else if (is_accepted)
        idempotency_count(request->route, IDEMPOTENCY_MISS);
    else if (post->error.status == STATUS_IDEMPOTENCY_KEY_CONFLICT)
        idempotency_count(request->route, IDEMPOTENCY_CONFLICT);
    else if (post->error.status == STATUS_IDEMPOTENCY_KEY_PROCESSING)
        idempotency_count(request->route, IDEMPOTENCY_COLLISION);
    if (post->result == REFDATA_POST_ACCEPTED && !post->waits)
        state.decision = REFDATA_PENDING; /* ASYNC is answered 202, even when it is decided already */
    if (post->result == REFDATA_POST_REFUSED)
        refdata_answer_error(request, &post->error);
    else if (post->result == REFDATA_POST_UNKNOWN)
        refdata_answer_unknown(request, post);
    else
        send_state(request, post, &state);
}
