/* The memory that bodies and unsent answers take, in sum over all connections.
 *
 * Charged by the capacity of their buffers, in a few coarse steps each: a request whose body arrives whole with its head
 * and whose answer the socket takes charges nothing.
 *   - Bodies past the limit are refused with 503. One share (a tenant's) takes at most half.
 *   - Past the limit of unsent answers a loop cuts those of its connections whose client has not read for longest, while
 *     the loop holds more than its part. The one that is being written is spared.
 * After a burst a task gives freed memory back to the system. */
#include <malloc.h>

#include "http/http_inside.h"

enum {
    FREED_BYTES_MIN = 32 * 1024 * 1024, /* of a burst, to be worth a trim */
    TRIM_DELAY_MS = 1000,
};

/* ---- giving memory back ---- */

/* Woken when a burst is over; trims a moment later, when the rest of it is freed too. */
static int64_t trim_step(struct task *task, void *context)
{
    struct http_server *server = context;
    struct http_budget *budget = &server->budget;

    budget->is_trim_due = !budget->is_trim_due;
    if (budget->is_trim_due) {
        task_hold(task, TASK_MS(TRIM_DELAY_MS));
        return TASK_MS(TRIM_DELAY_MS);
    }
    atomic_store(&budget->freed_bytes, 0);
    malloc_trim(0);
    metric_add(server->trims, 1);
    return TASK_IDLE;
}

void http_budget_init(struct http_server *server)
{
    if (!server->config.workers)
        return;
    server->budget.trim = task_create(&(struct task_config){.name = "http_trim",
                                                            .loop = server->homes[0].loop,
                                                            .pool = server->config.workers,
                                                            .run = trim_step,
                                                            .context = server});
    task_start(server->budget.trim, TASK_IDLE);
}

void http_budget_deinit(struct http_budget *budget)
{
    if (!budget->trim)
        return;
    (void)task_stop(budget->trim, TASK_FOREVER);
    task_destroy(budget->trim);
    budget->trim = NULL;
}

void http_budget_freed(struct http_home *home, size_t bytes)
{
    struct http_budget *budget = &home->server->budget;
    size_t before = atomic_fetch_add_explicit(&budget->freed_bytes, bytes, memory_order_relaxed);

    if (before < FREED_BYTES_MIN && before + bytes >= FREED_BYTES_MIN && budget->trim)
        task_wake(budget->trim);
}

/* ---- bodies ---- */

static unsigned share_of(const struct http_exchange *exchange)
{
    const struct http_server_config *config = &exchange->home->server->config;
    return config->share_of ? (unsigned)(config->share_of(&exchange->request) % HTTP_BODY_SHARES) : 0;
}

/* Without config.share_of there is one share, which may take all. */
static bool is_within(const struct http_server *server, uint64_t all, uint64_t own)
{
    size_t max = server->config.limits.bodies_bytes_max;
    return all <= max && own <= (server->config.share_of ? max / 2 : max);
}

bool http_budget_has_room(const struct http_exchange *exchange, uint64_t content_length)
{
    struct http_server *server = exchange->home->server;
    struct http_budget *budget = &server->budget;
    size_t all = atomic_load_explicit(&budget->bodies_bytes, memory_order_relaxed);

    if (all == 0 || content_length <= HTTP_BLOCK_BYTES)
        return true;
    size_t own = atomic_load_explicit(&budget->share_bytes[share_of(exchange)], memory_order_relaxed);
    return is_within(server, content_length + all, content_length + own);
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
    metric_change(server->bodies_gauge, (double)more);
    size_t all = more + atomic_fetch_add_explicit(&budget->bodies_bytes, more, memory_order_relaxed);
    size_t own = more + atomic_fetch_add_explicit(&budget->share_bytes[exchange->body_share], more,
                                                  memory_order_relaxed);
    return is_within(server, all, own);
}

void http_budget_free_body(struct http_exchange *exchange)
{
    struct http_server *server = exchange->home->server;
    struct http_budget *budget = &server->budget;
    size_t charged = exchange->body_charged;

    buf_deinit(&exchange->body_bytes);
    if (charged == 0)
        return;
    exchange->body_charged = 0;
    metric_change(server->bodies_gauge, -(double)charged);
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
    metric_change(home->server->unsent_gauge, (double)capacity - (double)before);
    if (capacity < before)
        http_budget_freed(home, before - capacity);
}

void http_budget_keep_unsent(struct http_connection *connection, bool has_progress)
{
    struct http_home *home = connection->home;
    const struct http_server *server = home->server;
    size_t max = server->config.limits.unsent_bytes_max;

    if (connection->is_unsent && has_progress)
        TAILQ_REMOVE(&home->unsent, connection, unsent);
    if (!connection->is_unsent || has_progress)
        TAILQ_INSERT_TAIL(&home->unsent, connection, unsent);
    connection->is_unsent = true;
    charge_unsent(connection, connection->own_out.capacity);
    while (home->unsent_bytes > max / server->home_count &&
           atomic_load_explicit(&server->budget.unsent_bytes, memory_order_relaxed) > max) {
        struct http_connection *longest = TAILQ_FIRST(&home->unsent);
        if (longest == connection && !(longest = TAILQ_NEXT(connection, unsent)))
            break;
        metric_add(server->full_cuts, 1);
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
