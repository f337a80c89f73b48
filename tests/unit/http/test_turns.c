/* C7: however many connections and requests a flood has, a connection of another tenant waits for the rest of a tick and a turn of each
 * other tenant. Time passes only in handlers, so that what is measured is the server's order of work. */
#include <time.h>

#include "base/clock.h"
#include "harness.h"
#include "http/http_inside.h"

enum {
    REQUEST_US = 20, /* of a flood */
    ROUNDS = 50,
    TURN_US = HTTP_SHORT_TURN_US + HTTP_REQUESTS_PER_SHORT_CHECK * REQUEST_US,
    TICK_US = HTTP_TICK_US_MAX + HTTP_REQUESTS_PER_CHECK * REQUEST_US + HTTP_SHORT_PHASE_US + TURN_US,
};

static int64_t now_ns = CLOCK_NS_PER_S;
static unsigned costly_count;

int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    *now = (struct timespec){.tv_sec = now_ns / CLOCK_NS_PER_S, .tv_nsec = now_ns % CLOCK_NS_PER_S};
    return 0;
}

static void costly(struct http_request *request)
{
    now_ns += REQUEST_US * 1000;
    costly_count++;
    answer_body(request);
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/costly/{tenant}", .handler = costly},
    {.method = HTTP_GET, .path = "/", .handler = answer_body},
    {0},
};

/* The last character of the path. */
static uint64_t tenant_of(const struct http_request *request)
{
    return (unsigned char)request->path.ptr[request->path.len - 1];
}

static struct harness harness;

static int setup(void **state)
{
    (void)state;
    harness_init(&harness, routes);
    harness.config.share_of = tenant_of;
    harness.config.limits.held_max = 1000;
    harness.config.limits.connections_max = 10000;
    harness_start(&harness);
    costly_count = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    harness_deinit(&harness);
    return 0;
}

/* ---- floods ---- */

static void drain_answers(const struct client *client)
{
    static char bytes[1 << 20];
    while (recv(client->fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
}

/* `pipelined` requests on each connection, of the tenants 'a', 'b', … in turn. */
static void send_flood(struct client *clients, size_t count, unsigned pipelined, unsigned tenants)
{
    for (size_t i = 0; i < count; i++) {
        struct buf requests = {0};
        drain_answers(&clients[i]);
        for (unsigned request = 0; request < pipelined; request++)
            buf_printf(&requests, "GET /costly/%c HTTP/1.1\r\nHost: a\r\n\r\n", (char)('a' + i % tenants));
        (void)!send(clients[i].fd, requests.data, buf_len(&requests), MSG_DONTWAIT | MSG_NOSIGNAL);
        buf_deinit(&requests);
    }
}

/* The longest that another tenant's request took, in µs, while the flood never ends. */
static int64_t longest_beside(size_t connections, unsigned pipelined, unsigned tenants)
{
    struct client *flood = calloc(connections, sizeof *flood), modest;
    int64_t longest_ns = 0;

    for (size_t i = 0; i < connections; i++)
        client_connect(&harness, &flood[i]);
    client_connect(&harness, &modest);
    for (int round = 0; round < ROUNDS; round++) {
        send_flood(flood, connections, pipelined, tenants);
        if (round % 2)
            loop_run_once(harness.loop, 0); /* in the middle of it */
        int64_t begin_ns = now_ns;
        char byte;
        client_send(&modest, STR("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
        while (recv(modest.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) {
            int64_t tick_ns = now_ns;
            loop_run_once(harness.loop, 0);
            assert_in_range(now_ns - tick_ns, 0, TICK_US * 1000);
        }
        drain_answers(&modest);
        if (round >= 2 && now_ns - begin_ns > longest_ns) /* it has a group of its own by then */
            longest_ns = now_ns - begin_ns;
    }
    assert_true(costly_count > 0);
    for (size_t i = 0; i < connections; i++)
        client_close(&flood[i]);
    client_close(&modest);
    free(flood);
    return longest_ns / 1000;
}

static void test_connections_that_pipeline(void **state)
{
    (void)state;
    assert_in_range(longest_beside(64, 128, 1), 0, 2 * TICK_US);
}

static void test_connections_of_several_tenants(void **state)
{
    (void)state;
    assert_in_range(longest_beside(60, 128, 6), 0, 2 * TICK_US + 6 * TURN_US);
}

static void test_many_connections_with_a_request_each(void **state)
{
    (void)state;
    assert_in_range(longest_beside(400, 1, 1), 0, 2 * TICK_US);
}

/* ---- and the flood itself ---- */

static void test_a_flood_is_answered_whole(void **state)
{
    (void)state;
    enum { CLIENTS = 20, PIPELINED = 100 };
    static struct client flood[CLIENTS];
    for (size_t i = 0; i < CLIENTS; i++)
        client_connect(&harness, &flood[i]);
    send_flood(flood, CLIENTS, PIPELINED, 3);
    for (int i = 0; i < 1000 && costly_count < CLIENTS * PIPELINED; i++)
        loop_run_once(harness.loop, 0);
    assert_int_equal(costly_count, CLIENTS * PIPELINED);
    for (size_t i = 0; i < CLIENTS; i++) {
        client_receive(&flood[i]);
        for (unsigned request = 0; request < PIPELINED; request++)
            assert_int_equal(client_take(&flood[i]).status, 200);
        client_close(&flood[i]);
    }
}

/* Those that wait are closed with the server, and when their client is gone. */
static void test_connections_end_while_they_wait(void **state)
{
    (void)state;
    enum { CLIENTS = 300 };
    static struct client flood[CLIENTS];
    for (size_t i = 0; i < CLIENTS; i++)
        client_connect(&harness, &flood[i]);
    send_flood(flood, CLIENTS, 16, 5);
    loop_run_once(harness.loop, 0);
    assert_in_range(costly_count, 1, CLIENTS * 16 / 2);
    for (size_t i = 0; i < CLIENTS / 2; i++)
        client_close(&flood[i]);
    for (int i = 0; i < 3; i++)
        loop_run_once(harness.loop, 0);
    for (size_t i = CLIENTS / 2; i < CLIENTS; i++)
        client_close(&flood[i]);
}

/* ---- many that a new token has held up ---- */

enum { HELD = 60, COSTLIER_US = 50 };
static struct loop_park_ref held[HELD];
static unsigned held_count;
static struct loop_tick other_tick; /* of a module, as that of hydration's lookups */

static void on_other_tick(struct loop_tick *tick)
{
    (void)tick;
}

static enum http_step hold(struct http_request *request, void *context)
{
    (void)context;
    if (held_count == HELD)
        return HTTP_STEP_PASS;
    assert_true(http_request_park(request, CLOCK_NEVER, NULL, NULL, &held[held_count]));
    held_count++;
    return HTTP_STEP_PARKED;
}

static void costly_with_tick(struct http_request *request)
{
    loop_at_tick_end(harness.loop, &other_tick, on_other_tick);
    now_ns += COSTLIER_US * 1000;
    costly(request);
}

static const struct http_route tick_routes[] = {
    {.method = HTTP_GET, .path = "/costly/{tenant}", .handler = costly_with_tick},
    {0},
};

static int setup_held(void **state)
{
    (void)state;
    harness_init(&harness, tick_routes);
    harness.config.share_of = tenant_of;
    harness.config.gate = hold;
    harness.config.limits.held_max = 1000;
    harness_start(&harness);
    costly_count = held_count = 0;
    return 0;
}

/* Their turns wait at the end of a tick, behind a module's that has run in it. The next tick is a new one, and what waits, waits. */
static void test_turns_that_a_tick_leaves_to_the_next(void **state)
{
    (void)state;
    enum { PIPELINED = 3 };
    static struct client flood[HELD];
    for (size_t i = 0; i < HELD; i++)
        client_connect(&harness, &flood[i]);
    send_flood(flood, HELD, 1, 3);
    harness_turn(&harness, 5);
    assert_int_equal(held_count, HELD);
    loop_at_tick_end(harness.loop, &other_tick, on_other_tick);
    for (size_t i = 0; i < HELD; i++)
        http_request_resume(http_request_unpark(held[i]));
    loop_run_once(harness.loop, 0);
    assert_in_range(costly_count, 1, HELD - 1);
    for (size_t i = HELD; i-- > 0;) /* those that wait are the first */
        client_send(
            &flood[i],
            STR("GET /costly/a HTTP/1.1\r\nHost: a\r\n\r\nGET /costly/b HTTP/1.1\r\nHost: a\r\n\r\n"));
    for (int i = 0; i < 100 && costly_count < HELD * PIPELINED; i++)
        loop_run_once(harness.loop, 0);
    assert_int_equal(costly_count, HELD * PIPELINED);
    for (size_t i = 0; i < HELD; i++) {
        client_receive(&flood[i]);
        for (unsigned request = 0; request < PIPELINED; request++)
            assert_int_equal(client_take(&flood[i]).status, 200);
        client_close(&flood[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_connections_that_pipeline, setup, teardown),
        cmocka_unit_test_setup_teardown(test_connections_of_several_tenants, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_connections_with_a_request_each, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_flood_is_answered_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(test_connections_end_while_they_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(test_turns_that_a_tick_leaves_to_the_next, setup_held, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
