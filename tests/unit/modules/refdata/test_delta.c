/* What the outbox says changed (R16): believed only where it is whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "modules/refdata/query/query.h"

static struct arena arena;

static int set_up(void **state)
{
    (void)state;
    arena = ARENA(256);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    arena_deinit(&arena);
    return 0;
}

static void every_version_with_its_keys_is_a_change(void **state)
{
    (void)state;
    struct refdata_delta delta;
    char key[] = "b";
    refdata_delta_begin(&delta, &arena, 7, 4);
    refdata_delta_take(&delta, 8, true, str_of(key, 1));
    key[0] = 'a'; /* the rows are gone by the time the keys are used */
    refdata_delta_take(&delta, 8, true, str_of(key, 1));
    refdata_delta_take(&delta, 9, true, STR_NONE);
    refdata_delta_take(&delta, 10, true, STR("b"));
    assert_true(refdata_delta_end(&delta, 10));
    const struct refdata_change *change = &delta.change;
    assert_int_equal(change->from, 7);
    assert_int_equal(change->to, 10);
    assert_int_equal(change->key_count, 2); /* version 9 has none */
    assert_true(str_eq(change->keys[0], STR("a")));
    assert_true(str_eq(change->keys[1], STR("b")));
}

static void each_key_is_loaded_once_in_order(void **state)
{
    (void)state;
    struct refdata_delta delta;
    refdata_delta_begin(&delta, &arena, 0, 6);
    const char *const changed[] = {"b", "a", "b", "", "ab", "a"};
    for (int64_t i = 0; i < 6; i++)
        refdata_delta_take(&delta, i + 1, true, str_from(changed[i]));
    assert_true(refdata_delta_end(&delta, 6));
    assert_int_equal(delta.change.key_count, 4);
    const char *const expected[] = {"", "a", "ab", "b"};
    for (size_t i = 0; i < 4; i++)
        assert_true(str_eq(delta.change.keys[i], str_from(expected[i])));
}

static void nothing_new_is_a_change_of_nothing(void **state)
{
    (void)state;
    struct refdata_delta delta;
    refdata_delta_begin(&delta, &arena, 3, 0);
    assert_true(refdata_delta_end(&delta, 3));
    assert_int_equal(delta.change.to, delta.change.from);
    assert_int_equal(delta.change.key_count, 0);
    assert_non_null(delta.change.keys); /* known, unlike those of a full load */
}

struct row {
    int64_t version;
    bool listed;
};

static bool is_believed(int64_t from, int64_t committed, size_t count, const struct row *rows)
{
    struct refdata_delta delta;
    refdata_delta_begin(&delta, &arena, from, count);
    for (size_t i = 0; i < count; i++)
        refdata_delta_take(&delta, rows[i].version, rows[i].listed, rows[i].listed ? STR("k") : STR_NONE);
    return refdata_delta_end(&delta, committed);
}

#define ROWS(...)                                                            \
    sizeof((struct row[]){__VA_ARGS__}) / sizeof(struct row), (struct row[]) \
    {                                                                        \
        __VA_ARGS__                                                          \
    }

static void what_is_not_whole_is_not_believed(void **state)
{
    (void)state;
    assert_true(is_believed(1, 3, ROWS({2, true}, {3, true})));
    assert_true(is_believed(1, 3, ROWS({2, true}, {2, true}, {3, true})));
    assert_false(is_believed(1, 3, ROWS({3, true})));                       /* the first is missing */
    assert_false(is_believed(1, 4, ROWS({2, true}, {4, true})));            /* one in between */
    assert_false(is_believed(1, 4, ROWS({2, true}, {3, true})));            /* the last */
    assert_false(is_believed(1, 2, ROWS({2, true}, {3, true})));            /* more than is committed */
    assert_false(is_believed(1, 3, ROWS({2, false}, {3, true})));           /* keys not known */
    assert_false(is_believed(1, 3, ROWS({2, true}, {3, true}, {2, true}))); /* out of order */
    assert_false(is_believed(1, 2, ROWS({1, true}, {2, true})));            /* older than what is held */
    assert_false(is_believed(3, 2, 0, NULL));                               /* it went back */
    assert_false(is_believed(1, 2, 0, NULL));                               /* nobody said anything */
    assert_false(is_believed(INT64_MAX - 1, INT64_MAX, ROWS({INT64_MIN, true})));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_version_with_its_keys_is_a_change, set_up, tear_down),
        cmocka_unit_test_setup_teardown(each_key_is_loaded_once_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_new_is_a_change_of_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_not_whole_is_not_believed, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
