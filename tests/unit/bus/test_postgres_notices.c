/* The PostgreSQL driver: notices, which wake readers and hand messages over to them, and polling where none came. */
#include <stdio.h>

#include "postgres_rig.h"
#include "sql_rig.h"

/* A lost NOTIFY, or a writer that sends none. */
static void test_polling_finds_what_no_notice_told_of(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "poll", .partitions = 1};
    struct process process;
    struct recorder shared, every;
    recorder_init(&shared);
    recorder_init(&every);
    postgres_open(&process, &topic, 1);
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
    postgres_next.poll_ms = 3600000;
    for (int i = 0; i < 2; i++) {
        recorder_init(&every[i]);
        postgres_open(&processes[i], &topic, 1);
        subscribe(&processes[i], &every[i], (struct bus_subscription){.topic = "alone", .mode = BUS_EVERY});
    }
    subscribe(&processes[0], &shared, (struct bus_subscription){.topic = "alone"});
    for (int i = 0; i < 2; i++) {
        process_start(&processes[i]);
        await_ready(&every[i]);
    }
    await_ready(&shared);
    postgres_next.poll_ms = 200;
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
    postgres_next.poll_ms = 3600000;
    postgres_open(&process, &topic, 1);
    subscribe(&process, &one, (struct bus_subscription){.topic = "concerns", .group = "one"});
    subscribe(&process, &other,
              (struct bus_subscription){.topic = "concerns", .group = "other", .wakes = never});
    process_start(&process);
    await_ready(&one);
    await_ready(&other);
    postgres_next.poll_ms = 200;
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
    postgres_next.poll_ms = 2 * PATIENCE_MS;
    postgres_open(&consumer, &topic, 1);
    postgres_open(&publisher, &topic, 1);
    postgres_next.poll_ms = 200;
    subscribe(&consumer, &recorder, (struct bus_subscription){.topic = "pause", .backoff_max_ms = 100});
    process_start(&consumer);
    process_start(&publisher);
    await_ready(&recorder);
    publish(&publisher, "pause", key_of_partition(0, 2), 0);
    int others = 0;
    while (recorder_times(&recorder, 0) < 9 && others < 20000)
        assert_int_equal(postgres_publish_attached(&publisher, "pause", key_of_partition(1, 2), ++others),
                         STATUS_OK);
    bool came = recorder_await_committed(&recorder, (size_t)others + 1);
    process_close(&publisher);
    process_close(&consumer);
    assert_true(came);
    assert_int_equal(recorder_times(&recorder, 0), 9);
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
    postgres_open(&process, &topic, 1);
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

/* Its caller then publishes another way. The notice is refused by a pg_notify() of ours. */
static void test_a_publication_without_its_notice_is_none(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "unheard", .partitions = 1};
    struct db_target where = sql_target(2);
    struct db_pool *deaf, *before = sql_pool;
    struct process publisher;
    sql("CREATE SCHEMA deaf");
    sql("CREATE FUNCTION deaf.pg_notify(text, text) RETURNS void LANGUAGE plpgsql"
        " AS 'BEGIN RAISE EXCEPTION ''nobody hears''; END'");
    where.schema = STR("deaf,pg_catalog");
    assert_int_equal(db_pool_create(&where, &deaf, NULL), STATUS_OK);
    postgres_open(&publisher, &topic, 1);
    process_start(&publisher);
    publish(&publisher, "unheard", "k", 1);
    sql_pool = deaf;
    enum status status = postgres_publish_attached(&publisher, "unheard", "k", 2);
    sql_pool = before;
    process_close(&publisher);
    db_pool_destroy(deaf);
    assert_int_equal(status, STATUS_DB_ERROR);
    assert_int_equal(sql(COUNT_OF("unheard")), 1);
}

int postgres_run_notices(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_handed_over_and_what_is_read_is_everything),
        cmocka_unit_test(test_who_is_not_concerned_sleeps_on_and_misses_nothing),
        cmocka_unit_test(test_a_commit_stands_whoever_could_be_told),
        cmocka_unit_test(test_news_of_one_partition_do_not_hide_a_pause_that_ends),
        cmocka_unit_test(test_a_publication_without_its_notice_is_none),
        cmocka_unit_test(test_polling_finds_what_no_notice_told_of),
    };
    return cmocka_run_group_tests_name("postgres notices", tests, NULL, NULL);
}
