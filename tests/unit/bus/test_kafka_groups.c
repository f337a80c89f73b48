/* The Kafka driver: groups: who has a partition, how often a message was tried, how much a group has not read. */
#include <librdkafka/rdkafka.h>
#include <stdatomic.h>

#include "base/metrics.h"
#include "kafka_fixture.h"
#include "test_kafka.h"

/* A handler that runs while another member joins is finished and committed before its partition goes. */
static void test_a_rebalance_waits_for_the_handler(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "handover", .partitions = 1};
    struct process processes[2];
    struct recorder recorders[2];
    for (int i = 0; i < 2; i++) {
        recorder_init(&recorders[i]);
        recorders[i].behave = i == 0 ? record_and_hold : NULL;
        kafka_open(&processes[i], &topic, 1);
        subscribe(&processes[i], &recorders[i], (struct bus_subscription){.topic = "handover"});
    }
    process_start(&processes[0]);
    await_ready(&recorders[0]);
    publish(&processes[0], "handover", "k", 1);
    bool held = recorder_await(&recorders[0], 1);
    process_start(&processes[1]);
    pause_ms(700); /* it joins, and may not have the message */
    size_t early = recorder_times(&recorders[1], 1);
    recorder_step(&recorders[0], 1);
    await_ready(&recorders[1]);
    publish(&processes[0], "handover", "k", 2);
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    while (!recorder_times(&recorders[0], 2) && !recorder_times(&recorders[1], 2) &&
           clock_mono_ns() < limit_ns)
        pause_ms(5);
    for (int i = 0; i < 2; i++)
        process_close(&processes[i]);
    assert_true(held);
    assert_int_equal(early, 0);
    assert_int_equal(recorder_times(&recorders[0], 1) + recorder_times(&recorders[1], 1), 1);
    assert_int_equal(recorder_times(&recorders[0], 2) + recorder_times(&recorders[1], 2), 1);
    for (int i = 0; i < 2; i++)
        recorder_deinit(&recorders[i]);
}

/* When its last rebalance is answered, librdkafka may end the group before it answers a question, and then never does. */
static rd_kafka_t *_Atomic closing;
static atomic_uint asked, asked_too_late;

rd_kafka_error_t *__real_rd_kafka_consumer_close_queue(rd_kafka_t *rk, rd_kafka_queue_t *queue);
rd_kafka_error_t *__wrap_rd_kafka_consumer_close_queue(rd_kafka_t *rk, rd_kafka_queue_t *queue);
rd_kafka_error_t *__wrap_rd_kafka_consumer_close_queue(rd_kafka_t *rk, rd_kafka_queue_t *queue)
{
    atomic_store(&closing, rk);
    return __real_rd_kafka_consumer_close_queue(rk, queue);
}

rd_kafka_resp_err_t __real_rd_kafka_assignment(rd_kafka_t *rk, rd_kafka_topic_partition_list_t **partitions);
rd_kafka_resp_err_t __wrap_rd_kafka_assignment(rd_kafka_t *rk, rd_kafka_topic_partition_list_t **partitions);
rd_kafka_resp_err_t __wrap_rd_kafka_assignment(rd_kafka_t *rk, rd_kafka_topic_partition_list_t **partitions)
{
    atomic_fetch_add(atomic_load(&closing) == rk ? &asked_too_late : &asked, 1);
    return __real_rd_kafka_assignment(rk, partitions);
}

/* C7: it was seen with 12 readers on a loaded machine, which waited for ever. */
static void test_a_reader_that_leaves_its_group_asks_nothing_that_may_not_be_answered(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "leaving", .partitions = 2};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    kafka_open(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "leaving"});
    process_start(&process);
    await_ready(&recorder);
    atomic_store(&asked_too_late, 0);
    process_close(&process);
    assert_true(atomic_load(&asked) > 0);
    assert_true(atomic_load(&closing) != NULL);
    assert_int_equal(atomic_load(&asked_too_late), 0);
    recorder_deinit(&recorder);
}

#define MOVED 8
enum { SECOND = 100 }; /* the second message of each partition */

static void retry_first_ones(struct recorder *recorder, struct bus_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (number_in(&batch->messages[i]) < SECOND) {
            bus_batch_retry(batch, i, "not yet");
            recorder_add(recorder, batch, i + 1);
            return;
        }
    recorder_add(recorder, batch, batch->count);
}

/* How often it was tried is a message's own: a partition that was another's meanwhile comes back with a message that was
 * never tried. */
static void test_a_partition_that_comes_back_has_no_attempts(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "comeback", .partitions = MOVED};
    struct process processes[2];
    struct recorder recorders[2];
    bool came = true;
    for (int i = 0; i < 2; i++) {
        recorder_init(&recorders[i]);
        recorders[i].behave = i == 0 ? retry_first_ones : NULL;
        kafka_open(&processes[i], &topic, 1);
        subscribe(&processes[i], &recorders[i],
                  (struct bus_subscription){.topic = "comeback", .backoff_min_ms = 1000});
    }
    process_start(&processes[0]);
    await_ready(&recorders[0]);
    for (unsigned p = 0; p < MOVED; p++)
        publish(&processes[0], "comeback", key_of_partition(p, MOVED), (int)p);
    bool tried = recorder_await(&recorders[0], MOVED);
    process_start(&processes[1]);
    bool handled = recorder_await_committed(&recorders[1], MOVED / 2);
    process_close(&processes[1]);
    for (unsigned p = 0; p < MOVED; p++)
        publish(&processes[0], "comeback", key_of_partition(p, MOVED), SECOND + (int)p);
    for (int p = 0; p < MOVED && handled; p++) {
        int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
        while (recorder_times(&recorders[1], p) && !recorder_times(&recorders[0], SECOND + p) && came)
            came = nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL) == 0 && clock_mono_ns() < limit_ns;
    }
    process_close(&processes[0]);
    assert_true(tried);
    assert_true(handled);
    assert_true(came);
    for (size_t i = 0; i < recorders[0].count; i++)
        if (recorders[0].seen[i].number >= SECOND)
            assert_int_equal(recorders[0].seen[i].attempt, 0);
    for (int i = 0; i < 2; i++)
        recorder_deinit(&recorders[i]);
}

/* R20. What is handled while nobody else is there shows, and goes. */
static void test_the_lag_is_shown(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "lag", .partitions = 1};
    struct process process;
    struct recorder recorder;
    bool shown = false;
    recorder_init(&recorder);
    recorder.behave = record_and_hold;
    kafka_open(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "lag", .batch_max = 1});
    process_start(&process);
    await_ready(&recorder);
    for (int i = 0; i < 3; i++)
        publish(&process, "lag", "k", i);
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    while (!shown && clock_mono_ns() < limit_ns) {
        struct buf text = {0};
        metrics_print(&text);
        buf_put_char(&text, '\0');
        shown = strstr(buf_str(&text).ptr, "kafka_consumer_lag{topic=\"lag\",group=\"group\"} 3\n") != NULL;
        buf_deinit(&text);
        pause_ms(20);
    }
    recorder_step(&recorder, 1);
    bool came = recorder_await_committed(&recorder, 3);
    process_close(&process);
    assert_true(shown);
    assert_true(came);
    recorder_deinit(&recorder);
}

#define BACKLOG 4

/* What waits is asked about now and then: a broker that freezes then holds up no stop. */
static void test_a_frozen_broker_holds_up_no_stop_behind_a_backlog(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "heap", .partitions = BACKLOG};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = record_and_hold;
    kafka_open(&process, &topic, 1);
    subscribe(&process, &recorder,
              (struct bus_subscription){.topic = "heap", .batch_max = 1, .parallel = BACKLOG});
    process_start(&process);
    await_ready(&recorder);
    for (unsigned p = 0; p < BACKLOG; p++)
        for (int i = 0; i < 30; i++)
            publish(&process, "heap", key_of_partition(p, BACKLOG), i);
    bool held = recorder_await(&recorder, BACKLOG);
    kafka_fixture_freeze();
    pause_ms(3200); /* its end is asked for meanwhile */
    int64_t begun_ns = clock_mono_ns();
    recorder_step(&recorder, 1);
    process_close(&process);
    int64_t took_ns = clock_mono_ns() - begun_ns;
    kafka_fixture_thaw();
    assert_true(held);
    assert_true(took_ns < 15 * CLOCK_NS_PER_S);
    recorder_deinit(&recorder);
}

int kafka_run_groups(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rebalance_waits_for_the_handler),
        cmocka_unit_test(test_a_reader_that_leaves_its_group_asks_nothing_that_may_not_be_answered),
        cmocka_unit_test(test_a_partition_that_comes_back_has_no_attempts),
        cmocka_unit_test(test_the_lag_is_shown),
        cmocka_unit_test(test_a_frozen_broker_holds_up_no_stop_behind_a_backlog),
    };
    return cmocka_run_group_tests_name("kafka groups", tests, NULL, NULL);
}
