/* Questions to one owner of this process, on their way to the workers. Each owner has a bounded queue and answers few questions at
 * once, so that an owner that hangs holds up no other. Tenants take turns, and each has a bounded part of the queue. A question that
 * is too many, or that waited longer than its lookup, is dropped and counted: the oldest first, since its lookup ends first. */
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "hydration/inside.h"

enum { QUESTIONS_MAX = 1024, QUESTIONS_OF_TENANT_MAX = 128 };

struct queued_question {
    struct hydration_turn_item turn;
    struct hydration_share *tenant;
    struct hydration_shard *asker;
    int64_t expires_ns;
    struct arena arena;
    struct hydration_event question;
};

struct answering { /* answers questions one by one */
    struct worker_job job;
    struct hydration_questions *questions;
    bool is_busy;
};

struct hydration_questions {
    struct hydration_owner_slot *slot;
    struct worker_pool *workers;
    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t idle;
    struct hydration_turns turns;
    size_t busy;
    bool stopping;
    struct answering answering[HYDRATION_PARALLEL];
};

static void free_question(struct queued_question *queued)
{
    arena_deinit(&queued->arena);
    free(queued);
}

static void drop_question(struct queued_question *queued)
{
    hydration_count_ignored("overload");
    free_question(queued);
}

/* ---- under the lock ---- */

/* What a function of hydration_turns returned, out of its share. */
static struct queued_question *take_out(struct hydration_questions *questions,
                                        struct hydration_turn_item *item)
{
    if (!item)
        return NULL;
    struct queued_question *queued = CONTAINER_OF(item, struct queued_question, turn);
    hydration_turns_leave(&questions->turns, queued->tenant);
    return queued;
}

static void drop_all(struct hydration_questions *questions)
{
    struct queued_question *queued;
    while ((queued = take_out(questions, hydration_turns_next(&questions->turns))) != NULL)
        drop_question(queued);
}

/* The one that is dropped to make room for one more of this tenant; NULL: there is room. */
static struct queued_question *make_room(struct hydration_questions *questions, uint64_t tenant)
{
    struct hydration_turns *turns = &questions->turns;
    struct hydration_share *full = hydration_turns_find(turns, tenant);
    if (!full || full->queued < QUESTIONS_OF_TENANT_MAX)
        full = turns->queued == QUESTIONS_MAX ? hydration_turns_longest(turns) : NULL;
    return full ? take_out(questions, hydration_turns_take(turns, full)) : NULL;
}

static void start_idle(struct hydration_questions *questions)
{
    for (size_t i = 0; i < HYDRATION_PARALLEL; i++) {
        struct answering *answering = &questions->answering[i];
        if (answering->is_busy)
            continue;
        answering->is_busy = worker_pool_submit(questions->workers, &answering->job);
        questions->busy += answering->is_busy;
        break;
    }
    if (questions->busy == 0) /* the workers' queue is full, or they have ended */
        drop_all(questions);
}

/* ---- on a worker ---- */

/* An expired question does not take its tenant's turn. */
static struct queued_question *take_current(struct hydration_questions *questions)
{
    int64_t now_ns = clock_mono_ns();
    struct hydration_turn_item *item;

    pthread_mutex_lock(&questions->lock);
    while ((item = hydration_turns_peek(&questions->turns)) != NULL &&
           CONTAINER_OF(item, struct queued_question, turn)->expires_ns <= now_ns)
        drop_question(take_out(questions, hydration_turns_take(&questions->turns, item->share)));
    struct queued_question *queued = take_out(questions, hydration_turns_next(&questions->turns));
    pthread_mutex_unlock(&questions->lock);
    return queued;
}

static void answer_one(struct worker_job *job)
{
    struct hydration_questions *questions = CONTAINER_OF(job, struct answering, job)->questions;
    struct queued_question *queued = take_current(questions);
    if (!queued)
        return;
    hydration_owner_answer(questions->slot, &queued->question, queued->asker,
                           clock_deadline_ms(HYDRATION_OWNER_MS));
    free_question(queued);
}

static void on_answered(struct worker_job *job)
{
    struct answering *answering = CONTAINER_OF(job, struct answering, job);
    struct hydration_questions *questions = answering->questions;

    pthread_mutex_lock(&questions->lock);
    answering->is_busy = false;
    questions->busy--;
    if (questions->stopping || job->cancelled)
        drop_all(questions);
    if (questions->turns.queued > 0)
        start_idle(questions);
    if (questions->busy == 0)
        pthread_cond_broadcast(&questions->idle);
    pthread_mutex_unlock(&questions->lock);
}

/* ---- from outside ---- */

struct hydration_questions *hydration_questions_create(struct hydration_owner_slot *slot,
                                                       struct worker_pool *workers)
{
    struct hydration_questions *questions = memory_zalloc(sizeof *questions);
    questions->slot = slot;
    questions->workers = workers;
    hydration_turns_init(&questions->turns);
    pthread_mutex_init(&questions->lock, NULL);
    pthread_cond_init(&questions->idle, NULL);
    for (size_t i = 0; i < HYDRATION_PARALLEL; i++)
        questions->answering[i] =
            (struct answering){.job = {.run = answer_one, .done = on_answered}, .questions = questions};
    return questions;
}

void hydration_questions_destroy(struct hydration_questions *questions)
{
    if (!questions)
        return;
    pthread_mutex_lock(&questions->lock);
    questions->stopping = true;
    drop_all(questions);
    while (questions->busy > 0)
        pthread_cond_wait(&questions->idle, &questions->lock);
    pthread_mutex_unlock(&questions->lock);
    hydration_turns_deinit(&questions->turns);
    pthread_cond_destroy(&questions->idle);
    pthread_mutex_destroy(&questions->lock);
    free(questions);
}

void hydration_questions_put(struct hydration_questions *questions, const struct hydration_event *question,
                             struct hydration_shard *asker)
{
    struct queued_question *queued = memory_zalloc(sizeof *queued), *dropped = queued;
    uint64_t tenant = hash_seeded(question->tenant);

    arena_init(&queued->arena, HYDRATION_ARENA_BYTES);
    hydration_event_copy(question, &queued->arena, &queued->question);
    queued->asker = asker;
    queued->expires_ns = clock_deadline_ms(question->wait_ms > 0 ? question->wait_ms : HYDRATION_OWNER_MS);
    pthread_mutex_lock(&questions->lock);
    if (!questions->stopping) {
        dropped = make_room(questions, tenant);
        queued->tenant = hydration_turns_enter(&questions->turns, tenant, QUESTIONS_OF_TENANT_MAX);
        hydration_turns_put(&questions->turns, queued->tenant, &queued->turn);
        start_idle(questions);
    }
    pthread_mutex_unlock(&questions->lock);
    if (dropped)
        drop_question(dropped);
}
