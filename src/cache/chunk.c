/* Chunks: aligned mappings that records are appended to, and the table in which a version lists those it
 * needs.
 *
 * Mapped, not malloc'ed, so that pages never touched are not resident and a freed chunk goes back to the
 * kernel at once. The next build goes on in the last chunk of its base, after the bytes that older versions
 * know, so that a delta of one key does not cost a chunk. Live bytes are kept per version, exactly: at zero
 * the version lets go. */
#include "cache/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/memory.h"

#define PAGE_BYTES ((size_t)4096)

static _Atomic uint64_t mapped_count;

static size_t pages_up(size_t size)
{
    return (size + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
}

/* Ends the process the way every allocation does when there is no memory. */
static void *checked(void *mapping)
{
    return mapping == MAP_FAILED ? memory_alloc(SIZE_MAX / 2) : mapping;
}

void *cache_scratch_alloc(size_t size)
{
    return checked(mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

/* Maps a chunk more than is needed and gives back what lies outside the aligned part. */
static struct chunk *chunk_create(struct build *build, size_t size)
{
    char *start = cache_scratch_alloc(size + CHUNK_BYTES);
    size_t before = (CHUNK_BYTES - ((uintptr_t)start & (CHUNK_BYTES - 1))) & (CHUNK_BYTES - 1);
    struct chunk *chunk = (struct chunk *)(start + before);

    if (before > 0)
        munmap(start, before);
    if (before < CHUNK_BYTES)
        munmap((char *)chunk + size, CHUNK_BYTES - before);
    shared_init(&chunk->shared, build->birth);
    chunk->used = CHUNK_HEADER_BYTES;
    atomic_init(&chunk->is_taken, true);
    chunk->mapped = size;
    atomic_fetch_add_explicit(&mapped_count, 1, memory_order_relaxed);
    return chunk;
}

static void chunk_unref(struct chunk *chunk)
{
    if (!shared_unref(&chunk->shared))
        return;
    cache_count_bytes(NULL, -(int64_t)chunk->counted);
    munmap(chunk, chunk->mapped);
    atomic_fetch_sub_explicit(&mapped_count, 1, memory_order_relaxed);
}

uint64_t cache_chunks_mapped(void)
{
    return atomic_load_explicit(&mapped_count, memory_order_relaxed);
}

static struct chunk_node *node_create(struct build *build)
{
    struct chunk_node *node = memory_zalloc(sizeof(*node));

    shared_init(&node->shared, build->birth);
    cache_count_bytes(build, sizeof *node);
    return node;
}

static void node_unref(struct chunk_node *node)
{
    if (!shared_unref(&node->shared))
        return;
    for (size_t i = 0; i < CHUNK_NODE_ENTRIES; i++)
        if (node->entries[i].chunk)
            chunk_unref(node->entries[i].chunk);
    cache_count_bytes(NULL, -(int64_t)sizeof *node);
    free(node);
}

void cache_chunks_copy(struct chunk_table *table, const struct chunk_table *base)
{
    *table = *base;
    table->nodes = cache_shared_copy(base->nodes, base->node_count);
}

void cache_chunks_deinit(struct chunk_table *table)
{
    for (uint32_t i = 0; i < table->node_count; i++)
        node_unref(table->nodes[i]);
    free(table->nodes);
}

const struct chunk_entry *cache_chunks_entry(const struct chunk_table *table, uint32_t index)
{
    return &table->nodes[index / CHUNK_NODE_ENTRIES]->entries[index % CHUNK_NODE_ENTRIES];
}

struct chunk_entry *cache_chunks_own_entry(struct chunk_table *table, struct build *build, uint32_t index)
{
    struct chunk_node **node = &table->nodes[index / CHUNK_NODE_ENTRIES];

    if ((*node)->shared.birth != build->birth) {
        struct chunk_node *copy = node_create(build);
        memcpy(copy->entries, (*node)->entries, sizeof(copy->entries));
        for (size_t i = 0; i < CHUNK_NODE_ENTRIES; i++)
            if (copy->entries[i].chunk)
                shared_ref(&copy->entries[i].chunk->shared);
        build->copied_bytes += sizeof(*copy);
        node_unref(*node);
        *node = copy;
    }
    return &(*node)->entries[index % CHUNK_NODE_ENTRIES];
}

static struct chunk_entry *add_chunk(struct chunk_table *table, struct build *build, size_t size)
{
    uint32_t places = table->node_count * CHUNK_NODE_ENTRIES, index = 0;

    /* The first free place, or a new one. Looked for once a chunk, so a plain search does. */
    if (table->chunk_count == places)
        index = places;
    while (index < places && cache_chunks_entry(table, index)->chunk)
        index++;
    if (index == places) {
        table->nodes = memory_realloc_array(table->nodes, table->node_count + 1, sizeof(struct chunk_node *));
        table->nodes[table->node_count++] = node_create(build);
        table->bytes += sizeof(struct chunk_node);
    }
    struct chunk_entry *entry = cache_chunks_own_entry(table, build, index);
    struct chunk *chunk = chunk_create(build, size);
    chunk->index = index;
    *entry = (struct chunk_entry){.chunk = chunk, .used = chunk->used, .swept = chunk->used};
    table->chunk_count++;
    return entry;
}

static void drop_chunk(struct chunk_table *table, struct chunk_entry *entry)
{
    if (table->victim == entry->chunk->index)
        table->victim = CHUNK_NONE;
    table->bytes -= pages_up(entry->used);
    table->chunk_count--;
    chunk_unref(entry->chunk);
    *entry = (struct chunk_entry){.chunk = NULL};
}

static struct cache_record *append(struct chunk_table *table, struct build *build, struct chunk_entry *entry,
                                   size_t size)
{
    struct cache_record *record = (struct cache_record *)((char *)entry->chunk + entry->used);

    table->bytes -= entry->used > CHUNK_HEADER_BYTES ? pages_up(entry->used) : 0;
    entry->used += (uint32_t)size;
    entry->live += (uint32_t)size;
    entry->chunk->used = entry->used;
    table->bytes += pages_up(entry->used);
    table->live += size;
    if (pages_up(entry->used) > entry->chunk->counted) {
        cache_count_bytes(build, (int64_t)(pages_up(entry->used) - entry->chunk->counted));
        entry->chunk->counted = (uint32_t)pages_up(entry->used);
    }
    return record;
}

/* A full tail becomes an ordinary chunk, which nothing holds if all its records are dead already. */
static void seal_tail(struct chunk_table *table, struct build *build)
{
    uint32_t tail = table->tail;

    table->tail = CHUNK_NONE;
    if (tail != CHUNK_NONE && cache_chunks_entry(table, tail)->live == 0)
        drop_chunk(table, cache_chunks_own_entry(table, build, tail));
}

struct chunk *cache_chunks_take_tail(struct chunk_table *table, struct build *build)
{
    struct chunk *chunk;

    if (table->tail == CHUNK_NONE)
        return NULL;
    chunk = cache_chunks_entry(table, table->tail)->chunk;
    if (!atomic_exchange_explicit(&chunk->is_taken, true, memory_order_acquire)) {
        if (chunk->used == cache_chunks_entry(table, table->tail)->used)
            return chunk;
        cache_chunk_release(chunk);
    }
    seal_tail(table, build);
    return NULL;
}

void cache_chunk_release(struct chunk *chunk)
{
    atomic_store_explicit(&chunk->is_taken, false, memory_order_release);
}

struct cache_record *cache_chunks_alloc(struct chunk_table *table, struct build *build, size_t size)
{
    struct chunk_entry *entry;

    if (size > CHUNK_BIG_BYTES)
        return append(table, build, add_chunk(table, build, pages_up(CHUNK_HEADER_BYTES + size)), size);
    if (table->tail != CHUNK_NONE) {
        entry = cache_chunks_own_entry(table, build, table->tail);
        if (entry->used + size <= CHUNK_BYTES)
            return append(table, build, entry, size);
        seal_tail(table, build);
    }
    entry = add_chunk(table, build, CHUNK_BYTES);
    table->tail = entry->chunk->index;
    return append(table, build, entry, size);
}

void cache_chunks_forget(struct chunk_table *table, struct build *build, const struct cache_record *record)
{
    size_t size = cache_record_size(record);
    uint32_t index = chunk_of(record)->index;
    struct chunk_entry *entry = cache_chunks_own_entry(table, build, index);

    assert(entry->chunk == chunk_of(record) && entry->live >= size);
    entry->live -= (uint32_t)size;
    table->live -= size;
    if (entry->live == 0 && index != table->tail)
        drop_chunk(table, entry);
}

size_t cache_chunks_sole(const struct chunk_table *table)
{
    size_t count = 0;

    for (uint32_t i = 0; i < table->node_count; i++) {
        const struct chunk_node *node = table->nodes[i];
        if (atomic_load_explicit(&node->shared.refs, memory_order_relaxed) > 1)
            continue;
        for (size_t j = 0; j < CHUNK_NODE_ENTRIES; j++) {
            struct chunk *chunk = node->entries[j].chunk;
            count += chunk && atomic_load_explicit(&chunk->shared.refs, memory_order_relaxed) == 1;
        }
    }
    return count;
}

/* ---- scratch arrays of a full load: mapped, for a heap keeps what it once grew to ---- */

void cache_scratch_free(void *scratch, size_t size)
{
    if (scratch)
        munmap(scratch, size ? size : 1);
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_MREMAP
#endif
#elif defined(__SANITIZE_THREAD__)
#define NO_MREMAP
#endif

/* Grown by moving pages, not bytes. ThreadSanitizer does not see mremap(): it takes the pages for those that had the
 * address before. */
void *cache_scratch_grow(void *old, size_t old_size, size_t size)
{
    if (!old)
        return cache_scratch_alloc(size);
#ifdef NO_MREMAP
    void *larger = memcpy(cache_scratch_alloc(size), old, old_size);
    cache_scratch_free(old, old_size);
    return larger;
#else
    return checked(mremap(old, old_size, size, MREMAP_MAYMOVE));
#endif
}
