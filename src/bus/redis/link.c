/* A connection: opening, TLS, AUTH, reading and writing. */
#include "bus/redis/inside.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/secret.h"

enum {
    READ_BYTES = 65536,
    READS_PER_EVENT = 16, /* so that one connection does not hold up the loop */
};

/* ---- what all links share ---- */

static enum status tls_config_error(struct error *error, const char *what, const char *file)
{
    char reason[160] = "";

    ERR_error_string_n(ERR_get_error(), reason, sizeof reason);
    return error_set(error, STATUS_CONFIG, "%s %s: %s", what, file, reason);
}

enum status redis_access_init(struct redis_access *access, const struct bus_security *security,
                              size_t reply_bytes_max, struct error *error)
{
    const char *ca_file = security->ca_file, *certificate_file = security->certificate_file;
    const char *key_file = security->key_file ? security->key_file : certificate_file;

    *access = (struct redis_access){.reply_bytes_max = reply_bytes_max};
    access->username = security->username ? str_dup(str_from(security->username)) : NULL;
    access->password = security->password ? str_dup(str_from(security->password)) : NULL;
    access->password_file = security->password_file ? str_dup(str_from(security->password_file)) : NULL;
    if (!security->tls)
        return STATUS_OK;
    SSL_CTX *tls = access->tls = SSL_CTX_new(TLS_client_method());
    if (!tls)
        return tls_config_error(error, "TLS", "cannot be initialised");
    SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if ((ca_file ? SSL_CTX_load_verify_locations(tls, ca_file, NULL)
                 : SSL_CTX_set_default_verify_paths(tls)) != 1)
        return tls_config_error(error, "the authorities in", ca_file ? ca_file : "the system");
    if (certificate_file && SSL_CTX_use_certificate_chain_file(tls, certificate_file) != 1)
        return tls_config_error(error, "the certificate in", certificate_file);
    if (certificate_file && SSL_CTX_use_PrivateKey_file(tls, key_file, SSL_FILETYPE_PEM) != 1)
        return tls_config_error(error, "the key in", key_file);
    return STATUS_OK;
}

void redis_access_deinit(struct redis_access *access)
{
    SSL_CTX_free(access->tls);
    free(access->username);
    if (access->password)
        explicit_bzero(access->password, strlen(access->password));
    free(access->password);
    free(access->password_file);
    *access = (struct redis_access){0};
}

/* ---- closing ---- */

void redis_link_close(struct redis_link *link)
{
    if (link->state == REDIS_LINK_CLOSED)
        return;
    link->state = REDIS_LINK_CLOSED;
    loop_tick_cancel(link->loop, &link->tick);
    loop_io_stop(link->loop, &link->io);
    SSL_free(link->ssl);
    link->ssl = NULL;
    close(link->io.fd);
    link->io.fd = -1;
    buf_deinit(&link->out);
    redis_parser_deinit(&link->parser);
}

static void link_fail(struct redis_link *link, const struct error *error)
{
    redis_link_close(link);
    link->on_closed(link, error);
}

static void link_fail_errno(struct redis_link *link, const char *what, int code)
{
    struct error error;

    error_set(&error, STATUS_DB_DOWN, "%s: %s", what, strerror(code));
    link_fail(link, &error);
}

static void link_fail_tls(struct redis_link *link, const char *what)
{
    long verdict = SSL_get_verify_result(link->ssl);
    char reason[160] = "the server closed the connection";
    unsigned long code = ERR_get_error();
    struct error error;

    if (code)
        ERR_error_string_n(code, reason, sizeof reason);
    error_set(&error, STATUS_DB_DOWN, "%s: %s", what,
              verdict != X509_V_OK ? X509_verify_cert_error_string(verdict) : reason);
    link_fail(link, &error);
}

static void link_watch(struct redis_link *link)
{
    bool writes = buf_len(&link->out) > 0 || (link->ssl && SSL_want_write(link->ssl));

    loop_io_change(link->loop, &link->io, LOOP_READ | (writes ? (unsigned)LOOP_WRITE : 0u));
}

/* The result of a read or write: n bytes; 0: the socket is not ready; -1: it failed, and the link is closed. */
static ssize_t link_result(struct redis_link *link, ssize_t n, const char *what)
{
    if (n > 0)
        return n;
    if (link->ssl) {
        int why = SSL_get_error(link->ssl, (int)n);
        if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
            return 0;
        link_fail_tls(link, what);
        return -1;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    link_fail_errno(link, what, n == 0 ? ECONNRESET : errno);
    return -1;
}

/* ---- writing ---- */

static void link_flush(struct redis_link *link)
{
    ssize_t n = 1;

    while (n > 0 && buf_len(&link->out) > 0) {
        struct str bytes = buf_str(&link->out);
        ERR_clear_error();
        n = link->ssl ? SSL_write(link->ssl, bytes.ptr, bytes.len > INT32_MAX ? INT32_MAX : (int)bytes.len)
                      : send(link->io.fd, bytes.ptr, bytes.len, MSG_NOSIGNAL);
        n = link_result(link, n, "writing");
        if (n > 0)
            buf_consume(&link->out, (size_t)n);
    }
    if (n >= 0)
        link_watch(link);
}

static void on_tick_end(struct loop_tick *tick)
{
    struct redis_link *link = CONTAINER_OF(tick, struct redis_link, tick);

    if (redis_link_is_open(link))
        link_flush(link);
}

void redis_link_send(struct redis_link *link, struct str commands)
{
    buf_put_str(&link->out, commands);
    if (redis_link_is_open(link))
        loop_at_tick_end(link->loop, &link->tick, on_tick_end);
}

/* ---- reading ---- */

static void link_take_replies(struct redis_link *link)
{
    const struct redis_reply *reply;
    struct error error;

    while (redis_link_is_open(link)) {
        bool is_auth = link->state == REDIS_LINK_AUTHENTICATING;
        struct arena *arena = is_auth || !link->arena ? &link->auth_arena : link->arena;
        if (redis_parser_next(&link->parser, arena, &reply, &error) != STATUS_OK) {
            link_fail(link, &error);
            return;
        }
        if (!reply)
            return;
        if (is_auth && reply->kind == REDIS_ERROR) {
            error_set(&error, STATUS_DB_DOWN, "AUTH is refused: %.*s",
                      STR_ARG(str_utf8_cut(reply->text, 160)));
            link_fail(link, &error);
        } else if (is_auth) {
            link->state = REDIS_LINK_OPEN;
            arena_reset(&link->auth_arena);
        } else if (!link->arena) {
            error_set(&error, STATUS_IO, "an unexpected reply");
            link_fail(link, &error);
        } else {
            link->on_reply(link, reply);
        }
    }
}

/* Bytes that TLS has already decrypted do not make the descriptor readable, so they are always read to the end. */
static void link_read(struct redis_link *link)
{
    static _Thread_local char bytes[READ_BYTES];

    for (int i = 0; redis_link_is_open(link); i++) {
        if (i >= READS_PER_EVENT && !(link->ssl && SSL_pending(link->ssl)))
            return;
        ERR_clear_error();
        ssize_t n =
            link->ssl ? SSL_read(link->ssl, bytes, READ_BYTES) : recv(link->io.fd, bytes, READ_BYTES, 0);
        n = link_result(link, n, "reading");
        if (n <= 0)
            return;
        redis_parser_feed(&link->parser, str_of(bytes, (size_t)n));
        link_take_replies(link);
    }
}

/* ---- opening ---- */

static void put_auth(const struct redis_access *access, const char *password, struct buf *out)
{
    struct str auth[] = {STR("AUTH"), str_from(access->username), str_from(password)};

    if (!access->username)
        auth[1] = auth[2];
    redis_command_put(out, auth, access->username ? 3 : 2);
}

static void link_established(struct redis_link *link)
{
    const struct redis_access *access = link->access;
    struct buf first = {0};
    struct secret password;
    struct error error = {0};

    if (access->password_file) {
        if (secret_read(&password, access->password_file, &error) != STATUS_OK) {
            link_fail(link, &error);
            return;
        }
        put_auth(access, password.text, &first);
        secret_wipe(&password);
    } else if (access->password) {
        put_auth(access, access->password, &first);
    }
    link->state = buf_len(&first) ? REDIS_LINK_AUTHENTICATING : REDIS_LINK_OPEN;
    link->was_open = true;
    buf_put_str(&first, buf_str(&link->out)); /* commands that were buffered meanwhile */
    buf_deinit(&link->out);
    link->out = first;
    link_flush(link);
    if (redis_link_is_open(link) && link->on_open)
        link->on_open(link);
}

static void on_event(struct loop_io *io, unsigned events)
{
    struct redis_link *link = (struct redis_link *)io;
    int code = 0;
    socklen_t len = sizeof code;

    if (link->state == REDIS_LINK_CONNECTING) {
        if (!(events & (LOOP_WRITE | LOOP_HANGUP)))
            return;
        getsockopt(link->io.fd, SOL_SOCKET, SO_ERROR, &code, &len);
        if (code)
            link_fail_errno(link, "connecting", code);
        else if (link->ssl)
            link->state = REDIS_LINK_HANDSHAKE;
        else
            link_established(link);
    }
    if (link->state == REDIS_LINK_HANDSHAKE) {
        ERR_clear_error();
        int done = SSL_connect(link->ssl);
        int why = SSL_get_error(link->ssl, done);
        if (done == 1)
            link_established(link);
        else if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
            loop_io_change(link->loop, &link->io,
                           why == SSL_ERROR_WANT_WRITE ? (unsigned)LOOP_WRITE : (unsigned)LOOP_READ);
        else
            link_fail_tls(link, "TLS");
    } else if (redis_link_is_open(link)) {
        if (events & LOOP_WRITE)
            link_flush(link);
        if (redis_link_is_open(link) && (events & (LOOP_READ | LOOP_HANGUP)))
            link_read(link);
        if (redis_link_is_open(link))
            link_watch(link);
    }
}

/* Returns the socket, or -1. A name's addresses take turns. */
static int connect_to(struct redis_link *link, const struct redis_address *to, struct error *error)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found, *at;
    unsigned count = 0;
    char port[8];
    int yes = 1;

    snprintf(port, sizeof port, "%u", (unsigned)to->port);
    int code = getaddrinfo(to->host, port, &hints, &found);
    if (code != 0) {
        error_set(error, STATUS_DB_DOWN, "%s: %s", to->host, gai_strerror(code));
        return -1;
    }
    for (at = found; at; at = at->ai_next)
        count++;
    at = found;
    for (unsigned skip = link->address_turn++ % count; skip > 0; skip--)
        at = at->ai_next;
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    }
    if (fd < 0 || (connect(fd, at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS)) {
        error_set(error, STATUS_DB_DOWN, "connecting: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

enum status redis_link_open(struct redis_link *link, const struct redis_address *address, struct error *error)
{
    int fd = connect_to(link, address, error);

    if (fd < 0)
        return STATUS_DB_DOWN;
    enum status status = loop_io_start(link->loop, &link->io, fd, LOOP_WRITE, on_event, error);
    if (status != STATUS_OK) {
        close(fd);
        return status;
    }
    redis_parser_init(&link->parser, link->access->reply_bytes_max);
    link->state = REDIS_LINK_CONNECTING;
    link->was_open = false;
    if (!link->access->tls)
        return STATUS_OK;
    /* the server's certificate must be for the configured name or address */
    const char *host = address->host;
    unsigned char bytes[16];
    bool is_numeric = inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
    link->ssl = SSL_new(link->access->tls);
    if (!link->ssl || SSL_set_fd(link->ssl, fd) != 1)
        status = error_set(error, STATUS_DB_DOWN, "a TLS connection cannot be initialised");
    else if (is_numeric ? !X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(link->ssl), host)
                        : !SSL_set1_host(link->ssl, host) || !SSL_set_tlsext_host_name(link->ssl, host))
        status = error_set(error, STATUS_DB_DOWN, "the host name %s cannot be checked against a certificate",
                           host);
    if (status != STATUS_OK)
        redis_link_close(link);
    return status;
}

void redis_link_init(struct redis_link *link, struct loop *loop, const struct redis_access *access)
{
    *link = (struct redis_link){.io.fd = -1, .loop = loop, .access = access, .auth_arena = ARENA(1024)};
}

void redis_link_deinit(struct redis_link *link)
{
    redis_link_close(link);
    buf_deinit(&link->out);
    arena_deinit(&link->auth_arena);
}
