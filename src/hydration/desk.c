/* Who waits, and for what: every way in and out. An asking is found by its entity; those of one entity differ by how much of it
 * is asked for, and, once it has shown to be the matter of single callers, by the caller.
 *
 *     bucket ─▶ asking (item 7, full) ─▶ asking (item 7, existence) ─▶ asking (session 9, full, for ann)
 *                  └ waiters: ann, bob, ann, eve
 *
 * A wait ends by what telling.c hears, by its time, by its owner or by the end of the desk; shortly before its time is up the
 * ledger is looked at once more, for all of an asking's waiters together. */
#include <stddef.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "hydration/desk_inside.h"

#define BACKGROUND_MS 60000
#define LOOK_PART 10 /* of a short wait the last look takes this part at most */

struct hydration_desk *hydration_desk_create(struct hydration *hydration, struct loop *loop)
{
    struct hydration_desk *desk = memory_zalloc(sizeof *desk);
    const struct hydration_settings *settings = hydration->config.settings;
    size_t loops = loop_group_count(hydration->config.loops);

    desk->hydration = hydration;
    desk->loop = loop;
    desk->memory = hydration_memory_create((size_t)settings->memory_entries / loops,
                                           (size_t)settings->memory_bytes / loops);
    hydration_turns_init(&desk->turns);
    buf_init(&desk->cut);
    hydration_metrics_register();
    return desk;
}

void hydration_desk_destroy(struct hydration_desk *desk)
{
    hydration_memory_destroy(desk->memory);
    hydration_turns_deinit(&desk->turns);
    buf_deinit(&desk->cut);
    free(desk);
}

size_t hydration_desk_waiters(const struct hydration_desk *desk)
{
    return desk->waiter_count;
}

size_t hydration_desk_askings(const struct hydration_desk *desk)
{
    return desk->asking_count;
}

/* ---- askings ---- */

static struct hydration_asking **bucket_of(struct hydration_desk *desk, uint64_t hash)
{
    return &desk->buckets[hash % HYDRATION_ASKINGS_MAX];
}

struct hydration_asking *hydration_desk_bucket(struct hydration_desk *desk, uint64_t hash)
{
    return *bucket_of(desk, hash);
}

static bool is_same(const struct hydration_asking *asking, uint64_t hash, const struct hydration_need *need,
                    struct str subject)
{
    const struct hydration_need *other = &asking->need;
    return asking->hash == hash && str_eq(other->entity_id, need->entity_id) &&
           str_eq(other->entity_type, need->entity_type) && str_eq(other->tenant, need->tenant) &&
           str_eq(other->subject, subject) && hydration_cover_equal(&other->cover, &need->cover);
}

static struct hydration_asking *find(struct hydration_desk *desk, uint64_t hash,
                                     const struct hydration_need *need, struct str subject)
{
    struct hydration_asking *asking = *bucket_of(desk, hash);
    while (asking && !is_same(asking, hash, need, subject))
        asking = asking->next_in_bucket;
    return asking;
}

/* NULL: too many. */
static struct hydration_asking *open_asking(struct hydration_desk *desk, uint64_t hash,
                                            const struct hydration_need *need, struct str subject,
                                            const struct hydration_policy *policy)
{
    struct hydration_share *share =
        desk->asking_count < HYDRATION_ASKINGS_MAX ? hydration_share_enter(desk, need) : NULL;
    if (!share)
        return NULL;
    struct hydration_asking *asking = hydration_asking_create(desk, hash, need, subject, policy);
    asking->share = share;
    asking->next_in_bucket = *bucket_of(desk, hash);
    *bucket_of(desk, hash) = asking;
    desk->asking_count++;
    return asking;
}

static void end_asking(struct hydration_asking *asking)
{
    struct hydration_asking **place = bucket_of(asking->desk, asking->hash);
    while (*place != asking)
        place = &(*place)->next_in_bucket;
    *place = asking->next_in_bucket;
    asking->desk->asking_count--;
    hydration_share_leave(asking->desk, asking->share);
    hydration_asking_end(asking);
}

void hydration_desk_settle(struct hydration_asking *asking)
{
    if (!asking->has_ended && !hydration_asking_is_needed(asking))
        end_asking(asking);
}

/* ---- waiters ---- */

static void link_at(struct hydration_asking *asking, struct hydration_waiter **place,
                    struct hydration_waiter *waiter)
{
    waiter->asking = asking;
    waiter->next = *place;
    waiter->link = place;
    *(waiter->next ? &waiter->next->link : &asking->last) = &waiter->next;
    *place = waiter;
}

static void unlink_waiter(struct hydration_waiter *waiter)
{
    *waiter->link = waiter->next;
    if (waiter->next)
        waiter->next->link = waiter->link;
    else if (waiter->asking)
        waiter->asking->last = waiter->link;
    waiter->link = NULL;
    waiter->next = NULL;
}

static void stop_waiting(struct hydration_waiter *waiter)
{
    loop_timer_stop(waiter->desk->loop, &waiter->timer);
    free((char *)waiter->subject.ptr);
    waiter->subject = STR_NONE;
    waiter->asking = NULL;
    waiter->desk->waiter_count--;
    waiter->desk->background_count -= waiter->is_background;
    hydration_count_waiters(-1);
}

/* The one way out. Its asking is the caller's to settle. */
static void detach(struct hydration_waiter *waiter)
{
    unlink_waiter(waiter);
    stop_waiting(waiter);
}

void hydration_waiter_cancel(struct hydration_waiter *waiter)
{
    struct hydration_asking *asking = waiter->asking;
    if (!waiter->link)
        return;
    if (!asking) { /* its outcome was about to be told */
        unlink_waiter(waiter);
        return;
    }
    detach(waiter);
    hydration_desk_settle(asking);
}

/* ---- outcomes ---- */

/* One line for each question (seed 001 §12); those that cost nobody anything are for who looks closely. */
static void log_outcome(const struct hydration_need *need, const struct hydration_policy *policy,
                        const char *correlation_id, const struct hydration_outcome *outcome)
{
    enum log_level level = outcome->way == HYDRATION_BY_ASKING ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG;
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
                         LOG_CSTR("result", hydration_result_name(outcome->result))));
}

/* Counts it, logs it, and takes the waiter out of its asking; only the callback is left. */
static void conclude(struct hydration_waiter *waiter, struct hydration_outcome *outcome)
{
    const struct hydration_asking *asking = waiter->asking;
    outcome->way = waiter->way;
    if (!waiter->is_background) {
        hydration_count_outcome(waiter->policy, outcome, waiter->begun_ns, loop_now_ns(waiter->desk->loop));
        log_outcome(&asking->need, waiter->policy,
                    asking->question.subject ? asking->question.correlation_id : asking->visit.correlation_id,
                    outcome);
    }
    detach(waiter);
}

void hydration_waiter_leave(struct hydration_leaving *leaving, struct hydration_waiter *waiter,
                            struct hydration_outcome *outcome)
{
    conclude(waiter, outcome);
    waiter->link = leaving->last;
    *leaving->last = waiter;
    leaving->last = &waiter->next;
}

void hydration_waiters_call(struct hydration_leaving *leaving, struct hydration_outcome *outcome)
{
    while (leaving->first) {
        struct hydration_waiter *waiter = leaving->first;
        unlink_waiter(waiter);
        outcome->way = waiter->way;
        waiter->on_done(waiter, outcome);
    }
}

/* What was needed of `data`: a slice of it, a literal, or cut into `out`. */
struct str hydration_desk_cut(const struct hydration_cover *cover, struct str data, struct buf *out)
{
    if (cover->mode == HYDRATION_FULL || !data.len)
        return data;
    if (cover->mode == HYDRATION_EXISTENCE)
        return STR("{}");
    buf_clear(out);
    hydration_cover_cut(cover, data, out);
    return buf_str(out);
}

/* Memory may have a copy all the same. It is the asking's, so of everybody who waits here; its text is kept, since whoever is
 * told may do anything. */
void hydration_desk_fail(struct hydration_asking *asking)
{
    struct hydration_leaving leaving = {.last = &leaving.first};
    const struct hydration_desk *desk = asking->desk;
    struct hydration_known_entity known =
        hydration_memory_look(desk->memory, &asking->need, loop_now_ns(desk->loop));
    struct arena arena;
    struct buf part;

    arena_init(&arena, 256);
    buf_init(&part);
    struct hydration_outcome outcome = {
        .result = HYDRATION_UNAVAILABLE,
        .source_module = arena_str(&arena, known.source_module),
        .version = known.version,
        .data = arena_str(&arena, hydration_desk_cut(&asking->need.cover, known.data, &part))};
    for (struct hydration_waiter *waiter = asking->waiters, *next; waiter; waiter = next) {
        next = waiter->next;
        if (waiter->is_background && !desk->stopping)
            continue;
        waiter->way = HYDRATION_BY_JOINING;
        hydration_waiter_leave(&leaving, waiter, &outcome);
    }
    hydration_desk_settle(asking);
    hydration_waiters_call(&leaving, &outcome);
    buf_deinit(&part);
    arena_deinit(&arena);
}

/* ---- time ---- */

struct background {
    struct hydration_waiter waiter;
    struct hydration_policy policy;
};

static void on_background_done(struct hydration_waiter *waiter, const struct hydration_outcome *outcome)
{
    (void)outcome;
    loop_free_later(waiter->desk->loop, waiter, free);
}

static void on_time(struct loop_timer *timer);

static int64_t look_ns(const struct hydration_waiter *waiter)
{
    int64_t part_ns = (waiter->deadline_ns - waiter->begun_ns) / LOOK_PART,
            most_ns = HYDRATION_LOOK_MS * CLOCK_NS_PER_MS;
    return part_ns < most_ns ? part_ns : most_ns;
}

static void start_waiting(struct hydration_waiter *waiter, struct str subject)
{
    struct hydration_desk *desk = waiter->desk;
    waiter->subject = str_of(str_dup(subject), subject.len);
    loop_timer_start(desk->loop, &waiter->timer, waiter->deadline_ns - look_ns(waiter), on_time);
    desk->waiter_count++;
    desk->background_count += waiter->is_background;
    hydration_count_waiters(1);
}

static bool has_background(const struct hydration_asking *asking, struct str subject)
{
    const struct hydration_waiter *waiter = asking->waiters;
    while (waiter && waiter->is_background && !str_eq(waiter->subject, subject))
        waiter = waiter->next;
    return waiter && waiter->is_background;
}

/* Somebody who waits in the place of a caller who was told to come back; at the front, where the others of its kind are. */
static void keep_asking(struct hydration_asking *asking, const struct hydration_waiter *caller)
{
    struct hydration_desk *desk = asking->desk;
    int64_t now_ns = loop_now_ns(desk->loop);
    if (desk->background_count == HYDRATION_BACKGROUND_MAX || has_background(asking, caller->subject))
        return;
    struct background *background = memory_alloc(sizeof *background);
    *background = (struct background){.policy = *caller->policy,
                                      .waiter = {.desk = desk,
                                                 .on_done = on_background_done,
                                                 .begun_ns = now_ns,
                                                 .deadline_ns = now_ns + BACKGROUND_MS * CLOCK_NS_PER_MS,
                                                 .has_joined = true,
                                                 .is_background = true}};
    background->waiter.policy = &background->policy;
    link_at(asking, &asking->waiters, &background->waiter);
    start_waiting(&background->waiter, caller->subject);
}

/* A stale copy, returned on timeout: the memory's, else the ledger's. The latter's texts are the asking's, which outlives the
 * tick it ends in. */
static struct hydration_known_entity stale_copy(const struct hydration_waiter *waiter,
                                                const struct hydration_need *need)
{
    const struct hydration_asking *asking = waiter->asking;
    struct hydration_known_entity known =
        hydration_memory_look(waiter->desk->memory, need, loop_now_ns(waiter->desk->loop));

    if (!known.data.len && asking->stale.block &&
        (!asking->stale.subject.len || str_eq(asking->stale.subject, waiter->subject)))
        known = (struct hydration_known_entity){.data = asking->stale.data,
                                                .source_module = asking->stale.source_module,
                                                .version = asking->stale.version};
    return known;
}

static void time_out(struct hydration_waiter *waiter)
{
    struct hydration_asking *asking = waiter->asking;
    struct hydration_need need = asking->need;
    struct hydration_leaving leaving = {.last = &leaving.first};
    struct buf part;

    need.subject = waiter->subject;
    struct hydration_known_entity known = stale_copy(waiter, &need);
    buf_init(&part);
    struct hydration_outcome outcome = {.result = HYDRATION_TIMEOUT,
                                        .source_module = known.source_module,
                                        .version = known.version,
                                        .data = hydration_desk_cut(&need.cover, known.data, &part)};
    if (waiter->defers)
        keep_asking(asking, waiter);
    waiter->way =
        asking->question.subject && !waiter->has_joined ? HYDRATION_BY_ASKING : HYDRATION_BY_JOINING;
    hydration_waiter_leave(&leaving, waiter, &outcome);
    hydration_desk_settle(asking);
    hydration_waiters_call(&leaving, &outcome);
    buf_deinit(&part);
}

static void on_time(struct loop_timer *timer)
{
    struct hydration_waiter *waiter =
        (struct hydration_waiter *)((char *)timer - offsetof(struct hydration_waiter, timer));
    struct hydration_asking *asking = waiter->asking;

    if (waiter->has_looked) {
        time_out(waiter);
        return;
    }
    waiter->has_looked = true;
    loop_timer_start(waiter->desk->loop, &waiter->timer, waiter->deadline_ns, on_time);
    if (loop_now_ns(waiter->desk->loop) - asking->visited_ns >= 2 * look_ns(waiter))
        hydration_asking_visit(asking, HYDRATION_VISIT_LOOK);
}

/* ---- asking ---- */

bool hydration_waiter_join(struct hydration_waiter *waiter, const struct hydration_need *need,
                           struct str subject)
{
    struct hydration_desk *desk = waiter->desk;
    uint64_t hash = hydration_entity_hash(need->tenant, need->entity_type, need->entity_id);
    struct hydration_asking *asking = find(desk, hash, need, subject);
    bool is_new = !asking;

    if (is_new)
        asking = open_asking(desk, hash, need, subject, waiter->policy);
    if (!asking)
        return false;
    if (waiter->link)
        unlink_waiter(waiter);
    waiter->has_joined = !is_new;
    link_at(asking, asking->last, waiter);
    if (is_new)
        hydration_asking_visit(asking, HYDRATION_VISIT_CLAIM);
    return true;
}

/* An outcome there and then. */
static void answer(struct hydration_waiter *waiter, const struct hydration_need *need,
                   struct hydration_outcome *outcome)
{
    hydration_count_outcome(waiter->policy, outcome, waiter->begun_ns, waiter->begun_ns);
    log_outcome(need, waiter->policy, NULL, outcome);
    waiter->on_done(waiter, outcome);
}

static void answer_known(struct hydration_waiter *waiter, const struct hydration_need *need,
                         const struct hydration_known_entity *known)
{
    struct hydration_desk *desk = waiter->desk;
    bool is_nested = desk->cut_in_use, is_copy = known->known == HYDRATION_KNOWN_COPY;
    struct hydration_outcome outcome = {.result = is_copy ? HYDRATION_UPDATED : HYDRATION_NOT_FOUND,
                                        .reason = known->reason,
                                        .way = HYDRATION_BY_MEMORY,
                                        .is_negative_hit = !is_copy,
                                        .source_module = known->source_module,
                                        .version = known->version};
    struct buf own;

    buf_init(&own);
    desk->cut_in_use = true;
    if (is_copy)
        outcome.data = hydration_desk_cut(&need->cover, known->data, is_nested ? &own : &desk->cut);
    answer(waiter, need, &outcome);
    desk->cut_in_use = is_nested;
    buf_deinit(&own);
}

static void refuse(struct hydration_waiter *waiter, const struct hydration_need *need)
{
    answer(waiter, need,
           &(struct hydration_outcome){.result = HYDRATION_UNAVAILABLE, .way = HYDRATION_BY_JOINING});
}

void hydration_ask(struct hydration *hydration, const struct hydration_policy *policy,
                   const struct hydration_need *need, bool defers, struct loop *loop,
                   struct hydration_waiter *waiter, hydration_done_fn *on_done)
{
    struct hydration_desk *desk = hydration->desks[loop_index(loop)];
    int64_t now_ns = loop_now_ns(loop);

    *waiter = (struct hydration_waiter){.desk = desk,
                                        .on_done = on_done,
                                        .policy = policy,
                                        .begun_ns = now_ns,
                                        .deadline_ns = now_ns + policy->wait_timeout_ms * CLOCK_NS_PER_MS,
                                        .defers = defers};
    if (desk->stopping || !atomic_load_explicit(&hydration->wire, memory_order_acquire)) {
        refuse(waiter, need);
        return;
    }
    struct hydration_known_entity known = hydration_memory_look(desk->memory, need, now_ns);
    if (known.known != HYDRATION_KNOWN_NOT) {
        answer_known(waiter, need, &known);
        return;
    }
    start_waiting(waiter, need->subject);
    if (hydration_waiter_join(waiter, need, known.is_private ? need->subject : STR_NONE)) {
        if (known.is_private || known.was_heard || known.data.len)
            waiter->asking->behind_ms = HYDRATION_LOOK_MS;
        return;
    }
    stop_waiting(waiter);
    refuse(waiter, need);
}

/* ---- the end ---- */

static struct hydration_asking *any_open(struct hydration_desk *desk, size_t bucket)
{
    struct hydration_asking *asking = desk->buckets[bucket];
    while (asking && asking->visit.is_running && !asking->waiters)
        asking = asking->next_in_bucket;
    return asking;
}

void hydration_desk_stop(struct hydration_desk *desk)
{
    struct hydration_asking *asking;
    desk->stopping = true;
    loop_tick_cancel(desk->loop, &desk->tick);
    while ((asking = hydration_turns_next(desk)) != NULL)
        asking->visit.is_queued = false;
    for (size_t bucket = 0; bucket < HYDRATION_ASKINGS_MAX; bucket++)
        while ((asking = any_open(desk, bucket)) != NULL) {
            asking->is_answered = true; /* no retry is owed any more */
            hydration_desk_fail(asking);
        }
}
