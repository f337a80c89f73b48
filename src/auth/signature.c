/* Signatures and digests. Is this signature of these bytes by this key's holder? One function per algorithm, chosen by the
 * key, never by the token. OpenSSL's error queue is left empty. */
#include "auth/jose.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdlib.h>

#include "auth/digest.h"

#define P256_BYTES 32
#define SHA256_BYTES 32
#define ED25519_SIGNATURE_BYTES 64
#define ES256_DER_BYTES_MAX 72 /* SEQUENCE of two INTEGERs of up to 33 bytes */

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

/* One DER INTEGER: leading zeros dropped, one put back where the first bit would read as a sign. */
static size_t put_integer(unsigned char *out, const unsigned char half[P256_BYTES])
{
    size_t skip = 0, at = 0;

    while (half[skip] == 0)
        skip++;
    size_t sign = half[skip] >> 7, len = P256_BYTES - skip;
    out[at++] = 0x02;
    out[at++] = (unsigned char)(sign + len);
    if (sign)
        out[at++] = 0;
    memcpy(out + at, half + skip, len);
    return at + len;
}

static bool verify_es256(const struct auth_key *key, struct str message, struct str signature)
{
    const unsigned char *r = bytes_of(signature), *s = r + P256_BYTES;
    unsigned char der[ES256_DER_BYTES_MAX];
    size_t len = 2;

    if (signature.len != 2 * P256_BYTES || !is_p256_scalar(r) || !is_p256_scalar(s))
        return false;
    len += put_integer(der + len, r);
    len += put_integer(der + len, s);
    der[0] = 0x30;
    der[1] = (unsigned char)(len - 2);
    return digest_verify(key->pkey, EVP_sha256(), message, der, len);
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

/* ---- SHA-256 and its HMAC over parts that stand apart; OpenSSL refuses either only when memory is out ---- */

void auth_sha256(const struct str *parts, size_t count, uint8_t out[AUTH_SHA256_BYTES])
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool done = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;

    for (size_t i = 0; i < count && done; i++)
        done = parts[i].len == 0 || EVP_DigestUpdate(context, parts[i].ptr, parts[i].len) == 1;
    if (!done || EVP_DigestFinal_ex(context, out, NULL) != 1)
        abort();
    EVP_MD_CTX_free(context);
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
