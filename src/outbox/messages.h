/* Outbox events as messages of a bus: what all publishers have in common. */
#ifndef FRESHET_OUTBOX_MESSAGES_H
#define FRESHET_OUTBOX_MESSAGES_H

#include "base/arena.h"
#include "bus/bus.h"
#include "outbox/outbox.h"

/* A bus that does not answer blocks a thread for OUTBOX_PUBLISH_MS; then the events wait for the next try. An outbox that stops
 * waits a little longer, so that they are released (C7). */
enum { OUTBOX_PUBLISH_MS = 3000, OUTBOX_STOP_MS = 4000 };

/* Writes the message of an event; false: the event is invalid, and *reason is set. Texts live in the arena. */
typedef bool outbox_message_fn(void *context, const struct outbox_event *event, struct bus_message *message,
                               struct arena *arena, const char **reason);

/* The message of a module's domain event (E4). Its key is the aggregate's, so that a partition keeps the order. The headers are
 * event-id, event_type, aggregate_key, occurred_at and tenant_id, the module's own, and trace_id and traceparent where the
 * request was traced. */
#define OUTBOX_HEADER_EVENT_TYPE "event_type"
#define OUTBOX_HEADER_AGGREGATE "aggregate_key"
#define OUTBOX_HEADER_TENANT "tenant_id"

/* An aggregate's key, in the arena: its parts with a slash between them, percent-encoded, so that no part has a slash or a control
 * character. */
struct str outbox_key(const struct str *parts, size_t count, struct arena *arena);

struct outbox_message {
    struct str topic, key, payload;
    struct str tenant, occurred_at; /* RFC 3339 */
    struct str traceparent;         /* left out when it is invalid */
    const struct bus_header *more;
    unsigned more_count;
};
/* For an outbox_message_fn. Texts are borrowed, headers live in the arena. */
void outbox_message_write(const struct outbox_message *outgoing, const struct outbox_event *event,
                          struct bus_message *message, struct arena *arena);

/* On a worker, from an outbox's publish(): publishes a message for each event and sets every result. An outage makes no event
 * FAILED, however long it lasts. */
void outbox_messages_publish(struct bus *bus, struct outbox_batch *batch, outbox_message_fn *write,
                             void *context);

#endif
