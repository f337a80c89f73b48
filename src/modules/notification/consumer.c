/* The consumer (N1): a batch of events in one statement of the bus's own transaction. An event that was handled before is found in
 * processed_events and has no effect; an invalid one is dead-lettered, and the rest of its batch does not wait for it. Events that
 * the database refuses are retried one by one until their deliveries are used up; an outage of the database does not count. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/span.h"
#include "modules/notification/notification.h"

enum {
    ARENA_BYTES = 16384,
    EVENTS_AT_ONCE = 200,
};

struct metric_family notification_events_family = {
    .name = "notification_events_total",
    .help = "Events of entitlements: created (a notification), duplicate, terminated (invalid).",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};
struct metric_family notification_lag_family = {
    .name = "notification_lag_seconds",
    .help = "Time from an event to the commit of its notification, in seconds.",
    .type = METRIC_HISTOGRAM,
};

/* $1: [{"traceparent": …, "event": {…}}, …]. Ordered by key, so that two processes with the same events (a redelivery) do not
 * deadlock. */
static const struct db_statement accept_sql = DB_STATEMENT(
    "WITH arrived AS ("
    "    SELECT DISTINCT ON (m.tenant_id, m.event_id) m.*"
    "    FROM (SELECT a.at, a.m -> 'event' AS payload, a.m ->> 'traceparent' AS traceparent,"
    "                 a.m -> 'event' ->> 'tenant_id' COLLATE \"C\" AS tenant_id,"
    "                 (a.m -> 'event' ->> 'event_id')::uuid AS event_id"
    "          FROM jsonb_array_elements($1) WITH ORDINALITY AS a (m, at)) m"
    "    ORDER BY m.tenant_id, m.event_id, m.at),"
    " fresh AS ("
    "    INSERT INTO notification.processed_events (tenant_id, event_id)"
    "    SELECT tenant_id, event_id FROM arrived ORDER BY tenant_id, event_id"
    "    ON CONFLICT DO NOTHING RETURNING tenant_id, event_id)"
    " INSERT INTO notification.notifications"
    "     (notification_id, tenant_id, event_id, event_type, user_id, stock_keeping_unit, payload_json, traceparent)"
    " SELECT (payload ->> 'notification_id')::uuid, tenant_id, event_id, payload ->> 'event_type',"
    "        payload ->> 'user_id', payload ->> 'stock_keeping_unit', payload, traceparent"
    " FROM arrived JOIN fresh USING (tenant_id, event_id) ORDER BY at"
    " ON CONFLICT (notification_id) DO NOTHING");

/* From the handler to the commit. */
struct memo {
    struct arena arena;
    struct notification_event *events;
    size_t count, terminated;
    int64_t created;
};

static void free_memo(struct memo *memo)
{
    if (!memo)
        return;
    arena_deinit(&memo->arena);
    free(memo);
}

/* ---- the handler, on a worker ---- */

static enum status write_events(struct memo *memo, struct bus_batch *batch, struct error *error)
{
    struct buf json = {0};
    buf_put_char(&json, '[');
    for (size_t i = 0; i < memo->count; i++) {
        const struct notification_event *event = &memo->events[i];
        json_put_open(&json, NULL, '{');
        if (event->traceparent.len)
            json_put_member_str(&json, "traceparent", event->traceparent);
        json_put_key(&json, STR("event"));
        notification_event_put(event, &json);
        buf_put_char(&json, '}');
    }
    buf_put_char(&json, ']');
    enum status status = db_exec(batch->conn, &accept_sql, DB_PARAMS(db_jsonb(buf_str(&json))),
                                 batch->deadline_ns, &memo->created, error);
    buf_deinit(&json);
    return status;
}

static void handle_events(void *context, struct bus_batch *batch)
{
    struct memo *memo = memory_zalloc(sizeof *memo);
    struct error error = {0};

    batch->memo = memo;
    memo->arena = ARENA(ARENA_BYTES);
    memo->events = arena_zalloc(&memo->arena, batch->count * sizeof *memo->events);
    for (size_t i = 0; i < batch->count; i++) {
        if (notification_event_read(&batch->messages[i], &memo->arena, &memo->events[memo->count], &error) ==
            STATUS_OK) {
            memo->count++;
            continue;
        }
        bus_batch_term(batch, i, NOTIFICATION_INVALID_EVENT "%s", error.message);
        memo->terminated++;
    }
    notification_titles_take(context, memo->events, memo->count, &memo->arena);
    FAILPOINT("notification.before_write");
    enum status status = memo->count ? write_events(memo, batch, &error) : STATUS_OK;
    FAILPOINT("notification.before_commit");
    /* The bus finds a lost connection itself, and reads the batch again as it was. */
    if (status != STATUS_OK && status != STATUS_DB_DOWN && status != STATUS_CANCELLED)
        bus_batch_rollback(batch, "%s", error.message);
}

/* ---- after the commit ---- */

static void count_events(const char *result, uint64_t count)
{
    if (count > 0)
        metric_add(metric_series_get(&notification_events_family, (struct str[]){str_from(result)}), count);
}

static void on_events_committed(void *context, const struct bus_batch *batch, size_t settled)
{
    struct notification *notification = context;
    struct memo *memo = batch->memo;
    int64_t now_us = clock_unix_us();
    FAILPOINT("notification.after_commit");
    if (!memo) /* dead-lettered by the bus: dead_letters.c counts them */
        return;
    if (memo->created > 0)
        outbox_wake(notification->delivery);
    /* With redeliveries among them the types may be others. */
    for (size_t i = 0; i < (size_t)memo->created; i++)
        outbox_count_enqueued(&notification_delivery_table, memo->events[i].event_type, 1);
    count_events("created", (uint64_t)memo->created);
    count_events("duplicate", memo->count - (uint64_t)memo->created);
    count_events("terminated", memo->terminated);
    for (size_t i = 0; i < settled && memo->terminated; i++)
        if (batch->verdicts[i].kind == BUS_TERM)
            log_error("notification_event_terminated",
                      LOG_STR("eventId", bus_message_header(&batch->messages[i], STR(BUS_HEADER_EVENT_ID))),
                      LOG_INT("partition", batch->messages[i].partition),
                      LOG_INT("offset", batch->messages[i].offset),
                      LOG_CSTR("reason", batch->verdicts[i].reason),
                      LOG_TRACE(bus_message_header(&batch->messages[i], STR(BUS_HEADER_TRACEPARENT))));
    for (size_t i = 0; i < memo->count; i++) {
        const struct notification_event *event = &memo->events[i];
        span_end(event->span);
        double lag_s = (double)(now_us - event->occurred_us) / 1e6;
        if (memo->created == (int64_t)memo->count) /* no redelivery */
            metric_observe(metric_series_get(&notification_lag_family, NULL), lag_s > 0 ? lag_s : 0);
        log_debug("notification_event_handled", LOG_CSTR("eventId", event->event_id),
                  LOG_CSTR("notificationId", event->notification_id), LOG_STR("tenantId", event->tenant),
                  LOG_INT("version", event->version), LOG_TRACE(event->traceparent));
    }
    free_memo(memo);
}

static void on_events_uncommitted(void *context, const struct bus_batch *batch)
{
    struct memo *memo = batch->memo;
    (void)context;
    for (size_t i = 0; memo && i < memo->count; i++) {
        span_fail(memo->events[i].span, STR("not_committed"));
        span_end(memo->events[i].span);
    }
    free_memo(memo);
}

static void on_events_lost(void *context, unsigned partition, int64_t offset, int64_t next)
{
    (void)context;
    log_error("notification_events_lost", LOG_INT("partition", partition), LOG_INT("offset", offset),
              LOG_INT("next", next));
}

enum status notification_consumer_subscribe(struct notification *notification, struct bus *bus,
                                            struct error *error)
{
    const struct bus_subscription subscription = {
        .topic = NOTIFICATION_TOPIC,
        .group = notification->settings->nats.durable.ptr,
        .mode = BUS_SHARED,
        .from = BUS_FROM_START,
        .batch_max = EVENTS_AT_ONCE,
        .parallel = (unsigned)kernel_bus(notification->kernel)->handlers,
        .attempts_max = (unsigned)notification->settings->nats.max_deliver,
        .context = notification,
        .handler = handle_events,
        .on_committed = on_events_committed,
        .on_uncommitted = on_events_uncommitted,
        .on_gap = on_events_lost,
    };
    return bus_subscribe(bus, &subscription, error);
}
