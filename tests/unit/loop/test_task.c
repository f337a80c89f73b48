/* Tasks: when they run, how often, and how they end. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/backoff.h"
#include "loop/group.h"
#include "loop/task.h"

/* A run takes `delays` in turn, the last one again and again; while `gate` is closed it waits. */
struct fixture {
    struct loop_group *loops;
    struct worker_pool *pool;
    struct task *task;
    atomic_uint runs, prepared, finished, active;
    atomic_bool gate_closed, has_entered, is_loop_ending;
    const int64_t *delays;
    unsigned delay_count;
    atomic_llong last_ns;
    int64_t retries[8];
    atomic_uint fails; /* so many runs at first */
    unsigned hold_ms;
};

static void wait_until(atomic_uint *counter, unsigned value)
{
    for (int i = 0; i < 20000 && atomic_load(counter) < value; i++)
        usleep(500);
    assert_true(atomic_load(counter) >= value);
}

static void wait_for(atomic_bool *flag)
{
    for (int i = 0; i < 20000 && !atomic_load(flag); i++)
        usleep(500);
    assert_true(atomic_load(flag));
}

static int64_t count_run(struct task *task, void *context)
{
    struct fixture *fixture = context;
    assert_int_equal(atomic_fetch_add(&fixture->active, 1), 0); /* one at a time */
    atomic_store(&fixture->has_entered, true);
    while (atomic_load(&fixture->gate_closed) && !task_is_stopping(task))
        usleep(500);
    unsigned run = atomic_fetch_add(&fixture->runs, 1);
    atomic_store(&fixture->last_ns, clock_mono_ns());
    if (fixture->hold_ms)
        task_hold(task, TASK_MS(fixture->hold_ms));
    atomic_fetch_sub(&fixture->active, 1);
    if (run < fixture->fails)
        return fixture->retries[run] = task_retry(task);
    if (!fixture->delay_count)
        return TASK_IDLE;
    return fixture->delays[run < fixture->delay_count ? run : fixture->delay_count - 1];
}

/* Of one loop, or of the thread that ends it. */
static void assert_on_loop(const struct fixture *fixture)
{
    char name[16];
    pthread_getname_np(pthread_self(), name, sizeof name);
    assert_true(strcmp(name, "loop-0") == 0 || atomic_load(&fixture->is_loop_ending));
}

static void count_prepared(void *context)
{
    struct fixture *fixture = context;
    assert_on_loop(fixture);
    assert_int_equal(atomic_fetch_add(&fixture->prepared, 1), atomic_load(&fixture->runs));
}

static void count_finished(void *context)
{
    struct fixture *fixture = context;
    assert_on_loop(fixture);
    assert_int_equal(atomic_fetch_add(&fixture->finished, 1) + 1, atomic_load(&fixture->runs));
}

static void set_up(struct fixture *fixture, unsigned threads, size_t queue_max, bool has_hooks)
{
    fixture->loops = loop_group_create(1, 0);
    fixture->pool = worker_pool_create("task", threads, queue_max);
    fixture->task = task_create(&(struct task_config){.name = "test",
                                                      .loop = loop_group_loop(fixture->loops, 0),
                                                      .pool = fixture->pool,
                                                      .run = count_run,
                                                      .prepare = has_hooks ? count_prepared : NULL,
                                                      .finish = has_hooks ? count_finished : NULL,
                                                      .context = fixture,
                                                      .retry_min_ms = 1,
                                                      .retry_max_ms = 100});
    loop_group_start(fixture->loops);
}

static void tear_down(struct fixture *fixture)
{
    assert_true(task_stop(fixture->task, TASK_FOREVER));
    task_destroy(fixture->task);
    loop_group_stop(fixture->loops);
    worker_pool_destroy(fixture->pool);
    loop_group_destroy(fixture->loops);
}

static void a_task_runs_when_it_is_due_and_when_it_is_woken(void **state)
{
    (void)state;
    const int64_t delays[] = {TASK_NOW, TASK_MS(20), TASK_IDLE};
    for (int has_hooks = 0; has_hooks < 2; has_hooks++) {
        struct fixture fixture = {.delays = delays, .delay_count = 3};
        set_up(&fixture, 2, 10, has_hooks);
        int64_t start_ns = clock_mono_ns();
        task_start(fixture.task, TASK_MS(20));
        wait_until(&fixture.runs, 3);
        assert_true(atomic_load(&fixture.last_ns) - start_ns >= TASK_MS(40));
        usleep(30000);
        assert_int_equal(atomic_load(&fixture.runs), 3);
        task_wake(fixture.task);
        wait_until(&fixture.runs, 4);
        tear_down(&fixture);
        assert_int_equal(atomic_load(&fixture.runs), 4);
        assert_int_equal(atomic_load(&fixture.prepared), has_hooks ? 4 : 0);
    }
}

static void an_earlier_due_time_moves_the_timer_and_a_wake_does_not_lose_it(void **state)
{
    (void)state;
    const int64_t delays[] = {TASK_MS(60000), TASK_MS(30), TASK_IDLE};
    struct fixture fixture = {.delays = delays, .delay_count = 3};
    set_up(&fixture, 1, 10, false);
    task_start(fixture.task, TASK_NOW);
    wait_until(&fixture.runs, 1);
    usleep(5000); /* the timer is armed for a minute */
    int64_t woken_ns = clock_mono_ns();
    task_wake(fixture.task);
    wait_until(&fixture.runs, 3);
    assert_true(atomic_load(&fixture.last_ns) - woken_ns >= TASK_MS(30));
    tear_down(&fixture);
}

static void wakes_before_the_start_are_one_run_and_without_any_there_is_none(void **state)
{
    (void)state;
    struct fixture fixture = {0}, quiet = {0};
    set_up(&fixture, 1, 10, false);
    set_up(&quiet, 1, 10, false);
    task_wake(fixture.task);
    task_wake(fixture.task);
    task_start(fixture.task, TASK_IDLE);
    task_start(quiet.task, TASK_IDLE);
    wait_until(&fixture.runs, 1);
    usleep(20000);
    tear_down(&fixture);
    tear_down(&quiet);
    assert_int_equal(atomic_load(&fixture.runs), 1);
    assert_int_equal(atomic_load(&quiet.runs), 0);
}

static void wakes_during_a_run_make_it_run_once_more(void **state)
{
    (void)state;
    for (int has_hooks = 0; has_hooks < 2; has_hooks++) {
        struct fixture fixture = {.gate_closed = true};
        set_up(&fixture, 2, 10, has_hooks);
        task_start(fixture.task, TASK_NOW);
        wait_for(&fixture.has_entered);
        for (int i = 0; i < 5; i++)
            task_wake(fixture.task);
        atomic_store(&fixture.gate_closed, false);
        wait_until(&fixture.runs, 2);
        usleep(20000);
        tear_down(&fixture);
        assert_int_equal(atomic_load(&fixture.runs), 2);
        assert_int_equal(atomic_load(&fixture.finished), has_hooks ? 2 : 0);
    }
}

static void *stop_with_grace(void *context)
{
    struct fixture *fixture = context;
    assert_true(task_stop(fixture->task, TASK_FOREVER));
    assert_int_equal(atomic_load(&fixture->active), 0);
    return NULL;
}

static int64_t run_until_gate_opens(struct task *task, void *context)
{
    struct fixture *fixture = context;
    (void)task;
    atomic_store(&fixture->has_entered, true);
    while (atomic_load(&fixture->gate_closed))
        usleep(500);
    atomic_fetch_add(&fixture->runs, 1);
    return TASK_NOW;
}

static void stop_waits_for_the_run_and_wakes_after_it_are_ignored(void **state)
{
    (void)state;
    struct fixture fixture = {.gate_closed = true};
    set_up(&fixture, 1, 10, false);
    task_destroy(fixture.task); /* never started */
    fixture.task = task_create(&(struct task_config){.name = "stubborn",
                                                     .loop = loop_group_loop(fixture.loops, 0),
                                                     .pool = fixture.pool,
                                                     .run = run_until_gate_opens,
                                                     .context = &fixture});
    task_start(fixture.task, TASK_NOW);
    wait_for(&fixture.has_entered);
    assert_false(task_stop(fixture.task, TASK_MS(10)));
    pthread_t stopper;
    pthread_create(&stopper, NULL, stop_with_grace, &fixture);
    usleep(5000);
    task_wake(fixture.task);
    atomic_store(&fixture.gate_closed, false);
    pthread_join(stopper, NULL);
    task_wake(fixture.task);
    usleep(10000);
    assert_int_equal(atomic_load(&fixture.runs), 1);
    tear_down(&fixture);
    assert_int_equal(atomic_load(&fixture.runs), 1);
}

static void a_task_stops_after_its_loop_and_its_pool_have_ended(void **state)
{
    (void)state;
    for (int has_hooks = 0; has_hooks < 2; has_hooks++)
        for (int ends_pool = 0; ends_pool < 2; ends_pool++) {
            const int64_t delays[] = {TASK_MS(1)};
            struct fixture fixture = {.delays = delays, .delay_count = 1};
            set_up(&fixture, 1, 10, has_hooks);
            task_start(fixture.task, TASK_NOW);
            wait_until(&fixture.runs, 2);
            atomic_store(&fixture.is_loop_ending, true);
            loop_group_stop(fixture.loops);
            task_wake(fixture.task);
            if (ends_pool)
                worker_pool_stop(fixture.pool);
            task_wake(fixture.task);
            tear_down(&fixture);
        }
}

static void failed_runs_wait_longer_and_longer_until_one_succeeds(void **state)
{
    (void)state;
    const int64_t delays[] = {TASK_IDLE};
    struct fixture fixture = {.delays = delays, .delay_count = 1};
    atomic_store(&fixture.fails, 5);
    set_up(&fixture, 1, 10, false);
    task_start(fixture.task, TASK_NOW);
    wait_until(&fixture.runs, 6);
    for (unsigned i = 0; i < 5; i++) {
        assert_true(fixture.retries[i] >= TASK_MS(1 << i));
        assert_true(fixture.retries[i] <= TASK_MS(2 << i));
    }
    atomic_store(&fixture.fails, 7); /* the next one fails again */
    task_wake(fixture.task);
    wait_until(&fixture.runs, 8);
    assert_true(fixture.retries[6] <= TASK_MS(2));
    tear_down(&fixture);
}

static void a_held_task_runs_for_its_wakes_when_the_hold_is_over(void **state)
{
    (void)state;
    struct fixture fixture = {.hold_ms = 40};
    set_up(&fixture, 1, 10, false);
    task_start(fixture.task, TASK_NOW);
    wait_until(&fixture.runs, 1);
    int64_t ran_ns = atomic_load(&fixture.last_ns);
    for (int i = 0; i < 3; i++) {
        task_wake(fixture.task);
        usleep(3000);
    }
    assert_int_equal(atomic_load(&fixture.runs), 1);
    wait_until(&fixture.runs, 2);
    assert_true(atomic_load(&fixture.last_ns) - ran_ns >= TASK_MS(40));
    tear_down(&fixture);
    assert_int_equal(atomic_load(&fixture.runs), 2);
}

/* ---- a full queue ---- */

struct plug {
    struct worker_job job;
    atomic_bool *is_closed;
};

static void run_plug(struct worker_job *job)
{
    while (atomic_load(((struct plug *)job)->is_closed))
        usleep(500);
}

static void plug_done(struct worker_job *job)
{
    (void)job;
}

static void a_full_queue_loses_no_wake_and_does_not_hold_up_stop(void **state)
{
    (void)state;
    for (int stops = 0; stops < 2; stops++) {
        struct fixture fixture = {0};
        atomic_bool is_closed = true;
        struct plug running = {{.run = run_plug, .done = plug_done}, &is_closed}, queued = running;
        set_up(&fixture, 1, 1, false);
        assert_true(worker_pool_submit(fixture.pool, &running.job));
        assert_true(worker_pool_submit(fixture.pool, &queued.job));
        task_start(fixture.task, TASK_NOW);
        usleep(20000);
        assert_int_equal(atomic_load(&fixture.runs), 0);
        if (stops)
            assert_true(task_stop(fixture.task, TASK_FOREVER)); /* although no worker is free */
        atomic_store(&is_closed, false);
        if (!stops)
            wait_until(&fixture.runs, 1);
        tear_down(&fixture);
        assert_int_equal(atomic_load(&fixture.runs), stops ? 0 : 1);
    }
}

/* What prepare has seen may be older than what the wake is for. */
static atomic_bool may_end;
static atomic_uint jobs_ended;

static void run_until_let(struct worker_job *job)
{
    (void)job;
    while (!atomic_load(&may_end))
        usleep(500);
}

static void count_job(struct worker_job *job)
{
    (void)job;
    atomic_fetch_add(&jobs_ended, 1);
}

static void a_task_that_gave_way_in_a_full_queue_runs_later(void **state)
{
    (void)state;
    struct fixture fixture = {0};
    struct worker_job jobs[3]; /* one runs, one of the task's share waits, one needs the task's place */
    set_up(&fixture, 1, 2, false);
    for (int i = 0; i < 3; i++)
        jobs[i] = (struct worker_job){
            .share = i == 1 ? 0 : 1 + (uint64_t)i, .run = run_until_let, .done = count_job};
    assert_true(worker_pool_submit(fixture.pool, &jobs[0]));
    assert_true(worker_pool_submit(fixture.pool, &jobs[1]));
    task_start(fixture.task, 0);
    assert_true(worker_pool_submit(fixture.pool, &jobs[2]));
    atomic_store(&may_end, true);
    wait_until(&jobs_ended, 3);
    wait_until(&fixture.runs, 1);
    tear_down(&fixture);
}

static void a_wake_between_prepare_and_run_makes_both_happen_once_more(void **state)
{
    (void)state;
    struct fixture fixture = {0};
    atomic_bool is_closed = true;
    struct plug running = {{.run = run_plug, .done = plug_done}, &is_closed};
    set_up(&fixture, 1, 1, true);
    assert_true(worker_pool_submit(fixture.pool, &running.job));
    task_start(fixture.task, TASK_NOW);
    wait_until(&fixture.prepared, 1);
    task_wake(fixture.task);
    atomic_store(&is_closed, false);
    wait_until(&fixture.finished, 2);
    usleep(20000);
    tear_down(&fixture);
    assert_int_equal(atomic_load(&fixture.prepared), 2);
    assert_int_equal(atomic_load(&fixture.runs), 2);
}

static int64_t cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * CLOCK_NS_PER_S + used.tv_nsec;
}

static void a_task_that_waits_for_a_worker_costs_the_loop_nothing(void **state)
{
    (void)state;
    const int64_t delays[] = {TASK_MS(5), TASK_IDLE};
    for (int has_hooks = 0; has_hooks < 2; has_hooks++) {
        struct fixture fixture = {.delays = delays, .delay_count = 2};
        atomic_bool is_closed = true;
        struct plug running = {{.run = run_plug, .done = plug_done}, &is_closed};
        set_up(&fixture, 1, 10, has_hooks);
        task_start(fixture.task, TASK_MS(1));
        wait_until(&fixture.runs, 1);
        assert_true(worker_pool_submit(fixture.pool, &running.job));
        int64_t before_ns = cpu_ns();
        usleep(100000);
        assert_true(cpu_ns() - before_ns < TASK_MS(50));
        atomic_store(&is_closed, false);
        wait_until(&fixture.runs, 2);
        tear_down(&fixture);
    }
}

/* ---- many threads ---- */

enum { WAKERS = 4, WAKES = 5000 };

struct counting {
    struct task *task;
    atomic_uint written; /* before each wake */
    unsigned seen;       /* the run's own: no two at once */
    atomic_uint runs;
};

static int64_t see_written(struct task *task, void *context)
{
    struct counting *counting = context;
    (void)task;
    counting->seen = atomic_load_explicit(&counting->written, memory_order_relaxed);
    atomic_fetch_add(&counting->runs, 1);
    return counting->seen % 3 == 0 ? TASK_NOW + 1000 : TASK_IDLE;
}

static void do_nothing(void *context)
{
    (void)context;
}

static void *wake_often(void *context)
{
    struct counting *counting = context;
    for (unsigned i = 0; i < WAKES; i++) {
        atomic_fetch_add_explicit(&counting->written, 1, memory_order_relaxed);
        task_wake(counting->task);
    }
    return NULL;
}

static void no_wake_of_many_threads_is_lost(void **state)
{
    (void)state;
    struct loop_group *loops = loop_group_create(1, 0);
    struct worker_pool *pool = worker_pool_create("task", 3, 10);
    for (int has_hooks = 0; has_hooks < 2; has_hooks++) {
        struct counting counting = {0};
        pthread_t wakers[WAKERS];
        counting.task = task_create(&(struct task_config){.name = "counting",
                                                          .loop = loop_group_loop(loops, 0),
                                                          .pool = pool,
                                                          .run = see_written,
                                                          .prepare = has_hooks ? do_nothing : NULL,
                                                          .finish = has_hooks ? do_nothing : NULL,
                                                          .context = &counting});
        if (!loop_group_is_running(loops))
            loop_group_start(loops);
        task_start(counting.task, TASK_IDLE);
        for (int i = 0; i < WAKERS; i++)
            pthread_create(&wakers[i], NULL, wake_often, &counting);
        for (int i = 0; i < WAKERS; i++)
            pthread_join(wakers[i], NULL);
        usleep(50000); /* nothing but the last wake leads to the last run */
        assert_true(task_stop(counting.task, TASK_FOREVER));
        assert_int_equal(counting.seen, WAKERS * WAKES);
        task_destroy(counting.task);
    }
    loop_group_stop(loops);
    worker_pool_destroy(pool);
    loop_group_destroy(loops);
}

static void tasks_stop_at_any_moment(void **state)
{
    (void)state;
    const int64_t delays[] = {TASK_NOW, 200000, TASK_NOW, 1000};
    for (unsigned i = 0; i < 200; i++) {
        struct fixture fixture = {.delays = delays, .delay_count = 4};
        set_up(&fixture, 2, 1, i % 2);
        task_start(fixture.task, TASK_NOW);
        usleep(i * 5);
        task_wake(fixture.task);
        usleep(i % 7 * 30);
        tear_down(&fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_task_runs_when_it_is_due_and_when_it_is_woken),
        cmocka_unit_test(an_earlier_due_time_moves_the_timer_and_a_wake_does_not_lose_it),
        cmocka_unit_test(wakes_before_the_start_are_one_run_and_without_any_there_is_none),
        cmocka_unit_test(wakes_during_a_run_make_it_run_once_more),
        cmocka_unit_test(stop_waits_for_the_run_and_wakes_after_it_are_ignored),
        cmocka_unit_test(a_task_stops_after_its_loop_and_its_pool_have_ended),
        cmocka_unit_test(failed_runs_wait_longer_and_longer_until_one_succeeds),
        cmocka_unit_test(a_held_task_runs_for_its_wakes_when_the_hold_is_over),
        cmocka_unit_test(a_full_queue_loses_no_wake_and_does_not_hold_up_stop),
        cmocka_unit_test(a_task_that_gave_way_in_a_full_queue_runs_later),
        cmocka_unit_test(a_wake_between_prepare_and_run_makes_both_happen_once_more),
        cmocka_unit_test(a_task_that_waits_for_a_worker_costs_the_loop_nothing),
        cmocka_unit_test(no_wake_of_many_threads_is_lost),
        cmocka_unit_test(tasks_stop_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
