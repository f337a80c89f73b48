/* Reading validated JSON: containers, strings and what numbers mean. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct json_value parsed(struct str text)
{
    struct json_value value;

    assert_int_equal(json_parse(text, JSON_DEPTH_MAX, &value, NULL), STATUS_OK);
    return value;
}

static void an_object_is_walked_in_order(void **state)
{
    (void)state;
    struct json_value object = parsed(
        STR("{ \"a\\\"}\" : [1,{\"x\":\"]}\\\\\"}] , \"b\":{} ,\"c\":\"\\\\\",\"d\": null ,\"e\":-1e5}"));
    static const struct {
        struct str name, raw;
        enum json_type type;
    } expected[] = {
        {STR("\"a\\\"}\""), STR("[1,{\"x\":\"]}\\\\\"}]"), JSON_ARRAY},
        {STR("\"b\""), STR("{}"), JSON_OBJECT},
        {STR("\"c\""), STR("\"\\\\\""), JSON_STRING},
        {STR("\"d\""), STR("null"), JSON_NULL},
        {STR("\"e\""), STR("-1e5"), JSON_NUMBER},
    };
    struct json_iter it;
    struct json_value value;
    struct str name;

    json_iter_init(&it, &object);
    for (size_t i = 0; i < COUNT(expected); i++) {
        assert_true(json_iter_next(&it, &name, &value));
        assert_true(str_eq(name, expected[i].name));
        assert_true(str_eq(value.raw, expected[i].raw));
        assert_int_equal(value.type, expected[i].type);
    }
    assert_false(json_iter_next(&it, &name, &value));
    assert_false(json_iter_next(&it, &name, &value));
}

static void an_array_is_walked_in_order(void **state)
{
    (void)state;
    struct json_value array = parsed(STR("[ true ,\"a,b\",[2,3],{\"k\":[]} , 5\n]"));
    static const struct str expected[] = {STR("true"), STR("\"a,b\""), STR("[2,3]"), STR("{\"k\":[]}"),
                                          STR("5")};
    struct json_iter it;
    struct json_value value;

    json_iter_init(&it, &array);
    for (size_t i = 0; i < COUNT(expected); i++) {
        assert_true(json_iter_next(&it, NULL, &value));
        assert_true(str_eq(value.raw, expected[i]));
    }
    assert_false(json_iter_next(&it, NULL, &value));
}

static void what_holds_nothing_gives_nothing(void **state)
{
    (void)state;
    static const struct str empty[] = {STR("{}"),      STR("[]"), STR("{ \n}"), STR("[ ]"),
                                       STR("\"abc\""), STR("1"),  STR("null")};
    struct json_iter it;
    struct json_value member;

    for (size_t i = 0; i < COUNT(empty); i++) {
        struct json_value value = parsed(empty[i]);
        json_iter_init(&it, &value);
        assert_false(json_iter_next(&it, NULL, &member));
        assert_false(json_get(&value, STR("a"), &member));
    }
}

static void the_last_of_a_repeated_name_wins(void **state)
{
    (void)state;
    struct json_value object = parsed(STR("{\"a\":1,\"b\":2,\"\\u0061\":3}")), value;

    assert_true(json_get(&object, STR("a"), &value));
    assert_true(str_eq(value.raw, STR("3")));
    assert_true(json_get(&object, STR("b"), &value));
    assert_true(str_eq(value.raw, STR("2")));
    assert_false(json_get(&object, STR("A"), &value));
}

static void duplicates_are_found_by_meaning(void **state)
{
    (void)state;
    static const struct str with[] = {STR("{\"a\":1,\"a\":1}"), STR("{\"a\":1,\"b\":2,\"\\u0061\":3}"),
                                      STR("{\"\":1,\"\":2}"), STR("{\"\\/\":1,\"/\":2}")};
    static const struct str without[] = {
        STR("{}"),    STR("{\"a\":1}"),       STR("{\"a\":1,\"A\":2}"), STR("{\"a\":{\"a\":1}}"),
        STR("[1,1]"), STR("{\"\":1,\" \":2}")};
    struct arena arena = ARENA(1024);

    for (size_t i = 0; i < COUNT(with); i++) {
        struct json_value value = parsed(with[i]);
        assert_true(json_has_duplicates(&value, &arena));
    }
    for (size_t i = 0; i < COUNT(without); i++) {
        struct json_value value = parsed(without[i]);
        assert_false(json_has_duplicates(&value, &arena));
    }
    arena_deinit(&arena);
}

static void duplicates_among_many(void **state)
{
    (void)state;
    struct arena arena = ARENA(4096);
    struct buf buf = {0};

    buf_put_char(&buf, '{');
    for (unsigned i = 0; i < 10000; i++)
        buf_printf(&buf, i % 2 ? "%s\"k%u\":0" : "%s\"\\u006b%u\":0", i ? "," : "", i);
    buf_put_char(&buf, '}');
    struct json_value value = parsed(buf_str(&buf));
    assert_false(json_has_duplicates(&value, &arena));
    assert_int_equal(arena_bytes(&arena),
                     0); /* a request waits with its arena: what the search needs is freed */
    buf.end--;
    buf_put_str(&buf, STR(",\"k7\":1}"));
    value = parsed(buf_str(&buf));
    assert_true(json_has_duplicates(&value, &arena));
    buf_deinit(&buf);
    arena_deinit(&arena);
}

static const struct {
    struct str raw, text;
} strings[] = {
    {STR("\"\""), STR("")},
    {STR("\"plain\""), STR("plain")},
    {STR("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""), STR("\"\\/\b\f\n\r\t")},
    {STR("\"a\\u0000b\""), STR("a\0b")},
    {STR("\"\\u007F\\u0080\\u07ff\\u0800\\uFFFF\""), STR("\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF")},
    {STR("\"\\uD800\\uDC00\\udbff\\udfff\""), STR("\xF0\x90\x80\x80\xF4\x8F\xBF\xBF")},
    {STR("\"x\\uD83D\\uDE00y\""), STR("x\xF0\x9F\x98\x80y")},
    {STR("\"\xC3\xA9\\\\\""), STR("\xC3\xA9\\")},
    {STR("\"\\\\u0041\""), STR("\\u0041")},
};

static void strings_mean_what_their_escapes_say(void **state)
{
    (void)state;
    struct arena arena = ARENA(1024);

    for (size_t i = 0; i < COUNT(strings); i++) {
        struct str decoded = json_str_decode(strings[i].raw, &arena);
        assert_true(str_eq(decoded, strings[i].text));
        assert_true(json_str_eq(strings[i].raw, strings[i].text));
        for (size_t other = 0; other < COUNT(strings); other++)
            assert_int_equal(json_str_eq(strings[i].raw, strings[other].text), i == other);
    }
    assert_false(json_str_eq(STR("\"\\u0061\""), STR("ab")));
    assert_false(json_str_eq(STR("\"\\u0061b\""), STR("a")));
    arena_deinit(&arena);
}

static void a_string_without_escapes_is_not_copied(void **state)
{
    (void)state;
    struct str raw = STR("\"plain\"");
    struct arena arena = ARENA(1024);

    assert_ptr_equal(json_str_decode(raw, &arena).ptr, raw.ptr + 1);
    assert_null(arena.first);
    arena_deinit(&arena);
}

static void the_nul_escape_is_found(void **state)
{
    (void)state;
    assert_true(json_has_nul_escape(STR("\"\\u0000\"")));
    assert_true(json_has_nul_escape(STR("{\"a\":[\"x\\\\\\u0000\"]}")));
    assert_true(json_has_nul_escape(STR("{\"\\u0000\":1}")));
    assert_false(json_has_nul_escape(STR("\"\\\\u0000\"")));
    assert_false(json_has_nul_escape(STR("\"\\u0001\\\\\\\\u0000\"")));
    assert_false(json_has_nul_escape(STR("\"u0000\"")));
    assert_false(json_has_nul_escape(STR_NONE));
}

static void texts_are_strings_only(void **state)
{
    (void)state;
    struct json_value object = parsed(STR("{\"a\":\"x\\ny\",\"empty\":\"\",\"n\":1}")), value;
    struct arena arena = ARENA(256);

    assert_true(str_eq(json_get_text(&object, STR("a"), &arena), STR("x\ny")));
    assert_non_null(json_get_text(&object, STR("empty"), &arena).ptr);
    assert_null(json_get_text(&object, STR("n"), &arena).ptr);
    assert_null(json_get_text(&object, STR("missing"), &arena).ptr);
    assert_true(json_get_string(&object, STR("empty"), &value));
    assert_false(json_get_string(&object, STR("n"), &value));
    arena_deinit(&arena);
}

static void integers_are_exact_or_refused(void **state)
{
    (void)state;
    static const struct {
        struct str text;
        bool ok;
        int64_t value;
    } cases[] = {
        {STR("0"), true, 0},
        {STR("-0"), true, 0},
        {STR("9223372036854775807"), true, INT64_MAX},
        {STR("-9223372036854775808"), true, INT64_MIN},
        {STR("9223372036854775808"), false, 0},
        {STR("1.0"), false, 0},
        {STR("1e3"), false, 0},
        {STR("\"1\""), false, 0},
        {STR("null"), false, 0},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct json_value value = parsed(cases[i].text);
        int64_t out = 0;
        assert_int_equal(json_to_i64(&value, &out), cases[i].ok);
        assert_true(out == cases[i].value);
    }
}

static void doubles_are_finite(void **state)
{
    (void)state;
    struct json_value small = parsed(STR("0.1")), big = parsed(STR("1e999")), text = parsed(STR("\"1\""));
    struct json_value longest = parsed(
        STR("1.00000000000000000000000000000000000000000000000000000000000000000000000000000000000001e2"));
    double out = 0;

    assert_true(json_to_double(&small, &out));
    assert_true(out == 0.1);
    assert_true(json_to_double(&longest, &out));
    assert_true(out == 100);
    assert_false(json_to_double(&big, &out));
    assert_false(json_to_double(&text, &out));
}

/* Bytes that nobody validated must not be read past their end, whatever the answer. */
static void unvalidated_bytes_stay_in_bounds(void **state)
{
    (void)state;
    static const struct str odd[] = {STR("{\"a"), STR("{\"a\\"), STR("{\"a\":"),   STR("[\"\\u00"),
                                     STR("[[["),  STR("[1,,"),   STR("{1}"),       STR("{"),
                                     STR("[}]"),  STR("[:"),     STR("[\"\x01\"]")};
    struct arena arena = ARENA(1024);

    for (size_t i = 0; i < COUNT(odd); i++) {
        struct json_value value = json_value_of(odd[i]), member;
        struct json_iter it;
        struct str name;
        unsigned steps = 0;
        json_iter_init(&it, &value);
        while (json_iter_next(&it, &name, &member)) {
            (void)json_str_decode(name, &arena);
            (void)json_str_decode(member.raw, &arena);
            assert_true(++steps < 100);
        }
    }
    (void)json_str_decode(STR("\"\\\""), &arena);
    (void)json_str_decode(STR("\"\\u12\""), &arena);
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_object_is_walked_in_order),
        cmocka_unit_test(an_array_is_walked_in_order),
        cmocka_unit_test(what_holds_nothing_gives_nothing),
        cmocka_unit_test(the_last_of_a_repeated_name_wins),
        cmocka_unit_test(duplicates_are_found_by_meaning),
        cmocka_unit_test(duplicates_among_many),
        cmocka_unit_test(strings_mean_what_their_escapes_say),
        cmocka_unit_test(a_string_without_escapes_is_not_copied),
        cmocka_unit_test(the_nul_escape_is_found),
        cmocka_unit_test(texts_are_strings_only),
        cmocka_unit_test(integers_are_exact_or_refused),
        cmocka_unit_test(doubles_are_finite),
        cmocka_unit_test(unvalidated_bytes_stay_in_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
