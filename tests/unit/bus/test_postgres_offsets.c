/* The PostgreSQL driver: which offsets there are: retention, gaps, tails that are lost, offsets that are used again. */
#include <stdio.h>

#include "base/metrics.h"
#include "postgres_rig.h"
#include "sql_rig.h"

static void hold(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_await_step(recorder, 1);
    recorder_add(recorder, batch, batch->count);
}

static void assert_metric(const char *line)
{
    struct buf text = {0};

    metrics_print(&text);
    buf_put_char(&text, '\0');
    bool there = strstr(buf_str(&text).ptr, line) != NULL;
    buf_deinit(&text);
    if (!there)
        fail_msg("no metric %s", line);
}

static void test_retention_waits_for_the_slowest_group(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "keep", .partitions = 1, .keep_messages = 10};
    struct process process;
    struct recorder fast, slow;
    recorder_init(&fast);
    recorder_init(&slow);
    slow.behave = hold;
    postgres_open(&process, &topic, 1);
    subscribe(&process, &fast, (struct bus_subscription){.topic = "keep", .group = "fast"});
    subscribe(&process, &slow, (struct bus_subscription){.topic = "keep", .group = "slow", .batch_max = 15});
    process_start(&process);
    await_ready(&fast);
    await_ready(&slow);
    for (int i = 0; i < 50; i++)
        publish(&process, "keep", "k", i);
    assert_true(recorder_await_committed(&fast, 50));
    pause_ms(500); /* several rounds of upkeep, which must not delete */
    int64_t held = sql(COUNT_OF("keep"));
    recorder_step(&slow, 1);
    bool came = recorder_await_committed(&slow, 50);
    await_sql(COUNT_OF("keep"), 10);
    process_close(&process);
    assert_metric("bus_published_total{topic=\"keep\"} 50\n");
    assert_metric("bus_consumed_total{topic=\"keep\",group=\"slow\",verdict=\"ack\",database=\"");
    assert_metric("bus_lag{topic=\"keep\",group=\"fast\",database=\"");
    assert_metric("bus_dead_letters_total{topic=\"keep\",group=\"slow\"} 0\n");
    assert_metric("bus_batch_seconds_count{topic=\"keep\",group=\"slow\"}");
    assert_int_equal(held, 50);
    assert_true(came);
    assert_int_equal(slow.gaps, 0);
    recorder_deinit(&fast);
    recorder_deinit(&slow);
}

static void test_a_hard_limit_makes_a_gap_that_is_told(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "hard", .partitions = 1, .keep_messages_hard = 10};
    struct process process;
    struct recorder shared, every;
    recorder_init(&shared);
    recorder_init(&every);
    shared.behave = hold;
    every.behave = hold;
    postgres_open(&process, &topic, 1);
    subscribe(&process, &shared, (struct bus_subscription){.topic = "hard", .batch_max = 1});
    subscribe(&process, &every,
              (struct bus_subscription){.topic = "hard", .mode = BUS_EVERY, .batch_max = 1});
    process_start(&process);
    await_ready(&shared);
    await_ready(&every);
    for (int i = 0; i < 50; i++)
        publish(&process, "hard", "k", i);
    await_sql(COUNT_OF("hard"), 10);
    recorder_step(&shared, 1);
    recorder_step(&every, 1);
    bool came = recorder_await_committed(&shared, 11) && recorder_await_committed(&every, 11);
    process_close(&process);
    assert_true(came);
    assert_int_equal(shared.gaps, 1);
    assert_int_equal(every.gaps, 1);
    assert_int_equal(shared.seen[0].number, 0); /* it had that one in hand */
    assert_int_equal(shared.seen[1].number, 40);
    assert_int_equal(every.seen[1].number, 40);
    recorder_deinit(&shared);
    recorder_deinit(&every);
}

/* One message is missing between others that are read together. */
static void test_a_hole_in_a_batch_is_a_gap(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "hole", .partitions = 1};
    struct process process;
    struct recorder shared, every;
    recorder_init(&shared);
    recorder_init(&every);
    postgres_open(&process, &topic, 1);
    subscribe(&process, &shared, (struct bus_subscription){.topic = "hole", .group = "holes"});
    subscribe(&process, &every, (struct bus_subscription){.topic = "hole", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&shared);
    await_ready(&every);
    sql("DO $$ BEGIN"
        " PERFORM platform.bus_publish('{hole}', '{0}', '{5}', '{k,k,k,k,k}', '{\"{}\",\"{}\",\"{}\",\"{}\",\"{}\"}',"
        "                              '{0,1,2,3,4}');"
        " DELETE FROM platform.bus_message WHERE topic = 'hole' AND message_offset = 2; END $$");
    bool came = recorder_await_committed(&shared, 4) && recorder_await_committed(&every, 4);
    process_close(&process);
    assert_true(came);
    const struct recorder *recorders[] = {&shared, &every};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(recorders[i]->gaps, 1);
        assert_int_equal(recorders[i]->seen[1].number, 1);
        assert_int_equal(recorders[i]->seen[2].number, 3);
        assert_int_equal(recorders[i]->count, 4);
    }
    recorder_deinit(&shared);
    recorder_deinit(&every);
}

/* Restored from a backup, or failed over with a lost tail: offsets go back. */
static void test_a_lost_tail_is_a_gap(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "tail", .partitions = 1};
    struct process process;
    struct recorder every;
    recorder_init(&every);
    postgres_open(&process, &topic, 1);
    subscribe(&process, &every, (struct bus_subscription){.topic = "tail", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&every);
    for (int i = 0; i < 5; i++)
        publish(&process, "tail", "k", i);
    bool came = recorder_await_committed(&every, 5);
    sql("WITH gone AS (DELETE FROM platform.bus_message WHERE topic = 'tail' AND message_offset >= 2)"
        " UPDATE platform.bus_partition SET next_offset = 2 WHERE topic = 'tail'");
    publish(&process, "tail", "k",
            5); /* offset 2 again, or behind the gap: it comes either way or is told of */
    bool told = recorder_await_gap(&every);
    publish(&process, "tail", "k", 6);
    recorder_await_number(&every, 6);
    process_close(&process);
    assert_true(came);
    assert_true(told);
    assert_int_equal(recorder_times(&every, 6), 1);
    recorder_deinit(&every);
}

/* As after a crash: three messages are lost, their offsets belong to others, and no connection is left but the one that listens, so
 * that nothing wakes the reader but the next publication of its own process. That one has exactly the offset the reader waits for. */
static void test_a_message_handed_over_after_a_crash_does_not_hide_those_at_reused_offsets(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "reused", .partitions = 1};
    struct process process;
    struct recorder every;
    recorder_init(&every);
    postgres_next.poll_ms = 3600000;
    postgres_open(&process, &topic, 1);
    postgres_next.poll_ms = 200;
    subscribe(&process, &every, (struct bus_subscription){.topic = "reused", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&every);
    for (int i = 0; i < 5; i++)
        publish(&process, "reused", "k", i);
    bool came = recorder_await_committed(&every, 5);
    sql("WITH gone AS (DELETE FROM platform.bus_message WHERE topic = 'reused' AND message_offset >= 2)"
        " UPDATE platform.bus_partition SET next_offset = 2 WHERE topic = 'reused'");
    sql("SELECT platform.bus_publish('{reused}', '{0}', '{3}', '{k,k,k}', '{\"{}\",\"{}\",\"{}\"}', '{12,13,14}')");
    sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND backend_type = 'client backend' AND query NOT ILIKE 'listen%'");
    publish_until_accepted(&process, "reused", "k", 15);
    recorder_await_number(&every, 15); /* some messages come again: the last one counts */
    process_close(&process);
    assert_true(came);
    for (int i = 12; i < 16; i++)
        assert_int_equal(recorder_times(&every, i), 1);
    recorder_deinit(&every);
}

static void publish_pair(struct process *process, int number)
{
    char text[16];

    snprintf(text, sizeof text, "%d", number);
    struct bus_message pair[] = {
        {.topic = STR("left"), .key = STR("k"), .payload = str_from(text)},
        {.topic = STR("right"), .key = STR("k"), .payload = str_from(text)},
    };
    assert_int_equal(bus_publish(process->bus, pair, 2, clock_deadline_ms(PATIENCE_MS), NULL), STATUS_OK);
}

/* Another connection is no sign of a crash by itself: after messages that were published alone, and after messages that shared
 * their commit with those of another topic, nothing is delivered again by it. */
static void test_a_new_connection_repeats_nothing(void **state)
{
    (void)state;
    static const struct bus_topic topics[] = {{.name = "left", .partitions = 1},
                                              {.name = "right", .partitions = 1}};
    enum { PAIRS = 5 };
    struct process process;
    struct recorder every;
    recorder_init(&every);
    postgres_next.poll_ms = 3600000;
    postgres_open(&process, topics, 2);
    postgres_next.poll_ms = 200;
    subscribe(&process, &every, (struct bus_subscription){.topic = "left", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&every);
    bool came = true;
    for (int i = 0; i < PAIRS; i++) { /* one by one: the reader is idle, and takes what is handed over */
        publish_pair(&process, i);
        came &= recorder_await_committed(&every, (size_t)i + 1);
    }
    postgres_cut();
    publish_until_accepted(&process, "left", "k", PAIRS);
    came &= recorder_await_committed(&every, PAIRS + 1);
    postgres_cut();
    publish_until_accepted(&process, "left", "k", PAIRS + 1);
    came &= recorder_await_committed(&every, PAIRS + 2);
    process_close(&process);
    assert_true(came);
    assert_int_equal(every.gaps, 0);
    for (int i = 0; i < PAIRS + 2; i++)
        assert_int_equal(recorder_times(&every, i), 1);
    recorder_deinit(&every);
}

int postgres_run_offsets(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_retention_waits_for_the_slowest_group),
        cmocka_unit_test(test_a_hard_limit_makes_a_gap_that_is_told),
        cmocka_unit_test(test_a_hole_in_a_batch_is_a_gap),
        cmocka_unit_test(test_a_lost_tail_is_a_gap),
        cmocka_unit_test(test_a_new_connection_repeats_nothing),
        cmocka_unit_test(test_a_message_handed_over_after_a_crash_does_not_hide_those_at_reused_offsets),
    };
    return cmocka_run_group_tests_name("postgres offsets", tests, NULL, NULL);
}
