/* Building: what is refused, what is replaced, what a delta costs (R13, R16), the bound on memory (R17). */
#include "helpers.h"

#include <stdlib.h>

#include "base/memory.h"

static void nothing_put_is_an_empty_dictionary(void **state)
{
    struct cache_snapshot *snapshot = cache_builder_finish(cache_builder_create(NULL, 0), 3);
    const struct cache_info *info = cache_snapshot_info(snapshot);
    struct cache_cursor cursor;

    (void)state;
    assert_int_equal(info->version, 3);
    assert_int_equal(info->item_count, 0);
    assert_true(hash128_eq(info->digest, (struct hash128){0, 0}));
    assert_true(info->loaded_at_us > 0);
    assert_null(cache_find(snapshot, STR("any")));
    assert_null(cache_find(snapshot, STR_NONE));
    cache_cursor_init(&cursor, snapshot, STR_NONE);
    assert_null(cache_cursor_next(&cursor));
    cache_cursor_init(&cursor, snapshot, STR("any"));
    assert_null(cache_cursor_next(&cursor));
    cache_snapshot_unref(snapshot);
    assert_all_freed();
}

static void assert_refused(struct cache_builder *builder, struct str key, struct str payload,
                           const char *field)
{
    struct error error;

    assert_int_equal(cache_builder_put(builder, key, payload, &error), STATUS_BAD_REQUEST);
    assert_string_equal(error.field, field);
}

static void bad_items_are_refused_and_change_nothing(void **state)
{
    struct cache_builder *builder = cache_builder_create(NULL, 0);
    char long_key[1025];
    struct cache_snapshot *snapshot;

    (void)state;
    memset(long_key, 'k', sizeof(long_key));
    assert_refused(builder, STR_NONE, STR("1"), "key");
    assert_refused(builder, str_of(long_key, 1025), STR("1"), "key");
    assert_refused(builder, STR("\xC0\x80"), STR("1"), "key");
    assert_refused(builder, STR("\xED\xA0\x80"), STR("1"), "key");
    assert_refused(builder, STR("k"), STR_NONE, "payload");
    put(builder, str_of(long_key, 1024), STR("1"));
    snapshot = cache_builder_finish(builder, 1);
    assert_int_equal(cache_snapshot_info(snapshot)->item_count, 1);
    assert_str(cache_record_key(cache_find(snapshot, str_of(long_key, 1024))), str_of(long_key, 1024));
    assert_null(cache_find(snapshot, str_of(long_key, 1023)));
    cache_snapshot_unref(snapshot);
}

static void the_last_of_equal_keys_wins(void **state)
{
    struct cache_builder *builder = cache_builder_create(NULL, 0);
    struct cache_snapshot *snapshot;

    (void)state;
    put(builder, STR("b"), STR("1"));
    put(builder, STR("a"), STR("2"));
    put(builder, STR("b"), STR("3"));
    put(builder, STR("b"), STR("4"));
    assert_int_equal(cache_builder_replaced(builder), 2);
    put(builder, STR("a"), STR("5"));
    put(builder, STR("a"), STR("5"));
    assert_int_equal(cache_builder_replaced(builder), 4);
    snapshot = cache_builder_finish(builder, 1);
    assert_int_equal(cache_snapshot_info(snapshot)->item_count, 2);
    assert_str(cache_record_payload(cache_find(snapshot, STR("a"))), STR("5"));
    assert_str(cache_record_payload(cache_find(snapshot, STR("b"))), STR("4"));
    cache_snapshot_unref(snapshot);
    assert_all_freed();
}

static void a_load_may_delete_what_it_put(void **state)
{
    struct cache_builder *builder = cache_builder_create(NULL, 0);
    struct cache_snapshot *snapshot;

    (void)state;
    put(builder, STR("a"), STR("1"));
    put(builder, STR("b"), STR("2"));
    assert_true(cache_builder_delete(builder, STR("a")));
    assert_false(cache_builder_delete(builder, STR("a")));
    put(builder, STR("c"), STR("3"));
    snapshot = cache_builder_finish(builder, 1);
    assert_null(cache_find(snapshot, STR("a")));
    assert_non_null(cache_find(snapshot, STR("b")));
    assert_non_null(cache_find(snapshot, STR("c")));
    cache_snapshot_unref(snapshot);
}

static void payloads_of_a_megabyte_stand_alone(void **state)
{
    size_t len = (size_t)1 << 20;
    char *payload = memory_alloc(len);
    struct cache_builder *builder = cache_builder_create(NULL, 0);
    struct cache_snapshot *snapshot, *next;
    uint64_t bytes;

    (void)state;
    memset(payload, '1', len);
    put(builder, STR("small"), STR("1"));
    put(builder, STR("big"), str_of(payload, len));
    put(builder, STR("bigger"), str_of(payload, len));
    snapshot = cache_builder_finish(builder, 1);
    assert_str(cache_record_payload(cache_find(snapshot, STR("big"))), str_of(payload, len));
    bytes = cache_snapshot_info(snapshot)->memory_bytes;
    assert_true(bytes > 2 * len && bytes < 2 * len + 65536);
    builder = cache_builder_create(snapshot, 0);
    assert_true(cache_builder_delete(builder, STR("big")));
    put(builder, STR("bigger"), STR("1"));
    next = cache_builder_finish(builder, 2);
    assert_true(cache_snapshot_info(next)->memory_bytes < 65536);
    cache_snapshot_unref(snapshot);
    cache_snapshot_unref(next);
    free(payload);
    assert_all_freed();
}

static void memory_has_a_bound(void **state)
{
    const uint64_t memory_max = 200000;
    struct cache_builder *builder = cache_builder_create(NULL, memory_max);
    struct error error;
    enum status status = STATUS_OK;
    struct cache_snapshot *snapshot;
    char key[NAME_BYTES];
    size_t count = 0;

    (void)state;
    while (status == STATUS_OK && count < 100000)
        status = cache_builder_put(builder, name(key, "key", count++), STR("{\"some\":\"payload\"}"), &error);
    assert_int_equal(status, STATUS_NO_MEMORY);
    assert_non_null(strstr(error.message, "200000 bytes"));
    assert_true(count > 1000);
    snapshot = cache_builder_finish(builder, 1); /* what went in before is whole */
    assert_int_equal(cache_snapshot_info(snapshot)->item_count, count - 1);
    assert_true(cache_snapshot_info(snapshot)->memory_bytes <= memory_max + 8192);
    builder = cache_builder_create(snapshot, memory_max / 2);
    assert_int_equal(cache_builder_put(builder, STR("one more"), STR("1"), &error), STATUS_NO_MEMORY);
    cache_builder_abandon(builder);
    cache_snapshot_unref(snapshot);
}

static uint64_t copied_by_delta(struct cache_snapshot *base, size_t count, size_t changes)
{
    struct cache_builder *builder = cache_builder_create(base, 0);
    char key[NAME_BYTES];
    uint64_t copied;

    for (size_t i = 0; i < changes; i++)
        put(builder, name(key, "key", i * (count / changes)), STR("\"changed\""));
    copied = cache_builder_copied_bytes(builder);
    cache_builder_abandon(builder);
    return copied;
}

/* R16: swapping is O(changed). Counted in bytes, so the machine's speed has no say. */
static void a_delta_copies_in_proportion_to_what_changed(void **state)
{
    struct cache_snapshot *small = load_numbers(20000, 1), *large = load_numbers(200000, 1);

    (void)state;
    assert_true(copied_by_delta(large, 200000, 1) < 16 * 1024);
    assert_true(copied_by_delta(large, 200000, 1) < 3 * copied_by_delta(small, 20000, 1));
    assert_true(copied_by_delta(large, 200000, 10) < 10 * 16 * 1024);
    assert_int_equal(copied_by_delta(large, 200000, 0), 0);
    cache_snapshot_unref(small);
    cache_snapshot_unref(large);
}

/* The same payload again is no change: nothing is copied, the record stays where it is. */
static void an_unchanged_item_costs_nothing(void **state)
{
    struct cache_snapshot *base = load_numbers(1000, 1), *next;
    struct cache_builder *builder = cache_builder_create(base, 0);

    (void)state;
    put(builder, STR("key-000007"), STR("7"));
    assert_int_equal(cache_builder_copied_bytes(builder), 0);
    next = cache_builder_finish(builder, 2);
    assert_ptr_equal(cache_find(next, STR("key-000007")), cache_find(base, STR("key-000007")));
    cache_snapshot_unref(base);
    cache_snapshot_unref(next);
}

/* An abandoned build leaves its base untouched, and the room it took in the base's last chunk to the next
 * one. */
static void an_abandoned_build_leaves_no_trace(void **state)
{
    struct cache_snapshot *base = load_numbers(100, 1), *next;
    struct chunk *tail = cache_chunks_entry(&base->chunks, base->chunks.tail)->chunk;
    uint32_t used = tail->used;
    struct cache_builder *builder = cache_builder_create(base, 0), *beside = cache_builder_create(base, 0);

    (void)state;
    put(builder, STR("new"), STR("1"));
    put(beside, STR("new"), STR("2"));
    assert_true(cache_builder_delete(builder, STR("key-000001")));
    assert_true(tail->used > used);
    cache_builder_abandon(builder);
    assert_int_equal(tail->used, used);
    assert_null(cache_find(base, STR("new")));
    assert_non_null(cache_find(base, STR("key-000001")));
    next = cache_builder_finish(beside, 2);
    assert_str(cache_record_payload(cache_find(next, STR("new"))), STR("2"));
    cache_snapshot_unref(base);
    cache_snapshot_unref(next);
    assert_all_freed();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_put_is_an_empty_dictionary),
        cmocka_unit_test(bad_items_are_refused_and_change_nothing),
        cmocka_unit_test(the_last_of_equal_keys_wins),
        cmocka_unit_test(a_load_may_delete_what_it_put),
        cmocka_unit_test(payloads_of_a_megabyte_stand_alone),
        cmocka_unit_test(memory_has_a_bound),
        cmocka_unit_test(a_delta_copies_in_proportion_to_what_changed),
        cmocka_unit_test(an_unchanged_item_costs_nothing),
        cmocka_unit_test(an_abandoned_build_leaves_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
