/* Answers of POST /updates (R1), and what is counted of them. */
#include "base/json.h"
#include "idempotency/idempotency.h"
#include "modules/refdata/command/command.h"

struct metric_family refdata_updates_family = {
    .name = "refdata_updates_total",
    .help = "Updates received by POST: accepted, replayed (known before), rejected (4xx), unavailable (503).",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};

void refdata_command_metrics_count(enum refdata_update_result result)
{
    static const char *const names[REFDATA_UPDATE_RESULTS] = {
        [REFDATA_UPDATE_ACCEPTED] = "accepted",
        [REFDATA_UPDATE_REPLAYED] = "replayed",
        [REFDATA_UPDATE_REJECTED] = "rejected",
        [REFDATA_UPDATE_UNAVAILABLE] = "unavailable",
    };
    metric_add(metric_series_get(&refdata_updates_family, (struct str[]){str_from(names[result])}), 1);
}

static void send_json(struct http_request *request, int status, struct str headers, const struct buf *body)
{
    http_send(request, &(struct http_response){.status = status, .headers = headers, .body = buf_str(body)});
}

static void send_pending(struct http_request *request, const struct refdata_post *post,
                         const struct refdata_state *state, struct buf *headers)
{
    struct str url = arena_printf(request->arena, "/v1/tenants/%s/updates/%s", post->tenant, state->event_id);
    struct buf body;
    buf_init(&body);
    buf_put_char(&body, '{');
    json_put_member_str(&body, "eventId", str_from(state->event_id));
    json_put_member_str(&body, "status", STR("PENDING"));
    json_put_member_str(&body, "statusUrl", url);
    buf_put_char(&body, '}');
    buf_printf(headers, "Location: %.*s\r\n", STR_ARG(url));
    send_json(request, 202, buf_str(headers), &body);
    buf_deinit(&body);
}

static void send_committed(struct http_request *request, const struct refdata_state *state,
                           struct str headers)
{
    struct buf body;
    buf_init(&body);
    buf_put_char(&body, '{');
    json_put_member_str(&body, "eventId", str_from(state->event_id));
    json_put_member_str(&body, "status", STR("COMMITTED"));
    json_put_member_i64(&body, "committedVersion", state->version);
    buf_put_char(&body, '}');
    send_json(request, 200, headers, &body);
    buf_deinit(&body);
}

/* The code is what the row has: a newer build may have written one that this build does not know. */
static void send_failed(struct http_request *request, const struct refdata_state *state, struct str headers)
{
    bool stale = strcmp(state->code, status_code(STATUS_STALE_SOURCE_REVISION)) == 0;
    struct buf body;
    buf_init(&body);
    buf_put_char(&body, '{');
    json_put_member_str(&body, "code", str_from(state->code));
    json_put_member_str(&body, "message", str_from(state->reason));
    json_put_member_str(&body, "eventId", str_from(state->event_id));
    json_put_member_str(&body, "status", STR("FAILED"));
    buf_put_char(&body, '}');
    send_json(request, stale ? 409 : 422, headers, &body);
    buf_deinit(&body);
}

void refdata_answer_state(struct http_request *request, const struct refdata_post *post,
                          const struct refdata_state *state)
{
    struct buf headers;
    buf_init(&headers);
    refdata_command_metrics_count(post->result == REFDATA_POST_REPLAYED ? REFDATA_UPDATE_REPLAYED
                                                                        : REFDATA_UPDATE_ACCEPTED);
    if (post->acceptance.is_key_known)
        buf_put_str(&headers, STR("Idempotency-Replayed: true\r\n"));
    if (state->decision == REFDATA_PENDING)
        send_pending(request, post, state, &headers);
    else if (state->decision == REFDATA_COMMITTED)
        send_committed(request, state, buf_str(&headers));
    else
        send_failed(request, state, buf_str(&headers));
    buf_deinit(&headers);
}

void refdata_answer_error(struct http_request *request, const struct error *error)
{
    refdata_command_metrics_count(status_http(error->status) < 500 ? REFDATA_UPDATE_REJECTED
                                                                   : REFDATA_UPDATE_UNAVAILABLE);
    if (error->status == STATUS_IDEMPOTENCY_KEY_CONFLICT ||
        error->status == STATUS_IDEMPOTENCY_KEY_PROCESSING)
        idempotency_send_error(request, error, request->idempotency_key);
    else
        http_send_error(request, error);
}

void refdata_answer_unknown(struct http_request *request, const struct refdata_post *post)
{
    struct buf body;
    refdata_command_metrics_count(REFDATA_UPDATE_UNAVAILABLE);
    buf_init(&body);
    buf_put_char(&body, '{');
    json_put_member_str(&body, "code", str_from(status_code(STATUS_UNAVAILABLE)));
    json_put_member_str(
        &body, "message",
        STR("whether the update was accepted is not known; sent again with this eventId it has "
            "its effect once"));
    if (post->update.event_id[0])
        json_put_member_str(&body, "eventId", str_from(post->update.event_id));
    buf_put_char(&body, '}');
    send_json(request, 503, STR("Retry-After: 1\r\n"), &body);
    buf_deinit(&body);
}
