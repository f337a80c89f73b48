/* Certificates and a client for the tests of TLS. */
#include "tls_rig.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- certificates ---- */

struct pair {
    EVP_PKEY *key;
    X509 *cert;
};

static void add_extension(X509 *cert, const X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;

    X509V3_set_ctx(&context, (X509 *)(uintptr_t)issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    assert_non_null(extension);
    assert_int_equal(X509_add_ext(cert, extension, -1), 1);
    X509_EXTENSION_free(extension);
}

/* Signed by `issuer`, or by itself as an authority. `names`: subjectAltName, or NULL. */
static struct pair make_pair(const char *name, const char *organization, const char *names,
                             const struct pair *issuer, long valid_s)
{
    struct pair made = {EVP_EC_gen("P-256"), X509_new()};
    static long serial = 1;
    X509_NAME *subject = X509_get_subject_name(made.cert);

    assert_non_null(made.key);
    X509_set_version(made.cert, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.cert), serial++);
    X509_gmtime_adj(X509_getm_notBefore(made.cert), -7200);
    X509_gmtime_adj(X509_getm_notAfter(made.cert), valid_s);
    X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_UTF8, (const unsigned char *)organization, -1, -1, 0);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(made.cert, issuer ? X509_get_subject_name(issuer->cert) : subject);
    X509_set_pubkey(made.cert, made.key);
    add_extension(made.cert, issuer ? issuer->cert : made.cert, NID_basic_constraints,
                  issuer ? "critical,CA:FALSE" : "critical,CA:TRUE");
    if (names)
        add_extension(made.cert, issuer->cert, NID_subject_alt_name, names);
    assert_true(X509_sign(made.cert, issuer ? issuer->key : made.key, EVP_sha256()) > 0);
    return made;
}

static void write_pair(const struct pair *pair, const char *cert_file, const char *key_file)
{
    FILE *out = fopen(cert_file, "we");
    assert_non_null(out);
    assert_int_equal(PEM_write_X509(out, pair->cert), 1);
    fclose(out);
    if (!key_file)
        return;
    out = fopen(key_file, "we");
    assert_non_null(out);
    assert_int_equal(PEM_write_PrivateKey(out, pair->key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(out);
}

static void free_pair(struct pair *pair)
{
    EVP_PKEY_free(pair->key);
    X509_free(pair->cert);
}

static void make_files(struct tls_rig *rig)
{
    const struct {
        char *cert, *key;
        const char *cert_name, *key_name;
        struct pair pair;
    } * row;
    struct pair ca = make_pair("root", "A", NULL, NULL, 86400),
                wrong = make_pair("other root", "W", NULL, NULL, 86400);
    const __typeof__(*row) rows[] = {
        {rig->cert, rig->key, "server.pem", "server.key",
         make_pair("localhost", "S", "DNS:localhost", &ca, 86400)},
        {rig->other_cert, rig->other_key, "other.pem", "other.key",
         make_pair("localhost", "S2", "DNS:localhost", &ca, 86400)},
        {rig->client_cert, rig->client_key, "client.pem", "client.key",
         make_pair("app", "A, B", "URI:" TLS_RIG_URI ",DNS:app.example", &ca, 86400)},
        {rig->wrong_cert, rig->wrong_key, "wrong.pem", "wrong.key",
         make_pair("app", "A, B", "URI:" TLS_RIG_URI, &wrong, 86400)},
        {rig->old_cert, rig->old_key, "old.pem", "old.key",
         make_pair("app", "A, B", "URI:" TLS_RIG_URI, &ca, -3600)},
    };
    for (row = rows; row < rows + sizeof rows / sizeof *rows; row++) {
        struct pair pair = row->pair;
        snprintf(row->cert, 96, "%s/%s", rig->folder, row->cert_name);
        snprintf(row->key, 96, "%s/%s", rig->folder, row->key_name);
        write_pair(&pair, row->cert, row->key);
        free_pair(&pair);
    }
    snprintf(rig->ca, sizeof rig->ca, "%s/ca.pem", rig->folder);
    write_pair(&ca, rig->ca, NULL);
    free_pair(&ca);
    free_pair(&wrong);
}

/* ---- the server ---- */

void tls_rig_init(struct tls_rig *rig, const struct http_route *routes)
{
    *rig = (struct tls_rig){.folder = "/tmp/freshet-tls-XXXXXX"};
    assert_non_null(mkdtemp(rig->folder));
    make_files(rig);
    harness_init(&rig->harness, routes);
}

struct http_tls_settings tls_rig_settings(const struct tls_rig *rig)
{
    return (struct http_tls_settings){.cert_file = str_from(rig->cert), .key_file = str_from(rig->key)};
}

void tls_rig_start(struct tls_rig *rig, const struct http_tls_settings *settings)
{
    struct error error;
    struct http_tls_settings usual = tls_rig_settings(rig);

    assert_int_equal(http_tls_load(settings ? settings : &usual, &rig->tls, &error), STATUS_OK);
    rig->harness.config.tls = rig->tls;
    harness_start(&rig->harness);
}

void tls_rig_deinit(struct tls_rig *rig)
{
    char *const files[] = {rig->cert,      rig->key,         rig->other_cert, rig->other_key,
                           rig->ca,        rig->client_cert, rig->client_key, rig->wrong_cert,
                           rig->wrong_key, rig->old_cert,    rig->old_key};

    harness_deinit(&rig->harness);
    http_tls_unref(rig->tls);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        unlink(files[i]);
    rmdir(rig->folder);
}

/* ---- the client ---- */

static int on_session(SSL *ssl, SSL_SESSION *session)
{
    struct tls_client *client = SSL_get_app_data(ssl);

    SSL_SESSION_free(client->ticket);
    client->ticket = session;
    return 1; /* it is ours */
}

void tls_client_prepare(struct tls_rig *rig, struct tls_client *client)
{
    *client = (struct tls_client){0};
    client_connect(&rig->harness, &client->raw);
    tls_client_begin(rig, client);
}

void tls_client_begin(struct tls_rig *rig, struct tls_client *client)
{
    client->context = SSL_CTX_new(TLS_client_method());
    assert_int_equal(SSL_CTX_load_verify_file(client->context, rig->ca), 1);
    SSL_CTX_set_verify(client->context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_session_cache_mode(client->context, SSL_SESS_CACHE_CLIENT);
    SSL_CTX_sess_set_new_cb(client->context, on_session);
    SSL_CTX_set_mode(client->context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    client->ssl = SSL_new(client->context);
    SSL_set_app_data(client->ssl, client);
    SSL_set_fd(client->ssl, client->raw.fd);
    SSL_set1_host(client->ssl, "localhost");
    SSL_set_connect_state(client->ssl);
}

void tls_client_use(struct tls_client *client, const char *cert, const char *key)
{
    assert_int_equal(SSL_use_certificate_file(client->ssl, cert, SSL_FILETYPE_PEM), 1);
    assert_int_equal(SSL_use_PrivateKey_file(client->ssl, key, SSL_FILETYPE_PEM), 1);
}

/* False: it has failed, or ended. */
static bool note_result(struct tls_client *client, int result)
{
    int why = SSL_get_error(client->ssl, result);

    if (result > 0 || why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        return true;
    client->saw_notify |= why == SSL_ERROR_ZERO_RETURN;
    client->failure = why == SSL_ERROR_SSL ? ERR_GET_REASON(ERR_peek_last_error()) : 0;
    client->raw.at_end = true;
    return false;
}

int tls_client_step(struct tls_client *client)
{
    ERR_clear_error();
    int result = SSL_do_handshake(client->ssl);
    client->is_open = note_result(client, result) && result == 1;
    return result;
}

void tls_client_shake(struct tls_client *client)
{
    for (int i = 0; i < 20 && !client->is_open && !client->raw.at_end; i++) {
        (void)tls_client_step(client);
        harness_turn(client->raw.harness, 3);
    }
}

void tls_client_connect(struct tls_rig *rig, struct tls_client *client)
{
    tls_client_prepare(rig, client);
    tls_client_shake(client);
    assert_true(client->is_open);
}

void tls_client_send(struct tls_client *client, struct str bytes)
{
    while (bytes.len > 0 && !client->raw.at_end) {
        ERR_clear_error();
        int sent = SSL_write(client->ssl, bytes.ptr, bytes.len > INT32_MAX ? INT32_MAX : (int)bytes.len);
        if (!note_result(client, sent))
            return;
        if (sent > 0)
            bytes = str_skip(bytes, (size_t)sent);
        else
            harness_turn(client->raw.harness, 1);
    }
}

void tls_client_take_some(struct tls_client *client)
{
    int got = 1;

    while (got > 0 && !client->raw.at_end) {
        ERR_clear_error();
        got = SSL_read(client->ssl, buf_reserve(&client->raw.in, 65536), 65536);
        if (got > 0)
            buf_commit(&client->raw.in, (size_t)got);
        (void)note_result(client, got);
    }
}

void tls_client_receive(struct tls_client *client)
{
    for (int quiet = 0; quiet < 4 && !client->raw.at_end;) {
        size_t before = buf_len(&client->raw.in);
        harness_turn(client->raw.harness, 1);
        tls_client_take_some(client);
        quiet = buf_len(&client->raw.in) > before ? 0 : quiet + 1;
    }
}

struct answer tls_client_ask(struct tls_client *client, struct str request)
{
    tls_client_send(client, request);
    tls_client_receive(client);
    return client_take(&client->raw);
}

void tls_client_close(struct tls_client *client)
{
    SSL_SESSION_free(client->ticket);
    SSL_free(client->ssl);
    SSL_CTX_free(client->context);
    client_close(&client->raw);
}
