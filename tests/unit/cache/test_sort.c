/* Sorting a full load (R5): bytewise, stable, whatever the keys have in common. */
#include "helpers.h"

#include <stdlib.h>

#include "base/memory.h"

#define COUNT 5000
#define KEY_BYTES 64

static struct chunk_table chunks;
static struct build build = {.birth = 1};
static struct sort_entry entries[COUNT], scratch[COUNT];
static struct cache_record *arrived[COUNT];

typedef size_t key_fn(char out[KEY_BYTES], uint64_t *random);

static size_t few_letters(char out[KEY_BYTES], uint64_t *random)
{
    size_t len = 1 + below(random, 12);

    for (size_t i = 0; i < len; i++)
        out[i] = "ab\0\x7f"[below(random, 4)];
    return len;
}

static size_t long_families(char out[KEY_BYTES], uint64_t *random)
{
    static const char *const families[] = {"customer/region-1/", "customer/region-2/branch-17/", "c",
                                           "customer/regio"};

    return (size_t)snprintf(out, KEY_BYTES, "%s%zu", families[below(random, 4)], below(random, 3000));
}

static size_t all_the_same(char out[KEY_BYTES], uint64_t *random)
{
    (void)random;
    return (size_t)snprintf(out, KEY_BYTES, "the one and only key of this dictionary");
}

static size_t any_bytes(char out[KEY_BYTES], uint64_t *random)
{
    size_t len = 1 + below(random, 20);

    for (size_t i = 0; i < len; i++)
        out[i] = (char)below(random, 256);
    return len;
}

static size_t place_of(const struct cache_record *record)
{
    struct str payload = cache_record_payload(record);
    uint64_t place = 0;

    assert_true(str_to_u64(payload, &place));
    return (size_t)place;
}

static size_t common_of_all(void)
{
    struct str first = record_key(arrived[0]);
    size_t common = first.len;

    for (size_t i = 1; i < COUNT; i++) {
        struct str key = record_key(arrived[i]);
        size_t len = 0;
        while (len < common && len < key.len && key.ptr[len] == first.ptr[len])
            len++;
        common = len;
    }
    return common;
}

/* The payload is the place of arrival, which tells whether equal keys kept it. */
static void fill(key_fn *make_key, uint64_t *random)
{
    char key[KEY_BYTES], payload[NAME_BYTES];

    for (size_t i = 0; i < COUNT; i++) {
        struct str key_str = str_of(key, make_key(key, random));
        struct str payload_str = str_of(payload, (size_t)snprintf(payload, sizeof(payload), "%zu", i));
        struct record_shape shape = cache_record_shape(key_str, payload_str);
        arrived[i] = cache_chunks_alloc(&chunks, &build, shape.size);
        cache_record_write(arrived[i], &shape, key_str, payload_str);
        entries[i].record = arrived[i];
    }
}

static void check_sorted(key_fn *make_key, uint64_t seed)
{
    uint64_t random = seed, seen = 0;

    chunks = (struct chunk_table){.tail = CHUNK_NONE, .victim = CHUNK_NONE};
    fill(make_key, &random);
    cache_sort(entries, scratch, COUNT, common_of_all());
    for (size_t i = 0; i < COUNT; i++)
        seen += place_of(entries[i].record);
    assert_int_equal(seen, (uint64_t)COUNT * (COUNT - 1) / 2); /* nobody lost, nobody twice */
    for (size_t i = 1; i < COUNT; i++) {
        int order = str_compare(record_key(entries[i - 1].record), record_key(entries[i].record));
        assert_true(order <= 0);
        if (order == 0) {
            assert_true(place_of(entries[i - 1].record) < place_of(entries[i].record));
            assert_true(entries[i - 1].prefix == entries[i].prefix);
        }
    }
    cache_chunks_deinit(&chunks);
}

static void keys_come_out_in_order(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        check_sorted(few_letters, seed);
        check_sorted(long_families, seed);
        check_sorted(any_bytes, seed);
    }
    check_sorted(all_the_same, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_come_out_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
