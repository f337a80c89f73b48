/* Seed §8.2, read strictly (R14). What the whole pod does with garbage is tried by tests/system. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "modules/refdata/query/query.h"

#define ID "\"eventId\":\"6f9619ff-8b86-4011-b42d-00c04fc964ff\""
#define AT "\"committedAt\":\"2026-02-27T12:00:01Z\""

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

static bool reads(const char *text, struct refdata_invalidation *out)
{
    return refdata_invalidation_read(str_from(text), &arena, out);
}

static void the_seeds_example_is_read(void **state)
{
    (void)state;
    struct refdata_invalidation read;
    assert_true(
        reads("{" ID ",\"tenantId\":\"tenant-a\",\"dictCode\":\"COUNTRY\",\"version\":1042," AT "}", &read));
    assert_true(str_eq(read.tenant, STR("tenant-a")));
    assert_true(str_eq(read.code, STR("COUNTRY")));
    assert_int_equal(read.version, 1042);
}

static void escapes_mean_what_they_say_and_strangers_are_left_alone(void **state)
{
    (void)state;
    struct refdata_invalidation read;
    assert_true(reads(" {\"x\":[{}],\"version\":9223372036854775807,\"dictCode\":\"\\u0043\","
                      "\"tenantId\":\"\\u0061-b\"," AT "," ID "}\n",
                      &read));
    assert_true(str_eq(read.tenant, STR("a-b")));
    assert_true(str_eq(read.code, STR("C")));
    assert_int_equal(read.version, INT64_MAX);
}

static void anything_else_is_none(void **state)
{
    (void)state;
    struct refdata_invalidation read;
    static const char *const others[] = {
        "",
        "null",
        "[]",
        "{}",
        "{" ID ",\"tenantId\":\"t\",\"dictCode\":\"C\",\"version\":1}",
        "{\"tenantId\":\"t\",\"dictCode\":\"C\",\"version\":1," AT "}",
        "{" ID ",\"tenantId\":\"t\",\"dictCode\":\"C\",\"version\":0," AT "}",
        "{" ID ",\"tenantId\":\"t\",\"dictCode\":\"C\",\"version\":1.0," AT "}",
        "{" ID ",\"tenantId\":\"t\",\"dictCode\":\"C\",\"version\":\"1\"," AT "}",
        "{" ID ",\"tenantId\":\"t\",\"dictCode\":\"C\",\"version\":9223372036854775808," AT "}",
        "{" ID ",\"tenantId\":\"t\",\"dictCode\":\"C\",\"version\":1,\"version\":2," AT "}",
        "{" ID ",\"tenantId\":\"a/b\",\"dictCode\":\"C\",\"version\":1," AT "}",
        "{" ID ",\"tenantId\":\"t\",\"dictCode\":7,\"version\":1," AT "}",
        "{\"eventId\":\"x\",\"tenantId\":\"t\",\"dictCode\":\"C\",\"version\":1," AT "}",
        "{" ID ",\"tenantId\":\"t\",\"dictCode\":\"C\",\"version\":1,\"committedAt\":\"now\"}",
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(reads(others[i], &read));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_seeds_example_is_read),
        cmocka_unit_test(escapes_mean_what_they_say_and_strangers_are_left_alone),
        cmocka_unit_test(anything_else_is_none),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
