/* Conformance: order, sharing, broadcast, transactions, sizes. */
#include <stdio.h>
#include <stdlib.h>

#include "bus/bus_postgres.h"
#include "conformance.h"

/* ---- order per key under concurrent publishers ---- */

#define PUBLISHERS 4
#define EACH 150

struct publisher {
    struct process *process;
    int index;
};

static void *publish_series(void *arg)
{
    const struct publisher *publisher = arg;
    char key[16];

    for (int i = 0; i < EACH; i++) {
        snprintf(key, sizeof key, "p%d-%d", publisher->index, i % 3);
        publish_until_accepted(publisher->process, "order", key, publisher->index * 1000 + i);
    }
    return NULL;
}

/* Per key ascending and nothing missing. Only for what came without a fault: then nothing comes twice. */
static void assert_series(struct recorder *recorder)
{
    assert_int_equal(recorder->count, recorder->absent ? 0 : PUBLISHERS * EACH);
    for (size_t i = 0; i < recorder->count; i++)
        for (size_t j = i + 1; j < recorder->count; j++)
            if (strcmp(recorder->seen[i].key, recorder->seen[j].key) == 0)
                assert_true(recorder->seen[i].number < recorder->seen[j].number);
}

static void test_order_holds_per_key_under_concurrent_publishers(void **state)
{
    (void)state;
    struct process processes[2];
    struct recorder shared, every;
    struct publisher publishers[PUBLISHERS];
    pthread_t threads[PUBLISHERS];

    recorder_init(&shared);
    recorder_init(&every);
    for (int i = 0; i < 2; i++) {
        process_open(&processes[i]);
        subscribe(&processes[i], &shared, (struct bus_subscription){.topic = "order", .batch_max = 7});
    }
    subscribe(&processes[0], &every, (struct bus_subscription){.topic = "order", .mode = BUS_EVERY});
    for (int i = 0; i < 2; i++)
        process_start(&processes[i]);
    await_ready(&shared);
    await_ready(&every);
    for (int i = 0; i < PUBLISHERS; i++) {
        publishers[i] = (struct publisher){&processes[i % 2], i};
        pthread_create(&threads[i], NULL, publish_series, &publishers[i]);
    }
    for (int i = 0; i < PUBLISHERS; i++)
        pthread_join(threads[i], NULL);
    bool came = recorder_await_committed(&shared, PUBLISHERS * EACH) &&
                recorder_await_committed(&every, PUBLISHERS * EACH);
    for (int i = 0; i < 2; i++)
        process_close(&processes[i]);
    assert_true(came);
    assert_series(&shared);
    assert_series(&every);
    recorder_deinit(&shared);
    recorder_deinit(&every);
}

/* ---- offset order is commit order ---- */

static enum status publish_in(struct process *process, struct db_conn *conn, const char *topic,
                              const char *key, const char *payload, int64_t *offset)
{
    struct bus_message message = {
        .topic = str_from(topic), .key = str_from(key), .payload = str_from(payload)};
    enum status status =
        bus_publish_in_tx(process->bus, conn, &message, 1, clock_deadline_ms(PATIENCE_MS), NULL);

    *offset = message.offset;
    return status;
}

static void *publish_two(void *process)
{
    publish_until_accepted(process, "commit-order", "k", 2);
    return NULL;
}

/* A is given its offset first and commits last of the two: B must not get past it, or a reader could see B,
 * move on, and never see A. */
static void test_an_offset_waits_for_the_one_before_it(void **state)
{
    (void)state;
    if (!driver->begin)
        skip();
    for (int commit = 0; commit < 2; commit++) {
        struct process process;
        struct recorder recorder;
        pthread_t thread;
        int64_t first;
        recorder_init(&recorder);
        process_open(&process);
        subscribe(&process, &recorder, (struct bus_subscription){.topic = "commit-order", .mode = BUS_EVERY});
        process_start(&process);
        await_ready(&recorder);
        struct db_conn *conn = driver->begin();
        assert_int_equal(publish_in(&process, conn, "commit-order", "k", "1", &first), STATUS_OK);
        pthread_create(&thread, NULL, publish_two, &process);
        while (!driver->publisher_waits())
            continue;
        pthread_mutex_lock(&recorder.lock);
        size_t early = recorder.count;
        pthread_mutex_unlock(&recorder.lock);
        driver->end(conn, commit);
        pthread_join(thread, NULL);
        bus_wake(process.bus, STR("commit-order"));
        bool came = recorder_await_committed(&recorder, (size_t)commit + 1);
        process_close(&process);
        assert_true(came);
        assert_int_equal(early, 0);
        assert_int_equal(recorder.count, commit + 1);
        assert_int_equal(recorder.seen[0].number, commit ? 1 : 2);
        assert_int_equal(recorder.seen[0].offset, first);
        assert_int_equal(recorder.seen[recorder.count - 1].number, 2);
        recorder_deinit(&recorder);
    }
}

static void test_what_is_rolled_back_was_never_published(void **state)
{
    (void)state;
    if (!driver->begin)
        skip();
    struct process process;
    struct recorder recorder;
    int64_t offset;
    recorder_init(&recorder);
    process_open(&process);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "tx"});
    process_start(&process);
    await_ready(&recorder);
    for (int i = 0; i < 10; i++) {
        char payload[16];
        snprintf(payload, sizeof payload, "%d", i);
        struct db_conn *conn = driver->begin();
        assert_int_equal(publish_in(&process, conn, "tx", "k", payload, &offset), STATUS_OK);
        driver->end(conn, i % 2);
        bus_wake(process.bus, STR("tx"));
    }
    bool came = recorder_await_committed(&recorder, 5);
    process_close(&process);
    assert_true(came);
    assert_int_equal(recorder.count, 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(recorder.seen[i].number, 2 * i + 1);
    recorder_deinit(&recorder);
}

/* ---- sharing and broadcast ---- */

static atomic_bool met_nobody;

/* Each member holds one message until the other has one too: they share, or one waits in vain. */
static void meet(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
    pthread_mutex_lock(&recorder->lock);
    recorder->step++;
    pthread_cond_broadcast(&recorder->changed);
    pthread_mutex_unlock(&recorder->lock);
    if (!recorder_await_step(recorder, 2))
        met_nobody = true;
}

static void test_a_group_shares_partitions_and_goes_on_with_who_is_left(void **state)
{
    (void)state;
    if (driver->lacks_shared)
        skip();
    struct process processes[2];
    struct recorder recorders[2], both;
    recorder_init(&both);
    both.behave = meet;
    for (int i = 0; i < 2; i++) {
        recorder_init(&recorders[i]);
        process_open(&processes[i]);
        subscribe(&processes[i], &both, (struct bus_subscription){.topic = "share", .parallel = 1});
        subscribe(&processes[i], &recorders[i],
                  (struct bus_subscription){.topic = "share", .group = "second", .parallel = 1});
        process_start(&processes[i]);
        await_ready(&recorders[i]);
    }
    await_ready(&both);
    for (unsigned partition = 0; partition < 4; partition++)
        publish(&processes[0], "share", key_of_partition(partition, 4), (int)partition);
    bool shared = recorder_await_committed(&both, 4);
    process_close(&processes[0]); /* what it had is the other's now */
    size_t left = 4 - recorders[0].committed;
    for (unsigned partition = 0; partition < 4; partition++)
        publish(&processes[1], "share", key_of_partition(partition, 4), 10 + (int)partition);
    bool rebalanced = recorder_await_committed(&recorders[1], left + 4);
    process_close(&processes[1]);
    assert_true(shared);
    assert_false(met_nobody);
    assert_true(rebalanced);
    for (int number = 0; number < 4; number++) {
        assert_int_equal(recorder_times(&recorders[0], number) + recorder_times(&recorders[1], number), 1);
        assert_int_equal(recorder_times(&recorders[1], 10 + number), 1);
    }
    for (int i = 0; i < 2; i++)
        recorder_deinit(&recorders[i]);
    recorder_deinit(&both);
}

static void test_everything_reaches_every_process(void **state)
{
    (void)state;
    if (driver->lacks_every)
        skip();
    struct process processes[3];
    struct recorder recorders[3];
    for (int i = 0; i < 3; i++) {
        recorder_init(&recorders[i]);
        process_open(&processes[i]);
        subscribe(&processes[i], &recorders[i],
                  (struct bus_subscription){.topic = "every", .mode = BUS_EVERY});
        process_start(&processes[i]);
        await_ready(&recorders[i]);
    }
    for (int number = 0; number < 100; number++)
        publish(&processes[number % 3], "every", number % 2 ? "odd" : "even", number);
    bool came = true;
    for (int i = 0; i < 3; i++)
        came &= recorder_await_committed(&recorders[i], 100);
    for (int i = 0; i < 3; i++)
        process_close(&processes[i]);
    assert_true(came);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(recorders[i].count, 100);
        assert_int_equal(recorders[i].gaps, 0);
        for (int number = 0; number < 100; number++)
            assert_int_equal(recorder_times(&recorders[i], number), 1);
        recorder_deinit(&recorders[i]);
    }
}

/* A reader begins at its creation, or at the oldest message that is kept. */
static void test_readers_begin_where_they_ask(void **state)
{
    (void)state;
    struct process process;
    struct recorder now, start, again;
    process_open(&process);
    process_start(&process);
    for (int number = 0; number < 5; number++)
        publish(&process, "start", key_of_partition(0, 2), number);
    process_close(&process);

    struct recorder *all[] = {&now, &start, &again};
    for (int i = 0; i < 3; i++)
        recorder_init(all[i]);
    process_open(&process);
    subscribe(&process, &now,
              (struct bus_subscription){.topic = "start", .group = "now", .mode = either_mode()});
    subscribe(&process, &start,
              (struct bus_subscription){
                  .topic = "start", .group = "start", .mode = either_mode(), .from = BUS_FROM_START});
    subscribe(&process, &again,
              (struct bus_subscription){.topic = "start", .mode = BUS_EVERY, .from = BUS_FROM_START});
    process_start(&process);
    for (int i = 0; i < 3; i++)
        await_ready(all[i]);
    publish(&process, "start", key_of_partition(0, 2), 5);
    bool came = recorder_await_committed(&now, 1) && recorder_await_committed(&start, 6) &&
                recorder_await_committed(&again, 6);
    process_close(&process);
    assert_true(came);
    assert_int_equal(now.seen[0].number, 5);
    assert_int_equal(start.seen[0].number, 0);
    assert_true(again.absent || again.seen[0].number == 0);
    for (int i = 0; i < 3; i++)
        recorder_deinit(all[i]);
}

/* ---- content ---- */

#define MIB (1u << 20)

/* Atomic: that the handler runs after the publication is the engine's doing, which no lock of this process shows. */
struct content {
    const char *bytes;
    atomic_size_t len;
    atomic_bool intact;
};
static struct content content;

static void compare_payload(struct recorder *recorder, struct bus_batch *batch)
{
    content.intact = str_eq(batch->messages[0].payload, str_of(content.bytes, content.len));
    recorder_add(recorder, batch, batch->count);
}

/* An engine whose limit is a mebibyte with everything refuses that one; none loses it, and none is the worse for it. */
static void test_a_mebibyte_is_carried_or_refused_and_more_than_the_limit_refused(void **state)
{
    (void)state;
    struct process process;
    struct recorder recorder;
    char *bytes = malloc(8 * MIB);
    struct error error = {0};
    recorder_init(&recorder);
    recorder.behave = compare_payload;
    for (size_t i = 0; i < 8 * MIB; i++)
        bytes[i] = (char)(i * 131 + i / 256); /* every byte, NUL included */
    content.bytes = bytes;
    content.len = MIB;
    process_open(&process);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "large", .mode = either_mode()});
    process_start(&process);
    await_ready(&recorder);
    struct bus_message message = {.topic = STR("large"), .key = STR("k"), .payload = str_of(bytes, MIB)};
    enum status carried = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error);
    message.payload.len = 8 * MIB;
    enum status refused = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error);
    bool came = carried != STATUS_OK || recorder_await_committed(&recorder, 1);
    bool intact = carried != STATUS_OK || content.intact;
    content.len = message.payload.len = MIB / 2;
    enum status after = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), NULL);
    came &= recorder_await_committed(&recorder, carried == STATUS_OK ? 2 : 1);
    process_close(&process);
    free(bytes);
    assert_true(carried == STATUS_OK || carried == STATUS_PAYLOAD_TOO_LARGE);
    assert_int_equal(after, STATUS_OK);
    assert_true(intact);
    assert_int_equal(refused, STATUS_PAYLOAD_TOO_LARGE);
    assert_non_null(strstr(error.message, "limit"));
    assert_true(came);
    assert_true(content.intact);
    recorder_deinit(&recorder);
}

static const struct bus_header odd_headers[] = {
    {STR("traceparent"), STR("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")},
    {STR("a \"quoted\\\" {name},"), STR("NULL")},
    {STR("empty"), STR("")},
    {STR("twice"), STR("1")},
    {STR("twice"), STR("line\nbreak, \xc3\xa9\xf0\x9f\x98\x80 ")},
};
#define ODD_HEADERS (sizeof odd_headers / sizeof odd_headers[0])
static atomic_bool headers_intact;

static void compare_headers(struct recorder *recorder, struct bus_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        const struct bus_message *message = &batch->messages[i];
        if (message->header_count != ODD_HEADERS)
            continue;
        bool intact = true;
        for (size_t at = 0; at < ODD_HEADERS; at++)
            intact &= str_eq(message->headers[at].name, odd_headers[at].name) &&
                      str_eq(message->headers[at].value, odd_headers[at].value);
        headers_intact = intact && str_eq(message->key, str_of("k\0\xff", 3)) &&
                         str_eq(bus_message_header(message, STR("twice")), STR("1")) &&
                         message->created_us > 0;
    }
    recorder_add(recorder, batch, batch->count);
}

static void test_headers_and_keys_arrive_as_they_were(void **state)
{
    (void)state;
    struct process process;
    struct recorder recorder;
    struct bus_header bad = {STR("name"), STR("\xff")};
    recorder_init(&recorder);
    recorder.behave = compare_headers;
    process_open(&process);
    subscribe(&process, &recorder,
              (struct bus_subscription){.topic = "text", .mode = either_mode(), .parallel = 1});
    process_start(&process);
    await_ready(&recorder);
    struct bus_message messages[4] = {{.topic = STR("text"),
                                       .key = str_of("k\0\xff", 3),
                                       .payload = STR("0"),
                                       .headers = odd_headers,
                                       .header_count = ODD_HEADERS}};
    for (int i = 1; i < 4; i++) /* without a key partitions take turns */
        messages[i] = (struct bus_message){.topic = STR("text"), .payload = STR("")};
    enum status good = bus_publish(process.bus, messages, 4, clock_deadline_ms(PATIENCE_MS), NULL);
    unsigned used = 1u << messages[1].partition | 1u << messages[2].partition | 1u << messages[3].partition;
    bool came = recorder_await_committed(&recorder, 4);
    messages[0].headers = &bad;
    messages[0].header_count = 1;
    enum status refused = bus_publish(process.bus, messages, 1, clock_deadline_ms(PATIENCE_MS), NULL);
    messages[0].topic = STR("nowhere");
    messages[0].header_count = 0;
    enum status unknown = bus_publish(process.bus, messages, 1, clock_deadline_ms(PATIENCE_MS), NULL);
    process_close(&process);
    assert_int_equal(good, STATUS_OK);
    assert_true(came);
    assert_true(headers_intact);
    assert_int_equal(used, (1u << partitions_of("text")) - 1);
    assert_int_equal(refused, STATUS_BAD_REQUEST);
    assert_int_equal(unknown, STATUS_BAD_REQUEST);
    recorder_deinit(&recorder);
}

static void note_batches(struct recorder *recorder, struct bus_batch *batch)
{
    if (batch->count > 3)
        recorder_step(recorder, 1);
    recorder_add(recorder, batch, batch->count);
}

static void test_a_batch_is_bounded_by_its_bytes(void **state)
{
    (void)state;
    struct process process;
    struct recorder recorder;
    static char bytes[100000];
    struct bus_message messages[20];
    recorder_init(&recorder);
    recorder.behave = note_batches;
    for (int i = 0; i < 20; i++)
        messages[i] = (struct bus_message){
            .topic = STR("bytes"), .key = STR("k"), .payload = str_of(bytes, sizeof bytes)};
    process_open(&process);
    subscribe(&process, &recorder,
              (struct bus_subscription){
                  .topic = "bytes", .mode = either_mode(), .batch_bytes_max = 2 * sizeof bytes + 1});
    process_start(&process);
    await_ready(&recorder);
    enum status status = bus_publish(process.bus, messages, 20, clock_deadline_ms(PATIENCE_MS), NULL);
    bool came = recorder_await_committed(&recorder, 20);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
    assert_true(came);
    assert_int_equal(recorder.step, 0);
    assert_int_equal(recorder.count, 20);
    recorder_deinit(&recorder);
}

enum { MIXED = 20, MIXED_BYTES_MAX = 1000, LARGE_BYTES = 100000 };

/* Each third is larger than a batch: it comes alone, whole, and in its place. */
static void check_mixed(struct recorder *recorder, struct bus_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        struct str payload = batch->messages[i].payload;
        bool is_large = payload.len > MIXED_BYTES_MAX;
        if ((is_large && (batch->count > 1 || payload.len != LARGE_BYTES)) || payload.len == 0 ||
            (unsigned char)payload.ptr[payload.len - 1] != recorder->count + i)
            recorder_step(recorder, 1);
    }
    recorder_add(recorder, batch, batch->count);
}

static void test_a_message_larger_than_a_batch_is_handled_alone(void **state)
{
    (void)state;
    struct process process;
    struct recorder recorder;
    static char bytes[MIXED][LARGE_BYTES];
    struct bus_message messages[MIXED];
    recorder_init(&recorder);
    recorder.behave = check_mixed;
    for (size_t i = 0; i < MIXED; i++) {
        size_t len = i % 3 == 1 ? LARGE_BYTES : MIXED_BYTES_MAX / 4;
        bytes[i][len - 1] = (char)i;
        messages[i] =
            (struct bus_message){.topic = STR("bytes"), .key = STR("k"), .payload = str_of(bytes[i], len)};
    }
    process_open(&process);
    subscribe(&process, &recorder,
              (struct bus_subscription){
                  .topic = "bytes", .mode = either_mode(), .batch_bytes_max = MIXED_BYTES_MAX});
    process_start(&process);
    await_ready(&recorder);
    enum status status = bus_publish(process.bus, messages, MIXED, clock_deadline_ms(PATIENCE_MS), NULL);
    bool came = recorder_await_committed(&recorder, MIXED);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
    assert_true(came);
    assert_int_equal(recorder.step, 0);
    assert_int_equal(recorder.count, MIXED);
    recorder_deinit(&recorder);
}

int conformance_run_order(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_holds_per_key_under_concurrent_publishers),
        cmocka_unit_test(test_an_offset_waits_for_the_one_before_it),
        cmocka_unit_test(test_what_is_rolled_back_was_never_published),
        cmocka_unit_test(test_a_group_shares_partitions_and_goes_on_with_who_is_left),
        cmocka_unit_test(test_everything_reaches_every_process),
        cmocka_unit_test(test_readers_begin_where_they_ask),
        cmocka_unit_test(test_a_mebibyte_is_carried_or_refused_and_more_than_the_limit_refused),
        cmocka_unit_test(test_headers_and_keys_arrive_as_they_were),
        cmocka_unit_test(test_a_batch_is_bounded_by_its_bytes),
        cmocka_unit_test(test_a_message_larger_than_a_batch_is_handled_alone),
    };
    return cmocka_run_group_tests_name("order", tests, NULL, NULL);
}
