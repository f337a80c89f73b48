/* What stands on the letter of an event (E4, C9). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "outbox/outbox.h"

#define TRACE_ID "0af7651916cd43dd8448eb211c80319c"
#define TRACEPARENT "00-" TRACE_ID "-b7ad6b7169203331-01"

static struct arena arena;

static int setup(void **state)
{
    (void)state;
    arena = ARENA(1024);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_deinit(&arena);
    return 0;
}

static const struct outbox_event event = {.id = {"e-1", 3}, .event_type = {"made", 4}};

static struct bus_message letter(const char *traceparent, const struct bus_header *more, unsigned more_count)
{
    struct bus_message message;
    outbox_message_write(&(struct outbox_message){.topic = STR("things"),
                                                  .key = STR("t/1"),
                                                  .payload = STR("{}"),
                                                  .tenant = STR("t"),
                                                  .occurred_at = STR("2026-01-08T07:10:00.000000Z"),
                                                  .traceparent = str_from(traceparent),
                                                  .more = more,
                                                  .more_count = more_count},
                         &event, &message, &arena);
    return message;
}

static void expect(const struct bus_message *message, const char *const (*headers)[2], unsigned count)
{
    assert_int_equal(message->header_count, count);
    for (unsigned i = 0; i < count; i++) {
        assert_true(str_eq(message->headers[i].name, str_from(headers[i][0])));
        assert_true(str_eq(message->headers[i].value, str_from(headers[i][1])));
    }
}

static const char *const expected[][2] = {
    {"event-id", "e-1"},          {"event_type", "made"},
    {"aggregate_key", "t/1"},     {"occurred_at", "2026-01-08T07:10:00.000000Z"},
    {"tenant_id", "t"},           {"trace_id", TRACE_ID},
    {"traceparent", TRACEPARENT},
};

static void test_a_letter_says_what_every_event_says(void **state)
{
    (void)state;
    struct bus_message message = letter(TRACEPARENT, NULL, 0);
    assert_true(str_eq(message.topic, STR("things")));
    assert_true(str_eq(message.key, STR("t/1")));
    assert_true(str_eq(message.payload, STR("{}")));
    expect(&message, expected, 7);
}

static void test_what_was_not_traced_says_nothing_of_it(void **state)
{
    (void)state;
    static const char *const none[] = {NULL, "", "00-" TRACE_ID, TRACEPARENT "0"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        struct bus_message message = letter(none[i], NULL, 0);
        expect(&message, expected, 5);
    }
}

static void test_a_module_may_say_more(void **state)
{
    (void)state;
    const struct bus_header more[] = {{STR("colour"), STR("red")}, {STR("size"), STR("2")}};
    static const char *const wanted[][2] = {
        {"event-id", "e-1"},
        {"event_type", "made"},
        {"aggregate_key", "t/1"},
        {"occurred_at", "2026-01-08T07:10:00.000000Z"},
        {"tenant_id", "t"},
        {"colour", "red"},
        {"size", "2"},
        {"trace_id", TRACE_ID},
        {"traceparent", TRACEPARENT},
    };
    struct bus_message message = letter(TRACEPARENT, more, 2);
    expect(&message, wanted, 9);
    message = letter(NULL, more, 2);
    expect(&message, wanted, 7);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_letter_says_what_every_event_says),
        TEST(test_what_was_not_traced_says_nothing_of_it),
        TEST(test_a_module_may_say_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
