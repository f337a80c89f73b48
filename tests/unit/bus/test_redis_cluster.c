/* The map of slots, redirects, ids and replies, without a server. Slots are checked against CLUSTER KEYSLOT's answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bus/redis/inside.h"

static void test_slots_are_those_of_redis(void **state)
{
    (void)state;
    static const struct {
        struct str key;
        unsigned slot;
    } rows[] = {
        {STR(""), 0},
        {STR("123456789"), 0x31c3},
        {STR("foo"), 12182},
        {STR("somekey"), 11058},
        {STR("foo{hash_tag}"), 2515},
        {STR("bar{hash_tag}"), 2515},
        {STR("{user1000}.following"), 3443},
        {STR("foo{}{bar}"), 8363},    /* an empty tag is none */
        {STR("foo{{bar}}zap"), 4015}, /* the tag is "{bar" */
        {STR("foo{bar}{zap}"), 5061},
        {STR("bar"), 5061},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(redis_slot_of(rows[i].key), rows[i].slot);
    assert_int_equal(redis_slot_of(STR("{refdata:inv:stream}:lease:g")),
                     redis_slot_of(STR("refdata:inv:stream")));
}

static void test_redirects(void **state)
{
    (void)state;
    static const char *const none[] = {
        "",          "MOVED",      "MOVED 1",         "MOVED x a:1", "MOVED 16384 a:1",
        "ERR 1 a:1", "MOVED 1 a:", "MOVED 1 a:70000", "MOVED 1 a",   "ASK 1 a:0"};
    struct redis_redirect redirect;
    assert_true(redis_redirect_parse(STR("MOVED 3999 127.0.0.1:6381"), &redirect));
    assert_false(redirect.ask);
    assert_int_equal(redirect.slot, 3999);
    assert_string_equal(redirect.to.host, "127.0.0.1");
    assert_int_equal(redirect.to.port, 6381);
    assert_true(redis_redirect_parse(STR("ASK 0 2001:db8::1:7000"), &redirect));
    assert_true(redirect.ask);
    assert_string_equal(redirect.to.host, "2001:db8::1");
    assert_true(redis_redirect_parse(STR("MOVED 1 :7000"), &redirect)); /* at the same host */
    assert_string_equal(redirect.to.host, "");
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        assert_false(redis_redirect_parse(str_from(none[i]), &redirect));
}

static void test_ids(void **state)
{
    (void)state;
    static const char *const none[] = {"", "1", "1-", "-1", "a-1", "1-2-3", "99999999999999999999-1"};
    struct redis_id id, huge = {UINT64_MAX, UINT64_MAX};
    char text[REDIS_ID_BYTES];
    assert_true(redis_id_parse(STR("1700000000000-7"), &id));
    assert_int_equal(redis_id_offset(id), INT64_C(1700000000000) << 20 | 7);
    struct redis_id before = redis_id_before(redis_id_offset(id));
    assert_int_equal(redis_id_compare(before, id), -1);
    assert_true(str_eq(redis_id_put(before, text), STR("1700000000000-6")));
    before = redis_id_before(INT64_C(5) << 20);
    assert_true(str_eq(redis_id_put(before, text), STR("4-1048575")));
    assert_true(str_eq(redis_id_put(redis_id_before(0), text), STR("0-0")));
    assert_int_equal(redis_id_offset(huge), INT64_MAX);
    assert_true(str_eq(redis_id_put(huge, text), STR("18446744073709551615-18446744073709551615")));
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        assert_false(redis_id_parse(str_from(none[i]), &id));
}

/* ---- replies ---- */

static const struct redis_reply *parse(struct redis_parser *parser, struct arena *arena, struct str bytes)
{
    const struct redis_reply *reply;

    redis_parser_feed(parser, bytes);
    return redis_parser_next(parser, arena, &reply, NULL) == STATUS_OK ? reply : NULL;
}

static const struct redis_address asked = {"10.0.0.9", 7000};

static void test_a_map_of_slots(void **state)
{
    (void)state;
    static struct redis_topology topology;
    struct redis_parser parser;
    struct arena arena;
    arena_init(&arena, 4096);
    redis_parser_init(&parser, 1 << 20);
    const struct redis_reply *reply = parse(
        &parser, &arena,
        STR("*3\r\n*4\r\n:0\r\n:100\r\n*3\r\n$8\r\n10.0.0.1\r\n:7001\r\n$2\r\nid\r\n*2\r\n$8\r\n10.0.0.5\r\n:1\r\n"
            "*3\r\n:101\r\n:16000\r\n*2\r\n$0\r\n\r\n:7002\r\n"
            "*3\r\n:16001\r\n:16001\r\n*2\r\n$8\r\n10.0.0.1\r\n:7001\r\n"));
    assert_non_null(reply);
    assert_int_equal(redis_topology_parse(reply, &asked, &topology, NULL), STATUS_OK);
    assert_int_equal(topology.count, 2);
    assert_int_equal(topology.covered, 16002);
    assert_int_equal(topology.owner[100], 1);
    assert_int_equal(topology.owner[101], 2);
    assert_int_equal(topology.owner[16001], 1);
    assert_int_equal(topology.owner[16002], 0);
    assert_string_equal(topology.masters[1].host, "10.0.0.9"); /* it did not say, so it is the one we asked */
    assert_int_equal(topology.masters[1].port, 7002);
    redis_topology_deinit(&topology);
    redis_parser_deinit(&parser);
    arena_deinit(&arena);
}

static void test_what_is_no_map_is_refused(void **state)
{
    (void)state;
    static struct redis_topology topology;
    static const struct str wrong[] = {
        STR("+OK\r\n"),
        STR("$-1\r\n"),
        STR("-ERR This instance has cluster support disabled\r\n"),
        STR("*1\r\n:1\r\n"),
        STR("*1\r\n*2\r\n:0\r\n:1\r\n"),
        STR("*1\r\n*3\r\n:5\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n"),
        STR("*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n"),
        STR("*1\r\n*3\r\n:-1\r\n:5\r\n*2\r\n$1\r\na\r\n:1\r\n"),
        STR("*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\na\r\n:70000\r\n"),
        STR("*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$3\r\na\0b\r\n:1\r\n"),
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct redis_parser parser;
        struct arena arena;
        struct error error;
        arena_init(&arena, 4096);
        redis_parser_init(&parser, 1 << 20);
        const struct redis_reply *reply = parse(&parser, &arena, wrong[i]);
        assert_non_null(reply);
        assert_int_equal(redis_topology_parse(reply, &asked, &topology, &error), STATUS_IO);
        redis_parser_deinit(&parser);
        arena_deinit(&arena);
    }
}

static void test_replies_are_bounded(void **state)
{
    (void)state;
    static const struct str large[] = {
        STR("*2147483647\r\n"), STR("*100000\r\n"), STR("*10\r\n*1000\r\n"), STR("$-9\r\n"), STR("?\r\n"),
    };
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        struct redis_parser parser;
        struct arena arena;
        const struct redis_reply *reply;
        struct error error;
        arena_init(&arena, 4096);
        redis_parser_init(&parser, 20000);
        redis_parser_feed(&parser, large[i]);
        assert_int_equal(redis_parser_next(&parser, &arena, &reply, &error), STATUS_IO);
        assert_null(reply);
        redis_parser_deinit(&parser);
        arena_deinit(&arena);
    }
}

/* ---- entries ---- */

static void test_entries_are_messages(void **state)
{
    (void)state;
    struct redis_parser parser;
    struct redis_entries entries;
    struct arena arena;
    arena_init(&arena, 4096);
    redis_parser_init(&parser, 1 << 20);
    const struct redis_reply *reply = parse(
        &parser, &arena,
        STR("*3\r\n*2\r\n$3\r\n5-1\r\n*6\r\n$5\r\nevent\r\n$1\r\np\r\n$3\r\nkey\r\n$1\r\nk\r\n$1\r\nh\r\n$1\r\nv\r\n"
            "*2\r\n$3\r\n5-2\r\n*-1\r\n"
            "*2\r\n$3\r\n6-0\r\n*3\r\n$1\r\nx\r\n$1\r\ny\r\n$3\r\nodd\r\n"));
    assert_non_null(reply);
    assert_int_equal(redis_entries_parse(reply, &arena, &entries, NULL), STATUS_OK);
    assert_int_equal(entries.count, 2);
    assert_int_equal(entries.gone_count, 1);
    assert_int_equal(entries.gone[0].seq, 2);
    assert_true(str_eq(entries.messages[0].payload, STR("p")));
    assert_true(str_eq(entries.messages[0].key, STR("k")));
    assert_int_equal(entries.messages[0].header_count, 1);
    assert_true(str_eq(bus_message_header(&entries.messages[0], STR("h")), STR("v")));
    assert_int_equal(entries.messages[0].created_us, 5000);
    assert_int_equal(entries.messages[1].payload.len, 0);
    assert_null(entries.messages[1].key.ptr);
    redis_parser_deinit(&parser);
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_are_those_of_redis),
        cmocka_unit_test(test_redirects),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_a_map_of_slots),
        cmocka_unit_test(test_what_is_no_map_is_refused),
        cmocka_unit_test(test_replies_are_bounded),
        cmocka_unit_test(test_entries_are_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
