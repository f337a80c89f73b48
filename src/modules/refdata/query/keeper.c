/* The keeper: decides, on the home loop alone, which pairs are held and what is dropped (R17), and answers those who
 * ask for a pair that is not there yet. When a pair loads is schedule.c's business. */
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/flow.h"
#include "modules/refdata/query/barrier.h"
#include "modules/refdata/query/query.h"
#include "modules/refdata/query/watch.h"

/* ---- the table readers see ---- */

struct retired {
    struct refdata_table *table;
    struct refdata_holding **holdings;
    size_t count;
};

static void free_retired(void *arg)
{
    struct retired *retired = arg;
    for (size_t i = 0; i < retired->count; i++)
        refdata_holding_destroy(retired->holdings[i]);
    free(retired->holdings);
    free(retired->table);
    free(retired);
}

static void publish_table(struct loop_tick *tick)
{
    struct refdata *refdata = (struct refdata *)((char *)tick - offsetof(struct refdata, publish_tick));
    struct retired *retired = memory_alloc(sizeof *retired);
    *retired = (struct retired){
        .table = atomic_exchange(&refdata->table, refdata_table_copy(refdata->own)),
        .holdings = refdata->retired,
        .count = refdata->retired_count,
    };
    refdata->retired = NULL;
    refdata->retired_count = refdata->retired_capacity = 0;
    loop_group_synchronize(refdata->loops, free_retired, retired);
}

static void table_changed(struct refdata *refdata)
{
    loop_at_tick_end(refdata->home, &refdata->publish_tick, publish_table);
}

void refdata_keeper_retire(struct refdata_holding *holding)
{
    struct refdata *refdata = holding->refdata;
    if (refdata->retired_count == refdata->retired_capacity) {
        refdata->retired_capacity = refdata->retired_capacity ? 2 * refdata->retired_capacity : 16;
        refdata->retired = memory_realloc_array(refdata->retired, refdata->retired_capacity,
                                                sizeof(struct refdata_holding *));
    }
    refdata->retired[refdata->retired_count++] = holding;
    table_changed(refdata);
}

/* ---- waiting requests ---- */

struct wake_message {
    struct loop_message message;
    struct loop_park_ref ref;
    struct error error;
};

/* On the waiter's own loop: it starts over, now that the data is there, or gets the reason why it is not. */
static void on_wake(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct wake_message *wake = (struct wake_message *)message;
    struct http_request *request = http_request_unpark(wake->ref);
    if (request && wake->error.status == STATUS_OK)
        request->route->handler(request);
    else if (request)
        http_send_error(request, &wake->error);
    free(wake);
}

static void wake_waiter(struct loop_park_ref ref, const struct error *error)
{
    struct wake_message *wake = memory_zalloc(sizeof *wake);
    wake->message.on_message = on_wake;
    wake->ref = ref;
    if (error)
        wake->error = *error;
    loop_post(ref.loop, &wake->message);
}

void refdata_keeper_wake(struct refdata_holding *holding, const struct error *error)
{
    for (size_t i = 0; i < holding->waiter_count; i++)
        wake_waiter(holding->waiters[i], error);
    holding->waiter_count = 0;
}

static void add_waiter(struct refdata_holding *holding, struct loop_park_ref ref)
{
    if (holding->waiter_count == holding->waiter_capacity) {
        holding->waiter_capacity = holding->waiter_capacity ? 2 * holding->waiter_capacity : 4;
        holding->waiters =
            memory_realloc_array(holding->waiters, holding->waiter_capacity, sizeof *holding->waiters);
    }
    holding->waiters[holding->waiter_count++] = ref;
}

/* ---- holding and dropping ---- */

static void drop(struct refdata_holding *holding, const struct error *why)
{
    struct refdata *refdata = holding->refdata;
    refdata_keeper_wake(holding, why);
    refdata_schedule_cancel(holding);
    refdata_table_remove(refdata->own, holding);
    refdata->memory_bytes -= holding->memory_bytes;
    cache_slot_publish(&holding->slot, NULL, refdata->loops);
    refdata_metrics_detach(holding);
    refdata_barrier_dissolve(holding);
    refdata_watch_dissolve(holding);
    holding->dropped = true;
    table_changed(refdata);
    if (!holding->loading && !holding->barrier.asking)
        refdata_keeper_retire(holding);
}

static bool may_evict(const struct refdata_holding *holding, const struct refdata_holding *spared)
{
    return holding != spared && !holding->preload && !holding->loading && holding->waiter_count == 0 &&
           !holding->watch;
}

/* The one read longest ago among those that may go; a walk over all, but only when something has to. */
static struct refdata_holding *find_victim(const struct refdata *refdata,
                                           const struct refdata_holding *spared)
{
    struct refdata_holding *victim = NULL;
    uint32_t oldest = UINT32_MAX;
    unsigned loops = loop_group_count(refdata->loops);
    for (size_t i = 0; i <= refdata->own->mask; i++) {
        struct refdata_holding *holding = refdata->own->slots[i];
        if (!holding || !may_evict(holding, spared))
            continue;
        uint32_t used = refdata_holding_used_at_s(holding, loops);
        if (!victim || used < oldest)
            victim = holding, oldest = used;
    }
    return victim;
}

static bool evict_one(struct refdata *refdata, const struct refdata_holding *spared, const char *reason)
{
    struct refdata_holding *victim = find_victim(refdata, spared);
    if (!victim)
        return false;
    log_info("dictionary_evicted", LOG_STR("tenantId", victim->tenant), LOG_STR("dictCode", victim->code),
             LOG_CSTR("reason", reason), LOG_INT("bytes", victim->memory_bytes));
    drop(victim, NULL);
    return true;
}

void refdata_keeper_trim(struct refdata *refdata, const struct refdata_holding *newest)
{
    uint64_t budget = (uint64_t)refdata->settings.memory_bytes_max;
    while (budget && refdata->memory_bytes > budget && evict_one(refdata, newest, "memory budget"))
        ;
}

struct refdata_holding *refdata_keeper_hold(struct refdata *refdata, struct str tenant,
                                            struct refdata_dictionary *dictionary)
{
    struct refdata_holding *holding = refdata_table_find(refdata->own, tenant, dictionary->code);
    if (holding)
        return holding;
    if (refdata->own->count >= (size_t)refdata->settings.entries_max && !evict_one(refdata, NULL, "entries"))
        return NULL;
    holding = refdata_holding_create(refdata, tenant, dictionary, loop_group_count(refdata->loops));
    refdata->own = refdata_table_add(refdata->own, holding);
    table_changed(refdata);
    return holding;
}

/* ---- first reads ---- */

struct ask_message {
    struct loop_message message;
    struct refdata *refdata;
    struct loop_park_ref waiter;
    size_t tenant_len, code_len;
    char text[]; /* tenant, then code */
};

static enum status admit(struct refdata *refdata, struct str tenant, struct str code,
                         struct loop_park_ref waiter, struct error *error)
{
    struct refdata_dictionary *dictionary = refdata_catalog_find(atomic_load(&refdata->catalog), code);
    if (!dictionary)
        return error_set(error, STATUS_UNKNOWN_DICTIONARY, "there is no dictionary called %.*s",
                         STR_ARG(code));
    if (atomic_load(&dictionary->state) == REFDATA_DISABLED)
        return error_set(error, STATUS_DICTIONARY_UNAVAILABLE,
                         "the dictionary's configuration was refused by PostgreSQL");
    if (atomic_load(&dictionary->state) == REFDATA_UNCHECKED &&
        atomic_load(&dictionary->database->site.state) == SITE_DOWN)
        return error_set(error, STATUS_DICTIONARY_UNAVAILABLE, "its database cannot be reached");
    struct refdata_holding *holding = refdata_keeper_hold(refdata, tenant, dictionary);
    if (!holding)
        return error_set(error, STATUS_OVERLOADED, "too many dictionaries are being read at once");
    if (cache_slot_read(&holding->slot)) {
        wake_waiter(waiter, NULL);
        return STATUS_OK;
    }
    if (holding->retry_at_ns > loop_now_ns(refdata->home) && !holding->loading)
        return error_set(error, STATUS_DICTIONARY_UNAVAILABLE,
                         "the dictionary could not be loaded a moment ago");
    add_waiter(holding, waiter);
    if (!holding->loading)
        refdata_schedule_want(holding, 0);
    return STATUS_OK;
}

static void on_ask(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct ask_message *ask = (struct ask_message *)message;
    struct error error = {0};
    struct str tenant = str_of(ask->text, ask->tenant_len),
               code = str_of(ask->text + ask->tenant_len, ask->code_len);
    if (admit(ask->refdata, tenant, code, ask->waiter, &error) != STATUS_OK)
        wake_waiter(ask->waiter, &error);
    free(ask);
}

void refdata_keeper_ask(struct refdata *refdata, struct str tenant, struct str code,
                        struct loop_park_ref waiter)
{
    struct ask_message *ask = memory_alloc(sizeof *ask + tenant.len + code.len);
    ask->message.on_message = on_ask;
    ask->refdata = refdata;
    ask->waiter = waiter;
    ask->tenant_len = tenant.len;
    ask->code_len = code.len;
    memcpy(ask->text, tenant.ptr, tenant.len);
    memcpy(ask->text + tenant.len, code.ptr, code.len);
    loop_post(refdata->home, &ask->message);
}

/* ---- configuration ---- */

void refdata_keeper_preload(struct refdata *refdata)
{
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    for (size_t i = 0; i < refdata->settings.preload.count; i++) {
        struct str code = refdata->settings.preload.items[i], tenant;
        str_split(&code, '/', &tenant);
        struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
        if (!dictionary || str_eq(tenant, STR("*")))
            continue; /* switched off; or found out by the sweep */
        struct refdata_holding *holding = refdata_keeper_hold(refdata, tenant, dictionary);
        if (!holding || holding->preload)
            continue;
        holding->preload = true;
        if (!cache_slot_read(&holding->slot))
            refdata_schedule_want(holding, refdata_schedule_jitter_ms(refdata));
    }
    refdata_keeper_update_health(refdata);
}

static void redefine(struct refdata_holding *holding, struct refdata_dictionary *dictionary)
{
    atomic_store(&holding->read_scope, atomic_load(&dictionary->read_scope));
    if (holding->dictionary == dictionary)
        return;
    refdata_dictionary_unref(holding->dictionary);
    holding->dictionary = refdata_dictionary_ref(dictionary);
    holding->failures = 0;
    holding->refused = false;
    holding->too_large = false;
    holding->retry_at_ns = 0;
    loop_timer_stop(holding->refdata->home,
                    &holding->timer); /* a try of the old definition, up to 5 minutes later */
    holding->drift_known = false;
    holding->redefined = true;
    /* versions of another database, perhaps */
    holding->wanted_version = holding->committed_version = holding->lost_version = 0;
    holding->audit_at_ns = 0;
    refdata_schedule_want(holding, 0); /* the old data is served until the new definition's is there */
}

void refdata_keeper_adopt(struct refdata *refdata, struct refdata_catalog *catalog)
{
    struct error error;
    error_set(&error, STATUS_UNKNOWN_DICTIONARY, "the dictionary was removed");
    struct refdata_table *all = refdata_table_copy(refdata->own); /* dropping changes the table walked over */
    for (size_t i = 0; i <= all->mask; i++) {
        struct refdata_holding *holding = all->slots[i];
        if (!holding)
            continue;
        holding->preload = false;
        struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, holding->code);
        if (dictionary)
            redefine(holding, dictionary);
        else
            drop(holding, &error);
    }
    free(all);
    refdata_watch_adopt(refdata);
}

/* A preload that can never be loaded must not keep the others from being served. */
static bool keeps_waiting(const struct refdata_holding *holding)
{
    return holding->preload && !cache_slot_read(&holding->slot) && !holding->refused &&
           atomic_load(&holding->dictionary->database->site.is_ready) &&
           atomic_load(&holding->dictionary->state) != REFDATA_DISABLED;
}

/* Stays up: dictionaries requested later are loaded in the background, and memory outlives PostgreSQL (C8). */
void refdata_keeper_update_health(struct refdata *refdata)
{
    bool some_database = false, all_loaded = true;
    if (atomic_load(&refdata->query_up))
        return;
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    for (size_t i = 0; i < catalog->database_count; i++)
        some_database |= refdata_flow_of(catalog->databases[i]) !=
                         NULL; /* a client may write as soon as it sees "ready" */
    for (size_t i = 0; i <= refdata->own->mask && all_loaded; i++)
        all_loaded = !refdata->own->slots[i] || !keeps_waiting(refdata->own->slots[i]);
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
    for (size_t i = 0; i < refdata->retired_count; i++)
        refdata_holding_destroy(refdata->retired[i]);
    free(refdata->retired);
    free(refdata->own);
    free(atomic_load(&refdata->table));
}
