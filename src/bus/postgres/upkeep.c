/* Upkeep: topics created where they are missing, the lag of groups, and retention in small batches.
 *
 * Every process may do it at any time; an advisory lock keeps two from deleting the same rows. Retention never deletes a message
 * that a shared cursor has not passed, unless a hard limit is set. */
#include "base/clock.h"
#include "base/log.h"
#include "bus/postgres/inside.h"

#define UPKEEP_MS 10000
#define BATCHES_MAX 20 /* of a partition in one round */

/* Any constant, the same in every process. */
#define RETENTION_LOCK "6021837744811208"

static const struct db_statement create_sql =
    DB_STATEMENT("INSERT INTO platform.bus_partition (topic, partition)"
                 " SELECT $1, n FROM generate_series(0, $2 - 1) AS n"
                 " WHERE NOT EXISTS (SELECT FROM platform.bus_partition WHERE topic = $1)"
                 " ON CONFLICT DO NOTHING");

static const struct db_statement count_sql =
    DB_STATEMENT("SELECT count(*) FROM platform.bus_partition WHERE topic = $1");

/* Of all groups of the database, also of those that no process reads for now. */
static const struct db_statement lag_sql =
    DB_STATEMENT("SELECT c.group_name, c.topic, sum(p.next_offset - c.position)::bigint"
                 " FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)"
                 " GROUP BY 1, 2");

/* $1 topics, $2 rows that a deletion looks at. The messages of a partition, and the age in ms of the oldest as below. Shows
 * where a deletion may find something, so that partitions with nothing to delete cost no statement each. */
static const struct db_statement oldest_sql = DB_STATEMENT(
    "SELECT p.topic, p.partition, p.next_offset - o.message_offset,"
    "       (extract(epoch FROM now() - least(o.since, n.created_at)) * 1000)::bigint"
    " FROM platform.bus_partition p"
    " CROSS JOIN LATERAL ("
    "    SELECT min(message_offset) AS message_offset, min(created_at) AS since"
    "    FROM (SELECT message_offset, created_at FROM platform.bus_message"
    "          WHERE topic = p.topic AND partition = p.partition ORDER BY message_offset LIMIT $2) w) o"
    " CROSS JOIN LATERAL ("
    "    SELECT created_at FROM platform.bus_message"
    "    WHERE topic = p.topic AND partition = p.partition ORDER BY message_offset DESC LIMIT 1) n"
    " WHERE p.topic = ANY ($1)");
enum oldest_column { OLDEST_TOPIC, OLDEST_PARTITION, OLDEST_COUNT, OLDEST_AGE_MS };

/* $1 topic, $2 partition, $3 rows at most, $4 and $5 keep by age (ms) and number, $6 and $7 the same whatever
 * the cursors are; 0 = without. A prefix of the offsets is deleted, so readers see every gap. Age and offset
 * ascend together unless the clock was set back; therefore a row counts as old as the oldest row after it, and
 * no row is younger than the newest one, in case the clock was ahead. Without a limit by number, none is deleted
 * by number; with both limits, both must be reached. $8 the topic's group, NULL: none. Returns the rows deleted, those of them that the
 * group had not handled, and whether older rows than $4 are kept for it. */
static const struct db_statement delete_sql = DB_STATEMENT(
    "WITH bound AS ("
    "    SELECT p.next_offset, coalesce(min(c.position), p.next_offset) AS handled,"
    "           min(c.position) FILTER (WHERE c.group_name = $8) AS group_position,"
    "           (SELECT n.created_at FROM platform.bus_message n WHERE n.topic = $1 AND n.partition = $2"
    "            ORDER BY n.message_offset DESC LIMIT 1) AS newest"
    "    FROM platform.bus_partition p LEFT JOIN platform.bus_cursor c USING (topic, partition)"
    "    WHERE p.topic = $1 AND p.partition = $2 AND pg_try_advisory_xact_lock(" RETENTION_LOCK ")"
    "    GROUP BY p.next_offset),"
    " oldest AS ("
    "    SELECT message_offset, least(b.newest, min(created_at) OVER (ORDER BY message_offset DESC)) AS since"
    "    FROM bound b, (SELECT message_offset, created_at FROM platform.bus_message"
    "                   WHERE topic = $1 AND partition = $2 ORDER BY message_offset LIMIT $3) w),"
    " deleted AS (DELETE FROM platform.bus_message m"
    " WHERE m.topic = $1 AND m.partition = $2 AND m.message_offset <= ("
    "    SELECT max(o.message_offset) FROM oldest o, bound b"
    "    WHERE (o.message_offset < b.handled AND ($4 > 0 OR $5 > 0)"
    "           AND ($4 = 0 OR o.since < now() - $4 * interval '1 ms')"
    "           AND ($5 = 0 OR o.message_offset < b.next_offset - $5))"
    "       OR ($6 > 0 AND o.since < now() - $6 * interval '1 ms')"
    "       OR ($7 > 0 AND o.message_offset < b.next_offset - $7)) RETURNING m.message_offset)"
    " SELECT count(d.message_offset), count(d.message_offset) FILTER (WHERE d.message_offset >= b.group_position),"
    "        EXISTS (SELECT FROM oldest o WHERE $4 > 0 AND o.message_offset >= b.group_position"
    "                AND o.since < now() - $4 * interval '1 ms')::int"
    " FROM bound b LEFT JOIN deleted d ON true GROUP BY b.group_position");
enum delete_column { DELETED, DELETED_UNREAD, IS_HELD };

/* ---- topics ---- */

enum status bus_postgres_topic_ensure(struct db_conn *conn, struct bus_topic_state *topic,
                                      int64_t deadline_ns, struct error *error)
{
    struct db_result *result = NULL;
    int64_t count = 0;

    if (atomic_load(&topic->known))
        return STATUS_OK;
    enum status status =
        db_exec(conn, &create_sql, DB_PARAMS(db_text(topic->name), db_int(topic->spec.partitions)),
                deadline_ns, NULL, error);
    if (status == STATUS_OK)
        status = db_query(conn, &count_sql, DB_PARAMS(db_text(topic->name)), deadline_ns, &result, error);
    if (status == STATUS_OK)
        count = db_result_i64(result, 0, 0);
    db_result_free(result);
    if (status == STATUS_OK && count != topic->spec.partitions)
        status = error_set(error, STATUS_CONFIG,
                           "topic %s has %lld partitions in the database, %u in the configuration",
                           topic->spec.name, (long long)count, topic->spec.partitions);
    if (status == STATUS_OK && topic->spec.group)
        status = bus_postgres_cursors_create(conn, topic, topic->spec.group, true, deadline_ns, error);
    if (status == STATUS_OK)
        atomic_store(&topic->known, true);
    return status;
}

enum status bus_postgres_topics_ensure(struct postgres *postgres, const struct bus_message *messages,
                                       size_t count, int64_t deadline_ns, struct error *error)
{
    struct db_conn *conn = NULL;
    enum status status = STATUS_OK;

    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        struct bus_topic_state *topic = bus_topic_find(&postgres->bus, messages[i].topic);
        if (atomic_load(&topic->known))
            continue;
        if (!conn)
            status = db_acquire(postgres->publish_pool, deadline_ns, &conn, error);
        if (status == STATUS_OK)
            status = bus_postgres_topic_ensure(conn, topic, deadline_ns, error);
    }
    db_release(conn);
    return status;
}

/* ---- privacy of notices ---- */

/* A role that may connect can listen to our channel, whatever tables it may read. Superusers can read everything anyway. */
static const struct db_statement trusted_sql = DB_STATEMENT(
    "SELECT (NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolcanlogin AND NOT r.rolsuper"
    "    AND r.rolname <> current_user"
    "    AND has_database_privilege(r.oid, current_database(), 'CONNECT')))::int");

enum status bus_postgres_look_trusted(struct db_conn *conn, int64_t deadline_ns, bool *is_trusted,
                                      struct error *error)
{
    struct db_result *result = NULL;
    enum status status = db_query(conn, &trusted_sql, DB_NO_PARAMS, deadline_ns, &result, error);

    *is_trusted = status == STATUS_OK && db_result_i64(result, 0, 0) == 1;
    db_result_free(result);
    return status;
}

/* ---- retention ---- */

/* Deletes one batch of a partition. *is_held: unread messages older than keep_ms are kept for the topic's group. */
static enum status delete_batch(struct postgres *postgres, struct bus_topic_state *topic, unsigned partition,
                                struct db_conn *conn, int64_t deadline_ns, int64_t *deleted, bool *is_held,
                                struct error *error)
{
    const struct bus_topic *spec = &topic->spec;
    struct db_result *result = NULL;

    *deleted = 0;
    enum status status = db_query(
        conn, &delete_sql,
        DB_PARAMS(db_text(topic->name), db_int(partition), db_i64(postgres->config.retention_batch),
                  db_i64(spec->keep_ms), db_i64(spec->keep_messages), db_i64(spec->keep_ms_hard),
                  db_i64(spec->keep_messages_hard), spec->group ? db_cstr(spec->group) : db_null(DB_TEXT)),
        deadline_ns, &result, error);
    /* No row: another process holds the lock, or the partition is missing. */
    if (status == STATUS_OK && db_result_rows(result) > 0) {
        *deleted = db_result_i64(result, 0, DELETED);
        *is_held |= db_result_i64(result, 0, IS_HELD) == 1;
        if (db_result_i64(result, 0, DELETED_UNREAD) > 0)
            log_error("bus_unread_deleted", LOG_STR("topic", topic->name), LOG_INT("partition", partition),
                      LOG_CSTR("group", spec->group),
                      LOG_INT("count", db_result_i64(result, 0, DELETED_UNREAD)));
        if (db_result_i64(result, 0, IS_HELD) == 1 && !atomic_exchange(&topic->is_held, true))
            log_warn("bus_unread_kept", LOG_STR("topic", topic->name), LOG_CSTR("group", spec->group),
                     LOG_INT("kept_for_ms", spec->keep_ms_hard));
    }
    db_result_free(result);
    return status;
}

static enum status trim_topic(struct postgres *postgres, struct bus_topic_state *topic,
                              const struct db_result *oldest, struct db_conn *conn, int64_t deadline_ns,
                              struct error *error)
{
    const struct bus_topic *spec = &topic->spec;
    enum status status = STATUS_OK;
    bool is_held = false;

    for (size_t row = 0; row < db_result_rows(oldest) && status == STATUS_OK; row++) {
        unsigned partition = (unsigned)db_result_i64(oldest, row, OLDEST_PARTITION);
        int64_t count = db_result_i64(oldest, row, OLDEST_COUNT);
        int64_t age_ms = db_result_i64(oldest, row, OLDEST_AGE_MS);
        int64_t deleted = postgres->config.retention_batch;
        /* Is any limit reached? More is for the deletion to decide. */
        bool may_delete = (spec->keep_ms && age_ms >= spec->keep_ms) ||
                          (spec->keep_ms_hard && age_ms >= spec->keep_ms_hard) ||
                          (spec->keep_messages && count > spec->keep_messages) ||
                          (spec->keep_messages_hard && count > spec->keep_messages_hard);
        if (!may_delete || !str_eq(db_result_str(oldest, row, OLDEST_TOPIC), topic->name))
            continue;
        for (int i = 0; i < BATCHES_MAX && deleted == postgres->config.retention_batch; i++) {
            if (bus_postgres_is_stopping(postgres))
                return STATUS_OK;
            status = delete_batch(postgres, topic, partition, conn, deadline_ns, &deleted, &is_held, error);
            if (status != STATUS_OK)
                break;
        }
    }
    if (status == STATUS_OK && !is_held)
        atomic_store(&topic->is_held, false);
    return status;
}

/* ---- one round ---- */

int64_t bus_postgres_upkeep(struct task *task, void *context)
{
    struct postgres *postgres = context;
    struct bus *bus = &postgres->bus;
    int64_t deadline_ns = clock_deadline_ms(UPKEEP_MS);
    struct db_result *results[3] = {NULL, NULL, NULL};
    struct error error = {0};
    struct buf topics = {0};
    struct db_conn *conn;
    enum status status = db_acquire(postgres->publish_pool, deadline_ns, &conn, &error);

    (void)task;
    for (size_t i = 0; i < bus->topic_count && status == STATUS_OK; i++)
        status = bus_postgres_topic_ensure(conn, &bus->topics[i], deadline_ns, &error);
    for (size_t i = 0; i < bus->topic_count; i++)
        db_array_put(&topics, bus->topics[i].name);
    if (status == STATUS_OK) { /* what is looked at every time takes one round trip and one transaction */
        db_pipeline_begin(conn);
        db_pipeline_add(conn, &trusted_sql, DB_NO_PARAMS);
        db_pipeline_add(conn, &lag_sql, DB_NO_PARAMS);
        db_pipeline_add(
            conn, &oldest_sql,
            DB_PARAMS(db_text_array(db_array_end(&topics)), db_i64(postgres->config.retention_batch)));
        status = db_pipeline_end(conn, deadline_ns, results, 3, NULL, &error);
    }
    buf_deinit(&topics);
    atomic_store(&postgres->is_trusted, status == STATUS_OK && db_result_i64(results[0], 0, 0) == 1);
    for (size_t row = 0; status == STATUS_OK && row < db_result_rows(results[1]); row++)
        bus_lag_set(bus, db_result_str(results[1], row, 1), db_result_str(results[1], row, 0),
                    db_result_i64(results[1], row, 2));
    for (size_t i = 0; i < bus->topic_count && status == STATUS_OK; i++)
        status = trim_topic(postgres, &bus->topics[i], results[2], conn, deadline_ns, &error);
    for (size_t i = 0; i < 3; i++)
        db_result_free(results[i]);
    db_release(conn);
    if (status != STATUS_OK && status != STATUS_CANCELLED &&
        status != STATUS_DB_DOWN) /* the pool logs that */
        log_warn("bus_upkeep_failed", LOG_ERROR_FIELDS(&error));
    return TASK_MS(postgres->config.maintenance_ms);
}
