/* One batch of a shared group: lock a cursor that has messages, call the handler, move the cursor, commit: two round trips more.
 *
 * A message that came attached to its notice is given to the handler before the cursor is locked: the statement that locks is in the
 * handler's first round trip, or in that of the commit, and fails unless exactly this message is next. Then everything is rolled
 * back, and the message is handled the usual way. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "bus/postgres/inside.h"

#define COMMIT_MS 10000
#define ARENA_BYTES 16384

/* A batch with the lock of its cursor. */
struct locked_batch {
    struct reader_worker *worker;
    struct reader *reader;
    struct db_conn *conn;
    struct db_result *rows;
    struct arena arena;
    unsigned partition;
    int64_t position, next_offset; /* < 0: not known yet */
    struct bus_batch batch;
    struct bus_outcome outcome;
    struct bus_slot slot;
    size_t bytes_max;     /* of a batch */
    bool is_large;        /* its only message is larger, and its payload is loaded later */
    struct bus_hold hold; /* of the batch */
    struct db_result *payload;
};

/* $1 group, $2 topic, $3 messages and $4 bytes at most, $5 the partition to look at first, $6 the longest
 * backoff: one that would end later was written before the clock was set back. $7: a process that hangs or is frozen in
 * a handler for so long loses its connection, and so its partition.
 *
 * Cursors that others have locked are skipped. The messages are read by the same snapshot: it sees a prefix of the offsets,
 * since these are assigned in the order of commits. `others`: another partition waits too, for another worker. A row without a
 * message: retention deleted them. */
#define DUE                                                  \
    "(c.retry_at IS NULL OR c.retry_at <= clock_timestamp()" \
    " OR c.retry_at > clock_timestamp() + $6 * interval '1 ms')"
/* `place`: which partitions; `others`: whether more of them wait; `messages`: the m of POSTGRES_MESSAGE_COLUMNS. */
#define LOCK_AND_READ(place, others, messages)                                                      \
    "WITH due AS MATERIALIZED ("                                                                    \
    "    SELECT c.partition, c.position, c.careful_until, c.attempts, c.last_error, p.next_offset," \
    "           set_config('idle_in_transaction_session_timeout', $7, true)"                        \
    "    FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)"         \
    "    WHERE c.group_name = $1 AND c.topic = $2 AND c.position < p.next_offset"                   \
    "      AND " DUE place "    LIMIT 1 FOR UPDATE OF c SKIP LOCKED)"                               \
    " SELECT due.partition::text, due.position::text, due.attempts::text, due.last_error,"          \
    "        due.next_offset::text, " others ", " POSTGRES_MESSAGE_COLUMNS                          \
    " FROM due LEFT JOIN LATERAL (" messages ") m ON true"

#define A_BATCH                                                                                       \
    POSTGRES_BATCH_COLUMNS("$4")                                                                      \
    "    FROM ("                                                                                      \
    "        SELECT w.*, sum(octet_length(w.payload)) OVER (ORDER BY w.message_offset) AS upto"       \
    "        FROM (SELECT * FROM platform.bus_message"                                                \
    "              WHERE topic = $2 AND partition = due.partition AND message_offset >= due.position" \
    "              ORDER BY message_offset"                                                           \
    "              LIMIT CASE WHEN due.position < due.careful_until THEN 1 ELSE $3 END) w) x"         \
    "    WHERE " POSTGRES_BATCH_FITS("$4")
static const struct db_statement lock_anywhere_sql = DB_STATEMENT_BINARY(LOCK_AND_READ(
    "    ORDER BY (c.partition - $5 + 65536) % 256",
    "EXISTS (SELECT FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)"
    "                WHERE c.group_name = $1 AND c.topic = $2 AND c.position < p.next_offset"
    "                  AND c.partition <> due.partition"
    "                  AND " DUE ")::text",
    A_BATCH) " ORDER BY m.message_offset");
/* $5 the only partition: its first message may have a slot. */
static const struct db_statement lock_chosen_sql = DB_STATEMENT_BINARY(
    LOCK_AND_READ(" AND c.partition = $5", "'false'", A_BATCH) " ORDER BY m.message_offset");
/* $5 the only partition: it was woken for a single message. If there are more, the caller looks again, anywhere. */
static const struct db_statement lock_partition_sql = DB_STATEMENT_BINARY(LOCK_AND_READ(
    " AND c.partition = $5", "'false'",
    POSTGRES_BATCH_COLUMNS("$4") "    FROM platform.bus_message x"
                                 "    WHERE topic = $2 AND partition = $5 AND message_offset >= due.position"
                                 "    ORDER BY message_offset LIMIT 1"));

/* $3 the partition, $4 … $6 the message, $7 and $8 as $6 and $7 above. The message is the next one, for the first time; a dead letter
 * is made of a row, never of a notice. */
static const struct db_statement lock_attached_sql = DB_STATEMENT(
    "WITH due AS MATERIALIZED ("
    "    SELECT c.position, p.next_offset, set_config('idle_in_transaction_session_timeout', $8, true)"
    "    FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)"
    "    WHERE c.group_name = $1 AND c.topic = $2 AND c.partition = $3 AND c.position < p.next_offset"
    "      AND c.attempts = 0 AND (c.retry_at IS NULL OR c.retry_at <= clock_timestamp()"
    "                              OR c.retry_at > clock_timestamp() + $7 * interval '1 ms')"
    "    FOR UPDATE OF c SKIP LOCKED)"
    " SELECT max(due.position), max(due.next_offset),"
    "        platform.expect(count(*) = 1, 'another process handles this message, or one before it waits')"
    " FROM due CROSS JOIN LATERAL ("
    "    SELECT FROM platform.bus_message m"
    "    WHERE m.topic = $2 AND m.partition = $3 AND m.message_offset = due.position"
    "      AND m.key = $4 AND m.headers = $5 AND m.payload = $6 OFFSET 0) m");

enum column { PARTITION, POSITION, ATTEMPTS, LAST_ERROR, NEXT_OFFSET, OTHERS, MESSAGE };

/* ---- lock and read ---- */

/* BEGIN and the statement that locks, in a pipeline that is still open. */
static void open_lock(struct locked_batch *locked, const struct db_statement *lock_sql, unsigned first)
{
    const struct bus_consumer *consumer = &locked->reader->consumer;

    locked->bytes_max = bus_batch_bytes_max(consumer);
    db_pipeline_begin(locked->conn);
    db_pipeline_add(locked->conn, &db_begin_sql, DB_NO_PARAMS);
    db_pipeline_add(locked->conn, lock_sql,
                    DB_PARAMS(db_cstr(consumer->spec.group), db_text(consumer->topic->name),
                              db_i64(consumer->spec.batch_max), db_i64((int64_t)locked->bytes_max),
                              db_int(first), db_i64(2 * consumer->spec.backoff_max_ms),
                              DB_NUMBER(locked->reader->postgres->config.handler_ms, DB_TEXT)));
}

static void read_batch(struct locked_batch *locked)
{
    size_t count = db_result_rows(locked->rows);

    locked->partition = (unsigned)db_result_i64(locked->rows, 0, PARTITION);
    locked->position = db_result_i64(locked->rows, 0, POSITION);
    locked->next_offset = db_result_i64(locked->rows, 0, NEXT_OFFSET);
    if (db_result_is_null(locked->rows, 0, MESSAGE))
        count = 0;
    size_t loaded = bus_postgres_rows_loaded(locked->rows, 0, count, MESSAGE);
    locked->is_large = count > 0 && loaded == 0;
    count = locked->is_large ? 1 : loaded;
    const struct bus_message *messages =
        bus_postgres_row_messages(locked->rows, 0, count, MESSAGE, locked->reader->consumer.topic->name,
                                  locked->partition, &locked->arena);
    count = bus_postgres_before_hole(messages, count);
    locked->batch = (struct bus_batch){
        .messages = messages,
        .count = count,
        .verdicts = arena_zalloc(&locked->arena, (count + 1) * sizeof(struct bus_verdict)),
        .conn = locked->conn,
        .deadline_ns = clock_deadline_ms(locked->reader->postgres->config.handler_ms),
        .attempt = (unsigned)db_result_i64(locked->rows, 0, ATTEMPTS),
    };
}

/* ---- settle ---- */

/* The position after the last settled message. */
static int64_t new_position(const struct locked_batch *locked)
{
    if (locked->batch.count == 0)
        return locked->next_offset;
    size_t settled = locked->outcome.settled;
    return settled ? locked->batch.messages[settled - 1].offset + 1 : locked->batch.messages[0].offset;
}

/* Moves the cursor, commits, and sends the handler's notice, in one round trip. */
static enum status commit_batch(struct locked_batch *locked, struct error *error)
{
    enum { NOTICE_AT = 2 };
    struct reader *reader = locked->reader;
    const struct bus_consumer *consumer = &reader->consumer;
    const struct bus_outcome *outcome = &locked->outcome;
    struct bus_batch *batch = &locked->batch;
    unsigned attempts = outcome->retry ? (outcome->settled ? 0 : batch->attempt) + 1 : 0;
    int64_t wait_ms = outcome->retry ? bus_backoff_ms(consumer, attempts) : 0;
    size_t failed_at = 0;
    enum status status = STATUS_OK;

    if (batch->rolled_back)
        return error_set(error, STATUS_DB_ERROR, "%s", batch->verdicts[0].reason);
    if (outcome->dead_letter_count > 0)
        status = bus_postgres_publish_in_tx(reader->postgres, locked->conn, outcome->dead_letters,
                                            outcome->dead_letter_count, clock_deadline_ms(COMMIT_MS), error);
    if (status != STATUS_OK)
        return status;
    db_pipeline_begin(locked->conn);
    bus_postgres_cursor_advance(
        locked->conn, consumer, locked->partition,
        &(struct cursor_advance){
            .position = locked->position < 0 ? CURSOR_AFTER_NEXT : new_position(locked),
            .attempts = attempts,
            .wait_ms = outcome->retry ? wait_ms : CURSOR_AT_ONCE,
            .reason = outcome->retry ? str_from(batch->verdicts[outcome->settled].reason) : STR_NONE,
        });
    db_pipeline_add(locked->conn, &db_commit_sql, DB_NO_PARAMS);
    if (batch->notice_channel.ptr)
        db_pipeline_add_notice(locked->conn, batch->notice_channel, batch->notice_payload);
    status = db_pipeline_end(locked->conn, clock_deadline_ms(COMMIT_MS), NULL, 0, &failed_at, error);
    batch->is_notice_sent = status == STATUS_OK && batch->notice_channel.ptr;
    if (status != STATUS_OK && failed_at != NOTICE_AT) /* there, it is committed though without the notice */
        return status;
    if (outcome->dead_letter_count > 0)
        bus_wake(&reader->postgres->bus, consumer->topic->dead->name);
    if (outcome->retry)
        bus_postgres_worker_due(locked->worker, wait_ms + 1);
    return STATUS_OK;
}

/* After a rollback. A batch of several is delivered again at once, one by one; a single message after a backoff. */
static enum status record_failure(struct locked_batch *locked, const char *reason, struct error *error)
{
    const struct bus_consumer *consumer = &locked->reader->consumer;
    size_t count = locked->batch.count;
    unsigned attempts = locked->batch.attempt + (count == 1);
    int64_t wait_ms = count == 1 ? bus_backoff_ms(consumer, attempts) : 0;
    enum status status = bus_postgres_cursor_fail(
        locked->reader, locked->partition, locked->position, locked->batch.messages[count - 1].offset + 1,
        &(struct cursor_advance){.attempts = attempts, .wait_ms = wait_ms, .reason = str_from(reason)},
        clock_deadline_ms(COMMIT_MS), error);

    if (status == STATUS_OK)
        bus_postgres_worker_due(locked->worker, wait_ms + 1);
    return status;
}

/* The connection is released before subscribers are called. */
static enum bus_postgres_step batch_committed(struct locked_batch *locked)
{
    locked->batch.is_true = db_pipeline_is_true(locked->conn);
    db_release(locked->conn);
    locked->conn = locked->batch.conn = NULL;
    atomic_store(&locked->reader->partitions[locked->partition].was_last, true);
    bus_batch_committed(&locked->reader->consumer, &locked->batch, &locked->outcome);
    bool is_drained = !locked->outcome.retry && new_position(locked) == locked->next_offset;
    return is_drained ? STEP_DRAINED : STEP_FOUND;
}

static enum bus_postgres_step settle_batch(struct locked_batch *locked, struct error *error)
{
    const struct bus_subscription *spec = &locked->reader->consumer.spec;
    struct bus_batch *batch = &locked->batch;
    struct error later = {0};
    enum status status = commit_batch(locked, error);

    if (status == STATUS_OK && batch->count > 0)
        return batch_committed(locked);
    db_release(locked->conn); /* rolls back what was not committed */
    locked->conn = batch->conn = NULL;
    if (status != STATUS_OK && status != STATUS_CANCELLED)
        log_warn("bus_batch_failed", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
                 LOG_INT("partition", locked->partition), LOG_INT("offset", locked->position),
                 LOG_ERROR_FIELDS(error));
    if (batch->count == 0) /* the handler was not called: only a gap was passed */
        return status == STATUS_OK ? STEP_FOUND : STEP_FAILED;
    /* The handler's doing, so that the same batch would fail again? A connection that is gone after the handler's deadline was
     * closed by the server for that. */
    bool is_of_handler = status == STATUS_DB_ERROR || status == STATUS_TIMEOUT ||
                         (status == STATUS_DB_DOWN && clock_mono_ns() >= batch->deadline_ns);
    bool is_recorded = is_of_handler && record_failure(locked, error->message, &later) == STATUS_OK;
    bus_batch_uncommitted(&locked->reader->consumer, batch);
    return is_recorded ? STEP_FOUND : STEP_FAILED;
}

/* ---- handle ---- */

static enum status handle_batch(struct locked_batch *locked, struct error *error)
{
    const struct bus_consumer *consumer = &locked->reader->consumer;
    unsigned attempts_max = consumer->spec.attempts_max;
    enum suspicion suspicion = SUSPECT_HANDLE;
    char reason[2 * BUS_REASON_BYTES] = "every process that handled it died";

    if (locked->batch.count == 0)
        return STATUS_OK;
    bool is_exhausted = attempts_max > 0 && locked->batch.attempt >= attempts_max;
    bool is_marked =
        !is_exhausted && locked->position < locked->reader->partitions[locked->partition].suspect_until;
    if (is_marked) { /* it may have killed the processes that handled it: alone, and marked meanwhile */
        enum status status =
            bus_postgres_suspect_mark(locked->reader, locked->partition, locked->position, &suspicion, error);
        if (status != STATUS_OK)
            return status;
    }
    if (is_exhausted) {
        struct str last = str_utf8_cut(db_result_str(locked->rows, 0, LAST_ERROR), BUS_REASON_BYTES - 1);
        snprintf(reason, sizeof reason, "%.*s", STR_ARG(last));
    }
    if (is_exhausted || is_marked)
        locked->batch.count = 1;
    if (is_exhausted || suspicion != SUSPECT_HANDLE) {
        bus_batch_give_up(consumer, &locked->batch, reason, suspicion != SUSPECT_DROP, &locked->arena,
                          &locked->outcome);
        return STATUS_OK;
    }
    bus_batch_handle(consumer, &locked->batch, &locked->arena, &locked->outcome);
    if (is_marked)
        bus_postgres_suspect_unmark(locked->reader, locked->partition);
    return STATUS_OK;
}

/* There is no memory for the message: all processes leave its partition alone for a moment. */
static enum bus_postgres_step put_off(struct locked_batch *locked, struct error *error)
{
    const struct bus_consumer *consumer = &locked->reader->consumer;
    bool has_error = !db_result_is_null(locked->rows, 0, LAST_ERROR);
    const struct cursor_advance advance = {
        .position = locked->position,
        .attempts = locked->batch.attempt,
        .wait_ms = BUS_HOLD_WAIT_MS,
        .reason = has_error ? db_result_str(locked->rows, 0, LAST_ERROR) : STR_NONE,
    };

    db_pipeline_begin(locked->conn);
    bus_postgres_cursor_advance(locked->conn, consumer, locked->partition, &advance);
    db_pipeline_add(locked->conn, &db_commit_sql, DB_NO_PARAMS);
    if (db_pipeline_end(locked->conn, clock_deadline_ms(COMMIT_MS), NULL, 0, NULL, error) != STATUS_OK)
        return STEP_FAILED;
    bus_postgres_worker_due(locked->worker, BUS_HOLD_WAIT_MS + 1);
    return STEP_FOUND;
}

/* Is there memory for the batch? Loads a message that is larger than a batch. */
static enum status hold_batch(struct locked_batch *locked, bool *is_held, struct error *error)
{
    const struct bus_batch *batch = &locked->batch;
    size_t bytes = 0;
    *is_held = true;
    for (size_t i = 0; i < batch->count; i++)
        bytes += batch->messages[i].payload.len;
    if (!locked->is_large)
        return bus_hold_take(&locked->hold, NULL, bytes, SIZE_MAX) ? STATUS_OK : STATUS_INTERNAL;
    struct bus_message *message = arena_alloc(&locked->arena, sizeof *message);
    *message = batch->messages[0];
    locked->batch.messages = message;
    enum status status = bus_postgres_payload_load(
        locked->conn, message, locked->bytes_max, &locked->reader->partitions[locked->partition],
        &locked->hold, batch->deadline_ns, &locked->payload, error);
    *is_held = locked->payload != NULL;
    return status;
}

/* Locks, handles and settles: the partition `first`, or the next one from there on. */
static enum bus_postgres_step run_batch(struct locked_batch *locked, const struct db_statement *lock_sql,
                                        unsigned first_partition, struct error *error)
{
    struct postgres *postgres = locked->reader->postgres;
    struct db_result *results[2];

    open_lock(locked, lock_sql, first_partition);
    if (db_pipeline_end(locked->conn, clock_deadline_ms(COMMIT_MS), results, 2, NULL, error) != STATUS_OK)
        return STEP_FAILED;
    db_result_free(results[0]);
    locked->rows = results[1];
    if (db_result_rows(locked->rows) == 0)
        return STEP_NOTHING;
    if (str_eq(db_result_str(locked->rows, 0, OTHERS), STR("true"))) {
        pthread_mutex_lock(&postgres->lock);
        bus_postgres_reader_wake(locked->reader, POSTGRES_ANYWHERE, STR_NONE, NULL);
        pthread_mutex_unlock(&postgres->lock);
    }
    read_batch(locked);
    size_t count = locked->batch.count;
    locked->batch.count =
        bus_postgres_slot_enter(locked->reader, &locked->slot, locked->batch.messages, count);
    if (count > 0 && locked->batch.count == 0)
        return STEP_NOTHING;
    bool is_held;
    if (hold_batch(locked, &is_held, error) != STATUS_OK)
        return STEP_FAILED;
    if (!is_held)
        return put_off(locked, error);
    if (!bus_postgres_handling_begin(postgres))
        return STEP_NOTHING;
    int64_t first = locked->batch.count ? locked->batch.messages[0].offset : locked->next_offset;
    if (first != locked->position) { /* retention deleted messages that this group had not handled */
        bus_consumer_gap(&locked->reader->consumer, locked->partition, locked->position, first);
        locked->batch.attempt = 0;
    }
    enum bus_postgres_step step =
        handle_batch(locked, error) == STATUS_OK ? settle_batch(locked, error) : STEP_FAILED;
    bus_postgres_handling_end(postgres);
    return step;
}

/* One share has as many slots as it may have: a batch of others. */
static enum bus_postgres_step run_chosen(struct locked_batch *locked, struct error *error)
{
    unsigned partitions[BUS_PARTITIONS_MAX], count = 0;
    enum bus_postgres_step step = STEP_NOTHING;

    if (bus_postgres_heads_choose(locked->worker, locked->conn, partitions, &count, error) != STATUS_OK)
        return STEP_FAILED;
    for (unsigned i = 0;
         i < count && step == STEP_NOTHING && !bus_postgres_is_stopping(locked->reader->postgres); i++) {
        db_rollback(locked->conn); /* of the one before: another process has it */
        db_result_free(locked->rows);
        locked->rows = NULL;
        step = run_batch(locked, &lock_chosen_sql, partitions[i], error);
    }
    return step;
}

/* ---- a message attached to its notice ---- */

/* BEGIN and the statement that locks, in a pipeline that is left to the handler's first one, or to the commit. */
static void leave_attached_lock(struct locked_batch *locked, const struct bus_message *message,
                                struct db_result *results[2])
{
    const struct bus_consumer *consumer = &locked->reader->consumer;
    struct buf headers = {0};

    for (unsigned i = 0; i < message->header_count; i++) {
        db_array_put(&headers, message->headers[i].name);
        db_array_put(&headers, message->headers[i].value);
    }
    db_pipeline_begin(locked->conn);
    db_pipeline_add(locked->conn, &db_begin_sql, DB_NO_PARAMS);
    db_pipeline_add(locked->conn, &lock_attached_sql,
                    DB_PARAMS(db_cstr(consumer->spec.group), db_text(consumer->topic->name),
                              db_int(message->partition), db_bytea(message->key),
                              db_text_array(db_array_end(&headers)), db_bytea(message->payload),
                              db_i64(2 * consumer->spec.backoff_max_ms),
                              DB_NUMBER(locked->reader->postgres->config.handler_ms, DB_TEXT)));
    db_pipeline_leave(locked->conn, results, 2);
    buf_deinit(&headers);
}

/* Once the lock is answered, the offset is known. */
static bool take_offset(struct locked_batch *locked, struct bus_message *message, struct db_result *answer)
{
    if (!answer)
        return false;
    locked->position = message->offset = db_result_i64(answer, 0, 0);
    locked->next_offset = db_result_i64(answer, 0, 1);
    return true;
}

/* STEP_NOTHING: the message must be handled the usual way. */
static enum bus_postgres_step run_attached(struct locked_batch *locked,
                                           const struct attached_message *attached, struct error *error)
{
    struct reader *reader = locked->reader;
    struct bus_message *message = arena_alloc(&locked->arena, sizeof *message);
    struct db_result *results[2] = {NULL, NULL};
    enum bus_postgres_step step = STEP_NOTHING;

    locked->partition = (unsigned)attached->partition;
    locked->position = locked->next_offset = -1;
    *message = attached->message;
    if (reader->partitions[locked->partition].suspect_until > 0 ||
        bus_postgres_slot_enter(reader, &locked->slot, message, 1) == 0 ||
        !bus_postgres_handling_begin(reader->postgres))
        return STEP_NOTHING;
    message->topic = reader->consumer.topic->name;
    leave_attached_lock(locked, message, results);
    locked->batch = (struct bus_batch){
        .messages = message,
        .count = 1,
        .verdicts = arena_zalloc(&locked->arena, sizeof(struct bus_verdict)),
        .conn = locked->conn,
        .is_unlocked = true,
        .deadline_ns = clock_deadline_ms(reader->postgres->config.handler_ms),
    };
    bus_batch_handle(&reader->consumer, &locked->batch, &locked->arena, &locked->outcome);
    const struct bus_outcome *outcome = &locked->outcome;
    bool is_locked = take_offset(locked, message, results[1]);
    bool is_plain = outcome->dead_letter_count == 0 && !outcome->retry;
    if (is_locked && outcome->dead_letter_count == 0) {
        step = settle_batch(locked, error);
    } else if (!is_locked && is_plain && commit_batch(locked, error) == STATUS_OK) {
        (void)take_offset(locked, message, results[1]); /* not known where the notice alone failed */
        step = batch_committed(locked);
    } else {
        atomic_store(&reader->partitions[attached->partition].was_last, false);
        bus_batch_uncommitted(&reader->consumer, &locked->batch);
    }
    if (locked->conn)
        db_pipeline_forget(locked->conn);
    for (size_t i = 0; i < 2; i++)
        db_result_free(results[i]);
    bus_postgres_handling_end(reader->postgres);
    return step;
}

/* ---- one step ---- */

enum bus_postgres_step bus_postgres_shared_step(struct reader_worker *worker, int place,
                                                const struct attached_message *attached, struct error *error)
{
    struct reader *reader = worker->reader;
    struct locked_batch locked = {.worker = worker, .reader = reader};
    bool anywhere = place == POSTGRES_ANYWHERE;
    enum bus_postgres_step step;

    if (db_acquire(reader->postgres->pool, clock_deadline_ms(COMMIT_MS), &locked.conn, error) != STATUS_OK)
        return STEP_FAILED;
    locked.arena = ARENA(ARENA_BYTES);
    if (attached)
        step = run_attached(&locked, attached, error);
    else if (bus_postgres_slots_are_scarce(reader))
        step = run_chosen(&locked, error);
    else
        step = run_batch(&locked, anywhere ? &lock_anywhere_sql : &lock_partition_sql,
                         anywhere ? bus_postgres_reader_turn(reader) : (unsigned)place, error);
    db_result_free(locked.rows);
    db_result_free(locked.payload);
    db_release(locked.conn);
    bus_hold_release(&locked.hold);
    bus_postgres_slot_leave(reader, &locked.slot);
    arena_deinit(&locked.arena);
    return step;
}
