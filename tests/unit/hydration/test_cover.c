/* Covers and names: what includes what, what is cut out, and what a need may ask for (H2, C6). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "hydration/event.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct str ab[] = {{"a", 1}, {"b", 1}}, b[] = {{"b", 1}}, abc[] = {{"a", 1}, {"b", 1}, {"c", 1}},
                        ac[] = {{"a", 1}, {"c", 1}};

static const struct hydration_cover covers[] = {
    {HYDRATION_EXISTENCE, NULL, 0}, {HYDRATION_PARTIAL, b, 1},   {HYDRATION_PARTIAL, ab, 2},
    {HYDRATION_PARTIAL, ac, 2},     {HYDRATION_PARTIAL, abc, 3}, {HYDRATION_FULL, NULL, 0},
};

static void a_partial_answer_never_stands_in_for_a_wider_request(void **state)
{
    (void)state;
    static const char *const includes[COUNT(covers)] = {
        "100000", "110000", "111000", "100100", "111110", "111111",
    };
    for (size_t wide = 0; wide < COUNT(covers); wide++)
        for (size_t narrow = 0; narrow < COUNT(covers); narrow++)
            assert_int_equal(hydration_cover_includes(&covers[wide], &covers[narrow]),
                             includes[wide][narrow] == '1');
}

static void check_cut(const struct hydration_cover *cover, const char *expected)
{
    struct buf out = {0};
    hydration_cover_cut(cover, STR("{ \"a\" : [1, {\"b\":2}] ,\"\\u0062\":\"x\",\"z\":0.10}"), &out);
    assert_int_equal(buf_len(&out), strlen(expected));
    assert_memory_equal(buf_str(&out).ptr, expected, strlen(expected));
    buf_deinit(&out);
}

static void a_cut_has_the_members_asked_for_as_they_are(void **state)
{
    (void)state;
    struct hydration_cover none = {HYDRATION_PARTIAL, NULL, 0};
    check_cut(&covers[0], "{}");
    check_cut(&none, "{}");
    check_cut(&covers[1], "{\"\\u0062\":\"x\"}");
    check_cut(&covers[2], "{\"a\":[1, {\"b\":2}],\"\\u0062\":\"x\"}");
    check_cut(&covers[3], "{\"a\":[1, {\"b\":2}]}");
    check_cut(&covers[5], "{ \"a\" : [1, {\"b\":2}] ,\"\\u0062\":\"x\",\"z\":0.10}");
}

static enum status check(struct str type, struct str id, enum hydration_mode mode, struct str *fields,
                         unsigned *count, struct error *error)
{
    struct hydration_need need = {.entity_type = type, .entity_id = id, .cover.mode = mode};
    *error = (struct error){0};
    enum status status = hydration_need_check(&need, fields, *count, error);
    if (status == STATUS_OK) {
        *count = need.cover.field_count;
        assert_ptr_equal(need.cover.fields, fields);
        assert_int_equal(need.cover.field_count, *count);
    }
    return status;
}

static void a_need_is_checked_and_its_fields_are_sorted(void **state)
{
    (void)state;
    struct str fields[] = {STR("title"), STR("price"), STR("title"), STR("\xc3\xa9")};
    unsigned count = COUNT(fields);
    struct error error;
    assert_int_equal(check(STR("item"), STR("a/b c"), HYDRATION_PARTIAL, fields, &count, &error), STATUS_OK);
    assert_int_equal(count, 3);
    assert_true(str_eq(fields[0], STR("price")) && str_eq(fields[1], STR("title")) &&
                str_eq(fields[2], STR("\xc3\xa9")));
    assert_int_equal(check(STR("item"), STR("a"), HYDRATION_FULL, fields, &count, &error), STATUS_OK);
    assert_int_equal(count, 0);
}

static void fields_beside_another_mode_count_for_nothing(void **state)
{
    (void)state;
    for (int mode = 0; mode <= HYDRATION_FULL; mode++) {
        struct str fields[] = {STR("a"), STR("b")};
        unsigned count = 2;
        struct error error;
        assert_int_equal(check(STR("item"), STR("a"), (enum hydration_mode)mode, fields, &count, &error),
                         STATUS_OK);
        assert_int_equal(count, mode == HYDRATION_PARTIAL ? 2 : 0);
    }
}

static char long_text[HYDRATION_ID_BYTES_MAX + 1];

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    memset(long_text, 'a', sizeof long_text);
    const struct {
        struct str type, id, field;
        unsigned count;
        const char *wrong;
    } cases[] = {
        {STR(""), STR("i"), STR("f"), 1, "entity_type"},
        {STR("_a"), STR("i"), STR("f"), 1, "entity_type"},
        {STR("aB"), STR("i"), STR("f"), 1, "entity_type"},
        {str_of(long_text, HYDRATION_TYPE_BYTES_MAX + 1), STR("i"), STR("f"), 1, "entity_type"},
        {STR("a"), STR(""), STR("f"), 1, "entity_id"},
        {STR("a"), STR("\xff"), STR("f"), 1, "entity_id"},
        {STR("a"), STR("x\0y"), STR("f"), 1, "entity_id"},
        {STR("a"), STR("x\x7f"), STR("f"), 1, "entity_id"},
        {STR("a"), str_of(long_text, sizeof long_text), STR("f"), 1, "entity_id"},
        {STR("a"), STR("i"), STR("f"), 0, "fields"},
        {STR("a"), STR("i"), STR(""), 1, "fields"},
        {STR("a"), STR("i"), STR("\n"), 1, "fields"},
        {STR("a"), STR("i"), str_of(long_text, HYDRATION_FIELD_BYTES_MAX + 1), 1, "fields"},
        {STR("a"), STR("i"), STR("f"), HYDRATION_FIELDS_MAX + 1, "fields"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct str fields[HYDRATION_FIELDS_MAX + 1];
        unsigned count = cases[i].count;
        struct error error;
        for (size_t at = 0; at < COUNT(fields); at++)
            fields[at] = cases[i].field;
        assert_int_equal(check(cases[i].type, cases[i].id, HYDRATION_PARTIAL, fields, &count, &error),
                         STATUS_BAD_REQUEST);
        assert_string_equal(error.field, cases[i].wrong);
    }
    unsigned longest = 0;
    struct error error;
    assert_int_equal(check(str_of(long_text, HYDRATION_TYPE_BYTES_MAX),
                           str_of(long_text, HYDRATION_ID_BYTES_MAX), HYDRATION_EXISTENCE, NULL, &longest,
                           &error),
                     STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_partial_answer_never_stands_in_for_a_wider_request),
        cmocka_unit_test(fields_beside_another_mode_count_for_nothing),
        cmocka_unit_test(a_cut_has_the_members_asked_for_as_they_are),
        cmocka_unit_test(a_need_is_checked_and_its_fields_are_sorted),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
