/* The prepare step of a row: runs once, after the idempotency step and before the handler; a request that waits holds no thread, and ends with its
 * client, its deadline or the server. */
#include <unistd.h>

#include "base/clock.h"
#include "harness.h"

enum { DEADLINE_MS = 20, PAST_DEADLINE_US = 25000 };

static int asked, handled, dropped, entered, left;
static struct loop_park_ref at_step, at_prepare;
static char seen_body[64];

static void on_drop(struct http_request *request, void *context)
{
    assert_ptr_equal(request->handler_data, &asked);
    assert_ptr_equal(context, &dropped);
    dropped++;
}

static void on_timeout(struct http_request *request, void *context)
{
    assert_ptr_equal(context, &dropped);
    http_send(request, &(struct http_response){.status = 504});
}

/* ---- the steps and the handlers ---- */

static enum http_step take_key(struct http_request *request, void *context)
{
    (void)context;
    entered++;
    request->idempotency_memo = &entered;
    if (!str_eq(http_request_header(request, STR("X-Step")), STR("wait")))
        return HTTP_STEP_PASS;
    assert_true(http_request_park(request, CLOCK_NEVER, on_timeout, &dropped, &at_step));
    return HTTP_STEP_PARKED;
}

static void on_key_end(struct http_request *request)
{
    (void)request;
    left++;
}

static enum http_step prepare(struct http_request *request, void *context)
{
    (void)context;
    struct str wish = http_request_header(request, STR("X-Prepare"));

    assert_null(request->handler_data);
    assert_int_equal(handled, 0);
    asked++;
    request->handler_data = &asked;
    snprintf(seen_body, sizeof seen_body, "%.*s", STR_ARG(request->body));
    if (str_eq(wish, STR("refuse")))
        http_send(request, &(struct http_response){.status = 404});
    if (str_eq(wish, STR("refuse")) || str_eq(wish, STR("forget")))
        return HTTP_STEP_ANSWERED;
    if (str_eq(wish, STR("dawdle")))
        usleep(PAST_DEADLINE_US);
    if (!str_eq(wish, STR("wait")))
        return HTTP_STEP_PASS;
    assert_true(http_request_park(request, CLOCK_NEVER, on_timeout, &dropped, &at_prepare));
    http_request_on_drop(request, on_drop);
    return HTTP_STEP_PARKED;
}

static void answer(struct http_request *request)
{
    assert_ptr_equal(request->handler_data, &asked);
    handled++;
    http_send(request, &(struct http_response){.status = 201, .body = request->body});
}

static void plain(struct http_request *request)
{
    http_send(request, &(struct http_response){.status = 200, .body = STR("plain")});
}

#define ROW(name, ...)                                                                                  \
    {                                                                                                   \
        .method = HTTP_POST, .path = name, .handler = answer, .prepare = prepare, .consumes = HTTP_ANY, \
        ##__VA_ARGS__                                                                                   \
    }

static const struct http_route routes[] = {
    ROW("/hot"),
    ROW("/worker", .kind = HTTP_WORKER),
    ROW("/keyed", .kind = HTTP_WORKER, .idempotency = HTTP_KEY_SERIALIZE),
    ROW("/brief", .kind = HTTP_WORKER, .idempotency = HTTP_KEY_SERIALIZE, .deadline_ms = DEADLINE_MS),
    {.method = HTTP_POST, .path = "/plain", .handler = plain, .consumes = HTTP_ANY},
    {0},
};

static struct harness harness;
static struct client client;

static int setup(void **state)
{
    (void)state;
    asked = handled = dropped = entered = left = 0;
    seen_body[0] = '\0';
    harness_init(&harness, routes);
    harness.workers = worker_pool_create("test", 1, 4);
    harness.config.workers = harness.workers;
    harness.config.idempotency = take_key;
    harness.config.on_idempotency_end = on_key_end;
    harness_start(&harness);
    client_connect(&harness, &client);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    harness_deinit(&harness);
    return 0;
}

/* ---- what the tests say ---- */

static void post(const char *path, const char *at_the_key, const char *wish)
{
    char text[256];
    snprintf(text, sizeof text,
             "POST %s HTTP/1.1\r\nHost: a\r\nX-Step: %s\r\nX-Prepare: %s\r\nContent-Length: 4\r\n\r\nbody",
             path, at_the_key, wish);
    client_send(&client, str_from(text));
    harness_turn(&harness, 2);
}

static struct answer receive(void)
{
    for (int i = 0; i < 1000 && buf_len(&client.in) == 0 && !client.at_end; i++) {
        loop_run_once(harness.loop, 10);
        client_receive(&client);
    }
    return client_take(&client);
}

static int status(void)
{
    return receive().status;
}

static void resume(struct loop_park_ref ref)
{
    struct http_request *request = http_request_unpark(ref);
    assert_non_null(request);
    http_request_resume(request);
}

static void expect(int asked_times, int handled_times)
{
    assert_int_equal(asked, asked_times);
    assert_int_equal(handled, handled_times);
}

/* ---- asking ---- */

static void test_it_is_asked_before_the_handler_with_the_whole_body(void **state)
{
    (void)state;
    const char *const paths[] = {"/hot", "/worker", "/keyed"};
    for (int i = 0; i < 3; i++) {
        asked = handled = 0;
        post(paths[i], "", "");
        assert_int_equal(status(), 201);
        expect(1, 1);
        assert_string_equal(seen_body, "body");
    }
    assert_int_equal(left, 1);
    client_close(&client);
}

static void test_what_it_answers_is_the_answer(void **state)
{
    (void)state;
    post("/keyed", "", "refuse");
    assert_int_equal(status(), 404);
    expect(1, 0);
    assert_int_equal(left, 1);
    post("/keyed", "", "forget");
    assert_int_equal(status(), 500);
    expect(2, 0);
    assert_int_equal(left, 2);
    client_close(&client);
    assert_int_equal(left, 2);
}

static void test_it_runs_after_the_idempotency_step_only(void **state)
{
    (void)state;
    post("/keyed", "wait", "wait");
    expect(0, 0);
    resume(at_step);
    harness_turn(&harness, 2);
    expect(1, 0);
    resume(at_prepare);
    assert_int_equal(status(), 201);
    expect(1, 1);
    assert_int_equal(entered, 1);
    assert_int_equal(left, 1);
    client_close(&client);
}

/* ---- waiting ---- */

static void test_a_resumed_request_goes_to_the_handler(void **state)
{
    (void)state;
    const char *const paths[] = {"/hot", "/worker", "/keyed"};
    for (int i = 0; i < 3; i++) {
        asked = handled = 0;
        post(paths[i], "", "wait");
        expect(1, 0);
        resume(at_prepare);
        assert_int_equal(status(), 201);
        expect(1, 1);
    }
    assert_int_equal(left, 1); /* a row without a policy was never inside */
    assert_int_equal(dropped, 0);
    client_close(&client);
}

static void test_those_behind_it_wait_and_come_in_order(void **state)
{
    (void)state;
    post("/worker", "", "wait");
    post("/plain", "", "");
    assert_int_equal(buf_len(&client.in), 0);
    resume(at_prepare);
    assert_int_equal(status(), 201);
    assert_int_equal(status(), 200);
    client_close(&client);
}

static void test_a_step_that_parks_is_notified_when_the_client_disconnects(void **state)
{
    (void)state;
    post("/keyed", "", "wait");
    client_close(&client);
    assert_int_equal(dropped, 1);
    assert_null(http_request_unpark(at_prepare));
    expect(1, 0);
    assert_int_equal(left, 1);
}

static void test_a_client_that_goes_before_its_turn_is_not_handled(void **state)
{
    (void)state;
    post("/keyed", "", "wait");
    resume(at_prepare);
    client_close(&client);
    assert_int_equal(dropped, 0);
    expect(1, 0);
    assert_int_equal(left, 1);
}

/* ---- the row's deadline ---- */

static void test_the_rows_deadline_ends_the_wait(void **state)
{
    (void)state;
    post("/brief", "", "wait"); /* for ever, it says */
    assert_int_equal(status(), 504);
    assert_null(http_request_unpark(at_prepare));
    expect(1, 0);
    assert_int_equal(left, 1);
    post("/plain", "", "");
    assert_int_equal(status(), 200);
    client_close(&client);
}

static void test_a_worker_has_only_what_is_left_of_the_deadline(void **state)
{
    (void)state;
    post("/brief", "", "dawdle");
    assert_int_equal(status(), 503);
    expect(1, 0);
    client_close(&client);
    for (int i = 0; i < 1000 && left == 0; i++)
        loop_run_once(harness.loop, 10);
    assert_int_equal(left, 1);
}

/* The next request on the connection has all of its own. */
static void test_a_deadline_is_one_requests(void **state)
{
    (void)state;
    post("/brief", "", "refuse");
    assert_int_equal(status(), 404);
    usleep(PAST_DEADLINE_US);
    asked = 0;
    post("/worker", "", "");
    assert_int_equal(status(), 201);
    client_close(&client);
}

/* ---- a stop ---- */

static void on_drained(void *arg)
{
    *(bool *)arg = true;
}

static void turn_until(const bool *drained)
{
    for (int i = 0; i < 1000 && !*drained; i++)
        loop_run_once(harness.loop, 10);
    assert_true(*drained);
}

static void test_a_stop_lets_it_finish(void **state)
{
    (void)state;
    bool drained = false;
    post("/worker", "", "wait");
    http_server_drain(harness.server, CLOCK_NEVER, on_drained, &drained);
    harness_turn(&harness, 3);
    assert_false(drained);
    resume(at_prepare);
    struct answer last = receive();
    assert_int_equal(last.status, 201);
    assert_true(answer_has(&last, "Connection: close"));
    client_close(&client);
    turn_until(&drained);
}

static void test_a_stop_that_waits_no_longer_tells_both_sides(void **state)
{
    (void)state;
    bool drained = false;
    post("/keyed", "", "wait");
    http_server_drain(harness.server, clock_mono_ns(), on_drained, &drained);
    assert_int_equal(status(), 503);
    assert_int_equal(dropped, 1);
    assert_null(http_request_unpark(at_prepare));
    assert_int_equal(left, 1);
    client_close(&client);
    turn_until(&drained);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(it_is_asked_before_the_handler_with_the_whole_body),
        TEST(what_it_answers_is_the_answer),
        TEST(it_runs_after_the_idempotency_step_only),
        TEST(a_resumed_request_goes_to_the_handler),
        TEST(those_behind_it_wait_and_come_in_order),
        TEST(a_step_that_parks_is_notified_when_the_client_disconnects),
        TEST(a_client_that_goes_before_its_turn_is_not_handled),
        TEST(the_rows_deadline_ends_the_wait),
        TEST(a_worker_has_only_what_is_left_of_the_deadline),
        TEST(a_deadline_is_one_requests),
        TEST(a_stop_lets_it_finish),
        TEST(a_stop_that_waits_no_longer_tells_both_sides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
