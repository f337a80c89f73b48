/* Holdings and their table: memory and lookup only. When to load, keep or drop is the keeper's business. */
#include "modules/refdata/query/holding.h"

#include <assert.h>
#include <stdlib.h>

#include "base/memory.h"
#include "modules/refdata/refdata.h"

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

/* Moves entries after the gap back, where a search would stop at the gap. */
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
    holding->refs = 1;
    holding->tenant = str_of(str_dup(tenant), tenant.len);
    holding->code = str_of(str_dup(dictionary->code), dictionary->code.len);
    holding->hash = map_hash_pair(tenant, dictionary->code);
    holding->dictionary = refdata_dictionary_ref(dictionary);
    holding->drift_version = -1;
    holding->freshness_us = -1;
    STAILQ_INIT(&holding->waiting);
    STAILQ_INIT(&holding->barrier.queued);
    STAILQ_INIT(&holding->barrier.asked);
    atomic_store(&holding->read_scope, atomic_load(&dictionary->read_scope));
    return holding;
}

void refdata_holding_destroy(struct refdata_holding *holding)
{
    for (struct refdata_ask *ask; (ask = refdata_asks_take(&holding->waiting)) != NULL;)
        refdata_ask_free(ask);
    free(holding->last_error);
    refdata_dictionary_unref(holding->dictionary);
    free((char *)holding->tenant.ptr);
    free((char *)holding->code.ptr);
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

#define FROM(state) (1u << (state))
static const unsigned ALLOWED[] = {
    [HOLDING_IDLE] = FROM(HOLDING_DELAYED) | FROM(HOLDING_LOADING) | FROM(HOLDING_LOADING_AGAIN),
    [HOLDING_WANTED] = FROM(HOLDING_IDLE) | FROM(HOLDING_QUEUED),
    [HOLDING_DELAYED] = FROM(HOLDING_IDLE) | FROM(HOLDING_WANTED),
    [HOLDING_QUEUED] =
        FROM(HOLDING_IDLE) | FROM(HOLDING_WANTED) | FROM(HOLDING_DELAYED) | FROM(HOLDING_QUEUED),
    [HOLDING_LOADING] = FROM(HOLDING_QUEUED),
    [HOLDING_LOADING_AGAIN] = FROM(HOLDING_LOADING),
    [HOLDING_DROPPED] = ~FROM(HOLDING_DROPPED),
};

void refdata_holding_move(struct refdata_holding *holding, enum refdata_holding_state to)
{
    assert(ALLOWED[to] & FROM(holding->state));
    if (holding->state == HOLDING_QUEUED)
        (to == HOLDING_LOADING ? turns_remove_turn : turns_remove)(holding->line, &holding->turn);
    if (holding->state == HOLDING_DELAYED)
        loop_timer_stop(holding->refdata->home, &holding->timer);
    holding->state = to;
}
