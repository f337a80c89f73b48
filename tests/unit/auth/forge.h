/* Keys and tokens for the tests of auth: honest ones, and whatever an attacker might send. */
#ifndef FRESHET_TESTS_AUTH_FORGE_H
#define FRESHET_TESTS_AUTH_FORGE_H

#include <openssl/evp.h>

#include "auth/jose.h"

struct forge_key {
    enum auth_algorithm algorithm;
    EVP_PKEY *pkey;  /* NULL for HS256 */
    char secret[64]; /* HS256 */
    char kid[64];    /* "" = none */
};

struct forge_key forge_key_create(enum auth_algorithm algorithm, const char *kid);
struct forge_key forge_rsa_create(unsigned bits, const char *kid);
void forge_key_destroy(struct forge_key *key);

void forge_jwk(const struct forge_key *key, struct buf *out);                        /* its public JWK */
void forge_jwks(const struct forge_key *const *keys, size_t count, struct buf *out); /* {"keys":[…]} */
struct auth_keyset *forge_keyset(const struct forge_key *const *keys, size_t count);
/* One key of each algorithm, kid = the algorithm's name, and the set of them all. */
struct auth_keyset *forge_all_keys(struct forge_key keys[AUTH_ALGORITHMS]);

/* base64url(header).base64url(claims).base64url(signature by `key`), whatever the header says. */
void forge_token(const struct forge_key *key, const char *header, const char *claims, struct buf *out);
void forge_signature(const struct forge_key *key, struct str message, struct buf *out); /* raw bytes */
/* An honest token of this key: sub u1, tenant_id acme, this exp. */
void forge_honest(const struct forge_key *key, int64_t exp_s, struct buf *out);

#endif
