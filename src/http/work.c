/* Handlers on worker threads.
 *
 * From submit to done the exchange is the worker's: the loop looks only at `abandoned`, and the worker
 * never at the connection. Past the route's deadline the client is told 503 and the connection ended; the
 * worker's late answer is dropped when it comes, and a handler not begun by then never is: no effect behind a 503
 * that need not be, and no work for nobody in a queue that stood still. The connection's struct (the gate's memo,
 * the peer's address) outlives the worker. A handler that hands its request on is followed by another, on another pool's
 * thread, by way of done(). */
#include "base/log.h"
#include "http/http_inside.h"

static struct http_exchange *exchange_of_job(struct worker_job *job)
{
    return (struct http_exchange *)((char *)job - offsetof(struct http_exchange, job));
}

static void run(struct worker_job *job)
{
    struct http_exchange *exchange = exchange_of_job(job);

    if (clock_mono_ns() < exchange->deadline_ns)
        exchange->handler(&exchange->request);
    else
        http_send_error(&exchange->request, &(struct error){.status = STATUS_TIMEOUT});
}

void http_request_hand_on(struct http_request *request, struct worker_pool *pool, http_handler_fn *handler)
{
    struct http_exchange *exchange = http_exchange_of(request);

    exchange->next_pool = pool;
    exchange->handler = handler;
}

/* Where it was handed on, is it there? */
static bool has_gone_on(struct http_exchange *exchange)
{
    struct worker_pool *pool = exchange->next_pool;

    exchange->next_pool = NULL;
    if (!pool || exchange->abandoned || exchange->job.cancelled)
        return false;
    if (worker_pool_submit(pool, &exchange->job))
        return true;
    http_send_error(&exchange->request, &(struct error){.status = STATUS_OVERLOADED});
    return false;
}

static void send_recorded(struct http_exchange *exchange)
{
    const struct http_recorded *recorded = &exchange->recorded;
    struct http_request *request = &exchange->request;

    if (recorded->is_there && recorded->is_stream) {
        http_send_stream(request, &recorded->response, &recorded->source);
    } else if (recorded->is_there) {
        http_send(request, &recorded->response);
    } else if (exchange->job.cancelled) {
        http_send_error(request, &(struct error){.status = STATUS_CANCELLED});
    } else {
        log_error("handler_without_answer", LOG_CSTR("route", request->route->path));
        http_send_error(request, &(struct error){.status = STATUS_INTERNAL});
    }
}

static void forget(struct http_exchange *exchange)
{
    if (exchange->recorded.is_there && exchange->recorded.is_stream)
        exchange->recorded.source.release(exchange->recorded.source.context);
    http_exchange_leave(exchange); /* not before: until now the handler was at work */
    http_exchange_release(exchange);
}

static void done(struct worker_job *job)
{
    struct http_exchange *exchange = exchange_of_job(job);
    struct http_connection *connection = exchange->connection;
    struct http_server *server = exchange->home->server;

    if (has_gone_on(exchange))
        return;
    exchange->on_worker = false;
    if (exchange->abandoned) {
        forget(exchange);
    } else {
        http_exchange_unpark(exchange);
        send_recorded(exchange);
    }
    http_connection_unref(connection);
    http_server_unref(server);
}

/* The connection lets go of the exchange, which done() then frees, and ends: what the gate keeps for the
 * connection must not change under a worker that may still be reading it. */
static void on_deadline(void *owner)
{
    struct http_exchange *exchange = owner;
    struct http_connection *connection = exchange->connection;

    exchange->park = (struct loop_park_ref){0};
    log_warn("handler_deadline_passed", LOG_CSTR("route", exchange->request.route->path));
    http_connection_fail(connection, STATUS_TIMEOUT);
}

void http_work_set_deadline(struct http_exchange *exchange)
{
    int own_ms = exchange->request.route->deadline_ms;
    int64_t ms = own_ms > 0 ? own_ms : exchange->home->server->config.limits.deadline_ms;

    if (exchange->deadline_ns == 0)
        exchange->deadline_ns = loop_now_ns(exchange->home->loop) + ms * CLOCK_NS_PER_MS;
}

void http_work_submit(struct http_exchange *exchange)
{
    struct worker_pool *pool = exchange->home->server->config.workers;

    exchange->is_late = true;
    exchange->job = (struct worker_job){.loop = exchange->home->loop, .run = run, .done = done};
    http_work_set_deadline(exchange);
    exchange->handler = exchange->request.route->handler;
    exchange->next_pool = NULL;
    if (!loop_park(exchange->home->loop, exchange, exchange->deadline_ns, on_deadline, &exchange->park)) {
        http_send_error(&exchange->request, &(struct error){.status = STATUS_OVERLOADED});
        return;
    }
    exchange->on_drop = NULL;
    exchange->on_worker = true;
    exchange->connection->refs++;
    atomic_fetch_add(&exchange->home->server->refs, 1);
    if (pool && worker_pool_submit(pool, &exchange->job))
        return;
    exchange->on_worker = false;
    exchange->connection->refs--;
    atomic_fetch_sub(&exchange->home->server->refs, 1);
    http_exchange_unpark(exchange);
    http_send_error(&exchange->request, &(struct error){.status = STATUS_OVERLOADED});
}
