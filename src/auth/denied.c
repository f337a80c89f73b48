/* Tokens that were found bad, remembered for a short while, so that a client that keeps sending one costs
 * a look-up and not a signature check each time. Fixed memory: a full bucket gives up the entry that would
 * end first. */
#include <stdlib.h>

#include "auth/state.h"
#include "base/hash.h"
#include "base/memory.h"

#define WAYS 4

struct auth_denied {
    uint64_t seeded, plain; /* of the whole header; nobody outside knows the seed */
    uint64_t generation;
    int64_t until_ns; /* monotonic; 0 = empty */
    enum auth_reason reason;
};

void auth_denied_init(struct auth_denied_table *table, size_t entries)
{
    size_t buckets = 1;

    while (buckets * WAYS < entries)
        buckets *= 2;
    table->bucket_mask = buckets - 1;
    table->entries = memory_zalloc(buckets * WAYS * sizeof(*table->entries));
}

void auth_denied_deinit(struct auth_denied_table *table)
{
    free(table->entries);
    *table = (struct auth_denied_table){0};
}

bool auth_denied_find(const struct auth_denied_table *table, struct str authorization, uint64_t generation,
                      int64_t now_ns, enum auth_reason *reason)
{
    uint64_t seeded = hash_seeded(authorization), plain = hash_content(authorization);
    const struct auth_denied *bucket = &table->entries[(seeded & table->bucket_mask) * WAYS];

    for (int way = 0; way < WAYS; way++) {
        const struct auth_denied *entry = &bucket[way];
        if (entry->seeded != seeded || entry->plain != plain)
            continue;
        *reason = entry->reason;
        return entry->generation == generation && entry->until_ns > now_ns;
    }
    return false;
}

void auth_denied_put(struct auth_denied_table *table, struct str authorization, uint64_t generation,
                     int64_t until_ns, enum auth_reason reason)
{
    uint64_t seeded = hash_seeded(authorization), plain = hash_content(authorization);
    struct auth_denied *bucket = &table->entries[(seeded & table->bucket_mask) * WAYS], *at = bucket;

    for (int way = 0; way < WAYS; way++) {
        if (bucket[way].seeded == seeded && bucket[way].plain == plain) {
            at = &bucket[way];
            break;
        }
        if (bucket[way].until_ns < at->until_ns)
            at = &bucket[way];
    }
    *at = (struct auth_denied){seeded, plain, generation, until_ns, reason};
}
