/* Grants and revokes: the body is checked here, everything else is one call of entitlement.change() (sql/entitlement), whose
 * answer the idempotency engine stores in the same transaction. */
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

/* The seed's four, all of them required. Others are not looked at. */
enum { USER_ID, SKU, REASON, PURCHASE_ID, TEXTS };
static const struct json_text body_rows[] = {
    [USER_ID] = {"user_id", 1, 255, .is_plain = true},
    [SKU] = {"stock_keeping_unit", 1, 255, .is_plain = true},
    [REASON] = {"reason", 1, 255, .is_plain = true},
    [PURCHASE_ID] = {"purchase_id", 1, 255, .is_plain = true},
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
    entitlement->granted = metric_series_get(&entitlement_changes_family, &STR("grant"));
    entitlement->revoked = metric_series_get(&entitlement_changes_family, &STR("revoke"));
}

static enum status read_body(const struct http_request *request, struct str texts[TEXTS], struct error *error)
{
    struct buf others;
    buf_init(&others);
    enum status status = json_texts_read(request->body, body_rows, texts, &others, request->arena, error);
    buf_deinit(&others);
    return status;
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

static enum status check(struct http_request *request, const struct auth_identity *who,
                         struct str texts[TEXTS], struct error *error)
{
    const struct entitlement *entitlement = request->context;
    if (!str_is_name(who->tenant))
        return error_set_field(error, STATUS_BAD_REQUEST, "tenant_id",
                               "a tenant's name is 1 to 64 of A-Z a-z 0-9 . _ -");
    enum status status = read_body(request, texts, error);
    if (status == STATUS_OK && !kernel_store_is_ready(entitlement->kernel))
        return error_set(error, STATUS_UNAVAILABLE, "the schema is not there yet");
    return status;
}

static bool change(struct http_request *request, const struct auth_identity *who,
                   const struct str texts[TEXTS], const struct kind *kind, struct str event_id)
{
    struct entitlement *entitlement = request->context;
    const struct db_param params[CHANGE_PARAMS] = {
        {who->tenant},
        {texts[USER_ID]},
        {texts[SKU]},
        {kind->status},
        {texts[REASON]},
        {texts[PURCHASE_ID]},
        {who->subject},
        {event_id},
        {entitlement_aggregate_key(who->tenant, texts[USER_ID], texts[SKU], request->arena)},
        {traceparent_of(request)},
    };
    const struct idempotency_effect effect = {&entitlement->change, params};
    return idempotency_answer(kernel_store_pool(entitlement->kernel), &entitlement->keys, request,
                              who->tenant, who->subject, &effect, clock_deadline_ms(CHANGE_MS));
}

static void post(struct http_request *request, const struct kind *kind)
{
    struct entitlement *entitlement = request->context;
    const struct auth_identity *who = kernel_identity(request);
    struct str texts[TEXTS];
    struct error error = {0};
    struct uuid uuid = uuid_random();
    char event_id[UUID_TEXT_BYTES];
    uuid_format(&uuid, event_id);
    if (check(request, who, texts, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    FAILPOINT("entitlement.before_change");
    if (!change(request, who, texts, kind, str_from(event_id)))
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
