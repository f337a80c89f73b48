/* One round of a reader of everything: new messages of all partitions, delivered partition by partition. Positions are in memory,
 * so no transaction is open and no connection held while the handler runs, and a lost connection loses nothing: the next round
 * reads from the same offsets.
 *
 * A server that crashed may have lost the last messages, and gives their offsets to others. A connection does not outlive a crash.
 * So a connection that was opened after the last round compares the positions first, each by the time of the message before it; a
 * position that does not match goes back to the first message that is newer. */
#include "base/clock.h"
#include "base/log.h"
#include "bus/postgres/inside.h"

#define QUERY_MS 10000
#define LOAD_RETRY_MS 1000 /* after a large message could not be loaded */
#define ARENA_BYTES 16384

/* The time of the message before an offset, which distinguishes it from another one with that offset; 0: it is missing. */
#define CREATED_BEFORE(offset)                                 \
    "coalesce((SELECT " POSTGRES_CREATED_US(                   \
        "b") " FROM platform.bus_message b WHERE b.topic = $1" \
             "          AND b.partition = at.partition AND b.message_offset = " offset " - 1), 0)"

/* $2: from the oldest that is there */
static const struct db_statement begin_sql = DB_STATEMENT("SELECT at.partition, at.position, " CREATED_BEFORE(
    "at.position") " FROM ("
                   "    SELECT partition, CASE WHEN $2 THEN coalesce("
                   "        (SELECT min(m.message_offset) FROM platform.bus_message m"
                   "         WHERE m.topic = p.topic AND m.partition = p.partition), next_offset) ELSE next_offset END AS position"
                   "    FROM platform.bus_partition p WHERE topic = $1) at");

/* $2 to $4 the partitions, their positions, and the times of the messages before these (below 0: not compared). Returns
 * those that do not match, and where they go on. Offsets and times ascend together; another server's clock may be behind, so some
 * messages that were handled may come again. */
static const struct db_statement recheck_sql = DB_STATEMENT("SELECT at.partition, back.position, " CREATED_BEFORE(
    "back.position") " FROM unnest($2::text::int[], $3::text::bigint[], $4::text::bigint[]) AS at (partition, position, created_us)"
                     " JOIN platform.bus_partition p ON p.topic = $1 AND p.partition = at.partition"
                     " LEFT JOIN platform.bus_message last ON last.topic = $1 AND last.partition = at.partition"
                     "      AND last.message_offset = at.position - 1"
                     " CROSS JOIN LATERAL ("
                     "    SELECT coalesce(min(m.message_offset), least(p.next_offset, at.position)) AS position"
                     "    FROM platform.bus_message m WHERE m.topic = $1 AND m.partition = at.partition AND at.created_us >= 0"
                     "      AND m.message_offset < at.position"
                     "      AND m.created_at > to_timestamp(at.created_us / 1e6) - interval '10 s') back"
                     " WHERE p.next_offset < at.position"
                     "    OR (at.created_us >= 0 AND " POSTGRES_CREATED_US("last") " <> at.created_us)");

/* $2 and $3 the partitions and their positions, $4 messages and $5 bytes at most of each. A partition whose
 * position is not its next offset has at least one row, without a message when retention took all or the tail
 * was lost. */
static const struct db_statement read_sql = DB_STATEMENT_BINARY(
    "SELECT p.partition::text, p.next_offset::text, " POSTGRES_MESSAGE_COLUMNS
    " FROM unnest($2::text::int[], $3::text::bigint[]) AS here (partition, position)"
    " JOIN platform.bus_partition p ON p.topic = $1 AND p.partition = here.partition"
    " LEFT JOIN LATERAL (" POSTGRES_BATCH_COLUMNS(
        "$5") "    FROM ("
              "        SELECT w.*, sum(octet_length(w.payload)) OVER (ORDER BY w.message_offset) AS upto"
              "        FROM (SELECT * FROM platform.bus_message"
              "              WHERE topic = $1 AND partition = here.partition AND message_offset >= here.position"
              "              ORDER BY message_offset LIMIT $4) w) x"
              "    WHERE " POSTGRES_BATCH_FITS("$5") ") m ON true"
                                                     " WHERE p.next_offset <> here.position"
                                                     " ORDER BY p.partition, m.message_offset");
enum read_column { PARTITION, NEXT_OFFSET, MESSAGE };

enum status bus_postgres_every_begin(struct reader *reader, struct db_conn *conn, int64_t deadline_ns,
                                     struct error *error)
{
    const struct bus_consumer *consumer = &reader->consumer;
    struct db_result *result = NULL;
    int64_t asked_ns = clock_mono_ns();
    enum status status =
        db_query(conn, &begin_sql,
                 DB_PARAMS(db_text(consumer->topic->name), db_bool(consumer->spec.from == BUS_FROM_START)),
                 deadline_ns, &result, error);

    if (status != STATUS_OK)
        return status;
    for (size_t row = 0; row < db_result_rows(result); row++) {
        size_t partition = (size_t)db_result_i64(result, row, 0);
        reader->partitions[partition].position = db_result_i64(result, row, 1);
        reader->partitions[partition].created_us = db_result_i64(result, row, 2);
    }
    reader->checked_ns = asked_ns;
    db_result_free(result);
    return STATUS_OK;
}

/* ---- reading ---- */

/* Array literals for SQL: partitions that do not wait for a backoff, their positions, the times before these. */
enum { LIST_PARTITIONS, LIST_POSITIONS, LIST_CREATED, LISTS };

static void list_positions(const struct reader *reader, int64_t now_ns, struct buf lists[LISTS])
{
    for (int i = 0; i < LISTS; i++)
        buf_clear(&lists[i]);
    for (unsigned i = 0; i < reader->consumer.topic->spec.partitions; i++) {
        if (reader->partitions[i].retry_ns > now_ns)
            continue;
        db_array_put_i64(&lists[LIST_PARTITIONS], i);
        db_array_put_i64(&lists[LIST_POSITIONS], reader->partitions[i].position);
        db_array_put_i64(&lists[LIST_CREATED], reader->partitions[i].created_us);
    }
}

/* After a crash of the server. */
static enum status recheck(struct reader *reader, struct db_conn *conn, struct buf lists[LISTS],
                           int64_t deadline_ns, struct error *error)
{
    const struct bus_subscription *spec = &reader->consumer.spec;
    struct db_result *result = NULL;

    list_positions(reader, CLOCK_NEVER, lists);
    enum status status = db_query(
        conn, &recheck_sql,
        DB_PARAMS(db_text(reader->consumer.topic->name), db_text(db_array_end(&lists[LIST_PARTITIONS])),
                  db_text(db_array_end(&lists[LIST_POSITIONS])), db_text(db_array_end(&lists[LIST_CREATED]))),
        deadline_ns, &result, error);
    for (size_t row = 0; status == STATUS_OK && row < db_result_rows(result); row++) {
        unsigned partition = (unsigned)db_result_i64(result, row, 0);
        int64_t position = db_result_i64(result, row, 1);
        log_warn("bus_tail_lost", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
                 LOG_INT("partition", partition), LOG_INT("offset", reader->partitions[partition].position),
                 LOG_INT("next", position));
        reader->partitions[partition].position = position;
        reader->partitions[partition].created_us = db_result_i64(result, row, 2);
        bus_delivery_forget(&reader->partitions[partition].delivery);
        if (spec->on_gap)
            spec->on_gap(spec->context, partition, position, position);
    }
    db_result_free(result);
    return status;
}

/* Of one partition, in a result with messages of all of them. */
static size_t part_bytes_max(const struct reader *reader)
{
    return bus_batch_bytes_max(&reader->consumer) / reader->consumer.topic->spec.partitions;
}

static enum status read_new(struct reader *reader, struct db_result **result, struct error *error)
{
    const struct bus_consumer *consumer = &reader->consumer;
    int64_t deadline_ns = clock_deadline_ms(QUERY_MS);
    struct buf lists[LISTS] = {0};
    struct db_conn *conn;
    enum status status = db_acquire(reader->postgres->pool, deadline_ns, &conn, error);
    int64_t asked_ns = clock_mono_ns();

    *result = NULL;
    if (status == STATUS_OK && db_conn_opened_ns(conn) > reader->checked_ns)
        status = recheck(reader, conn, lists, deadline_ns, error);
    if (status == STATUS_OK) {
        list_positions(reader, asked_ns, lists);
        status =
            db_query(conn, &read_sql,
                     DB_PARAMS(db_text(consumer->topic->name), db_text(db_array_end(&lists[LIST_PARTITIONS])),
                               db_text(db_array_end(&lists[LIST_POSITIONS])),
                               db_i64(consumer->spec.batch_max), db_i64((int64_t)part_bytes_max(reader))),
                     deadline_ns, result, error);
    }
    db_release(conn);
    if (status == STATUS_OK)
        reader->checked_ns = asked_ns;
    for (int i = 0; i < LISTS; i++)
        buf_deinit(&lists[i]);
    return status;
}

/* ---- delivering ---- */

/* Messages of one partition, from its position on. What is not settled is read again. */
static void deliver_partition(struct reader *reader, unsigned partition, const struct bus_message *messages,
                              size_t count)
{
    struct reader_partition *at = &reader->partitions[partition];
    int64_t wait_ms;
    size_t settled = bus_deliver(&at->delivery, messages, count, &wait_ms);

    if (settled > 0) {
        at->position = messages[settled - 1].offset + 1;
        at->created_us = messages[settled - 1].created_us;
    }
    if (wait_ms > 0) {
        at->retry_ns = clock_deadline_ms(wait_ms);
        bus_postgres_worker_due(&reader->workers[0], wait_ms + 1);
    }
}

/* The first message of a partition, which is larger than what was read at once. */
static void deliver_large(struct reader *reader, unsigned partition, struct bus_message *message)
{
    struct reader_partition *at = &reader->partitions[partition];
    int64_t deadline_ns = clock_deadline_ms(QUERY_MS);
    struct db_result *payload = NULL;
    struct error error = {0};
    struct db_conn *conn;
    enum status status = db_acquire(reader->postgres->pool, deadline_ns, &conn, &error);

    if (status == STATUS_OK)
        status = bus_postgres_payload_load(conn, message, bus_batch_bytes_max(&reader->consumer),
                                           &at->delivery, &at->delivery.hold, deadline_ns, &payload, &error);
    db_release(conn);
    if (payload) {
        deliver_partition(reader, partition, message, 1);
    } else {
        bus_hold_release(&at->delivery.hold);
        int64_t wait_ms = status == STATUS_OK ? BUS_HOLD_WAIT_MS : LOAD_RETRY_MS;
        if (status != STATUS_OK && status != STATUS_CANCELLED)
            log_warn("bus_message_not_loaded", LOG_STR("topic", message->topic),
                     LOG_INT("partition", partition), LOG_INT("offset", message->offset),
                     LOG_ERROR_FIELDS(&error));
        at->retry_ns = clock_deadline_ms(wait_ms);
        bus_postgres_worker_due(&reader->workers[0], wait_ms + 1);
    }
    db_result_free(payload);
}

/* Rows [begin, end) are of one partition. */
static void deliver_rows(struct reader *reader, const struct db_result *result, size_t begin, size_t end)
{
    unsigned partition = (unsigned)db_result_i64(result, begin, PARTITION);
    struct reader_partition *at = &reader->partitions[partition];
    bool is_empty = db_result_is_null(result, begin, MESSAGE);
    int64_t first = db_result_i64(result, begin, is_empty ? NEXT_OFFSET : MESSAGE);
    struct arena arena = ARENA(ARENA_BYTES);

    /* Retention was faster than we were, or the database came back without its newest messages. */
    if (is_empty || first != at->position) {
        bus_consumer_gap(&reader->consumer, partition, at->position, first);
        if (first > at->position)
            at->created_us = 0; /* retention took the one before it too */
        at->position = first;
        bus_delivery_forget(&at->delivery);
    }
    if (is_empty)
        return;
    size_t count = bus_postgres_rows_loaded(result, begin, end, MESSAGE);
    struct bus_message *messages = bus_postgres_row_messages(result, begin, end, MESSAGE,
                                                             reader->consumer.topic->name, partition, &arena);
    if (count > 0)
        deliver_partition(reader, partition, messages, bus_postgres_before_hole(messages, count));
    else
        deliver_large(reader, partition, messages);
    arena_deinit(&arena);
}

/* ---- one step ---- */

enum bus_postgres_step bus_postgres_every_step(struct reader *reader, struct error *error)
{
    bool is_stopping = false;
    struct db_result *result;
    size_t bytes = 0, charged = 0;
    int64_t lag = 0;

    if (read_new(reader, &result, error) != STATUS_OK)
        return STEP_FAILED;
    size_t rows = db_result_rows(result);
    for (size_t row = 0; row < rows; row++)
        bytes += db_result_str(result, row, MESSAGE + POSTGRES_PAYLOAD).len;
    bus_queue_charge(&charged, bytes);
    for (size_t begin = 0, end; begin < rows; begin = end) {
        int64_t partition = db_result_i64(result, begin, PARTITION);
        end = begin + 1;
        while (end < rows && db_result_i64(result, end, PARTITION) == partition)
            end++;
        is_stopping = is_stopping || !bus_postgres_handling_begin(reader->postgres);
        if (!is_stopping) {
            deliver_rows(reader, result, begin, end);
            bus_postgres_handling_end(reader->postgres);
        }
        lag += db_result_i64(result, begin, NEXT_OFFSET) - reader->partitions[partition].position;
    }
    metric_set(reader->consumer.lag, (double)lag);
    db_result_free(result);
    bus_queue_charge(&charged, 0);
    return rows == 0 ? STEP_NOTHING : lag > 0 ? STEP_FOUND : STEP_DRAINED;
}

/* STEP_NOTHING: it is not the next one there, or its server may have crashed since the last round. */
enum bus_postgres_step bus_postgres_every_attached(struct reader *reader, struct attached_message *attached)
{
    unsigned partition = (unsigned)attached->partition;

    if (attached->message.offset != reader->partitions[partition].position ||
        atomic_load(&reader->postgres->published_by_ns) > reader->checked_ns ||
        reader->partitions[partition].retry_ns > clock_mono_ns() ||
        !bus_postgres_handling_begin(reader->postgres))
        return STEP_NOTHING;
    attached->message.topic = reader->consumer.topic->name;
    deliver_partition(reader, partition, &attached->message, 1);
    bus_postgres_handling_end(reader->postgres);
    return STEP_DRAINED;
}
