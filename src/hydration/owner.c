/* Owners (H6): a question is looked up by the owner of its type and answered with as much as was asked for; a change is published
 * with the whole entity. Events are made in two functions, make_answer() and publish_change(), which apply visibility:
 *
 * a private entity is answered to the caller that asked, by name, and its change is published for its only caller where the owner
 * can name one; else the change has no data, and consumers drop their copies. A question without a caller sees nothing private.
 *
 * Each owner has a bounded queue of questions and few places for looks, so that an owner that hangs holds up no other. Tenants take turns;
 * one tenant alone leaves a place, and its part of the queue is what one loop looks up of a type at once, so that a burst of lookups
 * waits. A question without room, or that waited longer than its lookup, is dropped and counted: the oldest first. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "hydration/inside.h"

enum {
    FOLLOWED_AT_ONCE = 100,
    ANSWERS_MAX = 16,
    QUICK_MS = 5, /* longest wait of an answer for others, to be published together */
    QUESTIONS_MAX = HYDRATION_LOOKUPS_MAX,
    QUESTIONS_OF_TENANT_MAX = HYDRATION_TYPE_MAX,
};

/* A question that waits for its owner. */
struct question {
    struct turns_item turn;
    struct turns_share *place; /* of the tenant, while it is looked up */
    struct hydration_shard *asker;
    int64_t expires_ns;
    size_t bytes; /* of itself */
    struct hydration_event event;
    struct str block[]; /* the event's fields, then its texts */
};

static void free_question(struct question *question)
{
    if (question)
        budget_release(BUDGET_HYDRATION, question->bytes);
    free(question);
}

/* One read of an entity, and the event that is made of it. */
struct look {
    struct question *question; /* NULL: for a change */
    struct hydration_need need;
    struct arena arena;
    struct buf whole, cut;
    struct hydration_entity entity;
    struct hydration_event event;
    struct span *span;      /* of the answer; NULL = not recorded */
    struct str traceparent; /* to pass on with it */
    bool failed;
};

static enum status look_open(struct look *look, const struct hydration_owner *owner, int64_t deadline_ns,
                             struct error *error)
{
    look->arena = ARENA(HYDRATION_ARENA_BYTES);
    if (look->question)
        look->traceparent = span_follow(&look->span, SPAN_CONSUMER, "answer lookup",
                                        look->question->event.traceparent, &look->arena);
    look->whole = look->cut = (struct buf){0};
    look->entity = (struct hydration_entity){.data = &look->whole, .arena = &look->arena};
    enum status status = owner->look(owner->context, &look->need, deadline_ns, &look->entity, error);
    look->event = (struct hydration_event){
        .tenant = look->need.tenant,
        .entity_type = look->need.entity_type,
        .entity_id = look->need.entity_id,
        .module = str_from(owner->module),
        .version = look->entity.version,
    };
    return status;
}

static void look_close(struct look *look)
{
    if (look->span) {
        span_put_str(look->span, "freshet.tenant.id", look->need.tenant);
        span_put_str(look->span, "freshet.entity.type", look->need.entity_type);
        span_put_str(look->span, "freshet.entity.id",
                     str_utf8_cut(look->need.entity_id, SPAN_TEXT_BYTES / 2));
        if (look->failed)
            span_fail(look->span, STR("not_answered"));
        span_end(look->span);
    }
    buf_deinit(&look->whole);
    buf_deinit(&look->cut);
    arena_deinit(&look->arena);
    free_question(look->question);
}

static void put_data(struct look *look, const struct hydration_cover *cover)
{
    hydration_cover_cut(cover, buf_str(&look->whole), &look->cut);
    look->event.kind = HYDRATION_EVENT_UPDATED;
    look->event.data = buf_str(&look->cut);
    look->event.cover = *cover;
    look->event.has_cover = true;
}

/* ---- questions that wait ---- */

static void drop_question(struct turns_item *item)
{
    hydration_count_ignored("overload");
    free_question(CONTAINER_OF(item, struct question, turn));
}

void hydration_owner_ask(struct hydration_owner_slot *slot, const struct hydration_event *event,
                         struct hydration_shard *asker)
{
    size_t bytes = sizeof(struct question) + hydration_event_bytes(event);
    struct question *question = memory_alloc(bytes);
    budget_add(BUDGET_HYDRATION, bytes);
    uint64_t tenant = hash_seeded(event->tenant);
    int64_t wait_ms = event->wait_ms > 0 ? event->wait_ms : HYDRATION_OWNER_MS;

    *question = (struct question){
        .asker = asker, .expires_ns = clock_deadline_ms(wait_ms), .bytes = bytes, .event = *event};
    hydration_event_keep(&question->event, (char *)question->block);
    pthread_mutex_lock(&slot->lock);
    struct turns_item *dropped =
        turns_make_room(&slot->turns, tenant, QUESTIONS_OF_TENANT_MAX, QUESTIONS_MAX);
    turns_put(&slot->turns, tenant, &question->turn);
    unsigned next = slot->busy < HYDRATION_LOOK_PLACES ? slot->busy : 0;
    pthread_mutex_unlock(&slot->lock);
    for (unsigned i = 0; i <= next; i++) /* one may be busy with a slow read */
        task_wake(slot->answering[i]);
    if (dropped)
        drop_question(dropped);
}

/* The tenant of the next question that may be looked up; NULL: none. */
static struct turns_share *next_tenant(const struct hydration_owner_slot *slot)
{
    return turns_first_to_enter(&slot->turns, HYDRATION_LOOK_PLACES - slot->looks);
}

/* The next one, with a place for it; NULL: none may be looked up. An idle task goes on with the question after that. */
static struct question *take_question(struct hydration_owner_slot *slot, const struct task *self)
{
    int64_t now_ns = clock_mono_ns();
    struct question *question = NULL;
    struct turns_share *tenant;

    pthread_mutex_lock(&slot->lock);
    while (!question && (tenant = next_tenant(slot)) != NULL) {
        uint64_t hash = tenant->node.hash;
        if (CONTAINER_OF(TAILQ_FIRST(&tenant->items), struct question, turn)->expires_ns <= now_ns) {
            drop_question(turns_take(&slot->turns, tenant)); /* it does not use its tenant's turn */
            continue;
        }
        question = CONTAINER_OF(turns_take_turn(&slot->turns, tenant), struct question, turn);
        question->place = turns_enter(&slot->turns, hash, HYDRATION_LOOK_PLACES);
        slot->looks++;
    }
    bool is_more = slot->busy < HYDRATION_LOOK_PLACES && next_tenant(slot);
    pthread_mutex_unlock(&slot->lock);
    for (size_t i = 0; i < HYDRATION_LOOK_PLACES && is_more; i++)
        if (slot->answering[i] != self)
            task_wake(slot->answering[i]);
    return question;
}

static void leave_place(struct hydration_owner_slot *slot, struct question *question)
{
    pthread_mutex_lock(&slot->lock);
    turns_leave(&slot->turns, question->place);
    slot->looks--;
    pthread_mutex_unlock(&slot->lock);
}

/* ---- answers ---- */

static void note_asked(struct hydration_owner_slot *slot)
{
    atomic_store_explicit(&slot->asked_until_ns, clock_deadline_ms(hydration_held_ms(slot->hydration)),
                          memory_order_relaxed);
}

static void make_answer(struct look *look, const struct hydration_event *question)
{
    const struct hydration_entity *entity = &look->entity;
    struct hydration_event *event = &look->event;
    bool is_hidden =
        entity->found == HYDRATION_ENTITY_HIDDEN ||
        (entity->found == HYDRATION_ENTITY_EXISTS && entity->is_private && !question->caller.len);
    bool is_there = entity->found == HYDRATION_ENTITY_EXISTS && !is_hidden;

    event->kind = HYDRATION_EVENT_NOT_FOUND;
    event->correlation_id = question->correlation_id;
    event->traceparent = look->traceparent;
    event->is_private = is_hidden || (is_there && entity->is_private);
    event->reason = is_hidden ? HYDRATION_INACCESSIBLE : HYDRATION_ABSENT;
    if (event->is_private)
        event->caller = question->caller;
    if (is_there)
        put_data(look, &question->cover);
}

static void log_unanswered(struct hydration *hydration, const struct hydration_event *question,
                           const struct error *error)
{
    if (hydration_may_log(&hydration->answer_logged_ns))
        log_warn("hydration_unanswered", LOG_STR("entity_type", question->entity_type),
                 LOG_STR("entity_id", question->entity_id), LOG_STR("requester_module", question->module),
                 LOG_STR("correlation_id", question->correlation_id), LOG_TRACE(question->traceparent),
                 LOG_ERROR_FIELDS(error));
}

/* Answers one question. If a shard of this process asked it, that shard gets the answer at once. */
static bool answer_one(struct hydration_owner_slot *slot, struct question *asked, struct look *look)
{
    struct hydration *hydration = slot->hydration;
    const struct hydration_event *question = &asked->event;
    struct error error = {0};

    *look = (struct look){.question = asked,
                          .need = {.tenant = question->tenant,
                                   .caller = question->caller,
                                   .entity_type = question->entity_type,
                                   .entity_id = question->entity_id,
                                   .cover = question->cover}};
    note_asked(slot); /* before the look: a later change wakes the reader of the owner's events */
    turns_work_for(hash_seeded(question->tenant)); /* the owner's connections are the tenant's */
    enum status status = look_open(look, &slot->row, clock_deadline_ms(HYDRATION_OWNER_MS), &error);
    turns_work_for(0);
    leave_place(slot, asked);
    FAILPOINT("hydration.before_answer");
    if (status != STATUS_OK) {
        look->failed = true;
        log_unanswered(hydration, question, &error);
        return false;
    }
    make_answer(look, question);
    if (asked->asker && !atomic_load(&hydration->stopping))
        hydration_post(hydration, asked->asker, &look->event);
    return true;
}

/* While the owner is quick, its answers are published together. The bus carries every answer: other processes may wait for it, and
 * the ledger stores it. */
static void answer_some(struct hydration_owner_slot *slot, const struct task *self)
{
    int64_t quick_until_ns = clock_deadline_ms(QUICK_MS), deadline_ns;
    struct hydration_event answers[ANSWERS_MAX];
    struct look looks[ANSWERS_MAX];
    struct question *question;
    struct error error = {0};
    size_t count = 0;
    bool goes_on;
    do {
        question = take_question(slot, self);
        /* An answer to another process is sent before the next look, which may take long; a shard of this process already has its
         * answer. */
        goes_on = question && question->asker;
        if (question && answer_one(slot, question, &looks[count])) {
            answers[count] = looks[count].event;
            count++;
        } else if (question) {
            look_close(&looks[count]);
        }
    } while (goes_on && count < ANSWERS_MAX && clock_mono_ns() < quick_until_ns);
    deadline_ns = clock_deadline_ms(HYDRATION_OWNER_MS);
    enum status status = hydration_wire_send(slot->hydration, answers, count, deadline_ns, &error);
    FAILPOINT("hydration.after_answer");
    bool is_one_refused = count > 1 && (status == STATUS_BAD_REQUEST || status == STATUS_PAYLOAD_TOO_LARGE);
    for (size_t i = 0; i < count; i++) {
        enum status own = is_one_refused
                              ? hydration_wire_send(slot->hydration, &answers[i], 1, deadline_ns, &error)
                              : status;
        const struct hydration_event *asked = &looks[i].question->event;
        looks[i].failed = own != STATUS_OK;
        if (own != STATUS_OK)
            log_unanswered(slot->hydration, asked, &error);
        else
            log_info(
                "hydration_answered", LOG_STR("entity_type", asked->entity_type),
                LOG_STR("entity_id", asked->entity_id),
                LOG_CSTR("hydration_mode", hydration_mode_names[asked->cover.mode]),
                LOG_STR("requester_module", asked->module), LOG_STR("source_module", answers[i].module),
                LOG_STR("correlation_id", asked->correlation_id), LOG_STR("tenant_id", asked->tenant),
                LOG_TRACE(asked->traceparent),
                LOG_CSTR("result", answers[i].kind == HYDRATION_EVENT_UPDATED ? "updated" : "not-found"));
        look_close(&looks[i]);
    }
}

/* On a worker, one of HYDRATION_LOOK_PLACES. */
static int64_t answer_step(struct task *task, void *context)
{
    struct hydration_owner_slot *slot = context;

    pthread_mutex_lock(&slot->lock);
    slot->busy++;
    pthread_mutex_unlock(&slot->lock);
    answer_some(slot, task);
    pthread_mutex_lock(&slot->lock);
    slot->busy--;
    bool is_more = next_tenant(slot); /* not: its looks end in other runs, which go on with it */
    pthread_mutex_unlock(&slot->lock);
    return is_more ? TASK_NOW : TASK_IDLE;
}

/* ---- changes ---- */

static enum status publish_change(struct hydration_owner_slot *slot, struct hydration_ref ref,
                                  int64_t deadline_ns, struct error *error)
{
    static const struct hydration_cover existence = {.mode = HYDRATION_EXISTENCE};
    struct look look = {.need = {.tenant = ref.tenant,
                                 .entity_type = str_from(slot->row.entity_type),
                                 .entity_id = ref.entity_id,
                                 .cover.mode = HYDRATION_FULL}};
    if (!atomic_load(&slot->hydration->bus))
        return error_set(error, STATUS_UNAVAILABLE, "the bus of events is not open yet");
    enum status status = look_open(&look, &slot->row, deadline_ns, error);
    if (status == STATUS_OK) {
        const struct hydration_entity *entity = &look.entity;
        if (entity->found == HYDRATION_ENTITY_ABSENT) { /* for every caller */
            look.event.kind = HYDRATION_EVENT_NOT_FOUND;
        } else {
            look.event.is_private = entity->is_private || entity->found == HYDRATION_ENTITY_HIDDEN;
            look.event.caller = look.event.is_private ? entity->only_caller : STR_NONE;
            put_data(&look, look.event.is_private && !look.event.caller.len ? &existence : &look.need.cover);
        }
        FAILPOINT("hydration.before_change");
        status = hydration_wire_send(slot->hydration, &look.event, 1, deadline_ns, error);
    }
    look_close(&look);
    return status;
}

enum status hydration_publish_change(struct hydration *hydration, const char *entity_type, struct str tenant,
                                     struct str entity_id, int64_t deadline_ns, struct error *error)
{
    struct hydration_owner_slot *slot = hydration_owner_find(hydration, str_from(entity_type));
    if (!slot)
        return error_set(error, STATUS_CONFIG, "no module of this process provides %s", entity_type);
    return publish_change(slot, (struct hydration_ref){tenant, entity_id}, deadline_ns, error);
}

/* ---- entities that consumers hold ---- */

enum status hydration_find_held(struct hydration *hydration, const char *entity_type,
                                const struct hydration_ref *refs, size_t count, int64_t deadline_ns,
                                bool *held, struct error *error)
{
    struct hydration_owner_slot *slot = hydration_owner_find(hydration, str_from(entity_type));
    enum status status = STATUS_OK;
    if (hydration->config.is_plain)
        memset(held, true, count * sizeof *held);
    else
        status = hydration_ledger_find_held(hydration->config.pool, str_from(entity_type), refs, count,
                                            deadline_ns, held, error);
    if (status == STATUS_OK && slot && memchr(held, true, count * sizeof *held))
        note_asked(slot);
    return status;
}

int64_t hydration_held_ms(const struct hydration *hydration)
{
    const struct hydration_settings *settings = hydration->config.settings;
    int64_t negative_ms = settings->policy.negative_cache_ttl_ms, copy_ms = settings->copy_ttl_ms;
    return (copy_ms > negative_ms ? copy_ms : negative_ms) + HYDRATION_EXPIRED_COPY_MS;
}

/* ---- the owner's own events ---- */

/* Is there a later change of the same entity in the batch? Only the last one is looked up. */
static bool is_followed_later(const struct hydration_ref *refs, size_t at, size_t count)
{
    for (size_t i = at + 1; i < count; i++)
        if (str_eq(refs[at].entity_id, refs[i].entity_id) && str_eq(refs[at].tenant, refs[i].tenant))
            return true;
    return false;
}

/* Most changes are of entities that no consumer holds: one query for the whole batch finds the others. */
static void on_followed(void *context, struct bus_batch *batch)
{
    struct hydration_owner_slot *slot = context;
    struct error error = {0};
    struct arena arena = ARENA(HYDRATION_ARENA_BYTES);
    size_t i;

    struct hydration_ref *refs = arena_zalloc(&arena, batch->count * sizeof refs[0]);
    bool *held = arena_zalloc(&arena, batch->count * sizeof held[0]);
    for (i = 0; i < batch->count; i++)
        if (!slot->row.read(&batch->messages[i], &arena, &refs[i]))
            refs[i] = (struct hydration_ref){STR(""), STR("")};
    enum status status = hydration_find_held(slot->hydration, slot->row.entity_type, refs, batch->count,
                                             batch->deadline_ns, held, &error);
    if (status != STATUS_OK)
        bus_batch_retry(batch, 0, "%s", error.message);
    for (i = 0; i < batch->count && status == STATUS_OK; i++) {
        if (!held[i] || !refs[i].entity_id.len || is_followed_later(refs, i, batch->count))
            continue;
        status = publish_change(slot, refs[i], batch->deadline_ns, &error);
        if (status_retryable(status)) {
            bus_batch_retry(batch, i, "%s", error.message); /* and the later ones of the batch */
        } else if (status != STATUS_OK) { /* a retry would fail in the same way; copies expire */
            log_error("hydration_change_not_published", LOG_CSTR("entity_type", slot->row.entity_type),
                      LOG_STR("entity_id", refs[i].entity_id), LOG_STR("tenant_id", refs[i].tenant),
                      LOG_ERROR_FIELDS(&error));
            status = STATUS_OK;
        }
    }
    arena_deinit(&arena);
}

/* While no consumer asks for entities of this type, their changes wait for the bus's poll and are read many at a time. */
static bool wakes_follower(void *context, const struct bus_message *message)
{
    const struct hydration_owner_slot *slot = context;
    (void)message;
    return atomic_load_explicit(&slot->asked_until_ns, memory_order_relaxed) > clock_mono_ns();
}

static void on_gap(void *context, unsigned partition, int64_t offset, int64_t next)
{
    const struct hydration_owner_slot *slot = context;
    (void)next;
    if (slot->row.on_gap)
        slot->row.on_gap(slot->row.context, partition, offset);
}

/* BUS_FROM_NOW is enough: every copy was read after this group began and contains all earlier changes. */
enum status hydration_owner_follow(struct hydration_owner_slot *slot, struct bus *events, struct error *error)
{
    if (!slot->row.topic)
        return STATUS_OK;
    return bus_subscribe(
        events,
        &(struct bus_subscription){
            .topic = slot->row.topic,
            .group = slot->group,
            .mode = BUS_SHARED,
            .from = BUS_FROM_NOW,
            .batch_max = FOLLOWED_AT_ONCE,
            .relaxed =
                true, /* PostgreSQL's log has a change before the position: a crash never loses the change alone */
            .wakes = wakes_follower,
            .parallel = 1,
            .context = slot,
            .handler = on_followed,
            .on_gap = on_gap,
        },
        error);
}

/* ---- life ---- */

void hydration_provide(struct hydration *hydration, const struct hydration_owner *owner)
{
    assert(hydration->owner_count < HYDRATION_OWNERS_MAX);
    struct hydration_owner_slot *slot = &hydration->owners[hydration->owner_count++];
    slot->hydration = hydration;
    slot->row = *owner;
    snprintf(slot->group, sizeof slot->group, "entity-%s", owner->entity_type);
    turns_init(&slot->turns);
    pthread_mutex_init(&slot->lock, NULL);
    for (size_t i = 0; i < HYDRATION_LOOK_PLACES; i++) {
        slot->answering[i] =
            task_create(&(struct task_config){.name = "hydration_owner",
                                              .loop = loop_group_loop(hydration->config.loops, 0),
                                              .pool = hydration->config.workers,
                                              .run = answer_step,
                                              .context = slot});
        task_start(slot->answering[i], TASK_IDLE);
    }
}

struct hydration_owner_slot *hydration_owner_find(struct hydration *hydration, struct str entity_type)
{
    for (size_t i = 0; i < hydration->owner_count; i++)
        if (str_eq(str_from(hydration->owners[i].row.entity_type), entity_type))
            return &hydration->owners[i];
    return NULL;
}

void hydration_owner_close(struct hydration_owner_slot *slot)
{
    struct turns_item *item;

    for (size_t i = 0; i < HYDRATION_LOOK_PLACES; i++)
        task_stop(slot->answering[i], TASK_FOREVER);
    for (size_t i = 0; i < HYDRATION_LOOK_PLACES; i++) /* when all have stopped: each wakes the others */
        task_destroy(slot->answering[i]);
    while ((item = turns_next(&slot->turns)) != NULL)
        drop_question(item);
    turns_deinit(&slot->turns);
    pthread_mutex_destroy(&slot->lock);
}
