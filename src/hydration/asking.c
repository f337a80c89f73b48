/* What an asking does: visits to the ledger and the bus, on a worker, one at a time.
 *
 *     claim ─▶ known: everybody is told                     look: the same, and nothing is claimed
 *           ─▶ ours to ask: publish ─ retry_backoff ─▶ retry … ─ end of the window ─▶ claim again
 *           ─▶ asked already: wait                            ─ end of the window ─▶ claim again
 *
 * A desk makes few visits at once, the others are in line, tenant by tenant in turn (turns.c): who asks for thousands of entities takes no worker from those who
 * publish and answer. The worker reads the asking's name and its visit; the asking stays as long as the visit runs, whoever
 * has gone meanwhile. Visits start at the end of a tick only, when no function is in the middle of an asking: whatever puts
 * one in line finds it, and all others, as they were. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "hydration/desk_inside.h"

enum { ARENA_BYTES = 2048 };

struct hydration_asking *hydration_asking_create(struct hydration_desk *desk, uint64_t hash,
                                                 const struct hydration_need *need, struct str subject,
                                                 const struct hydration_policy *policy)
{
    size_t bytes = sizeof(struct hydration_asking) + hydration_cover_bytes(&need->cover) + need->tenant.len +
                   subject.len + need->entity_type.len + need->entity_id.len;
    struct hydration_asking *asking = memory_alloc(bytes);
    char *at = (char *)asking->block;

    *asking = (struct hydration_asking){.desk = desk,
                                        .hash = hash,
                                        .policy = *policy,
                                        .heard = desk->turn,
                                        .retry_at_ns = CLOCK_NEVER,
                                        .claim_at_ns = CLOCK_NEVER};
    asking->last = &asking->waiters;
    asking->need.trace = need->trace;
    asking->need.cover = hydration_cover_keep(&need->cover, &at);
    asking->need.tenant = hydration_text_keep(need->tenant, &at);
    asking->need.subject = hydration_text_keep(subject, &at);
    asking->need.entity_type = hydration_text_keep(need->entity_type, &at);
    asking->need.entity_id = hydration_text_keep(need->entity_id, &at);
    arena_init(&asking->visit.arena, ARENA_BYTES);
    return asking;
}

static void free_asking(void *memory)
{
    struct hydration_asking *asking = memory;
    arena_deinit(&asking->visit.arena);
    free(asking->question.subject);
    free(asking->stale.block);
    free(asking);
}

void hydration_asking_end(struct hydration_asking *asking)
{
    asking->has_ended = true;
    loop_timer_stop(asking->desk->loop, &asking->timer);
    loop_free_later(asking->desk->loop, asking, free_asking);
}

/* The one who published owes the others its retry, even when its own callers have gone. */
bool hydration_asking_is_needed(const struct hydration_asking *asking)
{
    return asking->waiters || asking->visit.is_queued || asking->visit.is_running ||
           (!asking->is_answered && asking->retry_at_ns != CLOCK_NEVER);
}

bool hydration_asking_is_own(const struct hydration_asking *asking, struct str correlation_id)
{
    return correlation_id.len > 0 && (str_eq(correlation_id, str_from(asking->question.correlation_id)) ||
                                      str_eq(correlation_id, str_from(asking->visit.correlation_id)));
}

/* ---- when ---- */

static void set_timer(struct hydration_asking *asking);

static void on_due(struct loop_timer *timer)
{
    struct hydration_asking *asking =
        (struct hydration_asking *)((char *)timer - offsetof(struct hydration_asking, timer));
    bool is_retry = asking->retry_at_ns <= asking->claim_at_ns;

    *(is_retry ? &asking->retry_at_ns : &asking->claim_at_ns) = CLOCK_NEVER;
    if (is_retry && !asking->is_answered)
        hydration_asking_visit(asking, HYDRATION_VISIT_RETRY);
    else if (!is_retry && asking->waiters)
        hydration_asking_visit(asking, HYDRATION_VISIT_CLAIM);
    else {
        set_timer(asking);
        hydration_desk_settle(asking);
    }
}

/* Not while it is visited: what comes of that is looked at first. */
static void set_timer(struct hydration_asking *asking)
{
    int64_t due_ns = asking->retry_at_ns < asking->claim_at_ns ? asking->retry_at_ns : asking->claim_at_ns;

    if (due_ns == CLOCK_NEVER || asking->visit.is_queued || asking->visit.is_running)
        loop_timer_stop(asking->desk->loop, &asking->timer);
    else
        loop_timer_start(asking->desk->loop, &asking->timer, due_ns, on_due);
}

static void claim_at(struct hydration_asking *asking, int64_t at_ns)
{
    if (at_ns < asking->claim_at_ns)
        asking->claim_at_ns = at_ns;
}

void hydration_asking_again(struct hydration_asking *asking)
{
    int64_t now_ns = loop_now_ns(asking->desk->loop),
            spaced_ns = asking->visited_ns + HYDRATION_LOOK_MS * CLOCK_NS_PER_MS;
    asking->behind_ms = HYDRATION_LOOK_MS;
    claim_at(asking, spaced_ns > now_ns ? spaced_ns : now_ns);
    set_timer(asking);
}

/* ---- on a worker ---- */

static void publish(struct hydration_asking *asking, const struct hydration_cover *cover)
{
    struct hydration_visit *visit = &asking->visit;
    const struct hydration_need *need = &visit->need;
    char traceparent[TRACE_PARENT_BYTES];
    trace_format(&need->trace, traceparent);
    const struct hydration_event question = {
        .kind = HYDRATION_EVENT_UNKNOWN,
        .tenant = need->tenant,
        .subject = need->subject,
        .correlation_id = str_from(visit->correlation_id),
        .entity_type = need->entity_type,
        .entity_id = need->entity_id,
        .module = str_from(asking->policy.module),
        .has_cover = true,
        .cover = *cover,
        .wait_ms = asking->policy.wait_timeout_ms,
        .traceparent = trace_is_none(&need->trace) ? STR_NONE : str_from(traceparent),
    };

    visit->status = hydration_wire_ask(atomic_load(&asking->desk->hydration->wire), &question,
                                       visit->deadline_ns, &visit->error);
    if (visit->status == STATUS_OK)
        hydration_count_asked(&asking->policy, visit->kind == HYDRATION_VISIT_RETRY);
}

static void claim(struct hydration_asking *asking)
{
    struct hydration_visit *visit = &asking->visit;
    const struct hydration_config *config = &asking->desk->hydration->config;

    FAILPOINT("hydration.before_claim");
    visit->status = hydration_ledger_claim(config->pool, &visit->need, &asking->policy,
                                           str_from(visit->correlation_id), config->settings->copy_ttl_ms,
                                           visit->deadline_ns, &visit->arena, &visit->claim, &visit->error);
    visit->has_claimed = visit->status == STATUS_OK;
    if (!visit->has_claimed || visit->claim.verdict != HYDRATION_LEDGER_ASK)
        return;
    FAILPOINT("hydration.after_claim");
    publish(asking, &visit->claim.cover);
}

static void retry(struct hydration_asking *asking)
{
    static const struct hydration_cover full = {.mode = HYDRATION_FULL};
    struct hydration_visit *visit = &asking->visit;

    visit->status = hydration_ledger_retry(asking->desk->hydration->config.pool, &visit->need,
                                           &asking->policy, str_from(visit->correlation_id),
                                           visit->deadline_ns, &visit->granted, &visit->error);
    if (visit->status == STATUS_OK && visit->granted)
        publish(asking, asking->question.is_full ? &full : &asking->need.cover);
}

static struct hydration_asking *asking_of(struct worker_job *job)
{
    return (struct hydration_asking *)((char *)job - offsetof(struct hydration_asking, visit.job));
}

static void run(struct worker_job *job)
{
    struct hydration_asking *asking = asking_of(job);
    if (asking->visit.kind == HYDRATION_VISIT_RETRY)
        retry(asking);
    else
        claim(asking);
}

/* ---- back on the loop ---- */

static void take_known(struct hydration_asking *asking, const struct hydration_claim *claim)
{
    const struct hydration_need *need = &asking->need;
    const struct hydration_event known = {
        .kind = claim->verdict == HYDRATION_LEDGER_COPY ? HYDRATION_EVENT_UPDATED : HYDRATION_EVENT_NOT_FOUND,
        .tenant = need->tenant,
        .entity_type = need->entity_type,
        .entity_id = need->entity_id,
        .subject = claim->subject,
        .is_private = claim->subject.len > 0,
        .module = claim->source_module,
        .has_cover = true,
        .cover = claim->cover,
        .data = claim->data,
        .reason = claim->reason,
        .version = claim->version,
    };

    if (!hydration_desk_learn(asking->desk, &known, claim->ttl_ms))
        hydration_asking_again(asking); /* it will have written down what we heard in a moment */
}

/* A copy that is too old or too narrow, apart from the visit that found it: the next one may still be under way when a caller's
 * time is up. */
static void keep_stale(struct hydration_asking *asking, const struct hydration_claim *claim)
{
    free(asking->stale.block);
    asking->stale.block = NULL;
    if (!claim->data.len)
        return;
    char *at = memory_alloc(claim->data.len + claim->source_module.len + claim->subject.len);
    asking->stale.block = at;
    asking->stale.data = hydration_text_keep(claim->data, &at);
    asking->stale.source_module = hydration_text_keep(claim->source_module, &at);
    asking->stale.subject = hydration_text_keep(claim->subject, &at);
    asking->stale.version = claim->version;
}

static int64_t window_ms(const struct hydration_claim *claim)
{
    return claim->ttl_ms < HYDRATION_LOOK_MS ? HYDRATION_LOOK_MS : claim->ttl_ms + 1;
}

/* Asked by another, and we heard an answer that it alone knows the worth of: the ledger will in a moment. Each time twice as
 * long, since it may have been no answer to that. */
static void take_join(struct hydration_asking *asking)
{
    if (asking->behind_ms == 0)
        return;
    claim_at(asking, loop_now_ns(asking->desk->loop) + asking->behind_ms * CLOCK_NS_PER_MS);
    asking->behind_ms *= 2;
}

/* A question that could not be published is one that was lost: the retry is for both. */
static void take_question(struct hydration_asking *asking)
{
    const struct hydration_visit *visit = &asking->visit;

    memcpy(asking->question.correlation_id, visit->correlation_id, sizeof visit->correlation_id);
    free(asking->question.subject);
    asking->question.subject = str_dup(visit->need.subject);
    asking->question.is_full = visit->claim.cover.mode == HYDRATION_FULL;
    asking->question.retries = 0;
    asking->behind_ms = 0;
    if (!asking->is_answered && asking->policy.max_retries > 0)
        asking->retry_at_ns =
            loop_now_ns(asking->desk->loop) + asking->policy.retry_backoff_ms * CLOCK_NS_PER_MS;
}

static void take_claim(struct hydration_asking *asking)
{
    const struct hydration_claim *claim = &asking->visit.claim;

    if (claim->verdict == HYDRATION_LEDGER_COPY || claim->verdict == HYDRATION_LEDGER_ABSENT) {
        take_known(asking, claim);
        return;
    }
    keep_stale(asking, claim);
    if (claim->verdict == HYDRATION_LEDGER_ASK)
        take_question(asking);
    else
        take_join(asking);
    claim_at(asking, loop_now_ns(asking->desk->loop) + window_ms(claim) * CLOCK_NS_PER_MS);
}

static void take_look(struct hydration_asking *asking)
{
    const struct hydration_claim *claim = &asking->visit.claim;
    if (claim->verdict == HYDRATION_LEDGER_COPY || claim->verdict == HYDRATION_LEDGER_ABSENT)
        take_known(asking, claim);
    else
        keep_stale(asking, claim);
}

static void take_retry(struct hydration_asking *asking)
{
    if (asking->visit.granted && ++asking->question.retries < asking->policy.max_retries)
        asking->retry_at_ns =
            loop_now_ns(asking->desk->loop) + asking->policy.retry_backoff_ms * CLOCK_NS_PER_MS;
}

/* Asking in the background outlasts that. */
static void fail(struct hydration_asking *asking)
{
    hydration_desk_fail(asking);
    if (asking->waiters)
        claim_at(asking,
                 loop_now_ns(asking->desk->loop) + asking->policy.in_flight_window_ms * CLOCK_NS_PER_MS);
}

/* Once a second: an outage fails everything that is asked. */
static void log_failure(const struct hydration_asking *asking)
{
    const struct error *error = &asking->visit.error;
    int64_t now_ns = loop_now_ns(asking->desk->loop);
    if (now_ns - asking->desk->complained_ns < CLOCK_NS_PER_S)
        return;
    asking->desk->complained_ns = now_ns;
    log_warn("hydration_failed", LOG_STR("entity_type", asking->need.entity_type),
             LOG_STR("entity_id", asking->need.entity_id),
             LOG_CSTR("requester_module", asking->policy.module),
             LOG_CSTR("correlation_id", asking->visit.correlation_id), LOG_ERROR_FIELDS(error));
}

static void take(struct hydration_asking *asking)
{
    struct hydration_visit *visit = &asking->visit;

    if (visit->job.cancelled)
        visit->status = STATUS_CANCELLED;
    else if (visit->status != STATUS_OK)
        log_failure(asking);
    if (asking->desk->stopping)
        return;
    if (visit->kind == HYDRATION_VISIT_CLAIM && visit->has_claimed)
        take_claim(asking);
    else if (visit->kind == HYDRATION_VISIT_CLAIM)
        fail(asking);
    else if (visit->kind == HYDRATION_VISIT_RETRY)
        take_retry(asking);
    else if (visit->status == STATUS_OK)
        take_look(asking);
}

/* It still counts as running while its outcome is told, so nobody ends it meanwhile. Who joined just then, behind those who were
 * told, is not left without a visit to come. */
static void finish(struct hydration_asking *asking)
{
    asking->desk->visits--;
    take(asking);
    asking->visit.is_running = false;
    if (asking->waiters && asking->claim_at_ns == CLOCK_NEVER)
        hydration_asking_again(asking);
    set_timer(asking);
    hydration_desk_settle(asking);
}

/* ---- in line ---- */

/* For the caller it was asked for, or the one it is about, or, where it is everybody's, the first who waits. */
static struct str subject_of(const struct hydration_asking *asking)
{
    if (asking->visit.kind == HYDRATION_VISIT_RETRY)
        return str_from(asking->question.subject);
    return asking->need.subject.len ? asking->need.subject : asking->waiters->subject;
}

static void choose_correlation_id(struct hydration_asking *asking)
{
    struct hydration_visit *visit = &asking->visit;
    struct uuid id;

    switch (visit->kind) {
    case HYDRATION_VISIT_RETRY:
        memcpy(visit->correlation_id, asking->question.correlation_id, sizeof visit->correlation_id);
        break;
    case HYDRATION_VISIT_LOOK: visit->correlation_id[0] = '\0'; break;
    case HYDRATION_VISIT_CLAIM:
        id = uuid_random();
        uuid_format(&id, visit->correlation_id);
        hydration_desk_note(asking);
        asking->is_answered = false;
        break;
    }
}

static void prepare(struct hydration_asking *asking)
{
    struct hydration_visit *visit = &asking->visit;

    arena_reset(&visit->arena);
    visit->need = asking->need;
    visit->need.subject = arena_str(&visit->arena, subject_of(asking));
    choose_correlation_id(asking);
    visit->claim = (struct hydration_claim){.verdict = HYDRATION_LEDGER_JOIN};
    visit->has_claimed = visit->granted = false;
    visit->status = STATUS_OK;
    visit->error = (struct error){0};
    asking->visited_ns = loop_now_ns(asking->desk->loop);
    visit->deadline_ns = asking->visited_ns + asking->policy.wait_timeout_ms * CLOCK_NS_PER_MS;
}

static void done(struct worker_job *job);

/* Told in a turn of its own, as if a worker had said so: whoever asks is not called back in the middle of it. */
static void on_refused(struct loop *loop, struct loop_message *message)
{
    struct worker_job *job = (struct worker_job *)((char *)message - offsetof(struct worker_job, message));
    (void)loop;
    job->cancelled = true;
    done(job);
}

static void start(struct hydration_asking *asking)
{
    struct worker_job *job = &asking->visit.job;

    prepare(asking);
    *job = (struct worker_job){.loop = asking->desk->loop, .run = run, .done = done};
    asking->visit.is_running = true;
    asking->desk->visits++;
    if (worker_pool_submit(asking->desk->hydration->config.workers, job))
        return;
    job->message.on_message = on_refused;
    loop_post(job->loop, &job->message);
}

static void start_visits(struct loop_tick *tick)
{
    struct hydration_desk *desk =
        (struct hydration_desk *)((char *)tick - offsetof(struct hydration_desk, tick));
    struct hydration_asking *asking;
    while (desk->visits < HYDRATION_VISITS_MAX && (asking = hydration_turns_next(desk)) != NULL) {
        asking->visit.is_queued = false;
        if (asking->waiters || asking->visit.kind == HYDRATION_VISIT_RETRY)
            start(asking);
        else
            hydration_desk_settle(asking); /* they went while it was in line */
    }
}

static void done(struct worker_job *job)
{
    struct hydration_desk *desk = asking_of(job)->desk;
    finish(asking_of(job));
    if (desk->turns.first)
        loop_at_tick_end(desk->loop, &desk->tick, start_visits);
}

void hydration_asking_visit(struct hydration_asking *asking, enum hydration_visit_kind kind)
{
    struct hydration_desk *desk = asking->desk;
    if (asking->visit.is_queued || asking->visit.is_running || desk->stopping)
        return;
    asking->visit.kind = kind;
    asking->visit.is_queued = true;
    hydration_turns_queue(asking);
    set_timer(asking);
    loop_at_tick_end(desk->loop, &desk->tick, start_visits);
}
