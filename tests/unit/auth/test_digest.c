/* Digests against published vectors: FIPS 180-2 and RFC 4231; parts are one text, wherever it is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "auth/digest.h"

static void expect_hex(const uint8_t digest[AUTH_SHA256_BYTES], const char *wanted)
{
    char hex[2 * AUTH_SHA256_BYTES + 1];
    for (size_t i = 0; i < AUTH_SHA256_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    assert_string_equal(hex, wanted);
}

static void test_sha256_of_parts_is_that_of_the_whole(void **state)
{
    (void)state;
    const char *const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    uint8_t digest[AUTH_SHA256_BYTES];
    auth_sha256((struct str[]){STR("abc")}, 1, digest);
    expect_hex(digest, abc);
    auth_sha256((struct str[]){STR("a"), STR_NONE, STR("bc"), STR("")}, 4, digest);
    expect_hex(digest, abc);
}

static void test_sha256_of_nothing(void **state)
{
    (void)state;
    const char *const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    uint8_t digest[AUTH_SHA256_BYTES];
    auth_sha256(NULL, 0, digest);
    expect_hex(digest, empty);
    auth_sha256((struct str[]){STR_NONE}, 1, digest);
    expect_hex(digest, empty);
}

static void test_hmac_sha256(void **state)
{
    (void)state;
    const char *const wanted = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
    uint8_t digest[AUTH_SHA256_BYTES];
    auth_hmac_sha256(STR("Jefe"), (struct str[]){STR("what do ya want for nothing?")}, 1, digest);
    expect_hex(digest, wanted);
    auth_hmac_sha256(STR("Jefe"), (struct str[]){STR("what do ya "), STR("want for nothing?")}, 2, digest);
    expect_hex(digest, wanted);
    auth_hmac_sha256(STR_NONE, NULL, 0, digest);
    expect_hex(digest, "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

static void test_a_name_always_makes_the_same_uuid(void **state)
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
    uuid = auth_uuid_named(&dns, STR("www.example.com"));
    uuid_format(&uuid, out);
    assert_string_equal(out, "2ed6657d-e927-568b-95e1-2665a8aea6a2");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uuid = auth_uuid_named(&url, str_of(name, known[i].count));
        uuid_format(&uuid, out);
        assert_string_equal(out, known[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256_of_parts_is_that_of_the_whole),
        cmocka_unit_test(test_sha256_of_nothing),
        cmocka_unit_test(test_hmac_sha256),
        cmocka_unit_test(test_a_name_always_makes_the_same_uuid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
