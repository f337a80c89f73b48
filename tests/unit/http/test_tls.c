/* TLS on connections (issue 14.2, C5, C6, C7): what a client sees is what it sees without TLS, and what it may bring of its own. */
#include "tls_rig.h"

#include <errno.h>
#include <openssl/err.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/span.h"

static struct tls_rig rig;
static char big[3 * 1024 * 1024];

static void answer_big(struct http_request *request)
{
    http_send(request, &(struct http_response){.status = 200, .body = str_of(big, sizeof big)});
}

static const struct http_route routes[] = {
    {HTTP_POST, "/echo", answer_body, .consumes = HTTP_ANY},
    {HTTP_GET, "/items/{key}", answer_key, .kind = HTTP_HOT},
    {HTTP_GET, "/big", answer_big, .kind = HTTP_HOT},
    {.handler = NULL},
};

#define GET(path) STR("GET " path " HTTP/1.1\r\nHost: a\r\n\r\n")

static int set_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)('a' + i * 7 % 26);
    tls_rig_init(&rig, routes);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tls_rig_deinit(&rig);
    return 0;
}

/* ---- requests ---- */

static void requests_are_answered_as_without_tls(void **state)
{
    (void)state;
    struct tls_client client;
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &client);
    for (int i = 0; i < 3; i++) {
        struct answer answer = tls_client_ask(&client, GET("/items/one"));
        assert_int_equal(answer.status, 200);
        assert_true(str_eq(answer.body, STR("<one>")));
    }
    tls_client_send(&client,
                    STR("GET /items/1 HTTP/1.1\r\nHost: a\r\n\r\nGET /items/2 HTTP/1.1\r\nHost: a\r\n\r\n"
                        "GET /none HTTP/1.1\r\nHost: a\r\n\r\n"));
    tls_client_receive(&client);
    assert_true(str_eq(client_take(&client.raw).body, STR("<1>")));
    assert_true(str_eq(client_take(&client.raw).body, STR("<2>")));
    assert_int_equal(client_take(&client.raw).status, 404);
    assert_false(client.raw.at_end);
    tls_client_close(&client);
}

static void a_request_of_one_byte_records_is_answered(void **state)
{
    (void)state;
    struct str request = GET("/items/dribbled");
    struct tls_client client;
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &client);
    for (size_t i = 0; i < request.len; i++) /* all of them wait in the socket: more than one read takes */
        assert_int_equal(SSL_write(client.ssl, request.ptr + i, 1), 1);
    tls_client_receive(&client);
    assert_true(str_eq(client_take(&client.raw).body, STR("<dribbled>")));
    tls_client_close(&client);
}

static void a_large_body_goes_both_ways(void **state)
{
    (void)state;
    struct tls_client client;
    struct buf request = {0};
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &client);
    buf_printf(&request, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", sizeof big);
    buf_put(&request, big, sizeof big);
    tls_client_send(&client, buf_str(&request));
    harness_turn(&rig.harness, 100); /* the last part of it, a block each time */
    tls_client_receive(&client);
    struct answer answer = client_take(&client.raw);
    assert_int_equal(answer.status, 200);
    assert_true(str_eq(answer.body, str_of(big, sizeof big)));
    assert_int_equal(tls_client_ask(&client, GET("/items/after")).status, 200);
    buf_deinit(&request);
    tls_client_close(&client);
}

static void answers_wait_for_a_slow_reader_and_no_further_request_is_parsed(void **state)
{
    (void)state;
    struct tls_client client;
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &client);
    for (int i = 0; i < 4; i++)
        tls_client_send(&client, GET("/big"));
    harness_turn(&rig.harness, 50);
    assert_true(budget_used(BUDGET_UNSENT) < 2 * sizeof big); /* one answer, not four */
    for (int i = 0; i < 4; i++) {
        tls_client_receive(&client);
        struct answer answer = client_take(&client.raw);
        assert_int_equal(answer.status, 200);
        assert_true(str_eq(answer.body, str_of(big, sizeof big)));
    }
    assert_int_equal(tls_client_ask(&client, GET("/items/after")).status, 200);
    tls_client_close(&client);
}

/* ---- the end of a connection ---- */

static void a_connection_ends_with_close_notify(void **state)
{
    (void)state;
    struct tls_client client;
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &client);
    assert_int_equal(
        tls_client_ask(&client, STR("GET /items/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")).status,
        200);
    tls_client_receive(&client);
    assert_true(client.raw.at_end && client.saw_notify);
    tls_client_close(&client);
}

static void a_client_that_has_sent_its_end_is_still_answered(void **state)
{
    (void)state;
    struct tls_client client;
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &client);
    tls_client_send(&client, GET("/big"));
    assert_int_equal(SSL_shutdown(client.ssl), 0);
    tls_client_receive(&client);
    assert_true(str_eq(client_take(&client.raw).body, str_of(big, sizeof big)));
    tls_client_receive(&client);
    assert_true(client.saw_notify);
    tls_client_close(&client);
}

static void a_body_that_is_cut_without_close_notify_is_refused(void **state)
{
    (void)state;
    struct tls_client client;
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &client);
    tls_client_send(&client, STR("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345"));
    shutdown(client.raw.fd, SHUT_WR);
    tls_client_receive(&client);
    assert_int_equal(client_take(&client.raw).status, 400);
    tls_client_close(&client);
}

static void a_record_that_is_cut_ends_the_connection(void **state)
{
    (void)state;
    struct tls_client client;
    char record[512];
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &client);
    /* The record goes to a memory first, and half of it to the server. */
    BIO *memory = BIO_new(BIO_s_mem());
    SSL_set0_wbio(client.ssl, memory);
    assert_true(SSL_write(client.ssl, GET("/items/x").ptr, (int)GET("/items/x").len) > 0);
    int len = BIO_read(memory, record, sizeof record);
    assert_true(len > 40);
    client_send(&client.raw, str_of(record, (size_t)len / 2));
    harness_turn(&rig.harness, 5);
    shutdown(client.raw.fd, SHUT_WR);
    tls_client_receive(&client);
    assert_true(client.raw.at_end && buf_len(&client.raw.in) == 0);
    tls_client_close(&client);
}

static void a_changed_byte_of_a_record_ends_the_connection_with_an_alert(void **state)
{
    (void)state;
    struct tls_client client;
    char record[512];
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &client);
    BIO *memory = BIO_new(BIO_s_mem());
    SSL_set0_wbio(client.ssl, memory);
    assert_true(SSL_write(client.ssl, GET("/items/x").ptr, (int)GET("/items/x").len) > 0);
    int len = BIO_read(memory, record, sizeof record);
    record[len - 1] ^= 1;
    client_send(&client.raw, str_of(record, (size_t)len));
    tls_client_receive(&client);
    assert_int_equal(client.failure, SSL_R_SSLV3_ALERT_BAD_RECORD_MAC);
    assert_int_equal(buf_len(&client.raw.in), 0);
    tls_client_close(&client);
}

static void note_scheme(void *context, const struct span *span)
{
    for (unsigned i = 0; i < span->attribute_count; i++)
        if (strcmp(span->attributes[i].name, "url.scheme") == 0)
            snprintf(context, 8, "%.*s", (int)span->attributes[i].text_len,
                     span->text + span->attributes[i].text_at);
}

static void a_span_has_the_scheme_of_tls(void **state)
{
    (void)state;
    struct tls_client client;
    char scheme[8] = "";
    tls_rig_start(&rig, NULL);
    span_open(&(struct span_settings){.ring_spans = 16, .sample_share = 100000});
    tls_client_connect(&rig, &client);
    assert_int_equal(tls_client_ask(&client, GET("/items/x")).status, 200);
    size_t taken = span_take(16, note_scheme, scheme);
    span_close();
    span_free();
    assert_int_equal(taken, 1);
    assert_string_equal(scheme, "https");
    tls_client_close(&client);
}

/* ---- what is negotiated ---- */

static void offer(struct tls_client *client, const char *protocols)
{
    assert_int_equal(
        SSL_set_alpn_protos(client->ssl, (const unsigned char *)protocols, (unsigned)strlen(protocols)), 0);
}

static void http_1_1_is_chosen_and_an_offer_without_it_is_refused(void **state)
{
    (void)state;
    struct tls_client client;
    const unsigned char *chosen = NULL;
    unsigned len = 0;
    tls_rig_start(&rig, NULL);
    tls_client_prepare(&rig, &client);
    offer(&client, "\x02h2\x08http/1.1");
    tls_client_shake(&client);
    SSL_get0_alpn_selected(client.ssl, &chosen, &len);
    assert_true(str_eq(str_of((const char *)chosen, len), STR("http/1.1")));
    assert_int_equal(tls_client_ask(&client, GET("/items/x")).status, 200);
    tls_client_close(&client);
    tls_client_prepare(&rig, &client);
    offer(&client, "\x02h2\x06spdy/1");
    tls_client_shake(&client);
    assert_false(client.is_open);
    assert_int_equal(client.failure, SSL_R_TLSV1_ALERT_NO_APPLICATION_PROTOCOL);
    tls_client_close(&client);
}

static void versions_below_the_lowest_are_refused(void **state)
{
    (void)state;
    struct tls_client client;
    struct http_tls_settings settings = tls_rig_settings(&rig);
    settings.min_version = HTTP_TLS_1_3;
    tls_rig_start(&rig, &settings);
    tls_client_prepare(&rig, &client);
    SSL_set_max_proto_version(client.ssl, TLS1_2_VERSION);
    tls_client_shake(&client);
    assert_false(client.is_open);
    assert_int_equal(client.failure, SSL_R_TLSV1_ALERT_PROTOCOL_VERSION);
    tls_client_close(&client);
    tls_client_connect(&rig, &client);
    assert_string_equal(SSL_get_version(client.ssl), "TLSv1.3");
    tls_client_close(&client);
}

static void a_renegotiation_is_refused_and_others_are_served(void **state)
{
    (void)state;
    struct tls_client client, other;
    tls_rig_start(&rig, NULL);
    tls_client_prepare(&rig, &client);
    SSL_set_max_proto_version(client.ssl, TLS1_2_VERSION);
    tls_client_shake(&client);
    assert_string_equal(SSL_get_version(client.ssl), "TLSv1.2");
    assert_int_equal(tls_client_ask(&client, GET("/items/before")).status, 200);
    client.is_open = false;
    assert_int_equal(SSL_renegotiate(client.ssl), 1);
    tls_client_shake(&client);
    assert_false(client.is_open);
    assert_int_equal(client.failure, SSL_R_NO_RENEGOTIATION); /* by the server's alert */
    tls_client_connect(&rig, &other);
    assert_int_equal(tls_client_ask(&other, GET("/items/x")).status, 200);
    tls_client_close(&other);
    tls_client_close(&client);
}

static void plain_http_is_answered_400_in_plain_text(void **state)
{
    (void)state;
    bool closed;
    char body[256];
    tls_rig_start(&rig, NULL);
    assert_int_equal(ask(&rig.harness, GET("/items/x"), body, sizeof body, &closed), 400);
    assert_non_null(strstr(body, "TLS"));
    assert_true(closed);
}

static void garbage_ends_the_connection(void **state)
{
    (void)state;
    static const struct str rows[] = {
        {"\x16\x03\x01\x00\x05hello", 10},
        {"SSH-2.0-x\r\n", 11},
        {"\x16\x03\x01\xff\xff", 5},
        {"\0\0\0\0\0\0", 6},
        {"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10", 11},
    };
    tls_rig_start(&rig, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct client client;
        client_connect(&rig.harness, &client);
        client_send(&client, rows[i]);
        shutdown(client.fd, SHUT_WR);
        client_receive(&client);
        assert_true(client.at_end);
        assert_null(memmem(client.in.data, buf_len(&client.in), "HTTP", 4));
        client_close(&client);
    }
}

/* ---- the graceful stop ---- */

static void a_stop_ends_idle_connections_and_answers_those_that_shake_hands(void **state)
{
    (void)state;
    struct tls_client idle, opening;
    struct client silent;
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &idle);
    client_connect(&rig.harness, &silent);
    tls_client_prepare(&rig, &opening);
    (void)tls_client_step(&opening);
    harness_turn(&rig.harness, 2);
    http_server_drain(rig.harness.server, clock_deadline_ms(60000), NULL, NULL);
    tls_client_receive(&idle);
    assert_true(idle.saw_notify);
    client_receive(&silent);
    assert_true(silent.at_end);
    tls_client_shake(&opening);
    assert_true(opening.is_open);
    struct answer answer = tls_client_ask(&opening, GET("/items/last"));
    assert_int_equal(answer.status, 200);
    assert_true(answer_has(&answer, "Connection: close"));
    tls_client_receive(&opening);
    assert_true(opening.saw_notify);
    client_close(&silent);
    tls_client_close(&idle);
    tls_client_close(&opening);
}

static void a_stop_waits_for_the_rest_of_a_record(void **state)
{
    (void)state;
    struct tls_client client;
    char record[512];
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &client);
    assert_int_equal(tls_client_ask(&client, GET("/items/first")).status, 200);
    BIO *memory = BIO_new(BIO_s_mem());
    SSL_set0_wbio(client.ssl, memory);
    assert_true(SSL_write(client.ssl, GET("/items/last").ptr, (int)GET("/items/last").len) > 0);
    int len = BIO_read(memory, record, sizeof record), third = len / 3;
    assert_true(len > 40);
    client_send(&client.raw, str_of(record, (size_t)third));
    harness_turn(&rig.harness, 3);
    http_server_drain(rig.harness.server, CLOCK_NEVER, NULL, NULL);
    harness_turn(&rig.harness, 3);
    client_send(&client.raw, str_of(record + third, (size_t)third));
    harness_turn(&rig.harness, 3);
    client_send(&client.raw, str_of(record + 2 * third, (size_t)(len - 2 * third)));
    tls_client_receive(&client);
    struct answer answer = client_take(&client.raw);
    assert_int_equal(answer.status, 200);
    assert_true(answer_has(&answer, "Connection: close"));
    assert_true(client.saw_notify);
    tls_client_close(&client);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(requests_are_answered_as_without_tls),
        TEST(a_request_of_one_byte_records_is_answered),
        TEST(a_large_body_goes_both_ways),
        TEST(answers_wait_for_a_slow_reader_and_no_further_request_is_parsed),
        TEST(a_connection_ends_with_close_notify),
        TEST(a_client_that_has_sent_its_end_is_still_answered),
        TEST(a_body_that_is_cut_without_close_notify_is_refused),
        TEST(a_record_that_is_cut_ends_the_connection),
        TEST(a_changed_byte_of_a_record_ends_the_connection_with_an_alert),
        TEST(a_span_has_the_scheme_of_tls),
        TEST(http_1_1_is_chosen_and_an_offer_without_it_is_refused),
        TEST(versions_below_the_lowest_are_refused),
        TEST(a_renegotiation_is_refused_and_others_are_served),
        TEST(plain_http_is_answered_400_in_plain_text),
        TEST(garbage_ends_the_connection),
        TEST(a_stop_ends_idle_connections_and_answers_those_that_shake_hands),
        TEST(a_stop_waits_for_the_rest_of_a_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
