/* The NATS driver as others see it: names and limits exactly as given, or refused. */
#include "nats_orders.h"

static bool durable_has(int64_t deliveries_max, int64_t ack_wait_ms)
{
    jsConsumerInfo *info = NULL;
    bool good = js_GetConsumerInfo(&info, orders.js, orders.stream, "mailer", NULL, NULL) == NATS_OK &&
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
    natsStatus sent = js_Publish(NULL, orders.js, orders.subject, "3", 1, NULL, NULL);
    bool came = recorder_await_committed(&reader.recorder, 1);
    publish(&reader.process, "orders.events", "k", 4);
    came = came && recorder_await_committed(&reader.recorder, 2);
    bool first = stream_has(orders.stream, orders.subject, 600) &&
                 stream_has(orders.dead_stream, orders.dead_subject, 600) && durable_has(4, 1000);
    close_reader(&reader);
    longer.duplicate_window_ms = 900000;
    nats_next.names = &longer;
    open_reader(&reader, 0, NULL);
    bool second = stream_has(orders.stream, orders.subject, 900) && durable_has(-1, 1000);
    close_reader(&reader);
    assert_int_equal(sent, NATS_OK);
    assert_true(came);
    assert_true(first);
    assert_true(second);
}

static enum status create_with(const struct bus_nats_names *names, const char *advisory_stream)
{
    struct bus_nats_config config = {.servers = "nats://127.0.0.1:1",
                                     .topics = &orders_topic,
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
    const char *all = orders.subject;
    struct bus_message message = {.topic = STR("orders.events"), .key = STR("k"), .payload = STR("1")};
    struct error error = {0};
    struct process process;
    jsStreamConfig config;
    jsStreamConfig_Init(&config);
    config.Name = "TAKEN";
    config.Subjects = &all;
    config.SubjectsLen = 1;
    natsStatus taken = js_AddStream(NULL, orders.js, &config, NULL, NULL);
    nats_open_with(&process, &orders_topic, 1);
    process_start(&process);
    enum status status = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error);
    process_close(&process);
    js_DeleteStream(orders.js, "TAKEN", NULL, NULL);
    assert_int_equal(taken, NATS_OK);
    assert_int_equal(status, STATUS_CONFIG);
    assert_non_null(strstr(error.message, orders.subject));
}

int nats_run_names(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_names_and_limits_are_exactly_those_given),
        TEST(test_names_that_jetstream_refuses_are_refused_at_once),
        TEST(test_a_subject_that_another_stream_has_is_refused),
    };
    return cmocka_run_group_tests_name("nats names", tests, NULL, NULL);
}
