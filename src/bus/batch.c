/* A batch between the handler and the commit: its verdicts, their outcome, the dead letters; and for engines that cannot share a
 * transaction with the database, the transaction around it. The driver acknowledges to the engine afterwards. */
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "bus/bus_inside.h"
#include "db/db.h"

enum {
    DEAD_HEADERS = 5, /* the reason and the place, the first headers of a dead letter */
    ARENA_BYTES = 16384,
    COMMIT_MS = 10000,
    /* Between tries while the database or the engine is not reachable; no attempt is counted. */
    OUTAGE_MS = 250,
    KEY_BYTES_KEPT = 1024,
};

/* ---- the handler's side ---- */

static void set_verdict(struct bus_verdict *verdict, enum bus_verdict_kind kind, const char *format,
                        va_list arguments) __attribute__((format(printf, 3, 0)));

static void set_verdict(struct bus_verdict *verdict, enum bus_verdict_kind kind, const char *format,
                        va_list arguments)
{
    char text[2 * BUS_REASON_BYTES];

    verdict->kind = kind;
    vsnprintf(text, sizeof text, format, arguments);
    if (!str_is_utf8(str_from(text))) /* it may quote a message; the engine would refuse it every time */
        for (char *at = text; *at; at++)
            if ((unsigned char)*at >= 0x80)
                *at = '?';
    str_copy(verdict->reason, sizeof verdict->reason, str_from(text));
}

void bus_batch_retry(struct bus_batch *batch, size_t at, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    set_verdict(&batch->verdicts[at], BUS_RETRY, format, arguments);
    va_end(arguments);
}

void bus_batch_term(struct bus_batch *batch, size_t at, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    set_verdict(&batch->verdicts[at], BUS_TERM, format, arguments);
    va_end(arguments);
}

void bus_batch_rollback(struct bus_batch *batch, const char *format, ...)
{
    va_list arguments;

    batch->rolled_back = true;
    va_start(arguments, format);
    set_verdict(&batch->verdicts[0], BUS_RETRY, format, arguments);
    va_end(arguments);
}

/* ---- dead letters ---- */

struct bus_message bus_dead_letter(const struct bus_consumer *consumer, const struct bus_message *message,
                                   const char *reason, struct arena *arena)
{
    unsigned kept = message->header_count;

    if (kept > BUS_HEADERS_MAX - DEAD_HEADERS)
        kept = BUS_HEADERS_MAX - DEAD_HEADERS;
    struct bus_header *headers = arena_alloc(arena, (kept + DEAD_HEADERS) * sizeof headers[0]);
    const struct bus_header ours[DEAD_HEADERS] = {
        {STR(BUS_HEADER_DEAD_REASON),
         str_is_utf8(str_from(reason)) ? arena_str(arena, str_from(reason)) : STR("not text")},
        {STR(BUS_HEADER_DEAD_TOPIC), message->topic},
        {STR(BUS_HEADER_DEAD_PARTITION), arena_printf(arena, "%u", message->partition)},
        {STR(BUS_HEADER_DEAD_OFFSET), arena_printf(arena, "%lld", (long long)message->offset)},
        {STR(BUS_HEADER_DEAD_GROUP), str_from(consumer->spec.group)},
    };
    memcpy(headers, ours, sizeof ours);
    if (kept)
        memcpy(headers + DEAD_HEADERS, message->headers, kept * sizeof headers[0]);
    struct bus_message letter = *message;
    letter.topic = consumer->topic->dead->name;
    letter.headers = headers;
    letter.header_count = kept + DEAD_HEADERS;
    letter.partition = message->partition % consumer->topic->dead->spec.partitions;
    return letter;
}

/* A message of a dead-letter topic is dropped, and logged. */
static void add_dead_letter(const struct bus_consumer *consumer, const struct bus_message *message,
                            const char *reason, struct arena *arena, struct bus_outcome *outcome)
{
    log_warn("bus_dead_letter", LOG_STR("topic", message->topic), LOG_CSTR("group", consumer->spec.group),
             LOG_INT("partition", message->partition), LOG_INT("offset", message->offset),
             LOG_TRACE(bus_message_header(message, STR(BUS_HEADER_TRACEPARENT))), LOG_CSTR("reason", reason));
    if (consumer->topic->dead)
        outcome->dead_letters[outcome->dead_letter_count++] =
            bus_dead_letter(consumer, message, reason, arena);
}

/* A message of another program may be so large that there is no room for it and its reason: then one by one. */
enum status bus_dead_letters_publish(struct bus *bus, struct bus_message *letters, size_t count,
                                     int64_t deadline_ns, struct error *error)
{
    enum status status = bus_publish(bus, letters, count, deadline_ns, error);
    struct arena arena = ARENA(ARENA_BYTES);

    if (status != STATUS_PAYLOAD_TOO_LARGE && status != STATUS_BAD_REQUEST)
        return status;
    status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        struct bus_message letter = letters[i];
        status = bus_publish(bus, &letter, 1, deadline_ns, error);
        if (status != STATUS_PAYLOAD_TOO_LARGE && status != STATUS_BAD_REQUEST)
            continue;
        /* without the content, and with a note of that in the reason */
        struct bus_header *headers = arena_alloc(&arena, DEAD_HEADERS * sizeof headers[0]);
        memcpy(headers, letters[i].headers, DEAD_HEADERS * sizeof headers[0]);
        headers[0].value =
            arena_printf(&arena, "%.*s; it was too large to be kept", STR_ARG(headers[0].value));
        letter = letters[i];
        letter.headers = headers;
        letter.header_count = DEAD_HEADERS;
        letter.payload = STR("");
        letter.key = letter.key.len > KEY_BYTES_KEPT ? STR_NONE : letter.key;
        status = bus_publish(bus, &letter, 1, deadline_ns, error);
    }
    arena_deinit(&arena);
    return status;
}

/* ---- the outcome ---- */

void bus_batch_handle(const struct bus_consumer *consumer, struct bus_batch *batch, struct arena *arena,
                      struct bus_outcome *outcome)
{
    int64_t begun_ns = clock_mono_ns();
    unsigned attempts_max = consumer->spec.attempts_max;

    *outcome =
        (struct bus_outcome){.dead_letters = arena_alloc(arena, batch->count * sizeof(struct bus_message))};
    consumer->spec.handler(consumer->spec.context, batch);
    metric_observe(consumer->batch_seconds, (double)(clock_mono_ns() - begun_ns) / 1e9);
    outcome->retry = batch->rolled_back && batch->conn; /* the driver rolls back and counts the attempt */
    for (size_t i = 0; i < batch->count && !outcome->retry; i++) {
        struct bus_verdict *verdict = &batch->verdicts[i];
        bool is_failed = verdict->kind == BUS_RETRY;
        unsigned attempts = (i == 0 ? batch->attempt : 0) + 1;
        if (is_failed && (attempts_max == 0 || attempts < attempts_max)) {
            outcome->retry = true;
            break;
        }
        if (is_failed)
            verdict->kind = BUS_TERM;
        if (verdict->kind == BUS_TERM)
            add_dead_letter(consumer, &batch->messages[i], verdict->reason, arena, outcome);
        outcome->settled++;
        if (is_failed) /* the handler may not have looked at the messages after it */
            break;
    }
}

void bus_batch_give_up(const struct bus_consumer *consumer, struct bus_batch *batch, const char *reason,
                       bool is_reported, struct arena *arena, struct bus_outcome *outcome)
{
    *outcome =
        (struct bus_outcome){.settled = 1, .dead_letters = arena_alloc(arena, sizeof(struct bus_message))};
    bus_batch_term(batch, 0, "%s", reason);
    add_dead_letter(consumer, &batch->messages[0], batch->verdicts[0].reason, arena, outcome);
    if (is_reported && consumer->spec.on_given_up)
        consumer->spec.on_given_up(consumer->spec.context, batch);
    if (batch->rolled_back)
        *outcome = (struct bus_outcome){.retry = true};
}

void bus_batch_committed(const struct bus_consumer *consumer, const struct bus_batch *batch,
                         const struct bus_outcome *outcome)
{
    uint64_t dead = 0;

    for (size_t i = 0; i < outcome->settled; i++)
        dead += batch->verdicts[i].kind == BUS_TERM;
    metric_add(consumer->consumed[BUS_ACK], outcome->settled - dead);
    metric_add(consumer->consumed[BUS_TERM], dead);
    metric_add(consumer->consumed[BUS_RETRY], outcome->retry);
    metric_add(consumer->dead_letters, dead);
    if (consumer->spec.on_committed)
        consumer->spec.on_committed(consumer->spec.context, batch, outcome->settled);
}

void bus_batch_uncommitted(const struct bus_consumer *consumer, const struct bus_batch *batch)
{
    metric_add(consumer->consumed[BUS_RETRY], batch->count);
    if (consumer->spec.on_uncommitted)
        consumer->spec.on_uncommitted(consumer->spec.context, batch);
}

/* ---- deliveries ---- */

enum status bus_delivery_pool(const struct db_target *target, const char *driver, struct db_pool **pool,
                              struct error *error)
{
    char name[64];

    if (!target)
        return STATUS_OK;
    struct db_target own = *target;
    snprintf(name, sizeof name, "%s-%s", target->name, driver);
    own.name = name;
    return db_pool_create(&own, pool, error);
}

static size_t batch_size(const struct bus_delivery *delivery, const struct bus_message *messages,
                         size_t count, size_t bytes_max)
{
    const struct bus_subscription *spec = &delivery->consumer->spec;
    size_t bytes = messages[0].payload.len, size = 1;

    if (messages[0].offset < delivery->alone_until || delivery->attempts > 0 || messages[0].poison)
        return 1;
    while (size < count && size < spec->batch_max && bytes + messages[size].payload.len <= bytes_max &&
           !messages[size].poison)
        bytes += messages[size++].payload.len;
    return size;
}

/* The handler; then dead letters, then the commit: a dead letter that is lost after the commit could not be made again, while a
 * repeated one does no harm. */
static enum status handle_and_commit(struct bus_delivery *delivery, struct bus_batch *batch,
                                     struct arena *arena, struct bus_outcome *outcome,
                                     bool *is_dead_letter_lost, struct error *error)
{
    unsigned attempts_max = delivery->consumer->spec.attempts_max;
    const char *poison = batch->messages[0].poison;
    enum status status = STATUS_OK;

    batch->attempt = delivery->attempts;
    if (!poison && attempts_max > 0 && delivery->attempts >= attempts_max)
        poison = delivery->last_error;
    if (poison)
        bus_batch_give_up(delivery->consumer, batch, poison, true, arena, outcome);
    else
        bus_batch_handle(delivery->consumer, batch, arena, outcome);
    if (batch->rolled_back && batch->conn)
        return error_set(error, STATUS_DB_ERROR, "%s", batch->verdicts[0].reason);
    int64_t deadline_ns = clock_deadline_ms(COMMIT_MS);
    if (outcome->dead_letter_count > 0)
        status = bus_dead_letters_publish(delivery->bus, outcome->dead_letters, outcome->dead_letter_count,
                                          deadline_ns, error);
    *is_dead_letter_lost = status != STATUS_OK;
    FAILPOINT("bus.before_commit");
    if (status == STATUS_OK && batch->conn)
        status = db_commit(batch->conn, deadline_ns, error);
    FAILPOINT("bus.after_commit");
    return status;
}

/* An outage is logged once. */
static void log_failure(struct bus_delivery *delivery, const struct bus_message *first, bool is_outage,
                        const struct error *error)
{
    if (error->status != STATUS_CANCELLED && !(is_outage && delivery->is_out))
        log_warn("bus_batch_failed", LOG_STR("topic", first->topic),
                 LOG_CSTR("group", delivery->consumer->spec.group), LOG_INT("partition", first->partition),
                 LOG_INT("offset", first->offset),
                 LOG_TRACE(bus_message_header(first, STR(BUS_HEADER_TRACEPARENT))), LOG_ERROR_FIELDS(error));
    delivery->is_out |= is_outage;
}

static void batch_failed(struct bus_delivery *delivery, const struct bus_batch *batch,
                         bool is_dead_letter_lost, const struct error *error, int64_t *wait_ms)
{
    /* Would the same batch fail again because of the handler? After its deadline, a lost connection is one that was closed
     * for being late. */
    bool is_late = error->status == STATUS_DB_DOWN && clock_mono_ns() >= batch->deadline_ns;
    bool is_of_handler = !is_dead_letter_lost && (!delivery->pool || db_pool_is_up(delivery->pool)) &&
                         (error->status == STATUS_DB_ERROR || error->status == STATUS_TIMEOUT || is_late);

    log_failure(delivery, &batch->messages[0], !is_of_handler, error);
    bus_batch_uncommitted(delivery->consumer, batch);
    if (!is_of_handler) {
        *wait_ms = OUTAGE_MS;
        return;
    }
    str_copy(delivery->last_error, sizeof delivery->last_error, str_from(error->message));
    if (batch->count > 1) /* again at once, one by one */
        delivery->alone_until = batch->messages[batch->count - 1].offset + 1;
    else
        *wait_ms = bus_backoff_ms(delivery->consumer, ++delivery->attempts);
}

/* Is there memory for the batch? */
static bool take_hold(struct bus_delivery *delivery, const struct bus_batch *batch, size_t bytes_max)
{
    size_t bytes = 0;

    for (size_t i = 0; i < batch->count; i++)
        bytes += batch->messages[i].payload.len;
    return delivery->hold.bytes > 0 || bus_hold_take(&delivery->hold, delivery, bytes, bytes_max);
}

size_t bus_deliver(struct bus_delivery *delivery, const struct bus_message *messages, size_t count,
                   int64_t *wait_ms)
{
    size_t bytes_max = bus_batch_bytes_max(delivery->consumer);
    struct bus_batch batch = {
        .messages = messages,
        .count = batch_size(delivery, messages, count, bytes_max),
        .deadline_ns = clock_deadline_ms(delivery->handler_ms),
    };
    struct bus_outcome outcome;
    bool is_dead_letter_lost = false;
    struct error error = {0};
    struct arena arena = ARENA(ARENA_BYTES);
    size_t settled = 0;

    *wait_ms = BUS_HOLD_WAIT_MS;
    if (!take_hold(delivery, &batch, bytes_max))
        return 0;
    *wait_ms = 0;
    batch.verdicts = arena_zalloc(&arena, batch.count * sizeof *batch.verdicts);
    if (delivery->pool)
        error.status = db_acquire(delivery->pool, batch.deadline_ns, &batch.conn, &error);
    if (batch.conn)
        error.status = db_begin(batch.conn, DB_READ_COMMITTED, batch.deadline_ns, &error);
    if (error.status == STATUS_OK) {
        error.status = handle_and_commit(delivery, &batch, &arena, &outcome, &is_dead_letter_lost, &error);
        db_release(batch.conn); /* before the callbacks: others may be waiting for a connection */
        batch.conn = NULL;
        if (error.status == STATUS_OK) {
            settled = outcome.settled;
            delivery->is_out = false;
            bus_batch_committed(delivery->consumer, &batch, &outcome);
            for (size_t i = 0; i < settled && delivery->dead; i++)
                delivery->dead[i] = batch.verdicts[i].kind == BUS_TERM;
            delivery->attempts = outcome.retry ? (settled ? 0 : delivery->attempts) + 1 : 0;
            if (outcome.retry) {
                str_copy(delivery->last_error, sizeof delivery->last_error,
                         str_from(batch.verdicts[settled].reason));
                *wait_ms = bus_backoff_ms(delivery->consumer, delivery->attempts);
            }
        } else {
            batch_failed(delivery, &batch, is_dead_letter_lost, &error, wait_ms);
        }
    } else { /* the handler was not called */
        log_failure(delivery, messages, true, &error);
        *wait_ms = OUTAGE_MS;
    }
    db_release(batch.conn);
    arena_deinit(&arena);
    bus_hold_release(&delivery->hold);
    return settled;
}

void bus_delivery_forget(struct bus_delivery *delivery)
{
    delivery->attempts = 0;
    delivery->alone_until = 0;
    delivery->last_error[0] = '\0';
}
