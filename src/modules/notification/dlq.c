/* Statements of `freshet dlq`. A change takes only rows that are DEAD, so that two operators do not change one twice. */
#include "modules/notification/dlq.h"

#include "base/uuid.h"

/* $1 ids, $2 kind, $3 part of the reason, $4 tenant, $5 status. */
#define MESSAGES_SELECTED                                                                           \
    " ($1::text[] IS NULL OR d.dlq_id = ANY ($1::text[]::bigint[]))"                                \
    " AND ($2::text IS NULL OR d.kind = $2) AND ($3::text IS NULL OR position($3 IN d.reason) > 0)" \
    " AND ($4::text IS NULL OR d.tenant_id = $4) AND ($5::text IS NULL OR d.status = $5)"
#define DELIVERIES_SELECTED(ids)                                                      \
    " (" ids "::text[] IS NULL OR d.notification_id = ANY (" ids "::text[]::uuid[]))" \
    " AND ($2::text IS NULL OR $2 = 'delivery')"                                      \
    " AND ($3::text IS NULL OR position($3 IN coalesce(d.last_error, '')) > 0)"       \
    " AND ($4::text IS NULL OR d.tenant_id = $4) AND ($5::text IS NULL OR d.status = $5)"
#define AGE "greatest(0, extract(epoch FROM now() - d.created_at))::bigint || 's'"

/* ---- reading ---- */

/* Control characters of senders must not reach a terminal. */
#define PLAIN(text) "regexp_replace(" text ", '[[:cntrl:]]', ' ', 'g')"

/* $6 ids of deliveries, $7 rows at most. */
static const struct db_statement list_sql =
    DB_STATEMENT("SELECT id, kind, status, " PLAIN("tenant_id") ", " PLAIN("event_id") ", " PLAIN(
        "event_type") ","
                      "       deliveries, age, " PLAIN(
                          "reason") " FROM ("
                                    "    SELECT d.dlq_id::text AS id, d.kind, d.status, d.tenant_id, d.event_id, d.event_type, d.deliveries,"
                                    "           " AGE " AS age, d.reason, d.created_at"
                                    "    FROM notification.notification_nats_dlq d WHERE" MESSAGES_SELECTED
                                    "  UNION ALL"
                                    "    SELECT d.notification_id::text, 'delivery', d.status, d.tenant_id, d.event_id::text, d.event_type,"
                                    "           d.attempt_count, " AGE ", d.last_error, d.created_at"
                                    "    FROM notification.notification_dlq d WHERE" DELIVERIES_SELECTED(
                                        "$6") ") l"
                                              " ORDER BY created_at, id LIMIT $7");

static const struct db_statement show_message_sql = DB_STATEMENT("SELECT v.name, " PLAIN(
    "v.value") " FROM notification.notification_nats_dlq d, LATERAL (VALUES"
               "    ('id', d.dlq_id::text), ('kind', d.kind), ('status', d.status), ('reason', d.reason),"
               "    ('stream', d.stream), ('topic', d.topic), ('partition', d.partition::text),"
               "    ('stream_seq', d.stream_seq::text), ('group', d.group_name), ('deliveries', d.deliveries::text),"
               "    ('tenant_id', d.tenant_id), ('event_id', d.event_id), ('event_type', d.event_type),"
               "    ('created_at', d.created_at::text), ('decided_at', d.decided_at::text), ('requeued_at', d.requeued_at::text),"
               "    ('requeue_error', d.last_error), ('headers', d.headers::text),"
               "    ('key_base64', replace(encode(d.message_key, 'base64'), E'\\n', '')),"
               "    ('payload_base64', replace(encode(d.payload, 'base64'), E'\\n', ''))) AS v (name, value)"
               " WHERE d.dlq_id = $1::text::bigint AND v.value IS NOT NULL");

static const struct db_statement show_delivery_sql = DB_STATEMENT("SELECT v.name, " PLAIN(
    "v.value") " FROM notification.notification_dlq d, LATERAL (VALUES"
               "    ('id', d.notification_id::text), ('kind', 'delivery'), ('status', d.status), ('reason', d.last_error),"
               "    ('attempts', d.attempt_count::text), ('tenant_id', d.tenant_id), ('event_id', d.event_id::text),"
               "    ('event_type', d.event_type), ('user_id', d.user_id), ('stock_keeping_unit', d.stock_keeping_unit),"
               "    ('created_at', d.created_at::text), ('decided_at', d.decided_at::text),"
               "    ('payload_json', d.payload_json::text)) AS v (name, value)"
               " WHERE d.notification_id = $1::text::uuid AND v.value IS NOT NULL");

enum status notification_dlq_list(struct db_conn *conn, const struct notification_dlq_selection *selection,
                                  int64_t deadline_ns, struct db_result **rows, struct error *error)
{
    return db_query(conn, &list_sql,
                    DB_PARAMS(db_text_array(selection->messages), db_text(selection->kind),
                              db_text(selection->reason), db_text(selection->tenant),
                              db_text(selection->status), db_text_array(selection->deliveries),
                              db_i64(selection->rows_max)),
                    deadline_ns, rows, error);
}

enum status notification_dlq_show(struct db_conn *conn, struct str id, int64_t deadline_ns,
                                  struct db_result **rows, struct error *error)
{
    struct uuid uuid;
    return db_query(conn, uuid_parse(id, &uuid) ? &show_delivery_sql : &show_message_sql,
                    DB_PARAMS(db_text(id)), deadline_ns, rows, error);
}

/* ---- changing: $6 rows at most, $7 operator, $8 note ---- */

#define CHOSEN(table, selected)                                  \
    "WITH chosen AS (SELECT d.* FROM " table " d WHERE" selected \
    " ORDER BY d.created_at LIMIT $6 FOR UPDATE),"
#define AUDIT_MESSAGES(action)                                                                       \
    " audit AS (INSERT INTO notification.dlq_audit (actor, action, dlq_id, tenant_id, reason, note)" \
    "     SELECT $7, '" action                                                                       \
    "', dlq_id, tenant_id, reason, nullif($8, '') FROM chosen RETURNING audit_id, dlq_id)"
#define AUDIT_DELIVERIES(action)                                                                              \
    " audit AS (INSERT INTO notification.dlq_audit (actor, action, notification_id, tenant_id, reason, note)" \
    "     SELECT $7, '" action "', notification_id, tenant_id, last_error, nullif($8, '') FROM chosen"        \
    "     RETURNING notification_id)"

static const struct db_statement message_sql[] = {
    [NOTIFICATION_DLQ_REQUEUE] =
        DB_STATEMENT(CHOSEN("notification.notification_nats_dlq", MESSAGES_SELECTED) AUDIT_MESSAGES(
            "requeue") " UPDATE notification.notification_nats_dlq d SET status = 'REQUEUE', decided_at = now(),"
                       "     requeue_id = a.audit_id, attempt_count = 0, claim_count = 0, next_retry_at = NULL, last_error = NULL"
                       " FROM audit a WHERE d.dlq_id = a.dlq_id"),
    [NOTIFICATION_DLQ_DISCARD] =
        DB_STATEMENT(CHOSEN("notification.notification_nats_dlq", MESSAGES_SELECTED) AUDIT_MESSAGES(
            "discard") " UPDATE notification.notification_nats_dlq d SET status = 'DISCARDED', decided_at = now()"
                       " FROM audit a WHERE d.dlq_id = a.dlq_id"),
};

/* A notification that retention has deleted is created again from its dead letter. */
static const struct db_statement delivery_sql[] = {
    [NOTIFICATION_DLQ_REQUEUE] =
        DB_STATEMENT(CHOSEN("notification.notification_dlq", DELIVERIES_SELECTED("$1")) AUDIT_DELIVERIES(
            "requeue") ","
                       " again AS (INSERT INTO notification.notifications AS n (notification_id, tenant_id, event_id, event_type,"
                       "         user_id, stock_keeping_unit, payload_json, traceparent)"
                       "     SELECT notification_id, tenant_id, event_id, event_type, user_id, stock_keeping_unit, payload_json,"
                       "            traceparent FROM chosen"
                       "     ON CONFLICT (notification_id) DO UPDATE SET status = 'PENDING', attempt_count = 0, claim_count = 0,"
                       "         next_retry_at = NULL, last_error = NULL WHERE n.status = 'FAILED')"
                       " UPDATE notification.notification_dlq d SET status = 'REQUEUED', decided_at = now()"
                       " FROM audit a WHERE d.notification_id = a.notification_id"),
    [NOTIFICATION_DLQ_DISCARD] =
        DB_STATEMENT(CHOSEN("notification.notification_dlq", DELIVERIES_SELECTED("$1")) AUDIT_DELIVERIES(
            "discard") " UPDATE notification.notification_dlq d SET status = 'DISCARDED', decided_at = now()"
                       " FROM audit a WHERE d.notification_id = a.notification_id"),
};

static enum status run_change(struct db_conn *conn, const struct db_statement *sql, struct str ids,
                              const struct notification_dlq_selection *selection, struct str actor,
                              struct str note, int64_t deadline_ns, int64_t *count, struct error *error)
{
    return db_exec(conn, sql,
                   DB_PARAMS(db_text_array(ids), db_text(selection->kind), db_text(selection->reason),
                             db_text(selection->tenant), db_text(STR("DEAD")), db_i64(selection->rows_max),
                             db_text(actor), db_text(note)),
                   deadline_ns, count, error);
}

enum status notification_dlq_change(struct db_conn *conn, enum notification_dlq_action action,
                                    const struct notification_dlq_selection *selection, struct str actor,
                                    struct str note, int64_t deadline_ns, int64_t *messages,
                                    int64_t *deliveries, struct error *error)
{
    enum status status = db_begin(conn, DB_READ_COMMITTED, deadline_ns, error);
    if (status == STATUS_OK)
        status = run_change(conn, &message_sql[action], selection->messages, selection, actor, note,
                            deadline_ns, messages, error);
    if (status == STATUS_OK)
        status = run_change(conn, &delivery_sql[action], selection->deliveries, selection, actor, note,
                            deadline_ns, deliveries, error);
    if (status == STATUS_OK)
        status = db_commit(conn, deadline_ns, error);
    if (status != STATUS_OK)
        db_rollback(conn);
    return status;
}
