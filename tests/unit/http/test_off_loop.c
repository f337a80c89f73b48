/* Requests that leave the loop: parked, at the gate, on workers (C7), and what happens when their client
 * goes. */
#include <semaphore.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/budget.h"
#include "base/clock.h"
#include "harness.h"
#include "http/http_inside.h"
#include "loop/loop_inside.h"

static struct loop_park_ref parked;
static int dropped, timed_out, ended_keys;
static int64_t park_ms;
static sem_t worker_began, worker_may_end;

static void on_drop(struct http_request *request, void *context)
{
    (void)request;
    assert_ptr_equal(context, &dropped);
    dropped++;
}

static void on_timeout(struct http_request *request, void *context)
{
    (void)context;
    timed_out++;
    http_send(request, &(struct http_response){.status = 202, .body = STR("late")});
}

static void park(struct http_request *request)
{
    if (http_request_park(request, clock_mono_ns() + park_ms * CLOCK_NS_PER_MS, on_timeout, &dropped,
                          &parked))
        http_request_on_drop(request, on_drop);
}

static void now(struct http_request *request)
{
    http_send(request, &(struct http_response){.status = 200, .body = STR("now")});
}

static void work(struct http_request *request)
{
    http_send(request,
              &(struct http_response){.status = 201, .headers = STR("X-W: 1\r\n"), .body = request->body});
}

static void work_slowly(struct http_request *request)
{
    sem_post(&worker_began);
    sem_wait(&worker_may_end);
    work(request);
}

static struct worker_pool *elsewhere;

static void hand_on_body(struct http_request *request)
{
    http_request_hand_on(request, elsewhere, work_slowly);
}

static void work_and_forget(struct http_request *request)
{
    (void)request;
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/park", .handler = park},
    {.method = HTTP_GET, .path = "/now", .handler = now},
    {.method = HTTP_POST, .path = "/work", .handler = work, .kind = HTTP_WORKER, .consumes = HTTP_ANY},
    {.method = HTTP_POST,
     .path = "/slow",
     .handler = work_slowly,
     .kind = HTTP_WORKER,
     .consumes = HTTP_ANY,
     .deadline_ms = 500, /* a worker begins before it, on a busy machine too */
     .idempotency = HTTP_KEY_REJECT,
     .errors = HTTP_ERRORS_DETAIL},
    {.method = HTTP_POST, .path = "/on", .handler = hand_on_body, .kind = HTTP_WORKER, .consumes = HTTP_ANY},
    {.method = HTTP_GET, .path = "/forget", .handler = work_and_forget, .kind = HTTP_WORKER},
    {0},
};

static enum http_step gate(struct http_request *request, void *context)
{
    (void)context;
    if (str_eq(request->authorization, STR("deny"))) {
        http_send_error(request, &(struct error){.status = STATUS_UNAUTHENTICATED});
        return HTTP_STEP_ANSWERED;
    }
    if (str_eq(request->authorization, STR("wait")))
        return http_request_park(request, CLOCK_NEVER, on_timeout, &dropped, &parked) ? HTTP_STEP_PARKED
                                                                                      : HTTP_STEP_ANSWERED;
    return HTTP_STEP_PASS;
}

/* Shows when a request is over for the server too. */
static enum http_step take_key(struct http_request *request, void *context)
{
    request->idempotency_memo = context;
    return HTTP_STEP_PASS;
}

static void on_key_end(struct http_request *request)
{
    assert_ptr_equal(request->idempotency_memo, &ended_keys);
    ended_keys++;
}

static struct harness harness;

static int setup(void **state)
{
    (void)state;
    dropped = timed_out = ended_keys = 0;
    park_ms = 60000;
    sem_init(&worker_began, 0, 0);
    sem_init(&worker_may_end, 0, 0);
    harness_init(&harness, routes);
    harness.workers = worker_pool_create("test", 1, 1);
    harness.config.workers = harness.workers;
    harness.config.gate = gate;
    harness.config.idempotency = take_key;
    harness.config.on_idempotency_end = on_key_end;
    harness.config.context = &ended_keys;
    harness_start(&harness);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    harness_deinit(&harness);
    return 0;
}

/* Until something comes or the server closes; the worker's or the timer's time is not ours to guess. */
static void receive_patiently(struct client *client)
{
    for (int i = 0; i < 1000 && buf_len(&client->in) == 0 && !client->at_end; i++) {
        loop_run_once(harness.loop, 10);
        client_receive(client);
    }
}

#define GET(path) STR("GET " path " HTTP/1.1\r\nHost: a\r\n\r\n")

/* ---- parking ---- */

static void test_a_parked_request_holds_back_those_behind_it(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, STR("GET /now HTTP/1.1\r\nHost: a\r\n\r\nGET /park HTTP/1.1\r\nHost: a\r\n\r\n"
                             "GET /now HTTP/1.1\r\nHost: a\r\n\r\n"));
    client_receive(&client);
    assert_int_equal(client_take(&client).status, 200);
    assert_int_equal(buf_len(&client.in), 0);
    assert_int_equal(harness.loop->parking.occupied, 1);
    client_send(&client, GET("/now"));
    harness_turn(&harness, 5);
    struct http_request *request = http_request_unpark(parked);
    assert_non_null(request);
    assert_true(str_eq(request->path, STR("/park")));
    http_send(request, &(struct http_response){.status = 203, .body = STR("found")});
    assert_null(http_request_unpark(parked));
    client_receive(&client);
    assert_int_equal(client_take(&client).status, 203);
    assert_int_equal(client_take(&client).status, 200);
    assert_int_equal(client_take(&client).status, 200);
    assert_int_equal(harness.loop->parking.occupied, 0);
    client_close(&client);
}

static void test_a_parked_request_times_out_once(void **state)
{
    (void)state;
    struct client client;
    park_ms = 1;
    client_connect(&harness, &client);
    client_send(&client, GET("/park"));
    receive_patiently(&client);
    assert_int_equal(client_take(&client).status, 202);
    assert_int_equal(timed_out, 1);
    assert_null(http_request_unpark(parked));
    client_close(&client);
}

static void test_a_client_that_goes_while_parked_is_told_to_the_owner(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, GET("/park"));
    harness_turn(&harness, 2);
    client_close(&client);
    harness_turn(&harness, 3);
    assert_int_equal(dropped, 1);
    assert_null(http_request_unpark(parked));
    assert_int_equal(harness.loop->parking.occupied, 0);
}

static void test_a_half_closed_client_is_still_answered_after_parking(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, GET("/park"));
    shutdown(client.fd, SHUT_WR);
    harness_turn(&harness, 4);
    struct http_request *request = http_request_unpark(parked);
    assert_non_null(request);
    http_send(request, &(struct http_response){.status = 200});
    client_receive(&client);
    assert_int_equal(client_take(&client).status, 200);
    assert_true(client.at_end);
    client_close(&client);
}

static void test_c7_too_many_parked_is_503_with_retry_after(void **state)
{
    (void)state;
    struct client clients[65];
    for (int i = 0; i < 65; i++) {
        client_connect(&harness, &clients[i]);
        client_send(&clients[i], GET("/park"));
    }
    harness_turn(&harness, 200); /* a slow machine serves few of them in a tick */
    assert_int_equal(harness.loop->parking.occupied, 64);
    int refused = 0;
    for (int i = 0; i < 65; i++) {
        client_receive(&clients[i]);
        if (buf_len(&clients[i].in) > 0) {
            struct answer answer = client_take(&clients[i]);
            assert_int_equal(answer.status, 503);
            assert_true(answer_has(&answer, "Retry-After: 1\r\n"));
            refused++;
        }
    }
    assert_int_equal(refused, 1);
    for (int i = 0; i < 65; i++)
        client_close(&clients[i]);
    assert_int_equal(dropped, 64);
}

/* ---- gate ---- */

static void test_c5_the_gate_answers_before_the_body_is_read(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, STR("POST /work HTTP/1.1\r\nHost: a\r\nAuthorization: deny\r\n"
                             "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"));
    client_receive(&client);
    struct answer answer = client_take(&client);
    assert_int_equal(answer.status, 401);
    assert_true(answer_has(&answer, "WWW-Authenticate: Bearer\r\n"));
    assert_true(client.at_end);
    client_close(&client);
}

static void test_the_gate_can_think_about_it(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(
        &client,
        STR("POST /work HTTP/1.1\r\nHost: a\r\nAuthorization: wait\r\nContent-Length: 5\r\n\r\nhello"));
    client_receive(&client);
    assert_int_equal(buf_len(&client.in), 0);
    struct http_request *request = http_request_unpark(parked);
    assert_non_null(request);
    assert_true(str_eq(request->authorization, STR("wait")));
    http_request_resume(request);
    receive_patiently(&client);
    struct answer answer = client_take(&client);
    assert_int_equal(answer.status, 201);
    assert_memory_equal(answer.body.ptr, "hello", 5);
    client_close(&client);
}

/* ---- workers ---- */

static void test_a_worker_answers(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(
        &client,
        STR("POST /work HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok"
            "POST /work HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"));
    receive_patiently(&client);
    struct answer answer = client_take(&client);
    assert_int_equal(answer.status, 201);
    assert_true(answer_has(&answer, "X-W: 1\r\n"));
    assert_memory_equal(answer.body.ptr, "ok", 2);
    receive_patiently(&client);
    answer = client_take(&client);
    assert_memory_equal(answer.body.ptr, "abc", 3);
    client_close(&client);
}

static void test_a_worker_that_forgets_to_answer_is_500(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, GET("/forget"));
    receive_patiently(&client);
    assert_int_equal(client_take(&client).status, 500);
    client_close(&client);
}

#define SLOW STR("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok")

static void test_c7_a_late_worker_is_503_and_its_answer_dropped(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, SLOW);
    harness_turn(&harness, 2);
    sem_wait(&worker_began);
    receive_patiently(&client);
    struct answer answer = client_take(&client);
    assert_int_equal(answer.status, 503);
    assert_true(answer_has(&answer, "Retry-After: 1\r\n"));
    assert_memory_equal(answer.body.ptr, "{\"detail\"", 9);
    client_close(&client);
    assert_int_equal(ended_keys, 0); /* the worker still has it */
    sem_post(&worker_may_end);
    for (int i = 0; i < 1000 && ended_keys == 0; i++)
        loop_run_once(harness.loop, 10);
    assert_int_equal(ended_keys, 1);
}

static void test_c7_one_that_waited_too_long_for_a_worker_is_never_begun(void **state)
{
    (void)state;
    struct client clients[2];
    for (int i = 0; i < 2; i++) {
        client_connect(&harness, &clients[i]);
        client_send(&clients[i], SLOW);
        harness_turn(&harness, 2);
        if (i == 0)
            sem_wait(&worker_began);
    }
    for (int i = 0; i < 2; i++) {
        receive_patiently(&clients[i]);
        assert_int_equal(client_take(&clients[i]).status, 503);
        client_close(&clients[i]);
    }
    sem_post(&worker_may_end);
    sem_post(&worker_may_end);
    for (int i = 0; i < 1000 && ended_keys < 2; i++)
        loop_run_once(harness.loop, 10);
    assert_int_equal(ended_keys, 2);
    assert_int_not_equal(sem_trywait(&worker_began), 0);
}

static void test_c7_a_full_queue_is_503_at_once(void **state)
{
    (void)state;
    struct client clients[3];
    for (int i = 0; i < 3; i++) {
        client_connect(&harness, &clients[i]);
        client_send(&clients[i], i == 2 ? STR("POST /work HTTP/1.1\r\nHost: a\r\n\r\n") : SLOW);
        harness_turn(&harness, 2);
        if (i == 0)
            sem_wait(&worker_began);
    }
    client_receive(&clients[2]);
    assert_int_equal(client_take(&clients[2]).status, 503);
    sem_post(&worker_may_end);
    sem_post(&worker_may_end);
    for (int i = 0; i < 3; i++)
        client_close(&clients[i]);
    for (int i = 0; i < 1000 && ended_keys < 2; i++)
        loop_run_once(harness.loop, 10);
    assert_int_equal(ended_keys, 2);
}

#define HANDED_ON STR("POST /on HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok")

/* The server's one worker is free while somebody else's waits. */
static void test_c7_what_is_handed_on_holds_no_worker(void **state)
{
    (void)state;
    struct client slow, quick;
    elsewhere = worker_pool_create("else", 1, 1);
    client_connect(&harness, &slow);
    client_connect(&harness, &quick);
    client_send(&slow, HANDED_ON);
    while (sem_trywait(&worker_began) != 0)
        loop_run_once(harness.loop, 1);
    client_send(&quick, STR("POST /work HTTP/1.1\r\nHost: a\r\n\r\n"));
    receive_patiently(&quick);
    assert_int_equal(client_take(&quick).status, 201);
    sem_post(&worker_may_end);
    receive_patiently(&slow);
    struct answer answer = client_take(&slow);
    assert_int_equal(answer.status, 201);
    assert_memory_equal(answer.body.ptr, "ok", 2);

    worker_pool_stop(elsewhere); /* which takes nothing more */
    client_send(&slow, HANDED_ON);
    receive_patiently(&slow);
    assert_int_equal(client_take(&slow).status, 503);
    client_close(&slow);
    client_close(&quick);
    worker_pool_destroy(elsewhere);
}

/* The pool and the loop stop in the middle of it: the worker's answer finds the server destroyed. */
static void test_c7_the_server_can_end_while_a_worker_is_at_it(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, SLOW);
    harness_turn(&harness, 2);
    sem_wait(&worker_began);
    sem_post(&worker_may_end);
    client_send(&client, GET("/now"));
    worker_pool_stop(
        harness.workers); /* its answer is now a message that only loop_group_destroy() will run */
    close(client.fd);
    buf_deinit(&client.in);
}

/* ---- the reserve of the memory budget ---- */

/* A request that waits has its room in the reserve. When it is answered, it must not leave its memory to the head of the next one, nor
 * to the spares, where there is no room beside the reserve. */
static void test_c6_the_reserve_is_given_back(void **state)
{
    (void)state;
    enum { CLIENTS = 200 };
    static struct client clients[CLIENTS];
    budget_set_limit(64 << 20);
    size_t filled = 0;
    for (size_t part = 1 << 20; part >= 64; part /= 2)
        while (budget_charge(BUDGET_REQUESTS, part))
            filled += part;
    size_t full = budget_used(BUDGET_REQUESTS);
    size_t most = full + CLIENTS * sizeof(struct http_connection) + budget_share(BUDGET_REQUESTS) / 8;
    for (size_t i = 0; i < CLIENTS; i++) {
        client_connect(&harness, &clients[i]);
        client_send(&clients[i], STR("GET /park HTTP/1.1\r\nHost: a\r\n\r\nGET /no"));
        client_receive(&clients[i]);
        struct http_request *request = http_request_unpark(parked);
        assert_non_null(request);
        http_send(request, &(struct http_response){.status = 200});
        client_receive(&clients[i]);
        assert_int_equal(client_take(&clients[i]).status, 200);
        assert_in_range(budget_used(BUDGET_REQUESTS), 0, most);
    }
    for (size_t i = 0; i < CLIENTS; i++)
        client_close(&clients[i]);
    harness_turn(&harness, 5);
    assert_in_range(budget_used(BUDGET_REQUESTS), 0, full);
    budget_release(BUDGET_REQUESTS, filled);
    budget_set_limit(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_parked_request_holds_back_those_behind_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_parked_request_times_out_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_client_that_goes_while_parked_is_told_to_the_owner, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_half_closed_client_is_still_answered_after_parking, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_c7_too_many_parked_is_503_with_retry_after, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c5_the_gate_answers_before_the_body_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_gate_can_think_about_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_the_reserve_is_given_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_worker_answers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_worker_that_forgets_to_answer_is_500, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c7_a_late_worker_is_503_and_its_answer_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c7_one_that_waited_too_long_for_a_worker_is_never_begun, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_c7_a_full_queue_is_503_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c7_what_is_handed_on_holds_no_worker, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c7_the_server_can_end_while_a_worker_is_at_it, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
