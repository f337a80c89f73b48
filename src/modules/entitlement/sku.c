/* Is there an item of this sku (H6)? Asked before a grant where entitlement.hydration.enabled says so, on the request's loop:
 * while the owner is asked no thread waits. What comes of it is told to the handler, which answers it in its place: behind a
 * stored answer of the same key. Revokes do not ask: what is gone must be possible to take away. */
#include "base/clock.h"
#include "modules/entitlement/entitlement.h"

struct visit {
    struct hydration_waiter waiter; /* first: a waiter is its visit */
    struct entitlement_order order;
    struct loop_park_ref ref;
    bool is_parked, is_done;
};

void entitlement_sku_init(struct entitlement *entitlement)
{
    entitlement->hydration = entitlement->settings->hydration.policy;
    entitlement->hydration.module = "entitlement";
    if (entitlement->settings->hydration.enabled)
        kernel_hydration_consumes(entitlement->kernel, "item");
}

static void on_done(struct hydration_waiter *waiter, const struct hydration_outcome *outcome)
{
    struct visit *visit = (struct visit *)waiter;
    struct http_request *request = visit->is_parked ? http_request_unpark(visit->ref) : NULL;
    visit->order.item = outcome->result;
    visit->is_done = true;
    if (request)
        http_request_resume(request);
}

static void on_drop(struct http_request *request, void *context)
{
    struct visit *visit = context;
    (void)request;
    hydration_waiter_cancel(&visit->waiter);
}

/* The row's deadline is up. */
static void on_timeout(struct http_request *request, void *context)
{
    struct visit *visit = context;
    hydration_waiter_cancel(&visit->waiter);
    http_send_error(request, &(struct error){.status = STATUS_HYDRATION_TIMEOUT});
}

static enum http_step ask(struct http_request *request, const struct hydration_need *need,
                          struct visit *visit)
{
    const struct entitlement *entitlement = request->context;
    hydration_ask(kernel_hydration(entitlement->kernel), &entitlement->hydration, need, false, request->loop,
                  &visit->waiter, on_done);
    if (visit->is_done)
        return HTTP_STEP_PASS;
    visit->is_parked = http_request_park(request, CLOCK_NEVER, on_timeout, visit, &visit->ref);
    if (visit->is_parked) {
        http_request_on_drop(request, on_drop);
        return HTTP_STEP_PARKED;
    }
    hydration_waiter_cancel(&visit->waiter);
    return HTTP_STEP_ANSWERED; /* with 503, by http_request_park() */
}

/* A sku that cannot be the name of an entity is no item's. */
enum http_step entitlement_sku_prepare(struct http_request *request, void *context)
{
    const struct entitlement *entitlement = context;
    const struct auth_identity *who = kernel_identity(request);
    if (!entitlement->settings->hydration.enabled)
        return HTTP_STEP_PASS;
    struct visit *visit = arena_zalloc(request->arena, sizeof *visit);
    struct error error = {0};
    if (entitlement_order_read(request, &visit->order, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return HTTP_STEP_ANSWERED;
    }
    request->handler_data = &visit->order;
    struct hydration_need need = {
        .tenant = who->tenant,
        .subject = who->subject,
        .entity_type = STR("item"),
        .entity_id = visit->order.texts[ENTITLEMENT_SKU],
        .cover.mode = HYDRATION_EXISTENCE,
        .trace = request->trace,
    };
    unsigned no_fields = 0;
    if (hydration_need_check(&need, NULL, &no_fields, &error) == STATUS_OK)
        return ask(request, &need, visit);
    visit->order.item = HYDRATION_NOT_FOUND;
    return HTTP_STEP_PASS;
}
