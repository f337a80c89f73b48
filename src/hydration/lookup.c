/* A lookup: one entity that callers of this loop wait for. Its states are drawn in inside.h; what it does is one job on a worker at
 * a time:
 *
 *     FIND ─▶ a copy or an absence: delivered               LAST_READ: the same, and no flight begins
 *          ─▶ not asked yet: ask the owner ─ retry_backoff ─▶ RETRY … ─ end of the window ─▶ FIND
 *          ─▶ asked already: wait                              ─ end of the window ─▶ FIND
 *
 * A shard runs few jobs at once; the other lookups are QUEUED, and tenants take turns: a caller that looks up thousands of
 * entities leaves workers to others. One tenant never has all places, so that its jobs, all blocked, leave one. Jobs start only at the end of the tick, when no function is using a lookup. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "hydration/inside.h"

static void on_lookup_due(struct loop_timer *timer);

static void arm_timer(struct hydration_lookup *lookup)
{
    int64_t due_ns = lookup->retry_at_ns < lookup->find_at_ns ? lookup->retry_at_ns : lookup->find_at_ns;
    if (lookup->state == LOOKUP_WAITING && due_ns != CLOCK_NEVER)
        loop_timer_start(lookup->shard->loop, &lookup->timer, due_ns, on_lookup_due);
    else
        loop_timer_stop(lookup->shard->loop, &lookup->timer);
}

/* The only place that changes the state. */
static void move_lookup(struct hydration_lookup *lookup, enum hydration_lookup_state to)
{
    static const unsigned allowed[] = {
        [LOOKUP_WAITING] = 1u << LOOKUP_QUEUED | 1u << LOOKUP_ENDED,
        [LOOKUP_QUEUED] = 1u << LOOKUP_RUNNING | 1u << LOOKUP_WAITING,
        [LOOKUP_RUNNING] = 1u << LOOKUP_WAITING,
        [LOOKUP_ENDED] = 0,
    };
    assert(allowed[lookup->state] & 1u << to);
    lookup->state = to;
    arm_timer(lookup);
}

/* ---- life ---- */

/* The lookups of all shards together take at most hydration's share of the memory budget. */
static bool has_memory(const struct hydration_shard *shard, size_t bytes)
{
    size_t max = budget_share(BUDGET_HYDRATION) / loop_group_count(shard->hydration->config.loops);
    if (shard->lookup_bytes == 0 || shard->lookup_bytes + bytes <= max)
        return true;
    budget_count_refusal(BUDGET_HYDRATION);
    return false;
}

struct hydration_lookup *hydration_lookup_open(struct hydration_shard *shard, uint64_t hash,
                                               const struct hydration_need *need, struct str caller,
                                               const struct hydration_policy *policy)
{
    uint64_t type_hash = hash_seeded(need->entity_type), tenant_hash = hash_seeded(need->tenant);
    struct turns_share *tenant_share, *type_share;
    struct hydration_need own = *need;
    own.caller = caller;
    size_t own_bytes = sizeof(struct hydration_lookup) + hydration_need_bytes(&own);
    size_t bytes = own_bytes + HYDRATION_ARENA_BYTES;

    if (shard->lookups.count == HYDRATION_LOOKUPS_MAX || !has_memory(shard, bytes))
        return NULL;
    tenant_share = turns_enter(&shard->turns, tenant_hash, HYDRATION_TENANT_MAX);
    if (!tenant_share)
        return NULL;
    type_share =
        turns_enter(&shard->turns, tenant_hash ^ (type_hash << 21 | type_hash >> 43), HYDRATION_TYPE_MAX);
    if (!type_share) {
        turns_leave(&shard->turns, tenant_share);
        return NULL;
    }
    struct hydration_lookup *lookup = memory_alloc(own_bytes);
    shard->lookup_bytes += bytes;
    budget_add(BUDGET_HYDRATION, bytes); /* copies in memory make room when the next one is stored */
    hydration_need_keep(&own, (char *)lookup->block);
    *lookup = (struct hydration_lookup){.shard = shard,
                                        .tenant_share = tenant_share,
                                        .type_share = type_share,
                                        .state = LOOKUP_WAITING,
                                        .need = own,
                                        .bytes = bytes,
                                        .policy = *policy,
                                        .retry_at_ns = CLOCK_NEVER,
                                        .find_at_ns = CLOCK_NEVER};
    TAILQ_INIT(&lookup->waiters);
    lookup->job.arena = ARENA(HYDRATION_ARENA_BYTES);
    map_add(&shard->lookups, &lookup->node, hash);
    return lookup;
}

static void free_lookup(void *memory)
{
    struct hydration_lookup *lookup = memory;
    budget_release(BUDGET_HYDRATION, lookup->bytes);
    arena_deinit(&lookup->job.arena);
    free(lookup->question.caller);
    free(lookup->stale.block); /* counted in `bytes` */
    free(lookup);
}

/* A lookup that asked the owner is needed for its retry, even without waiters of its own: lookups of other processes wait for the
 * same answer. */
void hydration_lookup_end_unused(struct hydration_lookup *lookup)
{
    struct hydration_shard *shard = lookup->shard;
    if (lookup->state != LOOKUP_WAITING || !TAILQ_EMPTY(&lookup->waiters) ||
        lookup->retry_at_ns != CLOCK_NEVER)
        return;
    move_lookup(lookup, LOOKUP_ENDED);
    map_remove(&shard->lookups, &lookup->node);
    shard->lookup_bytes -= lookup->bytes;
    turns_leave(&shard->turns, lookup->type_share);
    turns_leave(&shard->turns, lookup->tenant_share);
    loop_free_later(shard->loop, lookup, free_lookup);
}

bool hydration_lookup_is_own(const struct hydration_lookup *lookup, struct str correlation_id)
{
    return correlation_id.len > 0 && (str_eq(correlation_id, str_from(lookup->question.correlation_id)) ||
                                      str_eq(correlation_id, str_from(lookup->job.correlation_id)));
}

void hydration_lookup_answered(struct hydration_lookup *lookup)
{
    lookup->retry_at_ns = CLOCK_NEVER;
    lookup->job.is_answered |= lookup->state == LOOKUP_RUNNING || lookup->state == LOOKUP_QUEUED;
    arm_timer(lookup);
}

/* ---- timers ---- */

static void on_lookup_due(struct loop_timer *timer)
{
    struct hydration_lookup *lookup = CONTAINER_OF(timer, struct hydration_lookup, timer);
    bool is_retry = lookup->retry_at_ns <= lookup->find_at_ns;

    *(is_retry ? &lookup->retry_at_ns : &lookup->find_at_ns) = CLOCK_NEVER;
    if (is_retry || !TAILQ_EMPTY(&lookup->waiters))
        hydration_lookup_start(lookup, is_retry ? LOOKUP_RETRY : LOOKUP_FIND);
    else
        arm_timer(lookup);
    hydration_lookup_end_unused(lookup);
}

static int64_t ns_from_now(const struct hydration_lookup *lookup, int64_t ms)
{
    return loop_now_ns(lookup->shard->loop) + ms * CLOCK_NS_PER_MS;
}

static void find_at(struct hydration_lookup *lookup, int64_t at_ns)
{
    if (at_ns < lookup->find_at_ns)
        lookup->find_at_ns = at_ns;
}

void hydration_lookup_reread_soon(struct hydration_lookup *lookup)
{
    int64_t now_ns = loop_now_ns(lookup->shard->loop),
            spaced_ns = lookup->read_ns + HYDRATION_REREAD_MS * CLOCK_NS_PER_MS;
    lookup->lag_ms = HYDRATION_REREAD_MS;
    find_at(lookup, spaced_ns > now_ns ? spaced_ns : now_ns);
    arm_timer(lookup);
}

/* A lookup that exists only for its retry does not read the ledger until a waiter joins it. */
void hydration_lookup_reread_if_idle(struct hydration_lookup *lookup)
{
    if (lookup->state == LOOKUP_WAITING && !TAILQ_EMPTY(&lookup->waiters) &&
        lookup->find_at_ns == CLOCK_NEVER)
        hydration_lookup_reread_soon(lookup);
}

/* ---- the job, on a worker ---- */

/* An owner in this process is asked without the bus. A retry goes over the bus: another process that runs the owner may answer it. */
static void ask_owner(struct hydration_lookup *lookup, const struct hydration_cover *cover)
{
    struct hydration_lookup_job *job = &lookup->job;
    struct hydration *hydration = lookup->shard->hydration;
    const struct hydration_need *need = &job->need;
    int64_t wait_ms = clock_ms_left(job->waits_until_ns);
    const struct hydration_event question = {
        .kind = HYDRATION_EVENT_UNKNOWN,
        .tenant = need->tenant,
        .caller = need->caller,
        .correlation_id = str_from(job->correlation_id),
        .entity_type = need->entity_type,
        .entity_id = need->entity_id,
        .module = str_from(lookup->policy.module),
        .has_cover = true,
        .cover = *cover,
        .wait_ms = wait_ms > 0 ? wait_ms : 1,
        .traceparent = trace_text(&need->trace, &job->arena),
    };
    struct hydration_owner_slot *local =
        job->kind == LOOKUP_FIND ? hydration_owner_find(hydration, need->entity_type) : NULL;

    if (local)
        hydration_owner_ask(local, &question, lookup->shard);
    else
        job->asked = hydration_wire_send(hydration, &question, 1, job->deadline_ns, &job->error);
    if (job->asked == STATUS_OK)
        hydration_count_asked(&lookup->policy, job->kind == LOOKUP_RETRY);
}

static void run_job(struct worker_job *worker)
{
    static const struct hydration_cover full = {.mode = HYDRATION_FULL};
    struct hydration_lookup *lookup = CONTAINER_OF(worker, struct hydration_lookup, job.worker);
    struct hydration_lookup_job *job = &lookup->job;
    const struct hydration_config *config = &lookup->shard->hydration->config;
    struct str correlation_id = str_from(job->correlation_id);

    if (job->kind == LOOKUP_RETRY) {
        job->status = hydration_ledger_retry(config->pool, &job->need, &lookup->policy, correlation_id,
                                             job->deadline_ns, &job->granted, &job->error);
        if (job->status == STATUS_OK && job->granted)
            ask_owner(lookup, lookup->question.is_full ? &full : &lookup->need.cover);
        return;
    }
    FAILPOINT("hydration.before_find");
    job->status = hydration_ledger_find(config->pool, &job->need, &lookup->policy, correlation_id,
                                        config->settings->copy_ttl_ms, job->deadline_ns, &job->arena,
                                        &job->finding, &job->error);
    if (job->status != STATUS_OK || job->finding.kind != HYDRATION_LEDGER_ASK)
        return;
    FAILPOINT("hydration.after_find");
    ask_owner(lookup, &job->finding.event.cover);
}

/* ---- its result, on the loop ---- */

static void drop_stale(struct hydration_lookup *lookup)
{
    free(lookup->stale.block);
    lookup->bytes -= lookup->stale.bytes;
    lookup->shard->lookup_bytes -= lookup->stale.bytes;
    budget_release(BUDGET_HYDRATION, lookup->stale.bytes);
    lookup->stale.block = NULL;
    lookup->stale.bytes = 0;
}

/* Copied out of the job that found it: the next job may still run when a caller's time is up. Where there is no room, a caller whose
 * time is up gets no stale copy. */
static void keep_stale(struct hydration_lookup *lookup, const struct hydration_event *found)
{
    size_t bytes = found->data.len + found->module.len + found->caller.len;

    drop_stale(lookup);
    if (!found->data.len || !has_memory(lookup->shard, bytes))
        return;
    char *at = memory_alloc(bytes);
    lookup->bytes += bytes;
    lookup->shard->lookup_bytes += bytes;
    budget_add(BUDGET_HYDRATION, bytes);
    lookup->stale.block = at;
    lookup->stale.bytes = bytes;
    lookup->stale.outcome =
        (struct hydration_outcome){.data = hydration_text_keep(found->data, &at), .version = found->version};
    lookup->stale.outcome.source_module = hydration_text_keep(found->module, &at);
    lookup->stale.caller = hydration_text_keep(found->caller, &at);
}

static void take_finding(struct hydration_lookup *lookup)
{
    const struct hydration_lookup_job *job = &lookup->job;
    const struct hydration_finding *finding = &job->finding;

    if (finding->kind == HYDRATION_LEDGER_COPY || finding->kind == HYDRATION_LEDGER_ABSENT) {
        if (!hydration_deliver_ledger(lookup->shard, finding))
            hydration_lookup_reread_soon(lookup); /* memory is newer: the ledger will store that event soon */
        return;
    }
    keep_stale(lookup, &finding->event);
    if (job->kind == LOOKUP_LAST_READ)
        return;
    if (finding->kind == HYDRATION_LEDGER_ASK) {
        /* A question that could not be sent is treated as lost: the retry sends it again. */
        memcpy(lookup->question.correlation_id, job->correlation_id, sizeof job->correlation_id);
        free(lookup->question.caller);
        lookup->question.caller = str_dup(job->need.caller);
        lookup->question.is_full = finding->event.cover.mode == HYDRATION_FULL;
        lookup->question.retries = 0;
        lookup->lag_ms = 0;
        if (!job->is_answered && lookup->policy.max_retries > 0)
            lookup->retry_at_ns = ns_from_now(lookup, lookup->policy.retry_backoff_ms);
    } else if (lookup->lag_ms > 0) {
        /* Another process asked, and an answer arrived here without its cover, which only the ledger knows once it has stored the
         * answer. The pause doubles, since it may have been the answer to another question. */
        find_at(lookup, ns_from_now(lookup, lookup->lag_ms));
        lookup->lag_ms *= 2;
    }
    int64_t window_ms = finding->ttl_ms < HYDRATION_REREAD_MS ? HYDRATION_REREAD_MS : finding->ttl_ms + 1;
    find_at(lookup, ns_from_now(lookup, window_ms));
}

static void start_jobs(struct loop_tick *tick);

static void on_job_done(struct worker_job *worker)
{
    struct hydration_lookup *lookup = CONTAINER_OF(worker, struct hydration_lookup, job.worker);
    struct hydration_shard *shard = lookup->shard;
    struct hydration_lookup_job *job = &lookup->job;

    shard->jobs--;
    turns_leave(&shard->job_turns, job->place);
    if (worker->cancelled)
        job->status = STATUS_CANCELLED;
    else if ((job->status != STATUS_OK || job->asked != STATUS_OK) &&
             hydration_may_log(&shard->hydration->lookup_logged_ns))
        log_warn("hydration_failed", LOG_STR("entity_type", lookup->need.entity_type),
                 LOG_STR("entity_id", lookup->need.entity_id),
                 LOG_CSTR("requester_module", lookup->policy.module),
                 LOG_CSTR("correlation_id", job->correlation_id), LOG_ERROR_FIELDS(&job->error));
    /* The state is still RUNNING while the result is handled, so that no callback ends the lookup. */
    bool goes_on = !shard->stopping;
    if (goes_on && job->kind == LOOKUP_RETRY) {
        if (job->granted && !job->is_answered && ++lookup->question.retries < lookup->policy.max_retries)
            lookup->retry_at_ns = ns_from_now(lookup, lookup->policy.retry_backoff_ms);
    } else if (goes_on && job->status == STATUS_OK) {
        take_finding(lookup);
    } else if (goes_on && job->kind == LOOKUP_FIND) {
        hydration_waiters_fail(lookup);
        if (!TAILQ_EMPTY(&lookup->waiters)) /* those in the background go on */
            find_at(lookup, ns_from_now(lookup, lookup->policy.in_flight_window_ms));
    }
    move_lookup(lookup, LOOKUP_WAITING);
    hydration_lookup_reread_if_idle(lookup); /* for waiters that joined in a callback */
    hydration_lookup_end_unused(lookup);
    hydration_waiters_call(shard);
    arena_reset(&job->arena); /* a finding may be large; an ended lookup is freed after the tick */
    if (shard->job_turns.queued > 0)
        loop_at_tick_end(shard->loop, &shard->tick, start_jobs);
}

/* ---- queued jobs ---- */

/* A job is for one caller: a retry for the caller of its question, another job for the caller of its lookup or, if the lookup is for
 * every caller, for that of the first waiter. */
static void prepare_job(struct hydration_lookup *lookup)
{
    struct hydration_lookup_job *job = &lookup->job;
    struct str caller = job->kind == LOOKUP_RETRY ? str_from(lookup->question.caller)
                        : lookup->need.caller.len ? lookup->need.caller
                                                  : TAILQ_FIRST(&lookup->waiters)->caller;
    struct uuid id;

    arena_reset(&job->arena);
    job->need = lookup->need;
    job->need.caller = arena_str(&job->arena, caller);
    job->finding = (struct hydration_finding){.kind = HYDRATION_LEDGER_JOIN};
    job->granted = job->is_answered = false;
    job->status = job->asked = STATUS_OK;
    job->error = (struct error){0};
    if (job->kind != LOOKUP_RETRY)
        lookup->read_ns = loop_now_ns(lookup->shard->loop);
    job->deadline_ns = job->waits_until_ns = ns_from_now(lookup, lookup->policy.wait_timeout_ms);
    if (!TAILQ_EMPTY(&lookup->waiters))
        job->waits_until_ns = TAILQ_LAST(&lookup->waiters, hydration_waiters)->deadline_ns;
    switch (job->kind) {
    case LOOKUP_RETRY:
        memcpy(job->correlation_id, lookup->question.correlation_id, sizeof job->correlation_id);
        break;
    case LOOKUP_LAST_READ: job->correlation_id[0] = '\0'; break;
    case LOOKUP_FIND:
        id = uuid_random();
        uuid_format(&id, job->correlation_id);
        hydration_recent_add(lookup);
        break;
    }
}

/* The workers' queue is full. Runs as a message, not at once: no callback may run in the middle of another function. */
static void on_job_refused(struct loop *loop, struct loop_message *message)
{
    struct worker_job *worker = CONTAINER_OF(message, struct worker_job, message);
    (void)loop;
    worker->cancelled = true;
    on_job_done(worker);
}

static void start_jobs(struct loop_tick *tick)
{
    struct hydration_shard *shard = CONTAINER_OF(tick, struct hydration_shard, tick);
    struct turns_share *tenant;

    while ((tenant = turns_first_to_enter(&shard->job_turns, HYDRATION_JOB_PLACES - shard->jobs)) != NULL) {
        struct turns_item *item = turns_take_turn(&shard->job_turns, tenant);
        struct hydration_lookup *lookup = CONTAINER_OF(item, struct hydration_lookup, turn);
        struct worker_job *worker = &lookup->job.worker;
        /* While it was QUEUED, its waiters may have left, and its retry may have been answered. */
        if (lookup->job.kind == LOOKUP_RETRY ? lookup->job.is_answered : TAILQ_EMPTY(&lookup->waiters)) {
            move_lookup(lookup, LOOKUP_WAITING);
            hydration_lookup_reread_if_idle(lookup);
            hydration_lookup_end_unused(lookup);
            continue;
        }
        prepare_job(lookup);
        *worker = (struct worker_job){.loop = shard->loop,
                                      .share = lookup->tenant_share->node.hash,
                                      .run = run_job,
                                      .done = on_job_done};
        move_lookup(lookup, LOOKUP_RUNNING);
        lookup->job.place = turns_enter(&shard->job_turns, worker->share, HYDRATION_JOB_PLACES);
        shard->jobs++;
        if (worker_pool_submit(shard->hydration->config.workers, worker))
            continue;
        worker->message.on_message = on_job_refused;
        loop_post(shard->loop, &worker->message);
    }
}

void hydration_lookup_start(struct hydration_lookup *lookup, enum hydration_job_kind kind)
{
    struct hydration_shard *shard = lookup->shard;
    if (lookup->state != LOOKUP_WAITING || shard->stopping)
        return;
    lookup->job.kind = kind;
    lookup->job.is_answered = false;
    move_lookup(lookup, LOOKUP_QUEUED);
    turns_put(&shard->job_turns, lookup->tenant_share->node.hash, &lookup->turn);
    loop_at_tick_end(shard->loop, &shard->tick, start_jobs);
}

/* Callbacks run after the walk. A lookup that is RUNNING ends with its job. */
void hydration_lookups_stop(struct hydration_shard *shard)
{
    struct turns_item *item;
    struct map_node *node;

    loop_tick_cancel(shard->loop, &shard->tick);
    while ((item = turns_next(&shard->job_turns)) != NULL)
        move_lookup(CONTAINER_OF(item, struct hydration_lookup, turn), LOOKUP_WAITING);
    MAP_EACH(node, &shard->lookups) {
        struct hydration_lookup *lookup = CONTAINER_OF(node, struct hydration_lookup, node);
        lookup->retry_at_ns = CLOCK_NEVER;
        hydration_waiters_fail(lookup);
        hydration_lookup_end_unused(lookup);
    }
    hydration_waiters_call(shard);
}
