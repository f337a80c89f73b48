/* Loop groups and workers: grace periods, broadcasts, jobs that always come back. */
#include <dirent.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "loop/group.h"
#include "loop/worker.h"

/* Readers on the loops look at `shared` between two of their own messages; the writer frees the old one only after a
 * grace period. Under ASan or TSan a grace period that is too short is a use after free. */
static _Atomic(int *) shared;
static atomic_int rounds_left, retired;
static sem_t readers_done;

struct reader {
    struct loop_message message;
    long sum;
};

static void on_read(struct loop *loop, struct loop_message *message)
{
    struct reader *reader = (struct reader *)message;
    int *seen = atomic_load(&shared);
    for (int i = 0; i < 100; i++)
        reader->sum += ((volatile int *)seen)[0];
    if (atomic_load(&rounds_left) > 0)
        loop_post(loop, message);
    else
        sem_post(&readers_done);
}

static void retire(void *arg)
{
    free(arg);
    atomic_fetch_add(&retired, 1);
}

static void a_grace_period_ends_after_every_reader_has_let_go(void **state)
{
    (void)state;
    enum { ROUNDS = 2000 };
    struct loop_group *group = loop_group_create(2, 0);
    struct reader readers[2] = {{.message.on_message = on_read}, {.message.on_message = on_read}};
    sem_init(&readers_done, 0, 0);
    atomic_store(&shared, calloc(1, sizeof(int)));
    atomic_store(&rounds_left, 1);
    loop_group_start(group);
    for (unsigned i = 0; i < 2; i++)
        loop_post(loop_group_loop(group, i), &readers[i].message);
    for (int i = 0; i < ROUNDS; i++)
        loop_group_synchronize(group, retire, atomic_exchange(&shared, calloc(1, sizeof(int))));
    atomic_store(&rounds_left, 0);
    sem_wait(&readers_done);
    sem_wait(&readers_done);
    loop_group_stop(group);
    loop_group_synchronize(group, retire, atomic_exchange(&shared, NULL)); /* no loop runs: at once */
    loop_group_destroy(group);
    assert_int_equal(atomic_load(&retired), ROUNDS + 1);
}

static atomic_uint visited;
static void visit(struct loop *loop, void *arg)
{
    (void)arg;
    char name[16], own[16];
    pthread_getname_np(pthread_self(), name, sizeof name);
    snprintf(own, sizeof own, "loop-%u", loop_index(loop));
    if (strcmp(name, own) == 0)
        atomic_fetch_or(&visited, 1u << loop_index(loop));
}

static void a_broadcast_reaches_every_loop_on_its_own_thread(void **state)
{
    (void)state;
    struct loop_group *group = loop_group_create(3, 0);
    loop_group_start(group);
    loop_group_broadcast(group, visit, NULL);
    while (atomic_load(&visited) != 7u)
        ;
    loop_group_stop(group);
    loop_group_destroy(group);
}

struct counted_job {
    struct worker_job job;
    sem_t *gate;
    atomic_int *ran, *done, *cancelled;
};

static void run_counted(struct worker_job *job)
{
    struct counted_job *counted = (struct counted_job *)job;
    if (counted->gate)
        sem_wait(counted->gate);
    atomic_fetch_add(counted->ran, 1);
}

static void done_counted(struct worker_job *job)
{
    struct counted_job *counted = (struct counted_job *)job;
    atomic_fetch_add(job->cancelled ? counted->cancelled : counted->done, 1);
}

static void the_queue_is_bounded_and_every_accepted_job_comes_back(void **state)
{
    (void)state;
    enum { QUEUE = 8, JOBS = 10 };
    atomic_int ran = 0, done = 0, cancelled = 0;
    sem_t gate;
    sem_init(&gate, 0, 0);
    struct worker_pool *pool = worker_pool_create("test", 1, QUEUE);
    struct counted_job jobs[JOBS];
    int accepted = 0;
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = (struct counted_job){.job = {.run = run_counted, .done = done_counted},
                                       .gate = i == 0 ? &gate : NULL,
                                       .ran = &ran,
                                       .done = &done,
                                       .cancelled = &cancelled};
        accepted += worker_pool_submit(pool, &jobs[i].job);
    }
    /* C7: the thread runs one and QUEUE wait, whether the thread has taken its job yet or not; more are refused at once. */
    assert_int_equal(accepted, 1 + QUEUE);
    sem_post(&gate);
    worker_pool_stop(pool);
    assert_int_equal(done + cancelled, accepted);
    assert_int_equal(ran, done);
    struct counted_job late = jobs[1];
    assert_false(worker_pool_submit(pool, &late.job));
    worker_pool_destroy(pool);
}

static unsigned thread_count(void)
{
    unsigned count = 0;
    DIR *threads = opendir("/proc/self/task");
    while (readdir(threads))
        count++;
    closedir(threads);
    return count;
}

/* A thread that was joined is still in /proc for a moment. */
static void await_threads(unsigned count)
{
    for (int64_t deadline_ns = clock_deadline_ms(30000); thread_count() != count; usleep(1000))
        assert_true(clock_mono_ns() < deadline_ns);
}

static void threads_start_when_jobs_need_them_and_end_when_idle(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    atomic_int ran = 0, done = 0;
    sem_t gate;
    sem_init(&gate, 0, 0);
    unsigned before = thread_count();
    struct worker_pool *pool = worker_pool_create("test", THREADS, 0);
    struct counted_job jobs[THREADS];
    for (int round = 1; round <= 2; round++) {
        await_threads(before);
        for (int i = 0; i < THREADS; i++) {
            jobs[i] = (struct counted_job){
                .job = {.run = run_counted, .done = done_counted}, .gate = &gate, .ran = &ran, .done = &done};
            assert_true(worker_pool_submit(pool, &jobs[i].job));
        }
        await_threads(before + THREADS); /* each job has one: none waits for another */
        for (int i = 0; i < THREADS; i++)
            sem_post(&gate);
        while (atomic_load(&done) < round * THREADS)
            usleep(100);
    }
    worker_pool_destroy(pool); /* while they sleep */
    await_threads(before);
}

static struct loop *job_loop;
static pthread_t job_thread;
static void done_on_loop(struct worker_job *job)
{
    struct counted_job *counted = (struct counted_job *)job;
    if (pthread_equal(pthread_self(), job_thread))
        atomic_fetch_add(counted->done, 1);
    loop_stop(job_loop);
}

static void a_job_comes_back_to_the_loop_it_names(void **state)
{
    (void)state;
    atomic_int ran = 0, done = 0;
    job_loop = loop_create(0, 0);
    job_thread = pthread_self();
    struct worker_pool *pool = worker_pool_create("test", 2, 8);
    struct counted_job job = {
        .job = {.loop = job_loop, .run = run_counted, .done = done_on_loop}, .ran = &ran, .done = &done};
    assert_true(worker_pool_submit(pool, &job.job));
    loop_run(job_loop);
    assert_int_equal(ran, 1);
    assert_int_equal(done, 1);
    worker_pool_destroy(pool);
    loop_destroy(job_loop);
}

static void on_never(struct loop_timer *timer)
{
    (void)timer;
    fail();
}

/* Whoever owns timers of a loop that has ended is freed in whatever order; ASan has the last word. */
static void timers_of_an_ended_loop_are_nobodys(void **state)
{
    (void)state;
    struct loop_group *group = loop_group_create(1, 0);
    struct loop_timer *timers[8];
    for (int i = 0; i < 8; i++) {
        timers[i] = calloc(1, sizeof *timers[i]);
        loop_timer_start(loop_group_loop(group, 0), timers[i], clock_deadline_ms(3600 * 1000 - i), on_never);
    }
    loop_group_start(group);
    loop_group_stop(group);
    for (int i = 0; i < 8; i++) {
        if (i % 2)
            loop_timer_stop(loop_group_loop(group, 0), timers[i]);
        free(timers[i]);
    }
    loop_group_destroy(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grace_period_ends_after_every_reader_has_let_go),
        cmocka_unit_test(timers_of_an_ended_loop_are_nobodys),
        cmocka_unit_test(a_broadcast_reaches_every_loop_on_its_own_thread),
        cmocka_unit_test(the_queue_is_bounded_and_every_accepted_job_comes_back),
        cmocka_unit_test(a_job_comes_back_to_the_loop_it_names),
        cmocka_unit_test(threads_start_when_jobs_need_them_and_end_when_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
