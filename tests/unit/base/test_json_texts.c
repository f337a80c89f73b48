/* A request's body by a table of texts: what is read, what is kept, what is refused and by which name (C6). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json_texts.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct json_text rows[] = {{"sku", 1, 4, .is_plain = true},
                                        {"title", 1, .chars_max = 8},
                                        {"note", 0, 4, .is_optional = true},
                                        {.name = "id", .is_reserved = true},
                                        {.name = NULL}};

static enum status read_body(struct str body, struct str *texts, struct buf *others, struct arena *arena,
                             struct error *error)
{
    *error = (struct error){0};
    return json_texts_read(body, rows, texts, others, arena, error);
}

static void texts_are_unescaped_and_the_rest_is_kept_as_it_came(void **state)
{
    (void)state;
    struct arena arena = ARENA(256);
    struct buf others = {0};
    struct str texts[4];
    struct error error;
    assert_int_equal(
        read_body(
            STR(" { \"size\" : 1.50 ,\"sku\":\"\\u0041\xc3\xa9\xf0\x9f\x98\x80 \", \"\\u0062\": [ 1 ,2],"
                "\"title\":\"a\\nb\",\"note\":null}"),
            texts, &others, &arena, &error),
        STATUS_OK);
    assert_true(str_eq(texts[0], STR("A\xc3\xa9\xf0\x9f\x98\x80 ")));
    assert_true(str_eq(texts[1], STR("a\nb")));
    assert_null(texts[2].ptr);
    assert_true(str_eq(buf_str(&others), STR(",\"size\":1.50,\"\\u0062\":[ 1 ,2]")));
    buf_deinit(&others);
    arena_deinit(&arena);
}

static void what_is_wrong_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        struct str body;
        const char *field;
    } cases[] = {
        {STR("{\"title\":\"t\"}"), "sku"},
        {STR("{\"sku\":\"\",\"title\":\"t\"}"), "sku"},
        {STR("{\"sku\":\"abcde\",\"title\":\"t\"}"), "sku"},
        {STR("{\"sku\":7,\"title\":\"t\"}"), "sku"},
        {STR("{\"sku\":null,\"title\":\"t\"}"), "sku"},
        {STR("{\"sku\":\"  \",\"title\":\"t\"}"), "sku"},
        {STR("{\"sku\":\"a\\n\",\"title\":\"t\"}"), "sku"},
        {STR("{\"sku\":\"a\\u007f\",\"title\":\"t\"}"), "sku"},
        {STR("{\"sku\":\"a\\u0000\",\"title\":\"t\"}"), "sku"},
        {STR("{\"sku\":\"a\",\"title\":\"t\",\"note\":\"abcde\"}"), "note"},
        {STR("{\"sku\":\"a\",\"title\":\"t\",\"\\u0073ku\":\"b\"}"), "sku"},
        {STR("{\"sku\":\"a\",\"title\":\"t\",\"x\":1,\"x\":2}"), "x"},
        {STR("{\"sku\":\"a\",\"title\":\"t\",\"x\":{\"y\":[\"\\u0000\"]}}"), "x"},
        {STR("{\"sku\":\"a\",\"title\":\"t\",\"x\\u0000\":1}"), "a name"},
        {STR("{\"sku\":\"a\",\"title\":\"t\",\"id\":null}"), "id"},
        {STR("[\"sku\"]"), ""},
        {STR("{\"sku\":\"a\",\"title\":\"t\"}}"), ""},
        {STR(""), ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct arena arena = ARENA(256);
        struct buf others = {0};
        struct str texts[4];
        struct error error;
        assert_int_equal(read_body(cases[i].body, texts, &others, &arena, &error), STATUS_BAD_REQUEST);
        assert_string_equal(error.field, cases[i].field);
        assert_int_not_equal(error.message[0], '\0');
        buf_deinit(&others);
        arena_deinit(&arena);
    }
}

static void unknown_members_are_refused_unless_they_are_kept(void **state)
{
    (void)state;
    struct arena arena = ARENA(256);
    struct str texts[4];
    struct error error;
    assert_int_equal(
        read_body(STR("{\"sku\":\"a\",\"title\":\"t\",\"extra\":1}"), texts, NULL, &arena, &error),
        STATUS_BAD_REQUEST);
    assert_string_equal(error.field, "extra");
    assert_int_equal(read_body(STR("{\"sku\":\"a\",\"title\":\"t\"}"), texts, NULL, &arena, &error),
                     STATUS_OK);
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_unescaped_and_the_rest_is_kept_as_it_came),
        cmocka_unit_test(what_is_wrong_is_refused_by_name),
        cmocka_unit_test(unknown_members_are_refused_unless_they_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
