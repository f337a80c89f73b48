/* The schedule: when a holding loads, and what follows from how its load ended (R13).
 *
 * A holding's load is single-flight. What wants it while it runs makes it run once more; what waits for it is released
 * when it comes back, well or badly. Loads wait in one queue for a free place; those somebody waits for go first. All on
 * the home loop. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "modules/refdata/query/barrier.h"
#include "modules/refdata/query/query.h"

static void unqueue(struct refdata_holding *holding)
{
    struct refdata *refdata = holding->refdata;
    struct refdata_holding **at = &refdata->queue_first;
    while (holding->queued && *at != holding)
        at = &(*at)->queue_next;
    if (!holding->queued)
        return;
    *at = holding->queue_next;
    if (refdata->queue_last == &holding->queue_next)
        refdata->queue_last = at;
    holding->queued = false;
}

static bool somebody_waits(const struct refdata_holding *holding)
{
    return holding->waiter_count || holding->barrier.waiting_count;
}

/* Those somebody waits for stand before those nobody waits for, each kind in the order it came. */
static void enqueue(struct refdata_holding *holding)
{
    struct refdata *refdata = holding->refdata;
    struct refdata_holding **at = refdata->queue_last;
    if (holding->queued)
        return;
    if (somebody_waits(holding))
        for (at = &refdata->queue_first; *at && somebody_waits(*at);)
            at = &(*at)->queue_next;
    holding->queued = true;
    holding->queue_next = *at;
    *at = holding;
    if (!holding->queue_next)
        refdata->queue_last = &holding->queue_next;
}

static void on_timer(struct loop_timer *timer)
{
    struct refdata_holding *holding =
        (struct refdata_holding *)((char *)timer - offsetof(struct refdata_holding, timer));
    enqueue(holding);
    refdata_schedule_run(holding->refdata);
}

void refdata_schedule_want(struct refdata_holding *holding, int64_t delay_ms)
{
    struct refdata *refdata = holding->refdata;
    holding->wanted = true;
    if (holding->loading) {
        holding->again = true;
        return;
    }
    /* A dictionary that was not checked yet is loaded when the check is done: refdata_schedule_checked(). */
    if (atomic_load(&holding->dictionary->state) != REFDATA_READY ||
        (holding->queued && (delay_ms > 0 || !somebody_waits(holding))))
        return;
    unqueue(holding); /* somebody waits now: before those nobody waits for */
    if (delay_ms <= 0) {
        loop_timer_stop(refdata->home, &holding->timer);
        enqueue(holding);
        refdata_schedule_run(refdata);
    } else if (!holding->timer.heap_at) {
        loop_timer_start(refdata->home, &holding->timer, clock_deadline_ms(delay_ms), on_timer);
    }
}

void refdata_schedule_run(struct refdata *refdata)
{
    while (refdata->queue_first && refdata->loading_count < (unsigned)refdata->settings.parallel_reloads &&
           !refdata->stopping) {
        struct refdata_holding *holding = refdata->queue_first;
        unqueue(holding);
        holding->wanted = false;
        if (!refdata_loader_start(holding)) {
            holding->wanted = true; /* its threads are busy stopping */
            return;
        }
        holding->loading = true;
        refdata->loading_count++;
    }
}

static int64_t retry_delay_ms(const struct refdata_holding *holding)
{
    const struct refdata_cache_settings *settings = &holding->refdata->settings;
    int64_t delay_ms = settings->retry_min_ms;
    for (unsigned i = 1; i < holding->failures && delay_ms < settings->retry_max_ms; i++)
        delay_ms *= 2;
    delay_ms = delay_ms < settings->retry_max_ms ? delay_ms : settings->retry_max_ms;
    return delay_ms / 2 + (int64_t)(random_u64() % (uint64_t)(delay_ms / 2 + 1));
}

/* ---- how a load ended ---- */

/* Did the server fail, or did what it has? Only the first will mend by itself. */
static bool is_outage(enum status status)
{
    return status == STATUS_DB_DOWN || status == STATUS_TIMEOUT || status == STATUS_DB_RETRY ||
           status == STATUS_CANCELLED;
}

static void load_failed(struct refdata_holding *holding, const struct refdata_loaded *loaded)
{
    bool has_data = cache_slot_read(&holding->slot) != NULL;
    holding->failures++;
    int64_t delay_ms = retry_delay_ms(holding);
    refdata_metrics_load_failed(holding);
    log_warn("dictionary_load_failed", LOG_STR("tenantId", holding->tenant),
             LOG_STR("dictCode", holding->code), LOG_INT("failures", holding->failures),
             LOG_INT("retryMs", delay_ms), LOG_BOOL("servesOldVersion", has_data),
             LOG_ERROR_FIELDS(&loaded->error));
    holding->retry_at_ns = clock_deadline_ms(delay_ms);
    holding->refused = !is_outage(loaded->status);
    struct error error;
    error_set(&error, STATUS_DICTIONARY_UNAVAILABLE, "the dictionary cannot be loaded now");
    refdata_keeper_wake(holding, &error);
    if (holding->preload || has_data)
        refdata_schedule_want(holding, delay_ms);
}

static void note_regression(struct refdata_holding *holding, int64_t before, int64_t now)
{
    refdata_metrics_regression(holding);
    log_error("dictionary_version_went_back", LOG_STR("tenantId", holding->tenant),
              LOG_STR("dictCode", holding->code), LOG_INT("localVersion", before), LOG_INT("version", now));
}

static void load_succeeded(struct refdata_holding *holding, struct refdata_loaded *loaded)
{
    struct refdata *refdata = holding->refdata;
    const struct cache_snapshot *before = cache_slot_read(&holding->slot);
    const struct cache_info *info = cache_snapshot_info(loaded->snapshot);
    int64_t version = info->version;
    bool is_update = before && version > cache_snapshot_info(before)->version;
    if (before && version < cache_snapshot_info(before)->version)
        note_regression(holding, cache_snapshot_info(before)->version, version);
    holding->failures = 0;
    holding->refused = false;
    holding->retry_at_ns = 0;
    refdata->memory_bytes += info->memory_bytes - holding->memory_bytes;
    holding->memory_bytes = info->memory_bytes;
    if (holding->committed_version < version)
        holding->committed_version = version;
    log_info("dictionary_loaded", LOG_STR("tenantId", holding->tenant), LOG_STR("dictCode", holding->code),
             LOG_INT("version", version), LOG_INT("items", info->item_count),
             LOG_INT("durationMs", (int64_t)(loaded->seconds * 1000)), LOG_INT("bytes", info->memory_bytes));
    if (loaded->replaced)
        log_warn("dictionary_keys_repeated", LOG_STR("tenantId", holding->tenant),
                 LOG_STR("dictCode", holding->code), LOG_INT("repeated", loaded->replaced),
                 LOG_CSTR("effect", "the last row of a key wins"));
    refdata_metrics_loaded(holding, loaded, is_update);
    cache_slot_publish(&holding->slot, loaded->snapshot, refdata->loops);
    /* Loaded counts as read: the next to go is not the one just asked for. */
    atomic_store(&holding->used_at_s[loop_index(refdata->home)],
                 (uint32_t)(loop_now_ns(refdata->home) / CLOCK_NS_PER_S));
    refdata_keeper_wake(holding, NULL);
    refdata_barrier_loaded(holding, version);
    refdata_keeper_trim(refdata, holding);
}

/* Loaded by a definition that is no longer in force: as if it had not been, and those who wait go on waiting. */
static void load_outdated(struct refdata_holding *holding, const struct refdata_loaded *loaded)
{
    if (loaded->snapshot)
        cache_snapshot_unref(loaded->snapshot);
    refdata_schedule_want(holding, 0);
}

static void take_load(struct refdata_holding *holding, struct refdata_loaded *loaded)
{
    if (loaded->dictionary != holding->dictionary)
        load_outdated(holding, loaded);
    else if (loaded->status == STATUS_OK)
        load_succeeded(holding, loaded);
    else
        load_failed(holding, loaded);
    if (holding->again && loaded->status == STATUS_OK)
        refdata_schedule_want(holding, 0);
    holding->again = false;
}

void refdata_schedule_loaded(struct refdata_holding *holding, struct refdata_loaded *loaded)
{
    struct refdata *refdata = holding->refdata;
    holding->loading = false;
    refdata->loading_count--;
    if (!holding->dropped) {
        take_load(holding, loaded);
    } else {
        if (loaded->snapshot)
            cache_snapshot_unref(loaded->snapshot);
        if (!holding->barrier.asking)
            refdata_keeper_bury(holding);
    }
    refdata_schedule_run(refdata);
    refdata_keeper_update_health(refdata);
}

/* R15: a definition that PostgreSQL refuses is not served, not even from what an earlier one loaded. */
static void give_up(struct refdata_holding *holding, const struct error *why)
{
    struct refdata *refdata = holding->refdata;
    cache_slot_publish(&holding->slot, NULL, refdata->loops);
    refdata->memory_bytes -= holding->memory_bytes;
    holding->memory_bytes = 0;
    holding->wanted = true; /* loaded as soon as the definition is accepted */
    refdata_keeper_wake(holding, why);
}

void refdata_schedule_checked(struct refdata *refdata, struct refdata_dictionary *dictionary)
{
    bool ready = atomic_load(&dictionary->state) == REFDATA_READY;
    struct error error;
    error_set(&error, STATUS_DICTIONARY_UNAVAILABLE,
              "the dictionary's configuration was refused by PostgreSQL");
    refdata_metrics_dictionary(dictionary);
    for (size_t i = 0; i <= refdata->own->mask; i++) {
        struct refdata_holding *holding = refdata->own->slots[i];
        if (!holding || holding->dictionary != dictionary)
            continue;
        if (ready && holding->wanted)
            refdata_schedule_want(holding, 0);
        if (!ready)
            give_up(holding, &error);
    }
    refdata_keeper_update_health(refdata);
}

void refdata_schedule_cancel(struct refdata_holding *holding)
{
    unqueue(holding);
    loop_timer_stop(holding->refdata->home, &holding->timer);
}
