/* Letters: outbox events on their way out as messages of a bus. What all publishers have in common: only what they write on
 * them differs. */
#ifndef FRESHET_OUTBOX_LETTERS_H
#define FRESHET_OUTBOX_LETTERS_H

#include "base/arena.h"
#include "bus/bus.h"
#include "outbox/outbox.h"

/* An engine that does not answer holds a thread for so long; then the events wait for the next try. An outbox that stops
 * waits a little longer, so that they are given back (C7). */
enum { OUTBOX_LETTERS_MS = 3000, OUTBOX_LETTERS_STOP_MS = 4000 };

/* Writes the message of an event; false: it can never be one, and *reason says why. Texts live in the arena. */
typedef bool outbox_letter_fn(void *context, const struct outbox_event *event, struct bus_message *message,
                              struct arena *arena, const char **reason);

/* On a worker, from an outbox's publish(): a message for each event, all at once; every event gets its verdict. An outage
 * is no event's fault, so it counts as no attempt of one: however long the engine is gone, none ends FAILED for it. */
void outbox_letters_publish(struct bus *bus, struct outbox_batch *batch, outbox_letter_fn *write,
                            void *context);

#endif
