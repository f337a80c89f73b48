/* Dead letters on PostgreSQL, by the caller's connection. Reads are ranges of the primary key; a payload that is not wanted is not
 * fetched, since it is stored out of line. Publishing is part of the caller's transaction. */
#include <stdlib.h>

#include "base/memory.h"
#include "bus/dead.h"
#include "bus/postgres/inside.h"

struct postgres_dead {
    struct bus_dead dead; /* first */
    struct db_conn *conn;
};

/* $1 topic, $2 the group that moves letters elsewhere, or NULL. */
static const struct db_statement look_sql = DB_STATEMENT(
    "SELECT p.partition, o.message_offset, p.next_offset FROM platform.bus_partition p"
    " LEFT JOIN platform.bus_cursor c ON c.group_name = $2 AND c.topic = p.topic AND c.partition = p.partition"
    " CROSS JOIN LATERAL (SELECT m.message_offset FROM platform.bus_message m"
    "     WHERE m.topic = p.topic AND m.partition = p.partition AND m.message_offset >= coalesce(c.position, 0)"
    "     ORDER BY m.message_offset LIMIT 1) o"
    " WHERE p.topic = $1 ORDER BY p.partition");

/* $1 topic; $2 … $4 arrays: partition, first, next; $5 bytes of a payload. */
static const struct db_statement read_sql = DB_STATEMENT_BINARY(
    "SELECT m.message_offset::text, m.key, m.headers, substr(m.payload, 1, $5),"
    "       " POSTGRES_CREATED_US(
        "m") "::text, s.partition::text, octet_length(m.payload)::text"
             " FROM unnest($2::text[]::int[], $3::text[]::bigint[], $4::text[]::bigint[]) WITH ORDINALITY"
             "     AS s (partition, first, next, at)"
             " CROSS JOIN LATERAL (SELECT * FROM platform.bus_message m WHERE m.topic = $1 AND m.partition = s.partition"
             "     AND m.message_offset >= s.first AND m.message_offset < s.next ORDER BY m.message_offset) m"
             " ORDER BY s.at, m.message_offset");
enum { PARTITION = 5, BYTES };

static const struct db_statement lock_sql =
    DB_STATEMENT("SELECT FROM platform.bus_partition WHERE topic = $1 ORDER BY partition FOR NO KEY UPDATE");

static const struct db_statement partitions_sql =
    DB_STATEMENT("SELECT count(*) FROM platform.bus_partition WHERE topic = $1");

/* $1 topic, $2 partition, $3 key, $4 headers, $5 payload. */
static const struct db_statement append_sql = DB_STATEMENT(
    "SELECT platform.bus_publish(ARRAY[$1], ARRAY[$2], ARRAY[1], ARRAY[$3], ARRAY[$4], ARRAY[$5])");

static const struct db_statement wake_sql =
    DB_STATEMENT("SELECT pg_notify('" POSTGRES_CHANNEL "', 'operator:' || $1)");

static enum status postgres_look(struct bus_dead *dead, const char *topic, const char *group,
                                 struct arena *arena, struct bus_dead_range **ranges, size_t *count,
                                 int64_t deadline_ns, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status = db_query(((struct postgres_dead *)dead)->conn, &look_sql,
                                  DB_PARAMS(db_cstr(topic), group ? db_cstr(group) : db_null(DB_TEXT)),
                                  deadline_ns, &rows, error);
    *count = status == STATUS_OK ? db_result_rows(rows) : 0;
    *ranges = arena_alloc(arena, (*count + 1) * sizeof **ranges);
    for (size_t i = 0; i < *count; i++)
        (*ranges)[i] = (struct bus_dead_range){(unsigned)db_result_i64(rows, i, 0), db_result_i64(rows, i, 1),
                                               db_result_i64(rows, i, 2)};
    db_result_free(rows);
    return status;
}

static enum status postgres_read(struct bus_dead *dead, const struct bus_dead_query *query,
                                 struct bus_dead_list *list, int64_t deadline_ns, struct error *error)
{
    struct db_result *rows = NULL;
    struct buf partitions = {0}, firsts = {0}, nexts = {0};
    struct arena arena = ARENA(16384);
    int64_t payload_max = query->payload_max < INT32_MAX ? (int64_t)query->payload_max : INT32_MAX;
    for (size_t i = 0; i < query->span_count; i++) {
        db_array_put_i64(&partitions, query->spans[i].partition);
        db_array_put_i64(&firsts, query->spans[i].first);
        db_array_put_i64(&nexts, query->spans[i].next);
    }
    enum status status = db_query(((struct postgres_dead *)dead)->conn, &read_sql,
                                  DB_PARAMS(db_cstr(query->topic), db_text_array(db_array_end(&partitions)),
                                            db_text_array(db_array_end(&firsts)),
                                            db_text_array(db_array_end(&nexts)), db_int(payload_max)),
                                  deadline_ns, &rows, error);
    size_t count = status == STATUS_OK ? db_result_rows(rows) : 0;
    struct str topic = arena_str(list->arena, str_from(query->topic));
    struct bus_message *messages =
        count ? bus_postgres_row_messages(rows, 0, count, 0, topic, 0, &arena) : NULL;
    for (size_t i = 0; i < count; i++) {
        messages[i].partition = (unsigned)db_result_i64(rows, i, PARTITION);
        if (!bus_dead_list_add(list, &messages[i], (size_t)db_result_i64(rows, i, BYTES)))
            break;
    }
    db_result_free(rows);
    arena_deinit(&arena);
    buf_deinit(&partitions), buf_deinit(&firsts), buf_deinit(&nexts);
    return status;
}

static enum status postgres_lock(struct bus_dead *dead, struct str topic, int64_t deadline_ns,
                                 struct error *error)
{
    return db_exec(((struct postgres_dead *)dead)->conn, &lock_sql, DB_PARAMS(db_text(topic)), deadline_ns,
                   NULL, error);
}

/* Publishers lock partitions in ascending order: so does this, or it would deadlock with them. */
static enum status postgres_publish(struct bus_dead *dead, struct bus_message *messages, size_t count,
                                    int64_t deadline_ns, struct error *error)
{
    struct db_conn *conn = ((struct postgres_dead *)dead)->conn;
    struct db_result *rows = NULL;
    struct buf headers = {0};
    enum status status =
        db_query(conn, &partitions_sql, DB_PARAMS(db_text(messages[0].topic)), deadline_ns, &rows, error);
    unsigned partitions = status == STATUS_OK ? (unsigned)db_result_i64(rows, 0, 0) : 0;
    db_result_free(rows);
    if (status == STATUS_OK && partitions == 0)
        status = error_set(error, STATUS_NOT_FOUND, "there is no topic %.*s", STR_ARG(messages[0].topic));
    if (status != STATUS_OK)
        return status;
    db_pipeline_begin(conn);
    for (unsigned at = 0; at < partitions; at++)
        for (const struct bus_message *message = messages; message < messages + count; message++) {
            if (bus_dead_partition(message, partitions) != at)
                continue;
            buf_clear(&headers);
            for (unsigned i = 0; i < message->header_count; i++) {
                db_array_put(&headers, message->headers[i].name);
                db_array_put(&headers, message->headers[i].value);
            }
            db_pipeline_add(conn, &append_sql,
                            DB_PARAMS(db_text(message->topic), db_int(at), db_bytea(message->key),
                                      db_text(db_array_end(&headers)),
                                      db_bytea(message->payload.ptr ? message->payload : STR(""))));
        }
    buf_deinit(&headers);
    return db_pipeline_end(conn, deadline_ns, NULL, count, NULL, error);
}

static void postgres_wake(struct bus_dead *dead, struct str topic, int64_t deadline_ns)
{
    struct error ignored = {0};
    (void)!db_exec(((struct postgres_dead *)dead)->conn, &wake_sql, DB_PARAMS(db_text(topic)), deadline_ns,
                   NULL, &ignored);
}

static void postgres_close(struct bus_dead *dead)
{
    free(dead);
}

static const struct bus_dead_driver driver = {.engine = "postgres",
                                              .look = postgres_look,
                                              .read = postgres_read,
                                              .lock = postgres_lock,
                                              .publish = postgres_publish,
                                              .wake = postgres_wake,
                                              .close = postgres_close};

struct bus_dead *bus_dead_open_postgres(struct db_conn *conn)
{
    struct postgres_dead *opened = memory_zalloc(sizeof *opened);
    opened->dead.driver = &driver;
    opened->conn = conn;
    return &opened->dead;
}
