/* Worker pool: threads for what blocks (SQL, signature checks), fed by one bounded queue.
 *
 * A job is embedded in its owner's struct. run() happens on a worker, then done() on the loop that is named (or on
 * the worker itself when `loop` is NULL). A job that was accepted always gets its done(), also when the pool stops:
 * then with cancelled = true and without run(). */
#ifndef FRESHET_LOOP_WORKER_H
#define FRESHET_LOOP_WORKER_H

#include "loop/loop.h"

struct worker_pool;

struct worker_job {
    struct loop_message message; /* the way back; inside */
    STAILQ_ENTRY(worker_job) link;
    struct loop *loop; /* where done() runs; NULL = on the worker */
    void (*run)(struct worker_job *job);
    void (*done)(struct worker_job *job);
    bool cancelled;
};

/* Runs up to `threads` jobs at a time, in threads that start when they are needed and end when they have been idle for some
 * seconds; `queue_max` more wait. */
struct worker_pool *worker_pool_create(const char *name, unsigned threads, size_t queue_max);
void worker_pool_stop(struct worker_pool *pool);    /* finishes running jobs, cancels queued ones, joins */
void worker_pool_destroy(struct worker_pool *pool); /* when no call of worker_pool_submit() is under way */
/* Any thread. False when the queue is full or the pool stopped: nothing will be called. */
bool worker_pool_submit(struct worker_pool *pool, struct worker_job *job) MUST_CHECK;

#endif
