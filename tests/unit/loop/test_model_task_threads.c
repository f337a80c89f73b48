/* Tasks under real threads: wakes from several of them, a loop, and workers whose queue is short. The seed decides who does what, not
 * when. No wake is lost, runs of one task do not overlap, and nothing begins after task_stop(). For ThreadSanitizer above all. */
#include "model.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "base/log.h"
#include "loop/group.h"
#include "loop/task.h"

enum { TASKS = 3, THREADS = 3, WAKES = 12, PATIENCE_MS = 20000 };

struct tested {
    struct task *task;
    atomic_uint wanted, seen; /* wakes asked for; of these, what the last run began after */
    atomic_bool is_running, is_stopped;
    unsigned pause; /* in `run`: not synchronized, since runs do not overlap */
    uint64_t script;
};

static struct tested tested[TASKS];
static struct loop_group *group;
static struct worker_pool *pool;

static void on_loop(void *context)
{
    struct tested *own = context;
    MODEL_CHECK(!atomic_load(&own->is_stopped), "called after the stop");
}

static int64_t run(struct task *task, void *context)
{
    struct tested *own = context;
    MODEL_CHECK(!atomic_exchange(&own->is_running, true), "runs twice at once");
    MODEL_CHECK(!atomic_load(&own->is_stopped), "runs after the stop");
    unsigned wanted = atomic_load(&own->wanted);
    if (own->script >> own->pause++ % 64 & 1)
        sched_yield();
    atomic_store(&own->seen, wanted);
    atomic_store(&own->is_running, false);
    return own->script % 3 == 0 ? task_retry(task) : own->script % 3 == 1 ? TASK_MS(3600000) : TASK_IDLE;
}

static void *wake_some(void *arg)
{
    uint64_t script = *(const uint64_t *)arg;
    for (unsigned i = 0; i < WAKES; i++, script = script >> 5 | script << 59) {
        struct tested *own = &tested[script % TASKS];
        atomic_fetch_add(&own->wanted, 1);
        task_wake(own->task);
        if (script & 8)
            sched_yield();
    }
    return NULL;
}

static void run_threads(void)
{
    pthread_t threads[THREADS];
    uint64_t scripts[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        scripts[i] = model_below(UINT64_MAX);
        pthread_create(&threads[i], NULL, wake_some, &scripts[i]);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void begin(void)
{
    group = loop_group_create(1, 0);
    pool = worker_pool_create("test", 2, 1);
    loop_group_start(group);
    for (unsigned i = 0; i < TASKS; i++) {
        struct tested *own = &tested[i];
        *own = (struct tested){.script = model_below(UINT64_MAX)};
        own->task = task_create(&(struct task_config){.name = "model",
                                                      .loop = loop_group_loop(group, 0),
                                                      .pool = pool,
                                                      .run = run,
                                                      .prepare = model_one_in(2) ? on_loop : NULL,
                                                      .finish = model_one_in(2) ? on_loop : NULL,
                                                      .context = own,
                                                      .retry_min_ms = 1,
                                                      .retry_max_ms = 2});
        if (!model_one_in(4))
            task_start(own->task, model_one_in(2) ? TASK_NOW : TASK_IDLE);
        else /* a wake before the start is kept */
            task_wake(own->task), task_start(own->task, TASK_IDLE);
    }
}

/* A run that began after the last wake is waited for. */
static void settle(void)
{
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    for (unsigned i = 0; i < TASKS; i++)
        while (atomic_load(&tested[i].seen) != atomic_load(&tested[i].wanted)) {
            MODEL_CHECK(clock_mono_ns() < deadline_ns, "a wake was lost");
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        }
}

static void check(void)
{
}

/* Stopped in the middle of wakes, on a loop that still runs or has ended. */
static void end(void)
{
    pthread_t thread;
    uint64_t script = model_below(UINT64_MAX);
    bool loop_ends_first = model_one_in(3);
    pthread_create(&thread, NULL, wake_some, &script);
    if (loop_ends_first)
        loop_group_stop(group);
    for (unsigned i = 0; i < TASKS; i++) {
        MODEL_CHECK(task_stop(tested[i].task, TASK_FOREVER), "does not stop");
        atomic_store(&tested[i].is_stopped, true);
    }
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < TASKS; i++)
        task_destroy(tested[i].task);
    if (!loop_ends_first)
        loop_group_stop(group);
    worker_pool_destroy(pool);
    loop_group_destroy(group);
}

static void be_silent(void)
{
    log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
}

int main(void)
{
    static const struct model_operation operations[] = {{"threads", 3, run_threads}, {"settle", 2, settle}};
    return model_main(&(struct model){.name = "task, threads",
                                      .seeds = 1000,
                                      .steps = 5,
                                      .open = be_silent,
                                      .begin = begin,
                                      .check = check,
                                      .end = end,
                                      MODEL_OPERATIONS(operations)});
}
