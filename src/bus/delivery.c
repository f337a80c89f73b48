/* One batch between an engine and the database: transaction, handler, dead letters, commit. The driver acknowledges to the engine
 * afterwards. */
#include "bus/delivery.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "db/db.h"

enum {
    ARENA_BYTES = 16384,
    COMMIT_MS = 10000,
    OUTAGE_MS =
        250, /* between tries while the database or the engine is not reachable; no attempt is counted */
    KEY_BYTES_KEPT = 1024,
    HEADERS_KEPT = 5, /* the reason and the place: batch.c puts them first */
};

struct attempt {
    struct bus_delivery *delivery;
    struct arena arena;
    struct bus_batch batch;
    struct bus_outcome outcome;
    bool is_dead_letter_lost; /* the engine did not accept the dead letters */
};

static size_t batch_size(const struct bus_delivery *delivery, const struct bus_message *messages,
                         size_t count)
{
    const struct bus_subscription *spec = &delivery->consumer->spec;
    size_t bytes = messages[0].payload.len, size = 1;

    if (messages[0].offset < delivery->alone_until || delivery->attempts > 0 || messages[0].poison)
        return 1;
    while (size < count && size < spec->batch_max && bytes < spec->batch_bytes_max && !messages[size].poison)
        bytes += messages[size++].payload.len;
    return size;
}

static enum status attempt_begin(struct attempt *attempt, struct error *error)
{
    struct bus_batch *batch = &attempt->batch;
    enum status status;

    if (!attempt->delivery->pool)
        return STATUS_OK;
    status = db_acquire(attempt->delivery->pool, batch->deadline_ns, &batch->conn, error);
    if (status == STATUS_OK)
        status = db_begin(batch->conn, DB_READ_COMMITTED, batch->deadline_ns, error);
    return status;
}

static void attempt_handle(struct attempt *attempt)
{
    const struct bus_delivery *delivery = attempt->delivery;
    unsigned attempts_max = delivery->consumer->spec.attempts_max;
    const char *poison = attempt->batch.messages[0].poison;

    attempt->batch.attempt = delivery->attempts;
    if (poison)
        bus_batch_give_up(delivery->consumer, &attempt->batch, poison, true, &attempt->arena,
                          &attempt->outcome);
    else if (attempts_max > 0 && delivery->attempts >= attempts_max)
        bus_batch_give_up(delivery->consumer, &attempt->batch, delivery->last_error, true, &attempt->arena,
                          &attempt->outcome);
    else
        bus_batch_handle(delivery->consumer, &attempt->batch, &attempt->arena, &attempt->outcome);
}

/* Without the content, and with a note of that in the reason. */
static struct bus_message dead_letter_without_content(const struct bus_message *letter, struct arena *arena)
{
    struct bus_message brief = *letter;
    struct bus_header *headers = arena_alloc(arena, HEADERS_KEPT * sizeof headers[0]);

    memcpy(headers, letter->headers, HEADERS_KEPT * sizeof headers[0]);
    headers[0].value = arena_printf(arena, "%.*s; it was too large to be kept", STR_ARG(headers[0].value));
    brief.headers = headers;
    brief.header_count = HEADERS_KEPT;
    brief.payload = STR("");
    brief.key = letter->key.len > KEY_BYTES_KEPT ? STR_NONE : letter->key;
    return brief;
}

/* A message of another program may be so large that there is no room for it and its reason. */
static enum status publish_one_by_one(struct bus *bus, const struct bus_message *letters, size_t count,
                                      int64_t deadline_ns, struct error *error)
{
    struct arena arena;
    enum status status = STATUS_OK;

    arena_init(&arena, ARENA_BYTES);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        struct bus_message letter = letters[i];
        status = bus_publish(bus, &letter, 1, deadline_ns, error);
        if (status != STATUS_PAYLOAD_TOO_LARGE && status != STATUS_BAD_REQUEST)
            continue;
        letter = dead_letter_without_content(&letters[i], &arena);
        status = bus_publish(bus, &letter, 1, deadline_ns, error);
    }
    arena_deinit(&arena);
    return status;
}

enum status bus_dead_letters_publish(struct bus *bus, struct bus_message *letters, size_t count,
                                     int64_t deadline_ns, struct error *error)
{
    enum status status = bus_publish(bus, letters, count, deadline_ns, error);

    if (status == STATUS_PAYLOAD_TOO_LARGE || status == STATUS_BAD_REQUEST)
        status = publish_one_by_one(bus, letters, count, deadline_ns, error);
    return status;
}

/* Dead letters first: after the commit a lost one could not be made again, while a repeated one does no harm. */
static enum status attempt_commit(struct attempt *attempt, struct error *error)
{
    struct bus_batch *batch = &attempt->batch;
    const struct bus_outcome *outcome = &attempt->outcome;
    int64_t deadline_ns = clock_deadline_ms(COMMIT_MS);
    enum status status = STATUS_OK;

    if (batch->rolled_back && batch->conn)
        return error_set(error, STATUS_DB_ERROR, "%s", batch->verdicts[0].reason);
    if (outcome->dead_letter_count > 0)
        status = bus_dead_letters_publish(attempt->delivery->bus, outcome->dead_letters,
                                          outcome->dead_letter_count, deadline_ns, error);
    attempt->is_dead_letter_lost = status != STATUS_OK;
    FAILPOINT("bus.before_commit");
    if (status == STATUS_OK && batch->conn)
        status = db_commit(batch->conn, deadline_ns, error);
    FAILPOINT("bus.after_commit");
    return status;
}

static void remember_error(struct bus_delivery *delivery, const char *reason)
{
    str_copy(delivery->last_error, sizeof delivery->last_error, str_from(reason));
}

/* ---- the outcome ---- */

static size_t attempt_committed(struct attempt *attempt, int64_t *wait_ms)
{
    struct bus_delivery *delivery = attempt->delivery;
    const struct bus_outcome *outcome = &attempt->outcome;

    delivery->is_out = false;
    bus_batch_committed(delivery->consumer, &attempt->batch, outcome);
    for (size_t i = 0; i < outcome->settled && delivery->dead; i++)
        delivery->dead[i] = attempt->batch.verdicts[i].kind == BUS_TERM;
    if (outcome->retry) {
        delivery->attempts = (outcome->settled ? 0 : delivery->attempts) + 1;
        remember_error(delivery, attempt->batch.verdicts[outcome->settled].reason);
        *wait_ms = bus_backoff_ms(delivery->consumer, delivery->attempts);
    } else {
        delivery->attempts = 0;
    }
    return outcome->settled;
}

/* Would the same batch fail again because of the handler? After its deadline, a lost connection is one that was closed for being late. */
static bool is_handler_failure(const struct attempt *attempt, enum status status)
{
    if (attempt->is_dead_letter_lost || (attempt->delivery->pool && !db_pool_is_up(attempt->delivery->pool)))
        return false;
    return status == STATUS_DB_ERROR || status == STATUS_TIMEOUT ||
           (status == STATUS_DB_DOWN && clock_mono_ns() >= attempt->batch.deadline_ns);
}

static void attempt_failed(struct attempt *attempt, const struct error *error, int64_t *wait_ms)
{
    struct bus_delivery *delivery = attempt->delivery;
    const struct bus_batch *batch = &attempt->batch;

    bus_batch_uncommitted(delivery->consumer, batch);
    if (!is_handler_failure(attempt, error->status)) {
        *wait_ms = OUTAGE_MS;
        return;
    }
    remember_error(delivery, error->message);
    if (batch->count > 1) { /* again at once, one by one */
        delivery->alone_until = batch->messages[batch->count - 1].offset + 1;
        return;
    }
    *wait_ms = bus_backoff_ms(delivery->consumer, ++delivery->attempts);
}

static void log_failure(const struct attempt *attempt, const struct error *error)
{
    const struct bus_message *first = &attempt->batch.messages[0];

    if (error->status == STATUS_CANCELLED)
        return;
    log_warn("bus_batch_failed", LOG_STR("topic", first->topic),
             LOG_CSTR("group", attempt->delivery->consumer->spec.group),
             LOG_INT("partition", first->partition), LOG_INT("offset", first->offset),
             LOG_ERROR_FIELDS(error));
}

/* Once per outage. */
static void log_outage(struct attempt *attempt, const struct error *error)
{
    if (!attempt->delivery->is_out)
        log_failure(attempt, error);
    attempt->delivery->is_out = true;
}

static size_t attempt_deliver(struct attempt *attempt, int64_t *wait_ms)
{
    struct error error = {0};

    error.status = attempt_begin(attempt, &error);
    if (error.status != STATUS_OK) { /* the handler was not called */
        log_outage(attempt, &error);
        *wait_ms = OUTAGE_MS;
        return 0;
    }
    attempt_handle(attempt);
    error.status = attempt_commit(attempt, &error);
    db_release(attempt->batch.conn); /* before the callbacks: others may be waiting for a connection */
    attempt->batch.conn = NULL;
    if (error.status == STATUS_OK)
        return attempt_committed(attempt, wait_ms);
    if (is_handler_failure(attempt, error.status))
        log_failure(attempt, &error);
    else
        log_outage(attempt, &error);
    attempt_failed(attempt, &error, wait_ms);
    return 0;
}

size_t bus_deliver(struct bus_delivery *delivery, const struct bus_message *messages, size_t count,
                   int64_t *wait_ms)
{
    struct attempt attempt = {.delivery = delivery};
    size_t settled;

    *wait_ms = 0;
    arena_init(&attempt.arena, ARENA_BYTES);
    attempt.batch = (struct bus_batch){
        .messages = messages,
        .count = batch_size(delivery, messages, count),
        .deadline_ns = clock_deadline_ms(delivery->handler_ms),
    };
    attempt.batch.verdicts =
        arena_alloc(&attempt.arena, attempt.batch.count * sizeof *attempt.batch.verdicts);
    memset(attempt.batch.verdicts, 0, attempt.batch.count * sizeof *attempt.batch.verdicts);
    settled = attempt_deliver(&attempt, wait_ms);
    db_release(attempt.batch.conn);
    arena_deinit(&attempt.arena);
    return settled;
}

void bus_delivery_forget(struct bus_delivery *delivery)
{
    delivery->attempts = 0;
    delivery->alone_until = 0;
    delivery->last_error[0] = '\0';
}
