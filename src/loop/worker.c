/* Worker pool: one mutex and one bounded queue. Jobs take microseconds to seconds, so the cost of the lock does not matter. Every
 * accepted job gets its done(), and a job waits only while its share has all the threads it may have, or `threads_max` jobs run.
 *
 *     submitted ─ there is a place ─▶ taken (`ready`, a member of its share) ─ a thread is awake ─▶ run ─▶ done
 *         └────── there is none ────▶ queued ─ a job ended, and it is its turn ──────────────────────▲
 *
 * Threads are started by the jobs that need them. The one that fell asleep last is woken first, so that the others reach
 * IDLE_MS without a job and end. Each ending thread joins the one that ended before it; worker_pool_stop() joins the last. */
#include "loop/worker.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"

enum { IDLE_MS = 3000 };

struct sleeper { /* lives as long as the pool: it is signalled after the mutex was released */
    SLIST_ENTRY(sleeper) link;
    pthread_cond_t woken;
    bool is_asleep;
};

struct worker_pool {
    pthread_mutex_t mutex;
    struct turns turns;                  /* jobs that wait; members are those that were taken */
    TAILQ_HEAD(, turns_item) ready;      /* taken, for a thread that was woken or started for it */
    SLIST_HEAD(, sleeper) asleep, spare; /* together one for each thread */
    struct sleeper *sleepers;
    size_t queue_max;
    unsigned threads, threads_max;
    unsigned readied, running; /* jobs; threads that do not run one sleep, or are about to look for one */
    bool stopping;
    bool is_short; /* the last thread could not be started, which is logged once */
    pthread_cond_t all_ended;
    pthread_t last_ended; /* not joined yet, if has_ended */
    bool has_ended;
    char name[12];
};

static void on_done_message(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct worker_job *job = (struct worker_job *)message;
    job->done(job);
}

/* The one to signal, or NULL. */
static struct sleeper *take_sleeper(struct worker_pool *pool)
{
    struct sleeper *sleeper = SLIST_FIRST(&pool->asleep);
    if (sleeper) {
        SLIST_REMOVE_HEAD(&pool->asleep, link);
        sleeper->is_asleep = false;
    }
    return sleeper;
}

/* False when nothing came for IDLE_MS. */
static bool sleep_until_woken(struct worker_pool *pool)
{
    struct sleeper *me = SLIST_FIRST(&pool->spare);
    int64_t deadline_ns = clock_deadline_ms(IDLE_MS);
    SLIST_REMOVE_HEAD(&pool->spare, link);
    SLIST_INSERT_HEAD(&pool->asleep, me, link);
    me->is_asleep = true;
    while (me->is_asleep && clock_cond_wait(&me->woken, &pool->mutex, deadline_ns))
        ;
    if (me->is_asleep)
        SLIST_REMOVE(&pool->asleep, me, sleeper, link);
    SLIST_INSERT_HEAD(&pool->spare, me, link);
    return !me->is_asleep;
}

/* The way back of a job that has run, or will not. */
static void end_job(struct worker_job *job)
{
    job->message.on_message = on_done_message;
    if (job->loop)
        loop_post(job->loop, &job->message);
    else
        job->done(job);
}

static void *run_worker(void *arg);

/* For the job that is about to be taken. */
static void start_thread(struct worker_pool *pool)
{
    pthread_t thread;
    int failure = pthread_create(&thread, NULL, run_worker, pool);
    pool->threads += failure == 0;
    if (failure && !pool->is_short) /* it works with the threads that it has */
        log_error("worker_start_failed", LOG_CSTR("pool", pool->name), LOG_CSTR("error", strerror(failure)));
    pool->is_short = failure != 0;
}

/* For a job that is taken now: the one to signal. */
static struct sleeper *find_thread(struct worker_pool *pool)
{
    if (pool->readied >= pool->threads - pool->running && pool->threads < pool->threads_max)
        start_thread(pool);
    return take_sleeper(pool);
}

static size_t free_places(const struct worker_pool *pool)
{
    return pool->threads_max - pool->readied - pool->running;
}

/* After a job ended, on its thread: takes the jobs that may run now. That can be two: one of a share that is earlier in the line takes
 * the free place, and the share of the ended job, which has one place less now, may take another. */
static void take_queued(struct worker_pool *pool)
{
    struct turns_share *share;
    while (!pool->stopping && (share = turns_first_to_enter(&pool->turns, free_places(pool))) != NULL) {
        struct sleeper *woken = pool->readied > 0 ? find_thread(pool) : NULL; /* else this thread runs it */
        share->members++;
        struct turns_item *item = turns_take_turn(&pool->turns, share);
        TAILQ_INSERT_TAIL(&pool->ready, item, link);
        pool->readied++;
        if (woken)
            pthread_cond_signal(&woken->woken);
    }
}

/* A job for this thread: one that was taken; any when the pool stops. */
static struct worker_job *next_job(struct worker_pool *pool)
{
    struct turns_item *item = TAILQ_FIRST(&pool->ready);
    if (item) {
        TAILQ_REMOVE(&pool->ready, item, link);
        pool->readied--;
    } else {
        struct turns_share *share = pool->stopping ? TAILQ_FIRST(&pool->turns.line) : NULL;
        if (!share)
            return NULL;
        share->members++;
        item = turns_take_turn(&pool->turns, share);
    }
    pool->running++;
    return CONTAINER_OF(item, struct worker_job, turn);
}

static void *run_worker(void *arg)
{
    struct worker_pool *pool = arg;
    struct worker_job *job;
    pthread_setname_np(pthread_self(), pool->name);
    pthread_mutex_lock(&pool->mutex);
    while ((job = next_job(pool)) || (!pool->stopping && sleep_until_woken(pool))) {
        if (!job)
            continue;
        struct turns_share *share = job->turn.share;
        job->cancelled = pool->stopping;
        pthread_mutex_unlock(&pool->mutex);
        if (!job->cancelled) {
            turns_work_for(job->share);
            job->run(job);
        }
        end_job(job);
        pthread_mutex_lock(&pool->mutex);
        turns_leave(&pool->turns, share);
        pool->running--;
        take_queued(pool);
    }
    bool joins = pool->has_ended;
    pthread_t before = pool->last_ended;
    pool->last_ended = pthread_self();
    pool->has_ended = true;
    if (--pool->threads == 0)
        pthread_cond_broadcast(&pool->all_ended);
    pthread_mutex_unlock(&pool->mutex);
    if (joins)
        pthread_join(before, NULL);
    return NULL;
}

struct worker_pool *worker_pool_create(const char *name, unsigned threads, size_t queue_max)
{
    struct worker_pool *pool = memory_zalloc(sizeof *pool);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->all_ended, NULL);
    turns_init(&pool->turns);
    TAILQ_INIT(&pool->ready);
    pool->queue_max = queue_max;
    pool->threads_max = threads;
    pool->sleepers = memory_zalloc(threads * sizeof *pool->sleepers);
    for (unsigned i = 0; i < threads; i++) {
        pthread_cond_init(&pool->sleepers[i].woken, NULL);
        SLIST_INSERT_HEAD(&pool->spare, &pool->sleepers[i], link);
    }
    snprintf(pool->name, sizeof pool->name, "%s", name);
    return pool;
}

bool worker_pool_submit(struct worker_pool *pool, struct worker_job *job)
{
    struct sleeper *woken = NULL;
    struct turns_item *displaced = NULL;
    job->cancelled = job->displaced = false;
    pthread_mutex_lock(&pool->mutex);
    bool accepted = !pool->stopping;
    if (accepted && turns_may_enter_hash(&pool->turns, job->share, free_places(pool))) {
        woken = find_thread(pool);
        accepted = pool->threads > 0;
        if (accepted) {
            job->turn.share = turns_enter(&pool->turns, job->share, SIZE_MAX);
            TAILQ_INSERT_TAIL(&pool->ready, &job->turn, link);
            pool->readied++;
        }
    } else if (accepted) {
        if (pool->turns.queued >= pool->queue_max)
            accepted = (displaced = turns_displace(&pool->turns, job->share)) != NULL;
        if (accepted)
            turns_put(&pool->turns, job->share, &job->turn);
    }
    pthread_mutex_unlock(&pool->mutex);
    if (woken)
        pthread_cond_signal(&woken->woken);
    if (displaced) {
        struct worker_job *other = CONTAINER_OF(displaced, struct worker_job, turn);
        other->cancelled = other->displaced = true;
        end_job(other);
    }
    return accepted;
}

void worker_pool_stop(struct worker_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->stopping = true;
    struct sleeper *woken;
    while ((woken = take_sleeper(pool)) != NULL)
        pthread_cond_signal(&woken->woken);
    while (pool->threads > 0)
        pthread_cond_wait(&pool->all_ended, &pool->mutex);
    bool joins = pool->has_ended;
    pool->has_ended = false;
    pthread_mutex_unlock(&pool->mutex);
    if (joins)
        pthread_join(pool->last_ended, NULL);
}

void worker_pool_destroy(struct worker_pool *pool)
{
    worker_pool_stop(pool);
    for (unsigned i = 0; i < pool->threads_max; i++)
        pthread_cond_destroy(&pool->sleepers[i].woken);
    free(pool->sleepers);
    turns_deinit(&pool->turns);
    pthread_cond_destroy(&pool->all_ended);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}
