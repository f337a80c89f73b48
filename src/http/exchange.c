/* Exchanges: everything that one request needs, pooled per loop, so that a request costs no allocation. */
#include <stdlib.h>

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

static void alloc_for_reading(struct http_exchange *exchange)
{
    const struct http_parser_limits *limits = &exchange->home->server->parser_limits;

    exchange->spans = memory_alloc(limits->header_count_max * sizeof *exchange->spans);
    exchange->headers = memory_alloc(limits->header_count_max * sizeof *exchange->headers);
    exchange->block = memory_alloc(HTTP_BLOCK_BYTES);
    exchange->block_bytes = HTTP_BLOCK_BYTES;
    exchange->start = exchange->end = 0;
    http_parser_init(&exchange->parser, limits, exchange->spans);
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
    exchange->request.header_count = 0;
    exchange->request.identity = NULL;
    arena_deinit(&exchange->arena);
    http_budget_free_body(exchange);
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
        alloc_for_reading(exchange);
        arena_init(&exchange->arena, HTTP_ARENA_BYTES);
    }
    exchange->connection = connection;
    exchange->start = exchange->end = 0;
    return exchange;
}

void http_exchange_destroy(struct http_exchange *exchange)
{
    arena_deinit(&exchange->arena);
    http_budget_free_body(exchange);
    http_budget_freed(exchange->home, exchange->block_bytes);
    free(exchange->block);
    free(exchange->spans);
    free(exchange->headers);
    free(exchange);
}

/* One that grew for a large request or was slimmed for a stream is not kept. */
void http_exchange_release(struct http_exchange *exchange)
{
    struct http_home *home = exchange->home;

    if (home->spare_count >= HTTP_SPARE_EXCHANGES_MAX || exchange->block_bytes > HTTP_BLOCK_BYTES ||
        !exchange->block) {
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
    if (exchange->body_bytes.data)
        http_budget_free_body(exchange);
    if (exchange->arena.first)
        arena_reset(&exchange->arena);
    if (!exchange->block)
        alloc_for_reading(exchange);
    http_parser_reset(&exchange->parser);
    http_exchange_move(exchange, HTTP_READING);
    exchange->step = 0;
    exchange->entry = NULL;
    exchange->is_late = exchange->framing_lost = exchange->closes = exchange->is_chunked = false;
    exchange->recorded.kind = HTTP_RECORDED_NOTHING;
    exchange->deadline_ns = 0;
    exchange->discarded = 0;
    exchange->body_since_ns = 0;
    exchange->park = (struct loop_park_ref){0};
}

static void move_to_front(struct http_exchange *exchange)
{
    memmove(exchange->block, exchange->block + exchange->start, exchange->end - exchange->start);
    exchange->end -= exchange->start;
    exchange->start = 0;
}

/* While a head is being read its bytes may move, since the parser keeps offsets. Once a step has seen the
 * request they may not: each piece of the body is read to where the head ended. */
size_t http_exchange_make_room(struct http_exchange *exchange, bool head_is_fixed)
{
    if (exchange->start == exchange->end)
        exchange->start = exchange->end = head_is_fixed ? exchange->head_end : 0;
    if (!head_is_fixed && exchange->end == exchange->block_bytes) {
        if (exchange->start > 0) {
            move_to_front(exchange);
        } else {
            exchange->block_bytes *= 2; /* bounded: the parser refuses a head past its limits */
            exchange->block = memory_realloc(exchange->block, exchange->block_bytes);
        }
    }
    return exchange->block_bytes - exchange->end;
}

/* Only before http_exchange_fill_request(): it may move the head. */
void http_exchange_make_body_room(struct http_exchange *exchange)
{
    size_t head_end = exchange->start + exchange->parser.at;

    if (exchange->block_bytes - head_end >= HTTP_BODY_ROOM_MIN)
        return;
    if (exchange->start >= HTTP_BODY_ROOM_MIN) {
        move_to_front(exchange);
        return;
    }
    exchange->block_bytes += HTTP_BLOCK_BYTES;
    exchange->block = memory_realloc(exchange->block, exchange->block_bytes);
}

struct str http_exchange_field(const struct http_exchange *exchange, enum http_field field)
{
    unsigned index = exchange->parser.first[field];
    return index == 0 ? STR_NONE : exchange->headers[index - 1].value;
}

/* A field that came more than once counts as none. */
static struct str field_once(const struct http_exchange *exchange, enum http_field field)
{
    return exchange->parser.repeated & 1u << field ? STR_NONE : http_exchange_field(exchange, field);
}

void http_exchange_begin_request(struct http_exchange *exchange)
{
    http_exchange_move(exchange, HTTP_RUNNING);
    exchange->request = (struct http_request){
        .minor_version = 1,
        .headers = exchange->headers,
        .arena = &exchange->arena,
        .loop = exchange->home->loop,
        .peer = &exchange->connection->peer,
        .connection = exchange->connection,
    };
    http_body_init(&exchange->body, exchange->head.body_kind, exchange->head.content_length);
}

/* Turns the parser's offsets into slices. From here on the head's bytes stay where they are. */
void http_exchange_fill_request(struct http_exchange *exchange)
{
    struct http_request *request = &exchange->request;
    const struct http_parser *parser = &exchange->parser;
    const char *data = exchange->block + exchange->start;

    http_exchange_begin_request(exchange);
    for (unsigned i = 0; i < parser->span_count; i++) {
        const struct http_span *span = &parser->spans[i];
        exchange->headers[i].name = str_of(data + span->name_at, span->name_len);
        exchange->headers[i].value = str_of(data + span->value_at, span->value_len);
    }
    request->header_count = parser->span_count;
    request->method = exchange->head.method;
    request->minor_version = parser->minor_version;
    request->target = exchange->head.target;
    request->path = exchange->head.path;
    request->query = exchange->head.query;
    request->authorization = field_once(exchange, HTTP_FIELD_AUTHORIZATION);
    request->authorization_count =
        parser->repeated & 1u << HTTP_FIELD_AUTHORIZATION ? 2 : parser->first[HTTP_FIELD_AUTHORIZATION] != 0;
    request->forwarded_client_cert = field_once(exchange, HTTP_FIELD_FORWARDED_CLIENT_CERT);
    request->has_body = exchange->head.body_kind != HTTP_BODY_NONE;
    struct str traceparent = http_exchange_field(exchange, HTTP_FIELD_TRACEPARENT);
    if (traceparent.len > 0 && !trace_parse(traceparent, &request->trace))
        request->trace = (struct trace){0};
    exchange->start += parser->at;
    exchange->head_end = exchange->start;
}

void http_exchange_unpark(struct http_exchange *exchange)
{
    if (exchange->park.generation != 0)
        (void)loop_park_take(exchange->park);
    exchange->park = (struct loop_park_ref){0};
}
