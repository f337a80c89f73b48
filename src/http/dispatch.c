/* A request's way: head → route → steps → answer → next request.
 *
 * The steps are one array. A request is at one of them (exchange->step) and goes on to the next when it passes:
 * at once or, where the step parked it, after http_request_resume(). An answer, whichever step gives it and
 * when, is followed up in one place: go_on(). */
#include "base/log.h"
#include "http/http_inside.h"

static void next_request(struct http_connection *connection)
{
    http_exchange_next(connection->exchange);
    http_connection_move(connection, HTTP_STATE_HEAD);
}

/* Where the next request begins is not known: the connection ends with this answer. */
static void refuse_framing(struct http_exchange *exchange, const struct error *error)
{
    http_connection_move(exchange->connection, HTTP_STATE_BUSY);
    exchange->closes = true;
    http_send_error(&exchange->request, error);
}

/* ---- the gate ---- */

static enum http_step step_gate(struct http_exchange *exchange)
{
    const struct http_server_config *config = &exchange->home->server->config;
    return config->gate ? config->gate(&exchange->request, config->context) : HTTP_STEP_PASS;
}

/* ---- the body ---- */

static bool takes_body(enum http_method method)
{
    return method != HTTP_GET && method != HTTP_HEAD && method != HTTP_OPTIONS;
}

static size_t body_bytes_max(const struct http_exchange *exchange)
{
    const struct http_route *route = exchange->request.route;
    return route->body_bytes_max ? route->body_bytes_max
                                 : exchange->home->server->config.limits.body_bytes_max;
}

/* application/json, with at most a charset of UTF-8. */
static bool is_json(struct str content_type)
{
    struct str part;

    if (!str_split(&content_type, ';', &part) || !str_eq_nocase(str_trim(part), STR("application/json")))
        return false;
    while (str_split(&content_type, ';', &part)) {
        part = str_trim(part);
        if (part.len > 0 && !str_eq_nocase(part, STR("charset=utf-8")) &&
            !str_eq_nocase(part, STR("charset=\"utf-8\"")))
            return false;
    }
    return true;
}

/* Before any of it is read. */
static enum status check_body(const struct http_exchange *exchange, struct error *error)
{
    const struct http_request *request = &exchange->request;
    size_t max = body_bytes_max(exchange);

    if (takes_body(request->method)) {
        if (exchange->parser.first[HTTP_FIELD_CONTENT_ENCODING] != 0)
            return error_set_field(error, STATUS_UNSUPPORTED_MEDIA_TYPE, "Content-Encoding",
                                   "Content-Encoding: the body must not be encoded");
        if (request->route->consumes == HTTP_JSON && request->method != HTTP_DELETE &&
            !is_json(http_exchange_field(exchange, HTTP_FIELD_CONTENT_TYPE)))
            return error_set_field(error, STATUS_UNSUPPORTED_MEDIA_TYPE, "Content-Type",
                                   "Content-Type: the body must be application/json");
    }
    if (exchange->head.content_length > max)
        return error_set_field(error, STATUS_PAYLOAD_TOO_LARGE, "Content-Length",
                               "the body is over the limit of %zu bytes", max);
    if (takes_body(request->method) && !http_budget_has_room(exchange, exchange->head.content_length))
        return error_set(error, STATUS_OVERLOADED, "the memory for bodies is used up");
    return STATUS_OK;
}

static enum http_step refuse_body(struct http_exchange *exchange, enum status status, const char *message)
{
    struct error error;

    (void)error_set_field(&error, status, "body", "%s", message);
    refuse_framing(exchange, &error);
    return HTTP_STEP_ANSWERED;
}

static enum http_body_step next_piece(struct http_exchange *exchange, struct str *piece)
{
    struct str raw = str_of(exchange->block + exchange->start, exchange->end - exchange->start);
    enum http_body_step step = http_body_next(&exchange->body, &raw, piece);

    exchange->start = exchange->end - raw.len;
    return step;
}

/* PARKED: with the next bytes it is called again. */
static enum http_step read_body(struct http_exchange *exchange)
{
    struct str piece;

    for (;;) {
        switch (next_piece(exchange, &piece)) {
        case HTTP_BODY_DATA:
            if (exchange->body.received > body_bytes_max(exchange))
                return refuse_body(exchange, STATUS_PAYLOAD_TOO_LARGE, "the body is over the limit");
            if (!takes_body(exchange->request.method))
                break;
            /* A sized body that came in one piece is used where it lies. */
            if (exchange->head.body_kind == HTTP_BODY_SIZED && piece.len == exchange->head.content_length) {
                exchange->request.body = piece;
                break;
            }
            buf_put_str(&exchange->body_bytes, piece);
            if (!http_budget_charge_body(exchange))
                return refuse_body(exchange, STATUS_OVERLOADED, "the memory for bodies is used up");
            break;
        case HTTP_BODY_MORE:
            if (exchange->connection->saw_end)
                return refuse_body(exchange, STATUS_BAD_REQUEST, "the body ended early");
            if (!http_exchange_hold(exchange) || !http_budget_hold_waiting(exchange))
                return refuse_body(exchange, STATUS_OVERLOADED, "too many requests of the tenant wait");
            return HTTP_STEP_PARKED;
        case HTTP_BODY_DONE:
            http_budget_leave_waiting(exchange);
            if (buf_len(&exchange->body_bytes) > 0)
                exchange->request.body = buf_str(&exchange->body_bytes);
            http_connection_move(exchange->connection, HTTP_STATE_BUSY);
            return HTTP_STEP_PASS;
        case HTTP_BODY_FAILED: return refuse_body(exchange, STATUS_BAD_REQUEST, exchange->body.message);
        }
    }
}

static enum http_step step_body(struct http_exchange *exchange)
{
    struct http_connection *connection = exchange->connection;
    struct error error;

    if (exchange->head.body_kind == HTTP_BODY_NONE)
        return HTTP_STEP_PASS;
    if (connection->state != HTTP_STATE_BODY) {
        if (check_body(exchange, &error) != STATUS_OK) {
            http_send_error(&exchange->request, &error);
            return HTTP_STEP_ANSWERED;
        }
        /* The client may have sent the body without waiting for 100. */
        if (exchange->head.expects_continue && exchange->start == exchange->end)
            buf_put_str(connection->out, STR("HTTP/1.1 100 Continue\r\n\r\n"));
        exchange->head.expects_continue = false;
        http_connection_move(connection, HTTP_STATE_BODY);
    }
    return read_body(exchange);
}

/* Reads and drops what is left of the body of an answered request; bounded. */
static bool discard_body(struct http_exchange *exchange)
{
    struct str piece;

    for (;;) {
        enum http_body_step step = next_piece(exchange, &piece);
        if (step == HTTP_BODY_DATA)
            exchange->discarded += piece.len;
        if (step == HTTP_BODY_FAILED || exchange->discarded > HTTP_DISCARD_BYTES_MAX ||
            (step == HTTP_BODY_MORE && exchange->connection->saw_end)) {
            http_connection_finish(exchange->connection, true);
            return false;
        }
        if (step == HTTP_BODY_DONE)
            next_request(exchange->connection);
        if (step != HTTP_BODY_DATA)
            return step == HTTP_BODY_DONE;
    }
}

/* ---- the idempotency key ---- */

static enum http_step step_idempotency(struct http_exchange *exchange)
{
    const struct http_server_config *config = &exchange->home->server->config;

    if (exchange->request.route->idempotency == HTTP_KEY_NONE || !config->idempotency)
        return HTTP_STEP_PASS;
    return config->idempotency(&exchange->request, config->context);
}

void http_dispatch_end_key(struct http_exchange *exchange)
{
    if (!exchange->request.idempotency_memo)
        return;
    exchange->home->server->config.on_idempotency_end(&exchange->request);
    exchange->request.idempotency_memo = NULL;
}

/* ---- the row's prepare, and its handler ---- */

static enum http_step step_prepare(struct http_exchange *exchange)
{
    struct http_request *request = &exchange->request;

    if (!request->route->prepare)
        return HTTP_STEP_PASS;
    http_work_set_deadline(exchange);
    return request->route->prepare(request, request->context);
}

static enum http_step step_handler(struct http_exchange *exchange)
{
    struct http_request *request = &exchange->request;

    if (exchange->connection->is_ungrouped)
        http_turns_group(exchange);
    if (request->route->kind == HTTP_WORKER)
        http_work_submit(exchange);
    else
        request->route->handler(request);
    return HTTP_STEP_ANSWERED; /* or parked, or on its worker */
}

/* ---- the steps ---- */

enum { STEP_GATE, STEP_BODY, STEP_IDEMPOTENCY, STEP_PREPARE, STEP_HANDLER };

static const struct {
    enum http_step (*run)(struct http_exchange *exchange);
    const char *name;
} steps[] = {
    [STEP_GATE] = {step_gate, "gate"},
    [STEP_BODY] = {step_body, "body"},
    [STEP_IDEMPOTENCY] = {step_idempotency, "idempotency"},
    [STEP_PREPARE] = {step_prepare, "prepare"},
    [STEP_HANDLER] = {step_handler, "handler"},
};

/* From the request's step on, until one does not pass. The handler never does. */
static void run_steps(struct http_exchange *exchange)
{
    bool has_ids = exchange->observed.has_ids;

    if (has_ids)
        http_observe_enter(exchange);
    while (steps[exchange->step].run(exchange) == HTTP_STEP_PASS)
        exchange->step++;
    if (has_ids)
        log_leave();
    if (exchange->progress != HTTP_RUNNING || exchange->connection->state != HTTP_STATE_BUSY)
        return;
    log_error("request_without_answer", LOG_CSTR("route", exchange->request.route->path),
              LOG_CSTR("step", steps[exchange->step].name));
    http_send_error(&exchange->request, &(struct error){.status = STATUS_INTERNAL});
}

static bool go_on(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;

    switch (exchange->progress) {
    case HTTP_ANSWERED: /* the connection goes on, drops the rest of the body first, or ends */
        http_exchange_unpark(exchange);
        if (exchange->closes) {
            bool client_asked = !exchange->head.keep_alive;
            http_connection_finish(connection, !client_asked || !http_body_is_done(&exchange->body));
            return false;
        }
        if (http_body_is_done(&exchange->body))
            next_request(connection);
        else
            http_connection_move(connection, HTTP_STATE_DISCARD);
        return true;
    case HTTP_STREAMING:
    case HTTP_STREAM_ENDING: return http_stream_pump(connection);
    case HTTP_RESUMED:
        http_exchange_move(exchange, HTTP_RUNNING);
        exchange->step++;
        run_steps(exchange);
        return true;
    case HTTP_READING:
    case HTTP_RUNNING:
    case HTTP_PARKED:
    case HTTP_ON_WORKER:
    case HTTP_STREAM_WAITS:
    case HTTP_PROGRESSES: break;
    }
    return false;
}

/* ---- head and route ---- */

static void answer_without_route(struct http_exchange *exchange, unsigned allowed)
{
    struct http_request *request = &exchange->request;
    struct buf methods = {0}, lines = {0};

    exchange->entry = exchange->home->server->unmatched;
    request->route = http_router_nearest(exchange->home->server->config.router, request->path);
    if (exchange->head.is_server_wide)
        allowed = (1u << HTTP_METHODS) - 1;
    if (allowed == 0) {
        http_send_error(request, &(struct error){.status = STATUS_NOT_FOUND});
        return;
    }
    for (unsigned method = 0; method < HTTP_METHODS; method++)
        if (allowed & 1u << method)
            buf_printf(&methods, "%s%s", buf_len(&methods) > 0 ? ", " : "",
                       http_method_name((enum http_method)method));
    buf_printf(&lines, "Allow: %.*s\r\n", STR_ARG(buf_str(&methods)));
    if (request->method == HTTP_OPTIONS) {
        http_cors_put_preflight(exchange, buf_str(&methods), &lines);
        http_send(request, &(struct http_response){.status = 204, .headers = buf_str(&lines)});
    } else {
        http_send_error_with(request, &(struct error){.status = STATUS_METHOD_NOT_ALLOWED}, buf_str(&lines),
                             STR_NONE);
    }
    buf_deinit(&methods);
    buf_deinit(&lines);
}

static void find_route(struct http_exchange *exchange)
{
    struct http_request *request = &exchange->request;
    unsigned allowed = 0;

    http_connection_move(exchange->connection, HTTP_STATE_BUSY);
    exchange->way.was_taken = false;
    if (!exchange->head.is_server_wide)
        exchange->entry = http_router_find(exchange->home->server->config.router, request->method,
                                           request->path, request->params, &exchange->way, &allowed);
    /* An escaped parameter was decoded into the arena of the request before. */
    if (!exchange->way.was_taken || !exchange->parser.is_known || exchange->head.has_escapes)
        request->carried = (struct http_carried){0};
    if (!exchange->entry) {
        answer_without_route(exchange, allowed);
        return;
    }
    request->route = exchange->entry->route;
    request->context = exchange->entry->context;
    run_steps(exchange);
}

static bool read_head(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;
    struct error error;
    enum status status;

    if (!exchange || exchange->start == exchange->end)
        return false;
    const struct http_parser *parser = &exchange->parser;
    enum http_parse parsed = http_parser_run(&exchange->parser, exchange->block + exchange->start,
                                             exchange->end - exchange->start);
    if (parsed == HTTP_PARSE_MORE && !connection->saw_end)
        return false;
    if (parsed == HTTP_PARSE_MORE && !http_parser_has_begun(parser)) {
        http_connection_finish(connection, false);
        return false;
    }
    exchange->started_ns = loop_now_ns(exchange->home->loop);
    if (parsed == HTTP_PARSE_DONE) {
        if (parser->first[HTTP_FIELD_CONTENT_LENGTH] != 0 || parser->first[HTTP_FIELD_TRANSFER_ENCODING] != 0)
            http_exchange_make_body_room(exchange);
        status = http_head_read(parser, exchange->block + exchange->start, &exchange->head, &error);
    } else if (parsed == HTTP_PARSE_FAILED) {
        status = error_set(&error, parser->status, "%s", parser->message);
    } else {
        status = error_set(&error, STATUS_BAD_REQUEST, "the request ended early");
    }
    if (status == STATUS_OK) {
        http_exchange_fill_request(exchange);
        find_route(exchange);
        return true;
    }
    /* Nothing in an invalid head can be relied on: the request is filled out of an empty one. */
    metric_add(exchange->home->server->parse_errors, 1);
    exchange->entry = exchange->home->server->unmatched;
    exchange->head = (struct http_head){.keep_alive = true};
    http_parser_reset(&exchange->parser);
    exchange->parser.minor_version = 1;
    http_exchange_fill_request(exchange);
    exchange->observed.is_traced = false; /* there is nothing to say about it */
    refuse_framing(exchange, &error);
    return true;
}

bool http_dispatch_step(struct http_connection *connection)
{
    switch (connection->state) {
    case HTTP_STATE_HEAD: return read_head(connection);
    case HTTP_STATE_BODY: run_steps(connection->exchange); return connection->state != HTTP_STATE_BODY;
    case HTTP_STATE_BUSY: return go_on(connection);
    case HTTP_STATE_DISCARD: return discard_body(connection->exchange);
    case HTTP_STATE_FLUSH:
    case HTTP_STATE_LINGER:
    case HTTP_STATE_DEAD: break;
    }
    return false;
}
