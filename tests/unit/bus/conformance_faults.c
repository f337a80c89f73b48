/* Conformance: connections cut and the engine killed under load. Nothing is lost; where effects commit with
 * the position, none is there twice for a message published once. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "conformance.h"

static void pause_ms(int ms)
{
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&pause, NULL);
}

/* ---- a consumer dies in the middle ---- */

/* The first time, its connection is cut between its effect and its commit. */
static void die_once(struct recorder *recorder, struct bus_batch *batch)
{
    pthread_mutex_lock(&recorder->lock);
    bool first = recorder->step == 0;
    recorder->step = 1;
    pthread_mutex_unlock(&recorder->lock);
    for (size_t i = 0; i < batch->count && batch->conn; i++)
        if (!driver->write_effect(batch->conn, 3000 + (int)batch->messages[i].offset, batch->deadline_ns))
            return;
    if (first)
        driver->cut();
    recorder_add(recorder, batch, batch->count);
}

static void test_what_a_dead_consumer_had_comes_again(void **state)
{
    (void)state;
    struct process process;
    struct recorder recorder;
    struct bus_message messages[10];
    recorder_init(&recorder);
    recorder.behave = die_once;
    process_open(&process);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "die"});
    process_start(&process);
    await_ready(&recorder);
    for (int i = 0; i < 10; i++)
        messages[i] = (struct bus_message){.topic = STR("die"), .key = STR("k"), .payload = STR("1")};
    enum status status = bus_publish(process.bus, messages, 10, clock_deadline_ms(PATIENCE_MS), NULL);
    bool came = recorder_await_committed(&recorder, 10);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
    assert_true(came);
    assert_int_equal(recorder.count, 20);
    for (int i = 0; i < 10 && driver->begin; i++)
        assert_int_equal(driver->count_effects(3000 + i), 1);
    recorder_deinit(&recorder);
}

/* ---- load under faults ---- */

#define MESSAGES 400

struct load {
    struct process *process;
    const char *topic;
    int first;
    atomic_int published, unsure; /* unsure: a try failed, so it may be there twice */
    bool sure[MESSAGES];
};

static void *publish_load(void *arg)
{
    struct load *load = arg;

    for (int i = 0; i < MESSAGES; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%d", i % 5);
        load->sure[i] = try_publish(load->process, load->topic, key, load->first + i) == STATUS_OK;
        if (!load->sure[i]) {
            load->unsure++;
            publish_until_accepted(load->process, load->topic, key, load->first + i);
        }
        load->published++;
        pause_ms(2);
    }
    return NULL;
}

/* The first sight of each number, per key, ascends: a repetition may only repeat what is the newest or
 * older. */
static void assert_order(struct recorder *recorder, int first)
{
    int newest[5] = {-1, -1, -1, -1, -1};

    for (size_t i = 0; i < recorder->count; i++) {
        int number = recorder->seen[i].number - first, key = number % 5;
        if (number > newest[key]) {
            assert_int_equal(number, newest[key] < 0 ? key : newest[key] + 5);
            newest[key] = number;
        }
    }
}

static bool all_there(struct recorder *recorder, int first)
{
    static bool there[MESSAGES];
    size_t count = 0;

    memset(there, 0, sizeof there);
    pthread_mutex_lock(&recorder->lock);
    for (size_t i = 0; i < recorder->count; i++) {
        bool *one = &there[recorder->seen[i].number - first];
        count += !*one;
        *one = true;
    }
    pthread_mutex_unlock(&recorder->lock);
    return count == MESSAGES;
}

static bool await_all_there(struct recorder *recorder, int first)
{
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);

    while (!all_there(recorder, first) && clock_mono_ns() < limit_ns)
        pause_ms(20);
    return all_there(recorder, first);
}

static void fault_under_load(const char *topic, int first, void (*fault)(void))
{
    struct process processes[2];
    struct recorder shared, every;
    struct load load = {.process = &processes[0], .topic = topic, .first = first};
    pthread_t thread;
    recorder_init(&shared);
    recorder_init(&every);
    shared.effects = driver->begin != NULL;
    for (int i = 0; i < 2; i++) {
        process_open(&processes[i]);
        subscribe(&processes[i], &shared, (struct bus_subscription){.topic = topic, .batch_max = 10});
    }
    subscribe(&processes[1], &every, (struct bus_subscription){.topic = topic, .mode = BUS_EVERY});
    for (int i = 0; i < 2; i++)
        process_start(&processes[i]);
    await_ready(&shared);
    await_ready(&every);
    pthread_create(&thread, NULL, publish_load, &load);
    for (int at = MESSAGES / 5; at < MESSAGES; at += MESSAGES / 5) {
        while (load.published < at)
            pause_ms(1);
        fault();
    }
    pthread_join(thread, NULL);
    bool came = await_all_there(&shared, first) && await_all_there(&every, first);
    bool effects = true;
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    for (int i = 0; i < MESSAGES && shared.effects; i++) {
        size_t count;
        while ((count = driver->count_effects(first + i)) == 0 && clock_mono_ns() < limit_ns)
            pause_ms(20); /* seen, its commit is under way */
        effects &= load.sure[i] ? count == 1 : count >= 1;
    }
    for (int i = 0; i < 2; i++)
        process_close(&processes[i]);
    assert_int_equal(load.published, MESSAGES);
    assert_true(came);
    assert_true(effects);
    assert_order(&shared, first);
    assert_order(&every, first);
    assert_int_equal(every.gaps, 0);
    for (int i = 0; i < MESSAGES; i++) /* positions in memory outlive connections: no repeats */
        if (load.sure[i])
            assert_int_equal(recorder_times(&every, first + i), 1);
    recorder_deinit(&shared);
    recorder_deinit(&every);
}

static void test_connections_cut_under_load(void **state)
{
    (void)state;
    fault_under_load("cut", 10000, driver->cut);
}

static void restart(void)
{
    driver->halt();
    pause_ms(100);
    driver->resume();
}

static void test_the_engine_killed_and_restarted_under_load(void **state)
{
    (void)state;
    if (!driver->resume)
        skip();
    fault_under_load("restart", 20000, restart);
}

/* ---- readers of everything ---- */

static void test_a_reader_resumes_without_gap_or_repeat(void **state)
{
    (void)state;
    struct process processes[2];
    struct recorder recorder;
    recorder_init(&recorder);
    for (int i = 0; i < 2; i++)
        process_open(&processes[i]);
    subscribe(&processes[0], &recorder, (struct bus_subscription){.topic = "resume", .mode = BUS_EVERY});
    for (int i = 0; i < 2; i++)
        process_start(&processes[i]);
    await_ready(&recorder);
    for (int i = 0; i < 100; i++) {
        if (i % 20 == 10)
            driver->cut();
        publish_until_accepted(&processes[1], "resume", i % 2 ? "a" : "b", i);
    }
    bool came = recorder_await_committed(&recorder, 100);
    for (int i = 0; i < 2; i++)
        process_close(&processes[i]);
    assert_true(came);
    assert_int_equal(recorder.gaps, 0);
    for (size_t i = 0; i < recorder.count; i++)
        for (size_t j = i + 1; j < recorder.count; j++)
            if (recorder.seen[i].partition == recorder.seen[j].partition)
                assert_true(recorder.seen[i].offset < recorder.seen[j].offset);
    recorder_deinit(&recorder);
}

int conformance_run_faults(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_dead_consumer_had_comes_again),
        cmocka_unit_test(test_connections_cut_under_load),
        cmocka_unit_test(test_the_engine_killed_and_restarted_under_load),
        cmocka_unit_test(test_a_reader_resumes_without_gap_or_repeat),
    };
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
