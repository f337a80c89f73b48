/* Events to the lookups of their entity: kept in memory first, then waiters that the event satisfies leave; the others go on, each
 * caller in a lookup of its own where the entity is private. Callbacks run when the walk over the lookups is over. */
#include <stdlib.h>

#include "base/hash.h"
#include "base/memory.h"
#include "hydration/inside.h"

/* ---- recent questions ---- */

void hydration_recent_add(struct hydration_lookup *lookup)
{
    uint64_t correlation = hash_seeded(str_from(lookup->job.correlation_id));
    lookup->shard->recent[correlation % HYDRATION_RECENT_MAX] =
        (struct hydration_recent){correlation, lookup->hash, RECENT_ASKED};
}

/* NULL: not a question of this shard, or not a recent one. */
static struct hydration_recent *find_recent(struct hydration_shard *shard, struct str correlation_id)
{
    uint64_t correlation = hash_seeded(correlation_id);
    struct hydration_recent *recent = &shard->recent[correlation % HYDRATION_RECENT_MAX];
    return correlation_id.len && recent->correlation == correlation ? recent : NULL;
}

static void count_answer(struct hydration_recent *recent, bool is_awaited, bool is_direct)
{
    if (!recent)
        return;
    if (recent->state != RECENT_ASKED)
        hydration_count_ignored("duplicate");
    else if (!is_awaited)
        hydration_count_ignored("late");
    recent->state = is_direct ? RECENT_ANSWERED_DIRECTLY : RECENT_ANSWERED;
}

/* ---- to the waiters ---- */

static bool is_for(const struct hydration_event *event, struct str subject)
{
    return !event->is_private || (subject.len > 0 && str_eq(event->subject, subject));
}

static enum hydration_way way_of(const struct hydration_waiter *waiter, const struct hydration_event *event)
{
    const struct hydration_lookup *lookup = waiter->lookup;
    bool has_asked = lookup->question.subject || hydration_lookup_is_own(lookup, event->correlation_id);
    return has_asked && !waiter->has_joined ? HYDRATION_BY_ASKING : HYDRATION_BY_JOINING;
}

/* The entity is private: each caller has a lookup of its own from now on, so that no caller's question is in the way of the one
 * that may see it. */
static void split_by_caller(struct hydration_lookup *lookup)
{
    static const struct hydration_outcome refused = {.result = HYDRATION_UNAVAILABLE};
    struct hydration_waiter *waiter, *next;

    for (waiter = TAILQ_FIRST(&lookup->waiters); waiter; waiter = next) {
        next = TAILQ_NEXT(waiter, link);
        if (!waiter->subject.len)
            continue;
        if (hydration_waiter_join(waiter, &lookup->need, waiter->subject))
            waiter->lookup->lag_ms = HYDRATION_REREAD_MS;
        else
            hydration_waiter_leave(waiter, &refused, HYDRATION_BY_JOINING);
    }
}

static void deliver_to(struct hydration_lookup *lookup, const struct hydration_event *event,
                       const struct hydration_cover *cover, const struct hydration_outcome *outcome,
                       bool is_ledger)
{
    bool is_enough = outcome->result == HYDRATION_NOT_FOUND ||
                     hydration_data_includes(cover, event->data, &lookup->need.cover);
    struct hydration_waiter *waiter, *next;

    for (waiter = TAILQ_FIRST(&lookup->waiters); is_enough && waiter; waiter = next) {
        next = TAILQ_NEXT(waiter, link);
        if (is_for(event, waiter->subject))
            hydration_waiter_leave(waiter, outcome, is_ledger ? HYDRATION_BY_LEDGER : way_of(waiter, event));
    }
    if (!lookup->need.subject.len || is_for(event, lookup->need.subject))
        hydration_lookup_answered(lookup);
    if (event->is_private && !lookup->need.subject.len)
        split_by_caller(lookup);
    else if (!TAILQ_EMPTY(&lookup->waiters) && is_for(event, lookup->need.subject))
        hydration_lookup_again(lookup);
    hydration_lookup_settle(lookup);
}

static bool is_about(const struct hydration_lookup *lookup, uint64_t hash,
                     const struct hydration_event *event)
{
    const struct hydration_need *need = &lookup->need;
    return lookup->hash == hash && str_eq(need->entity_id, event->entity_id) &&
           str_eq(need->entity_type, event->entity_type) && str_eq(need->tenant, event->tenant);
}

/* Lookups that split_by_caller() opens are at the head of the bucket, where the walk has been. */
static void deliver_to_all(struct hydration_shard *shard, uint64_t hash, const struct hydration_event *event,
                           const struct hydration_cover *cover, bool is_ledger)
{
    bool is_updated = event->kind == HYDRATION_EVENT_UPDATED;
    const struct hydration_outcome outcome = {
        .result = is_updated ? HYDRATION_UPDATED : HYDRATION_NOT_FOUND,
        .reason = event->reason,
        .is_negative_hit = !is_updated && is_ledger,
        .source_module = event->module,
        .version = event->version,
        .data = is_updated ? event->data : STR_NONE,
    };
    struct hydration_lookup *lookup, *next;

    for (lookup = LIST_FIRST(hydration_shard_bucket(shard, hash)); lookup; lookup = next) {
        next = LIST_NEXT(lookup, in_bucket);
        if (is_about(lookup, hash, event))
            deliver_to(lookup, event, cover, &outcome, is_ledger);
    }
    hydration_waiters_call(shard);
}

bool hydration_deliver_ledger(struct hydration_shard *shard, const struct hydration_event *event,
                              int64_t ttl_ms)
{
    uint64_t hash = hydration_entity_hash(event->tenant, event->entity_type, event->entity_id);
    if (!hydration_memory_store(shard->memory, event, &event->cover, true, ttl_ms, loop_now_ns(shard->loop)))
        return false;
    deliver_to_all(shard, hash, event, &event->cover, true);
    return true;
}

/* ---- an event ---- */

/* What an answer of a module outside leaves open, its question decides: the extent, and the caller. */
static void complete_event(struct hydration_event *event, const struct hydration_lookup *asked,
                           struct arena *arena)
{
    if (event->is_private && !event->subject.len)
        event->subject =
            arena_str(arena, str_eq(event->correlation_id, str_from(asked->question.correlation_id))
                                 ? str_from(asked->question.subject)
                                 : asked->job.need.subject);
    if (!event->has_cover)
        event->cover = hydration_cover_copy(&asked->need.cover, arena);
    event->has_cover = true;
}

/* Answers to any process's question are kept, changes only of entities that are known here. */
static void deliver_valid(struct hydration_shard *shard, uint64_t hash, struct hydration_event *event,
                          struct hydration_recent *recent, bool is_direct, struct arena *arena)
{
    const struct hydration_settings *settings = shard->hydration->config.settings;
    const struct hydration_lookup *lookup, *first = NULL, *asked = NULL;

    LIST_FOREACH(lookup, hydration_shard_bucket(shard, hash), in_bucket) {
        if (!is_about(lookup, hash, event))
            continue;
        first = first ? first : lookup;
        if (!asked && hydration_lookup_is_own(lookup, event->correlation_id))
            asked = lookup;
    }
    if (asked)
        complete_event(event, asked, arena);
    const struct hydration_cover *cover = event->has_cover ? &event->cover : NULL;
    int64_t ttl_ms = event->kind == HYDRATION_EVENT_UPDATED ? settings->copy_ttl_ms
                     : first                                ? first->policy.negative_cache_ttl_ms
                                                            : settings->policy.negative_cache_ttl_ms;
    if (!hydration_memory_store(shard->memory, event, cover, first || event->correlation_id.len > 0, ttl_ms,
                                loop_now_ns(shard->loop))) {
        hydration_count_ignored("stale");
        if (recent && is_direct)
            recent->state = RECENT_ANSWERED_DIRECTLY;
        return;
    }
    count_answer(recent, first, is_direct);
    deliver_to_all(shard, hash, event, cover, false);
}

void hydration_deliver(struct hydration_shard *shard, const struct hydration_event *event, bool is_direct)
{
    uint64_t hash = hydration_entity_hash(event->tenant, event->entity_type, event->entity_id);
    struct hydration_recent *recent = find_recent(shard, event->correlation_id);
    struct hydration_event own = *event;
    struct arena arena;

    if (shard->stopping || event->kind == HYDRATION_EVENT_UNKNOWN)
        return;
    if (recent && recent->entity != hash) {
        hydration_count_ignored("mismatch"); /* of another type, id or tenant than was asked for */
        return;
    }
    if (recent && recent->state == RECENT_ANSWERED_DIRECTLY && !is_direct) {
        recent->state = RECENT_ANSWERED; /* the bus's copy of the answer that was delivered */
        return;
    }
    arena_init(&arena, HYDRATION_ARENA_BYTES);
    deliver_valid(shard, hash, &own, recent, is_direct, &arena);
    arena_deinit(&arena);
}

/* ---- from other threads ---- */

/* One copy of an event for all shards that it goes to; the last of them frees it. */
struct posted {
    struct arena arena;
    struct hydration_event event;
    bool is_direct;
    atomic_uint refs;
    struct posted_message {
        struct loop_message message;
        struct posted *posted;
        struct hydration_shard *shard;
    } messages[];
};

static void on_posted(struct loop *loop, struct loop_message *message)
{
    struct posted_message *own = (struct posted_message *)message;
    struct posted *posted = own->posted;
    (void)loop;
    hydration_deliver(own->shard, &posted->event, posted->is_direct);
    if (atomic_fetch_sub(&posted->refs, 1) > 1)
        return;
    arena_deinit(&posted->arena);
    free(posted);
}

void hydration_post(struct hydration_shard *const *shards, unsigned count,
                    const struct hydration_event *event, bool is_direct)
{
    struct posted *posted = memory_alloc(sizeof *posted + count * sizeof posted->messages[0]);
    arena_init(&posted->arena, HYDRATION_ARENA_BYTES);
    hydration_event_copy(event, &posted->arena, &posted->event);
    posted->is_direct = is_direct;
    atomic_init(&posted->refs, count);
    for (unsigned i = 0; i < count; i++) {
        posted->messages[i] = (struct posted_message){{.on_message = on_posted}, posted, shards[i]};
        loop_post(shards[i]->loop, &posted->messages[i].message);
    }
}
