/* C9: traceparent, by the rules of W3C trace context. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/trace.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN "00f067aa0ba902b7"

static void accepted_ones(void **state)
{
    (void)state;
    static const struct {
        struct str text;
        int flags;
    } cases[] = {
        {STR("00-" TRACE "-" SPAN "-01"), 1},
        {STR("00-" TRACE "-" SPAN "-00"), 0},
        {STR("00-" TRACE "-" SPAN "-ff"), 1}, /* flags that version 00 does not know are not passed on */
        {STR("01-" TRACE "-" SPAN "-01"), 1},
        {STR("cc-" TRACE "-" SPAN "-01-what-the-future-will-be-like"), 1},
        {STR("fe-" TRACE "-" SPAN "-00-"), 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct trace trace;
        char out[TRACE_PARENT_BYTES];
        assert_true(trace_parse(cases[i].text, &trace));
        assert_int_equal(trace.flags, cases[i].flags);
        trace_format(&trace, out);
        assert_memory_equal(out, "00-" TRACE "-" SPAN "-0", 54);
        assert_int_equal(strlen(out), TRACE_PARENT_BYTES - 1);
    }
}

static void refused_ones(void **state)
{
    (void)state;
    static const struct str bad[] = {
        STR_NONE,
        STR("00"),
        STR("ff-" TRACE "-" SPAN "-01"),
        STR("ff-" TRACE "-" SPAN "-01-more"),
        STR("00-" TRACE "-" SPAN "-01-more"),
        STR("00-" TRACE "-" SPAN "-01-"),
        STR("00-" TRACE "-" SPAN "-01 "),
        STR(" 00-" TRACE "-" SPAN "-01"),
        STR("cc-" TRACE "-" SPAN "-01.what"),
        STR("cc-" TRACE "-" SPAN "-011"),
        STR("00-" TRACE "-" SPAN "-0"),
        STR("00-" TRACE "-" SPAN),
        STR("00-00000000000000000000000000000000-" SPAN "-01"),
        STR("00-" TRACE "-0000000000000000-01"),
        STR("00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01"),
        STR("00-" TRACE "-00F067AA0BA902B7-01"),
        STR("0A-" TRACE "-" SPAN "-01"),
        STR("00-" TRACE "-" SPAN "-0A"),
        STR("0x-" TRACE "-" SPAN "-01"),
        STR("00_" TRACE "_" SPAN "_01"),
        STR("00-4bf92f3577b34da6a3ce929d0e0e473g-" SPAN "-01"),
        STR("00-" TRACE "-00f067aa0ba902b.-01"),
        STR("00-" TRACE "-" SPAN "-0."),
        STR("00-" TRACE "0-" SPAN "-01"),
        STR("00-ce929d0e0e4736-" SPAN "-01"),
    };
    struct trace trace = {.flags = 7};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(trace_parse(bad[i], &trace));
    assert_int_equal(trace.flags, 7);
}

static void a_child_keeps_the_trace(void **state)
{
    (void)state;
    struct trace trace, parent, other;
    char out[TRACE_PARENT_BYTES];

    trace_start(&trace);
    trace_start(&other);
    assert_memory_not_equal(trace.trace_id, other.trace_id, 16);
    assert_int_equal(trace.flags, 0);
    parent = trace;
    trace_child(&trace);
    assert_memory_equal(trace.trace_id, parent.trace_id, 16);
    assert_memory_not_equal(trace.span_id, parent.span_id, 8);
    trace_format(&trace, out);
    assert_true(trace_parse(str_from(out), &other));
    assert_memory_equal(&other, &trace, sizeof(trace));
}

static void the_text_of_none_is_none(void **state)
{
    (void)state;
    struct trace trace = {0};
    char out[TRACE_PARENT_BYTES];
    struct arena arena = ARENA(256);

    assert_null(trace_text(&trace, &arena).ptr);
    trace_start(&trace);
    trace_format(&trace, out);
    assert_true(str_eq(trace_text(&trace, &arena), str_from(out)));
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_ones),
        cmocka_unit_test(refused_ones),
        cmocka_unit_test(a_child_keeps_the_trace),
        cmocka_unit_test(the_text_of_none_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
