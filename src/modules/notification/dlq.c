/* Statements of `freshet dlq`. A change takes only rows that are DEAD, so that two operators do not change one twice. */
#include "modules/notification/dlq.h"

#include "base/uuid.h"

/* Of all statements but show: $1 ids of messages, $2 kind, $3 part of the reason, $4 tenant, $5 status, $6 ids of deliveries, $7 rows
 * at most, $8 and $9 created from and before. */
#define CREATED                                                        \
    " AND ($8::text IS NULL OR d.created_at >= $8::text::timestamptz)" \
    " AND ($9::text IS NULL OR d.created_at < $9::text::timestamptz)"
#define MESSAGES_SELECTED                                                                           \
    " ($1::text[] IS NULL OR d.dlq_id = ANY ($1::text[]::bigint[]))"                                \
    " AND ($2::text IS NULL OR d.kind = $2) AND ($3::text IS NULL OR position($3 IN d.reason) > 0)" \
    " AND ($4::text IS NULL OR d.tenant_id = $4) AND ($5::text IS NULL OR d.status = $5)" CREATED
#define DELIVERIES_SELECTED                                                     \
    " ($6::text[] IS NULL OR d.notification_id = ANY ($6::text[]::uuid[]))"     \
    " AND ($2::text IS NULL OR $2 = 'delivery')"                                \
    " AND ($3::text IS NULL OR position($3 IN coalesce(d.last_error, '')) > 0)" \
    " AND ($4::text IS NULL OR d.tenant_id = $4) AND ($5::text IS NULL OR d.status = $5)" CREATED
#define SELECTION(selection)                                                                                \
    db_text_array((selection)->messages), db_text((selection)->kind), db_text((selection)->reason),         \
        db_text((selection)->tenant), db_text((selection)->status), db_text_array((selection)->deliveries), \
        db_i64((selection)->rows_max), db_text((selection)->from), db_text((selection)->to)
#define AGE "greatest(0, extract(epoch FROM now() - d.created_at))::bigint || 's'"

/* ---- reading ---- */

static const struct db_statement list_sql = DB_STATEMENT(
    "SELECT id, kind, status, tenant_id, event_id, event_type, deliveries, age, reason FROM ("
    "    SELECT d.dlq_id::text AS id, d.kind, d.status, d.tenant_id, d.event_id, d.event_type, d.deliveries,"
    "           " AGE " AS age, d.reason, d.created_at"
    "    FROM notification.notification_nats_dlq d WHERE" MESSAGES_SELECTED "  UNION ALL"
    "    SELECT d.notification_id::text, 'delivery', d.status, d.tenant_id, d.event_id::text, d.event_type,"
    "           d.attempt_count, " AGE ", d.last_error, d.created_at"
    "    FROM notification.notification_dlq d WHERE" DELIVERIES_SELECTED
    "  ) l ORDER BY created_at, id LIMIT $7");

static const struct db_statement show_message_sql = DB_STATEMENT(
    "SELECT v.name, v.value FROM notification.notification_nats_dlq d, LATERAL (VALUES"
    "    ('id', d.dlq_id::text), ('kind', d.kind), ('status', d.status), ('reason', d.reason),"
    "    ('stream', d.stream), ('topic', d.topic), ('partition', d.partition::text),"
    "    ('stream_seq', d.stream_seq::text), ('group', d.group_name), ('deliveries', d.deliveries::text),"
    "    ('tenant_id', d.tenant_id), ('event_id', d.event_id), ('event_type', d.event_type),"
    "    ('created_at', d.created_at::text), ('decided_at', d.decided_at::text), ('requeued_at', d.requeued_at::text),"
    "    ('requeue_error', d.last_error), ('headers', d.headers::text),"
    "    ('key_base64', replace(encode(d.message_key, 'base64'), E'\\n', '')),"
    "    ('payload_base64', replace(encode(d.payload, 'base64'), E'\\n', ''))) AS v (name, value)"
    " WHERE d.dlq_id = $1::text::bigint AND v.value IS NOT NULL");

static const struct db_statement show_delivery_sql = DB_STATEMENT(
    "SELECT v.name, v.value FROM notification.notification_dlq d, LATERAL (VALUES"
    "    ('id', d.notification_id::text), ('kind', 'delivery'), ('status', d.status), ('reason', d.last_error),"
    "    ('attempts', d.attempt_count::text), ('tenant_id', d.tenant_id), ('event_id', d.event_id::text),"
    "    ('event_type', d.event_type), ('user_id', d.user_id), ('stock_keeping_unit', d.stock_keeping_unit),"
    "    ('created_at', d.created_at::text), ('decided_at', d.decided_at::text),"
    "    ('payload_json', d.payload_json::text)) AS v (name, value)"
    " WHERE d.notification_id = $1::text::uuid AND v.value IS NOT NULL");

enum status notification_dlq_list(struct db_conn *conn, const struct notification_dlq_selection *selection,
                                  int64_t deadline_ns, struct db_result **rows, struct error *error)
{
    return db_query(conn, &list_sql, DB_PARAMS(SELECTION(selection)), deadline_ns, rows, error);
}

enum status notification_dlq_show(struct db_conn *conn, struct str id, int64_t deadline_ns,
                                  struct db_result **rows, struct error *error)
{
    struct uuid uuid;
    return db_query(conn, uuid_parse(id, &uuid) ? &show_delivery_sql : &show_message_sql,
                    DB_PARAMS(db_text(id)), deadline_ns, rows, error);
}

/* ---- changing: $10 operator, $11 note ---- */

#define CHOSEN_MESSAGES                                                                              \
    "WITH chosen AS (SELECT d.* FROM notification.notification_nats_dlq d WHERE" MESSAGES_SELECTED   \
    " ORDER BY d.created_at LIMIT $7 FOR UPDATE),"                                                   \
    " audit AS (INSERT INTO notification.dlq_audit (dlq_id, tenant_id, reason, actor, note, action)" \
    "     SELECT dlq_id, tenant_id, reason, $10, nullif($11, ''), "
#define CHOSEN_DELIVERIES                                                                                     \
    "WITH chosen AS (SELECT d.* FROM notification.notification_dlq d WHERE" DELIVERIES_SELECTED               \
    " ORDER BY d.created_at LIMIT $7 FOR UPDATE),"                                                            \
    " audit AS (INSERT INTO notification.dlq_audit (notification_id, tenant_id, reason, actor, note, action)" \
    "     SELECT notification_id, tenant_id, last_error, $10, nullif($11, ''), "

/* A notification that retention has deleted is created again from its dead letter. */
static const struct {
    struct db_statement messages, deliveries;
} change_sql[] = {
    [NOTIFICATION_DLQ_REQUEUE] =
        {DB_STATEMENT(
             CHOSEN_MESSAGES
             "'requeue' FROM chosen RETURNING audit_id, dlq_id)"
             " UPDATE notification.notification_nats_dlq d SET status = 'REQUEUE', decided_at = now(),"
             "     requeue_id = a.audit_id, attempt_count = 0, claim_count = 0, next_retry_at = NULL, last_error = NULL"
             " FROM audit a WHERE d.dlq_id = a.dlq_id"),
         DB_STATEMENT(
             CHOSEN_DELIVERIES
             "'requeue' FROM chosen RETURNING notification_id),"
             " again AS (INSERT INTO notification.notifications AS n (notification_id, tenant_id, event_id, event_type,"
             "         user_id, stock_keeping_unit, payload_json, traceparent)"
             "     SELECT notification_id, tenant_id, event_id, event_type, user_id, stock_keeping_unit, payload_json,"
             "            traceparent FROM chosen"
             "     ON CONFLICT (notification_id) DO UPDATE SET status = 'PENDING', attempt_count = 0, claim_count = 0,"
             "         next_retry_at = NULL, last_error = NULL WHERE n.status = 'FAILED')"
             " UPDATE notification.notification_dlq d SET status = 'REQUEUED', decided_at = now()"
             " FROM audit a WHERE d.notification_id = a.notification_id")},
    [NOTIFICATION_DLQ_DISCARD] =
        {DB_STATEMENT(
             CHOSEN_MESSAGES
             "'discard' FROM chosen RETURNING dlq_id)"
             " UPDATE notification.notification_nats_dlq d SET status = 'DISCARDED', decided_at = now()"
             " FROM audit a WHERE d.dlq_id = a.dlq_id"),
         DB_STATEMENT(CHOSEN_DELIVERIES
                      "'discard' FROM chosen RETURNING notification_id)"
                      " UPDATE notification.notification_dlq d SET status = 'DISCARDED', decided_at = now()"
                      " FROM audit a WHERE d.notification_id = a.notification_id")},
};

static const struct {
    struct db_statement messages, deliveries;
} count_sql = {
    DB_STATEMENT(
        "SELECT count(*) FROM (SELECT FROM notification.notification_nats_dlq d WHERE" MESSAGES_SELECTED
        " LIMIT $7) c"),
    DB_STATEMENT("SELECT count(*) FROM (SELECT FROM notification.notification_dlq d WHERE" DELIVERIES_SELECTED
                 " LIMIT $7) c")};

enum status notification_dlq_change_in_tx(struct db_conn *conn, enum notification_dlq_action action,
                                          bool of_deliveries,
                                          const struct notification_dlq_selection *selection,
                                          struct str actor, struct str note, int64_t deadline_ns,
                                          int64_t *count, struct error *error)
{
    struct notification_dlq_selection dead = *selection;
    dead.status = STR("DEAD");
    return db_exec(conn, of_deliveries ? &change_sql[action].deliveries : &change_sql[action].messages,
                   DB_PARAMS(SELECTION(&dead), db_text(actor), db_text(note)), deadline_ns, count, error);
}

enum status notification_dlq_count(struct db_conn *conn, bool of_deliveries,
                                   const struct notification_dlq_selection *selection, int64_t deadline_ns,
                                   int64_t *count, struct error *error)
{
    struct notification_dlq_selection dead = *selection;
    struct db_result *rows = NULL;
    dead.status = STR("DEAD");
    enum status status = db_query(conn, of_deliveries ? &count_sql.deliveries : &count_sql.messages,
                                  DB_PARAMS(SELECTION(&dead)), deadline_ns, &rows, error);
    *count = status == STATUS_OK ? db_result_i64(rows, 0, 0) : 0;
    db_result_free(rows);
    return status;
}
