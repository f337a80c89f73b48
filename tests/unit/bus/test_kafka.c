/* The Kafka driver: the conformance suite on a real broker (kafka_fixture.h), and what is its own. Here: configuration, a
 * producer that is broken, brokers that are not there. */
#include "test_kafka.h"

#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "bus/bus_kafka.h"
#include "bus/kafka/inside.h"
#include "kafka_fixture.h"
#include "kafka_stranger.h"
#include "sql_rig.h"

/* ---- the driver's table ---- */

static void make_topics(const struct bus_topic *topics, size_t count)
{
    char dead[80];

    for (size_t i = 0; i < count; i++) {
        kafka_fixture_make_topic(topics[i].name, topics[i].partitions);
        snprintf(dead, sizeof dead, "%s.dlq", topics[i].name);
        kafka_fixture_make_topic(dead, topics[i].partitions ? topics[i].partitions : 1);
    }
}

static struct bus *create(struct loop *loop, struct worker_pool *workers, const struct bus_topic *topics,
                          size_t topic_count)
{
    struct db_target where = pg_fixture_target();
    struct bus *bus;
    struct bus_kafka_config config = {.loop = loop,
                                      .workers = workers,
                                      .brokers = kafka_fixture_brokers(),
                                      .target = &where,
                                      .by_locks = topics[0].partitions > 0, /* both ways are tested */
                                      .topics = topics,
                                      .topic_count = topic_count,
                                      .session_ms = 2000,
                                      .message_bytes_max = 4u << 20};
    struct error error = {0};

    make_topics(topics, topic_count);
    if (bus_kafka_create(&config, &bus, &error) != STATUS_OK)
        fail_msg("create: %s", error.message);
    return bus;
}

static const struct conformance_driver kafka = {
    .name = "kafka",
    .create = create,
    .cut = kafka_fixture_cut,
    .halt = kafka_fixture_halt,
    .resume = kafka_fixture_resume,
    .restarts = 1,
    .freeze = kafka_fixture_freeze,
    .thaw = kafka_fixture_thaw,
    .lacks_every = true,
    .repeats = true,
    .write_effect = sql_write_effect,
    .count_effects = sql_count_effects,
};

void kafka_open(struct process *process, const struct bus_topic *topics, size_t count)
{
    process->loop = loop_create(0, 0);
    process->workers = worker_pool_create("bus", 4, 100);
    process->bus = create(process->loop, process->workers, topics, count);
}

/* ---- the producer ---- */

static void test_a_broken_producer_is_made_anew(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "fatal", .partitions = 1};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    kafka_open(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "fatal"});
    process_start(&process);
    await_ready(&recorder);
    publish(&process, "fatal", "k", 1);
    rd_kafka_t *producer = bus_kafka_producer_acquire((struct kafka *)process.bus);
    rd_kafka_test_fatal_error(producer, RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, "a test");
    bus_kafka_producer_release((struct kafka *)process.bus);
    publish_until_accepted(&process, "fatal", "k", 2);
    bool came = recorder_await_committed(&recorder, 2);
    process_close(&process);
    assert_true(came);
    assert_int_equal(recorder.seen[1].number, 2);
    recorder_deinit(&recorder);
}

static void test_nobody_there_is_no_reason_to_wait_for_ever(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "nobody", .partitions = 1};
    struct process process = {.loop = loop_create(0, 0), .workers = worker_pool_create("bus", 2, 10)};
    struct bus_kafka_config config = {.loop = process.loop,
                                      .workers = process.workers,
                                      .brokers = "127.0.0.1:1",
                                      .topics = &topic,
                                      .topic_count = 1};
    struct bus_message message = {.topic = STR("nobody"), .payload = STR("1")};
    struct recorder recorder;
    recorder_init(&recorder);
    assert_int_equal(bus_kafka_create(&config, &process.bus, NULL), STATUS_OK);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "nobody"});
    process_start(&process);
    enum status status = bus_publish(process.bus, &message, 1, clock_deadline_ms(200), NULL);
    bool up = bus_is_up(process.bus);
    process_close(&process);
    assert_int_equal(status, STATUS_TIMEOUT);
    assert_false(up);
    recorder_deinit(&recorder);
}

/* ---- passwords ---- */

static void write_password(const char *path, const char *password)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fprintf(file, "%s\n", password);
    fclose(file);
}

/* The broker has a new password first, the file later. Producer and consumer log in again with what the file holds then. */
static void test_a_rotated_password_is_read_from_its_file(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "rotated", .partitions = 1};
    struct bus_message message = {.topic = STR("rotated"), .key = STR("k"), .payload = STR("1")};
    char path[] = "/tmp/freshet-kafka-password-XXXXXX";
    struct recorder recorder;
    struct process process = {.loop = loop_create(0, 0), .workers = worker_pool_create("bus", 4, 100)};
    struct db_target where = pg_fixture_target();
    const struct bus_kafka_config config = {
        .loop = process.loop,
        .workers = process.workers,
        .brokers = kafka_fixture_login_brokers(),
        .security = {.username = "freshet", .password_file = path},
        .target = &where,
        .topics = &topic,
        .topic_count = 1,
        .session_ms = 2000,
    };
    close(mkstemp(path));
    write_password(path, "sesame");
    recorder_init(&recorder);
    assert_int_equal(bus_kafka_create(&config, &process.bus, NULL), STATUS_OK);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "rotated"});
    process_start(&process);
    await_ready(&recorder);
    publish(&process, "rotated", "k", 1);
    bool came = recorder_await_committed(&recorder, 1);
    kafka_fixture_halt();
    kafka_fixture_set_password("mustard");
    kafka_fixture_resume();
    enum status refused = bus_publish(process.bus, &message, 1, clock_deadline_ms(4000), NULL);
    write_password(path, "mustard");
    publish_until_accepted(&process, "rotated", "k", 2);
    bool came_again = recorder_await_committed(&recorder, 2);
    process_close(&process);
    unlink(path);
    assert_true(came);
    assert_int_not_equal(refused, STATUS_OK);
    assert_true(came_again);
    recorder_deinit(&recorder);
}

/* ---- configuration ---- */

static void test_what_makes_no_sense_is_refused(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "idle", .partitions = 1};
    const struct bus_kafka_config bad[] = {
        {.brokers = NULL},
        {.brokers = ""},
        {.brokers = "127.0.0.1:1", .security = {.tls = true, .ca_file = "/nowhere/ca.pem"}},
        {.brokers = "127.0.0.1:1", .security = {.username = "u", .password = "hidden", .mechanism = "ROT13"}},
    };
    struct bus *bus;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bus_kafka_config config = bad[i];
        struct error error = {0};
        config.topics = &topic;
        config.topic_count = 1;
        assert_int_equal(bus_kafka_create(&config, &bus, &error), STATUS_CONFIG);
        assert_null(bus);
        assert_true(error.message[0] != '\0');
        assert_null(strstr(error.message, "hidden"));
    }
}

static void test_another_number_of_partitions_is_refused(void **state)
{
    (void)state;
    static const struct bus_topic two = {.name = "count", .partitions = 2};
    struct process process;
    struct error error = {0};
    struct bus_message message = {.topic = STR("count"), .key = STR("k"), .payload = STR("1")};
    rd_kafka_t *stranger = stranger_open();
    stranger_makes_topic(stranger, "count", 3);
    rd_kafka_destroy(stranger);
    kafka_open(&process, &two, 1);
    process_start(&process);
    enum status status = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error);
    process_close(&process);
    assert_int_equal(status, STATUS_CONFIG);
    assert_non_null(strstr(error.message, "count has 3 partitions, not 2"));
}

static void test_a_bus_never_started_can_be_destroyed(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "idle", .partitions = 1};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    kafka_open(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "idle"});
    bus_stop(process.bus, 0);
    bus_destroy(process.bus);
    worker_pool_destroy(process.workers);
    loop_destroy(process.loop);
    recorder_deinit(&recorder);
}

static int run_own(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_number_of_partitions_is_refused),
        cmocka_unit_test(test_a_broken_producer_is_made_anew),
        cmocka_unit_test(test_a_rotated_password_is_read_from_its_file),
        cmocka_unit_test(test_nobody_there_is_no_reason_to_wait_for_ever),
        cmocka_unit_test(test_what_makes_no_sense_is_refused),
        cmocka_unit_test(test_a_bus_never_started_can_be_destroyed),
    };
    return cmocka_run_group_tests_name("kafka", tests, NULL, NULL);
}

/* On the mock: what it can do, and what needs no broker. */
static int run_smoke(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_number_of_partitions_is_refused),
        cmocka_unit_test(test_nobody_there_is_no_reason_to_wait_for_ever),
        cmocka_unit_test(test_what_makes_no_sense_is_refused),
        cmocka_unit_test(test_a_bus_never_started_can_be_destroyed),
    };
    driver = &kafka;
    return cmocka_run_group_tests_name("kafka on the mock cluster", tests, NULL, NULL);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    sql_rig_start();
    kafka_fixture_start();
    int failed = kafka_fixture_is_real() ? conformance_run(&kafka) + kafka_run_topics() + kafka_run_groups() +
                                               kafka_run_locks() + run_own()
                                         : run_smoke();
    kafka_fixture_stop();
    sql_rig_stop();
    return failed ? 1 : 0;
}
