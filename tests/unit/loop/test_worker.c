/* The worker pool: one share's blocked jobs leave threads and places in the queue to the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <semaphore.h>

#include "loop/worker.h"

enum { GREEDY = 1, MODEST, THIRD, THREADS = 6, JOBS = 12 };

static sem_t gate, begun, ended; /* greedy jobs wait at the gate */
static sem_t other_gate;         /* where those of other shares wait that were submitted to be blocked */
static uint64_t order[JOBS];     /* the shares of jobs, as they ran */
static size_t ran;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void run_job(struct worker_job *job)
{
    pthread_mutex_lock(&lock);
    order[ran++] = turns_worked_for();
    pthread_mutex_unlock(&lock);
    sem_post(&begun);
    if (job->share == GREEDY)
        sem_wait(&gate);
}

static void job_done(struct worker_job *job)
{
    (void)job;
    sem_post(&ended);
}

static struct worker_job jobs[JOBS];
static size_t submitted;

static bool submit(struct worker_pool *pool, uint64_t share)
{
    struct worker_job *job = &jobs[submitted++];
    *job = (struct worker_job){.share = share, .run = run_job, .done = job_done};
    return worker_pool_submit(pool, job);
}

static void wait_for(sem_t *what, int times)
{
    for (int i = 0; i < times; i++)
        sem_wait(what);
}

static int set_up(void **state)
{
    (void)state;
    submitted = ran = 0;
    sem_init(&gate, 0, 0);
    sem_init(&other_gate, 0, 0);
    sem_init(&begun, 0, 0);
    sem_init(&ended, 0, 0);
    return 0;
}

static void open_gate(int times)
{
    for (int i = 0; i < times; i++)
        sem_post(&gate);
}

static void blocked_jobs_of_one_share_leave_a_thread_to_each_other_share(void **state)
{
    (void)state;
    struct worker_pool *pool = worker_pool_create("test", THREADS, SIZE_MAX);
    for (int i = 0; i < THREADS + 1; i++)
        assert_true(submit(pool, GREEDY));
    wait_for(&begun, THREADS - 1); /* all it may have */
    assert_true(submit(pool, MODEST));
    assert_true(submit(pool, THIRD));
    wait_for(&ended, 2); /* all of greedy's are blocked: this would never return */
    assert_int_equal(ran, THREADS + 1);
    open_gate(THREADS + 1);
    wait_for(&ended, THREADS + 1); /* those that waited ran too */
    worker_pool_destroy(pool);
}

static void shares_take_turns_in_the_queue(void **state)
{
    (void)state;
    struct worker_pool *pool = worker_pool_create("test", 1, SIZE_MAX);
    for (int i = 0; i < 4; i++)
        assert_true(submit(pool, GREEDY));
    assert_true(submit(pool, MODEST));
    assert_true(submit(pool, THIRD));
    open_gate(4);
    wait_for(&ended, 6);
    static const uint64_t expected[] = {GREEDY, GREEDY, MODEST, THIRD, GREEDY, GREEDY};
    assert_memory_equal(order, expected, sizeof expected);
    worker_pool_destroy(pool);
}

static void run_blocked(struct worker_job *job)
{
    run_job(job);
    sem_wait(&other_gate);
}

/* The place that it left is taken by the one before it in the line; another one is free. */
static void a_share_that_has_no_thread_any_more_takes_the_last_place(void **state)
{
    (void)state;
    struct worker_pool *pool = worker_pool_create("test", 3, SIZE_MAX);
    struct worker_job blocked = {.share = MODEST, .run = run_blocked, .done = job_done};
    assert_true(submit(pool, GREEDY));
    assert_true(worker_pool_submit(pool, &blocked));
    wait_for(&begun, 2);
    assert_true(submit(pool, GREEDY)); /* both wait: one place is left, and each has one */
    assert_true(submit(pool, MODEST));
    sem_post(&other_gate);
    wait_for(&begun, 2); /* greedy's are blocked: this would never return */
    wait_for(&ended, 2);
    open_gate(2);
    wait_for(&ended, 2);
    worker_pool_destroy(pool);
}

static void in_a_full_queue_the_longest_share_gives_way(void **state)
{
    (void)state;
    struct worker_pool *pool = worker_pool_create("test", 1, 3);
    for (int i = 0; i < 4; i++) /* one runs, three wait */
        assert_true(submit(pool, GREEDY));
    assert_false(submit(pool, GREEDY));
    assert_true(submit(pool, MODEST));
    assert_true(jobs[3].displaced && jobs[3].cancelled); /* the newest of the longest */
    wait_for(&ended, 1);
    assert_false(submit(pool, GREEDY));
    open_gate(3);
    wait_for(&ended, 4);
    assert_int_equal(ran, 4);
    worker_pool_destroy(pool);
}

/* Stops the pool while its jobs are blocked; they go on once the queued ones were cancelled. */
static void *open_after_cancel(void *context)
{
    (void)context;
    wait_for(&ended, 3); /* with MODEST's */
    open_gate(2);
    return NULL;
}

static void jobs_that_wait_when_the_pool_stops_are_cancelled(void **state)
{
    (void)state;
    pthread_t opener;
    struct worker_pool *pool = worker_pool_create("test", 3, SIZE_MAX);
    for (int i = 0; i < 4; i++)
        assert_true(submit(pool, GREEDY));
    wait_for(&begun, 2); /* two may run; the third thread ends the other two jobs */
    assert_int_equal(pthread_create(&opener, NULL, open_after_cancel, NULL), 0);
    assert_true(submit(pool, MODEST));
    wait_for(&begun, 1);
    worker_pool_stop(pool);
    pthread_join(opener, NULL);
    worker_pool_destroy(pool);
    assert_true(jobs[2].cancelled && jobs[3].cancelled && !jobs[2].displaced);
    assert_int_equal(ran, 3);
}

#define TEST(function) cmocka_unit_test_setup(function, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(blocked_jobs_of_one_share_leave_a_thread_to_each_other_share),
        TEST(shares_take_turns_in_the_queue),
        TEST(a_share_that_has_no_thread_any_more_takes_the_last_place),
        TEST(in_a_full_queue_the_longest_share_gives_way),
        TEST(jobs_that_wait_when_the_pool_stops_are_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
