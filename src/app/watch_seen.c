/* Open addressing, at most half full. */
#include "app/watch_seen.h"

#include <stdlib.h>

#include "base/hash.h"
#include "base/memory.h"

enum { CAPACITY_MIN = 64 };

static bool insert(struct watch_seen *seen, uint64_t hash)
{
    size_t at = hash & (seen->capacity - 1);
    while (seen->slots[at] && seen->slots[at] != hash)
        at = (at + 1) & (seen->capacity - 1);
    if (seen->slots[at])
        return false;
    seen->slots[at] = hash;
    return true;
}

static void grow(struct watch_seen *seen)
{
    struct watch_seen old = *seen;
    seen->capacity = old.capacity ? old.capacity * 2 : CAPACITY_MIN;
    seen->slots = memory_zalloc(seen->capacity * sizeof *seen->slots);
    for (size_t i = 0; i < old.capacity; i++)
        if (old.slots[i])
            insert(seen, old.slots[i]);
    free(old.slots);
}

bool watch_seen_add(struct watch_seen *seen, int64_t version, struct str key)
{
    uint64_t hash = hash_item(str_of((const char *)&version, sizeof version), key).low;
    if (2 * seen->count >= seen->capacity)
        grow(seen);
    if (!insert(seen, hash ? hash : 1))
        return false;
    seen->count++;
    return true;
}

void watch_seen_clear(struct watch_seen *seen)
{
    if (seen->count == 0)
        return;
    watch_seen_deinit(seen);
    *seen = (struct watch_seen){0};
}

void watch_seen_deinit(struct watch_seen *seen)
{
    free(seen->slots);
}
