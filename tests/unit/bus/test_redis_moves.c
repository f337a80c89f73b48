/* What moves in a cluster: slots, with their keys half gone; a master that dies and its replica that takes over; all of it
 * restarted. Publishers and readers go on, in order, and nothing is lost. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "test_redis.h"

static const char *id_of(unsigned node, char out[64])
{
    snprintf(out, 64, "%s", redis_fixture_text(node, "CLUSTER MYID"));
    return out;
}

static unsigned slot_of(const char *stream)
{
    return (unsigned)redis_fixture_ask(0, "CLUSTER KEYSLOT %s", stream);
}

struct move {
    struct process process;
    struct recorder every;
    unsigned from, to, slot;
    char from_id[64], to_id[64];
    const char *topic, *stream;
    int published;
};

static void move_begin(struct move *move, const struct bus_topic *topic, const char *stream)
{
    recorder_init(&move->every);
    move->topic = topic->name;
    move->stream = stream;
    move->published = 0;
    redis_open_with(&move->process, topic);
    subscribe(&move->process, &move->every,
              (struct bus_subscription){.topic = topic->name, .mode = BUS_EVERY});
    process_start(&move->process);
    await_ready(&move->every);
    move->slot = slot_of(stream);
    move->from = redis_fixture_owner(stream);
    move->to = (move->from + 1) % 3;
    id_of(move->from, move->from_id);
    id_of(move->to, move->to_id);
}

static void publish_some(struct move *move)
{
    for (int i = 0; i < 10; i++)
        publish(&move->process, move->topic, "k", move->published++);
}

static void start_migrating(struct move *move)
{
    redis_fixture_ask(move->to, "CLUSTER SETSLOT %u IMPORTING %s", move->slot, move->from_id);
    redis_fixture_ask(move->from, "CLUSTER SETSLOT %u MIGRATING %s", move->slot, move->to_id);
}

/* All keys of the slot: the stream and the marks. */
static void migrate_keys(struct move *move)
{
    char key[128];

    while (redis_fixture_ask(move->from, "CLUSTER COUNTKEYSINSLOT %u", move->slot) > 0) {
        redis_fixture_first_key(move->from, move->slot, key, sizeof key);
        redis_fixture_ask(move->from, "MIGRATE 127.0.0.1 %u %s 0 5000 REPLACE", redis_fixture_port(move->to),
                          key);
    }
}

static void end_migrating(struct move *move)
{
    redis_fixture_ask(move->to, "CLUSTER SETSLOT %u NODE %s", move->slot, move->to_id);
    redis_fixture_ask(move->from, "CLUSTER SETSLOT %u NODE %s", move->slot, move->to_id);
}

static void move_end(struct move *move)
{
    bool came = recorder_await_committed(&move->every, (size_t)move->published);
    process_close(&move->process);
    assert_true(came);
    assert_int_equal(move->every.gaps, 0);
    assert_int_equal(move->every.count, move->published);
    for (int i = 0; i < move->published; i++)
        assert_int_equal(move->every.seen[i].number, i);
    recorder_deinit(&move->every);
}

/* MOVED: the slot has another owner, of which nobody told us. */
static void test_a_slot_that_moved_is_followed(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "moved", .partitions = 1};
    struct move move;
    move_begin(&move, &topic, "moved:stream");
    publish_some(&move);
    start_migrating(&move);
    migrate_keys(&move);
    end_migrating(&move);
    publish_some(&move);
    assert_int_equal(redis_fixture_owner("moved:stream"), move.to);
    move_end(&move);
}

/* ASK: the key is at its new place already, the slot is not. */
static void test_a_key_on_its_way_is_asked_for_where_it_is(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "asked", .partitions = 1};
    struct move move;
    move_begin(&move, &topic, "asked:stream");
    publish_some(&move);
    start_migrating(&move);
    publish_some(&move); /* it is still where it was */
    migrate_keys(&move);
    publish_some(&move);
    assert_true(recorder_await_committed(&move.every, 30));
    end_migrating(&move);
    publish_some(&move);
    move_end(&move);
}

/* ---- failover ---- */

/* A topic whose stream is on node 0, which has the replica, or on another one. */
static const char *topic_on_first(bool on_first)
{
    static char name[16];

    for (int i = 0; i < 1000; i++) {
        char stream[32];
        snprintf(name, sizeof name, "over-%d", i);
        snprintf(stream, sizeof stream, "%s:stream", name);
        if ((slot_of(stream) < 16384 / 3) == on_first)
            return name;
    }
    return NULL;
}

static size_t distinct(struct recorder *recorder, int count)
{
    size_t there = 0;

    for (int i = 0; i < count; i++)
        there += recorder_times(recorder, i) > 0;
    return there;
}

static void test_a_replica_takes_over(void **state)
{
    (void)state;
    const struct bus_topic topic = {.name = topic_on_first(true), .partitions = 1};
    struct process process;
    struct recorder every;
    recorder_init(&every);
    redis_open_with(&process, &topic);
    subscribe(&process, &every, (struct bus_subscription){.topic = topic.name, .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&every);
    for (int i = 0; i < 10; i++)
        publish(&process, topic.name, "k", i);
    assert_true(recorder_await_committed(&every, 10));
    redis_fixture_ask(0, "WAIT 1 1000");
    REDIS_AWAIT(bus_is_up(process.bus));
    redis_fixture_kill(0);
    for (int i = 10; i < 20; i++)
        publish_until_accepted(&process, topic.name, "k", i);
    REDIS_AWAIT(distinct(&every, 20) == 20);
    REDIS_AWAIT(bus_is_up(process.bus));
    redis_fixture_run(0);
    process_close(&process);
    recorder_deinit(&every);
}

static void test_a_whole_cluster_restarted(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "again", .partitions = 1};
    struct process process;
    struct recorder every;
    recorder_init(&every);
    redis_open_with(&process, &topic);
    subscribe(&process, &every, (struct bus_subscription){.topic = "again", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&every);
    for (unsigned i = 0; i < 8; i++)
        publish(&process, "again", "k", (int)i);
    redis_fixture_halt();
    assert_int_not_equal(try_publish(&process, "again", "k", 100), STATUS_OK);
    REDIS_AWAIT(!bus_is_up(process.bus));
    redis_fixture_resume();
    for (unsigned i = 8; i < 16; i++)
        publish_until_accepted(&process, "again", "k", (int)i);
    REDIS_AWAIT(distinct(&every, 16) == 16);
    process_close(&process);
    assert_int_equal(every.gaps, 0);
    recorder_deinit(&every);
}

/* Only one node is configured: the others are learned, and the stream is found again when that node is dead. */
static void test_other_nodes_are_learned_from_the_configured_one(void **state)
{
    (void)state;
    const struct bus_topic topic = {.name = topic_on_first(false), .partitions = 1};
    struct process process;
    struct recorder every;
    recorder_init(&every);
    redis_next.node_count = 1;
    redis_open_with(&process, &topic);
    redis_next.node_count = 0;
    subscribe(&process, &every, (struct bus_subscription){.topic = topic.name, .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&every);
    publish(&process, topic.name, "k", 0);
    REDIS_AWAIT(bus_is_up(process.bus));
    redis_fixture_kill(0);
    for (int i = 1; i < 10; i++) {
        redis_fixture_ask_all("CLIENT KILL TYPE normal"); /* each time the stream is looked up again */
        publish_until_accepted(&process, topic.name, "k", i);
    }
    REDIS_AWAIT(distinct(&every, 10) == 10);
    redis_fixture_run(0);
    process_close(&process);
    assert_int_equal(every.gaps, 0);
    recorder_deinit(&every);
}

/* The error says what to change. */
static void test_a_cluster_configured_as_single_is_an_error(void **state)
{
    (void)state;
    const struct bus_topic topic = {.name = topic_on_first(false), .partitions = 1};
    struct process process;
    struct error error = {0};
    redis_next.cluster = false;
    redis_open_with(&process, &topic);
    redis_next.cluster = true;
    process_start(&process);
    struct bus_message message = {.topic = str_from(topic.name), .key = STR("k"), .payload = STR("1")};
    enum status status = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error);
    process_close(&process);
    assert_int_not_equal(status, STATUS_OK);
    assert_non_null(strstr(error.message, "single"));
}

int redis_run_cluster(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slot_that_moved_is_followed),
        cmocka_unit_test(test_a_key_on_its_way_is_asked_for_where_it_is),
        cmocka_unit_test(test_a_cluster_configured_as_single_is_an_error),
        cmocka_unit_test(test_a_replica_takes_over),
        cmocka_unit_test(test_a_whole_cluster_restarted),
        cmocka_unit_test(test_other_nodes_are_learned_from_the_configured_one),
    };
    return cmocka_run_group_tests_name("redis cluster", tests, NULL, NULL);
}
