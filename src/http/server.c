/* The server: its homes, one per loop, what they share, and its listeners. How it stops is in drain.c.
 *
 * There is one SO_REUSEPORT socket per loop and address, accepting in bounded batches. Over the connection limit a client is
 * accepted, answered 503 and closed; a bounded number of them may take their time to read it, more are closed at once. Without
 * free descriptors accepting pauses for PAUSE_MS. */
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/budget.h"
#include "base/log.h"
#include "base/memory.h"
#include "http/tls.h"

enum {
    BACKLOG = 4096,
    ACCEPTS_PER_TURN = 16,
    PAUSE_MS = 100,
};

struct http_listener {
    struct loop_io io; /* first */
    struct loop_message message;
    struct http_home *home;
    SLIST_ENTRY(http_listener) entry; /* of its home's list */
    struct loop_timer timer;          /* ends a pause */
    bool is_paused;
};

const struct http_limits http_limits_default = {
    .body_bytes_max = (size_t)8 * 1024 * 1024,
    .target_bytes_max = (size_t)64 * 1024,
    .header_bytes_max = (size_t)32 * 1024,
    .header_count_max = 100,
    .connections_max = 20000,
    .connections_extra = 256,
    .header_timeout_ms = 10000,
    .body_timeout_ms = 15000,
    .idle_timeout_ms = 75000,
    .write_timeout_ms = 30000,
    .body_rate_min = (size_t)16 * 1024,
    .write_rate_min = (size_t)16 * 1024,
    .bodies_bytes_max = (size_t)256 * 1024 * 1024,
    .unsent_bytes_max = (size_t)128 * 1024 * 1024,
    .deadline_ms = 30000,
};

enum status http_server_create(const struct http_server_config *config, struct http_server **server,
                               struct error *error)
{
    const struct http_limits *limits = &config->limits;

    if (!config->group || !config->router)
        return error_set(error, STATUS_CONFIG, "the HTTP server needs loops and a router");
    if (limits->header_count_max == 0 || limits->header_count_max > UINT16_MAX ||
        limits->connections_max == 0 || limits->target_bytes_max + limits->header_bytes_max > INT32_MAX / 2 ||
        limits->header_bytes_max == 0 || limits->target_bytes_max == 0)
        return error_set(error, STATUS_CONFIG, "the limits of the HTTP server are out of bounds");
    struct http_server *made = memory_zalloc(sizeof *made);
    made->config = *config;
    atomic_init(&made->refs, 1);
    if (limits->bodies_bytes_max / 4 < limits->body_bytes_max)
        made->config.limits.bodies_bytes_max = 4 * limits->body_bytes_max;
    http_tally_register(made);
    made->home_count = loop_group_count(config->group);
    made->homes = memory_aligned(HTTP_CACHE_LINE_BYTES, made->home_count * sizeof *made->homes);
    for (unsigned i = 0; i < made->home_count; i++) {
        made->homes[i] = (struct http_home){.server = made, .loop = loop_group_loop(config->group, i)};
        made->homes[i].tls = config->tls ? http_tls_ref(config->tls) : NULL;
        made->homes[i].cors = http_cors_ref(config->cors);
        for (unsigned group = 0; group < HTTP_GROUPS; group++)
            TAILQ_INIT(&made->homes[i].unsent[group].connections);
        http_turns_init(&made->homes[i]);
    }
    budget_set_bound(BUDGET_BODIES, made->config.limits.bodies_bytes_max);
    budget_set_bound(BUDGET_UNSENT, limits->unsent_bytes_max);
    *server = made;
    return STATUS_OK;
}

unsigned http_server_connections(const struct http_server *server)
{
    return atomic_load_explicit(&server->connection_count, memory_order_relaxed);
}

unsigned http_server_port(const struct http_server *server)
{
    return server->port;
}

void http_server_adopt(struct http_server *server, struct loop *loop, int fd)
{
    http_connection_open(&server->homes[loop_index(loop)], fd, NULL);
}

/* ---- accepting ---- */

static void on_pause_over(struct loop_timer *timer)
{
    struct http_listener *listener = CONTAINER_OF(timer, struct http_listener, timer);

    loop_io_change(listener->home->loop, &listener->io, LOOP_READ);
}

static void accept_waiting(struct http_listener *listener, int max)
{
    struct loop *loop = listener->home->loop;

    for (int i = 0; i < max; i++) {
        struct sockaddr_in6 peer = {0}; /* has room for IPv4 */
        socklen_t peer_len = sizeof peer;
        int fd = accept4(listener->io.fd, (struct sockaddr *)&peer, &peer_len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            listener->is_paused = false;
            http_connection_open(listener->home, fd, &peer);
            continue;
        }
        int why = errno;
        if (why == EMFILE || why == ENFILE || why == ENOBUFS || why == ENOMEM) {
            if (!listener->is_paused)
                log_warn("accept_paused", LOG_CSTR("error", strerror(why)));
            listener->is_paused = true;
            loop_io_change(loop, &listener->io, 0);
            loop_timer_start(loop, &listener->timer, loop_now_ns(loop) + PAUSE_MS * CLOCK_NS_PER_MS,
                             on_pause_over);
        }
        if (why != EINTR && why != ECONNABORTED)
            return;
    }
}

static void on_listener_event(struct loop_io *io, unsigned events)
{
    (void)events;
    accept_waiting((struct http_listener *)io, ACCEPTS_PER_TURN);
}

void http_home_close_listeners(struct http_home *home)
{
    while (!SLIST_EMPTY(&home->listeners)) {
        struct http_listener *listener = SLIST_FIRST(&home->listeners);
        SLIST_REMOVE_HEAD(&home->listeners, entry);
        accept_waiting(listener, BACKLOG); /* their requests may be there: a close would reset them */
        loop_io_stop(home->loop, &listener->io);
        loop_timer_stop(home->loop, &listener->timer);
        close(listener->io.fd);
        loop_free_later(home->loop, listener, free);
    }
}

static void on_listener_message(struct loop *loop, struct loop_message *message)
{
    struct http_listener *listener = CONTAINER_OF(message, struct http_listener, message);
    struct http_home *home = listener->home;
    struct http_server *server = home->server;
    struct error error;

    if (server->is_destroyed) {
        close(listener->io.fd);
        free(listener);
    } else {
        SLIST_INSERT_HEAD(&home->listeners, listener, entry);
        if (loop_io_start(loop, &listener->io, listener->io.fd, LOOP_READ, on_listener_event, &error) !=
            STATUS_OK)
            log_error("listen_failed", LOG_ERROR_FIELDS(&error));
        if (home->draining)
            http_home_close_listeners(home);
    }
    http_server_unref(server);
}

/* ---- idle connections ---- */

/* Has it waited for a request, or for the rest of a head, for longer than HTTP_IDLE_MIN_MS? */
static bool is_idle(const struct http_connection *connection, int64_t now_ns)
{
    return connection->state == HTTP_STATE_HEAD && !connection->is_unsent && !connection->is_waiting &&
           now_ns - connection->state_since_ns >= HTTP_IDLE_MIN_MS * CLOCK_NS_PER_MS;
}

/* Closes the connection that has been idle for longest among the next HTTP_IDLE_SAMPLES of this loop. So a client that holds idle
 * connections does not keep others from connecting. */
bool http_home_close_idle(struct http_home *home)
{
    struct http_connection *longest = NULL, *connection = home->idle_hand;

    for (unsigned i = 0; i < HTTP_IDLE_SAMPLES; i++) {
        if (!connection && !(connection = LIST_FIRST(&home->connections)))
            break;
        if (is_idle(connection, loop_now_ns(home->loop)) &&
            (!longest || connection->state_since_ns < longest->state_since_ns))
            longest = connection;
        connection = LIST_NEXT(connection, entry);
    }
    home->idle_hand = connection;
    if (!longest)
        return false;
    metric_add(home->server->idle_closes, 1);
    http_connection_drop(longest);
    return true;
}

/* ---- listening ---- */

/* "host:port" or "[v6]:port" into its two parts, NUL-terminated. */
static enum status split_address(struct str address, char host[256], char port[8], struct error *error)
{
    const char *colon = address.len > 0 ? memrchr(address.ptr, ':', address.len) : NULL;
    struct str name = str_of(address.ptr, colon ? (size_t)(colon - address.ptr) : 0);
    struct str number = colon ? str_of(colon + 1, address.len - name.len - 1) : STR_NONE;
    uint64_t value;

    if (name.len > 2 && name.ptr[0] == '[' && name.ptr[name.len - 1] == ']')
        name = str_of(name.ptr + 1, name.len - 2);
    if (name.len == 0 || name.len > 255 || memchr(name.ptr, '[', name.len) || number.len > 5 ||
        !str_to_u64(number, &value) || value > 65535)
        return error_set(error, STATUS_CONFIG, "\"%.*s\" is not HOST:PORT or [IPV6]:PORT", STR_ARG(address));
    snprintf(host, 256, "%.*s", STR_ARG(name));
    snprintf(port, 8, "%.*s", STR_ARG(number));
    return STATUS_OK;
}

enum status http_address_check(struct str address, struct error *error)
{
    char host[256], port[8];
    return split_address(address, host, port, error);
}

/* A bound socket, or -1 with errno. */
static int open_socket(const struct sockaddr_storage *address, socklen_t len, bool is_shared)
{
    int on = 1, fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->ss_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if ((!is_shared || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0) &&
        bind(fd, (const struct sockaddr *)address, len) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* A socket per loop; the first one decides which port "any" is. False with errno: none is open. */
static bool open_all(struct sockaddr_storage *address, socklen_t len, int *fds, unsigned count)
{
    /* With SO_REUSEPORT a second process could listen on the same address and take half of the clients. So a socket without
     * it tries first. */
    int probe = open_socket(address, len, false);
    if (probe >= 0)
        close(probe);
    else if (errno == EADDRINUSE)
        return false;
    for (unsigned i = 0; i < count; i++) {
        fds[i] = open_socket(address, len, true);
        if (fds[i] >= 0 && listen(fds[i], BACKLOG) == 0 &&
            (i > 0 || getsockname(fds[0], (struct sockaddr *)address, &len) == 0))
            continue;
        int why = errno;
        for (unsigned opened = 0; opened <= i; opened++)
            if (fds[opened] >= 0)
                close(fds[opened]);
        errno = why;
        return false;
    }
    return true;
}

enum status http_server_listen(struct http_server *server, struct str address, struct error *error)
{
    char host[256], port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
    struct sockaddr_storage bound = {0};
    enum status status = split_address(address, host, port, error);

    if (status != STATUS_OK)
        return status;
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed != 0)
        return error_set(error, STATUS_CONFIG, "%.*s: %s", STR_ARG(address), gai_strerror(failed));
    memcpy(&bound, found->ai_addr, found->ai_addrlen);
    socklen_t len = found->ai_addrlen;
    freeaddrinfo(found);

    int *fds = memory_zalloc(server->home_count * sizeof *fds);
    if (!open_all(&bound, len, fds, server->home_count)) {
        free(fds);
        return error_set(error, STATUS_IO, "cannot listen on %.*s: %s", STR_ARG(address), strerror(errno));
    }
    if (server->port == 0)
        server->port = ntohs(bound.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)&bound)->sin6_port
                                                         : ((const struct sockaddr_in *)&bound)->sin_port);
    atomic_fetch_add(&server->refs, server->home_count);
    for (unsigned i = 0; i < server->home_count; i++) {
        struct http_listener *listener = memory_zalloc(sizeof *listener);
        listener->home = &server->homes[i];
        listener->io.fd = fds[i];
        listener->message.on_message = on_listener_message;
        loop_post(listener->home->loop, &listener->message);
    }
    free(fds);
    return STATUS_OK;
}

/* ---- the end ---- */

void http_server_unref(struct http_server *server)
{
    if (atomic_fetch_sub(&server->refs, 1) > 1)
        return;
    for (unsigned i = 0; i < server->home_count; i++) {
        struct http_home *home = &server->homes[i];
        while (!SLIST_EMPTY(&home->spares)) {
            struct http_exchange *exchange = SLIST_FIRST(&home->spares);
            SLIST_REMOVE_HEAD(&home->spares, spare);
            http_exchange_destroy(exchange);
        }
        buf_deinit(&home->out);
        buf_deinit(&home->gzip_in);
        http_turns_deinit(home);
        http_tls_unref(home->tls);
        http_cors_unref(home->cors);
    }
    free(server->homes);
    free(server->unmatched);
    free(server);
}

void http_home_drop_all(struct http_home *home)
{
    while (!LIST_EMPTY(&home->connections))
        http_connection_drop(LIST_FIRST(&home->connections));
}

void http_server_destroy(struct http_server *server)
{
    server->is_destroyed = true;
    for (unsigned i = 0; i < server->home_count; i++) {
        struct http_home *home = &server->homes[i];
        home->drained = true; /* on_drained is not called any more */
        loop_timer_stop(home->loop, &home->drain_timer);
        http_home_close_listeners(home);
        http_home_drop_all(home);
        loop_tick_cancel(home->loop, &home->waiting_tick);
        loop_tick_cancel(home->loop, &home->handshake_tick);
    }
    http_server_unref(server);
}
