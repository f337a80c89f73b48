/* The Kafka driver: partitions by locks of PostgreSQL: a lock that is lost or that another one was faster to take, a holder that was
 * frozen, a commit that comes late. */
#include "base/log.h"
#include "bus/kafka/inside.h"
#include "kafka_fixture.h"
#include "sql_rig.h"
#include "test_kafka.h"

#define LOCKS "FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted"

static struct kafka_reader *reader_of(const struct process *process)
{
    return ((struct kafka *)process->bus)->readers[0];
}

/* R10. Its session ends while it handles a message, and its lock is another's at once: it finishes the batch that it had begun, and
 * begins no other until the lock is its own again. Then it goes on at the offset that Kafka has. */
static void test_a_holder_that_lost_its_lock_begins_no_batch(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "lost", .partitions = 1};
    enum { COUNT = 5 };
    struct process process;
    struct recorder recorder;
    struct db_conn *other = NULL;
    char text[256];
    recorder_init(&recorder);
    recorder.behave = record_and_hold;
    kafka_open(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "lost", .batch_max = 1});
    process_start(&process);
    await_ready(&recorder);
    for (int i = 0; i < COUNT; i++)
        publish(&process, "lost", "k", i);
    bool held = recorder_await(&recorder, 1);
    long long space = sql("SELECT classid::bigint " LOCKS " AND objid = 0");
    assert_int_equal(db_acquire(sql_pool, clock_deadline_ms(PATIENCE_MS), &other, NULL), STATUS_OK);
    snprintf(text, sizeof text,
             "WITH ended AS MATERIALIZED (SELECT pg_terminate_backend(pid) " LOCKS
             " AND classid = %lld AND objid = 0)"
             " SELECT pg_advisory_lock(%lld, (SELECT count(*)::int - 1 FROM ended))",
             space, space);
    struct db_statement take = db_statement_of(str_from(text));
    enum status taken = db_exec(other, &take, DB_NO_PARAMS, clock_deadline_ms(PATIENCE_MS), NULL, NULL);
    await_sql("SELECT count(*) " LOCKS " AND objid = 2147483647", 1); /* it is a member again */
    recorder_step(&recorder, 1);
    struct kafka_reader *reader = reader_of(&process);
    pthread_mutex_lock(&reader->lock);
    while (reader->running > 0)
        clock_cond_wait(&reader->idle, &reader->lock, CLOCK_NEVER);
    pthread_mutex_unlock(&reader->lock);
    await_sql("SELECT count(*) " LOCKS " AND objid = 2147483647", 1);
    size_t meanwhile = recorder.count;
    struct db_statement unlock = DB_STATEMENT("SELECT pg_advisory_unlock_all()");
    enum status unlocked = db_exec(other, &unlock, DB_NO_PARAMS, clock_deadline_ms(PATIENCE_MS), NULL, NULL);
    db_release(other);
    bool came = recorder_await_number(&recorder, COUNT - 1);
    process_close(&process);
    assert_true(held);
    assert_int_equal(taken, STATUS_OK);
    assert_int_equal(unlocked, STATUS_OK);
    assert_int_equal(meanwhile, 1);
    assert_true(came);
    for (int i = 1; i < COUNT; i++)
        assert_int_equal(recorder_times(&recorder, i), 1);
    assert_int_equal(recorder_times(&recorder, 0), 2); /* its offset was not committed */
    recorder_deinit(&recorder);
}

/* R10. By its own clock: after a freeze a worker may run before the reader has noticed anything. */
static void test_a_holder_whose_last_look_is_old_begins_no_batch(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "old", .partitions = 1};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    kafka_open(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "old"});
    struct kafka_reader *reader = reader_of(&process); /* the bus is not started: nothing looks */
    pthread_mutex_lock(&reader->lock);
    struct kafka_partition *partition = bus_kafka_partition_get(reader, 0);
    bus_kafka_partition_own(partition);
    bus_kafka_partition_gap(partition, 0); /* something to do that needs no message */
    atomic_store(&reader->held_until_ns, clock_mono_ns());
    bus_kafka_partitions_dispatch(reader);
    unsigned late = reader->running;
    atomic_store(&reader->held_until_ns, CLOCK_NEVER);
    bus_kafka_partitions_dispatch(reader);
    unsigned in_time = reader->running;
    while (reader->running > 0)
        clock_cond_wait(&reader->idle, &reader->lock, CLOCK_NEVER);
    pthread_mutex_unlock(&reader->lock);
    bus_stop(process.bus, 0);
    bus_destroy(process.bus);
    worker_pool_destroy(process.workers);
    loop_destroy(process.loop);
    assert_int_equal(late, 0);
    assert_int_equal(in_time, 1);
    recorder_deinit(&recorder);
}

/* Runs in each look, when the free partitions are known and before their locks are taken. */
static struct db_conn *_Atomic faster;
static atomic_uint looks;

void __real_bus_kafka_partitions_dispatch(struct kafka_reader *reader);
void __wrap_bus_kafka_partitions_dispatch(struct kafka_reader *reader);
void __wrap_bus_kafka_partitions_dispatch(struct kafka_reader *reader)
{
    static const struct db_statement take =
        DB_STATEMENT("SELECT pg_advisory_lock(classid::bigint::int, 0) " LOCKS " AND objid = 2147483647");
    struct db_conn *other = atomic_exchange(&faster, NULL);
    if (other)
        assert_int_equal(db_exec(other, &take, DB_NO_PARAMS, clock_deadline_ms(PATIENCE_MS), NULL, NULL),
                         STATUS_OK);
    atomic_fetch_add(&looks, 1);
    __real_bus_kafka_partitions_dispatch(reader);
}

static void await_looks(unsigned count)
{
    for (unsigned before = looks; looks < before + count;)
        nanosleep(&(struct timespec){.tv_nsec = CLOCK_NS_PER_MS}, NULL);
}

/* R10. Both have seen it free. */
static void test_a_partition_whose_lock_another_one_took_first_is_not_owned(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "taken", .partitions = 1};
    static const struct db_statement unlock = DB_STATEMENT("SELECT pg_advisory_unlock_all()");
    struct process process;
    struct recorder recorder;
    struct db_conn *other = NULL;
    recorder_init(&recorder);
    assert_int_equal(db_acquire(sql_pool, clock_deadline_ms(PATIENCE_MS), &other, NULL), STATUS_OK);
    kafka_open(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "taken", .from = BUS_FROM_START});
    faster = other;
    process_start(&process);
    await_sql("SELECT count(*) " LOCKS " AND objid = 0", 1);
    await_looks(2);
    struct kafka_reader *reader = reader_of(&process);
    pthread_mutex_lock(&reader->lock);
    const struct kafka_partition *partition = bus_kafka_partition_find(reader, 0);
    bool is_owned = partition && partition->is_owned;
    pthread_mutex_unlock(&reader->lock);
    enum status unlocked = db_exec(other, &unlock, DB_NO_PARAMS, clock_deadline_ms(PATIENCE_MS), NULL, NULL);
    db_release(other);
    publish(&process, "taken", "k", 1);
    bool came = recorder_await(&recorder, 1);
    process_close(&process);
    assert_false(is_owned);
    assert_int_equal(unlocked, STATUS_OK);
    assert_true(came);
    recorder_deinit(&recorder);
}

/* R10. A member that joins gets its share when the handler has ended. */
static void test_a_partition_is_not_given_up_while_its_handler_runs(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "busy", .partitions = 2};
    static const char owners[] = "SELECT count(DISTINCT pid) " LOCKS " AND objid < 2";
    enum { COUNT = 16 };
    struct process process, joining;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = record_and_hold;
    kafka_open(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "busy", .batch_max = 1});
    process_start(&process);
    await_ready(&recorder);
    for (int i = 0; i < COUNT; i++)
        publish(&process, "busy", (char[]){(char)('a' + i), '\0'}, i);
    bool are_busy = recorder_await(&recorder, 2);
    kafka_open(&joining, &topic, 1);
    subscribe(&joining, &recorder, (struct bus_subscription){.topic = "busy", .batch_max = 1});
    process_start(&joining);
    await_sql("SELECT count(*) " LOCKS " AND objid = 2147483647", 2);
    await_looks(12);
    int64_t meanwhile = sql(owners);
    size_t count = recorder.count;
    recorder_step(&recorder, 1);
    await_sql(owners, 2);
    bool came = true;
    for (int i = 0; i < COUNT; i++)
        came &= recorder_await_number(&recorder, i);
    process_close(&joining);
    process_close(&process);
    assert_true(are_busy);
    assert_int_equal(meanwhile, 1);
    assert_int_equal(count, 2);
    assert_true(came);
    recorder_deinit(&recorder);
}

/* Partitions that come and go faster than librdkafka stops to fetch: it asserts that a partition is stopped once, and would take the
 * process with it. */
static void test_assignments_in_a_row_are_each_complete(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "rows", .partitions = 8};
    enum { COUNT = 16, ROUNDS = 20, IN_A_ROW = 20 };
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    kafka_open(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "rows"});
    process_start(&process);
    await_ready(&recorder);
    bool came = true, are_assigned = true;
    for (int round = 0; round < ROUNDS && came; round++) {
        for (int i = 0; i < COUNT; i++)
            publish(&process, "rows", (char[]){(char)('a' + i), '\0'}, round * COUNT + i);
        for (int i = 0; i < IN_A_ROW; i++)
            are_assigned &= bus_kafka_group_assign(reader_of(&process));
        for (int i = 0; i < COUNT; i++)
            came &= recorder_await_number(&recorder, round * COUNT + i);
    }
    process_close(&process);
    assert_true(are_assigned);
    assert_true(came);
    recorder_deinit(&recorder);
}

/* The next commit is held on its way until the test lets it go; then Kafka takes it, and its sender hears that it was lost. */
static atomic_int late; /* 1: hold the next one, 2: held, 3: let it go, 4: it has arrived */

typedef void commit_done_fn(rd_kafka_t *rk, rd_kafka_resp_err_t error, rd_kafka_topic_partition_list_t *list,
                            void *opaque);
rd_kafka_resp_err_t __real_rd_kafka_commit_queue(rd_kafka_t *rk, const rd_kafka_topic_partition_list_t *list,
                                                 rd_kafka_queue_t *queue, commit_done_fn *done, void *opaque);
rd_kafka_resp_err_t __wrap_rd_kafka_commit_queue(rd_kafka_t *rk, const rd_kafka_topic_partition_list_t *list,
                                                 rd_kafka_queue_t *queue, commit_done_fn *done, void *opaque);

static bool await_late(int step)
{
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);

    while (late < step && clock_ms_left(deadline_ns) > 0)
        pause_ms(1);
    return late >= step;
}

rd_kafka_resp_err_t __wrap_rd_kafka_commit_queue(rd_kafka_t *rk, const rd_kafka_topic_partition_list_t *list,
                                                 rd_kafka_queue_t *queue, commit_done_fn *done, void *opaque)
{
    int armed = 1;

    if (!atomic_compare_exchange_strong(&late, &armed, 2))
        return __real_rd_kafka_commit_queue(rk, list, queue, done, opaque);
    await_late(3);
    while (rd_kafka_commit(rk, list, 0))
        pause_ms(10);
    late = 4;
    return RD_KAFKA_RESP_ERR__FAIL;
}

static bool await_committed(const char *topic, const char *group, int64_t wanted)
{
    static struct bus_kafka_position positions[BUS_PARTITIONS_MAX];
    struct bus_kafka_config config = {.brokers = kafka_fixture_brokers()};
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    unsigned count;

    while (clock_ms_left(deadline_ns) > 0) {
        if (bus_kafka_positions(&config, topic, group, deadline_ns, positions, &count, NULL) == STATUS_OK &&
            count == 1 && positions[0].committed == wanted)
            return true;
        pause_ms(20);
    }
    return false;
}

/* As one that librdkafka keeps while there is no broker: meanwhile another member has taken the partition and committed all. */
static void test_a_late_commit_of_a_former_holder_is_set_right(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "late", .partitions = 1};
    static const struct bus_subscription subscription = {.topic = "late", .group = "late"};
    enum { COUNT = 5 };
    struct process former, holder;
    struct recorder recorder;
    recorder_init(&recorder);
    kafka_open(&former, &topic, 1);
    subscribe(&former, &recorder, subscription);
    process_start(&former);
    await_ready(&recorder);
    late = 1;
    publish(&former, "late", "k", 0);
    bool is_held = await_late(2);
    kafka_open(&holder, &topic, 1);
    subscribe(&holder, &recorder, subscription);
    process_start(&holder);
    for (int i = 1; i < COUNT; i++)
        publish(&former, "late", "k", i);
    bool is_committed = await_committed("late", "late", COUNT);
    late = 3;
    bool is_late = await_late(4), is_right = await_committed("late", "late", COUNT);
    process_close(&former);
    process_close(&holder);
    assert_true(is_held);
    assert_true(is_committed);
    assert_true(is_late);
    assert_true(is_right);
    recorder_deinit(&recorder);
}

int kafka_run_locks(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_holder_that_lost_its_lock_begins_no_batch),
        cmocka_unit_test(test_a_holder_whose_last_look_is_old_begins_no_batch),
        cmocka_unit_test(test_a_partition_whose_lock_another_one_took_first_is_not_owned),
        cmocka_unit_test(test_a_partition_is_not_given_up_while_its_handler_runs),
        cmocka_unit_test(test_assignments_in_a_row_are_each_complete),
        cmocka_unit_test(test_a_late_commit_of_a_former_holder_is_set_right),
    };
    return cmocka_run_group_tests_name("kafka locks", tests, NULL, NULL);
}
