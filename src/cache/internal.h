/* Inside cache: how a snapshot is laid out, and what the files of this folder ask of each other.
 *
 * Everything below a snapshot is shared between versions and counted: a root slot, a directory entry, a
 * leaf's place in a node and a chunk's place in a table each hold one reference. Only builders and the last
 * cache_snapshot_unref() touch these counts, never a reader, so versions may be released in any order and
 * branch at will.
 *
 * A part whose `birth` is the running build's may be changed in place, for no other thread can see it yet; any
 * other is copied first. That is the whole of copy-on-write here. */
#ifndef FRESHET_CACHE_INTERNAL_H
#define FRESHET_CACHE_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "cache/cache.h"

/* Hash slots keep 16 bits of their own above a pointer. User space ends at 2^47 on x86-64 and at 2^48 on
 * aarch64. */
_Static_assert(sizeof(void *) == 8, "hash slots pack a 48-bit pointer into 64 bits");
#define POINTER_BITS 48
#define POINTER_MASK ((UINT64_C(1) << POINTER_BITS) - 1)

/* ---- what is shared ---- */
struct shared {
    uint64_t birth; /* the build that made it */
    _Atomic uint32_t refs;
};

static inline void shared_init(struct shared *shared, uint64_t birth)
{
    shared->birth = birth;
    atomic_init(&shared->refs, 1);
}

static inline void shared_ref(struct shared *shared)
{
    atomic_fetch_add_explicit(&shared->refs, 1, memory_order_relaxed);
}

/* A copy of an array of pointers to structs that begin with a struct shared, each of them referenced. */
void *cache_shared_copy(const void *pointers, size_t count);

/* True when it was the last reference: the caller frees. */
static inline bool shared_unref(struct shared *shared)
{
    return atomic_fetch_sub_explicit(&shared->refs, 1, memory_order_acq_rel) == 1;
}

/* One build's identity and its cost: what the tests hold against "O(changed)". */
struct build {
    uint64_t birth;
    int64_t taken_bytes;   /* by parts it made, while it runs */
    uint64_t copied_bytes; /* of shared parts that had to be copied before they could be changed */
};

/* What all parts take, shared ones once (snapshot.c). `build` makes the part; NULL: it is freed or shrinks. */
void cache_count_bytes(struct build *build, int64_t bytes);
void cache_build_ended(const struct build *build);

/* ---- records ----
 *
 *  | header | body_len, tag, digest | quoted_len     | {"key":"RU","payload":…} | key            |
 *       4      28, if LARGE            4, if ESCAPED    body_len                   key_len, if ESCAPED
 */
#define RECORD_KEY_BYTES_MAX 1024
#define RECORD_KEY_LEN_MASK 0x7ffu

/* Packed: records stand one after the other, without bytes between them. */
struct __attribute__((packed)) cache_record {
    uint16_t short_len;     /* body_len, unless LARGE */
    uint16_t key_len_flags; /* the key's length, under the flags */
};
_Static_assert(sizeof(struct cache_record) == 4, "there may be millions of them");

enum {
    RECORD_LARGE = 0x800,     /* too long to hash again at each read */
    RECORD_ESCAPED = 0x1000,  /* the key's JSON form differs from the key */
    RECORD_REPLACED = 0x2000, /* put again later in the same full load; set before anyone can read it */
};
_Static_assert(RECORD_KEY_BYTES_MAX <= RECORD_KEY_LEN_MASK && RECORD_LARGE > RECORD_KEY_LEN_MASK,
               "a key's length has its place");

#define RECORD_LARGE_BYTES 1024 /* a body above this is LARGE */
#define RECORD_EXTRA_LARGE (sizeof(uint32_t) + sizeof(uint64_t) + sizeof(struct hash128))
#define RECORD_EXTRA_ESCAPED sizeof(uint32_t)
#define RECORD_KEY_AT (sizeof("{\"key\":\"") - 1)

static inline bool record_is(const struct cache_record *record, unsigned bits)
{
    return (record->key_len_flags & bits) != 0;
}

static inline size_t record_key_len(const struct cache_record *record)
{
    return record->key_len_flags & RECORD_KEY_LEN_MASK;
}

static inline uint32_t record_body_len(const struct cache_record *record)
{
    uint32_t body_len = record->short_len;

    if (record_is(record, RECORD_LARGE))
        memcpy(&body_len, record + 1, sizeof(body_len));
    return body_len;
}

/* Most records have nothing between header and body, which one comparison finds out. */
static inline const char *record_body(const struct cache_record *record)
{
    const char *body = (const char *)(record + 1);

    if (record_is(record, RECORD_LARGE | RECORD_ESCAPED))
        body += (record_is(record, RECORD_LARGE) ? RECORD_EXTRA_LARGE : 0) +
                (record_is(record, RECORD_ESCAPED) ? RECORD_EXTRA_ESCAPED : 0);
    return body;
}

static inline struct str record_key(const struct cache_record *record)
{
    size_t at = record_is(record, RECORD_ESCAPED) ? record_body_len(record) : RECORD_KEY_AT;
    return str_of(record_body(record) + at, record_key_len(record));
}

/* The same as memcmp() == 0, without a call for up to 16 bytes: two loads that overlap. */
static inline bool bytes_eq(const char *a, const char *b, size_t len)
{
    uint64_t a64[2], b64[2];
    uint32_t a32[2], b32[2];

    if (len > 16 || len < 4)
        return memcmp(a, b, len) == 0;
    if (len >= 8) {
        memcpy(&a64[0], a, 8), memcpy(&a64[1], a + len - 8, 8);
        memcpy(&b64[0], b, 8), memcpy(&b64[1], b + len - 8, 8);
        return ((a64[0] ^ b64[0]) | (a64[1] ^ b64[1])) == 0;
    }
    memcpy(&a32[0], a, 4), memcpy(&a32[1], a + len - 4, 4);
    memcpy(&b32[0], b, 4), memcpy(&b32[1], b + len - 4, 4);
    return ((a32[0] ^ b32[0]) | (a32[1] ^ b32[1])) == 0;
}

static inline bool record_has_key(const struct cache_record *record, struct str key)
{
    return record_key_len(record) == key.len && bytes_eq(record_key(record).ptr, key.ptr, key.len);
}

/* What a record will take, known before there is a place for it. */
struct record_shape {
    size_t size;
    size_t quoted_len;
    uint32_t body_len;
    uint16_t flags;
};
struct record_shape cache_record_shape(struct str key, struct str payload);
void cache_record_write(struct cache_record *record, const struct record_shape *shape, struct str key,
                        struct str payload);
size_t cache_record_size(const struct cache_record *record);
struct hash128 cache_record_digest(const struct cache_record *record); /* hash_item() of it */

/* ---- chunks: where records stand ---- */
#define CHUNK_BYTES ((size_t)1 << 20)     /* and alignment: a record's address leads to its chunk */
#define CHUNK_BIG_BYTES (CHUNK_BYTES / 8) /* a record above this has a chunk of its own */
#define CHUNK_HEADER_BYTES 64
#define CHUNK_NODE_ENTRIES 64
#define CHUNK_NONE UINT32_MAX

struct chunk {
    struct shared shared;
    uint32_t index;       /* its place in the table of every version that lists it */
    uint32_t used;        /* header included; changed only by the build that took it */
    atomic_bool is_taken; /* a build appends to it */
    uint32_t counted;     /* bytes of it that cache_count_bytes() knows */
    size_t mapped;
};
_Static_assert(sizeof(struct chunk) <= CHUNK_HEADER_BYTES, "a chunk's header has its place");

/* One version's view of a chunk. Another version's may differ, so none of this stands in the chunk. */
struct chunk_entry {
    struct chunk *chunk; /* NULL = free place */
    uint32_t used;       /* where this version's records end */
    uint32_t live;       /* bytes of records this version still leads to */
    uint32_t swept;      /* everything before is known to be dead */
};

struct chunk_node {
    struct shared shared;
    struct chunk_entry entries[CHUNK_NODE_ENTRIES];
};

struct chunk_table {
    struct chunk_node **nodes;
    uint32_t node_count;
    uint32_t chunk_count;
    uint32_t tail;       /* index of the chunk that takes the next record; CHUNK_NONE = none yet */
    uint32_t victim;     /* index of the chunk being emptied; CHUNK_NONE = none */
    uint32_t sweep_node; /* where to look for the next victim */
    uint64_t bytes;      /* resident: pages touched, and the nodes */
    uint64_t live;       /* bytes of live records */
};

static inline struct chunk *chunk_of(const struct cache_record *record)
{
    return (struct chunk *)((uintptr_t)record & ~(uintptr_t)(CHUNK_BYTES - 1));
}

void cache_chunks_copy(struct chunk_table *table, const struct chunk_table *base);
void cache_chunks_deinit(struct chunk_table *table);
/* Takes the tail chunk for this build. NULL if another build has it, or records were appended that are not of this version: the
 * next record then opens a new chunk. */
struct chunk *cache_chunks_take_tail(struct chunk_table *table, struct build *build);
void cache_chunk_release(struct chunk *chunk); /* the next build may take it */
struct cache_record *cache_chunks_alloc(struct chunk_table *table, struct build *build, size_t size);
/* This version no longer leads to the record; the last one of a chunk drops the chunk. */
void cache_chunks_forget(struct chunk_table *table, struct build *build, const struct cache_record *record);
const struct chunk_entry *cache_chunks_entry(const struct chunk_table *table, uint32_t index);
struct chunk_entry *cache_chunks_own_entry(struct chunk_table *table, struct build *build, uint32_t index);
size_t cache_chunks_sole(const struct chunk_table *table); /* chunks that would go with this version */
uint64_t cache_chunks_mapped(void);                        /* chunks of the whole process, for tests */

/* ---- hash index: extendible hashing, its directory in nodes of 256 ----
 *
 *     hash  | directory bits …                  … | 16 bits: fingerprint and bucket |
 *     root ─→ node ─→ entry: page pointer, bucket count ─→ bucket of 8 slots ─→ record
 */
#define HASH_NODE_BITS 8
#define HASH_BUCKET_SLOTS 8

struct hash_node {
    struct shared shared;
    uint64_t
        entries[]; /* bucket count over page pointer; 0 = no page. 256, or fewer while it is the only node */
};

struct hash_index {
    struct hash_node **root;
    uint32_t bits; /* of the directory */
    uint64_t bytes;
};

struct staged {
    uint64_t hash;
    struct cache_record *record;
};

void cache_hash_init(struct hash_index *index, struct build *build);
void cache_hash_copy(struct hash_index *index, const struct hash_index *base);
void cache_hash_deinit(struct hash_index *index);
const struct cache_record *cache_hash_find(const struct hash_index *index, uint64_t hash, struct str key);
void cache_hash_find_many(const struct hash_index *index, const struct str *keys, size_t count,
                          const struct cache_record **out);
void cache_hash_insert(struct hash_index *index, struct build *build, uint64_t hash,
                       const struct cache_record *record); /* its key must be absent */
/* Both: `old` must be there. */
void cache_hash_replace(struct hash_index *index, struct build *build, uint64_t hash,
                        const struct cache_record *old, const struct cache_record *record);
void cache_hash_remove(struct hash_index *index, struct build *build, uint64_t hash,
                       const struct cache_record *old);
/* Fills an empty index at once. No key may come twice. */
void cache_hash_load(struct hash_index *index, struct build *build, const struct staged *staged,
                     size_t count);

/* ---- hash_page.c: a page of the hash index, a small table of its own ----
 *
 * A slot is a record's address under 16 bits of its hash. Those bits alone choose the bucket (a cache line of
 * 8 slots, filled from the front, overflowing into the next), so a page is rebuilt at another size without
 * looking at a record. A bucket whose last slot is empty never overflowed, and ends a search. */
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

/* ---- order index: leaves of records in bytewise key order, under nodes, under a root array ---- */
#define ORDER_LEAF_MAX 512
#define ORDER_LEAF_LOADED 480 /* after a full load: room for some inserts before a split */
#define ORDER_NODE_MAX 256

/* A root of nodes, a node of leaves or a leaf of records, in key order. */
struct order_part {
    struct shared shared;
    uint32_t count, capacity;
    union order_item {
        struct order_part *part;
        const struct cache_record *record; /* of a leaf */
    } items[];
};

struct order_index {
    struct order_part *root; /* NULL = empty */
    uint64_t bytes;
};

void cache_order_copy(struct order_index *index, const struct order_index *base);
void cache_order_deinit(struct order_index *index);
/* The place after `key`, whether it is there or not; the first one when it is empty. */
struct order_place cache_order_seek(const struct order_index *index, struct str key);
/* The record there, and moves on; NULL at the end. */
const struct cache_record *cache_order_next(const struct order_index *index, struct order_place *place);
/* Inserts, or replaces the record that has the same key. */
void cache_order_put(struct order_index *index, struct build *build, const struct cache_record *record);
void cache_order_remove(struct order_index *index, struct build *build, struct str key); /* must be there */
/* Appends a record whose key is above all others, filling leaves to ORDER_LEAF_LOADED. */
void cache_order_append(struct order_index *index, struct build *build, const struct cache_record *record);
void cache_order_trim(
    struct order_index *index); /* after the last append: frees what its leaf did not need */

/* ---- sorting a full load ---- */
struct sort_entry {
    uint64_t prefix; /* 8 key bytes as a big-endian number; equal keys have equal ones after sorting */
    struct cache_record *record;
};
/* Stable, bytewise by key. All keys share their first `common` bytes. `scratch` has room for as many. */
void cache_sort(struct sort_entry *entries, struct sort_entry *scratch, size_t count, size_t common);

/* ---- chunk.c: scratch, memory of a load's size that goes straight back to the kernel ---- */
void *cache_scratch_alloc(size_t size);
void *cache_scratch_grow(void *old, size_t old_size, size_t size); /* old may be NULL with size 0 */
void cache_scratch_free(void *scratch, size_t size);

/* ---- snapshots and builders ---- */
struct cache_snapshot {
    _Atomic uint32_t refs;
    struct hash_index hash;
    struct cache_info info;
    struct order_index order;
    struct chunk_table chunks;
    atomic_bool is_retired; /* not the current one any more */
};

struct cache_snapshot *cache_snapshot_create(const struct cache_snapshot *base, struct build *build);
uint64_t cache_snapshot_memory(const struct cache_snapshot *snapshot);
/* Moves what still lives out of mostly dead chunks, a little at a time: work in proportion to `changes`. */
void cache_sweep(struct cache_snapshot *next, struct build *build, size_t changes);
uint64_t cache_builder_copied_bytes(const struct cache_builder *builder);

#endif
