/* The whole cache against a sorted array (R5, R6, R13, R16): thousands of random changes over many versions,
 * several of them kept alive at once, branched from, abandoned, and released in random order. Run under ASan,
 * it is the proof that whatever versions share is freed once, and not before the last of them. */
#include "helpers.h"

#include <stdlib.h>

#include "base/buf.h"
#include "base/json.h"

#define KEYS 1500
#define HELD 6
#define ROUNDS 400
#define KEY_BYTES 80

/* What a version should hold: payload number per key, 0 = absent. */
struct model {
    uint32_t values[KEYS];
};

struct held {
    struct cache_snapshot *snapshot;
    struct model model;
};

static char keys[KEYS][KEY_BYTES];
static struct str key_strs[KEYS]; /* in bytewise order */

static int by_bytes(const void *a, const void *b)
{
    return str_compare(*(const struct str *)a, *(const struct str *)b);
}

/* Shared prefixes longer than 8 bytes, keys that are prefixes of others, escapes, control and zero bytes. */
static int make_keys(void **state)
{
    static const char *const patterns[] = {"%zu",
                                           "item:common:prefix:%zu",
                                           "quote\"%zu",
                                           "back\\slash\n%zu",
                                           "\xD0\xBA\xD0\xBB\xD1\x8E\xD1\x87-%zu",
                                           "%zu-tail"};
    (void)state;
    for (size_t i = 0; i < KEYS; i++) {
        int len = snprintf(keys[i], KEY_BYTES, patterns[i % 6], i / 6 + 1);
        key_strs[i] = str_of(keys[i], (size_t)len + i % 3); /* one or two zero bytes behind some */
    }
    qsort(key_strs, KEYS, sizeof(key_strs[0]), by_bytes);
    return 0;
}

/* Sizes around everything that matters: tiny, LARGE, and a chunk of its own now and then. */
static struct str payload_of(uint32_t value, struct buf *scratch)
{
    size_t len = value % 97 == 0  ? CHUNK_BIG_BYTES + value % 5000
                 : value % 7 == 0 ? value % 3000
                                  : value % 60;

    buf_clear(scratch);
    buf_printf(scratch, "{\"n\":%u,\"s\":\"", value);
    memset(buf_reserve(scratch, len), 'x', len);
    buf_commit(scratch, len);
    buf_put_str(scratch, STR("\"}"));
    return buf_str(scratch);
}

static void change(struct cache_builder *builder, struct model *model, uint64_t *random, struct buf *scratch)
{
    size_t at = below(random, KEYS);

    if (below(random, 5) < 2) {
        assert_int_equal(cache_builder_delete(builder, key_strs[at]), model->values[at] != 0);
        model->values[at] = 0;
    } else {
        model->values[at] = (uint32_t)(1 + below(random, 1000000));
        put(builder, key_strs[at], payload_of(model->values[at], scratch));
    }
}

static void check_record(const struct cache_record *record, size_t at, uint32_t value, struct buf *scratch)
{
    struct buf body = {0};
    struct str payload = payload_of(value, scratch);

    buf_put_str(&body, STR("{\"key\":"));
    json_put_string(&body, key_strs[at]);
    buf_printf(&body, ",\"payload\":%.*s}", STR_ARG(payload));
    assert_non_null(record);
    assert_str(cache_record_key(record), key_strs[at]);
    assert_str(cache_record_payload(record), payload);
    assert_str(cache_record_body(record), buf_str(&body));
    assert_true(cache_record_tag(record) == hash_content(buf_str(&body)));
    buf_deinit(&body);
}

/* Every `step`-th key, found one by one and together. */
static void check_finds(const struct held *held, size_t step, struct buf *scratch)
{
    static const struct cache_record *many[KEYS];

    cache_find_many(held->snapshot, key_strs, KEYS, many);
    for (size_t i = 0; i < KEYS; i++) {
        const struct cache_record *record = cache_find(held->snapshot, key_strs[i]);
        assert_ptr_equal(record, many[i]);
        if (!held->model.values[i])
            assert_null(record);
        else if (i % step == 0)
            check_record(record, i, held->model.values[i], scratch);
        else
            assert_str(cache_record_key(record), key_strs[i]);
    }
}

static void check_cursor(const struct held *held, size_t first, struct str after)
{
    struct cache_cursor cursor;
    const struct cache_record *record;

    cache_cursor_init(&cursor, held->snapshot, after);
    for (size_t i = first; i < KEYS; i++) {
        if (!held->model.values[i])
            continue;
        record = cache_cursor_next(&cursor);
        assert_non_null(record);
        assert_str(cache_record_key(record), key_strs[i]);
    }
    assert_null(cache_cursor_next(&cursor));
    assert_null(cache_cursor_next(&cursor));
}

static void check_info(const struct held *held, struct buf *scratch)
{
    const struct cache_info *info = cache_snapshot_info(held->snapshot);
    struct hash128 digest = {0, 0};
    uint64_t count = 0, bytes = 0;

    for (size_t i = 0; i < KEYS; i++) {
        struct str payload;
        if (!held->model.values[i])
            continue;
        payload = payload_of(held->model.values[i], scratch);
        count++;
        bytes += json_string_size(key_strs[i]) + payload.len + sizeof("{\"key\":,\"payload\":}") - 1;
        hash128_add(&digest, hash_item(key_strs[i], payload));
    }
    assert_int_equal(info->item_count, count);
    assert_int_equal(info->body_bytes, bytes);
    assert_true(hash128_eq(info->digest, digest));
    assert_true(info->memory_bytes >= bytes);
}

static void check(const struct held *held, uint64_t *random, struct buf *scratch)
{
    size_t from = below(random, KEYS);

    check_info(held, scratch);
    check_finds(held, 13, scratch);
    check_cursor(held, 0, STR_NONE);
    check_cursor(held, from + 1, key_strs[from]);
}

/* A load from nothing, in another order and with keys put twice, must give the same digest as the deltas. */
static void check_rebuild(const struct held *held, uint64_t *random, struct buf *scratch)
{
    struct held rebuilt = {.model = held->model};
    struct cache_builder *builder = cache_builder_create(NULL, 0);
    size_t start = below(random, KEYS), twice = 0;

    for (size_t i = 0; i < KEYS; i++) {
        size_t at = (start + i * 7) % KEYS; /* 7 does not divide KEYS */
        if (!held->model.values[at])
            continue;
        if (below(random, 10) == 0) {
            put(builder, key_strs[at], STR("\"replaced\""));
            twice++;
        }
        put(builder, key_strs[at], payload_of(held->model.values[at], scratch));
    }
    if (below(random, 2))
        assert_int_equal(cache_builder_replaced(builder), twice);
    rebuilt.snapshot = cache_builder_finish(builder, 1);
    check(&rebuilt, random, scratch);
    assert_true(hash128_eq(rebuilt.snapshot->info.digest, held->snapshot->info.digest));
    cache_snapshot_unref(rebuilt.snapshot);
}

/* The place of a random held version is taken by one built on another (or on the same). */
static void next_version(struct held held[HELD], uint64_t *random, int64_t version, struct buf *scratch)
{
    struct held *base = &held[below(random, HELD)], *gone = &held[below(random, HELD)];
    struct cache_builder *builder = cache_builder_create(base->snapshot, 0);
    struct model model = base->model;
    struct cache_snapshot *old;

    for (size_t i = below(random, 10) == 0 ? 600 : below(random, 12); i > 0; i--)
        change(builder, &model, random, scratch);
    if (below(random, 6) == 0) {
        cache_builder_abandon(builder);
        return;
    }
    old = gone->snapshot;
    gone->snapshot = cache_builder_finish(builder, version);
    gone->model = model;
    if (old)
        cache_snapshot_unref(old);
    check(gone, random, scratch);
}

static void run(uint64_t seed)
{
    static struct held held[HELD];
    uint64_t random = seed;
    struct buf scratch = {0};

    for (size_t i = 0; i < HELD; i++)
        held[i] = (struct held){.snapshot = cache_builder_finish(cache_builder_create(NULL, 0), 0)};
    for (int64_t version = 1; version <= ROUNDS; version++) {
        next_version(held, &random, version, &scratch);
        if (version % 20 == 0)
            check_rebuild(&held[below(&random, HELD)], &random, &scratch);
    }
    for (size_t i = 0; i < HELD; i++) {
        check(&held[i], &random, &scratch);
        cache_snapshot_unref(held[i].snapshot);
    }
    buf_deinit(&scratch);
}

static void random_versions_match_the_model(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++)
        run(seed);
    assert_all_freed();
}

/* One line of versions, each kept until a later one: every byte of garbage is swept in the end. */
static void a_line_of_versions_matches_the_model(void **state)
{
    static struct held now;
    uint64_t random = 77;
    struct buf scratch = {0};

    (void)state;
    now = (struct held){.snapshot = cache_builder_finish(cache_builder_create(NULL, 0), 0)};
    for (int64_t version = 1; version <= 600; version++) {
        struct cache_snapshot *old = now.snapshot;
        struct cache_builder *builder = cache_builder_create(old, 0);
        for (size_t i = 0; i < 20; i++)
            change(builder, &now.model, &random, &scratch);
        now.snapshot = cache_builder_finish(builder, version);
        cache_snapshot_unref(old);
        if (version % 10 == 0)
            check(&now, &random, &scratch);
    }
    cache_snapshot_unref(now.snapshot);
    buf_deinit(&scratch);
    assert_all_freed();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(random_versions_match_the_model, make_keys),
        cmocka_unit_test_setup(a_line_of_versions_matches_the_model, make_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
