/* Conformance: connections cut and the engine killed under load. Nothing is lost; where effects commit with
 * the position, none is there twice for a message published once. */
#include <stdio.h>
#include <stdlib.h>

#include "conformance.h"

/* ---- a consumer dies in the middle ---- */

/* The first time, its connection is cut between its effect and its commit. */
static void die_once(struct recorder *recorder, struct bus_batch *batch)
{
    pthread_mutex_lock(&recorder->lock);
    bool first = recorder->step == 0;
    recorder->step = 1;
    pthread_mutex_unlock(&recorder->lock);
    for (size_t i = 0; i < batch->count && batch->conn; i++)
        if (!driver->write_effect(batch->conn, number_in(&batch->messages[i]), batch->deadline_ns))
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
    char texts[10][8];
    recorder_init(&recorder);
    recorder.behave = die_once;
    process_open(&process);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "die", .mode = either_mode()});
    process_start(&process);
    await_ready(&recorder);
    for (int i = 0; i < 10; i++) {
        snprintf(texts[i], sizeof texts[i], "%d", 3000 + i);
        messages[i] =
            (struct bus_message){.topic = STR("die"), .key = STR("k"), .payload = str_from(texts[i])};
    }
    enum status status = bus_publish(process.bus, messages, 10, clock_deadline_ms(PATIENCE_MS), NULL);
    bool came = recorder_await_committed(&recorder, 10);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
    assert_true(came);
    assert_true(driver->repeats ? recorder.count >= 10 : recorder.count == 20);
    for (int i = 0; i < 10 && driver->write_effect; i++)
        assert_true(is_once(driver->count_effects(3000 + i)));
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
    int newest[5] = {-1, -1, -1, -1, -1}; /* nothing is seen by an absent recorder */

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

    while (!recorder->absent && !all_there(recorder, first) && clock_mono_ns() < limit_ns)
        pause_ms(20);
    return recorder->absent || all_there(recorder, first);
}

static void fault_under_load(const char *topic, int first, void (*fault)(void), int faults)
{
    struct process processes[2];
    struct recorder shared, every;
    struct load load = {.process = &processes[0], .topic = topic, .first = first};
    pthread_t thread;
    recorder_init(&shared);
    recorder_init(&every);
    shared.effects = driver->write_effect != NULL;
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
    for (int i = 1; i <= faults; i++) {
        while (load.published < i * MESSAGES / (faults + 1))
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
        effects &= load.sure[i] ? is_once(count) : count >= 1;
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
        if (load.sure[i] && !every.absent)
            assert_int_equal(recorder_times(&every, first + i), 1);
    recorder_deinit(&shared);
    recorder_deinit(&every);
}

static void test_connections_cut_under_load(void **state)
{
    (void)state;
    fault_under_load("cut", 10000, driver->cut, 4);
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
    fault_under_load("restart", 20000, restart, driver->restarts ? driver->restarts : 4);
}

/* ---- readers of everything ---- */

static void test_a_reader_resumes_without_gap_or_repeat(void **state)
{
    (void)state;
    if (driver->lacks_every)
        skip();
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

/* ---- nobody answers ---- */

#define SHORT_MS 1000

static enum status publish_shortly(struct process *process, const char *topic, int number)
{
    char text[16];

    snprintf(text, sizeof text, "%d", number);
    struct bus_message message = {.topic = str_from(topic), .key = STR("k"), .payload = str_from(text)};
    return bus_publish(process->bus, &message, 1, clock_deadline_ms(SHORT_MS), NULL);
}

static bool has_come(struct recorder *recorder, int number)
{
    return recorder->absent || recorder_times(recorder, number) > 0;
}

/* Refused or timed out within its deadline, never accepted and lost; and accepted again after. */
static void publish_into_silence(const char *topic, void (*silence)(void), void (*end)(void))
{
    struct process process;
    struct recorder shared, every;
    recorder_init(&shared);
    recorder_init(&every);
    process_open(&process);
    subscribe(&process, &shared, (struct bus_subscription){.topic = topic});
    subscribe(&process, &every, (struct bus_subscription){.topic = topic, .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&shared);
    await_ready(&every);
    publish(&process, topic, "k", 1);
    bool settled = recorder_await_committed(&shared, 1) &&
                   recorder_await_committed(&every, 1); /* or it may come again */
    silence();
    int64_t begun_ns = clock_mono_ns();
    enum status during = publish_shortly(&process, topic, 2);
    int64_t took_ms = (clock_mono_ns() - begun_ns) / CLOCK_NS_PER_MS;
    end();
    publish_until_accepted(&process, topic, "k", 3);
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    while (!(has_come(&shared, 3) && has_come(&every, 3)) && clock_mono_ns() < limit_ns)
        pause_ms(5);
    process_close(&process);
    assert_true(settled);
    assert_int_not_equal(during, STATUS_OK);
    assert_in_range(took_ms, 0, PATIENCE_MS / 4); /* its deadline, on a machine that does other things too */
    assert_true(shared.absent || is_once(recorder_times(&shared, 1)));
    assert_true(has_come(&every, 1));
    assert_true(has_come(&shared, 3) && has_come(&every, 3));
    recorder_deinit(&shared);
    recorder_deinit(&every);
}

static void test_a_publication_while_the_engine_is_down_is_refused(void **state)
{
    (void)state;
    if (!driver->resume)
        skip();
    publish_into_silence("down", driver->halt, driver->resume);
}

static void test_a_publication_to_an_engine_that_is_frozen_times_out(void **state)
{
    (void)state;
    if (!driver->freeze)
        skip();
    publish_into_silence("half-open", driver->freeze, driver->thaw);
}

/* The test's own time limit is what a stop that waits for an answer would meet; a quarter of it is still too long. */
static void test_a_stop_does_not_wait_for_an_engine_that_is_frozen(void **state)
{
    (void)state;
    if (!driver->freeze)
        skip();
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    process_open(&process);
    subscribe(&process, &recorder,
              (struct bus_subscription){.topic = "half-open", .group = "stopped", .mode = either_mode()});
    process_start(&process);
    await_ready(&recorder);
    publish(&process, "half-open", "k", 1);
    bool came = recorder_await_committed(&recorder, 1);
    driver->freeze();
    int64_t begun_ns = clock_mono_ns();
    process_close(&process);
    int64_t took_ms = (clock_mono_ns() - begun_ns) / CLOCK_NS_PER_MS;
    driver->thaw();
    assert_true(came);
    assert_in_range(took_ms, 0, PATIENCE_MS / 4);
    recorder_deinit(&recorder);
}

/* ---- a consumer far behind ---- */

#define BACKLOG 1000

static void wait_at_first(struct recorder *recorder, struct bus_batch *batch)
{
    if (number_in(&batch->messages[0]) == 0)
        recorder_await_step(recorder, 1);
    recorder_add(recorder, batch, batch->count);
}

static void test_a_slow_consumer_catches_up_in_order(void **state)
{
    (void)state;
    struct process process;
    struct recorder slow[2];
    static struct bus_message messages[BACKLOG];
    static char texts[BACKLOG][1024];
    process_open(&process);
    for (int i = 0; i < 2; i++) {
        recorder_init(&slow[i]);
        slow[i].behave = wait_at_first;
        subscribe(&process, &slow[i],
                  (struct bus_subscription){.topic = "backlog", .mode = i ? BUS_EVERY : BUS_SHARED});
    }
    process_start(&process);
    for (int i = 0; i < 2; i++)
        await_ready(&slow[i]);
    for (int i = 0; i < BACKLOG; i++) {
        snprintf(texts[i], sizeof texts[i], "%d", i);
        messages[i] = (struct bus_message){
            .topic = STR("backlog"), .key = STR("k"), .payload = str_of(texts[i], sizeof texts[i])};
    }
    enum status status = bus_publish(process.bus, messages, BACKLOG, clock_deadline_ms(PATIENCE_MS), NULL);
    for (int i = 0; i < 2; i++)
        recorder_step(&slow[i], 1);
    bool came = recorder_await_committed(&slow[0], BACKLOG) && recorder_await_committed(&slow[1], BACKLOG);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
    assert_true(came);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(slow[i].count, slow[i].absent ? 0 : BACKLOG);
        for (size_t number = 0; number < slow[i].count; number++)
            assert_int_equal(slow[i].seen[number].number, number);
        recorder_deinit(&slow[i]);
    }
}

int conformance_run_faults(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_dead_consumer_had_comes_again),
        cmocka_unit_test(test_connections_cut_under_load),
        cmocka_unit_test(test_the_engine_killed_and_restarted_under_load),
        cmocka_unit_test(test_a_reader_resumes_without_gap_or_repeat),
        cmocka_unit_test(test_a_publication_while_the_engine_is_down_is_refused),
        cmocka_unit_test(test_a_publication_to_an_engine_that_is_frozen_times_out),
        cmocka_unit_test(test_a_stop_does_not_wait_for_an_engine_that_is_frozen),
        cmocka_unit_test(test_a_slow_consumer_catches_up_in_order),
    };
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
