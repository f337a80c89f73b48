/* The NATS driver: letters of what the server gave up, of which it tells in advisories, and of what handlers refuse. */
#include <stdio.h>

#include "nats_fixture.h"
#include "nats_orders.h"

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

    while (js_GetMsg(&letter, orders.js, orders.dead_stream, at, NULL, NULL) != NATS_OK &&
           clock_mono_ns() < limit_ns)
        pause_ms(10);
    bool good = letter && (size_t)natsMsg_GetDataLength(letter) == strlen(payload) &&
                memcmp(natsMsg_GetData(letter), payload, strlen(payload)) == 0 &&
                has_header(letter, "dlq-reason", reason) &&
                has_header(letter, "dlq-topic", "orders.events") &&
                has_header(letter, "dlq-partition", "0") && has_header(letter, "dlq-offset", offset) &&
                has_header(letter, "dlq-group", "mailer");
    natsMsg_Destroy(letter);
    return good;
}

/* All that the server told so far was read and settled. */
static bool await_advisories(void)
{
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    char durable[64];
    bool quiet = false;

    snprintf(durable, sizeof durable, "mailer@%s@MSG_TERMINATED", orders.stream);
    while (!quiet && clock_mono_ns() < limit_ns) {
        jsConsumerInfo *info = NULL;
        pause_ms(10);
        quiet = js_GetConsumerInfo(&info, orders.js, "freshet_advisories", durable, NULL, NULL) == NATS_OK &&
                info->NumPending == 0 && info->NumAckPending == 0 && info->Delivered.Consumer > 0;
        jsConsumerInfo_Destroy(info);
    }
    return quiet;
}

static void lose_one(bool terminate, const char *reason)
{
    struct reader reader;
    open_reader(&reader, 1, NULL); /* there is a consumer … */
    close_reader(&reader);         /* … and nobody reads it */
    natsStatus sent = js_Publish(NULL, orders.js, orders.subject, "11", 2, NULL, NULL);
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

    snprintf(only, sizeof only, "$JS.EVENT.ADVISORY.CONSUMER.%s.%s.*", kind, orders.stream);
    return stream_has(name, only, 120);
}

/* The same with streams of advisories that have names, and after the server lost everything. The default stream goes first,
 * since two cannot keep the same. */
static void test_advisories_are_kept_where_it_is_said(void **state)
{
    (void)state;
    struct reader reader;
    js_DeleteStream(orders.js, "freshet_advisories", NULL, NULL);
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
        found = js_GetStreamInfo(&info, orders.js, name, NULL, NULL) == NATS_OK &&
                info->Config->SubjectsLen == 2 &&
                (strcmp(info->Config->Subjects[0], first) == 0 ||
                 strcmp(info->Config->Subjects[1], first) == 0) &&
                (strcmp(info->Config->Subjects[0], second) == 0 ||
                 strcmp(info->Config->Subjects[1], second) == 0);
        jsStreamInfo_Destroy(info);
        pause_ms(10);
    }
    return found;
}

/* A stream of advisories that has one of a process's two subjects gets the other beside it, and gets back what another
 * program's update has removed. */
static void test_a_stream_of_advisories_has_the_subjects_of_all_its_readers(void **state)
{
    (void)state;
    const struct bus_topic topics[] = {orders_topic, {.name = "returns.events", .partitions = 1}};
    struct process process;
    struct recorder recorders[2];
    char first[128], second[] = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.returns_events.*";
    const char *subjects[] = {first};
    jsStreamConfig config;
    snprintf(first, sizeof first, "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.%s.*", orders.stream);
    jsStreamConfig_Init(&config);
    config.Name = "joined_max";
    config.Subjects = subjects;
    config.SubjectsLen = 1;
    js_DeleteStream(orders.js, "freshet_advisories", NULL, NULL);
    natsStatus made = js_AddStream(NULL, orders.js, &config, NULL, NULL);
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
    natsStatus removed = js_UpdateStream(NULL, orders.js, &config, NULL, NULL);
    bool again = await_subjects("joined_max", first, second);
    process_close(&process);
    for (int i = 0; i < 2; i++)
        recorder_deinit(&recorders[i]);
    js_DeleteStream(orders.js, "joined_max", NULL, NULL);
    js_DeleteStream(orders.js, "joined_term", NULL, NULL);
    assert_int_equal(made, NATS_OK);
    assert_int_equal(removed, NATS_OK);
    assert_true(joined && again);
}

/* After that one: the server is as new, but for what it keeps. */
static void test_a_letter_is_sent_on_a_server_that_is_new(void **state)
{
    (void)state;
    js_DeleteStream(orders.js, "gone_max", NULL, NULL);
    js_DeleteStream(orders.js, "gone_term", NULL, NULL);
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
    snprintf(reply, sizeof reply, "$JS.ACK.%s.mailer.1.1.1.1.0", orders.stream);
    open_reader(&reader, 9, refuse_once);
    publish(&reader.process, "orders.events", "k", 31);
    bool began = recorder_await(&reader.recorder, 1);
    publish(&reader.process, "orders.events", "k", 32);
    for (int i = 0; i < 20; i++) /* whenever it is there: its deliveries are told apart by nobody */
        natsConnection_PublishString(orders.connection, reply, "+TERM");
    bool goes_on = recorder_await_committed(&reader.recorder, 1) && recorder_times(&reader.recorder, 32) == 1;
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    while (letters() != 1 && clock_mono_ns() < limit_ns)
        pause_ms(10);
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
    js_DeleteStream(orders.js, "gone_max", NULL, NULL);
    js_DeleteStream(orders.js, "gone_term", NULL, NULL);
    natsStatus taken = js_AddStream(NULL, orders.js, &config, NULL, NULL);
    wait_for_what_never_comes();
    js_DeleteStream(orders.js, "ELSEWHERE", NULL, NULL);
    assert_int_equal(taken, NATS_OK);
}

int nats_run_letters(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_what_died_with_its_last_delivery_is_a_letter),
        TEST(test_what_another_client_terminated_is_a_letter),
        TEST(test_what_a_handler_refuses_to_the_end_is_one_letter),
        TEST(test_nothing_waits_for_ever_for_what_was_ended),
        TEST(test_a_stream_of_advisories_has_the_subjects_of_all_its_readers),
        TEST(test_advisories_are_kept_where_it_is_said),
        TEST(test_nothing_waits_for_ever_for_what_was_ended_silently),
        TEST(test_a_letter_is_sent_on_a_server_that_is_new),
    };
    return cmocka_run_group_tests_name("nats letters", tests, NULL, NULL);
}
