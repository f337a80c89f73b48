/* Questions to one owner of this process, on their way to the workers. Each owner has a bounded queue and answers few questions at
 * once, so that an owner that hangs holds up no other. Tenants take turns, and each has a bounded part of the queue: as many as one
 * loop looks up of a type at once, so that a burst of lookups waits and is not dropped. A question for which there is no room, or
 * that waited longer than its lookup, is dropped and counted: the oldest first, since its lookup ends first. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "hydration/inside.h"

enum {
    QUESTIONS_MAX = HYDRATION_LOOKUPS_MAX,
    QUESTIONS_OF_TENANT_MAX = HYDRATION_TYPE_MAX,
    QUESTION_BYTES = 512, /* enough for most: the bound counts questions, so each should be small */
};

void hydration_asked_free(struct hydration_asked *asked)
{
    arena_deinit(&asked->arena);
    free(asked);
}

static void drop_question(struct hydration_turn_item *item)
{
    hydration_count_ignored("overload");
    hydration_asked_free(CONTAINER_OF(item, struct hydration_asked, turn));
}

/* ---- under the lock ---- */

static void drop_all(struct hydration_owner_slot *slot)
{
    struct hydration_turn_item *item;
    while ((item = hydration_turns_next(&slot->turns)) != NULL)
        drop_question(item);
}

static void start_idle(struct hydration_owner_slot *slot)
{
    for (size_t i = 0; i < HYDRATION_PARALLEL; i++) {
        struct hydration_answering *answering = &slot->answering[i];
        if (answering->is_busy)
            continue;
        answering->is_busy = worker_pool_submit(slot->hydration->config.workers, &answering->job);
        slot->busy += answering->is_busy;
        break;
    }
    if (slot->busy == 0) /* the workers' queue is full, or they have ended */
        drop_all(slot);
}

/* ---- on a worker ---- */

struct hydration_asked *hydration_questions_take(struct hydration_owner_slot *slot)
{
    int64_t now_ns = clock_mono_ns();
    struct hydration_turn_item *item;

    pthread_mutex_lock(&slot->lock);
    while ((item = hydration_turns_peek(&slot->turns)) != NULL &&
           CONTAINER_OF(item, struct hydration_asked, turn)->expires_ns <= now_ns)
        drop_question(
            hydration_turns_take(&slot->turns, item->share)); /* it does not use its tenant's turn */
    item = hydration_turns_next(&slot->turns);
    pthread_mutex_unlock(&slot->lock);
    return item ? CONTAINER_OF(item, struct hydration_asked, turn) : NULL;
}

static void run_answering(struct worker_job *job)
{
    hydration_owner_answer(CONTAINER_OF(job, struct hydration_answering, job)->slot);
}

static void on_answered(struct worker_job *job)
{
    struct hydration_answering *answering = CONTAINER_OF(job, struct hydration_answering, job);
    struct hydration_owner_slot *slot = answering->slot;

    pthread_mutex_lock(&slot->lock);
    answering->is_busy = false;
    slot->busy--;
    if (slot->stopping || job->cancelled)
        drop_all(slot);
    if (slot->turns.queued > 0)
        start_idle(slot);
    if (slot->busy == 0)
        pthread_cond_broadcast(&slot->idle);
    pthread_mutex_unlock(&slot->lock);
}

/* ---- from outside ---- */

void hydration_questions_init(struct hydration_owner_slot *slot)
{
    hydration_turns_init(&slot->turns);
    pthread_mutex_init(&slot->lock, NULL);
    pthread_cond_init(&slot->idle, NULL);
    for (size_t i = 0; i < HYDRATION_PARALLEL; i++)
        slot->answering[i] =
            (struct hydration_answering){.job = {.run = run_answering, .done = on_answered}, .slot = slot};
}

void hydration_questions_deinit(struct hydration_owner_slot *slot)
{
    pthread_mutex_lock(&slot->lock);
    slot->stopping = true;
    drop_all(slot);
    while (slot->busy > 0)
        pthread_cond_wait(&slot->idle, &slot->lock);
    pthread_mutex_unlock(&slot->lock);
    hydration_turns_deinit(&slot->turns);
    pthread_cond_destroy(&slot->idle);
    pthread_mutex_destroy(&slot->lock);
}

void hydration_questions_put(struct hydration_owner_slot *slot, const struct hydration_event *question,
                             struct hydration_shard *asker)
{
    struct hydration_asked *queued = memory_zalloc(sizeof *queued);
    struct hydration_turn_item *dropped = &queued->turn;
    uint64_t tenant = hash_seeded(question->tenant);

    queued->arena = ARENA(QUESTION_BYTES);
    hydration_event_copy(question, &queued->arena, &queued->question);
    queued->asker = asker;
    queued->expires_ns = clock_deadline_ms(question->wait_ms > 0 ? question->wait_ms : HYDRATION_OWNER_MS);
    pthread_mutex_lock(&slot->lock);
    if (!slot->stopping) {
        dropped = hydration_turns_make_room(&slot->turns, tenant, QUESTIONS_OF_TENANT_MAX, QUESTIONS_MAX);
        hydration_turns_put(&slot->turns, tenant, &queued->turn);
        start_idle(slot);
    }
    pthread_mutex_unlock(&slot->lock);
    if (dropped)
        drop_question(dropped);
}
