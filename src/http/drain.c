/* The graceful stop (C7): each loop closes its listeners and idle connections, lets requests in flight be
 * answered, and the last loop to be empty says so. Past the deadline the rest is cut. */
#include "http/http_inside.h"
#include "http/listener.h"

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

static void on_deadline(struct loop_timer *timer)
{
    struct http_home *home = (struct http_home *)((char *)timer - offsetof(struct http_home, drain_timer));

    while (home->connections)
        http_connection_drop(home->connections);
}

static bool is_idle(const struct http_connection *connection)
{
    return connection->state == HTTP_STATE_HEAD && !connection->exchange &&
           buf_len(&connection->own_out) == 0;
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
