/* Conformance: acknowledge, retry, term; slow consumers; stop. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "conformance.h"

static int number_of(const struct bus_batch *batch, size_t at)
{
    return number_in(&batch->messages[at]);
}

/* ---- retry ---- */

/* Refuses 5 three times; what is before it stands, what is behind it waits. */
static void refuse_five(struct recorder *recorder, struct bus_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        pthread_mutex_lock(&recorder->lock);
        bool refuse = number_of(batch, i) == 5 && recorder->step < 3;
        recorder->step += refuse;
        pthread_mutex_unlock(&recorder->lock);
        if (refuse) {
            recorder_add(recorder, batch, i + 1);
            bus_batch_retry(batch, i, "not yet");
            return;
        }
    }
    recorder_add(recorder, batch, batch->count);
}

static void retry_in_mode(enum bus_mode mode)
{
    static const int expected[] = {0, 1, 2, 3, 4, 5, 5, 5, 5, 6, 7, 8, 9};
    struct process process;
    struct recorder recorder;
    struct bus_message messages[10];
    char texts[10][4];
    recorder_init(&recorder);
    recorder.behave = refuse_five;
    process_open(&process);
    subscribe(&process, &recorder,
              (struct bus_subscription){.topic = "retry", .mode = mode, .backoff_min_ms = 20});
    process_start(&process);
    await_ready(&recorder);
    for (int i = 0; i < 10; i++) {
        snprintf(texts[i], sizeof texts[i], "%d", i);
        messages[i] =
            (struct bus_message){.topic = STR("retry"), .key = STR("k"), .payload = str_from(texts[i])};
    }
    enum status status = bus_publish(process.bus, messages, 10, clock_deadline_ms(PATIENCE_MS), NULL);
    bool came = recorder_await_committed(&recorder, 10);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
    assert_true(came);
    assert_int_equal(recorder.committed, 10);
    assert_int_equal(recorder.count, 13);
    for (int i = 0; i < 13; i++)
        assert_int_equal(recorder.seen[i].number, expected[i]);
    for (unsigned attempt = 1; attempt <= 3; attempt++)
        assert_int_equal(recorder.seen[5 + attempt].attempt, attempt);
    recorder_deinit(&recorder);
}

static void test_a_retry_keeps_the_order(void **state)
{
    (void)state;
    if (driver->lacks_shared)
        skip();
    retry_in_mode(BUS_SHARED);
}

static void test_a_retry_keeps_the_order_for_readers_of_everything(void **state)
{
    (void)state;
    if (driver->lacks_every)
        skip();
    retry_in_mode(BUS_EVERY);
}

/* ---- term ---- */

static void kill_odd(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_await_step(recorder, number_of(batch, batch->count - 1) + 1); /* its offset is noted */
    for (size_t i = 0; i < batch->count; i++)
        if (number_of(batch, i) % 2)
            bus_batch_term(batch, i, "%d is \"odd\"", number_of(batch, i));
    recorder_add(recorder, batch, batch->count);
}

static atomic_int letters_as_expected;
static int64_t termed_at[10];

static void read_letters(struct recorder *recorder, struct bus_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        const struct bus_message *letter = &batch->messages[i];
        char reason[32], offset[24], id[8];
        snprintf(reason, sizeof reason, "%d is \"odd\"", number_of(batch, i));
        snprintf(offset, sizeof offset, "%lld", (long long)termed_at[number_of(batch, i)]);
        snprintf(id, sizeof id, "e%d", number_of(batch, i));
        letters_as_expected +=
            str_eq(bus_message_header(letter, STR(BUS_HEADER_DEAD_REASON)), str_from(reason)) &&
            str_eq(bus_message_header(letter, STR(BUS_HEADER_DEAD_TOPIC)), STR("term")) &&
            str_eq(bus_message_header(letter, STR(BUS_HEADER_DEAD_GROUP)), STR("group")) &&
            str_eq(bus_message_header(letter, STR(BUS_HEADER_DEAD_OFFSET)), str_from(offset)) &&
            str_eq(bus_message_header(letter, STR("event-id")), str_from(id)) &&
            str_eq(letter->key, STR("k"));
    }
    recorder_add(recorder, batch, batch->count);
}

static void test_a_termed_message_is_a_dead_letter_with_its_reason(void **state)
{
    (void)state;
    struct process process;
    struct recorder recorder, dead;
    recorder_init(&recorder);
    recorder_init(&dead);
    recorder.behave = kill_odd;
    dead.behave = read_letters;
    process_open(&process);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "term", .mode = either_mode()});
    subscribe(&process, &dead,
              (struct bus_subscription){.topic = "term.dlq", .group = "dead", .mode = either_mode()});
    process_start(&process);
    await_ready(&recorder);
    await_ready(&dead);
    enum status status = STATUS_OK;
    for (int i = 0; i < 10; i++) {
        char text[4], id[8];
        snprintf(text, sizeof text, "%d", i);
        snprintf(id, sizeof id, "e%d", i);
        const struct bus_header header = {STR("event-id"), str_from(id)};
        struct bus_message message = {.topic = STR("term"),
                                      .key = STR("k"),
                                      .payload = str_from(text),
                                      .headers = &header,
                                      .header_count = 1};
        if (status == STATUS_OK)
            status = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), NULL);
        termed_at[i] = message.offset;
        recorder_step(&recorder, i + 1);
    }
    bool came = recorder_await_committed(&recorder, 10) && recorder_await_committed(&dead, 5);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
    assert_true(came);
    assert_int_equal(recorder.count, 10);
    assert_int_equal(dead.count, 5);
    assert_int_equal(letters_as_expected, 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(dead.seen[i].number, 2 * i + 1);
    recorder_deinit(&recorder);
    recorder_deinit(&dead);
}

static void refuse_three(struct recorder *recorder, struct bus_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (number_of(batch, i) == 3) {
            recorder_add(recorder, batch, i + 1);
            bus_batch_retry(batch, i, "never");
            return;
        }
    recorder_add(recorder, batch, batch->count);
}

static void test_a_retry_too_many_is_a_dead_letter(void **state)
{
    (void)state;
    struct process process;
    struct recorder recorder, dead;
    recorder_init(&recorder);
    recorder_init(&dead);
    recorder.behave = refuse_three;
    process_open(&process);
    subscribe(&process, &recorder,
              (struct bus_subscription){
                  .topic = "give-up", .mode = either_mode(), .attempts_max = 3, .backoff_min_ms = 10});
    subscribe(&process, &dead, (struct bus_subscription){.topic = "give-up.dlq", .mode = either_mode()});
    process_start(&process);
    await_ready(&recorder);
    await_ready(&dead);
    for (int i = 0; i < 6; i++)
        publish(&process, "give-up", "k", i);
    bool came = recorder_await_committed(&recorder, 6) && recorder_await_committed(&dead, 1);
    process_close(&process);
    assert_true(came);
    assert_int_equal(recorder_times(&recorder, 3), 3);
    assert_int_equal(recorder_times(&recorder, 5), 1);
    assert_int_equal(dead.seen[0].number, 3);
    recorder_deinit(&recorder);
    recorder_deinit(&dead);
}

/* ---- rolled back as a whole ---- */

/* Writes its effects and fails at 4 whatever comes with it: each of the others must keep its one effect. */
static void fail_at_four(struct recorder *recorder, struct bus_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        int number = number_of(batch, i);
        if (!driver->write_effect(batch->conn, recorder->step + number, batch->deadline_ns))
            return;
        if (number == 4) {
            bus_batch_rollback(batch, "four cannot be done");
            return;
        }
    }
    recorder_add(recorder, batch, batch->count);
}

/* The same by an error of the database that the handler does nothing about. */
static void be_refused_at_four(struct recorder *recorder, struct bus_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        int number = number_of(batch, i);
        if (!driver->write_effect(batch->conn, number == 4 ? -1 : recorder->step + number,
                                  batch->deadline_ns))
            return;
    }
    recorder_add(recorder, batch, batch->count);
}

static void fail_in_the_middle(const char *topic, int first,
                               void (*behave)(struct recorder *recorder, struct bus_batch *batch))
{
    char dead_topic[32];
    struct process process;
    struct recorder recorder, dead;
    struct bus_message messages[8];
    char texts[8][4];
    recorder_init(&recorder);
    recorder_init(&dead);
    recorder.behave = behave;
    recorder.step = first;
    snprintf(dead_topic, sizeof dead_topic, "%s.dlq", topic);
    process_open(&process);
    subscribe(&process, &recorder,
              (struct bus_subscription){.topic = topic, .attempts_max = 2, .backoff_min_ms = 10});
    subscribe(&process, &dead, (struct bus_subscription){.topic = dead_topic, .group = "dead"});
    process_start(&process);
    await_ready(&recorder);
    await_ready(&dead);
    for (int i = 0; i < 8; i++) {
        snprintf(texts[i], sizeof texts[i], "%d", i);
        messages[i] =
            (struct bus_message){.topic = str_from(topic), .key = STR("k"), .payload = str_from(texts[i])};
    }
    enum status status = bus_publish(process.bus, messages, 8, clock_deadline_ms(PATIENCE_MS), NULL);
    bool came = recorder_await_committed(&recorder, 8) && recorder_await_committed(&dead, 1);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
    assert_true(came);
    for (int number = 0; number < 8; number++)
        assert_int_equal(driver->count_effects(first + number), number != 4);
    assert_int_equal(dead.seen[0].number, 4);
    recorder_deinit(&recorder);
    recorder_deinit(&dead);
}

static void test_a_batch_that_fails_comes_one_by_one(void **state)
{
    (void)state;
    if (!driver->write_effect)
        skip();
    fail_in_the_middle("rollback", 1000, fail_at_four);
}

static void test_a_batch_the_database_refuses_comes_one_by_one(void **state)
{
    (void)state;
    if (!driver->write_effect)
        skip();
    fail_in_the_middle("refused", 1100, be_refused_at_four);
}

/* ---- slow consumers, and the end ---- */

static void block_on_zero(struct recorder *recorder, struct bus_batch *batch)
{
    if (batch->messages[0].partition == 0)
        recorder_await_step(recorder, 1);
    recorder_add(recorder, batch, batch->count);
}

static void test_a_slow_consumer_holds_up_nobody_else(void **state)
{
    (void)state;
    struct process process;
    struct recorder slow, fast, every;
    recorder_init(&slow);
    recorder_init(&fast);
    recorder_init(&every);
    slow.behave = block_on_zero;
    process_open(&process);
    subscribe(&process, &slow,
              (struct bus_subscription){.topic = "slow", .group = "slow", .mode = either_mode()});
    subscribe(&process, &fast,
              (struct bus_subscription){.topic = "slow", .group = "fast", .mode = either_mode()});
    subscribe(&process, &every, (struct bus_subscription){.topic = "slow", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&slow);
    await_ready(&fast);
    await_ready(&every);
    for (int i = 0; i < 20; i++)
        publish(&process, "slow", key_of_partition((unsigned)i % 2, 2), i);
    /* the other group, the reader of everything, and the slow group's own other partition */
    bool others = recorder_await_committed(&fast, 20) && recorder_await_committed(&every, 20) &&
                  recorder_await_committed(&slow, partitions_of("slow") > 1 ? 10 : 0);
    recorder_step(&slow, 1);
    bool all = recorder_await_committed(&slow, 20);
    process_close(&process);
    assert_true(others);
    assert_true(all);
    recorder_deinit(&slow);
    recorder_deinit(&fast);
    recorder_deinit(&every);
}

/* What came twice must not stand for what did not come. */
static bool await_each(struct recorder *recorder, int first, int count)
{
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    int there = 0;

    while (there < count && clock_mono_ns() < limit_ns) {
        if (recorder_times(recorder, first + there) > 0)
            there++;
        else
            nanosleep(&pause, NULL);
    }
    return there == count;
}

/* Stops while handlers run: each is finished and committed, or comes again to whoever is there next. */
static void test_what_a_stop_interrupts_comes_again(void **state)
{
    (void)state;
    if (driver->lacks_shared)
        skip();
    struct recorder recorder;
    size_t committed = 0;
    recorder_init(&recorder);
    recorder.effects = driver->write_effect != NULL;
    for (int round = 0; round < 4; round++) {
        struct process process;
        process_open(&process);
        subscribe(&process, &recorder,
                  (struct bus_subscription){.topic = "stop", .batch_max = 5, .from = BUS_FROM_START});
        process_start(&process);
        for (int i = 0; i < 25; i++)
            publish(&process, "stop", i % 2 ? "a" : "b", 2000 + round * 25 + i);
        if (round == 3)
            assert_true(recorder_await_committed(&recorder, 100) && await_each(&recorder, 2000, 100));
        process_close(&process);
        committed = recorder.committed;
    }
    assert_true(driver->repeats ? committed >= 100 : committed == 100);
    for (int i = 0; i < 100 && recorder.effects; i++)
        assert_true(is_once(driver->count_effects(2000 + i)));
    recorder_deinit(&recorder);
}

int conformance_run_verdicts(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_retry_keeps_the_order),
        cmocka_unit_test(test_a_retry_keeps_the_order_for_readers_of_everything),
        cmocka_unit_test(test_a_termed_message_is_a_dead_letter_with_its_reason),
        cmocka_unit_test(test_a_retry_too_many_is_a_dead_letter),
        cmocka_unit_test(test_a_batch_that_fails_comes_one_by_one),
        cmocka_unit_test(test_a_batch_the_database_refuses_comes_one_by_one),
        cmocka_unit_test(test_a_slow_consumer_holds_up_nobody_else),
        cmocka_unit_test(test_what_a_stop_interrupts_comes_again),
    };
    return cmocka_run_group_tests_name("verdicts", tests, NULL, NULL);
}
