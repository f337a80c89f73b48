/* C5: keys of RFC 7517, 7515 and 8037 are read; weak, broken and misplaced ones are not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "forge.h"

static struct arena arena;

static enum status parse(struct str text, struct auth_key *key, struct error *error)
{
    struct json_value jwk;
    assert_int_equal(json_parse(text, 16, &jwk, error), STATUS_OK);
    return auth_key_parse(&jwk, &arena, key, error);
}

#define RFC7515_A3_X "\"x\":\"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU\""
#define RFC7515_A3_Y "\"y\":\"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0\""
#define RFC7515_A3 "\"kty\":\"EC\",\"crv\":\"P-256\"," RFC7515_A3_X "," RFC7515_A3_Y
#define RFC8037_A2_X "\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\""
#define RFC8037_A2 "\"kty\":\"OKP\",\"crv\":\"Ed25519\"," RFC8037_A2_X
#define OCT_32 "\"kty\":\"oct\",\"k\":\"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\""

static void the_type_decides_the_algorithm(void **state)
{
    (void)state;
    static const struct {
        const char *jwk;
        enum auth_algorithm algorithm;
    } ROWS[] = {
        {"{" RFC7515_A3 "}", AUTH_ES256},
        {"{" RFC7515_A3 ",\"alg\":\"ES256\",\"use\":\"sig\",\"key_ops\":[\"verify\"]}", AUTH_ES256},
        {"{" RFC8037_A2 "}", AUTH_EDDSA},
        {"{" RFC8037_A2 ",\"d\":\"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A\"}", AUTH_EDDSA}, /* ignored */
        {"{" OCT_32 ",\"key_ops\":[\"sign\",\"verify\"]}", AUTH_HS256},
    };
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        struct auth_key key;
        struct error error;
        assert_int_equal(parse(str_from(ROWS[i].jwk), &key, &error), STATUS_OK);
        assert_int_equal(key.algorithm, ROWS[i].algorithm);
        auth_key_deinit(&key);
    }
}

static void unsound_keys_are_refused(void **state)
{
    (void)state;
    static const char *const ROWS[] = {
        "[]",
        "{}",
        "{\"kty\":\"EC\"}",
        "{\"kty\":7}",
        "{\"kty\":\"ec\",\"crv\":\"P-256\"," RFC7515_A3_X "," RFC7515_A3_Y "}",
        "{\"kty\":\"EC\",\"crv\":\"P-384\"," RFC7515_A3_X "," RFC7515_A3_Y "}",
        "{\"kty\":\"EC\",\"crv\":\"secp256k1\"," RFC7515_A3_X "," RFC7515_A3_Y "}",
        "{\"kty\":\"EC\",\"crv\":\"P-256\"," RFC7515_A3_X "}",
        /* off the curve: y is x */
        "{\"kty\":\"EC\",\"crv\":\"P-256\"," RFC7515_A3_X
        ",\"y\":\"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU\"}",
        /* infinity, as it is sometimes spelt */
        "{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\","
        "\"y\":\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"}",
        "{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVA\"," RFC7515_A3_Y
        "}",
        "{" RFC7515_A3 ",\"use\":\"enc\"}",
        "{" RFC7515_A3 ",\"use\":7}",
        "{" RFC7515_A3 ",\"alg\":\"ES384\"}",
        "{" RFC7515_A3 ",\"alg\":\"none\"}",
        "{" RFC7515_A3 ",\"alg\":\"HS256\"}",
        "{" RFC7515_A3 ",\"key_ops\":[\"sign\"]}",
        "{" RFC7515_A3 ",\"key_ops\":\"verify\"}",
        "{" RFC7515_A3 ",\"kid\":5}",
        "{" RFC7515_A3 ",\"kid\":\"a\",\"kid\":\"b\"}",
        "{" RFC7515_A3 ",\"k\\u0074y\":\"oct\"}", /* the same member twice, once with an escape */
        "{\"kty\":\"OKP\",\"crv\":\"X25519\"," RFC8037_A2_X "}",
        "{\"kty\":\"OKP\",\"crv\":\"Ed448\"," RFC8037_A2_X "}",
        "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcH\"}",
        "{" RFC8037_A2 ","
        "\"alg\":\"ES256\"}",
        /* points of small order: any message verifies under them */
        "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"}",
        "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"}",
        "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAIA\"}",
        "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"7P_______________________________________38\"}",
        "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"JuiVj8KyJ7BFw_SJ8u-Y8NXfrAXTxjM5sTgCiG1T_AU\"}",
        "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"xxdqcD1N2E-6PAt2DRBnDyogU_osOczGTsf9d5KsA_o\"}",
        "{\"kty\":\"oct\",\"k\":\"c2hvcnQ\"}",
        "{\"kty\":\"oct\",\"k\":\"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHg\"}", /* 31 bytes */
        "{\"kty\":\"oct\",\"k\":\"\"}",
        "{\"kty\":\"oct\"}",
        "{\"kty\":\"RSA\",\"n\":\"AQAB\",\"e\":\"AQAB\"}",
        "{\"kty\":\"RSA\",\"e\":\"AQAB\"}",
        "{\"kty\":\"RSA\",\"n\":\"not base64!\",\"e\":\"AQAB\"}",
    };
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        struct auth_key key;
        struct error error;
        if (parse(str_from(ROWS[i]), &key, &error) == STATUS_OK)
            fail_msg("taken: %s", ROWS[i]);
        assert_true(error.message[0] != '\0');
    }
}

static enum status parse_rsa_of(const char *n, const char *e)
{
    struct auth_key key;
    struct error error;
    struct buf text = {0};

    buf_printf(&text, "{\"kty\":\"RSA\",\"n\":\"%s\",\"e\":\"%s\"}", n, e);
    enum status status = parse(buf_str(&text), &key, &error);
    buf_deinit(&text);
    if (status == STATUS_OK)
        auth_key_deinit(&key);
    return status;
}

static void rsa_needs_2048_bits_and_a_sound_exponent(void **state)
{
    (void)state;
    struct forge_key weak = forge_rsa_create(1024, ""), good = forge_rsa_create(2048, "");
    struct auth_key key;
    struct error error;
    struct buf text = {0};
    struct json_value jwk, n;

    forge_jwk(&weak, &text);
    assert_int_equal(parse(buf_str(&text), &key, &error), STATUS_BAD_REQUEST);
    buf_clear(&text);
    forge_jwk(&good, &text);
    assert_int_equal(parse(buf_str(&text), &key, &error), STATUS_OK);
    assert_int_equal(key.algorithm, AUTH_RS256);
    auth_key_deinit(&key);

    assert_int_equal(json_parse(buf_str(&text), 4, &jwk, &error), STATUS_OK);
    assert_true(json_get(&jwk, STR("n"), &n));
    struct str modulus = arena_str(&arena, json_str_decode(n.raw, &arena));
    assert_int_equal(parse_rsa_of(modulus.ptr, "AQAB"), STATUS_OK);
    assert_int_equal(parse_rsa_of(modulus.ptr, "AQ"), STATUS_BAD_REQUEST); /* 1: every signature is itself */
    assert_int_equal(parse_rsa_of(modulus.ptr, "Aw"), STATUS_BAD_REQUEST); /* 3 */
    assert_int_equal(parse_rsa_of(modulus.ptr, "AQAA"), STATUS_BAD_REQUEST); /* even */
    assert_int_equal(parse_rsa_of(modulus.ptr, "AA"), STATUS_BAD_REQUEST);
    buf_deinit(&text);
    forge_key_destroy(&weak);
    forge_key_destroy(&good);
}

static void a_giant_rsa_key_is_refused_before_it_costs_anything(void **state)
{
    (void)state;
    struct buf n = {0};
    for (int i = 0; i < 4000; i++)
        buf_put_char(&n, i % 2 ? 'B' : 'x');
    buf_put_char(&n, '\0');
    assert_int_equal(parse_rsa_of(n.data, "AQAB"), STATUS_BAD_REQUEST);
    buf_deinit(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_type_decides_the_algorithm),
        cmocka_unit_test(unsound_keys_are_refused),
        cmocka_unit_test(rsa_needs_2048_bits_and_a_sound_exponent),
        cmocka_unit_test(a_giant_rsa_key_is_refused_before_it_costs_anything),
    };
    arena = ARENA(4096);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    arena_deinit(&arena);
    return failed;
}
