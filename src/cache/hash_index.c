/* The hash index: extendible hashing. A directory, kept in copy-on-write nodes, leads the top bits of a hash
 * to a page.
 *
 * A page that gets too full is split in two by the next bit; only when its entry is a single one does the
 * directory double, which moves 8 bytes for every few hundred records, once every time the index grows
 * twofold. Pages are never joined again: an emptied one is freed, a thinned one shrinks, and the next full
 * load starts afresh. */
#include "cache/internal.h"

#include <assert.h>
#include <stdlib.h>

#include "base/memory.h"

#define PAGE_SPLIT_COUNT 384 /* a page with more records is split */
#define PAGE_LOAD_COUNT 256  /* a full load aims at pages with at most so many on average */
#define DIRECTORY_BITS_MAX 32
#define FIND_BATCH 32

/* ---- the directory ---- */
static size_t entry_count(const struct hash_index *index)
{
    return (size_t)1 << index->bits;
}

static size_t node_count(const struct hash_index *index)
{
    return index->bits > HASH_NODE_BITS ? entry_count(index) >> HASH_NODE_BITS : 1;
}

static size_t node_entries(const struct hash_index *index)
{
    return entry_count(index) / node_count(index);
}

static size_t node_bytes(size_t entries)
{
    return sizeof(struct hash_node) + entries * sizeof(uint64_t);
}

/* Two shifts, for a directory of one entry would need one by 64. */
static inline size_t entry_at(const struct hash_index *index, uint64_t hash)
{
    return (size_t)((hash >> 1) >> (63 - index->bits));
}

static inline const uint64_t *entry_of(const struct hash_index *index, size_t at)
{
    return &index->root[at >> HASH_NODE_BITS]->entries[at & ((1u << HASH_NODE_BITS) - 1)];
}

static inline struct hash_page *entry_page(uint64_t entry)
{
    return (struct hash_page *)(uintptr_t)(entry & POINTER_MASK);
}

static inline const uint64_t *entry_slots(uint64_t entry)
{
    return entry_page(entry)->slots;
}

static inline size_t entry_buckets(uint64_t entry)
{
    return (size_t)(entry >> POINTER_BITS);
}

static struct hash_node *node_create(struct build *build, size_t entries)
{
    struct hash_node *node = memory_zalloc(node_bytes(entries));

    shared_init(&node->shared, build->birth);
    cache_count_bytes(build, (int64_t)node_bytes(entries));
    return node;
}

static void node_unref(struct hash_node *node, size_t entries)
{
    if (!shared_unref(&node->shared))
        return;
    for (size_t i = 0; i < entries; i++)
        if (node->entries[i])
            cache_hash_page_unref(entry_page(node->entries[i]));
    cache_count_bytes(NULL, -(int64_t)node_bytes(entries));
    free(node);
}

static uint64_t entry_ref(uint64_t entry)
{
    if (entry)
        shared_ref(&entry_page(entry)->shared);
    return entry;
}

static struct hash_node *own_node(struct hash_index *index, struct build *build, size_t at)
{
    struct hash_node **node = &index->root[at >> HASH_NODE_BITS];
    size_t entries = node_entries(index);
    struct hash_node *copy;

    if ((*node)->shared.birth == build->birth)
        return *node;
    copy = node_create(build, entries);
    for (size_t i = 0; i < entries; i++)
        copy->entries[i] = entry_ref((*node)->entries[i]);
    build->copied_bytes += node_bytes(entries);
    node_unref(*node, entries);
    *node = copy;
    return copy;
}

static void directory_create(struct hash_index *index, struct build *build, uint32_t bits)
{
    index->bits = bits;
    index->root = memory_realloc_array(NULL, node_count(index), sizeof(struct hash_node *));
    for (size_t i = 0; i < node_count(index); i++)
        index->root[i] = node_create(build, node_entries(index));
    index->bytes += node_count(index) * (node_bytes(node_entries(index)) + sizeof(struct hash_node *));
}

void cache_hash_deinit(struct hash_index *index)
{
    for (size_t i = 0; i < node_count(index); i++)
        node_unref(index->root[i], node_entries(index));
    free(index->root);
}

static void directory_double(struct hash_index *index, struct build *build)
{
    struct hash_index old = *index;

    index->bytes -= node_count(index) * (node_bytes(node_entries(index)) + sizeof(struct hash_node *));
    directory_create(index, build, old.bits + 1);
    for (size_t i = 0; i < entry_count(index); i++)
        own_node(index, build, i)->entries[i & (node_entries(index) - 1)] = entry_ref(*entry_of(&old, i / 2));
    build->copied_bytes += entry_count(index) * sizeof(uint64_t);
    cache_hash_deinit(&old);
}

/* Puts `page` (or nothing) in every entry from `first`, dropping what stood there. Takes over the caller's
 * reference of the page. */
static void set_entries(struct hash_index *index, struct build *build, size_t first, size_t count,
                        struct hash_page *page)
{
    /* The bucket count stands beside the pointer so that a search need not touch the page's head. */
    uint64_t entry = page ? (uint64_t)page->buckets << POINTER_BITS | (uint64_t)(uintptr_t)page : 0;

    for (size_t i = first; i < first + count; i++) {
        uint64_t *place = &own_node(index, build, i)->entries[i & (node_entries(index) - 1)];
        uint64_t old = *place;
        *place = entry_ref(entry);
        if (old)
            cache_hash_page_unref(entry_page(old));
    }
    if (page)
        cache_hash_page_unref(page);
}

/* ---- pages ---- */
static size_t page_span(const struct hash_index *index, const struct hash_page *page)
{
    return (size_t)1 << (index->bits - page->depth);
}

static void swap_page(struct hash_index *index, struct build *build, size_t at, struct hash_page *page)
{
    struct hash_page *old = entry_page(*entry_of(index, at));
    size_t span = page_span(index, old);

    index->bytes -= cache_hash_page_bytes(old);
    index->bytes += page ? cache_hash_page_bytes(page) : 0;
    set_entries(index, build, at & ~(span - 1), span, page);
}

/* A page this build may change, at the entry `at`. */
static struct hash_page *own_page(struct hash_index *index, struct build *build, size_t at, uint16_t buckets)
{
    struct hash_page *page = entry_page(*entry_of(index, at));

    if (page->shared.birth == build->birth && page->buckets == buckets)
        return page;
    page = cache_hash_page_copy(page, build, buckets);
    swap_page(index, build, at, page);
    return page;
}

/* The one place that needs the records' own hashes again: a split looks at one more bit. */
static void split_page(struct hash_index *index, struct build *build, uint64_t hash)
{
    struct hash_page *page = entry_page(*entry_of(index, entry_at(index, hash))), *halves[2];

    if (page->depth == index->bits)
        directory_double(index, build);
    for (int i = 0; i < 2; i++)
        halves[i] = cache_hash_page_create(build, cache_hash_page_buckets(page->count), page->depth + 1u);
    for (size_t i = 0; i < (size_t)page->buckets * HASH_BUCKET_SLOTS; i++) {
        uint64_t slot = page->slots[i];
        if (slot)
            cache_hash_page_add(
                halves[(hash_seeded(record_key(slot_record(slot))) >> (63 - page->depth)) & 1], slot);
    }
    size_t span = page_span(index, page), first = entry_at(index, hash) & ~(span - 1);
    index->bytes -= cache_hash_page_bytes(page);
    for (size_t i = 0; i < 2; i++) {
        struct hash_page *half =
            cache_hash_page_copy(halves[i], build, cache_hash_page_buckets(halves[i]->count));
        cache_hash_page_unref(halves[i]);
        index->bytes += cache_hash_page_bytes(half);
        set_entries(index, build, first + i * (span / 2), span / 2, half);
    }
}

/* ---- the index ---- */
void cache_hash_init(struct hash_index *index, struct build *build)
{
    *index = (struct hash_index){.bits = 0};
    directory_create(index, build, 0);
}

void cache_hash_copy(struct hash_index *index, const struct hash_index *base)
{
    *index = *base;
    index->root = cache_shared_copy(base->root, node_count(base));
}

static inline const struct cache_record *find_in_page(uint64_t entry, uint64_t hash, struct str key)
{
    const uint64_t fingerprint = hash_fingerprint(hash);
    const size_t buckets = entry_buckets(entry);
    size_t at = bucket_of(fingerprint, buckets);

    for (;;) {
        const uint64_t *slots = page_bucket(entry_slots(entry), at);
        for (unsigned matches = bucket_matches(slots, fingerprint); matches; matches &= matches - 1) {
            const struct cache_record *record = slot_record(slots[__builtin_ctz(matches)]);
            __builtin_prefetch((const char *)record + HASH_LINE_BYTES); /* of the body, which is sent next */
            __builtin_prefetch((const char *)record + 2 * HASH_LINE_BYTES);
            if (record && record_has_key(record, key))
                return record;
        }
        if (!slots[HASH_BUCKET_SLOTS - 1])
            return NULL;
        at = at + 1 == buckets ? 0 : at + 1;
    }
}

const struct cache_record *cache_hash_find(const struct hash_index *index, uint64_t hash, struct str key)
{
    uint64_t entry = *entry_of(index, entry_at(index, hash));

    return entry ? find_in_page(entry, hash, key) : NULL;
}

/* One step for all keys of a batch, then the next step: each step's misses wait for memory together. The first record of
 * its bucket that could be the one nearly always is. The directory is small: its misses are few. */
static void find_batch(const struct hash_index *index, const struct str *keys, size_t count,
                       const struct cache_record **out)
{
    _Alignas(HASH_LINE_BYTES) static const uint64_t none[HASH_BUCKET_SLOTS];
    uint64_t hashes[FIND_BATCH];
    const uint64_t *buckets[FIND_BATCH];

    hash_seeded_each(keys, count, hashes);
    for (size_t i = 0; i < count; i++) {
        uint64_t entry = *entry_of(index, entry_at(index, hashes[i]));
        buckets[i] = entry ? page_bucket(entry_slots(entry),
                                         bucket_of(hash_fingerprint(hashes[i]), entry_buckets(entry)))
                           : none;
        __builtin_prefetch(buckets[i]);
    }
    for (size_t i = 0; i < count; i++) {
        unsigned matches = bucket_matches(buckets[i], hash_fingerprint(hashes[i]));
        out[i] = matches ? slot_record(buckets[i][__builtin_ctz(matches)]) : NULL;
        __builtin_prefetch(out[i]);
        __builtin_prefetch((const char *)out[i] + HASH_LINE_BYTES); /* the answer is copied from here next */
        __builtin_prefetch((const char *)out[i] + 2 * HASH_LINE_BYTES);
    }
    for (size_t i = 0; i < count; i++)
        if (!out[i] || !record_has_key(out[i], keys[i]))
            out[i] = cache_hash_find(index, hashes[i], keys[i]);
}

void cache_hash_find_many(const struct hash_index *index, const struct str *keys, size_t count,
                          const struct cache_record **out)
{
    for (size_t at = 0; at < count; at += FIND_BATCH)
        find_batch(index, keys + at, count - at < FIND_BATCH ? count - at : FIND_BATCH, out + at);
}

void cache_hash_insert(struct hash_index *index, struct build *build, uint64_t hash,
                       const struct cache_record *record)
{
    size_t at = entry_at(index, hash);
    struct hash_page *page = entry_page(*entry_of(index, at));

    if (!page) {
        page = cache_hash_page_create(build, 1, index->bits);
        index->bytes += cache_hash_page_bytes(page);
        set_entries(index, build, at, 1, page);
    } else if (page->count >= PAGE_SPLIT_COUNT && page->depth < DIRECTORY_BITS_MAX) {
        split_page(index, build, hash);
    }
    at = entry_at(index, hash);
    page = entry_page(*entry_of(index, at));
    uint16_t buckets = page->buckets;
    if (cache_hash_page_is_full(page))
        buckets = cache_hash_page_buckets(page->count + 1u + page->count / 8);
    page = own_page(index, build, at, buckets);
    cache_hash_page_add(page, cache_hash_slot(hash, record));
}

void cache_hash_replace(struct hash_index *index, struct build *build, uint64_t hash,
                        const struct cache_record *old, const struct cache_record *record)
{
    size_t at = entry_at(index, hash);
    struct hash_page *page = own_page(index, build, at, (uint16_t)entry_buckets(*entry_of(index, at)));

    *cache_hash_page_slot(page, cache_hash_slot(hash, old)) = cache_hash_slot(hash, record);
}

void cache_hash_remove(struct hash_index *index, struct build *build, uint64_t hash,
                       const struct cache_record *old)
{
    size_t at = entry_at(index, hash);
    struct hash_page *page = own_page(index, build, at, (uint16_t)entry_buckets(*entry_of(index, at)));
    uint16_t fitting;

    cache_hash_page_remove(page, cache_hash_slot(hash, old));
    fitting = cache_hash_page_buckets(page->count);
    if (page->count == 0)
        swap_page(index, build, at, NULL);
    else if (page->buckets > 2 * fitting)
        own_page(index, build, at, fitting);
}

/* ---- a full load ---- */
void cache_hash_load(struct hash_index *index, struct build *build, const struct staged *staged, size_t count)
{
    uint32_t bits = 0;

    while (bits < DIRECTORY_BITS_MAX && count >> bits > PAGE_LOAD_COUNT)
        bits++;
    cache_hash_deinit(index);
    *index = (struct hash_index){.bits = 0};
    directory_create(index, build, bits);

    /* Grouped by directory entry: ends[at] is first where the records of `at` begin, and then, as they are placed, where
     * they end. */
    size_t *ends = memory_zalloc((entry_count(index) + 1) * sizeof(size_t));
    uint64_t *slots = cache_scratch_alloc(count * sizeof(uint64_t));
    for (size_t i = 0; i < count; i++)
        ends[entry_at(index, staged[i].hash) + 1]++;
    for (size_t i = 0; i < entry_count(index); i++)
        ends[i + 1] += ends[i];
    for (size_t i = 0; i < count; i++)
        slots[ends[entry_at(index, staged[i].hash)]++] = cache_hash_slot(staged[i].hash, staged[i].record);
    for (size_t at = 0, i = 0; at < entry_count(index); at++) {
        if (i == ends[at])
            continue;
        struct hash_page *page =
            cache_hash_page_create(build, cache_hash_page_buckets(ends[at] - i), index->bits);
        for (; i < ends[at]; i++)
            cache_hash_page_add(page, slots[i]);
        index->bytes += cache_hash_page_bytes(page);
        set_entries(index, build, at, 1, page);
    }
    cache_scratch_free(slots, count * sizeof(uint64_t));
    free(ends);
}
