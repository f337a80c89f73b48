/* Streams as gzip: their bytes, their framing, and that memory and producer are given back however they end. */
#include <sys/socket.h>
#include <zlib.h>

#include "base/budget.h"
#include "harness.h"

enum { LARGE = 3 * 1000 * 1000, STATE_BYTES_MIN = 32 * 1024 };

/* `total` bytes of the form {"n":123}, of which `promised` were announced. */
struct tap {
    size_t total, given, promised;
    enum http_producer_state at_end;
    int released;
};
static struct tap tap;
static struct harness harness;

static char byte_at(size_t at)
{
    static const char item[] = "{\"key\":\"0123456789\",\"value\":0},";
    size_t number = at / (sizeof item - 1), place = at % (sizeof item - 1);
    return place == 28 ? (char)('0' + number * 7 % 10) : item[place];
}

static enum http_producer_state produce(void *context, struct buf *out, size_t room)
{
    struct tap *self = context;
    size_t len = self->total - self->given < room ? self->total - self->given : room;

    for (size_t i = 0; i < len; i++)
        buf_put_char(out, byte_at(self->given + i));
    self->given += len;
    return self->given == self->total ? self->at_end : HTTP_PRODUCER_MORE;
}

static void release(void *context)
{
    ((struct tap *)context)->released++;
}

static void stream(struct http_request *request)
{
    http_send_stream(request, &(struct http_response){.status = 200, .headers = STR("X-Mine: 1\r\n")},
                     &(struct http_producer){.produce = produce,
                                             .release = release,
                                             .context = &tap,
                                             .content_length = (int64_t)tap.promised});
}

static void now(struct http_request *request)
{
    http_send(request, &(struct http_response){.status = 200, .body = STR("now")});
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/all", .handler = stream, .gzip = HTTP_GZIP_STREAMS},
    {.method = HTTP_GET, .path = "/work", .handler = stream, .kind = HTTP_WORKER, .gzip = HTTP_GZIP_STREAMS},
    {.method = HTTP_GET, .path = "/plain", .handler = stream},
    {.method = HTTP_GET, .path = "/now", .handler = now},
    {0},
};

static int start(bool gzip)
{
    tap = (struct tap){.total = LARGE, .promised = LARGE, .at_end = HTTP_PRODUCER_END};
    harness_init(&harness, routes);
    harness.config.gzip = gzip;
    harness.workers = worker_pool_create("test", 1, 4);
    harness.config.workers = harness.workers;
    harness_start(&harness);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    return start(true);
}

static int setup_off(void **state)
{
    (void)state;
    return start(false);
}

static int teardown(void **state)
{
    (void)state;
    harness_deinit(&harness);
    return 0;
}

static void send_request(struct client *client, const char *line)
{
    char text[256];

    snprintf(text, sizeof text, "%s\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n", line);
    client_send(client, str_from(text));
}

/* A turn may compress and have nothing to send yet. */
static void receive_whole(struct client *client)
{
    while (tap.released == 0)
        client_receive(client);
    client_receive(client);
}

static void assert_is_whole(struct str body)
{
    z_stream inflater = {.next_in = (unsigned char *)body.ptr, .avail_in = (unsigned)body.len};
    unsigned char out[4096];
    size_t len = 0;
    int result = Z_OK;

    assert_int_equal(inflateInit2(&inflater, 15 + 16), Z_OK);
    while (result == Z_OK) {
        inflater.next_out = out;
        inflater.avail_out = sizeof out;
        result = inflate(&inflater, Z_NO_FLUSH);
        for (size_t i = 0; i < sizeof out - inflater.avail_out; i++, len++)
            assert_int_equal(out[i], byte_at(len));
    }
    assert_int_equal(result, Z_STREAM_END);
    assert_int_equal(inflater.avail_in, 0);
    assert_int_equal(len, tap.total);
    (void)inflateEnd(&inflater);
}

static void assert_is_gzip(const struct answer *answer)
{
    assert_int_equal(answer->status, 200);
    assert_true(answer_has(answer, "Content-Encoding: gzip"));
    assert_true(answer_has(answer, "Transfer-Encoding: chunked"));
    assert_true(answer_has(answer, "Vary: Accept-Encoding"));
    assert_true(answer_has(answer, "X-Mine: 1"));
}

static void assert_is_plain(const struct answer *answer, size_t len)
{
    assert_int_equal(answer->status, 200);
    assert_false(answer_has(answer, "Content-Encoding: gzip"));
    assert_int_equal(answer->body.len, len);
}

static void a_stream_is_the_same_bytes_compressed(void **state)
{
    (void)state;
    const char *const lines[] = {"GET /all HTTP/1.1", "GET /work HTTP/1.1"};
    const size_t totals[] = {1024, 16383, 16384, 16385, 100000, LARGE};
    struct client client;

    client_connect(&harness, &client);
    for (size_t i = 0; i < 2 * sizeof totals / sizeof *totals; i++) {
        tap = (struct tap){.total = totals[i / 2], .promised = totals[i / 2], .at_end = HTTP_PRODUCER_END};
        send_request(&client, lines[i % 2]);
        receive_whole(&client);
        struct answer answer = client_take(&client);
        assert_is_gzip(&answer);
        assert_true(answer.body.len < totals[i / 2] / 3);
        assert_is_whole(answer.body);
        assert_int_equal(tap.released, 1);
    }
    client_close(&client);
}

static void requests_behind_it_are_answered_after_it(void **state)
{
    (void)state;
    struct client client;

    client_connect(&harness, &client);
    for (int i = 0; i < 3; i++)
        send_request(&client, i == 1 ? "GET /all HTTP/1.1" : "GET /now HTTP/1.1");
    receive_whole(&client);
    struct answer answer = client_take(&client);
    assert_is_plain(&answer, 3);
    answer = client_take(&client);
    assert_is_gzip(&answer);
    assert_is_whole(answer.body);
    answer = client_take(&client);
    assert_is_plain(&answer, 3);
    client_close(&client);
}

static void others_are_answered_meanwhile(void **state)
{
    (void)state;
    struct client client, other;

    tap.total = tap.promised = 100 * (size_t)LARGE;
    client_connect(&harness, &client);
    client_connect(&harness, &other);
    send_request(&client, "GET /all HTTP/1.1");
    harness_turn(&harness, 2);
    for (int i = 0; i < 10; i++) {
        send_request(&other, "GET /now HTTP/1.1");
        client_receive(&other);
        struct answer answer = client_take(&other);
        assert_is_plain(&answer, 3);
        (void)recv(client.fd, buf_reserve(&client.in, 65536), 65536, 0);
    }
    assert_int_equal(tap.released, 0);
    client_close(&client);
    client_close(&other);
    assert_int_equal(tap.released, 1);
}

static void head_has_the_fields_of_get(void **state)
{
    (void)state;
    struct client client;

    client_connect(&harness, &client);
    send_request(&client, "HEAD /all HTTP/1.1");
    client_receive(&client);
    struct answer answer = client_take_head_only(&client);
    assert_is_gzip(&answer);
    assert_int_equal(tap.released, 1);
    assert_int_equal(tap.given, 0);
    client_close(&client);
}

static void http_1_0_short_answers_and_other_rows_are_plain(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        size_t total;
        bool varies;
    } cases[] = {
        {"GET /all HTTP/1.0\r\nConnection: keep-alive", LARGE, true},
        {"GET /all HTTP/1.1", 1023, true},
        {"GET /plain HTTP/1.1", LARGE, false},
    };
    struct client client;

    client_connect(&harness, &client);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tap = (struct tap){.total = cases[i].total, .promised = cases[i].total, .at_end = HTTP_PRODUCER_END};
        send_request(&client, cases[i].line);
        client_receive(&client);
        struct answer answer = client_take(&client);
        assert_is_plain(&answer, cases[i].total);
        assert_int_equal(answer_has(&answer, "Vary: Accept-Encoding"), cases[i].varies);
    }
    client_close(&client);
}

static void the_server_may_never_compress(void **state)
{
    (void)state;
    struct client client;

    client_connect(&harness, &client);
    send_request(&client, "GET /all HTTP/1.1");
    client_receive(&client);
    struct answer answer = client_take(&client);
    assert_is_plain(&answer, LARGE);
    assert_false(answer_has(&answer, "Vary: Accept-Encoding"));
    client_close(&client);
}

/* Until nothing was taken from the producer in many turns: the kernel moves what was sent from one socket to the other in its own time. */
static void turn_until_full(void)
{
    for (size_t given = SIZE_MAX; tap.given != given && tap.given < tap.total;) {
        given = tap.given;
        harness_turn(&harness, 1000);
    }
}

static void a_client_that_leaves_or_does_not_read_holds_nothing_after_it(void **state)
{
    (void)state;
    struct client client;
    size_t before = 0;

    for (int i = 0; i < 3; i++) {
        tap = (struct tap){.total = 1000 * (size_t)LARGE, .promised = 1000 * (size_t)LARGE};
        client_connect(&harness, &client);
        send_request(&client, "GET /all HTTP/1.1");
        turn_until_full();
        assert_true(tap.given < tap.total); /* no more is compressed */
        assert_true(i == 0 || budget_used(BUDGET_REQUESTS) >= before + STATE_BYTES_MIN);
        assert_int_equal(tap.released, 0);
        client_close(&client);
        assert_int_equal(tap.released, 1);
        assert_true(i == 0 || budget_used(BUDGET_REQUESTS) == before);
        before = budget_used(BUDGET_REQUESTS); /* with the exchange that is kept */
    }
}

static void a_source_that_fails_or_breaks_its_promise_cuts_the_answer(void **state)
{
    (void)state;
    static const struct {
        size_t promised;
        enum http_producer_state at_end;
    } cases[] = {{LARGE, HTTP_PRODUCER_FAIL}, {LARGE + 1, HTTP_PRODUCER_END}, {LARGE - 1, HTTP_PRODUCER_END}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct client client;
        tap = (struct tap){.total = LARGE, .promised = cases[i].promised, .at_end = cases[i].at_end};
        client_connect(&harness, &client);
        send_request(&client, "GET /all HTTP/1.1");
        receive_whole(&client);
        assert_true(client.at_end);
        assert_true(buf_len(&client.in) > 0);
        assert_memory_not_equal(client.in.data + client.in.end - 5, "0\r\n\r\n", 5);
        assert_int_equal(tap.released, 1);
        client_close(&client);
    }
}

static void a_whole_text_is_compressed_too(void **state)
{
    (void)state;
    struct buf text = {0}, packed = {0};
    size_t before = budget_used(BUDGET_REQUESTS);

    tap.total = 100000;
    (void)produce(&tap, &text, tap.total);
    assert_true(http_gzip_put(&packed, buf_str(&text)));
    assert_is_whole(buf_str(&packed));
    assert_int_equal(budget_used(BUDGET_REQUESTS), before);
    buf_deinit(&text);
    buf_deinit(&packed);
}

static void only_get_rows_that_end_may_compress(void **state)
{
    (void)state;
    static const struct http_route bad[][2] = {
        {{.method = HTTP_POST, .path = "/a", .handler = now, .gzip = HTTP_GZIP_STREAMS}},
        {{.method = HTTP_GET, .path = "/b", .handler = now, .kind = HTTP_STREAM, .gzip = HTTP_GZIP_STREAMS}},
    };
    struct http_router *router = http_router_create();
    struct error error;

    for (size_t i = 0; i < 2; i++)
        assert_int_equal(http_router_add(router, bad[i], NULL, &error), STATUS_CONFIG);
    http_router_destroy(router);
}

#define ON(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(a_stream_is_the_same_bytes_compressed),
        ON(requests_behind_it_are_answered_after_it),
        ON(others_are_answered_meanwhile),
        ON(head_has_the_fields_of_get),
        ON(http_1_0_short_answers_and_other_rows_are_plain),
        cmocka_unit_test_setup_teardown(the_server_may_never_compress, setup_off, teardown),
        ON(a_client_that_leaves_or_does_not_read_holds_nothing_after_it),
        ON(a_source_that_fails_or_breaks_its_promise_cuts_the_answer),
        ON(a_whole_text_is_compressed_too),
        ON(only_get_rows_that_end_may_compress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
