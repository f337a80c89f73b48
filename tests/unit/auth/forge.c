/* Makes keys and tokens with OpenSSL directly, sharing no code with what is tested but the base64url
 * encoder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/hmac.h>
#include <stdio.h>

#include "base/hash.h"
#include "forge.h"

static struct forge_key with_kid(enum auth_algorithm algorithm, EVP_PKEY *pkey, const char *kid)
{
    struct forge_key key = {.algorithm = algorithm, .pkey = pkey};
    snprintf(key.kid, sizeof(key.kid), "%s", kid);
    return key;
}

struct forge_key forge_rsa_create(unsigned bits, const char *kid)
{
    EVP_PKEY *pkey = EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)bits);
    assert_non_null(pkey);
    return with_kid(AUTH_RS256, pkey, kid);
}

struct forge_key forge_key_create(enum auth_algorithm algorithm, const char *kid)
{
    if (algorithm == AUTH_RS256)
        return forge_rsa_create(2048, kid);
    if (algorithm == AUTH_ES256)
        return with_kid(algorithm, EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256"), kid);
    if (algorithm == AUTH_EDDSA)
        return with_kid(algorithm, EVP_PKEY_Q_keygen(NULL, NULL, "ED25519"), kid);
    struct forge_key key = with_kid(algorithm, NULL, kid);
    random_bytes(key.secret, sizeof(key.secret));
    return key;
}

void forge_key_destroy(struct forge_key *key)
{
    EVP_PKEY_free(key->pkey);
}

static void put_number(const struct forge_key *key, const char *name, const char *param, int width,
                       struct buf *out)
{
    unsigned char bytes[1024];
    BIGNUM *number = NULL;

    assert_int_equal(EVP_PKEY_get_bn_param(key->pkey, param, &number), 1);
    int len = width ? BN_bn2binpad(number, bytes, width) : BN_bn2bin(number, bytes);
    BN_free(number);
    buf_printf(out, ",\"%s\":\"", name);
    auth_base64url_encode(str_of((char *)bytes, (size_t)len), out);
    buf_put_char(out, '"');
}

void forge_jwk(const struct forge_key *key, struct buf *out)
{
    unsigned char raw[64];
    size_t len = sizeof(raw);

    switch (key->algorithm) {
    case AUTH_RS256:
        buf_printf(out, "{\"kty\":\"RSA\"");
        put_number(key, "n", OSSL_PKEY_PARAM_RSA_N, 0, out);
        put_number(key, "e", OSSL_PKEY_PARAM_RSA_E, 0, out);
        break;
    case AUTH_ES256:
        buf_printf(out, "{\"kty\":\"EC\",\"crv\":\"P-256\"");
        put_number(key, "x", OSSL_PKEY_PARAM_EC_PUB_X, 32, out);
        put_number(key, "y", OSSL_PKEY_PARAM_EC_PUB_Y, 32, out);
        break;
    case AUTH_EDDSA:
        assert_int_equal(EVP_PKEY_get_raw_public_key(key->pkey, raw, &len), 1);
        buf_printf(out, "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"");
        auth_base64url_encode(str_of((char *)raw, len), out);
        buf_put_char(out, '"');
        break;
    default:
        buf_printf(out, "{\"kty\":\"oct\",\"k\":\"");
        auth_base64url_encode(str_of(key->secret, sizeof(key->secret)), out);
        buf_put_char(out, '"');
    }
    if (key->kid[0])
        buf_printf(out, ",\"kid\":\"%s\"", key->kid);
    buf_put_char(out, '}');
}

void forge_jwks(const struct forge_key *const *keys, size_t count, struct buf *out)
{
    buf_printf(out, "{\"keys\":[");
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            buf_put_char(out, ',');
        forge_jwk(keys[i], out);
    }
    buf_printf(out, "]}");
}

struct auth_keyset *forge_keyset(const struct forge_key *const *keys, size_t count)
{
    struct auth_keyset *set = auth_keyset_create();
    struct error error;
    struct buf text = {0};

    forge_jwks(keys, count, &text);
    assert_int_equal(auth_keyset_add_jwks(set, buf_str(&text), "forge", &error), STATUS_OK);
    buf_deinit(&text);
    return set;
}

static void der_to_raw(const unsigned char *der, size_t len, struct buf *out)
{
    ECDSA_SIG *signature = d2i_ECDSA_SIG(NULL, &der, (long)len);
    unsigned char raw[64];

    assert_non_null(signature);
    BN_bn2binpad(ECDSA_SIG_get0_r(signature), raw, 32);
    BN_bn2binpad(ECDSA_SIG_get0_s(signature), raw + 32, 32);
    ECDSA_SIG_free(signature);
    buf_put(out, raw, sizeof(raw));
}

void forge_signature(const struct forge_key *key, struct str message, struct buf *out)
{
    unsigned char bytes[1024];
    size_t len = sizeof(bytes);
    unsigned mac_len = 0;

    if (key->algorithm == AUTH_HS256) {
        HMAC(EVP_sha256(), key->secret, sizeof(key->secret), (const unsigned char *)message.ptr, message.len,
             bytes, &mac_len);
        buf_put(out, bytes, mac_len);
        return;
    }
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const EVP_MD *digest = key->algorithm == AUTH_EDDSA ? NULL : EVP_sha256();
    assert_int_equal(EVP_DigestSignInit(context, NULL, digest, NULL, key->pkey), 1);
    assert_int_equal(EVP_DigestSign(context, bytes, &len, (const unsigned char *)message.ptr, message.len),
                     1);
    EVP_MD_CTX_free(context);
    if (key->algorithm == AUTH_ES256)
        der_to_raw(bytes, len, out);
    else
        buf_put(out, bytes, len);
}

void forge_token(const struct forge_key *key, const char *header, const char *claims, struct buf *out)
{
    struct buf signature = {0};

    buf_clear(out);
    auth_base64url_encode(str_from(header), out);
    buf_put_char(out, '.');
    auth_base64url_encode(str_from(claims), out);
    forge_signature(key, buf_str(out), &signature);
    buf_put_char(out, '.');
    auth_base64url_encode(buf_str(&signature), out);
    buf_deinit(&signature);
}

void forge_honest(const struct forge_key *key, int64_t exp_s, struct buf *out)
{
    char header[256], claims[256];

    snprintf(header, sizeof(header), "{\"alg\":\"%s\",\"kid\":\"%s\"}", auth_algorithm_name(key->algorithm),
             key->kid);
    snprintf(claims, sizeof(claims),
             "{\"sub\":\"u1\",\"tenant_id\":\"acme\",\"exp\":%lld,\"scope\":\"a:read b:write\"}",
             (long long)exp_s);
    forge_token(key, header, claims, out);
}

struct auth_keyset *forge_all_keys(struct forge_key keys[AUTH_ALGORITHMS])
{
    const struct forge_key *all[AUTH_ALGORITHMS];
    for (int i = 0; i < AUTH_ALGORITHMS; i++) {
        keys[i] = forge_key_create((enum auth_algorithm)i, auth_algorithm_name((enum auth_algorithm)i));
        all[i] = &keys[i];
    }
    return forge_keyset(all, AUTH_ALGORITHMS);
}
