/* What TLS may use of the loop and of memory, whatever clients do (issue 14.2, C6, C7). The allocations of OpenSSL on the server's side are
 * counted: all that happen inside of the loop, and while a connection is adopted. */
#include "tls_rig.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/budget.h"
#include "base/clock.h"
#include "http/tls.h"

static struct tls_rig rig;
static char big[3 * 1024 * 1024];

static void answer_big(struct http_request *request)
{
    http_send(request, &(struct http_response){.status = 200, .body = str_of(big, sizeof big)});
}

static const struct http_route routes[] = {
    {HTTP_GET, "/items/{key}", answer_key, .kind = HTTP_HOT},
    {HTTP_GET, "/big", answer_big, .kind = HTTP_HOT},
    {.handler = NULL},
};

#define GET(path) STR("GET " path " HTTP/1.1\r\nHost: a\r\n\r\n")

/* ---- memory of OpenSSL ---- */

static bool is_server; /* whose allocations these are */
static size_t server_bytes;

struct block {
    _Alignas(16) size_t bytes;
    bool is_server;
};

static void *count_malloc(size_t bytes, const char *file, int line)
{
    (void)file, (void)line;
    if (bytes == 0)
        return NULL;
    struct block *block = malloc(sizeof *block + bytes);
    *block = (struct block){.bytes = bytes, .is_server = is_server};
    server_bytes += is_server ? bytes : 0;
    return block + 1;
}

static void count_free(void *memory, const char *file, int line)
{
    (void)file, (void)line;
    struct block *block = memory ? (struct block *)memory - 1 : NULL;
    server_bytes -= block && block->is_server ? block->bytes : 0;
    free(block);
}

static void *count_realloc(void *memory, size_t bytes, const char *file, int line)
{
    void *moved = count_malloc(bytes, file, line);
    if (memory && moved) {
        size_t before = ((struct block *)memory - 1)->bytes;
        memcpy(moved, memory, before < bytes ? before : bytes);
    }
    count_free(memory, file, line);
    return moved;
}

static void turn(int times)
{
    is_server = true;
    harness_turn(&rig.harness, times);
    is_server = false;
}

static void prepare(struct tls_client *client)
{
    *client = (struct tls_client){0};
    is_server = true;
    client_connect(&rig.harness, &client->raw);
    is_server = false;
    tls_client_begin(&rig, client);
}

static void shake(struct tls_client *client)
{
    for (int i = 0; i < 20 && !client->is_open && !client->raw.at_end; i++) {
        (void)tls_client_step(client);
        turn(3);
    }
    assert_true(client->is_open);
}

/* ---- set up ---- */

static int set_up(void **state)
{
    (void)state;
    memset(big, 'x', sizeof big);
    tls_rig_init(&rig, routes);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tls_rig_deinit(&rig);
    assert_int_equal(budget_used(BUDGET_REQUESTS), 0);
    budget_set_limit(0);
    return 0;
}

/* ---- memory ---- */

static void the_memory_of_a_link_is_charged_as_openssl_takes_it(void **state)
{
    (void)state;
    struct tls_client client;
    struct http_tls_settings settings = tls_rig_settings(&rig);
    settings.client_ca_file = str_from(rig.ca);
    tls_rig_start(&rig, &settings);
    prepare(&client); /* the first one fills what OpenSSL caches for all */
    tls_client_use(&client, rig.client_cert, rig.client_key);
    shake(&client);
    tls_client_close(&client);
    turn(3);
    size_t ours = budget_used(BUDGET_REQUESTS);

    size_t before = server_bytes, most = 0;
    prepare(&client);
    tls_client_use(&client, rig.client_cert, rig.client_key);
    assert_true(budget_used(BUDGET_REQUESTS) >= ours + HTTP_TLS_HANDSHAKE_BYTES);
    for (int i = 0; i < 20 && !client.is_open; i++) {
        (void)tls_client_step(&client);
        turn(1);
        most = server_bytes - before > most ? server_bytes - before : most;
    }
    turn(3);
    size_t open = server_bytes - before;
    assert_in_range(most, HTTP_TLS_HANDSHAKE_BYTES / 4, HTTP_TLS_HANDSHAKE_BYTES);
    assert_in_range(open, HTTP_TLS_LINK_BYTES / 4, HTTP_TLS_LINK_BYTES);
    assert_in_range(budget_used(BUDGET_REQUESTS) - ours, HTTP_TLS_LINK_BYTES, HTTP_TLS_LINK_BYTES + 4096);

    /* Part of a record, and an answer that is not read: a buffer each. */
    size_t idle = budget_used(BUDGET_REQUESTS);
    client_send(&client.raw, str_of("\x17\x03\x03\x20\x00", 5));
    turn(3);
    assert_int_equal(budget_used(BUDGET_REQUESTS) - idle, HTTP_TLS_RECORD_BYTES);
    assert_in_range(server_bytes - before - open, HTTP_TLS_RECORD_BYTES / 2, HTTP_TLS_RECORD_BYTES);
    tls_client_close(&client);
    turn(3);
    assert_int_equal(budget_used(BUDGET_REQUESTS), ours);
}

static void the_record_of_a_slow_reader_is_charged_until_it_is_read(void **state)
{
    (void)state;
    struct tls_client client;
    tls_rig_start(&rig, NULL);
    prepare(&client);
    shake(&client);
    assert_int_equal(tls_client_ask(&client, GET("/items/x")).status, 200);
    size_t idle = budget_used(BUDGET_REQUESTS), before = server_bytes;
    tls_client_send(&client, GET("/big"));
    turn(5);
    assert_true(budget_used(BUDGET_UNSENT) > 0);
    assert_in_range(budget_used(BUDGET_REQUESTS) - idle, HTTP_TLS_RECORD_BYTES, HTTP_TLS_RECORD_BYTES + 1);
    assert_in_range(server_bytes - before, HTTP_TLS_RECORD_BYTES / 2, HTTP_TLS_RECORD_BYTES);
    tls_client_receive(&client);
    assert_int_equal(client_take(&client.raw).body.len, sizeof big);
    assert_int_equal(budget_used(BUDGET_UNSENT), 0);
    assert_int_equal(budget_used(BUDGET_REQUESTS), idle);
    tls_client_close(&client);
}

static void handshakes_have_half_of_the_account_and_an_open_connection_is_served(void **state)
{
    (void)state;
    enum { CROWD = 400 };
    static struct client crowd[CROWD];
    struct tls_client open;
    unsigned refused = 0;
    budget_set_limit((size_t)64 * 1024 * 1024);
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &open);
    for (size_t i = 0; i < CROWD; i++)
        client_connect(&rig.harness, &crowd[i]);
    turn(3);
    for (size_t i = 0; i < CROWD; i++) {
        char byte;
        refused += recv(crowd[i].fd, &byte, 1, MSG_PEEK) == 0;
    }
    size_t held = (CROWD - refused) * (size_t)HTTP_TLS_HANDSHAKE_BYTES;
    assert_in_range(held, budget_share(BUDGET_REQUESTS) / 2 - HTTP_TLS_HANDSHAKE_BYTES,
                    budget_share(BUDGET_REQUESTS) / 2);
    assert_int_equal(tls_client_ask(&open, GET("/items/x")).status, 200);
    for (size_t i = 0; i < CROWD; i++)
        client_close(&crowd[i]);
    tls_client_close(&open);
    tls_client_connect(&rig, &open); /* and there is room again */
    tls_client_close(&open);
}

/* ---- the loop ---- */

static void a_flood_of_handshakes_leaves_most_of_a_tick_to_requests(void **state)
{
    (void)state;
    enum { FLOOD = 200 };
    static struct tls_client flood[FLOOD];
    struct tls_client open;
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &open);
    for (size_t i = 0; i < FLOOD; i++) {
        tls_client_prepare(&rig, &flood[i]);
        (void)tls_client_step(&flood[i]);
    }
    tls_client_send(&open, GET("/items/x"));
    turn(1);
    tls_client_take_some(&open);
    assert_int_equal(client_take(&open.raw).status, 200);
    unsigned answered = 0;
    for (size_t i = 0; i < FLOOD; i++) {
        char byte;
        answered += recv(flood[i].raw.fd, &byte, 1, MSG_PEEK) == 1;
    }
    assert_in_range(answered, 1, FLOOD / 4);
    for (size_t i = 0; i < FLOOD; i++) { /* each has its turn in the end */
        while (!flood[i].is_open) {
            (void)tls_client_step(&flood[i]);
            assert_false(flood[i].raw.at_end);
            turn(1);
        }
        tls_client_close(&flood[i]);
    }
    tls_client_close(&open);
}

/* ---- time ---- */

static void a_handshake_that_does_not_go_on_is_ended(void **state)
{
    (void)state;
    struct client silent, begun;
    rig.harness.config.limits.header_timeout_ms = 20;
    tls_rig_start(&rig, NULL);
    client_connect(&rig.harness, &silent);
    client_connect(&rig.harness, &begun);
    client_send(&begun, str_of("\x16\x03\x01\x02\x00\x01", 6));
    while (!silent.at_end || !begun.at_end) {
        loop_run_once(rig.harness.loop, 5);
        client_receive(&silent);
        client_receive(&begun);
    }
    client_close(&silent);
    client_close(&begun);
}

static void a_record_that_dribbles_is_ended_like_a_head_that_does(void **state)
{
    (void)state;
    struct tls_client client;
    rig.harness.config.limits.header_timeout_ms = 100;
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &client);
    client_send(&client.raw, str_of("\x17\x03\x03\x40\x00", 5));
    unsigned sent = 0;
    for (; !client.raw.at_end;
         sent++) { /* a byte each millisecond: without a limit it would go on for 16 s */
        client_send(&client.raw, STR("x"));
        loop_run_once(rig.harness.loop, 5);
        tls_client_take_some(&client);
        usleep(1000);
    }
    assert_true(sent < 8192); /* it was ended before the record was whole, and so known to be wrong */
    tls_client_close(&client);
}

static void a_hello_that_announces_too_much_is_ended_before_it_is_allocated(void **state)
{
    (void)state;
    static const struct str rows[] = {
        {"\x16\x03\x01\x02\x00\x01\x01\x00\x00\x03\x03", 11},
        {"\x16\x03\x01\x00\x01\x01\x16\x03\x01\x00\x02\x01\x00\x16\x03\x01\x00\x10\x00\x03", 20},
        {"\x14\x03\x03\x00\x01\x01\x16\x03\x01\x02\x00\x01\x01\x00\x00", 15},
    };
    tls_rig_start(&rig, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct client client;
        size_t before = server_bytes;
        is_server = true;
        client_connect(&rig.harness, &client);
        is_server = false;
        for (size_t at = 0; at < rows[i].len; at++) { /* in pieces: no boundary is relied on */
            client_send(&client, str_of(rows[i].ptr + at, 1));
            turn(2);
            assert_true(server_bytes - before < HTTP_TLS_HANDSHAKE_BYTES);
        }
        client_receive(&client);
        assert_true(client.at_end);
        client_close(&client);
    }
}

static void a_second_hello_after_a_retry_is_taken(void **state)
{
    (void)state;
    struct tls_client client;
    tls_rig_start(&rig, NULL);
    tls_client_prepare(&rig, &client);
    assert_int_equal(SSL_set1_groups_list(client.ssl, "P-521:P-256"),
                     1); /* its first share is of no use here */
    tls_client_shake(&client);
    assert_true(client.is_open);
    assert_int_equal(tls_client_ask(&client, GET("/items/x")).status, 200);
    tls_client_close(&client);
}

static void past_the_limit_of_connections_503_is_answered_after_the_handshake(void **state)
{
    (void)state;
    struct tls_client first, second;
    struct client third;
    rig.harness.config.limits.connections_max = 1;
    rig.harness.config.limits.connections_extra = 1;
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &first);
    tls_client_connect(&rig, &second);
    client_connect(&rig.harness, &third); /* past both: closed at once */
    client_receive(&third);
    assert_true(third.at_end);
    assert_int_equal(tls_client_ask(&second, GET("/items/x")).status, 503);
    assert_int_equal(tls_client_ask(&first, GET("/items/x")).status, 200);
    client_close(&third);
    tls_client_close(&first);
    tls_client_close(&second);
}

int main(void)
{
    if (CRYPTO_set_mem_functions(count_malloc, count_realloc, count_free) != 1)
        return 1;
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(the_memory_of_a_link_is_charged_as_openssl_takes_it),
        TEST(the_record_of_a_slow_reader_is_charged_until_it_is_read),
        TEST(handshakes_have_half_of_the_account_and_an_open_connection_is_served),
        TEST(a_flood_of_handshakes_leaves_most_of_a_tick_to_requests),
        TEST(a_handshake_that_does_not_go_on_is_ended),
        TEST(a_record_that_dribbles_is_ended_like_a_head_that_does),
        TEST(a_hello_that_announces_too_much_is_ended_before_it_is_allocated),
        TEST(a_second_hello_after_a_retry_is_taken),
        TEST(past_the_limit_of_connections_503_is_answered_after_the_handshake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
