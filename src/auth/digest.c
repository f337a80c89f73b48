/* SHA-256 and its HMAC over parts that stand apart. OpenSSL refuses either only when memory is out. */
#include "auth/digest.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdlib.h>

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
