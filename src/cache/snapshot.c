/* A snapshot: two indexes over records in chunks, and what is known about them. Reading it writes nothing. */
#include "cache/internal.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/memory.h"

#define FREE_INLINE_CHUNKS 8 /* more would hold a loop up for a millisecond and longer */

void *cache_shared_copy(const void *pointers, size_t count)
{
    struct shared **copy = memory_realloc_array(NULL, count, sizeof(struct shared *));

    if (count > 0)
        memcpy(copy, pointers, count * sizeof(struct shared *));
    for (size_t i = 0; i < count; i++)
        shared_ref(copy[i]);
    return copy;
}

struct cache_snapshot *cache_snapshot_create(const struct cache_snapshot *base, struct build *build)
{
    struct cache_snapshot *snapshot = memory_zalloc(sizeof(*snapshot));

    atomic_init(&snapshot->refs, 1);
    if (base) {
        snapshot->info = base->info;
        cache_hash_copy(&snapshot->hash, &base->hash);
        cache_order_copy(&snapshot->order, &base->order);
        cache_chunks_copy(&snapshot->chunks, &base->chunks);
    } else {
        cache_hash_init(&snapshot->hash, build);
        snapshot->chunks.tail = snapshot->chunks.victim = CHUNK_NONE;
    }
    return snapshot;
}

uint64_t cache_snapshot_memory(const struct cache_snapshot *snapshot)
{
    return sizeof(*snapshot) + snapshot->hash.bytes + snapshot->order.bytes + snapshot->chunks.bytes;
}

static void destroy(struct cache_snapshot *snapshot)
{
    cache_order_deinit(&snapshot->order);
    cache_hash_deinit(&snapshot->hash);
    cache_chunks_deinit(&snapshot->chunks);
    free(snapshot);
}

/* ---- what is held beside the current versions ---- */

static _Atomic int64_t all_bytes;      /* of parts */
static _Atomic int64_t building_bytes; /* of these, made by builds that are under way */
static _Atomic int64_t current_bytes;  /* of the versions in slots */

void cache_count_bytes(struct build *build, int64_t bytes)
{
    atomic_fetch_add_explicit(&all_bytes, bytes, memory_order_relaxed);
    if (!build)
        return;
    build->taken_bytes += bytes;
    atomic_fetch_add_explicit(&building_bytes, bytes, memory_order_relaxed);
}

void cache_build_ended(const struct build *build)
{
    atomic_fetch_sub_explicit(&building_bytes, build->taken_bytes, memory_order_relaxed);
}

bool cache_snapshot_is_retired(const struct cache_snapshot *snapshot)
{
    return atomic_load_explicit(&snapshot->is_retired, memory_order_relaxed);
}

void cache_snapshot_retire(struct cache_snapshot *snapshot)
{
    atomic_store_explicit(&snapshot->is_retired, true, memory_order_relaxed);
}

/* How many snapshots are being freed aside, so that a process can end without leaving one half freed. */
static pthread_mutex_t aside_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t aside_done = PTHREAD_COND_INITIALIZER;
static unsigned aside_count;

static void count_aside(unsigned by)
{
    pthread_mutex_lock(&aside_lock);
    aside_count += by;
    if (aside_count == 0)
        pthread_cond_broadcast(&aside_done);
    pthread_mutex_unlock(&aside_lock);
}

uint64_t cache_pinned_bytes(void)
{
    pthread_mutex_lock(&aside_lock);
    bool is_freeing = aside_count > 0;
    pthread_mutex_unlock(&aside_lock);
    int64_t bytes = atomic_load(&all_bytes) - atomic_load(&building_bytes) - atomic_load(&current_bytes);
    return is_freeing ? CACHE_PINNED_UNKNOWN : bytes > 0 ? (uint64_t)bytes : 0;
}

void cache_drain(void)
{
    pthread_mutex_lock(&aside_lock);
    while (aside_count > 0)
        pthread_cond_wait(&aside_done, &aside_lock);
    pthread_mutex_unlock(&aside_lock);
}

static void *destroy_large(void *snapshot)
{
    destroy(snapshot);
    malloc_trim(0); /* thousands of index pages just left holes in the heap */
    count_aside(-1u);
    return NULL;
}

void cache_snapshot_ref(struct cache_snapshot *snapshot)
{
    atomic_fetch_add_explicit(&snapshot->refs, 1, memory_order_relaxed);
}

void cache_snapshot_unref(struct cache_snapshot *snapshot)
{
    pthread_t thread;

    if (!snapshot || atomic_fetch_sub_explicit(&snapshot->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (cache_chunks_sole(&snapshot->chunks) > FREE_INLINE_CHUNKS) {
        count_aside(1);
        if (pthread_create(&thread, NULL, destroy_large, snapshot) == 0) {
            pthread_detach(thread);
            return;
        }
        count_aside(-1u);
    }
    destroy(snapshot);
}

const struct cache_info *cache_snapshot_info(const struct cache_snapshot *snapshot)
{
    return &snapshot->info;
}

const struct cache_record *cache_find(const struct cache_snapshot *snapshot, struct str key)
{
    return cache_hash_find(&snapshot->hash, hash_seeded(key), key);
}

void cache_find_many(const struct cache_snapshot *snapshot, const struct str *keys, size_t count,
                     const struct cache_record **out)
{
    cache_hash_find_many(&snapshot->hash, keys, count, out);
}

void cache_cursor_init(struct cache_cursor *cursor, const struct cache_snapshot *snapshot, struct str after)
{
    *cursor = (struct cache_cursor){snapshot, cache_order_seek(&snapshot->order, after)};
}

const struct cache_record *cache_cursor_next(struct cache_cursor *cursor)
{
    return cache_order_next(&cursor->snapshot->order, &cursor->place);
}

/* ---- the place where readers find a dictionary's current snapshot: one atomic pointer ---- */

struct cache_snapshot *cache_slot_acquire(const struct cache_slot *slot)
{
    struct cache_snapshot *snapshot = atomic_load_explicit(&slot->current, memory_order_acquire);

    if (snapshot)
        cache_snapshot_ref(snapshot);
    return snapshot;
}

static void retire(void *snapshot)
{
    cache_snapshot_unref(snapshot);
}

void cache_slot_publish(struct cache_slot *slot, struct cache_snapshot *snapshot, struct loop_group *group)
{
    struct cache_snapshot *old = atomic_exchange_explicit(&slot->current, snapshot, memory_order_acq_rel);
    uint64_t before = old ? old->info.memory_bytes : 0, after = snapshot ? snapshot->info.memory_bytes : 0;

    atomic_fetch_add_explicit(&current_bytes, (int64_t)(after - before), memory_order_relaxed);
    if (old)
        cache_snapshot_retire(old);
    if (old)
        loop_group_synchronize(group, retire, old);
}
