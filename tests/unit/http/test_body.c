/* The body decoder: chunk framing, its bounds, and the same result however the bytes are cut (C6). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/buf.h"
#include "http/body.h"

/* Feeds `raw` in pieces of `step` bytes; the content ends up in `out`, the unread rest's length in *left. */
static enum http_body_step decode(struct http_body *body, struct str raw, size_t step, struct buf *out,
                                  size_t *left)
{
    enum http_body_step result = HTTP_BODY_MORE;
    size_t at = 0;

    while (result == HTTP_BODY_MORE && at < raw.len) {
        struct str part = str_of(raw.ptr + at, step < raw.len - at ? step : raw.len - at), piece;
        size_t given = part.len;
        while ((result = http_body_next(body, &part, &piece)) == HTTP_BODY_DATA)
            buf_put_str(out, piece);
        at += given - part.len;
    }
    *left = raw.len - at;
    return result;
}

struct row {
    struct str raw;
    enum http_body_step result;
    const char *content;
    size_t left;
};
#define ROW(r, res, c, l)                         \
    {                                             \
        {r, sizeof(r) - 1}, HTTP_BODY_##res, c, l \
    }

static const struct row rows[] = {
    ROW("0\r\n\r\n", DONE, "", 0),
    ROW("5\r\nhello\r\n0\r\n\r\nGET", DONE, "hello", 3),
    ROW("1\r\na\r\nA\r\n0123456789\r\n000\r\n\r\n", DONE, "a0123456789", 0),
    ROW("3;name=value;x=\"q\"\r\nabc\r\n0;last\r\n\r\n", DONE, "abc", 0),
    /* chunk-ext of RFC 9112 7.1.1: white space stands before ';' and around '=', and nowhere else */
    ROW("3 ; a = b\t;c\t=\t\"d e\\\"f\" ; g\r\nabc\r\n0\t;z\r\n\r\n", DONE, "abc", 0),
    ROW("1;a=\"\"\r\nx\r\n0\r\n\r\n", DONE, "x", 0),
    ROW("1;a=\";\"\r\nx\r\n0\r\n\r\n", DONE, "x", 0),
    ROW("5;\r\nhello\r\n", FAILED, "", 0),
    ROW("5;;a\r\nhello\r\n", FAILED, "", 0),
    ROW("5;=b\r\nhello\r\n", FAILED, "", 0),
    ROW("5;a=\r\nhello\r\n", FAILED, "", 0),
    ROW("5;a=b=c\r\nhello\r\n", FAILED, "", 0),
    ROW("5;a b\r\nhello\r\n", FAILED, "", 0),
    ROW("5;a=b c\r\nhello\r\n", FAILED, "", 0),
    ROW("5;a=\"b\r\nhello\r\n", FAILED, "", 0),
    ROW("5;a=\"b\\\r\nhello\r\n", FAILED, "", 0),
    ROW("5;a=\"b\"c\r\nhello\r\n", FAILED, "", 0),
    ROW("5;a=b\"c\"\r\nhello\r\n", FAILED, "", 0),
    ROW("5;a \r\nhello\r\n", FAILED, "", 0),
    ROW("5;a=b \r\nhello\r\n", FAILED, "", 0),
    ROW("5 a\r\nhello\r\n", FAILED, "", 0),
    ROW("5;a=(b)\r\nhello\r\n", FAILED, "", 0),
    ROW("0\r\nA: b\r\nC:\r\n\r\n", DONE, "", 0),
    ROW("5\r\nhel", MORE, "hel", 0),
    ROW("5\r\nhello\r\n0\r\n", MORE, "hello", 0),
    ROW("\r\n", FAILED, "", 0),
    ROW(";x\r\n", FAILED, "", 0),
    ROW("g\r\n", FAILED, "", 0),
    ROW("-1\r\n", FAILED, "", 0),
    ROW(" 5\r\nhello\r\n", FAILED, "", 0),
    ROW("5\t\r\nhello\r\n", FAILED, "", 0),
    ROW("5\rhello\r\n", FAILED, "", 0),
    ROW("5\n", FAILED, "", 0),
    ROW("5;a\nb\r\n", FAILED, "", 0),
    ROW("5;a\x01\r\n", FAILED, "", 0),
    ROW("1000000000000000\r\n", FAILED, "", 0),
    ROW("2\r\nabc\r\n", FAILED, "ab", 0),
    ROW("2\r\nab\n0\r\n\r\n", FAILED, "ab", 0),
    ROW("2\r\nab\rX", FAILED, "ab", 0),
    ROW("0\r\n: x\r\n\r\n", FAILED, "", 0),
    ROW("0\r\nA b\r\n\r\n", FAILED, "", 0),
    ROW("0\r\nA: b\n\r\n", FAILED, "", 0),
    ROW("0\r\n\rX", FAILED, "", 0),
};

static void test_c6_chunks_are_read_alike_at_every_step(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t step = 1; step <= rows[i].raw.len; step++) {
            struct http_body body;
            struct buf out = {0};
            size_t left;
            http_body_init(&body, HTTP_BODY_CHUNKED, 0);
            enum http_body_step result = decode(&body, rows[i].raw, step, &out, &left);
            if (result != rows[i].result || !str_eq(buf_str(&out), str_from(rows[i].content)))
                fail_msg("row %zu in steps of %zu: %d, content %.*s", i, step, result,
                         STR_ARG(buf_str(&out)));
            if (result == HTTP_BODY_DONE)
                assert_int_equal(left, rows[i].left);
            if (result == HTTP_BODY_FAILED)
                assert_true(strlen(body.message) > 0);
            buf_deinit(&out);
        }
    }
}

static void test_c6_extensions_and_trailers_are_bounded(void **state)
{
    (void)state;
    static const struct str starts[] = {{"0\r\nA: ", 6}, {"1;", 2}, {"1;a=\"", 5}, {"1", 1}};

    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        struct http_body body;
        struct buf raw = {0}, out = {0};
        size_t left;
        buf_put_str(&raw, starts[i]);
        for (int at = 0; at < 20000; at++)
            buf_put_char(&raw, i == 3 ? ' ' : 'x');
        http_body_init(&body, HTTP_BODY_CHUNKED, 0);
        assert_int_equal(decode(&body, buf_str(&raw), 1000, &out, &left), HTTP_BODY_FAILED);
        buf_deinit(&raw);
        buf_deinit(&out);
    }
}

static void test_sized_body_takes_exactly_its_length(void **state)
{
    (void)state;
    for (size_t step = 1; step <= 8; step++) {
        struct http_body body;
        struct buf out = {0};
        size_t left;
        http_body_init(&body, HTTP_BODY_SIZED, 5);
        assert_int_equal(decode(&body, STR("helloGET"), step, &out, &left), HTTP_BODY_DONE);
        assert_true(str_eq(buf_str(&out), STR("hello")));
        assert_int_equal(left, 3);
        assert_true(http_body_is_done(&body));
        buf_deinit(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c6_chunks_are_read_alike_at_every_step),
        cmocka_unit_test(test_c6_extensions_and_trailers_are_bounded),
        cmocka_unit_test(test_sized_body_takes_exactly_its_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
