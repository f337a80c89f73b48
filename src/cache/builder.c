/* Building a snapshot: from nothing, or as a delta on top of another.
 *
 * From nothing, rows are written to chunks as they come and only noted (hash, address); sorting and both
 * indexes are made at once when all are there ("settling"), several times cheaper than a million inserts.
 * From then on, and on top of a base from the start, every change goes straight into the copy-on-write
 * indexes. */
#include "cache/internal.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"

#define KEY_LEN_MAX 1024
#define PAYLOAD_LEN_MAX ((size_t)1 << 30)
#define KEY_BYTES_SHOWN 100
#define STAGED_FIRST 256
#define INDEX_BYTES_PER_ITEM 19 /* what a staged item will take in the indexes, for memory_max */

struct cache_builder {
    struct build build;
    struct cache_snapshot *base;
    struct cache_snapshot *next; /* the snapshot in the making */
    struct chunk *base_tail;     /* the base's chunk this build goes on in, if it could claim it */
    uint32_t base_tail_used;     /* where to cut it off again when the build is abandoned */
    uint64_t memory_max;
    size_t payload_bytes_max;
    size_t changes, replaced;

    bool staging;   /* from nothing, and not settled yet */
    bool ascending; /* staged keys have come in strict order so far */
    size_t common;  /* bytes that all staged keys begin with */
    struct staged *staged;
    size_t staged_count, staged_capacity;
};

static uint64_t next_birth(void)
{
    static _Atomic uint64_t last;

    return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

struct cache_builder *cache_builder_create(struct cache_snapshot *base, uint64_t memory_max)
{
    struct cache_builder *builder = memory_zalloc(sizeof(*builder));

    builder->build.birth = next_birth();
    builder->memory_max = memory_max;
    builder->payload_bytes_max = PAYLOAD_LEN_MAX;
    builder->base = base;
    if (base)
        cache_snapshot_ref(base);
    builder->next = cache_snapshot_create(base, &builder->build);
    builder->base_tail = cache_chunks_claim_tail(&builder->next->chunks, &builder->build);
    if (builder->base_tail)
        builder->base_tail_used = builder->base_tail->used;
    builder->staging = builder->ascending = !base;
    return builder;
}

void cache_builder_limit_payloads(struct cache_builder *builder, size_t payload_bytes_max)
{
    if (payload_bytes_max < PAYLOAD_LEN_MAX)
        builder->payload_bytes_max = payload_bytes_max;
}

/* ---- what the snapshot's numbers say ---- */
static void count_in(struct cache_builder *builder, const struct cache_record *record)
{
    struct cache_info *info = &builder->next->info;

    info->item_count++;
    info->body_bytes += record->body_len;
    hash128_add(&info->digest, cache_record_digest(record));
}

/* Also gives the record's bytes back, so nothing may lead to it any more. */
static void count_out(struct cache_builder *builder, const struct cache_record *record)
{
    struct cache_info *info = &builder->next->info;

    info->item_count--;
    info->body_bytes -= record->body_len;
    hash128_subtract(&info->digest, cache_record_digest(record));
    cache_chunks_forget(&builder->next->chunks, &builder->build, record);
}

/* ---- staging ---- */
static size_t common_len(struct str a, struct str b, size_t max)
{
    size_t len = 0;

    max = max < a.len ? max : a.len;
    max = max < b.len ? max : b.len;
    if (memcmp(a.ptr, b.ptr, max) == 0)
        return max;
    while (a.ptr[len] == b.ptr[len])
        len++;
    return len;
}

static void stage(struct cache_builder *builder, uint64_t hash, struct cache_record *record)
{
    struct str key = record_key(record);
    size_t count = builder->staged_count;

    if (count == builder->staged_capacity) {
        size_t capacity = count ? count * 2 : STAGED_FIRST;
        builder->staged = cache_scratch_grow(builder->staged, count * sizeof(struct staged),
                                             capacity * sizeof(struct staged));
        builder->staged_capacity = capacity;
    }
    if (count == 0)
        builder->common = key.len;
    else
        builder->common = common_len(record_key(builder->staged[0].record), key, builder->common);
    if (builder->ascending && count > 0)
        builder->ascending = str_compare(record_key(builder->staged[count - 1].record), key) < 0;
    builder->staged[builder->staged_count++] = (struct staged){hash, record};
}

static void unstage_all(struct cache_builder *builder)
{
    cache_scratch_free(builder->staged, builder->staged_capacity * sizeof(struct staged));
    builder->staged = NULL;
    builder->staged_count = builder->staged_capacity = 0;
    builder->staging = false;
}

static void load_order_ascending(struct cache_builder *builder)
{
    for (size_t i = 0; i < builder->staged_count; i++)
        cache_order_append(&builder->next->order, &builder->build, builder->staged[i].record);
}

static bool same_key(const struct sort_entry *a, const struct sort_entry *b)
{
    return a->prefix == b->prefix && str_eq(record_key(a->record), record_key(b->record));
}

static void load_order_sorted(struct cache_builder *builder)
{
    size_t count = builder->staged_count, bytes = count * sizeof(struct sort_entry);
    struct sort_entry *entries = cache_scratch_alloc(bytes), *scratch = cache_scratch_alloc(bytes);

    for (size_t i = 0; i < count; i++)
        entries[i].record = builder->staged[i].record;
    cache_sort(entries, scratch, count, builder->common);
    cache_scratch_free(scratch, bytes);
    for (size_t i = 0; i < count; i++) {
        if (i + 1 < count && same_key(&entries[i], &entries[i + 1])) {
            entries[i].record->flags |= RECORD_REPLACED;
            builder->replaced++;
        } else {
            cache_order_append(&builder->next->order, &builder->build, entries[i].record);
        }
    }
    cache_scratch_free(entries, bytes);
}

static void drop_replaced(struct cache_builder *builder)
{
    size_t kept = 0;

    for (size_t i = 0; i < builder->staged_count; i++)
        if (builder->staged[i].record->flags & RECORD_REPLACED)
            count_out(builder, builder->staged[i].record);
        else
            builder->staged[kept++] = builder->staged[i];
    builder->staged_count = kept;
}

/* From staged rows to indexes; nothing to do when it was done, or on top of a base. */
static void settle(struct cache_builder *builder)
{
    if (!builder->staging)
        return;
    if (builder->ascending)
        load_order_ascending(builder);
    else
        load_order_sorted(builder);
    cache_order_trim(&builder->next->order);
    if (builder->replaced > 0)
        drop_replaced(builder);
    cache_hash_load(&builder->next->hash, &builder->build, builder->staged, builder->staged_count);
    unstage_all(builder);
}

/* ---- changes ---- */
static enum status check_item(const struct cache_builder *builder, struct str key, struct str payload,
                              struct error *error)
{
    if (key.len == 0 || key.len > KEY_LEN_MAX)
        return error_set_field(error, STATUS_BAD_REQUEST, "key", "a key has 1 to %d bytes, not %zu",
                               KEY_LEN_MAX, key.len);
    if (!str_is_utf8(key))
        return error_set_field(error, STATUS_BAD_REQUEST, "key", "a key must be UTF-8");
    if (payload.len == 0)
        return error_set_field(error, STATUS_BAD_REQUEST, "payload", "a payload must not be empty");
    if (payload.len > builder->payload_bytes_max)
        return error_set_field(error, STATUS_PAYLOAD_TOO_LARGE, "payload",
                               "the payload of key \"%.*s\" has %zu bytes, at most %zu are taken",
                               STR_ARG(str_utf8_cut(key, KEY_BYTES_SHOWN)), payload.len,
                               builder->payload_bytes_max);
    return STATUS_OK;
}

static enum status check_memory(const struct cache_builder *builder, size_t size, struct error *error)
{
    uint64_t held = cache_snapshot_memory(builder->next) +
                    (builder->staged_count + 1) * (uint64_t)INDEX_BYTES_PER_ITEM + size;

    if (builder->memory_max == 0 || held <= builder->memory_max)
        return STATUS_OK;
    return error_set(
        error, STATUS_NO_MEMORY, "more than the %llu bytes of memory allowed are needed (after %llu items)",
        (unsigned long long)builder->memory_max, (unsigned long long)builder->next->info.item_count);
}

static struct cache_record *write_record(struct cache_builder *builder, const struct record_shape *shape,
                                         struct str key, struct str payload)
{
    struct cache_record *record = cache_chunks_alloc(&builder->next->chunks, &builder->build, shape->size);

    cache_record_write(record, shape, key, payload);
    count_in(builder, record);
    return record;
}

static void index_record(struct cache_builder *builder, uint64_t hash, const struct cache_record *old,
                         const struct cache_record *record)
{
    struct cache_snapshot *next = builder->next;

    if (old)
        cache_hash_replace(&next->hash, &builder->build, hash, old, record);
    else
        cache_hash_insert(&next->hash, &builder->build, hash, record);
    cache_order_put(&next->order, &builder->build, record);
    if (old)
        count_out(builder, old);
}

enum status cache_builder_put(struct cache_builder *builder, struct str key, struct str payload,
                              struct error *error)
{
    enum status status = check_item(builder, key, payload, error);
    const struct cache_record *old = NULL;
    struct cache_record *record;
    struct record_shape shape;
    uint64_t hash;

    if (status != STATUS_OK)
        return status;
    hash = hash_seeded(key);
    if (!builder->staging)
        old = cache_hash_find(&builder->next->hash, hash, key);
    builder->replaced += old && !builder->base;
    if (old && str_eq(cache_record_payload(old), payload))
        return STATUS_OK;

    shape = cache_record_shape(key, payload);
    status = check_memory(builder, shape.size, error);
    if (status != STATUS_OK)
        return status;
    builder->changes++;
    record = write_record(builder, &shape, key, payload);
    if (builder->staging)
        stage(builder, hash, record);
    else
        index_record(builder, hash, old, record);
    return STATUS_OK;
}

bool cache_builder_delete(struct cache_builder *builder, struct str key)
{
    struct cache_snapshot *next = builder->next;
    uint64_t hash = hash_seeded(key);
    const struct cache_record *old;

    settle(builder);
    old = cache_hash_find(&next->hash, hash, key);
    if (!old)
        return false;
    builder->changes++;
    cache_hash_remove(&next->hash, &builder->build, hash, old);
    cache_order_remove(&next->order, &builder->build, record_key(old));
    count_out(builder, old);
    return true;
}

size_t cache_builder_replaced(struct cache_builder *builder)
{
    settle(builder);
    return builder->replaced;
}

uint64_t cache_builder_copied_bytes(const struct cache_builder *builder)
{
    return builder->build.copied_bytes;
}

/* ---- the end ---- */
static void release_tails(struct cache_builder *builder)
{
    const struct chunk_table *chunks = &builder->next->chunks;

    if (builder->base_tail)
        cache_chunk_release(builder->base_tail);
    if (chunks->tail != CHUNK_NONE && cache_chunks_entry(chunks, chunks->tail)->chunk != builder->base_tail)
        cache_chunk_release(cache_chunks_entry(chunks, chunks->tail)->chunk);
}

static void destroy(struct cache_builder *builder)
{
    if (builder->base)
        cache_snapshot_unref(builder->base);
    free(builder);
}

struct cache_snapshot *cache_builder_finish(struct cache_builder *builder, int64_t version)
{
    struct cache_snapshot *next = builder->next;

    settle(builder);
    if (builder->base)
        cache_sweep(next, &builder->build, builder->changes);
    next->info.version = version;
    next->info.memory_bytes = cache_snapshot_memory(next);
    next->info.loaded_at_us = clock_unix_us();
    release_tails(builder);
    destroy(builder);
    return next;
}

void cache_snapshot_mark(struct cache_snapshot *snapshot, const struct uuid *event)
{
    snapshot->info.event = *event;
}

void cache_builder_abandon(struct cache_builder *builder)
{
    unstage_all(builder);
    if (builder->base_tail)
        builder->base_tail->used = builder->base_tail_used;
    release_tails(builder);
    cache_snapshot_unref(builder->next);
    destroy(builder);
}
