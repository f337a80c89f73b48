/* The memory that bodies and unsent answers take, in sum over all connections.
 *
 * Charged by the capacity of their buffers, so in a few coarse steps each: a request whose body comes whole with its head
 * and whose answer the socket takes charges nothing.
 *   - Bodies past the bound are refused with 503. One share (a tenant's) takes at most half, so that it never takes all.
 *   - Past the bound of unsent answers a loop cuts those of its connections whose client has not read for longest, while
 *     the loop holds more than its part. The one that is being written is spared.
 * After a burst, freed memory is given back to the system by a worker. */
#include <malloc.h>

#include "http/http_inside.h"

enum {
    FREED_BYTES_MIN = 32 * 1024 * 1024, /* of a burst, for a trim to be worth its while */
    TRIM_DELAY_MS = 1000,
};

static struct metric_family body_bytes = {
    .name = "http_body_bytes",
    .help = "Memory held by request bodies, in bytes.",
    .type = METRIC_GAUGE,
};
static struct metric_family unsent_bytes = {
    .name = "http_unsent_bytes",
    .help = "Memory held by answers that clients have not taken yet, in bytes.",
    .type = METRIC_GAUGE,
};
static struct metric_family cuts = {
    .name = "http_cut_total",
    .help =
        "Connections cut because their client did not read, by reason: slow = below writeRate, full = past unsent.",
    .type = METRIC_COUNTER,
    .labels = {"reason"},
};
static struct metric_family trims = {
    .name = "http_memory_trims_total",
    .help = "Times that memory was given back to the system after a burst.",
    .type = METRIC_COUNTER,
};

void http_budget_register(struct http_budget *budget)
{
    metrics_register(&body_bytes);
    metrics_register(&unsent_bytes);
    metrics_register(&cuts);
    metrics_register(&trims);
    budget->bodies_gauge = metric_series_get(&body_bytes, NULL);
    budget->unsent_gauge = metric_series_get(&unsent_bytes, NULL);
    budget->slow_cuts = metric_series_get(&cuts, &(struct str){"slow", 4});
    budget->full_cuts = metric_series_get(&cuts, &(struct str){"full", 4});
    budget->trims = metric_series_get(&trims, NULL);
}

/* ---- giving memory back ---- */

static void run_trim(struct worker_job *job)
{
    (void)job;
    malloc_trim(0);
}

static void on_trim_done(struct worker_job *job)
{
    struct http_budget *budget = (struct http_budget *)((char *)job - offsetof(struct http_budget, trim_job));
    struct http_server *server =
        (struct http_server *)((char *)budget - offsetof(struct http_server, budget));

    metric_add(budget->trims, job->cancelled ? 0 : 1);
    atomic_store(&budget->is_trimming, false);
    http_server_unref(server);
}

static void on_trim_due(struct loop_timer *timer)
{
    struct http_home *home = (struct http_home *)((char *)timer - offsetof(struct http_home, trim_timer));
    struct http_server *server = home->server;
    struct http_budget *budget = &server->budget;

    atomic_store(&budget->freed_bytes, 0);
    if (!server->config.workers || atomic_exchange(&budget->is_trimming, true))
        return;
    budget->trim_job = (struct worker_job){.loop = home->loop, .run = run_trim, .done = on_trim_done};
    atomic_fetch_add(&server->refs, 1);
    if (worker_pool_submit(server->config.workers, &budget->trim_job))
        return;
    atomic_fetch_sub(&server->refs, 1);
    atomic_store(&budget->is_trimming, false);
}

void http_budget_freed(struct http_home *home, size_t bytes)
{
    size_t before = atomic_fetch_add_explicit(&home->server->budget.freed_bytes, bytes, memory_order_relaxed);

    if (before + bytes >= FREED_BYTES_MIN && home->trim_timer.heap_at == 0 && !home->server->is_destroyed)
        loop_timer_start(home->loop, &home->trim_timer,
                         loop_now_ns(home->loop) + TRIM_DELAY_MS * CLOCK_NS_PER_MS, on_trim_due);
}

/* ---- bodies ---- */

static size_t bodies_max(const struct http_server *server)
{
    return server->config.limits.bodies_bytes_max;
}

static unsigned share_of(const struct http_exchange *exchange)
{
    const struct http_server_config *config = &exchange->home->server->config;
    return config->share_of ? (unsigned)(config->share_of(&exchange->request) % HTTP_BODY_SHARES) : 0;
}

/* Without a function that tells them apart all are one share, which may then take all. */
static size_t share_max(const struct http_server *server)
{
    return server->config.share_of ? bodies_max(server) / 2 : bodies_max(server);
}

bool http_budget_has_room(const struct http_exchange *exchange, uint64_t content_length)
{
    struct http_server *server = exchange->home->server;
    struct http_budget *budget = &server->budget;
    size_t all = atomic_load_explicit(&budget->bodies_bytes, memory_order_relaxed);

    if (all == 0 || content_length <= HTTP_BLOCK_BYTES)
        return true;
    size_t own = atomic_load_explicit(&budget->share_bytes[share_of(exchange)], memory_order_relaxed);
    return content_length + all <= bodies_max(server) && content_length + own <= share_max(server);
}

bool http_budget_charge_body(struct http_exchange *exchange)
{
    struct http_server *server = exchange->home->server;
    struct http_budget *budget = &server->budget;
    size_t more = exchange->body_bytes.capacity - exchange->body_charged;

    if (more == 0)
        return true;
    if (exchange->body_charged == 0)
        exchange->body_share = share_of(exchange);
    exchange->body_charged += more;
    metric_change(budget->bodies_gauge, (double)more);
    size_t all = more + atomic_fetch_add_explicit(&budget->bodies_bytes, more, memory_order_relaxed);
    size_t own = more + atomic_fetch_add_explicit(&budget->share_bytes[exchange->body_share], more,
                                                  memory_order_relaxed);
    return all <= bodies_max(server) && own <= share_max(server);
}

void http_budget_free_body(struct http_exchange *exchange)
{
    struct http_budget *budget = &exchange->home->server->budget;
    size_t charged = exchange->body_charged;

    buf_deinit(&exchange->body_bytes);
    if (charged == 0)
        return;
    exchange->body_charged = 0;
    metric_change(budget->bodies_gauge, -(double)charged);
    atomic_fetch_sub_explicit(&budget->bodies_bytes, charged, memory_order_relaxed);
    atomic_fetch_sub_explicit(&budget->share_bytes[exchange->body_share], charged, memory_order_relaxed);
    http_budget_freed(exchange->home, charged);
}

/* ---- unsent answers ---- */

static void charge_unsent(struct http_connection *connection, size_t capacity)
{
    struct http_home *home = connection->home;
    struct http_budget *budget = &home->server->budget;
    size_t before = connection->unsent_charged;

    if (capacity == before)
        return;
    connection->unsent_charged = capacity;
    home->unsent_bytes += capacity - before; /* unsigned: a difference below 0 wraps, and back */
    atomic_fetch_add_explicit(&budget->unsent_bytes, capacity - before, memory_order_relaxed);
    metric_change(budget->unsent_gauge, (double)capacity - (double)before);
    if (capacity < before)
        http_budget_freed(home, before - capacity);
}

static bool is_over_unsent(const struct http_home *home)
{
    const struct http_server *server = home->server;
    size_t max = server->config.limits.unsent_bytes_max;
    return home->unsent_bytes > max / server->home_count &&
           atomic_load_explicit(&server->budget.unsent_bytes, memory_order_relaxed) > max;
}

void http_budget_keep_unsent(struct http_connection *connection, bool has_progress)
{
    struct http_home *home = connection->home;

    if (connection->is_unsent && has_progress)
        TAILQ_REMOVE(&home->unsent, connection, unsent);
    if (!connection->is_unsent || has_progress)
        TAILQ_INSERT_TAIL(&home->unsent, connection, unsent);
    connection->is_unsent = true;
    charge_unsent(connection, connection->own_out.capacity);
    while (is_over_unsent(home)) {
        struct http_connection *longest = TAILQ_FIRST(&home->unsent);
        if (longest == connection && !(longest = TAILQ_NEXT(connection, unsent)))
            break;
        metric_add(home->server->budget.full_cuts, 1);
        http_connection_cut(longest);
    }
}

void http_budget_free_unsent(struct http_connection *connection)
{
    buf_deinit(&connection->own_out);
    if (!connection->is_unsent)
        return;
    connection->is_unsent = false;
    TAILQ_REMOVE(&connection->home->unsent, connection, unsent);
    charge_unsent(connection, 0);
}
