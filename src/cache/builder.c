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

#define PAYLOAD_LEN_MAX ((size_t)1 << 30)
#define KEY_BYTES_SHOWN 100
#define STAGED_FIRST 16384      /* mapped: what is not used is not resident */
#define INDEX_BYTES_PER_ITEM 19 /* what a staged item will take in the indexes, for memory_max */

struct cache_builder {
    struct build build;
    struct cache_snapshot *base;
    struct cache_snapshot *next; /* the snapshot in the making */
    struct chunk *base_tail;     /* the base's chunk this build goes on in, if it could take it */
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

struct cache_builder *cache_builder_create(struct cache_snapshot *base, uint64_t memory_max)
{
    static _Atomic uint64_t last_birth;
    struct cache_builder *builder = memory_zalloc(sizeof(*builder));

    builder->build.birth = atomic_fetch_add_explicit(&last_birth, 1, memory_order_relaxed) + 1;
    builder->memory_max = memory_max;
    builder->payload_bytes_max = PAYLOAD_LEN_MAX;
    builder->base = base;
    if (base)
        cache_snapshot_ref(base);
    builder->next = cache_snapshot_create(base, &builder->build);
    builder->base_tail = cache_chunks_take_tail(&builder->next->chunks, &builder->build);
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

/* Also gives the record's bytes back, so nothing may lead to it any more. */
static void count_out(struct cache_builder *builder, const struct cache_record *record)
{
    struct cache_info *info = &builder->next->info;

    info->item_count--;
    info->body_bytes -= record_body_len(record);
    hash128_subtract(&info->digest, cache_record_digest(record));
    cache_chunks_forget(&builder->next->chunks, &builder->build, record);
}

/* ---- staging ---- */
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
    if (count == 0) {
        builder->common = key.len;
    } else {
        const char *first = record_key(builder->staged[0].record).ptr;
        size_t common = builder->common < key.len ? builder->common : key.len, len = 0;
        if (memcmp(first, key.ptr, common) != 0) {
            while (first[len] == key.ptr[len])
                len++;
            common = len;
        }
        builder->common = common;
        if (builder->ascending)
            builder->ascending = str_compare(record_key(builder->staged[count - 1].record), key) < 0;
    }
    builder->staged[builder->staged_count++] = (struct staged){hash, record};
}

static void unstage_all(struct cache_builder *builder)
{
    cache_scratch_free(builder->staged, builder->staged_capacity * sizeof(struct staged));
    builder->staged = NULL;
    builder->staged_count = builder->staged_capacity = 0;
    builder->staging = false;
}

static void load_order_sorted(struct cache_builder *builder)
{
    size_t count = builder->staged_count, bytes = count * sizeof(struct sort_entry), kept = 0;
    struct sort_entry *entries = cache_scratch_alloc(bytes), *scratch = cache_scratch_alloc(bytes);

    for (size_t i = 0; i < count; i++)
        entries[i].record = builder->staged[i].record;
    cache_sort(entries, scratch, count, builder->common);
    cache_scratch_free(scratch, bytes);
    for (size_t i = 0; i < count; i++) {
        if (i + 1 < count && entries[i].prefix == entries[i + 1].prefix &&
            str_eq(record_key(entries[i].record), record_key(entries[i + 1].record))) {
            entries[i].record->key_len_flags |= RECORD_REPLACED;
            builder->replaced++;
        } else {
            cache_order_append(&builder->next->order, &builder->build, entries[i].record);
        }
    }
    cache_scratch_free(entries, bytes);
    if (builder->replaced == 0)
        return;
    for (size_t i = 0; i < count; i++)
        if (record_is(builder->staged[i].record, RECORD_REPLACED))
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
    if (!builder->ascending)
        load_order_sorted(builder);
    for (size_t i = 0; builder->ascending && i < builder->staged_count; i++)
        cache_order_append(&builder->next->order, &builder->build, builder->staged[i].record);
    cache_order_trim(&builder->next->order);
    cache_hash_load(&builder->next->hash, &builder->build, builder->staged, builder->staged_count);
    unstage_all(builder);
}

/* ---- changes ---- */
static enum status check_item(const struct cache_builder *builder, struct str key, struct str payload,
                              struct error *error)
{
    if (key.len == 0 || key.len > RECORD_KEY_BYTES_MAX)
        return error_set_field(error, STATUS_BAD_REQUEST, "key", "a key has 1 to %d bytes, not %zu",
                               RECORD_KEY_BYTES_MAX, key.len);
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

enum status cache_builder_put(struct cache_builder *builder, struct str key, struct str payload,
                              struct error *error)
{
    enum status status = check_item(builder, key, payload, error);
    struct cache_snapshot *next = builder->next;
    const struct cache_record *old = NULL;

    if (status != STATUS_OK)
        return status;
    uint64_t hash = hash_seeded(key);
    if (!builder->staging)
        old = cache_hash_find(&next->hash, hash, key);
    builder->replaced += old && !builder->base;
    if (old && str_eq(cache_record_payload(old), payload))
        return STATUS_OK;

    struct record_shape shape = cache_record_shape(key, payload);
    uint64_t held = cache_snapshot_memory(next) +
                    (builder->staged_count + 1) * (uint64_t)INDEX_BYTES_PER_ITEM + shape.size;
    if (builder->memory_max > 0 && held > builder->memory_max)
        return error_set(error, STATUS_NO_MEMORY,
                         "more than the %llu bytes of memory allowed are needed (after %llu items)",
                         (unsigned long long)builder->memory_max, (unsigned long long)next->info.item_count);
    builder->changes++;
    struct cache_record *record = cache_chunks_alloc(&next->chunks, &builder->build, shape.size);
    cache_record_write(record, &shape, key, payload);
    next->info.item_count++;
    next->info.body_bytes += shape.body_len;
    hash128_add(&next->info.digest, cache_record_digest(record));
    if (builder->staging) {
        stage(builder, hash, record);
        return STATUS_OK;
    }
    if (old)
        cache_hash_replace(&next->hash, &builder->build, hash, old, record);
    else
        cache_hash_insert(&next->hash, &builder->build, hash, record);
    cache_order_put(&next->order, &builder->build, record);
    if (old)
        count_out(builder, old);
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

/* ---- sweeping: the bytes of a replaced record stay in their chunk, and a chunk goes only when all of its records
 * have.
 *
 * Each delta build moves a few records out of a chunk that is mostly dead, picking up where the build before it stopped.
 * At half dead, moving one record frees the room of one more; so two moves for every change keep the garbage bounded
 * however long it goes on, while a small delta stays small. ---- */

#define MOVES_BASE 4
#define MOVES_PER_CHANGE 2
#define VISITS_PER_MOVE 8 /* dead records are passed over, which costs a lookup each */

/* Goes on with the victim at hand, or looks for one through one node of the table, in turn. */
static bool has_victim(struct chunk_table *table)
{
    const struct chunk_entry *sparsest = NULL;

    if (table->victim != CHUNK_NONE || table->node_count == 0)
        return table->victim != CHUNK_NONE;
    const struct chunk_node *node = table->nodes[table->sweep_node++ % table->node_count];
    for (size_t i = 0; i < CHUNK_NODE_ENTRIES; i++) {
        const struct chunk_entry *entry = &node->entries[i];
        bool is_sparse = entry->chunk && entry->chunk->index != table->tail && entry->live < entry->used / 2;
        if (is_sparse && (!sparsest || entry->live < sparsest->live))
            sparsest = entry;
    }
    if (sparsest)
        table->victim = sparsest->chunk->index;
    return sparsest;
}

void cache_sweep(struct cache_snapshot *next, struct build *build, size_t changes)
{
    struct chunk_table *table = &next->chunks;
    size_t moves = MOVES_BASE + MOVES_PER_CHANGE * changes;

    /* A chunk's last live record takes the chunk along, and then another may be chosen. */
    for (size_t visits = moves * VISITS_PER_MOVE; moves > 0 && visits > 0 && has_victim(table); visits--) {
        struct chunk_entry *entry = cache_chunks_own_entry(table, build, table->victim);
        const struct cache_record *record =
            (const struct cache_record *)((const char *)entry->chunk + entry->swept);
        size_t size = cache_record_size(record);
        assert(entry->swept < entry->used);
        entry->swept += (uint32_t)size;
        uint64_t hash = hash_seeded(record_key(record));
        if (cache_hash_find(&next->hash, hash, record_key(record)) != record)
            continue; /* this version no longer leads to it */
        struct cache_record *copy = memcpy(cache_chunks_alloc(table, build, size), record, size);
        build->copied_bytes += size;
        cache_hash_replace(&next->hash, build, hash, record, copy);
        cache_order_put(&next->order, build, copy);
        cache_chunks_forget(table, build, record);
        moves--;
    }
}

/* ---- the end ---- */
/* Frees the builder and returns the snapshot that it made. The next build may take the tails. */
static struct cache_snapshot *end_build(struct cache_builder *builder)
{
    struct cache_snapshot *next = builder->next;
    const struct chunk_table *chunks = &next->chunks;

    if (builder->base_tail)
        cache_chunk_release(builder->base_tail);
    if (chunks->tail != CHUNK_NONE && cache_chunks_entry(chunks, chunks->tail)->chunk != builder->base_tail)
        cache_chunk_release(cache_chunks_entry(chunks, chunks->tail)->chunk);
    cache_snapshot_unref(builder->base);
    cache_build_ended(&builder->build);
    free(builder);
    return next;
}

struct cache_snapshot *cache_builder_finish(struct cache_builder *builder, int64_t version)
{
    struct cache_snapshot *next = builder->next;

    settle(builder);
    if (builder->base)
        cache_sweep(next, &builder->build, builder->changes);
    next->info.version = version;
    next->info.version_text_len =
        (uint32_t)(str_put_u64(next->info.version_text, (uint64_t)version) - next->info.version_text);
    next->info.memory_bytes = cache_snapshot_memory(next);
    next->info.loaded_at_us = clock_unix_us();
    return end_build(builder);
}

void cache_snapshot_mark(struct cache_snapshot *snapshot, const struct uuid *event, int64_t committed_at_us)
{
    snapshot->info.event = *event;
    snapshot->info.committed_at_us = committed_at_us;
}

void cache_builder_abandon(struct cache_builder *builder)
{
    unstage_all(builder);
    if (builder->base_tail)
        builder->base_tail->used = builder->base_tail_used;
    cache_snapshot_unref(end_build(builder));
}
