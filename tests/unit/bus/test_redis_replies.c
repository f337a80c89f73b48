/* Redirects, addresses of nodes, ids, replies and entries, without a server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bus/redis/inside.h"

static void test_redirects(void **state)
{
    (void)state;
    static const char *const none[] = {
        "",          "MOVED",      "MOVED 1",         "MOVED x a:1", "MOVED 16384 a:1",
        "ERR 1 a:1", "MOVED 1 a:", "MOVED 1 a:70000", "MOVED 1 a",   "ASK 1 a:0"};
    struct redis_redirect redirect;
    assert_true(redis_redirect_parse(STR("MOVED 3999 127.0.0.1:6381"), &redirect));
    assert_false(redirect.is_ask);
    assert_string_equal(redirect.to.host, "127.0.0.1");
    assert_int_equal(redirect.to.port, 6381);
    assert_true(redis_redirect_parse(STR("ASK 0 2001:db8::1:7000"), &redirect));
    assert_true(redirect.is_ask);
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
    assert_true(str_eq(redis_id_put(id, text), STR("1700000000000-7")));
    struct redis_id later = {id.ms, id.seq + 1}, earlier = {id.ms - 1, UINT64_MAX};
    assert_int_equal(redis_id_compare(id, later), -1);
    assert_int_equal(redis_id_compare(id, earlier), 1);
    assert_int_equal(redis_id_compare(id, id), 0);
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

static void test_addresses_of_nodes(void **state)
{
    (void)state;
    static const struct {
        struct str reply;
        const char *host; /* NULL: refused */
        unsigned port;
    } rows[] = {
        {STR("*3\r\n$8\r\n10.0.0.1\r\n:7001\r\n$2\r\nid\r\n"), "10.0.0.1", 7001},
        {STR("*2\r\n$0\r\n\r\n:7002\r\n"), "10.0.0.9", 7002}, /* without a host: the one that was asked */
        {STR("*2\r\n$1\r\n?\r\n:7003\r\n"), "10.0.0.9", 7003},
        {STR("*2\r\n$-1\r\n:7004\r\n"), "10.0.0.9", 7004},
        {STR("+OK\r\n"), NULL, 0},
        {STR("$-1\r\n"), NULL, 0},
        {STR("-ERR This instance has cluster support disabled\r\n"), NULL, 0},
        {STR("*1\r\n:1\r\n"), NULL, 0},
        {STR("*2\r\n$1\r\na\r\n:70000\r\n"), NULL, 0},
        {STR("*2\r\n$1\r\na\r\n:0\r\n"), NULL, 0},
        {STR("*2\r\n$1\r\na\r\n:-1\r\n"), NULL, 0},
        {STR("*2\r\n$3\r\na\0b\r\n:1\r\n"), NULL, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct redis_parser parser;
        struct redis_address address;
        struct arena arena = ARENA(4096);
        redis_parser_init(&parser, 1 << 20);
        const struct redis_reply *reply = parse(&parser, &arena, rows[i].reply);
        assert_non_null(reply);
        assert_int_equal(redis_address_of_node(reply, &asked, &address), rows[i].host != NULL);
        if (rows[i].host) {
            assert_string_equal(address.host, rows[i].host);
            assert_int_equal(address.port, rows[i].port);
        }
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
        struct arena arena = ARENA(4096);
        const struct redis_reply *reply;
        struct error error;
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
    struct arena arena = ARENA(4096);
    redis_parser_init(&parser, 1 << 20);
    const struct redis_reply *reply = parse(
        &parser, &arena,
        STR("*3\r\n*2\r\n$3\r\n5-1\r\n*6\r\n$5\r\nevent\r\n$1\r\np\r\n$3\r\nkey\r\n$1\r\nk\r\n$1\r\nh\r\n$1\r\nv\r\n"
            "*2\r\n$3\r\n5-2\r\n*-1\r\n"
            "*2\r\n$3\r\n6-0\r\n*3\r\n$1\r\nx\r\n$1\r\ny\r\n$3\r\nodd\r\n"));
    assert_non_null(reply);
    assert_int_equal(redis_entries_parse(reply, STR("t"), &arena, &entries, NULL), STATUS_OK);
    assert_int_equal(entries.count, 3);
    assert_int_equal(entries.ids[1].seq, 2);
    assert_int_equal(entries.messages[1].payload.len, 0); /* without fields */
    assert_true(str_eq(entries.messages[0].payload, STR("p")));
    assert_true(str_eq(entries.messages[0].key, STR("k")));
    assert_int_equal(entries.messages[0].header_count, 1);
    assert_true(str_eq(bus_message_header(&entries.messages[0], STR("h")), STR("v")));
    assert_int_equal(entries.messages[0].created_us, 5000);
    assert_int_equal(entries.messages[2].payload.len, 0);
    assert_null(entries.messages[2].key.ptr);
    redis_parser_deinit(&parser);
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_redirects),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_addresses_of_nodes),
        cmocka_unit_test(test_replies_are_bounded),
        cmocka_unit_test(test_entries_are_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
