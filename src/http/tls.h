/* TLS of connections, by OpenSSL, for the files of this folder only: what connection.c calls instead of recv() and send().
 *
 *     http_tls (certificate, key, authorities; read once, shared by all loops, replaced whole)
 *        └─ link, one per connection: OPENING ─▶ OPEN ─▶ ENDED
 *
 * A link reads and writes as a socket does: bytes, 0 for the client's end, or -1 with errno. Parser and dispatch do not know it.
 * A handshake is made of steps, each when the socket is ready and the connection has its turn (turns.c). On the connection's loop. */
#ifndef FRESHET_HTTP_TLS_H
#define FRESHET_HTTP_TLS_H

#include <openssl/ssl.h>

#include "http/http_inside.h"

enum {
    /* Of one link, as OpenSSL allocates it; tests/unit/http/test_tls_limits.c compares them with what it takes. */
    HTTP_TLS_HANDSHAKE_BYTES = 80 * 1024,
    HTTP_TLS_LINK_BYTES = 24 * 1024,
    HTTP_TLS_RECORD_BYTES = 17 * 1024, /* a record that has not been read or written whole */
};

enum http_tls_state {
    HTTP_TLS_OPENING, /* the handshake is not complete */
    HTTP_TLS_OPEN,
    HTTP_TLS_ENDED, /* our close_notify has been sent */
};

struct http_hello {                      /* tls_hello.c */
    unsigned char record[5], message[4]; /* the headers of what is received */
    unsigned record_got, message_got;
    size_t record_left, message_left;
    bool is_over; /* what follows is encrypted */
};

struct http_tls_link {
    SSL *ssl;
    struct http_tls *tls;
    struct http_connection *connection;
    enum http_tls_state state;
    struct http_hello hello;
    enum status refusal; /* answered after the handshake; STATUS_OK = none */
    bool is_blocked;     /* the socket had no bytes, or no room, in the last call */
    bool saw_end;        /* the socket's */
    bool has_more;       /* to read, without another event of the socket */
    bool is_partial;     /* part of a record has been received */
    bool is_writing;     /* part of a record has been sent */
    size_t charged;      /* to BUDGET_REQUESTS */
    bool is_fresh;       /* no request was read yet */
};

/* tls.c */
/* A new connection gets a link. False: there is no memory for it. */
bool http_tls_open(struct http_connection *connection) MUST_CHECK;
/* A step of the handshake. After the last one the connection is served, or answered and ended. */
void http_tls_shake(struct http_connection *connection);
/* As recv(): at most 32 records. ENOBUFS: there is no memory for the part of a record that was received. */
ssize_t http_tls_read(struct http_tls_link *link, char *bytes, size_t room);
/* As send(). Bytes that were not taken must be given again. */
ssize_t http_tls_write(struct http_tls_link *link, const char *bytes, size_t len);
/* Sends close_notify. False: when the socket has room. */
bool http_tls_end(struct http_tls_link *link);
/* Frees the link. An open one sends close_notify if the socket takes it, unless `is_cut`. */
void http_tls_close(struct http_connection *connection, bool is_cut);

static inline bool http_tls_is_opening(const struct http_connection *connection)
{
    return connection->tls && connection->tls->state == HTTP_TLS_OPENING;
}

/* Are there bytes of a request that the socket has no longer? */
static inline bool http_tls_has_input(const struct http_connection *connection)
{
    return connection->tls && (connection->tls->has_more || connection->tls->is_partial);
}

/* Has its handshake ended a moment ago? The client sends its request only then: a stop waits for it. */
static inline bool http_tls_awaits_request(const struct http_connection *connection)
{
    return connection->tls && connection->tls->is_fresh;
}

/* tls_context.c */
SSL *http_tls_new(struct http_tls *tls); /* NULL: no memory */
struct http_tls *http_tls_ref(struct http_tls *tls);

/* Follows what the client sends in its handshake. False: it announces a hello that is too long. */
bool http_hello_take(struct http_hello *hello, struct str bytes, bool is_1_3);

/* tls_tickets.c: the keys that session tickets are encrypted with. Any thread. */
struct http_tickets;
struct http_tickets *http_tickets_create(void); /* NULL: no random bytes */
void http_tickets_destroy(struct http_tickets *tickets);
void http_tickets_use(struct http_tickets *tickets, SSL_CTX *context); /* which they outlive */

#endif
