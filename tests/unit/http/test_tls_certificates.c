/* Certificates of TLS (issue 14.2, C5): those of clients, sessions that are resumed, and files that are read again. */
#include "tls_rig.h"

#include <openssl/err.h>

static struct tls_rig rig;

static void answer_client(struct http_request *request)
{
    http_send(request, &(struct http_response){.status = 200, .body = request->client_cert});
}

static const struct http_route routes[] = {
    {HTTP_GET, "/items/{key}", answer_key, .kind = HTTP_HOT},
    {HTTP_GET, "/client", answer_client, .kind = HTTP_HOT},
    {.handler = NULL},
};

#define GET(path) STR("GET " path " HTTP/1.1\r\nHost: a\r\n\r\n")

static int set_up(void **state)
{
    (void)state;
    tls_rig_init(&rig, routes);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tls_rig_deinit(&rig);
    return 0;
}

static struct http_tls_settings with_clients(bool required)
{
    struct http_tls_settings settings = tls_rig_settings(&rig);
    settings.client_ca_file = str_from(rig.ca);
    settings.client_required = required;
    return settings;
}

/* ---- clients' certificates ---- */

static void a_client_is_named_by_its_certificate(void **state)
{
    (void)state;
    struct tls_client client;
    struct http_tls_settings settings = with_clients(false);
    tls_rig_start(&rig, &settings);
    tls_client_prepare(&rig, &client);
    tls_client_use(&client, rig.client_cert, rig.client_key);
    tls_client_shake(&client);
    assert_true(str_eq(tls_client_ask(&client, GET("/client")).body,
                       STR("Subject=\"" TLS_RIG_SUBJECT "\";URI=\"" TLS_RIG_URI "\"")));
    tls_client_close(&client);
    tls_client_connect(&rig, &client); /* without one it is nobody, here */
    assert_int_equal(tls_client_ask(&client, GET("/client")).body.len, 0);
    tls_client_close(&client);
}

static void expect_refusal(const char *cert, const char *key, int reason)
{
    struct tls_client client;

    tls_client_prepare(&rig, &client);
    if (cert)
        tls_client_use(&client, cert, key);
    tls_client_shake(&client);
    /* With TLS 1.3 the client is done before the server has seen its certificate. */
    tls_client_send(&client, GET("/client"));
    tls_client_receive(&client);
    assert_int_equal(buf_len(&client.raw.in), 0);
    assert_int_equal(client.failure, reason);
    tls_client_close(&client);
}

static void certificates_of_strangers_expired_and_missing_ones_are_refused(void **state)
{
    (void)state;
    struct http_tls_settings settings = with_clients(true);
    tls_rig_start(&rig, &settings);
    expect_refusal(rig.wrong_cert, rig.wrong_key, SSL_R_TLSV1_ALERT_UNKNOWN_CA);
    expect_refusal(rig.old_cert, rig.old_key, SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED);
    expect_refusal(NULL, NULL, SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED);
    struct tls_client client;
    tls_client_prepare(&rig, &client);
    tls_client_use(&client, rig.client_cert, rig.client_key);
    tls_client_shake(&client);
    assert_int_equal(tls_client_ask(&client, GET("/client")).status, 200);
    tls_client_close(&client);
}

/* ---- sessions and reloads ---- */

static bool resumes(SSL_SESSION *session, int version)
{
    struct tls_client client;

    tls_client_prepare(&rig, &client);
    SSL_set_max_proto_version(client.ssl, version);
    assert_int_equal(SSL_set_session(client.ssl, session), 1);
    tls_client_use(&client, rig.client_cert, rig.client_key);
    tls_client_shake(&client);
    assert_true(client.is_open);
    bool is_resumed = SSL_session_reused(client.ssl);
    /* A resumed session has the client's name as well. */
    assert_true(str_starts_with(tls_client_ask(&client, GET("/client")).body, STR("Subject=")));
    assert_true(version != TLS1_3_VERSION || client.ticket); /* the one that it used is used up */
    tls_client_close(&client);
    return is_resumed;
}

static void sessions_are_resumed_until_the_files_are_read_again(void **state)
{
    (void)state;
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    struct http_tls_settings settings = with_clients(false);
    struct error error;
    tls_rig_start(&rig, &settings);
    for (size_t i = 0; i < 2; i++) {
        struct tls_client client;
        tls_client_prepare(&rig, &client);
        SSL_set_max_proto_version(client.ssl, versions[i]);
        tls_client_use(&client, rig.client_cert, rig.client_key);
        tls_client_shake(&client);
        assert_int_equal(tls_client_ask(&client, GET("/client")).status, 200);
        assert_non_null(client.ticket);
        assert_true(resumes(client.ticket, versions[i]));

        struct http_tls *again;
        assert_int_equal(http_tls_load(&settings, &again, &error), STATUS_OK);
        http_server_use_tls(rig.harness.server, again);
        http_tls_unref(again);
        harness_turn(&rig.harness, 2);
        assert_false(resumes(client.ticket, versions[i]));
        tls_client_close(&client);
    }
}

static bool sees(struct tls_client *client, const char *organization)
{
    char text[128];

    X509_NAME_get_text_by_NID(X509_get_subject_name(SSL_get0_peer_certificate(client->ssl)),
                              NID_organizationName, text, sizeof text);
    return strcmp(text, organization) == 0;
}

static void a_new_certificate_is_for_new_connections_and_ends_none(void **state)
{
    (void)state;
    struct http_tls_settings settings = tls_rig_settings(&rig);
    struct tls_client before, during, after;
    struct http_tls *fresh;
    struct error error;
    tls_rig_start(&rig, NULL);
    tls_client_connect(&rig, &before);
    tls_client_prepare(&rig, &during);
    (void)tls_client_step(&during); /* its handshake has begun */
    harness_turn(&rig.harness, 2);
    settings.cert_file = str_from(rig.other_cert);
    settings.key_file = str_from(rig.other_key);
    assert_int_equal(http_tls_load(&settings, &fresh, &error), STATUS_OK);
    http_server_use_tls(rig.harness.server, fresh);
    http_tls_unref(fresh);
    harness_turn(&rig.harness, 2);
    tls_client_connect(&rig, &after);
    tls_client_shake(&during);
    assert_true(sees(&before, "S") && sees(&during, "S") && sees(&after, "S2"));
    assert_int_equal(tls_client_ask(&before, GET("/items/x")).status, 200);
    assert_int_equal(tls_client_ask(&during, GET("/items/x")).status, 200);
    assert_int_equal(tls_client_ask(&after, GET("/items/x")).status, 200);
    tls_client_close(&before);
    tls_client_close(&during);
    tls_client_close(&after);
}

static void files_that_cannot_be_used_are_refused_with_their_field(void **state)
{
    (void)state;
    const struct {
        const char *cert, *key, *ca, *field;
    } rows[] = {
        {"/none", rig.key, "", "certFile"},           {rig.key, rig.key, "", "certFile"},
        {rig.cert, "/none", "", "keyFile"},           {rig.cert, rig.cert, "", "keyFile"},
        {rig.cert, rig.other_key, "", "keyFile"},     {rig.cert, rig.key, "/none", "clientCaFile"},
        {rig.cert, rig.key, rig.key, "clientCaFile"},
    };
    tls_rig_start(&rig, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct http_tls *tls = NULL;
        struct error error = {0};
        const struct http_tls_settings settings = {str_from(rows[i].cert), str_from(rows[i].key),
                                                   str_from(rows[i].ca), HTTP_TLS_1_2, false};
        assert_int_equal(http_tls_load(&settings, &tls, &error), STATUS_CONFIG);
        assert_string_equal(error.field, rows[i].field);
        assert_null(tls);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_client_is_named_by_its_certificate),
        TEST(certificates_of_strangers_expired_and_missing_ones_are_refused),
        TEST(sessions_are_resumed_until_the_files_are_read_again),
        TEST(a_new_certificate_is_for_new_connections_and_ends_none),
        TEST(files_that_cannot_be_used_are_refused_with_their_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
