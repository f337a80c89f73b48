/* One request's way: head → route → gate → body → door → prepare → handler → answer → next.
 *
 * Each function here is one step. A step that ends in an answer leaves the request in HTTP_STATE_HANDLER,
 * from where finish() takes the connection on, so that an answer is followed up in one place whoever gave it
 * and when. */
#include "base/log.h"
#include "http/http_inside.h"

static void next_request(struct http_connection *connection)
{
    http_exchange_next(connection->exchange);
    http_connection_move(connection, HTTP_STATE_HEAD);
}

/* After an answer: the connection goes on, drops the rest of the body first, or ends. */
static bool finish(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;

    if (exchange->has_source) {
        http_connection_move(connection, HTTP_STATE_STREAM);
        return true;
    }
    http_exchange_unpark(exchange);
    connection->memo = exchange->request.connection_memo;
    if (exchange->closes) {
        bool client_asked = !exchange->framing_lost && !exchange->head.keep_alive;
        http_connection_finish(connection, !client_asked || !http_body_is_done(&exchange->body));
        return false;
    }
    if (http_body_is_done(&exchange->body))
        next_request(connection);
    else
        http_connection_move(connection, HTTP_STATE_DISCARD);
    return true;
}

static void refuse(struct http_exchange *exchange, const struct error *error)
{
    http_connection_move(exchange->connection, HTTP_STATE_HANDLER);
    exchange->framing_lost = true;
    http_send_error(&exchange->request, error);
}

/* A head that is no valid one: nothing in it can be relied on. */
static void refuse_head(struct http_exchange *exchange, const struct error *error)
{
    metric_add(exchange->home->server->parse_errors, 1);
    exchange->entry = exchange->home->server->unmatched;
    http_exchange_blank_request(exchange);
    refuse(exchange, error);
}

/* ---- handler ---- */

static void call_handler(struct http_exchange *exchange)
{
    struct http_request *request = &exchange->request;

    http_connection_move(exchange->connection, HTTP_STATE_HANDLER);
    exchange->stage = HTTP_STAGE_HANDLER;
    if (request->route->kind == HTTP_WORKER) {
        http_work_submit(exchange);
        return;
    }
    request->route->handler(request);
    if (!exchange->answered && exchange->park.generation == 0) {
        log_error("handler_without_answer", LOG_CSTR("route", request->route->path));
        http_send_error(request, &(struct error){.status = STATUS_INTERNAL});
    }
}

/* ---- prepare ---- */

/* Past the door: what the row wants to be there before its handler, else the handler. */
static void prepare(struct http_exchange *exchange)
{
    struct http_request *request = &exchange->request;

    if (!request->route->prepare) {
        call_handler(exchange);
        return;
    }
    http_connection_move(exchange->connection, HTTP_STATE_HANDLER);
    exchange->stage = HTTP_STAGE_PREPARE;
    http_work_set_deadline(exchange);
    enum http_gate verdict = request->route->prepare(request);
    if (verdict == HTTP_GATE_PASS) {
        call_handler(exchange);
    } else if (verdict == HTTP_GATE_ANSWERED && !exchange->answered) {
        log_error("prepare_without_answer", LOG_CSTR("route", request->route->path));
        http_send_error(request, &(struct error){.status = STATUS_INTERNAL});
    }
}

static void go_on(struct http_exchange *exchange)
{
    if (exchange->stage == HTTP_STAGE_DOOR)
        prepare(exchange);
    else
        call_handler(exchange);
}

/* ---- door ---- */

void http_exchange_leave(struct http_exchange *exchange)
{
    const struct http_server_config *config = &exchange->home->server->config;

    if (!exchange->is_inside)
        return;
    exchange->is_inside = false;
    if (config->on_leave)
        config->on_leave(&exchange->request, config->door_context);
}

/* Only rows with a policy have one. While the door keeps a request waiting, its state is the handler's: nothing more is read,
 * and whoever comes back by http_gate_resume() goes on behind it. */
static void ask_door(struct http_exchange *exchange)
{
    const struct http_server_config *config = &exchange->home->server->config;
    struct http_request *request = &exchange->request;

    if (request->route->idempotency == HTTP_KEY_NONE || !config->door) {
        prepare(exchange);
        return;
    }
    http_connection_move(exchange->connection, HTTP_STATE_HANDLER);
    enum http_gate verdict = config->door(request, config->door_context);
    if (verdict == HTTP_GATE_PASS) {
        exchange->is_inside = true;
        prepare(exchange);
    } else if (verdict == HTTP_GATE_ANSWERED && !exchange->answered) {
        log_error("door_without_answer", LOG_CSTR("route", request->route->path));
        http_send_error(request, &(struct error){.status = STATUS_INTERNAL});
    }
}

/* ---- body ---- */

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

static struct str field_value(const struct http_exchange *exchange, enum http_field field)
{
    unsigned index = exchange->parser.first[field];
    return index == 0 ? STR_NONE : exchange->headers[index - 1].value;
}

static enum status check_body(const struct http_exchange *exchange, struct error *error)
{
    size_t max = body_bytes_max(exchange);

    if (takes_body(exchange->request.method)) {
        if (exchange->parser.first[HTTP_FIELD_CONTENT_ENCODING] != 0)
            return error_set_field(error, STATUS_UNSUPPORTED_MEDIA_TYPE, "Content-Encoding",
                                   "Content-Encoding: the body must not be encoded");
        if (exchange->request.route->consumes == HTTP_JSON && exchange->request.method != HTTP_DELETE &&
            !is_json(field_value(exchange, HTTP_FIELD_CONTENT_TYPE)))
            return error_set_field(error, STATUS_UNSUPPORTED_MEDIA_TYPE, "Content-Type",
                                   "Content-Type: the body must be application/json");
    }
    if (exchange->head.content_length > max)
        return error_set_field(error, STATUS_PAYLOAD_TOO_LARGE, "Content-Length",
                               "the body is over the limit of %zu bytes", max);
    if (takes_body(exchange->request.method) &&
        !http_budget_has_room(exchange, exchange->head.content_length))
        return error_set(error, STATUS_OVERLOADED, "the memory for bodies is used up");
    return STATUS_OK;
}

/* The client may have sent the body without waiting; then it needs no invitation. */
static void invite_body(struct http_exchange *exchange)
{
    if (exchange->head.expects_continue && exchange->start == exchange->end)
        buf_put_str(exchange->connection->out, STR("HTTP/1.1 100 Continue\r\n\r\n"));
    exchange->head.expects_continue = false;
}

static void after_gate(struct http_exchange *exchange)
{
    struct error error;

    exchange->connection->memo = exchange->request.connection_memo;
    if (exchange->head.body_kind == HTTP_BODY_NONE) {
        ask_door(exchange);
    } else if (check_body(exchange, &error) != STATUS_OK) {
        http_connection_move(exchange->connection, HTTP_STATE_HANDLER);
        http_send_error(&exchange->request, &error);
    } else {
        invite_body(exchange);
        http_connection_move(exchange->connection, HTTP_STATE_BODY);
    }
}

/* A sized body that came in one piece is used where it lies. False when there is no memory for it. */
static bool keep_piece(struct http_exchange *exchange, struct str piece)
{
    if (!takes_body(exchange->request.method))
        return true;
    if (exchange->head.body_kind == HTTP_BODY_SIZED && piece.len == exchange->head.content_length) {
        exchange->request.body = piece;
        return true;
    }
    buf_put_str(&exchange->body_bytes, piece);
    return http_budget_charge_body(exchange);
}

static bool refuse_body(struct http_exchange *exchange, enum status status, const char *message)
{
    struct error error;

    (void)error_set_field(&error, status, "body", "%s", message);
    refuse(exchange, &error);
    return true;
}

static bool read_body(struct http_exchange *exchange)
{
    struct str raw = str_of(exchange->block + exchange->start, exchange->end - exchange->start), piece;
    size_t max = body_bytes_max(exchange);

    for (;;) {
        enum http_body_step step = http_body_next(&exchange->body, &raw, &piece);
        exchange->start = exchange->end - raw.len;
        switch (step) {
        case HTTP_BODY_DATA:
            if (exchange->body.received > max)
                return refuse_body(exchange, STATUS_PAYLOAD_TOO_LARGE, "the body is over the limit");
            if (!keep_piece(exchange, piece))
                return refuse_body(exchange, STATUS_OVERLOADED, "the memory for bodies is used up");
            break;
        case HTTP_BODY_MORE:
            if (exchange->connection->saw_end)
                return refuse_body(exchange, STATUS_BAD_REQUEST, "the body ended early");
            return false;
        case HTTP_BODY_DONE:
            if (buf_len(&exchange->body_bytes) > 0)
                exchange->request.body = buf_str(&exchange->body_bytes);
            ask_door(exchange);
            return true;
        case HTTP_BODY_FAILED: return refuse_body(exchange, STATUS_BAD_REQUEST, exchange->body.message);
        }
    }
}

static bool discard_body(struct http_exchange *exchange)
{
    struct str raw = str_of(exchange->block + exchange->start, exchange->end - exchange->start), piece;

    for (;;) {
        enum http_body_step step = http_body_next(&exchange->body, &raw, &piece);
        exchange->start = exchange->end - raw.len;
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

/* ---- route and gate ---- */

/* "Allow: GET, HEAD\r\n" */
static struct str allow_line(struct http_exchange *exchange, unsigned allowed)
{
    struct buf line = {0};

    buf_put_str(&line, STR("Allow: "));
    for (unsigned method = 0; method < HTTP_METHODS; method++) {
        if (!(allowed & 1u << method))
            continue;
        if (line.end > sizeof "Allow: " - 1)
            buf_put_str(&line, STR(", "));
        buf_put_str(&line, str_from(http_method_name((enum http_method)method)));
    }
    buf_put_str(&line, STR("\r\n"));
    struct str copy = arena_str(&exchange->arena, buf_str(&line));
    buf_deinit(&line);
    return copy;
}

static void answer_without_route(struct http_exchange *exchange, unsigned allowed)
{
    struct http_request *request = &exchange->request;

    exchange->entry = exchange->home->server->unmatched;
    http_connection_move(exchange->connection, HTTP_STATE_HANDLER);
    request->route = http_router_nearest(exchange->home->server->config.router, request->path);
    if (exchange->head.is_server_wide)
        allowed = (1u << HTTP_METHODS) - 1;
    if (allowed == 0) {
        http_send_error(request, &(struct error){.status = STATUS_NOT_FOUND});
        return;
    }
    struct str allow = allow_line(exchange, allowed);
    if (request->method == HTTP_OPTIONS)
        http_send(request, &(struct http_response){.status = 204, .headers = allow});
    else
        http_send_error_with(request, &(struct error){.status = STATUS_METHOD_NOT_ALLOWED}, allow, STR_NONE);
}

static void ask_gate(struct http_exchange *exchange)
{
    const struct http_server_config *config = &exchange->home->server->config;
    struct http_request *request = &exchange->request;

    http_connection_move(exchange->connection, HTTP_STATE_GATE);
    enum http_gate verdict = config->gate ? config->gate(request, config->gate_context) : HTTP_GATE_PASS;
    if (verdict == HTTP_GATE_PASS) {
        after_gate(exchange);
    } else if (verdict == HTTP_GATE_ANSWERED && !exchange->answered) {
        log_error("gate_without_answer", LOG_CSTR("route", request->route->path));
        http_send_error(request, &(struct error){.status = STATUS_INTERNAL});
    }
}

static void find_route(struct http_exchange *exchange)
{
    struct http_request *request = &exchange->request;
    unsigned allowed = 0;

    if (!exchange->head.is_server_wide)
        exchange->entry = http_router_find(exchange->home->server->config.router, request->method,
                                           request->path, request->params, &allowed);
    if (!exchange->entry) {
        answer_without_route(exchange, allowed);
        return;
    }
    request->route = exchange->entry->route;
    request->context = exchange->entry->context;
    ask_gate(exchange);
}

/* ---- head ---- */

static bool has_body_field(const struct http_parser *parser)
{
    return parser->first[HTTP_FIELD_CONTENT_LENGTH] != 0 || parser->first[HTTP_FIELD_TRANSFER_ENCODING] != 0;
}

static void begin(struct http_exchange *exchange)
{
    struct error error;

    exchange->started_ns = loop_now_ns(exchange->home->loop);
    if (has_body_field(&exchange->parser))
        http_exchange_make_body_room(exchange);
    if (http_head_read(&exchange->parser, exchange->block + exchange->start, &exchange->head, &error) !=
        STATUS_OK) {
        refuse_head(exchange, &error);
        return;
    }
    http_body_init(&exchange->body, exchange->head.body_kind, exchange->head.content_length);
    http_exchange_fill_request(exchange);
    find_route(exchange);
}

static bool refuse_parse(struct http_exchange *exchange, enum status status, const char *message)
{
    struct error error;

    exchange->started_ns = loop_now_ns(exchange->home->loop);
    (void)error_set(&error, status, "%s", message);
    refuse_head(exchange, &error);
    return true;
}

static bool read_head(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;

    if (!exchange || exchange->start == exchange->end)
        return false;
    switch (http_parser_run(&exchange->parser, exchange->block + exchange->start,
                            exchange->end - exchange->start)) {
    case HTTP_PARSE_DONE: begin(exchange); return true;
    case HTTP_PARSE_FAILED: return refuse_parse(exchange, exchange->parser.status, exchange->parser.message);
    case HTTP_PARSE_MORE: break;
    }
    if (!connection->saw_end)
        return false;
    if (http_parser_has_begun(&exchange->parser))
        return refuse_parse(exchange, STATUS_BAD_REQUEST, "the request ended early");
    http_connection_finish(connection, false);
    return false;
}

bool http_dispatch_step(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;

    switch (connection->state) {
    case HTTP_STATE_HEAD: return read_head(connection);
    case HTTP_STATE_GATE:
        if (exchange->answered)
            return finish(connection);
        if (!exchange->gate_passed)
            return false;
        exchange->gate_passed = false;
        after_gate(exchange);
        return true;
    case HTTP_STATE_BODY: return read_body(exchange);
    case HTTP_STATE_HANDLER:
        if (exchange->answered)
            return finish(connection);
        if (!exchange->gate_passed)
            return false;
        exchange->gate_passed = false;
        go_on(exchange);
        return true;
    case HTTP_STATE_STREAM: return http_stream_pump(connection);
    case HTTP_STATE_DISCARD: return discard_body(exchange);
    case HTTP_STATE_FLUSH:
    case HTTP_STATE_LINGER:
    case HTTP_STATE_DEAD: break;
    }
    return false;
}
