/* Parked requests: the connection stands still until somebody finds the request by its reference, or time is
 * up. */
#include "http/http_inside.h"

static void on_park_timeout(void *owner)
{
    struct http_exchange *exchange = owner;

    exchange->park = (struct loop_park_ref){0};
    exchange->on_timeout(&exchange->request, exchange->park_context);
    if (!exchange->answered && exchange->park.generation == 0 && !exchange->gate_passed)
        http_send_error(&exchange->request, &(struct error){.status = STATUS_TIMEOUT});
}

bool http_request_park(struct http_request *request, int64_t deadline_ns, http_timeout_fn *on_timeout,
                       void *context, struct loop_park_ref *ref)
{
    struct http_exchange *exchange = http_exchange_of(request);

    if (exchange->stage == HTTP_STAGE_PREPARE && deadline_ns > exchange->deadline_ns)
        deadline_ns = exchange->deadline_ns;
    if (!loop_park(exchange->home->loop, exchange, deadline_ns, on_park_timeout, ref)) {
        *ref = (struct loop_park_ref){0};
        http_send_error(request, &(struct error){.status = STATUS_OVERLOADED});
        return false;
    }
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
    return &exchange->request;
}

void http_gate_resume(struct http_request *request)
{
    struct http_exchange *exchange = http_exchange_of(request);

    exchange->gate_passed = true;
    /* At the door it is inside from now on, even if its client goes before its turn comes. */
    if (exchange->connection->state == HTTP_STATE_HANDLER && exchange->stage == HTTP_STAGE_DOOR)
        exchange->is_inside = true;
    http_connection_resume(exchange->connection);
}
