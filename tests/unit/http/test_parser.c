/* The head parser: the same result at every split of the bytes, and nothing lenient (C6). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "http/parser.h"
#include "http/scan.h"

#define HEADERS_MAX 8

static const struct http_limits limits = {
    .target_bytes_max = 64,
    .header_bytes_max = 256,
    .header_count_max = HEADERS_MAX,
};

struct outcome {
    enum http_parse result;
    struct http_parser parser;
    struct http_span spans[HEADERS_MAX];
};

/* Feeds the first `split` bytes, then all of them; each time from a fresh copy of exactly that size, so that
 * a read past the end is found by the sanitizer and a kept pointer is stale. */
static void parse_in_two(struct str text, size_t split, struct outcome *out)
{
    size_t sizes[] = {split, text.len};

    http_parser_init(&out->parser, &limits, out->spans);
    out->result = HTTP_PARSE_MORE;
    for (int i = 0; i < 2 && out->result == HTTP_PARSE_MORE; i++) {
        char *copy = malloc(sizes[i] + 1);
        memcpy(copy, text.ptr, sizes[i]);
        char *exact = realloc(copy, sizes[i] ? sizes[i] : 1);
        out->result = http_parser_run(&out->parser, exact, sizes[i]);
        free(exact);
    }
}

static void parse_by_bytes(struct str text, struct outcome *out)
{
    http_parser_init(&out->parser, &limits, out->spans);
    out->result = HTTP_PARSE_MORE;
    for (size_t len = 0; len <= text.len && out->result == HTTP_PARSE_MORE; len++)
        out->result = http_parser_run(&out->parser, text.ptr, len);
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->result, b->result);
    if (a->result == HTTP_PARSE_FAILED) {
        assert_int_equal(a->parser.status, b->parser.status);
        assert_string_equal(a->parser.message, b->parser.message);
    }
    if (a->result != HTTP_PARSE_DONE)
        return;
    assert_int_equal(a->parser.at, b->parser.at);
    assert_int_equal(a->parser.target_at, b->parser.target_at);
    assert_int_equal(a->parser.target_len, b->parser.target_len);
    assert_int_equal(a->parser.span_count, b->parser.span_count);
    assert_memory_equal(a->parser.first, b->parser.first, sizeof a->parser.first);
    for (unsigned i = 0; i < a->parser.span_count; i++)
        assert_memory_equal(&a->spans[i], &b->spans[i], sizeof a->spans[i]);
}

static void parse(struct str text, struct outcome *whole)
{
    struct outcome other;

    memset(whole, 0, sizeof *whole);
    parse_in_two(text, text.len, whole);
    for (size_t split = 0; split < text.len; split++) {
        parse_in_two(text, split, &other);
        assert_same(whole, &other);
    }
    parse_by_bytes(text, &other);
    assert_same(whole, &other);
}

static void assert_slice(struct str text, size_t at, size_t len, const char *expected)
{
    assert_int_equal(len, strlen(expected));
    assert_memory_equal(text.ptr + at, expected, len);
}

static void test_c6_request_is_the_same_at_every_split(void **state)
{
    (void)state;
    struct str text = STR(
        "\r\nGET /v1/a%2Fb?x=1&y=%20 HTTP/1.1\r\nHost: example.org\r\nAUTHORIZATION: \t Bearer abc.def \r\n"
        "X-Empty:\r\nconnection:close\r\nConnection: x\r\n\r\nGET /next");
    struct outcome out;
    parse(text, &out);
    assert_int_equal(out.result, HTTP_PARSE_DONE);
    const struct http_parser *parser = &out.parser;
    assert_slice(text, parser->method_at, parser->method_len, "GET");
    assert_slice(text, parser->target_at, parser->target_len, "/v1/a%2Fb?x=1&y=%20");
    assert_int_equal(parser->minor_version, 1);
    assert_int_equal(parser->span_count, 5);
    assert_slice(text, out.spans[1].value_at, out.spans[1].value_len, "Bearer abc.def");
    assert_slice(text, out.spans[2].value_at, out.spans[2].value_len, "");
    assert_int_equal(parser->first[HTTP_FIELD_AUTHORIZATION], 2);
    assert_int_equal(parser->first[HTTP_FIELD_CONNECTION], 4);
    assert_int_equal(parser->repeated, 1u << HTTP_FIELD_CONNECTION);
    assert_slice(text, parser->at, 9, "GET /next");
}

/* Else a client that sends single bytes would have a long target or value walked again for each of them. */
static void test_c6_what_is_long_in_a_line_is_read_once(void **state)
{
    (void)state;
    char text[] =
        "GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa HTTP/1.1\r\nX: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n\r\n";
    struct http_span spans[HEADERS_MAX];
    struct http_parser parser;
    char *target = strchr(text, 'a'), *value = strchr(text, 'b');

    http_parser_init(&parser, &limits, spans);
    assert_int_equal(http_parser_run(&parser, text, (size_t)(target + 20 - text)), HTTP_PARSE_MORE);
    memset(target, 0, 20); /* where it looked again, it would find these */
    assert_int_equal(http_parser_run(&parser, text, (size_t)(value + 20 - text)), HTTP_PARSE_MORE);
    memset(value, 0, 20);
    assert_int_equal(http_parser_run(&parser, text, sizeof text - 1), HTTP_PARSE_DONE);
    assert_int_equal(parser.target_len, 33);
    assert_int_equal(spans[0].value_len, 40);
}

struct bad {
    const char *name;
    struct str text;
    enum status status;
};

#define BAD(n, t, s)                      \
    {                                     \
        n, {t, sizeof(t) - 1}, STATUS_##s \
    }
#define LINE "GET / HTTP/1.1\r\n"

static const struct bad bad_heads[] = {
    BAD("bare LF ends the request line", "GET / HTTP/1.1\nHost: a\n\n", BAD_REQUEST),
    BAD("bare CR in the request line", "GET / HTTP/1.1\rHost: a", BAD_REQUEST),
    BAD("two spaces before the target", "GET  / HTTP/1.1\r\n", BAD_REQUEST),
    BAD("two spaces before the version", "GET /  HTTP/1.1\r\n", BAD_REQUEST),
    BAD("space behind the version", "GET / HTTP/1.1 \r\n", BAD_REQUEST),
    BAD("tab as separator", "GET\t/ HTTP/1.1\r\n", BAD_REQUEST),
    BAD("leading space", " GET / HTTP/1.1\r\n", BAD_REQUEST),
    BAD("no version", "GET /\r\n", BAD_REQUEST),
    BAD("no target", "GET\r\n", BAD_REQUEST),
    BAD("lower-case version", "GET / http/1.1\r\n", BAD_REQUEST),
    BAD("two-digit version", "GET / HTTP/1.10\r\n", BAD_REQUEST),
    BAD("method with a separator", "G(T / HTTP/1.1\r\n", BAD_REQUEST),
    BAD("TLS hello", "\x16\x03\x01\x02", BAD_REQUEST),
    BAD("NUL in the target", "GET /a\0b HTTP/1.1\r\n", BAD_REQUEST),
    BAD("raw UTF-8 in the target", "GET /\xc3\xa9 HTTP/1.1\r\n", BAD_REQUEST),
    BAD("fragment in the target", "GET /a#b HTTP/1.1\r\n", BAD_REQUEST),
    BAD("backslash in the target", "GET /a\\b HTTP/1.1\r\n", BAD_REQUEST),
    BAD("HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HTTP_VERSION),
    BAD("HTTP/0.9", "GET / HTTP/0.9\r\n", HTTP_VERSION),
    BAD("too many blank lines", "\r\n\r\n\r\nGET / HTTP/1.1\r\n", BAD_REQUEST),
    BAD("blank line of LF", "\nGET / HTTP/1.1\r\n", BAD_REQUEST),
    BAD("space before the first field", LINE " Host: a\r\n\r\n", BAD_REQUEST),
    BAD("obs-fold", LINE "A: b\r\n c\r\n\r\n", BAD_REQUEST),
    BAD("obs-fold by a tab", LINE "A: b\r\n\tc\r\n\r\n", BAD_REQUEST),
    BAD("space before the colon", LINE "Host : a\r\n\r\n", BAD_REQUEST),
    BAD("tab before the colon", LINE "Transfer-Encoding\t: chunked\r\n\r\n", BAD_REQUEST),
    BAD("empty name", LINE ": a\r\n\r\n", BAD_REQUEST),
    BAD("no colon", LINE "Host\r\n\r\n", BAD_REQUEST),
    BAD("NUL in a value", LINE "A: b\0c\r\n\r\n", BAD_REQUEST),
    BAD("DEL in a value", LINE "A: b\x7f\r\n\r\n", BAD_REQUEST),
    BAD("bare CR in a value", LINE "A: b\rX: c\r\n\r\n", BAD_REQUEST),
    BAD("bare LF behind a value", LINE "A: b\nX: c\r\n\r\n", BAD_REQUEST),
    BAD("CR CR LF", LINE "A: b\r\r\n\r\n", BAD_REQUEST),
    BAD("bare CR for the empty line", LINE "A: b\r\n\rX", BAD_REQUEST),
    BAD("name with a byte above 127", LINE "H\xc3st: a\r\n\r\n", BAD_REQUEST),
    BAD("target over the limit",
        "GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa HTTP/1.1\r\n",
        URI_TOO_LONG),
    BAD("too many fields", LINE "a:\r\nb:\r\nc:\r\nd:\r\ne:\r\nf:\r\ng:\r\nh:\r\ni:\r\n\r\n",
        HEADERS_TOO_LARGE),
    BAD("method too long", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", BAD_REQUEST),
};

static void test_c6_bad_heads_are_refused_at_every_split(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_heads / sizeof bad_heads[0]; i++) {
        struct outcome out;
        parse(bad_heads[i].text, &out);
        if (out.result != HTTP_PARSE_FAILED || out.parser.status != bad_heads[i].status)
            fail_msg("%s: result %d, %s", bad_heads[i].name, out.result,
                     out.result == HTTP_PARSE_FAILED ? status_name(out.parser.status) : "accepted");
        assert_true(strlen(out.parser.message) > 0);
    }
}

static void test_c6_field_section_over_the_limit_is_431(void **state)
{
    (void)state;
    char text[600];
    struct outcome out;
    int len = snprintf(text, sizeof text, LINE "X: ");
    memset(text + len, 'a', 300);
    parse(str_of(text, (size_t)len + 300), &out);
    assert_int_equal(out.result, HTTP_PARSE_FAILED);
    assert_int_equal(out.parser.status, STATUS_HEADERS_TOO_LARGE);
}

static void test_incomplete_head_asks_for_more(void **state)
{
    (void)state;
    struct outcome out;
    parse(STR(LINE "Host: a\r\n\r"), &out);
    assert_int_equal(out.result, HTTP_PARSE_MORE);
    assert_true(http_parser_has_begun(&out.parser));
    parse(STR("\r\n"), &out);
    assert_int_equal(out.result, HTTP_PARSE_MORE);
    assert_false(http_parser_has_begun(&out.parser));
}

/* The vector walk must agree with the table at every offset and for every byte. */
static void test_wide_scans_agree_with_the_table(void **state)
{
    (void)state;
    char text[40];
    for (int byte = 0; byte < 256; byte++) {
        for (size_t at = 0; at < sizeof text; at++) {
            memset(text, 'v', sizeof text);
            text[at] = (char)byte;
            const char *slow = http_scan(text, text + sizeof text, HTTP_BYTE_VALUE);
            assert_ptr_equal(http_scan_value(text, text + sizeof text), slow);
            slow = http_scan(text, text + sizeof text, HTTP_BYTE_TARGET);
            assert_ptr_equal(http_scan_target(text, text + sizeof text), slow);
        }
    }
}

static void test_known_fields_are_found_in_any_case(void **state)
{
    (void)state;
    assert_int_equal(http_field_of(STR("hOsT")), HTTP_FIELD_HOST);
    assert_int_equal(http_field_of(STR("Content-Length")), HTTP_FIELD_CONTENT_LENGTH);
    assert_int_equal(http_field_of(STR("TRANSFER-ENCODING")), HTTP_FIELD_TRANSFER_ENCODING);
    assert_int_equal(http_field_of(STR("expect")), HTTP_FIELD_EXPECT);
    assert_int_equal(http_field_of(STR("accept")), HTTP_FIELD_ACCEPT);
    assert_int_equal(http_field_of(STR("If-None-Match")), HTTP_FIELD_IF_NONE_MATCH);
    assert_int_equal(http_field_of(STR("X-None-Match!")), HTTP_FIELD_OTHER);
    assert_int_equal(http_field_of(STR("Content_Length")), HTTP_FIELD_OTHER);
    assert_int_equal(http_field_of(STR("")), HTTP_FIELD_OTHER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c6_request_is_the_same_at_every_split),
        cmocka_unit_test(test_c6_what_is_long_in_a_line_is_read_once),
        cmocka_unit_test(test_c6_bad_heads_are_refused_at_every_split),
        cmocka_unit_test(test_c6_field_section_over_the_limit_is_431),
        cmocka_unit_test(test_incomplete_head_asks_for_more),
        cmocka_unit_test(test_wide_scans_agree_with_the_table),
        cmocka_unit_test(test_known_fields_are_found_in_any_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
