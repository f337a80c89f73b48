/* The PostgreSQL driver: messages attached to a notice, which a reader handles before it has claimed them, and the
 * publications that attach them (bus_publish_and_commit()). */
#include <stdio.h>
#include <time.h>

#include "postgres_rig.h"
#include "sql_rig.h"

#define LONELY 150

/* The first words to the connection are a pipeline, as an attached message demands. */
static void add_effects(struct bus_batch *batch)
{
    static const struct db_statement insert_sql = DB_STATEMENT("INSERT INTO public.effect VALUES ($1)");

    db_pipeline_begin(batch->conn);
    for (size_t i = 0; i < batch->count; i++)
        db_pipeline_add(batch->conn, &insert_sql, DB_PARAMS(DB_VALUE(batch->messages[i].payload, DB_INT)));
}

static void write_effects_by_pipeline(struct recorder *recorder, struct bus_batch *batch)
{
    add_effects(batch);
    if (db_pipeline_end(batch->conn, batch->deadline_ns, NULL, 0, NULL, NULL) == STATUS_OK)
        recorder_add(recorder, batch, batch->count);
}

/* Seen, whether or not it is there. */
static void see_and_write(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
    add_effects(batch);
    (void)!db_pipeline_end(batch->conn, batch->deadline_ns, NULL, 0, NULL, NULL);
}

/* In the round trip of the commit, together with the lock where that is not answered yet. */
static void leave_effects(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
    add_effects(batch);
    db_pipeline_leave(batch->conn, NULL, 0);
}

/* Two processes both begin with messages before they know whether these are theirs; every effect is there once. */
static void check_effects(const char *name, void (*behave)(struct recorder *, struct bus_batch *), int first)
{
    const struct bus_topic topic = {.name = name, .partitions = 2};
    struct process consumers[2], publisher;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = behave;
    for (int i = 0; i < 2; i++) {
        postgres_open(&consumers[i], &topic, 1);
        subscribe(&consumers[i], &recorder, (struct bus_subscription){.topic = name, .uses_attached = true});
        process_start(&consumers[i]);
    }
    await_ready(&recorder);
    postgres_open(&publisher, &topic, 1);
    process_start(&publisher);
    publish(&publisher, name, "k0", first); /* the topic is known now */
    assert_true(bus_shares_commits(publisher.bus, str_from(name)));
    for (int i = 1; i < LONELY; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%d", i % 3);
        if (i % 7 == 0) /* and some that nobody waits for */
            publish(&publisher, name, key, first + i);
        else
            assert_int_equal(postgres_publish_attached(&publisher, name, key, first + i), STATUS_OK);
        if (i % 2)
            assert_true(
                recorder_await_committed(&recorder, (size_t)i + 1)); /* so that the next one is alone */
    }
    assert_true(recorder_await_committed(&recorder, LONELY));
    process_close(&publisher);
    for (int i = 0; i < 2; i++)
        process_close(&consumers[i]);
    for (int i = 0; i < LONELY; i++)
        assert_int_equal(sql_count_effects(first + i), 1);
    assert_int_equal(recorder.committed, LONELY);
    recorder_deinit(&recorder);
}

static void test_an_attached_message_has_no_effect_of_its_own(void **state)
{
    (void)state;
    check_effects("lonely", write_effects_by_pipeline, 70000);
}

static void test_what_is_left_to_the_commit_of_an_attached_message_is_there_once(void **state)
{
    (void)state;
    check_effects("leaving", leave_effects, 80000);
}

/* A notice of something that is not there: whoever follows it finds that it was not likely after all. */
#define MISLEAD \
    "SELECT count(pg_notify('freshet_bus', '0123456789abcdef:unlikely:0:1:k,5:71000,1:h,4:v:1,,'))"

/* One that nobody was likely to handle is claimed without its attached message, which then is not tried on what comes after it. On a
 * slow machine the process may find the next message while the misleading one still fails, and see it once more by its notice. */
static void test_an_attached_message_is_used_once_or_never(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "unlikely", .partitions = 1};
    const struct timespec pause = {.tv_nsec = 20000000};
    struct process consumer, publisher;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = see_and_write;
    postgres_open(&consumer, &topic, 1);
    postgres_open(&publisher, &topic, 1);
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
        assert_int_equal(postgres_publish_attached(&publisher, "unlikely", "k", 71000 + i), STATUS_OK);
        assert_true(recorder_await_committed(&recorder, (size_t)i));
    }
    process_close(&publisher);
    process_close(&consumer);
    int seen_once = 0;
    for (int i = 1; i <= 20; i++) {
        assert_int_equal(sql_count_effects(71000 + i), 1);
        seen_once += recorder_times(&recorder, 71000 + i) == 1;
    }
    assert_in_range(seen_once, 1, 20);
    recorder_deinit(&recorder);
}

/* Every role that can connect to the database can send a notice. */
static void test_a_notice_of_a_partition_that_is_not_there_does_nothing(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "narrow", .partitions = 1};
    const struct timespec pause = {.tv_nsec = 5000000};
    struct process consumer;
    struct recorder recorder;
    char text[160];
    recorder_init(&recorder);
    recorder.behave = write_effects_by_pipeline;
    postgres_open(&consumer, &topic, 1);
    subscribe(&consumer, &recorder, (struct bus_subscription){.topic = "narrow", .uses_attached = true});
    process_start(&consumer);
    await_ready(&recorder);
    for (int i = 1; i < BUS_PARTITIONS_MAX; i++) {
        snprintf(text, sizeof text,
                 "SELECT count(pg_notify('freshet_bus',"
                 " '0123456789abcdef:narrow:%d:1:k,5:72000,1:h,4:v:1,,'))",
                 i);
        sql(text);
        nanosleep(&pause, NULL);
    }
    assert_int_equal(postgres_publish_attached(&consumer, "narrow", "k", 72001), STATUS_OK);
    assert_true(recorder_await_committed(&recorder, 1));
    process_close(&consumer);
    assert_int_equal(recorder_times(&recorder, 72000), 0);
    assert_int_equal(recorder_times(&recorder, 72001), 1);
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
    postgres_open(&consumer, &topic, 1);
    postgres_open(&publisher, &topic, 1);
    subscribe(&consumer, &recorder, (struct bus_subscription){.topic = "silent", .uses_attached = true});
    process_start(&consumer);
    process_start(&publisher);
    await_ready(&recorder);
    for (int i = 1; i <= 4; i++) {
        assert_int_equal(postgres_publish_attached(&publisher, "silent", "k", i), STATUS_OK);
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
    postgres_open(&consumer, &topic, 1);
    postgres_open(&publisher, &topic, 1);
    subscribe(&consumer, &recorder, (struct bus_subscription){.topic = "buried", .uses_attached = true});
    process_start(&consumer);
    process_start(&publisher);
    await_ready(&recorder);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(postgres_publish_attached(&publisher, "buried", "k", 72000 + i), STATUS_OK);
        assert_true(recorder_await_committed(&recorder, (size_t)i + 1));
    }
    int64_t rightly = sql("SELECT count(*) FROM platform.bus_message WHERE topic = 'buried.dlq'"
                          " AND (convert_from(payload, 'UTF8')::int - 72000)::text = ANY (headers)");
    process_close(&publisher);
    process_close(&consumer);
    assert_int_equal(rightly, 20); /* the offsets of all */
    recorder_deinit(&recorder);
}

/* The commit itself does not wait for the disk, so that the consumer can begin; the caller does. */
static void test_a_publication_is_on_disk_when_its_caller_knows_of_it(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "kept", .partitions = 1};
    struct process publisher;
    postgres_open(&publisher, &topic, 1);
    process_start(&publisher);
    publish(&publisher, "kept", "k", 0);
    int64_t flushed = 0;
    for (int i = 1; i <= 20; i++) {
        int64_t before = sql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn");
        assert_int_equal(postgres_publish_attached(&publisher, "kept", "k", i), STATUS_OK);
        flushed += sql("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn") > before + 100;
    }
    process_close(&publisher);
    assert_int_equal(flushed, 20);
}

/* Nothing was published, and the topic is made again before the next one. */
static void test_a_vanished_partition_refuses_the_commit(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "vanished", .partitions = 1};
    struct process process;
    postgres_next.maintenance_ms = PATIENCE_MS; /* which would make the topic, too */
    postgres_open(&process, &topic, 1);
    postgres_next.maintenance_ms = 100;
    process_start(&process);
    publish(&process, "vanished", "k", 1);
    sql("DELETE FROM platform.bus_partition WHERE topic = 'vanished'");
    assert_int_equal(postgres_publish_attached(&process, "vanished", "k", 2), STATUS_DB_ERROR);
    assert_false(bus_shares_commits(process.bus, STR("vanished")));
    assert_int_equal(sql(COUNT_OF("vanished")), 1);
    process_close(&process);
}

int postgres_run_attached(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_attached_message_has_no_effect_of_its_own),
        cmocka_unit_test(test_what_is_left_to_the_commit_of_an_attached_message_is_there_once),
        cmocka_unit_test(test_an_attached_message_is_used_once_or_never),
        cmocka_unit_test(test_a_notice_of_a_partition_that_is_not_there_does_nothing),
        cmocka_unit_test(test_an_attached_message_that_nobody_asked_about_is_claimed_in_earnest),
        cmocka_unit_test(test_a_dead_letter_says_where_it_came_from),
        cmocka_unit_test(test_a_publication_is_on_disk_when_its_caller_knows_of_it),
        cmocka_unit_test(test_a_vanished_partition_refuses_the_commit),
    };
    return cmocka_run_group_tests_name("postgres attached messages", tests, NULL, NULL);
}
