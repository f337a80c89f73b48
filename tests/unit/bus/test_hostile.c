/* The PostgreSQL driver in a hostile world: messages that kill their process or hang it, clocks that go back, a
 * database that is frozen or dead while the bus is stopped. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "bus/postgres/inside.h"
#include "postgres_rig.h"
#include "sql_rig.h"

/* ---- messages that kill ---- */

#define KILLER 6
#define LIVE "live" /* an argument: be the process that dies */

static void die_of_six(struct recorder *recorder, struct bus_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (atoi(batch->messages[i].payload.ptr) == KILLER)
            raise(SIGKILL);
    recorder_add(recorder, batch, batch->count);
}

static const struct bus_topic deadly = {.name = "deadly", .partitions = 2};

static int live(void)
{
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = die_of_six;
    postgres_open(&process, &deadly, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "deadly", .from = BUS_FROM_START});
    process_start(&process);
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    while (recorder_times(&recorder, 9) == 0 && clock_mono_ns() < limit_ns)
        pause_ms(5);
    bool came = recorder_times(&recorder, 9) > 0;
    process_close(&process);
    recorder_deinit(&recorder);
    return came ? 0 : 1;
}

/* This program again, from its start: a bare fork of a process with threads is no process to start threads in. */
static int run_a_life(void)
{
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        execl("/proc/self/exe", "test_hostile", LIVE, pg_fixture_url(), (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

/* A crash rolls back all that could tell of it, so the bus must count otherwise. */
static void test_a_message_that_kills_its_process_is_buried(void **state)
{
    (void)state;
    struct process process;
    int deaths = 0, status;
    postgres_open(&process, &deadly, 1);
    process_start(&process);
    for (int i = 0; i < 10; i++)
        publish(&process, "deadly", key_of_partition(0, 2), i);
    process_close(&process);
    while (deaths < 30 && WIFSIGNALED(status = run_a_life()))
        deaths++;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_in_range(deaths, 5, 15); /* not at the first: it may have been somebody's kill -9 */
    assert_int_equal(sql("SELECT count(*) FROM platform.bus_message WHERE topic = 'deadly.dlq'"), 1);
    assert_int_equal(sql("SELECT convert_from(payload, 'UTF8')::int FROM platform.bus_message"
                         " WHERE topic = 'deadly.dlq'"),
                     KILLER);
    await_sql("SELECT position FROM platform.bus_cursor WHERE topic = 'deadly' AND partition = 0", 10);
}

/* ---- messages that hang ---- */

static void oversleep(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, 1);
    if (atoi(batch->messages[0].payload.ptr) == 0)
        pause_ms(600); /* its connection is taken away long before */
}

static void test_a_message_that_always_takes_too_long_is_buried(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "hangs", .partitions = 1};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = oversleep;
    postgres_next.handler_ms = 100;
    postgres_open(&process, &topic, 1);
    postgres_next.handler_ms = 0;
    subscribe(
        &process, &recorder,
        (struct bus_subscription){.topic = "hangs", .batch_max = 1, .attempts_max = 3, .backoff_min_ms = 10});
    process_start(&process);
    await_ready(&recorder);
    publish(&process, "hangs", "k", 0);
    publish(&process, "hangs", "k", 1);
    bool came = recorder_await_committed(&recorder, 2);
    process_close(&process);
    assert_true(came);
    assert_int_equal(recorder_times(&recorder, 0), 3);
    assert_int_equal(sql("SELECT count(*) FROM platform.bus_message WHERE topic = 'hangs.dlq'"), 1);
    recorder_deinit(&recorder);
}

/* ---- reasons ---- */

static void refuse_with_rubbish(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, 1);
    if (batch->attempt == 0)
        bus_batch_retry(batch, 0, "it said \xc3\x28\xff");
    else if (batch->attempt == 1)
        bus_batch_rollback(batch, "and \xf0\x28\x8c\x28");
}

static void test_a_reason_need_not_be_text(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "rubbish", .partitions = 1};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = refuse_with_rubbish;
    postgres_open(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "rubbish", .backoff_min_ms = 10});
    process_start(&process);
    await_ready(&recorder);
    publish(&process, "rubbish", "k", 0);
    bool came = recorder_await_committed(&recorder, 1);
    process_close(&process);
    assert_true(came);
    assert_int_equal(recorder.count, 3);
    recorder_deinit(&recorder);
}

/* ---- clocks ---- */

static void refuse_first(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, 1);
    if (batch->attempt > 0)
        return;
    bus_batch_retry(batch, 0, "later");
    recorder_step(recorder, 1);
}

/* The server's clock went back an hour after a backoff was written down. */
static void test_a_backoff_ends_although_the_clock_went_back(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "clock", .partitions = 1};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = refuse_first;
    postgres_open(&process, &topic, 1);
    subscribe(&process, &recorder,
              (struct bus_subscription){.topic = "clock", .backoff_min_ms = 2000, .backoff_max_ms = 2000});
    process_start(&process);
    await_ready(&recorder);
    publish(&process, "clock", "k", 0);
    bool refused = recorder_await_step(&recorder, 1);
    await_sql("SELECT count(retry_at) FROM platform.bus_cursor WHERE topic = 'clock'", 1);
    sql("UPDATE platform.bus_cursor SET retry_at = retry_at + interval '1 hour' WHERE topic = 'clock'");
    bool came = recorder_await_committed(&recorder, 1);
    process_close(&process);
    assert_true(refused && came);
    recorder_deinit(&recorder);
}

/* What is deleted is a prefix of the offsets, or a gap would be in the middle and nobody told; and a clock that
 * was ahead once does not hold retention up until its time has come. */
static void test_retention_bears_a_clock_that_was_ahead(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "ahead", .partitions = 1, .keep_ms_hard = 60000};
    struct process process;
    postgres_open(&process, &topic, 1);
    process_start(&process);
    for (int i = 0; i < 10; i++)
        publish(&process, "ahead", "k", i);
    sql("UPDATE platform.bus_message SET created_at = now() + CASE WHEN message_offset < 3 THEN interval '1 day'"
        " WHEN message_offset < 6 THEN interval '-1 hour' ELSE '0' END WHERE topic = 'ahead'");
    await_sql("SELECT count(*) FROM platform.bus_message WHERE topic = 'ahead'", 4);
    sql("UPDATE platform.bus_message SET created_at = now() + interval '1 day' WHERE topic = 'ahead'");
    publish(&process, "ahead", "k", 10);
    pause_ms(300);
    int64_t kept = sql("SELECT count(*) FROM platform.bus_message WHERE topic = 'ahead'");
    process_close(&process);
    assert_int_equal(kept, 5);
    assert_int_equal(sql("SELECT min(message_offset) FROM platform.bus_message WHERE topic = 'ahead'"), 6);
}

/* ---- stopping ---- */

static void test_a_stop_does_not_wait_for_a_dead_database(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "dead", .partitions = 1};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    postgres_open(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "dead"});
    process_start(&process);
    await_ready(&recorder);
    pg_fixture_freeze(0); /* nobody is let in any more */
    sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'");
    bus_wake(process.bus, STR("dead"));
    pause_ms(300); /* its question is under way, and nobody answers */
    int64_t begun_ns = clock_mono_ns();
    bus_stop(process.bus, 8000); /* the grace is for handlers, and none runs */
    int64_t took_ms = (clock_mono_ns() - begun_ns) / CLOCK_NS_PER_MS;
    pg_fixture_thaw(0);
    process_close(&process);
    assert_in_range(took_ms, 0, 4000);
    recorder_deinit(&recorder);
}

struct publishing {
    struct process *process;
    enum status status;
};

static void *publish_long(void *arg)
{
    struct publishing *publishing = arg;
    struct bus_message message = {.topic = STR("held"), .key = STR("k"), .payload = STR("1")};

    publishing->status =
        bus_publish(publishing->process->bus, &message, 1, clock_deadline_ms(PATIENCE_MS), NULL);
    return NULL;
}

/* bus_destroy() may follow at once: nobody may be inside any more. */
static void test_a_stop_waits_until_publishers_have_left(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "held", .partitions = 1};
    struct process process;
    struct publishing publishing = {.process = &process};
    struct db_conn *conn;
    pthread_t thread;
    postgres_open(&process, &topic, 1);
    process_start(&process);
    publish(&process, "held", "k", 1);
    assert_int_equal(db_acquire(sql_pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL), STATUS_OK);
    assert_int_equal(db_begin(conn, DB_READ_COMMITTED, clock_deadline_ms(PATIENCE_MS), NULL), STATUS_OK);
    struct db_statement lock;
    lock = db_statement_of(STR("SELECT FROM platform.bus_partition WHERE topic = 'held' FOR UPDATE"));
    assert_int_equal(db_exec(conn, &lock, NULL, clock_deadline_ms(PATIENCE_MS), NULL, NULL), STATUS_OK);
    pthread_create(&thread, NULL, publish_long, &publishing);
    await_sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'", 1);
    bus_stop(process.bus, 50);
    unsigned inside = ((struct postgres *)process.bus)->publishing;
    process_close(&process);
    pthread_join(thread, NULL);
    db_release(conn);
    assert_int_equal(inside, 0);
    assert_int_not_equal(publishing.status, STATUS_OK);
}

/* ---- listeners ---- */

static void await_trusted(const struct process *process, bool wanted)
{
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);

    while (((struct postgres *)process->bus)->is_trusted != wanted && clock_mono_ns() < limit_ns)
        pause_ms(20);
    assert_int_equal(((struct postgres *)process->bus)->is_trusted, wanted);
}

/* Whoever may connect may listen, whatever he may read: then messages do not travel in notices. */
static void test_messages_stay_out_of_notices_that_others_could_hear(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "private", .partitions = 1};
    struct process process;
    postgres_open(&process, &topic, 1);
    process_start(&process);
    await_trusted(&process, true);
    sql("CREATE ROLE stranger LOGIN");
    await_trusted(&process, false);
    sql("DROP ROLE stranger");
    await_trusted(&process, true);
    process_close(&process);
}

/* Without waiting for the disk, one or many, they are there all the same; and the next commit of that connection waits. */
static void test_a_relaxed_topic_carries_all(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "relaxed", .partitions = 2, .relaxed = true};
    struct process process;
    struct recorder recorder;
    struct bus_message messages[10];
    recorder_init(&recorder);
    postgres_open(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "relaxed"});
    process_start(&process);
    await_ready(&recorder);
    publish(&process, "relaxed", "k", 1);
    for (int i = 0; i < 10; i++)
        messages[i] = (struct bus_message){
            .topic = STR("relaxed"), .key = i % 2 ? STR("a") : STR("b"), .payload = STR("2")};
    enum status status = bus_publish(process.bus, messages, 10, clock_deadline_ms(PATIENCE_MS), NULL);
    bool came = recorder_await_committed(&recorder, 11);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
    assert_true(came);
    recorder_deinit(&recorder);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_message_that_kills_its_process_is_buried),
        cmocka_unit_test(test_a_message_that_always_takes_too_long_is_buried),
        cmocka_unit_test(test_a_reason_need_not_be_text),
        cmocka_unit_test(test_a_backoff_ends_although_the_clock_went_back),
        cmocka_unit_test(test_retention_bears_a_clock_that_was_ahead),
        cmocka_unit_test(test_messages_stay_out_of_notices_that_others_could_hear),
        cmocka_unit_test(test_a_relaxed_topic_carries_all),
        cmocka_unit_test(test_a_stop_does_not_wait_for_a_dead_database),
        cmocka_unit_test(test_a_stop_waits_until_publishers_have_left),
    };
    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    log_set_level(LOG_LEVEL_ERROR);
    if (argc == 3 && strcmp(argv[1], LIVE) == 0) {
        pg_fixture_borrow(argv[2]);
        return live();
    }
    sql_rig_start();
    postgres_migrate();
    int failed = run_all();
    sql_rig_stop();
    return failed ? 1 : 0;
}
