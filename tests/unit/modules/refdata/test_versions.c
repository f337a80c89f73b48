/* Committed versions of dictionaries that are not held (issue 15, point 4). The reads are tried by tests/system. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/memory.h"
#include "modules/refdata/query/versions.h"

static struct refdata_versions *sample(void)
{
    struct refdata_versions *versions = memory_zalloc(sizeof *versions);
    atomic_init(&versions->refs, 1);
    versions->arena = ARENA(256);
    versions->rows = arena_zalloc(&versions->arena, 4 * sizeof *versions->rows);
    const char *const codes[] = {"-x", "B", "_", "a"}; /* bytewise: not the order of a dictionary of words */
    for (size_t i = 0; i < 4; i++)
        versions->rows[versions->count++] =
            (struct refdata_versions_row){.code = str_from(codes[i]), .version = (int64_t)i + 1};
    return versions;
}

static void every_code_is_found_in_bytewise_order(void **state)
{
    (void)state;
    struct refdata_versions *versions = sample();
    for (size_t i = 0; i < versions->count; i++)
        assert_int_equal(refdata_versions_find(versions, versions->rows[i].code)->version, i + 1);
    refdata_versions_unref(versions);
}

static void a_code_without_a_row_is_not_found(void **state)
{
    (void)state;
    struct refdata_versions *versions = sample();
    const char *const codes[] = {"", "A", "b", "aa", "zz", "-"};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        assert_null(refdata_versions_find(versions, str_from(codes[i])));
    refdata_versions_unref(versions);
    struct refdata_versions none = {.count = 0};
    assert_null(refdata_versions_find(&none, STR("B")));
}

static void it_lives_as_long_as_its_last_reference(void **state)
{
    (void)state;
    struct refdata_versions *versions = sample();
    atomic_fetch_add(&versions->refs, 1);
    refdata_versions_unref(versions);
    assert_int_equal(refdata_versions_find(versions, STR("B"))->version, 2);
    refdata_versions_unref(versions); /* a leak, or a second free, is the sanitizer's to find */
    refdata_versions_unref(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_found_in_bytewise_order),
        cmocka_unit_test(a_code_without_a_row_is_not_found),
        cmocka_unit_test(it_lives_as_long_as_its_last_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
