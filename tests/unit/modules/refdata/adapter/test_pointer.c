/* JSON pointers as RFC 6901 has them; a member that comes twice on the way is refused (R9). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "modules/refdata/adapter/adapter.h"

#define DOCUMENT                                                                                           \
    "{\"foo\":[\"bar\",\"baz\"],\"\":0,\"a/b\":1,\"c%d\":2,\"e^f\":3,\"g|h\":4,\"i\\\\j\":5,\"k\\\"l\":6," \
    "\" \":7,\"m~n\":8,\"esc\\u0061ped\":9,\"deep\":[[{\"x\":{\"\":[10]}}]],\"twice\":{\"z\":1,\"z\":2},"  \
    "\"nothing\":null}"

static enum status find(const char *text, struct json_value *value, struct error *error)
{
    struct refdata_pointer pointer;
    struct json_value root;
    struct arena arena = ARENA(256);
    assert_int_equal(json_parse(STR(DOCUMENT), 64, &root, error), STATUS_OK);
    assert_int_equal(refdata_pointer_compile(str_from(text), &arena, &pointer, error), STATUS_OK);
    enum status status = refdata_pointer_find(&pointer, &root, value, error);
    arena_deinit(&arena);
    return status;
}

static void what_it_points_at_is_found(void **state)
{
    (void)state;
    /* RFC 6901, section 5, and some more */
    static const struct {
        const char *pointer, *found;
    } rows[] = {
        {"/foo", "[\"bar\",\"baz\"]"},
        {"/foo/0", "\"bar\""},
        {"/foo/1", "\"baz\""},
        {"/", "0"},
        {"/a~1b", "1"},
        {"/c%d", "2"},
        {"/e^f", "3"},
        {"/g|h", "4"},
        {"/i\\j", "5"},
        {"/k\"l", "6"},
        {"/ ", "7"},
        {"/m~0n", "8"},
        {"/escaped", "9"},
        {"/deep/0/0/x//0", "10"},
        {"/nothing", "null"},
    };
    struct json_value value;
    struct error error = {0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(find(rows[i].pointer, &value, &error), STATUS_OK);
        if (!str_eq(value.raw, str_from(rows[i].found)))
            fail_msg("%s is %.*s", rows[i].pointer, STR_ARG(value.raw));
    }
    assert_int_equal(find("", &value, &error), STATUS_OK);
    assert_int_equal(value.raw.len, strlen(DOCUMENT));
}

static void what_is_not_there_is_nothing(void **state)
{
    (void)state;
    static const char *const absent[] = {
        "/bar",     "/foo/2",   "/foo/-",  "/foo/00", "/foo/01",
        "/foo/0/x", "/foo/bar", "/foo/",   "/a~1b/c", "/nothing/x",
        "//",       "/FOO",     "/foo/ 0", "/foo/+1", "/foo/99999999999999999999999"};
    struct json_value value;
    struct error error = {0};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
        assert_int_equal(find(absent[i], &value, &error), STATUS_OK);
        if (value.raw.len)
            fail_msg("%s is %.*s", absent[i], STR_ARG(value.raw));
    }
}

static void a_member_that_comes_twice_on_the_way_is_refused(void **state)
{
    (void)state;
    struct json_value value;
    struct error error = {0};
    assert_int_equal(find("/twice/z", &value, &error), STATUS_BAD_REQUEST);
    assert_string_equal(error.field, "/twice/z");
    assert_string_equal(error.message, "/twice/z: comes more than once");
    assert_int_equal(find("/twice", &value, &error), STATUS_OK);
    assert_int_equal(find("/twice/y", &value, &error), STATUS_OK);
}

static void what_is_no_pointer_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"foo", "foo/bar", "/~", "/a~", "/~2", "/a/~x", " /a"};
    char long_one[2 * REFDATA_POINTER_STEPS_MAX + 3];
    struct refdata_pointer pointer;
    struct error error = {0};
    struct arena arena = ARENA(256);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(refdata_pointer_compile(str_from(bad[i]), &arena, &pointer, &error), STATUS_CONFIG);
    for (size_t i = 0; i <= REFDATA_POINTER_STEPS_MAX; i++)
        memcpy(long_one + 2 * i, "/a", 2);
    assert_int_equal(refdata_pointer_compile(str_of(long_one, sizeof long_one - 1), &arena, &pointer, &error),
                     STATUS_CONFIG);
    assert_int_equal(
        refdata_pointer_compile(str_of(long_one, 2 * REFDATA_POINTER_STEPS_MAX), &arena, &pointer, &error),
        STATUS_OK);
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_points_at_is_found),
        cmocka_unit_test(what_is_not_there_is_nothing),
        cmocka_unit_test(a_member_that_comes_twice_on_the_way_is_refused),
        cmocka_unit_test(what_is_no_pointer_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
