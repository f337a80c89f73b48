/* Channel webhook: a POST for each notification, several at once, one thread. The Idempotency-Key is the notification's id,
 * whoever sends it and however often; the body is the same each time.
 *
 *   2xx                         sent
 *   408, 425, 429, 3xx, 5xx     again after the backoff; so with a timeout, or a connection that is refused or dropped
 *   any other 4xx               FAILED at once: the receiver has understood it and does not want it
 *
 * X-Freshet-Signature: t=UNIX_SECONDS,v1=HEX, the HMAC-SHA256 of "UNIX_SECONDS.BODY". */
#include <stdio.h>
#include <time.h>

#include "auth/digest.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/trace.h"
#include "fetch/fetch.h"
#include "modules/notification/notification.h"

enum { HEADERS = 5, ANSWER_BYTES_MAX = 65536, ARENA_BYTES = 65536 };

struct calls {
    struct arena arena;
    struct fetch_request *requests;
    struct fetch_answer *answers;
    enum status *statuses;
    struct error *errors;
    size_t count;
};

/* ---- what is sent ---- */

static const char *signature(struct str secret, struct str body, struct arena *arena)
{
    uint8_t digest[AUTH_SHA256_BYTES];
    char hex[2 * AUTH_SHA256_BYTES + 1];
    struct str at = arena_printf(arena, "%lld", (long long)time(NULL));
    auth_hmac_sha256(secret, (struct str[]){at, STR("."), body}, 3, digest);
    *hex_put(hex, digest, sizeof digest) = '\0';
    return arena_printf(arena, "X-Freshet-Signature: t=%.*s,v1=%s", STR_ARG(at), hex).ptr;
}

/* The event's trace goes on; without one there is nothing to pass on. */
static const char *trace_header(struct str traceparent, struct arena *arena)
{
    struct trace trace;
    char text[TRACE_PARENT_BYTES];
    if (!trace_parse(traceparent, &trace))
        return NULL;
    trace_child(&trace);
    trace_format(&trace, text);
    return arena_printf(arena, "traceparent: %s", text).ptr;
}

/* The answer to a 2xx is of no interest, however long. */
static bool drop_body(void *context, struct str bytes)
{
    (void)context, (void)bytes;
    return true;
}

static void write_call(const struct notification_webhook_settings *webhook, const struct outbox_event *event,
                       struct fetch_request *request, struct arena *arena)
{
    struct str secret = notification_webhook_secret(webhook);
    const char **headers = arena_zalloc(arena, (HEADERS + 1) * sizeof *headers);
    size_t count = 0;
    headers[count++] = "Content-Type: application/json";
    headers[count++] = "Expect:"; /* no pause before the body */
    headers[count++] = arena_printf(arena, "Idempotency-Key: %.*s", STR_ARG(event->id)).ptr;
    if (secret.len)
        headers[count++] = signature(secret, event->payload, arena);
    const char *trace = trace_header(event->extra[NOTIFICATION_EXTRA_TRACEPARENT], arena);
    if (trace)
        headers[count++] = trace;
    *request = (struct fetch_request){.method = "POST",
                                      .url = webhook->url,
                                      .headers = headers,
                                      .body = event->payload,
                                      .connect_timeout_ms = webhook->connect_timeout_ms,
                                      .timeout_ms = webhook->timeout_ms,
                                      .answer_bytes_max = ANSWER_BYTES_MAX,
                                      .on_body = drop_body};
}

/* ---- what it came to ---- */

static bool is_refusal(int status)
{
    return status >= 400 && status < 500 && status != 408 && status != 425 && status != 429;
}

static void judge(struct outbox_batch *batch, size_t at, const struct calls *calls)
{
    int status = calls->answers[at].status;
    if (calls->statuses[at] == STATUS_CANCELLED)
        outbox_batch_release(batch, at);
    else if (is_refusal(status))
        outbox_batch_poison(batch, at, "the receiver refuses it: HTTP %d", status);
    else if (calls->statuses[at] != STATUS_OK)
        outbox_batch_retry(batch, at, "%s", calls->errors[at].message);
    else if (status < 200 || status > 299)
        outbox_batch_retry(batch, at, "the receiver answered HTTP %d", status);
}

/* As many as can end before the claim does, were each as slow as it may be; at least as many as go at once. */
static size_t fitting(const struct notification_webhook_settings *webhook, const struct outbox_batch *batch)
{
    int64_t rounds = clock_ms_left(batch->deadline_ns) / webhook->timeout_ms;
    size_t fit = (size_t)((rounds > 0 ? rounds : 1) * webhook->parallel);
    return fit < batch->count ? fit : batch->count;
}

static void prepare(const struct notification_webhook_settings *webhook, const struct outbox_batch *batch,
                    struct calls *calls)
{
    struct arena *arena = &calls->arena;
    arena_init(arena, ARENA_BYTES);
    calls->count = fitting(webhook, batch);
    calls->requests = arena_zalloc(arena, calls->count * sizeof *calls->requests);
    calls->answers = arena_zalloc(arena, calls->count * sizeof *calls->answers);
    calls->statuses = arena_zalloc(arena, calls->count * sizeof *calls->statuses);
    calls->errors = arena_zalloc(arena, calls->count * sizeof *calls->errors);
    for (size_t i = 0; i < calls->count; i++)
        write_call(webhook, &batch->events[i], &calls->requests[i], arena);
}

void notification_webhook_send(const struct notification_webhook_settings *webhook,
                               struct outbox_batch *batch)
{
    struct calls calls = {0};
    int64_t begun_ns = clock_mono_ns();
    prepare(webhook, batch, &calls);
    fetch_run_many(calls.requests, calls.count, (size_t)webhook->parallel, calls.answers, calls.statuses,
                   calls.errors);
    for (size_t i = 0; i < calls.count; i++) {
        judge(batch, i, &calls);
        if (batch->results[i].kind == OUTBOX_DONE) /* the engine tells of the others */
            notification_delivery_log_sent(&batch->events[i]);
        buf_deinit(&calls.answers[i].body);
    }
    for (size_t i = calls.count; i < batch->count; i++)
        outbox_batch_release(batch, i);
    notification_observe_delivery(NOTIFICATION_WEBHOOK, (double)(clock_mono_ns() - begun_ns) / 1e9);
    arena_deinit(&calls.arena);
}
