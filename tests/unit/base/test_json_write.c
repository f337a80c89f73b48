/* The JSON writer: what it writes, our own scanner reads back as it was (C3). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"

static void assert_written(struct str text, struct str expected)
{
    struct buf buf = {0};

    json_put_string(&buf, text);
    assert_int_equal(buf_len(&buf), expected.len);
    assert_true(str_eq(buf_str(&buf), expected));
    assert_int_equal(json_string_size(text), expected.len);
    buf_deinit(&buf);
}

static void strings_are_escaped(void **state)
{
    (void)state;
    assert_written(STR_NONE, STR("\"\""));
    assert_written(STR("plain / text"), STR("\"plain / text\""));
    assert_written(STR("\"\\\b\f\n\r\t"), STR("\"\\\"\\\\\\b\\f\\n\\r\\t\""));
    assert_written(STR("\0\x01\x1F\x7F"), STR("\"\\u0000\\u0001\\u001f\x7F\""));
    assert_written(STR("\xC3\xA9\xF0\x9F\x98\x80"), STR("\"\xC3\xA9\xF0\x9F\x98\x80\""));
}

static void invalid_utf8_becomes_the_replacement(void **state)
{
    (void)state;
    assert_written(STR("a\xFF"
                       "b"),
                   STR("\"a\xEF\xBF\xBD"
                       "b\""));
    assert_written(STR("\xC3"), STR("\"\xEF\xBF\xBD\""));
    assert_written(STR("\xED\xA0\x80"), STR("\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""));
}

static void every_byte_comes_back(void **state)
{
    (void)state;
    struct buf buf = {0};
    struct arena arena = ARENA(1024);

    for (int c = 0; c < 128; c++) {
        for (size_t at = 0; at < 40; at++) {
            char text[40];
            struct json_value value;
            memset(text, 'x', sizeof(text));
            text[at] = (char)c;
            buf_clear(&buf);
            json_put_string(&buf, str_of(text, sizeof(text)));
            assert_int_equal(json_parse(buf_str(&buf), 1, &value, NULL), STATUS_OK);
            assert_true(json_str_eq(value.raw, str_of(text, sizeof(text))));
            assert_true(str_eq(json_str_decode(value.raw, &arena), str_of(text, sizeof(text))));
            arena_reset(&arena);
        }
    }
    buf_deinit(&buf);
    arena_deinit(&arena);
}

static void members_bring_their_commas(void **state)
{
    (void)state;
    struct buf buf = {0};

    buf_put_char(&buf, '{');
    json_put_member_str(&buf, "s", STR("a\"{"));
    json_put_member_i64(&buf, "min", INT64_MIN);
    json_put_member_i64(&buf, "n", 7);
    json_put_member_bool(&buf, "t", true);
    json_put_member_raw(&buf, "raw", STR("[1]"));
    json_put_open(&buf, "in", '{');
    json_put_member_bool(&buf, "f", false);
    buf_put_str(&buf, STR("}}"));
    assert_true(str_eq(buf_str(&buf), STR("{\"s\":\"a\\\"{\",\"min\":-9223372036854775808,\"n\":7,\"t\":true,"
                                          "\"raw\":[1],\"in\":{\"f\":false}}")));
    buf_deinit(&buf);
}

static void elements_bring_their_commas(void **state)
{
    (void)state;
    struct buf buf = {0};

    for (int i = 0; i < 2; i++) { /* also those of a list whose bracket is added later */
        json_put_open(&buf, NULL, '{');
        json_put_member_str_or_null(&buf, "a", i ? STR("") : STR_NONE);
        json_put_open(&buf, "list", '[');
        json_put_open(&buf, NULL, '[');
        buf_put_str(&buf, STR("]]}"));
    }
    assert_true(str_eq(buf_str(&buf), STR("{\"a\":null,\"list\":[[]]},{\"a\":\"\",\"list\":[[]]}")));
    buf_deinit(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_are_escaped),         cmocka_unit_test(invalid_utf8_becomes_the_replacement),
        cmocka_unit_test(every_byte_comes_back),       cmocka_unit_test(members_bring_their_commas),
        cmocka_unit_test(elements_bring_their_commas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
