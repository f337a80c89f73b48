/* Streamed answers: the source is asked for more only while the socket takes what it gave, so that a stream
 * of any length holds one buffer of about HTTP_STREAM_ROOM_BYTES, and one that waits holds none. */
#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "http/http_inside.h"

/* A chunk's size is written behind its content: eight digits are always enough, and leading zeros are
 * allowed. */
#define CHUNK_HEAD_BYTES 10 /* "0000ffff\r\n" */

/* What a reader does not take waits here, not in the kernel, which would keep megabytes of it for each and hide for as long
 * that it is slow. */
static void limit_unsent(const struct http_connection *connection)
{
    int bytes = HTTP_STREAM_ROOM_BYTES;
    (void)setsockopt(connection->io.fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
}

static void on_never(void *owner)
{
    (void)owner; /* a stream is parked without a deadline */
}

void http_stream_release(struct http_exchange *exchange)
{
    if (!exchange->has_source)
        return;
    exchange->has_source = false;
    exchange->source.release(exchange->source.context);
}

static void record(struct http_exchange *exchange, const struct http_response *response,
                   const struct http_source *source)
{
    struct http_recorded *recorded = &exchange->recorded;

    assert(!recorded->is_there);
    recorded->response = *response;
    recorded->response.content_type = arena_str(&exchange->arena, response->content_type);
    recorded->response.headers = arena_str(&exchange->arena, response->headers);
    recorded->source = *source;
    recorded->is_stream = true;
    recorded->is_there = true;
}

/* HTTP/1.0 knows no chunks: without a length the end of the connection is the end of the body. */
static void choose_framing(struct http_exchange *exchange, int64_t content_length)
{
    exchange->source_left = content_length >= 0 ? (uint64_t)content_length : 0;
    exchange->is_chunked = content_length < 0 && exchange->request.minor_version == 1;
    if (content_length < 0 && !exchange->is_chunked)
        exchange->closes = true;
}

void http_send_stream(struct http_request *request, const struct http_response *response,
                      const struct http_source *source)
{
    struct http_exchange *exchange = http_exchange_of(request);

    if (exchange->on_worker) {
        record(exchange, response, source);
        return;
    }
    assert(!exchange->answered);
    bool has_body = http_answer_has_body(exchange, response->status);
    bool is_too_late =
        exchange->home->draining && request->route->kind == HTTP_STREAM; /* it would never end */
    http_exchange_unpark(exchange);
    if (is_too_late ||
        (has_body && !loop_park(exchange->home->loop, exchange, CLOCK_NEVER, on_never, &exchange->park))) {
        source->release(source->context);
        http_send_error(request, &(struct error){.status = STATUS_OVERLOADED});
        return;
    }
    if (request->route->kind == HTTP_STREAM)
        limit_unsent(exchange->connection);
    choose_framing(exchange, source->content_length);
    http_answer_put_head(exchange, response, source->content_length);
    exchange->source = *source;
    exchange->source_waits = false;
    exchange->has_source = true;
    if (!has_body)
        http_stream_release(exchange);
    http_answer_finish(exchange, response->status);
}

struct loop_park_ref http_stream_ref(const struct http_request *request)
{
    const struct http_exchange *exchange = (const struct http_exchange *)request;
    return exchange->has_source ? exchange->park : (struct loop_park_ref){0};
}

void http_stream_wake(struct loop_park_ref ref)
{
    struct http_exchange *exchange = loop_park_peek(ref);

    if (!exchange || !exchange->source_waits)
        return;
    exchange->source_waits = false;
    http_connection_resume(exchange->connection);
}

bool http_stream_is_taken(struct loop_park_ref ref)
{
    const struct http_exchange *exchange = loop_park_peek(ref);
    return exchange && buf_len(&exchange->connection->own_out) == 0;
}

/* ---- pumping ---- */

static void put_chunk_head(char *at, size_t len)
{
    static const char digits[] = "0123456789abcdef";

    for (int shift = 28; shift >= 0; shift -= 4)
        *at++ = digits[len >> shift & 15];
    *at++ = '\r';
    *at = '\n';
}

/* Asks the source once, framing what it gave. */
static enum http_source_state produce(struct http_exchange *exchange, struct buf *out)
{
    size_t before = buf_len(out);
    size_t room = before < HTTP_STREAM_ROOM_BYTES ? HTTP_STREAM_ROOM_BYTES - before : 1;
    size_t frame = exchange->is_chunked ? CHUNK_HEAD_BYTES : 0;

    (void)buf_reserve(out, frame + room + 2);
    buf_commit(out, frame);
    enum http_source_state state = exchange->source.produce(exchange->source.context, out, room);
    size_t len = buf_len(out) - before - frame;
    if (!exchange->is_chunked) {
        exchange->source_left -= len; /* checked by the caller when a length was promised */
        return state;
    }
    if (len == 0) {
        out->end -= frame;
        return state;
    }
    put_chunk_head(out->data + out->start + before, len);
    buf_put_str(out, STR("\r\n"));
    return state;
}

/* Without a length or chunks only a reset tells the reader that this was not the end. */
static bool cut(struct http_connection *connection)
{
    const struct http_exchange *exchange = connection->exchange;

    if (!exchange->is_chunked && exchange->source.content_length < 0)
        http_connection_cut(connection);
    else
        http_connection_drop(connection);
    return false;
}

void http_stream_cut(struct loop_park_ref ref)
{
    const struct http_exchange *exchange = loop_park_peek(ref);

    if (exchange)
        (void)cut(exchange->connection);
}

static bool end(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;

    if (exchange->is_chunked)
        buf_put_str(connection->out, STR("0\r\n\r\n"));
    http_stream_release(exchange);
    http_connection_move(connection, HTTP_STATE_HANDLER); /* answered, as any other from here */
    return true;
}

static bool broke_promise(const struct http_exchange *exchange, uint64_t left_before, bool is_end)
{
    if (exchange->source.content_length < 0)
        return false;
    return exchange->source_left > left_before || (is_end && exchange->source_left != 0);
}

bool http_stream_pump(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;
    uint64_t left_before = exchange->source_left;

    if (exchange->source_waits)
        return false;
    exchange->source_waits = true; /* a wake from inside produce() must count */
    enum http_source_state state = produce(exchange, connection->out);
    if (state == HTTP_SOURCE_FAIL || broke_promise(exchange, left_before, state == HTTP_SOURCE_END))
        return cut(connection);
    if (state == HTTP_SOURCE_WAIT && exchange->ends_early)
        return end(connection);
    if (state == HTTP_SOURCE_WAIT && exchange->source_waits) {
        if (exchange->request.route->kind == HTTP_STREAM)
            http_exchange_slim(exchange);
        return false;
    }
    if (state == HTTP_SOURCE_WAIT)
        return true;
    exchange->source_waits = false;
    return state == HTTP_SOURCE_END ? end(connection) : true;
}

/* One in the middle of something is let to finish it, since a half of it that ends in order is taken for whole; the drain's
 * deadline cuts who does not take it. */
void http_stream_end_early(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;

    exchange->closes = true;
    if (exchange->source.content_length >= 0)
        return;
    if (!exchange->source_waits) {
        exchange->ends_early = true;
        return;
    }
    (void)end(connection);
    http_connection_resume(connection);
}
