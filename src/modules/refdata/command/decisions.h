/* Clients that wait for the decision of an update, and how it reaches them (R1): at once where it was decided in this process,
 * by a notice of the database where it was another. No thread is held, and nothing is polled. */
#ifndef FRESHET_REFDATA_DECISIONS_H
#define FRESHET_REFDATA_DECISIONS_H

#include "base/map.h"
#include "modules/refdata/acceptance.h"
#include "modules/refdata/flow.h"

/* Embedded in its owner. `message` is posted to `loop` once, unless refdata_decisions_remove() was in time. */
struct refdata_waiter {
    struct loop_message message; /* the owner sets on_message */
    struct loop *loop;
    struct str tenant, event_id;   /* of the owner's memory */
    struct refdata_state decision; /* PENDING: the process stops */
    struct map_node node;
    bool is_waiting;             /* in the map */
    struct refdata_waiter *next; /* of those taken out together */
};

void refdata_decisions_add(struct refdata_decisions *decisions,
                           struct refdata_waiter *waiter); /* any thread */
/* Any thread. False: it was posted already, or is about to be. */
bool refdata_decisions_remove(struct refdata_decisions *decisions, struct refdata_waiter *waiter);
/* Any thread: reads the rows of all waiters, soon and once for all of them; for one that no notice may reach. */
void refdata_decisions_read(struct refdata_decisions *decisions);

/* ---- the waiters by (tenant, eventId); not locked ---- */
void refdata_waiters_add(struct map *waiters, struct refdata_waiter *waiter);
bool refdata_waiters_remove(struct map *waiters, struct refdata_waiter *waiter); /* false: it is not there */
bool refdata_waiters_has(const struct map *waiters, struct str tenant, struct str event_id);
/* Takes all waiters for this event out, as a chain. */
struct refdata_waiter *refdata_waiters_take(struct map *waiters, struct str tenant, struct str event_id);
struct refdata_waiter *refdata_waiters_take_all(struct map *waiters);

#endif
