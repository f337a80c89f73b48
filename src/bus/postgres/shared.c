/* One batch of a shared group: lock a cursor that has something to handle, hand it over, move the cursor,
 * commit. Two round trips beside what the handler does. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "bus/postgres/inside.h"

#define SETUP_MS 10000
#define COMMIT_MS 10000
#define ARENA_BYTES 16384

static const char commit_sql[] = "COMMIT";

/* $4 the new position, $5 attempts of what stands there, $6 ms till it comes again (NULL: now) and $7 why. */
#define ADVANCE                                                                   \
    "UPDATE platform.bus_cursor SET position = $4, attempts = $5,"                \
    "       retry_at = clock_timestamp() + $6 * interval '1 ms', last_error = $7" \
    " WHERE group_name = $1 AND topic = $2 AND partition = $3"
static const char advance_sql[] = ADVANCE;
static const char advance_relaxed_sql[] =
    "WITH advanced AS (" ADVANCE ") SELECT set_config('synchronous_commit', 'off', true)";

/* After a rollback, unless somebody else has moved it by now: $4 where it stands, $5 up to where one by
 * one. */
static const char failed_sql[] = "UPDATE platform.bus_cursor SET careful_until = $5, attempts = $6,"
                                 "       retry_at = clock_timestamp() + $7 * interval '1 ms', last_error = $8"
                                 " WHERE group_name = $1 AND topic = $2 AND partition = $3 AND position = $4";

/* ---- the group's cursors ---- */

static enum status make_ready(struct reader *reader, struct error *error)
{
    const struct bus_subscription *spec = &reader->consumer.spec;
    int64_t deadline_ns = clock_deadline_ms(SETUP_MS);
    struct db_conn *conn;
    enum status status = db_acquire(reader->postgres->pool, deadline_ns, &conn, error);

    if (status == STATUS_OK)
        status = bus_postgres_topic_ensure(conn, reader->consumer.topic, deadline_ns, error);
    if (status == STATUS_OK)
        status = bus_postgres_cursors_create(conn, reader->consumer.topic, spec->group,
                                             spec->from == BUS_FROM_START, deadline_ns, error);
    if (status == STATUS_OK)
        status = bus_postgres_suspects_note(reader, conn, deadline_ns, error);
    db_release(conn);
    if (status == STATUS_OK && !atomic_exchange(&reader->ready, true) && spec->on_ready)
        spec->on_ready(spec->context);
    return status;
}

/* ---- settle ---- */

/* Where the partition goes on: behind the last settled message. */
static int64_t new_position(const struct claim *claim)
{
    if (claim->batch.count == 0)
        return claim->next_offset;
    size_t settled = claim->outcome.settled;
    return settled ? claim->batch.messages[settled - 1].offset + 1 : claim->batch.messages[0].offset;
}

/* In send_commit()'s pipeline. */
#define NOTICE_AT 2

static enum status send_commit(struct claim *claim, unsigned attempts, struct db_param wait,
                               struct db_param reason, struct error *error)
{
    static const enum db_type types[] = {DB_TEXT, DB_TEXT, DB_INT, DB_BIGINT, DB_INT, DB_BIGINT, DB_TEXT};
    const struct bus_consumer *consumer = &claim->reader->consumer;
    struct postgres_number numbers[3];
    struct db_statement advance, commit;
    size_t failed_at = 0;
    struct db_param params[] = {{str_from(consumer->spec.group)},
                                {consumer->topic->name},
                                bus_postgres_param(&numbers[0], claim->partition),
                                bus_postgres_param(&numbers[1], new_position(claim)),
                                bus_postgres_param(&numbers[2], attempts),
                                wait,
                                reason};

    db_statement_init(&advance, consumer->spec.relaxed ? advance_relaxed_sql : advance_sql, 7, types);
    db_statement_init(&commit, commit_sql, 0, NULL);
    enum status status = db_pipeline_begin_checked(claim->conn, error);
    if (status == STATUS_OK)
        status = db_pipeline_add_checked(claim->conn, &advance, params, error);
    if (status == STATUS_OK)
        status = db_pipeline_add_checked(claim->conn, &commit, NULL, error);
    if (status == STATUS_OK && claim->batch.tell_channel.ptr)
        status = db_pipeline_add_notice_checked(claim->conn, claim->batch.tell_channel,
                                                claim->batch.tell_payload, error);
    if (status == STATUS_OK)
        status = db_pipeline_end(claim->conn, clock_deadline_ms(COMMIT_MS), NULL, 0, &failed_at, error);
    claim->batch.is_told = status == STATUS_OK && claim->batch.tell_channel.ptr;
    return failed_at == NOTICE_AT ? STATUS_OK : status; /* committed, whoever was told */
}

static enum status commit(struct claim *claim, struct error *error)
{
    struct reader *reader = claim->reader;
    const struct bus_outcome *outcome = &claim->outcome;
    struct postgres_number number;
    unsigned attempts = outcome->retry ? (outcome->settled ? 0 : claim->batch.attempt) + 1 : 0;
    int64_t wait_ms = outcome->retry ? bus_backoff_ms(&reader->consumer, attempts) : 0;
    struct db_param wait = {STR_NONE}, reason = {STR_NONE};
    enum status status = STATUS_OK;

    if (outcome->retry) {
        wait = bus_postgres_param(&number, wait_ms);
        reason.value = str_from(claim->batch.verdicts[outcome->settled].reason);
    }
    if (outcome->letter_count > 0)
        status = bus_postgres_publish_in_tx(&reader->postgres->bus, claim->conn, outcome->letters,
                                            outcome->letter_count, clock_deadline_ms(COMMIT_MS), error);
    if (status == STATUS_OK)
        status = send_commit(claim, attempts, wait, reason, error);
    if (status == STATUS_OK && outcome->letter_count > 0)
        bus_wake(&reader->postgres->bus, reader->consumer.topic->dead->name);
    if (status == STATUS_OK && outcome->retry)
        bus_postgres_reader_due(reader, wait_ms + 1);
    return status;
}

/* The transaction came to nothing. A batch of several comes again at once, one by one; a single one after a
 * backoff. */
static enum status record_failure(struct claim *claim, const char *reason, struct error *error)
{
    static const enum db_type types[] = {DB_TEXT,   DB_TEXT, DB_INT,    DB_BIGINT,
                                         DB_BIGINT, DB_INT,  DB_BIGINT, DB_TEXT};
    const struct bus_consumer *consumer = &claim->reader->consumer;
    size_t count = claim->batch.count;
    bool alone = count == 1;
    unsigned attempts = alone ? claim->batch.attempt + 1 : claim->batch.attempt;
    int64_t wait_ms = alone ? bus_backoff_ms(consumer, attempts) : 0;
    struct postgres_number numbers[5];
    struct db_statement statement;
    struct db_param params[] = {
        {str_from(consumer->spec.group)},
        {consumer->topic->name},
        bus_postgres_param(&numbers[0], claim->partition),
        bus_postgres_param(&numbers[1], claim->position),
        bus_postgres_param(&numbers[2], claim->batch.messages[count - 1].offset + 1),
        bus_postgres_param(&numbers[3], attempts),
        bus_postgres_param(&numbers[4], wait_ms),
        {str_from(reason)},
    };

    db_statement_init(&statement, failed_sql, 8, types);
    struct db_conn *conn; /* the batch's own may be gone: a statement that takes for ever ends it */
    enum status status =
        db_acquire(claim->reader->postgres->pool, clock_deadline_ms(COMMIT_MS), &conn, error);
    if (status == STATUS_OK)
        status = db_exec(conn, &statement, params, clock_deadline_ms(COMMIT_MS), NULL, error);
    db_release(conn);
    if (status == STATUS_OK)
        bus_postgres_reader_due(claim->reader, wait_ms + 1);
    return status;
}

/* Is it the handler's doing, so that the same batch would fail again? Past its time, a connection that is gone
 * was taken away for that. */
static bool is_own_failure(const struct claim *claim, enum status status)
{
    return status == STATUS_DB_ERROR || status == STATUS_TIMEOUT ||
           (status == STATUS_DB_DOWN && clock_mono_ns() >= claim->batch.deadline_ns);
}

/* ---- handle ---- */

/* `is_told`: the subscriber is asked to record it. */
static void give_up(struct claim *claim, const char *reason, bool is_told)
{
    claim->batch.count = 1;
    bus_batch_give_up(&claim->reader->consumer, &claim->batch, reason, is_told, &claim->arena,
                      &claim->outcome);
}

/* One that may have killed those who handled it before: alone, and marked while it is handled. */
static enum status handle_suspect(struct claim *claim, struct error *error)
{
    enum suspicion suspicion;
    enum status status =
        bus_postgres_suspect_mark(claim->reader, claim->partition, claim->position, &suspicion, error);

    if (status != STATUS_OK)
        return status;
    if (suspicion != SUSPECT_HANDLE) {
        give_up(claim, "every process that handled it died", suspicion == SUSPECT_GIVE_UP);
        return STATUS_OK;
    }
    claim->batch.count = 1;
    bus_batch_handle(&claim->reader->consumer, &claim->batch, &claim->arena, &claim->outcome);
    bus_postgres_suspect_unmark(claim->reader, claim->partition);
    return STATUS_OK;
}

static enum status handle(struct claim *claim, struct error *error)
{
    const struct bus_consumer *consumer = &claim->reader->consumer;
    unsigned attempts_max = consumer->spec.attempts_max;
    char reason[2 * BUS_REASON_BYTES];

    if (claim->batch.count == 0)
        return STATUS_OK;
    if (attempts_max > 0 && claim->batch.attempt >= attempts_max) {
        struct str last = str_utf8_cut(db_result_str(claim->rows, 0, CLAIM_LAST_ERROR), BUS_REASON_BYTES - 1);
        snprintf(reason, sizeof reason, "%.*s", STR_ARG(last));
        give_up(claim, reason, true);
        return STATUS_OK;
    }
    if (bus_postgres_is_suspect(claim->reader, claim->partition, claim->position))
        return handle_suspect(claim, error);
    bus_batch_handle(consumer, &claim->batch, &claim->arena, &claim->outcome);
    return STATUS_OK;
}

/* Nobody waits for a connection because others are being told. */
static void let_go(struct claim *claim)
{
    db_release(claim->conn); /* rolls back what was not committed */
    claim->conn = claim->batch.conn = NULL;
}

static void log_failure(const struct claim *claim, const struct error *error)
{
    const struct bus_subscription *spec = &claim->reader->consumer.spec;

    log_warn("bus_batch_failed", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
             LOG_INT("partition", claim->partition), LOG_INT("offset", claim->position),
             LOG_ERROR_FIELDS(error));
}

static enum bus_postgres_step settle(struct claim *claim, struct error *error)
{
    const struct bus_consumer *consumer = &claim->reader->consumer;
    struct error later = {0};
    enum status status = claim->batch.rolled_back
                             ? error_set(error, STATUS_DB_ERROR, "%s", claim->batch.verdicts[0].reason)
                             : commit(claim, error);

    let_go(claim);
    if (status != STATUS_OK && status != STATUS_CANCELLED)
        log_failure(claim, error);
    if (claim->batch.count == 0) /* the handler was not asked: a gap was passed, or not */
        return status == STATUS_OK ? STEP_FOUND : STEP_FAILED;
    if (status == STATUS_OK) {
        atomic_store(&claim->reader->was_last[claim->partition], true);
        bus_batch_committed(consumer, &claim->batch, &claim->outcome);
        return !claim->outcome.retry && new_position(claim) == claim->next_offset ? STEP_DRAINED : STEP_FOUND;
    }
    bool recorded =
        is_own_failure(claim, status) && record_failure(claim, error->message, &later) == STATUS_OK;
    bus_batch_uncommitted(consumer, &claim->batch);
    return recorded ? STEP_FOUND : STEP_FAILED;
}

/* ---- a message that is at hand before it is claimed ---- */

/* What the claim answered: exactly this message, for the first time? A dead letter is made of what was claimed. */
static bool holds(struct claim *claim, const struct postgres_preview *preview)
{
    const struct bus_batch handed = claim->batch;

    if (!claim->rows || db_result_rows(claim->rows) != 1)
        return false;
    bus_postgres_claim_read(claim);
    bool holds = claim->batch.count == 1 && claim->batch.attempt == 0 &&
                 claim->batch.messages[0].offset == claim->position &&
                 bus_postgres_preview_is(preview, &claim->batch.messages[0]) &&
                 claim->outcome.letter_count == 0 &&
                 !bus_postgres_is_suspect(claim->reader, claim->partition, claim->position);
    const struct bus_message *claimed = claim->batch.messages;
    claim->batch = handed; /* with the handler's memo and verdicts */
    claim->batch.messages = claimed;
    return holds;
}

static enum status open_preview(struct claim *claim, const struct postgres_preview *preview,
                                struct db_result *results[2], struct error *error)
{
    struct bus_message *message = arena_alloc(&claim->arena, sizeof *message);
    enum status status = bus_postgres_claim_open(claim, preview->partition, error);

    if (status == STATUS_OK)
        db_pipeline_leave(claim->conn, results, 2);
    *message = preview->message;
    message->topic = claim->reader->consumer.topic->name;
    claim->batch = (struct bus_batch){
        .messages = message,
        .count = 1,
        .verdicts = arena_zalloc(&claim->arena, sizeof(struct bus_verdict)),
        .conn = claim->conn,
        .deadline_ns = clock_deadline_ms(claim->reader->postgres->config.handler_ms),
    };
    return status;
}

/* The handler's first round trip takes the claim along. Where that is not answered as expected, nothing of it stands, and
 * the message is claimed in earnest. */
static bool handle_preview(struct claim *claim, const struct postgres_preview *preview, struct error *error)
{
    struct db_result *results[2] = {NULL, NULL};

    if (open_preview(claim, preview, results, error) != STATUS_OK)
        return false;
    bus_batch_handle(&claim->reader->consumer, &claim->batch, &claim->arena, &claim->outcome);
    db_pipeline_leave(claim->conn, NULL, 0); /* a handler that asked nothing has left the claim unanswered */
    db_result_free(results[0]);
    claim->rows = results[1];
    if (holds(claim, preview))
        return true;
    atomic_store(&claim->reader->was_last[preview->partition], false);
    bus_batch_uncommitted(&claim->reader->consumer, &claim->batch);
    return false;
}

/* STEP_NOTHING: not this way. */
static enum bus_postgres_step step_with(struct claim *claim, const struct postgres_preview *preview,
                                        struct error *error)
{
    enum bus_postgres_step result = STEP_NOTHING;

    if (!bus_postgres_handling_begin(claim->reader->postgres))
        return STEP_NOTHING;
    if (handle_preview(claim, preview, error))
        result = settle(claim, error);
    bus_postgres_handling_end(claim->reader->postgres);
    return result;
}

/* ---- one step ---- */

static enum bus_postgres_step step(struct claim *claim, int place, struct error *error)
{
    enum status status = bus_postgres_claim_send(claim, place, clock_deadline_ms(COMMIT_MS), error);

    if (status != STATUS_OK)
        return STEP_FAILED;
    if (db_result_rows(claim->rows) == 0)
        return STEP_NOTHING;
    if (str_eq(db_result_str(claim->rows, 0, CLAIM_OTHERS), STR("true")))
        bus_postgres_reader_wake(claim->reader);
    if (!bus_postgres_handling_begin(claim->reader->postgres))
        return STEP_NOTHING;
    bus_postgres_claim_read(claim);
    bus_postgres_claim_look_for_gap(claim);
    enum bus_postgres_step result = handle(claim, error) == STATUS_OK ? settle(claim, error) : STEP_FAILED;
    bus_postgres_handling_end(claim->reader->postgres);
    return result;
}

static enum bus_postgres_step run_step(struct reader *reader, int place,
                                       const struct postgres_preview *preview, struct error *error)
{
    struct claim claim = {.reader = reader};

    if (db_acquire(reader->postgres->pool, clock_deadline_ms(COMMIT_MS), &claim.conn, error) != STATUS_OK)
        return STEP_FAILED;
    arena_init(&claim.arena, ARENA_BYTES);
    enum bus_postgres_step result = preview ? step_with(&claim, preview, error) : step(&claim, place, error);
    db_result_free(claim.rows);
    db_release(claim.conn);
    arena_deinit(&claim.arena);
    return result;
}

enum bus_postgres_step bus_postgres_shared_step(struct reader *reader, int place, struct error *error)
{
    enum bus_postgres_step result = STEP_NOTHING;

    if (!atomic_load(&reader->ready) && make_ready(reader, error) != STATUS_OK)
        return STEP_FAILED;
    struct postgres_preview *preview = bus_postgres_reader_preview(reader, place);
    if (preview)
        result = run_step(reader, place, preview, error);
    bus_postgres_preview_free(preview);
    return result == STEP_NOTHING ? run_step(reader, place, NULL, error) : result;
}
