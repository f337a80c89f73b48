/* A record is the answer's body, byte for byte, and gives back its parts (R3, R5). */
#include "helpers.h"

#include <stdlib.h>

#include "base/memory.h"

static struct cache_record *record_of(struct str key, struct str payload)
{
    struct record_shape shape = cache_record_shape(key, payload);
    struct cache_record *record = memory_alloc(shape.size); /* exact, so that ASan sees a byte too many */

    cache_record_write(record, &shape, key, payload);
    assert_int_equal(cache_record_size(record), shape.size);
    return record;
}

static void check(struct str key, struct str payload, struct str body)
{
    struct cache_record *record = record_of(key, payload);

    assert_str(cache_record_body(record), body);
    assert_str(cache_record_key(record), key);
    assert_str(cache_record_payload(record), payload);
    assert_true(cache_record_tag(record) == hash_content(body));
    assert_true(hash128_eq(cache_record_digest(record), hash_item(key, payload)));
    free(record);
}

static void a_plain_key_stands_inside_the_body(void **state)
{
    struct cache_record *record = record_of(STR("RU"), STR("{\"a\":1}"));

    (void)state;
    check(STR("RU"), STR("{\"a\":1}"), STR("{\"key\":\"RU\",\"payload\":{\"a\":1}}"));
    check(STR("\xD0\xAF"), STR("null"), STR("{\"key\":\"\xD0\xAF\",\"payload\":null}"));
    assert_ptr_equal(cache_record_key(record).ptr, cache_record_body(record).ptr + RECORD_KEY_AT);
    free(record);
}

static void an_escaped_key_keeps_a_copy_behind(void **state)
{
    (void)state;
    check(STR("a\"b"), STR("1"), STR("{\"key\":\"a\\\"b\",\"payload\":1}"));
    check(STR("\\"), STR("1"), STR("{\"key\":\"\\\\\",\"payload\":1}"));
    check(STR("tab\tnl\n\x01"), STR("[]"), STR("{\"key\":\"tab\\tnl\\n\\u0001\",\"payload\":[]}"));
    check(STR("z\0z"), STR("[]"), STR("{\"key\":\"z\\u0000z\",\"payload\":[]}"));
}

static void line_breaks_of_a_payload_become_spaces(void **state)
{
    struct cache_record *record = record_of(STR("k"), STR("\n{\r\n\"a\":\n1}\r"));

    (void)state;
    assert_str(cache_record_body(record), STR("{\"key\":\"k\",\"payload\": {  \"a\": 1} }"));
    assert_true(hash128_eq(cache_record_digest(record), hash_item(STR("k"), STR(" {  \"a\": 1} "))));
    free(record);
}

/* All sizes around the border above which hashes are stored, with and without an escaped key. */
static void long_bodies_store_their_hashes(void **state)
{
    static char payload[4096], body[4096];

    (void)state;
    memset(payload, '7', sizeof(payload));
    for (size_t len = 980; len < 1030; len++) {
        int body_len = snprintf(body, sizeof(body), "{\"key\":\"k\",\"payload\":%.*s}", (int)len, payload);
        check(STR("k"), str_of(payload, len), str_of(body, (size_t)body_len));
        body_len = snprintf(body, sizeof(body), "{\"key\":\"\\\"\",\"payload\":%.*s}", (int)len, payload);
        check(STR("\""), str_of(payload, len), str_of(body, (size_t)body_len));
    }
}

/* There may be millions of records. */
static void a_record_takes_four_bytes_beside_its_body(void **state)
{
    (void)state;
    assert_int_equal(cache_record_shape(STR("RU"), STR("1")).size,
                     4 + strlen("{\"key\":\"RU\",\"payload\":1}"));
    assert_int_equal(cache_record_shape(STR("RUS"), STR("1")).size,
                     4 + strlen("{\"key\":\"RUS\",\"payload\":1}"));
}

static void the_longest_key_is_read_back(void **state)
{
    static char key[RECORD_KEY_BYTES_MAX], body[RECORD_KEY_BYTES_MAX + 32];
    int body_len;

    (void)state;
    memset(key, 'k', sizeof(key));
    body_len = snprintf(body, sizeof(body), "{\"key\":\"%.*s\",\"payload\":1}", (int)sizeof(key), key);
    check(str_of(key, sizeof(key)), STR("1"), str_of(body, (size_t)body_len));
    key[0] = '"'; /* escaped */
    body_len = snprintf(body, sizeof(body), "{\"key\":\"\\%.*s\",\"payload\":1}", (int)sizeof(key), key);
    check(str_of(key, sizeof(key)), STR("1"), str_of(body, (size_t)body_len));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_key_stands_inside_the_body),
        cmocka_unit_test(an_escaped_key_keeps_a_copy_behind),
        cmocka_unit_test(line_breaks_of_a_payload_become_spaces),
        cmocka_unit_test(long_bodies_store_their_hashes),
        cmocka_unit_test(a_record_takes_four_bytes_beside_its_body),
        cmocka_unit_test(the_longest_key_is_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
