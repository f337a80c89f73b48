/* The schedule: when a holding loads, and what follows from how its load ended (R13).
 *
 * A holding's load is single-flight. What wants it while it runs makes it run once more; what waits for it is released
 * when it comes back, well or badly. Loads wait in one queue for a free place; those with waiters go first. All on
 * the home loop. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "modules/refdata/query/barrier.h"
#include "modules/refdata/query/query.h"
#include "modules/refdata/query/watch.h"

static void unqueue(struct refdata_holding *holding)
{
    struct refdata_queue *queue = holding->queue;
    if (!queue)
        return;
    struct refdata_holding **at = &queue->first;
    while (*at != holding)
        at = &(*at)->queue_next;
    *at = holding->queue_next;
    if (queue->last == &holding->queue_next)
        queue->last = at;
    holding->queue = NULL;
}

static bool somebody_waits(const struct refdata_holding *holding)
{
    return holding->waiter_count || holding->barrier.waiting_count;
}

/* Can the next load start from what is held? */
static bool may_be_delta(const struct refdata_holding *holding)
{
    return holding->dictionary->delta && !holding->whole && !holding->redefined &&
           cache_slot_read(&holding->slot);
}

/* Loads with waiters stand before those without, each kind in the order it came. */
static void enqueue(struct refdata_holding *holding)
{
    struct refdata *refdata = holding->refdata;
    if (holding->queue)
        return;
    struct refdata_queue *queue = may_be_delta(holding) ? &refdata->delta_loads : &refdata->full_loads;
    struct refdata_holding **at = queue->last;
    if (somebody_waits(holding))
        for (at = &queue->first; *at && somebody_waits(*at);)
            at = &(*at)->queue_next;
    holding->queue = queue;
    holding->queue_next = *at;
    *at = holding;
    if (!holding->queue_next)
        queue->last = &holding->queue_next;
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
        (holding->queue && (delay_ms > 0 || !somebody_waits(holding))))
        return;
    unqueue(holding); /* it has a waiter now: before those without */
    if (delay_ms <= 0) {
        loop_timer_stop(refdata->home, &holding->timer);
        enqueue(holding);
        refdata_schedule_run(refdata);
    } else if (!holding->timer.heap_at) {
        loop_timer_start(refdata->home, &holding->timer, clock_deadline_ms(delay_ms), on_timer);
    }
}

/* Deltas are cheap, but not free: a burst of updates must not wait for a load after each of them. */
#define DELTA_WINDOW_MS 6

/* The debounce is leading edge (R13): the first change loads at once, those within the window since that load began
 * share the one at its end. */
static int64_t pause_ms(const struct refdata_holding *holding)
{
    int64_t window_ms = may_be_delta(holding) ? DELTA_WINDOW_MS : holding->refdata->settings.debounce_ms;
    int64_t debounced_ns = holding->began_ns + window_ms * CLOCK_NS_PER_MS;
    int64_t due_ns = holding->retry_at_ns;
    if (somebody_waits(holding))
        return 0;
    if (holding->began_ns && due_ns < debounced_ns)
        due_ns = debounced_ns;
    return clock_ms_left(due_ns);
}

/* Does the load under way, or what is here, lack this version? */
static void note_wanted(struct refdata_holding *holding, int64_t version)
{
    if (holding->wanted_version < version)
        holding->wanted_version = version;
}

/* A row that is too large costs PostgreSQL up to 1 GB a try: it is not tried again soon, unless something was changed. */
#define TOO_LARGE_RETRY_MS (5 * 60 * 1000)

static void note_changed(struct refdata_holding *holding, int64_t version)
{
    if (!holding->too_large || version <= holding->too_large_version)
        return;
    holding->too_large = false;
    holding->retry_at_ns = 0;
    loop_timer_stop(holding->refdata->home, &holding->timer);
}

void refdata_schedule_behind(struct refdata_holding *holding, int64_t version, int64_t delay_ms)
{
    note_wanted(holding, version);
    note_changed(holding, version);
    if (holding->loading)
        return; /* known when it is back */
    int64_t pause = pause_ms(holding);
    refdata_schedule_want(holding, pause > delay_ms ? pause : delay_ms);
}

void refdata_schedule_compare(struct refdata_holding *holding, int64_t delay_ms)
{
    int64_t pause = pause_ms(holding);
    refdata_schedule_want(holding, pause > delay_ms ? pause : delay_ms);
}

void refdata_schedule_urge(struct refdata_holding *holding, int64_t version)
{
    note_wanted(holding, version);
    if (!holding->loading)
        refdata_schedule_want(holding, 0);
}

int64_t refdata_schedule_jitter_ms(const struct refdata *refdata)
{
    int64_t jitter_ms = refdata->settings.jitter_ms;
    return jitter_ms ? (int64_t)(random_u64() % (uint64_t)jitter_ms) : 0;
}

static bool start_load(struct refdata_holding *holding, struct refdata_queue *queue)
{
    struct cache_snapshot *base = may_be_delta(holding) ? cache_slot_acquire(&holding->slot) : NULL;
    bool started = refdata_loader_start(holding, base);
    if (base)
        cache_snapshot_unref(base);
    if (!started)
        return false;
    holding->loading = true;
    holding->wanted = false;
    holding->wanted_version = 0; /* what was committed by now is what it will find */
    holding->began_ns = clock_mono_ns();
    holding->running_in = queue;
    queue->running++;
    return true;
}

static void run_queue(struct refdata *refdata, struct refdata_queue *queue)
{
    while (queue->first && queue->running < (unsigned)refdata->settings.parallel_reloads &&
           !refdata->stopping) {
        struct refdata_holding *holding = queue->first;
        unqueue(holding);
        if (!start_load(holding, queue)) {
            holding->wanted = true; /* its threads are busy stopping */
            return;
        }
    }
}

void refdata_schedule_run(struct refdata *refdata)
{
    run_queue(refdata, &refdata->delta_loads);
    run_queue(refdata, &refdata->full_loads);
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
    holding->too_large = loaded->status == STATUS_PAYLOAD_TOO_LARGE;
    holding->too_large_version = loaded->change.to;
    if (holding->too_large && delay_ms < TOO_LARGE_RETRY_MS)
        delay_ms = TOO_LARGE_RETRY_MS;
    refdata_metrics_count(REFDATA_RELOAD_ERRORS, holding->code);
    log_warn("dictionary_load_failed", LOG_STR("tenantId", holding->tenant),
             LOG_STR("dictCode", holding->code), LOG_INT("failures", holding->failures),
             LOG_INT("retryMs", delay_ms), LOG_BOOL("servesOldVersion", has_data),
             LOG_ERROR_FIELDS(&loaded->error));
    holding->retry_at_ns = clock_deadline_ms(delay_ms);
    holding->refused = !is_outage(loaded->status);
    holding->whole |= holding->refused; /* what cannot be had key by key may be had at once */
    struct error error;
    error_set(&error, STATUS_DICTIONARY_UNAVAILABLE, "the dictionary cannot be loaded now");
    refdata_keeper_wake(holding, &error);
    if (holding->preload || has_data)
        refdata_schedule_want(holding, delay_ms);
}

/* R14: what was held is not in the database any more. */
static void note_regression(struct refdata_holding *holding, const struct cache_info *before,
                            const struct cache_info *now)
{
    char lost[UUID_TEXT_BYTES], event[UUID_TEXT_BYTES];
    uuid_format(&before->event, lost);
    uuid_format(&now->event, event);
    refdata_metrics_count(REFDATA_REGRESSIONS, holding->code);
    log_error(now->version < before->version ? "dictionary_version_went_back" : "dictionary_history_replaced",
              LOG_STR("tenantId", holding->tenant), LOG_STR("dictCode", holding->code),
              LOG_INT("localVersion", before->version), LOG_INT("version", now->version),
              LOG_CSTR("localEventId", lost), LOG_CSTR("eventId", event));
    if (holding->lost_version < before->version)
        holding->lost_version = before->version;
}

static void tell(const struct refdata_holding *holding, const struct refdata_loaded *loaded)
{
    const struct cache_info *info = cache_snapshot_info(loaded->snapshot);
    bool delta = refdata_loaded_is_delta(loaded);
    if (!delta || log_enabled(LOG_LEVEL_DEBUG)) /* many a second, where only keys are loaded */
        log_write(delta ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO, "dictionary_loaded",
                  LOG_FIELDS(LOG_STR("tenantId", holding->tenant), LOG_STR("dictCode", holding->code),
                             LOG_INT("version", info->version), LOG_INT("items", info->item_count),
                             LOG_CSTR("mode", delta ? "delta" : "full"),
                             LOG_INT("durationMs", (int64_t)(loaded->seconds * 1000)),
                             LOG_INT("bytes", info->memory_bytes)));
    if (loaded->replaced)
        log_warn("dictionary_keys_repeated", LOG_STR("tenantId", holding->tenant),
                 LOG_STR("dictCode", holding->code), LOG_INT("repeated", loaded->replaced),
                 LOG_CSTR("effect", "the last row of a key wins"));
}

/* A new version goes live. */
static void swap(struct refdata_holding *holding, struct refdata_loaded *loaded)
{
    struct refdata *refdata = holding->refdata;
    const struct cache_snapshot *before = cache_slot_read(&holding->slot);
    const struct cache_info *info = cache_snapshot_info(loaded->snapshot);
    int64_t local = before && !holding->redefined ? cache_snapshot_info(before)->version : -1;
    if (local >= 0 && loaded->change.is_fork)
        note_regression(holding, cache_snapshot_info(before), info);
    refdata->memory_bytes += info->memory_bytes - holding->memory_bytes;
    holding->memory_bytes = info->memory_bytes;
    loaded->change.from = local;
    tell(holding, loaded);
    refdata_metrics_loaded(holding, loaded, local >= 0 && info->version > local);
    cache_slot_publish(&holding->slot, loaded->snapshot, refdata->loops);
    refdata_watch_published(holding, before, loaded->snapshot, &loaded->change);
}

static void load_succeeded(struct refdata_holding *holding, struct refdata_loaded *loaded)
{
    struct refdata *refdata = holding->refdata;
    int64_t version = cache_snapshot_info(loaded->snapshot)->version;
    holding->failures = 0;
    holding->refused = false;
    holding->retry_at_ns = 0;
    if (holding->committed_version < version)
        holding->committed_version = version;
    if (loaded->snapshot == cache_slot_read(&holding->slot))
        cache_snapshot_unref(loaded->snapshot); /* nothing had changed */
    else
        swap(holding, loaded);
    if (!refdata_loaded_is_delta(loaded))
        holding->whole = holding->redefined = false;
    /* Loaded counts as read: the next to go is not the one just asked for. */
    atomic_store(&holding->used_at_s[loop_index(refdata->home)],
                 (uint32_t)(loop_now_ns(refdata->home) / CLOCK_NS_PER_S));
    refdata_keeper_wake(holding, NULL);
    refdata_barrier_loaded(holding, version);
    refdata_keeper_trim(refdata, holding);
    if (holding->wanted_version > version)
        holding->again = true;
}

/* Loaded by a definition that is no longer in force, or on a base that is no longer held: the load is dropped, and
 * waiters keep waiting. */
static void load_outdated(struct refdata_holding *holding, const struct refdata_loaded *loaded)
{
    if (loaded->snapshot)
        cache_snapshot_unref(loaded->snapshot);
    refdata_schedule_want(holding, 0);
}

static void take_load(struct refdata_holding *holding, struct refdata_loaded *loaded)
{
    bool baseless = refdata_loaded_is_delta(loaded) && loaded->base != cache_slot_read(&holding->slot);
    if (loaded->dictionary != holding->dictionary || baseless)
        load_outdated(holding, loaded);
    else if (loaded->status == STATUS_OK)
        load_succeeded(holding, loaded);
    else
        load_failed(holding, loaded);
    if (holding->again && loaded->status == STATUS_OK)
        refdata_schedule_want(holding, pause_ms(holding));
    holding->again = false;
}

void refdata_schedule_loaded(struct refdata_holding *holding, struct refdata_loaded *loaded)
{
    struct refdata *refdata = holding->refdata;
    holding->loading = false;
    holding->running_in->running--;
    if (!holding->dropped) {
        take_load(holding, loaded);
    } else {
        if (loaded->snapshot)
            cache_snapshot_unref(loaded->snapshot);
        if (!holding->barrier.asking)
            refdata_keeper_retire(holding);
    }
    refdata_schedule_run(refdata);
    refdata_keeper_update_health(refdata);
}

/* R15: a definition that PostgreSQL refuses loads nothing. What an earlier one loaded is served meanwhile. */
static void give_up(struct refdata_holding *holding, const struct error *why)
{
    holding->wanted = true; /* loaded as soon as the definition is accepted */
    refdata_barrier_refuse(holding);
    if (!cache_slot_read(&holding->slot))
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
        if (ready && holding->wanted) /* at a start: of many pods at once, perhaps */
            refdata_schedule_want(holding, somebody_waits(holding) ? 0 : refdata_schedule_jitter_ms(refdata));
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
