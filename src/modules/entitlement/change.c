/* Grants and revokes: the body is checked here, everything else is one call of entitlement.change() (sql/entitlement), whose
 * answer the idempotency engine stores in the same transaction. A grant of an item that is not there is an answer too: it comes
 * behind the look for a stored one, so that a replay is one whatever became of the item. */
#include <string.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/json_texts.h"
#include "base/uuid.h"
#include "modules/entitlement/entitlement.h"
#include "modules/entitlement/event.h"

enum { CHANGE_MS = 10000 }; /* half of it at most for a twin in another process */

struct metric_family entitlement_changes_family = {
    .name = "entitlement_changes_total",
    .help = "Entitlements granted and revoked by this process; refusals and replays are not counted.",
    .type = METRIC_COUNTER,
    .labels = {"change", NULL},
};

static const char change_sql[] =
    "SELECT answer_status, answer_body FROM entitlement.change($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
static const enum db_type change_types[] = {DB_TEXT, DB_TEXT, DB_TEXT, DB_TEXT, DB_TEXT,
                                            DB_TEXT, DB_TEXT, DB_UUID, DB_TEXT, DB_TEXT};
enum { CHANGE_PARAMS = sizeof change_types / sizeof *change_types };

/* An effect that has none: its answer. */
static const char refuse_sql[] = "SELECT $1::integer, $2::text";
static const enum db_type refuse_types[] = {DB_INT, DB_TEXT};

/* The seed's four, all of them required. Others are not looked at. */
static const struct json_text body_rows[] = {
    [ENTITLEMENT_USER_ID] = {"user_id", 1, 255, .is_plain = true},
    [ENTITLEMENT_SKU] = {"stock_keeping_unit", 1, 255, .is_plain = true},
    [ENTITLEMENT_REASON] = {"reason", 1, 255, .is_plain = true},
    [ENTITLEMENT_PURCHASE_ID] = {"purchase_id", 1, 255, .is_plain = true},
    {.name = NULL},
};

struct kind {
    struct str status, event_type;
};
static const struct kind grant = {{"ACTIVE", 6}, {"EntitlementGranted", 18}};
static const struct kind revoke = {{"REVOKED", 7}, {"EntitlementRevoked", 18}};

void entitlement_change_init(struct entitlement *entitlement)
{
    db_statement_init(&entitlement->change, change_sql, CHANGE_PARAMS, change_types);
    db_statement_init(&entitlement->refuse, refuse_sql, 2, refuse_types);
    entitlement->granted = metric_series_get(&entitlement_changes_family, &STR("grant"));
    entitlement->revoked = metric_series_get(&entitlement_changes_family, &STR("revoke"));
}

/* Events have a trace of their own where the request brought none, so that trace_id tells them apart in every case. */
static struct str traceparent_of(const struct http_request *request)
{
    static const uint8_t none[sizeof request->trace.trace_id];
    struct trace trace = request->trace;
    char text[TRACE_PARENT_BYTES];
    if (memcmp(trace.trace_id, none, sizeof none) == 0)
        trace_start(&trace);
    trace_format(&trace, text);
    return arena_str(request->arena, str_from(text));
}

enum status entitlement_order_read(const struct http_request *request, struct entitlement_order *order,
                                   struct error *error)
{
    const struct entitlement *entitlement = request->context;
    struct buf others;
    *order = (struct entitlement_order){.item = HYDRATION_UPDATED};
    if (!str_is_name(kernel_identity(request)->tenant))
        return error_set_field(error, STATUS_BAD_REQUEST, "tenant_id",
                               "a tenant's name is 1 to 64 of A-Z a-z 0-9 . _ -");
    buf_init(&others);
    enum status status =
        json_texts_read(request->body, body_rows, order->texts, &others, request->arena, error);
    buf_deinit(&others);
    if (status == STATUS_OK && !kernel_store_is_ready(entitlement->kernel))
        return error_set(error, STATUS_UNAVAILABLE, "the schema is not there yet");
    return status;
}

static bool answer(struct http_request *request, const struct auth_identity *who,
                   const struct db_statement *statement, const struct db_param *params)
{
    struct entitlement *entitlement = request->context;
    const struct idempotency_effect effect = {statement, params};
    return idempotency_answer(kernel_store_pool(entitlement->kernel), &entitlement->keys, request,
                              who->tenant, who->subject, &effect, clock_deadline_ms(CHANGE_MS));
}

/* Not found is stored under the key as every failure of the business is; that nobody knows is not. */
static void refuse(struct http_request *request, const struct auth_identity *who, enum hydration_result item)
{
    struct entitlement *entitlement = request->context;
    enum status why = item == HYDRATION_NOT_FOUND ? STATUS_ENTITY_NOT_FOUND
                      : item == HYDRATION_TIMEOUT ? STATUS_HYDRATION_TIMEOUT
                                                  : STATUS_UNAVAILABLE;
    struct str status = arena_printf(request->arena, "%d", status_http(why));
    struct str body = item == HYDRATION_NOT_FOUND
                          ? arena_printf(request->arena,
                                         "{\"code\":\"%s\",\"message\":\"there is no such item\","
                                         "\"field\":\"stock_keeping_unit\"}",
                                         status_code(why))
                          : arena_printf(request->arena, "{\"code\":\"%s\",\"message\":\"%s\"}",
                                         status_code(why), status_message(why));
    (void)answer(request, who, &entitlement->refuse, (struct db_param[]){{status}, {body}});
}

static bool change(struct http_request *request, const struct auth_identity *who,
                   const struct entitlement_order *order, const struct kind *kind, struct str event_id)
{
    struct entitlement *entitlement = request->context;
    const struct str *texts = order->texts;
    struct str user = texts[ENTITLEMENT_USER_ID], sku = texts[ENTITLEMENT_SKU];
    const struct db_param params[CHANGE_PARAMS] = {
        {who->tenant},
        {user},
        {sku},
        {kind->status},
        {texts[ENTITLEMENT_REASON]},
        {texts[ENTITLEMENT_PURCHASE_ID]},
        {who->subject},
        {event_id},
        {entitlement_aggregate_key(who->tenant, user, sku, request->arena)},
        {traceparent_of(request)},
    };
    return answer(request, who, &entitlement->change, params);
}

/* As it was prepared, else as the body says; NULL: it says nothing, and that was answered. */
static const struct entitlement_order *order_of(struct http_request *request)
{
    struct entitlement_order *order = request->handler_data;
    struct error error = {0};
    if (order)
        return order;
    order = arena_alloc(request->arena, sizeof *order);
    if (entitlement_order_read(request, order, &error) == STATUS_OK)
        return order;
    http_send_error(request, &error);
    return NULL;
}

static void post(struct http_request *request, const struct kind *kind)
{
    struct entitlement *entitlement = request->context;
    const struct auth_identity *who = kernel_identity(request);
    const struct entitlement_order *order = order_of(request);
    struct uuid uuid = uuid_random();
    char event_id[UUID_TEXT_BYTES];
    uuid_format(&uuid, event_id);
    if (!order)
        return;
    if (order->item != HYDRATION_UPDATED) {
        refuse(request, who, order->item);
        return;
    }
    FAILPOINT("entitlement.before_change");
    if (!change(request, who, order, kind, str_from(event_id)))
        return;
    FAILPOINT("entitlement.after_commit");
    metric_add(kind == &grant ? entitlement->granted : entitlement->revoked, 1);
    outbox_wake(entitlement->outbox);
    outbox_log_enqueued(&entitlement_outbox_table, kind->event_type, str_from(event_id));
}

void entitlement_post_grant(struct http_request *request)
{
    post(request, &grant);
}

void entitlement_post_revoke(struct http_request *request)
{
    post(request, &revoke);
}
