/*
 * TLS for the load generator: a connection that shakes hands, writes and reads as a socket does. It verifies nothing: what is measured
 * is the server's work. One context per worker, whose last session may be resumed.
 */
#ifndef BENCH_LOAD_TLS_H
#define BENCH_LOAD_TLS_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <sys/types.h>

struct bench_tls {
    SSL_CTX *context; /* NULL = plain */
    SSL_SESSION *last;
};

bool bench_tls_init(struct bench_tls *tls);
void bench_tls_deinit(struct bench_tls *tls);
/* Shakes hands on a blocking socket; resumes the last session if there is one and `resumes`. NULL: it failed. */
SSL *bench_tls_open(struct bench_tls *tls, int fd, bool resumes);
void bench_tls_close(SSL *ssl); /* sends close_notify; NULL is fine */
/* As send() and recv(), EAGAIN included. Reads all that was received. */
ssize_t bench_tls_send(SSL *ssl, const char *bytes, size_t len);
ssize_t bench_tls_receive(SSL *ssl, char *bytes, size_t room);

#endif
