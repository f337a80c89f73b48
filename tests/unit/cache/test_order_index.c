/* The order index by itself: leaves and nodes split and join, older versions stay as they were (R5, R16). */
#include "helpers.h"

#include <stdlib.h>

#define MANY 100000 /* inserted in order, more than 256 half-full leaves */

static struct chunk_table chunks;
static struct build build;
static struct order_index order;
static const struct cache_record **records; /* in key order */

static int start(void **state)
{
    char key[NAME_BYTES];

    (void)state;
    build = (struct build){.birth = 1};
    chunks = (struct chunk_table){.tail = CHUNK_NONE, .victim = CHUNK_NONE};
    order = (struct order_index){0};
    records = calloc(MANY, sizeof(*records));
    for (size_t i = 0; i < MANY; i++) {
        struct str text = name(key, "order", i);
        struct record_shape shape = cache_record_shape(text, STR("1"));
        struct cache_record *record = cache_chunks_alloc(&chunks, &build, shape.size);
        cache_record_write(record, &shape, text, STR("1"));
        records[i] = record;
    }
    return 0;
}

static int end(void **state)
{
    (void)state;
    free(records);
    cache_order_deinit(&order);
    cache_chunks_deinit(&chunks);
    return 0;
}

/* Every `step`-th record from `first` on, and nothing else. */
static void assert_holds(const struct order_index *where, size_t first, size_t step)
{
    struct order_place place = cache_order_seek(where, STR_NONE);

    for (size_t i = first; i < MANY; i += step)
        assert_ptr_equal(cache_order_next(where, &place), records[i]);
    assert_null(cache_order_next(where, &place));
}

static size_t leaf_count(void)
{
    size_t count = 0;

    for (size_t i = 0; order.root && i < order.root->count; i++)
        count += order.root->items[i].part->count;
    return count;
}

static void it_grows_and_empties_in_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < MANY; i++)
        cache_order_put(&order, &build, records[i]);
    assert_true(order.root->count > 1);
    assert_true(order.bytes < MANY * 10); /* half-full leaves are half as large */
    assert_holds(&order, 0, 1);
    for (size_t i = 0; i < MANY; i++)
        cache_order_remove(&order, &build, record_key(records[i]));
    assert_null(order.root);
    assert_int_equal(order.bytes, 0);
}

static void it_grows_and_shrinks_in_any_order(void **state)
{
    const size_t stride = 70001; /* coprime to MANY */
    size_t full;

    (void)state;
    for (size_t i = 0; i < MANY; i++)
        cache_order_put(&order, &build, records[i * stride % MANY]);
    assert_holds(&order, 0, 1);
    full = leaf_count();
    for (size_t i = 0; i < MANY; i++)
        if (i * stride % MANY % 16)
            cache_order_remove(&order, &build, record_key(records[i * stride % MANY]));
    assert_holds(&order, 0, 16);
    assert_true(leaf_count() < full / 4); /* sparse leaves were joined */
}

static void a_seek_finds_what_is_behind_any_key(void **state)
{
    struct order_place place = cache_order_seek(&order, STR("nothing here"));

    (void)state;
    assert_null(cache_order_next(&order, &place));
    for (size_t i = 1; i < MANY; i += 2)
        cache_order_append(&order, &build, records[i]);
    cache_order_trim(&order);
    assert_holds(&order, 1, 2);
    for (size_t i = 0; i < MANY; i++) { /* half of them absent */
        place = cache_order_seek(&order, record_key(records[i]));
        assert_ptr_equal(cache_order_next(&order, &place),
                         i + (i % 2 ? 2 : 1) < MANY ? records[i + (i % 2 ? 2 : 1)] : NULL);
    }
    place = cache_order_seek(&order, STR("\x01"));
    assert_ptr_equal(cache_order_next(&order, &place), records[1]);
    place = cache_order_seek(&order, STR("z"));
    assert_null(cache_order_next(&order, &place));
}

static void a_load_fills_its_leaves(void **state)
{
    (void)state;
    for (size_t i = 0; i < MANY; i++)
        cache_order_append(&order, &build, records[i]);
    cache_order_trim(&order);
    assert_holds(&order, 0, 1);
    assert_true(order.bytes * 9 < (uint64_t)MANY * 8 * 10); /* over 90 % pointers */
}

static void an_older_version_stays_as_it_was(void **state)
{
    struct order_index before;

    (void)state;
    for (size_t i = 0; i < MANY; i += 2)
        cache_order_append(&order, &build, records[i]);
    before = order;
    build = (struct build){.birth = 2};
    cache_order_copy(&order, &before);
    cache_order_put(&order, &build, records[1]);
    assert_true(build.copied_bytes < 8192); /* one leaf, one node */
    for (size_t i = 3; i < MANY; i += 2)
        cache_order_put(&order, &build, records[i]);
    assert_holds(&before, 0, 2);
    assert_holds(&order, 0, 1);
    for (size_t i = 0; i < MANY; i += 2)
        cache_order_remove(&order, &build, record_key(records[i]));
    assert_holds(&before, 0, 2);
    cache_order_deinit(&before);
    assert_holds(&order, 1, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_grows_and_empties_in_order, start, end),
        cmocka_unit_test_setup_teardown(it_grows_and_shrinks_in_any_order, start, end),
        cmocka_unit_test_setup_teardown(a_seek_finds_what_is_behind_any_key, start, end),
        cmocka_unit_test_setup_teardown(a_load_fills_its_leaves, start, end),
        cmocka_unit_test_setup_teardown(an_older_version_stays_as_it_was, start, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
