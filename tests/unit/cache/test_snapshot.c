/* Reading a snapshot (R3 to R6), and the life of one that others share parts with. */
#include "helpers.h"

#define COUNT 3000

static void find_many_agrees_with_find(void **state)
{
    static char names[1000][NAME_BYTES];
    struct str keys[1000];
    const struct cache_record *found[1000];
    struct cache_snapshot *snapshot = load_numbers(COUNT, 1);

    (void)state;
    for (size_t i = 0; i < 1000; i++)
        keys[i] = name(names[i], i % 3 ? "key" : "absent", i * 2);
    for (size_t count = 0; count <= 1000; count = count < 70 ? count + 1 : count + 465) {
        memset(found, 0xFF, sizeof(found));
        cache_find_many(snapshot, keys, count, found);
        for (size_t i = 0; i < count; i++) {
            assert_ptr_equal(found[i], cache_find(snapshot, keys[i]));
            assert_int_equal(found[i] != NULL, i % 3 != 0);
        }
    }
    cache_snapshot_unref(snapshot);
}

/* R5: pages taken one after the other by the last key of the page before give everything once, in bytewise
 * order. */
static void paging_by_the_last_key_misses_nothing(void **state)
{
    struct cache_snapshot *snapshot = load_numbers(COUNT, 1);
    struct str after = STR_NONE;
    size_t seen = 0;
    char key[NAME_BYTES];

    (void)state;
    for (;;) {
        struct cache_cursor cursor;
        const struct cache_record *record = NULL, *last = NULL;
        cache_cursor_init(&cursor, snapshot, after);
        for (size_t i = 0; i < 7 && (record = cache_cursor_next(&cursor)); i++) {
            assert_str(cache_record_key(record), name(key, "key", seen++));
            last = record;
        }
        if (!last)
            break;
        after = cache_record_key(last);
    }
    assert_int_equal(seen, COUNT);
    cache_snapshot_unref(snapshot);
}

/* R6: the digest says the same for the same items, however they came. */
static void the_digest_depends_on_items_alone(void **state)
{
    struct cache_snapshot *first = load_numbers(COUNT, 1), *changed, *back;
    struct cache_builder *builder = cache_builder_create(first, 0);

    (void)state;
    put(builder, STR("key-000001"), STR("\"other\""));
    put(builder, STR("more"), STR("1"));
    changed = cache_builder_finish(builder, 2);
    assert_false(hash128_eq(first->info.digest, changed->info.digest));
    builder = cache_builder_create(changed, 0);
    put(builder, STR("key-000001"), STR("1"));
    assert_true(cache_builder_delete(builder, STR("more")));
    back = cache_builder_finish(builder, 3);
    assert_true(hash128_eq(first->info.digest, back->info.digest));
    assert_int_equal(first->info.body_bytes, back->info.body_bytes);
    cache_snapshot_unref(changed);
    cache_snapshot_unref(first);
    cache_snapshot_unref(back);
    assert_all_freed();
}

static void a_reference_keeps_an_old_version_whole(void **state)
{
    struct cache_snapshot *old = load_numbers(COUNT, 1), *now = old;
    const struct cache_record *record = cache_find(old, STR("key-000100"));
    char key[NAME_BYTES];

    (void)state;
    cache_snapshot_ref(old);
    for (size_t i = 0; i < COUNT; i++) {
        struct cache_builder *builder = cache_builder_create(now, 0);
        struct cache_snapshot *next;
        assert_true(cache_builder_delete(builder, name(key, "key", i)));
        next = cache_builder_finish(builder, 2);
        cache_snapshot_unref(now);
        now = next;
    }
    assert_int_equal(cache_snapshot_info(now)->item_count, 0);
    assert_ptr_equal(cache_find(old, STR("key-000100")), record);
    assert_str(cache_record_payload(record), STR("100"));
    cache_snapshot_unref(now);
    assert_str(cache_record_payload(cache_find(old, STR("key-002999"))), STR("2999"));
    cache_snapshot_unref(old);
    assert_all_freed();
}

/* Large enough to be freed aside. */
static void a_large_snapshot_is_freed_completely(void **state)
{
    (void)state;
    cache_snapshot_unref(load_numbers(300000, 1));
    assert_all_freed();
}

/* After a load from nothing; bodies of odd and even lengths. */
static void an_item_takes_at_most_24_bytes_beside_its_body(void **state)
{
    enum { ITEMS = 100000 };
    struct cache_snapshot *snapshot = load_numbers(ITEMS, 1);
    const struct cache_info *info = cache_snapshot_info(snapshot);

    (void)state;
    assert_true(info->memory_bytes - info->body_bytes <= 24 * ITEMS);
    cache_snapshot_unref(snapshot);
    assert_all_freed();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(find_many_agrees_with_find),
        cmocka_unit_test(paging_by_the_last_key_misses_nothing),
        cmocka_unit_test(the_digest_depends_on_items_alone),
        cmocka_unit_test(a_reference_keeps_an_old_version_whole),
        cmocka_unit_test(a_large_snapshot_is_freed_completely),
        cmocka_unit_test(an_item_takes_at_most_24_bytes_beside_its_body),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
