/* Answers: http_send() and its kin, on the loop or recorded on a worker. */
#include <assert.h>

#include "base/log.h"
#include "http/http_inside.h"
#include "http/response.h"

bool http_answer_has_body(const struct http_exchange *exchange, int status)
{
    return exchange->request.method != HTTP_HEAD && http_status_has_content(status);
}

/* Is what is left of the request's body small enough to be read and dropped for the connection's sake? A
 * client that waits for 100 may send it or not, so there is no telling what the next bytes are. */
static bool can_drop_rest(const struct http_exchange *exchange)
{
    const struct http_body *body = &exchange->body;

    if (http_body_is_done(body))
        return true;
    if (exchange->head.expects_continue)
        return false;
    return body->kind == HTTP_BODY_CHUNKED || body->remaining <= HTTP_DISCARD_BYTES_MAX;
}

static bool must_close(const struct http_exchange *exchange, const struct http_response *response)
{
    return response->close || exchange->framing_lost || !exchange->head.keep_alive ||
           exchange->home->draining || !can_drop_rest(exchange);
}

void http_answer_put_head(struct http_exchange *exchange, const struct http_response *response,
                          int64_t length)
{
    struct http_response_head head = {
        .status = response->status,
        .date_line = http_home_date_line(exchange->home),
        .content_type = response->content_type,
        .headers = response->headers,
        .content_length = length,
        .is_chunked = exchange->is_chunked,
        .has_content = http_status_has_content(response->status),
    };

    exchange->closes = exchange->closes || must_close(exchange, response);
    if (exchange->closes)
        head.persistence = HTTP_PERSIST_CLOSE;
    else if (exchange->request.minor_version == 0)
        head.persistence = HTTP_PERSIST_KEEP_ALIVE;
    http_response_put_head(exchange->connection->out, &head);
}

void http_answer_finish(struct http_exchange *exchange, int status)
{
    exchange->answered = true;
    http_exchange_leave(exchange); /* now: a client that reads slowly keeps nobody waiting */
    http_tally_count(exchange, status);
    http_connection_resume(exchange->connection);
}

static void put_parts(char *at, const struct str *parts, size_t part_count)
{
    for (size_t i = 0; i < part_count; i++) {
        if (parts[i].len == 1) /* the commas of a list: every other part */
            *at = *parts[i].ptr;
        else if (parts[i].len > 0)
            memcpy(at, parts[i].ptr, parts[i].len);
        at += parts[i].len;
    }
}

/* On a worker: everything is copied into the request's arena, which is the worker's until it is back. */
static void record(struct http_exchange *exchange, const struct http_response *response,
                   const struct str *parts, size_t part_count)
{
    struct http_recorded *recorded = &exchange->recorded;
    size_t bytes = 0;

    assert(!recorded->is_there);
    for (size_t i = 0; i < part_count; i++)
        bytes += parts[i].len;
    char *body = arena_alloc(&exchange->arena, bytes + 1);
    put_parts(body, parts, part_count);
    recorded->response = *response;
    recorded->response.content_type = arena_str(&exchange->arena, response->content_type);
    recorded->response.headers = arena_str(&exchange->arena, response->headers);
    recorded->response.body = str_of(body, bytes);
    recorded->is_stream = false;
    recorded->is_there = true;
}

void http_send_parts(struct http_request *request, const struct http_response *response,
                     const struct str *parts, size_t part_count)
{
    struct http_exchange *exchange = http_exchange_of(request);
    size_t bytes = 0;

    if (exchange->on_worker) {
        record(exchange, response, parts, part_count);
        return;
    }
    assert(!exchange->answered);
    for (size_t i = 0; i < part_count; i++)
        bytes += parts[i].len;
    http_answer_put_head(exchange, response, (int64_t)bytes);
    if (http_answer_has_body(exchange, response->status)) {
        put_parts(buf_reserve(exchange->connection->out, bytes), parts, part_count);
        buf_commit(exchange->connection->out, bytes);
    }
    http_answer_finish(exchange, response->status);
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

/* The caller's lines, and what the status asks for unless the caller has said it. */
static void put_error_lines(struct buf *lines, int status, struct str headers)
{
    buf_put_str(lines, headers);
    if (status == 401 && !has_line(headers, STR("WWW-Authenticate:")))
        buf_put_str(lines, STR("WWW-Authenticate: Bearer\r\n"));
    if (status == 503 && !has_line(headers, STR("Retry-After:")))
        buf_put_str(lines, STR("Retry-After: 1\r\n"));
}

void http_send_error_with(struct http_request *request, const struct error *error, struct str headers,
                          struct str extra_members)
{
    struct buf body = {0}, lines = {0};
    int status = status_http(error->status);

    if (status == 500)
        log_error("request_failed", LOG_CSTR("route", request->route ? request->route->path : ""),
                  LOG_ERROR_FIELDS(error));
    http_response_put_error(&body, request->route ? request->route->errors : HTTP_ERRORS_CODE, error,
                            extra_members);
    put_error_lines(&lines, status, headers);
    http_send(request, &(struct http_response){
                           .status = status,
                           .headers = buf_str(&lines),
                           .body = buf_str(&body),
                       });
    buf_deinit(&body);
    buf_deinit(&lines);
}
