/* Changing a page of the hash index, on a copy that only its build can see. */
#include "cache/internal.h"

#include <assert.h>
#include <stdlib.h>

#include "base/memory.h"

#define BUCKETS_MAX UINT16_MAX /* what fits above a page's pointer in a directory entry */

uint64_t cache_hash_slot(uint64_t hash, const struct cache_record *record)
{
    uint64_t address = (uint64_t)(uintptr_t)record;

    assert(address != 0 && (address & ~POINTER_MASK) == 0);
    return hash_fingerprint(hash) << POINTER_BITS | address;
}

static size_t capacity(const struct hash_page *page)
{
    return (size_t)page->buckets * HASH_BUCKET_SLOTS;
}

size_t cache_hash_page_bytes(const struct hash_page *page)
{
    return sizeof(*page) + capacity(page) * sizeof(uint64_t);
}

uint16_t cache_hash_page_buckets(size_t count)
{
    size_t slots = count + count / 4;
    size_t buckets = slots / HASH_BUCKET_SLOTS + 1;

    return (uint16_t)(buckets < BUCKETS_MAX ? buckets : BUCKETS_MAX);
}

bool cache_hash_page_is_full(const struct hash_page *page)
{
    return page->count + 1 > capacity(page) - capacity(page) / 16 - 1;
}

struct hash_page *cache_hash_page_create(struct build *build, uint16_t buckets, unsigned depth)
{
    size_t slot_bytes = (size_t)buckets * HASH_LINE_BYTES;
    struct hash_page *page = memory_aligned(HASH_LINE_BYTES, sizeof(*page) + slot_bytes);

    shared_init(&page->shared, build->birth);
    page->buckets = buckets;
    page->depth = (uint16_t)depth;
    page->count = 0;
    memset(page->slots, 0, slot_bytes);
    cache_count_bytes(build, (int64_t)cache_hash_page_bytes(page));
    return page;
}

static void add_all(struct hash_page *page, const uint64_t *slots, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (slots[i])
            cache_hash_page_add(page, slots[i]);
}

struct hash_page *cache_hash_page_copy(const struct hash_page *page, struct build *build, uint16_t buckets)
{
    struct hash_page *copy = cache_hash_page_create(build, buckets, page->depth);

    if (buckets == page->buckets) {
        copy->count = page->count;
        memcpy(copy->slots, page->slots, capacity(page) * sizeof(uint64_t));
    } else {
        add_all(copy, page->slots, capacity(page));
    }
    build->copied_bytes += cache_hash_page_bytes(copy);
    return copy;
}

void cache_hash_page_unref(struct hash_page *page)
{
    if (!shared_unref(&page->shared))
        return;
    cache_count_bytes(NULL, -(int64_t)cache_hash_page_bytes(page));
    free(page);
}

static uint64_t *next_bucket(struct hash_page *page, uint64_t *bucket)
{
    bucket += HASH_BUCKET_SLOTS;
    return bucket == page->slots + capacity(page) ? page->slots : bucket;
}

static uint64_t *first_bucket(struct hash_page *page, uint64_t slot)
{
    return page->slots + bucket_of(slot_fingerprint(slot), page->buckets) * HASH_BUCKET_SLOTS;
}

void cache_hash_page_add(struct hash_page *page, uint64_t slot)
{
    uint64_t *bucket = first_bucket(page, slot);
    size_t at = 0;

    assert(page->count + 1 < capacity(page));
    while (bucket[HASH_BUCKET_SLOTS - 1])
        bucket = next_bucket(page, bucket);
    while (bucket[at])
        at++;
    bucket[at] = slot;
    page->count++;
}

uint64_t *cache_hash_page_slot(struct hash_page *page, uint64_t slot)
{
    uint64_t *bucket = first_bucket(page, slot);

    for (;;) {
        for (size_t i = 0; i < HASH_BUCKET_SLOTS; i++)
            if (bucket[i] == slot)
                return &bucket[i];
        assert(bucket[HASH_BUCKET_SLOTS - 1]);
        bucket = next_bucket(page, bucket);
    }
}

void cache_hash_page_remove(struct hash_page *page, uint64_t slot)
{
    uint64_t *hole = cache_hash_page_slot(page, slot);
    size_t at = (size_t)(hole - page->slots) % HASH_BUCKET_SLOTS;
    uint64_t *bucket = hole - at;
    bool overflowed = bucket[HASH_BUCKET_SLOTS - 1] != 0;
    size_t last = HASH_BUCKET_SLOTS - 1;

    while (!bucket[last])
        last--;
    bucket[at] = bucket[last];
    bucket[last] = 0;
    page->count--;
    if (!overflowed)
        return;
    /* A full bucket may have overflowed, and a hole in it would hide what follows: everything is placed again. */
    size_t bytes = capacity(page) * sizeof(uint64_t);
    uint64_t *slots = memcpy(memory_alloc(bytes), page->slots, bytes);
    memset(page->slots, 0, bytes);
    page->count = 0;
    add_all(page, slots, capacity(page));
    free(slots);
}
