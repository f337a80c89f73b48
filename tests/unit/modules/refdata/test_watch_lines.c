/* Lines of a watch (R22): applied to what was held before, they make what is held after. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/json.h"
#include "modules/refdata/query/watch.h"
#include "stream/stream_inside.h"

enum { KEYS = 300, PLENTY = 1 << 20, BOTH = 1 << STREAM_NDJSON | 1 << STREAM_SSE };

static uint64_t random_state;

static unsigned chance(unsigned below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % below;
}

/* About half of the keys, each with one of three values. */
static struct cache_snapshot *some_content(int64_t version)
{
    struct cache_builder *builder = cache_builder_create(NULL, 0);
    struct error error;
    for (int i = 0; i < KEYS; i++) {
        char key[32], payload[32];
        int key_len = snprintf(key, sizeof key, "k\"%d", i),
            len = snprintf(payload, sizeof payload, "[%u]", chance(3));
        if (chance(2))
            assert_int_equal(cache_builder_put(builder, str_of(key, (size_t)key_len),
                                               str_of(payload, (size_t)len), &error),
                             STATUS_OK);
    }
    return cache_builder_finish(builder, version);
}

static void apply_line(struct cache_builder *builder, struct str line, int64_t version, struct arena *arena)
{
    struct json_value object, member, key, payload;
    struct error error;
    int64_t number;
    assert_int_equal(json_parse(line, 64, &object, &error), STATUS_OK);
    assert_true(json_get(&object, STR("version"), &member) && json_to_i64(&member, &number) &&
                number == version);
    assert_true(json_get(&object, STR("key"), &key) && json_get(&object, STR("op"), &member));
    struct str name = json_str_decode(key.raw, arena);
    if (json_get(&object, STR("payload"), &payload)) {
        assert_true(json_str_eq(member.raw, STR("UPSERT")));
        assert_int_equal(cache_builder_put(builder, name, payload.raw, &error), STATUS_OK);
    } else {
        assert_true(json_str_eq(member.raw, STR("DELETE")));
        (void)cache_builder_delete(builder, name);
    }
}

/* The lines on top of `before`; the last one must be upToDate. */
static struct cache_snapshot *apply(struct cache_snapshot *before, const struct stream_segment *segment)
{
    struct cache_builder *builder = cache_builder_create(before, 0);
    struct str rest = str_of(segment->bytes, segment->len), line, last = STR_NONE;
    struct arena arena = ARENA(1024);
    char up_to_date[64];
    unsigned lines = 0;
    assert_true(str_ends_with(rest, STR("\n")));
    rest.len--;
    for (; str_split(&rest, '\n', &line); last = line, lines++)
        if (last.ptr)
            apply_line(builder, last, segment->to, &arena);
    snprintf(up_to_date, sizeof up_to_date, "{\"upToDate\":%lld}", (long long)segment->to);
    assert_true(str_eq(last, str_from(up_to_date)));
    assert_int_equal(lines, segment->lines + 1);
    arena_deinit(&arena);
    return cache_builder_finish(builder, segment->to);
}

static void assert_same(const struct cache_snapshot *a, const struct cache_snapshot *b)
{
    assert_int_equal(cache_snapshot_info(a)->item_count, cache_snapshot_info(b)->item_count);
    assert_memory_equal(&cache_snapshot_info(a)->digest, &cache_snapshot_info(b)->digest,
                        sizeof(struct hash128));
}

static struct refdata_watch_change *written(struct cache_snapshot *before, struct cache_snapshot *after,
                                            const struct refdata_change *change, size_t bytes_max)
{
    struct refdata_watch_change *made = refdata_watch_change_create(before, after, change, BOTH, bytes_max);
    refdata_watch_change_write(&made->job);
    return made;
}

static void a_difference_leads_from_one_to_the_other(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        random_state = seed;
        struct cache_snapshot *before = some_content(3), *after = some_content(5);
        struct refdata_watch_change *change = written(before, after, NULL, PLENTY);
        const struct stream_segment *lines = change->segments[STREAM_NDJSON];
        assert_int_equal(lines->from, 3);
        assert_int_equal(lines->to, 5);
        assert_false(lines->can_be_joined);
        struct cache_snapshot *applied = apply(before, lines);
        assert_same(applied, after);
        cache_snapshot_unref(applied);
        refdata_watch_change_destroy(change);
        cache_snapshot_unref(before);
        cache_snapshot_unref(after);
    }
}

static void keys_of_several_versions_are_told_once_with_their_last_value(void **state)
{
    (void)state;
    struct cache_builder *builder = cache_builder_create(NULL, 0);
    struct error error;
    assert_int_equal(cache_builder_put(builder, STR("a"), STR("1"), &error), STATUS_OK);
    struct cache_snapshot *before = cache_builder_finish(builder, 1);
    builder = cache_builder_create(before, 0);
    assert_int_equal(cache_builder_put(builder, STR("b"), STR("{\"n\":0.10}"), &error), STATUS_OK);
    struct cache_snapshot *after = cache_builder_finish(builder, 3);
    struct str keys[] = {STR("a"), STR("b"), STR("gone")};
    struct refdata_watch_change *change = written(
        before, after, &(struct refdata_change){.from = 1, .to = 3, .keys = keys, .key_count = 3}, PLENTY);
    const struct stream_segment *lines = change->segments[STREAM_NDJSON],
                                *events = change->segments[STREAM_SSE];
    assert_true(lines->can_be_joined && events->can_be_joined);
    assert_true(events->from == 1 && events->to == 3 && events->lines == lines->lines);
    assert_true(str_eq(str_of(lines->bytes, lines->len),
                       STR("{\"version\":3,\"key\":\"a\",\"op\":\"UPSERT\",\"payload\":1}\n"
                           "{\"version\":3,\"key\":\"b\",\"op\":\"UPSERT\",\"payload\":{\"n\":0.10}}\n"
                           "{\"version\":3,\"key\":\"gone\",\"op\":\"DELETE\"}\n"
                           "{\"upToDate\":3}\n")));
    /* An id in the middle of a version would lose the rest of it for a browser that reconnects there. */
    assert_true(
        str_eq(str_of(events->bytes, events->len),
               STR("data: {\"version\":3,\"key\":\"a\",\"op\":\"UPSERT\",\"payload\":1}\n\n"
                   "data: {\"version\":3,\"key\":\"b\",\"op\":\"UPSERT\",\"payload\":{\"n\":0.10}}\n\n"
                   "data: {\"version\":3,\"key\":\"gone\",\"op\":\"DELETE\"}\n\n"
                   "id: 3\ndata: {\"upToDate\":3}\n\n")));
    refdata_watch_change_destroy(change);
    cache_snapshot_unref(before);
    cache_snapshot_unref(after);
}

static void what_changes_nothing_is_told_only_where_the_version_moved(void **state)
{
    (void)state;
    random_state = 7;
    struct cache_snapshot *before = some_content(3);
    random_state = 7;
    struct cache_snapshot *same = some_content(3);
    random_state = 7;
    struct cache_snapshot *later = some_content(4);
    assert_null(refdata_watch_change_create(before, before, NULL, BOTH, PLENTY));
    struct refdata_watch_change *change = written(before, same, NULL, PLENTY);
    assert_true(!change->is_too_large && !change->segments[STREAM_NDJSON] && !change->segments[STREAM_SSE]);
    refdata_watch_change_destroy(change);
    change = written(before, later, NULL, PLENTY);
    const struct stream_segment *lines = change->segments[STREAM_NDJSON];
    assert_true(str_eq(str_of(lines->bytes, lines->len), STR("{\"upToDate\":4}\n")));
    refdata_watch_change_destroy(change);
    cache_snapshot_unref(before);
    cache_snapshot_unref(same);
    cache_snapshot_unref(later);
}

static void what_is_too_much_is_not_told_at_all(void **state)
{
    (void)state;
    random_state = 9;
    struct cache_snapshot *before = some_content(3), *after = some_content(4);
    struct refdata_watch_change *change = written(before, after, NULL, 500);
    assert_true(change->is_too_large && !change->segments[STREAM_NDJSON] && !change->segments[STREAM_SSE]);
    refdata_watch_change_destroy(change);
    cache_snapshot_unref(before);
    cache_snapshot_unref(after);
}

static void a_format_that_is_not_followed_is_not_written(void **state)
{
    (void)state;
    random_state = 11;
    struct cache_snapshot *before = some_content(3), *after = some_content(4);
    for (unsigned format = 0; format < STREAM_FORMATS; format++) {
        struct refdata_watch_change *change =
            refdata_watch_change_create(before, after, NULL, 1u << format, PLENTY);
        refdata_watch_change_write(&change->job);
        assert_non_null(change->segments[format]);
        assert_null(change->segments[!format]);
        refdata_watch_change_destroy(change);
    }
    cache_snapshot_unref(before);
    cache_snapshot_unref(after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_difference_leads_from_one_to_the_other),
        cmocka_unit_test(keys_of_several_versions_are_told_once_with_their_last_value),
        cmocka_unit_test(what_changes_nothing_is_told_only_where_the_version_moved),
        cmocka_unit_test(what_is_too_much_is_not_told_at_all),
        cmocka_unit_test(a_format_that_is_not_followed_is_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
