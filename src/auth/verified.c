/* What one loop remembers of tokens, so that no lock is needed.
 *
 * Good ones: a known token costs a short hash and a comparison, and no allocation. Buckets of eight slots in two cache
 * lines; a full bucket gives up its least recently used entry. Only the last bytes are hashed: they are the signature,
 * where tokens differ, and no client can choose the signature of a token that is valid. But all bytes are compared. The
 * latest hit is tried first: clients come back.
 *
 * Bad ones, for a short while, so that a client that keeps sending one costs a look-up and not a signature check each
 * time. Fixed memory: a full bucket gives up the entry that would end first. */
#include "auth/state.h"

#include <stdlib.h>

#include "base/budget.h"
#include "base/hash.h"
#include "base/memory.h"

#define VERIFIED_WAYS 8
#define TAIL_BYTES 32
#define EVICT_BUCKETS 256 /* searched for an entry to remove, … */
#define EVICT_ENTRIES 8   /* … until so many were seen */

struct auth_verified_bucket {
    uint64_t hashes[VERIFIED_WAYS];
    struct auth_verified *entries[VERIFIED_WAYS];
};

static size_t bucket_count(size_t entries, size_t ways)
{
    size_t buckets = 1;

    while (buckets * ways < entries)
        buckets *= 2;
    return buckets;
}

void auth_verified_init(struct auth_verified_table *table, size_t entries)
{
    size_t buckets = bucket_count(entries, VERIFIED_WAYS);

    *table = (struct auth_verified_table){.bucket_mask = buckets - 1};
    table->buckets = memory_aligned(64, buckets * sizeof(*table->buckets));
    memset(table->buckets, 0, buckets * sizeof(*table->buckets));
}

void auth_verified_deinit(struct auth_verified_table *table)
{
    for (size_t i = 0; table->buckets && i <= table->bucket_mask; i++)
        for (int way = 0; way < VERIFIED_WAYS; way++) {
            struct auth_verified *entry = table->buckets[i].entries[way];
            if (entry)
                budget_release(BUDGET_TOKENS, entry->size);
            free(entry);
        }
    free(table->buckets);
    *table = (struct auth_verified_table){0};
}

static bool is_for(const struct auth_verified *entry, struct str authorization)
{
    return entry->authorization_len == authorization.len &&
           memcmp(entry->bytes, authorization.ptr, authorization.len) == 0;
}

static struct str tail_of(struct str authorization)
{
    size_t len = authorization.len < TAIL_BYTES ? authorization.len : TAIL_BYTES;
    return str_of(authorization.ptr + (authorization.len - len), len);
}

static int find_way(const struct auth_verified_bucket *bucket, uint64_t hash, struct str authorization)
{
    for (int way = 0; way < VERIFIED_WAYS; way++)
        if (bucket->hashes[way] == hash && bucket->entries[way] &&
            is_for(bucket->entries[way], authorization))
            return way;
    return -1;
}

struct auth_verified *auth_verified_find(struct auth_verified_table *table, struct str authorization)
{
    struct auth_verified *entry = table->last;
    struct str tail = tail_of(authorization);

    table->clock++;
    /* Tokens of one issuer begin alike: the tail differs. */
    if (!entry || entry->authorization_len != authorization.len ||
        !str_eq(tail_of(str_of(entry->bytes, entry->authorization_len)), tail) ||
        !is_for(entry, authorization)) {
        uint64_t hash = hash_seeded(tail);
        const struct auth_verified_bucket *bucket = &table->buckets[hash & table->bucket_mask];
        int way = find_way(bucket, hash, authorization);
        if (way < 0)
            return NULL;
        entry = table->last = bucket->entries[way];
    }
    entry->used = table->clock;
    return entry;
}

/* What the slot held, NULL if nothing. */
static struct auth_verified *take_out(struct auth_verified_table *table, struct auth_verified_bucket *bucket,
                                      int way)
{
    struct auth_verified *entry = bucket->entries[way];

    if (!entry)
        return NULL;
    if (table->last == entry)
        table->last = NULL;
    bucket->hashes[way] = 0;
    bucket->entries[way] = NULL;
    budget_release(BUDGET_TOKENS, entry->size);
    return entry;
}

struct auth_verified *auth_verified_put(struct auth_verified_table *table, struct str authorization,
                                        const struct auth_claims *claims, uint64_t generation)
{
    size_t strings = claims->tenant.len + claims->subject.len + claims->scopes.len + 4; /* their NULs */
    size_t size = sizeof(struct auth_verified) + authorization.len + strings;
    struct auth_verified *entry = memory_alloc(size);
    uint64_t hash = hash_seeded(tail_of(authorization));
    struct auth_verified_bucket *bucket = &table->buckets[hash & table->bucket_mask];
    int way = find_way(bucket, hash, authorization);
    char *at = entry->bytes;

    *entry = (struct auth_verified){.generation = generation,
                                    .used = table->clock,
                                    .exp_us = claims->exp_us,
                                    .authorization_len = authorization.len,
                                    .size = size};
    str_pack(&at, authorization);
    entry->identity = (struct auth_identity){
        .tenant = str_pack(&at, claims->tenant),
        .subject = str_pack(&at, claims->subject),
        .scopes = str_pack(&at, claims->scopes),
        .expires_at_s = claims->exp_us / 1000000,
    };
    /* Not there: an empty slot, else one of an older generation, else the least recently used. */
    for (int i = 0, known = way; known < 0 && i < VERIFIED_WAYS; i++) {
        const struct auth_verified *other = bucket->entries[i];
        if (!other || other->generation != generation) {
            way = i;
            break;
        }
        if (way < 0 || other->used < bucket->entries[way]->used)
            way = i;
    }
    budget_add(BUDGET_TOKENS, size);
    struct auth_verified *pushed_out = take_out(table, bucket, way);
    bucket->hashes[way] = hash;
    bucket->entries[way] = entry;
    return pushed_out;
}

/* The least recently used of the next EVICT_ENTRIES, so that tokens which are used once do not push out those in use. */
struct auth_verified *auth_verified_evict(struct auth_verified_table *table)
{
    struct auth_verified_bucket *from = NULL;
    int from_way = 0;
    unsigned seen = 0;

    if (!budget_is_full(BUDGET_TOKENS))
        return NULL;
    for (size_t i = 0; i < EVICT_BUCKETS && seen < EVICT_ENTRIES; i++) {
        struct auth_verified_bucket *bucket = &table->buckets[table->hand];
        for (int way = 0; way < VERIFIED_WAYS; way++) {
            if (!bucket->entries[way])
                continue;
            seen++;
            if (!from || bucket->entries[way]->used < from->entries[from_way]->used) {
                from = bucket;
                from_way = way;
            }
        }
        table->hand = (table->hand + 1) & table->bucket_mask;
    }
    if (!from)
        return NULL;
    budget_count_refusal(BUDGET_TOKENS);
    return take_out(table, from, from_way);
}

/* ---- tokens that were found bad ---- */

#define DENIED_WAYS 4

struct auth_denied {
    uint64_t seeded, plain; /* of the whole header; the seed is secret */
    uint64_t generation;
    int64_t until_ns; /* monotonic; 0 = empty */
    enum auth_reason reason;
};

void auth_denied_init(struct auth_denied_table *table, size_t entries)
{
    size_t buckets = bucket_count(entries, DENIED_WAYS);

    table->bucket_mask = buckets - 1;
    table->entries = memory_zalloc(buckets * DENIED_WAYS * sizeof(*table->entries));
}

void auth_denied_deinit(struct auth_denied_table *table)
{
    free(table->entries);
    *table = (struct auth_denied_table){0};
}

bool auth_denied_find(const struct auth_denied_table *table, struct str authorization, uint64_t generation,
                      int64_t now_ns, enum auth_reason *reason)
{
    uint64_t seeded = hash_seeded(authorization), plain = hash_content(authorization);
    const struct auth_denied *bucket = &table->entries[(seeded & table->bucket_mask) * DENIED_WAYS];

    for (int way = 0; way < DENIED_WAYS; way++) {
        const struct auth_denied *entry = &bucket[way];
        if (entry->seeded != seeded || entry->plain != plain)
            continue;
        *reason = entry->reason;
        return entry->generation == generation && entry->until_ns > now_ns;
    }
    return false;
}

void auth_denied_put(struct auth_denied_table *table, struct str authorization, uint64_t generation,
                     int64_t until_ns, enum auth_reason reason)
{
    uint64_t seeded = hash_seeded(authorization), plain = hash_content(authorization);
    struct auth_denied *bucket = &table->entries[(seeded & table->bucket_mask) * DENIED_WAYS], *at = bucket;

    for (int way = 0; way < DENIED_WAYS; way++) {
        if (bucket[way].seeded == seeded && bucket[way].plain == plain) {
            at = &bucket[way];
            break;
        }
        if (bucket[way].until_ns < at->until_ns)
            at = &bucket[way];
    }
    *at = (struct auth_denied){seeded, plain, generation, until_ns, reason};
}
