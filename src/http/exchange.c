/* Exchanges: everything that one request needs, pooled per loop, so that a request costs no allocation; and requests off the
 * loop: parked, or on a worker thread. The connection reads nothing meanwhile.
 *
 * From submit to done the exchange is the worker's, and the worker never touches the connection. Past the route's
 * deadline the client gets 503 and the connection ends; the worker's late answer is dropped, and a handler that has not
 * begun by then never begins, so that a 503 has as few effects as possible. The connection's struct (the peer's address)
 * outlives the worker. A handler that hands its request on is followed by another, on a thread of another pool, by way of
 * done(). */
#include <stdlib.h>

#include "base/budget.h"
#include "base/log.h"
#include "base/memory.h"
#include "http/http_inside.h"

#define TO(progress) (1u << HTTP_##progress)

const uint16_t http_progress_next[HTTP_PROGRESSES] = {
    [HTTP_READING] = TO(READING) | TO(RUNNING),
    [HTTP_RUNNING] = TO(READING) | TO(PARKED) | TO(RESUMED) | TO(ON_WORKER) | TO(ANSWERED) | TO(STREAMING),
    [HTTP_PARKED] = TO(READING) | TO(RUNNING) | TO(ANSWERED) | TO(STREAMING),
    [HTTP_RESUMED] = TO(READING) | TO(RUNNING),
    [HTTP_ON_WORKER] = TO(RUNNING),
    [HTTP_ANSWERED] = TO(READING),
    [HTTP_STREAMING] = TO(ANSWERED) | TO(STREAM_ENDING) | TO(STREAM_WAITS),
    [HTTP_STREAM_ENDING] = TO(ANSWERED) | TO(STREAM_WAITS),
    [HTTP_STREAM_WAITS] = TO(ANSWERED) | TO(STREAMING) | TO(STREAM_ENDING),
};

/* ---- held connections ---- */

bool http_exchange_hold(struct http_exchange *exchange)
{
    struct http_server *server = exchange->home->server;
    uint64_t share =
        exchange->holder == 0 && server->config.share_of ? server->config.share_of(&exchange->request) : 0;

    if (share == 0)
        return true;
    atomic_uint *held = &server->held[share % HTTP_HOLDERS];
    if (atomic_fetch_add_explicit(held, 1, memory_order_relaxed) >= server->config.limits.held_max) {
        atomic_fetch_sub_explicit(held, 1, memory_order_relaxed);
        metric_add(server->held_refused, 1);
        return false;
    }
    exchange->holder = 1 + (unsigned)(share % HTTP_HOLDERS);
    return true;
}

static void end_hold(struct http_exchange *exchange)
{
    atomic_fetch_sub_explicit(&exchange->home->server->held[exchange->holder - 1], 1, memory_order_relaxed);
    exchange->holder = 0;
}

/* ---- life ---- */

/* The first block of its arena is counted before it is there. */
static size_t reading_bytes(const struct http_exchange *exchange, size_t block_bytes)
{
    size_t arena = arena_bytes(&exchange->arena), first = HTTP_ARENA_BYTES + ARENA_HEAD_BYTES;

    return sizeof *exchange + (arena > first ? arena : first) + block_bytes +
           exchange->home->server->config.limits.header_count_max *
               (sizeof *exchange->spans + sizeof *exchange->headers);
}

static void alloc_for_reading(struct http_exchange *exchange)
{
    const struct http_limits *limits = &exchange->home->server->config.limits;

    exchange->spans = memory_alloc(limits->header_count_max * sizeof *exchange->spans);
    exchange->headers = memory_alloc(limits->header_count_max * sizeof *exchange->headers);
    exchange->block = memory_alloc(HTTP_BLOCK_BYTES);
    exchange->block_bytes = HTTP_BLOCK_BYTES;
    exchange->start = exchange->end = 0;
    http_parser_init(&exchange->parser, limits, exchange->spans);
    exchange->request.headers = exchange->headers;
}

/* Bytes of a next request are kept: then nothing is freed. */
void http_exchange_slim(struct http_exchange *exchange)
{
    if (!exchange->block || exchange->start != exchange->end)
        return;
    free(exchange->block);
    free(exchange->spans);
    free(exchange->headers);
    exchange->block = NULL;
    exchange->spans = NULL;
    exchange->headers = NULL;
    http_parser_reset(&exchange->parser); /* no field of it is there */
    exchange->request.header_count = 0;
    exchange->request.request_id = STR_NONE;
    exchange->request.identity = NULL;
    exchange->work = NULL;
    arena_deinit(&exchange->arena);
    http_budget_free_body(exchange);
    http_budget_set_exchange(exchange, sizeof *exchange);
}

size_t http_exchange_bytes(const struct http_exchange *exchange)
{
    return reading_bytes(exchange, exchange->block_bytes);
}

bool http_exchange_admit(struct http_exchange *exchange)
{
    return exchange->charged > 0 || http_budget_charge_head(exchange, http_exchange_bytes(exchange));
}

struct http_exchange *http_exchange_acquire(struct http_connection *connection)
{
    struct http_home *home = connection->home;
    struct http_exchange *exchange = SLIST_FIRST(&home->spares);

    if (exchange) {
        SLIST_REMOVE_HEAD(&home->spares, spare);
        home->spare_count--;
    } else {
        exchange = memory_zalloc(sizeof *exchange);
        exchange->home = home;
        exchange->connection = connection; /* which is not to be cut to make room */
        alloc_for_reading(exchange);
        (void)http_exchange_admit(exchange);
        exchange->arena = ARENA(HTTP_ARENA_BYTES);
        exchange->request.arena = &exchange->arena;
        exchange->request.loop = home->loop;
    }
    exchange->connection = exchange->request.connection = connection;
    exchange->request.peer = &connection->peer;
    exchange->request.client_cert = str_from(connection->client_cert);
    exchange->start = exchange->end = 0;
    return exchange;
}

void http_exchange_destroy(struct http_exchange *exchange)
{
    if (exchange->holder)
        end_hold(exchange);
    arena_deinit(&exchange->arena);
    http_budget_free_body(exchange);
    http_budget_set_exchange(exchange, 0);
    free(exchange->block);
    free(exchange->spans);
    free(exchange->headers);
    free(exchange);
}

/* One that grew for a large request or was slimmed for a stream is not kept, nor one for which only the reserve had room. */
void http_exchange_release(struct http_exchange *exchange)
{
    struct http_home *home = exchange->home;

    if (!http_budget_may_stay(exchange) || home->spare_count >= HTTP_SPARE_EXCHANGES_MAX ||
        exchange->block_bytes > HTTP_BLOCK_BYTES || !exchange->block) {
        http_exchange_destroy(exchange);
        return;
    }
    http_exchange_next(exchange);
    exchange->connection = NULL;
    SLIST_INSERT_HEAD(&home->spares, exchange, spare);
    home->spare_count++;
}

void http_exchange_next(struct http_exchange *exchange)
{
    if (exchange->holder)
        end_hold(exchange);
    if (exchange->body_bytes.data)
        http_budget_free_body(exchange);
    if (exchange->arena.first)
        arena_reset(&exchange->arena);
    if (!exchange->block) {
        alloc_for_reading(exchange);
        http_budget_set_exchange(exchange, reading_bytes(exchange, HTTP_BLOCK_BYTES));
    } else if (exchange->has_arena_charged) {
        http_budget_set_exchange(exchange, http_exchange_bytes(exchange));
    }
    exchange->has_arena_charged = false;
    http_parser_next(&exchange->parser, exchange->block + exchange->head_end - exchange->parser.at);
    http_exchange_move(exchange, HTTP_READING);
    exchange->step = 0;
    exchange->entry = NULL;
    exchange->is_late = exchange->closes = exchange->is_chunked = false;
    exchange->work = NULL;
    exchange->producer.produce = NULL;
    exchange->deadline_ns = 0;
    exchange->discarded = 0;
    exchange->body_since_ns = 0;
    exchange->park = (struct loop_park_ref){0};
}

struct str http_exchange_field(const struct http_exchange *exchange, enum http_field field)
{
    unsigned index = exchange->parser.first[field];
    return index == 0 ? STR_NONE : exchange->headers[index - 1].value;
}

struct str http_exchange_field_once(const struct http_exchange *exchange, enum http_field field)
{
    return exchange->parser.repeated & 1u << field ? STR_NONE : http_exchange_field(exchange, field);
}

/* Turns the parser's offsets into slices. From here on the head's bytes stay where they are. */
void http_exchange_fill_request(struct http_exchange *exchange)
{
    struct http_request *request = &exchange->request;
    const struct http_parser *parser = &exchange->parser;
    const char *data = exchange->block + exchange->start;

    http_exchange_move(exchange, HTTP_RUNNING);
    http_body_init(&exchange->body, exchange->head.body_kind, exchange->head.content_length);
    for (unsigned i = 0; i < parser->span_count && !parser->is_known; i++) {
        const struct http_span *span = &parser->spans[i];
        exchange->headers[i].name = str_of(data + span->name_at, span->name_len);
        exchange->headers[i].value = str_of(data + span->value_at, span->value_len);
    }
    request->header_count = parser->span_count;
    request->method = exchange->head.method;
    request->path = exchange->head.path;
    request->query = exchange->head.query;
    request->authorization = http_exchange_field_once(exchange, HTTP_FIELD_AUTHORIZATION);
    request->authorization_count =
        parser->repeated & 1u << HTTP_FIELD_AUTHORIZATION ? 2 : parser->first[HTTP_FIELD_AUTHORIZATION] != 0;
    request->forwarded_client_cert = http_exchange_field_once(exchange, HTTP_FIELD_FORWARDED_CLIENT_CERT);
    request->has_body = exchange->head.body_kind != HTTP_BODY_NONE;
    request->body = request->idempotency_key = STR_NONE;
    request->route = NULL;
    request->context = request->handler_data = request->idempotency_memo = NULL;
    request->identity = NULL;
    request->trace = (struct trace){0};
    request->request_id = STR_NONE;
    exchange->observed = (struct http_observed){0};
    if ((parser->first[HTTP_FIELD_TRACEPARENT] | parser->first[HTTP_FIELD_REQUEST_ID]) != 0)
        http_observe_read(exchange);
    if (http_observe_is_on())
        http_observe_begin(exchange);
    exchange->start += parser->at;
    exchange->head_end = exchange->start;
}

/* ---- parking ---- */

void http_exchange_unpark(struct http_exchange *exchange)
{
    if (exchange->park.generation != 0)
        (void)loop_park_take(exchange->park);
    exchange->park = (struct loop_park_ref){0};
}

static void on_park_timeout(void *owner)
{
    struct http_exchange *exchange = owner;

    exchange->park = (struct loop_park_ref){0};
    http_exchange_move(exchange, HTTP_RUNNING);
    if (exchange->on_timeout)
        exchange->on_timeout(&exchange->request, exchange->park_context);
    if (exchange->progress == HTTP_RUNNING)
        http_send_error(&exchange->request, &(struct error){.status = STATUS_TIMEOUT});
}

void http_send_late(struct http_request *request, void *context)
{
    const struct http_late *late = context;
    struct error error;

    error_set(&error, late->status, "%s", late->message);
    http_send_error(request, &error);
}

bool http_request_park(struct http_request *request, int64_t deadline_ns, http_timeout_fn *on_timeout,
                       void *context, struct loop_park_ref *ref)
{
    struct http_exchange *exchange = http_exchange_of(request);

    if (exchange->deadline_ns != 0 && deadline_ns > exchange->deadline_ns)
        deadline_ns = exchange->deadline_ns;
    exchange->is_late = true;
    if (!http_exchange_hold(exchange) || !http_budget_hold_waiting(exchange) ||
        !loop_park(exchange->home->loop, exchange, deadline_ns, on_park_timeout, ref)) {
        *ref = (struct loop_park_ref){0};
        http_send_error(request, &(struct error){.status = STATUS_OVERLOADED});
        return false;
    }
    http_exchange_move(exchange, HTTP_PARKED);
    request->carried = (struct http_carried){0};
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
    const struct http_work *work = CONTAINER_OF(job, struct http_work, job);
    struct http_exchange *exchange = work->exchange;

    http_observe_enter(exchange);
    if (clock_mono_ns() < exchange->deadline_ns)
        work->handler(&exchange->request);
    else
        http_send_error(&exchange->request, &(struct error){.status = STATUS_TIMEOUT});
    log_leave();
}

void http_request_hand_on(struct http_request *request, struct worker_pool *pool, http_handler_fn *handler)
{
    struct http_work *work = http_exchange_of(request)->work;

    work->next_pool = pool;
    work->handler = handler;
}

/* Its connection dropped it meanwhile. */
static bool is_abandoned(const struct http_exchange *exchange)
{
    return exchange->connection->exchange != exchange;
}

/* It is in the connection's buffer now, and the client may take its time before the next request is begun. */
static void forget_answer(struct http_exchange *exchange)
{
    exchange->request.identity = NULL;
    exchange->work = NULL;
    arena_reset(&exchange->arena);
    http_budget_free_answer(exchange);
}

static void on_handler_done(struct worker_job *job)
{
    struct http_work *work = CONTAINER_OF(job, struct http_work, job);
    struct http_exchange *exchange = work->exchange;
    struct http_connection *connection = exchange->connection;
    struct http_server *server = exchange->home->server;
    struct http_request *request = &exchange->request;
    const struct http_producer producer = exchange->producer; /* recorded */
    struct worker_pool *next_pool = work->next_pool;          /* that http_request_hand_on() named */
    work->next_pool = NULL;
    if (next_pool && !is_abandoned(exchange) && !job->cancelled) {
        if (worker_pool_submit(next_pool, job))
            return;
        http_send_error(request, &(struct error){.status = STATUS_OVERLOADED});
    }
    http_exchange_move(exchange, HTTP_RUNNING);
    if (is_abandoned(exchange)) {
        if (exchange->observed.is_due)
            http_observe_end(exchange, 0);
        if (producer.produce)
            producer.release(producer.context);
        http_dispatch_end_key(exchange); /* not before: until now the handler was running */
        http_budget_free_answer(exchange);
        http_exchange_release(exchange);
    } else {
        http_exchange_unpark(exchange);
        if (producer.produce) {
            http_send_stream(request, &work->recorded, &producer);
        } else if (work->recorded.status) {
            http_send(request, &work->recorded);
            if (exchange->answer_charged > 0)
                forget_answer(exchange);
        } else if (job->cancelled) {
            http_send_error(request,
                            &(struct error){.status = job->displaced ? STATUS_OVERLOADED : STATUS_CANCELLED});
        } else {
            log_error("request_without_answer", LOG_CSTR("route", request->route->path),
                      LOG_CSTR("step", "handler"));
            http_send_error(request, &(struct error){.status = STATUS_INTERNAL});
        }
    }
    http_connection_unref(connection);
    http_server_unref(server);
}

/* The connection drops the exchange, which on_handler_done() then frees. */
static void on_deadline(void *owner)
{
    struct http_exchange *exchange = owner;

    exchange->park = (struct loop_park_ref){0};
    http_observe_enter(exchange);
    log_warn("handler_deadline_passed", LOG_CSTR("route", exchange->request.route->path));
    log_leave();
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
    const struct http_route *route = exchange->request.route;
    struct worker_pool *pool = route->pool ? route->pool(exchange->request.context) : server->config.workers;

    exchange->is_late = true;
    struct http_work *work = exchange->work = arena_alloc(&exchange->arena, sizeof *work);
    *work = (struct http_work){
        .job = {.loop = exchange->home->loop, .run = run_handler, .done = on_handler_done},
        .exchange = exchange,
        .handler = route->handler,
    };
    if (server->config.share_of)
        work->job.share = server->config.share_of(&exchange->request);
    http_work_set_deadline(exchange);
    if (http_exchange_hold(exchange) && http_budget_hold_waiting(exchange) &&
        loop_park(exchange->home->loop, exchange, exchange->deadline_ns, on_deadline, &exchange->park)) {
        http_exchange_move(exchange, HTTP_ON_WORKER);
        exchange->connection->refs++;
        atomic_fetch_add(&server->refs, 1);
        if (pool && worker_pool_submit(pool, &work->job))
            return;
        http_exchange_move(exchange, HTTP_RUNNING);
        exchange->connection->refs--;
        atomic_fetch_sub(&server->refs, 1);
        http_exchange_unpark(exchange);
    }
    http_send_error(&exchange->request, &(struct error){.status = STATUS_OVERLOADED});
}
