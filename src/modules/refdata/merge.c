/* A hash table by (tenant, dictionary, key) over an array that keeps the order. */
#include "modules/refdata/provider.h"

#include "base/hash.h"

/* At most half full. */
void refdata_merge_begin(struct refdata_merge *merge, size_t items_max, struct arena *arena)
{
    size_t slots = 2;
    while (slots < 2 * items_max)
        slots *= 2;
    *merge = (struct refdata_merge){.at = arena_alloc(arena, (items_max + 1) * sizeof *merge->at),
                                    .slots = arena_zalloc(arena, slots * sizeof *merge->slots),
                                    .mask = slots - 1};
}

static bool is_same_pair(const struct refdata_write *a, const struct refdata_write *b)
{
    return a == b ||
           (a && b && str_eq(a->dictionary->code, b->dictionary->code) && str_eq(a->tenant, b->tenant));
}

void refdata_merge_put(struct refdata_merge *merge, const struct refdata_write *change,
                       const struct refdata_item *item)
{
    size_t slot = (size_t)hash_seeded(item->key) & merge->mask;
    for (; merge->slots[slot]; slot = (slot + 1) & merge->mask) {
        struct refdata_merged *there = &merge->at[merge->slots[slot] - 1];
        if (str_eq(there->item->key, item->key) && is_same_pair(there->change, change)) {
            there->item = item;
            return;
        }
    }
    merge->at[merge->count] = (struct refdata_merged){change, item};
    merge->slots[slot] = (uint32_t)++merge->count;
}
