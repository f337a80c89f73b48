/* Publishing events: an outbox engine over chat.event_outbox in every process with the role. It writes claimed events to
 * chat.event_log first, then delivers them to the rooms of this process, then publishes them on the bus for the rooms of other
 * processes. So every event that a room receives is in the log. */
#include "base/clock.h"
#include "base/failpoint.h"
#include "modules/chat/chat.h"
#include "modules/chat/rooms.h"
#include "outbox/outbox.h"

enum { LOG_MS = 5000, EVERY_BATCH = 500 };
enum { EXTRA_TENANT, EXTRA_PROJECT, EXTRA_USER, EXTRA_SEQUENCE, EXTRA_OCCURRED_AT, EXTRA_TRACEPARENT };
enum { OF_TENANT, OF_SESSION };

#define HEADER_PROJECT "project_id"
#define HEADER_USER "user_id"

const struct outbox_table chat_outbox_table = {
    .module = "chat",
    .name = "chat.event_outbox",
    .id = {"id", "uuid"},
    .aggregate = {[OF_TENANT] = {"tenant_id", "text"}, [OF_SESSION] = {"aggregate_id", "uuid"}},
    .sequence = "sequence",
    .turn = "tenant_id",
    .tenant = "e.tenant_id",
    .event_type = "e.event_type",
    .payload = "chat.event_json(e.id, e.event_type, e.sequence, e.aggregate_id, e.created_at, e.payload)",
    .size = "pg_column_size(e.payload)",
    .extra = {[EXTRA_TENANT] = "e.tenant_id",
              [EXTRA_PROJECT] = "e.project_id",
              [EXTRA_USER] = "e.user_id",
              [EXTRA_SEQUENCE] = "e.sequence",
              [EXTRA_OCCURRED_AT] = "platform.rfc3339(e.created_at)",
              [EXTRA_TRACEPARENT] = "e.traceparent"},
    .logged = {{"eventId", "e.id", false},
               {"tenantId", "e.tenant_id", false},
               {"sessionId", "e.aggregate_id", false},
               {"sequence", "e.sequence", .is_number = true},
               OUTBOX_LOGGED_TRACE},
    .words = {"status", "pending", "in_flight", "published", "failed"},
    .published_at = "published_at",
    .attempts = "retry_count",
    .outages = "outage_count",
    OUTBOX_LEASE_COLUMNS,
};

/* ---- the log ---- */

static const struct db_statement log_sql = DB_STATEMENT("select chat.log_events($1::text[]::uuid[])");

static bool is_event(const struct outbox_event *event)
{
    return event->payload.len > 0; /* chat.event_json() returns NULL for an invalid one */
}

/* Only an error of the statement itself counts as an attempt of the events. */
static bool write_log(struct chat *chat, struct outbox_batch *batch)
{
    struct buf ids = {0};
    struct error error = {0};
    for (size_t i = 0; i < batch->count; i++)
        if (is_event(&batch->events[i]))
            db_array_put(&ids, batch->events[i].id);
    enum status status =
        db_pool_exec(kernel_store(chat->kernel)->pool, &log_sql, DB_PARAMS(db_text_array(db_array_end(&ids))),
                     clock_deadline_ms(LOG_MS), NULL, &error);
    buf_deinit(&ids);
    for (size_t i = 0; i < batch->count && status != STATUS_OK; i++)
        if (status == STATUS_DB_ERROR)
            outbox_batch_set(batch, i, OUTBOX_RETRY, "%s", error.message);
        else
            outbox_batch_set(batch, i, OUTBOX_RELEASE, "not tried");
    return status == STATUS_OK;
}

/* ---- the bus ---- */

static bool write_message(void *context, const struct outbox_event *event, struct bus_message *message,
                          struct arena *arena, const char **reason)
{
    (void)context;
    *reason = "the payload is not an event";
    if (!is_event(event))
        return false;
    const struct bus_header headers[] = {
        {STR(HEADER_PROJECT), event->extra[EXTRA_PROJECT]},
        {STR(CHAT_HEADER_SESSION), event->aggregate[OF_SESSION]},
        {STR(HEADER_USER), event->extra[EXTRA_USER]},
        {STR(CHAT_HEADER_SEQUENCE), event->extra[EXTRA_SEQUENCE]},
    };
    const struct outbox_message outgoing = {
        .topic = STR(CHAT_TOPIC),
        .key = event->aggregate[OF_SESSION],
        .payload = event->payload,
        .tenant = event->extra[EXTRA_TENANT],
        .occurred_at = event->extra[EXTRA_OCCURRED_AT],
        .traceparent = event->extra[EXTRA_TRACEPARENT],
        .more = headers,
        .more_count = sizeof headers / sizeof *headers,
    };
    outbox_message_write(&outgoing, event, message, arena);
    return true;
}

void chat_publish(void *context, struct outbox_batch *batch)
{
    struct chat *chat = context;
    FAILPOINT("chat.after_claim");
    batch->is_relaxed = true; /* the log is on the outbox's own server, whatever bus carries the events */
    if (!write_log(chat, batch))
        return;
    FAILPOINT("chat.after_log");
    struct chat_delivery *delivery = chat_delivery_create(chat->rooms);
    for (size_t i = 0; i < batch->count; i++) {
        const struct outbox_event *event = &batch->events[i];
        const struct chat_key key = {event->extra[EXTRA_TENANT], event->extra[EXTRA_PROJECT],
                                     event->aggregate[OF_SESSION], event->extra[EXTRA_USER]};
        if (is_event(event))
            chat_delivery_add(delivery, &key, event->extra[EXTRA_SEQUENCE], event->payload);
    }
    chat_delivery_send(delivery);
    outbox_messages_publish(kernel_events(chat->kernel), batch, write_message, NULL);
    FAILPOINT("chat.after_publish");
}

/* ---- events published by other processes ---- */

static void on_events(void *context, struct bus_batch *batch)
{
    struct chat *chat = context;
    struct chat_delivery *delivery = chat_delivery_create(chat->rooms);
    for (size_t i = 0; i < batch->count; i++) {
        const struct bus_message *message = &batch->messages[i];
        const struct chat_key key = {bus_message_header(message, STR(OUTBOX_HEADER_TENANT)),
                                     bus_message_header(message, STR(HEADER_PROJECT)),
                                     bus_message_header(message, STR(CHAT_HEADER_SESSION)),
                                     bus_message_header(message, STR(HEADER_USER))};
        chat_delivery_add(delivery, &key, bus_message_header(message, STR(CHAT_HEADER_SEQUENCE)),
                          message->payload);
    }
    chat_delivery_send(delivery);
}

static void on_gap(void *context, unsigned partition, int64_t offset, int64_t next)
{
    (void)partition;
    (void)offset;
    (void)next;
    const struct chat *chat = context;
    chat_rooms_reread(chat->rooms);
}

/* A room may be older than the subscription's position. */
static void on_ready(void *context)
{
    const struct chat *chat = context;
    chat_rooms_reread(chat->rooms);
}

enum status chat_publisher_subscribe(void *chat, struct bus *events, struct error *error)
{
    return bus_subscribe(events,
                         &(struct bus_subscription){.topic = CHAT_TOPIC,
                                                    .group = "chat",
                                                    .mode = BUS_EVERY,
                                                    .from = BUS_FROM_NOW,
                                                    .batch_max = EVERY_BATCH,
                                                    .context = chat,
                                                    .handler = on_events,
                                                    .on_gap = on_gap,
                                                    .on_ready = on_ready},
                         error);
}
