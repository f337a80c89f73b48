/* The NATS driver: deliveries that the server counts, while it dies and while the database is away. */
#include <stdio.h>

#include "../db/pg_fixture.h"
#include "nats_fixture.h"
#include "nats_orders.h"

struct consumer_file {
    char path[256], bytes[4096];
    size_t len;
};

static void read_consumer_file(struct consumer_file *file)
{
    nats_fixture_consumer_file(orders.stream, "mailer", file->path, sizeof file->path);
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
        pause_ms(10);
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

    snprintf(reply, sizeof reply, "$JS.ACK.%s.mailer.1.1.1.1.0", orders.stream);
    while (pending < count && clock_mono_ns() < limit_ns) {
        jsConsumerInfo *info = NULL;
        natsConnection_PublishString(orders.connection, reply, "+WPI");
        if (js_GetConsumerInfo(&info, orders.js, orders.stream, "mailer", NULL, NULL) == NATS_OK)
            pending = info->NumAckPending;
        jsConsumerInfo_Destroy(info);
        pause_ms(10);
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
    natsStatus sent = js_Publish(NULL, orders.js, orders.subject, "41", 2, NULL, NULL);
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

static bool sent_once_each(uint64_t count)
{
    jsConsumerInfo *info = NULL;
    bool good = js_GetConsumerInfo(&info, orders.js, orders.stream, "mailer", NULL, NULL) == NATS_OK &&
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
    pause_ms(2500);
    pg_fixture_resume();
    bool after = recorder_await_committed(&reader.recorder, 60);
    bool once = sent_once_each(60);
    close_reader(&reader);
    assert_true(before && after && once);
    assert_int_equal(letters(), 0);
}

int nats_run_deliveries(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_server_that_forgets_deliveries_loses_no_message),
        TEST(test_a_database_that_is_away_uses_up_no_delivery),
    };
    return cmocka_run_group_tests_name("nats deliveries", tests, NULL, NULL);
}
