/* The place where readers find a dictionary's current snapshot: one atomic pointer. */
#include "cache/cache.h"

struct cache_snapshot *cache_slot_acquire(const struct cache_slot *slot)
{
    struct cache_snapshot *snapshot = atomic_load_explicit(&slot->current, memory_order_acquire);

    if (snapshot)
        cache_snapshot_ref(snapshot);
    return snapshot;
}

static void retire(void *snapshot)
{
    cache_snapshot_unref(snapshot);
}

void cache_slot_publish(struct cache_slot *slot, struct cache_snapshot *snapshot, struct loop_group *group)
{
    struct cache_snapshot *old = atomic_exchange_explicit(&slot->current, snapshot, memory_order_acq_rel);

    if (old)
        loop_group_synchronize(group, retire, old);
}
