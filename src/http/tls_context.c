/* What all TLS connections share: the certificate, its key, the authorities of clients, and the rules of the handshake.
 *
 * It is read from files once and does not change. A reload makes another one; connections keep the one they were opened with. */
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "http/tls.h"

enum {
    VERIFY_DEPTH = 4,                   /* authorities between a client's certificate and a root */
    CLIENT_CHAIN_BYTES_MAX = 32 * 1024, /* that a client may send */
};

/* Forward secrecy and authenticated encryption only. The groups leave out those whose computation takes longest: the client chooses. */
#define CIPHERS_1_2 "ECDHE+AESGCM:ECDHE+CHACHA20"
#define GROUPS "X25519:P-256:P-384"

struct http_tls {
    atomic_uint refs;
    SSL_CTX *context;
    struct http_tickets *tickets;
    bool asks_client;
    int64_t not_before_s, not_after_s; /* of the certificate, unix */
    char *subject;
};

/* ---- errors ---- */

static enum status tls_error(struct error *error, const char *field, const char *what, struct str file)
{
    unsigned long code = ERR_peek_error(); /* the first one: those after it say where it came through */
    const char *reason =
        ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code)) : ERR_reason_error_string(code);

    enum status status = error_set_field(error, STATUS_CONFIG, field, "%s %.*s: %s", what, STR_ARG(file),
                                         reason ? reason : "is not valid");
    ERR_clear_error();
    return status;
}

/* ---- the certificate ---- */

static int64_t unix_time(const ASN1_TIME *time)
{
    int days = 0, seconds = 0;
    ASN1_TIME *epoch = ASN1_TIME_set(NULL, 0);
    bool is_known = epoch && ASN1_TIME_diff(&days, &seconds, epoch, time) == 1;

    ASN1_TIME_free(epoch);
    return is_known ? (int64_t)days * 86400 + seconds : 0;
}

/* A key with a passphrase is refused: nobody is there to type it. */
static int no_passphrase(char *out, int size, int is_writing, void *context)
{
    (void)out, (void)size, (void)is_writing, (void)context;
    return -1;
}

static enum status use_certificate(struct http_tls *tls, const struct http_tls_settings *settings,
                                   struct error *error)
{
    SSL_CTX_set_default_passwd_cb(tls->context, no_passphrase);
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(tls->context, settings->cert_file.ptr) != 1)
        return tls_error(error, "certFile", "cannot use the certificate in", settings->cert_file);
    if (SSL_CTX_use_PrivateKey_file(tls->context, settings->key_file.ptr, SSL_FILETYPE_PEM) != 1)
        return tls_error(error, "keyFile", "cannot use the key in", settings->key_file);
    X509 *certificate = SSL_CTX_get0_certificate(tls->context);
    tls->not_before_s = unix_time(X509_get0_notBefore(certificate));
    tls->not_after_s = unix_time(X509_get0_notAfter(certificate));
    BIO *text = BIO_new(BIO_s_mem());
    char *bytes = NULL;
    if (text && X509_NAME_print_ex(text, X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253) >= 0) {
        long len = BIO_get_mem_data(text, &bytes);
        tls->subject = str_dup(str_of(bytes, (size_t)len));
    }
    BIO_free(text);
    return STATUS_OK;
}

static enum status use_client_authorities(struct http_tls *tls, const struct http_tls_settings *settings,
                                          struct error *error)
{
    int mode = SSL_VERIFY_PEER | (settings->client_required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0);
    const char *file = settings->client_ca_file.ptr;

    if (settings->client_ca_file.len == 0)
        return STATUS_OK;
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(file);
    if (!names || SSL_CTX_load_verify_file(tls->context, file) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return tls_error(error, "clientCaFile", "cannot use the authorities in", settings->client_ca_file);
    }
    SSL_CTX_set_client_CA_list(tls->context, names);
    SSL_CTX_set_verify(tls->context, mode, NULL);
    SSL_CTX_set_verify_depth(tls->context, VERIFY_DEPTH);
    SSL_CTX_set_max_cert_list(tls->context, CLIENT_CHAIN_BYTES_MAX);
    tls->asks_client = true;
    return STATUS_OK;
}

/* ---- rules ---- */

/* A client that offers protocols and none of ours is told so. One that offers none speaks HTTP/1.1. */
static int on_protocols(SSL *ssl, const unsigned char **chosen, unsigned char *chosen_len,
                        const unsigned char *offered, unsigned offered_len, void *context)
{
    static const unsigned char ours[] = "\x08http/1.1\x08http/1.0";
    unsigned char *found = NULL;

    (void)ssl, (void)context;
    if (SSL_select_next_proto(&found, chosen_len, ours, sizeof ours - 1, offered, offered_len) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL; /* no_application_protocol */
    *chosen = found;
    return SSL_TLSEXT_ERR_OK;
}

static bool set_rules(SSL_CTX *context, const struct http_tls_settings *settings)
{
    static const unsigned char sessions[] = "freshet";

    SSL_CTX_set_options(context,
                        SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                            SSL_OP_PRIORITIZE_CHACHA |
                            /* HTTP frames its messages: an end without close_notify cuts no request unseen */
                            SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_clear_options(context, SSL_OP_LEGACY_SERVER_CONNECT | SSL_OP_ALLOW_CLIENT_RENEGOTIATION);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY); /* each record of the protocol's own ends a read */
    SSL_CTX_set_read_ahead(context, 1);               /* a record in one recv() */
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_alpn_select_cb(context, on_protocols, NULL);
    return SSL_CTX_set_min_proto_version(context, settings->min_version == HTTP_TLS_1_3 ? TLS1_3_VERSION
                                                                                        : TLS1_2_VERSION) &&
           SSL_CTX_set_cipher_list(context, CIPHERS_1_2) && SSL_CTX_set1_groups_list(context, GROUPS) &&
           SSL_CTX_set_session_id_context(context, sessions, sizeof sessions - 1);
}

/* ---- life ---- */

enum status http_tls_load(const struct http_tls_settings *settings, struct http_tls **tls,
                          struct error *error)
{
    struct http_tls *made = memory_zalloc(sizeof *made);
    enum status status = STATUS_OK;

    atomic_init(&made->refs, 1);
    ERR_clear_error();
    made->context = SSL_CTX_new(TLS_server_method());
    made->tickets = http_tickets_create();
    if (!made->context || !made->tickets || !set_rules(made->context, settings))
        status = tls_error(error, "certFile", "TLS is not available for", settings->cert_file);
    if (status == STATUS_OK)
        status = use_certificate(made, settings, error);
    if (status == STATUS_OK)
        status = use_client_authorities(made, settings, error);
    if (status != STATUS_OK) {
        http_tls_unref(made);
        return status;
    }
    http_tickets_use(made->tickets, made->context);
    *tls = made;
    return STATUS_OK;
}

struct http_tls *http_tls_ref(struct http_tls *tls)
{
    atomic_fetch_add_explicit(&tls->refs, 1, memory_order_relaxed);
    return tls;
}

void http_tls_unref(struct http_tls *tls)
{
    if (!tls || atomic_fetch_sub(&tls->refs, 1) > 1)
        return;
    SSL_CTX_free(tls->context);
    http_tickets_destroy(tls->tickets);
    free(tls->subject);
    free(tls);
}

SSL *http_tls_new(struct http_tls *tls)
{
    return SSL_new(tls->context);
}

struct http_tls_certificate http_tls_certificate(const struct http_tls *tls)
{
    return (struct http_tls_certificate){
        .subject = str_from(tls->subject),
        .not_before_s = tls->not_before_s,
        .not_after_s = tls->not_after_s,
        .asks_client = tls->asks_client,
    };
}
