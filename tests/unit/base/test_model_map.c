/* The hash map against an array: entries with few different hashes, so that buckets are long, and walks whose bodies remove and free. */
#include "model.h"

#include <stdlib.h>

#include "base/map.h"
#include "base/memory.h"

enum { ENTRIES = 40, HASHES = 12 };

struct entry {
    struct map_node node;
    size_t number;
};

static struct map map;
static struct entry *entries[ENTRIES]; /* NULL: not in the map */
static size_t count;

/* Some differ only above the bits that choose a bucket, some below. */
static uint64_t hash_of(size_t number)
{
    return number % HASHES * (number % 2 ? UINT64_C(1) << 32 : 1);
}

static void begin(void)
{
    map = (struct map){0};
    count = 0;
}

static void add(void)
{
    size_t number = model_below(ENTRIES);
    if (entries[number])
        return;
    model_note("%zu", number);
    entries[number] = malloc(sizeof *entries[number]);
    entries[number]->number = number;
    map_add(&map, &entries[number]->node, hash_of(number));
    count++;
}

static void drop(size_t number)
{
    map_remove(&map, &entries[number]->node);
    free(entries[number]);
    entries[number] = NULL;
    count--;
}

static void remove_one(void)
{
    size_t number = model_below(ENTRIES);
    if (!entries[number])
        return;
    model_note("%zu", number);
    drop(number);
}

static void walk_and_remove(void)
{
    bool was_seen[ENTRIES] = {false};
    size_t seen = 0, before = count;
    unsigned keeps = 1 + (unsigned)model_below(4);
    struct map_node *node;
    MAP_EACH(node, &map) {
        size_t number = CONTAINER_OF(node, struct entry, node)->number;
        MODEL_CHECK(!was_seen[number], "%zu was walked over twice", number);
        was_seen[number] = true;
        seen++;
        if (!model_one_in(keeps))
            drop(number);
    }
    MODEL_CHECK(seen == before, "walked over %zu of %zu", seen, before);
}

static void reserve(void)
{
    map_reserve(&map, model_below(200));
}

static void empty(void)
{
    for (size_t i = 0; i < ENTRIES; i++) {
        free(entries[i]);
        entries[i] = NULL;
    }
    map_deinit(&map);
    count = 0;
}

static void check(void)
{
    MODEL_CHECK(map.count == count, "%zu entries, not %zu", map.count, count);
    for (size_t wanted = 0; wanted < ENTRIES; wanted++) {
        size_t found = 0, same = 0;
        struct map_node *node;
        for (size_t i = 0; i < ENTRIES; i++)
            same += entries[i] && hash_of(i) == hash_of(wanted);
        MAP_MATCH(node, &map, hash_of(wanted)) {
            size_t number = CONTAINER_OF(node, struct entry, node)->number;
            MODEL_CHECK(entries[number] && &entries[number]->node == node, "found what was removed");
            MODEL_CHECK(hash_of(number) == hash_of(wanted), "found %zu for %zu", number, wanted);
            found++;
        }
        MODEL_CHECK(found == same, "found %zu of %zu with the hash of %zu", found, same, wanted);
    }
}

int main(void)
{
    static const struct model_operation operations[] = {{"add", 60, add},
                                                        {"remove", 30, remove_one},
                                                        {"walk and remove", 4, walk_and_remove},
                                                        {"reserve", 4, reserve},
                                                        {"empty", 1, empty}};
    return model_main(&(struct model){.name = "map",
                                      .seeds = 2000,
                                      .steps = 120,
                                      .begin = begin,
                                      .check = check,
                                      .end = empty,
                                      MODEL_OPERATIONS(operations)});
}
