/* What moves in a cluster: slots, with their keys half gone; a master that dies and its replica that takes over; all of it
 * restarted. Publishers and readers go on, in order, and nothing is lost. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bus/redis/slots.h"
#include "test_redis.h"

static const char *id_of(unsigned node, char out[64])
{
    snprintf(out, 64, "%s", redis_fixture_text(node, "CLUSTER MYID"));
    return out;
}

struct move {
    struct process process;
    struct recorder shared, every;
    unsigned from, to, slot;
    char from_id[64], to_id[64];
    const char *topic, *stream;
    int published;
};

static void move_begin(struct move *move, const struct bus_topic *topic, const char *stream)
{
    recorder_init(&move->shared);
    recorder_init(&move->every);
    move->topic = topic->name;
    move->stream = stream;
    move->published = 0;
    redis_open_with(&move->process, topic);
    subscribe(&move->process, &move->shared, (struct bus_subscription){.topic = topic->name});
    subscribe(&move->process, &move->every,
              (struct bus_subscription){.topic = topic->name, .mode = BUS_EVERY});
    process_start(&move->process);
    await_ready(&move->shared);
    await_ready(&move->every);
    move->slot = redis_slot_of(str_from(stream));
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

/* All keys of the slot: the stream, marks, leases. */
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
    bool came = recorder_await_committed(&move->shared, (size_t)move->published) &&
                recorder_await_committed(&move->every, (size_t)move->published);
    process_close(&move->process);
    assert_true(came);
    assert_int_equal(move->every.gaps, 0);
    assert_int_equal(move->every.count, move->published);
    for (int i = 0; i < move->published; i++)
        assert_int_equal(move->every.seen[i].number, i);
    int newest = -1; /* a shared group may repeat, but not go ahead of itself */
    for (size_t i = 0; i < move->shared.count; i++) {
        assert_true(move->shared.seen[i].number <= newest + 1);
        newest = move->shared.seen[i].number > newest ? move->shared.seen[i].number : newest;
    }
    recorder_deinit(&move->shared);
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

/* A topic whose stream is node 0's, which has the replica. */
static const char *topic_of_first(void)
{
    static char name[16];

    for (int i = 0; i < 1000; i++) {
        char stream[32];
        snprintf(name, sizeof name, "over-%d", i);
        snprintf(stream, sizeof stream, "%s:stream", name);
        if (redis_slot_of(str_from(stream)) < 16384 / 3)
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
    const struct bus_topic topic = {.name = topic_of_first(), .partitions = 1};
    struct process process;
    struct recorder shared, every;
    recorder_init(&shared);
    recorder_init(&every);
    redis_open_with(&process, &topic);
    subscribe(&process, &shared, (struct bus_subscription){.topic = topic.name});
    subscribe(&process, &every, (struct bus_subscription){.topic = topic.name, .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&shared);
    await_ready(&every);
    for (int i = 0; i < 10; i++)
        publish(&process, topic.name, "k", i);
    assert_true(recorder_await_committed(&every, 10));
    redis_fixture_ask(0, "WAIT 1 1000");
    REDIS_AWAIT(bus_redis_is_up(process.bus));
    redis_fixture_kill(0);
    for (int i = 10; i < 20; i++)
        publish_until_accepted(&process, topic.name, "k", i);
    REDIS_AWAIT(distinct(&every, 20) == 20 && distinct(&shared, 20) == 20);
    REDIS_AWAIT(bus_redis_is_up(process.bus));
    redis_fixture_run(0);
    process_close(&process);
    recorder_deinit(&shared);
    recorder_deinit(&every);
}

static void test_a_whole_cluster_restarted(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "again", .partitions = 4};
    struct process process;
    struct recorder every;
    recorder_init(&every);
    redis_open_with(&process, &topic);
    subscribe(&process, &every, (struct bus_subscription){.topic = "again", .mode = BUS_EVERY});
    process_start(&process);
    await_ready(&every);
    for (unsigned i = 0; i < 8; i++)
        publish(&process, "again", key_of_partition(i % 4, 4), (int)i);
    redis_fixture_halt();
    assert_int_not_equal(try_publish(&process, "again", "k", 100), STATUS_OK);
    REDIS_AWAIT(!bus_redis_is_up(process.bus));
    redis_fixture_resume();
    for (unsigned i = 8; i < 16; i++)
        publish_until_accepted(&process, "again", key_of_partition(i % 4, 4), (int)i);
    REDIS_AWAIT(distinct(&every, 16) == 16);
    process_close(&process);
    assert_int_equal(every.gaps, 0);
    recorder_deinit(&every);
}

/* A node of it is no single Redis, and says so. */
static void test_a_cluster_configured_as_single_is_told(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "alone", .partitions = 4};
    struct process process;
    struct error error = {0};
    redis_next.cluster = false;
    redis_open_with(&process, &topic);
    redis_next.cluster = true;
    process_start(&process);
    enum status status = STATUS_OK;
    for (unsigned i = 0; i < 4 && status == STATUS_OK; i++) {
        struct bus_message message = {
            .topic = STR("alone"), .key = str_from(key_of_partition(i, 4)), .payload = STR("1")};
        status = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error);
    }
    process_close(&process);
    assert_int_not_equal(status, STATUS_OK);
    assert_non_null(strstr(error.message, "single"));
}

int redis_run_cluster(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slot_that_moved_is_followed),
        cmocka_unit_test(test_a_key_on_its_way_is_asked_for_where_it_is),
        cmocka_unit_test(test_a_cluster_configured_as_single_is_told),
        cmocka_unit_test(test_a_replica_takes_over),
        cmocka_unit_test(test_a_whole_cluster_restarted),
    };
    return cmocka_run_group_tests_name("redis cluster", tests, NULL, NULL);
}
