/* TLS for the load generator. */
#include "load_tls.h"

#include <errno.h>

static int on_session(SSL *ssl, SSL_SESSION *session)
{
    struct bench_tls *tls = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    SSL_SESSION_free(tls->last);
    tls->last = session;
    return 1;
}

bool bench_tls_init(struct bench_tls *tls)
{
    tls->context = SSL_CTX_new(TLS_client_method());
    if (tls->context == NULL) {
        return false;
    }
    SSL_CTX_set_app_data(tls->context, tls);
    SSL_CTX_set_session_cache_mode(tls->context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL_STORE);
    SSL_CTX_sess_set_new_cb(tls->context, on_session);
    SSL_CTX_set_mode(tls->context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return true;
}

void bench_tls_deinit(struct bench_tls *tls)
{
    SSL_SESSION_free(tls->last);
    SSL_CTX_free(tls->context);
}

SSL *bench_tls_open(struct bench_tls *tls, int fd, bool resumes)
{
    SSL *ssl = SSL_new(tls->context);
    if (ssl == NULL) {
        return NULL;
    }
    SSL_set_fd(ssl, fd);
    if (resumes && tls->last != NULL) {
        SSL_set_session(ssl, tls->last);
    }
    if (SSL_connect(ssl) == 1) {
        return ssl;
    }
    SSL_free(ssl);
    return NULL;
}

void bench_tls_close(SSL *ssl)
{
    if (ssl != NULL) {
        SSL_shutdown(ssl);
        SSL_free(ssl);
    }
}

/* What a socket would return. */
static ssize_t result_of(SSL *ssl, int result)
{
    if (result > 0) {
        return result;
    }
    int why = SSL_get_error(ssl, result);
    errno = why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? EAGAIN : ECONNRESET;
    return why == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

ssize_t bench_tls_send(SSL *ssl, const char *bytes, size_t len)
{
    return result_of(ssl, SSL_write(ssl, bytes, (int)len));
}

ssize_t bench_tls_receive(SSL *ssl, char *bytes, size_t room)
{
    ssize_t total = 0;
    do {
        ssize_t got = result_of(ssl, SSL_read(ssl, bytes + total, (int)(room - (size_t)total)));
        if (got <= 0) {
            return total > 0 ? total : got;
        }
        total += got;
    } while (SSL_pending(ssl) > 0 && (size_t)total < room);
    return total;
}
