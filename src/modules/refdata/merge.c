/* A hash table by (tenant, dictionary, key) over an array that keeps the order. */
#include "modules/refdata/merge.h"

#include "base/hash.h"

#define CAPACITY_MIN 8

void refdata_merge_begin(struct refdata_merge *merge, struct arena *arena)
{
    *merge = (struct refdata_merge){.arena = arena};
}

static bool is_same_pair(const struct refdata_write *a, const struct refdata_write *b)
{
    return a == b ||
           (a && b && str_eq(a->dictionary->code, b->dictionary->code) && str_eq(a->tenant, b->tenant));
}

static uint32_t *find_slot(const struct refdata_merge *merge, const struct refdata_write *change,
                           const struct refdata_item *item)
{
    size_t slot = (size_t)hash_seeded(item->key) & merge->mask;
    while (merge->slots[slot]) {
        const struct refdata_merged *there = &merge->at[merge->slots[slot] - 1];
        if (str_eq(there->item->key, item->key) && is_same_pair(there->change, change))
            break;
        slot = (slot + 1) & merge->mask;
    }
    return &merge->slots[slot];
}

/* At most half full. */
static void grow(struct refdata_merge *merge)
{
    size_t capacity = merge->capacity ? 4 * merge->capacity : CAPACITY_MIN;
    struct refdata_merged *at = arena_alloc(merge->arena, capacity * sizeof *at);
    if (merge->count)
        memcpy(at, merge->at, merge->count * sizeof *at);
    merge->at = at;
    merge->capacity = capacity;
    merge->slots = arena_zalloc(merge->arena, 2 * capacity * sizeof *merge->slots);
    merge->mask = 2 * capacity - 1;
    for (size_t i = 0; i < merge->count; i++)
        *find_slot(merge, at[i].change, at[i].item) = (uint32_t)i + 1;
}

void refdata_merge_put(struct refdata_merge *merge, const struct refdata_write *change,
                       const struct refdata_item *item)
{
    if (merge->count == merge->capacity)
        grow(merge);
    uint32_t *slot = find_slot(merge, change, item);
    if (*slot) {
        merge->at[*slot - 1].item = item;
        return;
    }
    merge->at[merge->count] = (struct refdata_merged){change, item};
    *slot = (uint32_t)++merge->count;
}
