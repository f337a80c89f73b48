/* Connections: pipelining, keep-alive, how they end, bodies. */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness.h"

/* ---- routes ---- */

static char large_body[300 * 1024];

static void large(struct http_request *request)
{
    memset(large_body, 'x', sizeof large_body);
    http_send(request, &(struct http_response){.status = 200, .body = str_of(large_body, sizeof large_body)});
}

static unsigned slow_count;

/* Slow by the clock, however fast the machine is. */
static void slow(struct http_request *request)
{
    for (int64_t begin_ns = clock_mono_ns(); clock_mono_ns() - begin_ns < CLOCK_NS_PER_MS / 10;)
        ;
    slow_count++;
    answer_body(request);
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/slow", .handler = slow},
    {.method = HTTP_GET, .path = "/", .handler = answer_body},
    {.method = HTTP_POST, .path = "/echo", .handler = answer_body, .consumes = HTTP_ANY},
    {.method = HTTP_POST, .path = "/json", .handler = answer_body, .body_bytes_max = 100},
    {.method = HTTP_GET, .path = "/items/{key}", .handler = answer_key},
    {.method = HTTP_GET, .path = "/large", .handler = large},
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

/* C7: what a client pipelines does not keep a loop from the others, also where each request takes long. */
static void test_a_tick_that_takes_long_gives_others_their_turn(void **state)
{
    struct client greedy[3], other;
    struct buf requests = {0};
    struct harness *harness = *state;

    for (int i = 0; i < 120; i++)
        buf_put_str(&requests, STR("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n"));
    slow_count = 0;
    for (int i = 0; i < 3; i++) {
        client_connect(harness, &greedy[i]);
        client_send(&greedy[i], buf_str(&requests));
    }
    client_connect(harness, &other);
    client_send(&other, STR("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    char byte;
    while (recv(other.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 1)
        loop_run_once(harness->loop, 0);
    assert_in_range(slow_count, 1, 32 + 2 * 2);
    for (int i = 0; i < 3; i++) {
        while (slow_count < 3 * 120)
            harness_turn(harness, 1);
        client_receive(&greedy[i]);
        for (int j = 0; j < 120; j++)
            assert_int_equal(client_take(&greedy[i]).status, 200);
        client_close(&greedy[i]);
    }
    buf_deinit(&requests);
    client_close(&other);
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
static void test_a_body_after_a_long_head(void **state)
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
        cmocka_unit_test_setup_teardown(test_pipelined_answers_come_in_order_and_in_one_write, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_tick_that_takes_long_gives_others_their_turn, setup, teardown),
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
        cmocka_unit_test_setup_teardown(test_a_body_after_a_long_head, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
