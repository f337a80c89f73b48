/* The graceful stop (C7), in two parts.
 *
 *     leave   answers close their connections; new connections are accepted and requests served, for as long as the caller
 *             waits: balancers stop sending clients here, and clients find another process for their next request
 *     drain   each loop closes its listeners and idle connections, ends streams, and lets requests in flight be answered; the
 *             last loop to be empty reports it
 *
 * A client may send its next request while an idle connection is closed, and never learns whether it was handled. After an
 * answer with `Connection: close` it sends nothing more. So while the server leaves, every connection that is used ends with
 * an answer; connections that stay unused until the drain are closed then, our side first.
 *
 * A request that was sent and not read yet is in flight too, even on a connection that was not accepted yet. At the
 * deadline unanswered requests get 503; what has not left LAST_ANSWER_MS later is cut. */
#include <sys/socket.h>

#include "base/memory.h"
#include "http/tls.h"

enum { LAST_ANSWER_MS = 500 }; /* for the 503 to leave and the client to close */

/* Has something arrived that was not read yet? */
static bool has_unread(const struct http_connection *connection)
{
    char byte;
    return http_tls_has_input(connection) ||
           recv(connection->io.fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* ---- leave ---- */

/* Requests that arrived after this one are answered first, the last of them with `Connection: close`; in the drain those that
 * were read already, so that a client which sends without end does not delay it. */
bool http_drain_ends_with(const struct http_exchange *exchange)
{
    if (!http_body_is_done(&exchange->body))
        return true;
    if (exchange->start < exchange->end)
        return false;
    return exchange->home->draining || !has_unread(exchange->connection);
}

static void leave_on_loop(struct loop *loop, void *arg)
{
    struct http_server *server = arg;

    server->homes[loop_index(loop)].leaving = true;
    http_server_unref(server);
}

void http_server_leave(struct http_server *server)
{
    atomic_fetch_add(&server->refs, server->home_count);
    loop_group_broadcast(server->config.group, leave_on_loop, server);
}

/* ---- drain ---- */

void http_drain_check(struct http_home *home)
{
    struct http_server *server = home->server;

    if (!home->draining || home->drained || !LIST_EMPTY(&home->connections))
        return;
    home->drained = true;
    loop_timer_stop(home->loop, &home->drain_timer);
    if (atomic_fetch_sub(&server->homes_left, 1) == 1 && server->on_drained)
        server->on_drained(server->drained_arg);
}

static void cut_all(struct loop_timer *timer)
{
    http_home_drop_all(CONTAINER_OF(timer, struct http_home, drain_timer));
}

static void on_drain_deadline(struct loop_timer *timer)
{
    struct http_home *home = CONTAINER_OF(timer, struct http_home, drain_timer);
    struct http_connection *connection, *next;

    LIST_FOREACH_SAFE(connection, &home->connections, entry, next) {
        const struct http_exchange *exchange = connection->exchange;
        enum http_state state = connection->state;
        bool is_unanswered = (state == HTTP_STATE_HEAD && exchange) || state == HTTP_STATE_BODY ||
                             (state == HTTP_STATE_BUSY && exchange->progress < HTTP_ANSWERED);
        bool is_leaving = state == HTTP_STATE_FLUSH || state == HTTP_STATE_LINGER ||
                          (exchange && exchange->progress == HTTP_ANSWERED);
        if (is_unanswered)
            http_connection_fail(connection, STATUS_UNAVAILABLE);
        else if (!is_leaving)
            http_connection_drop(connection);
    }
    if (!LIST_EMPTY(&home->connections))
        loop_timer_start(home->loop, timer, loop_now_ns(home->loop) + LAST_ANSWER_MS * CLOCK_NS_PER_MS,
                         cut_all);
}

/* A connection without a request. Where clients had time to leave, it ends as after an answer: what races with the end is read
 * and dropped, since a reset could destroy an answer that the client has not read yet. */
static void close_idle(struct http_connection *connection, bool is_quick)
{
    if (is_quick) {
        http_connection_drop(connection);
        return;
    }
    http_connection_finish(connection, true);
    http_connection_resume(connection);
}

/* Its answer may have left a moment ago, so that it always ends like one. */
void http_drain_end_idle(struct http_connection *connection)
{
    if (!http_tls_awaits_request(connection) && !has_unread(connection))
        close_idle(connection, false);
}

static void drain_connections(struct http_home *home, bool is_quick)
{
    struct http_connection *connection, *next;

    LIST_FOREACH_SAFE(connection, &home->connections, entry, next) {
        const struct http_exchange *exchange = connection->exchange;
        if (connection->state == HTTP_STATE_HEAD && !exchange && buf_len(&connection->own_out) == 0 &&
            !has_unread(connection))
            close_idle(connection, is_quick || http_tls_is_opening(connection));
        else if (connection->state == HTTP_STATE_BUSY && exchange->progress > HTTP_ANSWERED &&
                 exchange->request.route->kind == HTTP_STREAM) /* it never ends by itself */
            http_stream_end_early(connection);
    }
}

static void drain_on_loop(struct loop *loop, void *arg)
{
    struct http_server *server = arg;
    struct http_home *home = &server->homes[loop_index(loop)];

    if (!home->draining && !server->is_destroyed) {
        http_home_close_listeners(home);
        drain_connections(home, !home->leaving);
        home->leaving = home->draining = true;
        if (server->drain_deadline_ns != CLOCK_NEVER)
            loop_timer_start(loop, &home->drain_timer, server->drain_deadline_ns, on_drain_deadline);
        http_drain_check(home);
    }
    http_server_unref(server);
}

void http_server_drain(struct http_server *server, int64_t deadline_ns, void (*on_drained)(void *arg),
                       void *arg)
{
    server->drain_deadline_ns = deadline_ns;
    server->on_drained = on_drained;
    server->drained_arg = arg;
    atomic_store(&server->homes_left, server->home_count);
    atomic_fetch_add(&server->refs, server->home_count);
    loop_group_broadcast(server->config.group, drain_on_loop, server);
}
