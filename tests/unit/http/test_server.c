/* The server as a whole: listening over TCP on two loops, the connection cap, deadlines and the graceful
 * stop. */
#include <arpa/inet.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness.h"

static struct loop_park_ref parked;

static void answer_late(struct http_request *request, void *context)
{
    (void)context;
    http_send(request, &(struct http_response){.status = 200, .body = STR("late")});
}

static void park(struct http_request *request)
{
    (void)http_request_park(request, CLOCK_NEVER, answer_late, NULL, &parked);
}

static void now(struct http_request *request)
{
    http_send(request, &(struct http_response){.status = 200, .body = STR("now")});
}

static void large(struct http_request *request)
{
    static char text[30000];
    http_send(request, &(struct http_response){.status = 200, .body = str_of(text, sizeof text)});
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/large", .handler = large},
    {.method = HTTP_GET, .path = "/now", .handler = now},
    {.method = HTTP_POST, .path = "/now", .handler = now, .consumes = HTTP_ANY},
    {.method = HTTP_GET, .path = "/park", .handler = park},
    {0},
};

static struct harness harness;

static int setup(void **state)
{
    (void)state;
    harness_init(&harness, routes);
    harness.config.limits.header_timeout_ms = 40;
    harness.config.limits.body_timeout_ms = 40;
    harness.config.limits.idle_timeout_ms = 80;
    harness.config.limits.connections_max = 3;
    harness_start(&harness);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    harness_deinit(&harness);
    return 0;
}

static void wait_for_end(struct client *client)
{
    for (int i = 0; i < 1000 && !client->at_end; i++) {
        loop_run_once(harness.loop, 10);
        client_receive(client);
    }
    assert_true(client->at_end);
}

/* ---- deadlines ---- */

/* The deadline is total: a byte now and then does not move it. */
static void test_c6_a_head_that_dribbles_is_408(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    for (int i = 0; i < 10000 && !client.at_end; i++) {
        client_send(&client, i == 0 ? STR("GET /now HTTP/1.1\r\nX: ") : STR("x"));
        loop_run_once(harness.loop, 1);
        client_receive(&client);
        if (buf_len(&client.in) > 0)
            break;
    }
    struct answer answer = client_take(&client);
    assert_int_equal(answer.status, 408);
    assert_true(answer_has(&answer, "Connection: close\r\n"));
    client_close(&client);
}

static void test_c6_a_body_that_dribbles_is_408(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, STR("POST /now HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"));
    for (int i = 0; i < 1000 && buf_len(&client.in) == 0 && !client.at_end; i++) {
        client_send(&client, STR("x"));
        usleep(5000); /* progress all the time, but far below the least rate */
        client_receive(&client);
    }
    assert_int_equal(client_take(&client).status, 408);
    client_close(&client);
}

static void test_an_idle_connection_is_closed_without_a_word(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, STR("GET /now HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_receive(&client);
    assert_int_equal(client_take(&client).status, 200);
    wait_for_end(&client);
    assert_int_equal(buf_len(&client.in), 0);
    client_close(&client);
}

static void test_a_parked_request_outlives_the_idle_timeout(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, STR("GET /park HTTP/1.1\r\nHost: a\r\n\r\n"));
    int64_t until = clock_mono_ns() + 200 * CLOCK_NS_PER_MS;
    while (clock_mono_ns() < until)
        loop_run_once(harness.loop, 10);
    struct http_request *request = http_request_unpark(parked);
    assert_non_null(request);
    now(request);
    client_receive(&client);
    assert_int_equal(client_take(&client).status, 200);
    client_close(&client);
}

/* Nothing of the next request is read before the client has taken its answer: that time is not the head's. */
static void test_c6_a_head_behind_an_unread_answer_has_its_whole_time(void **state)
{
    (void)state;
    for (int answers = 4; answers < 12; answers++) { /* the socket takes all but the last of some number */
        struct client client;
        client_connect(&harness, &client);
        for (int i = 0; i < answers; i++)
            client_send(&client, STR("GET /large HTTP/1.1\r\nHost: a\r\n\r\n"));
        client_send(&client, STR("GET /now HT"));
        harness_turn(&harness, 3);
        client_send(&client, STR("TP/1.1\r\nHost: a\r\n\r\n"));
        int64_t until = clock_mono_ns() + 60 * CLOCK_NS_PER_MS;
        while (clock_mono_ns() < until)
            loop_run_once(harness.loop, 10);
        client_receive(&client);
        for (int i = 0; i <= answers; i++)
            assert_int_equal(client_take(&client).status, 200);
        client_close(&client);
    }
}

/* ---- cap ---- */

static void test_c7_one_connection_too_many_is_503(void **state)
{
    (void)state;
    struct client clients[4];
    for (int i = 0; i < 4; i++)
        client_connect(&harness, &clients[i]);
    client_send(&clients[3], STR("GET /now HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_receive(&clients[3]);
    struct answer answer = client_take(&clients[3]);
    assert_int_equal(answer.status, 503);
    assert_true(answer_has(&answer, "Retry-After: 1\r\n"));
    assert_true(clients[3].at_end);
    client_close(&clients[3]);
    client_close(&clients[2]);
    client_connect(&harness, &clients[2]);
    client_send(&clients[2], STR("GET /now HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_receive(&clients[2]);
    assert_int_equal(client_take(&clients[2]).status, 200);
    for (int i = 0; i < 3; i++)
        client_close(&clients[i]);
}

/* ---- drain ---- */

static void count_drained(void *arg)
{
    ++*(int *)arg;
}

static void test_c7_drain_answers_what_is_in_flight(void **state)
{
    (void)state;
    struct client idle, busy;
    int drained = 0;
    client_connect(&harness, &idle);
    client_connect(&harness, &busy);
    client_send(&busy, STR("GET /park HTTP/1.1\r\nHost: a\r\n\r\nGET /now HTTP/1.1\r\nHost: a\r\n\r\n"));
    harness_turn(&harness, 3);
    http_server_drain(harness.server, CLOCK_NEVER, count_drained, &drained);
    client_receive(&idle);
    assert_true(idle.at_end);
    assert_int_equal(drained, 0);
    struct http_request *request = http_request_unpark(parked);
    assert_non_null(request);
    now(request);
    client_receive(&busy);
    struct answer answer = client_take(&busy);
    assert_int_equal(answer.status, 200);
    assert_false(answer_has(&answer, "Connection: close\r\n"));
    answer = client_take(&busy); /* of the second request, which had arrived too */
    assert_int_equal(answer.status, 200);
    assert_true(answer_has(&answer, "Connection: close\r\n"));
    client_close(&busy);
    client_close(&idle);
    assert_int_equal(drained, 1);
}

static void test_c7_past_the_deadline_the_rest_is_told_and_cut(void **state)
{
    (void)state;
    struct client busy;
    int drained = 0;
    client_connect(&harness, &busy);
    client_send(&busy, STR("GET /park HTTP/1.1\r\nHost: a\r\n\r\n"));
    harness_turn(&harness, 3);
    http_server_drain(harness.server, clock_mono_ns(), count_drained, &drained);
    wait_for_end(&busy);
    assert_true(str_starts_with(buf_str(&busy.in), STR("HTTP/1.1 503 ")));
    assert_null(http_request_unpark(parked));
    for (int i = 0; i < 1000 && !drained; i++) /* this client never closes its side */
        loop_run_once(harness.loop, 10);
    assert_int_equal(drained, 1);
    client_close(&busy);
}

/* ---- TCP ---- */

static sem_t drained_sem;

static void post_drained(void *arg)
{
    (void)arg;
    sem_post(&drained_sem);
}

static int connect_to(unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

static void test_listens_on_every_loop_and_stops(void **state)
{
    (void)state;
    struct error error;
    struct loop_group *group = loop_group_create(2, 64);
    struct http_router *router = http_router_create();
    struct http_server *server;
    struct http_server_config config = {.group = group, .router = router, .limits = http_limits_default};

    sem_init(&drained_sem, 0, 0);
    assert_int_equal(http_router_add(router, routes, NULL, &error), STATUS_OK);
    assert_int_equal(http_server_create(&config, &server, &error), STATUS_OK);
    assert_int_equal(http_server_listen(server, STR("127.0.0.1:0"), &error), STATUS_OK);
    assert_int_equal(http_server_listen(server, STR("no port"), &error), STATUS_CONFIG);
    loop_group_start(group);
    unsigned port = http_server_port(server);
    for (int i = 0; i < 20; i++) {
        char bytes[1000] = {0};
        int fd = connect_to(port);
        assert_true(fd >= 0);
        struct str request = STR("GET /now HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_int_equal(send(fd, request.ptr, request.len, 0), request.len);
        assert_true(recv(fd, bytes, sizeof bytes - 1, 0) > 0);
        assert_non_null(strstr(bytes, "\r\n\r\nnow"));
        close(fd);
        assert_int_equal(http_server_listen(server, STR("127.0.0.1:0"), &error),
                         STATUS_OK); /* while loops run */
    }
    http_server_drain(server, clock_mono_ns() + 10 * CLOCK_NS_PER_S, post_drained, NULL);
    sem_wait(&drained_sem);
    assert_int_equal(connect_to(port), -1);
    loop_group_stop(group);
    http_server_destroy(server);
    loop_group_destroy(group);
    http_router_destroy(router);
}

/* Sent before the stop: whether anybody has read it, or even accepted its connection, the client can't know. */
static void test_c7_drain_answers_what_nobody_has_read_yet(void **state)
{
    (void)state;
    enum { CLIENTS = 100 };
    struct str request = STR("GET /now HTTP/1.1\r\nHost: a\r\n\r\n");
    struct error error;
    int fds[CLIENTS], drained = 0;
    harness_init(&harness, routes);
    harness_start(&harness);
    assert_int_equal(http_server_listen(harness.server, STR("127.0.0.1:0"), &error), STATUS_OK);
    harness_turn(&harness, 3);
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = connect_to(http_server_port(harness.server));
        assert_int_equal(send(fds[i], request.ptr, request.len, 0), request.len);
    }
    http_server_drain(harness.server, CLOCK_NEVER, count_drained, &drained);
    harness_turn(&harness, 20);
    for (int i = 0; i < CLIENTS; i++) {
        char bytes[1000] = {0};
        assert_true(recv(fds[i], bytes, sizeof bytes - 1, MSG_DONTWAIT) > 0);
        assert_non_null(strstr(bytes, "\r\n\r\nnow"));
        assert_non_null(strstr(bytes, "Connection: close\r\n"));
        close(fds[i]);
    }
    for (int i = 0; i < 1000 && !drained; i++)
        loop_run_once(harness.loop, 10);
    assert_int_equal(drained, 1);
    harness_deinit(&harness);
}

/* A start that fails ends the server before a loop ever ran: the messages on their way must not find it
 * gone. */
static void test_a_server_can_end_before_its_loops_began(void **state)
{
    (void)state;
    struct error error;
    struct loop_group *group = loop_group_create(2, 64);
    struct http_router *router = http_router_create();
    struct http_server *server;
    struct http_server_config config = {.group = group, .router = router, .limits = http_limits_default};

    assert_int_equal(http_server_create(&config, &server, &error), STATUS_OK);
    assert_int_equal(http_server_listen(server, STR("127.0.0.1:0"), &error), STATUS_OK);
    unsigned port = http_server_port(server);
    http_server_destroy(server);
    loop_group_destroy(group);
    assert_int_equal(connect_to(port), -1);
    http_router_destroy(router);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_c6_a_head_that_dribbles_is_408, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_a_body_that_dribbles_is_408, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_idle_connection_is_closed_without_a_word, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_parked_request_outlives_the_idle_timeout, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_a_head_behind_an_unread_answer_has_its_whole_time, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_c7_one_connection_too_many_is_503, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c7_drain_answers_what_is_in_flight, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c7_past_the_deadline_the_rest_is_told_and_cut, setup, teardown),
        cmocka_unit_test(test_listens_on_every_loop_and_stops),
        cmocka_unit_test(test_c7_drain_answers_what_nobody_has_read_yet),
        cmocka_unit_test(test_a_server_can_end_before_its_loops_began),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
