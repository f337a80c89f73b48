/* The consumer (N1): a batch of events in one statement of the bus's own transaction. An event that was handled before is
 * found in processed_events and makes nothing; one that makes no sense goes to the dead letters, the rest of its batch does
 * not wait for it.
 *
 * What the database refuses comes again, one by one, until its deliveries are used up; while the database is away nothing
 * is counted: that is the bus's doing. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/notification/dead_letters.h"
#include "modules/notification/event.h"
#include "modules/notification/notification.h"

enum { ARENA_BYTES = 16384, BATCH_MAX = 200 };

/* $1: [{"traceparent": …, "event": {…}}, …]. Ordered by key, so that two processes with the same events (a redelivery)
 * wait for one another instead of locking each other up. */
static const char accept_sql[] =
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
    " ON CONFLICT (notification_id) DO NOTHING";

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

static void read_message(struct memo *memo, struct bus_batch *batch, size_t at)
{
    struct error error = {0};
    struct notification_event *event = &memo->events[memo->count];
    if (notification_event_read(&batch->messages[at], &memo->arena, event, &error) == STATUS_OK) {
        memo->count++;
        return;
    }
    bus_batch_term(batch, at, NOTIFICATION_NO_EVENT "%s", error.message);
    memo->terminated++;
}

static struct memo *read_messages(struct bus_batch *batch)
{
    struct memo *memo = memory_zalloc(sizeof *memo);
    arena_init(&memo->arena, ARENA_BYTES);
    memo->events = arena_zalloc(&memo->arena, batch->count * sizeof *memo->events);
    for (size_t i = 0; i < batch->count; i++)
        read_message(memo, batch, i);
    return memo;
}

static void put_events(const struct memo *memo, struct buf *json)
{
    buf_put_char(json, '[');
    for (size_t i = 0; i < memo->count; i++) {
        const struct notification_event *event = &memo->events[i];
        buf_put_str(json, i ? STR(",{") : STR("{"));
        if (event->traceparent.len)
            json_put_member_str(json, "traceparent", event->traceparent);
        json_put_key(json, STR("event"));
        notification_event_put(event, json);
        buf_put_char(json, '}');
    }
    buf_put_char(json, ']');
}

static enum status write_events(struct memo *memo, struct bus_batch *batch, struct error *error)
{
    struct db_statement statement;
    struct buf json;
    buf_init(&json);
    put_events(memo, &json);
    db_statement_init(&statement, accept_sql, 1, (enum db_type[]){DB_JSONB});
    enum status status = db_exec(batch->conn, &statement, (struct db_param[]){{buf_str(&json)}},
                                 batch->deadline_ns, &memo->created, error);
    buf_deinit(&json);
    return status;
}

static void handle(void *context, struct bus_batch *batch)
{
    struct error error = {0};
    struct memo *memo = read_messages(batch);
    batch->memo = memo;
    notification_titles_take(context, memo->events, memo->count, &memo->arena);
    FAILPOINT("notification.before_write");
    enum status status = memo->count ? write_events(memo, batch, &error) : STATUS_OK;
    FAILPOINT("notification.before_commit");
    /* A lost connection is the bus's to find: it takes the batch up again as it was. */
    if (status != STATUS_OK && status != STATUS_DB_DOWN && status != STATUS_CANCELLED)
        bus_batch_rollback(batch, "%s", error.message);
}

/* ---- after the commit ---- */

static void log_terminated(const struct bus_batch *batch, size_t settled)
{
    for (size_t i = 0; i < settled; i++)
        if (batch->verdicts[i].kind == BUS_TERM)
            log_error("notification_event_terminated",
                      LOG_STR("eventId", bus_message_header(&batch->messages[i], STR(BUS_HEADER_EVENT_ID))),
                      LOG_INT("partition", batch->messages[i].partition),
                      LOG_INT("offset", batch->messages[i].offset),
                      LOG_CSTR("reason", batch->verdicts[i].reason));
}

static void log_handled(const struct memo *memo)
{
    int64_t now_us = clock_unix_us();
    for (size_t i = 0; i < memo->count; i++) {
        const struct notification_event *event = &memo->events[i];
        if (memo->created == (int64_t)memo->count) /* what comes again would say how old it is */
            notification_observe_lag((double)(now_us - event->occurred_us) / 1e6);
        log_debug("notification_event_handled", LOG_CSTR("eventId", event->event_id),
                  LOG_CSTR("notificationId", event->notification_id), LOG_STR("tenantId", event->tenant),
                  LOG_INT("version", event->version));
    }
}

static void on_committed(void *context, const struct bus_batch *batch, size_t settled)
{
    struct notification *notification = context;
    struct memo *memo = batch->memo;
    FAILPOINT("notification.after_commit");
    if (!memo) /* given up without being asked: dead_letters.c counts those */
        return;
    if (memo->created > 0)
        outbox_wake(notification->delivery);
    notification_count_events(NOTIFICATION_CREATED, (uint64_t)memo->created);
    notification_count_events(NOTIFICATION_DUPLICATE, memo->count - (uint64_t)memo->created);
    notification_count_events(NOTIFICATION_TERMINATED, memo->terminated);
    if (memo->terminated)
        log_terminated(batch, settled);
    log_handled(memo);
    free_memo(memo);
}

static void on_uncommitted(void *context, const struct bus_batch *batch)
{
    (void)context;
    free_memo(batch->memo);
}

static void on_gap(void *context, unsigned partition, int64_t offset, int64_t next)
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
        .batch_max = BATCH_MAX,
        .parallel = (unsigned)kernel_bus(notification->kernel)->handlers, /* who answers has others */
        .attempts_max = (unsigned)notification->settings->nats.max_deliver,
        .context = notification,
        .handler = handle,
        .on_committed = on_committed,
        .on_uncommitted = on_uncommitted,
        .on_gap = on_gap,
    };
    return bus_subscribe(bus, &subscription, error);
}
