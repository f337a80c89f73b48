/* JSON Web Keys (RFC 7517, 7518, 8037): the type of a key decides its algorithm, and weak or broken keys are refused.
 * Private parts of a public key are not read.
 *
 * A set of keys is filled once, then shared unchanged between loops and workers by counting. A rotation makes a new set.
 * One bad key of a document does not take the others with it. */
#include "auth/jose.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"

#define RSA_BITS_MIN 2048
#define RSA_BITS_MAX 8192 /* a check costs the square of it */
#define EC_COORDINATE_BYTES 32
#define ED25519_BYTES 32
#define JWKS_DEPTH_MAX 16
#define SCRATCH_BYTES 4096

static const char *const ALGORITHM_NAMES[AUTH_ALGORITHMS] = {
    [AUTH_RS256] = "RS256", [AUTH_ES256] = "ES256", [AUTH_EDDSA] = "EdDSA", [AUTH_HS256] = "HS256"};

bool auth_algorithm_parse(struct str name, enum auth_algorithm *algorithm)
{
    for (int i = 0; i < AUTH_ALGORITHMS; i++) {
        if (!str_eq(name, str_from(ALGORITHM_NAMES[i])))
            continue;
        *algorithm = (enum auth_algorithm)i;
        return true;
    }
    return false;
}

const char *auth_algorithm_name(enum auth_algorithm algorithm)
{
    return ALGORITHM_NAMES[algorithm];
}

/* ---- members ---- */

static enum status member_bytes(const struct json_value *jwk, struct str name, struct arena *arena,
                                struct str *bytes, struct error *error)
{
    struct str text = json_get_text(jwk, name, arena);

    if (text.len == 0 || !auth_base64url_decode(text, arena, bytes))
        return error_set(error, STATUS_BAD_REQUEST, "\"%.*s\" is not base64url", STR_ARG(name));
    return STATUS_OK;
}

/* ---- public keys, by type ---- */

/* Makes the key of what `builder` has and frees that. What OpenSSL itself holds to be wrong with a public key (a
 * point off the curve, a modulus with small factors) refuses it. */
static enum status build(const char *type, OSSL_PARAM_BLD *builder, struct auth_key *key, struct error *error)
{
    OSSL_PARAM *params = OSSL_PARAM_BLD_to_param(builder);
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, type, NULL);

    if (params && context && EVP_PKEY_fromdata_init(context) == 1)
        EVP_PKEY_fromdata(context, &key->pkey, EVP_PKEY_PUBLIC_KEY, params);
    EVP_PKEY_CTX_free(context);
    OSSL_PARAM_free(params);
    OSSL_PARAM_BLD_free(builder);
    context = key->pkey ? EVP_PKEY_CTX_new_from_pkey(NULL, key->pkey, NULL) : NULL;
    bool is_sound = context && EVP_PKEY_public_check(context) == 1;
    EVP_PKEY_CTX_free(context);
    ERR_clear_error();
    return is_sound ? STATUS_OK : error_set(error, STATUS_BAD_REQUEST, "the key is not a sound public key");
}

static BIGNUM *number(struct str bytes)
{
    return BN_bin2bn((const unsigned char *)bytes.ptr, (int)bytes.len, NULL);
}

/* ROCA (CVE-2017-15361): Infineon's library made primes of which every remainder by a small prime is a power
 * of 65537, so the modulus has the same mark. A sound modulus has it for all of these by chance only, about
 * once in 2^27. */
static bool is_roca(const BIGNUM *n)
{
    static const unsigned char PRIMES[] = {3,   5,   7,   11,  13,  17,  19,  23,  29,  31,  37,  41,  43,
                                           47,  53,  59,  61,  67,  71,  73,  79,  83,  89,  97,  101, 103,
                                           107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167};

    for (size_t i = 0; i < sizeof(PRIMES); i++) {
        unsigned prime = PRIMES[i], remainder = (unsigned)BN_mod_word(n, prime), power = 1;
        do
            power = power * (65537 % prime) % prime;
        while (power != remainder && power != 1);
        if (power != remainder)
            return false;
    }
    return true;
}

static enum status parse_rsa(const struct json_value *jwk, struct arena *arena, struct auth_key *key,
                             struct error *error)
{
    struct str modulus, exponent;
    enum status status = member_bytes(jwk, STR("n"), arena, &modulus, error);

    if (status == STATUS_OK)
        status = member_bytes(jwk, STR("e"), arena, &exponent, error);
    if (status != STATUS_OK)
        return status;
    if (modulus.len > RSA_BITS_MAX / 8 + 1 || exponent.len > 16)
        return error_set(error, STATUS_BAD_REQUEST, "the RSA key is too large");

    BIGNUM *n = number(modulus), *e = number(exponent);
    if (BN_num_bits(n) < RSA_BITS_MIN || BN_num_bits(n) > RSA_BITS_MAX) {
        status = error_set(error, STATUS_BAD_REQUEST, "an RSA key must have %d to %d bits, this has %d",
                           RSA_BITS_MIN, RSA_BITS_MAX, BN_num_bits(n));
    } else if (!BN_is_odd(n) || !BN_is_odd(e) || BN_num_bits(e) <= 16 || BN_num_bits(e) > 64) {
        status = error_set(error, STATUS_BAD_REQUEST, "the RSA modulus or exponent is weak");
    } else if (is_roca(n)) {
        status = error_set(error, STATUS_BAD_REQUEST,
                           "the RSA key was made by a faulty generator (ROCA, CVE-2017-15361)");
    } else {
        OSSL_PARAM_BLD *builder = OSSL_PARAM_BLD_new();
        OSSL_PARAM_BLD_push_BN(builder, OSSL_PKEY_PARAM_RSA_N, n);
        OSSL_PARAM_BLD_push_BN(builder, OSSL_PKEY_PARAM_RSA_E, e);
        status = build("RSA", builder, key, error);
    }
    BN_free(n);
    BN_free(e);
    key->algorithm = AUTH_RS256;
    return status;
}

static enum status parse_ec(const struct json_value *jwk, struct arena *arena, struct auth_key *key,
                            struct error *error)
{
    struct str x, y;
    unsigned char point[1 + 2 * EC_COORDINATE_BYTES] = {4 /* uncompressed */};

    if (!str_eq(json_get_text(jwk, STR("crv"), arena), STR("P-256")))
        return error_set(error, STATUS_BAD_REQUEST, "the only curve used is P-256");
    enum status status = member_bytes(jwk, STR("x"), arena, &x, error);
    if (status == STATUS_OK)
        status = member_bytes(jwk, STR("y"), arena, &y, error);
    if (status != STATUS_OK)
        return status;
    if (x.len != EC_COORDINATE_BYTES || y.len != EC_COORDINATE_BYTES)
        return error_set(error, STATUS_BAD_REQUEST, "a coordinate of P-256 has %d bytes",
                         EC_COORDINATE_BYTES);
    memcpy(point + 1, x.ptr, EC_COORDINATE_BYTES);
    memcpy(point + 1 + EC_COORDINATE_BYTES, y.ptr, EC_COORDINATE_BYTES);

    OSSL_PARAM_BLD *builder = OSSL_PARAM_BLD_new();
    OSSL_PARAM_BLD_push_utf8_string(builder, OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0);
    OSSL_PARAM_BLD_push_octet_string(builder, OSSL_PKEY_PARAM_PUB_KEY, point, sizeof(point));
    key->algorithm = AUTH_ES256;
    return build("EC", builder, key, error);
}

/* A point of small order lets anyone make signatures that check out, and OpenSSL takes it. These are all
 * of their encodings, without the sign bit: y = 0, ±1, the two of order 8, and p, p+1 that mean 0 and 1. */
static bool is_small_order(const unsigned char point[ED25519_BYTES])
{
    static const unsigned char ORDER_8_A[ED25519_BYTES] = {
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0,
        0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05};
    static const unsigned char ORDER_8_B[ED25519_BYTES] = {
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f,
        0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a};
    unsigned char y[ED25519_BYTES];
    unsigned char middle_or = 0, middle_and = 0xFF;

    memcpy(y, point, sizeof(y));
    y[ED25519_BYTES - 1] &= 0x7F;
    for (int i = 1; i < ED25519_BYTES - 1; i++) {
        middle_or |= y[i];
        middle_and &= y[i];
    }
    bool is_0_or_1 = middle_or == 0 && y[ED25519_BYTES - 1] == 0 && y[0] <= 1;
    bool is_near_p = middle_and == 0xFF && y[ED25519_BYTES - 1] == 0x7F && y[0] >= 0xec && y[0] <= 0xee;
    return is_0_or_1 || is_near_p || memcmp(y, ORDER_8_A, sizeof(y)) == 0 ||
           memcmp(y, ORDER_8_B, sizeof(y)) == 0;
}

static enum status parse_okp(const struct json_value *jwk, struct arena *arena, struct auth_key *key,
                             struct error *error)
{
    struct str x;

    if (!str_eq(json_get_text(jwk, STR("crv"), arena), STR("Ed25519")))
        return error_set(error, STATUS_BAD_REQUEST, "the only OKP curve used is Ed25519");
    enum status status = member_bytes(jwk, STR("x"), arena, &x, error);
    if (status != STATUS_OK)
        return status;
    if (x.len != ED25519_BYTES || is_small_order((const unsigned char *)x.ptr))
        return error_set(error, STATUS_BAD_REQUEST, "the Ed25519 key is not a sound public key");
    key->pkey = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, (const unsigned char *)x.ptr, x.len);
    key->algorithm = AUTH_EDDSA;
    return key->pkey ? STATUS_OK : error_set(error, STATUS_BAD_REQUEST, "the Ed25519 key cannot be read");
}

static enum status parse_oct(const struct json_value *jwk, struct arena *arena, struct auth_key *key,
                             struct error *error)
{
    struct str secret;
    enum status status = member_bytes(jwk, STR("k"), arena, &secret, error);

    if (status != STATUS_OK)
        return status;
    if (secret.len < AUTH_SECRET_BYTES_MIN || secret.len > AUTH_SECRET_BYTES_MAX) {
        status = error_set(error, STATUS_BAD_REQUEST, "an HS256 secret must have %d to %d bytes",
                           AUTH_SECRET_BYTES_MIN, AUTH_SECRET_BYTES_MAX);
    } else {
        key->secret = str_of(str_dup(secret), secret.len);
        key->algorithm = AUTH_HS256;
    }
    OPENSSL_cleanse((void *)(uintptr_t)secret.ptr, secret.len); /* the arena's copy, ours */
    return status;
}

/* ---- what holds for every type ---- */

static enum status check_purpose(const struct json_value *jwk, struct error *error)
{
    struct json_value value, op;
    struct json_iter it;
    bool may_verify = false;

    if (json_get(jwk, STR("use"), &value) &&
        !(value.type == JSON_STRING && json_str_eq(value.raw, STR("sig"))))
        return error_set(error, STATUS_BAD_REQUEST, "the key's \"use\" is not \"sig\"");
    if (!json_get(jwk, STR("key_ops"), &value))
        return STATUS_OK;
    json_iter_init(&it, &value);
    while (value.type == JSON_ARRAY && json_iter_next(&it, NULL, &op))
        may_verify |= op.type == JSON_STRING && json_str_eq(op.raw, STR("verify"));
    return may_verify ? STATUS_OK
                      : error_set(error, STATUS_BAD_REQUEST, "the key's \"key_ops\" do not name \"verify\"");
}

static enum status parse(const struct json_value *jwk, struct arena *arena, struct auth_key *key,
                         struct error *error)
{
    struct str kty = json_get_text(jwk, STR("kty"), arena), kid = json_get_text(jwk, STR("kid"), arena);
    struct json_value value;
    enum status status = check_purpose(jwk, error);

    if (status != STATUS_OK)
        return status;
    if (!kty.ptr)
        return error_set(error, STATUS_BAD_REQUEST, "the key has no \"kty\"");
    if (str_eq(kty, STR("RSA")))
        status = parse_rsa(jwk, arena, key, error);
    else if (str_eq(kty, STR("EC")))
        status = parse_ec(jwk, arena, key, error);
    else if (str_eq(kty, STR("OKP")))
        status = parse_okp(jwk, arena, key, error);
    else if (str_eq(kty, STR("oct")))
        status = parse_oct(jwk, arena, key, error);
    else
        status = error_set(error, STATUS_BAD_REQUEST, "this type of key is not used");
    if (status != STATUS_OK)
        return status;
    /* The key's own `alg`, where it has one, must be the one its type gives: an RSA key for PS256 or RSA-OAEP is not
     * used for RS256. */
    const char *name = auth_algorithm_name(key->algorithm);
    if (json_get(jwk, STR("alg"), &value) &&
        !(value.type == JSON_STRING && json_str_eq(value.raw, str_from(name))))
        return error_set(error, STATUS_BAD_REQUEST, "the key's \"alg\" is not %s", name);
    if (json_get(jwk, STR("kid"), &value) && !kid.ptr)
        return error_set(error, STATUS_BAD_REQUEST, "the key's \"kid\" is not a string");
    if (kid.len > AUTH_KID_BYTES_MAX)
        return error_set(error, STATUS_BAD_REQUEST, "the key's \"kid\" is too long");
    if (kid.ptr)
        key->kid = str_of(str_dup(kid), kid.len);
    if (key->algorithm != AUTH_HS256 && json_get(jwk, STR("d"), &value))
        log_warn("jwks_private_key", LOG_STR("kid", key->kid),
                 LOG_CSTR("error", "a public key set holds a private key; its private part is ignored"));
    return STATUS_OK;
}

enum status auth_key_parse(const struct json_value *jwk, struct arena *scratch, struct auth_key *key,
                           struct error *error)
{
    *key = (struct auth_key){0};
    if (jwk->type != JSON_OBJECT || json_has_duplicates(jwk, scratch))
        return error_set(error, STATUS_BAD_REQUEST, "the key is not an object with distinct members");
    enum status status = parse(jwk, scratch, key, error);
    if (status != STATUS_OK)
        auth_key_deinit(key);
    return status;
}

void auth_key_deinit(struct auth_key *key)
{
    EVP_PKEY_free(key->pkey);
    if (key->secret.ptr)
        OPENSSL_cleanse((void *)(uintptr_t)key->secret.ptr, key->secret.len);
    free((void *)(uintptr_t)key->secret.ptr);
    free((void *)(uintptr_t)key->kid.ptr);
    *key = (struct auth_key){0};
}

/* ---- sets ---- */

struct auth_keyset *auth_keyset_create(void)
{
    struct auth_keyset *set = memory_zalloc(sizeof(*set));

    atomic_init(&set->refs, 1);
    return set;
}

struct auth_keyset *auth_keyset_ref(struct auth_keyset *set)
{
    atomic_fetch_add_explicit(&set->refs, 1, memory_order_relaxed);
    return set;
}

void auth_keyset_unref(struct auth_keyset *set)
{
    if (!set || atomic_fetch_sub_explicit(&set->refs, 1, memory_order_acq_rel) > 1)
        return;
    for (size_t i = 0; i < set->count; i++)
        auth_key_deinit(&set->keys[i]);
    free(set);
}

enum status auth_keyset_add_jwks(struct auth_keyset *set, struct str document, const char *origin,
                                 struct error *error)
{
    struct json_value root, keys, jwk;
    struct json_iter it;
    struct arena scratch = ARENA(SCRATCH_BYTES);
    struct error why;
    size_t before = set->count, listed = 0;
    enum status status = json_parse(document, JWKS_DEPTH_MAX, &root, error);

    if (status != STATUS_OK)
        return error_context(error, "%s is not JSON", origin);
    if (root.type != JSON_OBJECT || json_has_duplicates(&root, &scratch) ||
        !json_get(&root, STR("keys"), &keys) || keys.type != JSON_ARRAY) {
        arena_deinit(&scratch);
        return error_set(error, STATUS_BAD_REQUEST, "%s is not an object with an array \"keys\"", origin);
    }
    json_iter_init(&it, &keys);
    for (; json_iter_next(&it, NULL, &jwk); listed++) {
        if (set->count == AUTH_KEYS_MAX) {
            log_warn("jwks_truncated", LOG_CSTR("source", origin), LOG_INT("keys", AUTH_KEYS_MAX));
            listed++;
            break;
        }
        if (auth_key_parse(&jwk, &scratch, &set->keys[set->count], &why) == STATUS_OK) {
            set->count++;
            continue;
        }
        struct str kid = str_utf8_cut(json_get_text(&jwk, STR("kid"), &scratch), AUTH_KID_BYTES_MAX);
        log_warn("jwks_key_skipped", LOG_CSTR("source", origin), LOG_STR("kid", kid),
                 LOG_CSTR("error", why.message));
    }
    arena_deinit(&scratch);
    if (listed == 0)
        return error_set(error, STATUS_BAD_REQUEST, "%s lists no key", origin);
    if (set->count == before)
        return error_set(error, STATUS_NOT_FOUND, "%s holds no usable key", origin);
    return STATUS_OK;
}

void auth_keyset_add_secret(struct auth_keyset *set, struct str secret)
{
    set->keys[set->count++] =
        (struct auth_key){.algorithm = AUTH_HS256, .secret = str_of(str_dup(secret), secret.len)};
}

bool auth_keyset_has_kid(const struct auth_keyset *set, struct str kid)
{
    for (size_t i = 0; i < set->count; i++)
        if (set->keys[i].kid.len > 0 && str_eq(set->keys[i].kid, kid))
            return true;
    return false;
}

size_t auth_keyset_candidates(const struct auth_keyset *set, enum auth_algorithm algorithm, struct str kid,
                              const struct auth_key *found[AUTH_CANDIDATES_MAX])
{
    size_t count = 0;

    for (size_t i = 0; i < set->count && count < AUTH_CANDIDATES_MAX; i++) {
        const struct auth_key *key = &set->keys[i];
        bool fits = kid.len == 0 || key->kid.len == 0 || str_eq(key->kid, kid);
        if (key->algorithm == algorithm && fits)
            found[count++] = key;
    }
    return count;
}
