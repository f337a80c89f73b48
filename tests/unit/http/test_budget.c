/* C6: what the server charges to the memory budget, for whom, and whose connections are cut when an account is full. */
#include "base/budget.h"
#include "harness.h"
#include "http/http_inside.h"

enum { ANSWER_BYTES = 1 << 20, UNSENT_BYTES = 5 << 20, GREEDY = 8, KEPT_BYTES = 200 * 1000 };

static struct loop_park_ref parked;

static void answer_much(struct http_request *request)
{
    static char body[ANSWER_BYTES];
    memset(body, 'x', sizeof body);
    http_send(request, &(struct http_response){.status = 200, .body = str_of(body, sizeof body)});
}

/* What a handler keeps for a request that waits is in its arena. */
static void park_with_much(struct http_request *request)
{
    memset(arena_alloc(request->arena, KEPT_BYTES), 'x', KEPT_BYTES);
    (void)http_request_park(request, CLOCK_NEVER, NULL, NULL, &parked);
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/much/{tenant}", .handler = answer_much},
    {.method = HTTP_GET, .path = "/park/{tenant}", .handler = park_with_much},
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
    harness.config.limits.unsent_bytes_max = UNSENT_BYTES;
    harness_start(&harness);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    harness_deinit(&harness);
    for (int account = 0; account < BUDGET_ACCOUNTS; account++) {
        assert_int_equal(budget_used(account), 0);
        budget_set_bound(account, 0);
    }
    return 0;
}

static void ask_for(struct client *client, const char *path)
{
    char text[64];
    snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path);
    client_connect(&harness, client);
    client_send(client, str_from(text));
    harness_turn(&harness, 4);
}

/* ---- unsent answers ---- */

static void test_a_client_that_pauses_is_not_cut_for_a_tenant_that_holds_more(void **state)
{
    (void)state;
    struct client modest, greedy[GREEDY];
    ask_for(&modest, "/much/m"); /* it has not read for longest */
    for (int i = 0; i < GREEDY; i++)
        ask_for(&greedy[i], "/much/g");
    assert_in_range(budget_used(BUDGET_UNSENT), ANSWER_BYTES, UNSENT_BYTES);
    client_receive(&modest);
    struct answer answer = client_take(&modest);
    assert_int_equal(answer.body.len, ANSWER_BYTES);
    int cut = 0;
    for (int i = 0; i < GREEDY; i++) {
        client_receive(&greedy[i]);
        cut += greedy[i].at_end;
        assert_true(i == 0 || !greedy[i].at_end ||
                    greedy[i - 1].at_end); /* first those that waited longest */
        client_close(&greedy[i]);
    }
    assert_in_range(cut, 1, GREEDY - 2);
    client_close(&modest);
    harness_turn(&harness, 4);
}

/* ---- parked requests ---- */

static void test_a_parked_request_is_charged_for_its_arena(void **state)
{
    (void)state;
    struct client client;
    ask_for(&client, "/park/m");
    size_t with_arena = budget_used(BUDGET_REQUESTS);
    assert_in_range(with_arena, KEPT_BYTES, 2 * KEPT_BYTES);
    struct http_request *request = http_request_unpark(parked);
    assert_non_null(request);
    http_send(request, &(struct http_response){.status = 200, .body = STR("x")});
    http_connection_resume(request->connection);
    client_receive(&client);
    assert_int_equal(client_take(&client).status, 200);
    assert_in_range(budget_used(BUDGET_REQUESTS), 1, with_arena - KEPT_BYTES);
    client_close(&client);
    harness_turn(&harness, 4);
}

static void test_a_tenant_whose_requests_keep_too_much_is_refused(void **state)
{
    (void)state;
    struct client clients[GREEDY];
    int refused = 0;
    budget_set_bound(BUDGET_REQUESTS, 8 * KEPT_BYTES);
    for (int i = 0; i < GREEDY; i++) {
        ask_for(&clients[i], "/park/g");
        client_receive(&clients[i]);
        refused += buf_len(&clients[i].in) > 0 && client_take(&clients[i]).status == 503;
    }
    assert_in_range(refused, 3, GREEDY - 2); /* one tenant has at most half of it */
    for (int i = 0; i < GREEDY; i++)
        client_close(&clients[i]);
    harness_turn(&harness, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_client_that_pauses_is_not_cut_for_a_tenant_that_holds_more,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_parked_request_is_charged_for_its_arena, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_tenant_whose_requests_keep_too_much_is_refused, setup,
                                        teardown),
    };
    return cmocka_run_group_tests_name("http/budget", tests, NULL, NULL);
}
