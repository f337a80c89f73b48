/* C5: what the RFCs show is accepted, and each way into a JWT library that became known is closed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>

#include "forge.h"

#define NOW_S INT64_C(1700000000)
#define HONEST "{\"sub\":\"u1\",\"tenant_id\":\"acme\",\"exp\":1700000060}"

static struct arena arena;
static struct forge_key keys[AUTH_ALGORITHMS]; /* one of each, kid = the algorithm's name */
static struct auth_keyset *set;
static const struct auth_checks checks = {
    .algorithms = AUTH_ALGORITHMS_ALL, .token_bytes_max = 8192, .tenant_claim = {"tenant_id", 9}};

static enum auth_reason verify(struct str token)
{
    struct auth_claims claims;
    return auth_token_verify(token, &checks, set, NOW_S * 1000000, &arena, &claims);
}

static enum auth_reason verify_forged(const struct forge_key *key, const char *header, const char *claims)
{
    struct buf token = {0};
    forge_token(key, header, claims, &token);
    enum auth_reason reason = verify(buf_str(&token));
    buf_deinit(&token);
    return reason;
}

/* ---- RFC 7515 appendix A, RFC 8037 appendix A ---- */

#define RFC7515_PAYLOAD \
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
static const struct {
    const char *jwk, *token;
} RFC_ROWS[] = {
    {"{\"kty\":\"oct\",\"k\":\"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9"
     "CAow\"}",
     "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9." RFC7515_PAYLOAD
     ".dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"},
    {"{\"kty\":\"RSA\",\"n\":\"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPM"
     "EzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBY"
     "UsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9"
     "iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ\",\"e\":\"AQAB\"}",
     "eyJhbGciOiJSUzI1NiJ9." RFC7515_PAYLOAD
     ".cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9"
     "CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6"
     "_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0"
     "igcN_IoypGlUPQGe77Rw"},
    {"{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU\","
     "\"y\":\"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0\"}",
     "eyJhbGciOiJFUzI1NiJ9." RFC7515_PAYLOAD
     ".DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"},
};

static struct auth_keyset *set_of_one(const char *jwk)
{
    struct auth_keyset *one = auth_keyset_create();
    struct error error;
    struct buf text = {0};

    buf_printf(&text, "{\"keys\":[%s]}", jwk);
    assert_int_equal(auth_keyset_add_jwks(one, buf_str(&text), "rfc", &error), STATUS_OK);
    buf_deinit(&text);
    return one;
}

static void tokens_of_rfc_7515_verify_and_expire(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(RFC_ROWS) / sizeof(RFC_ROWS[0]); i++) {
        struct auth_keyset *one = set_of_one(RFC_ROWS[i].jwk);
        struct str token = str_from(RFC_ROWS[i].token);
        struct auth_claims claims;
        int64_t exp_us = INT64_C(1300819380) * 1000000;

        assert_int_equal(auth_token_verify(token, &checks, one, exp_us - 1, &arena, &claims),
                         AUTH_REASON_VALID);
        assert_int_equal(claims.exp_us, exp_us);
        assert_int_equal(auth_token_verify(token, &checks, one, exp_us, &arena, &claims),
                         AUTH_REASON_EXPIRED);
        auth_keyset_unref(one);
    }
}

static void the_signature_of_rfc_8037_verifies(void **state)
{
    (void)state;
    struct auth_keyset *one = set_of_one(
        "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}");
    const struct auth_key *found[AUTH_CANDIDATES_MAX];
    struct str message = STR("eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc"), signature;

    assert_int_equal(auth_keyset_candidates(one, AUTH_EDDSA, STR_NONE, found), 1);
    assert_true(auth_base64url_decode(
        STR("hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"), &arena,
        &signature));
    assert_true(auth_signature_verify(found[0], message, signature));
    assert_false(auth_signature_verify(found[0], str_of(message.ptr, message.len - 1), signature));
    auth_keyset_unref(one);
}

/* ---- honest tokens ---- */

static void every_algorithm_is_accepted_with_and_without_kid(void **state)
{
    (void)state;
    for (int i = 0; i < AUTH_ALGORITHMS; i++) {
        const char *name = auth_algorithm_name((enum auth_algorithm)i);
        char header[128];
        snprintf(header, sizeof(header), "{\"alg\":\"%s\",\"kid\":\"%s\",\"typ\":\"JWT\"}", name, name);
        assert_int_equal(verify_forged(&keys[i], header, HONEST), AUTH_REASON_VALID);
        snprintf(header, sizeof(header), "{\"alg\":\"%s\"}", name);
        assert_int_equal(verify_forged(&keys[i], header, HONEST), AUTH_REASON_VALID);
    }
}

static void types_and_unknown_header_members_that_are_harmless(void **state)
{
    (void)state;
    static const char *const ROWS[] = {
        "{\"alg\":\"EdDSA\",\"typ\":\"jwt\"}",
        "{\"alg\":\"EdDSA\",\"typ\":\"at+JWT\"}",
        "{\"alg\":\"EdDSA\",\"typ\":\"application/at+jwt\"}",
        "{\"alg\":\"EdDSA\",\"x5t\":\"abc\",\"custom\":{\"a\":[1]}}",
        " { \"alg\" : \"EdDSA\" } ",
        "{\"\\u0061lg\":\"Ed\\u0044SA\"}", /* the same text, spelt with escapes */
    };
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++)
        if (verify_forged(&keys[AUTH_EDDSA], ROWS[i], HONEST) != AUTH_REASON_VALID)
            fail_msg("refused: %s", ROWS[i]);
}

/* ---- attacks on the header ---- */

static void headers_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        enum auth_reason reason;
    } ROWS[] = {
        {"{\"alg\":\"none\"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":\"None\"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":\"nOnE\"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":\"NONE\",\"kid\":\"EdDSA\"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":\"\"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":\"eddsa\"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":\"EdDSA \"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":\"EdDSA\\u0000\"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":\"RS384\"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":\"PS256\"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":\"ES256K\"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":null}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":[\"EdDSA\"]}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":0}", AUTH_REASON_ALGORITHM},
        {"{\"typ\":\"JWT\"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":\"EdDSA\",\"kid\":\"RS256\"}", AUTH_REASON_ALGORITHM}, /* a kid of another algorithm */
        {"{\"alg\":\"RS256\",\"kid\":\"EdDSA\"}", AUTH_REASON_ALGORITHM},
        {"{\"alg\":\"EdDSA\",\"alg\":\"EdDSA\"}", AUTH_REASON_HEADER},
        {"{\"alg\":\"none\",\"alg\":\"EdDSA\"}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"\\u0061lg\":\"none\"}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"crit\":[\"exp\"]}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"crit\":[]}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"cr\\u0069t\":[\"x\"]}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"b64\":false,\"crit\":[\"b64\"]}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"b64\":true}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"jwk\":{\"kty\":\"OKP\"}}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"jwk\":null}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"jku\":\"https://evil.example/jwks\"}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"x5u\":\"https://evil.example/cert\"}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"x5c\":[\"MII\"]}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"zip\":\"DEF\"}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"enc\":\"A128GCM\"}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"typ\":\"JWE\"}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"typ\":\"dpop+jwt\"}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"typ\":1}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"kid\":7}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"kid\":\"\"}", AUTH_REASON_HEADER},
        {"{\"alg\":\"EdDSA\",\"kid\":\"../../../dev/null\"}", AUTH_REASON_UNKNOWN_KEY},
        {"{\"alg\":\"EdDSA\",\"kid\":\"x' UNION SELECT 'k'--\"}", AUTH_REASON_UNKNOWN_KEY},
        {"{\"alg\":\"EdDSA\",\"kid\":\"EdDSA\\u0000\"}", AUTH_REASON_UNKNOWN_KEY},
        {"{\"alg\":\"EdDSA\",\"kid\":\"eddsa\"}", AUTH_REASON_UNKNOWN_KEY},
        {"{\"alg\":\"EdDSA\"", AUTH_REASON_MALFORMED},
        {"{\"alg\":\"EdDSA\"} {}", AUTH_REASON_MALFORMED},
        {"{\"alg\":\"EdDSA\",}", AUTH_REASON_MALFORMED},
        {"[\"EdDSA\"]", AUTH_REASON_MALFORMED},
        {"\"EdDSA\"", AUTH_REASON_MALFORMED},
        {"{\"alg\":\"EdDSA\",\"a\":[[[[[[[[[[[[1]]]]]]]]]]]]}", AUTH_REASON_MALFORMED}, /* too deep */
        {"{\"alg\":\"EdDSA\",\"a\":\"\xff\"}", AUTH_REASON_MALFORMED},
    };
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        enum auth_reason reason = verify_forged(&keys[AUTH_EDDSA], ROWS[i].header, HONEST);
        if (reason != ROWS[i].reason)
            fail_msg("%s: %s", ROWS[i].header, auth_reason_label(reason));
    }
}

static void an_algorithm_that_is_not_allowed_is_refused_though_its_key_is_there(void **state)
{
    (void)state;
    struct auth_checks only_rs256 = checks;
    struct auth_claims claims;
    struct buf token = {0};

    only_rs256.algorithms = 1u << AUTH_RS256;
    forge_token(&keys[AUTH_EDDSA], "{\"alg\":\"EdDSA\"}", HONEST, &token);
    assert_int_equal(auth_token_verify(buf_str(&token), &only_rs256, set, NOW_S * 1000000, &arena, &claims),
                     AUTH_REASON_ALGORITHM);
    buf_deinit(&token);
}

/* ---- key confusion ---- */

/* A well-made HS256 token under this secret: a verifier that holds the secret takes it, ours must not. */
static void check_confusion(struct str secret, const char *header, bool has_kid)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    struct auth_keyset *fooled = auth_keyset_create();
    struct auth_claims claims;
    struct buf token = {0};
    size_t len = 0;

    auth_base64url_encode(str_from(header), &token);
    buf_put_char(&token, '.');
    auth_base64url_encode(STR(HONEST), &token);
    assert_non_null(EVP_Q_mac(NULL, "HMAC", NULL, "SHA256", NULL, secret.ptr, secret.len,
                              (const unsigned char *)buf_str(&token).ptr, buf_len(&token), digest,
                              sizeof(digest), &len));
    buf_put_char(&token, '.');
    auth_base64url_encode(str_of((char *)digest, len), &token);

    auth_keyset_add_secret(fooled, secret);
    assert_int_equal(auth_token_verify(buf_str(&token), &checks, fooled, NOW_S * 1000000, &arena, &claims),
                     AUTH_REASON_VALID);
    assert_int_equal(verify(buf_str(&token)), has_kid ? AUTH_REASON_ALGORITHM : AUTH_REASON_SIGNATURE);
    auth_keyset_unref(fooled);
    buf_deinit(&token);
}

static void a_public_key_is_never_an_hmac_secret(void **state)
{
    (void)state;
    for (int i = AUTH_RS256; i <= AUTH_EDDSA; i++) {
        BIO *pem = BIO_new(BIO_s_mem());
        unsigned char *der = NULL;
        char *pem_text, header[64];
        struct buf jwk = {0};

        PEM_write_bio_PUBKEY(pem, keys[i].pkey);
        long pem_len = BIO_get_mem_data(pem, &pem_text);
        int der_len = i2d_PUBKEY(keys[i].pkey, &der);
        forge_jwk(&keys[i], &jwk);
        snprintf(header, sizeof(header), "{\"alg\":\"HS256\",\"kid\":\"%s\"}", keys[i].kid);
        const char *const headers[] = {"{\"alg\":\"HS256\"}", header};
        for (int h = 0; h < 2; h++) {
            check_confusion(str_of(pem_text, (size_t)pem_len), headers[h], h == 1);
            check_confusion(str_of((char *)der, (size_t)der_len), headers[h], h == 1);
            check_confusion(buf_str(&jwk), headers[h], h == 1);
        }
        OPENSSL_free(der);
        BIO_free(pem);
        buf_deinit(&jwk);
    }
}

/* ---- the compact form ---- */

static void shapes_that_are_no_compact_jws(void **state)
{
    (void)state;
    struct buf token = {0}, bent = {0};

    forge_token(&keys[AUTH_EDDSA], "{\"alg\":\"EdDSA\"}", HONEST, &token);
    struct str good = buf_str(&token);
    assert_int_equal(verify(good), AUTH_REASON_VALID);
    static const struct {
        const char *before, *after;
        size_t cut;
    } ROWS[] = {
        {"", "=", 0},  {"", "==", 0},   {"", ".", 0},   {".", "", 0},       {" ", "", 0},
        {"", " ", 0},  {"", "\n", 0},   {"", "A", 0},   {"", "AA", 0},      {"", "", 1},
        {"", "", 2},   {"", "", 86},    {"", "", 87},   {"", ".x", 0},      {"", "\0", 0},
        {"x.", "", 0}, {"", ".a.b", 0}, {"", "%3D", 0}, {"Bearer ", "", 0}, {"", ",", 0},
    };
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        if (ROWS[i].before[0] == '\0' && ROWS[i].after[0] == '\0' && ROWS[i].cut == 0)
            continue;
        buf_clear(&bent);
        buf_put_str(&bent, str_from(ROWS[i].before));
        buf_put_str(&bent, str_of(good.ptr, good.len - ROWS[i].cut));
        buf_put_str(&bent, str_from(ROWS[i].after));
        if (verify(buf_str(&bent)) == AUTH_REASON_VALID)
            fail_msg("row %zu was accepted", i);
    }
    assert_int_equal(verify(STR("")), AUTH_REASON_MALFORMED);
    assert_int_equal(verify(STR("..")), AUTH_REASON_MALFORMED);
    assert_int_equal(verify(STR("a.b")), AUTH_REASON_MALFORMED);
    assert_int_equal(verify(STR("a.b.c.d.e")), AUTH_REASON_MALFORMED); /* a JWE has five parts */
    assert_int_equal(verify(str_of(good.ptr, good.len - 86)), AUTH_REASON_MALFORMED); /* "header.payload." */
    buf_deinit(&token);
    buf_deinit(&bent);
}

static void any_changed_byte_is_noticed(void **state)
{
    (void)state;
    struct buf token = {0};

    for (int i = 0; i < AUTH_ALGORITHMS; i++) {
        char header[64];
        snprintf(header, sizeof(header), "{\"alg\":\"%s\"}", auth_algorithm_name((enum auth_algorithm)i));
        forge_token(&keys[i], header, HONEST, &token);
        for (size_t at = token.start; at < token.end; at += 1) {
            char was = token.data[at];
            token.data[at] = was == 'A' ? 'B' : 'A';
            if (verify(buf_str(&token)) == AUTH_REASON_VALID)
                fail_msg("%s: byte %zu", header, at);
            token.data[at] = was;
        }
    }
    buf_deinit(&token);
}

static void a_token_over_the_limit_is_refused_unread(void **state)
{
    (void)state;
    struct buf claims = {0};

    buf_printf(&claims, "{\"exp\":1700000060,\"pad\":\"");
    for (int i = 0; i < 8000; i++)
        buf_put_char(&claims, 'x');
    buf_printf(&claims, "\"}%c", '\0');
    assert_int_equal(verify_forged(&keys[AUTH_EDDSA], "{\"alg\":\"EdDSA\"}", claims.data),
                     AUTH_REASON_TOO_LARGE);
    buf_deinit(&claims);
}

/* ---- the header line ---- */

static void bearer_scheme(void **state)
{
    (void)state;
    struct str token;
    assert_true(auth_bearer_token(STR("Bearer a.b.c"), &token) && str_eq(token, STR("a.b.c")));
    assert_true(auth_bearer_token(STR("bEARER   a.b.c"), &token) && str_eq(token, STR("a.b.c")));
    static const char *const ROWS[] = {
        "",      "Bearer",        "Bearer ",       "Bearera.b.c",   "Basic a.b.c",
        "a.b.c", "Bearer\ta.b.c", " Bearer a.b.c", "BearerBearer a"};
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++)
        if (auth_bearer_token(str_from(ROWS[i]), &token))
            fail_msg("taken: %s", ROWS[i]);
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

static int reset_arena(void **state)
{
    (void)state;
    arena_reset(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(tokens_of_rfc_7515_verify_and_expire, reset_arena),
        cmocka_unit_test_teardown(the_signature_of_rfc_8037_verifies, reset_arena),
        cmocka_unit_test_teardown(every_algorithm_is_accepted_with_and_without_kid, reset_arena),
        cmocka_unit_test_teardown(types_and_unknown_header_members_that_are_harmless, reset_arena),
        cmocka_unit_test_teardown(headers_that_are_refused, reset_arena),
        cmocka_unit_test_teardown(an_algorithm_that_is_not_allowed_is_refused_though_its_key_is_there,
                                  reset_arena),
        cmocka_unit_test_teardown(a_public_key_is_never_an_hmac_secret, reset_arena),
        cmocka_unit_test_teardown(shapes_that_are_no_compact_jws, reset_arena),
        cmocka_unit_test_teardown(any_changed_byte_is_noticed, reset_arena),
        cmocka_unit_test_teardown(a_token_over_the_limit_is_refused_unread, reset_arena),
        cmocka_unit_test_teardown(bearer_scheme, reset_arena),
    };
    return cmocka_run_group_tests(tests, make_keys, drop_keys);
}
