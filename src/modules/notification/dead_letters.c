/* Dead letters of the bus (N2). They are stored in notification_nats_dlq, where an operator finds them: the message as it was, the
 * reason, and its position. A dead letter that arrives twice is recognized by its position in the stream.
 *
 * `freshet dlq requeue` (dlq.c) marks rows; an outbox engine publishes them again. The payload is the same; the header event-id is a
 * new one each time, since engines drop ids that they have seen. The event inside is still the same, so that one that was handled
 * meanwhile has no effect.
 *
 * A task counts the rows that wait for a decision every few seconds, for alerts. Every process counts the same rows: take the maximum
 * over processes, not the sum. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hex.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/notification/notification.h"
#include "outbox/outbox.h"

enum { DEAD_AT_ONCE = 50, MEASURE_INTERVAL_MS = 2000, MEASURE_QUERY_MS = 3000 };

#define DEAD_PREFIX "dlq-" /* headers that are the bus's own */

struct metric_family notification_dead_letters_family = {
    .name = "notification_dead_letters_total",
    .help = "Dead letters of the bus, stored in notification_nats_dlq: terminated, max_deliver.",
    .type = METRIC_COUNTER,
    .labels = {"kind", NULL},
};
struct metric_family notification_dead_family = {
    .name = "notification_dlq",
    .help =
        "Dead letters that wait for a decision: terminated, max_deliver (of the bus), delivery. Anything above 0 alerts.",
    .type = METRIC_GAUGE,
    .labels = {"kind", NULL},
};

/* ---- storing ---- */

/* $1: [{"topic": …}, …], $2 their keys, $3 their payloads. */
static const struct db_statement store_sql = DB_STATEMENT(
    "INSERT INTO notification.notification_nats_dlq"
    "    (stream, topic, partition, stream_seq, group_name, kind, deliveries, reason, tenant_id, event_id, event_type,"
    "     headers, message_key, payload)"
    " SELECT l.m ->> 'stream', l.m ->> 'topic', (l.m ->> 'partition')::int, (l.m ->> 'stream_seq')::bigint,"
    "        l.m ->> 'group', l.m ->> 'kind', (l.m ->> 'deliveries')::int, l.m ->> 'reason', l.m ->> 'tenant_id',"
    "        l.m ->> 'event_id', l.m ->> 'event_type', l.m -> 'headers', l.message_key, l.payload"
    " FROM ROWS FROM (jsonb_array_elements($1), unnest($2), unnest($3)) AS l (m, message_key, payload)"
    " ON CONFLICT DO NOTHING"
    " RETURNING dlq_id, kind, event_id, reason");

/* Text that jsonb takes: up to the first NUL. */
static struct str plain(struct str text)
{
    const char *nul = text.len ? memchr(text.ptr, '\0', text.len) : NULL;
    return nul ? str_of(text.ptr, (size_t)(nul - text.ptr)) : text;
}

static void put_if_there(struct buf *json, const char *name, const struct bus_message *dead,
                         const char *header)
{
    struct str value = bus_message_header(dead, str_from(header));
    if (value.ptr)
        json_put_member_str(json, name, plain(value));
}

static int64_t number_of(const struct bus_message *dead, const char *header, int64_t min, int64_t otherwise)
{
    int64_t number;
    return str_to_i64(bus_message_header(dead, str_from(header)), &number) && number >= min ? number
                                                                                            : otherwise;
}

static void put_dead(const struct notification *notification, const struct bus_message *dead,
                     struct buf *json)
{
    struct str reason = plain(bus_message_header(dead, STR(BUS_HEADER_DEAD_REASON)));
    struct str group = plain(bus_message_header(dead, STR(BUS_HEADER_DEAD_GROUP)));
    const char *stream = kernel_events_stream(notification->kernel, NOTIFICATION_TOPIC);
    bool is_terminated = str_starts_with(reason, STR(NOTIFICATION_INVALID_EVENT)) ||
                         str_starts_with(reason, STR("terminated"));
    json_put_open(json, NULL, '{');
    json_put_member_str(json, "stream", stream ? str_from(stream) : STR(NOTIFICATION_TOPIC));
    json_put_member_str(json, "topic", STR(NOTIFICATION_TOPIC));
    json_put_member_i64(json, "partition",
                        number_of(dead, BUS_HEADER_DEAD_PARTITION, 0, dead->partition) % BUS_PARTITIONS_MAX);
    json_put_member_i64(json, "stream_seq", number_of(dead, BUS_HEADER_DEAD_OFFSET, 0, dead->offset));
    json_put_member_str(json, "group", group);
    json_put_member_str(json, "kind", is_terminated ? STR("terminated") : STR("max_deliver"));
    int64_t deliveries = is_terminated ? 1 : notification->settings->nats.max_deliver;
    json_put_member_i64(json, "deliveries",
                        number_of(dead, BUS_HEADER_DEAD_DELIVERIES, 1, deliveries) % INT32_MAX);
    json_put_member_str(json, "reason", reason.len ? reason : STR("no reason given"));
    put_if_there(json, "tenant_id", dead, OUTBOX_HEADER_TENANT);
    put_if_there(json, "event_id", dead, BUS_HEADER_EVENT_ID);
    put_if_there(json, "event_type", dead, OUTBOX_HEADER_EVENT_TYPE);
    json_put_open(json, "headers", '{');
    for (unsigned i = 0; i < dead->header_count; i++) {
        const struct bus_header *header = &dead->headers[i];
        if (str_starts_with(header->name, STR(DEAD_PREFIX)))
            continue;
        json_put_key(json, plain(header->name));
        json_put_string(json, plain(header->value));
    }
    buf_put_str(json, STR("}}"));
}

static void handle_dead(void *context, struct bus_batch *batch)
{
    struct db_result *rows = NULL;
    struct error error = {0};
    struct buf json = {0}, keys = {0}, payloads = {0};
    buf_put_char(&json, '[');
    db_bytes_array_begin(&keys, batch->count);
    db_bytes_array_begin(&payloads, batch->count);
    for (size_t i = 0; i < batch->count; i++) {
        const struct bus_message *dead = &batch->messages[i];
        put_dead(context, dead, &json);
        db_bytes_array_put(&keys, dead->key);
        db_bytes_array_put(&payloads, dead->payload.ptr ? dead->payload : STR(""));
    }
    buf_put_char(&json, ']');
    enum status status = db_query(batch->conn, &store_sql,
                                  DB_PARAMS(db_jsonb(buf_str(&json)), db_bytea_array(buf_str(&keys)),
                                            db_bytea_array(buf_str(&payloads))),
                                  batch->deadline_ns, &rows, &error);
    batch->memo = rows;
    FAILPOINT("notification.dead_before_commit");
    if (status != STATUS_OK && status != STATUS_DB_DOWN && status != STATUS_CANCELLED)
        bus_batch_rollback(batch, "%s", error.message);
    buf_deinit(&json), buf_deinit(&keys), buf_deinit(&payloads);
}

static void on_dead_committed(void *context, const struct bus_batch *batch, size_t settled)
{
    (void)context, (void)settled;
    struct db_result *rows = batch->memo;
    for (size_t i = 0; rows && i < db_result_rows(rows); i++) {
        metric_add(
            metric_series_get(&notification_dead_letters_family, (struct str[]){db_result_str(rows, i, 1)}),
            1);
        log_error("notification_dead_letter", LOG_INT("dlqId", db_result_i64(rows, i, 0)),
                  LOG_STR("kind", db_result_str(rows, i, 1)),
                  LOG_STR("eventId", db_result_is_null(rows, i, 2) ? STR("") : db_result_str(rows, i, 2)),
                  LOG_STR("reason", db_result_str(rows, i, 3)));
    }
    db_result_free(rows);
}

static void on_dead_uncommitted(void *context, const struct bus_batch *batch)
{
    (void)context;
    db_result_free(batch->memo);
}

/* Retried without limit: there is no dead letter of a dead letter. */
enum status notification_dead_letters_subscribe(struct notification *notification, struct bus *bus,
                                                struct error *error)
{
    const struct bus_subscription subscription = {
        .topic = NOTIFICATION_TOPIC BUS_DEAD_SUFFIX,
        .group = notification->settings->nats.durable.ptr,
        .mode = BUS_SHARED,
        .from = BUS_FROM_START,
        .batch_max = DEAD_AT_ONCE,
        .context = notification,
        .handler = handle_dead,
        .on_committed = on_dead_committed,
        .on_uncommitted = on_dead_uncommitted,
    };
    return bus_subscribe(bus, &subscription, error);
}

/* ---- publishing again ---- */

enum { EXTRA_TOPIC, EXTRA_KEY, EXTRA_HEADERS, EXTRA_REQUEUE_ID, EXTRA_PLACE };

#define REQUEUE_SUFFIX "-requeue-" /* and the number of the requeue */

static const struct outbox_table requeue_table = {
    .module = "notification",
    .name = "notification.notification_nats_dlq",
    .id = {"dlq_id", "bigint"},
    .event_type = "'requeue'",
    .payload = "e.payload",
    .payload_is_bytes = true,
    .size = "octet_length(e.payload)",
    .extra = {[EXTRA_TOPIC] = "e.topic",
              [EXTRA_KEY] = "encode(e.message_key, 'hex')",
              [EXTRA_HEADERS] = "e.headers",
              [EXTRA_REQUEUE_ID] = "e.requeue_id",
              [EXTRA_PLACE] = "concat_ws(':', e.stream, e.partition, e.stream_seq)"},
    .logged = {{"eventId", "coalesce(e.event_id, '')", false}, {"dlqId", "e.dlq_id", .is_number = true}},
    .words = {"status", "REQUEUE", "PUBLISHING", "REQUEUED", "DEAD"},
    .published_at = "requeued_at",
    .attempts = "attempt_count",
    .outages = "outage_count",
    OUTBOX_LEASE_COLUMNS,
};

static const struct outbox_settings requeue_settings = {
    .poll_ms = 1000,
    .batch = 50,
    .lease_ms = 30000,
    .attempts_max = 10,
    .backoff_base_ms = 1000,
    .backoff_max_ms = 60000,
    .jitter_min = 500,
    .jitter_max = 1500,
};

static bool write_requeued(void *context, const struct outbox_event *event, struct bus_message *message,
                           struct arena *arena, const char **reason)
{
    struct bus_header *headers = arena_alloc(arena, (BUS_HEADERS_MAX + 1) * sizeof *headers);
    struct json_value object, member;
    struct json_iter it;
    struct str name, id = STR_NONE, key = event->extra[EXTRA_KEY]; /* the key in hex */
    unsigned count = 1;
    (void)context;
    *reason = "its headers or its key cannot be read";
    if (json_parse_stored(event->extra[EXTRA_HEADERS], JSON_DEPTH_MAX, &object, NULL) != STATUS_OK)
        return false;
    for (json_iter_init(&it, &object); json_iter_next(&it, &name, &member) && count < BUS_HEADERS_MAX;) {
        struct bus_header header = {json_str_decode(name, arena), json_str_decode(member.raw, arena)};
        if (str_eq(header.name, STR(BUS_HEADER_EVENT_ID)))
            id = header.value;
        else if (header.name.len)
            headers[count++] = header;
    }
    /* The event's id, or the position of a message without one, followed by the number of this requeue. */
    const char *suffix = id.len ? memmem(id.ptr, id.len, REQUEUE_SUFFIX, sizeof REQUEUE_SUFFIX - 1) : NULL;
    if (suffix)
        id.len = (size_t)(suffix - id.ptr);
    headers[0] = (struct bus_header){STR(BUS_HEADER_EVENT_ID),
                                     arena_printf(arena, "%.*s" REQUEUE_SUFFIX "%.*s",
                                                  STR_ARG(id.len ? id : event->extra[EXTRA_PLACE]),
                                                  STR_ARG(event->extra[EXTRA_REQUEUE_ID]))};
    uint8_t *bytes = arena_alloc(arena, key.len / 2 + 1);
    *message = (struct bus_message){.topic = event->extra[EXTRA_TOPIC],
                                    .payload = event->payload,
                                    .headers = headers,
                                    .header_count = count};
    if (key.ptr)
        message->key = str_of((const char *)bytes, key.len / 2);
    return hex_get(key.ptr, bytes, key.len / 2);
}

static void publish_requeued(void *context, struct outbox_batch *batch)
{
    struct notification *notification = context;
    FAILPOINT("requeue.after_claim");
    outbox_messages_publish(kernel_events(notification->kernel), batch, write_requeued, NULL);
    FAILPOINT("requeue.after_publish");
    for (size_t i = 0; i < batch->count; i++)
        if (batch->results[i].kind == OUTBOX_DONE)
            log_info("notification_requeued", LOG_STR("dlqId", batch->events[i].id));
}

/* ---- counting ---- */

/* By the partial indexes of dead ones. */
static const struct db_statement dead_sql = DB_STATEMENT(
    "SELECT count(*) FILTER (WHERE kind = 'terminated'), count(*) FILTER (WHERE kind = 'max_deliver'),"
    "       (SELECT count(*) FROM notification.notification_dlq WHERE status = 'DEAD')"
    " FROM notification.notification_nats_dlq WHERE status = 'DEAD'");

static int64_t measure_dead_step(struct task *task, void *context)
{
    static const struct str kinds[] = {{"terminated", 10}, {"max_deliver", 11}, {"delivery", 8}};
    struct notification *notification = context;
    struct db_result *rows;
    struct error error = {0};

    (void)task;
    enum status status = db_pool_query(kernel_store(notification->kernel)->pool, &dead_sql, DB_NO_PARAMS,
                                       clock_deadline_ms(MEASURE_QUERY_MS), &rows, &error);
    for (unsigned i = 0; i < 3 && status == STATUS_OK; i++)
        metric_set(metric_series_get(&notification_dead_family, &kinds[i]),
                   (double)db_result_i64(rows, 0, i));
    db_result_free(rows);
    return TASK_MS(MEASURE_INTERVAL_MS);
}

void notification_dead_letters_create(struct notification *notification)
{
    (void)kernel_outbox_create(notification->kernel, &requeue_table, &requeue_settings, publish_requeued,
                               notification);
    kernel_store_task(notification->kernel, "notification dead letters", measure_dead_step, notification);
}
