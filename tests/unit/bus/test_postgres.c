/* The PostgreSQL driver: the conformance suite, and what is its own: retention, gaps, polling, configuration,
 * stop. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../db/pg_fixture.h"
#include "base/log.h"
#include "base/metrics.h"
#include "bus/bus_postgres.h"
#include "conformance.h"

static struct db_pool *pool;                        /* the tests' own */
static int64_t handler_ms;                          /* of the next bus; 0 = the default */
static int64_t poll_ms = 200, maintenance_ms = 100; /* the same */

static struct db_target target(unsigned connections_max)
{
    struct db_target result = pg_fixture_target();

    result.connections_max = connections_max;
    return result;
}

/* Runs SQL without parameters; the first field as a number. -1: it failed. Any thread. */
static int64_t sql(const char *text)
{
    struct db_statement statement;
    struct db_result *result = NULL;
    struct db_conn *conn;
    int64_t value = -1;

    statement = db_statement_of(str_from(text));
    if (db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL) == STATUS_OK &&
        db_query(conn, &statement, NULL, clock_deadline_ms(PATIENCE_MS), &result, NULL) == STATUS_OK)
        value = db_result_rows(result) ? db_result_i64(result, 0, 0) : 0;
    db_result_free(result);
    db_release(conn);
    return value;
}

/* ---- the driver's table ---- */

static struct bus *create(struct loop *loop, struct worker_pool *workers, const struct bus_topic *topics,
                          size_t topic_count)
{
    struct db_target where = target(6);
    struct bus *bus;
    struct bus_postgres_config config = {.loop = loop,
                                         .workers = workers,
                                         .target = &where,
                                         .topics = topics,
                                         .topic_count = topic_count,
                                         .poll_ms = poll_ms,
                                         .handler_ms = handler_ms,
                                         .maintenance_ms = maintenance_ms};
    struct error error = {0};

    if (bus_postgres_create(&config, &bus, &error) != STATUS_OK)
        fail_msg("create: %s", error.message);
    return bus;
}

static void cut(void)
{
    sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'");
}

static bool publisher_waits(void)
{
    return sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
               " AND (query LIKE '%bus_publish%' OR query LIKE '%INTO platform.bus_message%')") > 0;
}

static struct db_conn *begin(void)
{
    struct db_conn *conn;

    if (db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL) != STATUS_OK ||
        db_begin(conn, DB_READ_COMMITTED, clock_deadline_ms(PATIENCE_MS), NULL) != STATUS_OK)
        fail_msg("no transaction");
    return conn;
}

static void end(struct db_conn *conn, bool commit)
{
    if (commit && db_commit(conn, clock_deadline_ms(PATIENCE_MS), NULL) != STATUS_OK)
        fail_msg("no commit");
    db_release(conn); /* rolls back what is open */
}

static bool write_effect(struct db_conn *conn, int number, int64_t deadline_ns)
{
    static const struct db_statement insert_sql = DB_STATEMENT("INSERT INTO public.effect VALUES ($1)");

    return db_exec(conn, &insert_sql, DB_PARAMS(db_int(number)), deadline_ns, NULL, NULL) == STATUS_OK;
}

static size_t count_effects(int number)
{
    char text[96];

    snprintf(text, sizeof text, "SELECT count(*) FROM public.effect WHERE number = %d", number);
    return (size_t)sql(text);
}

static const struct conformance_driver postgres = {
    .name = "postgres",
    .create = create,
    .cut = cut,
    .halt = pg_fixture_halt,
    .resume = pg_fixture_resume,
    .publisher_waits = publisher_waits,
    .begin = begin,
    .end = end,
    .write_effect = write_effect,
    .count_effects = count_effects,
};

/* ---- a process with topics of the test's own ---- */

static void open_with(struct process *process, const struct bus_topic *topics, size_t count)
{
    process->loop = loop_create(&(struct loop_options){0});
    process->workers = worker_pool_create("bus", 4, 100);
    process->bus = create(process->loop, process->workers, topics, count);
}

static void await_sql(const char *text, int64_t wanted)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS), value;

    while ((value = sql(text)) != wanted && clock_mono_ns() < limit_ns)
        nanosleep(&pause, NULL);
    assert_int_equal(value, wanted);
}

#define COUNT_OF(topic) "SELECT count(*) FROM platform.bus_message WHERE topic = '" topic "'"

/* A lost NOTIFY, or a writer that sends none. */
static void test_polling_finds_what_no_notice_told_of(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "poll", .partitions = 1};
    struct process process;
    struct recorder shared, every;
    recorder_init(&shared);
    recorder_init(&every);
    open_with(&process, &topic, 1);
    subscribe(&process, &shared, (struct bus_subscription){.topic = "poll"});
    subscribe(&process, &every, (struct bus_subscription){.topic = "poll", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&shared);
    await_ready(&every);
    sql("SELECT platform.bus_publish('{poll}', '{0}', '{2}', '{NULL,k}', '{\"{}\",\"{}\"}', '{1,2}')");
    bool came = recorder_await_committed(&shared, 2) && recorder_await_committed(&every, 2);
    process_close(&process);
    assert_true(came);
    assert_int_equal(shared.seen[1].number, 2);
    recorder_deinit(&shared);
    recorder_deinit(&every);
}

static void hold(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_await_step(recorder, 1);
    recorder_add(recorder, batch, batch->count);
}

static void hold_and_tell(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
    recorder_await_step(recorder, 1);
}

static void assert_metric(const char *line)
{
    struct buf text;

    buf_init(&text);
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
    open_with(&process, &topic, 1);
    subscribe(&process, &fast, (struct bus_subscription){.topic = "keep", .group = "fast"});
    subscribe(&process, &slow, (struct bus_subscription){.topic = "keep", .group = "slow", .batch_max = 15});
    process_start(&process);
    await_ready(&fast);
    await_ready(&slow);
    for (int i = 0; i < 50; i++)
        publish(&process, "keep", "k", i);
    assert_true(recorder_await_committed(&fast, 50));
    const struct timespec rounds = {.tv_nsec = 500000000}; /* several of upkeep, which must not delete */
    nanosleep(&rounds, NULL);
    int64_t held = sql(COUNT_OF("keep"));
    recorder_step(&slow, 1);
    bool came = recorder_await_committed(&slow, 50);
    await_sql(COUNT_OF("keep"), 10);
    process_close(&process);
    assert_metric("bus_published_total{topic=\"keep\"} 50\n");
    assert_metric("bus_consumed_total{topic=\"keep\",group=\"slow\",verdict=\"ack\"} 50\n");
    assert_metric("bus_lag{topic=\"keep\",group=\"fast\"} 0\n");
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
    open_with(&process, &topic, 1);
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

/* Restored from a backup, or failed over with a lost tail: offsets go back. */
static void test_a_lost_tail_is_a_gap(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "tail", .partitions = 1};
    struct process process;
    struct recorder every;
    recorder_init(&every);
    open_with(&process, &topic, 1);
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
    pthread_mutex_lock(&every.lock);
    while (every.gaps == 0)
        pthread_cond_wait(&every.changed, &every.lock);
    pthread_mutex_unlock(&every.lock);
    publish(&process, "tail", "k", 6);
    const struct timespec pause = {.tv_nsec = 10000000};
    for (int i = 0; i < 1000 && recorder_times(&every, 6) == 0; i++)
        nanosleep(&pause, NULL);
    process_close(&process);
    assert_true(came);
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
    poll_ms = 3600000;
    open_with(&process, &topic, 1);
    poll_ms = 200;
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
    const struct timespec pause = {.tv_nsec = 10000000};
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS); /* some messages come again: the last one counts */
    while (recorder_times(&every, 15) == 0 && clock_mono_ns() < limit_ns)
        nanosleep(&pause, NULL);
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
    poll_ms = 3600000;
    open_with(&process, topics, 2);
    poll_ms = 200;
    subscribe(&process, &every, (struct bus_subscription){.topic = "left", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&every);
    bool came = true;
    for (int i = 0; i < PAIRS; i++) { /* one by one: the reader is idle, and takes what is handed over */
        publish_pair(&process, i);
        came &= recorder_await_committed(&every, (size_t)i + 1);
    }
    cut();
    publish_until_accepted(&process, "left", "k", PAIRS);
    came &= recorder_await_committed(&every, PAIRS + 1);
    cut();
    publish_until_accepted(&process, "left", "k", PAIRS + 1);
    came &= recorder_await_committed(&every, PAIRS + 2);
    process_close(&process);
    assert_true(came);
    assert_int_equal(every.gaps, 0);
    for (int i = 0; i < PAIRS + 2; i++)
        assert_int_equal(recorder_times(&every, i), 1);
    recorder_deinit(&every);
}

static void test_another_number_of_partitions_is_refused(void **state)
{
    (void)state;
    static const struct bus_topic two = {.name = "count", .partitions = 2},
                                  three = {.name = "count", .partitions = 3};
    struct process process;
    struct error error = {0};
    struct bus_message message = {.topic = STR("count"), .key = STR("k"), .payload = STR("1")};
    open_with(&process, &two, 1);
    process_start(&process);
    publish(&process, "count", "k", 1);
    process_close(&process);
    open_with(&process, &three, 1);
    process_start(&process);
    enum status status = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error);
    process_close(&process);
    assert_int_equal(status, STATUS_CONFIG);
    assert_non_null(strstr(error.message, "count"));
}

static void test_topics_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const struct bus_topic bad[][2] = {
        {{.name = "", .partitions = 1}, {.name = "b", .partitions = 1}},
        {{.name = "a b", .partitions = 1}, {.name = "b", .partitions = 1}},
        {{.name = "a", .partitions = 0}, {.name = "b", .partitions = 1}},
        {{.name = "a", .partitions = 257}, {.name = "b", .partitions = 1}},
        {{.name = "a", .partitions = 1}, {.name = "a", .partitions = 1}},
    };
    struct db_target where = target(3);
    struct bus *bus;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bus_postgres_config config = {.target = &where, .topics = bad[i], .topic_count = 2};
        struct error error = {0};
        assert_int_equal(bus_postgres_create(&config, &bus, &error), STATUS_CONFIG);
        assert_null(bus);
        assert_true(error.message[0] != '\0');
    }
}

static void sleep_in_sql(struct recorder *recorder, struct bus_batch *batch)
{
    struct db_statement statement;

    recorder_add(recorder, batch, batch->count);
    statement = db_statement_of(STR("SELECT pg_sleep(600)"));
    if (db_exec(batch->conn, &statement, NULL, clock_deadline_ms(600000), NULL, NULL) == STATUS_OK)
        recorder_step(recorder, 1);
}

/* As a process that is stopped or hangs for good: it sits in its handler until the other has done the
 * work. */
static void test_a_frozen_consumer_loses_its_partition(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "frozen", .partitions = 1};
    struct process frozen, healthy;
    struct recorder first, second;
    recorder_init(&first);
    recorder_init(&second);
    first.behave = hold_and_tell;
    handler_ms = 200;
    open_with(&frozen, &topic, 1);
    handler_ms = 0;
    open_with(&healthy, &topic, 1);
    subscribe(&frozen, &first, (struct bus_subscription){.topic = "frozen"});
    process_start(&frozen);
    await_ready(&first);
    publish(&frozen, "frozen", "k", 1);
    bool held = recorder_await(&first, 1);
    subscribe(&healthy, &second, (struct bus_subscription){.topic = "frozen"});
    process_start(&healthy);
    bool taken = recorder_await_committed(&second, 1);
    recorder_step(&first, 1);
    process_close(&frozen);
    process_close(&healthy);
    assert_true(held);
    assert_true(taken);
    assert_int_equal(first.committed, 0);
    recorder_deinit(&first);
    recorder_deinit(&second);
}

/* The test's own time limit is what a stop that waits for the statement would meet. */
static void test_a_stop_interrupts_a_long_statement(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "long", .partitions = 1};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = sleep_in_sql;
    open_with(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "long"});
    process_start(&process);
    await_ready(&recorder);
    publish(&process, "long", "k", 1);
    bool began = recorder_await(&recorder, 1);
    bus_stop(process.bus, 50);
    enum status late = try_publish(&process, "long", "k", 2);
    process_close(&process);
    assert_true(began);
    assert_int_equal(recorder.step, 0);
    assert_int_equal(recorder.committed, 0);
    assert_int_equal(late, STATUS_CANCELLED);
    await_sql("SELECT position FROM platform.bus_cursor WHERE topic = 'long'", 0);
    recorder_deinit(&recorder);
}

static void test_a_bus_never_started_can_be_destroyed(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "idle", .partitions = 1};
    struct process process;
    struct recorder recorder;
    struct error error = {0};
    recorder_init(&recorder);
    open_with(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "idle"});
    struct bus_subscription nowhere = {.topic = "nowhere", .group = "g"}, nobody = {.topic = "idle"};
    assert_int_equal(bus_subscribe(process.bus, &nowhere, &error), STATUS_CONFIG);
    assert_int_equal(bus_subscribe(process.bus, &nobody, &error), STATUS_CONFIG);
    bus_stop(process.bus, 0);
    bus_destroy(process.bus);
    worker_pool_destroy(process.workers);
    loop_destroy(process.loop);
    recorder_deinit(&recorder);
}

/* ---- messages that come alone ---- */

enum { ALONE = 300 };

struct singles {
    struct process *process;
    const char *keys[2]; /* of either partition */
    int first;
    bool ok;
    pthread_t thread;
};

static void *publish_singles(void *arg)
{
    struct singles *singles = arg;
    singles->ok = true;
    for (int i = 0; i < ALONE && singles->ok; i++)
        singles->ok =
            try_publish(singles->process, "alone", singles->keys[i % 2], singles->first + i) == STATUS_OK;
    return NULL;
}

static void check_singles(struct recorder *recorder)
{
    int64_t next[2] = {0, 0};
    assert_int_equal(recorder->count, 2 * ALONE);
    for (size_t i = 0; i < recorder->count; i++)
        assert_int_equal(recorder->seen[i].offset, next[recorder->seen[i].partition]++);
    for (int i = 0; i < 2 * ALONE; i++)
        assert_int_equal(recorder_times(recorder, 73000 + i), 1);
}

/* Two processes publish at the same time, message by message, and nobody looks by himself: whatever the readers of everything
 * are handed and whatever they read, each has all of it, once, in its order. */
static void test_what_is_handed_over_and_what_is_read_is_everything(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "alone", .partitions = 2};
    struct process processes[2];
    struct recorder every[2], shared;
    struct singles singles[2];
    char keys[2][16];
    for (unsigned i = 0; i < 2; i++)
        snprintf(keys[i], sizeof keys[i], "%s", key_of_partition(i, 2));
    recorder_init(&shared);
    poll_ms = 3600000;
    for (int i = 0; i < 2; i++) {
        recorder_init(&every[i]);
        open_with(&processes[i], &topic, 1);
        subscribe(&processes[i], &every[i], (struct bus_subscription){.topic = "alone", .mode = BUS_EVERY});
    }
    subscribe(&processes[0], &shared, (struct bus_subscription){.topic = "alone"});
    for (int i = 0; i < 2; i++) {
        process_start(&processes[i]);
        await_ready(&every[i]);
    }
    await_ready(&shared);
    poll_ms = 200;
    for (int i = 0; i < 2; i++) {
        singles[i] = (struct singles){
            .process = &processes[i], .keys = {keys[0], keys[1]}, .first = 73000 + i * ALONE};
        assert_int_equal(pthread_create(&singles[i].thread, NULL, publish_singles, &singles[i]), 0);
    }
    bool came = true;
    for (int i = 0; i < 2; i++)
        pthread_join(singles[i].thread, NULL);
    for (int i = 0; i < 2; i++)
        came &= singles[i].ok && recorder_await(&every[i], 2 * ALONE);
    came &= recorder_await(&shared, 2 * ALONE);
    process_close(&processes[0]);
    process_close(&processes[1]);
    assert_true(came);
    check_singles(&every[0]);
    check_singles(&every[1]);
    for (int i = 0; i < 2 * ALONE; i++)
        assert_int_equal(recorder_times(&shared, 73000 + i), 1);
    recorder_deinit(&every[0]);
    recorder_deinit(&every[1]);
    recorder_deinit(&shared);
}

static bool never(void *context, const struct bus_message *message)
{
    (void)context;
    return message->key.len == 0;
}

static size_t recorder_count(struct recorder *recorder)
{
    pthread_mutex_lock(&recorder->lock);
    size_t count = recorder->count;
    pthread_mutex_unlock(&recorder->lock);
    return count;
}

/* Nobody looks by himself, but for the first look of a group, which may still run while the first ones are published: in one
 * round at last, who is not concerned has not handled all when the other has. Woken, it has everything. */
static void test_who_is_not_concerned_sleeps_on_and_misses_nothing(void **state)
{
    enum { ROUND = 20, ROUNDS = 25 };
    (void)state;
    static const struct bus_topic topic = {.name = "concerns", .partitions = 2};
    struct process process;
    struct recorder one, other;
    recorder_init(&one);
    recorder_init(&other);
    poll_ms = 3600000;
    open_with(&process, &topic, 1);
    subscribe(&process, &one, (struct bus_subscription){.topic = "concerns", .group = "one"});
    subscribe(&process, &other,
              (struct bus_subscription){.topic = "concerns", .group = "other", .wakes = never});
    process_start(&process);
    await_ready(&one);
    await_ready(&other);
    poll_ms = 200;
    bool came = true, slept = false;
    int published = 0;
    for (int round = 0; round < ROUNDS && came && !slept; round++) {
        for (int i = 0; i < ROUND; i++, published++)
            came &= try_publish(&process, "concerns", key_of_partition((unsigned)i % 2, 2),
                                75000 + published) == STATUS_OK;
        came &= recorder_await(&one, (size_t)published);
        slept = recorder_count(&other) < (size_t)published;
    }
    bus_wake(process.bus, STR("concerns"));
    came &= recorder_await(&other, (size_t)published);
    process_close(&process);
    assert_true(came);
    assert_true(slept);
    for (int i = 0; i < published; i++)
        assert_int_equal(recorder_times(&other, 75000 + i), 1);
    recorder_deinit(&one);
    recorder_deinit(&other);
}

/* ---- commits that need not reach the disk ---- */

/* What a commit waits for is asked at the very end of its transaction. */
static void test_a_relaxed_group_waits_for_no_disk(void **state)
{
    (void)state;
    static const struct bus_topic topics[] = {{.name = "relaxed", .partitions = 1},
                                              {.name = "strict", .partitions = 1}};
    struct process process;
    struct recorder relaxed, strict;
    sql("CREATE TABLE public.waited (number int, setting text)");
    sql("CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN INSERT INTO public.waited VALUES (new.number, current_setting('synchronous_commit'));"
        " RETURN NULL; END$$");
    sql("CREATE CONSTRAINT TRIGGER note AFTER INSERT ON public.effect DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION public.note()");
    recorder_init(&relaxed);
    recorder_init(&strict);
    relaxed.effects = strict.effects = true;
    open_with(&process, topics, 2);
    subscribe(&process, &relaxed, (struct bus_subscription){.topic = "relaxed", .relaxed = true});
    subscribe(&process, &strict, (struct bus_subscription){.topic = "strict"});
    process_start(&process);
    await_ready(&relaxed);
    await_ready(&strict);
    publish(&process, "relaxed", "k", 72001);
    publish(&process, "strict", "k", 72002);
    bool came = recorder_await_committed(&relaxed, 1) && recorder_await_committed(&strict, 1);
    process_close(&process);
    sql("DROP TRIGGER note ON public.effect");
    assert_true(came);
    assert_int_equal(sql("SELECT count(*) FROM public.waited WHERE number = 72001 AND setting = 'off'"), 1);
    assert_int_equal(sql("SELECT count(*) FROM public.waited WHERE number = 72002 AND setting = 'on'"), 1);
    assert_int_equal(sql("SELECT position FROM platform.bus_cursor WHERE topic = 'relaxed'"), 1);
    recorder_deinit(&relaxed);
    recorder_deinit(&strict);
}

/* ---- a message that somebody waits for ---- */

#define LONELY 300

/* The first words to the connection are a pipeline, as a attached message demands. */
static void write_effects_by_pipeline(struct recorder *recorder, struct bus_batch *batch)
{
    static const struct db_statement insert_sql = DB_STATEMENT("INSERT INTO public.effect VALUES ($1)");

    db_pipeline_begin(batch->conn);
    for (size_t i = 0; i < batch->count; i++)
        db_pipeline_add(batch->conn, &insert_sql, DB_PARAMS(DB_VALUE(batch->messages[i].payload, DB_INT)));
    if (db_pipeline_end(batch->conn, batch->deadline_ns, NULL, 0, NULL, NULL) == STATUS_OK)
        recorder_add(recorder, batch, batch->count);
}

static enum status publish_lonely(struct process *process, const char *topic, const char *key, int number)
{
    char text[16];
    static const struct db_statement begin_sql = DB_STATEMENT("BEGIN");
    struct db_conn *conn;
    const struct bus_header header = {STR("h"), STR("v:1,")};
    struct bus_message message = {
        .topic = str_from(topic), .key = str_from(key), .headers = &header, .header_count = 1};

    snprintf(text, sizeof text, "%d", number);
    message.payload = str_from(text);
    enum status status = db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL);
    if (status == STATUS_OK) {
        db_pipeline_begin(conn);
        db_pipeline_add(conn, &begin_sql, DB_NO_PARAMS);
        db_pipeline_leave(conn, NULL, 0);
        status = bus_publish_and_commit(process->bus, conn, &message, clock_deadline_ms(PATIENCE_MS), NULL);
    }
    db_release(conn);
    return status;
}

/* Two processes both begin with messages before they know whether these are theirs; every effect is there once. */
static void test_an_attached_message_has_no_effect_of_its_own(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "lonely", .partitions = 2};
    struct process consumers[2], publisher;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = write_effects_by_pipeline;
    for (int i = 0; i < 2; i++) {
        open_with(&consumers[i], &topic, 1);
        subscribe(&consumers[i], &recorder,
                  (struct bus_subscription){.topic = "lonely", .uses_attached = true});
        process_start(&consumers[i]);
    }
    await_ready(&recorder);
    open_with(&publisher, &topic, 1);
    process_start(&publisher);
    publish(&publisher, "lonely", "k0", 70000); /* the topic is known now */
    assert_true(bus_shares_commits(publisher.bus, STR("lonely")));
    for (int i = 1; i < LONELY; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%d", i % 3);
        if (i % 7 == 0) /* and some that nobody waits for */
            publish(&publisher, "lonely", key, 70000 + i);
        else
            assert_int_equal(publish_lonely(&publisher, "lonely", key, 70000 + i), STATUS_OK);
        if (i % 2)
            assert_true(
                recorder_await_committed(&recorder, (size_t)i + 1)); /* so that the next one is alone */
    }
    assert_true(recorder_await_committed(&recorder, LONELY));
    process_close(&publisher);
    for (int i = 0; i < 2; i++)
        process_close(&consumers[i]);
    for (int i = 0; i < LONELY; i++)
        assert_int_equal(count_effects(70000 + i), 1);
    assert_int_equal(recorder.committed, LONELY);
    recorder_deinit(&recorder);
}

/* Comes again a few times, each time after a pause. */
static void retry_some(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
    if (number_in(&batch->messages[0]) == 0 && batch->attempt < 8)
        bus_batch_retry(batch, 0, "not yet");
}

/* Whoever is told of one partition looks there alone: the end of a pause elsewhere is not forgotten over it. */
static void test_news_of_one_partition_do_not_hide_a_pause_that_ends(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "pause", .partitions = 2};
    struct process consumer, publisher;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = retry_some;
    poll_ms = 2 * PATIENCE_MS;
    open_with(&consumer, &topic, 1);
    open_with(&publisher, &topic, 1);
    poll_ms = 200;
    subscribe(&consumer, &recorder, (struct bus_subscription){.topic = "pause", .backoff_max_ms = 100});
    process_start(&consumer);
    process_start(&publisher);
    await_ready(&recorder);
    publish(&publisher, "pause", key_of_partition(0, 2), 0);
    int others = 0;
    while (recorder_times(&recorder, 0) < 9 && others < 20000)
        assert_int_equal(publish_lonely(&publisher, "pause", key_of_partition(1, 2), ++others), STATUS_OK);
    bool came = recorder_await_committed(&recorder, (size_t)others + 1);
    process_close(&publisher);
    process_close(&consumer);
    assert_true(came);
    assert_int_equal(recorder_times(&recorder, 0), 9);
    recorder_deinit(&recorder);
}

/* A notice of something that is not there: whoever follows it finds that it was not likely after all. */
#define MISLEAD \
    "SELECT count(pg_notify('freshet_bus', '0123456789abcdef:unlikely:0:1:k,5:71000,1:h,4:v:1,,'))"

/* One that nobody was likely to handle is claimed without its attached message, which then is not tried on what comes behind it. */
static void test_an_attached_message_is_used_once_or_never(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "unlikely", .partitions = 1};
    const struct timespec pause = {.tv_nsec = 20000000};
    struct process consumer, publisher;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = write_effects_by_pipeline;
    open_with(&consumer, &topic, 1);
    open_with(&publisher, &topic, 1);
    subscribe(&consumer, &recorder, (struct bus_subscription){.topic = "unlikely", .uses_attached = true});
    process_start(&consumer);
    process_start(&publisher);
    await_ready(&recorder);
    for (int i = 1; i <= 20; i++) {
        sql(MISLEAD);
        /* The process that handled the last message tries the misleading one first; then it is not likely any more. */
        for (int j = 0; j < 100 && i > 1 && recorder_times(&recorder, 71000) < (size_t)i - 1; j++)
            nanosleep(&pause, NULL);
        nanosleep(&pause, NULL);
        assert_int_equal(publish_lonely(&publisher, "unlikely", "k", 71000 + i), STATUS_OK);
        assert_true(recorder_await_committed(&recorder, (size_t)i));
    }
    process_close(&publisher);
    process_close(&consumer);
    for (int i = 1; i <= 20; i++)
        assert_int_equal(recorder_times(&recorder, 71000 + i), 1);
    recorder_deinit(&recorder);
}

/* A handler that has no question for the database leaves the cursor lock of an attached message unanswered, and is asked again. */
static void acknowledge(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
}

static void test_an_attached_message_that_nobody_asked_about_is_claimed_in_earnest(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "silent", .partitions = 1};
    struct process consumer, publisher;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = acknowledge;
    open_with(&consumer, &topic, 1);
    open_with(&publisher, &topic, 1);
    subscribe(&consumer, &recorder, (struct bus_subscription){.topic = "silent", .uses_attached = true});
    process_start(&consumer);
    process_start(&publisher);
    await_ready(&recorder);
    for (int i = 1; i <= 4; i++) {
        assert_int_equal(publish_lonely(&publisher, "silent", "k", i), STATUS_OK);
        assert_true(recorder_await_committed(&recorder, (size_t)i));
    }
    process_close(&publisher);
    process_close(&consumer);
    recorder_deinit(&recorder);
}

static void bury(struct recorder *recorder, struct bus_batch *batch)
{
    write_effects_by_pipeline(recorder, batch);
    bus_batch_term(batch, 0, "no");
}

static void test_a_dead_letter_says_where_it_came_from(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "buried", .partitions = 1};
    struct process consumer, publisher;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = bury;
    open_with(&consumer, &topic, 1);
    open_with(&publisher, &topic, 1);
    subscribe(&consumer, &recorder, (struct bus_subscription){.topic = "buried", .uses_attached = true});
    process_start(&consumer);
    process_start(&publisher);
    await_ready(&recorder);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(publish_lonely(&publisher, "buried", "k", 72000 + i), STATUS_OK);
        assert_true(recorder_await_committed(&recorder, (size_t)i + 1));
    }
    int64_t rightly = sql("SELECT count(*) FROM platform.bus_message WHERE topic = 'buried.dlq'"
                          " AND (convert_from(payload, 'UTF8')::int - 72000)::text = ANY (headers)");
    process_close(&publisher);
    process_close(&consumer);
    assert_int_equal(rightly, 20); /* the offsets of all */
    recorder_deinit(&recorder);
}

/* PostgreSQL takes no notice of 8,000 bytes. */
static void tell_too_much(struct recorder *recorder, struct bus_batch *batch)
{
    static char text[9000];

    memset(text, 'x', sizeof text);
    batch->notice_channel = STR("nowhere");
    batch->notice_payload = str_of(text, sizeof text);
    recorder_add(recorder, batch, batch->count);
}

static void test_a_commit_stands_whoever_could_be_told(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "untold", .partitions = 1};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = tell_too_much;
    open_with(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "untold"});
    process_start(&process);
    await_ready(&recorder);
    publish(&process, "untold", "k", 1);
    await_sql("SELECT position FROM platform.bus_cursor WHERE topic = 'untold'", 1);
    publish(&process, "untold", "k", 2);
    await_sql("SELECT position FROM platform.bus_cursor WHERE topic = 'untold'", 2);
    process_close(&process);
    assert_int_equal(recorder.committed, 2);
    recorder_deinit(&recorder);
}

/* One that brings its own pg_notify(). */
static void test_a_publication_stands_whoever_could_be_told(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "unheard", .partitions = 1};
    struct db_target where = target(2);
    struct db_pool *deaf, *before = pool;
    struct process consumer, publisher;
    struct recorder recorder;
    recorder_init(&recorder);
    sql("CREATE SCHEMA deaf");
    sql("CREATE FUNCTION deaf.pg_notify(text, text) RETURNS void LANGUAGE plpgsql"
        " AS 'BEGIN RAISE EXCEPTION ''nobody hears''; END'");
    where.schema = STR("deaf,pg_catalog");
    assert_int_equal(db_pool_create(&where, &deaf, NULL), STATUS_OK);
    poll_ms = 2 * PATIENCE_MS;
    open_with(&consumer, &topic, 1);
    poll_ms = 200;
    open_with(&publisher, &topic, 1);
    subscribe(&consumer, &recorder, (struct bus_subscription){.topic = "unheard"});
    process_start(&consumer);
    process_start(&publisher);
    await_ready(&recorder);
    publish(&publisher, "unheard", "k", 1);
    assert_true(recorder_await_committed(&recorder, 1));
    pool = deaf;
    enum status status = publish_lonely(&publisher, "unheard", "k", 2);
    pool = before;
    bool came = recorder_await_committed(&recorder, 2);
    process_close(&publisher);
    process_close(&consumer);
    db_pool_destroy(deaf);
    assert_int_equal(status, STATUS_OK);
    assert_true(came);
    recorder_deinit(&recorder);
}

/* Nothing was published, and the topic is made again before the next one. */
static void test_a_vanished_partition_refuses_the_commit(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "vanished", .partitions = 1};
    struct process process;
    maintenance_ms = PATIENCE_MS; /* which would make the topic, too */
    open_with(&process, &topic, 1);
    maintenance_ms = 100;
    process_start(&process);
    publish(&process, "vanished", "k", 1);
    sql("DELETE FROM platform.bus_partition WHERE topic = 'vanished'");
    assert_int_equal(publish_lonely(&process, "vanished", "k", 2), STATUS_DB_ERROR);
    assert_false(bus_shares_commits(process.bus, STR("vanished")));
    assert_int_equal(sql(COUNT_OF("vanished")), 1);
    process_close(&process);
}

static int run_own(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_handed_over_and_what_is_read_is_everything),
        cmocka_unit_test(test_who_is_not_concerned_sleeps_on_and_misses_nothing),
        cmocka_unit_test(test_a_relaxed_group_waits_for_no_disk),
        cmocka_unit_test(test_an_attached_message_has_no_effect_of_its_own),
        cmocka_unit_test(test_an_attached_message_is_used_once_or_never),
        cmocka_unit_test(test_an_attached_message_that_nobody_asked_about_is_claimed_in_earnest),
        cmocka_unit_test(test_a_dead_letter_says_where_it_came_from),
        cmocka_unit_test(test_a_commit_stands_whoever_could_be_told),
        cmocka_unit_test(test_news_of_one_partition_do_not_hide_a_pause_that_ends),
        cmocka_unit_test(test_a_publication_stands_whoever_could_be_told),
        cmocka_unit_test(test_a_vanished_partition_refuses_the_commit),
        cmocka_unit_test(test_polling_finds_what_no_notice_told_of),
        cmocka_unit_test(test_retention_waits_for_the_slowest_group),
        cmocka_unit_test(test_a_hard_limit_makes_a_gap_that_is_told),
        cmocka_unit_test(test_a_lost_tail_is_a_gap),
        cmocka_unit_test(test_a_new_connection_repeats_nothing),
        cmocka_unit_test(test_a_message_handed_over_after_a_crash_does_not_hide_those_at_reused_offsets),
        cmocka_unit_test(test_another_number_of_partitions_is_refused),
        cmocka_unit_test(test_topics_that_make_no_sense_are_refused),
        cmocka_unit_test(test_a_frozen_consumer_loses_its_partition),
        cmocka_unit_test(test_a_stop_interrupts_a_long_statement),
        cmocka_unit_test(test_a_bus_never_started_can_be_destroyed),
    };
    return cmocka_run_group_tests_name("postgres", tests, NULL, NULL);
}

int main(void)
{
    struct db_target where;
    struct error error = {0};

    log_set_level(LOG_LEVEL_ERROR);
    pg_fixture_start();
    where = target(4);
    if (db_pool_create(&where, &pool, &error) != STATUS_OK ||
        db_migrate(pool, "platform", platform_migrations, clock_deadline_ms(PATIENCE_MS), NULL, &error) !=
            STATUS_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    sql("CREATE TABLE public.effect (number int NOT NULL CHECK (number >= 0))");
    sql("CREATE INDEX ON public.effect (number)");
    int failed = conformance_run(&postgres) + run_own();
    db_pool_destroy(pool);
    pg_fixture_stop();
    return failed ? 1 : 0;
}
