/* Dead letters of the bus (N2) into notification_nats_dlq, where people find them: the message as it was, why it died, and
 * where it stood. A letter may come twice; its place in the stream tells. */
#include "modules/notification/dead_letters.h"

#include <stdlib.h>

#include "base/failpoint.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/notification/notification.h"
#include "outbox/messages.h"

enum { BATCH_MAX = 50 };

#define DEAD_PREFIX "dlq-" /* headers that are the bus's own */

/* $1: [{"topic": …}, …], $2 their keys, $3 their payloads. */
static const char store_sql[] =
    "INSERT INTO notification.notification_nats_dlq"
    "    (stream, topic, partition, stream_seq, group_name, kind, deliveries, reason, tenant_id, event_id, event_type,"
    "     headers, message_key, payload)"
    " SELECT l.m ->> 'stream', l.m ->> 'topic', (l.m ->> 'partition')::int, (l.m ->> 'stream_seq')::bigint,"
    "        l.m ->> 'group', l.m ->> 'kind', (l.m ->> 'deliveries')::int, l.m ->> 'reason', l.m ->> 'tenant_id',"
    "        l.m ->> 'event_id', l.m ->> 'event_type', l.m -> 'headers', l.message_key, l.payload"
    " FROM ROWS FROM (jsonb_array_elements($1), unnest($2), unnest($3)) AS l (m, message_key, payload)"
    " ON CONFLICT DO NOTHING"
    " RETURNING dlq_id, kind, event_id, reason";

/* ---- one letter as JSON ---- */

/* Text that jsonb takes, whoever wrote it: up to the first NUL. */
static struct str plain(struct str text)
{
    const char *nul = text.len ? memchr(text.ptr, '\0', text.len) : NULL;
    return nul ? str_of(text.ptr, (size_t)(nul - text.ptr)) : text;
}

static void put_if_there(struct buf *json, const char *name, const struct bus_message *letter,
                         const char *header)
{
    struct str value = bus_message_header(letter, str_from(header));
    if (value.ptr)
        json_put_member_str(json, name, plain(value));
}

static int64_t number_of(const struct bus_message *letter, const char *header, int64_t min, int64_t otherwise)
{
    int64_t number;
    return str_to_i64(bus_message_header(letter, str_from(header)), &number) && number >= min ? number
                                                                                              : otherwise;
}

static void put_headers(struct buf *json, const struct bus_message *letter)
{
    json_put_key(json, STR("headers"));
    buf_put_char(json, '{');
    for (unsigned i = 0; i < letter->header_count; i++) {
        const struct bus_header *header = &letter->headers[i];
        if (str_starts_with(header->name, STR(DEAD_PREFIX)))
            continue;
        if (buf_str(json).ptr[buf_len(json) - 1] != '{')
            buf_put_char(json, ',');
        json_put_string(json, plain(header->name));
        buf_put_char(json, ':');
        json_put_string(json, plain(header->value));
    }
    buf_put_char(json, '}');
}

static void put_letter(const struct notification *notification, const struct bus_message *letter,
                       struct buf *json)
{
    struct str reason = plain(bus_message_header(letter, STR(BUS_HEADER_DEAD_REASON)));
    struct str group = plain(bus_message_header(letter, STR(BUS_HEADER_DEAD_GROUP)));
    const char *stream = kernel_events_stream(notification->kernel, NOTIFICATION_TOPIC);
    bool is_terminated =
        str_starts_with(reason, STR(NOTIFICATION_NO_EVENT)) || str_starts_with(reason, STR("terminated"));
    buf_put_char(json, '{');
    json_put_member_str(json, "stream", stream ? str_from(stream) : STR(NOTIFICATION_TOPIC));
    json_put_member_str(json, "topic", STR(NOTIFICATION_TOPIC));
    json_put_member_i64(json, "partition",
                        number_of(letter, BUS_HEADER_DEAD_PARTITION, 0, letter->partition) %
                            BUS_PARTITIONS_MAX);
    json_put_member_i64(json, "stream_seq", number_of(letter, BUS_HEADER_DEAD_OFFSET, 0, letter->offset));
    json_put_member_str(json, "group", group);
    json_put_member_str(json, "kind", is_terminated ? STR("terminated") : STR("max_deliver"));
    int64_t deliveries = is_terminated ? 1 : notification->settings->nats.max_deliver;
    json_put_member_i64(json, "deliveries",
                        number_of(letter, BUS_HEADER_DEAD_DELIVERIES, 1, deliveries) % INT32_MAX);
    json_put_member_str(json, "reason", reason.len ? reason : STR("nobody said why"));
    put_if_there(json, "tenant_id", letter, OUTBOX_HEADER_TENANT);
    put_if_there(json, "event_id", letter, BUS_HEADER_EVENT_ID);
    put_if_there(json, "event_type", letter, OUTBOX_HEADER_EVENT_TYPE);
    put_headers(json, letter);
    buf_put_char(json, '}');
}

/* ---- a batch of them ---- */

static enum status store(const struct notification *notification, struct bus_batch *batch,
                         struct db_result **rows, struct error *error)
{
    struct db_statement statement;
    struct buf json, keys, payloads;
    buf_init(&json), buf_init(&keys), buf_init(&payloads);
    buf_put_char(&json, '[');
    db_bytes_array_begin(&keys, batch->count);
    db_bytes_array_begin(&payloads, batch->count);
    for (size_t i = 0; i < batch->count; i++) {
        const struct bus_message *letter = &batch->messages[i];
        if (i)
            buf_put_char(&json, ',');
        put_letter(notification, letter, &json);
        db_bytes_array_put(&keys, letter->key);
        db_bytes_array_put(&payloads, letter->payload.ptr ? letter->payload : STR(""));
    }
    buf_put_char(&json, ']');
    db_statement_init(&statement, store_sql, 3, (enum db_type[]){DB_JSONB, DB_BYTEA_ARRAY, DB_BYTEA_ARRAY});
    enum status status =
        db_query(batch->conn, &statement,
                 (struct db_param[]){{buf_str(&json)}, {buf_str(&keys)}, {buf_str(&payloads)}},
                 batch->deadline_ns, rows, error);
    buf_deinit(&json), buf_deinit(&keys), buf_deinit(&payloads);
    return status;
}

static void handle(void *context, struct bus_batch *batch)
{
    struct db_result *rows = NULL;
    struct error error = {0};
    enum status status = store(context, batch, &rows, &error);
    batch->memo = rows;
    FAILPOINT("notification.letters_before_commit");
    if (status != STATUS_OK && status != STATUS_DB_DOWN && status != STATUS_CANCELLED)
        bus_batch_rollback(batch, "%s", error.message);
}

static void on_committed(void *context, const struct bus_batch *batch, size_t settled)
{
    (void)context, (void)settled;
    struct db_result *rows = batch->memo;
    for (size_t i = 0; rows && i < db_result_rows(rows); i++) {
        notification_count_letters(db_result_str(rows, i, 1).ptr, 1);
        log_error("notification_dead_letter", LOG_INT("dlqId", db_result_i64(rows, i, 0)),
                  LOG_STR("kind", db_result_str(rows, i, 1)),
                  LOG_STR("eventId", db_result_is_null(rows, i, 2) ? STR("") : db_result_str(rows, i, 2)),
                  LOG_STR("reason", db_result_str(rows, i, 3)));
    }
    db_result_free(rows);
}

static void on_uncommitted(void *context, const struct bus_batch *batch)
{
    (void)context;
    db_result_free(batch->memo);
}

/* Tried for ever: what dies here has nowhere to go. */
enum status notification_dead_letters_subscribe(struct notification *notification, struct bus *bus,
                                                struct error *error)
{
    const struct bus_subscription subscription = {
        .topic = NOTIFICATION_TOPIC BUS_DEAD_SUFFIX,
        .group = notification->settings->nats.durable.ptr,
        .mode = BUS_SHARED,
        .from = BUS_FROM_START,
        .batch_max = BATCH_MAX,
        .context = notification,
        .handler = handle,
        .on_committed = on_committed,
        .on_uncommitted = on_uncommitted,
    };
    return bus_subscribe(bus, &subscription, error);
}
