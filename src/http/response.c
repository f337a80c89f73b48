/* Answers: writing a head (one reservation for the whole of it, then plain copies), and http_send() with its
 * variants, on the loop or recorded on a worker. */
#include "base/json.h"
#include "base/log.h"
#include "http/http_inside.h"

/* X(status, reason): every status the server or a handler answers with */
#define STATUS_LINES(X)                       \
    X(200, "OK")                              \
    X(201, "Created")                         \
    X(202, "Accepted")                        \
    X(204, "No Content")                      \
    X(304, "Not Modified")                    \
    X(400, "Bad Request")                     \
    X(401, "Unauthorized")                    \
    X(403, "Forbidden")                       \
    X(404, "Not Found")                       \
    X(405, "Method Not Allowed")              \
    X(406, "Not Acceptable")                  \
    X(408, "Request Timeout")                 \
    X(409, "Conflict")                        \
    X(410, "Gone")                            \
    X(411, "Length Required")                 \
    X(412, "Precondition Failed")             \
    X(413, "Content Too Large")               \
    X(414, "URI Too Long")                    \
    X(415, "Unsupported Media Type")          \
    X(417, "Expectation Failed")              \
    X(422, "Unprocessable Content")           \
    X(429, "Too Many Requests")               \
    X(431, "Request Header Fields Too Large") \
    X(500, "Internal Server Error")           \
    X(501, "Not Implemented")                 \
    X(502, "Bad Gateway")                     \
    X(503, "Service Unavailable")             \
    X(504, "Gateway Timeout")                 \
    X(505, "HTTP Version Not Supported")

enum slot {
#define SLOT(status, reason) SLOT_##status,
    STATUS_LINES(SLOT)
#undef SLOT
        SLOT_OTHER
};
_Static_assert(SLOT_OTHER < HTTP_STATUS_SLOTS, "every status has a slot");

static const struct str close_line = {"Connection: close\r\n", 19};

/* What most answers begin with, the date between the first line and the second; the length's number follows. */
#define OK_LINE "HTTP/1.1 200 OK\r\n"
#define JSON_LINE "Content-Type: application/json\r\n"
#define LENGTH_NAME "Content-Length: "
#define DATE_LINE_BYTES (sizeof "Date: \r\n" - 1 + CLOCK_HTTP_DATE_BYTES - 1)
#define USUAL_LINES_BYTES (sizeof OK_LINE JSON_LINE LENGTH_NAME - 1 + DATE_LINE_BYTES)
_Static_assert(USUAL_LINES_BYTES <= sizeof((struct http_home *)NULL)->usual_lines,
               "a home has room for them");

#define FIXED_BYTES_MAX 256 /* status line, field names, Connection and all CRLFs; without the number */

unsigned http_status_slot(int status)
{
    switch (status) {
#define CASE(status, reason) \
    case status: return SLOT_##status;
        STATUS_LINES(CASE)
#undef CASE
    default: return SLOT_OTHER;
    }
}

static bool status_has_content(int status)
{
    return status >= 200 && status != 204 && status != 304;
}

/* Made once in each second of the wall clock. */
static const char *usual_lines_of(struct http_home *home)
{
    int64_t now = loop_now_ns(home->loop);

    if (now >= home->date_until_ns) {
        int64_t unix_us = clock_unix_us();
        char *at = str_put(home->usual_lines, STR(OK_LINE "Date: "));
        clock_http_date(unix_us, at);
        at = str_put(at + CLOCK_HTTP_DATE_BYTES - 1, STR("\r\n" JSON_LINE LENGTH_NAME));
        assert(at == home->usual_lines + USUAL_LINES_BYTES);
        home->date_until_ns = now + (1000000 - unix_us % 1000000) * 1000;
    }
    return home->usual_lines;
}

/* The same lines for another status, type or length. */
static char *put_lines(char *at, const char *usual, const struct http_response *response, int64_t length,
                       bool is_chunked)
{
    static const struct str lines[] = {
#define LINE(status, reason)                                  \
    [SLOT_##status] = {"HTTP/1.1 " #status " " reason "\r\n", \
                       sizeof("HTTP/1.1 " #status " " reason "\r\n") - 1},
        STATUS_LINES(LINE)
#undef LINE
    };
    unsigned slot = http_status_slot(response->status);

    if (slot != SLOT_OTHER) {
        at = str_put(at, lines[slot]);
    } else {
        at = str_put_u64(str_put(at, STR("HTTP/1.1 ")), (uint64_t)response->status);
        at = str_put(at, STR(" \r\n")); /* the reason may be empty, its space may not */
    }
    at = str_put(at, str_of(usual + sizeof OK_LINE - 1, DATE_LINE_BYTES));
    if (!status_has_content(response->status))
        return at;
    if (response->content_type.len > 0) {
        at = str_put(str_put(at, STR("Content-Type: ")), response->content_type);
        at = str_put(at, STR("\r\n"));
    } else {
        at = str_put(at, STR(JSON_LINE));
    }
    if (is_chunked) {
        at = str_put(at, STR("Transfer-Encoding: chunked\r\n"));
    } else if (length >= 0) {
        at = str_put_u64(str_put(at, STR(LENGTH_NAME)), (uint64_t)length);
        at = str_put(at, STR("\r\n"));
    }
    return at;
}

/* Status line, fields and the empty line. `connection` is a whole line or empty; length -1 = not known. */
static void put_head(struct buf *out, struct http_home *home, const struct http_response *response,
                     int64_t length, bool is_chunked, struct str connection)
{
    const char *usual = usual_lines_of(home);
    char *begin = buf_reserve(out, FIXED_BYTES_MAX + STR_U64_BYTES + DATE_LINE_BYTES +
                                       response->content_type.len + response->headers.len);
    char *at = begin;

    if (response->status == 200 && response->content_type.len == 0 && !is_chunked && length >= 0) {
        at = str_put_u64(str_put(at, str_of(usual, USUAL_LINES_BYTES)), (uint64_t)length);
        at = str_put(at, STR("\r\n"));
    } else {
        at = put_lines(at, usual, response, length, is_chunked);
    }
    at = str_put(at, response->headers);
    at = str_put(at, connection);
    at = str_put(at, STR("\r\n"));
    buf_commit(out, (size_t)(at - begin));
}

/* Few have: one test for all of them. */
static inline bool has_more_lines(const struct http_exchange *exchange)
{
    return (exchange->request.request_id.len | (uintptr_t)exchange->home->cors | exchange->entry->varies) !=
           0;
}

/* ---- errors ---- */

/* May a client read the details? Not of a 5xx, except 501, which is about what the client sent. */
static bool is_public(const struct error *error)
{
    return status_http(error->status) < 500 || error->status == STATUS_NOT_IMPLEMENTED;
}

/* {"code","message"} or {"detail","error_code"}, the field at fault if there is one, then `extra_members`. */
static void put_error(struct buf *out, const struct http_route *route, const struct error *error,
                      struct str extra_members)
{
    bool has_own = is_public(error) && error->message[0] != '\0';
    struct str message = str_from(has_own ? error->message : status_message(error->status));
    struct str code = str_from(status_code(error->status));

    buf_put_char(out, '{');
    if (route && route->errors == HTTP_ERRORS_DETAIL) {
        json_put_member_str(out, "detail", message);
        json_put_member_str(out, "error_code", code);
    } else {
        json_put_member_str(out, "code", code);
        json_put_member_str(out, "message", message);
    }
    if (error->field[0] != '\0' && is_public(error))
        json_put_member_str(out, "field", str_from(error->field));
    buf_put_str(out, extra_members);
    buf_put_char(out, '}');
}

void http_connection_fail(struct http_connection *connection, enum status status)
{
    if (connection->state == HTTP_STATE_DISCARD)
        http_connection_finish(connection, true);
    else
        http_connection_refuse(connection, &(struct error){.status = status});
}

void http_connection_refuse(struct http_connection *connection, const struct error *error)
{
    struct http_exchange *exchange = connection->exchange;
    const struct http_route *route = exchange && exchange->entry ? exchange->entry->route : NULL;
    struct http_response response = {.status = status_http(error->status)};
    struct buf body = {0};

    if (response.status == 503)
        response.headers = STR("Retry-After: 1\r\n");
    put_error(&body, route, error, STR_NONE);
    put_head(connection->out, connection->home, &response, (int64_t)buf_len(&body), false, close_line);
    if (route && has_more_lines(exchange))
        http_observe_put_lines(exchange, response.status, connection->out);
    if (route)
        exchange->answer_bytes = (int64_t)buf_len(&body);
    buf_put_str(connection->out, buf_str(&body));
    buf_deinit(&body);
    if (route)
        http_tally_count(exchange, response.status);
    else
        http_tally_count_unmatched(connection->home, response.status);
    http_connection_finish(connection, true);
    http_connection_resume(connection);
}

/* ---- sending ---- */

bool http_answer_has_body(const struct http_exchange *exchange, int status)
{
    return exchange->request.method != HTTP_HEAD && status_has_content(status);
}

void http_answer_put_head(struct http_exchange *exchange, const struct http_response *response,
                          int64_t length)
{
    const struct http_body *body = &exchange->body;
    /* The rest of a body is read and dropped where it is small, so that the connection stays open. A client that waits for 100
     * may send it or not, so its next bytes may be either. */
    bool can_drop_rest = http_body_is_done(body) ||
                         (!exchange->head.expects_continue &&
                          (body->kind == HTTP_BODY_CHUNKED || body->remaining <= HTTP_DISCARD_BYTES_MAX));

    exchange->closes = exchange->closes || response->close || !exchange->head.keep_alive || !can_drop_rest ||
                       (exchange->home->leaving && http_drain_ends_with(exchange));
    struct str line = exchange->closes                      ? close_line
                      : exchange->parser.minor_version == 0 ? STR("Connection: keep-alive\r\n")
                                                            : STR_NONE;
    exchange->answer_bytes = length;
    put_head(exchange->connection->out, exchange->home, response, length, exchange->is_chunked, line);
    if (has_more_lines(exchange))
        http_observe_put_lines(exchange, response->status, exchange->connection->out);
}

void http_answer_finish(struct http_exchange *exchange, int status, enum http_progress progress)
{
    http_exchange_move(exchange, progress);
    http_dispatch_end_key(exchange); /* now: other requests do not wait for a slow reader */
    http_tally_count(exchange, status);
    http_connection_resume(exchange->connection);
}

static void put_parts(char *at, const struct str *parts, size_t part_count)
{
    for (size_t i = 0; i < part_count; i++) {
        if (parts[i].len > 0)
            memcpy(at, parts[i].ptr, parts[i].len);
        at += parts[i].len;
    }
}

/* The arena is the worker's until it returns. */
void http_answer_record(struct http_exchange *exchange, const struct http_response *response, struct str body)
{
    struct http_response *recorded = &exchange->work->recorded;

    assert(recorded->status == 0);
    *recorded = *response;
    recorded->content_type = arena_str(&exchange->arena, response->content_type);
    recorded->headers = arena_str(&exchange->arena, response->headers);
    recorded->body = body;
}

char *http_send_room(struct http_request *request, const struct http_response *response, size_t bytes)
{
    struct http_exchange *exchange = http_exchange_of(request);
    char *room = NULL;

    assert(exchange->progress != HTTP_ON_WORKER);
    http_answer_put_head(exchange, response, (int64_t)bytes);
    if (http_answer_has_body(exchange, response->status)) {
        room = buf_reserve(exchange->connection->out, bytes);
        buf_commit(exchange->connection->out, bytes);
    }
    http_answer_finish(exchange, response->status, HTTP_ANSWERED);
    return room;
}

void http_send_parts(struct http_request *request, const struct http_response *response,
                     const struct str *parts, size_t part_count)
{
    struct http_exchange *exchange = http_exchange_of(request);
    size_t bytes = 0;

    for (size_t i = 0; i < part_count; i++)
        bytes += parts[i].len;
    if (exchange->progress == HTTP_ON_WORKER) {
        if (!http_budget_charge_answer(exchange, bytes)) {
            http_send_error(request, &(struct error){.status = STATUS_OVERLOADED});
            return;
        }
        char *body = arena_alloc(&exchange->arena, bytes + 1);
        put_parts(body, parts, part_count);
        http_answer_record(exchange, response, str_of(body, bytes));
        return;
    }
    char *room = http_send_room(request, response, bytes);
    if (room)
        put_parts(room, parts, part_count);
}

void http_send(struct http_request *request, const struct http_response *response)
{
    http_send_parts(request, response, &response->body, 1);
}

void http_send_error(struct http_request *request, const struct error *error)
{
    http_send_error_with(request, error, STR_NONE, STR_NONE);
}

static bool has_line(struct str headers, struct str name)
{
    return headers.len > 0 && memmem(headers.ptr, headers.len, name.ptr, name.len) != NULL;
}

void http_send_error_with(struct http_request *request, const struct error *error, struct str headers,
                          struct str extra_members)
{
    struct buf body = {0}, lines = {0};
    int status = status_http(error->status);

    put_error(&body, request->route, error, extra_members);
    buf_put_str(&lines, headers);
    if (status == 500)
        http_observe_failure(request, error, &lines);
    if (status == 401 && !has_line(headers, STR("WWW-Authenticate:")))
        buf_put_str(&lines, STR("WWW-Authenticate: Bearer\r\n"));
    if (status == 503 && !has_line(headers, STR("Retry-After:")))
        buf_put_str(&lines, STR("Retry-After: 1\r\n"));
    http_send(request, &(struct http_response){
                           .status = status,
                           .headers = buf_str(&lines),
                           .body = buf_str(&body),
                       });
    buf_deinit(&body);
    buf_deinit(&lines);
}
