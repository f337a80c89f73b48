/* Keys in flight (I1, I3): what a key is, duplicates turned away or in line, on one loop by hand and on four under load. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness.h"
#include "idempotency/idempotency.h"
#include "loop/loop_inside.h"

enum { PLACES = 8 };

static struct idempotency *keys;
static struct loop_park_ref inside[PLACES]; /* in the order they came in */
static int inside_count;

/* Who asks is said by headers: there is no gate here. */
static enum http_step door(struct http_request *request, void *context)
{
    return idempotency_enter(context, request, http_request_header(request, STR("X-Tenant")),
                             http_request_header(request, STR("X-Subject")));
}

static void on_timeout(struct http_request *request, void *context)
{
    (void)context;
    http_send(request, &(struct http_response){.status = 202});
}

static void stay(struct http_request *request)
{
    assert_true(inside_count < PLACES);
    assert_true(http_request_park(request, CLOCK_NEVER, on_timeout, NULL, &inside[inside_count++]));
}

static void answer(struct http_request *request)
{
    struct str key = request->idempotency_key;
    http_send(request, &(struct http_response){.status = 201, .body = key.ptr ? key : STR("none")});
}

#define ROW(name, function, policy, ...)                                                                     \
    {                                                                                                        \
        .method = HTTP_POST, .path = name, .handler = function, .consumes = HTTP_ANY, .idempotency = policy, \
        ##__VA_ARGS__                                                                                        \
    }

static const struct http_route routes[] = {
    ROW("/plain", answer, HTTP_KEY_REJECT),
    ROW("/detail", answer, HTTP_KEY_REJECT, .errors = HTTP_ERRORS_DETAIL),
    ROW("/required", answer, HTTP_KEY_SERIALIZE, .key_required = true),
    ROW("/reject", stay, HTTP_KEY_REJECT, .errors = HTTP_ERRORS_DETAIL),
    ROW("/line", stay, HTTP_KEY_SERIALIZE),
    {0},
};

static struct harness harness;

static int setup_waiting(int64_t wait_ms)
{
    inside_count = 0;
    keys = idempotency_create(wait_ms);
    harness_init(&harness, routes);
    harness.config.idempotency = door;
    harness.config.on_idempotency_end = idempotency_leave;
    harness.config.context = keys;
    harness_start(&harness);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    return setup_waiting(60000);
}

static int setup_impatient(void **state)
{
    (void)state;
    return setup_waiting(1);
}

static int teardown(void **state)
{
    (void)state;
    harness_deinit(&harness);
    idempotency_destroy(keys);
    return 0;
}

/* ---- what the tests say ---- */

static void post_as(struct client *client, const char *path, const char *lines)
{
    char text[1024];
    snprintf(text, sizeof text, "POST %s HTTP/1.1\r\nHost: a\r\n%sContent-Length: 2\r\n\r\n{}", path, lines);
    client_send(client, str_from(text));
    client_receive(client);
}

static void post(struct client *client, const char *path, const char *key)
{
    char lines[512];
    snprintf(lines, sizeof lines, "X-Tenant: t\r\nX-Subject: u\r\nIdempotency-Key: %s\r\n", key);
    post_as(client, path, lines);
}

static void expect_body(struct client *client, int status, const char *body)
{
    struct answer taken = client_take(client);
    char text[1024];
    snprintf(text, sizeof text, "%.*s", STR_ARG(taken.body));
    assert_string_equal(text, body);
    assert_int_equal(taken.status, status);
}

static void finish(int place)
{
    struct http_request *request = http_request_unpark(inside[place]);
    assert_non_null(request);
    http_send(request, &(struct http_response){.status = 200});
    harness_turn(&harness, 4);
}

/* ---- the form of a key ---- */

#define FORM_TEXT                                                                                  \
    "Invalid idempotency key format. Key must be 1-255 characters long and contain only letters, " \
    "numbers, hyphens, and underscores"

static void test_i1_keys_of_the_seed_are_keys(void **state)
{
    (void)state;
    const char *const good[] = {"client-request-123", "user-456-session-789", "2024-01-15-10-30-00-abc123",
                                "_", "A"};
    struct client client;
    char longest[256];
    client_connect(&harness, &client);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        post(&client, "/plain", good[i]);
        expect_body(&client, 201, good[i]);
    }
    memset(longest, 'k', 255);
    longest[255] = '\0';
    post(&client, "/plain", longest);
    expect_body(&client, 201, longest);
    post_as(&client, "/plain", "");
    expect_body(&client, 201, "none");
    client_close(&client);
}

static void test_i1_what_is_no_key_is_400_with_the_words_of_the_seed(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    post(&client, "/detail", "invalid@key#123");
    expect_body(&client, 400,
                "{\"detail\":\"" FORM_TEXT "\",\"error_code\":\"INVALID_IDEMPOTENCY_KEY\","
                "\"idempotency_key\":\"invalid@key#123\"}");
    post(&client, "/plain", "a b");
    expect_body(&client, 400,
                "{\"code\":\"INVALID_IDEMPOTENCY_KEY\",\"message\":\"" FORM_TEXT
                "\",\"idempotency_key\":\"a b\"}");
    post(&client, "/detail", "");
    expect_body(&client, 400,
                "{\"detail\":\"" FORM_TEXT
                "\",\"error_code\":\"INVALID_IDEMPOTENCY_KEY\",\"idempotency_key\":\"\"}");
    post(&client, "/detail", "same\r\nIdempotency-Key: same");
    assert_int_equal(client_take(&client).status, 400);
    post(&client, "/required", "\"quoted\\\"");
    expect_body(&client, 400,
                "{\"code\":\"INVALID_IDEMPOTENCY_KEY\",\"message\":\"" FORM_TEXT
                "\",\"idempotency_key\":\"\\\"quoted\\\\\\\"\"}");
    client_close(&client);
}

/* 300 bytes, none of them UTF-8: what is told back is bounded, and JSON. */
static void test_i1_what_is_told_back_is_bounded_and_escaped(void **state)
{
    (void)state;
    struct client client;
    char key[301];
    memset(key, 'k', 300);
    key[300] = '\0';
    client_connect(&harness, &client);
    post(&client, "/detail", key);
    struct answer taken = client_take(&client);
    assert_int_equal(taken.status, 400);
    assert_null(memmem(taken.body.ptr, taken.body.len, key, 256));
    assert_non_null(memmem(taken.body.ptr, taken.body.len, key, 255));
    memset(key, '\xff', 300);
    post(&client, "/detail", key);
    taken = client_take(&client);
    assert_int_equal(taken.status, 400);
    assert_true(str_is_utf8(taken.body));
    client_close(&client);
}

static void test_e1_a_key_may_be_required(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    post_as(&client, "/required", "");
    expect_body(
        &client, 400,
        "{\"code\":\"BAD_REQUEST\",\"message\":\"Idempotency-Key is required\",\"field\":\"Idempotency-Key\"}");
    post(&client, "/required", "k");
    expect_body(&client, 201, "k");
    client_close(&client);
}

/* ---- reject ---- */

/* The first may be replaying what was stored long ago: whether a duplicate has to be turned away is PostgreSQL's to know. */
static void test_i3_duplicates_go_in_side_by_side(void **state)
{
    (void)state;
    struct client first, duplicate;
    client_connect(&harness, &first);
    client_connect(&harness, &duplicate);
    post(&first, "/reject", "race-key");
    post(&duplicate, "/reject", "race-key");
    assert_int_equal(inside_count, 2);
    finish(1);
    finish(0);
    client_close(&first);
    client_close(&duplicate);
}

static void test_i2_who_differs_in_anything_is_no_duplicate(void **state)
{
    (void)state;
    const char *const lines[] = {
        "X-Tenant: t\r\nX-Subject: u\r\nIdempotency-Key: k\r\n",
        "X-Tenant: t\r\nX-Subject: v\r\nIdempotency-Key: k\r\n",
        "X-Tenant: tu\r\nX-Subject: u\r\nIdempotency-Key: k\r\n",
        "X-Tenant: t\r\nX-Subject: u\r\nIdempotency-Key: K\r\n",
        "X-Tenant: t\r\nX-Subject: uk\r\nIdempotency-Key: k\r\n",
        "X-Tenant: t\r\nX-Subject: u\r\n",
        "X-Tenant: t\r\nX-Subject: u\r\n",
    };
    struct client clients[8];
    for (int i = 0; i < 8; i++) {
        client_connect(&harness, &clients[i]);
        post_as(&clients[i], i == 7 ? "/line" : "/reject", lines[i % 7]);
    }
    assert_int_equal(inside_count, 8);
    for (int i = 0; i < 8; i++)
        client_close(&clients[i]);
}

static void test_i3_a_client_that_goes_frees_its_key(void **state)
{
    (void)state;
    struct client first, duplicate;
    client_connect(&harness, &first);
    client_connect(&harness, &duplicate);
    post(&first, "/reject", "k");
    client_close(&first);
    post(&duplicate, "/reject", "k");
    assert_int_equal(inside_count, 2);
    client_close(&duplicate);
}

/* ---- serialize ---- */

static void test_i3_duplicates_wait_in_line_in_the_order_they_came(void **state)
{
    (void)state;
    struct client clients[4];
    for (int i = 0; i < 4; i++) {
        client_connect(&harness, &clients[i]);
        post(&clients[i], "/line", "k");
        assert_int_equal(inside_count, 1);
    }
    for (int i = 0; i < 4; i++) {
        finish(i);
        assert_int_equal(inside_count, i < 3 ? i + 2 : 4);
        client_receive(&clients[i]);
        assert_int_equal(client_take(&clients[i]).status, 200);
    }
    assert_int_equal(harness.loop->parking.occupied, 0);
    for (int i = 0; i < 4; i++)
        client_close(&clients[i]);
}

static void test_i3_who_goes_while_waiting_is_out_of_the_line(void **state)
{
    (void)state;
    struct client clients[5];
    const int goes[] = {2, 1, 4}; /* from the middle, the front, the end */
    for (int i = 0; i < 5; i++) {
        client_connect(&harness, &clients[i]);
        post(&clients[i], "/line", "k");
    }
    for (int i = 0; i < 3; i++)
        client_close(&clients[goes[i]]);
    finish(0);
    assert_int_equal(inside_count, 2);
    finish(1);
    client_receive(&clients[3]);
    assert_int_equal(client_take(&clients[3]).status, 200);
    assert_int_equal(inside_count, 2);
    client_close(&clients[0]);
    client_close(&clients[3]);
}

/* Called, and gone in the same tick: its turn is the next one's. */
static void test_i3_who_goes_when_its_turn_comes_passes_it_on(void **state)
{
    (void)state;
    struct client clients[3];
    for (int i = 0; i < 3; i++) {
        client_connect(&harness, &clients[i]);
        post(&clients[i], "/line", "k");
    }
    http_send(http_request_unpark(inside[0]), &(struct http_response){.status = 200});
    close(clients[1].fd);
    harness_turn(&harness, 6);
    assert_int_equal(inside_count, 2);
    finish(1);
    client_receive(&clients[2]);
    assert_int_equal(client_take(&clients[2]).status, 200);
    buf_deinit(&clients[1].in);
    client_close(&clients[0]);
    client_close(&clients[2]);
}

static void test_i3_who_waited_too_long_is_409(void **state)
{
    (void)state;
    struct client first, duplicate;
    client_connect(&harness, &first);
    client_connect(&harness, &duplicate);
    post(&first, "/line", "k");
    post(&duplicate, "/line", "k");
    for (int i = 0; i < 1000 && buf_len(&duplicate.in) == 0; i++) {
        loop_run_once(harness.loop, 10);
        client_receive(&duplicate);
    }
    struct answer taken = client_take(&duplicate);
    assert_int_equal(taken.status, 409);
    assert_true(answer_has(&taken, "Retry-After: 1\r\n"));
    assert_non_null(memmem(taken.body.ptr, taken.body.len, "\"IDEMPOTENCY_KEY_PROCESSING\"", 28));
    finish(0);
    assert_int_equal(inside_count, 1);
    client_close(&first);
    client_close(&duplicate);
}

static void test_c7_a_line_too_long_is_503(void **state)
{
    (void)state;
    struct client clients[66]; /* 64 may be parked: one inside, 63 in line */
    int refused = 0;
    for (int i = 0; i < 66; i++) {
        client_connect(&harness, &clients[i]);
        post(&clients[i], "/line", "k");
        if (buf_len(&clients[i].in) > 0) {
            assert_int_equal(client_take(&clients[i]).status, 503);
            refused++;
        }
    }
    assert_int_equal(refused, 2);
    for (int i = 65; i >= 0; i--)
        client_close(&clients[i]);
    assert_int_equal(inside_count, 1);
}

/* ---- four loops at once ---- */

enum { LOOPS = 4, CLIENTS = 12, ROUNDS = 40, STORM_KEYS = 6 };

static atomic_int at_work[STORM_KEYS];
static atomic_int overlaps, answers, refusals;

static void work(struct http_request *request)
{
    int key = request->idempotency_key.ptr[0] - '0';
    if (atomic_fetch_add(&at_work[key], 1) != 0 && request->route->idempotency == HTTP_KEY_SERIALIZE)
        atomic_fetch_add(&overlaps, 1);
    sched_yield();
    atomic_fetch_sub(&at_work[key], 1);
    http_send(request, &(struct http_response){.status = 200});
}

static const struct http_route storm_routes[] = {
    ROW("/line", work, HTTP_KEY_SERIALIZE, .kind = HTTP_WORKER),
    ROW("/reject", work, HTTP_KEY_REJECT, .kind = HTTP_WORKER),
    {0},
};

static int dial(unsigned port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        abort();
    return fd;
}

/* Most ask and read; every fifth asks and goes. */
static void *ask_often(void *arg)
{
    unsigned port = *(const unsigned *)arg;
    for (int i = 0; i < ROUNDS; i++) {
        char text[256], reply[512];
        int fd = dial(port);
        int len =
            snprintf(text, sizeof text,
                     "POST %s HTTP/1.1\r\nHost: a\r\nX-Subject: u\r\nIdempotency-Key: %d\r\n"
                     "Connection: close\r\n\r\n",
                     i % 2 ? "/line" : "/reject", i % STORM_KEYS); /* duplicates of an even key do meet */
        ssize_t got = send(fd, text, (size_t)len, MSG_NOSIGNAL);
        if (i % 5 != 0 && got == len && (got = recv(fd, reply, sizeof reply - 1, 0)) > 12) {
            reply[got] = '\0';
            atomic_fetch_add(strncmp(reply, "HTTP/1.1 200", 12) == 0 ? &answers : &refusals, 1);
        }
        close(fd);
    }
    return NULL;
}

static void test_i3_duplicates_of_four_loops_never_meet_inside(void **state)
{
    (void)state;
    struct error error;
    struct loop_group *group = loop_group_create(LOOPS, 1000);
    struct worker_pool *workers = worker_pool_create("test", 4, 1000);
    struct http_router *router = http_router_create();
    struct http_server *server;
    pthread_t threads[CLIENTS];
    keys = idempotency_create(60000);
    assert_int_equal(http_router_add(router, storm_routes, NULL, &error), STATUS_OK);
    const struct http_server_config config = {
        .group = group,
        .workers = workers,
        .router = router,
        .limits = http_limits_default,
        .context = keys,
        .idempotency = door,
        .on_idempotency_end = idempotency_leave,
    };
    assert_int_equal(http_server_create(&config, &server, &error), STATUS_OK);
    assert_int_equal(http_server_listen(server, STR("127.0.0.1:0"), &error), STATUS_OK);
    loop_group_start(group);
    unsigned port = http_server_port(server);
    for (int i = 0; i < CLIENTS; i++)
        pthread_create(&threads[i], NULL, ask_often, &port);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    worker_pool_stop(workers);
    loop_group_stop(group);
    http_server_destroy(server);
    loop_group_destroy(group);
    worker_pool_destroy(workers);
    http_router_destroy(router);
    idempotency_destroy(keys);
    assert_int_equal(atomic_load(&answers) + atomic_load(&refusals), CLIENTS * ROUNDS * 4 / 5);
    assert_true(atomic_load(&answers) >= CLIENTS * ROUNDS * 2 / 5);
    assert_int_equal(atomic_load(&overlaps), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(i1_keys_of_the_seed_are_keys),
        TEST(i1_what_is_no_key_is_400_with_the_words_of_the_seed),
        TEST(i1_what_is_told_back_is_bounded_and_escaped),
        TEST(e1_a_key_may_be_required),
        TEST(i3_duplicates_go_in_side_by_side),
        TEST(i2_who_differs_in_anything_is_no_duplicate),
        TEST(i3_a_client_that_goes_frees_its_key),
        TEST(i3_duplicates_wait_in_line_in_the_order_they_came),
        TEST(i3_who_goes_while_waiting_is_out_of_the_line),
        TEST(i3_who_goes_when_its_turn_comes_passes_it_on),
        TEST(c7_a_line_too_long_is_503),
        cmocka_unit_test_setup_teardown(test_i3_who_waited_too_long_is_409, setup_impatient, teardown),
        cmocka_unit_test(test_i3_duplicates_of_four_loops_never_meet_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
