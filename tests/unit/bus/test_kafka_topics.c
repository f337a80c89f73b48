/* The Kafka driver: topics that others make, read, write, cut or delete: other programs, retention, kcat. */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>

#include "kafka_fixture.h"
#include "kafka_stranger.h"
#include "test_kafka.h"

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
    kafka_open(&process, &topic, 1);
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
    kafka_open(&process, &topic, 1);
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
    kafka_open(&process, &four, 1);
    process_start(&process);
    for (unsigned i = 0; i < 4; i++)
        letters[i] = (struct bus_message){
            .topic = STR("few.dlq"), .key = str_from(key_of_partition(i, 4)), .payload = STR("1")};
    enum status status = bus_publish(process.bus, letters, 4, clock_deadline_ms(PATIENCE_MS), NULL);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
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
    shared.behave = record_and_hold;
    kafka_open(&process, &topic, 1);
    subscribe(&process, &shared, (struct bus_subscription){.topic = "gap", .batch_max = 1});
    process_start(&process);
    await_ready(&shared);
    for (int i = 0; i < 50; i++)
        publish(&process, "gap", "k", i);
    bool held = recorder_await(&shared, 1);
    stranger_deletes(stranger, "gap", 0, 45);
    recorder_step(&shared, 1);
    bool told = recorder_await_gap(&shared);
    publish(&process, "gap", "k", 50);
    recorder_await_number(&shared, 50);
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
    kafka_open(&process, &topic, 1);
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
    kafka_open(&process, &topic, 1);
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

int kafka_run_topics(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_programs_topic_is_used_as_it_is),
        cmocka_unit_test(test_partitions_that_are_added_are_read_from_their_beginning),
        cmocka_unit_test(test_dead_letters_go_to_as_many_partitions_as_there_are),
        cmocka_unit_test(test_what_retention_took_is_a_gap),
        cmocka_unit_test(test_a_topic_that_is_gone_is_made_again),
        cmocka_unit_test(test_kcat_and_we_agree),
    };
    return cmocka_run_group_tests_name("kafka topics", tests, NULL, NULL);
}
