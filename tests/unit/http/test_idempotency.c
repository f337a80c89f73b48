/* The idempotency step: runs once, when the body is complete; on_idempotency_end is called exactly once for a request that passed. */
#include <semaphore.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness.h"

static int asked, handled, left, dropped;
static struct loop_park_ref at_step, at_handler;
static sem_t worker_began, worker_may_end;
static char seen_body[64];

/* ---- the step and the handlers ---- */

static void on_drop(struct http_request *request, void *context)
{
    (void)request;
    (void)context;
    dropped++;
}

static void on_timeout(struct http_request *request, void *context)
{
    (void)context;
    http_send(request, &(struct http_response){.status = 409});
}

static enum http_step take_key(struct http_request *request, void *context)
{
    struct str wish = http_request_header(request, STR("X-Step"));

    assert_ptr_equal(context, &left);
    assert_null(request->idempotency_memo);
    assert_null(request->idempotency_key.ptr);
    asked++;
    request->idempotency_key = STR("k");
    if (str_eq(wish, STR("refuse")))
        http_send(request, &(struct http_response){.status = 400});
    if (str_eq(wish, STR("refuse")) || str_eq(wish, STR("forget")))
        return HTTP_STEP_ANSWERED;
    if (!str_eq(wish, STR("wait"))) {
        request->idempotency_memo = &asked;
        return HTTP_STEP_PASS;
    }
    if (!http_request_park(request, CLOCK_NEVER, on_timeout, NULL, &at_step))
        return HTTP_STEP_ANSWERED;
    http_request_on_drop(request, on_drop);
    return HTTP_STEP_PARKED;
}

static void on_key_end(struct http_request *request)
{
    assert_ptr_equal(request->idempotency_memo, &asked);
    assert_true(str_eq(request->idempotency_key, STR("k")));
    left++;
}

static void answer(struct http_request *request)
{
    handled++;
    snprintf(seen_body, sizeof seen_body, "%.*s", STR_ARG(request->body));
    http_send(request, &(struct http_response){.status = 201, .body = STR("done")});
}

static void answer_later(struct http_request *request)
{
    handled++;
    assert_true(http_request_park(request, CLOCK_NEVER, on_timeout, NULL, &at_handler));
}

static void answer_slowly(struct http_request *request)
{
    sem_post(&worker_began);
    sem_wait(&worker_may_end);
    http_send(request, &(struct http_response){.status = 201, .body = STR("done")});
}

#define ROW(name, function, ...)                                                                    \
    {                                                                                               \
        .method = HTTP_POST, .path = name, .handler = function, .consumes = HTTP_ANY, ##__VA_ARGS__ \
    }

static const struct http_route routes[] = {
    ROW("/plain", answer),
    ROW("/here", answer, .idempotency = HTTP_KEY_REJECT),
    ROW("/later", answer_later, .idempotency = HTTP_KEY_REJECT),
    ROW("/worker", answer, .kind = HTTP_WORKER, .idempotency = HTTP_KEY_SERIALIZE),
    ROW("/slow", answer_slowly, .kind = HTTP_WORKER, .idempotency = HTTP_KEY_SERIALIZE, .deadline_ms = 30),
    ROW("/slower", answer_slowly, .kind = HTTP_WORKER, .idempotency = HTTP_KEY_SERIALIZE),
    {0},
};

static struct harness harness;
static struct client client;

static int setup(void **state)
{
    (void)state;
    asked = handled = left = dropped = 0;
    seen_body[0] = '\0';
    sem_init(&worker_began, 0, 0);
    sem_init(&worker_may_end, 0, 0);
    harness_init(&harness, routes);
    harness.workers = worker_pool_create("test", 1, 1);
    harness.config.workers = harness.workers;
    harness.config.idempotency = take_key;
    harness.config.on_idempotency_end = on_key_end;
    harness.config.context = &left;
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

static void post(const char *path, const char *wish, const char *body)
{
    char text[256];
    snprintf(text, sizeof text, "POST %s HTTP/1.1\r\nHost: a\r\nX-Step: %s\r\nContent-Length: %zu\r\n\r\n%s",
             path, wish, strlen(body), body);
    client_send(&client, str_from(text));
    harness_turn(&harness, 2);
}

/* A worker's time is not ours to guess. */
static int status_patiently(void)
{
    for (int i = 0; i < 1000 && buf_len(&client.in) == 0 && !client.at_end; i++) {
        loop_run_once(harness.loop, 10);
        client_receive(&client);
    }
    return client_take(&client).status;
}

static void turn_until_left(int wanted)
{
    for (int i = 0; i < 1000 && left < wanted; i++)
        loop_run_once(harness.loop, 10);
    assert_int_equal(left, wanted);
}

static void expect(int asked_times, int handled_times, int left_times)
{
    assert_int_equal(asked, asked_times);
    assert_int_equal(handled, handled_times);
    assert_int_equal(left, left_times);
}

/* ---- asking ---- */

static void test_a_row_without_a_policy_has_no_such_step(void **state)
{
    (void)state;
    post("/plain", "refuse", "x");
    assert_int_equal(status_patiently(), 201);
    expect(0, 1, 0);
    client_close(&client);
}

static void test_the_step_runs_when_the_body_is_complete(void **state)
{
    (void)state;
    client_send(&client,
                STR("POST /here HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"));
    harness_turn(&harness, 3);
    expect(0, 0, 0);
    client_send(&client, STR("2\r\nde\r\n0\r\n\r\n"));
    assert_int_equal(status_patiently(), 201);
    expect(1, 1, 1);
    assert_string_equal(seen_body, "abcde");
    client_close(&client);
    expect(1, 1, 1);
}

static void test_a_request_without_a_body_takes_the_step_too(void **state)
{
    (void)state;
    client_send(&client, STR("POST /worker HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_int_equal(status_patiently(), 201);
    expect(1, 1, 1);
    client_close(&client);
}

static void test_each_request_of_a_connection_passes_and_ends(void **state)
{
    (void)state;
    for (int i = 1; i <= 3; i++) {
        post(i == 2 ? "/worker" : "/here", "", "x");
        assert_int_equal(status_patiently(), 201);
        expect(i, i, i);
    }
    client_close(&client);
    expect(3, 3, 3);
}

static void test_a_refused_request_has_no_end(void **state)
{
    (void)state;
    post("/here", "refuse", "x");
    assert_int_equal(status_patiently(), 400);
    post("/worker", "forget", "x");
    assert_int_equal(status_patiently(), 500);
    expect(2, 0, 0);
    client_close(&client);
    expect(2, 0, 0);
}

/* ---- waiting ---- */

static void test_a_resumed_request_goes_to_the_handler(void **state)
{
    (void)state;
    const char *const paths[] = {"/here", "/worker"};
    for (int i = 0; i < 2; i++) {
        post(paths[i], "wait", "body");
        expect(i + 1, i, i);
        struct http_request *request = http_request_unpark(at_step);
        assert_non_null(request);
        request->idempotency_memo = &asked;
        http_request_resume(request);
        assert_int_equal(status_patiently(), 201);
        expect(i + 1, i + 1, i + 1);
        assert_string_equal(seen_body, "body");
    }
    client_close(&client);
    assert_int_equal(dropped, 0);
}

static void test_a_parked_request_may_be_refused(void **state)
{
    (void)state;
    post("/here", "wait", "x");
    struct http_request *request = http_request_unpark(at_step);
    http_send(request, &(struct http_response){.status = 409});
    assert_int_equal(status_patiently(), 409);
    post("/here", "", "x");
    assert_int_equal(status_patiently(), 201);
    expect(2, 1, 1);
    client_close(&client);
}

static void test_a_request_dropped_while_parked_has_no_end(void **state)
{
    (void)state;
    post("/here", "wait", "x");
    client_close(&client);
    assert_int_equal(dropped, 1);
    assert_null(http_request_unpark(at_step));
    expect(1, 0, 0);
}

/* Resumed, and dropped before its turn: the handler never ran, but the key must end. */
static void test_a_request_dropped_between_resume_and_its_turn_ends(void **state)
{
    (void)state;
    post("/worker", "wait", "x");
    struct http_request *request = http_request_unpark(at_step);
    request->idempotency_memo = &asked;
    http_request_resume(request);
    client_close(&client);
    assert_int_equal(dropped, 0);
    expect(1, 0, 1);
}

/* ---- leaving ---- */

static void test_a_request_parked_by_its_handler_ends_with_its_answer(void **state)
{
    (void)state;
    post("/later", "", "x");
    expect(1, 1, 0);
    http_send(http_request_unpark(at_handler), &(struct http_response){.status = 200});
    expect(1, 1, 1); /* now, however slowly its client reads */
    assert_int_equal(status_patiently(), 200);
    client_close(&client);
    expect(1, 1, 1);
}

static void test_a_request_parked_by_its_handler_ends_with_its_client(void **state)
{
    (void)state;
    post("/later", "", "x");
    expect(1, 1, 0);
    client_close(&client);
    expect(1, 1, 1);
}

static void test_a_full_queue_is_left_at_once(void **state)
{
    (void)state;
    struct client others[2];
    for (int i = 0; i < 2; i++) {
        client_connect(&harness, &others[i]);
        client_send(&others[i], STR("POST /slower HTTP/1.1\r\nHost: a\r\n\r\n"));
        harness_turn(&harness, 2);
        if (i == 0)
            sem_wait(&worker_began);
    }
    post("/worker", "", "x");
    assert_int_equal(status_patiently(), 503);
    assert_int_equal(left, 1);
    sem_post(&worker_may_end);
    sem_post(&worker_may_end);
    turn_until_left(3);
    for (int i = 0; i < 2; i++)
        client_close(&others[i]);
    client_close(&client);
    assert_int_equal(left, 3);
}

static void test_past_the_deadline_a_running_handler_keeps_its_key(void **state)
{
    (void)state;
    post("/slow", "", "x");
    sem_wait(&worker_began);
    assert_int_equal(status_patiently(), 503);
    assert_int_equal(left, 0);
    client_close(&client);
    assert_int_equal(left, 0);
    sem_post(&worker_may_end);
    turn_until_left(1);
    harness_turn(&harness, 3);
    assert_int_equal(left, 1);
}

static void test_a_client_that_goes_while_a_worker_is_at_it_leaves_when_that_is_back(void **state)
{
    (void)state;
    post("/slower", "", "x");
    sem_wait(&worker_began);
    client_close(&client);
    assert_int_equal(left, 0);
    sem_post(&worker_may_end);
    turn_until_left(1);
}

static void on_drained(void *arg)
{
    *(bool *)arg = true;
}

static void test_a_stop_that_waits_no_longer_is_leaving(void **state)
{
    (void)state;
    bool drained = false;
    post("/later", "", "x");
    http_server_drain(harness.server, clock_mono_ns(), on_drained, &drained);
    assert_int_equal(status_patiently(), 503);
    expect(1, 1, 1);
    client_close(&client);
    for (int i = 0; i < 1000 && !drained; i++)
        loop_run_once(harness.loop, 10);
    assert_true(drained);
    expect(1, 1, 1);
}

/* The worker's way back runs only when the loops are destroyed; it leaves even then. */
static void test_the_server_can_end_while_a_key_is_held(void **state)
{
    (void)state;
    post("/slower", "", "x");
    sem_wait(&worker_began);
    sem_post(&worker_may_end);
    worker_pool_stop(harness.workers);
    close(client.fd);
    buf_deinit(&client.in);
}

static int teardown_and_left(void **state)
{
    teardown(state);
    return left == 1 ? 0 : -1;
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_row_without_a_policy_has_no_such_step),
        TEST(the_step_runs_when_the_body_is_complete),
        TEST(a_request_without_a_body_takes_the_step_too),
        TEST(each_request_of_a_connection_passes_and_ends),
        TEST(a_refused_request_has_no_end),
        TEST(a_resumed_request_goes_to_the_handler),
        TEST(a_parked_request_may_be_refused),
        TEST(a_request_dropped_while_parked_has_no_end),
        TEST(a_request_dropped_between_resume_and_its_turn_ends),
        TEST(a_request_parked_by_its_handler_ends_with_its_answer),
        TEST(a_request_parked_by_its_handler_ends_with_its_client),
        TEST(a_full_queue_is_left_at_once),
        TEST(past_the_deadline_a_running_handler_keeps_its_key),
        TEST(a_client_that_goes_while_a_worker_is_at_it_leaves_when_that_is_back),
        TEST(a_stop_that_waits_no_longer_is_leaving),
        cmocka_unit_test_setup_teardown(test_the_server_can_end_while_a_key_is_held, setup,
                                        teardown_and_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
