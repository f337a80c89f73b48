/* Listeners: one SO_REUSEPORT socket per loop and address, accepting in bounded batches.
 *
 * Over the connection limit a client is accepted, answered 503 and closed; a bounded number of them may take their
 * time to read it, more are closed at once. Without free descriptors accepting pauses for PAUSE_MS. */
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "http/http_inside.h"

#define BACKLOG 4096
#define ACCEPTS_PER_TURN 64
#define PAUSE_MS 100

struct http_listener {
    struct loop_io io; /* first */
    struct http_home *home;
    SLIST_ENTRY(http_listener) entry;
    struct loop_timer timer; /* ends a pause */
    bool is_open, is_watched, is_paused;
};

/* ---- accepting ---- */

static void on_pause_over(struct loop_timer *timer)
{
    struct http_listener *listener = CONTAINER_OF(timer, struct http_listener, timer);

    loop_io_change(listener->home->loop, &listener->io, LOOP_READ);
}

static void pause_accepting(struct http_listener *listener, int why)
{
    struct loop *loop = listener->home->loop;

    if (!listener->is_paused)
        log_warn("accept_paused", LOG_CSTR("error", strerror(why)));
    listener->is_paused = true;
    loop_io_change(loop, &listener->io, 0);
    loop_timer_start(loop, &listener->timer, loop_now_ns(loop) + PAUSE_MS * CLOCK_NS_PER_MS, on_pause_over);
}

static void open_connection(struct http_home *home, int fd, const struct sockaddr_storage *peer)
{
    struct http_server *server = home->server;
    unsigned max = server->config.limits.connections_max;
    unsigned before = atomic_fetch_add_explicit(&server->connection_count, 1, memory_order_relaxed);

    if (before >= max + server->config.limits.connections_extra) {
        atomic_fetch_sub_explicit(&server->connection_count, 1, memory_order_relaxed);
        close(fd);
        return;
    }
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    http_connection_open(home, fd, peer, before >= max);
}

static void accept_waiting(struct http_listener *listener, int max)
{
    for (int i = 0; i < max; i++) {
        struct sockaddr_storage peer = {0};
        socklen_t peer_len = sizeof peer;
        int fd = accept4(listener->io.fd, (struct sockaddr *)&peer, &peer_len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            listener->is_paused = false;
            open_connection(listener->home, fd, &peer);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            pause_accepting(listener, errno);
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

static void on_listener_event(struct loop_io *io, unsigned events)
{
    (void)events;
    accept_waiting((struct http_listener *)io, ACCEPTS_PER_TURN);
}

static void start_on_loop(struct loop *loop, void *arg)
{
    struct http_server *server = arg;
    struct http_home *home = server->homes[loop_index(loop)];
    struct error error;

    struct http_listener *listener;
    SLIST_FOREACH(listener, &home->listeners, entry) {
        if (listener->is_watched || !listener->is_open || server->is_destroyed)
            continue;
        listener->is_watched = true;
        if (loop_io_start(loop, &listener->io, listener->io.fd, LOOP_READ, on_listener_event, &error) !=
            STATUS_OK)
            log_error("listen_failed", LOG_ERROR_FIELDS(&error));
    }
    http_server_unref(server);
}

void http_listener_close_all(struct http_home *home)
{
    struct http_listener *listener;

    SLIST_FOREACH(listener, &home->listeners, entry) {
        if (!listener->is_open)
            continue;
        listener->is_open = false;
        if (listener->is_watched) {
            accept_waiting(listener, BACKLOG); /* their requests may be there: a close would reset them */
            loop_io_stop(home->loop, &listener->io);
            loop_timer_stop(home->loop, &listener->timer);
        }
        close(listener->io.fd);
    }
}

void http_listener_free_all(struct http_home *home)
{
    while (!SLIST_EMPTY(&home->listeners)) {
        struct http_listener *listener = SLIST_FIRST(&home->listeners);
        SLIST_REMOVE_HEAD(&home->listeners, entry);
        free(listener);
    }
}

/* ---- listening ---- */

/* "host:port" or "[v6]:port" into its two parts, NUL-terminated. */
static bool split_address(struct str address, char host[256], char port[8])
{
    const char *colon = address.len > 0 ? memrchr(address.ptr, ':', address.len) : NULL;
    if (!colon)
        return false;
    struct str name = str_of(address.ptr, (size_t)(colon - address.ptr));
    struct str number = str_of(colon + 1, address.len - name.len - 1);
    uint64_t value;
    if (name.len > 2 && name.ptr[0] == '[' && name.ptr[name.len - 1] == ']')
        name = str_of(name.ptr + 1, name.len - 2);
    if (name.len == 0 || name.len > 255 || number.len > 5 || !str_to_u64(number, &value) || value > 65535)
        return false;
    snprintf(host, 256, "%.*s", STR_ARG(name));
    snprintf(port, 8, "%.*s", STR_ARG(number));
    return true;
}

static int open_socket(const struct sockaddr *address, socklen_t len)
{
    int on = 1, fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->sa_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0 && bind(fd, address, len) == 0 &&
        listen(fd, BACKLOG) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* With SO_REUSEPORT a second process could listen on the same address and take half of the clients. So a socket without it
 * tries first. */
static bool is_taken(const struct sockaddr *address, socklen_t len)
{
    int on = 1, fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return false;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->sa_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    bool taken = bind(fd, address, len) != 0 && errno == EADDRINUSE;
    close(fd);
    return taken;
}

/* A socket per loop; the first one decides which port "any" is. */
static enum status open_all(struct http_server *server, struct sockaddr_storage *address, socklen_t len,
                            int *fds)
{
    for (unsigned i = 0; i < server->home_count; i++) {
        fds[i] = open_socket((struct sockaddr *)address, len);
        if (fds[i] < 0 || (i == 0 && getsockname(fds[0], (struct sockaddr *)address, &len) != 0)) {
            int why = errno;
            for (unsigned opened = 0; opened <= i; opened++)
                if (fds[opened] >= 0)
                    close(fds[opened]);
            errno = why;
            return STATUS_IO;
        }
    }
    return STATUS_OK;
}

enum status http_address_check(struct str address, struct error *error)
{
    char host[256], port[8];

    if (split_address(address, host, port))
        return STATUS_OK;
    return error_set(error, STATUS_CONFIG, "\"%.*s\" is not HOST:PORT or [IPV6]:PORT", STR_ARG(address));
}

enum status http_server_listen(struct http_server *server, struct str address, struct error *error)
{
    char host[256], port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
    struct sockaddr_storage bound = {0};

    if (!split_address(address, host, port))
        return error_set(error, STATUS_CONFIG, "\"%.*s\" is not HOST:PORT or [IPV6]:PORT", STR_ARG(address));
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed != 0)
        return error_set(error, STATUS_CONFIG, "%.*s: %s", STR_ARG(address), gai_strerror(failed));
    memcpy(&bound, found->ai_addr, found->ai_addrlen);
    socklen_t len = found->ai_addrlen;
    freeaddrinfo(found);

    if (is_taken((struct sockaddr *)&bound, len))
        return error_set(error, STATUS_IO, "cannot listen on %.*s: %s", STR_ARG(address),
                         strerror(EADDRINUSE));
    int *fds = memory_zalloc(server->home_count * sizeof *fds);
    if (open_all(server, &bound, len, fds) != STATUS_OK) {
        free(fds);
        return error_set(error, STATUS_IO, "cannot listen on %.*s: %s", STR_ARG(address), strerror(errno));
    }
    for (unsigned i = 0; i < server->home_count; i++) {
        struct http_listener *listener = memory_zalloc(sizeof *listener);
        listener->home = server->homes[i];
        listener->io.fd = fds[i];
        listener->is_open = true;
        SLIST_INSERT_HEAD(&server->homes[i]->listeners, listener, entry);
    }
    free(fds);
    if (server->port == 0)
        server->port = ntohs(bound.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)&bound)->sin6_port
                                                         : ((const struct sockaddr_in *)&bound)->sin_port);
    http_server_broadcast(server, start_on_loop);
    return STATUS_OK;
}
