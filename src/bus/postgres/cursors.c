/* Cursors: the positions of shared groups, a row for each partition. The row's lock is the right to handle the partition. */
#include "base/clock.h"
#include "base/log.h"
#include "bus/postgres/inside.h"

/* $3: at the oldest message that is there, not at the next one. */
static const struct db_statement cursors_sql = DB_STATEMENT(
    "INSERT INTO platform.bus_cursor (group_name, topic, partition, position)"
    " SELECT $1, topic, partition, CASE WHEN $3 THEN coalesce("
    "     (SELECT min(m.message_offset) FROM platform.bus_message m"
    "      WHERE m.topic = p.topic AND m.partition = p.partition), next_offset) ELSE next_offset END"
    " FROM platform.bus_partition p WHERE topic = $2 ON CONFLICT DO NOTHING");

enum status bus_postgres_cursors_create(struct db_conn *conn, const struct bus_topic_state *topic,
                                        const char *group, bool from_start, int64_t deadline_ns,
                                        struct error *error)
{
    return db_exec(conn, &cursors_sql, DB_PARAMS(db_cstr(group), db_text(topic->name), db_bool(from_start)),
                   deadline_ns, NULL, error);
}

/* ---- moving a cursor ---- */

/* $4 the new position (NULL: after the next message), $5 attempts of the message there, $6 ms until it is delivered again (NULL: now) and
 * $7 why. */
#define ADVANCE                                                                            \
    "UPDATE platform.bus_cursor SET position = coalesce($4, position + 1), attempts = $5," \
    "       retry_at = clock_timestamp() + $6 * interval '1 ms', last_error = $7"          \
    " WHERE group_name = $1 AND topic = $2 AND partition = $3"
static const struct db_statement advance_sql = DB_STATEMENT(ADVANCE);
static const struct db_statement advance_relaxed_sql =
    DB_STATEMENT("WITH advanced AS (" ADVANCE ") SELECT set_config('synchronous_commit', 'off', true)");
/* $4 the position, $5 messages before this are delivered one by one. */
static const struct db_statement fail_sql =
    DB_STATEMENT("UPDATE platform.bus_cursor SET careful_until = $5, attempts = $6,"
                 "       retry_at = clock_timestamp() + $7 * interval '1 ms', last_error = $8"
                 " WHERE group_name = $1 AND topic = $2 AND partition = $3 AND position = $4");

void bus_postgres_cursor_advance(struct db_conn *conn, const struct bus_consumer *consumer,
                                 unsigned partition, const struct cursor_advance *advance)
{
    db_pipeline_add(
        conn, consumer->spec.relaxed ? &advance_relaxed_sql : &advance_sql,
        DB_PARAMS(db_cstr(consumer->spec.group), db_text(consumer->topic->name), db_int(partition),
                  advance->position == CURSOR_AFTER_NEXT ? db_null(DB_BIGINT) : db_i64(advance->position),
                  db_int(advance->attempts),
                  advance->wait_ms == CURSOR_AT_ONCE ? db_null(DB_BIGINT) : db_i64(advance->wait_ms),
                  db_text(advance->reason)));
}

/* By another connection than the batch's, which a statement that takes too long closes. */
enum status bus_postgres_cursor_fail(struct reader *reader, unsigned partition, int64_t position,
                                     int64_t careful_until, const struct cursor_advance *advance,
                                     int64_t deadline_ns, struct error *error)
{
    const struct bus_consumer *consumer = &reader->consumer;

    return db_pool_exec(reader->postgres->pool, &fail_sql,
                        DB_PARAMS(db_cstr(consumer->spec.group), db_text(consumer->topic->name),
                                  db_int(partition), db_i64(position), db_i64(careful_until),
                                  db_int(advance->attempts), db_i64(advance->wait_ms),
                                  db_text(advance->reason)),
                        deadline_ns, NULL, error);
}

/* ---- the next messages of a group ---- */

#define HEADS_DEADLINE_MS 10000
#define HEADS_MS 20 /* between two looks that found nothing */

/* Their keys, in the order of partitions from $3 on. $4: a backoff that would end later was written before the clock was set back. */
static const struct db_statement heads_sql = DB_STATEMENT_BINARY(
    "SELECT c.partition::text, m.key"
    " FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition) CROSS JOIN LATERAL ("
    "    SELECT m.key FROM platform.bus_message m"
    "    WHERE m.topic = c.topic AND m.partition = c.partition AND m.message_offset >= c.position"
    "    ORDER BY m.message_offset LIMIT 1) m"
    " WHERE c.group_name = $1 AND c.topic = $2 AND c.position < p.next_offset"
    "   AND (c.retry_at IS NULL OR c.retry_at <= clock_timestamp()"
    "        OR c.retry_at > clock_timestamp() + $4 * interval '1 ms')"
    " ORDER BY (c.partition - $3 + 65536) % 256");

enum status bus_postgres_heads_choose(struct reader_worker *worker, struct db_conn *conn,
                                      unsigned partitions[BUS_PARTITIONS_MAX], unsigned *count,
                                      struct error *error)
{
    struct reader *reader = worker->reader;
    const struct bus_subscription *spec = &reader->consumer.spec;
    int64_t now_ns = clock_mono_ns();
    struct db_result *heads = NULL;

    pthread_mutex_lock(&reader->postgres->lock);
    int64_t wait_ns = reader->heads_ns - now_ns;
    reader->is_refused = true; /* before the look, so that a slot which is left meanwhile wakes a worker */
    pthread_mutex_unlock(&reader->postgres->lock);
    if (wait_ns > 0) {
        bus_postgres_worker_due(worker, wait_ns / CLOCK_NS_PER_MS + 1);
        return STATUS_OK;
    }
    enum status status =
        db_query(conn, &heads_sql,
                 DB_PARAMS(db_cstr(spec->group), db_text(reader->consumer.topic->name),
                           db_int(bus_postgres_reader_turn(reader)), db_i64(2 * spec->backoff_max_ms)),
                 clock_deadline_ms(HEADS_DEADLINE_MS), &heads, error);
    pthread_mutex_lock(&reader->postgres->lock);
    for (size_t row = 0; heads && row < db_result_rows(heads); row++) {
        const struct bus_message head = {
            .key = db_result_is_null(heads, row, 1) ? STR_NONE : db_result_str(heads, row, 1)};
        if (bus_slots_may_enter(&reader->slots, &head))
            partitions[(*count)++] = (unsigned)db_result_i64(heads, row, 0);
    }
    if (status == STATUS_OK && *count == 0)
        reader->heads_ns = now_ns + HEADS_MS * CLOCK_NS_PER_MS;
    pthread_mutex_unlock(&reader->postgres->lock);
    db_result_free(heads);
    return status;
}

/* ---- direct handling ----
 * A process that locks a group's cursors, with no message after them, is the group until its transaction ends, and handles at once
 * what it would have published. Consumers skip those partitions meanwhile; at the end they are woken for messages that were
 * published in that time, which otherwise would wait for the next poll. */

/* $3 the partitions. Never waits: a locked cursor is being handled. */
#define DIRECT(answer)                                                                             \
    "SELECT " answer " FROM ("                                                                     \
    "    SELECT FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)" \
    "    WHERE c.group_name = $1 AND c.topic = $2 AND c.partition = ANY ($3::text::int[])"         \
    "      AND c.position = p.next_offset"                                                         \
    "    FOR UPDATE OF c SKIP LOCKED) locked"
static const struct db_statement direct_sql = DB_STATEMENT(DIRECT("count(*)"));
static const struct db_statement direct_expected_sql =
    DB_STATEMENT(DIRECT("platform.expect(count(*) = cardinality($3::text::int[]),"
                        " 'another process handles these partitions, or messages wait there')"));

enum status bus_direct_ask(struct bus *bus, struct db_conn *conn, struct str topic, const char *group,
                           const unsigned *partitions, size_t count, bool is_expected, uint64_t *wakes,
                           struct error *error)
{
    const struct bus_topic_state *found = bus_topic_find(bus, topic);
    struct buf list = {0};

    if (!bus_postgres_of(bus, error))
        return STATUS_NOT_IMPLEMENTED;
    if (!found)
        return error_set(error, STATUS_BAD_REQUEST, "unknown topic");
    *wakes = atomic_load(&found->wakes);
    for (size_t i = 0; i < count; i++)
        db_array_put_i64(&list, partitions[i]);
    db_pipeline_add(conn, is_expected ? &direct_expected_sql : &direct_sql,
                    DB_PARAMS(db_cstr(group), db_text(topic), db_text(db_array_end(&list))));
    buf_deinit(&list);
    return STATUS_OK;
}

bool bus_direct_is_granted(const struct db_result *answer, size_t count)
{
    return db_result_rows(answer) == 1 && db_result_i64(answer, 0, 0) == (int64_t)count;
}

enum status bus_direct_commit(struct bus *bus, struct db_conn *conn, struct str topic, uint64_t wakes,
                              int64_t deadline_ns, struct error *error)
{
    struct postgres *postgres = bus_postgres_of(bus, error);
    struct bus_topic_state *found = bus_topic_find(bus, topic);

    if (!postgres || !found)
        return error_set(error, STATUS_NOT_IMPLEMENTED, "only the bus on PostgreSQL shares transactions");
    db_pipeline_begin(conn);
    db_pipeline_add(conn, &db_commit_sql, DB_NO_PARAMS);
    enum status status = db_pipeline_end(conn, deadline_ns, NULL, 0, NULL, error);
    if (atomic_load(&found->wakes) != wakes)
        bus_postgres_wake_topic(postgres, found, POSTGRES_ANYWHERE, STR_NONE, NULL);
    return status;
}

/* ---- suspects: messages that kill their process ----
 * The crash rolls back everything that could report it. So each start compares the group's positions with those of the last starts:
 * from a position that has not moved this process takes messages one by one and marks each before it is handled, on another
 * connection, since the mark must outlive the transaction. A group that moves pays one comparison per batch for this. */

#define STARTS_MAX 3 /* at the same position; then the message there is suspect */
#define DEATHS_MAX 5 /* then it becomes a dead letter; kill -9 does not hit the same message that often */
#define MARK_MS 10000

static const struct db_statement note_sql = DB_STATEMENT(
    "INSERT INTO platform.bus_suspect AS s (group_name, topic, partition, position, starts, deaths)"
    " SELECT c.group_name, c.topic, c.partition, c.position, 1, 0"
    " FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)"
    " WHERE c.group_name = $1 AND c.topic = $2 AND c.position < p.next_offset ORDER BY c.partition"
    " ON CONFLICT (group_name, topic, partition) DO UPDATE SET position = excluded.position,"
    "     starts = CASE WHEN s.position = excluded.position THEN s.starts + 1 ELSE 1 END,"
    "     deaths = CASE WHEN s.position = excluded.position THEN s.deaths ELSE 0 END"
    " RETURNING partition, position, starts");

/* $6: this process has marked it before and could not remove the mark. It lives, so that mark does not count as a death. */
static const struct db_statement mark_sql = DB_STATEMENT(
    "INSERT INTO platform.bus_suspect AS s (group_name, topic, partition, position, starts, deaths)"
    " VALUES ($1, $2, $3, $4, $5, 1)"
    " ON CONFLICT (group_name, topic, partition) DO UPDATE SET position = $4,"
    "     starts = CASE WHEN s.position = $4 THEN s.starts ELSE $5 END,"
    "     deaths = CASE WHEN s.position <> $4 THEN 1 WHEN $6 THEN greatest(s.deaths, 1) ELSE s.deaths + 1 END"
    " RETURNING deaths - 1");

static const struct db_statement unmark_sql =
    DB_STATEMENT("UPDATE platform.bus_suspect SET deaths = 0"
                 " WHERE group_name = $1 AND topic = $2 AND partition = $3");

/* Creates the cursors, and compares them with those of earlier starts. */
enum status bus_postgres_shared_begin(struct reader *reader, struct db_conn *conn, int64_t deadline_ns,
                                      struct error *error)
{
    const struct bus_consumer *consumer = &reader->consumer;
    const struct bus_subscription *spec = &consumer->spec;
    struct db_result *result;
    enum status status = bus_postgres_cursors_create(conn, consumer->topic, spec->group,
                                                     spec->from == BUS_FROM_START, deadline_ns, error);

    if (status == STATUS_OK)
        status = db_query(conn, &note_sql, DB_PARAMS(db_cstr(spec->group), db_text(consumer->topic->name)),
                          deadline_ns, &result, error);
    if (status != STATUS_OK)
        return status;
    for (size_t row = 0; row < db_result_rows(result); row++) {
        int64_t partition = db_result_i64(result, row, 0), position = db_result_i64(result, row, 1);
        if (db_result_i64(result, row, 2) < STARTS_MAX)
            continue;
        reader->partitions[partition].suspect_until = position + spec->batch_max;
        log_warn("bus_partition_stands_still", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
                 LOG_INT("partition", partition), LOG_INT("offset", position),
                 LOG_INT("starts", db_result_i64(result, row, 2)));
    }
    db_result_free(result);
    return STATUS_OK;
}

/* Marks use connections of the publishers: those of the readers may all be in use by workers that mark a suspect. */
enum status bus_postgres_suspect_mark(struct reader *reader, unsigned partition, int64_t position,
                                      enum suspicion *suspicion, struct error *error)
{
    bool is_marked = reader->partitions[partition].marked_until == position + 1;
    struct db_result *result = NULL;

    reader->partitions[partition].marked_until = position + 1; /* also when the reply is lost */
    enum status status =
        db_pool_query(reader->postgres->publish_pool, &mark_sql,
                      DB_PARAMS(db_cstr(reader->consumer.spec.group), db_text(reader->consumer.topic->name),
                                db_int(partition), db_i64(position), db_int(STARTS_MAX), db_bool(is_marked)),
                      clock_deadline_ms(MARK_MS), &result, error);
    int64_t deaths = status == STATUS_OK ? db_result_i64(result, 0, 0) : 0;
    *suspicion = deaths < DEATHS_MAX       ? SUSPECT_HANDLE
                 : deaths < 2 * DEATHS_MAX ? SUSPECT_GIVE_UP
                                           : SUSPECT_DROP;
    db_result_free(result);
    return status;
}

void bus_postgres_suspect_unmark(struct reader *reader, unsigned partition)
{
    struct error error = {0};
    enum status status = db_pool_exec(reader->postgres->publish_pool, &unmark_sql,
                                      DB_PARAMS(db_cstr(reader->consumer.spec.group),
                                                db_text(reader->consumer.topic->name), db_int(partition)),
                                      clock_deadline_ms(MARK_MS), NULL, &error);

    if (status == STATUS_OK)
        reader->partitions[partition].marked_until = 0;
    else /* it counts as a death when another process handles the message next */
        log_warn("bus_suspect_not_unmarked", LOG_ERROR_FIELDS(&error));
}
