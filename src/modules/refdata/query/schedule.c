/* The schedule: when a holding loads, and what follows from how its load ended (R13).
 *
 * A holding's load is single-flight. What wants it while it runs makes it run once more; what waits for it is released
 * when it ends, also when it fails. Loads wait in one queue for a free place; those with waiters go first, and tenants take
 * turns. All on the home loop. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/query/reading.h"
#include "modules/refdata/query/watch.h"

/* Deltas are cheap, but not free: a burst of updates must not wait for a load after each of them. */
#define DELTA_WINDOW_MS 6
/* A row that is too large costs PostgreSQL up to 1 GB a try: it is not tried again soon, unless something was changed. */
#define TOO_LARGE_RETRY_MS (5 * 60 * 1000)

static bool has_waiters(const struct refdata_holding *holding)
{
    return !STAILQ_EMPTY(&holding->waiting);
}

/* Can the next load start from what is held? */
static bool may_be_delta(const struct refdata_holding *holding)
{
    return holding->dictionary->delta && holding->basis == BASIS_HELD && cache_slot_read(&holding->slot);
}

/* The one whose turn it is, of a tenant that may run one more; NULL: none. */
static struct refdata_holding *next_load(const struct refdata *refdata, const struct refdata_queue *queue)
{
    const struct turns *lines[] = {&queue->urgent, &queue->rest};
    size_t free = turns_places((size_t)refdata->first->cache.parallel_reloads) - queue->running;
    struct turns_share *share;
    for (size_t i = 0; i < 2; i++)
        TAILQ_FOREACH(share, &lines[i]->line, in_line)
            if (turns_may_enter_hash(&queue->urgent, share->node.hash, free))
                return CONTAINER_OF(TAILQ_FIRST(&share->items), struct refdata_holding, turn);
    return NULL;
}

static void run_queue(struct refdata *refdata, struct refdata_queue *queue)
{
    struct refdata_holding *holding;
    while (!refdata->stopping && (holding = next_load(refdata, queue)) != NULL) {
        if (!refdata_loader_start(holding, may_be_delta(holding))) { /* its threads are busy stopping */
            refdata_holding_move(holding, HOLDING_WANTED);
            return;
        }
        holding->place = turns_enter(&queue->urgent, holding->turn.share->node.hash, SIZE_MAX);
        refdata_holding_move(holding, HOLDING_LOADING);
        holding->refs++;
        holding->wanted_version = 0; /* what was committed by now is what it will find */
        holding->began_ns = clock_mono_ns();
        queue->running++;
    }
}

/* Starts what waits, as far as there is room. */
static void run_queues(struct refdata *refdata)
{
    run_queue(refdata, &refdata->delta_loads);
    run_queue(refdata, &refdata->full_loads);
}

static void enqueue(struct refdata_holding *holding)
{
    struct refdata *refdata = holding->refdata;
    refdata_holding_move(holding, HOLDING_QUEUED);
    holding->queue = may_be_delta(holding) ? &refdata->delta_loads : &refdata->full_loads;
    holding->line = has_waiters(holding) ? &holding->queue->urgent : &holding->queue->rest;
    turns_put(holding->line, hash_seeded(holding->tenant), &holding->turn);
    run_queues(refdata);
}

static void on_timer(struct loop_timer *timer)
{
    enqueue(CONTAINER_OF(timer, struct refdata_holding, timer));
}

void refdata_schedule_want(struct refdata_holding *holding, int64_t due_ns)
{
    if (refdata_holding_is_loading(holding)) {
        if (holding->state == HOLDING_LOADING)
            refdata_holding_move(holding, HOLDING_LOADING_AGAIN);
    } else if (atomic_load(&holding->dictionary->state) != REFDATA_READY) {
        if (holding->state == HOLDING_IDLE) /* loaded when the check is done: refdata_schedule_checked() */
            refdata_holding_move(holding, HOLDING_WANTED);
    } else if (due_ns <= clock_mono_ns()) {
        if (holding->state != HOLDING_QUEUED || has_waiters(holding)) /* then before those without */
            enqueue(holding);
    } else if (holding->state == HOLDING_IDLE || holding->state == HOLDING_WANTED) {
        refdata_holding_move(holding, HOLDING_DELAYED);
        loop_timer_start(holding->refdata->home, &holding->timer, due_ns, on_timer);
    }
}

/* The debounce is leading edge (R13): the first change loads at once, those within the window since that load began
 * share the one at its end. */
static int64_t next_due_ns(const struct refdata_holding *holding)
{
    int64_t window_ms =
        may_be_delta(holding) ? DELTA_WINDOW_MS : atomic_load(&holding->refdata->catalog)->cache.debounce_ms;
    int64_t debounced_ns = holding->began_ns + window_ms * CLOCK_NS_PER_MS;
    int64_t due_ns = holding->retry_at_ns;
    if (has_waiters(holding))
        return 0;
    return holding->began_ns && due_ns < debounced_ns ? debounced_ns : due_ns;
}

void refdata_schedule_compare(struct refdata_holding *holding, int64_t delay_ms)
{
    int64_t due_ns = next_due_ns(holding), delayed_ns = clock_deadline_ms(delay_ms);
    refdata_schedule_want(holding, due_ns > delayed_ns ? due_ns : delayed_ns);
}

static void note_wanted(struct refdata_holding *holding, int64_t version)
{
    if (holding->wanted_version < version)
        holding->wanted_version = version;
}

void refdata_schedule_behind(struct refdata_holding *holding, int64_t version, int64_t delay_ms)
{
    note_wanted(holding, version);
    if (holding->failure == FAILURE_TOO_LARGE &&
        version > holding->failed_version) { /* something was changed */
        holding->failure = FAILURE_REFUSED;
        holding->retry_at_ns = 0;
        if (holding->state == HOLDING_DELAYED)
            refdata_holding_move(holding, HOLDING_IDLE);
    }
    if (!refdata_holding_is_loading(holding)) /* otherwise known when it is back */
        refdata_schedule_compare(holding, delay_ms);
}

void refdata_schedule_urge(struct refdata_holding *holding, int64_t version)
{
    note_wanted(holding, version);
    if (!refdata_holding_is_loading(holding))
        refdata_schedule_want(holding, 0);
}

int64_t refdata_schedule_jitter_ms(const struct refdata *refdata)
{
    int64_t jitter_ms = atomic_load(&refdata->catalog)->cache.jitter_ms;
    return jitter_ms ? (int64_t)(random_u64() % (uint64_t)jitter_ms) : 0;
}

/* ---- how a load ended ---- */

static void load_failed(struct refdata_holding *holding, const struct refdata_loaded *loaded)
{
    const struct refdata_cache_settings *settings = &atomic_load(&holding->refdata->catalog)->cache;
    bool has_data = cache_slot_read(&holding->slot) != NULL;
    holding->retry.min_ms = settings->retry_min_ms;
    holding->retry.max_ms = settings->retry_max_ms;
    int64_t delay_ms = backoff_next_ms(&holding->retry);
    switch (loaded->status) {
    case STATUS_DB_DOWN:
    case STATUS_TIMEOUT:
    case STATUS_DB_RETRY:
    case STATUS_CANCELLED: holding->failure = FAILURE_OUTAGE; break;
    case STATUS_PAYLOAD_TOO_LARGE:
        holding->failure = FAILURE_TOO_LARGE;
        delay_ms = delay_ms < TOO_LARGE_RETRY_MS ? TOO_LARGE_RETRY_MS : delay_ms;
        break;
    default: holding->failure = FAILURE_REFUSED;
    }
    holding->failed_version = loaded->change.to;
    free(holding->last_error);
    holding->last_error =
        str_dup(str_from(*loaded->error.message ? loaded->error.message : status_message(loaded->status)));
    if (holding->failure != FAILURE_OUTAGE && holding->basis == BASIS_HELD)
        holding->basis = BASIS_NONE; /* what cannot be had key by key may be had at once */
    refdata_metrics_count(REFDATA_RELOAD_ERRORS, holding->code);
    log_warn("dictionary_load_failed", LOG_STR("tenantId", holding->tenant),
             LOG_STR("dictCode", holding->code), LOG_INT("failures", holding->retry.failures),
             LOG_INT("retryMs", delay_ms), LOG_BOOL("servesOldVersion", has_data),
             LOG_ERROR_FIELDS(&loaded->error));
    holding->retry_at_ns = clock_deadline_ms(delay_ms);
    if (!has_data)
        refdata_asks_refuse(&holding->waiting, STATUS_DICTIONARY_UNAVAILABLE,
                            "the dictionary cannot be loaded now");
    if (holding->preload || has_data)
        refdata_schedule_want(holding, holding->retry_at_ns);
}

/* A new version goes live. */
static void swap(struct refdata_holding *holding, struct refdata_loaded *loaded)
{
    struct refdata *refdata = holding->refdata;
    const struct cache_snapshot *before = cache_slot_read(&holding->slot);
    const struct cache_info *info = cache_snapshot_info(loaded->snapshot);
    int64_t local = before && holding->basis != BASIS_REDEFINED ? cache_snapshot_info(before)->version : -1;
    bool is_delta = refdata_loaded_is_delta(loaded);
    if (local >= 0 && loaded->change.is_fork) { /* R14: what was held is not in the database any more */
        char lost[UUID_TEXT_BYTES], event[UUID_TEXT_BYTES];
        uuid_format(&cache_snapshot_info(before)->event, lost);
        uuid_format(&info->event, event);
        refdata_metrics_count(REFDATA_REGRESSIONS, holding->code);
        log_error(info->version < local ? "dictionary_version_went_back" : "dictionary_history_replaced",
                  LOG_STR("tenantId", holding->tenant), LOG_STR("dictCode", holding->code),
                  LOG_INT("localVersion", local), LOG_INT("version", info->version),
                  LOG_CSTR("localEventId", lost), LOG_CSTR("eventId", event));
        if (holding->lost_version < local)
            holding->lost_version = local;
    }
    refdata->memory_bytes += info->memory_bytes - holding->memory_bytes;
    holding->memory_bytes = info->memory_bytes;
    loaded->change.from = local;
    if (!is_delta || log_enabled(LOG_LEVEL_DEBUG)) /* many a second, where only keys are loaded */
        log_write(is_delta ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO, "dictionary_loaded",
                  LOG_FIELDS(LOG_STR("tenantId", holding->tenant), LOG_STR("dictCode", holding->code),
                             LOG_INT("version", info->version), LOG_INT("items", info->item_count),
                             LOG_CSTR("mode", is_delta ? "delta" : "full"),
                             LOG_INT("durationMs", (int64_t)(loaded->seconds * 1000)),
                             LOG_INT("bytes", info->memory_bytes)));
    if (loaded->replaced)
        log_warn("dictionary_keys_repeated", LOG_STR("tenantId", holding->tenant),
                 LOG_STR("dictCode", holding->code), LOG_INT("repeated", loaded->replaced),
                 LOG_CSTR("effect", "the last row of a key wins"));
    refdata_metrics_loaded(holding, loaded, local >= 0 && info->version > local);
    cache_slot_publish(&holding->slot, loaded->snapshot, refdata->loops);
    refdata_keeper_count_pinned(refdata);
    refdata_watch_published(holding, before, loaded->snapshot, &loaded->change);
}

void refdata_schedule_loaded(struct refdata_holding *holding, const struct refdata_load *load,
                             struct refdata_loaded *loaded)
{
    struct refdata *refdata = holding->refdata;
    bool is_dropped = holding->state == HOLDING_DROPPED, again = holding->state == HOLDING_LOADING_AGAIN;
    bool is_baseless = refdata_loaded_is_delta(loaded) && load->held != cache_slot_read(&holding->slot);
    bool is_outdated = load->dictionary != holding->dictionary || is_baseless;
    holding->queue->running--;
    turns_leave(&holding->queue->urgent, holding->place);
    if (!is_dropped)
        refdata_holding_move(holding, HOLDING_IDLE);
    if (is_dropped || is_outdated)
        cache_snapshot_unref(loaded->snapshot);
    if (!is_dropped && is_outdated) { /* by a definition that is no longer in force: waiters keep waiting */
        refdata_schedule_want(holding, 0);
    } else if (!is_dropped && loaded->status != STATUS_OK) {
        load_failed(holding, loaded);
    } else if (!is_dropped) {
        int64_t version = cache_snapshot_info(loaded->snapshot)->version;
        backoff_reset(&holding->retry);
        holding->failure = FAILURE_NONE;
        holding->retry_at_ns = 0;
        if (holding->committed_version < version)
            holding->committed_version = version;
        if (loaded->snapshot == cache_slot_read(&holding->slot))
            cache_snapshot_unref(loaded->snapshot); /* nothing had changed */
        else
            swap(holding, loaded);
        refdata_load_span_loaded(holding, version, refdata_loaded_is_delta(loaded));
        if (!refdata_loaded_is_delta(loaded))
            holding->basis = BASIS_HELD;
        /* Loaded counts as read: the next to go is not the one just asked for. */
        atomic_store(&holding->used_at_s[loop_index(refdata->home)],
                     (uint32_t)(loop_now_ns(refdata->home) / CLOCK_NS_PER_S));
        refdata_barrier_loaded(holding, version);
        refdata_keeper_trim(refdata, holding);
        if (again || holding->wanted_version > version)
            refdata_schedule_want(holding, next_due_ns(holding));
    }
    refdata_keeper_unref(holding);
    run_queues(refdata);
    refdata_keeper_update_health(refdata);
}

void refdata_schedule_checked(struct refdata *refdata, struct refdata_dictionary *dictionary)
{
    bool is_ready = atomic_load(&dictionary->state) == REFDATA_READY;
    refdata_metrics_dictionary(dictionary);
    for (size_t i = 0; i <= refdata->own->mask; i++) {
        struct refdata_holding *holding = refdata->own->slots[i];
        if (!holding || holding->dictionary != dictionary)
            continue;
        if (!is_ready) { /* R15: it loads nothing; what an earlier definition loaded is served meanwhile */
            refdata_barrier_refuse(holding);
            if (holding->state == HOLDING_IDLE)
                refdata_holding_move(holding, HOLDING_WANTED);
        } else if (holding->state == HOLDING_WANTED ||
                   holding->state == HOLDING_DELAYED) { /* at a start: of many pods at once, perhaps */
            int64_t jitter_ms = has_waiters(holding) ? 0 : refdata_schedule_jitter_ms(refdata);
            refdata_schedule_want(holding, clock_deadline_ms(jitter_ms));
        }
    }
    refdata_keeper_update_health(refdata);
}
