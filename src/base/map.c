/* The hash map: buckets of chained nodes; it grows and never shrinks. */
#include "base/map.h"

#include <stdlib.h>

#include "base/memory.h"

enum { BUCKETS_MIN = 16 };

static struct map_node **bucket_of(const struct map *map, uint64_t hash)
{
    return &map->buckets[hash & (map->bucket_count - 1)];
}

void map_reserve(struct map *map, size_t count)
{
    struct map bigger = {.bucket_count = map->bucket_count ? map->bucket_count : BUCKETS_MIN,
                         .count = map->count};
    struct map_node *node;

    while (bigger.bucket_count < count)
        bigger.bucket_count *= 2;
    if (bigger.bucket_count == map->bucket_count)
        return;
    bigger.buckets = memory_zalloc(bigger.bucket_count * sizeof(struct map_node *));
    MAP_EACH(node, map) {
        struct map_node **bucket = bucket_of(&bigger, node->hash);
        node->next = *bucket;
        *bucket = node;
    }
    free(map->buckets);
    *map = bigger;
}

void map_add(struct map *map, struct map_node *node, uint64_t hash)
{
    map_reserve(map, map->count + 1);
    struct map_node **bucket = bucket_of(map, hash);
    node->hash = hash;
    node->next = *bucket;
    *bucket = node;
    map->count++;
}

void map_remove(struct map *map, struct map_node *node)
{
    struct map_node **link = bucket_of(map, node->hash);

    while (*link != node)
        link = &(*link)->next;
    *link = node->next;
    map->count--;
}

struct map_node *map_walk_next(const struct map *map, struct map_walk *walk)
{
    struct map_node *node = walk->next;

    while (!node && walk->bucket < map->bucket_count)
        node = map->buckets[walk->bucket++];
    walk->next = node ? node->next : NULL;
    return node;
}

void map_deinit(struct map *map)
{
    free(map->buckets);
    *map = (struct map){0};
}
