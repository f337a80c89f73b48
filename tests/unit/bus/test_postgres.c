/* The PostgreSQL driver: the conformance suite, and what is its own. Here: configuration, commits, stop. */
#include "base/log.h"
#include "postgres_rig.h"
#include "sql_rig.h"

/* ---- the driver's table ---- */

static bool publisher_waits(void)
{
    return sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
               " AND (query LIKE '%bus_publish%' OR query LIKE '%INTO platform.bus_message%')") > 0;
}

static struct db_conn *begin(void)
{
    struct db_conn *conn;

    if (db_acquire(sql_pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL) != STATUS_OK ||
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

static const struct conformance_driver postgres = {
    .name = "postgres",
    .create = postgres_create,
    .cut = postgres_cut,
    .halt = pg_fixture_halt,
    .resume = pg_fixture_resume,
    .publisher_waits = publisher_waits,
    .begin = begin,
    .end = end,
    .write_effect = sql_write_effect,
    .count_effects = sql_count_effects,
};

/* ---- configuration ---- */

static void test_another_number_of_partitions_is_refused(void **state)
{
    (void)state;
    static const struct bus_topic two = {.name = "count", .partitions = 2},
                                  three = {.name = "count", .partitions = 3};
    struct process process;
    struct error error = {0};
    struct bus_message message = {.topic = STR("count"), .key = STR("k"), .payload = STR("1")};
    postgres_open(&process, &two, 1);
    process_start(&process);
    publish(&process, "count", "k", 1);
    process_close(&process);
    postgres_open(&process, &three, 1);
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
    struct db_target where = sql_target(3);
    struct bus *bus;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bus_postgres_config config = {.target = &where, .topics = bad[i], .topic_count = 2};
        struct error error = {0};
        assert_int_equal(bus_postgres_create(&config, &bus, &error), STATUS_CONFIG);
        assert_null(bus);
        assert_true(error.message[0] != '\0');
    }
}

static void test_a_bus_never_started_can_be_destroyed(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "idle", .partitions = 1};
    struct process process;
    struct recorder recorder;
    struct error error = {0};
    recorder_init(&recorder);
    postgres_open(&process, &topic, 1);
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

/* ---- handlers that take too long ---- */

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
    first.behave = record_and_hold;
    postgres_next.handler_ms = 200;
    postgres_open(&frozen, &topic, 1);
    postgres_next.handler_ms = 0;
    postgres_open(&healthy, &topic, 1);
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
    postgres_open(&process, &topic, 1);
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
    postgres_open(&process, topics, 2);
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

static int run_own(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_relaxed_group_waits_for_no_disk),
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
    log_set_level(LOG_LEVEL_ERROR);
    sql_rig_start();
    postgres_migrate();
    int failed = conformance_run(&postgres) + postgres_run_notices() + postgres_run_attached() +
                 postgres_run_offsets() + run_own();
    sql_rig_stop();
    return failed ? 1 : 0;
}
