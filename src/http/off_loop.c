/* Requests off the loop: parked, or on a worker thread. The connection reads nothing meanwhile.
 *
 * From submit to done the exchange is the worker's, and the worker never touches the connection. Past the route's
 * deadline the client gets 503 and the connection ends; the worker's late answer is dropped, and a handler that has not
 * begun by then never begins, so that a 503 has as few effects as possible. The connection's struct (the peer's address)
 * outlives the worker. A handler that hands its request on is followed by another, on a thread of another pool, by way of
 * done(). */
#include "base/log.h"
#include "base/memory.h"
#include "http/http_inside.h"

/* ---- parking ---- */

static void on_park_timeout(void *owner)
{
    struct http_exchange *exchange = owner;

    exchange->park = (struct loop_park_ref){0};
    http_exchange_move(exchange, HTTP_RUNNING);
    exchange->on_timeout(&exchange->request, exchange->park_context);
    if (exchange->progress == HTTP_RUNNING)
        http_send_error(&exchange->request, &(struct error){.status = STATUS_TIMEOUT});
}

bool http_request_park(struct http_request *request, int64_t deadline_ns, http_timeout_fn *on_timeout,
                       void *context, struct loop_park_ref *ref)
{
    struct http_exchange *exchange = http_exchange_of(request);

    if (exchange->deadline_ns != 0 && deadline_ns > exchange->deadline_ns)
        deadline_ns = exchange->deadline_ns;
    if (!loop_park(exchange->home->loop, exchange, deadline_ns, on_park_timeout, ref)) {
        *ref = (struct loop_park_ref){0};
        http_send_error(request, &(struct error){.status = STATUS_OVERLOADED});
        return false;
    }
    http_exchange_move(exchange, HTTP_PARKED);
    exchange->is_late = true;
    exchange->park = *ref;
    exchange->on_timeout = on_timeout;
    exchange->on_drop = NULL;
    exchange->park_context = context;
    return true;
}

void http_request_on_drop(struct http_request *request, http_timeout_fn *on_drop)
{
    http_exchange_of(request)->on_drop = on_drop;
}

struct http_request *http_request_unpark(struct loop_park_ref ref)
{
    struct http_exchange *exchange = loop_park_take(ref);

    if (!exchange)
        return NULL;
    exchange->park = (struct loop_park_ref){0};
    exchange->on_drop = NULL;
    http_exchange_move(exchange, HTTP_RUNNING);
    return &exchange->request;
}

void http_request_resume(struct http_request *request)
{
    struct http_exchange *exchange = http_exchange_of(request);

    http_exchange_move(exchange, HTTP_RESUMED);
    http_connection_resume(exchange->connection);
}

/* ---- workers ---- */

static void run_handler(struct worker_job *job)
{
    struct http_exchange *exchange = CONTAINER_OF(job, struct http_exchange, job);

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

/* Its connection dropped it meanwhile. */
static bool is_abandoned(const struct http_exchange *exchange)
{
    return exchange->connection->exchange != exchange;
}

static void send_recorded(struct http_exchange *exchange)
{
    const struct http_recorded *recorded = &exchange->recorded;
    struct http_request *request = &exchange->request;

    if (recorded->kind == HTTP_RECORDED_STREAM) {
        http_send_stream(request, &recorded->response, &recorded->source);
    } else if (recorded->kind == HTTP_RECORDED_WHOLE) {
        http_send(request, &recorded->response);
    } else if (exchange->job.cancelled) {
        http_send_error(request, &(struct error){.status = STATUS_CANCELLED});
    } else {
        log_error("request_without_answer", LOG_CSTR("route", request->route->path),
                  LOG_CSTR("step", "handler"));
        http_send_error(request, &(struct error){.status = STATUS_INTERNAL});
    }
}

static void on_handler_done(struct worker_job *job)
{
    struct http_exchange *exchange = CONTAINER_OF(job, struct http_exchange, job);
    struct http_connection *connection = exchange->connection;
    struct http_server *server = exchange->home->server;

    struct worker_pool *next_pool = exchange->next_pool; /* that http_request_hand_on() named */
    exchange->next_pool = NULL;
    if (next_pool && !is_abandoned(exchange) && !job->cancelled) {
        if (worker_pool_submit(next_pool, job))
            return;
        http_send_error(&exchange->request, &(struct error){.status = STATUS_OVERLOADED});
    }
    http_exchange_move(exchange, HTTP_RUNNING);
    if (is_abandoned(exchange)) {
        if (exchange->recorded.kind == HTTP_RECORDED_STREAM)
            exchange->recorded.source.release(exchange->recorded.source.context);
        http_dispatch_end_key(exchange); /* not before: until now the handler was running */
        http_exchange_release(exchange);
    } else {
        http_exchange_unpark(exchange);
        send_recorded(exchange);
    }
    http_connection_unref(connection);
    http_server_unref(server);
}

/* The connection drops the exchange, which on_handler_done() then frees. */
static void on_deadline(void *owner)
{
    struct http_exchange *exchange = owner;

    exchange->park = (struct loop_park_ref){0};
    log_warn("handler_deadline_passed", LOG_CSTR("route", exchange->request.route->path));
    http_connection_fail(exchange->connection, STATUS_TIMEOUT);
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
    struct http_server *server = exchange->home->server;

    exchange->is_late = true;
    exchange->job =
        (struct worker_job){.loop = exchange->home->loop, .run = run_handler, .done = on_handler_done};
    http_work_set_deadline(exchange);
    exchange->handler = exchange->request.route->handler;
    exchange->next_pool = NULL;
    if (loop_park(exchange->home->loop, exchange, exchange->deadline_ns, on_deadline, &exchange->park)) {
        http_exchange_move(exchange, HTTP_ON_WORKER);
        exchange->connection->refs++;
        atomic_fetch_add(&server->refs, 1);
        if (server->config.workers && worker_pool_submit(server->config.workers, &exchange->job))
            return;
        http_exchange_move(exchange, HTTP_RUNNING);
        exchange->connection->refs--;
        atomic_fetch_sub(&server->refs, 1);
        http_exchange_unpark(exchange);
    }
    http_send_error(&exchange->request, &(struct error){.status = STATUS_OVERLOADED});
}
