/* A task: a small state machine under one mutex, moved by wakes, the timer, the worker and the loop. `pending` stands outside
 * of the mutex so that a wake which is already pending costs one atomic exchange. */
#include "loop/task.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/backoff.h"
#include "base/log.h"
#include "base/memory.h"

enum { FULL_QUEUE_RETRY_MS = 5, RETRY_MIN_MS = 100, RETRY_MAX_MS = 2000 };

enum task_state {
    TASK_NEW,       /* not started */
    TASK_WAITING,   /* for a wake or for due_ns */
    TASK_ASKED,     /* a message to the loop is on its way, for prepare */
    TASK_PREPARING, /* in prepare, on the loop */
    TASK_QUEUED,    /* with the workers */
    TASK_REFUSED,   /* the workers' queue was full, or it gave way there; due_ns is the next try */
    TASK_RUNNING,   /* in run, on a worker */
    TASK_RAN,       /* a message to the loop is on its way, for finish */
    TASK_FINISHING, /* in finish, on the loop */
    TASK_STOPPING,  /* queued, or in one of the three callbacks, which is the last */
    TASK_STOPPED,
    TASK_DESTROYED, /* a message to the loop is on its way, which frees the task */
};

struct task {
    struct task_config config;
    struct worker_job job;
    struct loop_timer timer; /* the loop's */
    atomic_bool pending;     /* a wake for which no prepare, or else no run, has begun */
    pthread_mutex_t lock;    /* for what follows */
    pthread_cond_t stopped;
    _Atomic(enum task_state) state;
    struct loop_message message;
    bool is_posted;
    int64_t due_ns;    /* of the next run, or of the next try of a refused one */
    int64_t armed_ns;  /* when the timer fires; never later than due_ns unless a message is on its way */
    int64_t hold_ns;   /* wakes wait until then */
    int64_t delay_ns;  /* as the last run returned it */
    int64_t slack_ns;  /* how much later than due_ns the timer may fire */
    bool is_to_submit; /* when the lock is released */
    bool has_retried;  /* in this run */
    struct backoff backoff;
};

#define FROM(state) (1u << (state))
#define FROM_CALLBACK (FROM(TASK_PREPARING) | FROM(TASK_RUNNING) | FROM(TASK_FINISHING))
static const unsigned ALLOWED[] = {
    [TASK_WAITING] = FROM(TASK_NEW) | FROM(TASK_RUNNING) | FROM(TASK_FINISHING),
    [TASK_ASKED] = FROM(TASK_WAITING),
    [TASK_PREPARING] = FROM(TASK_ASKED),
    [TASK_QUEUED] = FROM(TASK_WAITING) | FROM(TASK_PREPARING) | FROM(TASK_REFUSED),
    [TASK_REFUSED] = FROM(TASK_QUEUED),
    [TASK_RUNNING] = FROM(TASK_QUEUED),
    [TASK_RAN] = FROM(TASK_RUNNING),
    [TASK_FINISHING] = FROM(TASK_RAN),
    [TASK_STOPPING] = FROM_CALLBACK | FROM(TASK_QUEUED),
    [TASK_STOPPED] = FROM(TASK_NEW) | FROM(TASK_WAITING) | FROM(TASK_ASKED) | FROM(TASK_REFUSED) |
                     FROM(TASK_RAN) | FROM(TASK_QUEUED) | FROM(TASK_STOPPING),
    [TASK_DESTROYED] = FROM(TASK_NEW) | FROM(TASK_STOPPED),
};

/* ---- under the lock ---- */

static void task_move(struct task *task, enum task_state to)
{
    if (!(ALLOWED[to] & FROM(task->state))) {
        log_error("task_state_wrong", LOG_CSTR("task", task->config.name), LOG_INT("from", task->state),
                  LOG_INT("to", to));
        abort();
    }
    task->state = to;
    if (to == TASK_STOPPED)
        pthread_cond_broadcast(&task->stopped);
}

static void post_to_loop(struct task *task)
{
    if (!task->is_posted)
        loop_post(task->config.loop, &task->message);
    task->is_posted = true;
}

/* The timer is the loop's. A message, which costs system calls, is sent only when the timer must fire earlier than it would;
 * one that fires too early looks at due_ns. */
static void arm_timer(struct task *task, int64_t slack_ns)
{
    if (task->due_ns < task->armed_ns - slack_ns)
        post_to_loop(task);
}

static void retry_job_later(struct task *task)
{
    task_move(task, TASK_REFUSED);
    task->due_ns = clock_deadline_ms(FULL_QUEUE_RETRY_MS);
    arm_timer(task, 0);
}

static void submit_job(struct task *task)
{
    task_move(task, TASK_QUEUED);
    task->due_ns = CLOCK_NEVER;
    task->is_to_submit = true;
}

/* In WAITING: begins a run, or sees to it that the timer does. */
static void run_or_wait(struct task *task)
{
    int64_t now_ns = clock_mono_ns();
    bool is_held = atomic_load(&task->pending) && task->hold_ns < task->due_ns;

    if (is_held)
        task->due_ns = task->hold_ns;
    if (task->due_ns > now_ns) {
        arm_timer(task, is_held ? 0 : task->slack_ns);
    } else if (task->config.prepare) {
        task_move(task, TASK_ASKED);
        task->due_ns = CLOCK_NEVER;
        post_to_loop(task);
    } else {
        submit_job(task);
    }
}

/* After prepare, run and finish. */
static bool was_last_callback(struct task *task)
{
    if (task->state == TASK_STOPPING)
        task_move(task, TASK_STOPPED);
    return task->state == TASK_STOPPED;
}

/* A job is submitted after the lock is released: the worker that it wakes takes the lock first of all. Until the worker has it, the
 * task is QUEUED or STOPPING, and stays. */
static void unlock_and_submit(struct task *task)
{
    bool submits = task->is_to_submit;
    task->is_to_submit = false;
    pthread_mutex_unlock(&task->lock);
    if (!submits || worker_pool_submit(task->config.pool, &task->job))
        return;
    pthread_mutex_lock(&task->lock);
    if (!was_last_callback(task))
        retry_job_later(task);
    pthread_mutex_unlock(&task->lock);
}

/* ---- on a worker ---- */

static void run_on_worker(struct worker_job *job)
{
    struct task *task = CONTAINER_OF(job, struct task, job);

    pthread_mutex_lock(&task->lock);
    bool runs = task->state == TASK_QUEUED;
    if (runs) {
        task_move(task, TASK_RUNNING);
        task->hold_ns = 0;
        task->has_retried = false;
        if (!task->config.prepare)
            atomic_exchange(&task->pending, false); /* this run sees what was there before each wake so far */
    }
    pthread_mutex_unlock(&task->lock);
    if (runs)
        task->delay_ns = task->config.run(task, task->config.context);
}

static void run_ended(struct worker_job *job)
{
    struct task *task = CONTAINER_OF(job, struct task, job);

    pthread_mutex_lock(&task->lock);
    if (was_last_callback(task)) {
        /* task_stop() goes on, and the task may be gone once the lock is released */
    } else if (job->displaced) {
        retry_job_later(task);
    } else if (job->cancelled) { /* the pool has ended before the run began */
        task_move(task, TASK_STOPPED);
    } else {
        if (!task->has_retried)
            backoff_reset(&task->backoff);
        task->due_ns = task->delay_ns == TASK_IDLE ? CLOCK_NEVER : clock_mono_ns() + task->delay_ns;
        task->slack_ns = task->delay_ns == TASK_IDLE ? 0 : task->delay_ns / 16;
        if (task->config.finish) {
            task_move(task, TASK_RAN);
            post_to_loop(task);
        } else {
            task_move(task, TASK_WAITING);
            run_or_wait(task);
        }
    }
    unlock_and_submit(task);
}

int64_t task_retry(struct task *task)
{
    task->has_retried = true;
    return TASK_MS(backoff_next_ms(&task->backoff));
}

unsigned task_failures(const struct task *task)
{
    return task->backoff.failures;
}

void task_hold(struct task *task, int64_t delay_ns)
{
    task->hold_ns = clock_mono_ns() + delay_ns;
}

bool task_is_stopping(const struct task *task)
{
    return task->state >= TASK_STOPPING;
}

/* ---- on the loop ---- */

static void on_timer(struct loop_timer *timer);

/* Under the lock. */
static void start_timer(struct task *task)
{
    if (task->due_ns >= task->armed_ns || task->state >= TASK_STOPPING)
        return;
    task->armed_ns = task->due_ns;
    loop_timer_start(task->config.loop, &task->timer, task->due_ns, on_timer);
}

/* A task that runs again and again after the same delay needs no message: the timer is armed for about the time that its run
 * is going to ask for, a little later, within the slack. */
static void on_timer(struct loop_timer *timer)
{
    struct task *task = CONTAINER_OF(timer, struct task, timer);

    pthread_mutex_lock(&task->lock);
    task->armed_ns = CLOCK_NEVER;
    if (task->state == TASK_WAITING)
        run_or_wait(task);
    else if (task->state == TASK_REFUSED && task->due_ns <= clock_mono_ns())
        submit_job(task);
    if (task->state == TASK_QUEUED && task->slack_ns > 0) {
        task->armed_ns = clock_mono_ns() + task->slack_ns * 16 + task->slack_ns / 2;
        loop_timer_start(task->config.loop, &task->timer, task->armed_ns, on_timer);
    } else {
        start_timer(task);
    }
    unlock_and_submit(task);
}

static void call_unlocked(struct task *task, void (*callback)(void *context))
{
    pthread_mutex_unlock(&task->lock);
    callback(task->config.context);
    pthread_mutex_lock(&task->lock);
}

static void free_task(void *memory)
{
    struct task *task = memory;
    pthread_cond_destroy(&task->stopped);
    pthread_mutex_destroy(&task->lock);
    free(task);
}

static void on_message(struct loop *loop, struct loop_message *message)
{
    struct task *task = CONTAINER_OF(message, struct task, message);

    pthread_mutex_lock(&task->lock);
    task->is_posted = false;
    if (task->state == TASK_ASKED) {
        task_move(task, TASK_PREPARING);
        atomic_exchange(&task->pending, false); /* a later wake is for what prepare may not have seen */
        call_unlocked(task, task->config.prepare);
        if (!was_last_callback(task))
            submit_job(task);
    } else if (task->state == TASK_RAN) {
        task_move(task, TASK_FINISHING);
        call_unlocked(task, task->config.finish);
        if (!was_last_callback(task)) {
            task_move(task, TASK_WAITING);
            run_or_wait(task);
        }
    } else if (task->state == TASK_DESTROYED) {
        loop_timer_stop(loop, &task->timer);
        loop_free_later(loop, task, free_task);
    }
    start_timer(task);
    unlock_and_submit(task);
}

/* ---- any thread ---- */

void task_wake(struct task *task)
{
    if (atomic_exchange(&task->pending, true))
        return;
    pthread_mutex_lock(&task->lock);
    if (task->state == TASK_WAITING)
        run_or_wait(task);
    unlock_and_submit(task);
}

struct task *task_create(const struct task_config *config)
{
    struct task *task = memory_zalloc(sizeof *task);

    task->config = *config;
    task->backoff = (struct backoff){
        .min_ms = config->retry_min_ms ? config->retry_min_ms : RETRY_MIN_MS,
        .max_ms = config->retry_max_ms ? config->retry_max_ms : RETRY_MAX_MS,
    };
    task->job = (struct worker_job){.run = run_on_worker, .done = run_ended};
    task->message.on_message = on_message;
    task->due_ns = task->armed_ns = CLOCK_NEVER;
    pthread_mutex_init(&task->lock, NULL);
    pthread_cond_init(&task->stopped, NULL);
    return task;
}

void task_start(struct task *task, int64_t delay_ns)
{
    pthread_mutex_lock(&task->lock);
    task_move(task, TASK_WAITING);
    task->due_ns = delay_ns == TASK_IDLE ? CLOCK_NEVER : clock_mono_ns() + delay_ns;
    run_or_wait(task);
    unlock_and_submit(task);
}

bool task_stop(struct task *task, int64_t grace_ns)
{
    int64_t deadline_ns = grace_ns == TASK_FOREVER ? CLOCK_NEVER : clock_mono_ns() + grace_ns;
    bool in_time = true;

    pthread_mutex_lock(&task->lock);
    if (task->state == TASK_QUEUED || FROM_CALLBACK & FROM(task->state))
        task_move(task, TASK_STOPPING);
    else if (task->state < TASK_STOPPING)
        task_move(task, TASK_STOPPED);
    while (task->state == TASK_STOPPING && in_time)
        in_time = clock_cond_wait(&task->stopped, &task->lock, deadline_ns);
    bool stopped = task->state == TASK_STOPPED;
    pthread_mutex_unlock(&task->lock);
    if (!stopped)
        log_warn("task_still_runs", LOG_CSTR("task", task->config.name));
    return stopped;
}

void task_destroy(struct task *task)
{
    if (!task)
        return;
    pthread_mutex_lock(&task->lock);
    task_move(task, TASK_DESTROYED);
    post_to_loop(task);
    pthread_mutex_unlock(&task->lock);
}
