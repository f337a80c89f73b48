/* bus_deliver() on a real PostgreSQL and an engine of a few lines that counts dead letters, or refuses them. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "bus/bus_inside.h"
#include "conformance.h"
#include "sql_rig.h"

/* ---- an engine ---- */

struct engine {
    struct bus bus;
    struct bus_consumer consumer; /* the one under test */
    enum status answer;           /* to publications */
    size_t letters;
    char reason[BUS_REASON_BYTES];
    size_t payload_bytes; /* of the last letter */
};

static enum status engine_publish(struct bus *bus, struct bus_message *messages, size_t count,
                                  int64_t deadline_ns, struct error *error)
{
    struct engine *engine = (struct engine *)bus;

    (void)deadline_ns;
    if (engine->answer != STATUS_OK)
        return error_set(error, engine->answer, "the engine says no");
    engine->letters += count;
    snprintf(engine->reason, sizeof engine->reason, "%.*s",
             STR_ARG(bus_message_header(&messages[0], STR(BUS_HEADER_DEAD_REASON))));
    engine->payload_bytes = messages[0].payload.len;
    return STATUS_OK;
}

static void engine_subscribe(struct bus *bus, const struct bus_consumer *consumer)
{
    ((struct engine *)bus)->consumer = *consumer;
}

static const struct bus_driver engine_driver = {.publish = engine_publish, .subscribe = engine_subscribe};

/* ---- a handler that does as it is told ---- */

struct world {
    struct engine engine;
    struct bus_delivery delivery;
    struct db_pool *pool;
    void (*behave)(struct world *world, struct bus_batch *batch);
    size_t calls, handled, committed, uncommitted;
    unsigned attempts[32];
};

static void handle(void *context, struct bus_batch *batch)
{
    struct world *world = context;

    if (world->calls < sizeof world->attempts / sizeof world->attempts[0])
        world->attempts[world->calls] = batch->attempt;
    world->calls++;
    world->handled += batch->count;
    for (size_t i = 0; i < batch->count; i++)
        if (!sql_write_effect(batch->conn, (int)batch->messages[i].offset, batch->deadline_ns))
            return;
    if (world->behave)
        world->behave(world, batch);
}

static void on_committed(void *context, const struct bus_batch *batch, size_t settled)
{
    (void)batch;
    ((struct world *)context)->committed += settled;
}

static void on_uncommitted(void *context, const struct bus_batch *batch)
{
    (void)batch;
    ((struct world *)context)->uncommitted++;
}

static void world_open(struct world *world, unsigned attempts_max)
{
    static const struct bus_topic topic = {.name = "topic", .partitions = 1};
    struct bus_subscription subscription = {.topic = "topic",
                                            .group = "group",
                                            .attempts_max = attempts_max,
                                            .backoff_min_ms = 10,
                                            .backoff_max_ms = 20,
                                            .context = world,
                                            .handler = handle,
                                            .on_committed = on_committed,
                                            .on_uncommitted = on_uncommitted};
    struct db_target target = pg_fixture_target();

    *world = (struct world){.engine.bus.message_bytes_max = 1000};
    sql("TRUNCATE public.effect");
    assert_int_equal(db_pool_create(&target, &world->pool, NULL), STATUS_OK);
    assert_int_equal(bus_init(&world->engine.bus, &engine_driver, &topic, 1, 1000, NULL), STATUS_OK);
    assert_int_equal(bus_subscribe(&world->engine.bus, &subscription, NULL), STATUS_OK);
    world->delivery = (struct bus_delivery){.bus = &world->engine.bus,
                                            .consumer = &world->engine.consumer,
                                            .pool = world->pool,
                                            .handler_ms = 30000};
}

static void world_close(struct world *world)
{
    db_pool_destroy(world->pool);
    bus_consumer_deinit(&world->engine.consumer);
    bus_deinit(&world->engine.bus);
}

#define COUNT 5
static struct bus_message messages[COUNT];

/* Hands over what is left, as a driver does, until all is settled or it was tried so often. */
static size_t deliver_all(struct world *world, int tries)
{
    size_t done = 0;

    for (int i = 0; i < tries && done < COUNT; i++) {
        int64_t wait_ms;
        done += bus_deliver(&world->delivery, messages + done, COUNT - done, &wait_ms);
    }
    return done;
}

#define EFFECTS "SELECT count(*) FROM public.effect"

/* ---- tests ---- */

static void test_a_batch_is_committed_with_its_effects(void **state)
{
    (void)state;
    struct world world;
    int64_t wait_ms;
    world_open(&world, 0);
    size_t settled = bus_deliver(&world.delivery, messages, COUNT, &wait_ms);
    world_close(&world);
    assert_int_equal(settled, COUNT);
    assert_int_equal(wait_ms, 0);
    assert_int_equal(world.calls, 1);
    assert_int_equal(world.committed, COUNT);
    assert_int_equal(sql(EFFECTS), COUNT);
}

static void fail_at_two(struct world *world, struct bus_batch *batch)
{
    (void)world;
    for (size_t i = 0; i < batch->count; i++)
        if (batch->messages[i].offset == 2)
            bus_batch_rollback(batch, "two cannot be done");
}

static void test_a_batch_that_is_rolled_back_comes_one_by_one(void **state)
{
    (void)state;
    struct world world;
    world_open(&world, 3);
    world.behave = fail_at_two;
    size_t settled = deliver_all(&world, 20);
    world_close(&world);
    assert_int_equal(settled, COUNT);
    assert_int_equal(sql(EFFECTS), COUNT - 1);
    assert_int_equal(sql("SELECT count(*) FROM public.effect WHERE number = 2"), 0);
    assert_int_equal(world.engine.letters, 1);
    assert_string_equal(world.engine.reason, "two cannot be done");
    /* all together; 0, 1; 2 three times; 3, 4 */
    assert_int_equal(world.calls, 1 + 2 + 3 + 2);
    assert_int_equal(world.uncommitted, 4);
}

static void be_refused_at_two(struct world *world, struct bus_batch *batch)
{
    (void)world;
    for (size_t i = 0; i < batch->count; i++)
        if (batch->messages[i].offset == 2 && !sql_write_effect(batch->conn, -1, batch->deadline_ns))
            return;
}

static void test_what_the_database_refuses_is_the_messages_own_failure(void **state)
{
    (void)state;
    struct world world;
    world_open(&world, 2);
    world.behave = be_refused_at_two;
    size_t settled = deliver_all(&world, 20);
    world_close(&world);
    assert_int_equal(settled, COUNT);
    assert_int_equal(sql(EFFECTS), COUNT - 1);
    assert_int_equal(world.engine.letters, 1);
    assert_true(world.engine.reason[0] != '\0');
}

static void retry_three(struct world *world, struct bus_batch *batch)
{
    (void)world;
    for (size_t i = 0; i < batch->count; i++)
        if (batch->messages[i].offset == 3)
            bus_batch_retry(batch, i, "not three");
}

static void test_a_retry_is_counted_and_given_up(void **state)
{
    (void)state;
    struct world world;
    int64_t wait_ms;
    world_open(&world, 3);
    world.behave = retry_three;
    size_t first = bus_deliver(&world.delivery, messages, COUNT, &wait_ms);
    int64_t backoff_ms = wait_ms;
    size_t second = bus_deliver(&world.delivery, messages + 3, 2, &wait_ms);
    size_t third = bus_deliver(&world.delivery, messages + 3, 2, &wait_ms);
    int64_t none_ms = wait_ms;
    size_t last = bus_deliver(&world.delivery, messages + 4, 1, &wait_ms);
    world_close(&world);
    assert_int_equal(first, 3);
    assert_true(backoff_ms > 0);
    assert_int_equal(second, 0);
    assert_int_equal(third, 1);
    assert_int_equal(none_ms, 0);
    assert_int_equal(last, 1);
    assert_int_equal(world.attempts[1], 1);
    assert_int_equal(world.attempts[2], 2);
    assert_int_equal(world.attempts[3], 0);
    assert_int_equal(world.engine.letters, 1);
    assert_string_equal(world.engine.reason, "not three");
}

static size_t count_lines(FILE *file)
{
    size_t lines = 0;

    rewind(file);
    for (int c; (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    return lines;
}

/* The pool has lines of its own, for each change; a batch that waits has one, however often it is tried. */
static void test_an_outage_is_told_of_once(void **state)
{
    (void)state;
    struct world world;
    size_t lines[2];
    FILE *log = tmpfile();
    assert_non_null(log);
    world_open(&world, 1);
    log_set_fd(fileno(log));
    log_set_level(LOG_LEVEL_WARN);
    pg_fixture_halt();
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 5; i++) {
            int64_t wait_ms;
            assert_int_equal(bus_deliver(&world.delivery, messages, COUNT, &wait_ms), 0);
        }
        lines[round] = count_lines(log);
    }
    log_set_level(LOG_LEVEL_ERROR);
    log_set_fd(STDERR_FILENO);
    pg_fixture_resume();
    world_close(&world);
    fclose(log);
    assert_true(lines[0] >= 1);
    assert_int_equal(lines[1], lines[0]);
}

static void test_an_outage_is_nobodys_attempt(void **state)
{
    (void)state;
    struct world world;
    int64_t wait_ms = 0;
    world_open(&world, 1);
    pg_fixture_halt();
    size_t during = bus_deliver(&world.delivery, messages, COUNT, &wait_ms);
    pg_fixture_resume();
    unsigned attempts = world.delivery.attempts;
    size_t calls = world.calls;
    size_t after = 0;
    for (int i = 0; i < 400 && after == 0; i++) { /* the pool looks again when it sees fit */
        int64_t pause_ms;
        after = bus_deliver(&world.delivery, messages, COUNT, &pause_ms);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    world_close(&world);
    assert_int_equal(during, 0);
    assert_true(wait_ms > 0);
    assert_int_equal(attempts, 0);
    assert_int_equal(calls, 0);
    assert_int_equal(after, COUNT);
    assert_int_equal(world.engine.letters, 0);
}

static void kill_all(struct world *world, struct bus_batch *batch)
{
    (void)world;
    for (size_t i = 0; i < batch->count; i++)
        bus_batch_term(batch, i, "no");
}

/* Also a TIMEOUT, which would be the handler's doing if the database said it. */
static void test_a_message_whose_letter_is_not_taken_stays(void **state)
{
    (void)state;
    static const enum status answers[] = {STATUS_TIMEOUT, STATUS_UNAVAILABLE, STATUS_CANCELLED};
    struct world world;
    world_open(&world, 1);
    world.behave = kill_all;
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        int64_t wait_ms = 0;
        world.engine.answer = answers[i];
        assert_int_equal(bus_deliver(&world.delivery, messages, COUNT, &wait_ms), 0);
        assert_true(wait_ms > 0);
        assert_int_equal(world.delivery.attempts, 0);
        assert_int_equal(sql(EFFECTS), 0);
    }
    world.engine.answer = STATUS_OK;
    size_t settled = deliver_all(&world, 1);
    world_close(&world);
    assert_int_equal(settled, COUNT);
    assert_int_equal(world.engine.letters, COUNT);
}

static void test_a_letter_that_is_too_large_goes_without_its_content(void **state)
{
    (void)state;
    struct world world;
    static char bytes[1000];
    struct bus_message large = {
        .topic = STR("topic"), .key = str_of(bytes, 10), .payload = str_of(bytes, sizeof bytes)};
    int64_t wait_ms;
    world_open(&world, 1);
    world.behave = kill_all;
    size_t settled = bus_deliver(&world.delivery, &large, 1, &wait_ms);
    world_close(&world);
    assert_int_equal(settled, 1);
    assert_int_equal(world.engine.letters, 1);
    assert_int_equal(world.engine.payload_bytes, 0);
    assert_string_equal(world.engine.reason, "no; it was too large to be kept");
}

static void test_what_is_forgotten_counts_anew(void **state)
{
    (void)state;
    struct world world;
    int64_t wait_ms;
    world_open(&world, 3);
    world.behave = retry_three;
    size_t settled = bus_deliver(&world.delivery, messages + 3, 1, &wait_ms);
    bus_delivery_forget(&world.delivery);
    settled += bus_deliver(&world.delivery, messages + 3, 1, &wait_ms);
    world_close(&world);
    assert_int_equal(settled, 0);
    assert_int_equal(world.attempts[1], 0);
    assert_int_equal(world.engine.letters, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_batch_is_committed_with_its_effects),
        cmocka_unit_test(test_a_batch_that_is_rolled_back_comes_one_by_one),
        cmocka_unit_test(test_what_the_database_refuses_is_the_messages_own_failure),
        cmocka_unit_test(test_a_retry_is_counted_and_given_up),
        cmocka_unit_test(test_an_outage_is_told_of_once),
        cmocka_unit_test(test_an_outage_is_nobodys_attempt),
        cmocka_unit_test(test_a_message_whose_letter_is_not_taken_stays),
        cmocka_unit_test(test_a_letter_that_is_too_large_goes_without_its_content),
        cmocka_unit_test(test_what_is_forgotten_counts_anew),
    };

    log_set_level(LOG_LEVEL_ERROR);
    for (int i = 0; i < COUNT; i++)
        messages[i] =
            (struct bus_message){.topic = STR("topic"), .key = STR("k"), .payload = STR("1"), .offset = i};
    sql_rig_start();
    int failed = cmocka_run_group_tests_name("delivery", tests, NULL, NULL);
    sql_rig_stop();
    return failed ? 1 : 0;
}
