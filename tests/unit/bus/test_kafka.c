/* The Kafka driver: the conformance suite on a real broker (kafka_fixture.h), and what is its own: topics of other
 * programs, partitions that differ, gaps, a producer that is broken, brokers that are not there, kcat. */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../db/pg_fixture.h"
#include "base/log.h"
#include "base/metrics.h"
#include "bus/bus_kafka.h"
#include "bus/kafka/inside.h"
#include "conformance.h"
#include "kafka_fixture.h"
#include "kafka_stranger.h"

static struct db_pool *pool; /* the tests' own */

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

static bool await_gap(struct recorder *recorder)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    size_t gaps = 0;

    while (gaps == 0 && clock_mono_ns() < limit_ns) {
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&recorder->lock);
        gaps = recorder->gaps;
        pthread_mutex_unlock(&recorder->lock);
    }
    return gaps == 1;
}

/* ---- topics of other programs ---- */

#define MANY_HEADERS 100
static atomic_uint headers_seen;

static void bury_all(struct recorder *recorder, struct bus_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->messages[i].header_count > headers_seen)
            headers_seen = batch->messages[i].header_count;
        bus_batch_term(&batch[0], i, "nobody understands it");
    }
    recorder_add(recorder, batch, batch->count);
}

static rd_kafka_headers_t *odd_headers(void)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(MANY_HEADERS + 4);

    rd_kafka_header_add(headers, "binary", -1, "\xff\xfe\0x", 4);
    rd_kafka_header_add(headers, "\xff", -1, "bad name", -1);
    rd_kafka_header_add(headers, "", -1, "no name", -1);
    rd_kafka_header_add(headers, "null", -1, NULL, 0);
    for (int i = 0; i < MANY_HEADERS; i++)
        rd_kafka_header_add(headers, "h", -1, "v", -1);
    return headers;
}

/* R9: its topic is used as it is, never made, and what is garbage there lies in a dead-letter topic of ours. */
static void test_another_programs_topic_is_used_as_it_is(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "foreign"};
    struct process process;
    struct recorder recorder, dead;
    struct error error = {0};
    struct bus_message ours = {.topic = STR("foreign"), .key = STR("demo:A"), .payload = STR("1")};
    rd_kafka_t *stranger = stranger_open();
    recorder_init(&recorder);
    recorder_init(&dead);
    recorder.behave = bury_all;
    stranger_makes_topic(stranger, "foreign", 3);
    stranger_sends(stranger, "foreign", 0, "1", odd_headers());
    stranger_sends(stranger, "foreign", 2, NULL, NULL);
    open_with(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "foreign", .from = BUS_FROM_START});
    subscribe(&process, &dead, (struct bus_subscription){.topic = "foreign.dlq", .from = BUS_FROM_START});
    process_start(&process);
    bool came = recorder_await_committed(&recorder, 2) && recorder_await_committed(&dead, 2);
    enum status published = bus_publish(process.bus, &ours, 1, clock_deadline_ms(PATIENCE_MS), &error);
    came &= recorder_await_committed(&recorder, 3);
    process_close(&process);
    rd_kafka_destroy(stranger);
    assert_true(came);
    assert_int_equal(headers_seen, MANY_HEADERS + 1);
    assert_int_equal(published, STATUS_OK);
    assert_int_equal(ours.partition, bus_partition_of(ours.key, 3));
    recorder_deinit(&recorder);
    recorder_deinit(&dead);
}

/* Also from a group that began with "now": what is in a partition that is new was published after that. */
static void test_partitions_that_are_added_are_read_from_their_beginning(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "grows"};
    struct process process;
    struct recorder shared;
    rd_kafka_t *stranger = stranger_open();
    recorder_init(&shared);
    stranger_makes_topic(stranger, "grows", 1);
    stranger_sends(stranger, "grows", 0, "1", NULL);
    open_with(&process, &topic, 1);
    subscribe(&process, &shared, (struct bus_subscription){.topic = "grows"});
    process_start(&process);
    await_ready(&shared);
    stranger_adds_partitions(stranger, "grows", 3);
    rd_kafka_destroy(stranger);
    stranger = stranger_open(); /* which knows the new ones */
    stranger_sends(stranger, "grows", 2, "2", NULL);
    bool came = recorder_await_committed(&shared, 1);
    process_close(&process);
    rd_kafka_destroy(stranger);
    assert_true(came);
    assert_int_equal(shared.seen[0].number, 2);
    recorder_deinit(&shared);
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
    open_with(&process, &two, 1);
    process_start(&process);
    enum status status = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error);
    process_close(&process);
    assert_int_equal(status, STATUS_CONFIG);
    assert_non_null(strstr(error.message, "count has 3 partitions, not 2"));
}

/* Whoever reads dead letters may have made their topic before us, as he liked: they are buried all the same. */
static void test_dead_letters_go_to_as_many_partitions_as_there_are(void **state)
{
    (void)state;
    static const struct bus_topic four = {.name = "few", .partitions = 4};
    struct process process;
    struct bus_message letters[4];
    rd_kafka_t *stranger = stranger_open();
    stranger_makes_topic(stranger, "few.dlq", 2);
    rd_kafka_destroy(stranger);
    open_with(&process, &four, 1);
    process_start(&process);
    for (unsigned i = 0; i < 4; i++)
        letters[i] = (struct bus_message){
            .topic = STR("few.dlq"), .key = str_from(key_of_partition(i, 4)), .payload = STR("1")};
    enum status status = bus_publish(process.bus, letters, 4, clock_deadline_ms(PATIENCE_MS), NULL);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
}

/* ---- gaps ---- */

static void hold_and_tell(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
    recorder_await_step(recorder, 1);
}

/* What was read ahead is handled; behind it is what the broker still has, and between them a gap that is told. */
static void test_what_retention_took_is_a_gap(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "gap", .partitions = 1};
    struct process process;
    struct recorder shared;
    rd_kafka_t *stranger = stranger_open();
    recorder_init(&shared);
    shared.behave = hold_and_tell;
    open_with(&process, &topic, 1);
    subscribe(&process, &shared, (struct bus_subscription){.topic = "gap", .batch_max = 1});
    process_start(&process);
    await_ready(&shared);
    for (int i = 0; i < 50; i++)
        publish(&process, "gap", "k", i);
    bool held = recorder_await(&shared, 1);
    stranger_deletes(stranger, "gap", 0, 45);
    recorder_step(&shared, 1);
    bool told = await_gap(&shared);
    publish(&process, "gap", "k", 50);
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    while (!recorder_times(&shared, 50) && clock_mono_ns() < limit_ns)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    process_close(&process);
    rd_kafka_destroy(stranger);
    assert_true(held);
    assert_true(told);
    for (int number = 45; number <= 50; number++)
        assert_int_equal(recorder_times(&shared, number), 1);
    assert_int_equal(shared.gaps, 1);
    assert_int_equal(shared.seen[0].number, 0);
    assert_int_equal(recorder_times(&shared, 44), 0);
    recorder_deinit(&shared);
}

/* It is made again, and a stop does not wait for the old one. */
static void test_a_topic_that_is_gone_is_made_again(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "vanished", .partitions = 3};
    struct process process;
    struct recorder recorder;
    rd_kafka_t *stranger = stranger_open();
    recorder_init(&recorder);
    open_with(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "vanished"});
    process_start(&process);
    await_ready(&recorder);
    for (unsigned p = 0; p < 3; p++)
        publish(&process, "vanished", key_of_partition(p, 3), (int)p);
    bool before = recorder_await_committed(&recorder, 3);
    stranger_deletes_topic(stranger, "vanished");
    rd_kafka_destroy(stranger);
    publish_until_accepted(&process, "vanished", "k", 10);
    process_close(&process);
    assert_true(before);
    recorder_deinit(&recorder);
}

/* ---- groups ---- */

/* A handler that runs while another member joins is finished and committed before its partition goes. */
static void test_a_rebalance_waits_for_the_handler(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "handover", .partitions = 1};
    struct process processes[2];
    struct recorder recorders[2];
    for (int i = 0; i < 2; i++) {
        recorder_init(&recorders[i]);
        recorders[i].behave = i == 0 ? hold_and_tell : NULL;
        open_with(&processes[i], &topic, 1);
        subscribe(&processes[i], &recorders[i], (struct bus_subscription){.topic = "handover"});
    }
    process_start(&processes[0]);
    await_ready(&recorders[0]);
    publish(&processes[0], "handover", "k", 1);
    bool held = recorder_await(&recorders[0], 1);
    process_start(&processes[1]);
    const struct timespec pause = {.tv_nsec = 700000000}; /* it joins, and may not have the message */
    nanosleep(&pause, NULL);
    size_t early = recorder_times(&recorders[1], 1);
    recorder_step(&recorders[0], 1);
    await_ready(&recorders[1]);
    publish(&processes[0], "handover", "k", 2);
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    while (!recorder_times(&recorders[0], 2) && !recorder_times(&recorders[1], 2) &&
           clock_mono_ns() < limit_ns)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    for (int i = 0; i < 2; i++)
        process_close(&processes[i]);
    assert_true(held);
    assert_int_equal(early, 0);
    assert_int_equal(recorder_times(&recorders[0], 1) + recorder_times(&recorders[1], 1), 1);
    assert_int_equal(recorder_times(&recorders[0], 2) + recorder_times(&recorders[1], 2), 1);
    for (int i = 0; i < 2; i++)
        recorder_deinit(&recorders[i]);
}

/* ---- attempts ---- */

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
        open_with(&processes[i], &topic, 1);
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
    recorder.behave = hold_and_tell;
    open_with(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "lag", .batch_max = 1});
    process_start(&process);
    await_ready(&recorder);
    for (int i = 0; i < 3; i++)
        publish(&process, "lag", "k", i);
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    while (!shown && clock_mono_ns() < limit_ns) {
        struct buf text;
        buf_init(&text);
        metrics_print(&text);
        buf_put_char(&text, '\0');
        shown = strstr(buf_str(&text).ptr, "kafka_consumer_lag{topic=\"lag\",group=\"group\"} 3\n") != NULL;
        buf_deinit(&text);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    recorder_step(&recorder, 1);
    bool came = recorder_await_committed(&recorder, 3);
    process_close(&process);
    assert_true(shown);
    assert_true(came);
    recorder_deinit(&recorder);
}

/* ---- the producer ---- */

#define BACKLOG 4

/* What waits is asked about now and then: a broker that freezes then holds up no stop. */
static void test_a_frozen_broker_holds_up_no_stop_behind_a_backlog(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "heap", .partitions = BACKLOG};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    recorder.behave = hold_and_tell;
    open_with(&process, &topic, 1);
    subscribe(&process, &recorder,
              (struct bus_subscription){.topic = "heap", .batch_max = 1, .parallel = BACKLOG});
    process_start(&process);
    await_ready(&recorder);
    for (unsigned p = 0; p < BACKLOG; p++)
        for (int i = 0; i < 30; i++)
            publish(&process, "heap", key_of_partition(p, BACKLOG), i);
    bool held = recorder_await(&recorder, BACKLOG);
    kafka_fixture_freeze();
    nanosleep(&(struct timespec){.tv_sec = 3, .tv_nsec = 200000000},
              NULL); /* its end is asked for meanwhile */
    int64_t begun_ns = clock_mono_ns();
    recorder_step(&recorder, 1);
    process_close(&process);
    int64_t took_ns = clock_mono_ns() - begun_ns;
    kafka_fixture_thaw();
    assert_true(held);
    assert_true(took_ns < 15 * CLOCK_NS_PER_S);
    recorder_deinit(&recorder);
}

static void test_a_broken_producer_is_made_anew(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "fatal", .partitions = 1};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    open_with(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "fatal"});
    process_start(&process);
    await_ready(&recorder);
    publish(&process, "fatal", "k", 1);
    struct kafka_producer *producer = bus_kafka_producer_acquire((struct kafka *)process.bus);
    rd_kafka_test_fatal_error(producer->rk, RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, "a test");
    bus_kafka_producer_release((struct kafka *)process.bus, producer);
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
    struct process process = {.loop = loop_create(&(struct loop_options){0}),
                              .workers = worker_pool_create("bus", 2, 10)};
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
    bool up = bus_kafka_is_up(process.bus);
    process_close(&process);
    assert_int_equal(status, STATUS_TIMEOUT);
    assert_false(up);
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

static void test_a_bus_never_started_can_be_destroyed(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "idle", .partitions = 1};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    open_with(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "idle"});
    bus_stop(process.bus, 0);
    bus_destroy(process.bus);
    worker_pool_destroy(process.workers);
    loop_destroy(process.loop);
    recorder_deinit(&recorder);
}

/* ---- a client that is not ours ---- */

/* kcat partitions as Java does when told so: it must come to the same as we do. */
static void test_kcat_and_we_agree(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "kcat", .partitions = 7};
    struct process process;
    struct recorder recorder;
    char command[512], line[64] = "";
    if (system("command -v kcat >/dev/null") != 0) {
        fprintf(stderr, "kcat is not installed: not asked whether it agrees\n");
        skip();
    }
    recorder_init(&recorder);
    open_with(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "kcat"});
    process_start(&process);
    await_ready(&recorder);
    snprintf(command, sizeof command,
             "for i in 1 2 3 4 5 6 7 8 9; do echo key-$i:$i; done |"
             " kcat -q -P -b %s -t kcat -K: -H traceparent=00-1 -X topic.partitioner=murmur2_random",
             kafka_fixture_brokers());
    int sent = system(command);
    bool came = recorder_await_committed(&recorder, 9);
    publish(&process, "kcat", "ours", 42);
    snprintf(command, sizeof command, "kcat -q -C -e -o beginning -b %s -t kcat -f '%%k=%%s\\n' | grep ours",
             kafka_fixture_brokers());
    FILE *output = popen(command, "r");
    bool read = output && fgets(line, sizeof line, output);
    if (output)
        pclose(output);
    process_close(&process);
    assert_int_equal(sent, 0);
    assert_true(came);
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(recorder.seen[i].partition, bus_partition_of(str_from(recorder.seen[i].key), 7));
    assert_true(read);
    assert_string_equal(line, "ours=42\n");
    recorder_deinit(&recorder);
}

static int run_own(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_programs_topic_is_used_as_it_is),
        cmocka_unit_test(test_partitions_that_are_added_are_read_from_their_beginning),
        cmocka_unit_test(test_another_number_of_partitions_is_refused),
        cmocka_unit_test(test_dead_letters_go_to_as_many_partitions_as_there_are),
        cmocka_unit_test(test_what_retention_took_is_a_gap),
        cmocka_unit_test(test_a_topic_that_is_gone_is_made_again),
        cmocka_unit_test(test_a_rebalance_waits_for_the_handler),
        cmocka_unit_test(test_a_partition_that_comes_back_has_no_attempts),
        cmocka_unit_test(test_the_lag_is_shown),
        cmocka_unit_test(test_a_frozen_broker_holds_up_no_stop_behind_a_backlog),
        cmocka_unit_test(test_a_broken_producer_is_made_anew),
        cmocka_unit_test(test_nobody_there_is_no_reason_to_wait_for_ever),
        cmocka_unit_test(test_what_makes_no_sense_is_refused),
        cmocka_unit_test(test_a_bus_never_started_can_be_destroyed),
        cmocka_unit_test(test_kcat_and_we_agree),
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
    struct db_target where;
    struct error error = {0};

    log_set_level(LOG_LEVEL_ERROR);
    pg_fixture_start();
    kafka_fixture_start();
    where = pg_fixture_target();
    if (db_pool_create(&where, &pool, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    sql("CREATE TABLE public.effect (number int NOT NULL CHECK (number >= 0))");
    sql("CREATE INDEX ON public.effect (number)");
    int failed = kafka_fixture_is_real() ? conformance_run(&kafka) + run_own() : run_smoke();
    db_pool_destroy(pool);
    kafka_fixture_stop();
    pg_fixture_stop();
    return failed ? 1 : 0;
}
