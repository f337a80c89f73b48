/* Delivery (N3): the outbox engine over notification.notifications. Claims, leases, retries and FAILED are the engine's; here are the
 * table and the two channels, log and webhook. There is no order between notifications; tenants take turns.
 *
 * Channel webhook: a POST for each notification, several at once on one thread. The Idempotency-Key is the notification's id; the body
 * is the same each time.
 *
 *   2xx                         sent
 *   408, 425, 429, 3xx, 5xx     retried after the backoff; so are timeouts and connections that are refused or lost
 *   any other 4xx               FAILED at once: the receiver refuses it
 *
 * X-Freshet-Signature: t=UNIX_SECONDS,v1=HEX, the HMAC-SHA256 of "UNIX_SECONDS.BODY". */
#include <stdio.h>
#include <time.h>

#include "auth/digest.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/span.h"
#include "fetch/fetch.h"
#include "modules/notification/notification.h"

/* What the table gives beside payload and type. */
enum { EXTRA_EVENT_ID, EXTRA_TENANT, EXTRA_TRACEPARENT };

const struct outbox_table notification_delivery_table = {
    .module = "notification",
    .name = "notification.notifications",
    .id = {"notification_id", "uuid"},
    .aggregate = {{"tenant_id", "text"}, {"user_id", "text"}},
    .turn = "tenant_id",
    .event_type = "e.event_type",
    .payload = "e.payload_json",
    .extra = {[EXTRA_EVENT_ID] = "e.event_id",
              [EXTRA_TENANT] = "e.tenant_id",
              [EXTRA_TRACEPARENT] = "e.traceparent"},
    .logged = {{"eventId", "e.event_id", false}, {"tenantId", "e.tenant_id", false}, OUTBOX_LOGGED_TRACE},
    .words = {"status", "PENDING", "PROCESSING", "SENT", "FAILED"},
    .published_at = "sent_at",
    .attempts = "attempt_count",
    OUTBOX_LEASE_COLUMNS,
};

struct metric_family notification_deliveries_family = {
    .name = "notification_deliveries_total",
    .help =
        "Attempts to deliver: sent, retried, refused (FAILED at once), left (the process stops or the receiver is not reached).",
    .type = METRIC_COUNTER,
    .labels = {"channel", "result", NULL},
};
struct metric_family notification_delivery_seconds_family = {
    .name = "notification_delivery_seconds",
    .help = "Time of one batch of deliveries, in seconds.",
    .type = METRIC_HISTOGRAM,
    .labels = {"channel", NULL},
};
static const char *const channel_names[] = {[NOTIFICATION_LOG] = "log", [NOTIFICATION_WEBHOOK] = "webhook"};

static void log_sent(const struct outbox_event *event)
{
    log_info("notification_sent", LOG_STR("notificationId", event->id),
             LOG_STR("eventId", event->extra[EXTRA_EVENT_ID]), LOG_STR("eventType", event->event_type),
             LOG_STR("tenantId", event->extra[EXTRA_TENANT]), LOG_TRACE(event->extra[EXTRA_TRACEPARENT]));
}

enum {
    HEADERS = 5,
    ANSWER_BYTES_MAX = 65536,
    ARENA_BYTES = 65536,
    /* After this no call of a batch begins: where the receiver is slow for one tenant, the others' turn comes with the next claim. */
    BEGIN_MS = 1000,
};

/* ---- webhook: requests ---- */

/* Answers are not read. */
static bool drop_body(void *context, struct str bytes)
{
    (void)context, (void)bytes;
    return true;
}

static void write_call(const struct notification_webhook_settings *webhook, const struct outbox_event *event,
                       struct fetch_request *request, struct span **span, struct arena *arena)
{
    struct str secret = notification_webhook_secret(webhook);
    const char **headers = arena_zalloc(arena, (HEADERS + 1) * sizeof *headers);
    struct trace trace;
    size_t count = 0;
    *span = NULL;
    headers[count++] = "Content-Type: application/json";
    headers[count++] = "Expect:"; /* no pause before the body */
    headers[count++] = arena_printf(arena, "Idempotency-Key: %.*s", STR_ARG(event->id)).ptr;
    if (secret.len) {
        uint8_t digest[AUTH_SHA256_BYTES];
        char hex[2 * AUTH_SHA256_BYTES + 1];
        struct str at = arena_printf(arena, "%lld", (long long)time(NULL));
        auth_hmac_sha256(secret, (struct str[]){at, STR("."), event->payload}, 3, digest);
        *hex_put(hex, digest, sizeof digest) = '\0';
        headers[count++] = arena_printf(arena, "X-Freshet-Signature: t=%s,v1=%s", at.ptr, hex).ptr;
    }
    if (trace_parse(event->extra[EXTRA_TRACEPARENT], &trace)) {
        struct str passed_on = span_follow(span, SPAN_CLIENT, "POST", event->extra[EXTRA_TRACEPARENT], arena);
        headers[count++] = arena_printf(arena, "traceparent: %.*s", STR_ARG(passed_on)).ptr;
    }
    *request = (struct fetch_request){.method = "POST",
                                      .url = webhook->url,
                                      .headers = headers,
                                      .body = event->payload,
                                      .connect_timeout_ms = webhook->connect_timeout_ms,
                                      .timeout_ms = webhook->timeout_ms,
                                      .answer_bytes_max = ANSWER_BYTES_MAX,
                                      .on_body = drop_body};
}

/* ---- webhook: answers ---- */

/* The URL may hold a secret in its path or query: only the host is shown. */
static struct str host_of(struct str url)
{
    const char *at = memmem(url.ptr, url.len, "://", 3);
    struct str rest = at ? str_of(at + 3, url.len - (size_t)(at + 3 - url.ptr)) : url, host;
    if (!str_split(&rest, '/', &host))
        return STR_NONE;
    const char *name = memrchr(host.ptr, '@', host.len);
    return name ? str_of(name + 1, host.len - (size_t)(name + 1 - host.ptr)) : host;
}

static void end_span(struct span *span, const struct notification_webhook_settings *webhook,
                     const struct outbox_event *event, int status, enum outbox_result_kind kind)
{
    if (!span || kind == OUTBOX_RELEASE)
        return;
    span_put_str(span, "http.request.method", STR("POST"));
    span_put_str(span, "server.address", host_of(webhook->url));
    span_put_str(span, "freshet.tenant.id", event->extra[EXTRA_TENANT]);
    span_put_str(span, "freshet.event.id", event->extra[EXTRA_EVENT_ID]);
    span_put_str(span, "freshet.notification.id", event->id);
    if (event->attempts > 0)
        span_put_int(span, "http.request.resend_count", event->attempts);
    if (status > 0)
        span_put_int(span, "http.response.status_code", status);
    if (kind != OUTBOX_DONE)
        span_fail(span, kind == OUTBOX_POISON ? STR("refused") : STR("not_delivered"));
    span_end(span);
}

static void send_webhooks(const struct notification_webhook_settings *webhook, struct outbox_batch *batch)
{
    int64_t begun_ns = clock_mono_ns(), rounds = clock_ms_left(batch->deadline_ns) / webhook->timeout_ms;
    /* As many as end before the claim does if each takes its whole timeout; at least as many as run at once. */
    size_t fit = (size_t)((rounds > 0 ? rounds : 1) * webhook->parallel);
    size_t count = fit < batch->count ? fit : batch->count;
    struct arena arena = ARENA(ARENA_BYTES);
    struct fetch_request *requests = arena_zalloc(&arena, count * sizeof *requests);
    struct fetch_answer *answers = arena_zalloc(&arena, count * sizeof *answers);
    enum status *statuses = arena_zalloc(&arena, count * sizeof *statuses);
    struct error *errors = arena_zalloc(&arena, count * sizeof *errors);
    struct span **spans = arena_alloc(&arena, count * sizeof(struct span *));
    for (size_t i = 0; i < count; i++)
        write_call(webhook, &batch->events[i], &requests[i], &spans[i], &arena);
    fetch_run_many(requests, count, (size_t)webhook->parallel, clock_deadline_ms(BEGIN_MS), answers, statuses,
                   errors);
    for (size_t i = 0; i < count; i++) {
        int status = answers[i].status;
        bool is_refusal = status >= 400 && status < 500 && status != 408 && status != 425 && status != 429;
        if (statuses[i] == STATUS_CANCELLED)
            outbox_batch_set(batch, i, OUTBOX_RELEASE, "not tried");
        else if (is_refusal)
            outbox_batch_set(batch, i, OUTBOX_POISON, "the receiver refuses it: HTTP %d", status);
        else if (statuses[i] != STATUS_OK)
            outbox_batch_set(batch, i, OUTBOX_RETRY, "%s", errors[i].message);
        else if (status < 200 || status > 299)
            outbox_batch_set(batch, i, OUTBOX_RETRY, "the receiver answered HTTP %d", status);
        end_span(spans[i], webhook, &batch->events[i], status, batch->results[i].kind);
        if (batch->results[i].kind == OUTBOX_DONE) /* the engine logs the others */
            log_sent(&batch->events[i]);
        buf_deinit(&answers[i].body);
    }
    for (size_t i = count; i < batch->count; i++)
        outbox_batch_set(batch, i, OUTBOX_RELEASE, "not tried");
    metric_observe(metric_series_get(&notification_delivery_seconds_family, &STR("webhook")),
                   (double)(clock_mono_ns() - begun_ns) / 1e9);
    arena_deinit(&arena);
}

/* ---- the engine ---- */

void notification_deliver(void *context, struct outbox_batch *batch)
{
    static const char *const result_names[] = {[OUTBOX_DONE] = "sent",
                                               [OUTBOX_RETRY] = "retried",
                                               [OUTBOX_POISON] = "refused",
                                               [OUTBOX_RELEASE] = "left",
                                               [OUTBOX_OUTAGE] = "left"};
    const struct notification *notification = context;
    enum notification_channel channel = (enum notification_channel)notification->settings->delivery.channel;
    FAILPOINT("delivery.after_claim");
    if (channel == NOTIFICATION_WEBHOOK)
        send_webhooks(&notification->settings->delivery.webhook, batch);
    else
        for (size_t i = 0; i < batch->count; i++)
            log_sent(&batch->events[i]);
    FAILPOINT("delivery.after_send");
    for (size_t i = 0; i < batch->count; i++)
        metric_add(metric_series_get(&notification_deliveries_family,
                                     (struct str[]){str_from(channel_names[channel]),
                                                    str_from(result_names[batch->results[i].kind])}),
                   1);
}
