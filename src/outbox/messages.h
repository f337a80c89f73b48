/* Letters: outbox events on their way out as messages of a bus. What all publishers have in common; what is in a letter is
 * each one's own. */
#ifndef FRESHET_OUTBOX_MESSAGES_H
#define FRESHET_OUTBOX_MESSAGES_H

#include "base/arena.h"
#include "bus/bus.h"
#include "outbox/outbox.h"

/* An engine that does not answer holds a thread for so long; then the events wait for the next try. An outbox that stops
 * waits a little longer, so that they are given back (C7). */
enum { OUTBOX_PUBLISH_MS = 3000, OUTBOX_STOP_MS = 4000 };

/* Writes the message of an event; false: it can never be one, and *reason says why. Texts live in the arena. */
typedef bool outbox_message_fn(void *context, const struct outbox_event *event, struct bus_message *message,
                               struct arena *arena, const char **reason);

/* The letter of a module's domain event, as receivers know them (E4): its aggregate's key is the message's, so that a
 * partition keeps its order, and the headers are event-id, event_type, aggregate_key, occurred_at and tenant_id, those that
 * only this module has, and, where what happened was traced, trace_id and traceparent. */
#define OUTBOX_HEADER_EVENT_TYPE "event_type"
#define OUTBOX_HEADER_AGGREGATE "aggregate_key"
#define OUTBOX_HEADER_TENANT "tenant_id"

struct outbox_message {
    struct str topic, key, payload;
    struct str tenant, occurred_at; /* RFC 3339 */
    struct str traceparent;         /* one that is none is left out */
    const struct bus_header *more;
    unsigned more_count;
};
/* For an outbox_message_fn. Texts are borrowed, headers live in the arena. */
void outbox_message_write(const struct outbox_message *letter, const struct outbox_event *event,
                          struct bus_message *message, struct arena *arena);

/* On a worker, from an outbox's publish(): a message for each event, all at once; every event gets its verdict. An outage
 * is no event's fault: rows show it, but however long the engine is gone, none becomes FAILED by it. */
void outbox_messages_publish(struct bus *bus, struct outbox_batch *batch, outbox_message_fn *write,
                             void *context);

#endif
