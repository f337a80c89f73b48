/* Deliveries of one partition, for drivers whose engine has no transaction to share with the database.
 *
 * The order of steps is what makes it safe: the handler writes in a transaction of the database, dead letters are
 * published, the transaction commits, and only then the driver tells the engine that the messages are done with. A
 * crash between any two of them brings messages again, never loses one; so a handler's effect must know its event id.
 * Attempts are counted in this process's memory: another member of the group, or this one after a restart, begins to
 * count anew.
 *
 * One thread at a time uses a delivery, a worker's: it blocks. */
#ifndef FRESHET_BUS_DELIVERY_H
#define FRESHET_BUS_DELIVERY_H

#include "bus/bus_inside.h"

struct db_pool;

struct bus_delivery {
    struct bus *bus; /* dead letters go out by it */
    const struct bus_consumer *consumer;
    struct db_pool *pool; /* NULL: handlers get no transaction */
    int64_t handler_ms;   /* for one batch */
    unsigned attempts;    /* how often the first message that is due was here before */
    int64_t alone_until;  /* messages below this offset come one by one: their batch had failed as a whole */
    char last_error[BUS_REASON_BYTES];
    bool is_out; /* the database or the engine is away, and the log says so */
    bool
        *dead; /* NULL, or room for a batch: those of the settled ones that are dead letters now are marked */
};

/* Hands over messages[0 .. count), in order, one batch of at most the consumer's size; messages[0] is the first that is not
 * settled. Returns how many are settled now, with which the engine may be told so. *wait_ms > 0: the next one comes again
 * no sooner. Nothing settled and nothing to wait for: try again at once. */
size_t bus_deliver(struct bus_delivery *delivery, const struct bus_message *messages, size_t count,
                   int64_t *wait_ms) MUST_CHECK;
/* The partition goes to somebody else, or messages were skipped: what was counted is void. */
void bus_delivery_forget(struct bus_delivery *delivery);

#endif
