/* The table of those who wait, by (tenant, eventId). Not locked: its owner's business. */
#ifndef FRESHET_REFDATA_WAITERS_H
#define FRESHET_REFDATA_WAITERS_H

#include "modules/refdata/command/news.h"

struct refdata_waiters {
    struct refdata_waiter **buckets; /* chains, a power of two of them */
    size_t bucket_count, count;
};

void refdata_waiters_init(struct refdata_waiters *waiters);
void refdata_waiters_deinit(struct refdata_waiters *waiters);
void refdata_waiters_add(struct refdata_waiters *waiters, struct refdata_waiter *waiter);
bool refdata_waiters_remove(struct refdata_waiters *waiters, struct refdata_waiter *waiter);
bool refdata_waiters_has(const struct refdata_waiters *waiters, struct str tenant, struct str event_id);
/* Takes all who wait for this event out, as a chain. */
struct refdata_waiter *refdata_waiters_take(struct refdata_waiters *waiters, struct str tenant,
                                            struct str event_id);
struct refdata_waiter *refdata_waiters_take_all(struct refdata_waiters *waiters);

#endif
