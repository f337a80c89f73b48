/* The hash map and the backoff. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/backoff.h"
#include "base/map.h"
#include "base/memory.h"

enum { ENTRIES = 5000 };
struct entry {
    int before; /* the node need not be first */
    struct map_node node;
    char key[16];
};

static uint64_t hash_of(const char *key, bool collides)
{
    return collides ? strlen(key) : hash_seeded(str_from(key));
}

static struct entry *find(const struct map *map, const char *key, bool collides)
{
    struct map_node *node;
    MAP_MATCH(node, map, hash_of(key, collides)) {
        struct entry *entry = CONTAINER_OF(node, struct entry, node);
        if (strcmp(entry->key, key) == 0)
            return entry;
    }
    return NULL;
}

static void entries_are_found_until_they_are_removed(void **state)
{
    (void)state;
    for (int collides = 0; collides < 2; collides++) {
        int count = collides ? ENTRIES / 10 : ENTRIES;
        struct entry *entries = memory_zalloc((size_t)count * sizeof *entries);
        struct map map = {0};
        assert_null(find(&map, "k0", collides));
        for (int i = 0; i < count; i++) {
            snprintf(entries[i].key, sizeof entries[i].key, "k%d", i);
            map_add(&map, &entries[i].node, hash_of(entries[i].key, collides));
        }
        assert_int_equal(map.count, count);
        for (int i = 0; i < count; i++)
            assert_ptr_equal(find(&map, entries[i].key, collides), &entries[i]);
        for (int i = 0; i < count; i += 2)
            map_remove(&map, &entries[i].node);
        for (int i = 0; i < count; i++)
            assert_ptr_equal(find(&map, entries[i].key, collides), i % 2 ? &entries[i] : NULL);
        map_deinit(&map);
        free(entries);
    }
}

static void the_current_entry_may_be_removed_and_freed_on_the_way(void **state)
{
    (void)state;
    struct map map = {0};
    struct map_node *node;
    size_t seen = 0;
    MAP_EACH(node, &map)
        seen++;
    for (int i = 0; i < ENTRIES; i++) {
        struct entry *entry = memory_zalloc(sizeof *entry);
        snprintf(entry->key, sizeof entry->key, "%d", i);
        map_add(&map, &entry->node, hash_of(entry->key, false));
    }
    MAP_EACH(node, &map) {
        struct entry *entry = CONTAINER_OF(node, struct entry, node);
        seen++;
        if (atoi(entry->key) % 2) {
            map_remove(&map, node);
            free(entry);
        }
    }
    assert_int_equal(seen, ENTRIES);
    assert_int_equal(map.count, ENTRIES / 2);
    MAP_EACH(node, &map) {
        assert_int_equal(atoi(CONTAINER_OF(node, struct entry, node)->key) % 2, 0);
        map_remove(&map, node);
        free(CONTAINER_OF(node, struct entry, node));
    }
    assert_int_equal(map.count, 0);
    map_deinit(&map);
}

static void a_reserved_map_keeps_its_buckets(void **state)
{
    (void)state;
    struct entry entries[100] = {0};
    struct map map = {0};
    map_reserve(&map, 100);
    struct map_node **buckets = map.buckets;
    for (int i = 0; i < 100; i++)
        map_add(&map, &entries[i].node, (uint64_t)i);
    assert_ptr_equal(map.buckets, buckets);
    map_deinit(&map);
}

static void a_backoff_doubles_with_jitter_up_to_its_maximum_and_starts_again(void **state)
{
    (void)state;
    struct backoff backoff = {.min_ms = 10, .max_ms = 1000};
    for (int round = 0; round < 2; round++) {
        for (unsigned i = 1; i < 100; i++) {
            int64_t ceiling_ms = i < 7 ? INT64_C(10) << i : 1000, wait_ms = backoff_next_ms(&backoff);
            assert_in_range(wait_ms, ceiling_ms / 2, ceiling_ms);
        }
        backoff_reset(&backoff);
    }
    struct backoff constant = {.min_ms = 5, .max_ms = 5};
    assert_int_equal(backoff_next_ms(&constant), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_found_until_they_are_removed),
        cmocka_unit_test(the_current_entry_may_be_removed_and_freed_on_the_way),
        cmocka_unit_test(a_reserved_map_keeps_its_buckets),
        cmocka_unit_test(a_backoff_doubles_with_jitter_up_to_its_maximum_and_starts_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
