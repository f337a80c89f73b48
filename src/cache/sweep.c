/* Sweeping: a replaced record leaves its bytes behind in a chunk, and a chunk goes only when all of its
 * records have.
 *
 * Each delta build moves a few records out of a chunk that is mostly dead, picking up where the build
 * before it stopped. At half dead, moving one record frees the room of one more; so two moves for every
 * change keep the garbage bounded however long it goes on, while a small delta stays small. */
#include "cache/internal.h"

#include <assert.h>

#define MOVES_BASE 4
#define MOVES_PER_CHANGE 2
#define VISITS_PER_MOVE 8 /* dead records are passed over, which costs a lookup each */

static bool is_sparse(const struct chunk_table *table, const struct chunk_entry *entry)
{
    return entry->chunk && entry->chunk->index != table->tail && entry->live < entry->used / 2;
}

/* Goes on with the victim at hand, or looks for one through one node of the table, in turn. */
static bool has_victim(struct chunk_table *table)
{
    const struct chunk_node *node;
    const struct chunk_entry *sparsest = NULL;

    if (table->victim != CHUNK_NONE || table->node_count == 0)
        return table->victim != CHUNK_NONE;
    node = table->nodes[table->sweep_node++ % table->node_count];
    for (size_t i = 0; i < CHUNK_NODE_ENTRIES; i++)
        if (is_sparse(table, &node->entries[i]) && (!sparsest || node->entries[i].live < sparsest->live))
            sparsest = &node->entries[i];
    if (sparsest)
        table->victim = sparsest->chunk->index;
    return sparsest;
}

static void move(struct cache_snapshot *next, struct build *build, uint64_t hash,
                 const struct cache_record *record)
{
    size_t size = cache_record_size(record);
    struct cache_record *copy = cache_chunks_alloc(&next->chunks, build, size);

    memcpy(copy, record, size);
    build->copied_bytes += size;
    cache_hash_replace(&next->hash, build, hash, record, copy);
    cache_order_put(&next->order, build, copy);
    cache_chunks_forget(&next->chunks, build, record);
}

/* Moves the record if this version still leads to it. */
static bool move_if_live(struct cache_snapshot *next, struct build *build, const struct cache_record *record)
{
    struct str key = record_key(record);
    uint64_t hash = hash_seeded(key);
    bool live = cache_hash_find(&next->hash, hash, key) == record;

    if (live)
        move(next, build, hash, record);
    return live;
}

void cache_sweep(struct cache_snapshot *next, struct build *build, size_t changes)
{
    struct chunk_table *table = &next->chunks;
    size_t moves = MOVES_BASE + MOVES_PER_CHANGE * changes;
    size_t visits = moves * VISITS_PER_MOVE;

    /* A chunk's last live record takes the chunk along, and then another may be chosen. */
    for (; moves > 0 && visits > 0 && has_victim(table); visits--) {
        struct chunk_entry *entry = cache_chunks_own_entry(table, build, table->victim);
        const struct cache_record *record =
            (const struct cache_record *)((const char *)entry->chunk + entry->swept);
        assert(entry->swept < entry->used);
        entry->swept += (uint32_t)cache_record_size(record);
        moves -= move_if_live(next, build, record);
    }
}
