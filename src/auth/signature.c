/* Signatures and digests. Is this signature of these bytes by this key's holder? One function per algorithm, chosen by the
 * key, never by the token. OpenSSL's error queue is left empty. */
#include "auth/jose.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdlib.h>

#include "auth/digest.h"

#define P256_BYTES 32
#define SHA256_BYTES 32
#define ED25519_SIGNATURE_BYTES 64

static const unsigned char *bytes_of(struct str s)
{
    return (const unsigned char *)s.ptr;
}

static bool digest_verify(EVP_PKEY *pkey, const EVP_MD *digest, struct str message,
                          const unsigned char *signature, size_t signature_len)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool valid = context && EVP_DigestVerifyInit(context, NULL, digest, NULL, pkey) == 1 &&
                 EVP_DigestVerify(context, signature, signature_len, bytes_of(message), message.len) == 1;

    EVP_MD_CTX_free(context);
    return valid;
}

/* The order of P-256. A half of a signature outside [1, n-1] is never made by a signer; a library that let
 * zero through once accepted one blank signature for every message. */
static bool is_p256_scalar(const unsigned char half[P256_BYTES])
{
    static const unsigned char ORDER[P256_BYTES] = {
        0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xbc, 0xe6, 0xfa, 0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51};
    static const unsigned char ZERO[P256_BYTES];

    return memcmp(half, ZERO, P256_BYTES) != 0 && memcmp(half, ORDER, P256_BYTES) < 0;
}

/* OpenSSL takes the two numbers of a signature in DER only. */
static bool verify_es256(const struct auth_key *key, struct str message, struct str signature)
{
    const unsigned char *r = bytes_of(signature), *s = r + P256_BYTES;
    unsigned char *der = NULL;

    if (signature.len != 2 * P256_BYTES || !is_p256_scalar(r) || !is_p256_scalar(s))
        return false;
    ECDSA_SIG *numbers = ECDSA_SIG_new();
    ECDSA_SIG_set0(numbers, BN_bin2bn(r, P256_BYTES, NULL), BN_bin2bn(s, P256_BYTES, NULL));
    int len = i2d_ECDSA_SIG(numbers, &der);
    bool valid = len > 0 && digest_verify(key->pkey, EVP_sha256(), message, der, (size_t)len);
    ECDSA_SIG_free(numbers);
    OPENSSL_free(der);
    return valid;
}

bool auth_signature_verify(const struct auth_key *key, struct str message, struct str signature)
{
    unsigned char mac[SHA256_BYTES];
    bool valid = false;

    switch (key->algorithm) {
    case AUTH_RS256:
        valid = signature.len == (size_t)EVP_PKEY_get_size(key->pkey) &&
                digest_verify(key->pkey, EVP_sha256(), message, bytes_of(signature), signature.len);
        break;
    case AUTH_ES256: valid = verify_es256(key, message, signature); break;
    case AUTH_EDDSA:
        valid = signature.len == ED25519_SIGNATURE_BYTES &&
                digest_verify(key->pkey, NULL, message, bytes_of(signature), signature.len);
        break;
    case AUTH_HS256:
        auth_hmac_sha256(key->secret, &message, 1, mac);
        valid = signature.len == SHA256_BYTES && CRYPTO_memcmp(mac, signature.ptr, SHA256_BYTES) == 0;
        break;
    case AUTH_ALGORITHMS: break;
    }
    ERR_clear_error();
    return valid;
}

/* ---- digests over parts that stand apart; OpenSSL refuses them only when memory is out ---- */

static void digest_parts(const EVP_MD *digest, const struct str *parts, size_t count, uint8_t *out)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool done = context && EVP_DigestInit_ex(context, digest, NULL) == 1;

    for (size_t i = 0; i < count && done; i++)
        done = parts[i].len == 0 || EVP_DigestUpdate(context, parts[i].ptr, parts[i].len) == 1;
    if (!done || EVP_DigestFinal_ex(context, out, NULL) != 1)
        abort();
    EVP_MD_CTX_free(context);
}

void auth_sha256(const struct str *parts, size_t count, uint8_t out[AUTH_SHA256_BYTES])
{
    digest_parts(EVP_sha256(), parts, count, out);
}

struct uuid auth_uuid_named(const struct uuid *space, struct str name)
{
    uint8_t sha1[20];
    struct uuid uuid;

    digest_parts(EVP_sha1(), (struct str[]){{(const char *)space->bytes, sizeof(space->bytes)}, name}, 2,
                 sha1);
    memcpy(uuid.bytes, sha1, sizeof(uuid.bytes));
    return uuid_with_version(uuid, 5);
}

void auth_hmac_sha256(struct str key, const struct str *parts, size_t count, uint8_t out[AUTH_SHA256_BYTES])
{
    char digest[] = "SHA256";
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                 OSSL_PARAM_construct_end()};
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *context = mac ? EVP_MAC_CTX_new(mac) : NULL;
    /* Without bytes of a key the library would take NULL for "the key it has". */
    const unsigned char *bytes = (const unsigned char *)(key.len ? key.ptr : "");
    bool done = context && EVP_MAC_init(context, bytes, key.len, params) == 1;

    for (size_t i = 0; i < count && done; i++)
        done = parts[i].len == 0 ||
               EVP_MAC_update(context, (const unsigned char *)parts[i].ptr, parts[i].len) == 1;
    if (!done || EVP_MAC_final(context, out, NULL, AUTH_SHA256_BYTES) != 1)
        abort();
    EVP_MAC_CTX_free(context);
    EVP_MAC_free(mac);
}
