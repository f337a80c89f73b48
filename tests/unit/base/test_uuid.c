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

static void a_name_always_makes_the_same_one(void **state)
{
    (void)state;
    /* RFC 9562, A.4; the rest, around the ends of SHA-1's blocks, is Python's uuid.uuid5(uuid.NAMESPACE_URL, "x" * count) */
    static const struct {
        size_t count;
        const char *text;
    } known[] = {
        {0, "1b4db7eb-4057-5ddf-91e0-36dec72071f5"},    {1, "4cd605e7-afa2-5360-b5b9-c5e9fb5c76f4"},
        {38, "f3a13bfb-adc6-59a0-8124-fe6edeaca7ea"},   {39, "f4eaee1e-e483-528b-88bd-6b8932ab6e2b"},
        {40, "f562c38a-a8fe-5cdd-b523-6f30cfb54847"},   {47, "b18474ae-5fc6-5d04-aa24-a5be94234955"},
        {48, "8fa6ffa9-9280-5899-a2d8-b082ccdf6380"},   {49, "a7ea6783-dd62-55d7-b23b-9acadffca469"},
        {111, "aab99202-50f3-534a-bc28-c118fe72986d"},  {112, "f531054f-eafa-5f71-a62b-6dd48019d086"},
        {1000, "68491f23-75a7-557d-943b-00881c13ae1e"},
    };
    struct uuid dns, url, uuid;
    char name[1000], out[UUID_TEXT_BYTES];

    memset(name, 'x', sizeof name);
    assert_true(uuid_parse(STR("6ba7b810-9dad-11d1-80b4-00c04fd430c8"), &dns));
    assert_true(uuid_parse(STR("6ba7b811-9dad-11d1-80b4-00c04fd430c8"), &url));
    uuid = uuid_named(&dns, STR("www.example.com"));
    uuid_format(&uuid, out);
    assert_string_equal(out, "2ed6657d-e927-568b-95e1-2665a8aea6a2");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uuid = uuid_named(&url, str_of(name, known[i].count));
        uuid_format(&uuid, out);
        assert_string_equal(out, known[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_there_and_back),
        cmocka_unit_test(nothing_else_is_a_uuid),
        cmocka_unit_test(random_ones_are_version_4_and_differ),
        cmocka_unit_test(a_name_always_makes_the_same_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
