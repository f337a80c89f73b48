/* Publishing under readers (R13): every read sees one version whole, and a retired one goes when nobody can
 * see it. Run under TSan, it is the proof that readers need no lock. */
#include "helpers.h"

#include "loop/group.h"

#define LOOPS 2
#define KEYS 64
#define VERSIONS 2000

static struct cache_slot slot;
static atomic_bool stopping;
static _Atomic uint64_t reads;

/* A reader lives on a loop and posts itself again and again. */
struct reader {
    struct loop_message message;
    struct cache_snapshot *held; /* across callbacks, like a stream's */
    uint64_t random;
    atomic_bool done;
};

static uint64_t version_of(const struct cache_record *record)
{
    uint64_t version = 0;

    assert_non_null(record);
    assert_true(str_to_u64(cache_record_payload(record), &version));
    return version;
}

/* Every item of version N says N. */
static void check_whole(const struct cache_snapshot *snapshot, uint64_t *random)
{
    uint64_t version = (uint64_t)cache_snapshot_info(snapshot)->version;
    const struct cache_record *record;
    struct cache_cursor cursor;
    char key[NAME_BYTES];
    size_t count = 0;

    for (int i = 0; i < 4; i++)
        assert_int_equal(version_of(cache_find(snapshot, name(key, "key", below(random, KEYS)))), version);
    cache_cursor_init(&cursor, snapshot, STR_NONE);
    for (; (record = cache_cursor_next(&cursor)); count++)
        assert_int_equal(version_of(record), version);
    assert_int_equal(count, KEYS);
    atomic_fetch_add(&reads, 1);
}

static void read_on(struct loop *loop, struct loop_message *message)
{
    struct reader *reader = (struct reader *)message;
    const struct cache_snapshot *now = cache_slot_read(&slot);

    if (now)
        check_whole(now, &reader->random);
    if (reader->held && below(&reader->random, 8) == 0) {
        check_whole(reader->held, &reader->random);
        cache_snapshot_unref(reader->held);
        reader->held = NULL;
    } else if (!reader->held) {
        reader->held = cache_slot_acquire(&slot);
    }
    if (!atomic_load(&stopping)) {
        loop_post(loop, message);
        return;
    }
    if (reader->held)
        cache_snapshot_unref(reader->held);
    atomic_store(&reader->done, true);
}

static struct cache_snapshot *build_version(struct cache_snapshot *base, int64_t version)
{
    struct cache_builder *builder = cache_builder_create(base, 0);
    char key[NAME_BYTES], payload[NAME_BYTES];
    int len = snprintf(payload, sizeof(payload), "%lld", (long long)version);

    for (size_t i = 0; i < KEYS; i++)
        put(builder, name(key, "key", i), str_of(payload, (size_t)len));
    return cache_builder_finish(builder, version);
}

/* Deltas on the one before, with a load from nothing now and then. The publisher keeps its own reference to
 * build on. */
static void publish_versions(struct loop_group *group)
{
    struct cache_snapshot *last = NULL;

    for (int64_t version = 1; version <= VERSIONS; version++) {
        struct cache_snapshot *next = build_version(version % 100 == 0 ? NULL : last, version);
        cache_snapshot_ref(next);
        cache_slot_publish(&slot, next, group);
        if (last)
            cache_snapshot_unref(last);
        last = next;
    }
    cache_snapshot_unref(last);
}

static void every_read_sees_one_version_whole(void **state)
{
    static struct reader readers[LOOPS];
    struct loop_group *group = loop_group_create(LOOPS, 0);

    (void)state;
    atomic_init(&slot.current, NULL);
    loop_group_start(group);
    for (unsigned i = 0; i < LOOPS; i++) {
        readers[i] = (struct reader){.message.on_message = read_on, .random = i + 1};
        loop_post(loop_group_loop(group, i), &readers[i].message);
    }
    publish_versions(group);
    while (atomic_load(&reads) < 1000)
        usleep(1000);
    cache_slot_publish(&slot, NULL, group);
    assert_null(cache_slot_acquire(&slot));
    atomic_store(&stopping, true);
    for (unsigned i = 0; i < LOOPS; i++)
        while (!atomic_load(&readers[i].done))
            usleep(1000);
    loop_group_stop(group);
    loop_group_destroy(group);
    assert_all_freed();
}

/* C6: of a version that is not current any more, until the last reader has left it. */
static void old_versions_that_readers_hold_are_counted(void **state)
{
    struct loop_group *group = loop_group_create(1, 0);
    struct cache_snapshot *held = build_version(NULL, 1);
    uint64_t bytes = cache_snapshot_info(held)->memory_bytes;

    (void)state;
    atomic_init(&slot.current, NULL);
    loop_group_start(group);
    cache_snapshot_ref(held);
    cache_slot_publish(&slot, held, group);
    assert_int_equal(cache_pinned_bytes(), 0);
    assert_false(cache_snapshot_is_retired(held));
    cache_slot_publish(&slot, build_version(NULL, 2), group);
    assert_true(cache_snapshot_is_retired(held));
    assert_in_range(cache_pinned_bytes(), bytes / 2, bytes);
    cache_slot_publish(&slot, build_version(NULL, 3), group); /* nobody holds version 2 */
    while (cache_pinned_bytes() > bytes)
        usleep(1000);
    assert_in_range(cache_pinned_bytes(), bytes / 2, bytes);
    cache_snapshot_unref(held);
    while (cache_pinned_bytes() > 0)
        usleep(1000);
    cache_slot_publish(&slot, NULL, group);
    loop_group_stop(group);
    loop_group_destroy(group);
    assert_all_freed();
    assert_int_equal(cache_pinned_bytes(), 0);
}

/* C6: one that is made for single readers has no slot: it counts as an old one from the beginning. */
static void a_snapshot_of_single_readers_counts_as_an_old_version(void **state)
{
    struct cache_snapshot *snapshot = build_version(NULL, 1);
    uint64_t bytes = cache_snapshot_info(snapshot)->memory_bytes;

    (void)state;
    assert_false(cache_snapshot_is_retired(snapshot));
    cache_snapshot_retire(snapshot);
    assert_true(cache_snapshot_is_retired(snapshot));
    assert_in_range(cache_pinned_bytes(), bytes / 2, bytes);
    cache_snapshot_unref(snapshot);
    assert_all_freed();
    assert_int_equal(cache_pinned_bytes(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_read_sees_one_version_whole),
        cmocka_unit_test(a_snapshot_of_single_readers_counts_as_an_old_version),
        cmocka_unit_test(old_versions_that_readers_hold_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
