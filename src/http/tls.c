/* One connection's TLS: its socket below OpenSSL, its handshake, its records, its memory.
 *
 * OpenSSL reads ahead, so that a request in one record costs one recv() and its answer one send(), as without TLS. What it has read
 * and not handed out does not make the socket readable: has_more says that the connection has more to read. The buffers of records
 * are freed while they are empty. */
#include "http/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/budget.h"
#include "base/log.h"
#include "base/memory.h"

enum {
    RECORDS_PER_READ = 32,        /* a client may send records of one byte */
    WRITE_BYTES_MAX = 256 * 1024, /* encrypted at once, before others have their turn */
    CLIENT_BYTES_MAX = 8 * 1024,  /* of a client's names, past which it has none */
};

/* ---- the socket, as OpenSSL sees it ---- */

static int socket_read(BIO *bio, char *bytes, int len)
{
    struct http_tls_link *link = BIO_get_data(bio);
    ssize_t got = recv(link->connection->io.fd, bytes, (size_t)len, 0);

    BIO_clear_retry_flags(bio);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        link->is_blocked = true;
        BIO_set_retry_read(bio);
    }
    link->saw_end |= got == 0;
    if (got > 0 && link->state == HTTP_TLS_OPENING &&
        !http_hello_take(&link->hello, str_of(bytes, (size_t)got), SSL_version(link->ssl) == TLS1_3_VERSION))
        return -1;
    return (int)got;
}

static int socket_write(BIO *bio, const char *bytes, int len)
{
    struct http_tls_link *link = BIO_get_data(bio);
    ssize_t sent = send(link->connection->io.fd, bytes, (size_t)len, MSG_NOSIGNAL);

    BIO_clear_retry_flags(bio);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
        link->is_blocked = true;
        BIO_set_retry_write(bio);
    }
    if (sent > 0)
        link->connection->sent_bytes += (uint64_t)sent;
    return (int)sent;
}

static long socket_control(BIO *bio, int command, long number, void *pointer)
{
    const struct http_tls_link *link = BIO_get_data(bio);

    (void)number, (void)pointer;
    if (command == BIO_CTRL_EOF)
        return link->saw_end;
    return command == BIO_CTRL_FLUSH; /* nothing is kept here */
}

static BIO_METHOD *socket_method;

static void make_socket_method(void)
{
    socket_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "freshet");
    if (!socket_method || !BIO_meth_set_read(socket_method, socket_read) ||
        !BIO_meth_set_write(socket_method, socket_write) || !BIO_meth_set_ctrl(socket_method, socket_control))
        abort(); /* as every allocation of ours */
}

static BIO *open_socket_bio(struct http_tls_link *link)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_socket_method);
    BIO *bio = BIO_new(socket_method);
    if (bio) {
        BIO_set_data(bio, link);
        BIO_set_init(bio, 1);
    }
    return bio;
}

/* ---- life ---- */

static void free_link(struct http_tls_link *link)
{
    SSL_free(link->ssl);
    http_tls_unref(link->tls);
    free(link);
}

bool http_tls_open(struct http_connection *connection)
{
    struct http_tls_link *link = memory_zalloc(sizeof *link);

    *link = (struct http_tls_link){
        .connection = connection,
        .tls = http_tls_ref(connection->home->tls),
        .is_fresh = true,
    };
    link->ssl = http_tls_new(link->tls);
    BIO *bio = link->ssl ? open_socket_bio(link) : NULL;
    if (!bio || !http_budget_charge_handshake(connection, HTTP_TLS_HANDSHAKE_BYTES)) {
        BIO_free(bio);
        free_link(link);
        return false;
    }
    link->charged = HTTP_TLS_HANDSHAKE_BYTES;
    SSL_set_bio(link->ssl, bio, bio);
    SSL_set_accept_state(link->ssl);
    connection->tls = link;
    return true;
}

void http_tls_close(struct http_connection *connection, bool is_cut)
{
    struct http_tls_link *link = connection->tls;

    if (!link)
        return;
    connection->tls = NULL;
    if (link->state == HTTP_TLS_OPENING) {
        http_budget_end_handshake(connection, link->charged, 0);
        metric_add(connection->home->server->handshakes[HTTP_HANDSHAKE_FAILED], 1);
    } else {
        budget_release(BUDGET_REQUESTS, link->charged);
        if (!is_cut)
            (void)http_tls_end(link);
    }
    ERR_clear_error();
    free_link(link);
}

/* ---- the client's certificate ---- */

/* A URI is written between quotes as it is; one with bytes that no URI has would change the text, and names no client. */
static bool put_uri(struct buf *out, const ASN1_IA5STRING *uri)
{
    struct str text = str_of((const char *)ASN1_STRING_get0_data(uri), (size_t)ASN1_STRING_length(uri));

    for (size_t i = 0; i < text.len; i++)
        if (text.ptr[i] <= ' ' || text.ptr[i] > '~' || text.ptr[i] == '"' || text.ptr[i] == '\\')
            return false;
    buf_put_str(out, STR(";URI=\""));
    buf_put_str(out, text);
    buf_put_char(out, '"');
    return true;
}

static bool put_uris(struct buf *out, const X509 *certificate)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    bool is_good = true;

    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type == GEN_URI)
            is_good = is_good && put_uri(out, name->d.uniformResourceIdentifier);
    }
    GENERAL_NAMES_free(names);
    return is_good;
}

/* RFC 2253, which escapes every quote and backslash, in UTF-8. */
static bool put_subject(struct buf *out, const X509 *certificate)
{
    BIO *text = BIO_new(BIO_s_mem());
    char *bytes = NULL;
    bool is_good = text && X509_NAME_print_ex(text, X509_get_subject_name(certificate), 0,
                                              XN_FLAG_RFC2253 & ~ASN1_STRFLGS_ESC_MSB) >= 0;

    if (is_good) {
        long len = BIO_get_mem_data(text, &bytes);
        buf_put_str(out, STR("Subject=\""));
        buf_put_str(out, str_of(bytes, (size_t)len));
        buf_put_char(out, '"');
    }
    BIO_free(text);
    return is_good;
}

/* Its names, as a sidecar would write them. False: it has expired since the session began that is resumed now. */
static bool take_client(struct http_tls_link *link)
{
    const X509 *certificate = SSL_get0_peer_certificate(link->ssl);
    struct buf text = {0};

    if (!certificate)
        return true;
    if (X509_cmp_current_time(X509_get0_notAfter(certificate)) <= 0)
        return false;
    if (put_subject(&text, certificate) && put_uris(&text, certificate) && buf_len(&text) <= CLIENT_BYTES_MAX)
        link->connection->client_cert = str_dup(buf_str(&text));
    buf_deinit(&text);
    return true;
}

/* ---- the handshake ---- */

static void open_link(struct http_connection *connection)
{
    struct http_tls_link *link = connection->tls;
    bool is_resumed = SSL_session_reused(link->ssl);

    if (!take_client(link)) {
        http_tls_close(connection, true);
        http_connection_finish(connection, true);
        http_connection_resume(connection);
        return;
    }
    link->state = HTTP_TLS_OPEN;
    http_budget_end_handshake(connection, link->charged, HTTP_TLS_LINK_BYTES);
    link->charged = HTTP_TLS_LINK_BYTES;
    link->has_more = link->is_partial = SSL_has_pending(link->ssl);
    metric_add(
        connection->home->server->handshakes[is_resumed ? HTTP_HANDSHAKE_RESUMED : HTTP_HANDSHAKE_FULL], 1);
    connection->progress_ns = loop_now_ns(connection->home->loop);
    http_connection_move(connection, HTTP_STATE_HEAD);
    if (link->refusal != STATUS_OK)
        http_connection_fail(connection, link->refusal);
    else
        http_connection_resume(connection);
}

/* OpenSSL has sent an alert, where there is one. What the client still sends is read for a while: a reset would destroy the
 * alert. */
static void fail_link(struct http_connection *connection, int why)
{
    unsigned long code = ERR_peek_last_error();
    bool is_plain = why == SSL_ERROR_SSL && ERR_GET_REASON(code) == SSL_R_HTTP_REQUEST;
    const char *reason =
        why == SSL_ERROR_SSL ? ERR_reason_error_string(code) : "closed by the client, or not a hello";

    log_debug("tls_handshake_failed", LOG_CSTR("error", reason ? reason : "unknown"));
    http_tls_close(connection, true);
    if (is_plain) {
        struct error error;
        (void)error_set(&error, STATUS_BAD_REQUEST,
                        "a plain HTTP request was sent to a port that speaks TLS: use https");
        http_connection_refuse(connection, &error);
    } else {
        http_connection_finish(connection, true);
        http_connection_resume(connection);
    }
}

void http_tls_shake(struct http_connection *connection)
{
    struct http_tls_link *link = connection->tls;

    ERR_clear_error();
    int done = SSL_do_handshake(link->ssl);
    int why = SSL_get_error(link->ssl, done);
    bool reads = why == SSL_ERROR_WANT_READ;
    link->is_partial = true; /* the client has begun */
    if (done == 1)
        open_link(connection);
    else if (reads || why == SSL_ERROR_WANT_WRITE)
        loop_io_change(connection->home->loop, &connection->io, reads ? LOOP_READ : LOOP_WRITE);
    else
        fail_link(connection, why);
}

/* ---- records ---- */

/* By what OpenSSL holds now. False: there is no memory. */
static bool recharge(struct http_tls_link *link)
{
    size_t records = (size_t)link->is_partial + (size_t)link->is_writing;
    size_t bytes = HTTP_TLS_LINK_BYTES + records * HTTP_TLS_RECORD_BYTES;

    if (bytes > link->charged && !budget_charge(BUDGET_REQUESTS, bytes - link->charged))
        return false;
    if (bytes < link->charged)
        budget_release(BUDGET_REQUESTS, link->charged - bytes);
    link->charged = bytes;
    return true;
}

/* A record whose header alone has been received has a buffer, too. */
static bool holds_record(const SSL *ssl)
{
    return SSL_has_pending(ssl) || strcmp(SSL_rstate_string(ssl), "RB") == 0;
}

static bool is_retry(int why)
{
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE;
}

ssize_t http_tls_read(struct http_tls_link *link, char *bytes, size_t room)
{
    size_t total = 0;
    int why = SSL_ERROR_NONE;

    ERR_clear_error();
    link->is_blocked = false;
    for (unsigned i = 0; i < RECORDS_PER_READ && total < room; i++) {
        size_t got = 0;
        int done = SSL_read_ex(link->ssl, bytes + total, room - total, &got);
        total += got;
        if (done != 1)
            why = SSL_get_error(link->ssl, done);
        if (done != 1 || !SSL_has_pending(link->ssl))
            break;
    }
    bool has_ended = why != SSL_ERROR_NONE && !is_retry(why);
    link->is_fresh = link->is_fresh && total == 0 && !has_ended;
    if (has_ended && why != SSL_ERROR_ZERO_RETURN)
        link->state = HTTP_TLS_ENDED; /* an alert was sent, or nobody would read one */
    link->is_partial = !has_ended && holds_record(link->ssl);
    link->has_more = (has_ended && total > 0) || (link->is_partial && !link->is_blocked);
    if (link->is_partial + link->is_writing > 0 || link->charged > HTTP_TLS_LINK_BYTES)
        if (!recharge(link)) {
            errno = ENOBUFS;
            return -1;
        }
    if (total > 0)
        return (ssize_t)total;
    errno = is_retry(why) || why == SSL_ERROR_NONE ? EAGAIN : ECONNRESET;
    return why == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

ssize_t http_tls_write(struct http_tls_link *link, const char *bytes, size_t len)
{
    size_t total = 0, most = len < WRITE_BYTES_MAX ? len : WRITE_BYTES_MAX;
    int why = SSL_ERROR_NONE;

    ERR_clear_error();
    while (total < most && why == SSL_ERROR_NONE) {
        size_t sent = 0;
        int done = SSL_write_ex(link->ssl, bytes + total, len - total, &sent);
        total += sent;
        if (done != 1)
            why = SSL_get_error(link->ssl, done);
    }
    bool was_writing = link->is_writing;
    link->is_writing = is_retry(why);
    if (link->is_writing != was_writing && !recharge(link)) { /* it holds the record already */
        budget_add(BUDGET_REQUESTS, HTTP_TLS_RECORD_BYTES);
        link->charged += HTTP_TLS_RECORD_BYTES;
    }
    if (total > 0)
        return (ssize_t)total;
    errno = is_retry(why) ? EAGAIN : EPIPE;
    return -1;
}

bool http_tls_end(struct http_tls_link *link)
{
    if (link->state != HTTP_TLS_OPEN)
        return true;
    ERR_clear_error();
    int done = SSL_shutdown(link->ssl);
    if (done < 0 && is_retry(SSL_get_error(link->ssl, done)))
        return false;
    link->state = HTTP_TLS_ENDED;
    return true;
}

/* ---- a reload ---- */

struct tls_change {
    struct http_server *server;
    struct http_tls *tls;
    atomic_uint left; /* loops that have not taken it */
};

static void change_on_loop(struct loop *loop, void *arg)
{
    struct tls_change *change = arg;
    struct http_server *server = change->server;
    struct http_home *home = &server->homes[loop_index(loop)];

    if (!server->is_destroyed && home->tls) {
        http_tls_unref(home->tls);
        home->tls = http_tls_ref(change->tls);
    }
    if (atomic_fetch_sub(&change->left, 1) > 1)
        return;
    http_tls_unref(change->tls);
    http_server_unref(server);
    free(change);
}

void http_server_use_tls(struct http_server *server, struct http_tls *tls)
{
    struct tls_change *change = memory_zalloc(sizeof *change);

    *change = (struct tls_change){.server = server, .tls = http_tls_ref(tls)};
    atomic_init(&change->left, server->home_count);
    atomic_fetch_add(&server->refs, 1);
    loop_group_broadcast(server->config.group, change_on_loop, change);
}
