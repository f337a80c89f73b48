/* An exchange's block: where the bytes of requests are read to.
 *
 *     | a head that next ones are compared with | head being handled … | not yet parsed | free |
 *      at most HTTP_KEPT_BYTES_MAX               start                                   end
 *
 * The first part stays there while heads repeat its fields, whatever is read: also for the connection that has the exchange next, since
 * the connections of one client mostly send the same fields. */
#include "base/memory.h"
#include "http/http_inside.h"

/* Before bytes of the block are overwritten or moved. */
static void forget_earlier(struct http_exchange *exchange)
{
    http_parser_forget(&exchange->parser);
    exchange->way.entry = NULL;
}

/* Where the part begins that may be overwritten. */
static size_t keep_front(struct http_exchange *exchange)
{
    struct str known = exchange->parser.known;
    size_t front = known.len > 0 ? (size_t)(known.ptr + known.len - exchange->block) : 0;

    if (front == 0 || front > HTTP_KEPT_BYTES_MAX) {
        forget_earlier(exchange);
        return 0;
    }
    if ((uintptr_t)exchange->way.prefix.ptr >= (uintptr_t)known.ptr)
        exchange->way.entry = NULL;
    return front;
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
    if (head_is_fixed) {
        forget_earlier(exchange);
        if (exchange->start == exchange->end)
            exchange->start = exchange->end = exchange->head_end;
        return exchange->block_bytes - exchange->end;
    }
    size_t front = keep_front(exchange);
    if (exchange->start == exchange->end) {
        exchange->start = exchange->end = front;
    } else if (exchange->end == exchange->block_bytes) {
        forget_earlier(exchange);
        if (exchange->start > 0) {
            move_to_front(exchange);
        } else {
            if (!http_budget_charge_head(exchange, http_exchange_bytes(exchange) + exchange->block_bytes))
                return 0;
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
    forget_earlier(exchange);
    if (exchange->start >= HTTP_BODY_ROOM_MIN) {
        move_to_front(exchange);
        return;
    }
    exchange->block_bytes += HTTP_BLOCK_BYTES;
    exchange->block = memory_realloc(exchange->block, exchange->block_bytes);
    http_budget_set_exchange(exchange, http_exchange_bytes(exchange));
}
