/* Inside auth: the pure half. Bytes and keys in, claims or a reason out; no threads, no clock of its own, no files.
 *
 *     header.payload.signature ── token.c ── keys.c ── signature.c ── claims.c ── struct auth_claims
 *
 * A key is bound to one algorithm when it is read, by its type alone; a token's `alg` must name that
 * algorithm. So there is no way to have an RSA key's bytes used as an HMAC secret. Everything in a token
 * about keys other than `kid` (jwk, jku, x5u, x5c) refuses it. */
#ifndef FRESHET_AUTH_JOSE_H
#define FRESHET_AUTH_JOSE_H

#include <openssl/types.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/setting.h"
#include "base/status.h"
#include "base/str.h"

/* X(name, metric label, sentence). The sentence goes to the client, so it has nothing that an outsider must
 * not know; it holds no quotes, because it also stands in a quoted string of WWW-Authenticate. */
#define AUTH_REASON_TABLE(X)                                                              \
    X(VALID, "valid", "the token is valid")                                               \
    X(MISSING, "missing", "a bearer token is required")                                   \
    X(REPEATED, "repeated", "the Authorization header came more than once")               \
    X(SCHEME, "scheme", "the Authorization header must be a Bearer token")                \
    X(TOO_LARGE, "too_large", "the token is too large")                                   \
    X(MALFORMED, "malformed", "the token is not a signed JWT in compact form")            \
    X(HEADER, "header", "the token has a header that is not accepted")                    \
    X(ALGORITHM, "algorithm", "the token is signed by an algorithm that is not accepted") \
    X(UNKNOWN_KEY, "unknown_key", "the token is signed by a key that is not known")       \
    X(SIGNATURE, "signature", "the signature of the token is not valid")                  \
    X(CLAIMS, "claims", "the token has a claim that is missing or not valid")             \
    X(EXPIRED, "expired", "the token has expired")                                        \
    X(NOT_YET, "not_yet_valid", "the token is not valid yet")                             \
    X(ISSUER, "issuer", "the token is from an issuer that is not accepted")               \
    X(AUDIENCE, "audience", "the token is meant for another audience")

enum auth_reason {
#define AUTH_REASON_ENUM(name, label, sentence) AUTH_REASON_##name,
    AUTH_REASON_TABLE(AUTH_REASON_ENUM)
#undef AUTH_REASON_ENUM
        AUTH_REASONS
};
const char *auth_reason_label(enum auth_reason reason);
const char *auth_reason_sentence(enum auth_reason reason);

/* ---- algorithms ---- */
enum auth_algorithm { AUTH_RS256, AUTH_ES256, AUTH_EDDSA, AUTH_HS256, AUTH_ALGORITHMS };
#define AUTH_ALGORITHMS_ALL ((1u << AUTH_ALGORITHMS) - 1)
bool auth_algorithm_parse(struct str name, enum auth_algorithm *algorithm); /* exact, case and all */
const char *auth_algorithm_name(enum auth_algorithm algorithm);

/* ---- token.c: base64url, RFC 4648 §5 without padding, one text for each value ---- */
bool auth_base64url_decode(struct str text, struct arena *arena, struct str *bytes);
void auth_base64url_encode(struct str bytes, struct buf *out);

/* ---- keys.c ---- */
#define AUTH_KID_BYTES_MAX 255
#define AUTH_SECRET_BYTES_MIN 32 /* HS256: at least as long as the hash */
#define AUTH_SECRET_BYTES_MAX 4096

struct auth_key {
    enum auth_algorithm algorithm;
    struct str kid;    /* heap; empty = none */
    EVP_PKEY *pkey;    /* public key; NULL for HS256 */
    struct str secret; /* heap; HS256 only */
};
/* BAD_REQUEST with the reason when the key is weak, broken, of a kind we do not use, or not meant to
 * verify. */
enum status auth_key_parse(const struct json_value *jwk, struct arena *scratch, struct auth_key *key,
                           struct error *error) MUST_CHECK;
void auth_key_deinit(struct auth_key *key); /* wipes a secret */

/* ---- signature.c ---- */
bool auth_signature_verify(const struct auth_key *key, struct str message, struct str signature);

/* ---- keys.c: an immutable set, shared by counting ---- */
#define AUTH_KEYS_MAX 100
#define AUTH_CANDIDATES_MAX 8 /* signature checks one token may cost */

struct auth_keyset {
    atomic_uint refs;
    size_t count;
    struct auth_key keys[AUTH_KEYS_MAX];
};
struct auth_keyset *auth_keyset_create(void);
/* Adds the usable keys of a JWKS, as long as there is room; each other one is skipped with a log line naming
 * `origin`. BAD_REQUEST: the document is not a JWKS, or lists no key at all. NOT_FOUND: it lists keys, but none
 * was added. Only before the set is shared. */
enum status auth_keyset_add_jwks(struct auth_keyset *set, struct str document, const char *origin,
                                 struct error *error) MUST_CHECK;
void auth_keyset_add_secret(struct auth_keyset *set, struct str secret); /* there must be room */
struct auth_keyset *auth_keyset_ref(struct auth_keyset *set);
void auth_keyset_unref(struct auth_keyset *set);
bool auth_keyset_has_kid(const struct auth_keyset *set, struct str kid);
/* The keys a token with this algorithm and kid (empty = none) may be signed by. A key without a kid fits
 * any. */
size_t auth_keyset_candidates(const struct auth_keyset *set, enum auth_algorithm algorithm, struct str kid,
                              const struct auth_key *found[AUTH_CANDIDATES_MAX]);

/* ---- token.c and claims.c ---- */
#define AUTH_SUBJECT_BYTES_MAX 255

struct auth_checks {     /* what a token is held against; borrowed from the rules */
    unsigned algorithms; /* set of 1 << enum auth_algorithm */
    size_t token_bytes_max;
    int64_t leeway_us; /* forgiven on nbf; exp is never stretched */
    struct str issuer; /* empty = not checked */
    struct setting_strings audiences;
    struct str tenant_claim;
};

struct auth_claims { /* slices of the token's decoded payload, in the arena */
    struct str tenant, subject, scopes;
    int64_t exp_us, nbf_us; /* nbf_us 0 = none */
};

/* "Bearer <token>": the scheme in any case, then one or more spaces. */
bool auth_bearer_token(struct str authorization, struct str *token);
/* Three non-empty parts of base64url characters within the size limit: what can be seen without decoding. */
enum auth_reason auth_token_shape(struct str token, const struct auth_checks *checks);
/* The whole check. On AUTH_REASON_VALID *claims stands; on NOT_YET its nbf_us does. */
enum auth_reason auth_token_verify(struct str token, const struct auth_checks *checks,
                                   const struct auth_keyset *keys, int64_t now_us, struct arena *arena,
                                   struct auth_claims *claims);
enum auth_reason auth_claims_check(struct str payload, const struct auth_checks *checks, int64_t now_us,
                                   struct arena *arena, struct auth_claims *claims);

#endif
