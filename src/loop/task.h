/* A task: one background activity, a function that runs on a worker, one run at a time, when it is woken or due, and returns
 * when it wants to run next. The task owns its timer, its job, its lock and its backoff; its owner needs no flags for busy,
 * again, woken or stopping.
 *
 *     static int64_t measure_step(struct task *task, void *context)
 *     {
 *         struct gauges *gauges = context;
 *         struct error error;
 *         if (measure(gauges, &error) != STATUS_OK)
 *             return task_retry(task);       // after a growing pause; a run without task_retry() resets it
 *         return TASK_MS(2000);              // or TASK_NOW, or TASK_IDLE: only when woken
 *     }
 *     gauges->task = task_create(&(struct task_config){
 *         .name = "gauges", .loop = loop, .pool = workers, .run = measure_step, .context = gauges});
 *     task_start(gauges->task, TASK_NOW);
 *     …task_wake(gauges->task);…
 *     task_stop(gauges->task, TASK_FOREVER); // the end: no run is under way, none begins
 *     task_destroy(gauges->task);
 *
 * What must happen on the loop's thread goes into `prepare` (before each run) and `finish` (after each run); a message that is
 * left when the loop ends calls them on the thread that ends it. Without them a wake goes straight to the workers. A full worker
 * queue loses no wake: the task tries again every few milliseconds.
 *
 * States:
 *
 *     NEW → WAITING → [ASKED → PREPARING →] QUEUED ⇄ REFUSED, QUEUED → RUNNING → [RAN → FINISHING →] WAITING
 *     task_stop(): QUEUED, PREPARING, RUNNING, FINISHING → STOPPING → STOPPED; all others → STOPPED
 */
#ifndef FRESHET_LOOP_TASK_H
#define FRESHET_LOOP_TASK_H

#include "base/clock.h"
#include "loop/worker.h"

struct task;

#define TASK_NOW INT64_C(0)
#define TASK_IDLE CLOCK_NEVER
#define TASK_FOREVER CLOCK_NEVER
#define TASK_MS(ms) ((int64_t)(ms)*CLOCK_NS_PER_MS)

/* Returns the delay until the next run, in ns; at most 1/16 late. */
typedef int64_t task_run_fn(struct task *task, void *context);

struct task_config {
    const char *name;         /* for logs; a literal */
    struct loop *loop;        /* for its timer, `prepare` and `finish` */
    struct worker_pool *pool; /* for `run`, which may block */
    task_run_fn *run;
    /* Optional, on the loop: before each run; after each run, before the next one, but not once it is stopped. */
    void (*prepare)(void *context);
    void (*finish)(void *context);
    void *context;
    int64_t retry_min_ms, retry_max_ms; /* of task_retry(); 0 = 100 ms and 2 s */
};

/* Any thread. */
struct task *task_create(const struct task_config *config);
void task_start(struct task *task, int64_t delay_ns); /* once; the first run after delay_ns */

/* Any thread, any time before task_destroy(). A run, with its prepare, begins after the call; several wakes before it begins are
 * one. Costs one atomic operation when such a run is pending already. A wake before task_start() is kept, one after task_stop() is ignored. */
void task_wake(struct task *task);

/* Within `run`. */
int64_t task_retry(struct task *task);               /* counts a failed run; its delay by the backoff */
unsigned task_failures(const struct task *task);     /* failed runs in a row before this one */
void task_hold(struct task *task, int64_t delay_ns); /* after this run, wakes wait for delay_ns from now */
bool task_is_stopping(const struct task *task);      /* any thread: a long run ends early */

/* Any thread but the task's own run, prepare or finish. No run begins any more; waits up to grace_ns for the one under way.
 * False: it still runs: interrupt what it waits for and call again. Works the same while the loop runs, on the loop's own
 * thread (which it blocks), and after the loop or the pool has ended. */
bool task_stop(struct task *task, int64_t grace_ns);
/* Any thread, never started or stopped (true). The loop may have ended, but still exists: it frees the memory. NULL is fine. */
void task_destroy(struct task *task);

#endif
