/* The hash index by itself: growth by splitting, pages that span nodes, emptying, tight pages (R16). */
#include "helpers.h"

#include <stdlib.h>

#define MANY 120000 /* beyond 256 pages, so that the directory needs several nodes */

static struct chunk_table chunks;
static struct build build;
static struct hash_index hash;
static const struct cache_record **records;
static size_t record_count;

static int start(void **state)
{
    (void)state;
    build = (struct build){.birth = 1};
    chunks = (struct chunk_table){.tail = CHUNK_NONE, .victim = CHUNK_NONE};
    cache_hash_init(&hash, &build);
    records = calloc(MANY, sizeof(*records));
    record_count = 0;
    return 0;
}

static int end(void **state)
{
    (void)state;
    free(records);
    cache_hash_deinit(&hash);
    cache_chunks_deinit(&chunks);
    return 0;
}

static uint64_t hash_of(const struct cache_record *record)
{
    return hash_seeded(record_key(record));
}

static const struct cache_record *make_record(struct str key)
{
    struct record_shape shape = cache_record_shape(key, STR("1"));
    struct cache_record *record = cache_chunks_alloc(&chunks, &build, shape.size);

    cache_record_write(record, &shape, key, STR("1"));
    return record;
}

static void insert(struct str key)
{
    const struct cache_record *record = make_record(key);

    cache_hash_insert(&hash, &build, hash_of(record), record);
    records[record_count++] = record;
}

static const struct cache_record *find(const struct hash_index *where, const struct cache_record *record)
{
    return cache_hash_find(where, hash_of(record), record_key(record));
}

static void assert_all_found(size_t first)
{
    for (size_t i = first; i < record_count; i++)
        assert_ptr_equal(find(&hash, records[i]), records[i]);
}

static void it_grows_by_splitting_and_empties_again(void **state)
{
    char key[NAME_BYTES];
    uint64_t empty_bytes = hash.bytes;

    (void)state;
    for (size_t i = 0; i < MANY; i++)
        insert(name(key, "grow", i));
    assert_true(hash.bits > HASH_NODE_BITS);
    assert_true(hash.bytes < MANY * 14); /* split pages are allocated for what they hold */
    assert_all_found(0);
    for (size_t i = 0; i < MANY; i++) {
        cache_hash_remove(&hash, &build, hash_of(records[i]), records[i]);
        assert_null(find(&hash, records[i]));
        if (i % 10000 == 0)
            assert_all_found(i + 1);
    }
    assert_true(hash.bytes < empty_bytes + ((size_t)16 << hash.bits)); /* the directory alone is left */
}

/* Keys whose hashes begin alike deepen one page, while its neighbours go on standing in very many entries. */
static void a_page_may_span_several_nodes(void **state)
{
    char key[NAME_BYTES];
    struct hash_index before;
    const struct cache_record *far = NULL, *newer;

    (void)state;
    for (size_t i = 0; !far; i++) {
        const struct cache_record *record = make_record(name(key, "far", i));
        if (hash_of(record) >> 62 == 3)
            far = record;
    }
    cache_hash_insert(&hash, &build, hash_of(far), far);
    for (size_t i = 0; record_count < 2000; i++)
        if (hash_seeded(name(key, "near", i)) >> 54 == 0)
            insert(name(key, "near", i));
    assert_true(hash.bits > HASH_NODE_BITS + 2);
    assert_all_found(0);
    assert_ptr_equal(find(&hash, far), far);

    before = hash; /* changing the wide page under another build leaves the old directory as it was */
    build.birth = 2;
    cache_hash_copy(&hash, &before);
    newer = make_record(record_key(far));
    cache_hash_replace(&hash, &build, hash_of(far), far, newer);
    assert_ptr_equal(find(&before, far), far);
    assert_ptr_equal(find(&hash, far), newer);
    cache_hash_deinit(&before);
    assert_ptr_equal(find(&hash, far), newer);
    assert_all_found(0);
}

static void a_load_gives_what_inserts_give(void **state)
{
    struct staged *staged = calloc(MANY, sizeof(*staged));
    char key[NAME_BYTES];

    (void)state;
    for (size_t i = 0; i < MANY; i++) {
        records[i] = make_record(name(key, "load", i));
        staged[i] = (struct staged){hash_of(records[i]), (struct cache_record *)records[i]};
    }
    record_count = MANY;
    cache_hash_load(&hash, &build, staged, MANY);
    free(staged);
    assert_all_found(0);
    assert_null(cache_hash_find(&hash, hash_seeded(STR("absent")), STR("absent")));
    assert_true(hash.bytes * 3 <
                (uint64_t)MANY * 8 * 4); /* at least 75 % full, heads and directory included */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_grows_by_splitting_and_empties_again, start, end),
        cmocka_unit_test_setup_teardown(a_page_may_span_several_nodes, start, end),
        cmocka_unit_test_setup_teardown(a_load_gives_what_inserts_give, start, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
