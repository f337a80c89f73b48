/* Grants and revokes: the body is checked here, the rest is one call of entitlement.change() (sql/entitlement), whose answer the
 * idempotency engine stores in the same transaction.
 *
 * Where entitlement.hydration.enabled is set, a grant looks its item up first (H6), on the request's loop: no thread waits. The handler
 * sends the result after the check for a stored answer, so that a replay is the same whatever became of the item. Revokes do not look:
 * a right to an item that is gone can be revoked. */
#include <string.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/json_texts.h"
#include "base/memory.h"
#include "base/uuid.h"
#include "modules/entitlement/entitlement.h"
enum { CHANGE_MS = 10000 }; /* half of it at most for a duplicate in another process */

struct metric_family entitlement_changes_family = {
    .name = "entitlement_changes_total",
    .help = "Entitlements granted and revoked by this process; refusals and replays are not counted.",
    .type = METRIC_COUNTER,
    .labels = {"change", NULL},
};

static const struct db_statement change_sql = DB_STATEMENT(
    "SELECT answer_status, answer_body FROM entitlement.change($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)");
/* An answer without an effect. */
static const struct db_statement refuse_sql = DB_STATEMENT("SELECT $1::integer, $2::text");

enum { USER_ID, SKU, REASON, PURCHASE_ID, TEXTS };
/* A body, read once: by entitlement_sku_prepare(), or by the handler. */
struct order {
    struct str texts[TEXTS];
    enum hydration_result item; /* UPDATED: the item exists, or the check is off */
};

/* The specification's four, all required. Others are ignored. */
static const struct json_text body_rows[] = {
    [USER_ID] = {"user_id", 1, 255, .is_plain = true},
    [SKU] = {"stock_keeping_unit", 1, 255, .is_plain = true},
    [REASON] = {"reason", 1, 255, .is_plain = true},
    [PURCHASE_ID] = {"purchase_id", 1, 255, .is_plain = true},
    {.name = NULL},
};

void entitlement_change_init(struct entitlement *entitlement)
{
    entitlement->hydration = entitlement->settings->hydration.policy;
    entitlement->hydration.module = "entitlement";
    if (entitlement->settings->hydration.enabled)
        kernel_hydration_consumes(entitlement->kernel, "item");
    (void)metric_series_get(&entitlement_changes_family, &STR("grant")); /* both are shown before a change */
    (void)metric_series_get(&entitlement_changes_family, &STR("revoke"));
}

static enum status read_order(const struct http_request *request, struct order *order, struct error *error)
{
    const struct entitlement *entitlement = request->context;
    struct buf others = {0};
    *order = (struct order){.item = HYDRATION_UPDATED};
    if (!str_is_name(kernel_identity(request)->tenant))
        return error_set_field(error, STATUS_BAD_REQUEST, "tenant_id",
                               "a tenant's name is 1 to 64 of A-Z a-z 0-9 . _ -");
    enum status status =
        json_texts_read(request->body, body_rows, order->texts, &others, request->arena, error);
    buf_deinit(&others);
    return status == STATUS_OK ? kernel_store_require(entitlement->kernel, error) : status;
}

/* ---- does the item exist? ---- */

struct sku_check {
    struct hydration_waiter waiter;
    struct order order;
    struct loop_park_ref ref;
    bool is_parked, is_done;
};

static void on_sku_done(struct hydration_waiter *waiter, const struct hydration_outcome *outcome)
{
    struct sku_check *check = CONTAINER_OF(waiter, struct sku_check, waiter);
    struct http_request *request = check->is_parked ? http_request_unpark(check->ref) : NULL;
    check->order.item = outcome->result;
    check->is_done = true;
    if (request)
        http_request_resume(request);
}

static void on_sku_drop(struct http_request *request, void *context)
{
    struct sku_check *check = context;
    (void)request;
    hydration_waiter_cancel(&check->waiter);
}

/* The row's deadline is up. */
static void on_sku_timeout(struct http_request *request, void *context)
{
    struct sku_check *check = context;
    hydration_waiter_cancel(&check->waiter);
    http_send_error(request, &(struct error){.status = STATUS_HYDRATION_TIMEOUT});
}

/* A sku that cannot be an entity's id is not found. */
enum http_step entitlement_sku_prepare(struct http_request *request, void *context)
{
    const struct entitlement *entitlement = context;
    const struct auth_identity *who = kernel_identity(request);
    if (!entitlement->settings->hydration.enabled)
        return HTTP_STEP_PASS;
    struct sku_check *check = arena_zalloc(request->arena, sizeof *check);
    struct error error = {0};
    if (read_order(request, &check->order, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return HTTP_STEP_ANSWERED;
    }
    request->handler_data = &check->order;
    struct hydration_need need = {
        .tenant = who->tenant,
        .caller = who->subject,
        .entity_type = STR("item"),
        .entity_id = check->order.texts[SKU],
        .cover.mode = HYDRATION_EXISTENCE,
        .trace = request->trace,
    };
    if (hydration_need_check(&need, NULL, 0, &error) != STATUS_OK) {
        check->order.item = HYDRATION_NOT_FOUND;
        return HTTP_STEP_PASS;
    }
    hydration_ask(kernel_hydration(entitlement->kernel), &entitlement->hydration, &need, false, request->loop,
                  &check->waiter, on_sku_done);
    if (check->is_done)
        return HTTP_STEP_PASS;
    check->is_parked = http_request_park(request, CLOCK_NEVER, on_sku_timeout, check, &check->ref);
    if (check->is_parked) {
        http_request_on_drop(request, on_sku_drop);
        return HTTP_STEP_PARKED;
    }
    hydration_waiter_cancel(&check->waiter);
    return HTTP_STEP_ANSWERED; /* with 503, by http_request_park() */
}

/* ---- the change ---- */

static bool answer_once(struct http_request *request, const struct auth_identity *who,
                        const struct db_statement *statement, const struct db_param *params)
{
    struct entitlement *entitlement = request->context;
    struct idempotency_outcome outcome;
    idempotency_run(&(struct idempotency_call){.pool = kernel_store(entitlement->kernel)->pool,
                                               .table = &entitlement->keys,
                                               .request = request,
                                               .tenant = who->tenant,
                                               .subject = who->subject,
                                               .statement = statement,
                                               .params = params,
                                               .deadline_ns = clock_deadline_ms(CHANGE_MS)},
                    &outcome);
    idempotency_send(request, &outcome, STR_NONE);
    return outcome.has_effect;
}

/* Not found is stored under the key, as every failure of the business is; timeouts and outages are not. */
static void refuse_grant(struct http_request *request, const struct auth_identity *who,
                         enum hydration_result item)
{
    enum status why = item == HYDRATION_NOT_FOUND ? STATUS_ENTITY_NOT_FOUND
                      : item == HYDRATION_TIMEOUT ? STATUS_HYDRATION_TIMEOUT
                                                  : STATUS_UNAVAILABLE;
    struct str body = item == HYDRATION_NOT_FOUND
                          ? arena_printf(request->arena,
                                         "{\"code\":\"%s\",\"message\":\"there is no such item\","
                                         "\"field\":\"stock_keeping_unit\"}",
                                         status_code(why))
                          : arena_printf(request->arena, "{\"code\":\"%s\",\"message\":\"%s\"}",
                                         status_code(why), status_message(why));
    (void)answer_once(request, who, &refuse_sql, DB_PARAMS(db_int(status_http(why)), db_text(body)));
}

void entitlement_post_change(struct http_request *request)
{
    bool is_grant = strcmp(request->route->path, ENTITLEMENT_GRANTS_PATH) == 0;
    struct entitlement *entitlement = request->context;
    const struct auth_identity *who = kernel_identity(request);
    struct order *order = request->handler_data, own;
    struct trace trace = request->trace;
    struct uuid uuid = uuid_random();
    char event_id[UUID_TEXT_BYTES];
    struct error error = {0};

    if (!order && read_order(request, &own, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    order = order ? order : &own;
    if (order->item != HYDRATION_UPDATED) {
        refuse_grant(request, who, order->item);
        return;
    }
    uuid_format(&uuid, event_id);
    if (trace_is_none(&trace)) /* events have a trace of their own where the request has none */
        trace_start(&trace);
    const struct str *texts = order->texts;
    FAILPOINT("entitlement.before_change");
    if (!answer_once(
            request, who, &change_sql,
            DB_PARAMS(
                db_text(who->tenant), db_text(texts[USER_ID]), db_text(texts[SKU]),
                db_text(is_grant ? STR("ACTIVE") : STR("REVOKED")), db_text(texts[REASON]),
                db_text(texts[PURCHASE_ID]), db_text(who->subject), db_uuid(str_from(event_id)),
                db_text(entitlement_aggregate_key(who->tenant, texts[USER_ID], texts[SKU], request->arena)),
                db_text(trace_text(&trace, request->arena)))))
        return;
    FAILPOINT("entitlement.after_commit");
    metric_add(metric_series_get(&entitlement_changes_family, is_grant ? &STR("grant") : &STR("revoke")), 1);
    outbox_wake(entitlement->outbox);
    outbox_log_enqueued(&entitlement_outbox_table,
                        is_grant ? STR("EntitlementGranted") : STR("EntitlementRevoked"), str_from(event_id));
}
