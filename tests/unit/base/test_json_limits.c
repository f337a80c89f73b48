/* The limits of a JSON text (C6): depth, the digits of a number when it is printed, all numbers together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool accepts(struct str text, unsigned depth_max)
{
    struct json_value value;
    struct error error;

    return json_parse(text, depth_max, &value, &error) == STATUS_OK;
}

static struct str nested(struct buf *buf, const char *open, const char *close, unsigned depth)
{
    buf_clear(buf);
    for (unsigned i = 0; i < depth; i++)
        buf_put_str(buf, str_from(open));
    if (open[0] == '{')
        buf_put_char(buf, '1');
    for (unsigned i = 0; i < depth; i++)
        buf_put_str(buf, str_from(close));
    return buf_str(buf);
}

static void depth_is_bounded_C6(void **state)
{
    (void)state;
    struct buf buf = {0};

    assert_true(accepts(STR("1"), 0));
    assert_false(accepts(STR("[]"), 0));
    assert_true(accepts(nested(&buf, "[", "]", 64), 64));
    assert_false(accepts(nested(&buf, "[", "]", 65), 64));
    assert_true(accepts(nested(&buf, "{\"a\":", "}", 64), 64));
    assert_false(accepts(nested(&buf, "{\"a\":", "}", 65), 64));
    assert_true(accepts(nested(&buf, "[{\"a\":[{\"b\":[", "]}]}]", 100), 500));
    assert_false(accepts(nested(&buf, "[{\"a\":[{\"b\":[", "]}]}]", 101), 500));
    assert_true(accepts(nested(&buf, "[", "]", JSON_DEPTH_LIMIT), UINT32_MAX));
    assert_false(accepts(nested(&buf, "[", "]", JSON_DEPTH_LIMIT + 1), UINT32_MAX));
    assert_false(accepts(nested(&buf, "[", "", 100000), UINT32_MAX));
    assert_false(accepts(nested(&buf, "[{\"\":", "", 100000), UINT32_MAX));
    buf_deinit(&buf);
}

/* A container closed by the other kind's bracket at any level, where the levels' bits cross words. */
static void brackets_match_at_every_level(void **state)
{
    (void)state;
    for (unsigned level = 0; level < 200; level++) {
        char text[400];
        for (unsigned i = 0; i < 200; i++) {
            text[i] = '[';
            text[399 - i] = i == level ? '}' : ']';
        }
        assert_false(accepts(str_of(text, 400), 1000));
        text[399 - level] = ']';
        assert_true(accepts(str_of(text, 400), 1000));
    }
}

/* ---- what numbers become ---- */

static void a_number_has_at_most_a_thousand_digits_when_printed_C6(void **state)
{
    static const struct {
        struct str text;
        bool is_taken;
    } cases[] = {
        {STR("1e999"), true},
        {STR("1e1000"), false},
        {STR("-1E+999"), true},
        {STR("-1E+1000"), false},
        {STR("12e998"), true},
        {STR("12e999"), false},
        {STR("1.5e999"), true},
        {STR("1.5e1000"), false},
        {STR("1e-999"), true},
        {STR("1e-1000"), false},
        {STR("0.5e-998"), true},
        {STR("0.5e-1000"), false},
        {STR("1e131071"), false},
        {STR("0e-16383"), false},
        {STR("1.7976931348623157e308"), true},
        {STR("5e-324"), true},
        {STR("1e00000001"), true},
        {STR("1e18446744073709551617"), false},
        {STR("1e-18446744073709551617"), false},
    };
    char digits[JSON_NUMBER_DIGITS_MAX + 2];

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct json_value value;
        assert_int_equal(accepts(cases[i].text, 0), cases[i].is_taken);
        assert_int_equal(json_parse_stored(cases[i].text, 0, &value, NULL), STATUS_OK);
    }
    memset(digits, '7', sizeof digits);
    assert_true(accepts(str_of(digits, JSON_NUMBER_DIGITS_MAX), 0));
    assert_false(accepts(str_of(digits, JSON_NUMBER_DIGITS_MAX + 1), 0));
    digits[1] = '.';
    assert_true(accepts(str_of(digits, JSON_NUMBER_DIGITS_MAX + 1), 0));
    assert_false(accepts(str_of(digits, JSON_NUMBER_DIGITS_MAX + 2), 0));
}

static void a_number_that_is_too_long_is_named(void **state)
{
    static const struct {
        struct str text;
        const char *field;
    } cases[] = {
        {STR(" {\"items\" : [ {\"a\":[1,{}]}, {\"payload\":{\"b\":[1e2000]}} ]} "), "items[1].payload"},
        {STR("[[1,2],[3,1e2000],}"), "[1][1]"},
        {STR("{\"a name of more than eighteen bytes\":1e2000"), "a name of more tha"},
        {STR("1e2000"), ""},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct json_value value;
        struct error error;
        assert_int_equal(json_parse(cases[i].text, 9, &value, &error), STATUS_BAD_REQUEST);
        assert_string_equal(error.field, cases[i].field);
        assert_non_null(strstr(error.message, "a number would be printed with more than 1000 digits"));
    }
}

/* A text of `count` numbers that become a thousand digits each. */
static bool takes_many(size_t count, bool is_stored)
{
    struct buf text = {0};
    struct json_value value;

    buf_put_char(&text, '[');
    for (size_t i = 0; i < count; i++)
        buf_put_str(&text, i ? STR(",1e999") : STR("1e999"));
    buf_put_char(&text, ']');
    enum status status = is_stored ? json_parse_stored(buf_str(&text), 1, &value, NULL)
                                   : json_parse(buf_str(&text), 1, &value, NULL);
    if (status == STATUS_OK)
        assert_int_equal(json_printed_size(value.raw), count * 1001 + 1);
    buf_deinit(&text);
    return status == STATUS_OK;
}

static void the_numbers_of_a_text_are_bounded_together_C6(void **state)
{
    (void)state;
    assert_true(takes_many(8000, false));
    assert_false(takes_many(9000, false));
    assert_true(takes_many(9000, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(depth_is_bounded_C6),
        cmocka_unit_test(brackets_match_at_every_level),
        cmocka_unit_test(a_number_has_at_most_a_thousand_digits_when_printed_C6),
        cmocka_unit_test(a_number_that_is_too_long_is_named),
        cmocka_unit_test(the_numbers_of_a_text_are_bounded_together_C6),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
