/* The server: its homes, one per loop, and what they share. */
#include <stdlib.h>

#include "base/memory.h"
#include "http/http_inside.h"
#include "http/listener.h"

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

static struct http_home *create_home(struct http_server *server, struct loop *loop)
{
    struct http_home *home = memory_zalloc(sizeof *home);

    home->server = server;
    home->loop = loop;
    return home;
}

static enum status check(const struct http_server_config *config, struct error *error)
{
    const struct http_limits *limits = &config->limits;

    if (!config->group || !config->router)
        return error_set(error, STATUS_CONFIG, "the HTTP server needs loops and a router");
    if (limits->header_count_max == 0 || limits->header_count_max > UINT16_MAX ||
        limits->connections_max == 0 || limits->target_bytes_max + limits->header_bytes_max > INT32_MAX / 2 ||
        limits->header_bytes_max == 0 || limits->target_bytes_max == 0)
        return error_set(error, STATUS_CONFIG, "the limits of the HTTP server are out of bounds");
    return STATUS_OK;
}

enum status http_server_create(const struct http_server_config *config, struct http_server **server,
                               struct error *error)
{
    enum status status = check(config, error);

    if (status != STATUS_OK)
        return status;
    struct http_server *made = memory_zalloc(sizeof *made);
    made->config = *config;
    atomic_init(&made->refs, 1);
    made->parser_limits = (struct http_parser_limits){
        .target_bytes_max = config->limits.target_bytes_max,
        .header_bytes_max = config->limits.header_bytes_max,
        .header_count_max = config->limits.header_count_max,
    };
    if (made->config.limits.bodies_bytes_max / 4 < config->limits.body_bytes_max)
        made->config.limits.bodies_bytes_max = 4 * config->limits.body_bytes_max;
    http_tally_register(made);
    http_budget_register(&made->budget);
    made->home_count = loop_group_count(config->group);
    made->homes = memory_alloc(made->home_count * sizeof(struct http_home *));
    for (unsigned i = 0; i < made->home_count; i++)
        made->homes[i] = create_home(made, loop_group_loop(config->group, i));
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

static void free_home(struct http_home *home)
{
    while (home->spares) {
        struct http_exchange *exchange = home->spares;
        home->spares = exchange->next_spare;
        http_exchange_destroy(exchange);
    }
    buf_deinit(&home->out);
    free(home);
}

void http_server_unref(struct http_server *server)
{
    if (atomic_fetch_sub(&server->refs, 1) > 1)
        return;
    http_listener_destroy_all(server);
    for (unsigned i = 0; i < server->home_count; i++)
        free_home(server->homes[i]);
    free(server->homes);
    free(server->unmatched);
    free(server);
}

void http_server_broadcast(struct http_server *server, void (*fn)(struct loop *loop, void *server))
{
    atomic_fetch_add(&server->refs, server->home_count);
    loop_group_broadcast(server->config.group, fn, server);
}

void http_server_destroy(struct http_server *server)
{
    server->is_destroyed = true;
    for (unsigned i = 0; i < server->home_count; i++) {
        struct http_home *home = server->homes[i];
        home->drained = true; /* nobody waits to hear it */
        loop_timer_stop(home->loop, &home->drain_timer);
        loop_timer_stop(home->loop, &home->trim_timer);
        http_listener_close_all(home);
        while (home->connections)
            http_connection_drop(home->connections);
    }
    http_server_unref(server);
}
