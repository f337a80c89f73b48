/* The keeper: decides, on the home loop alone, which pairs are held and what is dropped (R17), and answers asks
 * for a pair that is not there yet. When a pair loads is schedule.c's business. */
#include <stdlib.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/query/reading.h"
#include "modules/refdata/query/watch.h"
#include "modules/refdata/refdata.h"

enum { PINNED_MS = 50 };

/* ---- the table readers see ---- */

struct retired {
    struct refdata_table *table;
    struct refdata_holdings holdings;
};

static void free_holdings(struct refdata_holdings *holdings)
{
    for (struct refdata_holding *holding; (holding = TAILQ_FIRST(holdings)) != NULL;) {
        TAILQ_REMOVE(holdings, holding, retired);
        refdata_holding_destroy(holding);
    }
}

static void free_retired(void *arg)
{
    struct retired *retired = arg;
    free_holdings(&retired->holdings);
    free(retired->table);
    free(retired);
}

static void publish_table(struct loop_tick *tick)
{
    struct refdata *refdata = CONTAINER_OF(tick, struct refdata, publish_tick);
    struct retired *retired = memory_alloc(sizeof *retired);
    retired->table = atomic_exchange(&refdata->table, refdata_table_copy(refdata->own));
    TAILQ_INIT(&retired->holdings);
    TAILQ_CONCAT(&retired->holdings, &refdata->retired, retired);
    loop_group_synchronize(refdata->loops, free_retired, retired);
}

static void table_changed(struct refdata *refdata)
{
    loop_at_tick_end(refdata->home, &refdata->publish_tick, publish_table);
}

void refdata_keeper_unref(struct refdata_holding *holding)
{
    if (--holding->refs)
        return;
    TAILQ_INSERT_TAIL(&holding->refdata->retired, holding, retired);
    table_changed(holding->refdata);
}

/* ---- holding and dropping ---- */

static void drop(struct refdata_holding *holding)
{
    struct refdata *refdata = holding->refdata;
    refdata_holding_move(holding, HOLDING_DROPPED);
    refdata_table_remove(refdata->own, holding);
    refdata->memory_bytes -= holding->memory_bytes;
    cache_slot_publish(&holding->slot, NULL, refdata->loops);
    refdata_metrics_detach(holding);
    refdata_asks_again(&holding->waiting);
    refdata_asks_refuse(&holding->barrier.queued, STATUS_UNAVAILABLE, "the dictionary is being reloaded");
    refdata_watch_dissolve(holding);
    table_changed(refdata);
    refdata_keeper_unref(holding);
}

/* Drops the one read longest ago among those that may go; a walk over all, but only when something has to. */
static bool evict_one(struct refdata *refdata, const struct refdata_holding *spared, const char *reason)
{
    struct refdata_holding *victim = NULL;
    uint32_t oldest = UINT32_MAX;
    unsigned loops = loop_group_count(refdata->loops);
    for (size_t i = 0; i <= refdata->own->mask; i++) {
        struct refdata_holding *holding = refdata->own->slots[i];
        bool may_go = holding && holding != spared && !holding->preload &&
                      !refdata_holding_is_loading(holding) && !holding->watch &&
                      (cache_slot_read(&holding->slot) || STAILQ_EMPTY(&holding->waiting));
        uint32_t used = may_go ? refdata_holding_used_at_s(holding, loops) : 0;
        if (may_go && (!victim || used < oldest))
            victim = holding, oldest = used;
    }
    if (!victim)
        return false;
    log_info("dictionary_evicted", LOG_STR("tenantId", victim->tenant), LOG_STR("dictCode", victim->code),
             LOG_CSTR("reason", reason), LOG_INT("bytes", victim->memory_bytes));
    drop(victim);
    return true;
}

void refdata_keeper_trim(struct refdata *refdata, const struct refdata_holding *newest)
{
    uint64_t budget = (uint64_t)atomic_load(&refdata->catalog)->cache.memory_bytes_max;
    while (budget && refdata->memory_bytes > budget && evict_one(refdata, newest, "memory budget"))
        ;
}

/* ---- old versions that readers hold ---- */

void refdata_keeper_count_pinned_now(struct refdata *refdata)
{
    uint64_t bytes = cache_pinned_bytes(), before = refdata->pinned_bytes;
    if (bytes == CACHE_PINNED_UNKNOWN)
        bytes = before;
    if (bytes > before)
        budget_add(BUDGET_VERSIONS, bytes - before);
    else
        budget_release(BUDGET_VERSIONS, before - bytes);
    refdata->pinned_bytes = bytes;
    if (bytes || before)
        refdata_keeper_count_pinned(refdata);
}

static void on_pinned_timer(struct loop_timer *timer)
{
    refdata_keeper_count_pinned_now(CONTAINER_OF(timer, struct refdata, pinned_timer));
}

void refdata_keeper_count_pinned(struct refdata *refdata)
{
    if (!refdata->pinned_timer.heap_at)
        loop_timer_start(refdata->home, &refdata->pinned_timer,
                         loop_now_ns(refdata->home) + PINNED_MS * CLOCK_NS_PER_MS, on_pinned_timer);
}

static struct refdata_holding *hold_pair(struct refdata *refdata, struct str tenant,
                                         struct refdata_dictionary *dictionary)
{
    struct refdata_holding *holding = refdata_table_find(refdata->own, tenant, dictionary->code);
    if (holding)
        return holding;
    if (refdata->own->count >= (size_t)atomic_load(&refdata->catalog)->cache.entries_max &&
        !evict_one(refdata, NULL, "entries"))
        return NULL;
    holding = refdata_holding_create(refdata, tenant, dictionary, loop_group_count(refdata->loops));
    refdata->own = refdata_table_add(refdata->own, holding);
    table_changed(refdata);
    return holding;
}

void refdata_keeper_preload_pair(struct refdata *refdata, struct str tenant,
                                 struct refdata_dictionary *dictionary)
{
    struct refdata_holding *holding = hold_pair(refdata, tenant, dictionary);
    if (!holding || holding->preload)
        return;
    holding->preload = true;
    if (!cache_slot_read(&holding->slot))
        refdata_schedule_want(holding, clock_deadline_ms(refdata_schedule_jitter_ms(refdata)));
}

/* A first read. */
void refdata_keeper_admit(struct refdata_ask *ask)
{
    struct refdata *refdata = ask->refdata;
    struct refdata_dictionary *dictionary = refdata_catalog_find(atomic_load(&refdata->catalog), ask->code);
    enum refdata_dictionary_state state = dictionary ? atomic_load(&dictionary->state) : REFDATA_DISABLED;
    if (state == REFDATA_DISABLED) { /* or removed, since the request was parked: the handler finds that */
        refdata_ask_again(ask);
        return;
    }
    if (state == REFDATA_UNCHECKED && atomic_load(&dictionary->database->site.state) == SITE_DOWN) {
        refdata_ask_refuse(ask, STATUS_DICTIONARY_UNAVAILABLE, "its database cannot be reached");
        return;
    }
    struct refdata_holding *holding = hold_pair(refdata, ask->tenant, dictionary);
    int64_t now_ns = loop_now_ns(refdata->home);
    if (!holding) {
        refdata_ask_refuse(ask, STATUS_OVERLOADED, "too many dictionaries are being read at once");
    } else if (cache_slot_read(&holding->slot)) {
        refdata_ask_again(ask);
    } else if (holding->retry_at_ns > now_ns && !refdata_holding_is_loading(holding)) {
        refdata_ask_refuse(ask, STATUS_DICTIONARY_UNAVAILABLE,
                           "the dictionary could not be loaded a moment ago");
    } else {
        refdata_asks_add(&holding->waiting, ask, now_ns);
        if (!refdata_holding_is_loading(holding))
            refdata_schedule_want(holding, 0);
    }
}

/* ---- configuration ---- */

void refdata_keeper_preload(struct refdata *refdata)
{
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    for (size_t i = 0; i < atomic_load(&refdata->catalog)->cache.preload.count; i++) {
        struct str code = atomic_load(&refdata->catalog)->cache.preload.items[i], tenant;
        str_split(&code, '/', &tenant);
        struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
        if (dictionary && !str_eq(tenant, STR("*"))) /* not switched off; those with a star are the sweep's */
            refdata_keeper_preload_pair(refdata, tenant, dictionary);
    }
    refdata_keeper_update_health(refdata);
}

void refdata_keeper_adopt(struct refdata *refdata, struct refdata_catalog *catalog)
{
    struct refdata_table *all = refdata_table_copy(refdata->own); /* dropping changes the table walked over */
    for (size_t i = 0; i <= all->mask; i++) {
        struct refdata_holding *holding = all->slots[i];
        struct refdata_dictionary *dictionary = holding ? refdata_catalog_find(catalog, holding->code) : NULL;
        if (holding && !dictionary)
            drop(holding);
        if (!dictionary)
            continue;
        holding->preload = false;
        atomic_store(&holding->read_scope, atomic_load(&dictionary->read_scope));
        if (holding->dictionary == dictionary)
            continue;
        refdata_dictionary_unref(holding->dictionary);
        holding->dictionary = refdata_dictionary_ref(dictionary);
        holding->basis = BASIS_REDEFINED;
        holding->failure = FAILURE_NONE;
        backoff_reset(&holding->retry);
        holding->retry_at_ns = 0;
        if (holding->state == HOLDING_DELAYED) /* a try of the old definition, up to 5 minutes later */
            refdata_holding_move(holding, HOLDING_IDLE);
        holding->drift_version = -1;
        /* versions of another database, perhaps */
        holding->wanted_version = holding->committed_version = holding->lost_version = 0;
        holding->audit_at_ns = 0;
        refdata_schedule_want(holding, 0); /* the old data is served until the new definition's is there */
    }
    free(all);
    refdata_watch_adopt(refdata);
}

/* Stays up: dictionaries requested later are loaded in the background, and memory outlives PostgreSQL (C8). */
void refdata_keeper_update_health(struct refdata *refdata)
{
    bool some_database = false, all_loaded = true;
    if (atomic_load(&refdata->query_up))
        return;
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    for (size_t i = 0; i < catalog->database_count; i++)
        some_database |=
            refdata_database_runs(catalog->databases[i]); /* a client may write as soon as it sees "ready" */
    for (size_t i = 0; i <= refdata->own->mask; i++) {
        const struct refdata_holding *holding = refdata->own->slots[i];
        /* A preload that can never be loaded must not keep the others from being served. */
        if (holding && holding->preload && !cache_slot_read(&holding->slot) &&
            holding->failure <= FAILURE_OUTAGE &&
            atomic_load(&holding->dictionary->database->site.is_ready) &&
            atomic_load(&holding->dictionary->state) != REFDATA_DISABLED)
            all_loaded = false;
    }
    if (some_database && all_loaded)
        atomic_store(&refdata->query_up, true);
}

void refdata_keeper_clear(struct refdata *refdata)
{
    loop_tick_cancel(refdata->home, &refdata->publish_tick);
    for (size_t i = 0; i <= refdata->own->mask; i++) {
        struct refdata_holding *holding = refdata->own->slots[i];
        if (!holding)
            continue;
        refdata_watch_dissolve(holding);
        cache_slot_publish(&holding->slot, NULL, refdata->loops);
        loop_timer_stop(refdata->home, &holding->timer); /* others on this loop are still to stop theirs */
        refdata_holding_destroy(holding);
    }
    free_holdings(&refdata->retired);
    free(refdata->own);
    free(atomic_load(&refdata->table));
}
