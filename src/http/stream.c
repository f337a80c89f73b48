/* Streamed answers: the producer is asked for more only while the socket takes its output, so that a stream of any
 * length holds one buffer of about HTTP_STREAM_ROOM_BYTES, and one that waits holds none. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "http/http_inside.h"

/* A chunk's size is filled in after its content: eight digits are always enough, leading zeros are allowed. */
#define CHUNK_HEAD_BYTES 10 /* "0000ffff\r\n" */

void http_stream_release(struct http_exchange *exchange)
{
    if (exchange->progress <= HTTP_ANSWERED)
        return;
    http_exchange_move(exchange, HTTP_ANSWERED);
    exchange->producer.release(exchange->producer.context);
}

void http_send_stream(struct http_request *request, const struct http_response *response,
                      const struct http_producer *producer)
{
    struct http_exchange *exchange = http_exchange_of(request);

    if (exchange->progress == HTTP_ON_WORKER) {
        http_answer_record(exchange, response, STR_NONE);
        exchange->producer = *producer;
        return;
    }
    bool has_body = http_answer_has_body(exchange, response->status);
    bool is_too_late =
        exchange->home->draining && request->route->kind == HTTP_STREAM; /* it would never end */
    http_exchange_unpark(exchange);
    if (is_too_late ||
        (has_body && (!http_exchange_hold(exchange) || !http_budget_hold_waiting(exchange) ||
                      !loop_park(exchange->home->loop, exchange, CLOCK_NEVER, NULL, &exchange->park)))) {
        producer->release(producer->context);
        http_send_error(request, &(struct error){.status = STATUS_OVERLOADED});
        return;
    }
    struct http_producer packed;
    struct http_response coded = *response;
    if (request->route->gzip == HTTP_GZIP_STREAMS && response->status == 200 &&
        http_gzip_begin(exchange, has_body, producer, &packed)) {
        coded.headers =
            arena_printf(request->arena, "%.*sContent-Encoding: gzip\r\n", STR_ARG(coded.headers));
        response = &coded;
        producer = &packed;
    }
    /* Unread output waits here, not in the kernel, which would hold megabytes per reader and hide that it is slow. */
    int room = HTTP_STREAM_ROOM_BYTES;
    if (request->route->kind == HTTP_STREAM)
        (void)setsockopt(exchange->connection->io.fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &room, sizeof room);
    bool has_length = producer->content_length >= 0;
    exchange->producer = *producer;
    exchange->unproduced = has_length ? (uint64_t)producer->content_length : 0;
    exchange->is_chunked = !has_length && exchange->parser.minor_version == 1;
    if (!has_length && !exchange->is_chunked)
        exchange->closes = true; /* HTTP/1.0: the end of the connection is the end of the body */
    http_answer_put_head(exchange, response, producer->content_length);
    http_answer_finish(exchange, response->status, has_body ? HTTP_STREAMING : HTTP_ANSWERED);
    if (!has_body)
        producer->release(producer->context);
}

struct loop_park_ref http_stream_ref(const struct http_request *request)
{
    const struct http_exchange *exchange = (const struct http_exchange *)request;
    return exchange->progress > HTTP_ANSWERED ? exchange->park : (struct loop_park_ref){0};
}

void http_stream_wake(struct loop_park_ref ref)
{
    struct http_exchange *exchange = loop_park_peek(ref);

    if (!exchange || exchange->progress != HTTP_STREAM_WAITS)
        return;
    http_exchange_move(exchange, HTTP_STREAMING);
    http_connection_resume(exchange->connection);
}

bool http_stream_is_taken(struct loop_park_ref ref)
{
    const struct http_exchange *exchange = loop_park_peek(ref);
    return exchange && buf_len(&exchange->connection->own_out) == 0;
}

/* ---- pumping ---- */

/* What the producer appended to `out` after `before` bytes, behind the place for its head, becomes a chunk, or nothing. */
static void close_chunk(struct buf *out, size_t before)
{
    size_t len = buf_len(out) - before - CHUNK_HEAD_BYTES;

    if (len == 0) {
        out->end -= CHUNK_HEAD_BYTES;
        return;
    }
    char *at = out->data + out->start + before;
    for (int shift = 28; shift >= 0; shift -= 4)
        *at++ = "0123456789abcdef"[len >> shift & 15];
    memcpy(at, "\r\n", 2);
    buf_put_str(out, STR("\r\n"));
}

/* Asks the producer once and frames its output. */
static enum http_producer_state produce(struct http_exchange *exchange, struct buf *out)
{
    size_t before = buf_len(out);
    size_t room = before < HTTP_STREAM_ROOM_BYTES ? HTTP_STREAM_ROOM_BYTES - before : 1;
    size_t frame = exchange->is_chunked ? CHUNK_HEAD_BYTES : 0;

    (void)buf_reserve(out, frame + room + 2);
    buf_commit(out, frame);
    enum http_producer_state state = exchange->producer.produce(exchange->producer.context, out, room);
    if (exchange->is_chunked)
        close_chunk(out, before);
    else
        exchange->unproduced -= buf_len(out) - before; /* checked by the caller when a length was promised */
    return state;
}

/* Without a length or chunks only a reset shows the reader that the answer is incomplete. */
static bool cut_stream(struct http_connection *connection)
{
    const struct http_exchange *exchange = connection->exchange;

    if (!exchange->is_chunked && exchange->producer.content_length < 0)
        http_connection_cut(connection);
    else
        http_connection_drop(connection);
    return false;
}

void http_stream_cut(struct loop_park_ref ref)
{
    const struct http_exchange *exchange = loop_park_peek(ref);

    if (exchange)
        (void)cut_stream(exchange->connection);
}

static bool end_stream(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;

    if (exchange->is_chunked)
        buf_put_str(connection->out, STR("0\r\n\r\n"));
    http_stream_release(exchange);
    return true;
}

/* The producer waits, and nothing more is asked of it. */
static bool end_waiting_stream(struct http_connection *connection)
{
    const struct http_exchange *exchange = connection->exchange;
    struct buf *out = connection->out;
    size_t before = buf_len(out);

    if (exchange->producer.put_last) {
        if (exchange->is_chunked) {
            (void)buf_reserve(out, CHUNK_HEAD_BYTES);
            buf_commit(out, CHUNK_HEAD_BYTES);
        }
        exchange->producer.put_last(exchange->producer.context, out);
        if (exchange->is_chunked)
            close_chunk(out, before);
    }
    return end_stream(connection);
}

bool http_stream_pump(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;
    bool ends_early = exchange->progress == HTTP_STREAM_ENDING;
    uint64_t left_before = exchange->unproduced;

    http_exchange_move(exchange, HTTP_STREAM_WAITS); /* before produce(): it may wake the stream */
    enum http_producer_state state = produce(exchange, connection->out);
    bool has_length = exchange->producer.content_length >= 0;
    bool is_long = exchange->unproduced > left_before; /* more than its content_length: it wrapped */
    bool is_short = state == HTTP_PRODUCER_END && exchange->unproduced != 0;
    if (state == HTTP_PRODUCER_FAIL || (has_length && (is_long || is_short)))
        return cut_stream(connection);
    if (state == HTTP_PRODUCER_END)
        return end_stream(connection);
    if (state == HTTP_PRODUCER_WAIT && ends_early)
        return end_waiting_stream(connection);
    if (state == HTTP_PRODUCER_WAIT && exchange->progress == HTTP_STREAM_WAITS) {
        if (exchange->request.route->kind == HTTP_STREAM)
            http_exchange_slim(exchange);
        return false;
    }
    if (exchange->progress == HTTP_STREAM_WAITS)
        http_exchange_move(exchange, HTTP_STREAMING);
    if (ends_early)
        http_exchange_move(exchange, HTTP_STREAM_ENDING);
    return true;
}

bool http_stream_rests(struct http_connection *connection, const struct http_turn *turn)
{
    const struct http_exchange *exchange = connection->exchange;
    bool is_produced =
        exchange && (exchange->progress == HTTP_STREAMING || exchange->progress == HTTP_STREAM_ENDING);

    connection->home->has_compressed = false;
    if (!is_produced || !http_turn_is_over(turn, connection->home))
        return false;
    http_turns_again(connection);
    return true;
}

/* A stream that is being produced ends when its producer waits next, since a reader takes an orderly end for a whole answer;
 * the drain's deadline cuts a reader that does not read until then. */
void http_stream_end_early(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;

    exchange->closes = true;
    if (exchange->producer.content_length >= 0)
        return;
    if (exchange->progress != HTTP_STREAM_WAITS) {
        http_exchange_move(exchange, HTTP_STREAM_ENDING);
        return;
    }
    (void)end_waiting_stream(connection);
    http_connection_resume(connection);
}
