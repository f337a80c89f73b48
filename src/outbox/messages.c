/* The messages of a batch are published by one call. Only where the bus refuses one of them, each is published by itself, so that
 * the failure is recorded for the right event. */
#include "outbox/outbox.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/span.h"

enum {
    COMMON_HEADERS = 5,
    TRACE_HEADERS = 2,
    TRACE_ID_AT = 3, /* 00-TRACE_ID-… */
    TRACE_ID_BYTES = 32,
};

struct str outbox_key(const struct str *parts, size_t count, struct arena *arena)
{
    size_t most = count + 1;
    for (size_t i = 0; i < count; i++)
        most += 3 * parts[i].len;
    char *key = arena_alloc(arena, most), *end = key;
    for (size_t i = 0; i < count; i++) {
        if (i)
            *end++ = '/';
        for (size_t at = 0; at < parts[i].len; at++) {
            unsigned char c = (unsigned char)parts[i].ptr[at];
            if (c < 0x20 || c == 0x7f || c == '/' || c == '%')
                end += sprintf(end, "%%%02X", c);
            else
                *end++ = (char)c;
        }
    }
    *end = '\0';
    return str_of(key, (size_t)(end - key));
}

void outbox_message_write(const struct outbox_message *outgoing, const struct outbox_event *event,
                          struct bus_message *message, struct arena *arena)
{
    const struct bus_header common[COMMON_HEADERS] = {
        {STR(BUS_HEADER_EVENT_ID), event->id},         {STR(OUTBOX_HEADER_EVENT_TYPE), event->event_type},
        {STR(OUTBOX_HEADER_AGGREGATE), outgoing->key}, {STR("occurred_at"), outgoing->occurred_at},
        {STR(OUTBOX_HEADER_TENANT), outgoing->tenant},
    };
    unsigned count = COMMON_HEADERS + outgoing->more_count;
    struct bus_header *headers = arena_alloc(arena, (count + TRACE_HEADERS) * sizeof *headers);
    memcpy(headers, common, sizeof common);
    for (unsigned i = 0; i < outgoing->more_count; i++)
        headers[COMMON_HEADERS + i] = outgoing->more[i];
    struct str traceparent = outgoing->traceparent;
    struct trace trace;
    if (trace_parse(traceparent, &trace)) {
        headers[count++] =
            (struct bus_header){STR("trace_id"), str_of(traceparent.ptr + TRACE_ID_AT, TRACE_ID_BYTES)};
        headers[count++] = (struct bus_header){STR(BUS_HEADER_TRACEPARENT), traceparent};
    }
    *message = (struct bus_message){.topic = outgoing->topic,
                                    .key = outgoing->key,
                                    .payload = outgoing->payload,
                                    .headers = headers,
                                    .header_count = count};
}

/* ---- a batch ---- */

/* Nothing is wrong with the message: the bus is unavailable, or misconfigured. */
static bool is_outage(enum status status)
{
    return status == STATUS_CONFIG || (status != STATUS_INTERNAL && status_retryable(status));
}

/* The message is passed on with the span of its publishing as its parent; NULL: it is not recorded. */
static struct span *begin_span(struct bus_message *message, const struct outbox_event *event,
                               struct arena *arena)
{
    struct span *span = NULL;
    for (unsigned i = 0; i < message->header_count && span_is_on(); i++) {
        if (!str_eq(message->headers[i].name, STR(BUS_HEADER_TRACEPARENT)))
            continue;
        struct str traceparent =
            span_follow(&span, SPAN_PRODUCER, "publish event", message->headers[i].value, arena);
        if (!span)
            break;
        struct bus_header *headers = arena_alloc(arena, message->header_count * sizeof *headers);
        memcpy(headers, message->headers, message->header_count * sizeof *headers);
        headers[i].value = traceparent;
        message->headers = headers;
        span_put_str(span, "messaging.destination.name", message->topic);
        span_put_str(span, "messaging.operation.type", STR("send"));
        span_put_str(span, "freshet.event.id", bus_message_header(message, STR(BUS_HEADER_EVENT_ID)));
        span_put_str(span, "freshet.event.type", event->event_type);
        break;
    }
    return span;
}

void outbox_messages_publish(struct bus *bus, struct outbox_batch *batch, outbox_message_fn *write,
                             void *context)
{
    struct arena arena = ARENA(16384);
    struct bus_message *messages = arena_alloc(&arena, batch->count * sizeof *messages);
    size_t *events = arena_alloc(&arena, batch->count * sizeof *events), count = 0;
    struct span **spans = arena_alloc(&arena, batch->count * sizeof(struct span *));
    for (size_t i = 0; i < batch->count; i++) {
        const char *reason = "";
        if (!write(context, &batch->events[i], &messages[count], &arena, &reason)) {
            outbox_batch_set(batch, i, OUTBOX_POISON, "%s", reason);
            continue;
        }
        spans[count] = begin_span(&messages[count], &batch->events[i], &arena);
        events[count++] = i;
    }
    struct error error = {0};
    int64_t soon_ns = clock_deadline_ms(OUTBOX_PUBLISH_MS);
    int64_t deadline_ns = soon_ns < batch->deadline_ns ? soon_ns : batch->deadline_ns;
    for (size_t i = 0; i < count && !batch->is_relaxed; i++)
        batch->is_relaxed = bus_is_relaxed(bus, messages[i].topic);
    if (count)
        error.status = bus_publish(bus, messages, count, deadline_ns, &error);
    bool is_refused = error.status != STATUS_OK && !is_outage(error.status);
    for (size_t i = 0; i < count; i++) {
        if (is_refused && outbox_batch_is_held(batch, events[i]))
            continue;
        if (is_refused) {
            error = (struct error){0};
            error.status = bus_publish(bus, &messages[i], 1, clock_deadline_ms(OUTBOX_PUBLISH_MS), &error);
        }
        /* CANCELLED: the bus stops, it was not tried. Others will always be refused. */
        bool is_poison = error.status == STATUS_BAD_REQUEST || error.status == STATUS_PAYLOAD_TOO_LARGE;
        enum outbox_result_kind kind = error.status == STATUS_CANCELLED ? OUTBOX_RELEASE
                                       : is_outage(error.status)        ? OUTBOX_OUTAGE
                                       : is_poison                      ? OUTBOX_POISON
                                                                        : OUTBOX_RETRY;
        if (error.status != STATUS_OK) {
            outbox_batch_set(batch, events[i], kind, "%s", error.message);
            span_fail(spans[i], str_from(status_code(error.status)));
        }
        span_end(spans[i]);
    }
    arena_deinit(&arena);
}
