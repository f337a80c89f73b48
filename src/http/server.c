/* The server: its homes, one per loop, what they share, and how it stops.
 *
 * The graceful stop (C7): each loop closes its listeners and idle connections and lets requests in flight be answered; the
 * last loop to be empty reports it. A request that was sent and not read yet is in flight too, even on a connection that
 * was not accepted yet. At the deadline unanswered requests get 503; what has not left LAST_ANSWER_MS later is cut. */
#include <stdlib.h>
#include <sys/socket.h>

#include "base/memory.h"
#include "http/http_inside.h"

enum { LAST_ANSWER_MS = 500 }; /* for the 503 to leave and the client to close */

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

/* The next whole second of the wall clock, as the loop's clock will show it. */
struct str http_home_date_line(struct http_home *home)
{
    int64_t now = loop_now_ns(home->loop);

    if (now >= home->date_until_ns) {
        int64_t unix_us = clock_unix_us();
        memcpy(home->date_line, "Date: ", 6);
        clock_http_date(unix_us, home->date_line + 6);
        memcpy(home->date_line + 6 + CLOCK_HTTP_DATE_BYTES - 1, "\r\n", 2);
        home->date_line_len = 6 + CLOCK_HTTP_DATE_BYTES - 1 + 2;
        home->date_until_ns = now + (1000000 - unix_us % 1000000) * 1000;
    }
    return str_of(home->date_line, home->date_line_len);
}

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
    made->homes = memory_alloc(made->home_count * sizeof(struct http_home *));
    for (unsigned i = 0; i < made->home_count; i++) {
        made->homes[i] = memory_zalloc(sizeof *made->homes[i]);
        made->homes[i]->server = made;
        made->homes[i]->loop = loop_group_loop(config->group, i);
        TAILQ_INIT(&made->homes[i]->unsent);
    }
    http_budget_init(made);
    *server = made;
    return STATUS_OK;
}

unsigned http_server_port(const struct http_server *server)
{
    return server->port;
}

void http_server_adopt(struct http_server *server, struct loop *loop, int fd)
{
    unsigned before = atomic_fetch_add_explicit(&server->connection_count, 1, memory_order_relaxed);
    struct http_home *home = server->homes[loop_index(loop)];

    http_connection_open(home, fd, NULL, before >= server->config.limits.connections_max);
}

void http_server_unref(struct http_server *server)
{
    if (atomic_fetch_sub(&server->refs, 1) > 1)
        return;
    for (unsigned i = 0; i < server->home_count; i++) {
        struct http_home *home = server->homes[i];
        while (!SLIST_EMPTY(&home->spares)) {
            struct http_exchange *exchange = SLIST_FIRST(&home->spares);
            SLIST_REMOVE_HEAD(&home->spares, spare);
            http_exchange_destroy(exchange);
        }
        buf_deinit(&home->out);
        free(home);
    }
    http_listener_free_all(server);
    free(server->homes);
    free(server->unmatched);
    free(server);
}

void http_server_destroy(struct http_server *server)
{
    server->is_destroyed = true;
    http_budget_deinit(&server->budget);
    for (unsigned i = 0; i < server->home_count; i++) {
        struct http_home *home = server->homes[i];
        home->drained = true; /* on_drained is not called any more */
        loop_timer_stop(home->loop, &home->drain_timer);
        http_listener_close_all(home);
        while (!LIST_EMPTY(&home->connections))
            http_connection_drop(LIST_FIRST(&home->connections));
    }
    http_listener_close_unstarted(server);
    http_server_unref(server);
}

/* ---- the graceful stop ---- */

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

static void cut_all(struct loop_timer *timer)
{
    struct http_home *home = CONTAINER_OF(timer, struct http_home, drain_timer);

    while (!LIST_EMPTY(&home->connections))
        http_connection_drop(LIST_FIRST(&home->connections));
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

static void drain_on_loop(struct loop *loop, void *arg)
{
    struct http_server *server = arg;
    struct http_home *home = server->homes[loop_index(loop)];
    struct http_connection *connection, *next;

    if (!home->draining && !server->is_destroyed) {
        http_listener_close_all(home);
        LIST_FOREACH_SAFE(connection, &home->connections, entry, next) {
            const struct http_exchange *exchange = connection->exchange;
            char byte; /* of a request that has arrived, but was not read yet: it is in flight */
            if (connection->state == HTTP_STATE_HEAD && !exchange && buf_len(&connection->own_out) == 0 &&
                recv(connection->io.fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) <= 0)
                http_connection_drop(connection);
            else if (connection->state == HTTP_STATE_BUSY && exchange->progress > HTTP_ANSWERED &&
                     exchange->request.route->kind == HTTP_STREAM) /* it never ends by itself */
                http_stream_end_early(connection);
        }
        home->draining = true;
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
