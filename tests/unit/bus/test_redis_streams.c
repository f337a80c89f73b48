/* Streams and groups: what others do to them (foreign entries, groups and data removed, trimming, dead pods), on any
 * Redis (R14). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/metrics.h"
#include "test_redis.h"

static unsigned where(const char *stream)
{
    return redis_fixture_owner(stream);
}

static bool has_metric(const char *line)
{
    struct buf text = {0};

    metrics_print(&text);
    buf_put_char(&text, '\0');
    bool there = strstr(buf_str(&text).ptr, line) != NULL;
    buf_deinit(&text);
    return there;
}

struct one_reader {
    struct process process;
    struct recorder every;
};

static void one_reader_open(struct one_reader *reader, const struct bus_topic *topic)
{
    recorder_init(&reader->every);
    redis_open_with(&reader->process, topic);
    subscribe(&reader->process, &reader->every,
              (struct bus_subscription){.topic = topic->name, .mode = BUS_EVERY});
    process_start(&reader->process);
    await_ready(&reader->every);
}

static void one_reader_close(struct one_reader *reader)
{
    process_close(&reader->process);
    recorder_deinit(&reader->every);
}

/* By redis-cli: one field is enough, no channel is told, and what is no event is a message all the same. */
static void test_a_foreign_entry_is_a_message(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "foreign", .partitions = 1};
    struct one_reader reader;
    one_reader_open(&reader, &topic);
    redis_fixture_ask(where("foreign:stream"), "XADD foreign:stream * event 7");
    redis_fixture_ask(where("foreign:stream"), "XADD foreign:stream * x y event 8 key k");
    redis_fixture_ask(where("foreign:stream"), "XADD foreign:stream * nothing 9");
    bool came = recorder_await_committed(&reader.every, 3);
    assert_true(came);
    assert_int_equal(reader.every.seen[0].number, 7);
    assert_int_equal(reader.every.seen[1].number, 8);
    assert_string_equal(reader.every.seen[1].key, "k");
    REDIS_AWAIT(has_metric("redis_stream_lag{topic=\"foreign\",group=\"group\"} 0\n"));
    one_reader_close(&reader);
}

/* What our publisher writes is what the contract says: XADD … event, key, headers; then PUBLISH. */
static void test_an_entry_has_the_agreed_fields(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "fields", .partitions = 1};
    struct process process;
    redis_next.stream = "inv:stream";
    redis_next.channel = "inv:pub";
    redis_open_with(&process, &topic);
    redis_next.stream = redis_next.channel = NULL;
    process_start(&process);
    struct bus_header header = {STR("event-id"), STR("e1")};
    struct bus_message message = {.topic = STR("fields"),
                                  .key = STR("k1"),
                                  .payload = STR("{}"),
                                  .headers = &header,
                                  .header_count = 1};
    assert_int_equal(bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), NULL), STATUS_OK);
    const char *script =
        "EVAL return(table.concat(redis.call('XRANGE',KEYS[1],'-','+')[1][2],',')) 1 inv:stream";
    assert_string_equal(redis_fixture_text(where("inv:stream"), "%s", script), "event,{},key,k1,event-id,e1");
    assert_true(message.offset > INT64_C(1600000000000) << 20);
    REDIS_AWAIT(bus_is_up(process.bus));
    process_close(&process);
}

/* Only told on the channel, in no stream: comes at once, to those who want it. */
static void test_hints_come_to_those_who_want_them(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "hints", .partitions = 1};
    struct process process;
    struct recorder hinted, plain;
    recorder_init(&hinted);
    recorder_init(&plain);
    redis_open_with(&process, &topic);
    subscribe(&process, &hinted,
              (struct bus_subscription){.topic = "hints", .mode = BUS_EVERY, .hints = true});
    subscribe(&process, &plain, (struct bus_subscription){.topic = "hints", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&hinted);
    await_ready(&plain);
    REDIS_AWAIT(redis_fixture_ask(where("hints:stream"), "PUBLISH hints:pub 5") > 0 || hinted.count > 0);
    assert_true(recorder_await(&hinted, 1));
    publish(&process, "hints", "k", 6);
    assert_true(recorder_await_committed(&hinted, 1));
    assert_true(recorder_await_committed(&plain, 1));
    process_close(&process);
    assert_int_equal(hinted.seen[0].number, 5);
    assert_int_equal(hinted.seen[0].offset, -1);
    assert_int_equal(plain.count, 1);
    assert_int_equal(recorder_times(&hinted, 6), 2); /* told, and in the stream */
    recorder_deinit(&hinted);
    recorder_deinit(&plain);
}

/* Removed by hand, or because somebody took us for dead: made anew, nothing is lost, and whoever must know is told. */
static void test_a_group_that_is_gone_is_made_anew(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "nogroup", .partitions = 1};
    struct one_reader reader;
    redis_next.pod = "p";
    one_reader_open(&reader, &topic);
    redis_next.pod = NULL;
    publish(&reader.process, "nogroup", "k", 1);
    assert_true(recorder_await_committed(&reader.every, 1));
    unsigned node = where("nogroup:stream");
    assert_int_equal(redis_fixture_ask(node, "XGROUP DESTROY nogroup:stream group:p"), 1);
    publish(&reader.process, "nogroup", "k", 2);
    REDIS_AWAIT(redis_gaps(&reader.every) >= 1);
    assert_true(recorder_await_committed(&reader.every, 2));
    assert_int_equal(recorder_times(&reader.every, 1), 1);
    assert_int_equal(reader.every.gaps, 1);
    one_reader_close(&reader);
}

static void test_everything_flushed_is_a_gap_and_it_goes_on(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "flush", .partitions = 1};
    struct one_reader reader;
    one_reader_open(&reader, &topic);
    publish(&reader.process, "flush", "k", 1);
    publish(&reader.process, "flush", "k", 2);
    assert_true(recorder_await_committed(&reader.every, 2));
    redis_fixture_ask_all("FLUSHALL");
    publish_until_accepted(&reader.process, "flush", "k", 3);
    publish_until_accepted(&reader.process, "flush", "k", 4);
    assert_true(recorder_await_committed(&reader.every, 4));
    REDIS_AWAIT(redis_gaps(&reader.every) == 1);
    assert_int_equal(recorder_times(&reader.every, 3), 1);
    assert_int_equal(recorder_times(&reader.every, 4), 1);
    one_reader_close(&reader);
}

/* Killed, and back without its data: as after a failover to a copy that had nothing. */
static void test_a_redis_that_comes_back_empty_is_a_gap_and_it_goes_on(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "empty", .partitions = 1};
    struct one_reader reader;
    one_reader_open(&reader, &topic);
    publish(&reader.process, "empty", "k", 1);
    assert_true(recorder_await_committed(&reader.every, 1));
    redis_fixture_kill(0);
    redis_fixture_wipe(0);
    redis_fixture_run(0);
    publish_until_accepted(&reader.process, "empty", "k", 2);
    REDIS_AWAIT(recorder_times(&reader.every, 2) > 0);
    REDIS_AWAIT(redis_gaps(&reader.every) == 1);
    assert_int_equal(recorder_times(&reader.every, 1), 1);
    one_reader_close(&reader);
}

/* It is busy while the stream is cut down to what it has not seen the beginning of. */
static void test_trimmed_past_our_place_is_a_gap(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "trim", .partitions = 1};
    struct process process;
    struct recorder every;
    recorder_init(&every);
    every.behave = recorder_hold;
    redis_open_with(&process, &topic);
    subscribe(&process, &every, (struct bus_subscription){.topic = "trim", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&every);
    publish(&process, "trim", "k", 0);
    assert_true(recorder_await(&every, 1));
    for (int i = 1; i < 20; i++)
        publish(&process, "trim", "k", i);
    assert_int_equal(redis_fixture_ask(where("trim:stream"), "XTRIM trim:stream MAXLEN 5"), 15);
    recorder_step(&every, 1);
    assert_true(recorder_await_committed(&every, 6));
    REDIS_AWAIT(redis_gaps(&every) == 1);
    assert_int_equal(every.seen[1].number, 15);
    redis_fixture_ask(where("trim:stream"), "XTRIM trim:stream MAXLEN 0"); /* it has seen all of these */
    publish(&process, "trim", "k", 20);
    assert_true(recorder_await_committed(&every, 7));
    process_close(&process);
    assert_int_equal(every.gaps, 1);
    recorder_deinit(&every);
}

static void test_a_stream_is_kept_as_long_as_configured(void **state)
{
    (void)state;
    static const struct bus_topic many = {.name = "keep-many", .partitions = 1, .keep_messages_hard = 100},
                                  time = {.name = "keep-time", .partitions = 1, .keep_ms = 50};
    struct process process;
    struct bus_message messages[500];
    redis_open_with(&process, &many);
    process_start(&process);
    for (int i = 0; i < 500; i++)
        messages[i] = (struct bus_message){.topic = STR("keep-many"), .key = STR("k"), .payload = STR("1")};
    assert_int_equal(bus_publish(process.bus, messages, 500, clock_deadline_ms(PATIENCE_MS), NULL),
                     STATUS_OK);
    assert_in_range(redis_fixture_ask(where("keep-many:stream"), "XLEN keep-many:stream"), 100, 300);
    process_close(&process);
    redis_open_with(&process, &time);
    process_start(&process);
    for (int i = 0; i < 500; i++)
        messages[i].topic = STR("keep-time");
    assert_int_equal(bus_publish(process.bus, messages, 500, clock_deadline_ms(PATIENCE_MS), NULL),
                     STATUS_OK);
    nanosleep(&(const struct timespec){.tv_nsec = 100000000}, NULL);
    publish(&process, "keep-time", "k", 1);
    assert_in_range(redis_fixture_ask(where("keep-time:stream"), "XLEN keep-time:stream"), 1, 200);
    process_close(&process);
}

/* This process's clock is wrong by so much; see tests/unit/bus/meson.build. */
static int64_t skew_ms;
int64_t __real_clock_unix_us(void);
int64_t __wrap_clock_unix_us(void);
int64_t __wrap_clock_unix_us(void)
{
    return __real_clock_unix_us() + skew_ms * 1000;
}

/* A publisher whose clock is hours ahead, or behind, removes what is old by the server's clock, as any other. */
static void test_a_publishers_clock_decides_nothing_about_what_is_kept(void **state)
{
    (void)state;
    static const struct bus_topic hour = {.name = "keep-hour", .partitions = 1, .keep_ms = 3600 * 1000},
                                  time = {.name = "keep-short", .partitions = 1, .keep_ms = 50};
    struct process process;
    struct bus_message messages[500];
    skew_ms = 7200 * 1000;
    redis_open_with(&process, &hour);
    process_start(&process);
    for (int i = 0; i < 500; i++)
        messages[i] = (struct bus_message){.topic = STR("keep-hour"), .key = STR("k"), .payload = STR("1")};
    assert_int_equal(bus_publish(process.bus, messages, 500, clock_deadline_ms(PATIENCE_MS), NULL),
                     STATUS_OK);
    publish(&process, "keep-hour", "k", 1);
    assert_int_equal(redis_fixture_ask(where("keep-hour:stream"), "XLEN keep-hour:stream"), 501);
    process_close(&process);
    skew_ms = -7200 * 1000;
    redis_open_with(&process, &time);
    process_start(&process);
    for (int i = 0; i < 500; i++)
        messages[i].topic = STR("keep-short");
    assert_int_equal(bus_publish(process.bus, messages, 500, clock_deadline_ms(PATIENCE_MS), NULL),
                     STATUS_OK);
    nanosleep(&(const struct timespec){.tv_nsec = 100000000}, NULL);
    publish(&process, "keep-short", "k", 1);
    assert_in_range(redis_fixture_ask(where("keep-short:stream"), "XLEN keep-short:stream"), 1, 200);
    process_close(&process);
    skew_ms = 0;
}

/* ---- pods ---- */

static long long group_count(const char *stream)
{
    return redis_fixture_ask(where(stream), "XINFO GROUPS %s", stream);
}

#define READ_LIVES "XREADGROUP GROUP group:lives lives STREAMS pods:stream 0"

static void test_a_dead_pods_group_is_removed_and_ours_when_we_go(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "pods", .partitions = 1};
    struct process process;
    struct recorder every;
    recorder_init(&every);
    redis_next.pod_dead_ms = 300;
    redis_open_with(&process, &topic);
    redis_next.pod_dead_ms = 0;
    subscribe(&process, &every, (struct bus_subscription){.topic = "pods", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&every);
    unsigned node = where("pods:stream");
    redis_fixture_ask(node, "XGROUP CREATE pods:stream group:ghost $");
    redis_fixture_ask(node, "XGROUP CREATE pods:stream group:lives $");
    redis_fixture_ask(node, "XGROUP CREATE pods:stream somebodys $");
    assert_int_equal(group_count("pods:stream"), 4);
    redis_fixture_ask(node, READ_LIVES); /* before the others are old enough to be removed */
    REDIS_AWAIT(redis_fixture_ask(node, READ_LIVES) >= 0 && group_count("pods:stream") == 3);
    assert_int_equal(redis_fixture_ask(node, "XGROUP DESTROY pods:stream group:ghost"), 0);
    publish(&process, "pods", "k", 1);
    assert_true(recorder_await_committed(&every, 1));
    process_close(&process);
    assert_int_equal(every.gaps, 0);
    assert_int_equal(group_count("pods:stream"), 2);
    recorder_deinit(&every);
}

/* A Redis that restarts has the times of the last rewrite of its file. Between two reads nobody notices the restart. */
static void test_a_living_pods_group_is_kept_when_redis_restarts(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "restarts", .partitions = 1};
    struct one_reader readers[2];
    redis_next.pod_dead_ms = 800;
    redis_next.poll_ms = 600000; /* they read when the channel wakes them */
    for (size_t i = 0; i < 2; i++)
        one_reader_open(&readers[i], &topic);
    redis_next.pod_dead_ms = redis_next.poll_ms = 0;
    publish(&readers[0].process, "restarts", "k", 1);
    for (size_t i = 0; i < 2; i++)
        assert_true(recorder_await_committed(&readers[i].every, 1));
    redis_fixture_ask(0, "BGREWRITEAOF");
    REDIS_AWAIT(strstr(redis_fixture_text(0, "INFO persistence"), "aof_rewrite_in_progress:0") != NULL);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 30; i++) {
            redis_fixture_ask(0, "PUBLISH restarts:pub nothing");
            nanosleep(&(const struct timespec){.tv_nsec = 50000000}, NULL);
        }
        if (round == 0) {
            redis_fixture_kill(0);
            redis_fixture_run(0);
        }
    }
    assert_int_equal(group_count("restarts:stream"), 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(redis_gaps(&readers[i].every), 0);
        one_reader_close(&readers[i]);
    }
}

/* ---- what Redis does not offer ---- */

static void test_shared_groups_and_partitions_are_refused(void **state)
{
    (void)state;
    static const struct bus_topic one = {.name = "hints-only", .partitions = 1},
                                  two = {.name = "hints-only", .partitions = 2};
    struct bus_redis_config config = {.nodes = redis_fixture_addresses(),
                                      .node_count = redis_fixture_count(),
                                      .cluster = redis_next.cluster,
                                      .topics = &two,
                                      .topic_count = 1};
    struct error error = {0};
    struct bus *bus;
    assert_int_equal(bus_redis_create(&config, &bus, &error), STATUS_CONFIG);
    assert_non_null(strstr(error.message, "2 partitions"));
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    redis_open_with(&process, &one);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "hints-only"}); /* checks the status */
    assert_true(recorder.absent);
    redis_close_unstarted(&process);
    recorder_deinit(&recorder);
}

/* ---- replies that are lost ---- */

/* The server has delivered entries, and their reply is lost: they are pending, and read from there. */
static void test_entries_whose_reply_was_lost_are_read_again(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "lost-reply", .partitions = 1};
    struct one_reader reader;
    redis_next.pod = "p";
    one_reader_open(&reader, &topic);
    redis_next.pod = NULL;
    unsigned node = where("lost-reply:stream");
    for (int i = 0; i < 40; i++) { /* in the name of the reader, so that it never sees this reply */
        redis_fixture_ask(node,
                          "EVAL redis.call('XADD',KEYS[1],'*','event',ARGV[1])redis.call('XREADGROUP','GROUP'"
                          ",'group:p','p','STREAMS',KEYS[1],'>') 1 lost-reply:stream %d",
                          i);
    }
    redis_fixture_freeze(node); /* the reply to the next read is lost */
    REDIS_AWAIT(!bus_is_up(reader.process.bus));
    redis_fixture_thaw(node);
    publish_until_accepted(&reader.process, "lost-reply", "k", 40);
    bool came = recorder_await_committed(&reader.every, 41);
    assert_true(came);
    for (int i = 0; i <= 40; i++)
        assert_int_equal(reader.every.seen[i].number, i);
    REDIS_AWAIT(redis_fixture_ask(node, "XPENDING lost-reply:stream group:p - + 100") == 0);
    one_reader_close(&reader);
}

/* While it is not connected the stream is cut down to what it has not seen the beginning of. Redis holds back its read until it gives
 * up, then what trims the stream, then its way back. */
static void test_trimmed_while_a_read_fails_is_a_gap(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "trim-lost", .partitions = 1};
    struct one_reader reader;
    redis_next.poll_ms = 600000; /* the channel alone wakes it */
    redis_next.answer_ms = 300;
    one_reader_open(&reader, &topic);
    redis_next.poll_ms = redis_next.answer_ms = 0;
    publish(&reader.process, "trim-lost", "k", 0);
    assert_true(recorder_await_committed(&reader.every, 1));
    unsigned node = where("trim-lost:stream");
    redis_fixture_ask(node, "CLIENT PAUSE 1000 WRITE");
    redis_fixture_ask(node, "CLIENT KILL TYPE pubsub");
    REDIS_AWAIT(strstr(redis_fixture_text(node, "INFO clients"), "blocked_clients:1") != NULL);
    redis_fixture_ask(node, "EVAL for\ti=1,20\tdo\tredis.call('XADD',KEYS[1],'*','event',i)end;"
                            "return(redis.call('XTRIM',KEYS[1],'MAXLEN',5)) 1 trim-lost:stream");
    assert_true(recorder_await_committed(&reader.every, 6));
    assert_int_equal(reader.every.seen[1].number, 16);
    assert_int_equal(redis_gaps(&reader.every), 1);
    one_reader_close(&reader);
}

int redis_run_streams(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_foreign_entry_is_a_message),
        cmocka_unit_test(test_an_entry_has_the_agreed_fields),
        cmocka_unit_test(test_hints_come_to_those_who_want_them),
        cmocka_unit_test(test_a_group_that_is_gone_is_made_anew),
        cmocka_unit_test(test_everything_flushed_is_a_gap_and_it_goes_on),
        cmocka_unit_test(test_a_redis_that_comes_back_empty_is_a_gap_and_it_goes_on),
        cmocka_unit_test(test_trimmed_past_our_place_is_a_gap),
        cmocka_unit_test(test_a_publishers_clock_decides_nothing_about_what_is_kept),
        cmocka_unit_test(test_a_stream_is_kept_as_long_as_configured),
        cmocka_unit_test(test_a_dead_pods_group_is_removed_and_ours_when_we_go),
        cmocka_unit_test(test_a_living_pods_group_is_kept_when_redis_restarts),
        cmocka_unit_test(test_shared_groups_and_partitions_are_refused),
        cmocka_unit_test(test_entries_whose_reply_was_lost_are_read_again),
        cmocka_unit_test(test_trimmed_while_a_read_fails_is_a_gap),
    };
    return cmocka_run_group_tests_name("redis streams", tests, NULL, NULL);
}
