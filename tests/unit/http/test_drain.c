/* Leaving: answers close their connections while everything is still served, and no answer is lost by it (C7). */
#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness.h"

#define GET_NOW "GET /now HTTP/1.1\r\nHost: a\r\n\r\n"

static struct loop_park_ref parked;
static int served;
static char big[4 * 1024 * 1024]; /* more than a socket takes */

static void now(struct http_request *request)
{
    served++;
    http_send(request, &(struct http_response){.status = 200, .body = STR("now")});
}

static void answer_big(struct http_request *request)
{
    http_send(request, &(struct http_response){.status = 200, .body = str_of(big, sizeof big)});
}

static void park(struct http_request *request)
{
    (void)http_request_park(request, CLOCK_NEVER, NULL, NULL, &parked);
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/now", .handler = now},
    {.method = HTTP_GET, .path = "/big", .handler = answer_big},
    {.method = HTTP_GET, .path = "/park", .handler = park},
    {.method = HTTP_POST, .path = "/body", .handler = answer_body, .consumes = HTTP_ANY},
    {0},
};

static struct harness harness;

static int setup(void **state)
{
    (void)state;
    served = 0;
    harness_init(&harness, routes);
    harness_start(&harness);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    harness_deinit(&harness);
    return 0;
}

static void leave(void)
{
    http_server_leave(harness.server);
    harness_turn(&harness, 2);
}

static void assert_takes(struct client *client, bool closes)
{
    struct answer answer = client_take(client);
    assert_int_equal(answer.status, 200);
    assert_int_equal(answer_has(&answer, "Connection: close\r\n"), closes);
}

static void count_drained(void *arg)
{
    ++*(int *)arg;
}

/* ---- socketpairs ---- */

static void test_c7_a_server_that_leaves_answers_and_closes(void **state)
{
    (void)state;
    struct client before, after;
    client_connect(&harness, &before);
    client_send(&before, STR(GET_NOW));
    client_receive(&before);
    assert_takes(&before, false);
    leave();
    client_receive(&before);
    assert_false(before.at_end); /* an idle connection stays: its client may be about to use it */
    client_send(&before, STR(GET_NOW));
    client_receive(&before);
    assert_takes(&before, true);
    assert_true(before.at_end);
    client_connect(&harness, &after);
    client_send(&after, STR(GET_NOW));
    client_receive(&after);
    assert_takes(&after, true);
    client_close(&before);
    client_close(&after);
}

static void test_c7_every_request_that_has_arrived_is_answered(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, STR("GET /park HTTP/1.1\r\nHost: a\r\n\r\n" GET_NOW
                             "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"));
    harness_turn(&harness, 3);
    leave();
    client_send(&client, STR(GET_NOW)); /* not read while the first one waits */
    now(http_request_unpark(parked));
    client_receive(&client);
    assert_takes(&client, false);
    assert_takes(&client, false);
    assert_takes(&client, false);
    assert_takes(&client, true);
    assert_true(client.at_end);
    client_close(&client);
}

static void test_c7_the_rest_of_a_request_is_waited_for(void **state)
{
    (void)state;
    struct client client;
    int drained = 0;
    client_connect(&harness, &client);
    client_send(&client, STR(GET_NOW "POST /body HTTP/1.1\r\nHost: a\r\nContent-Le"));
    client_receive(&client);
    assert_takes(&client, false);
    leave();
    http_server_drain(harness.server, CLOCK_NEVER, count_drained, &drained);
    harness_turn(&harness, 3);
    client_send(&client, STR("ngth: 4\r\n\r\nbo"));
    harness_turn(&harness, 3);
    assert_int_equal(drained, 0);
    client_send(&client, STR("dy"));
    client_receive(&client);
    assert_takes(&client, true);
    client_close(&client);
    assert_int_equal(drained, 1);
}

/* A client that sends without end does not delay the drain: what was read is answered, and that is all. */
static void test_c7_a_drain_answers_what_was_read(void **state)
{
    (void)state;
    struct client client;
    int drained = 0;
    client_connect(&harness, &client);
    client_send(&client, STR("GET /park HTTP/1.1\r\nHost: a\r\n\r\n" GET_NOW));
    harness_turn(&harness, 3);
    leave();
    http_server_drain(harness.server, CLOCK_NEVER, count_drained, &drained);
    harness_turn(&harness, 2);
    client_send(&client, STR(GET_NOW));
    now(http_request_unpark(parked));
    client_receive(&client);
    assert_takes(&client, false);
    assert_takes(&client, true);
    assert_true(client.at_end);
    assert_int_equal(served, 2);
    client_close(&client);
    assert_int_equal(drained, 1);
}

/* It is not read before the client has read the answer, which was given when nothing was known of a stop. */
static void test_c7_a_request_that_waits_behind_a_large_answer_is_answered(void **state)
{
    (void)state;
    struct client client;
    int drained = 0;
    client_connect(&harness, &client);
    client_send(&client, STR("GET /big HTTP/1.1\r\nHost: a\r\n\r\n"));
    harness_turn(&harness, 3);
    leave();
    http_server_drain(harness.server, CLOCK_NEVER, count_drained, &drained);
    client_send(&client, STR(GET_NOW));
    harness_turn(&harness, 3);
    client_receive(&client);
    assert_takes(&client, false);
    assert_takes(&client, true);
    assert_true(client.at_end);
    assert_int_equal(served, 1);
    client_close(&client);
    harness_turn(&harness, 3);
    assert_int_equal(drained, 1);
}

/* ---- TCP: a reset would show here, a socketpair has none ---- */

static int tcp_connect(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)http_server_port(harness.server))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    harness_turn(&harness, 5);
    return fd;
}

static void tcp_send(int fd)
{
    assert_int_equal(send(fd, GET_NOW, strlen(GET_NOW), MSG_NOSIGNAL), strlen(GET_NOW));
    harness_turn(&harness, 5);
}

/* Everything until the server's end, which must be an orderly one. */
static size_t tcp_read(int fd, char *bytes, size_t room)
{
    size_t len = 0;
    for (int i = 0; i < 1000; i++) {
        ssize_t got = recv(fd, bytes + len, room - 1 - len, MSG_DONTWAIT);
        if (got == 0)
            break;
        assert_true(got > 0 || errno == EAGAIN);
        len += got > 0 ? (size_t)got : 0;
        harness_turn(&harness, 1);
    }
    bytes[len] = '\0';
    return len;
}

static void listen_on_tcp(void)
{
    struct error error;
    assert_int_equal(http_server_listen(harness.server, STR("127.0.0.1:0"), &error), STATUS_OK);
    harness_turn(&harness, 3);
}

static void test_c7_a_request_that_races_with_the_close_destroys_no_answer(void **state)
{
    (void)state;
    char bytes[4096];
    listen_on_tcp();
    leave();
    int fd = tcp_connect();
    tcp_send(fd); /* answered, and our side is shut */
    tcp_send(fd); /* the client had not read the answer yet */
    tcp_send(fd);
    assert_int_equal(served, 1);
    assert_true(tcp_read(fd, bytes, sizeof bytes) > 0);
    assert_non_null(strstr(bytes, "Connection: close\r\n"));
    assert_non_null(strstr(bytes, "\r\n\r\nnow"));
    close(fd);
}

static void test_c7_an_idle_connection_ends_without_a_reset(void **state)
{
    (void)state;
    char bytes[4096];
    int drained = 0;
    listen_on_tcp();
    int idle = tcp_connect(), unread = tcp_connect();
    tcp_send(unread); /* its answer stays in the client's buffer, where a reset would remove it */
    leave();
    http_server_drain(harness.server, CLOCK_NEVER, count_drained, &drained);
    harness_turn(&harness, 5);
    tcp_send(idle);
    tcp_send(unread);
    assert_int_equal(tcp_read(idle, bytes, sizeof bytes), 0);
    assert_true(tcp_read(unread, bytes, sizeof bytes) > 0);
    assert_non_null(strstr(bytes, "\r\n\r\nnow"));
    assert_int_equal(served, 1);
    close(idle);
    close(unread);
    for (int i = 0; i < 1000 && !drained; i++)
        loop_run_once(harness.loop, 10);
    assert_int_equal(drained, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_c7_a_server_that_leaves_answers_and_closes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c7_every_request_that_has_arrived_is_answered, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c7_the_rest_of_a_request_is_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c7_a_drain_answers_what_was_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c7_a_request_that_waits_behind_a_large_answer_is_answered, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_c7_a_request_that_races_with_the_close_destroys_no_answer, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_c7_an_idle_connection_ends_without_a_reset, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
