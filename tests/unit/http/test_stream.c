/* Streams: framing, back-pressure, promises kept or the connection cut. */
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"
#include "loop/loop_inside.h"

/* A producer of `total` bytes, `step` at a time; what it does at the end is the test's choice. */
struct faucet {
    size_t total, given, step;
    enum http_producer_state at_end;
    int64_t promised;
    int asked, released;
    struct loop_park_ref ref;
};
static struct faucet faucet;

static enum http_producer_state produce(void *context, struct buf *out, size_t room)
{
    struct faucet *self = context;
    size_t len = self->total - self->given;

    self->asked++;
    if (len > self->step)
        len = self->step;
    if (len > room)
        len = room;
    for (size_t i = 0; i < len; i++)
        buf_put_char(out, (char)('a' + (self->given + i) % 26));
    self->given += len;
    return self->given == self->total ? self->at_end : HTTP_PRODUCER_MORE;
}

static void release(void *context)
{
    ((struct faucet *)context)->released++;
}

static void put_last(void *context, struct buf *out)
{
    (void)context;
    buf_put_str(out, STR("last\n"));
}

static void stream(struct http_request *request)
{
    http_send_stream(request,
                     &(struct http_response){.status = 200, .content_type = STR("application/x-ndjson")},
                     &(struct http_producer){.produce = produce,
                                             .release = release,
                                             .context = &faucet,
                                             .content_length = faucet.promised,
                                             .put_last = put_last});
    if (request->route->kind != HTTP_WORKER)
        faucet.ref = http_stream_ref(request);
}

static void now(struct http_request *request)
{
    http_send(request, &(struct http_response){.status = 200, .body = STR("now")});
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/stream", .handler = stream},
    {.method = HTTP_GET, .path = "/live", .handler = stream, .kind = HTTP_STREAM},
    {.method = HTTP_GET, .path = "/work", .handler = stream, .kind = HTTP_WORKER},
    {.method = HTTP_GET, .path = "/now", .handler = now},
    {0},
};

static struct harness harness;

static int start(int64_t write_timeout_ms)
{
    faucet = (struct faucet){.total = 1000, .step = 100, .at_end = HTTP_PRODUCER_END, .promised = -1};
    harness_init(&harness, routes);
    harness.workers = worker_pool_create("test", 1, 4);
    harness.config.workers = harness.workers;
    harness.config.limits.write_timeout_ms = write_timeout_ms;
    harness_start(&harness);
    return 0;
}

/* Nobody is cut off for being slow: the machine may be. */
static int setup(void **state)
{
    (void)state;
    return start(600000);
}

static int setup_impatient(void **state)
{
    (void)state;
    return start(50);
}

static int teardown(void **state)
{
    (void)state;
    harness_deinit(&harness);
    return 0;
}

static void assert_letters(struct str body, size_t len)
{
    assert_int_equal(body.len, len);
    for (size_t i = 0; i < len; i++)
        if (body.ptr[i] != (char)('a' + i % 26))
            fail_msg("byte %zu is wrong", i);
}

#define GET(path) STR("GET " path " HTTP/1.1\r\nHost: a\r\n\r\n")
#define THEN_NOW "GET /now HTTP/1.1\r\nHost: a\r\n\r\n"

static void test_chunked_and_then_the_next_request(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, STR("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n" THEN_NOW));
    client_receive(&client);
    struct answer answer = client_take(&client);
    assert_true(answer_has(&answer, "Transfer-Encoding: chunked\r\n"));
    assert_false(answer_has(&answer, "Content-Length"));
    assert_letters(answer.body, 1000);
    assert_int_equal(client_take(&client).status, 200);
    assert_int_equal(faucet.released, 1);
    assert_int_equal(harness.loop->parking.occupied, 0);
    client_close(&client);
}

static void test_a_known_length_is_sent_as_one(void **state)
{
    (void)state;
    struct client client;
    faucet.promised = 1000;
    client_connect(&harness, &client);
    client_send(&client, STR("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n" THEN_NOW));
    client_receive(&client);
    struct answer answer = client_take(&client);
    assert_true(answer_has(&answer, "Content-Length: 1000\r\n"));
    assert_letters(answer.body, 1000);
    assert_int_equal(client_take(&client).status, 200);
    client_close(&client);
}

static void test_http_1_0_ends_with_the_connection(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, STR("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    client_receive(&client);
    assert_true(client.at_end);
    struct answer answer = client_take(&client);
    assert_false(answer_has(&answer, "chunked"));
    assert_true(answer_has(&answer, "Connection: close\r\n"));
    assert_letters(answer.body, 1000);
    client_close(&client);
}

static void test_head_sends_no_body_and_releases(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, STR("HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n" THEN_NOW));
    client_receive(&client);
    struct answer answer = client_take_head_only(&client);
    assert_int_equal(answer.status, 200);
    assert_int_equal(client_take(&client).status, 200);
    assert_int_equal(faucet.asked, 0);
    assert_int_equal(faucet.released, 1);
    client_close(&client);
}

static void test_a_broken_promise_cuts_the_connection(void **state)
{
    (void)state;
    static const int64_t promises[] = {999, 1001};
    for (int i = 0; i < 2; i++) {
        struct client client;
        faucet =
            (struct faucet){.total = 1000, .step = 100, .at_end = HTTP_PRODUCER_END, .promised = promises[i]};
        client_connect(&harness, &client);
        client_send(&client, GET("/stream"));
        client_receive(&client);
        assert_true(client.at_end);
        assert_true(buf_len(&client.in) < (size_t)promises[i] + 50);
        assert_int_equal(faucet.released, 1);
        client_close(&client);
    }
}

static void test_a_failing_source_cuts_the_connection(void **state)
{
    (void)state;
    struct client client;
    faucet.at_end = HTTP_PRODUCER_FAIL;
    client_connect(&harness, &client);
    client_send(&client, GET("/stream"));
    client_receive(&client);
    assert_true(client.at_end);
    assert_null(buf_len(&client.in) ? memmem(client.in.data, client.in.end, "\r\n0\r\n\r\n", 7) : NULL);
    assert_int_equal(faucet.released, 1);
    client_close(&client);
}

static void test_r5_memory_is_bounded_by_the_socket(void **state)
{
    (void)state;
    struct client client;
    faucet.total = (size_t)64 * 1024 * 1024;
    faucet.step = 1 << 20;
    client_connect(&harness, &client);
    client_send(&client, GET("/stream"));
    harness_turn(&harness, 20);
    assert_true(faucet.given < 1024 * 1024); /* nobody reads: what the socket takes and one buffer, no more */
    size_t received = 0;
    for (int i = 0; i < 100000 && received < faucet.total; i++) {
        client_receive(&client);
        received += buf_len(&client.in);
        buf_clear(&client.in);
    }
    assert_true(received > faucet.total);
    assert_int_equal(faucet.given, faucet.total);
    assert_int_equal(faucet.released, 1);
    client_close(&client);
}

static void test_c6_a_reader_that_takes_nothing_is_cut_off(void **state)
{
    (void)state;
    struct client client;
    faucet.total = (size_t)64 * 1024 * 1024;
    faucet.step = 1 << 20;
    client_connect(&harness, &client);
    client_send(&client, GET("/stream"));
    for (int i = 0; i < 1000 && !faucet.released; i++)
        loop_run_once(harness.loop, 10);
    assert_int_equal(faucet.released, 1);
    client_close(&client);
}

static void test_a_live_stream_waits_and_is_woken(void **state)
{
    (void)state;
    struct client client;
    faucet.at_end = HTTP_PRODUCER_WAIT;
    client_connect(&harness, &client);
    client_send(&client, GET("/live"));
    client_receive(&client);
    assert_non_null(memmem(client.in.data, client.in.end, "abc", 3));
    buf_clear(&client.in);
    int asked = faucet.asked;
    harness_turn(&harness, 5);
    assert_int_equal(faucet.asked, asked);
    faucet.total = 1010;
    http_stream_wake(faucet.ref);
    client_receive(&client);
    assert_true(str_eq(buf_str(&client.in), STR("0000000a\r\nmnopqrstuv\r\n")));
    buf_clear(&client.in);
    faucet.at_end = HTTP_PRODUCER_END;
    http_stream_wake(faucet.ref);
    client_receive(&client);
    assert_true(str_eq(buf_str(&client.in), STR("0\r\n\r\n")));
    http_stream_wake(faucet.ref); /* gone: nothing happens */
    assert_int_equal(faucet.released, 1);
    client_close(&client);
}

static void test_a_client_that_goes_releases_the_source(void **state)
{
    (void)state;
    struct client client;
    faucet.at_end = HTTP_PRODUCER_WAIT;
    client_connect(&harness, &client);
    client_send(&client, GET("/live"));
    harness_turn(&harness, 3);
    client_close(&client);
    assert_int_equal(faucet.released, 1);
    assert_int_equal(harness.loop->parking.occupied, 0);
}

static void test_a_worker_can_start_a_stream(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, GET("/work"));
    for (int i = 0; i < 1000 && faucet.released == 0; i++)
        loop_run_once(harness.loop, 10);
    client_receive(&client);
    assert_letters(client_take(&client).body, 1000);
    client_close(&client);
}

static void count_drained(void *arg)
{
    ++*(int *)arg;
}

static void test_c7_drain_ends_a_live_stream_properly(void **state)
{
    (void)state;
    struct client client;
    int drained = 0;
    faucet.at_end = HTTP_PRODUCER_WAIT;
    client_connect(&harness, &client);
    client_send(&client, GET("/live"));
    client_receive(&client);
    http_server_drain(harness.server, INT64_MAX, count_drained, &drained);
    client_receive(&client);
    struct str body = client_take(&client).body;
    assert_letters(str_of(body.ptr, 1000), 1000);
    assert_true(str_eq(str_skip(body, 1000), STR("last\n")));
    assert_true(client.at_end);
    client_close(&client);
    assert_int_equal(drained, 1);
    assert_int_equal(faucet.released, 1);
}

/* A reader that has not taken everything yet gets the rest first. */
static void test_c7_drain_ends_a_stream_after_what_it_had_to_give(void **state)
{
    (void)state;
    struct client client;
    int drained = 0;
    faucet.total = 4000000;
    faucet.step = 100000;
    faucet.at_end = HTTP_PRODUCER_WAIT;
    client_connect(&harness, &client);
    client_send(&client, GET("/live"));
    harness_turn(&harness, 5);
    assert_true(faucet.given < faucet.total);
    http_server_drain(harness.server, INT64_MAX, count_drained, &drained);
    client_receive(&client);
    struct str body = client_take(&client).body;
    assert_letters(str_of(body.ptr, faucet.total), faucet.total);
    assert_true(str_eq(str_skip(body, faucet.total), STR("last\n")));
    client_close(&client);
    assert_int_equal(drained, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_chunked_and_then_the_next_request, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_known_length_is_sent_as_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_http_1_0_ends_with_the_connection, setup, teardown),
        cmocka_unit_test_setup_teardown(test_head_sends_no_body_and_releases, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_broken_promise_cuts_the_connection, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_failing_source_cuts_the_connection, setup, teardown),
        cmocka_unit_test_setup_teardown(test_r5_memory_is_bounded_by_the_socket, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_a_reader_that_takes_nothing_is_cut_off, setup_impatient,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_live_stream_waits_and_is_woken, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_client_that_goes_releases_the_source, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_worker_can_start_a_stream, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c7_drain_ends_a_live_stream_properly, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c7_drain_ends_a_stream_after_what_it_had_to_give, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
