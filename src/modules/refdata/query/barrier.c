/* The barrier's two halves: a reader's own loop parks and answers it, the home loop has the list of waiting requests. They exchange
 * asks (ask.h). */
#include "modules/refdata/query/reading.h"

#include "base/budget.h"
#include "base/clock.h"

static const char full_text[] = "readers keep too many old versions in memory";
static const char refused_text[] = "the dictionary's configuration was refused by PostgreSQL";

/* ---- home: waiting for a load ---- */

static void ask_reached_again(struct refdata_asks *asks, int64_t version, int64_t now_ns)
{
    struct refdata_asks all = STAILQ_HEAD_INITIALIZER(all);
    STAILQ_CONCAT(&all, asks);
    for (struct refdata_ask *ask; (ask = refdata_asks_take(&all)) != NULL;) {
        if (ask->version <= version)
            refdata_ask_again(ask);
        else if (ask->expires_ns > now_ns)
            STAILQ_INSERT_TAIL(asks, ask, next);
        else /* it went on to the primary, or is gone: no load skips the debounce for it */
            refdata_ask_free(ask);
    }
}

/* Also those that wait for the primary, which may be slow or not respond. */
void refdata_barrier_loaded(struct refdata_holding *holding, int64_t version)
{
    int64_t now_ns = loop_now_ns(holding->refdata->home);
    ask_reached_again(&holding->waiting, version, now_ns);
    ask_reached_again(&holding->barrier.queued, version, now_ns);
    ask_reached_again(&holding->barrier.asked, version, now_ns);
}

void refdata_barrier_refuse(struct refdata_holding *holding)
{
    refdata_asks_refuse(&holding->waiting, STATUS_DICTIONARY_UNAVAILABLE, refused_text);
    refdata_asks_refuse(&holding->barrier.queued, STATUS_DICTIONARY_UNAVAILABLE, refused_text);
}

/* ---- home: questions to the primary ---- */

static void ask_primary(struct refdata_holding *holding);

static bool lacks_room(void)
{
    if (!budget_is_full(BUDGET_VERSIONS))
        return false;
    budget_count_refusal(BUDGET_VERSIONS);
    return true;
}

static void on_keys(void *context, struct refdata_primary_answer *answer)
{
    struct refdata_ask *ask = context;
    /* By now the dictionary may be defined otherwise, elsewhere even: then an answer by the old definition does not count. */
    bool is_in_force =
        refdata_catalog_find(atomic_load(&ask->refdata->catalog), ask->code) == ask->definition &&
        atomic_load(&ask->definition->state) == REFDATA_READY;
    bool is_good = answer->status == STATUS_OK && answer->committed.version >= ask->version && is_in_force;
    refdata_keeper_count_pinned_now(ask->refdata);
    if (answer->status == STATUS_NO_MEMORY || (is_good && ask->may_be_kept && lacks_room())) {
        cache_snapshot_unref(answer->snapshot);
        refdata_ask_refuse(ask, STATUS_OVERLOADED, full_text);
        return;
    }
    if (is_good) {
        ask->from_primary = true;
        ask->snapshot = answer->snapshot;
    } else {
        cache_snapshot_unref(answer->snapshot);
    }
    if (is_good || !is_in_force)
        refdata_ask_again(ask);
    else
        refdata_ask_refuse(ask, STATUS_UNAVAILABLE, "the primary cannot be read");
}

static void decide_asks(struct refdata_holding *holding, struct refdata_asks *asked,
                        const struct refdata_committed *committed)
{
    struct refdata *refdata = holding->refdata;
    const struct cache_snapshot *held = cache_slot_read(&holding->slot);
    int64_t local = refdata_holding_version(holding);
    /* Was what is held lost: is its number committed by another event, or not at all? */
    bool is_lost = held && local >= committed->version && !refdata_is_committed(held, committed);
    holding->committed_version = committed->version;
    if (is_lost)
        refdata_schedule_want(holding, 0);
    else if (committed->version > local)
        refdata_schedule_urge(holding, committed->version); /* a request waits: neither jitter nor debounce */
    for (struct refdata_ask *ask; (ask = refdata_asks_take(asked)) != NULL;) {
        ask->current = committed->version;
        if (local >= ask->version && !is_lost) {
            refdata_ask_again(ask);
        } else if (committed->version < ask->version) {
            refdata_ask_refuse(ask, STATUS_VERSION_NOT_COMMITTED, "");
        } else if (ask->keys.len && ask->may_be_kept && lacks_room()) {
            refdata_ask_refuse(ask, STATUS_OVERLOADED, full_text);
        } else if (ask->keys.len) {
            ask->definition = holding->dictionary;
            refdata_metrics_count(REFDATA_FALLBACK_READS, holding->code);
            if (!refdata_primary_ask(refdata, holding->dictionary, holding->tenant, ask->keys, on_keys, ask))
                refdata_ask_refuse(ask, STATUS_OVERLOADED, "too many reads from the primary at once");
        } else { /* the whole dictionary: what the reload under way reads from the primary is the answer */
            ask->from_primary = true;
            ask->expires_ns = clock_deadline_ms(atomic_load(&refdata->catalog)->barrier.timeout_ms);
            refdata_asks_add(&holding->waiting, ask, clock_mono_ns());
        }
    }
}

static void on_version(void *context, struct refdata_primary_answer *answer)
{
    struct refdata_holding *holding = context;
    struct refdata_barrier *barrier = &holding->barrier;
    enum refdata_dictionary_state state = atomic_load(&holding->dictionary->state);
    bool is_outdated = barrier->definition != holding->dictionary || state != REFDATA_READY;
    struct refdata_asks asked = STAILQ_HEAD_INITIALIZER(asked);
    STAILQ_CONCAT(&asked, &barrier->asked);
    barrier->definition = NULL;
    if (holding->state == HOLDING_DROPPED)
        refdata_asks_refuse(&asked, STATUS_UNAVAILABLE, "the dictionary is being reloaded");
    else if (state == REFDATA_DISABLED) /* what it has is served, no more */
        refdata_asks_refuse(&asked, STATUS_DICTIONARY_UNAVAILABLE, refused_text);
    else if (is_outdated)
        refdata_asks_again(&asked); /* with what is in force now */
    else if (answer->status != STATUS_OK)
        refdata_asks_refuse(&asked, STATUS_UNAVAILABLE, "the primary cannot be read");
    else
        decide_asks(holding, &asked, &answer->committed);
    if (!STAILQ_EMPTY(&barrier->queued))
        ask_primary(holding);
    refdata_keeper_unref(holding);
}

/* One query at a time, for all requests that came before it begins. */
static void ask_primary(struct refdata_holding *holding)
{
    struct refdata *refdata = holding->refdata;
    struct refdata_barrier *barrier = &holding->barrier;
    int64_t second = loop_now_ns(refdata->home) / CLOCK_NS_PER_S;
    if (barrier->definition)
        return;
    if (barrier->second != second)
        barrier->second = second, barrier->asked_this_second = 0;
    if (barrier->asked_this_second++ >= (unsigned)atomic_load(&refdata->catalog)->barrier.checks_per_second) {
        refdata_asks_refuse(&barrier->queued, STATUS_OVERLOADED,
                            "too many readers demand versions that are not here");
    } else if (refdata_primary_ask(refdata, holding->dictionary, holding->tenant, STR_NONE, on_version,
                                   holding)) {
        holding->refs++;
        barrier->definition = holding->dictionary;
        STAILQ_CONCAT(&barrier->asked, &barrier->queued);
    } else {
        refdata_asks_refuse(&barrier->queued, STATUS_OVERLOADED, "too many reads from the primary at once");
    }
}

/* ---- home: what readers ask for ---- */

static void wait_for_version(struct refdata_ask *ask)
{
    struct refdata_holding *holding = refdata_ask_holding(ask);
    int64_t now_ns = loop_now_ns(ask->refdata->home), version = ask->version;
    if (!holding || !cache_slot_read(&holding->slot) || refdata_holding_version(holding) >= version) {
        refdata_ask_again(ask);
    } else if (atomic_load(&holding->dictionary->state) == REFDATA_DISABLED) {
        refdata_ask_refuse(ask, STATUS_DICTIONARY_UNAVAILABLE, refused_text);
    } else {
        refdata_asks_add(&holding->waiting, ask, now_ns);
        if (holding->wanted_version >= version && holding->retry_at_ns <= now_ns)
            refdata_schedule_urge(holding, version); /* it is known to be committed, and was debounced */
        ask_primary(holding);
    }
}

static void decide_by_primary(struct refdata_ask *ask)
{
    struct refdata_holding *holding = refdata_ask_holding(ask);
    if (!holding) {
        refdata_ask_again(ask);
        return;
    }
    STAILQ_INSERT_TAIL(&holding->barrier.queued, ask, next);
    ask_primary(holding);
}

/* ---- the reader's own loop ---- */

static void on_wait_over(struct http_request *request, void *context)
{
    struct refdata *refdata = context;
    refdata_ask_post(request, atomic_load(&refdata->catalog)->barrier.timeout_ms, refdata_ask_late,
                     decide_by_primary, request->handler_data);
}

bool refdata_barrier_reach(struct http_request *request, const struct refdata_reading *reading,
                           int64_t version, const struct str *keys, size_t count)
{
    struct refdata *refdata = request->context;
    if (version <= reading->info->version)
        return true;
    struct refdata_demand *demand = arena_zalloc(request->arena, sizeof *demand);
    struct buf array = {0};
    for (size_t i = 0; i < count; i++)
        db_array_put(&array, keys[i]);
    demand->version = version;
    demand->code = arena_str(request->arena, reading->holding->code);
    demand->may_be_kept = count > 1;
    demand->keys = count ? arena_str(request->arena, db_array_end(&array)) : STR_NONE;
    buf_deinit(&array);
    request->handler_data = demand;
    refdata_ask_post(request, atomic_load(&refdata->catalog)->barrier.wait_ms, on_wait_over, wait_for_version,
                     demand);
    return false;
}

bool refdata_barrier_pass(struct http_request *request, const struct refdata_reading *reading,
                          const struct str *keys, size_t count)
{
    struct str text = http_request_header(request, STR("x-min-version"));
    struct error error;
    uint64_t version = 0;
    if (!text.ptr)
        return true;
    if (str_to_u64(text, &version) && version <= INT64_MAX &&
        http_request_header_count(request, STR("x-min-version")) == 1)
        return refdata_barrier_reach(request, reading, (int64_t)version, keys, count);
    error_set_field(&error, STATUS_BAD_REQUEST, "X-Min-Version",
                    "X-Min-Version must be one whole number, not negative");
    http_send_error(request, &error);
    return false;
}
