/* Holdings and their table: memory and lookup only. When to load, keep or drop is the keeper's business. */
#include "modules/refdata/query/holding.h"

#include <stdlib.h>

#include "base/hash.h"
#include "base/memory.h"

uint64_t refdata_pair_hash(struct str tenant, struct str code)
{
    return hash_seeded(tenant) * UINT64_C(0x9e3779b97f4a7c15) ^ hash_seeded(code);
}

struct refdata_table *refdata_table_create(size_t capacity)
{
    struct refdata_table *table = memory_zalloc(sizeof *table + capacity * sizeof table->slots[0]);
    table->mask = capacity - 1;
    return table;
}

struct refdata_table *refdata_table_copy(const struct refdata_table *table)
{
    size_t bytes = sizeof *table + (table->mask + 1) * sizeof table->slots[0];
    return memcpy(memory_alloc(bytes), table, bytes);
}

static void put(struct refdata_table *table, struct refdata_holding *holding)
{
    size_t at = holding->hash & table->mask;
    while (table->slots[at])
        at = (at + 1) & table->mask;
    table->slots[at] = holding;
    table->count++;
}

struct refdata_table *refdata_table_add(struct refdata_table *table, struct refdata_holding *holding)
{
    if (2 * (table->count + 1) > table->mask + 1) {
        struct refdata_table *larger = refdata_table_create(2 * (table->mask + 1));
        for (size_t i = 0; i <= table->mask; i++)
            if (table->slots[i])
                put(larger, table->slots[i]);
        free(table);
        table = larger;
    }
    put(table, holding);
    return table;
}

/* Moves back what stands behind the gap and would no longer be found across it. */
void refdata_table_remove(struct refdata_table *table, const struct refdata_holding *holding)
{
    size_t gap = holding->hash & table->mask;
    while (table->slots[gap] != holding)
        gap = (gap + 1) & table->mask;
    for (size_t at = (gap + 1) & table->mask; table->slots[at]; at = (at + 1) & table->mask) {
        size_t home = table->slots[at]->hash & table->mask;
        if (((at - home) & table->mask) >= ((at - gap) & table->mask)) {
            table->slots[gap] = table->slots[at];
            gap = at;
        }
    }
    table->slots[gap] = NULL;
    table->count--;
}

struct refdata_holding *refdata_holding_create(struct refdata *refdata, struct str tenant,
                                               struct refdata_dictionary *dictionary, unsigned loops)
{
    struct refdata_holding *holding = memory_zalloc(sizeof *holding + loops * sizeof holding->used_at_s[0]);
    holding->refdata = refdata;
    holding->tenant = str_of(str_dup(tenant), tenant.len);
    holding->code = str_of(str_dup(dictionary->code), dictionary->code.len);
    holding->hash = refdata_pair_hash(tenant, dictionary->code);
    holding->dictionary = refdata_dictionary_ref(dictionary);
    atomic_store(&holding->read_scope, atomic_load(&dictionary->read_scope));
    return holding;
}

void refdata_holding_destroy(struct refdata_holding *holding)
{
    refdata_dictionary_unref(holding->dictionary);
    free((char *)holding->tenant.ptr);
    free((char *)holding->code.ptr);
    free(holding->waiters);
    free(holding->barrier.waiting);
    free(holding);
}

uint32_t refdata_holding_used_at_s(const struct refdata_holding *holding, unsigned loops)
{
    uint32_t latest = 0;
    for (unsigned i = 0; i < loops; i++) {
        uint32_t used = atomic_load_explicit(&holding->used_at_s[i], memory_order_relaxed);
        latest = used > latest ? used : latest;
    }
    return latest;
}

void refdata_waiting_forget(struct refdata_barrier *barrier, int64_t now_ns)
{
    size_t kept = 0;
    for (size_t i = 0; i < barrier->waiting_count; i++)
        if (barrier->waiting[i].expires_ns > now_ns)
            barrier->waiting[kept++] = barrier->waiting[i];
    barrier->waiting_count = kept;
}

static void grow_waiting(struct refdata_barrier *barrier)
{
    barrier->waiting_capacity = barrier->waiting_capacity ? 2 * barrier->waiting_capacity : 8;
    barrier->waiting =
        memory_realloc_array(barrier->waiting, barrier->waiting_capacity, sizeof *barrier->waiting);
}

void refdata_waiting_add(struct refdata_barrier *barrier, struct refdata_waiting waiting, int64_t now_ns)
{
    /* Only a full list is walked, and grows only where half of it still waits: O(1) each, at most four times as many. */
    if (barrier->waiting_count == barrier->waiting_capacity) {
        refdata_waiting_forget(barrier, now_ns);
        if (2 * barrier->waiting_count >= barrier->waiting_capacity)
            grow_waiting(barrier);
    }
    barrier->waiting[barrier->waiting_count++] = waiting;
}
