/* UUIDs (C3). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/uuid.h"

static void text_there_and_back(void **state)
{
    (void)state;
    struct uuid uuid;
    char out[UUID_TEXT_BYTES];

    assert_true(uuid_parse(STR("F81D4FAE-7dec-11D0-a765-00A0C91E6BF6"), &uuid));
    assert_int_equal(uuid.bytes[0], 0xF8);
    assert_int_equal(uuid.bytes[15], 0xF6);
    uuid_format(&uuid, out);
    assert_string_equal(out, "f81d4fae-7dec-11d0-a765-00a0c91e6bf6");
}

static void nothing_else_is_a_uuid(void **state)
{
    (void)state;
    static const struct str bad[] = {
        STR_NONE,
        STR("f81d4fae7dec11d0a76500a0c91e6bf6"),
        STR("{f81d4fae-7dec-11d0-a765-00a0c91e6bf6}"),
        STR("f81d4fae-7dec-11d0-a765-00a0c91e6bf"),
        STR("f81d4fae-7dec-11d0-a765-00a0c91e6bf66"),
        STR("f81d4fae-7dec-11d0-a765-00a0c91e6bfg"),
        STR("f81d4fae-7dec-11d0-a76500a0c91e6bf6-"),
        STR("f81d4fae_7dec-11d0-a765-00a0c91e6bf6"),
        STR("-81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
        STR(" 81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
        STR("f81d4fae-7dec-11d0-a765-00a0c91e6bf\0"),
    };
    struct uuid uuid = {{7}};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(uuid_parse(bad[i], &uuid));
    assert_int_equal(uuid.bytes[0], 7);
}

static void random_ones_are_version_4_and_differ(void **state)
{
    (void)state;
    struct uuid last = {{0}};

    for (int i = 0; i < 100; i++) {
        struct uuid uuid = uuid_random();
        assert_int_equal(uuid.bytes[6] >> 4, 4);
        assert_int_equal(uuid.bytes[8] >> 6, 2);
        assert_memory_not_equal(uuid.bytes, last.bytes, 16);
        last = uuid;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_there_and_back),
        cmocka_unit_test(nothing_else_is_a_uuid),
        cmocka_unit_test(random_ones_are_version_4_and_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
