/* All letters of a batch go out by one call; only where the engine refuses one of them, each goes by itself, so that its
 * failure is its own. */
#include "outbox/messages.h"

#include "base/clock.h"
#include "base/trace.h"

/* ---- one ---- */

enum {
    COMMON_HEADERS = 5,
    TRACE_HEADERS = 2,
    TRACE_ID_AT = 3, /* 00-TRACE_ID-… */
    TRACE_ID_BYTES = 32,
};

static unsigned put_trace(struct bus_header *headers, struct str traceparent)
{
    struct trace trace;
    if (!trace_parse(traceparent, &trace))
        return 0;
    headers[0] = (struct bus_header){STR("trace_id"), str_of(traceparent.ptr + TRACE_ID_AT, TRACE_ID_BYTES)};
    headers[1] = (struct bus_header){STR(BUS_HEADER_TRACEPARENT), traceparent};
    return TRACE_HEADERS;
}

void outbox_message_write(const struct outbox_message *letter, const struct outbox_event *event,
                          struct bus_message *message, struct arena *arena)
{
    const struct bus_header common[COMMON_HEADERS] = {
        {STR(BUS_HEADER_EVENT_ID), event->id},       {STR(OUTBOX_HEADER_EVENT_TYPE), event->event_type},
        {STR(OUTBOX_HEADER_AGGREGATE), letter->key}, {STR("occurred_at"), letter->occurred_at},
        {STR(OUTBOX_HEADER_TENANT), letter->tenant},
    };
    unsigned count = COMMON_HEADERS + letter->more_count;
    struct bus_header *headers = arena_alloc(arena, (count + TRACE_HEADERS) * sizeof *headers);
    memcpy(headers, common, sizeof common);
    for (unsigned i = 0; i < letter->more_count; i++)
        headers[COMMON_HEADERS + i] = letter->more[i];
    count += put_trace(headers + count, letter->traceparent);
    *message = (struct bus_message){.topic = letter->topic,
                                    .key = letter->key,
                                    .payload = letter->payload,
                                    .headers = headers,
                                    .header_count = count};
}

/* ---- a batch ---- */

struct letters {
    struct bus_message *messages;
    size_t *places, count; /* of their events */
};

/* Nothing is wrong with the message: the engine is not there, or not as it should be. */
static bool is_outage(enum status status)
{
    return status == STATUS_CONFIG || (status != STATUS_INTERNAL && status_retryable(status));
}

static void judge(struct outbox_batch *batch, size_t at, const struct error *error)
{
    if (error->status == STATUS_OK)
        return;
    if (error->status == STATUS_CANCELLED) /* not tried: the bus stops */
        outbox_batch_release(batch, at);
    else if (is_outage(error->status))
        outbox_batch_outage(batch, at, "%s", error->message);
    else if (error->status == STATUS_BAD_REQUEST || error->status == STATUS_PAYLOAD_TOO_LARGE)
        outbox_batch_poison(batch, at, "%s", error->message); /* it will always be refused */
    else
        outbox_batch_retry(batch, at, "%s", error->message);
}

static struct letters write_all(struct outbox_batch *batch, outbox_message_fn *write, void *context,
                                struct arena *arena)
{
    struct letters letters = {
        .messages = arena_alloc(arena, batch->count * sizeof *letters.messages),
        .places = arena_alloc(arena, batch->count * sizeof *letters.places),
    };
    for (size_t i = 0; i < batch->count; i++) {
        const char *reason = "";
        if (write(context, &batch->events[i], &letters.messages[letters.count], arena, &reason))
            letters.places[letters.count++] = i;
        else
            outbox_batch_poison(batch, i, "%s", reason);
    }
    return letters;
}

static void publish_each(struct bus *bus, struct outbox_batch *batch, const struct letters *letters)
{
    for (size_t i = 0; i < letters->count; i++) {
        size_t at = letters->places[i];
        struct error error = {0};
        if (outbox_batch_is_held(batch, at))
            continue;
        error.status =
            bus_publish(bus, &letters->messages[i], 1, clock_deadline_ms(OUTBOX_PUBLISH_MS), &error);
        judge(batch, at, &error);
    }
}

void outbox_messages_publish(struct bus *bus, struct outbox_batch *batch, outbox_message_fn *write,
                             void *context)
{
    struct arena arena;
    struct error error = {0};
    arena_init(&arena, 16384);
    struct letters letters = write_all(batch, write, context, &arena);
    int64_t soon_ns = clock_deadline_ms(OUTBOX_PUBLISH_MS);
    int64_t deadline_ns = soon_ns < batch->deadline_ns ? soon_ns : batch->deadline_ns;
    for (size_t i = 0; i < letters.count && !batch->is_relaxed; i++)
        batch->is_relaxed = bus_is_relaxed(bus, letters.messages[i].topic);
    if (letters.count)
        error.status = bus_publish(bus, letters.messages, letters.count, deadline_ns, &error);
    if (error.status != STATUS_OK && !is_outage(error.status))
        publish_each(bus, batch, &letters);
    else
        for (size_t i = 0; i < letters.count; i++)
            judge(batch, letters.places[i], &error);
    arena_deinit(&arena);
}
