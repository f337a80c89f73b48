/* The graceful stop (C7): each loop closes its listeners and idle connections, lets requests in flight be
 * answered, and the last loop to be empty says so. In flight is also what was sent and not read yet, be it on a
 * connection that was not accepted yet. Past the deadline whoever still waits is told 503, and what has not left
 * a moment later is cut. */
#include <sys/socket.h>

#include "http/http_inside.h"
#include "http/listener.h"

enum { LAST_WORD_MS = 500 }; /* for the 503 to leave and the client to close */

void http_drain_check(struct http_home *home)
{
    struct http_server *server = home->server;

    if (!home->draining || home->drained || home->connection_count > 0)
        return;
    home->drained = true;
    loop_timer_stop(home->loop, &home->drain_timer);
    if (atomic_fetch_sub(&server->homes_left, 1) == 1 && server->on_drained)
        server->on_drained(server->drained_arg);
}

static struct http_home *home_of_timer(struct loop_timer *timer)
{
    return (struct http_home *)((char *)timer - offsetof(struct http_home, drain_timer));
}

static void on_last_word(struct loop_timer *timer)
{
    struct http_home *home = home_of_timer(timer);

    while (home->connections)
        http_connection_drop(home->connections);
}

/* Has it asked for something that nobody has begun to answer? */
static bool is_unanswered(const struct http_connection *connection)
{
    switch (connection->state) {
    case HTTP_STATE_HEAD: return connection->exchange != NULL;
    case HTTP_STATE_GATE:
    case HTTP_STATE_HANDLER: return !connection->exchange->answered;
    case HTTP_STATE_BODY: return true;
    case HTTP_STATE_STREAM:
    case HTTP_STATE_DISCARD:
    case HTTP_STATE_FLUSH:
    case HTTP_STATE_LINGER:
    case HTTP_STATE_DEAD: break;
    }
    return false;
}

static bool is_leaving(const struct http_connection *connection)
{
    return connection->state == HTTP_STATE_FLUSH || connection->state == HTTP_STATE_LINGER ||
           (connection->exchange && connection->exchange->answered && !connection->exchange->has_source);
}

static void on_deadline(struct loop_timer *timer)
{
    struct http_home *home = home_of_timer(timer);

    for (struct http_connection *connection = home->connections, *next; connection; connection = next) {
        next = connection->next;
        if (is_unanswered(connection))
            http_connection_fail(connection, STATUS_UNAVAILABLE);
        else if (!is_leaving(connection))
            http_connection_drop(connection);
    }
    if (home->connections)
        loop_timer_start(home->loop, timer, loop_now_ns(home->loop) + (int64_t)LAST_WORD_MS * CLOCK_NS_PER_MS,
                         on_last_word);
}

/* Neither asked nor about to: a request that has come, but was not read yet, is one in flight. */
static bool is_idle(const struct http_connection *connection)
{
    char byte;
    return connection->state == HTTP_STATE_HEAD && !connection->exchange &&
           buf_len(&connection->own_out) == 0 &&
           recv(connection->io.fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

/* A stream that never ends by itself is ended now; one that does is let to. */
static bool is_endless(const struct http_connection *connection)
{
    return connection->state == HTTP_STATE_STREAM && connection->exchange->request.route->kind == HTTP_STREAM;
}

static void drain_on_loop(struct loop *loop, void *arg)
{
    struct http_server *server = arg;
    struct http_home *home = server->homes[loop_index(loop)];

    if (home->draining || server->is_destroyed) {
        http_server_unref(server);
        return;
    }
    http_listener_close_all(home);
    for (struct http_connection *connection = home->connections, *next; connection; connection = next) {
        next = connection->next;
        if (is_idle(connection))
            http_connection_drop(connection);
        else if (is_endless(connection))
            http_stream_end_early(connection);
    }
    home->draining = true;
    if (server->drain_deadline_ns != CLOCK_NEVER)
        loop_timer_start(loop, &home->drain_timer, server->drain_deadline_ns, on_deadline);
    http_drain_check(home);
    http_server_unref(server);
}

void http_server_drain(struct http_server *server, int64_t deadline_ns, void (*on_drained)(void *arg),
                       void *arg)
{
    server->drain_deadline_ns = deadline_ns;
    server->on_drained = on_drained;
    server->drained_arg = arg;
    atomic_store(&server->homes_left, server->home_count);
    http_server_broadcast(server, drain_on_loop);
}
