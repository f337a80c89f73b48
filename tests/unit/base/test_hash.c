/* Hashes: stable on every pod, framed, and a digest that adds up in any order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/hash.h"

static bool same(struct hash128 a, struct hash128 b)
{
    return a.low == b.low && a.high == b.high;
}

/* XXH3's published values: two pods agree because both compute these. */
static void content_hash_is_XXH3_without_a_seed(void **state)
{
    (void)state;
    assert_true(hash_content(STR("")) == UINT64_C(0x2D06800538D394C2));
    assert_true(hash_content(STR_NONE) == hash_content(STR("")));
    assert_true(hash_content(STR("a")) != hash_content(STR("b")));
}

static void seeded_hash_is_steady_within_the_process(void **state)
{
    (void)state;
    assert_true(hash_seeded(STR("key")) == hash_seeded(STR("key")));
    assert_true(hash_seeded(STR("key")) != hash_seeded(STR("kez")));
    assert_true(hash_seeded(STR("key")) != hash_content(STR("key")));
    struct str texts[] = {STR("key"), STR(""), STR("a key of more than sixteen bytes")};
    uint64_t hashes[3];
    hash_seeded_each(texts, 3, hashes);
    for (int i = 0; i < 3; i++)
        assert_true(hashes[i] == hash_seeded(texts[i]));
}

static void item_hash_is_framed_by_the_keys_length(void **state)
{
    (void)state;
    assert_false(same(hash_item(STR("a"), STR("bc")), hash_item(STR("ab"), STR("c"))));
    assert_false(same(hash_item(STR(""), STR("abc")), hash_item(STR("abc"), STR(""))));
    assert_true(same(hash_item(STR("a"), STR_NONE), hash_item(STR("a"), STR(""))));
}

/* Short items are hashed at once and long ones piece by piece: both must be XXH3-128 of the same bytes, the
 * key's length in 8 little-endian bytes before the key and the payload. */
static void an_item_of_any_size_hashes_as_one_text(void **state)
{
    (void)state;
    static char bytes[3000];

    for (size_t i = 8; i < sizeof(bytes); i++)
        bytes[i] = (char)(i * 31);
    for (size_t key_len = 0; key_len < 1200; key_len += 299) {
        for (size_t len = key_len; len < 2000; len += len < 1000 || len > 1030 ? 37 : 1) {
            for (unsigned i = 0; i < 8; i++)
                bytes[i] = (char)((uint64_t)key_len >> (8 * i));
            XXH128_hash_t expected = XXH3_128bits(bytes, 8 + len);
            struct hash128 hash =
                hash_item(str_of(bytes + 8, key_len), str_of(bytes + 8 + key_len, len - key_len));
            assert_true(hash.low == expected.low64 && hash.high == expected.high64);
        }
    }
}

static void sums_do_not_depend_on_order(void **state)
{
    (void)state;
    struct hash128 up = {0, 0}, down = {0, 0}, zero = {0, 0};
    char key[2] = "?";

    for (int i = 0; i < 100; i++) {
        key[0] = (char)i;
        hash128_add(&up, hash_item(str_of(key, 1), STR("v")));
        key[0] = (char)(99 - i);
        hash128_add(&down, hash_item(str_of(key, 1), STR("v")));
    }
    assert_true(same(up, down));
    for (int i = 0; i < 100; i++) {
        key[0] = (char)i;
        hash128_subtract(&up, hash_item(str_of(key, 1), STR("v")));
    }
    assert_true(same(up, zero));
}

static void carries_go_into_the_high_half(void **state)
{
    (void)state;
    struct hash128 sum = {.low = UINT64_MAX, .high = 1}, one = {.low = 1, .high = 0};

    hash128_add(&sum, one);
    assert_true(sum.low == 0 && sum.high == 2);
    hash128_subtract(&sum, one);
    assert_true(sum.low == UINT64_MAX && sum.high == 1);
}

static void hex_is_high_half_first(void **state)
{
    (void)state;
    char out[HASH128_HEX_BYTES];

    hash128_hex((struct hash128){.low = 0xABC, .high = UINT64_C(0x0123456789ABCDEF)}, out);
    assert_string_equal(out, "0123456789abcdef0000000000000abc");
}

static void randomness_fills_what_it_is_given(void **state)
{
    (void)state;
    unsigned char bytes[2000] = {0};
    unsigned distinct = 0;
    bool seen[256] = {false};

    random_bytes(bytes, sizeof(bytes));
    for (size_t i = sizeof(bytes) - 500; i < sizeof(bytes); i++) {
        distinct += !seen[bytes[i]];
        seen[bytes[i]] = true;
    }
    assert_true(distinct > 100);
    assert_true(random_u64() != random_u64());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_hash_is_XXH3_without_a_seed),
        cmocka_unit_test(seeded_hash_is_steady_within_the_process),
        cmocka_unit_test(item_hash_is_framed_by_the_keys_length),
        cmocka_unit_test(an_item_of_any_size_hashes_as_one_text),
        cmocka_unit_test(sums_do_not_depend_on_order),
        cmocka_unit_test(carries_go_into_the_high_half),
        cmocka_unit_test(hex_is_high_half_first),
        cmocka_unit_test(randomness_fills_what_it_is_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
