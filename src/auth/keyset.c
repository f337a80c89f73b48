/* A set of keys: filled once, then shared unchanged between loops and workers by counting. A rotation
 * makes a new set. One bad key of a document does not take the others with it. */
#include "auth/jose.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"

#define JWKS_DEPTH_MAX 16
#define SCRATCH_BYTES 4096

struct auth_keyset {
    atomic_uint refs;
    size_t count;
    struct auth_key keys[AUTH_KEYS_MAX];
};

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

size_t auth_keyset_count(const struct auth_keyset *set)
{
    return set->count;
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

enum status auth_keyset_add_secret(struct auth_keyset *set, struct str secret, struct error *error)
{
    if (secret.len < AUTH_SECRET_BYTES_MIN || secret.len > AUTH_SECRET_BYTES_MAX)
        return error_set(error, STATUS_BAD_REQUEST, "an HS256 secret must have %d to %d bytes",
                         AUTH_SECRET_BYTES_MIN, AUTH_SECRET_BYTES_MAX);
    if (set->count == AUTH_KEYS_MAX)
        return error_set(error, STATUS_BAD_REQUEST, "more than %d keys", AUTH_KEYS_MAX);
    set->keys[set->count++] =
        (struct auth_key){.algorithm = AUTH_HS256, .secret = str_of(str_dup(secret), secret.len)};
    return STATUS_OK;
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
