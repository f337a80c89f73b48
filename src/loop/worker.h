/* Worker pool: threads for what blocks (SQL, signature checks), fed by one bounded queue in which shares (tenants) take turns.
 *
 * A job is embedded in its owner's struct. run() happens on a worker, then done() on the loop that is named (or on
 * the worker itself when `loop` is NULL). A job that was accepted always gets its done(), also when the pool stops:
 * then with cancelled = true and without run().
 *
 * No share runs jobs in all threads (base/turns.h), so that those of one tenant, all blocked, leave threads to the others. In a
 * full queue the longest share gives way to a shorter one: its newest job gets done() with cancelled and displaced = true, without run(). */
#ifndef FRESHET_LOOP_WORKER_H
#define FRESHET_LOOP_WORKER_H

#include "base/turns.h"
#include "loop/loop.h"

struct worker_pool;

struct worker_job {
    struct loop_message message; /* the way back; inside */
    struct turns_item turn;
    struct loop *loop; /* where done() runs; NULL = on the worker */
    uint64_t share;    /* whose job it is; 0 = the process's own, which may use all threads */
    void (*run)(struct worker_job *job);
    void (*done)(struct worker_job *job);
    bool cancelled; /* it was not run: the pool stops, or … */
    bool displaced; /* … its share was the longest of a full queue */
};

/* Runs up to `threads` jobs at a time, in threads that start when they are needed and end when they have been idle for some
 * seconds; `queue_max` more wait. For one share to have N threads there must be turns_places(N). Where shares are used and the
 * queue is bounded, jobs name a loop. */
struct worker_pool *worker_pool_create(const char *name, unsigned threads, size_t queue_max);
void worker_pool_stop(struct worker_pool *pool);    /* finishes running jobs, cancels queued ones, joins */
void worker_pool_destroy(struct worker_pool *pool); /* when no call of worker_pool_submit() is under way */
/* Any thread. False when the queue is full or the pool stopped: nothing will be called. */
bool worker_pool_submit(struct worker_pool *pool, struct worker_job *job) MUST_CHECK;

#endif
