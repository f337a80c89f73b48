/* What is heard is told: to the memory, then to the askings of its entity, one after the other. Whom it is enough for leaves;
 * the others go on asking, each caller for themselves where the entity is the matter of single callers.
 *
 * Callbacks may ask, cancel and free what they like: waiters have left their asking and it is settled before the first of
 * them is called, and an asking that was opened meanwhile has had its own look at the memory. */
#include "base/hash.h"
#include "hydration/desk_inside.h"

enum { ARENA_BYTES = 512 };

/* ---- questions that were asked ---- */

static struct hydration_recent *place_of(struct hydration_desk *desk, uint64_t correlation)
{
    return &desk->recent[correlation % HYDRATION_RECENT_MAX];
}

void hydration_desk_note(struct hydration_asking *asking)
{
    uint64_t correlation = hash_seeded(str_from(asking->visit.correlation_id));
    *place_of(asking->desk, correlation) = (struct hydration_recent){correlation, asking->hash, false};
}

/* NULL: no question of this desk, or one of long ago. */
static struct hydration_recent *question_of(struct hydration_desk *desk, struct str correlation_id)
{
    uint64_t correlation = hash_seeded(correlation_id);
    struct hydration_recent *question = place_of(desk, correlation);
    return correlation_id.len && question->correlation == correlation ? question : NULL;
}

/* ---- telling ---- */

static bool is_for(const struct hydration_event *event, struct str subject)
{
    return !event->is_private || (subject.len > 0 && str_eq(event->subject, subject));
}

static enum hydration_way way_of(const struct hydration_waiter *waiter, const struct hydration_event *event)
{
    const struct hydration_asking *asking = waiter->asking;
    bool is_own = asking->question.subject || hydration_asking_is_own(asking, event->correlation_id);
    return is_own && !waiter->has_joined ? HYDRATION_BY_ASKING : HYDRATION_BY_JOINING;
}

/* The entity is the matter of single callers: each caller has an asking of their own from now on, so that nobody's question
 * stands in the way of the one it belongs to. Who finds no place is in `refused`. */
static void split(struct hydration_asking *asking, struct hydration_leaving *refused)
{
    struct hydration_outcome none = {.result = HYDRATION_UNAVAILABLE};
    for (struct hydration_waiter *waiter = asking->waiters, *next; waiter; waiter = next) {
        next = waiter->next;
        if (!waiter->subject.len)
            continue;
        waiter->way = HYDRATION_BY_JOINING;
        if (hydration_waiter_join(waiter, &asking->need, waiter->subject))
            waiter->asking->behind_ms = HYDRATION_LOOK_MS;
        else
            hydration_waiter_leave(refused, waiter, &none);
    }
}

/* Those it was not enough for go on. */
static void go_on(struct hydration_asking *asking, const struct hydration_event *event,
                  struct hydration_leaving *refused)
{
    if (event->is_private && !asking->need.subject.len)
        split(asking, refused);
    else if (asking->waiters && is_for(event, asking->need.subject))
        hydration_asking_again(asking);
}

static void tell(struct hydration_asking *asking, const struct hydration_event *event,
                 const struct hydration_cover *cover, bool by_ledger)
{
    struct hydration_leaving leaving = {.last = &leaving.first}, refused = {.last = &refused.first};
    bool is_updated = event->kind == HYDRATION_EVENT_UPDATED;
    struct hydration_outcome outcome = {
        .result = is_updated ? HYDRATION_UPDATED : HYDRATION_NOT_FOUND,
        .reason = event->reason,
        .is_negative_hit = !is_updated && by_ledger,
        .source_module = event->module,
        .version = event->version,
    };
    struct buf part;

    buf_init(&part);
    bool is_enough = !is_updated || hydration_data_includes(cover, event->data, &asking->need.cover);
    if (is_updated && is_enough)
        outcome.data = hydration_desk_cut(&asking->need.cover, event->data, &part);
    for (struct hydration_waiter *waiter = asking->waiters, *next; is_enough && waiter; waiter = next) {
        next = waiter->next;
        if (!is_for(event, waiter->subject))
            continue;
        waiter->way = by_ledger ? HYDRATION_BY_LEDGER : way_of(waiter, event);
        hydration_waiter_leave(&leaving, waiter, &outcome);
    }
    asking->is_answered |= !asking->need.subject.len || is_for(event, asking->need.subject);
    go_on(asking, event, &refused);
    hydration_desk_settle(asking);
    hydration_waiters_call(&leaving, &outcome);
    hydration_waiters_call(&refused, &(struct hydration_outcome){.result = HYDRATION_UNAVAILABLE});
    buf_deinit(&part);
}

static bool is_about(const struct hydration_asking *asking, uint64_t hash,
                     const struct hydration_event *event)
{
    const struct hydration_need *need = &asking->need;
    return asking->hash == hash && str_eq(need->entity_id, event->entity_id) &&
           str_eq(need->entity_type, event->entity_type) && str_eq(need->tenant, event->tenant);
}

static struct hydration_asking *next_about(struct hydration_desk *desk, uint64_t hash,
                                           const struct hydration_event *event)
{
    struct hydration_asking *asking = hydration_desk_bucket(desk, hash);
    while (asking && (asking->heard == desk->turn || !is_about(asking, hash, event)))
        asking = asking->next_in_bucket;
    return asking;
}

/* Callbacks may open and end askings, so each look begins at the bucket. */
static void tell_all(struct hydration_desk *desk, uint64_t hash, const struct hydration_event *event,
                     const struct hydration_cover *cover, bool by_ledger)
{
    struct hydration_asking *asking;
    desk->turn++;
    while ((asking = next_about(desk, hash, event)) != NULL) {
        asking->heard = desk->turn;
        tell(asking, event, cover, by_ledger);
    }
}

bool hydration_desk_learn(struct hydration_desk *desk, const struct hydration_event *event, int64_t ttl_ms)
{
    uint64_t hash = hydration_entity_hash(event->tenant, event->entity_type, event->entity_id);
    if (!hydration_memory_hear(desk->memory, event, &event->cover, true, ttl_ms, loop_now_ns(desk->loop)))
        return false;
    tell_all(desk, hash, event, &event->cover, true);
    return true;
}

/* ---- hearing ---- */

/* The asking whose question it answers; NULL: none of this desk. */
static const struct hydration_asking *own_asking(struct hydration_desk *desk, uint64_t hash,
                                                 const struct hydration_event *event)
{
    const struct hydration_asking *asking = hydration_desk_bucket(desk, hash);
    while (asking &&
           !(is_about(asking, hash, event) && hydration_asking_is_own(asking, event->correlation_id)))
        asking = asking->next_in_bucket;
    return asking;
}

/* Whom a question was asked for. */
static struct str asked_for(const struct hydration_asking *asking, struct str correlation_id)
{
    if (str_eq(correlation_id, str_from(asking->question.correlation_id)))
        return str_from(asking->question.subject);
    return asking->visit.need.subject;
}

/* What an answer of a source outside does not say, the question did: how much of the entity it is, whom it is for. The texts are
 * the arena's, since the asking may end while others are told. */
static void complete(struct hydration_desk *desk, uint64_t hash, struct hydration_event *event,
                     struct arena *arena)
{
    const struct hydration_asking *asking = own_asking(desk, hash, event);
    if (!asking)
        return;
    if (event->is_private && !event->subject.len)
        event->subject = arena_str(arena, asked_for(asking, event->correlation_id));
    if (event->has_cover)
        return;
    char *at = arena_alloc(arena, hydration_cover_bytes(&asking->need.cover));
    event->cover = hydration_cover_keep(&asking->need.cover, &at);
    event->has_cover = true;
}

static int64_t ttl_ms(const struct hydration_desk *desk, const struct hydration_asking *asking,
                      const struct hydration_event *event)
{
    const struct hydration_settings *settings = desk->hydration->config.settings;
    if (event->kind == HYDRATION_EVENT_UPDATED)
        return settings->copy_ttl_ms;
    return asking ? asking->policy.negative_cache_ttl_ms : settings->policy.negative_cache_ttl_ms;
}

static void count_answer(struct hydration_recent *question, bool is_awaited)
{
    if (question && question->is_answered)
        hydration_count_ignored("duplicate");
    else if (question && !is_awaited)
        hydration_count_ignored("late");
    if (question)
        question->is_answered = true;
}

/* An answer to anybody's question is kept, a change only of what is known here. */
static void take_in(struct hydration_desk *desk, uint64_t hash, const struct hydration_event *event,
                    struct hydration_recent *question)
{
    const struct hydration_cover *cover = event->has_cover ? &event->cover : NULL;
    desk->turn++;
    const struct hydration_asking *asking = next_about(desk, hash, event);
    if (!hydration_memory_hear(desk->memory, event, cover, asking || event->correlation_id.len > 0,
                               ttl_ms(desk, asking, event), loop_now_ns(desk->loop))) {
        hydration_count_ignored("stale");
        return;
    }
    count_answer(question, asking != NULL);
    tell_all(desk, hash, event, cover, false);
}

void hydration_desk_hear(struct hydration_desk *desk, const struct hydration_event *event)
{
    uint64_t hash = hydration_entity_hash(event->tenant, event->entity_type, event->entity_id);
    struct hydration_recent *question = question_of(desk, event->correlation_id);
    struct hydration_event whole = *event;
    struct arena arena;

    if (desk->stopping || event->kind == HYDRATION_EVENT_UNKNOWN)
        return;
    if (question && question->entity != hash) {
        hydration_count_ignored("mismatch"); /* of another type, id or tenant than was asked for */
        return;
    }
    arena_init(&arena, ARENA_BYTES);
    complete(desk, hash, &whole, &arena);
    take_in(desk, hash, &whole, question);
    arena_deinit(&arena);
}
