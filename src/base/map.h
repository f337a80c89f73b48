/* One hash map: intrusive and chained. An entry embeds a struct map_node and stays where its owner put it; the map allocates
 * only its buckets. The caller hashes (hash_seeded() for what a peer chooses) and compares keys:
 *
 *     struct room { struct map_node node; struct str name; … };
 *     struct map rooms = {0};                               // an empty map
 *     map_add(&rooms, &room->node, hash_seeded(room->name));
 *     struct map_node *node;
 *     MAP_MATCH(node, &rooms, hash_seeded(name)) {          // those with this very hash, newest first: mostly one
 *         struct room *room = CONTAINER_OF(node, struct room, node);
 *         if (str_eq(room->name, name))
 *             return room;
 *     }
 *     MAP_EACH(node, &rooms)                                // all; the body may remove (and free) the current one
 *         map_remove(&rooms, node);
 *     map_deinit(&rooms);                                   // the entries are their owner's
 *
 * No thread safety of its own. Nothing may be added within MAP_EACH. */
#ifndef FRESHET_BASE_MAP_H
#define FRESHET_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"

struct map_node {
    struct map_node *next;
    uint64_t hash;
};

struct map {
    struct map_node **buckets; /* a power of two of them; NULL until the first entry */
    size_t bucket_count, count;
};

void map_add(struct map *map, struct map_node *node, uint64_t hash); /* does not look for an equal one */
void map_remove(struct map *map, struct map_node *node);             /* which must be in it */
void map_reserve(struct map *map,
                 size_t count);   /* buckets for so many, so that no map_add() up to there allocates */
void map_deinit(struct map *map); /* empty again */

static inline uint64_t map_hash_pair(struct str a, struct str b)
{
    return hash_seeded(a) * UINT64_C(0x9e3779b97f4a7c15) ^ hash_seeded(b);
}

static inline struct map_node *map_match(struct map_node *node, uint64_t hash)
{
    while (node && node->hash != hash)
        node = node->next;
    return node;
}

static inline struct map_node *map_first(const struct map *map, uint64_t hash)
{
    return map->count ? map_match(map->buckets[hash & (map->bucket_count - 1)], hash) : NULL;
}

#define MAP_MATCH(node, map, wanted) \
    for ((node) = map_first((map), (wanted)); (node); (node) = map_match((node)->next, (node)->hash))

struct map_walk {
    size_t bucket;         /* the next one */
    struct map_node *next; /* taken before the body runs */
};
struct map_node *map_walk_next(const struct map *map, struct map_walk *walk);

#define MAP_EACH(node, map) \
    for (struct map_walk walk_of_##node = {0}; ((node) = map_walk_next((map), &walk_of_##node)) != NULL;)

#endif
