/* Delivers events to the lookups of their entity: an event is kept in memory first, then the waiters that it satisfies leave. The
 * others continue to wait, each caller in a lookup of its own if the entity is private. Callbacks run after all lookups have been visited. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/list.h"
#include "base/memory.h"
#include "hydration/inside.h"

/* ---- to the waiters ---- */

static bool is_for(const struct hydration_event *event, struct str caller)
{
    return !event->is_private || (caller.len > 0 && str_eq(event->caller, caller));
}

static void deliver_to(struct hydration_lookup *lookup, const struct hydration_event *event,
                       const struct hydration_outcome *outcome, bool is_ledger)
{
    static const struct hydration_outcome refused = {.result = HYDRATION_UNAVAILABLE};
    bool is_enough =
        outcome->result == HYDRATION_NOT_FOUND || hydration_event_includes(event, &lookup->need.cover);
    bool has_asked = lookup->question.caller || hydration_lookup_is_own(lookup, event->correlation_id);
    struct hydration_waiter *waiter, *next;

    TAILQ_FOREACH_SAFE(waiter, &lookup->waiters, link, next)
        if (is_enough && is_for(event, waiter->caller))
            hydration_waiter_leave(waiter, outcome,
                                   is_ledger                          ? HYDRATION_BY_LEDGER
                                   : has_asked && !waiter->has_joined ? HYDRATION_BY_QUESTION
                                                                      : HYDRATION_BY_JOINING);
    if (!lookup->need.caller.len || is_for(event, lookup->need.caller))
        hydration_lookup_answered(lookup);
    if (event->is_private && !lookup->need.caller.len) {
        /* Each caller has a lookup of its own from now on, so that the question of a caller that may not see the entity does not delay
         * a caller that may. */
        TAILQ_FOREACH_SAFE(waiter, &lookup->waiters, link, next) {
            if (!waiter->caller.len)
                continue;
            if (hydration_waiter_join(waiter, &lookup->need, waiter->caller))
                waiter->lookup->lag_ms = HYDRATION_REREAD_MS;
            else
                hydration_waiter_leave(waiter, &refused, HYDRATION_BY_JOINING);
        }
    } else if (!TAILQ_EMPTY(&lookup->waiters) && is_for(event, lookup->need.caller)) {
        hydration_lookup_reread_soon(lookup);
    }
    hydration_lookup_end_unused(lookup);
}

/* The next lookup of the event's entity, from `node` on. */
static struct hydration_lookup *lookup_of(struct map_node *node, const struct hydration_event *event)
{
    for (; node; node = map_match(node->next, node->hash)) {
        struct hydration_lookup *lookup = CONTAINER_OF(node, struct hydration_lookup, node);
        const struct hydration_need *need = &lookup->need;
        if (str_eq(need->entity_id, event->entity_id) && str_eq(need->entity_type, event->entity_type) &&
            str_eq(need->tenant, event->tenant))
            return lookup;
    }
    return NULL;
}

static struct hydration_lookup *next_lookup(const struct hydration_lookup *lookup,
                                            const struct hydration_event *event)
{
    return lookup_of(map_match(lookup->node.next, lookup->node.hash), event);
}

/* Lookups that deliver_to() opens are added at the head of the bucket, so that this loop does not visit them. */
static void deliver_to_all(struct hydration_shard *shard, uint64_t hash, const struct hydration_event *event,
                           bool is_ledger)
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

    for (lookup = lookup_of(map_first(&shard->lookups, hash), event); lookup; lookup = next) {
        next = next_lookup(lookup, event);
        deliver_to(lookup, event, &outcome, is_ledger);
    }
    hydration_waiters_call(shard);
}

/* Uses the current time: the tick's time is earlier than events received during the tick. */
bool hydration_deliver_ledger(struct hydration_shard *shard, const struct hydration_finding *finding)
{
    const struct hydration_event *event = &finding->event;
    uint64_t hash = hydration_entity_hash(event->tenant, event->entity_type, event->entity_id);
    if (!hydration_memory_store(&shard->memory, event, true, finding->ttl_ms, finding->asked_ns,
                                clock_mono_ns()))
        return false;
    deliver_to_all(shard, hash, event, true);
    return true;
}

/* ---- an event ---- */

void hydration_recent_add(struct hydration_lookup *lookup)
{
    uint64_t correlation = hash_seeded(str_from(lookup->job.correlation_id));
    lookup->shard->recent[correlation % HYDRATION_RECENT_MAX] = (struct hydration_recent){
        correlation, lookup->node.hash, loop_now_ns(lookup->shard->loop), 0, RECENT_ASKED};
}

/* Answers to the questions of all processes are kept, changes only of entities that are looked up or held here. `recent`: the question
 * of this shard that the event answers; NULL: there is none, or it is not recent. */
static void deliver_valid(struct hydration_shard *shard, uint64_t hash, struct hydration_event *event,
                          struct hydration_recent *recent, bool is_local)
{
    const struct hydration_settings *settings = shard->hydration->config.settings;
    const struct hydration_lookup *first = lookup_of(map_first(&shard->lookups, hash), event), *asked = first;

    while (asked && !hydration_lookup_is_own(asked, event->correlation_id))
        asked = next_lookup(asked, event);
    /* A program outside of freshet may answer without cover or caller: then the cover and caller of the question are used; the
     * lookup owns them until the end of the tick. */
    if (asked && event->is_private && !event->caller.len)
        event->caller = str_eq(event->correlation_id, str_from(asked->question.correlation_id))
                            ? str_from(asked->question.caller)
                            : asked->job.need.caller;
    if (asked && !event->has_cover) {
        event->cover = asked->need.cover;
        event->has_cover = true;
    }
    int64_t ttl_ms = event->kind == HYDRATION_EVENT_UPDATED ? settings->copy_ttl_ms
                     : first                                ? first->policy.negative_cache_ttl_ms
                                                            : settings->policy.negative_cache_ttl_ms;
    bool is_new = hydration_memory_store(&shard->memory, event, first || event->correlation_id.len > 0,
                                         ttl_ms, recent ? recent->asked_ns : 0, clock_mono_ns());
    if (!is_new)
        hydration_count_ignored("stale");
    else if (recent && recent->state != RECENT_ASKED)
        hydration_count_ignored("duplicate");
    else if (recent && !first)
        hydration_count_ignored("late");
    if (recent && (is_new || is_local)) {
        recent->state = is_local ? RECENT_ANSWERED_LOCALLY : RECENT_ANSWERED;
        recent->version = event->version;
    }
    if (is_new)
        deliver_to_all(shard, hash, event, false);
}

void hydration_deliver(struct hydration_shard *shard, const struct hydration_event *event, bool is_local)
{
    uint64_t hash = hydration_entity_hash(event->tenant, event->entity_type, event->entity_id);
    uint64_t correlation = hash_seeded(event->correlation_id);
    struct hydration_recent *recent = &shard->recent[correlation % HYDRATION_RECENT_MAX];
    struct hydration_event own = *event;

    if (!event->correlation_id.len || recent->correlation != correlation)
        recent = NULL;
    if (shard->stopping || event->kind == HYDRATION_EVENT_UNKNOWN)
        return;
    if (recent && recent->entity != hash) {
        hydration_count_ignored("mismatch"); /* of another type, id or tenant than was asked for */
        return;
    }
    if (recent && recent->state == RECENT_ANSWERED_LOCALLY && !is_local &&
        recent->version == event->version) {
        recent->state = RECENT_ANSWERED; /* the bus's copy of the answer that was delivered */
        return;
    }
    deliver_valid(shard, hash, &own, recent, is_local);
}

/* ---- from other threads ---- */

/* One copy of an event for all shards that it goes to; the last of them frees it. */
struct posted {
    struct hydration_event event; /* its texts follow the messages */
    bool is_local;
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
    hydration_deliver(own->shard, &posted->event, posted->is_local);
    if (atomic_fetch_sub(&posted->refs, 1) == 1)
        free(posted);
}

void hydration_post(struct hydration *hydration, struct hydration_shard *asker,
                    const struct hydration_event *event)
{
    unsigned count = asker ? 1 : loop_group_count(hydration->config.loops);
    struct posted *posted =
        memory_alloc(sizeof *posted + count * sizeof posted->messages[0] + hydration_event_bytes(event));

    posted->event = *event;
    hydration_event_keep(&posted->event, (char *)&posted->messages[count]);
    posted->is_local = asker;
    atomic_init(&posted->refs, count);
    for (unsigned i = 0; i < count; i++) {
        struct hydration_shard *shard = asker ? asker : hydration->shards[i];
        posted->messages[i] = (struct posted_message){{.on_message = on_posted}, posted, shard};
        loop_post(shard->loop, &posted->messages[i].message);
    }
}
