/* Requests and their answers: framing and limits (C6), error bodies (C4), methods. */
#include "harness.h"

#define HOST "Host: a\r\n"

/* ---- routes ---- */

static void broken(struct http_request *request)
{
    struct error error;

    (void)error_set(&error, STATUS_DB_ERROR, "SELECT secret FROM t");
    http_send_error(request, &error);
}

static void silent(struct http_request *request)
{
    (void)request;
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/", .handler = answer_body},
    {.method = HTTP_POST, .path = "/echo", .handler = answer_body, .consumes = HTTP_ANY},
    {.method = HTTP_POST, .path = "/json", .handler = answer_body, .body_bytes_max = 100},
    {.method = HTTP_GET, .path = "/items/{key}", .handler = answer_key},
    {.method = HTTP_DELETE, .path = "/items/{key}", .handler = answer_key},
    {.method = HTTP_GET, .path = "/broken", .handler = broken},
    {.method = HTTP_GET, .path = "/silent", .handler = silent},
    {.method = HTTP_POST, .path = "/detail", .handler = answer_body, .errors = HTTP_ERRORS_DETAIL},
    {0},
};

static int setup(void **state)
{
    struct harness *harness = malloc(sizeof *harness);

    harness_init(harness, routes);
    harness_start(harness);
    *state = harness;
    return 0;
}

static int teardown(void **state)
{
    harness_deinit(*state);
    free(*state);
    return 0;
}

/* ---- tables ---- */

struct row {
    const char *name;
    struct str request;
    int status;
    bool closes;
    const char *body_has;
};
#define ROW(n, r, s, c, b)             \
    {                                  \
        n, {r, sizeof(r) - 1}, s, c, b \
    }
#define GET "GET / HTTP/1.1\r\n"
#define POST "POST /echo HTTP/1.1\r\nHost: a\r\n"

static const struct row rows[] = {
    ROW("plain", GET HOST "\r\n", 200, false, ""),
    ROW("connection close", GET HOST "Connection: foo, CLOSE\r\n\r\n", 200, true, ""),
    ROW("HTTP/1.0 closes", "GET / HTTP/1.0\r\n\r\n", 200, true, ""),
    ROW("HTTP/1.0 keep-alive", "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", 200, false, ""),
    ROW("absolute form", "GET http://b:80/items/k?x HTTP/1.1\r\n" HOST "\r\n", 200, false, "<k>"),
    ROW("absolute form, bad host", "GET http://b@c/ HTTP/1.1\r\n" HOST "\r\n", 400, true, "target"),
    ROW("other scheme", "GET ftp://b/ HTTP/1.1\r\n" HOST "\r\n", 400, true, "target"),
    ROW("relative target", "GET items HTTP/1.1\r\n" HOST "\r\n", 400, true, "target"),
    ROW("star for GET", "GET * HTTP/1.1\r\n" HOST "\r\n", 400, true, "target"),
    ROW("no host", GET "\r\n", 400, true, "Host"),
    ROW("two hosts", GET HOST "Host: a\r\n\r\n", 400, true, "Host"),
    ROW("empty host", GET "Host:\r\n\r\n", 400, true, "Host"),
    ROW("bad host", GET "Host: a b\r\n\r\n", 400, true, "Host"),
    ROW("host with a path", GET "Host: a/b\r\n\r\n", 400, true, "Host"),
    ROW("host with a bad port", GET "Host: a:b\r\n\r\n", 400, true, "Host"),
    ROW("IPv6 host", GET "Host: [::1]:80\r\n\r\n", 200, false, ""),
    ROW("unknown path", "GET /nope HTTP/1.1\r\n" HOST "\r\n", 404, false, "NOT_FOUND"),
    ROW("trailing slash", "GET /items/ HTTP/1.1\r\n" HOST "\r\n", 404, false, "NOT_FOUND"),
    ROW("unknown method", "BREW / HTTP/1.1\r\n" HOST "\r\n", 405, false, "METHOD_NOT_ALLOWED"),
    ROW("unknown method with a body", "BREW / HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello", 405, false,
        "METHOD_NOT_ALLOWED"),
    ROW("unknown method and path", "BREW /nope HTTP/1.1\r\n" HOST "\r\n", 404, false, "NOT_FOUND"),
    ROW("unknown method for *", "BREW * HTTP/1.1\r\n" HOST "\r\n", 400, true, "target"),
    ROW("HTTP/1.2", "GET / HTTP/1.2\r\n" HOST "\r\n", 200, false, ""),
    ROW("HTTP/1.9 without Host", "GET / HTTP/1.9\r\n\r\n", 400, true, "Host"),
    ROW("HTTP/1.2 with chunks", "POST /echo HTTP/1.2\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        200, false, ""),
    ROW("HTTP/0.9", "GET / HTTP/0.9\r\n\r\n", 505, true, "HTTP_VERSION"),
    ROW("CONNECT", "CONNECT a:80 HTTP/1.1\r\n" HOST "\r\n", 501, true, "NOT_IMPLEMENTED"),
    ROW("lower-case method", "get / HTTP/1.1\r\n" HOST "\r\n", 405, false, "METHOD_NOT_ALLOWED"),
    ROW("HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, true, "HTTP_VERSION"),
    ROW("unencoded byte", "GET /\x80 HTTP/1.1\r\n" HOST "\r\n", 400, true, "BAD_REQUEST"),
    /* framing */
    ROW("length and coding", POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
        true, "Transfer"),
    ROW("coding and length", POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400,
        true, "Transfer"),
    ROW("two lengths", POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400, true,
        "Content-Length"),
    ROW("the same length twice", POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400, true,
        "Content-Length"),
    ROW("list of lengths", POST "Content-Length: 5, 5\r\n\r\nhello", 400, true, "Content-Length"),
    ROW("signed length", POST "Content-Length: +5\r\n\r\nhello", 400, true, "Content-Length"),
    ROW("negative length", POST "Content-Length: -5\r\n\r\nhello", 400, true, "Content-Length"),
    ROW("hexadecimal length", POST "Content-Length: 0x5\r\n\r\nhello", 400, true, "Content-Length"),
    ROW("empty length", POST "Content-Length:\r\n\r\nhello", 400, true, "Content-Length"),
    ROW("overflowing length", POST "Content-Length: 18446744073709551617\r\n\r\nh", 400, true,
        "Content-Length"),
    ROW("huge length", POST "Content-Length: 9223372036854775807\r\n\r\nh", 413, true, "PAYLOAD_TOO_LARGE"),
    ROW("unknown coding", POST "Transfer-Encoding: gzip\r\n\r\nhello", 501, true, "Transfer-Encoding"),
    ROW("coding before chunked", POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, true,
        "Transfer"),
    ROW("chunked twice", POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400, true, "Transfer"),
    ROW("chunked in two lines",
        POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, true,
        "Transfer"),
    ROW("coding with a parameter", POST "Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n", 501, true,
        "Transfer"),
    ROW("identity", POST "Transfer-Encoding: identity\r\n\r\n", 501, true, "Transfer"),
    ROW("empty coding", POST "Transfer-Encoding:\r\n\r\n", 400, true, "Transfer"),
    ROW("coding in HTTP/1.0", "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, true,
        "Transfer"),
    ROW("chunked in capitals", POST "Transfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, false,
        "hello"),
    ROW("chunks, extension, trailer",
        POST "Transfer-Encoding: chunked\r\n\r\n2;a=\"b\"\r\nhe\r\n003\r\nllo\r\n0\r\nX-T: v\r\n\r\n", 200,
        false, "hello"),
    ROW("chunk size with a sign", POST "Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n", 400,
        true, "chunk"),
    ROW("chunk size with 0x", POST "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", 400, true,
        "chunk"),
    ROW("chunk size overflows", POST "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400, true,
        "chunk"),
    ROW("chunk size, space", POST "Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n", 400, true,
        "chunk"),
    ROW("chunk size, bare LF", POST "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", 400, true,
        "chunk"),
    ROW("chunk too long", POST "Transfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n", 400, true,
        "chunk"),
    ROW("chunk extension, empty", POST "Transfer-Encoding: chunked\r\n\r\n5;\r\nhello\r\n0\r\n\r\n", 400,
        true, "chunk extension"),
    ROW("chunk extension, open quote", POST "Transfer-Encoding: chunked\r\n\r\n5;a=\"b\r\nhello\r\n0\r\n\r\n",
        400, true, "chunk extension"),
    ROW("trailer without colon", POST "Transfer-Encoding: chunked\r\n\r\n0\r\nbad\r\n\r\n", 400, true,
        "trailer"),
    /* expectations, media types, limits */
    ROW("other expectation", POST "Expect: cake\r\nContent-Length: 0\r\n\r\n", 417, true, "Expect"),
    ROW("sized body", POST "Content-Length: 5\r\n\r\nhello", 200, false, "hello"),
    ROW("no body", POST "\r\n", 200, false, ""),
    ROW("GET with a body", GET HOST "Content-Length: 5\r\n\r\nhello", 200, false, ""),
    ROW("GET with chunks", GET HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, false,
        ""),
    ROW("wrong media type",
        "POST /json HTTP/1.1\r\n" HOST "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415, false,
        "Content-Type"),
    ROW("no media type", "POST /json HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\n{}", 415, false,
        "Content-Type"),
    ROW("JSON",
        "POST /json HTTP/1.1\r\n" HOST
        "Content-Type: application/json; charset=UTF-8\r\nContent-Length: 2\r\n\r\n{}",
        200, false, "{}"),
    ROW("other charset",
        "POST /json HTTP/1.1\r\n" HOST
        "Content-Type: application/json; charset=latin1\r\nContent-Length: 2\r\n\r\n{}",
        415, false, "Content-Type"),
    ROW("two media types",
        "POST /json HTTP/1.1\r\n" HOST
        "Content-Type: application/json\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        400, true, "Content-Type"),
    ROW("two media types without a body", GET HOST "Content-Type: a/b\r\nContent-Type: a/b\r\n\r\n", 400,
        true, "Content-Type"),
    ROW("encoded body",
        "POST /json HTTP/1.1\r\n" HOST
        "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        415, false, "Content-Encoding"),
    ROW("413 keeps what is small",
        "POST /json HTTP/1.1\r\n" HOST "Content-Type: application/json\r\nContent-Length: 101\r\n\r\n"
        "12345678901234567890123456789012345678901234567890"
        "123456789012345678901234567890123456789012345678901",
        413, false, "PAYLOAD_TOO_LARGE"),
    ROW("413 of chunks",
        "POST /json HTTP/1.1\r\n" HOST
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n"
        "1234567890123456789012345678901234567890123456789012345678901234\r\n40\r\n"
        "1234567890123456789012345678901234567890123456789012345678901234\r\n0\r\n\r\n",
        413, true, "PAYLOAD_TOO_LARGE"),
    ROW("bad escape", "GET /items/%zz HTTP/1.1\r\n" HOST "\r\n", 400, false, "key"),
    ROW("escaped NUL", "GET /items/%00 HTTP/1.1\r\n" HOST "\r\n", 400, false, "key"),
    ROW("escaped bad UTF-8", "GET /items/%ff HTTP/1.1\r\n" HOST "\r\n", 400, false, "key"),
    ROW("slash inside a segment", "GET /items/a%2Fb HTTP/1.1\r\n" HOST "\r\n", 200, false, "<a/b>"),
    ROW("no secrets in a 500", "GET /broken HTTP/1.1\r\n" HOST "\r\n", 500, false, "INTERNAL_ERROR"),
    ROW("a handler that forgets", "GET /silent HTTP/1.1\r\n" HOST "\r\n", 500, false, "INTERNAL_ERROR"),
    ROW("seed 002's errors", "POST /detail HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\nx", 415, false,
        "{\"detail\""),
};

static void check_row(struct harness *harness, const struct row *row, size_t split)
{
    struct client client;
    client_connect(harness, &client);
    client_send(&client, str_of(row->request.ptr, split));
    harness_turn(harness, split < row->request.len ? 2 : 0);
    client_send(&client, str_of(row->request.ptr + split, row->request.len - split));
    client_receive(&client);
    struct answer answer = client_take(&client);
    if (answer.status != row->status || client.at_end != row->closes ||
        !memmem(answer.body.ptr, answer.body.len, row->body_has, strlen(row->body_has)))
        fail_msg("%s, split at %zu: %d, %s: %.*s", row->name, split, answer.status,
                 client.at_end ? "closed" : "open", STR_ARG(answer.body));
    assert_null(memmem(answer.body.ptr, answer.body.len, "secret", 6));
    assert_true(answer_has(&answer, "\r\nDate: "));
    assert_int_equal(answer_has(&answer, "Connection: close"), row->closes);
    if (answer.status >= 400) {
        assert_true(answer_has(&answer, "Content-Type: application/json\r\n"));
        assert_true(answer.body.len > 2 && answer.body.ptr[0] == '{');
    }
    if (!row->closes) { /* the connection is still good */
        client_send(&client, STR("GET /items/again HTTP/1.1\r\nHost: a\r\n\r\n"));
        client_receive(&client);
        answer = client_take(&client);
        assert_int_equal(answer.status, 200);
        assert_memory_equal(answer.body.ptr, "<again>", 7);
    }
    client_close(&client);
}

static void test_c4_c6_every_row_is_answered(void **state)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_row(*state, &rows[i], rows[i].request.len);
}

static void test_c6_every_row_at_every_split(void **state)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t split = 1; split < rows[i].request.len; split++)
            check_row(*state, &rows[i], split);
}

/* ---- methods ---- */

static void test_c6_wrong_method_is_405_with_allow(void **state)
{
    struct client client;
    client_connect(*state, &client);
    client_send(&client,
                STR("PUT /items/k HTTP/1.1\r\nHost: a\r\n\r\nOPTIONS /items/k HTTP/1.1\r\nHost: a\r\n\r\n"
                    "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\nHEAD /items/k HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_receive(&client);
    struct answer answer = client_take(&client);
    assert_int_equal(answer.status, 405);
    assert_true(answer_has(&answer, "Allow: GET, HEAD, DELETE, OPTIONS\r\n"));
    answer = client_take(&client);
    assert_int_equal(answer.status, 204);
    assert_true(answer_has(&answer, "Allow: GET, HEAD, DELETE, OPTIONS\r\n"));
    assert_false(answer_has(&answer, "Content-Length"));
    answer = client_take(&client);
    assert_int_equal(answer.status, 204);
    answer = client_take_head_only(&client);
    assert_int_equal(answer.status, 200);
    assert_true(answer_has(&answer, "Content-Length: 3\r\n"));
    assert_int_equal(buf_len(&client.in), 0);
    client_close(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_c4_c6_every_row_is_answered, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_every_row_at_every_split, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_wrong_method_is_405_with_allow, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
