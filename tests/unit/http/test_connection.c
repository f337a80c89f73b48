/* Connections: framing and limits (C6), error bodies (C4), pipelining, keep-alive, bodies. */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"

#define HOST "Host: a\r\n"

/* ---- routes ---- */

static void echo(struct http_request *request)
{
    http_send(request, &(struct http_response){
                           .status = 200, .content_type = STR("text/plain"), .body = request->body});
}

static void item(struct http_request *request)
{
    struct error error;
    struct str key;

    if (http_request_param(request, "key", &key, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    const struct str parts[] = {STR("<"), key, STR(">")};
    http_send_parts(request, &(struct http_response){.status = 200, .headers = STR("X-Extra: 1\r\n")}, parts,
                    3);
}

static char large_body[300 * 1024];

static void large(struct http_request *request)
{
    memset(large_body, 'x', sizeof large_body);
    http_send(request, &(struct http_response){.status = 200, .body = str_of(large_body, sizeof large_body)});
}

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
    {.method = HTTP_GET, .path = "/", .handler = echo},
    {.method = HTTP_POST, .path = "/echo", .handler = echo, .consumes = HTTP_ANY},
    {.method = HTTP_POST, .path = "/json", .handler = echo, .body_bytes_max = 100},
    {.method = HTTP_GET, .path = "/items/{key}", .handler = item},
    {.method = HTTP_DELETE, .path = "/items/{key}", .handler = item},
    {.method = HTTP_GET, .path = "/large", .handler = large},
    {.method = HTTP_GET, .path = "/broken", .handler = broken},
    {.method = HTTP_GET, .path = "/silent", .handler = silent},
    {.method = HTTP_POST, .path = "/detail", .handler = echo, .errors = HTTP_ERRORS_DETAIL},
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

/* ---- pipelining ---- */

static void test_pipelined_answers_come_in_order_and_in_one_write(void **state)
{
    struct client client;
    struct buf requests = {0};
    struct harness *harness = *state;

    for (int i = 0; i < 100; i++)
        buf_printf(&requests, "GET /items/%d HTTP/1.1\r\nHost: a\r\n\r\n", i);
    client_connect(harness, &client);
    client_send(&client, buf_str(&requests));
    harness_turn(harness, 1);
    /* one turn read all and wrote all: what can be received now is everything */
    client_receive(&client);
    for (int i = 0; i < 100; i++) {
        char expected[16];
        struct answer answer = client_take(&client);
        snprintf(expected, sizeof expected, "<%d>", i);
        assert_int_equal(answer.body.len, strlen(expected));
        assert_memory_equal(answer.body.ptr, expected, answer.body.len);
        assert_true(answer_has(&answer, "X-Extra: 1\r\n"));
    }
    buf_deinit(&requests);
    client_close(&client);
}

static void test_a_batch_leaves_in_one_write(void **state)
{
    struct harness *harness = *state;
    int pair[2];
    char bytes[4096];

    /* A datagram-like pair keeps the borders of writes. */
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    http_server_adopt(harness->server, harness->loop, pair[1]);
    struct str three = STR("GET /items/1 HTTP/1.1\r\nHost: a\r\n\r\nGET /items/2 HTTP/1.1\r\nHost: a\r\n\r\n"
                           "GET /items/3 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_int_equal(send(pair[0], three.ptr, three.len, 0), three.len);
    harness_turn(harness, 1);
    ssize_t got = recv(pair[0], bytes, sizeof bytes, 0);
    assert_true(got > 0);
    assert_non_null(memmem(bytes, (size_t)got, "<1>", 3));
    assert_non_null(memmem(bytes, (size_t)got, "<3>", 3));
    assert_int_equal(recv(pair[0], bytes, sizeof bytes, 0), -1);
    close(pair[0]);
    harness_turn(harness, 2);
}

static void test_a_client_that_does_not_read_stops_the_parsing(void **state)
{
    struct harness *harness = *state;
    struct client client;
    struct buf requests = {0};

    for (int i = 0; i < 200; i++)
        buf_put_str(&requests, STR("GET /large HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_connect(harness, &client);
    client_send(&client, buf_str(&requests));
    harness_turn(harness,
                 50); /* nobody reads: 200 * 300 KiB must not pile up, and nothing may spin or break */
    client_receive(&client);
    for (int i = 0; i < 200; i++) {
        struct answer answer = client_take(&client);
        assert_int_equal(answer.body.len, sizeof large_body);
    }
    assert_int_equal(buf_len(&client.in), 0);
    buf_deinit(&requests);
    client_close(&client);
}

static void test_more_requests_than_a_turn_takes(void **state)
{
    struct client client;
    struct buf requests = {0};

    for (int i = 0; i < 1000; i++)
        buf_put_str(&requests, STR("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_connect(*state, &client);
    client_send(&client, buf_str(&requests));
    client_receive(&client);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(client_take(&client).status, 200);
    buf_deinit(&requests);
    client_close(&client);
}

/* ---- ends ---- */

static void test_a_half_closed_client_gets_its_answers(void **state)
{
    struct client client;
    client_connect(*state, &client);
    client_send(&client,
                STR("GET /items/1 HTTP/1.1\r\nHost: a\r\n\r\nGET /items/2 HTTP/1.1\r\nHost: a\r\n\r\n"));
    shutdown(client.fd, SHUT_WR);
    client_receive(&client);
    assert_int_equal(client_take(&client).status, 200);
    assert_int_equal(client_take(&client).status, 200);
    assert_true(client.at_end);
    client_close(&client);
}

static void test_c6_a_request_that_ends_early_is_400(void **state)
{
    static const char *const cut[] = {
        "GET / HT", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"};
    for (size_t i = 0; i < sizeof cut / sizeof cut[0]; i++) {
        struct client client;
        client_connect(*state, &client);
        client_send(&client, str_from(cut[i]));
        harness_turn(*state, 2);
        shutdown(client.fd, SHUT_WR);
        client_receive(&client);
        assert_int_equal(client_take(&client).status, 400);
        assert_true(client.at_end);
        client_close(&client);
    }
}

static void test_c6_after_413_the_client_can_still_read_the_answer(void **state)
{
    struct client client;
    static char junk[200 * 1024];
    client_connect(*state, &client);
    client_send(&client, STR("POST /json HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                             "Content-Length: 10000000\r\n\r\n"));
    client_send(&client, str_of(junk, sizeof junk));
    client_receive(&client);
    struct answer answer = client_take(&client);
    assert_int_equal(answer.status, 413);
    assert_true(answer_has(&answer, "Connection: close\r\n"));
    assert_true(client.at_end);
    client_close(&client);
}

/* ---- Expect ---- */

static void test_expect_continue_is_answered_when_the_body_will_be_read(void **state)
{
    struct client client;
    client_connect(*state, &client);
    client_send(&client,
                STR("POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 5\r\n\r\n"));
    client_receive(&client);
    assert_int_equal(client_take(&client).status, 100);
    client_send(&client, STR("hello"));
    client_receive(&client);
    struct answer answer = client_take(&client);
    assert_int_equal(answer.status, 200);
    assert_memory_equal(answer.body.ptr, "hello", 5);
    client_close(&client);
}

static void test_expect_continue_is_not_sent_for_a_refused_body(void **state)
{
    struct client client;
    client_connect(*state, &client);
    client_send(&client, STR("POST /json HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                             "Content-Type: application/json\r\nContent-Length: 101\r\n\r\n"));
    client_receive(&client);
    assert_int_equal(client_take(&client).status, 413);
    assert_true(client.at_end);
    client_close(&client);
}

/* ---- body ---- */

static void test_a_large_body_comes_whole(void **state)
{
    struct client client;
    size_t len = 1000000;
    char *body = malloc(len);
    struct buf head = {0};

    for (size_t i = 0; i < len; i++)
        body[i] = (char)('a' + i % 23);
    buf_printf(&head, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", len);
    client_connect(*state, &client);
    client_send(&client, buf_str(&head));
    client_send(&client, str_of(body, len));
    harness_turn(*state, 100); /* what the socket still holds */
    client_receive(&client);
    struct answer answer = client_take(&client);
    assert_int_equal(answer.body.len, len);
    assert_memory_equal(answer.body.ptr, body, len);
    free(body);
    buf_deinit(&head);
    client_close(&client);
}

/* A head that nearly fills the block leaves too little room for a body behind it, unless room is made. */
static void test_a_body_behind_a_long_head(void **state)
{
    for (size_t pad = 15 * 1024; pad < 17 * 1024; pad += 97) {
        struct client client;
        struct buf head = {0};
        buf_put_str(&head, STR("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX-Pad: "));
        for (size_t i = 0; i < pad; i++)
            buf_put_char(&head, 'p');
        buf_put_str(&head, STR("\r\n\r\n"));
        client_connect(*state, &client);
        client_send(&client, buf_str(&head));
        harness_turn(*state, 3);
        client_send(&client, STR("hello"));
        client_receive(&client);
        struct answer answer = client_take(&client);
        assert_int_equal(answer.status, 200);
        assert_memory_equal(answer.body.ptr, "hello", 5);
        buf_deinit(&head);
        client_close(&client);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_c4_c6_every_row_is_answered, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_every_row_at_every_split, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_wrong_method_is_405_with_allow, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pipelined_answers_come_in_order_and_in_one_write, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_batch_leaves_in_one_write, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_client_that_does_not_read_stops_the_parsing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_more_requests_than_a_turn_takes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_half_closed_client_gets_its_answers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_a_request_that_ends_early_is_400, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_after_413_the_client_can_still_read_the_answer, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_expect_continue_is_answered_when_the_body_will_be_read, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_expect_continue_is_not_sent_for_a_refused_body, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_large_body_comes_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_body_behind_a_long_head, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
