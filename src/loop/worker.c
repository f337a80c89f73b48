/* Worker pool: one mutex, one condition, one bounded list. Jobs here take microseconds to seconds, so the lock is
 * never the cost; what matters is that nothing accepted is forgotten. */
#include "loop/worker.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

struct worker_pool {
    pthread_mutex_t mutex;
    pthread_cond_t work_or_stop;
    struct worker_job *first, **last_next;
    size_t queued, queue_max;
    unsigned busy; /* threads that run a job */
    bool stopping;
    unsigned thread_count;
    pthread_t *threads;
    char name[12];
};

static void on_done_message(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct worker_job *job = (struct worker_job *)message;
    job->done(job);
}

static void finish(struct worker_job *job)
{
    if (!job->loop) {
        job->done(job);
        return;
    }
    job->message.on_message = on_done_message;
    loop_post(job->loop, &job->message);
}

static struct worker_job *take(struct worker_pool *pool, bool was_busy)
{
    pthread_mutex_lock(&pool->mutex);
    pool->busy -= was_busy;
    while (!pool->first && !pool->stopping)
        pthread_cond_wait(&pool->work_or_stop, &pool->mutex);
    struct worker_job *job = pool->first;
    if (job) {
        pool->first = job->next;
        if (!pool->first)
            pool->last_next = &pool->first;
        pool->queued--;
        pool->busy++;
        job->cancelled = pool->stopping;
    }
    pthread_mutex_unlock(&pool->mutex);
    return job;
}

static void *run_thread(void *arg)
{
    struct worker_pool *pool = arg;
    pthread_setname_np(pthread_self(), pool->name);
    struct worker_job *job = NULL;
    while ((job = take(pool, job != NULL)) != NULL) {
        if (!job->cancelled)
            job->run(job);
        finish(job);
    }
    return NULL;
}

struct worker_pool *worker_pool_create(const char *name, unsigned threads, size_t queue_max)
{
    struct worker_pool *pool = memory_zalloc(sizeof *pool);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work_or_stop, NULL);
    pool->last_next = &pool->first;
    pool->queue_max = queue_max;
    pool->thread_count = threads;
    pool->threads = memory_zalloc(threads * sizeof *pool->threads);
    snprintf(pool->name, sizeof pool->name, "%s", name);
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&pool->threads[i], NULL, run_thread, pool) != 0)
            abort(); /* at start only */
    return pool;
}

bool worker_pool_submit(struct worker_pool *pool, struct worker_job *job)
{
    job->next = NULL;
    job->cancelled = false;
    pthread_mutex_lock(&pool->mutex);
    /* A job that an idle thread is about to take does not count as waiting. */
    size_t idle = pool->thread_count - pool->busy;
    bool accepted = !pool->stopping && (pool->queued < idle || pool->queued - idle < pool->queue_max);
    if (accepted) {
        *pool->last_next = job;
        pool->last_next = &job->next;
        pool->queued++;
        pthread_cond_signal(&pool->work_or_stop);
    }
    pthread_mutex_unlock(&pool->mutex);
    return accepted;
}

size_t worker_pool_queued(const struct worker_pool *pool)
{
    struct worker_pool *mutable = (struct worker_pool *)pool; /* only the mutex changes */
    pthread_mutex_lock(&mutable->mutex);
    size_t queued = pool->queued;
    pthread_mutex_unlock(&mutable->mutex);
    return queued;
}

void worker_pool_stop(struct worker_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work_or_stop);
    pthread_mutex_unlock(&pool->mutex);
    for (unsigned i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_mutex_lock(&pool->mutex);
    pool->thread_count = 0; /* a late submit reads it */
    pthread_mutex_unlock(&pool->mutex);
}

void worker_pool_destroy(struct worker_pool *pool)
{
    worker_pool_stop(pool);
    pthread_cond_destroy(&pool->work_or_stop);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->threads);
    free(pool);
}
