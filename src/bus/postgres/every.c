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
    " LEFT JOIN LATERAL ("
    "    SELECT * FROM ("
    "        SELECT w.*, sum(octet_length(w.payload)) OVER (ORDER BY w.message_offset)"
    "                    - octet_length(w.payload) AS before"
    "        FROM (SELECT * FROM platform.bus_message"
    "              WHERE topic = $1 AND partition = here.partition AND message_offset >= here.position"
    "              ORDER BY message_offset LIMIT $4) w) x"
    "    WHERE x.before < $5) m ON true"
    " WHERE p.next_offset <> here.position"
    " ORDER BY p.partition, m.message_offset");
enum read_column { PARTITION, NEXT_OFFSET, MESSAGE };

/* ---- where it begins ---- */

static void take_positions(struct reader *reader, const struct db_result *result)
{
    for (size_t row = 0; row < db_result_rows(result); row++) {
        size_t partition = (size_t)db_result_i64(result, row, 0);
        reader->positions[partition] = db_result_i64(result, row, 1);
        reader->created_us[partition] = db_result_i64(result, row, 2);
    }
}

static enum status make_ready(struct reader *reader, struct error *error)
{
    const struct bus_subscription *spec = &reader->consumer.spec;
    int64_t deadline_ns = clock_deadline_ms(QUERY_MS);
    struct db_result *result = NULL;
    struct db_conn *conn;
    enum status status = db_acquire(reader->postgres->pool, deadline_ns, &conn, error);
    int64_t asked_ns = clock_mono_ns();

    if (status == STATUS_OK)
        status = bus_postgres_topic_ensure(conn, reader->consumer.topic, deadline_ns, error);
    if (status == STATUS_OK)
        status =
            db_query(conn, &begin_sql,
                     DB_PARAMS(db_text(reader->consumer.topic->name), db_bool(spec->from == BUS_FROM_START)),
                     deadline_ns, &result, error);
    db_release(conn);
    if (status == STATUS_OK) {
        take_positions(reader, result);
        reader->checked_ns = asked_ns;
        atomic_store(&reader->is_ready, true);
        if (spec->on_ready)
            spec->on_ready(spec->context);
    }
    db_result_free(result);
    return status;
}

/* ---- after a crash of the server ---- */

static void go_back(struct reader *reader, const struct db_result *result, size_t row)
{
    const struct bus_subscription *spec = &reader->consumer.spec;
    unsigned partition = (unsigned)db_result_i64(result, row, 0);
    int64_t position = db_result_i64(result, row, 1);

    log_warn("bus_tail_lost", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
             LOG_INT("partition", partition), LOG_INT("offset", reader->positions[partition]),
             LOG_INT("next", position));
    reader->positions[partition] = position;
    reader->created_us[partition] = db_result_i64(result, row, 2);
    reader->attempts[partition] = 0;
    if (spec->on_gap)
        spec->on_gap(spec->context, partition, position, position);
}

static enum status recheck(struct reader *reader, struct db_conn *conn, int64_t deadline_ns,
                           struct error *error)
{
    struct buf lists[3];
    struct db_result *result = NULL;

    for (size_t i = 0; i < 3; i++) {
        buf_init(&lists[i]);
        db_array_begin(&lists[i]);
    }
    for (unsigned i = 0; i < reader->consumer.topic->spec.partitions; i++) {
        bus_postgres_array_put_i64(&lists[0], i);
        bus_postgres_array_put_i64(&lists[1], reader->positions[i]);
        bus_postgres_array_put_i64(&lists[2], reader->created_us[i]);
    }
    for (size_t i = 0; i < 3; i++)
        db_array_end(&lists[i]);
    enum status status =
        db_query(conn, &recheck_sql,
                 DB_PARAMS(db_text(reader->consumer.topic->name), db_text(buf_str(&lists[0])),
                           db_text(buf_str(&lists[1])), db_text(buf_str(&lists[2]))),
                 deadline_ns, &result, error);
    for (size_t row = 0; status == STATUS_OK && row < db_result_rows(result); row++)
        go_back(reader, result, row);
    db_result_free(result);
    for (size_t i = 0; i < 3; i++)
        buf_deinit(&lists[i]);
    return status;
}

/* ---- reading ---- */

static void list_positions(const struct reader *reader, struct buf *partitions, struct buf *positions)
{
    int64_t now_ns = clock_mono_ns();

    db_array_begin(partitions);
    db_array_begin(positions);
    for (unsigned i = 0; i < reader->consumer.topic->spec.partitions; i++) {
        if (reader->retry_ns[i] > now_ns)
            continue; /* it waits for its backoff */
        bus_postgres_array_put_i64(partitions, i);
        bus_postgres_array_put_i64(positions, reader->positions[i]);
    }
    db_array_end(partitions);
    db_array_end(positions);
}

static enum status read_new(struct reader *reader, struct db_result **result, struct error *error)
{
    const struct bus_consumer *consumer = &reader->consumer;
    int64_t deadline_ns = clock_deadline_ms(QUERY_MS);
    struct buf partitions, positions;
    struct db_conn *conn;
    enum status status = db_acquire(reader->postgres->pool, deadline_ns, &conn, error);

    int64_t asked_ns = clock_mono_ns();

    *result = NULL;
    if (status == STATUS_OK && db_conn_opened_ns(conn) > reader->checked_ns)
        status = recheck(reader, conn, deadline_ns, error);
    if (status != STATUS_OK) {
        db_release(conn);
        return status;
    }
    buf_init(&partitions);
    buf_init(&positions);
    list_positions(reader, &partitions, &positions);
    status = db_query(conn, &read_sql,
                      DB_PARAMS(db_text(consumer->topic->name), db_text(buf_str(&partitions)),
                                db_text(buf_str(&positions)), db_i64(consumer->spec.batch_max),
                                db_i64((int64_t)consumer->spec.batch_bytes_max)),
                      deadline_ns, result, error);
    db_release(conn);
    if (status == STATUS_OK)
        reader->checked_ns = asked_ns;
    buf_deinit(&partitions);
    buf_deinit(&positions);
    return status;
}

/* ---- one partition's batch ---- */

/* Retention was faster than we were, or the database came back without its newest messages. */
static void look_for_gap(struct reader *reader, unsigned partition, int64_t first, int64_t next_offset)
{
    const struct bus_subscription *spec = &reader->consumer.spec;
    int64_t position = reader->positions[partition];

    if (first == position)
        return;
    int64_t next = first >= 0 ? first : next_offset;
    log_warn("bus_gap", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
             LOG_INT("partition", partition), LOG_INT("offset", position), LOG_INT("next", next));
    if (spec->on_gap)
        spec->on_gap(spec->context, partition, position, next);
    if (next > position)
        reader->created_us[partition] = 0; /* retention took the one before it too */
    reader->positions[partition] = next;
    reader->attempts[partition] = 0;
}

static enum status publish_letters(struct reader *reader, const struct bus_outcome *outcome,
                                   struct error *error)
{
    if (outcome->dead_letter_count == 0)
        return STATUS_OK;
    return bus_postgres_publish(&reader->postgres->bus, outcome->dead_letters, outcome->dead_letter_count,
                                clock_deadline_ms(QUERY_MS), error);
}

static void advance(struct reader *reader, unsigned partition, const struct bus_batch *batch,
                    const struct bus_outcome *outcome)
{
    if (outcome->settled > 0) {
        reader->positions[partition] = batch->messages[outcome->settled - 1].offset + 1;
        reader->created_us[partition] = batch->messages[outcome->settled - 1].created_us;
    }
    if (!outcome->retry) {
        reader->attempts[partition] = 0;
        return;
    }
    reader->attempts[partition] = outcome->settled ? 1 : reader->attempts[partition] + 1;
    int64_t wait_ms = bus_backoff_ms(&reader->consumer, reader->attempts[partition]);
    reader->retry_ns[partition] = clock_deadline_ms(wait_ms);
    bus_postgres_worker_due(&reader->workers[0], wait_ms + 1);
}

static enum status handle_batch(struct reader *reader, unsigned partition, struct bus_message *messages,
                                size_t count, struct arena *arena, struct error *error)
{
    struct bus_batch batch = {
        .messages = messages,
        .count = count,
        .verdicts = arena_zalloc(arena, count * sizeof(struct bus_verdict)),
        .deadline_ns = clock_deadline_ms(reader->postgres->config.handler_ms),
        .attempt = reader->attempts[partition],
    };
    struct bus_outcome outcome;

    bus_batch_handle(&reader->consumer, &batch, arena, &outcome);
    enum status status = publish_letters(reader, &outcome, error);
    if (status != STATUS_OK) { /* the letters are not safe: all of it once more */
        bus_batch_uncommitted(&reader->consumer, &batch);
        return status;
    }
    advance(reader, partition, &batch, &outcome);
    bus_batch_committed(&reader->consumer, &batch, &outcome);
    return STATUS_OK;
}

/* Rows [begin, end) are of one partition. */
static enum status handle_rows(struct reader *reader, const struct db_result *result, size_t begin,
                               size_t end, struct error *error)
{
    unsigned partition = (unsigned)db_result_i64(result, begin, PARTITION);
    bool empty = db_result_is_null(result, begin, MESSAGE);
    struct arena arena;
    enum status status = STATUS_OK;

    look_for_gap(reader, partition, empty ? -1 : db_result_i64(result, begin, MESSAGE),
                 db_result_i64(result, begin, NEXT_OFFSET));
    if (empty)
        return STATUS_OK;
    arena_init(&arena, ARENA_BYTES);
    struct bus_message *messages = arena_zalloc(&arena, (end - begin) * sizeof messages[0]);
    for (size_t i = begin; i < end; i++) {
        messages[i - begin].topic = reader->consumer.topic->name;
        messages[i - begin].partition = partition;
        bus_postgres_row_message(result, i, MESSAGE, &arena, &messages[i - begin]);
    }
    status = handle_batch(reader, partition, messages, end - begin, &arena, error);
    arena_deinit(&arena);
    return status;
}

/* Of the partitions that were behind when this round began; the others have none. */
static void show_lag(const struct reader *reader, const struct db_result *result)
{
    int64_t lag = 0, last = -1;

    for (size_t row = 0; row < db_result_rows(result); row++) {
        int64_t partition = db_result_i64(result, row, PARTITION);
        if (partition != last)
            lag += db_result_i64(result, row, NEXT_OFFSET) - reader->positions[partition];
        last = partition;
    }
    metric_set(reader->consumer.lag, (double)lag);
}

static enum status handle_all(struct reader *reader, const struct db_result *result, struct error *error)
{
    size_t rows = db_result_rows(result);
    enum status status = STATUS_OK;

    for (size_t begin = 0, end; begin < rows && status == STATUS_OK; begin = end) {
        if (!bus_postgres_handling_begin(reader->postgres))
            return STATUS_CANCELLED;
        end = begin + 1;
        while (end < rows && db_result_i64(result, end, PARTITION) == db_result_i64(result, begin, PARTITION))
            end++;
        status = handle_rows(reader, result, begin, end, error);
        bus_postgres_handling_end(reader->postgres);
    }
    return status;
}

static bool is_drained(const struct reader *reader, const struct db_result *result)
{
    for (size_t row = 0; row < db_result_rows(result); row++)
        if (reader->positions[db_result_i64(result, row, PARTITION)] <
            db_result_i64(result, row, NEXT_OFFSET))
            return false;
    return true;
}

/* ---- one step ---- */

static enum bus_postgres_step read_step(struct reader *reader, struct error *error)
{
    struct db_result *result;

    if (read_new(reader, &result, error) != STATUS_OK)
        return STEP_FAILED;
    enum bus_postgres_step step = db_result_rows(result) > 0 ? STEP_FOUND : STEP_NOTHING;
    if (handle_all(reader, result, error) != STATUS_OK)
        step = STEP_FAILED;
    else if (step == STEP_FOUND && is_drained(reader, result))
        step = STEP_DRAINED;
    show_lag(reader, result);
    db_result_free(result);
    return step;
}

/* STEP_NOTHING: it is not the next one there, or its server may have crashed since the last round. */
static enum bus_postgres_step attached_step(struct reader *reader, struct attached_message *attached,
                                            struct error *error)
{
    unsigned partition = (unsigned)attached->partition;
    enum bus_postgres_step step = STEP_DRAINED;
    struct arena arena;

    if (attached->message.offset != reader->positions[partition] ||
        atomic_load(&reader->postgres->published_by_ns) > reader->checked_ns ||
        reader->retry_ns[partition] > clock_mono_ns() || !bus_postgres_handling_begin(reader->postgres))
        return STEP_NOTHING;
    arena_init(&arena, ARENA_BYTES);
    attached->message.topic = reader->consumer.topic->name;
    if (handle_batch(reader, partition, &attached->message, 1, &arena, error) != STATUS_OK)
        step = STEP_FAILED;
    bus_postgres_handling_end(reader->postgres);
    arena_deinit(&arena);
    return step;
}

enum bus_postgres_step bus_postgres_every_step(struct reader_worker *worker, int place, struct error *error)
{
    struct reader *reader = worker->reader;
    enum bus_postgres_step step = STEP_NOTHING;

    if (!atomic_load(&reader->is_ready) && make_ready(reader, error) != STATUS_OK)
        return STEP_FAILED;
    struct attached_message *attached = bus_postgres_reader_take_attached(reader, place);
    if (attached)
        step = attached_step(reader, attached, error);
    bus_postgres_attached_free(attached);
    return step == STEP_NOTHING ? read_step(reader, error) : step;
}
