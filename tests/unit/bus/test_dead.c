/* Dead letters for operators (issue 15, point 1), the same on every engine: `test_bus_dead postgres`, `kafka` or `nats`. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "bus/bus_dead.h"
#include "bus/bus_kafka.h"
#include "bus/bus_nats.h"
#include "kafka_fixture.h"
#include "nats_fixture.h"
#include "postgres_rig.h"
#include "sql_rig.h"

enum { PARTITIONS = 3 };
static enum { ON_POSTGRES, ON_KAFKA, ON_NATS } engine;

/* Each test has a topic of its own. */
static char topic_name[32], dead_name[40];
static struct bus_topic topic = {.name = topic_name, .partitions = PARTITIONS};

/* ---- the engine ---- */

static struct bus *create(struct loop *loop, struct worker_pool *workers, const struct bus_topic *topics,
                          size_t count)
{
    struct error error = {0};
    struct bus *bus = NULL;
    if (engine == ON_POSTGRES)
        return postgres_create(loop, workers, topics, count);
    kafka_fixture_make_topic(topic_name, PARTITIONS);
    kafka_fixture_make_topic(dead_name, PARTITIONS);
    enum status status = engine == ON_KAFKA
                             ? bus_kafka_create(&(struct bus_kafka_config){.loop = loop,
                                                                           .workers = workers,
                                                                           .brokers = kafka_fixture_brokers(),
                                                                           .topics = topics,
                                                                           .topic_count = count},
                                                &bus, &error)
                             : bus_nats_create(&(struct bus_nats_config){.loop = loop,
                                                                         .workers = workers,
                                                                         .servers = nats_fixture_url(),
                                                                         .topics = topics,
                                                                         .topic_count = count},
                                               &bus, &error);
    if (status != STATUS_OK)
        fail_msg("create: %s", error.message);
    return bus;
}

static const struct conformance_driver drivers[] = {
    [ON_POSTGRES] = {.name = "postgres", .create = create},
    [ON_KAFKA] = {.name = "kafka", .create = create, .lacks_every = true, .repeats = true},
    [ON_NATS] = {.name = "nats", .create = create, .repeats = true},
};

static struct db_conn *conn; /* of the operator, on PostgreSQL */

static struct bus_dead *open_dead(void)
{
    struct bus_dead *dead = NULL;
    struct error error = {0};
    enum status status = STATUS_OK;
    if (engine == ON_POSTGRES) {
        status = db_acquire(sql_pool, clock_deadline_ms(PATIENCE_MS), &conn, &error);
        dead = bus_dead_open_postgres(conn);
    } else if (engine == ON_KAFKA) {
        status = bus_dead_open_kafka(&(struct bus_kafka_config){.brokers = kafka_fixture_brokers()}, &dead,
                                     &error);
    } else {
        status = bus_dead_open_nats(
            &(struct bus_nats_config){.servers = nats_fixture_url(), .topics = &topic, .topic_count = 1},
            clock_deadline_ms(PATIENCE_MS), &dead, &error);
    }
    if (status != STATUS_OK)
        fail_msg("open: %s", error.message);
    return dead;
}

static void close_dead(struct bus_dead *dead)
{
    bus_dead_close(dead);
    db_release(conn);
    conn = NULL;
}

/* ---- a test's topic, and what is read of it ---- */

static struct process process;
static struct recorder recorder;
static struct arena arena;

static int set_up(void **state)
{
    static int number;
    (void)state;
    snprintf(topic_name, sizeof topic_name, "dead%d.events", ++number);
    snprintf(dead_name, sizeof dead_name, "%s.dlq", topic_name);
    arena = ARENA(65536);
    recorder_init(&recorder);
    process.loop = loop_create(0, 0);
    process.workers = worker_pool_create("bus", 4, 100);
    process.bus = create(process.loop, process.workers, &topic, 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    process_close(&process);
    recorder_deinit(&recorder);
    arena_deinit(&arena);
    return 0;
}

static void publish_letter(const char *key, struct str payload, const struct bus_header *headers,
                           unsigned count)
{
    struct error error = {0};
    struct bus_message message = {.topic = str_from(dead_name),
                                  .key = str_from(key),
                                  .payload = payload,
                                  .headers = headers,
                                  .header_count = count};
    if (bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error) != STATUS_OK)
        fail_msg("publish: %s", error.message);
}

static struct bus_dead_range *look(struct bus_dead *dead, const char *group, size_t *count)
{
    struct bus_dead_range *ranges;
    struct error error = {0};
    enum status status =
        bus_dead_look(dead, dead_name, group, &arena, &ranges, count, clock_deadline_ms(PATIENCE_MS), &error);
    if (status != STATUS_OK)
        fail_msg("look: %s", error.message);
    return ranges;
}

static struct bus_dead_letter *read_spans(struct bus_dead *dead, const struct bus_dead_range *spans,
                                          size_t span_count, size_t payload_max, size_t bytes_max,
                                          size_t *count)
{
    struct bus_dead_letter *letters;
    struct error error = {0};
    const struct bus_dead_query query = {dead_name, spans, span_count, payload_max, bytes_max};
    enum status status =
        bus_dead_read(dead, &query, &arena, &letters, count, clock_deadline_ms(PATIENCE_MS), &error);
    if (status != STATUS_OK)
        fail_msg("read: %s", error.message);
    return letters;
}

/* ---- reading ---- */

static void test_a_letter_is_read_as_it_was_stored(void **state)
{
    (void)state;
    static const struct bus_header headers[] = {
        {STR("dlq-reason"), STR("not a command: \"<b>\"\n\xe2\x80\xae")},
        {STR("event-id"), STR("e-1")},
        {STR("empty"), STR("")}};
    static const char payload[] = "<script>\0\xff\xfe binary";
    size_t count;
    process_start(&process);
    int64_t begun_us = clock_unix_us();
    publish_letter("k\x01:\xff", str_of(payload, sizeof payload - 1), headers, 3);
    struct bus_dead *dead = open_dead();
    struct bus_dead_range *ranges = look(dead, NULL, &count);
    assert_int_equal(count, 1);
    struct bus_dead_letter *letters = read_spans(dead, ranges, 1, SIZE_MAX, SIZE_MAX, &count);
    assert_int_equal(count, 1);
    const struct bus_message *message = &letters->message;
    assert_true(str_eq(message->key, STR("k\x01:\xff")));
    assert_true(str_eq(message->payload, str_of(payload, sizeof payload - 1)));
    assert_int_equal(letters->bytes, sizeof payload - 1);
    assert_int_equal(message->header_count, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_true(str_eq(message->headers[i].name, headers[i].name));
        assert_true(str_eq(message->headers[i].value, headers[i].value));
    }
    assert_int_equal(message->offset, ranges->first);
    assert_int_equal(message->partition, ranges->partition);
    assert_true(message->created_us > begun_us - 5000000 && message->created_us < begun_us + 60000000);
    /* cut, and without its payload */
    letters = read_spans(dead, ranges, 1, 4, SIZE_MAX, &count);
    assert_true(str_eq(letters->message.payload, STR("<scr")));
    assert_int_equal(letters->bytes, sizeof payload - 1);
    letters = read_spans(dead, ranges, 1, 0, SIZE_MAX, &count);
    assert_int_equal(letters->message.payload.len, 0);
    assert_int_equal(letters->bytes, sizeof payload - 1);
    close_dead(dead);
}

static void test_spans_choose_letters_of_all_partitions_in_order(void **state)
{
    (void)state;
    enum { EACH = 200 };
    struct bus_dead_range spans[3 * PARTITIONS];
    size_t count, span_count = 0, wanted = 0;
    char payload[16];
    process_start(&process);
    for (int i = 0; i < EACH; i++)
        for (unsigned partition = 0; partition < PARTITIONS; partition++) {
            int len = snprintf(payload, sizeof payload, "%u-%d", partition, i);
            publish_letter(key_of_partition(partition, PARTITIONS), str_of(payload, (size_t)len), NULL, 0);
        }
    struct bus_dead *dead = open_dead();
    struct bus_dead_range *ranges = look(dead, NULL, &count);
    int64_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += ranges[i].next - ranges[i].first;
    assert_int_equal(total, EACH * PARTITIONS);
    /* the first, two near it, and many at the end: read on, and sought */
    for (size_t i = 0; i < count; i++) {
        int64_t first = ranges[i].first, next = ranges[i].next;
        spans[span_count++] = (struct bus_dead_range){ranges[i].partition, first, first + 1};
        spans[span_count++] = (struct bus_dead_range){ranges[i].partition, first + 5, first + 7};
        spans[span_count++] = (struct bus_dead_range){ranges[i].partition, next - 20, next};
        wanted += 23;
    }
    size_t found;
    struct bus_dead_letter *letters = read_spans(dead, spans, span_count, 64, SIZE_MAX, &found);
    assert_int_equal(found, wanted);
    size_t at = 0;
    for (size_t i = 0; i < span_count; i++)
        for (int64_t offset = spans[i].first; offset < spans[i].next; offset++, at++) {
            assert_int_equal(letters[at].message.offset, offset);
            assert_int_equal(letters[at].message.partition, spans[i].partition);
        }
    close_dead(dead);
}

static void test_a_read_is_bounded_by_bytes(void **state)
{
    (void)state;
    static char payload[20000];
    size_t count;
    memset(payload, 'x', sizeof payload);
    process_start(&process);
    for (int i = 0; i < 30; i++)
        publish_letter("one", str_of(payload, sizeof payload), NULL, 0);
    struct bus_dead *dead = open_dead();
    struct bus_dead_range *ranges = look(dead, NULL, &count);
    assert_int_equal(count, 1);
    (void)read_spans(dead, ranges, 1, SIZE_MAX, 100000, &count);
    assert_int_equal(count, 5);
    (void)read_spans(dead, ranges, 1, 10, 100000, &count); /* of what is kept of them */
    assert_int_equal(count, 30);
    close_dead(dead);
}

static void test_a_topic_without_letters_is_empty(void **state)
{
    (void)state;
    size_t count;
    struct arena own = ARENA(1024);
    struct bus_dead_range *ranges, beyond = {0, 1000, 1020};
    struct error error = {0};
    process_start(&process);
    publish_letter("k", STR("1"), NULL, 0); /* so that the engine has it */
    struct bus_dead *dead = open_dead();
    (void)read_spans(dead, &beyond, 1, 10, 1000, &count);
    assert_int_equal(count, 0);
    if (engine != ON_NATS) { /* which knows its topics */
        assert_int_equal(bus_dead_look(dead, "no.such.dlq", NULL, &own, &ranges, &count,
                                       clock_deadline_ms(PATIENCE_MS), &error),
                         STATUS_OK);
        assert_int_equal(count, 0);
    }
    close_dead(dead);
    arena_deinit(&own);
}

static void test_what_a_group_has_moved_elsewhere_is_left_out(void **state)
{
    (void)state;
    size_t count;
    if (engine == ON_KAFKA)
        skip(); /* no group reads dead letters there */
    recorder.behave = NULL;
    subscribe(&process, &recorder, (struct bus_subscription){.topic = dead_name, .group = "mover"});
    process_start(&process);
    await_ready(&recorder);
    for (int i = 0; i < 4; i++)
        publish_letter("k", STR("1"), NULL, 0);
    assert_true(recorder_await_committed(&recorder, 4));
    struct bus_dead *dead = open_dead();
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    do
        (void)look(dead, "mover", &count); /* NATS knows of acknowledgements a moment later */
    while (count > 0 && clock_mono_ns() < limit_ns);
    assert_int_equal(count, 0);
    (void)look(dead, "another", &count);
    assert_int_equal(count, 1);
    close_dead(dead);
}

/* ---- publishing again ---- */

static void refuse_first(struct recorder *of, struct bus_batch *batch)
{
    pthread_mutex_lock(&of->lock);
    bool refuses = of->step == 0;
    pthread_mutex_unlock(&of->lock);
    for (size_t i = 0; i < batch->count && refuses; i++)
        bus_batch_term(batch, i, "refused");
    recorder_add(of, batch, batch->count);
}

static struct bus_dead_letter *await_letter(struct bus_dead *dead)
{
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    struct bus_dead_range *ranges;
    size_t count;
    do
        ranges = look(dead, NULL, &count);
    while (count == 0 && clock_mono_ns() < limit_ns);
    assert_int_equal(count, 1);
    return read_spans(dead, ranges, 1, SIZE_MAX, SIZE_MAX, &count);
}

static void test_a_requeued_message_is_the_original_and_is_delivered(void **state)
{
    (void)state;
    static const struct bus_header headers[] = {{STR("event-id"), STR("e-77")}, {STR("tenant_id"), STR("t")}};
    struct bus_message message = {.topic = str_from(topic_name),
                                  .key = STR("acme:X"),
                                  .payload = STR("77"),
                                  .headers = headers,
                                  .header_count = 2},
                       original;
    struct error error = {0};
    recorder.behave = refuse_first;
    subscribe(&process, &recorder, (struct bus_subscription){.topic = topic_name, .group = "readers"});
    process_start(&process);
    await_ready(&recorder);
    assert_int_equal(bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error),
                     STATUS_OK);
    assert_true(recorder_await_committed(&recorder, 1));
    struct bus_dead *dead = open_dead();
    struct bus_dead_letter *letter = await_letter(dead);
    assert_true(str_eq(bus_message_header(&letter->message, STR("dlq-reason")), STR("refused")));
    assert_true(bus_dead_original(&letter->message, str_from(topic_name), &arena, &original));
    assert_int_equal(original.header_count, 2);
    assert_true(str_eq(original.headers[0].value, STR("e-77")));
    assert_true(str_eq(original.key, message.key));
    recorder_step(&recorder, 1);
    for (int i = 0; i < 2; i++) { /* twice: engines that drop repetitions do not drop these */
        if (conn)
            assert_int_equal(db_begin(conn, DB_READ_COMMITTED, clock_deadline_ms(PATIENCE_MS), &error),
                             STATUS_OK);
        if (bus_dead_publish(dead, &original, 1, clock_deadline_ms(PATIENCE_MS), &error) != STATUS_OK)
            fail_msg("publish: %s", error.message);
        if (conn)
            assert_int_equal(db_commit(conn, clock_deadline_ms(PATIENCE_MS), &error), STATUS_OK);
        bus_dead_wake(dead, original.topic, clock_deadline_ms(PATIENCE_MS));
        assert_true(recorder_await(&recorder, 2 + (size_t)i));
    }
    close_dead(dead);
    assert_int_equal(recorder.seen[1].number, 77);
    assert_int_equal(recorder.seen[1].partition, recorder.seen[0].partition);
    assert_int_equal(recorder.seen[2].number, 77);
}

static void test_a_letter_whose_content_was_not_kept_has_no_original(void **state)
{
    (void)state;
    static const struct bus_header headers[] = {{STR("dlq-reason"), STR("x; it was too large to be kept")},
                                                {STR("dlq-topic"), STR("t")}};
    struct bus_message letter = {.key = STR("k"), .payload = STR(""), .headers = headers, .header_count = 2},
                       original;
    assert_false(bus_dead_original(&letter, STR("t"), &arena, &original));
    letter.payload = STR("x");
    assert_true(bus_dead_original(&letter, STR("t"), &arena, &original));
    process_start(&process);
}

static void test_a_message_to_a_topic_that_is_not_there_is_refused(void **state)
{
    (void)state;
    struct bus_message message = {.topic = STR("no.such.topic"), .key = STR("k"), .payload = STR("1")};
    struct error error = {0};
    process_start(&process);
    if (engine == ON_KAFKA && !kafka_fixture_is_real())
        skip(); /* the mock has every topic that it is asked for */
    publish_letter("k", STR("1"), NULL, 0);
    struct bus_dead *dead = open_dead();
    assert_int_equal(bus_dead_publish(dead, &message, 1, clock_deadline_ms(PATIENCE_MS), &error),
                     STATUS_NOT_FOUND);
    close_dead(dead);
}

static void test_an_engine_that_does_not_answer_ends_at_the_deadline(void **state)
{
    (void)state;
    struct bus_dead *dead = NULL;
    struct bus_dead_range *ranges;
    struct error error = {0};
    size_t count;
    process_start(&process);
    if (engine == ON_POSTGRES)
        skip(); /* db.h's */
    int64_t begun_ns = clock_mono_ns();
    enum status status =
        engine == ON_KAFKA
            ? bus_dead_open_kafka(&(struct bus_kafka_config){.brokers = "127.0.0.1:1"}, &dead, &error)
            : bus_dead_open_nats(&(struct bus_nats_config){.servers = "nats://127.0.0.1:1",
                                                           .topics = &topic,
                                                           .topic_count = 1},
                                 clock_deadline_ms(1000), &dead, &error);
    if (status == STATUS_OK)
        status =
            bus_dead_look(dead, dead_name, NULL, &arena, &ranges, &count, clock_deadline_ms(1000), &error);
    bus_dead_close(dead);
    assert_true(status == STATUS_UNAVAILABLE || status == STATUS_TIMEOUT);
    assert_true(clock_mono_ns() - begun_ns < 20 * CLOCK_NS_PER_S);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_letter_is_read_as_it_was_stored),
        TEST(test_spans_choose_letters_of_all_partitions_in_order),
        TEST(test_a_read_is_bounded_by_bytes),
        TEST(test_a_topic_without_letters_is_empty),
        TEST(test_what_a_group_has_moved_elsewhere_is_left_out),
        TEST(test_a_requeued_message_is_the_original_and_is_delivered),
        TEST(test_a_letter_whose_content_was_not_kept_has_no_original),
        TEST(test_a_message_to_a_topic_that_is_not_there_is_refused),
        TEST(test_an_engine_that_does_not_answer_ends_at_the_deadline),
    };
    const char *name = argc > 1 ? argv[1] : "postgres";
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    log_set_level(LOG_LEVEL_ERROR);
    engine = strcmp(name, "kafka") == 0 ? ON_KAFKA : strcmp(name, "nats") == 0 ? ON_NATS : ON_POSTGRES;
    driver = &drivers[engine];
    if (engine == ON_KAFKA)
        kafka_fixture_start();
    else if (engine == ON_NATS)
        nats_fixture_start("");
    sql_rig_start();
    if (engine == ON_POSTGRES)
        postgres_migrate();
    int failed = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    sql_rig_stop();
    if (engine == ON_KAFKA)
        kafka_fixture_stop();
    else if (engine == ON_NATS)
        nats_fixture_stop();
    return failed ? 1 : 0;
}
