/* Channel webhook (N3): a POST for each notification, several at once on one thread. The Idempotency-Key is the notification's id; the
 * body is the same each time.
 *
 *   2xx                         sent
 *   408, 425, 429, 3xx, 5xx     retried after the backoff; so are timeouts and connections that are refused or lost
 *   any other 4xx               FAILED at once: the receiver refuses it
 *
 * X-Freshet-Signature: t=UNIX_SECONDS,v1=HEX, the HMAC-SHA256 of "UNIX_SECONDS.BODY".
 *
 * Tenants share the places of calls (places.h). A batch ends when only calls of slow tenants are under way: they go on while the
 * engine settles the others and claims more, of tenants that may have a place. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "auth/digest.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/list.h"
#include "base/memory.h"
#include "base/span.h"
#include "fetch/fetch.h"
#include "modules/notification/notification.h"
#include "modules/notification/places.h"

enum {
    HEADERS = 5,
    ANSWER_BYTES_MAX = 65536,
    ARENA_BYTES = 4096,
    /* After this no call of a batch begins: where the receiver is slow for one tenant, the others' turn comes with the next claim. */
    BEGIN_MS = 1000,
    WAIT_MS = 100, /* between looks at the clock */
};

struct call {
    struct fetch_call fetch;
    struct arena arena;        /* of its texts */
    struct outbox_event event; /* a copy */
    struct span *span;
    struct places_tenant *tenant;
    int64_t begun_ns;
    TAILQ_ENTRY(call) link;
};

struct webhooks {
    const struct notification_webhook_settings *settings;
    struct fetch_calls *calls;
    struct places places;
    TAILQ_HEAD(, call) running;
    atomic_bool is_woken; /* since the last claim */
};

/* ---- requests ---- */

/* Answers are not read. */
static bool drop_body(void *context, struct str bytes)
{
    (void)context, (void)bytes;
    return true;
}

static void write_request(const struct notification_webhook_settings *webhook, struct call *call)
{
    const struct outbox_event *event = &call->event;
    struct arena *arena = &call->arena;
    struct str secret = notification_webhook_secret(webhook);
    const char **headers = arena_zalloc(arena, (HEADERS + 1) * sizeof *headers);
    struct trace trace;
    size_t count = 0;
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
    if (trace_parse(event->extra[NOTIFICATION_EXTRA_TRACEPARENT], &trace)) {
        struct str passed_on = span_follow(&call->span, SPAN_CLIENT, "POST",
                                           event->extra[NOTIFICATION_EXTRA_TRACEPARENT], arena);
        headers[count++] = arena_printf(arena, "traceparent: %.*s", STR_ARG(passed_on)).ptr;
    }
    call->fetch.request = (struct fetch_request){.method = "POST",
                                                 .url = webhook->url,
                                                 .headers = headers,
                                                 .body = event->payload,
                                                 .connect_timeout_ms = webhook->connect_timeout_ms,
                                                 .timeout_ms = webhook->timeout_ms,
                                                 .answer_bytes_max = ANSWER_BYTES_MAX,
                                                 .on_body = drop_body};
}

/* Takes over the use of the tenant. */
static struct call *begin_call(struct webhooks *webhooks, const struct outbox_event *event,
                               struct places_tenant *tenant)
{
    struct call *call = memory_zalloc(sizeof *call);
    call->arena = ARENA(ARENA_BYTES);
    call->event = *event;
    call->event.id = arena_str(&call->arena, event->id);
    call->event.event_type = arena_str(&call->arena, event->event_type);
    call->event.payload = arena_str(&call->arena, event->payload);
    for (size_t i = 0; i < NOTIFICATION_EXTRAS; i++)
        call->event.extra[i] = arena_str(&call->arena, event->extra[i]);
    call->tenant = tenant;
    call->begun_ns = clock_mono_ns();
    write_request(webhooks->settings, call);
    places_begin(&webhooks->places, tenant);
    TAILQ_INSERT_TAIL(&webhooks->running, call, link);
    fetch_calls_begin(webhooks->calls, &call->fetch);
    return call;
}

/* ---- answers ---- */

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
    span_put_str(span, "freshet.tenant.id", event->extra[NOTIFICATION_EXTRA_TENANT]);
    span_put_str(span, "freshet.event.id", event->extra[NOTIFICATION_EXTRA_EVENT_ID]);
    span_put_str(span, "freshet.notification.id", event->id);
    if (event->attempts > 0)
        span_put_int(span, "http.request.resend_count", event->attempts);
    if (status > 0)
        span_put_int(span, "http.response.status_code", status);
    if (kind != OUTBOX_DONE)
        span_fail(span, kind == OUTBOX_POISON ? STR("refused") : STR("not_delivered"));
    span_end(span);
}

static void set_result(const struct webhooks *webhooks, const struct call *call, struct outbox_result *result)
{
    int status = call->fetch.answer.status;
    bool is_refusal = status >= 400 && status < 500 && status != 408 && status != 425 && status != 429;
    if (call->fetch.status == STATUS_CANCELLED)
        outbox_result_set(result, OUTBOX_RELEASE, "not tried");
    else if (is_refusal)
        outbox_result_set(result, OUTBOX_POISON, "the receiver refuses it: HTTP %d", status);
    else if (call->fetch.status != STATUS_OK)
        outbox_result_set(result, OUTBOX_RETRY, "%s", call->fetch.error.message);
    else if (status < 200 || status > 299)
        outbox_result_set(result, OUTBOX_RETRY, "the receiver answered HTTP %d", status);
    else
        outbox_result_set(result, OUTBOX_DONE, "%s", "");
    end_span(call->span, webhooks->settings, &call->event, status, result->kind);
    if (result->kind == OUTBOX_DONE) /* the engine logs the others */
        notification_log_sent(&call->event);
}

static void free_call(struct webhooks *webhooks, struct call *call)
{
    places_unuse(&webhooks->places, call->tenant);
    buf_deinit(&call->fetch.answer.body);
    arena_deinit(&call->arena);
    free(call);
}

/* Sets the result of an event, or leaves it under way. */
static void report_call(struct webhooks *webhooks, struct call *call, struct outbox_result *result)
{
    if (!call->fetch.has_ended) {
        result->kind = OUTBOX_UNDER_WAY;
        result->call = call;
        return;
    }
    set_result(webhooks, call, result);
    free_call(webhooks, call);
}

/* ---- a batch ---- */

struct sending {
    struct webhooks *webhooks;
    const struct outbox_batch *batch;
    struct call **calls;            /* of the events; NULL = not begun */
    struct places_tenant **tenants; /* of events that are not begun */
    size_t waiting;                 /* of them */
    int64_t begin_until_ns;
    size_t ended;
    bool is_cancelled;
};

/* The event to begin next: the first one of the tenant with the fewest calls under way; `count`: none may begin. */
static size_t choose_next(const struct sending *sending)
{
    size_t chosen = sending->batch->count;
    for (size_t i = 0; i < sending->batch->count; i++) {
        const struct places_tenant *tenant = sending->tenants[i];
        if (!tenant || !places_may_begin(&sending->webhooks->places, tenant))
            continue;
        if (chosen == sending->batch->count ||
            tenant->share.members < sending->tenants[chosen]->share.members)
            chosen = i;
        if (tenant->share.members == 0)
            break;
    }
    return chosen;
}

static void give_up_waiting(struct sending *sending)
{
    for (size_t i = 0; i < sending->batch->count && sending->waiting > 0; i++)
        if (sending->tenants[i]) {
            places_unuse(&sending->webhooks->places, sending->tenants[i]);
            sending->tenants[i] = NULL;
            sending->waiting--;
        }
}

/* Gives back the places of calls that have ended, and finds slow tenants. False: only calls of slow tenants are under way. */
static bool look_at_calls(struct sending *sending)
{
    struct webhooks *webhooks = sending->webhooks;
    int64_t now_ns = clock_mono_ns();
    bool is_any_quick = false;
    struct call *call, *next;
    TAILQ_FOREACH_SAFE(call, &webhooks->running, link, next) {
        bool is_quick = now_ns - call->begun_ns < PLACES_SLOW_MS * CLOCK_NS_PER_MS;
        if (call->fetch.has_ended) {
            TAILQ_REMOVE(&webhooks->running, call, link);
            places_end(&webhooks->places, call->tenant, is_quick);
            metric_observe(metric_series_get(&notification_delivery_seconds_family, &STR("webhook")),
                           (double)(now_ns - call->begun_ns) / 1e9);
            sending->ended++;
            sending->is_cancelled |= call->fetch.status == STATUS_CANCELLED;
        } else if (!is_quick) {
            places_lasts(&webhooks->places, call->tenant);
        }
    }
    TAILQ_FOREACH(call, &webhooks->running, link)
        is_any_quick |= call->tenant->speed != PLACES_ARE_SLOW;
    return is_any_quick;
}

static void send_calls(struct sending *sending)
{
    struct webhooks *webhooks = sending->webhooks;
    const struct outbox_batch *batch = sending->batch;
    size_t at;
    for (;;) {
        while (sending->waiting > 0 && (at = choose_next(sending)) < batch->count) {
            sending->calls[at] = begin_call(webhooks, &batch->events[at], sending->tenants[at]);
            sending->tenants[at] = NULL;
            sending->waiting--;
        }
        bool is_any_quick = look_at_calls(sending);
        if (sending->is_cancelled || clock_mono_ns() >= sending->begin_until_ns)
            give_up_waiting(sending);
        /* something can be settled or claimed */
        bool is_due = batch->count > 0 || sending->ended > 0 || atomic_load(&webhooks->is_woken) ||
                      TAILQ_EMPTY(&webhooks->running) || clock_mono_ns() >= batch->until_ns;
        if (!is_any_quick && choose_next(sending) == batch->count && is_due)
            return;
        int64_t left_ms = clock_ms_left(batch->until_ns);
        fetch_calls_run(webhooks->calls, left_ms < WAIT_MS ? left_ms : WAIT_MS);
    }
}

void notification_webhooks_send(struct webhooks *webhooks, struct outbox_batch *batch)
{
    struct arena arena = ARENA(ARENA_BYTES);
    struct sending sending = {.webhooks = webhooks,
                              .batch = batch,
                              .calls = arena_zalloc(&arena, (batch->count + 1) * sizeof *sending.calls),
                              .tenants = arena_zalloc(&arena, (batch->count + 1) * sizeof *sending.tenants),
                              .waiting = batch->count,
                              .begin_until_ns = clock_deadline_ms(BEGIN_MS)};
    for (size_t i = 0; i < batch->count; i++)
        sending.tenants[i] = places_use(&webhooks->places, batch->events[i].extra[NOTIFICATION_EXTRA_TENANT]);
    if (batch->is_last)
        fetch_calls_cancel(webhooks->calls);
    send_calls(&sending);
    give_up_waiting(&sending);
    for (size_t i = 0; i < batch->count; i++)
        if (sending.calls[i])
            report_call(webhooks, sending.calls[i], &batch->results[i]);
        else
            outbox_batch_set(batch, i, OUTBOX_RELEASE, "not tried");
    for (size_t i = 0; i < batch->late_count; i++)
        if (batch->late[i].result.kind == OUTBOX_UNDER_WAY)
            report_call(webhooks, batch->late[i].result.call, &batch->late[i].result);
    arena_deinit(&arena);
}

bool notification_webhooks_may_claim(struct webhooks *webhooks, struct buf *left_out)
{
    atomic_store(&webhooks->is_woken, false);
    return places_left_out(&webhooks->places, left_out);
}

void notification_webhooks_wake(struct webhooks *webhooks)
{
    if (!atomic_exchange(&webhooks->is_woken, true))
        fetch_calls_wake(webhooks->calls);
}

/* ---- life ---- */

struct webhooks *notification_webhooks_create(const struct notification_webhook_settings *settings)
{
    struct webhooks *webhooks = memory_zalloc(sizeof *webhooks);
    webhooks->settings = settings;
    webhooks->calls = fetch_calls_open();
    places_init(&webhooks->places, (size_t)settings->parallel);
    TAILQ_INIT(&webhooks->running);
    return webhooks;
}

void notification_webhooks_destroy(struct webhooks *webhooks)
{
    struct call *call, *next;
    fetch_calls_close(webhooks->calls);
    TAILQ_FOREACH_SAFE(call, &webhooks->running, link, next)
        free_call(webhooks, call);
    places_deinit(&webhooks->places);
    free(webhooks);
}
