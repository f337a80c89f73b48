/* The NATS driver as others see it: names exactly as given, deliveries that the server counts, and letters of what it gave
 * up. The other program here is a plain client of NATS on the same durable consumer. */
#include <nats/nats.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../db/pg_fixture.h"
#include "nats_fixture.h"
#include "test_nats.h"

static const struct bus_topic orders = {.name = "orders.events", .partitions = 1};
/* Every test has streams of its own: what is told of one that was deleted would be taken for the next one's. */
static char stream[16], dead_stream[24], subject[16], dead_subject[24];
static const struct bus_nats_names orders_names = {
    .topic = "orders.events", .stream = stream, .subject = subject, .duplicate_window_ms = 600000};

static struct {
    natsConnection *connection;
    jsCtx *js;
} other;

static int open_other(void **state)
{
    static unsigned turn;

    (void)state;
    snprintf(stream, sizeof stream, "ORDERS%u", ++turn);
    snprintf(dead_stream, sizeof dead_stream, "%s_dlq", stream);
    snprintf(subject, sizeof subject, "orders.v%u", turn);
    snprintf(dead_subject, sizeof dead_subject, "%s.dlq", subject);
    nats_next.names = &orders_names;
    nats_next.name_count = 1;
    return natsConnection_ConnectTo(&other.connection, nats_fixture_url()) == NATS_OK &&
                   natsConnection_JetStream(&other.js, other.connection, NULL) == NATS_OK
               ? 0
               : -1;
}

static int close_other(void **state)
{
    (void)state;
    jsCtx_Destroy(other.js);
    natsConnection_Destroy(other.connection);
    nats_next.names = NULL;
    nats_next.name_count = 0;
    nats_next.advisory_stream = nats_next.terminated_stream = NULL;
    return 0;
}

static void pause_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

struct reader {
    struct process process;
    struct recorder recorder;
};

static void open_reader(struct reader *reader, unsigned attempts_max,
                        void (*behave)(struct recorder *recorder, struct bus_batch *batch))
{
    recorder_init(&reader->recorder);
    reader->recorder.behave = behave;
    nats_open_with(&reader->process, &orders, 1);
    subscribe(&reader->process, &reader->recorder,
              (struct bus_subscription){.topic = "orders.events",
                                        .group = "mailer",
                                        .from = BUS_FROM_START,
                                        .attempts_max = attempts_max,
                                        .backoff_min_ms = 20});
    process_start(&reader->process);
    await_ready(&reader->recorder);
}

static void close_reader(struct reader *reader)
{
    process_close(&reader->process);
    recorder_deinit(&reader->recorder);
}

/* ---- names ---- */

static bool stream_has(const char *name, const char *only, int64_t window_s)
{
    jsStreamInfo *info = NULL;
    bool good = js_GetStreamInfo(&info, other.js, name, NULL, NULL) == NATS_OK &&
                info->Config->SubjectsLen == 1 && strcmp(info->Config->Subjects[0], only) == 0 &&
                info->Config->Duplicates == window_s * 1000000000;

    jsStreamInfo_Destroy(info);
    return good;
}

static bool durable_has(int64_t deliveries_max, int64_t ack_wait_ms)
{
    jsConsumerInfo *info = NULL;
    bool good = js_GetConsumerInfo(&info, other.js, stream, "mailer", NULL, NULL) == NATS_OK &&
                strcmp(info->Config->Durable, "mailer") == 0 && info->Config->MaxDeliver == deliveries_max &&
                info->Config->AckWait == ack_wait_ms * 1000000 && info->Config->AckPolicy == js_AckExplicit;

    jsConsumerInfo_Destroy(info);
    return good;
}

/* E4, N1: others find stream, subject and consumer by the names that configuration gives, and with its limits. */
static void test_names_and_limits_are_exactly_those_given(void **state)
{
    (void)state;
    struct bus_nats_names longer = orders_names;
    struct reader reader;
    open_reader(&reader, 4, NULL);
    natsStatus sent = js_Publish(NULL, other.js, subject, "3", 1, NULL, NULL);
    bool came = recorder_await_committed(&reader.recorder, 1);
    publish(&reader.process, "orders.events", "k", 4);
    came = came && recorder_await_committed(&reader.recorder, 2);
    bool first = stream_has(stream, subject, 600) && stream_has(dead_stream, dead_subject, 600) &&
                 durable_has(4, 1000);
    close_reader(&reader);
    longer.duplicate_window_ms = 900000;
    nats_next.names = &longer;
    open_reader(&reader, 0, NULL);
    bool second = stream_has(stream, subject, 900) && durable_has(-1, 1000);
    close_reader(&reader);
    assert_int_equal(sent, NATS_OK);
    assert_true(came);
    assert_true(first);
    assert_true(second);
}

static enum status create_with(const struct bus_nats_names *names, const char *advisory_stream)
{
    struct bus_nats_config config = {.servers = "nats://127.0.0.1:1",
                                     .topics = &orders,
                                     .topic_count = 1,
                                     .names = names,
                                     .name_count = 1,
                                     .advisory_stream = advisory_stream};
    struct error error = {0};
    struct bus *bus;
    enum status status = bus_nats_create(&config, &bus, &error);

    bus_destroy(bus);
    return status == STATUS_CONFIG && !error.message[0] ? STATUS_OK : status;
}

static void test_names_that_jetstream_refuses_are_refused_at_once(void **state)
{
    (void)state;
    static const char *const streams[] = {"", "a b", "a.b", "a*", "a>", "a/b", "a\\b", "a\tb", "\xc3\xa4"};
    static const char *const subjects[] = {"", "a..b", ".a", "a.", "a b", "a.*", "a.>", "$JS.API", "a\n"};
    char endless[200];
    memset(endless, 'x', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++)
        assert_int_equal(create_with(&(struct bus_nats_names){"orders.events", streams[i], "s", 0}, NULL),
                         STATUS_CONFIG);
    for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++)
        assert_int_equal(create_with(&(struct bus_nats_names){"orders.events", "S", subjects[i], 0}, NULL),
                         STATUS_CONFIG);
    assert_int_equal(create_with(&(struct bus_nats_names){"orders.events", endless, "s", 0}, NULL),
                     STATUS_CONFIG);
    assert_int_equal(create_with(&orders_names, "a.b"), STATUS_CONFIG);
    assert_int_equal(create_with(&orders_names, "kept"), STATUS_OK);
    assert_int_equal(create_with(&(struct bus_nats_names){"orders.events", NULL, NULL, 0}, NULL), STATUS_OK);
}

static void test_a_subject_that_another_stream_has_is_refused(void **state)
{
    (void)state;
    const char *all = subject;
    struct bus_message message = {.topic = STR("orders.events"), .key = STR("k"), .payload = STR("1")};
    struct error error = {0};
    struct process process;
    jsStreamConfig config;
    jsStreamConfig_Init(&config);
    config.Name = "TAKEN";
    config.Subjects = &all;
    config.SubjectsLen = 1;
    natsStatus taken = js_AddStream(NULL, other.js, &config, NULL, NULL);
    nats_open_with(&process, &orders, 1);
    process_start(&process);
    enum status status = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error);
    process_close(&process);
    js_DeleteStream(other.js, "TAKEN", NULL, NULL);
    assert_int_equal(taken, NATS_OK);
    assert_int_equal(status, STATUS_CONFIG);
    assert_non_null(strstr(error.message, subject));
}

/* ---- letters ---- */

static bool has_header(natsMsg *letter, const char *name, const char *value)
{
    const char *text = NULL;

    return natsMsgHeader_Get(letter, name, &text) == NATS_OK && strcmp(text, value) == 0;
}

/* The first letter, whole; `offset` is where the message stood. */
static bool await_letter(uint64_t at, const char *payload, const char *reason, const char *offset)
{
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    natsMsg *letter = NULL;

    while (js_GetMsg(&letter, other.js, dead_stream, at, NULL, NULL) != NATS_OK && clock_mono_ns() < limit_ns)
        pause_a_little();
    bool good = letter && (size_t)natsMsg_GetDataLength(letter) == strlen(payload) &&
                memcmp(natsMsg_GetData(letter), payload, strlen(payload)) == 0 &&
                has_header(letter, "dlq-reason", reason) &&
                has_header(letter, "dlq-topic", "orders.events") &&
                has_header(letter, "dlq-partition", "0") && has_header(letter, "dlq-offset", offset) &&
                has_header(letter, "dlq-group", "mailer");
    natsMsg_Destroy(letter);
    return good;
}

static uint64_t letters(void)
{
    jsStreamInfo *info = NULL;
    uint64_t count = UINT64_MAX;

    if (js_GetStreamInfo(&info, other.js, dead_stream, NULL, NULL) == NATS_OK)
        count = info->State.Msgs;
    jsStreamInfo_Destroy(info);
    return count;
}

/* All that the server told so far was read and settled. */
static bool await_advisories(void)
{
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    char durable[64];
    bool quiet = false;

    snprintf(durable, sizeof durable, "mailer@%s@MSG_TERMINATED", stream);
    while (!quiet && clock_mono_ns() < limit_ns) {
        jsConsumerInfo *info = NULL;
        pause_a_little();
        quiet = js_GetConsumerInfo(&info, other.js, "freshet_advisories", durable, NULL, NULL) == NATS_OK &&
                info->NumPending == 0 && info->NumAckPending == 0 && info->Delivered.Consumer > 0;
        jsConsumerInfo_Destroy(info);
    }
    return quiet;
}

/* Somebody else takes a message of our consumer's, and ends it or dies with it. */
static bool take_one(bool terminate)
{
    natsSubscription *subscription = NULL;
    natsMsgList list = {0};
    jsSubOptions options;
    bool good;

    jsSubOptions_Init(&options);
    options.Stream = stream;
    options.Consumer = "mailer";
    good = js_PullSubscribe(&subscription, other.js, subject, NULL, NULL, &options, NULL) == NATS_OK &&
           natsSubscription_Fetch(&list, subscription, 1, 5000, NULL) == NATS_OK && list.Count == 1;
    if (good && terminate)
        good =
            natsMsg_Term(list.Msgs[0], NULL) == NATS_OK && natsConnection_Flush(other.connection) == NATS_OK;
    natsMsgList_Destroy(&list);
    natsSubscription_Destroy(subscription);
    return good;
}

static void lose_one(bool terminate, const char *reason)
{
    struct reader reader;
    open_reader(&reader, 1, NULL); /* there is a consumer … */
    close_reader(&reader);         /* … and nobody reads it */
    natsStatus sent = js_Publish(NULL, other.js, subject, "11", 2, NULL, NULL);
    bool taken = take_one(terminate);
    open_reader(&reader, 1, NULL);
    publish(&reader.process, "orders.events", "k", 12);
    bool goes_on = recorder_await_committed(&reader.recorder, 1);
    bool buried = await_letter(1, "11", reason, "1");
    size_t others = recorder_times(&reader.recorder, 12), it = recorder_times(&reader.recorder, 11);
    close_reader(&reader);
    assert_int_equal(sent, NATS_OK);
    assert_true(taken && goes_on && buried);
    assert_int_equal(others, 1);
    assert_int_equal(it, 0);
    assert_int_equal(letters(), 1);
}

/* N2: MaxDeliver. */
static void test_what_died_with_its_last_delivery_is_a_letter(void **state)
{
    (void)state;
    lose_one(false, "deliveries used up");
}

/* N2: terminated. */
static void test_what_another_client_terminated_is_a_letter(void **state)
{
    (void)state;
    lose_one(true, "terminated by another client");
}

static bool keeps(const char *name, const char *kind)
{
    char only[128];

    snprintf(only, sizeof only, "$JS.EVENT.ADVISORY.CONSUMER.%s.%s.*", kind, stream);
    return stream_has(name, only, 120);
}

/* The same with streams of advisories that have names, and after the server lost everything. The default stream goes first,
 * since two cannot keep the same. */
static void test_advisories_are_kept_where_it_is_said(void **state)
{
    (void)state;
    struct reader reader;
    js_DeleteStream(other.js, "freshet_advisories", NULL, NULL);
    nats_next.advisory_stream = "gone_max";
    nats_next.terminated_stream = "gone_term";
    lose_one(true, "terminated by another client");
    bool named = keeps("gone_max", "MAX_DELIVERIES") && keeps("gone_term", "MSG_TERMINATED");
    open_reader(&reader, 1, NULL);
    nats_fixture_halt();
    nats_fixture_forget();
    nats_fixture_resume();
    publish_until_accepted(&reader.process, "orders.events", "k", 13);
    bool came = recorder_await_committed(&reader.recorder, 1);
    bool again = keeps("gone_max", "MAX_DELIVERIES") && keeps("gone_term", "MSG_TERMINATED");
    close_reader(&reader);
    assert_true(named);
    assert_true(came);
    assert_true(again);
}

/* In any order. */
static bool await_subjects(const char *name, const char *first, const char *second)
{
    bool found = false;

    for (int i = 0; i < 500 && !found; i++) {
        jsStreamInfo *info = NULL;
        found = js_GetStreamInfo(&info, other.js, name, NULL, NULL) == NATS_OK &&
                info->Config->SubjectsLen == 2 &&
                (strcmp(info->Config->Subjects[0], first) == 0 ||
                 strcmp(info->Config->Subjects[1], first) == 0) &&
                (strcmp(info->Config->Subjects[0], second) == 0 ||
                 strcmp(info->Config->Subjects[1], second) == 0);
        jsStreamInfo_Destroy(info);
        pause_a_little();
    }
    return found;
}

/* A stream of advisories that has one of a process's two subjects gets the other beside it, and gets back what another
 * program's update has removed. */
static void test_a_stream_of_advisories_has_the_subjects_of_all_its_readers(void **state)
{
    (void)state;
    const struct bus_topic topics[] = {orders, {.name = "returns.events", .partitions = 1}};
    struct process process;
    struct recorder recorders[2];
    char first[128], second[] = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.returns_events.*";
    const char *subjects[] = {first};
    jsStreamConfig config;
    snprintf(first, sizeof first, "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.%s.*", stream);
    jsStreamConfig_Init(&config);
    config.Name = "joined_max";
    config.Subjects = subjects;
    config.SubjectsLen = 1;
    js_DeleteStream(other.js, "freshet_advisories", NULL, NULL);
    natsStatus made = js_AddStream(NULL, other.js, &config, NULL, NULL);
    nats_next.advisory_stream = "joined_max";
    nats_next.terminated_stream = "joined_term";
    nats_open_with(&process, topics, 2);
    for (int i = 0; i < 2; i++) {
        recorder_init(&recorders[i]);
        subscribe(&process, &recorders[i],
                  (struct bus_subscription){.topic = topics[i].name, .group = "mailer", .attempts_max = 1});
    }
    process_start(&process);
    bool joined = await_subjects("joined_max", first, second);
    natsStatus removed = js_UpdateStream(NULL, other.js, &config, NULL, NULL);
    bool again = await_subjects("joined_max", first, second);
    process_close(&process);
    for (int i = 0; i < 2; i++)
        recorder_deinit(&recorders[i]);
    js_DeleteStream(other.js, "joined_max", NULL, NULL);
    js_DeleteStream(other.js, "joined_term", NULL, NULL);
    assert_int_equal(made, NATS_OK);
    assert_int_equal(removed, NATS_OK);
    assert_true(joined && again);
}

/* After that one: the server is as new, but for what it keeps. */
static void test_a_letter_is_sent_on_a_server_that_is_new(void **state)
{
    (void)state;
    js_DeleteStream(other.js, "gone_max", NULL, NULL);
    js_DeleteStream(other.js, "gone_term", NULL, NULL);
    lose_one(true, "terminated by another client");
}

static void refuse(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
    for (size_t i = 0; i < batch->count; i++)
        if (number_in(&batch->messages[i]) == 21) {
            bus_batch_retry(batch, i, "never");
            return;
        }
}

/* One letter, with the handler's reason: what the server tells of it is nothing new. */
static void test_what_a_handler_refuses_to_the_end_is_one_letter(void **state)
{
    (void)state;
    struct reader reader;
    open_reader(&reader, 3, refuse);
    publish(&reader.process, "orders.events", "k", 21);
    publish(&reader.process, "orders.events", "k", 22);
    bool came = recorder_await_committed(&reader.recorder, 2), buried = await_letter(1, "21", "never", "1");
    size_t times = recorder_times(&reader.recorder, 21);
    bool told = await_advisories();
    close_reader(&reader);
    assert_true(came && buried && told);
    assert_int_equal(times, 3);
    assert_int_equal(letters(), 1);
}

static void refuse_once(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
    if (number_in(&batch->messages[0]) == 31)
        bus_batch_retry(batch, 0, "not yet");
}

/* What was given back and is ended there never comes: nothing waits behind it for ever, also when nobody kept the advisory. */
static void wait_for_what_never_comes(void)
{
    struct reader reader;
    char reply[64];
    snprintf(reply, sizeof reply, "$JS.ACK.%s.mailer.1.1.1.1.0", stream);
    open_reader(&reader, 9, refuse_once);
    publish(&reader.process, "orders.events", "k", 31);
    bool began = recorder_await(&reader.recorder, 1);
    publish(&reader.process, "orders.events", "k", 32);
    for (int i = 0; i < 20; i++) /* whenever it is there: its deliveries are told apart by nobody */
        natsConnection_PublishString(other.connection, reply, "+TERM");
    bool goes_on = recorder_await_committed(&reader.recorder, 1) && recorder_times(&reader.recorder, 32) == 1;
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    while (letters() != 1 && clock_mono_ns() < limit_ns)
        pause_a_little();
    close_reader(&reader);
    assert_true(began && goes_on);
    assert_int_equal(letters(), 1);
}

static void test_nothing_waits_for_ever_for_what_was_ended(void **state)
{
    (void)state;
    wait_for_what_never_comes();
}

/* Somebody else has these advisories, for his own purposes. */
static void test_nothing_waits_for_ever_for_what_was_ended_silently(void **state)
{
    (void)state;
    const char *all = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>";
    jsStreamConfig config;
    jsStreamConfig_Init(&config);
    config.Name = "ELSEWHERE";
    config.Subjects = &all;
    config.SubjectsLen = 1;
    js_DeleteStream(other.js, "gone_max", NULL, NULL);
    js_DeleteStream(other.js, "gone_term", NULL, NULL);
    natsStatus taken = js_AddStream(NULL, other.js, &config, NULL, NULL);
    wait_for_what_never_comes();
    js_DeleteStream(other.js, "ELSEWHERE", NULL, NULL);
    assert_int_equal(taken, NATS_OK);
}

/* ---- a server that forgets deliveries ---- */

struct consumer_file {
    char path[256], bytes[4096];
    size_t len;
};

static void read_consumer_file(struct consumer_file *file)
{
    nats_fixture_consumer_file(stream, "mailer", file->path, sizeof file->path);
    FILE *from = fopen(file->path, "r");
    file->len = from ? fread(file->bytes, 1, sizeof file->bytes, from) : 0;
    if (from)
        fclose(from);
}

/* The file as it is after a delivery. */
static bool await_consumer_file(const struct consumer_file *before, struct consumer_file *after)
{
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);

    do {
        pause_a_little();
        read_consumer_file(after);
    } while (after->len == before->len && memcmp(after->bytes, before->bytes, after->len) == 0 &&
             clock_mono_ns() < limit_ns);
    return clock_mono_ns() < limit_ns;
}

/* While the first message is still with the client that took it. */
static bool await_unacknowledged(int64_t count)
{
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS), pending = 0;
    char reply[64];

    snprintf(reply, sizeof reply, "$JS.ACK.%s.mailer.1.1.1.1.0", stream);
    while (pending < count && clock_mono_ns() < limit_ns) {
        jsConsumerInfo *info = NULL;
        natsConnection_PublishString(other.connection, reply, "+WPI");
        if (js_GetConsumerInfo(&info, other.js, stream, "mailer", NULL, NULL) == NATS_OK)
            pending = info->NumAckPending;
        jsConsumerInfo_Destroy(info);
        pause_a_little();
    }
    return pending >= count;
}

/* Another client has the first message. The group waits for it, with the two after it, when the server dies; it comes back with
 * what it had written before the two: it counts one message as delivered, and that is the first. */
static void test_a_server_that_forgets_deliveries_loses_no_message(void **state)
{
    (void)state;
    struct consumer_file before, after;
    struct reader reader;
    open_reader(&reader, 0, NULL);
    close_reader(&reader);
    read_consumer_file(&before);
    natsStatus sent = js_Publish(NULL, other.js, subject, "41", 2, NULL, NULL);
    bool taken = take_one(false) && await_consumer_file(&before, &after);
    open_reader(&reader, 0, NULL);
    publish(&reader.process, "orders.events", "k", 42);
    publish(&reader.process, "orders.events", "k", 43);
    bool waits = await_unacknowledged(3);
    nats_fixture_halt();
    FILE *file = fopen(after.path, "w");
    bool is_back = file && fwrite(after.bytes, 1, after.len, file) == after.len;
    if (file)
        fclose(file);
    nats_fixture_resume();
    bool all = recorder_await_committed(&reader.recorder, 3);
    bool in_order = all;
    for (int i = 0; i < 3 && in_order; i++)
        in_order = reader.recorder.seen[i].number == 41 + i;
    close_reader(&reader);
    assert_int_equal(sent, NATS_OK);
    assert_true(taken && waits && is_back);
    assert_true(all);
    assert_true(in_order);
}

/* ---- the database ---- */

static bool sent_once_each(uint64_t count)
{
    jsConsumerInfo *info = NULL;
    bool good = js_GetConsumerInfo(&info, other.js, stream, "mailer", NULL, NULL) == NATS_OK &&
                info->Delivered.Stream == count && info->Delivered.Consumer == count;

    jsConsumerInfo_Destroy(info);
    return good;
}

/* N1: away for several times the wait for acknowledgements, and each message is delivered once all the same. */
static void test_a_database_that_is_away_uses_up_no_delivery(void **state)
{
    (void)state;
    struct reader reader;
    open_reader(&reader, 2, NULL);
    for (int i = 0; i < 20; i++)
        publish(&reader.process, "orders.events", "k", i);
    bool before = recorder_await_committed(&reader.recorder, 20);
    pg_fixture_halt();
    for (int i = 20; i < 60; i++)
        publish(&reader.process, "orders.events", "k", i);
    nanosleep(&(struct timespec){.tv_sec = 2, .tv_nsec = 500000000}, NULL);
    pg_fixture_resume();
    bool after = recorder_await_committed(&reader.recorder, 60);
    bool once = sent_once_each(60);
    close_reader(&reader);
    assert_true(before && after && once);
    assert_int_equal(letters(), 0);
}

int nats_run_deliveries(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_other, close_other)
    const struct CMUnitTest tests[] = {
        TEST(test_names_and_limits_are_exactly_those_given),
        TEST(test_names_that_jetstream_refuses_are_refused_at_once),
        TEST(test_a_subject_that_another_stream_has_is_refused),
        TEST(test_what_died_with_its_last_delivery_is_a_letter),
        TEST(test_what_another_client_terminated_is_a_letter),
        TEST(test_what_a_handler_refuses_to_the_end_is_one_letter),
        TEST(test_nothing_waits_for_ever_for_what_was_ended),
        TEST(test_a_stream_of_advisories_has_the_subjects_of_all_its_readers),
        TEST(test_advisories_are_kept_where_it_is_said),
        TEST(test_nothing_waits_for_ever_for_what_was_ended_silently),
        TEST(test_a_letter_is_sent_on_a_server_that_is_new),
        TEST(test_a_server_that_forgets_deliveries_loses_no_message),
        TEST(test_a_database_that_is_away_uses_up_no_delivery),
    };
#undef TEST
    return cmocka_run_group_tests_name("nats deliveries", tests, NULL, NULL);
}
