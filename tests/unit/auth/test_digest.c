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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256_of_parts_is_that_of_the_whole),
        cmocka_unit_test(test_sha256_of_nothing),
        cmocka_unit_test(test_hmac_sha256),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
