/* Garbage of replaced records is swept, a little with each delta, so that memory stays bounded (R16, R17). */
#include "helpers.h"

#define COUNT 20000
#define CHANGES 50

static struct cache_snapshot *change_some(struct cache_snapshot *base, uint64_t *random, int64_t version)
{
    struct cache_builder *builder = cache_builder_create(base, 0);
    struct cache_snapshot *next;
    char key[NAME_BYTES], payload[80];

    for (size_t i = 0; i < CHANGES; i++) {
        int len = snprintf(payload, sizeof(payload), "{\"version\":%lld,\"text\":\"and some more bytes\"}",
                           (long long)version);
        put(builder, name(key, "key", below(random, COUNT)), str_of(payload, (size_t)len));
    }
    next = cache_builder_finish(builder, version);
    cache_snapshot_unref(base);
    return next;
}

static void garbage_stays_below_what_lives(void **state)
{
    struct cache_snapshot *snapshot = load_numbers(COUNT, 1);
    uint64_t random = 5;

    (void)state;
    for (int64_t version = 2; version < 4000; version++) {
        snapshot = change_some(snapshot, &random, version);
        assert_true(snapshot->chunks.bytes <= 2 * snapshot->chunks.live + 3 * CHUNK_BYTES);
    }
    assert_int_equal(cache_snapshot_info(snapshot)->item_count, COUNT);
    cache_snapshot_unref(snapshot);
    assert_all_freed();
}

/* Several chunks with one record of three alive: a load deletes, and only deltas sweep. */
static struct cache_snapshot *load_sparse(size_t count)
{
    struct cache_builder *builder = cache_builder_create(NULL, 0);
    char key[NAME_BYTES];

    for (size_t i = 0; i < count; i++)
        put(builder, name(key, "key", i), STR("{\"text\":\"enough to fill some chunks with\"}"));
    for (size_t i = 0; i < count; i++)
        if (i % 3)
            assert_true(cache_builder_delete(builder, name(key, "key", i)));
    return cache_builder_finish(builder, 1);
}

/* Even where much could be swept, a delta of one key moves a handful of records, and a large one all of them. */
static void a_delta_sweeps_in_proportion(void **state)
{
    struct cache_snapshot *sparse = load_sparse(50000), *swept;
    struct build build = {.birth = UINT64_MAX};

    (void)state;
    swept = cache_snapshot_create(sparse, &build);
    cache_chunks_take_tail(&swept->chunks, &build);
    cache_sweep(swept, &build, 1);
    assert_in_range(build.copied_bytes, 1, 64 * 1024);
    cache_sweep(swept, &build, 50000);
    assert_true(swept->chunks.bytes < sparse->chunks.bytes * 2 / 3);
    assert_int_equal(swept->chunks.live, sparse->chunks.live); /* moved, not lost */
    cache_snapshot_unref(sparse);
    cache_snapshot_unref(swept);
    assert_all_freed();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(garbage_stays_below_what_lives),
        cmocka_unit_test(a_delta_sweeps_in_proportion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
