/* C5: a signature is taken in one form only, and nothing else is one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "forge.h"

static struct arena arena;
static struct forge_key keys[AUTH_ALGORITHMS]; /* one of each, kid = the algorithm's name */
static struct auth_keyset *set;
static const struct auth_checks checks = {
    .algorithms = AUTH_ALGORITHMS_ALL, .token_bytes_max = 8192, .tenant_claim = {"tenant_id", 9}};

static void verify_es256_raw(const unsigned char *signature, size_t len)
{
    struct auth_claims claims;
    struct buf token = {0};
    auth_base64url_encode(STR("{\"alg\":\"ES256\"}"), &token);
    buf_put_char(&token, '.');
    auth_base64url_encode(STR("{}"), &token);
    buf_put_char(&token, '.');
    auth_base64url_encode(str_of((const char *)signature, len), &token);
    assert_int_equal(auth_token_verify(buf_str(&token), &checks, set, 0, &arena, &claims),
                     AUTH_REASON_SIGNATURE);
    buf_deinit(&token);
}

static void blank_and_out_of_range_es256_signatures_are_refused(void **state)
{
    (void)state;
    static const unsigned char ORDER[32] = {0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff,
                                            0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6, 0xfa, 0xad, 0xa7, 0x17,
                                            0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51};
    unsigned char signature[96] = {0};

    verify_es256_raw(signature, 64); /* r = s = 0 */
    signature[31] = 1;
    verify_es256_raw(signature, 64); /* s = 0 */
    signature[31] = 0;
    signature[63] = 1;
    verify_es256_raw(signature, 64); /* r = 0 */
    signature[31] = 1;
    verify_es256_raw(signature, 64); /* r = s = 1 */
    memcpy(signature, ORDER, 32);
    verify_es256_raw(signature, 64); /* r = n */
    memcpy(signature + 32, ORDER, 32);
    verify_es256_raw(signature, 64); /* r = s = n */
    memset(signature, 0xff, 64);
    verify_es256_raw(signature, 64);
    verify_es256_raw(signature, 63);
    verify_es256_raw(signature, 65);
    verify_es256_raw(signature, 96); /* as long as P-384's */
}

static void a_der_signature_is_not_es256(void **state)
{
    (void)state;
    struct str message = STR("m");
    struct forge_key as_rsa = keys[AUTH_ES256]; /* signs by ECDSA and leaves the DER alone */
    struct buf der = {0};
    const struct auth_key *found[AUTH_CANDIDATES_MAX];

    as_rsa.algorithm = AUTH_RS256;
    forge_signature(&as_rsa, message, &der);
    assert_int_equal(auth_keyset_candidates(set, AUTH_ES256, STR("ES256"), found), 1);
    assert_false(auth_signature_verify(found[0], message, buf_str(&der)));
    buf_deinit(&der);
}

static void a_valid_signature_with_a_tail_is_no_signature(void **state)
{
    (void)state;
    struct str message = STR("m");

    for (int i = 0; i < AUTH_ALGORITHMS; i++) {
        const struct auth_key *found[AUTH_CANDIDATES_MAX];
        struct buf signature = {0};
        forge_signature(&keys[i], message, &signature);
        assert_int_equal(auth_keyset_candidates(set, (enum auth_algorithm)i, str_from(keys[i].kid), found),
                         1);
        assert_true(auth_signature_verify(found[0], message, buf_str(&signature)));
        buf_put_char(&signature, '\0');
        assert_false(auth_signature_verify(found[0], message, buf_str(&signature)));
        buf_deinit(&signature);
    }
}

/* Leading zero bytes in r or s take another path through DER; 600 signatures meet some. */
static void es256_signatures_with_leading_zeros_verify(void **state)
{
    (void)state;
    const struct auth_key *found[AUTH_CANDIDATES_MAX];
    struct buf signature = {0};
    char message[16];

    assert_int_equal(auth_keyset_candidates(set, AUTH_ES256, STR("ES256"), found), 1);
    for (int i = 0; i < 600; i++) {
        snprintf(message, sizeof(message), "m%d", i);
        buf_clear(&signature);
        forge_signature(&keys[AUTH_ES256], str_from(message), &signature);
        assert_true(auth_signature_verify(found[0], str_from(message), buf_str(&signature)));
    }
    buf_deinit(&signature);
}

static int make_keys(void **state)
{
    (void)state;
    set = forge_all_keys(keys);
    arena = ARENA(65536);
    return 0;
}

static int drop_keys(void **state)
{
    (void)state;
    for (int i = 0; i < AUTH_ALGORITHMS; i++)
        forge_key_destroy(&keys[i]);
    auth_keyset_unref(set);
    arena_deinit(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blank_and_out_of_range_es256_signatures_are_refused),
        cmocka_unit_test(a_der_signature_is_not_es256),
        cmocka_unit_test(a_valid_signature_with_a_tail_is_no_signature),
        cmocka_unit_test(es256_signatures_with_leading_zeros_verify),
    };
    return cmocka_run_group_tests(tests, make_keys, drop_keys);
}
