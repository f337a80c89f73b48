/* Deliveries of one partition, for drivers whose engine cannot share a transaction with the database.
 *
 * The order of steps makes it safe: the handler writes in a transaction of the database, dead letters are published, the
 * transaction commits, and only then the driver acknowledges the messages to the engine. A crash between two steps leads to a
 * redelivery, never to a loss; so a handler's effect is recognised by its event id. Attempts are counted in the memory of this
 * process: another member of the group, or this process after a restart, begins at 0.
 *
 * One worker at a time uses a delivery: it blocks. */
#ifndef FRESHET_BUS_DELIVERY_H
#define FRESHET_BUS_DELIVERY_H

#include "bus/bus_inside.h"

struct db_pool;
struct db_target;

struct bus_delivery {
    struct bus *bus; /* for dead letters */
    const struct bus_consumer *consumer;
    struct db_pool *pool; /* NULL: handlers get no transaction */
    int64_t handler_ms;   /* for one batch */
    unsigned attempts;    /* how often the first message was delivered before */
    int64_t
        alone_until; /* messages below this offset are delivered one by one: their batch failed as a whole */
    char last_error[BUS_REASON_BYTES];
    bool is_out; /* the database or the engine is not reachable, which is logged */
    bool *dead;  /* NULL, or room for a batch: is set for settled messages that became dead letters */
};

/* Connections of the driver's own, with metrics of their own; *pool stays NULL when `target` is NULL. */
enum status bus_delivery_pool(const struct db_target *target, const char *driver, struct db_pool **pool,
                              struct error *error) MUST_CHECK;
/* Hands one batch of messages[0 .. count) to the handler, in order, at most the consumer's size; messages[0] is the first that is not
 * settled. Returns how many are settled now: the driver acknowledges them. *wait_ms > 0: the next one is not due before. Nothing
 * settled and nothing to wait for: try again at once. */
size_t bus_deliver(struct bus_delivery *delivery, const struct bus_message *messages, size_t count,
                   int64_t *wait_ms) MUST_CHECK;
/* The partition goes to another member, or messages were skipped: counting begins at 0. */
void bus_delivery_forget(struct bus_delivery *delivery);

#endif
