/* A batch between the handler and the commit: its verdicts, their outcome, and the dead letters. */
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "bus/bus_inside.h"

#define DEAD_HEADERS 5

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
             LOG_CSTR("reason", reason));
    if (consumer->topic->dead)
        outcome->dead_letters[outcome->dead_letter_count++] =
            bus_dead_letter(consumer, message, reason, arena);
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
