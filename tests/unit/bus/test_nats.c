/* The NATS driver: the conformance suite, and what is its own: names, gaps, advisories, plain subjects, a store that is
 * gone, members that die. */
#include <nats/nats.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/metrics.h"
#include "nats_fixture.h"
#include "sql_rig.h"
#include "test_nats.h"

struct bus_security nats_next_security;
struct nats_next nats_next;

/* ---- the driver's table ---- */

static struct bus *create(struct loop *loop, struct worker_pool *workers, const struct bus_topic *topics,
                          size_t topic_count)
{
    struct db_target where = sql_target(6);
    struct bus *bus;
    struct bus_nats_config config = {.loop = loop,
                                     .workers = workers,
                                     .servers = nats_fixture_url(),
                                     .client_name = "freshet-test",
                                     .security = nats_next_security,
                                     .target = nats_next.with_database ? &where : NULL,
                                     .topics = topics,
                                     .topic_count = topic_count,
                                     .names = nats_next.names,
                                     .name_count = nats_next.name_count,
                                     .advisory_stream = nats_next.advisory_stream,
                                     .terminated_stream = nats_next.terminated_stream,
                                     .ack_wait_ms =
                                         getenv(NATS_ACK_WAIT) ? atoi(getenv(NATS_ACK_WAIT)) : 1000};
    struct error error = {0};

    if (bus_nats_create(&config, &bus, &error) != STATUS_OK)
        fail_msg("create: %s", error.message);
    return bus;
}

static const struct conformance_driver nats = {
    .name = "nats",
    .create = create,
    .cut = nats_fixture_cut,
    .halt = nats_fixture_halt,
    .resume = nats_fixture_resume,
    .freeze = nats_fixture_freeze,
    .thaw = nats_fixture_thaw,
    .repeats = true,
    .write_effect = sql_write_effect,
    .count_effects = sql_count_effects,
};

/* ---- a process with topics of the test's own; and NATS itself, as another program sees it ---- */

void nats_open_with(struct process *process, const struct bus_topic *topics, size_t count)
{
    process->loop = loop_create(0, 0);
    process->workers = worker_pool_create("bus", 4, 100);
    process->bus = create(process->loop, process->workers, topics, count);
}

static struct {
    natsConnection *connection;
    jsCtx *js;
} other;

static void open_other(void)
{
    assert_int_equal(natsConnection_ConnectTo(&other.connection, nats_fixture_url()), NATS_OK);
    assert_int_equal(natsConnection_JetStream(&other.js, other.connection, NULL), NATS_OK);
}

static void close_other(void)
{
    jsCtx_Destroy(other.js);
    natsConnection_Destroy(other.connection);
}

static uint64_t stream_messages(const char *stream)
{
    jsStreamInfo *info = NULL;
    uint64_t count = 0;

    if (js_GetStreamInfo(&info, other.js, stream, NULL, NULL) == NATS_OK)
        count = info->State.Msgs;
    jsStreamInfo_Destroy(info);
    return count;
}

/* ---- names and ids ---- */

static void test_topics_that_nats_has_no_name_for_are_refused(void **state)
{
    (void)state;
    static const struct bus_topic bad[][2] = {
        {{.name = "a.b", .partitions = 1}, {.name = "a_b", .partitions = 1}}, /* one stream for both */
        {{.name = "a..b", .partitions = 1}, {.name = "c", .partitions = 1}},
        {{.name = ".a", .partitions = 1}, {.name = "c", .partitions = 1}},
        {{.name = "a.", .partitions = 1}, {.name = "c", .partitions = 1}},
    };
    struct bus *bus;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bus_nats_config config = {.servers = "nats://127.0.0.1:1", .topics = bad[i], .topic_count = 2};
        struct error error = {0};
        assert_int_equal(bus_nats_create(&config, &bus, &error), STATUS_CONFIG);
        assert_null(bus);
        assert_true(error.message[0] != '\0');
    }
}

static void test_another_number_of_partitions_is_refused(void **state)
{
    (void)state;
    static const struct bus_topic two = {.name = "count", .partitions = 2},
                                  three = {.name = "count", .partitions = 3};
    struct process process;
    struct error error = {0};
    struct bus_message message = {.topic = STR("count"), .key = STR("k"), .payload = STR("1")};
    nats_open_with(&process, &two, 1);
    process_start(&process);
    publish(&process, "count", "k", 1);
    process_close(&process);
    nats_open_with(&process, &three, 1);
    process_start(&process);
    enum status status = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error);
    process_close(&process);
    assert_int_equal(status, STATUS_CONFIG);
    assert_non_null(strstr(error.message, "count"));
}

static enum status publish_event(struct process *process, size_t count, const char *id)
{
    struct bus_header header = {STR("event-id"), str_from(id)};
    struct bus_message messages[2];

    for (size_t i = 0; i < count; i++)
        messages[i] = (struct bus_message){
            .topic = STR("ids"), .key = STR("k"), .payload = STR("1"), .headers = &header, .header_count = 1};
    return bus_publish(process->bus, messages, count, clock_deadline_ms(PATIENCE_MS), NULL);
}

/* E4: Nats-Msg-Id is the event id. */
static void test_an_event_published_again_is_there_once_but_twice_in_one_call_is_meant(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "ids", .partitions = 1};
    struct process process;
    nats_open_with(&process, &topic, 1);
    process_start(&process);
    enum status first = publish_event(&process, 1, "one"), again = publish_event(&process, 1, "one");
    enum status both = publish_event(&process, 2, "two"), once_more = publish_event(&process, 2, "two");
    process_close(&process);
    assert_int_equal(first, STATUS_OK);
    assert_int_equal(again, STATUS_OK);
    assert_int_equal(both, STATUS_OK);
    assert_int_equal(once_more, STATUS_OK);
    assert_int_equal(stream_messages("ids"), 3);
}

/* ---- other programs ---- */

static atomic_bool foreign_intact;

static void read_foreign(struct recorder *recorder, struct bus_batch *batch)
{
    const struct bus_message *message = &batch->messages[0];

    foreign_intact = !message->key.ptr && message->header_count == 2 &&
                     str_eq(bus_message_header(message, STR("event-id")), STR("42")) &&
                     str_eq(bus_message_header(message, STR("event_type")), STR("100%41"));
    recorder_add(recorder, batch, batch->count);
}

static void test_another_program_s_message_needs_nothing_of_ours(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "foreign.events", .partitions = 2};
    struct process process;
    struct recorder recorder;
    natsMsg *message = NULL;
    recorder_init(&recorder);
    recorder.behave = read_foreign;
    nats_open_with(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "foreign.events"});
    process_start(&process);
    await_ready(&recorder);
    natsMsg_Create(&message, "foreign.events.1", NULL, "7", 1);
    natsMsgHeader_Set(message, "Nats-Msg-Id", "42");
    natsMsgHeader_Set(message, "event_type", "100%41");
    natsStatus status = js_PublishMsg(NULL, other.js, message, NULL, NULL);
    natsMsg_Destroy(message);
    bool came = recorder_await_committed(&recorder, 1);
    process_close(&process);
    assert_int_equal(status, NATS_OK);
    assert_true(came);
    assert_int_equal(recorder.seen[0].number, 7);
    assert_int_equal(recorder.seen[0].partition, 1);
    assert_true(foreign_intact);
    recorder_deinit(&recorder);
}

static void term_it(struct recorder *recorder, struct bus_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        bus_batch_term(batch, i, "no");
    recorder_add(recorder, batch, batch->count);
}

/* N2: what is ended is kept in a stream of its own; and each group's letter is there, though the event is one. */
static void test_a_termed_message_is_told_by_an_advisory_that_is_kept(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "ended", .partitions = 1};
    const struct timespec pause = {.tv_nsec = 10000000};
    struct bus_header header = {STR("event-id"), STR("e")};
    struct bus_message message = {
        .topic = STR("ended"), .key = STR("k"), .payload = STR("1"), .headers = &header, .header_count = 1};
    struct process process;
    struct recorder groups[2];
    uint64_t before = stream_messages("freshet_advisories");
    nats_open_with(&process, &topic, 1);
    for (int i = 0; i < 2; i++) {
        recorder_init(&groups[i]);
        groups[i].behave = term_it;
        subscribe(&process, &groups[i],
                  (struct bus_subscription){.topic = "ended", .group = i ? "second" : "first"});
    }
    process_start(&process);
    for (int i = 0; i < 2; i++)
        await_ready(&groups[i]);
    enum status status = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), NULL);
    bool came = recorder_await_committed(&groups[0], 1) && recorder_await_committed(&groups[1], 1);
    for (int i = 0; i < 1000 && stream_messages("freshet_advisories") < before + 2; i++)
        nanosleep(&pause, NULL);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
    assert_true(came);
    assert_int_equal(stream_messages("freshet_advisories"), before + 2);
    assert_int_equal(stream_messages("ended_dlq"), 2);
    for (int i = 0; i < 2; i++)
        recorder_deinit(&groups[i]);
}

/* ---- plain subjects ---- */

struct heard {
    struct recorder recorder;
    atomic_bool intact;
};

static void on_plain(void *context, const struct bus_message *message)
{
    struct heard *heard = context;

    heard->intact = str_eq(message->topic, STR("entity.unknown")) && str_eq(message->payload, STR("{}")) &&
                    message->header_count == 1 && str_eq(message->headers[0].name, STR("tenant_id")) &&
                    str_eq(message->headers[0].value, STR("t1"));
    recorder_step(&heard->recorder, heard->recorder.step + 1);
}

/* What is said at most once is said again by who needs an answer. */
static enum status send_until_heard(struct process *process, const struct bus_message *word,
                                    struct heard *heard, int step)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000000};
    enum status status = STATUS_UNAVAILABLE;
    bool came = false;
    for (int tries = 0; tries < 1000 && !came; tries++) {
        struct error error = {0};
        status = bus_nats_send(process->bus, word, &error);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&heard->recorder.lock);
        came = heard->recorder.step >= step;
        pthread_mutex_unlock(&heard->recorder.lock);
    }
    return status;
}

static void test_plain_subjects_carry_a_word_to_who_listens(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "beside", .partitions = 1};
    struct bus_header header = {STR("tenant_id"), STR("t1")};
    struct bus_message word = {
        .topic = STR("entity.unknown"), .payload = STR("{}"), .headers = &header, .header_count = 1};
    struct process process;
    static struct heard heard;
    struct error error = {0};
    recorder_init(&heard.recorder);
    nats_open_with(&process, &topic, 1);
    assert_int_equal(bus_nats_send(process.bus, &word, &error), STATUS_UNAVAILABLE); /* not connected yet */
    assert_int_equal(bus_nats_listen(process.bus, "", NULL, on_plain, &heard, &error), STATUS_CONFIG);
    assert_int_equal(bus_nats_listen(process.bus, "entity.*", "q", on_plain, &heard, &error), STATUS_OK);
    process_start(&process);
    publish(&process, "beside", "k", 1); /* there is a connection */
    enum status status = bus_nats_send(process.bus, &word, &error);
    bool came = recorder_await_step(&heard.recorder, 1);
    bool up = bus_is_up(process.bus);
    nats_fixture_cut();
    publish_until_accepted(&process, "beside", "k",
                           2); /* and another one, or this was the last word of the old one */
    enum status again = send_until_heard(&process, &word, &heard, 2);
    bool came_again = recorder_await_step(&heard.recorder, 2);
    process_close(&process);
    assert_int_equal(status, STATUS_OK);
    assert_int_equal(again, STATUS_OK);
    assert_true(came && came_again && up);
    assert_true(heard.intact);
    recorder_deinit(&heard.recorder);
}

/* ---- what the server loses ---- */

static void wait_for_word(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
    recorder_await_step(recorder, 1);
}

static void test_what_is_taken_before_it_was_read_is_a_gap(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "purged", .partitions = 1};
    struct process process;
    struct recorder every;
    recorder_init(&every);
    every.behave = wait_for_word;
    nats_open_with(&process, &topic, 1);
    subscribe(&process, &every,
              (struct bus_subscription){.topic = "purged", .mode = BUS_EVERY, .batch_max = 1});
    process_start(&process);
    await_ready(&every);
    for (int i = 0; i < 5; i++)
        publish(&process, "purged", "k", i);
    bool began = recorder_await(&every, 1);
    natsStatus purged = js_PurgeStream(other.js, "purged", NULL, NULL);
    recorder_step(&every, 1);
    bool told = recorder_await_gap(&every);
    publish(&process, "purged", "k", 9);
    bool goes_on = recorder_await_number(&every, 9);
    process_close(&process);
    assert_int_equal(purged, NATS_OK);
    assert_true(began);
    assert_true(told);
    assert_true(goes_on);
    recorder_deinit(&every);
}

/* A group that was there hears of everything in the new stream; who reads everything is told that it is another. */
static void test_a_server_that_lost_everything_is_set_up_again(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "lost", .partitions = 2};
    struct process process;
    struct recorder shared, every;
    recorder_init(&shared);
    recorder_init(&every);
    nats_open_with(&process, &topic, 1);
    subscribe(&process, &shared, (struct bus_subscription){.topic = "lost"});
    subscribe(&process, &every, (struct bus_subscription){.topic = "lost", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&shared);
    await_ready(&every);
    for (int i = 0; i < 20; i++)
        publish(&process, "lost", i % 2 ? "a" : "b", i);
    bool before = recorder_await_committed(&shared, 20) && recorder_await_committed(&every, 20);
    nats_fixture_halt();
    nats_fixture_forget();
    nats_fixture_resume();
    publish_until_accepted(&process, "lost", "a", 100);
    publish_until_accepted(&process, "lost", "b", 101);
    bool after = recorder_await_number(&shared, 100) && recorder_await_number(&shared, 101) &&
                 recorder_await_number(&every, 100) && recorder_await_number(&every, 101);
    bool told = recorder_await_gap(&every);
    process_close(&process);
    assert_true(before);
    assert_true(after);
    assert_true(told);
    recorder_deinit(&shared);
    recorder_deinit(&every);
}

static void hold_the_last(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
    if (number_in(&batch->messages[batch->count - 1]) == 20)
        recorder_await_step(recorder, 1);
}

/* The new stream counts from 1 again: what a handler had in hand meanwhile says nothing about its first messages. */
static void test_a_handler_outlives_what_the_server_had(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "outlived", .partitions = 1};
    struct process process;
    struct recorder shared;
    recorder_init(&shared);
    shared.behave = hold_the_last;
    nats_open_with(&process, &topic, 1);
    subscribe(&process, &shared, (struct bus_subscription){.topic = "outlived", .batch_max = 1});
    process_start(&process);
    await_ready(&shared);
    for (int i = 0; i <= 20; i++)
        publish(&process, "outlived", "k", i);
    bool held = recorder_await(&shared, 21);
    nats_fixture_halt();
    nats_fixture_forget();
    nats_fixture_resume();
    for (int i = 100; i < 103; i++)
        publish_until_accepted(&process, "outlived", "k", i);
    nanosleep(&(struct timespec){.tv_nsec = 700000000}, NULL); /* time for its consumer to be made */
    recorder_step(&shared, 1);
    bool all = recorder_await_number(&shared, 100) && recorder_await_number(&shared, 101) &&
               recorder_await_number(&shared, 102);
    process_close(&process);
    assert_true(held);
    assert_true(all);
    recorder_deinit(&shared);
}

static void test_a_server_that_is_not_there_yet_is_waited_for(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "late", .partitions = 1};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    nats_fixture_halt();
    nats_open_with(&process, &topic, 1);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "late"});
    process_start(&process);
    struct bus_message message = {.topic = STR("late"), .key = STR("k"), .payload = STR("1")};
    enum status early = bus_publish(process.bus, &message, 1, clock_deadline_ms(100), NULL);
    bool up = bus_is_up(process.bus);
    nats_fixture_resume();
    await_ready(&recorder);
    publish(&process, "late", "k", 2);
    bool came = recorder_await_committed(&recorder, 1);
    process_close(&process);
    assert_int_equal(early, STATUS_UNAVAILABLE);
    assert_false(up);
    assert_true(came);
    assert_int_equal(recorder.seen[0].number, 2);
    recorder_deinit(&recorder);
}

/* After so many unlocks threads other than the test's pause for a moment; see tests/unit/bus/meson.build. */
static atomic_int slow_unlocks;
static pthread_t test_thread;
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    int result = __real_pthread_mutex_unlock(mutex);

    if (atomic_load(&slow_unlocks) > 0 && !pthread_equal(pthread_self(), test_thread) &&
        atomic_fetch_sub(&slow_unlocks, 1) > 0)
        pause_ms((int)(random_u64() % 40));
    return result;
}

/* A sanitizer finds what a thread of the client still touches. */
static void test_a_bus_is_gone_before_the_last_callback_returns(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "gone", .partitions = 2};
    struct process process;
    struct recorder every;
    recorder_init(&every);
    test_thread = pthread_self();
    for (int i = 0; i < 10; i++) {
        every.ready = false;
        nats_open_with(&process, &topic, 1);
        subscribe(&process, &every, (struct bus_subscription){.topic = "gone", .mode = BUS_EVERY});
        process_start(&process);
        await_ready(&every);
        atomic_store(&slow_unlocks, 20);
        process_close(&process);
        atomic_store(&slow_unlocks, 0);
    }
    recorder_deinit(&every);
}

static int run_own(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topics_that_nats_has_no_name_for_are_refused),
        cmocka_unit_test(test_another_number_of_partitions_is_refused),
        cmocka_unit_test(test_an_event_published_again_is_there_once_but_twice_in_one_call_is_meant),
        cmocka_unit_test(test_another_program_s_message_needs_nothing_of_ours),
        cmocka_unit_test(test_a_termed_message_is_told_by_an_advisory_that_is_kept),
        cmocka_unit_test(test_plain_subjects_carry_a_word_to_who_listens),
        cmocka_unit_test(test_what_is_taken_before_it_was_read_is_a_gap),
        cmocka_unit_test(test_a_server_that_lost_everything_is_set_up_again),
        cmocka_unit_test(test_a_handler_outlives_what_the_server_had),
        cmocka_unit_test(test_a_server_that_is_not_there_yet_is_waited_for),
        cmocka_unit_test(test_a_bus_is_gone_before_the_last_callback_returns),
    };
    open_other();
    int failed = cmocka_run_group_tests_name("nats", tests, NULL, NULL);
    close_other();
    return failed;
}

int main(int argc, char **argv)
{
    log_set_level(LOG_LEVEL_ERROR);
    if (argc == 3) {
        nats_fixture_borrow(argv[2]);
        return nats_run_member(argv[1]);
    }
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    nats_fixture_start("");
    sql_rig_start();
    nats_next.with_database = true;
    int failed =
        conformance_run(&nats) + run_own() + nats_run_names() + nats_run_letters() + nats_run_deliveries();
    nats_next.with_database = false;
    failed += nats_run_members();
    sql_rig_stop();
    nats_fixture_stop();
    failed += nats_run_security();
    return failed ? 1 : 0;
}
