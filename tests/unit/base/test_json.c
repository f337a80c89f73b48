/* The JSON scanner against RFC 8259, in the three columns such suites have: must be taken, must be
 * refused, and left to the implementation (here is what we chose). C3, C6. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "base/json.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool accepts(struct str text, unsigned depth_max)
{
    struct json_value value;
    struct error error;

    return json_parse(text, depth_max, &value, &error) == STATUS_OK;
}

static const struct str good[] = {
    STR("[]"),
    STR("[ ]"),
    STR("{}"),
    STR("{ }"),
    STR("[[]   ]"),
    STR("[\"\"]"),
    STR("[\"a\"]"),
    STR("[null, 1, \"1\", {}]"),
    STR("[1\n]"),
    STR(" [1]"),
    STR("[2] "),
    STR("\t\r\n [ \t\r\n ] \t\r\n "),
    STR("[1,null,null,null,2]"),
    STR("[123]"),
    STR("[0]"),
    STR("[-0]"),
    STR("[-1]"),
    STR("[-123]"),
    STR("[0e+1]"),
    STR("[0e1]"),
    STR("[0E-0]"),
    STR("[0.0]"),
    STR("[1E22]"),
    STR("[1e-2]"),
    STR("[1E+2]"),
    STR("[123e45]"),
    STR("[123.456e78]"),
    STR("[123.456789]"),
    STR("[-0.00000000000000000000000000000000000000000000000000000000000000000000000000000000001]"),
    STR("{\"asd\":\"sdf\", \"dfg\":\"fgh\"}"),
    STR("{\"a\":\"b\",\"a\":\"c\"}"),
    STR("{\"a\":\"b\",\"a\":\"b\"}"),
    STR("{\"\":0}"),
    STR("{\"foo\\u0000bar\": 42}"),
    STR("{ \"min\": -1.0e+28, \"max\": 1.0e+28 }"),
    STR("{\"x\":[{\"id\": \"xxx\"}], \"id\": \"xxx\"}"),
    STR("{\"a\":[]}"),
    STR("{\n\"a\": \"b\"\n}"),
    STR("[\"\\u0060\\u012a\\u12AB\"]"),
    STR("[\"\\uD801\\udc37\"]"),
    STR("[\"\\ud83d\\ude39\\ud83d\\udc8d\"]"),
    STR("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]"),
    STR("[\"\\\\u0000\"]"),
    STR("[\"\\\"\"]"),
    STR("[\"a/*b*/c/*d//e\"]"),
    STR("[\"\\\\a\"]"),
    STR("[\"\\u0012\"]"),
    STR("[\"\\uFFFF\"]"),
    STR("[\"\\uDBFF\\uDFFF\"]"),
    STR("[\"new\\u00A0line\"]"),
    STR("[\"\xF4\x8F\xBF\xBF\"]"),
    STR("[\"\xEF\xBF\xBF\"]"),
    STR("[\"\\u0000\"]"),
    STR("[\",\"]"),
    STR("[\"\xCF\x80\"]"),
    STR("[\"\xF0\x9B\xBF\xBF\"]"),
    STR("[\"asd \"]"),
    STR("\" \""),
    STR("[\"\\uD834\\uDd1e\"]"),
    STR("[\"\xE2\x80\xA8\xE2\x80\xA9\"]"),
    STR("[\"\x7F\"]"),
    STR("[\"\xEF\xBB\xBF\"]"),
    STR("false"),
    STR("42"),
    STR("-0.1"),
    STR("null"),
    STR("\"asd\""),
    STR("true"),
    STR("\"\""),
    STR("[\"a\"]\n"),
    STR("[true]"),
};

static const struct str bad[] = {
    STR_NONE,
    STR(""),
    STR(" "),
    STR("\n"),
    STR("[1 true]"),
    STR("[a\xE5]"),
    STR("[\"\": 1]"),
    STR("[\"\"],"),
    STR("[,1]"),
    STR("[1,,2]"),
    STR("[\"x\",,]"),
    STR("[\"x\"]]"),
    STR("[\"\",]"),
    STR("[\"x\""),
    STR("[x"),
    STR("[3[4]]"),
    STR("[\xFF]"),
    STR("[1:2]"),
    STR("[,]"),
    STR("[-]"),
    STR("[   , \"\"]"),
    STR("[\"a\",\n4\n,1,"),
    STR("[1,]"),
    STR("[1,1"),
    STR("[*]"),
    STR("[\"\v\"]"),
    STR("[\"a\vb\"]"),
    STR("[1,\n1\n,1"),
    STR("[{}"),
    STR("[fals]"),
    STR("[nul]"),
    STR("[tru]"),
    STR("[truee]"),
    STR("[True]"),
    STR("123\0"),
    STR("\0"),
    STR("[\"\0\"]"),
    STR("[1\0]"),
    STR("[++1234]"),
    STR("[+1]"),
    STR("[+Inf]"),
    STR("[-01]"),
    STR("[-1.0.]"),
    STR("[-2.]"),
    STR("[-NaN]"),
    STR("[.-1]"),
    STR("[.2e-3]"),
    STR("[0.1.2]"),
    STR("[0.3e+]"),
    STR("[0.3e]"),
    STR("[0.e1]"),
    STR("[0E+]"),
    STR("[0E]"),
    STR("[1.0e+]"),
    STR("[1.0e-]"),
    STR("[1.0e]"),
    STR("[1 000.0]"),
    STR("[1eE2]"),
    STR("[2.e+3]"),
    STR("[2.e-3]"),
    STR("[2.e3]"),
    STR("[9.e+]"),
    STR("[Inf]"),
    STR("[NaN]"),
    STR("[\xEF\xBC\x91]"),
    STR("[1+2]"),
    STR("[0x1]"),
    STR("[0x42]"),
    STR("[Infinity]"),
    STR("[-Infinity]"),
    STR("[0e+-1]"),
    STR("[-123.123foo]"),
    STR("[123\xE5]"),
    STR("[1e1\xE5]"),
    STR("[0\xE5]"),
    STR("[-foo]"),
    STR("[- 1]"),
    STR("[-012]"),
    STR("[-.123]"),
    STR("[-1x]"),
    STR("[1ea]"),
    STR("[1.]"),
    STR("[.123]"),
    STR("[1.2a-3]"),
    STR("[1.8011670033376514H-308]"),
    STR("[012]"),
    STR("[00]"),
    STR("[1_000]"),
    STR("[\"x\", truth]"),
    STR("{[: \"x\"}\n"),
    STR("{\"x\", null}"),
    STR("{\"x\"::\"b\"}"),
    STR("{\xF0\x9F\x87\xA8\xF0\x9F\x87\xAD}"),
    STR("{\"a\":\"a\" 123}"),
    STR("{key: 'value'}"),
    STR("{\"\xB9\":\"0\",}"),
    STR("{\"a\" b}"),
    STR("{:\"b\"}"),
    STR("{\"a\" \"b\"}"),
    STR("{\"a\":"),
    STR("{\"a\""),
    STR("{1:1}"),
    STR("{9999E9999:1}"),
    STR("{null:null,null:null}"),
    STR("{\"id\":0,,,,,}"),
    STR("{'a':0}"),
    STR("{\"id\":0,}"),
    STR("{\"a\":\"b\"}/**/"),
    STR("{\"a\":\"b\"}/**//"),
    STR("{\"a\":\"b\"}//"),
    STR("{\"a\":/*comment*/\"b\"}"),
    STR("{\"a\":\"b\",,\"c\":\"d\"}"),
    STR("{a: \"b\"}"),
    STR("{\"a\":\"a"),
    STR("{ \"foo\" : \"bar\", \"a\" }"),
    STR("{\"a\":\"b\"}#"),
    STR("{,}"),
    STR("{\"a\":1]"),
    STR("[1}"),
    STR("{]"),
    STR("[}"),
    STR("[\"\\uD800\\\"]"),
    STR("[\"\\uD800\\u\"]"),
    STR("[\"\\uD800\\u1\"]"),
    STR("[\"\\uD800\\u1x\"]"),
    STR("[\xC3\xA9]"),
    STR("[\"\\x00\"]"),
    STR("[\"\\\\\\\"]"),
    STR("[\"\\\t\"]"),
    STR("[\"\\\xF0\x9F\x8C\x80\"]"),
    STR("[\"\\\"]"),
    STR("[\"\\u00A\"]"),
    STR("[\"\\u00Ag\"]"),
    STR("[\"\\uD834\\uDd\"]"),
    STR("[\"\\uD800\\uD800\\x\"]"),
    STR("[\"\\u\xE5\"]"),
    STR("[\"\\a\"]"),
    STR("[\"\\uqqqq\"]"),
    STR("[\"\\\xE5\"]"),
    STR("[\"\\U0041\"]"),
    STR("[\"\\'\"]"),
    STR("[\"\\0\"]"),
    STR("[\\u0020\"asd\"]"),
    STR("[\\n]"),
    STR("\""),
    STR("\"\\"),
    STR("\"\\u"),
    STR("\"\\u0"),
    STR("\"\\u000"),
    STR("\"\\u0000"),
    STR("\"\\ud800\\"),
    STR("\"\\ud800\\u"),
    STR("\"\\ud800\\udc0"),
    STR("\"\\ud800\\udc00"),
    STR("['single quote']"),
    STR("abc"),
    STR("[\"new\nline\"]"),
    STR("[\"\t\"]"),
    STR("[\"\x1F\"]"),
    STR("\"\"x"),
    STR("<.>"),
    STR("[<null>]"),
    STR("[1]x"),
    STR("2@"),
    STR("{}}"),
    STR("{\"\":"),
    STR("{\"a\":/*comment*/\"b\""),
    STR("{\"a\": true} \"x\""),
    STR("['"),
    STR("[,"),
    STR("[{"),
    STR("[\"a"),
    STR("[\"a\""),
    STR("{"),
    STR("["),
    STR("]"),
    STR("}"),
    STR("{,"),
    STR("{["),
    STR("{\"a"),
    STR("*"),
    STR("{\"a\":\"b\"}#{}"),
    STR("[\\u000A\"\"]"),
    STR("[1"),
    STR("[ false, nul"),
    STR("[ true, fals"),
    STR("[ false, tru"),
    STR("{\"asd\":\"asd\""),
    STR("\xE5"),
    STR("[\xE2\x81\xA0]"),
    STR("\xEF\xBB"),
    STR("[\f]"),
    STR("[\xC2\xA0]"),
    STR("1 2"),
    STR("[1] [2]"),
    STR("nullx"),
    STR("tRUE"),
    STR("-"),
    STR("1."),
    STR("1e"),
    STR(","),
    STR(":"),
};

/* Left open by the RFC. Text that is not Unicode is refused; numbers are kept as they stand, unless they
 * become too long when they are printed (C6). */
static const struct str chosen_good[] = {
    STR("[123.456e-789]"),
    STR("[123123123123123123123123123123]"),
    STR("[-237462374673276894279832749832423479823246327846]"),
};

static const struct str chosen_bad[] = {
    STR("[0.4e00669999999999999999999999999999999999999999999999999999999999999999999999999999]"),
    STR("[-1e+9999]"),
    STR("[1.5e+9999]"),
    STR("[-123123e100000]"),
    STR("\xEF\xBB\xBF{}"),
    STR("\xEF\xBB\xBF"),
    STR(" \xEF\xBB\xBF[]"),
    STR("\xFF\xFE[\0]\0"),
    STR("[\"\\uDADA\"]"),
    STR("[\"\\uD888\\u1234\"]"),
    STR("[\"\\uD800\\n\"]"),
    STR("[\"\\uDd1ea\"]"),
    STR("[\"\\uD800\\uD800\\n\"]"),
    STR("[\"\\ud800\"]"),
    STR("[\"\\ud800abc\"]"),
    STR("[\"\\uDd1e\\uD834\"]"),
    STR("[\"\\uDFAA\"]"),
    STR("[\"\\uDC00\\uDC00\"]"),
    STR("[\"\\uD800\\uDBFF\"]"),
    STR("[\"\\uD800\\uE000\"]"),
    STR("{\"\\uDFAA\":0}"),
    STR("[\"\xE6\x97\xA5\xD1\x88\xFA\"]"),
    STR("[\"\xED\xA0\x80\"]"),
    STR("[\"\xF4\xBF\xBF\xBF\"]"),
    STR("[\"\xFF\"]"),
    STR("[\"\xE9\"]"),
    STR("[\"\x81\"]"),
    STR("[\"\xC0\xAF\"]"),
    STR("[\"\xFC\x83\xBF\xBF\xBF\xBF\"]"),
    STR("[\"\xFC\x80\x80\x80\x80\x80\"]"),
    STR("[\"\xE0\xFF\"]"),
    STR("{\"\xFF\":1}"),
};

/* Each text is handed over in memory of exactly its size, so that a read past its end shows under ASan. */
static bool accepts_exact(struct str text)
{
    char *copy = malloc(text.len ? text.len : 1);
    assert_non_null(copy);
    if (text.len > 0)
        memcpy(copy, text.ptr, text.len);
    bool ok = accepts(str_of(copy, text.len), JSON_DEPTH_MAX);
    free(copy);
    return ok;
}

static void assert_all(const struct str *texts, size_t count, bool expected)
{
    for (size_t i = 0; i < count; i++)
        if (accepts_exact(texts[i]) != expected)
            fail_msg("%s: %.*s", expected ? "refused" : "accepted", STR_ARG(texts[i]));
}

static void takes_what_must_be_taken(void **state)
{
    (void)state;
    assert_all(good, COUNT(good), true);
}

static void refuses_what_must_be_refused_C6(void **state)
{
    (void)state;
    assert_all(bad, COUNT(bad), false);
}

static void what_is_left_open_is_as_chosen(void **state)
{
    (void)state;
    assert_all(chosen_good, COUNT(chosen_good), true);
    assert_all(chosen_bad, COUNT(chosen_bad), false);
}

/* A text that is good is good no more with its last byte gone, unless it is a number or ends in white
 * space. */
static void no_proper_prefix_of_a_container_is_taken(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(good); i++) {
        struct str text = good[i];
        if (text.ptr[0] != '[' && text.ptr[0] != '{')
            continue;
        while (text.ptr[text.len - 1] != ']' && text.ptr[text.len - 1] != '}')
            text.len--;
        while (--text.len > 0)
            assert_false(accepts_exact(text));
    }
}

/* Whatever stands at whatever distance from a string's start: the wide steps must see it. */
static void every_byte_is_seen_at_every_distance(void **state)
{
    (void)state;
    char text[64];

    for (size_t at = 1; at < 50; at++) {
        for (int c = 0; c < 256; c++) {
            memset(text, 'x', sizeof(text));
            text[0] = '"';
            text[at] = (char)c;
            text[sizeof(text) - 1] = '"';
            bool expected = c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
            if (accepts(str_of(text, sizeof(text)), 1) != expected)
                fail_msg("byte %d at %zu", c, at);
        }
    }
}

static void the_value_is_a_slice_without_its_white_space(void **state)
{
    (void)state;
    static const struct {
        struct str text, raw;
        enum json_type type;
    } cases[] = {
        {STR(" { } \n"), STR("{ }"), JSON_OBJECT},   {STR("\t[1] "), STR("[1]"), JSON_ARRAY},
        {STR(" \"a\" "), STR("\"a\""), JSON_STRING}, {STR(" 0.10 "), STR("0.10"), JSON_NUMBER},
        {STR(" true"), STR("true"), JSON_BOOL},      {STR("false "), STR("false"), JSON_BOOL},
        {STR("null"), STR("null"), JSON_NULL},       {STR("-1"), STR("-1"), JSON_NUMBER},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct json_value value;
        assert_int_equal(json_parse(cases[i].text, 64, &value, NULL), STATUS_OK);
        assert_true(str_eq(value.raw, cases[i].raw));
        assert_int_equal(value.type, cases[i].type);
        assert_true(value.raw.ptr >= cases[i].text.ptr);
    }
}

static void an_error_says_what_and_where(void **state)
{
    (void)state;
    static const struct {
        struct str text;
        const char *message;
    } cases[] = {
        {STR("[1,\"a"), "not valid JSON: the text ends inside a string (at byte 5)"},
        {STR("{\"a\" 1}"), "not valid JSON: a colon is missing (at byte 5)"},
        {STR("[01]"), "not valid JSON: a number has no leading zero (at byte 2)"},
        {STR("[\"ab\xFF\"]"), "not valid JSON: the bytes are not UTF-8 (at byte 4)"},
        {STR("[\"\\udc00\"]"), "not valid JSON: a surrogate stands alone (at byte 2)"},
        {STR("[[[]]]"), "not valid JSON: nested too deep (at byte 2)"},
        {STR("1 1"), "not valid JSON: there is more after the value (at byte 2)"},
        {STR(""), "not valid JSON: a value is missing (at byte 0)"},
        {STR("\xEF\xBB\xBF{}"), "not valid JSON: a byte order mark is not allowed (at byte 0)"},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct json_value value;
        struct error error;
        assert_int_equal(json_parse(cases[i].text, 2, &value, &error), STATUS_BAD_REQUEST);
        assert_string_equal(error.message, cases[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_what_must_be_taken),
        cmocka_unit_test(refuses_what_must_be_refused_C6),
        cmocka_unit_test(what_is_left_open_is_as_chosen),
        cmocka_unit_test(no_proper_prefix_of_a_container_is_taken),
        cmocka_unit_test(every_byte_is_seen_at_every_distance),
        cmocka_unit_test(the_value_is_a_slice_without_its_white_space),
        cmocka_unit_test(an_error_says_what_and_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
