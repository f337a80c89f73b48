/* Slices, numbers, UTF-8 (C3) and names (C6). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "base/str.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void comparing(void **state)
{
    (void)state;
    assert_true(str_eq(STR(""), STR_NONE));
    assert_false(str_eq(STR("a"), STR("A")));
    assert_true(str_eq_nocase(STR("Content-Length"), STR("content-lENGTH")));
    assert_false(str_eq_nocase(STR("a@"), STR("a`"))); /* differ by 0x20 and are no letters */
    assert_false(str_eq_nocase(STR("a"), STR("ab")));
    assert_true(str_starts_with(STR("abc"), STR("ab")));
    assert_true(str_starts_with(STR_NONE, STR("")));
    assert_false(str_starts_with(STR("a"), STR("ab")));
    assert_true(str_ends_with(STR("abc"), STR("bc")));
    assert_true(str_ends_with(STR_NONE, STR_NONE));
    assert_false(str_ends_with(STR("c"), STR("bc")));
}

static void order_is_bytewise_and_a_prefix_comes_first(void **state)
{
    (void)state;
    assert_true(str_compare(STR("a"), STR("ab")) < 0);
    assert_true(str_compare(STR("ab"), STR("a")) > 0);
    assert_true(str_compare(STR("b"), STR("ab")) > 0);
    assert_true(str_compare(STR("\xC3\xA9"), STR("z")) > 0); /* unsigned */
    assert_int_equal(str_compare(STR_NONE, STR("")), 0);
}

static void trim_takes_space_and_tab_only(void **state)
{
    (void)state;
    assert_true(str_eq(str_trim(STR(" \t a b\t ")), STR("a b")));
    assert_true(str_eq(str_trim(STR(" \t ")), STR("")));
    assert_true(str_eq(str_trim(STR("\n")), STR("\n")));
}

static void dup_ends_in_nul(void **state)
{
    (void)state;
    char *copy = str_dup(str_of("abcdef", 3)), *empty = str_dup(STR_NONE);

    assert_string_equal(copy, "abc");
    assert_string_equal(empty, "");
    free(copy);
    free(empty);
}

static void split_gives_every_part(void **state)
{
    (void)state;
    struct str rest = STR("a,,b,"), part;
    static const char *const expected[] = {"a", "", "b", ""};

    for (size_t i = 0; i < COUNT(expected); i++) {
        assert_true(str_split(&rest, ',', &part));
        assert_true(str_eq(part, str_from(expected[i])));
    }
    assert_false(str_split(&rest, ',', &part));
    rest = STR("");
    assert_true(str_split(&rest, ',', &part));
    assert_int_equal(part.len, 0);
    assert_false(str_split(&rest, ',', &part));
}

/* All texts of two letters up to a length past two steps of sixteen bytes, at random. */
static void split_all_gives_the_parts_of_split(void **state)
{
    (void)state;
    char text[40];
    uint32_t seed = 1;
    enum { MAX = 6 };

    for (int round = 0; round < 20000; round++) {
        size_t len = (size_t)round % (sizeof text + 1), count = 0;
        for (size_t i = 0; i < len; i++) {
            seed = seed * 1664525u + 1013904223u;
            text[i] = seed >> 24 < (round & 1 ? 128u : 20u) ? ',' : 'a';
        }
        char *exact = str_dup(str_of(text, len)); /* so that a sanitizer sees what is read past the end */
        struct str rest = str_of(exact, len), part, parts[MAX + 1] = {[MAX] = STR("kept")};
        size_t all = str_split_all(rest, ',', parts, MAX);
        for (; str_split(&rest, ',', &part); count++)
            assert_true(count >= MAX || (part.ptr == parts[count].ptr && part.len == parts[count].len));
        assert_int_equal(count, all);
        assert_true(str_eq(parts[MAX], STR("kept")));
        free(exact);
    }
}

static void numbers_are_written_in_decimal(void **state)
{
    (void)state;
    static const uint64_t numbers[] = {
        0, 9, 10, 99, 100, 12345, 9999999999999999999u, 10000000000000000000u, UINT64_MAX};

    for (size_t i = 0; i < COUNT(numbers); i++) {
        char text[STR_U64_BYTES + 1], expected[STR_U64_BYTES + 1];
        *str_put_u64(text, numbers[i]) = '\0';
        snprintf(expected, sizeof expected, "%llu", (unsigned long long)numbers[i]);
        assert_string_equal(text, expected);
    }
}

static void numbers_are_whole_strings(void **state)
{
    (void)state;
    static const struct str bad[] = {STR_NONE,
                                     STR("+1"),
                                     STR(" 1"),
                                     STR("1 "),
                                     STR("0x1"),
                                     STR("1a"),
                                     STR("-"),
                                     STR("1\0"),
                                     STR("18446744073709551616"),
                                     STR("99999999999999999999999")};
    uint64_t u = 42;
    int64_t i = 42;

    for (size_t n = 0; n < COUNT(bad); n++) {
        assert_false(str_to_u64(bad[n], &u));
        assert_false(str_to_i64(bad[n], &i));
    }
    assert_int_equal(u, 42);
    assert_int_equal(i, 42);
    assert_true(str_to_u64(STR("18446744073709551615"), &u));
    assert_true(u == UINT64_MAX);
    assert_false(str_to_u64(STR("-1"), &u));
    assert_true(str_to_u64(STR("007"), &u));
    assert_int_equal(u, 7);
    assert_true(str_to_i64(STR("-9223372036854775808"), &i));
    assert_true(i == INT64_MIN);
    assert_true(str_to_i64(STR("9223372036854775807"), &i));
    assert_true(i == INT64_MAX);
    assert_false(str_to_i64(STR("9223372036854775808"), &i));
    assert_false(str_to_i64(STR("-9223372036854775809"), &i));
    assert_false(str_to_i64(STR("--1"), &i));
}

static const struct str utf8_good[] = {
    STR_NONE,
    STR("plain"),
    STR("\x7F"),
    STR("\xC2\x80"),
    STR("\xDF\xBF"),
    STR("\xE0\xA0\x80"),
    STR("\xED\x9F\xBF"),
    STR("\xEE\x80\x80"),
    STR("\xEF\xBF\xBF"),
    STR("\xF0\x90\x80\x80"),
    STR("\xF4\x8F\xBF\xBF"),
    STR("\0"),
    STR("12345678\xC3\xA9"
        "12345678"),
    STR("1234567\xC3\xA9"),
};

static const struct str utf8_bad[] = {
    STR("\x80"),
    STR("\xBF"),
    STR("\xC0\x80"),
    STR("\xC1\xBF"),
    STR("\xC2"),
    STR("\xC2 "),
    STR("\xE0\x9F\xBF"),
    STR("\xE0\xA0"),
    STR("\xED\xA0\x80"),
    STR("\xED\xBF\xBF"),
    STR("\xF0\x8F\xBF\xBF"),
    STR("\xF0\x90\x80"),
    STR("\xF4\x90\x80\x80"),
    STR("\xF5\x80\x80\x80"),
    STR("\xFE"),
    STR("\xFF"),
    STR("\xF8\x88\x80\x80\x80"),
    STR("12345678\xC3"),
    STR("1234567\xE2\x82"),
    STR("\xE2\x28\xA1"),
    STR("\xE2\x82\x28"),
};

static void utf8_is_strict(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(utf8_good); i++)
        assert_true(str_is_utf8(utf8_good[i]));
    for (size_t i = 0; i < COUNT(utf8_bad); i++)
        assert_false(str_is_utf8(utf8_bad[i]));
}

/* Every code point there is, in its only form. */
static void utf8_takes_exactly_the_scalar_values(void **state)
{
    (void)state;
    for (unsigned code = 0x10000; code <= 0x13FFFF; code += 0x101) {
        char bytes[4] = {(char)(0xF0 | code >> 18), (char)(0x80 | (code >> 12 & 0x3F)),
                         (char)(0x80 | (code >> 6 & 0x3F)), (char)(0x80 | (code & 0x3F))};
        assert_int_equal(str_is_utf8(str_of(bytes, 4)), code <= 0x10FFFF);
    }
    for (unsigned code = 0x800; code <= 0xFFFF; code++) {
        char bytes[3] = {(char)(0xE0 | code >> 12), (char)(0x80 | (code >> 6 & 0x3F)),
                         (char)(0x80 | (code & 0x3F))};
        assert_int_equal(str_is_utf8(str_of(bytes, 3)), code < 0xD800 || code > 0xDFFF);
    }
}

static void a_cut_splits_no_character(void **state)
{
    (void)state;
    struct str s = STR("a\xE2\x82\xAC\xF0\x9F\x98\x80");

    assert_int_equal(str_utf8_cut(s, 100).len, 8);
    assert_int_equal(str_utf8_cut(s, 8).len, 8);
    assert_int_equal(str_utf8_cut(s, 7).len, 4);
    assert_int_equal(str_utf8_cut(s, 5).len, 4);
    assert_int_equal(str_utf8_cut(s, 4).len, 4);
    assert_int_equal(str_utf8_cut(s, 3).len, 1);
    assert_int_equal(str_utf8_cut(s, 0).len, 0);
    assert_int_equal(str_utf8_cut(STR("\x80\x80\x80\x80\x80\x80"), 5).len, 5);
}

static void copies_into_measured_memory(void **state)
{
    (void)state;
    char out[32], *at = out;

    struct str first = str_pack(&at, STR("ab")), none = str_pack(&at, STR_NONE);
    assert_int_equal(at - out, 4);
    assert_memory_equal(out, "ab\0", 4);
    assert_true(str_eq(first, STR("ab")) && none.len == 0 && none.ptr == out + 3);
    at = str_put(str_put_u64(str_put_u64(out, UINT64_MAX), 0), STR("!"));
    assert_true(str_eq(str_of(out, (size_t)(at - out)), STR("184467440737095516150!")));
    str_copy(out, 4, STR("a\xE2\x82\xAC"));
    assert_string_equal(out, "a");
    str_copy(out, sizeof out, STR_NONE);
    assert_string_equal(out, "");
    assert_true(str_eq(str_skip(STR("abc"), 2), STR("c")));
    assert_null(str_or_null(STR("")));
}

static void text_is_utf8_without_nul(void **state)
{
    (void)state;

    assert_true(str_is_text(STR_NONE));
    assert_true(str_is_text(STR("\xC3\xA9")));
    assert_false(str_is_text(STR("a\0b")));
    assert_false(str_is_text(STR("\xC3")));
}

static void names_of_C6(void **state)
{
    (void)state;
    char longest[65];

    memset(longest, 'a', sizeof(longest));
    assert_true(str_is_name(STR("Tenant_1.a-B")));
    assert_true(str_is_name(str_of(longest, 64)));
    assert_false(str_is_name(str_of(longest, 65)));
    assert_false(str_is_name(STR("")));
    assert_false(str_is_name(STR("a b")));
    assert_false(str_is_name(STR("a/b")));
    assert_false(str_is_name(STR("a\0")));
    assert_false(str_is_name(STR("\xC3\xA9")));
    assert_false(str_is_name(STR("a[")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparing),
        cmocka_unit_test(order_is_bytewise_and_a_prefix_comes_first),
        cmocka_unit_test(trim_takes_space_and_tab_only),
        cmocka_unit_test(dup_ends_in_nul),
        cmocka_unit_test(split_gives_every_part),
        cmocka_unit_test(split_all_gives_the_parts_of_split),
        cmocka_unit_test(numbers_are_written_in_decimal),
        cmocka_unit_test(numbers_are_whole_strings),
        cmocka_unit_test(utf8_is_strict),
        cmocka_unit_test(utf8_takes_exactly_the_scalar_values),
        cmocka_unit_test(a_cut_splits_no_character),
        cmocka_unit_test(copies_into_measured_memory),
        cmocka_unit_test(text_is_utf8_without_nul),
        cmocka_unit_test(names_of_C6),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
