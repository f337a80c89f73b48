/* Inside cache: a page of the hash index, a small table of its own.
 *
 * A slot is a record's address under 16 bits of its hash. Those bits alone choose the bucket (a cache line of
 * 8 slots, filled from the front, overflowing into the next), so a page is rebuilt at another size without
 * looking at a record. A bucket whose last slot is empty never overflowed, and ends a search. */
#ifndef FRESHET_CACHE_HASH_PAGE_H
#define FRESHET_CACHE_HASH_PAGE_H

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "cache/internal.h"

#define HASH_LINE_BYTES 64
#define HASH_FINGERPRINT_BITS 16

struct hash_page {
    _Alignas(HASH_LINE_BYTES) struct shared shared;
    uint16_t buckets;
    uint16_t depth; /* directory bits that all its keys share: it stands in 2^(bits - depth) entries */
    uint32_t count;
    _Alignas(HASH_LINE_BYTES) uint64_t slots[];
};
_Static_assert(sizeof(struct hash_page) == HASH_LINE_BYTES, "buckets begin on a line");
_Static_assert(HASH_BUCKET_SLOTS * sizeof(uint64_t) == HASH_LINE_BYTES, "a bucket is a line");

static inline uint64_t slot_fingerprint(uint64_t slot)
{
    return slot >> POINTER_BITS;
}

static inline const struct cache_record *slot_record(uint64_t slot)
{
    return (const struct cache_record *)(uintptr_t)(slot & POINTER_MASK);
}

static inline uint64_t hash_fingerprint(uint64_t hash)
{
    return hash & ((1u << HASH_FINGERPRINT_BITS) - 1);
}

static inline size_t bucket_of(uint64_t fingerprint, size_t buckets)
{
    return (size_t)((fingerprint * buckets) >> HASH_FINGERPRINT_BITS);
}

/* Bit i is set where slot i has the fingerprint. An empty slot may match 0: its record is NULL. */
#ifdef __SSE2__
static inline unsigned bucket_matches(const uint64_t *slots, uint64_t fingerprint)
{
    const __m128i *pairs = (const __m128i *)slots;
    const __m128i wanted = _mm_set1_epi16((short)fingerprint);
    /* Words are compared, all of them; only the top word of each slot counts, so the odd halves are gathered. */
    __m128 a = _mm_castsi128_ps(_mm_cmpeq_epi16(_mm_load_si128(pairs), wanted));
    __m128 b = _mm_castsi128_ps(_mm_cmpeq_epi16(_mm_load_si128(pairs + 1), wanted));
    __m128 c = _mm_castsi128_ps(_mm_cmpeq_epi16(_mm_load_si128(pairs + 2), wanted));
    __m128 d = _mm_castsi128_ps(_mm_cmpeq_epi16(_mm_load_si128(pairs + 3), wanted));
    __m128i low = _mm_srai_epi32(_mm_castps_si128(_mm_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1))), 16);
    __m128i high = _mm_srai_epi32(_mm_castps_si128(_mm_shuffle_ps(c, d, _MM_SHUFFLE(3, 1, 3, 1))), 16);
    __m128i words = _mm_packs_epi32(low, high);

    return (unsigned)_mm_movemask_epi8(_mm_packs_epi16(words, _mm_setzero_si128()));
}
#else
static inline unsigned bucket_matches(const uint64_t *slots, uint64_t fingerprint)
{
    unsigned matches = 0;

    for (unsigned i = 0; i < HASH_BUCKET_SLOTS; i++)
        matches |= (unsigned)(slot_fingerprint(slots[i]) == fingerprint) << i;
    return matches;
}
#endif

static inline const uint64_t *page_bucket(const uint64_t *slots, size_t bucket)
{
    return slots + bucket * HASH_BUCKET_SLOTS;
}

uint64_t cache_hash_slot(uint64_t hash, const struct cache_record *record);
size_t cache_hash_page_bytes(const struct hash_page *page);
/* How many buckets hold `count` records at about 78 % load. */
uint16_t cache_hash_page_buckets(size_t count);
bool cache_hash_page_is_full(const struct hash_page *page); /* one more would make searches long */
struct hash_page *cache_hash_page_create(struct build *build, uint16_t buckets, unsigned depth);
/* The same records, in as many buckets. */
struct hash_page *cache_hash_page_copy(const struct hash_page *page, struct build *build, uint16_t buckets);
void cache_hash_page_unref(struct hash_page *page);
void cache_hash_page_add(struct hash_page *page, uint64_t slot); /* there must be room */
/* Where the slot stands; it must be there. */
uint64_t *cache_hash_page_slot(struct hash_page *page, uint64_t slot);
void cache_hash_page_remove(struct hash_page *page, uint64_t slot);

#endif
