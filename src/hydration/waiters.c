/* Waiters: how a wait begins and how it ends. Lookups of one entity differ by how much of it they need and, once an answer has
 * shown that it is private, by the caller.
 *
 *     bucket ─▶ lookup (item 7, full) ─▶ lookup (item 7, existence) ─▶ lookup (session 9, full, for ann)
 *                  └ waiters: ann, bob, ann, eve
 *
 * A wait ends by an event (deliver.c), at its deadline, when its caller cancels it or when the shard stops; shortly before the
 * deadline the ledger is read once more, for all waiters of a lookup together.
 *
 * A callback may ask, cancel and free. So waiters that leave are moved to a list of the shard first, and their callbacks run when
 * all of them are there and unused lookups have ended. */
#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"
#include "hydration/inside.h"

enum {
    BACKGROUND_MS = 60000,
    BACKGROUND_MAX = 256, /* waiters of a shard without a caller */
    LAST_READ_PART = 10,  /* the last read takes at most a tenth of a short wait */
};

static const struct hydration_outcome refused = {.result = HYDRATION_UNAVAILABLE,
                                                 .way = HYDRATION_BY_JOINING};

struct hydration_shard *hydration_shard_create(struct hydration *hydration, struct loop *loop)
{
    struct hydration_shard *shard = memory_zalloc(sizeof *shard);
    const struct hydration_settings *settings = hydration->config.settings;
    size_t loops = loop_group_count(hydration->config.loops);

    shard->hydration = hydration;
    shard->loop = loop;
    hydration_memory_init(&shard->memory, (size_t)settings->memory_entries / loops,
                          (size_t)settings->memory_bytes / loops);
    map_reserve(&shard->lookups, HYDRATION_LOOKUPS_MAX); /* so that it does not grow while it is walked */
    TAILQ_INIT(&shard->leaving);
    turns_init(&shard->turns);
    turns_init(&shard->job_turns);
    hydration_metrics_register();
    return shard;
}

void hydration_shard_stop(struct hydration_shard *shard)
{
    shard->stopping = true;
    hydration_lookups_stop(shard);
}

void hydration_shard_destroy(struct hydration_shard *shard)
{
    hydration_memory_deinit(&shard->memory);
    map_deinit(&shard->lookups);
    turns_deinit(&shard->turns);
    turns_deinit(&shard->job_turns);
    buf_deinit(&shard->cut);
    free(shard);
}

/* ---- outcomes ---- */

/* One line for each question (specification 001 §12); without a question at level debug. */
static void log_outcome(const struct hydration_need *need, const struct hydration_policy *policy,
                        const char *correlation_id, const struct hydration_outcome *outcome)
{
    enum log_level level = outcome->way == HYDRATION_BY_QUESTION ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG;
    char trace_id[TRACE_ID_TEXT_BYTES];
    if (!log_enabled(level))
        return;
    log_write(level, "hydration",
              LOG_FIELDS(LOG_STR("tenant_id", need->tenant), LOG_STR("entity_type", need->entity_type),
                         LOG_STR("entity_id", need->entity_id),
                         LOG_CSTR("hydration_mode", hydration_mode_names[need->cover.mode]),
                         LOG_CSTR("requester_module", policy->module),
                         LOG_STR("source_module", outcome->source_module),
                         LOG_CSTR("correlation_id", correlation_id),
                         LOG_INT("wait_timeout_ms", policy->wait_timeout_ms),
                         LOG_BOOL("negative_cache_hit", outcome->is_negative_hit),
                         LOG_CSTR("result", hydration_result_name(outcome->result)),
                         LOG_STR("traceId", trace_id_text(&need->trace, trace_id))));
}

/* Returns `data` cut to the need: `data` itself, a literal, or a text in `out`. */
static struct str cut_data(const struct hydration_cover *cover, struct str data, struct buf *out)
{
    if (cover->mode == HYDRATION_FULL || !data.len)
        return data;
    if (cover->mode == HYDRATION_EXISTENCE)
        return STR("{}");
    buf_clear(out);
    hydration_cover_cut(cover, data, out);
    return buf_str(out);
}

/* Completes a waiter that did not have to wait. */
static void complete_now(struct hydration_waiter *waiter, const struct hydration_need *need,
                         const struct hydration_outcome *outcome)
{
    hydration_count_outcome(waiter->policy, outcome, waiter->begun_ns, waiter->begun_ns);
    log_outcome(need, waiter->policy, NULL, outcome);
    waiter->on_done(waiter, outcome);
}

/* The only place that changes the state. */
static void move_waiter(struct hydration_waiter *waiter, enum hydration_waiter_state to)
{
    static const unsigned allowed[] = {
        [HYDRATION_WAITER_IDLE] = 1u << HYDRATION_WAITER_WAITING,
        [HYDRATION_WAITER_WAITING] =
            1u << HYDRATION_WAITER_LAST_READ | 1u << HYDRATION_WAITER_LEAVING | 1u << HYDRATION_WAITER_IDLE,
        [HYDRATION_WAITER_LAST_READ] = 1u << HYDRATION_WAITER_LEAVING | 1u << HYDRATION_WAITER_IDLE,
        [HYDRATION_WAITER_LEAVING] = 1u << HYDRATION_WAITER_IDLE,
    };
    assert(allowed[waiter->state] & 1u << to);
    waiter->state = to;
}

/* ---- beginning a wait ---- */

static void on_waiter_due(struct loop_timer *timer);

static int64_t last_read_ns(const struct hydration_waiter *waiter)
{
    int64_t part_ns = (waiter->deadline_ns - waiter->begun_ns) / LAST_READ_PART,
            most_ns = HYDRATION_REREAD_MS * CLOCK_NS_PER_MS;
    return part_ns < most_ns ? part_ns : most_ns;
}

static void start_waiting(struct hydration_waiter *waiter, struct str caller)
{
    struct hydration_shard *shard = waiter->shard;
    move_waiter(waiter, HYDRATION_WAITER_WAITING);
    waiter->caller = str_of(str_dup(caller), caller.len);
    loop_timer_start(shard->loop, &waiter->timer, waiter->deadline_ns - last_read_ns(waiter), on_waiter_due);
    shard->waiter_count++;
    shard->background_count += waiter->is_background;
    hydration_count_waiters(1);
}

/* `to`: IDLE, or LEAVING with a callback to come. */
static void stop_waiting(struct hydration_waiter *waiter, enum hydration_waiter_state to)
{
    move_waiter(waiter, to);
    loop_timer_stop(waiter->shard->loop, &waiter->timer);
    free((char *)waiter->caller.ptr);
    waiter->caller = STR_NONE;
    waiter->shard->waiter_count--;
    waiter->shard->background_count -= waiter->is_background;
    hydration_count_waiters(-1);
}

bool hydration_waiter_join(struct hydration_waiter *waiter, const struct hydration_need *need,
                           struct str caller)
{
    struct hydration_shard *shard = waiter->shard;
    uint64_t hash = hydration_entity_hash(need->tenant, need->entity_type, need->entity_id);
    struct hydration_lookup *lookup = NULL;
    struct map_node *node;

    MAP_MATCH(node, &shard->lookups, hash) {
        lookup = CONTAINER_OF(node, struct hydration_lookup, node);
        if (str_eq(lookup->need.entity_id, need->entity_id) &&
            str_eq(lookup->need.entity_type, need->entity_type) &&
            str_eq(lookup->need.tenant, need->tenant) && str_eq(lookup->need.caller, caller) &&
            hydration_cover_equal(&lookup->need.cover, &need->cover))
            break;
    }
    waiter->has_joined = node;
    if (!node)
        lookup = hydration_lookup_open(shard, hash, need, caller, waiter->policy);
    if (!lookup)
        return false;
    if (waiter->lookup)
        TAILQ_REMOVE(&waiter->lookup->waiters, waiter, link);
    waiter->lookup = lookup;
    TAILQ_INSERT_TAIL(&lookup->waiters, waiter, link);
    if (!waiter->has_joined)
        hydration_lookup_start(lookup, LOOKUP_FIND);
    hydration_lookup_reread_if_idle(lookup);
    return true;
}

/* Memory is read and the waiter registered in one turn of the loop, and the ledger after that, so no event is missed: it is in memory
 * already, or it finds the waiter. */
void hydration_ask(struct hydration *hydration, const struct hydration_policy *policy,
                   const struct hydration_need *need, bool defers, struct loop *loop,
                   struct hydration_waiter *waiter, hydration_done_fn *on_done)
{
    struct hydration_shard *shard = hydration->shards[loop_index(loop)];
    int64_t now_ns = loop_now_ns(loop);

    *waiter = (struct hydration_waiter){.shard = shard,
                                        .on_done = on_done,
                                        .policy = policy,
                                        .begun_ns = now_ns,
                                        .deadline_ns = now_ns + policy->wait_timeout_ms * CLOCK_NS_PER_MS,
                                        .defers = defers};
    if (shard->stopping || !atomic_load_explicit(&hydration->bus, memory_order_acquire)) {
        complete_now(waiter, need, &refused);
        return;
    }
    struct hydration_known_entity known = hydration_memory_find(&shard->memory, need, now_ns);
    if (known.serves) {
        struct buf cut = shard->cut; /* taken from the shard during the callback, which may ask again */
        shard->cut = (struct buf){0};
        known.outcome.data = cut_data(&need->cover, known.outcome.data, &cut);
        complete_now(waiter, need, &known.outcome);
        buf_deinit(&shard->cut);
        shard->cut = cut;
        return;
    }
    struct hydration_need own = *need;
    waiter->is_traced = span_enter(&own.trace, waiter->parent_span);
    waiter->trace = own.trace;
    start_waiting(waiter, need->caller);
    if (!hydration_waiter_join(waiter, &own, known.is_private ? need->caller : STR_NONE)) {
        stop_waiting(waiter, HYDRATION_WAITER_IDLE);
        complete_now(waiter, need, &refused);
    } else if (known.is_private || known.was_received || known.outcome.data.len) {
        /* An event arrived that the ledger may not have stored yet. */
        waiter->lookup->lag_ms = HYDRATION_REREAD_MS;
    }
}

/* ---- ending a wait ---- */

void hydration_waiter_cancel(struct hydration_waiter *waiter)
{
    if (waiter->state == HYDRATION_WAITER_IDLE)
        return;
    if (waiter->state == HYDRATION_WAITER_LEAVING) {
        TAILQ_REMOVE(&waiter->shard->leaving, waiter, link);
        move_waiter(waiter, HYDRATION_WAITER_IDLE);
        return;
    }
    TAILQ_REMOVE(&waiter->lookup->waiters, waiter, link);
    stop_waiting(waiter, HYDRATION_WAITER_IDLE);
    hydration_lookup_end_unused(waiter->lookup);
}

static void record_span(const struct hydration_waiter *waiter, const struct hydration_outcome *outcome)
{
    static const char *const ways[] = {[HYDRATION_BY_MEMORY] = "memory",
                                       [HYDRATION_BY_LEDGER] = "ledger",
                                       [HYDRATION_BY_JOINING] = "joining",
                                       [HYDRATION_BY_QUESTION] = "asking"};
    const struct hydration_need *need = &waiter->lookup->need;
    struct span span;
    span_resume(&span, SPAN_INTERNAL, "look up entity", &waiter->trace, waiter->parent_span,
                clock_mono_ns() - waiter->begun_ns);
    span_put_str(&span, "freshet.tenant.id", need->tenant);
    span_put_str(&span, "freshet.entity.type", need->entity_type);
    span_put_str(&span, "freshet.entity.id", str_utf8_cut(need->entity_id, SPAN_TEXT_BYTES / 2));
    span_put_str(&span, "freshet.hydration.way", str_from(ways[outcome->way]));
    span_put_str(&span, "freshet.hydration.result", str_from(hydration_result_name(outcome->result)));
    if (outcome->result == HYDRATION_UNAVAILABLE || outcome->result == HYDRATION_TIMEOUT)
        span_fail(&span, str_from(hydration_result_name(outcome->result)));
    span_end(&span);
}

void hydration_waiter_leave(struct hydration_waiter *waiter, const struct hydration_outcome *outcome,
                            enum hydration_way way)
{
    const struct hydration_lookup *lookup = waiter->lookup;
    struct hydration_outcome own = *outcome;

    own.way = waiter->way = way;
    if (waiter->is_traced)
        record_span(waiter, &own);
    if (!waiter->is_background) {
        hydration_count_outcome(waiter->policy, &own, waiter->begun_ns, loop_now_ns(waiter->shard->loop));
        log_outcome(&lookup->need, waiter->policy,
                    lookup->question.caller ? lookup->question.correlation_id : lookup->job.correlation_id,
                    &own);
    }
    TAILQ_REMOVE(&waiter->lookup->waiters, waiter, link);
    stop_waiting(waiter, HYDRATION_WAITER_LEAVING);
    waiter->outcome = outcome;
    TAILQ_INSERT_TAIL(&waiter->shard->leaving, waiter, link);
}

/* Waiters of one lookup are next to each other in the list, so that data is cut once for all of them. Lookups that have ended are
 * freed after the tick. */
void hydration_waiters_call(struct hydration_shard *shard)
{
    const struct hydration_lookup *cut_for = NULL;
    const struct hydration_outcome *cut_of = NULL;
    struct hydration_waiter *waiter;
    struct str data = STR_NONE;
    struct buf part = {0};

    while ((waiter = TAILQ_FIRST(&shard->leaving)) != NULL) {
        struct hydration_outcome outcome = *waiter->outcome;
        TAILQ_REMOVE(&shard->leaving, waiter, link);
        move_waiter(waiter, HYDRATION_WAITER_IDLE);
        if (waiter->lookup != cut_for || waiter->outcome != cut_of)
            data = cut_data(&waiter->lookup->need.cover, outcome.data, &part);
        cut_for = waiter->lookup;
        cut_of = waiter->outcome;
        outcome.data = data;
        outcome.way = waiter->way;
        waiter->on_done(waiter, &outcome);
    }
    buf_deinit(&part);
}

void hydration_waiters_fail(struct hydration_lookup *lookup)
{
    const struct hydration_shard *shard = lookup->shard;
    struct hydration_waiter *waiter, *next;

    lookup->outcome = hydration_memory_find(&shard->memory, &lookup->need, loop_now_ns(shard->loop)).outcome;
    lookup->outcome.result = HYDRATION_UNAVAILABLE;
    lookup->outcome.is_negative_hit = false;
    TAILQ_FOREACH_SAFE(waiter, &lookup->waiters, link, next)
        if (!waiter->is_background || shard->stopping)
            hydration_waiter_leave(waiter, &lookup->outcome, HYDRATION_BY_JOINING);
}

/* ---- deadlines ---- */

struct background {
    struct hydration_waiter waiter;
    struct hydration_policy policy;
};

static void on_background_done(struct hydration_waiter *waiter, const struct hydration_outcome *outcome)
{
    (void)outcome;
    loop_free_later(waiter->shard->loop, CONTAINER_OF(waiter, struct background, waiter), free);
}

/* Adds a waiter without a caller, so that the lookup continues after a caller that deferred was answered. At most one for each caller;
 * they are at the front of the list. */
static void wait_in_background(struct hydration_lookup *lookup, const struct hydration_waiter *waiter)
{
    struct hydration_shard *shard = lookup->shard;
    int64_t now_ns = loop_now_ns(shard->loop);
    const struct hydration_waiter *other;

    TAILQ_FOREACH(other, &lookup->waiters, link) {
        if (!other->is_background)
            break;
        if (str_eq(other->caller, waiter->caller))
            return;
    }
    if (shard->background_count == BACKGROUND_MAX)
        return;
    struct background *background = memory_alloc(sizeof *background);
    *background = (struct background){.policy = *waiter->policy,
                                      .waiter = {.shard = shard,
                                                 .lookup = lookup,
                                                 .on_done = on_background_done,
                                                 .begun_ns = now_ns,
                                                 .deadline_ns = now_ns + BACKGROUND_MS * CLOCK_NS_PER_MS,
                                                 .has_joined = true,
                                                 .is_background = true}};
    background->waiter.policy = &background->policy;
    TAILQ_INSERT_HEAD(&lookup->waiters, &background->waiter, link);
    start_waiting(&background->waiter, waiter->caller);
}

/* The timer fires twice: for the last read, then for the timeout, whose outcome has a stale copy of memory or else of the ledger. */
static void on_waiter_due(struct loop_timer *timer)
{
    struct hydration_waiter *waiter = CONTAINER_OF(timer, struct hydration_waiter, timer);
    struct hydration_shard *shard = waiter->shard;
    struct hydration_lookup *lookup = waiter->lookup;
    int64_t now_ns = loop_now_ns(shard->loop);

    if (waiter->state != HYDRATION_WAITER_LAST_READ) {
        move_waiter(waiter, HYDRATION_WAITER_LAST_READ);
        loop_timer_start(shard->loop, &waiter->timer, waiter->deadline_ns, on_waiter_due);
        if (now_ns - lookup->read_ns >= 2 * last_read_ns(waiter))
            hydration_lookup_start(lookup, LOOKUP_LAST_READ);
        return;
    }
    struct hydration_need need = lookup->need;
    need.caller = waiter->caller;
    struct hydration_outcome outcome = hydration_memory_find(&shard->memory, &need, now_ns).outcome;
    if (!outcome.data.len && lookup->stale.block &&
        (!lookup->stale.caller.len || str_eq(lookup->stale.caller, waiter->caller)))
        outcome = lookup->stale.outcome;
    outcome.result = HYDRATION_TIMEOUT;
    outcome.is_negative_hit = false;
    if (waiter->defers)
        wait_in_background(lookup, waiter);
    hydration_waiter_leave(waiter, &outcome,
                           lookup->question.caller && !waiter->has_joined ? HYDRATION_BY_QUESTION
                                                                          : HYDRATION_BY_JOINING);
    hydration_lookup_end_unused(lookup);
    hydration_waiters_call(shard);
}
