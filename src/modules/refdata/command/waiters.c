/* A chained hash table that grows with those who wait. */
#include "modules/refdata/command/waiters.h"

#include <stdlib.h>

#include "base/memory.h"

enum { BUCKETS_MIN = 64 };

void refdata_waiters_init(struct refdata_waiters *waiters)
{
    waiters->bucket_count = BUCKETS_MIN;
    waiters->buckets = memory_zalloc(BUCKETS_MIN * sizeof(struct refdata_waiter *));
    waiters->count = 0;
}

void refdata_waiters_deinit(struct refdata_waiters *waiters)
{
    free(waiters->buckets);
}

static struct refdata_waiter **bucket_of(const struct refdata_waiters *waiters, struct str tenant,
                                         struct str event_id)
{
    uint64_t hash = hash_seeded(tenant) * 31 + hash_seeded(event_id);
    return &waiters->buckets[hash & (waiters->bucket_count - 1)];
}

static void put(const struct refdata_waiters *waiters, struct refdata_waiter *waiter)
{
    struct refdata_waiter **bucket = bucket_of(waiters, waiter->tenant, waiter->event_id);
    waiter->next = *bucket;
    *bucket = waiter;
}

static void grow(struct refdata_waiters *waiters)
{
    struct refdata_waiters bigger = {.bucket_count = 2 * waiters->bucket_count, .count = waiters->count};
    bigger.buckets = memory_zalloc(bigger.bucket_count * sizeof(struct refdata_waiter *));
    for (size_t i = 0; i < waiters->bucket_count; i++) {
        for (struct refdata_waiter *waiter = waiters->buckets[i], *next; waiter; waiter = next) {
            next = waiter->next;
            put(&bigger, waiter);
        }
    }
    free(waiters->buckets);
    *waiters = bigger;
}

void refdata_waiters_add(struct refdata_waiters *waiters, struct refdata_waiter *waiter)
{
    if (waiters->count++ >= waiters->bucket_count)
        grow(waiters);
    put(waiters, waiter);
}

bool refdata_waiters_remove(struct refdata_waiters *waiters, struct refdata_waiter *waiter)
{
    struct refdata_waiter **at = bucket_of(waiters, waiter->tenant, waiter->event_id);
    while (*at && *at != waiter)
        at = &(*at)->next;
    if (!*at)
        return false;
    *at = waiter->next;
    waiters->count--;
    return true;
}

bool refdata_waiters_has(const struct refdata_waiters *waiters, struct str tenant, struct str event_id)
{
    const struct refdata_waiter *at = *bucket_of(waiters, tenant, event_id);
    while (at && (!str_eq(at->event_id, event_id) || !str_eq(at->tenant, tenant)))
        at = at->next;
    return at != NULL;
}

struct refdata_waiter *refdata_waiters_take(struct refdata_waiters *waiters, struct str tenant,
                                            struct str event_id)
{
    struct refdata_waiter *taken = NULL;
    for (struct refdata_waiter **at = bucket_of(waiters, tenant, event_id); *at;) {
        struct refdata_waiter *waiter = *at;
        if (!str_eq(waiter->event_id, event_id) || !str_eq(waiter->tenant, tenant)) {
            at = &waiter->next;
            continue;
        }
        *at = waiter->next;
        waiter->next = taken;
        taken = waiter;
        waiters->count--;
    }
    return taken;
}

struct refdata_waiter *refdata_waiters_take_all(struct refdata_waiters *waiters)
{
    struct refdata_waiter *taken = NULL;
    for (size_t i = 0; i < waiters->bucket_count; i++) {
        for (struct refdata_waiter *waiter = waiters->buckets[i], *next; waiter; waiter = next) {
            next = waiter->next;
            waiter->next = taken;
            taken = waiter;
        }
        waiters->buckets[i] = NULL;
    }
    waiters->count = 0;
    return taken;
}
