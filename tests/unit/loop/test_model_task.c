/* A task against what task.h promises: each wake and each due time is followed by a run, no run begins without one of them, runs do not
 * overlap, prepare and finish belong to them, and nothing begins after task_stop(). The workers are a list that the test empties, and
 * may be full; the callbacks wake the task. */
#include "model.h"

#include "base/log.h"
#include "loop/task.h"

#include <fcntl.h>
#include <stdlib.h>

enum { FULL_QUEUE_RETRY_MS = 5 };

static struct loop *loop;
static struct task *task;
static struct worker_job *queued; /* at most one: the task's */
static bool is_full;

/* The model. */
static bool has_prepare, has_finish, is_started, is_stopped, is_stopping;
static bool is_woken;                          /* and no run, with its prepare, has begun since */
static bool is_prepared, is_running, is_ended; /* ended: finish is due */
static int64_t due_ns, latest_ns, hold_ns;     /* latest: due_ns with what task.h allows */
static unsigned failures;

bool __wrap_worker_pool_submit(struct worker_pool *pool, struct worker_job *job);
bool __wrap_worker_pool_submit(struct worker_pool *pool, struct worker_job *job)
{
    (void)pool;
    MODEL_CHECK(!queued, "submitted twice");
    job->cancelled = false;
    if (!is_full)
        queued = job;
    return !is_full;
}

static void wake(void)
{
    model_note("wake");
    task_wake(task);
    is_woken |= !is_stopped && !is_stopping;
}

static void run_may_begin(void)
{
    MODEL_CHECK(!is_stopped && !is_stopping, "begins after the stop");
    MODEL_CHECK(!is_running && !is_ended, "begins before the last run is over");
    MODEL_CHECK(is_woken || due_ns <= model_now_ns(), "begins without a wake, %lld ns too early",
                (long long)(due_ns - model_now_ns()));
    MODEL_CHECK(due_ns <= model_now_ns() || hold_ns <= model_now_ns(), "begins while wakes are held");
    is_woken = false;
    due_ns = latest_ns = CLOCK_NEVER;
}

static void prepare(void *context)
{
    (void)context;
    MODEL_CHECK(!is_prepared, "prepared twice");
    run_may_begin();
    is_prepared = true;
    if (model_one_in(5))
        wake();
}

static int64_t run(struct task *self, void *context)
{
    static const int64_t delays_ms[] = {0, 1, 3, 16, 100, 2000};
    (void)context;
    if (has_prepare)
        MODEL_CHECK(is_prepared, "runs without prepare");
    else
        run_may_begin();
    MODEL_CHECK(task_failures(self) == failures, "%u failures, not %u", task_failures(self), failures);
    MODEL_CHECK(!is_running && !task_is_stopping(self), "runs while it runs or stops");
    is_prepared = false;
    is_running = true;
    hold_ns = 0;
    if (model_one_in(4))
        wake();
    if (model_one_in(6)) {
        int64_t delay_ns = TASK_MS(1 + (int64_t)model_below(30));
        task_hold(self, delay_ns);
        hold_ns = model_now_ns() + delay_ns;
    }
    if (model_one_in(4))
        model_pass_ms((int64_t)model_below(5));
    int64_t delay_ns = model_one_in(4) ? TASK_IDLE : TASK_MS(delays_ms[model_below(6)]);
    bool retries = model_one_in(5);
    if (retries)
        delay_ns = task_retry(self);
    failures = retries ? failures + 1 : 0;
    due_ns = delay_ns == TASK_IDLE ? CLOCK_NEVER : model_now_ns() + delay_ns;
    latest_ns = delay_ns == TASK_IDLE ? CLOCK_NEVER : due_ns + delay_ns / 16;
    model_note("runs; the next one after %lld ms",
               delay_ns == TASK_IDLE ? -1LL : (long long)delay_ns / 1000000);
    return delay_ns;
}

static void finish(void *context)
{
    (void)context;
    MODEL_CHECK(is_ended && !is_stopped, "finishes what has not run, or after the stop");
    is_ended = false;
    if (model_one_in(5))
        wake();
}

static void begin(void)
{
    loop = loop_create(0, 0);
    queued = NULL;
    is_full = is_started = is_stopped = is_stopping = is_woken = is_prepared = is_running = is_ended = false;
    has_prepare = model_one_in(2);
    has_finish = model_one_in(2);
    due_ns = latest_ns = CLOCK_NEVER;
    hold_ns = failures = 0;
    task = task_create(&(struct task_config){.name = "model",
                                             .loop = loop,
                                             .run = run,
                                             .prepare = has_prepare ? prepare : NULL,
                                             .finish = has_finish ? finish : NULL,
                                             .retry_min_ms = 10,
                                             .retry_max_ms = 80});
}

static void start(void)
{
    if (is_started || is_stopped)
        return;
    int64_t delay_ns = model_one_in(3) ? TASK_IDLE : TASK_MS((int64_t)model_below(20));
    is_started = true;
    due_ns = latest_ns = delay_ns == TASK_IDLE ? CLOCK_NEVER : model_now_ns() + delay_ns;
    task_start(task, delay_ns);
}

static void turn_worker(void)
{
    struct worker_job *job = queued;
    if (!job)
        return;
    queued = NULL;
    if (is_stopping && model_one_in(2))
        job->cancelled = true; /* the pool stops as well */
    else
        job->run(job);
    bool ran = is_running;
    is_running = false;
    is_ended = ran && has_finish && !is_stopping;
    is_stopped |= is_stopping;
    job->done(job);
}

static void turn_loop(void)
{
    loop_run_once(loop, 0);
}

static void pass_time(void)
{
    model_pass_ms((int64_t)model_below(model_one_in(5) ? 3000 : 20));
}

static void fill_queue(void)
{
    is_full = !is_full;
}

/* Nothing that has to happen is left when all had their turns. A refused job is tried again after a pause. */
static void settle(void)
{
    if (!is_started || is_stopped || is_stopping)
        return;
    is_full = false;
    turn_loop();
    model_pass_ms(FULL_QUEUE_RETRY_MS + 1);
    int64_t until_ns = model_now_ns();
    for (int i = 0; i < 50; i++) {
        bool must_run = (is_woken && hold_ns <= model_now_ns()) || latest_ns <= model_now_ns();
        if (!must_run && !queued && !is_ended && !is_prepared)
            return;
        turn_loop();
        turn_worker();
    }
    MODEL_CHECK(latest_ns > until_ns, "a run that was due does not begin");
    MODEL_CHECK(!is_woken || hold_ns > until_ns, "a wake was lost");
    MODEL_CHECK(!is_ended, "finish does not run");
}

static void stop(void)
{
    if (!model_one_in(20))
        return;
    bool will_stop = !queued; /* a queued job ends it */
    model_note("stop");
    is_stopping = true;
    is_prepared = is_ended = false; /* and not prepared or finished any more */
    bool has_stopped = task_stop(task, 0);
    MODEL_CHECK(has_stopped == (will_stop || is_stopped), "stopped: %d", has_stopped);
    is_stopped = has_stopped;
}

static void check(void)
{
    MODEL_CHECK(!is_running, "runs outside of its turn");
    if (is_stopped)
        MODEL_CHECK(!queued, "queued after it was stopped");
}

/* A task may be destroyed while a message of it is on its way. */
static void end(void)
{
    settle();
    if (is_started || model_one_in(2)) {
        is_stopping = true;
        if (!task_stop(task, 0)) {
            turn_worker();
            MODEL_CHECK(task_stop(task, 0), "does not stop");
        }
        is_stopped = true;
    }
    task_destroy(task);
    if (model_one_in(2))
        turn_loop();
    loop_destroy(loop);
}

static void be_silent(void)
{
    log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
}

int main(void)
{
    static const struct model_operation operations[] = {
        {"start", 15, start},         {"wake", 25, wake},
        {"worker", 25, turn_worker},  {"loop", 25, turn_loop},
        {"pass time", 15, pass_time}, {"full queue", 4, fill_queue},
        {"settle", 10, settle},       {"stop", 6, stop}};
    return model_main(&(struct model){.name = "task",
                                      .seeds = 4000,
                                      .steps = 60,
                                      .open = be_silent,
                                      .begin = begin,
                                      .check = check,
                                      .end = end,
                                      MODEL_OPERATIONS(operations)});
}
