/* Items: POST, GET, and as the owner of the entity type `item` (H6). The body is checked here; the rest of a POST is one statement,
 * which makes the bytes of the answer too. */
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/json_texts.h"
#include "bus/bus.h"
#include "hydration/hydration.h"
#include "kernel/store.h"
#include "modules/intake/intake.h"
#include "outbox/messages.h"

enum {
    DATABASE_MS = 5000,
    /* So that an item's event, which holds all of it, fits into a message of NATS. */
    BODY_BYTES_MAX = 512 * 1024,
    SKU_CHARS_MAX = 128,
    TITLE_CHARS_MAX = 1024,
};

struct metric_family intake_items_family = {
    .name = "intake_items_total",
    .help = "POSTed items: created, taken (409 SKU_TAKEN), rejected (other 4xx), unavailable (5xx).",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};

static void count_item(const char *result)
{
    metric_add(metric_series_get(&intake_items_family, (struct str[]){str_from(result)}), 1);
}

/* ---- the body ---- */

enum { SKU, TITLE, ID, CREATED_AT, TEXTS };

static const struct json_text members[] = {
    [SKU] = {"sku", 1, SKU_CHARS_MAX, .is_plain = true},
    [TITLE] = {"title", 1, TITLE_CHARS_MAX, .is_plain = true},
    [ID] = {.name = "id", .is_reserved = true},
    [CREATED_AT] = {.name = "created_at", .is_reserved = true},
    [TEXTS] = {.name = NULL},
};

/* ---- POST /api/v1/items ---- */

static const struct db_statement create_sql =
    DB_STATEMENT("select status, body, event_id::text from intake.create_item($1, $2, $3, $4, $5, $6)");
enum { CREATE_EVENT_ID = 2 };

static void create_item(struct http_request *request, const struct str *texts, struct str attributes)
{
    struct intake *intake = request->context;
    const struct auth_identity *identity = kernel_identity(request);
    struct idempotency_outcome outcome = {0};
    struct error error = {0};
    struct buf location = {0};
    const struct db_param *params =
        DB_PARAMS(db_text(identity->tenant), db_text(identity->subject.ptr ? identity->subject : STR("")),
                  db_text(texts[SKU]), db_text(texts[TITLE]), db_text(attributes.ptr ? attributes : STR("")),
                  db_text(trace_text(&request->trace, request->arena)));
    FAILPOINT("intake.before_commit");
    error.status = idempotency_run(kernel_store_pool(intake->kernel), &intake->keys, request,
                                   identity->tenant, identity->subject,
                                   &(struct idempotency_effect){.statement = &create_sql, .params = params},
                                   clock_deadline_ms(DATABASE_MS), &outcome, &error);
    FAILPOINT("intake.after_commit");
    if (outcome.has_effect && outcome.rows && outcome.status < 400)
        outbox_log_enqueued(&intake_outbox_table, STR("item_created"),
                            db_result_str(outcome.rows, 0, CREATE_EVENT_ID));
    if (outcome.has_effect)
        outbox_wake(intake->publisher);
    if (outcome.status < 400) { /* made of the request, so that it is not stored with the answer */
        buf_put_str(&location, STR("Location: /api/v1/items/"));
        http_percent_encode(&location, texts[SKU]);
        buf_put_str(&location, STR("\r\n"));
    }
    idempotency_send(request, &outcome, &error, buf_str(&location));
    if (!outcome.replayed && error.status != STATUS_IDEMPOTENCY_KEY_CONFLICT &&
        error.status != STATUS_IDEMPOTENCY_KEY_PROCESSING)
        count_item(error.status != STATUS_OK ? "unavailable" : outcome.status < 400 ? "created" : "taken");
    buf_deinit(&location);
    db_result_free(outcome.rows);
}

static void post_item(struct http_request *request)
{
    static const char *const no_parameters[] = {NULL};
    struct str texts[TEXTS];
    struct buf attributes = {0};
    struct error error = {0};
    enum status status = http_request_query_only(request, no_parameters, &error);
    if (status == STATUS_OK)
        status = json_texts_read(request->body, members, texts, &attributes, request->arena, &error);
    if (status == STATUS_OK)
        status = kernel_store_require(((struct intake *)request->context)->kernel, &error);
    if (status == STATUS_OK) {
        create_item(request, texts, buf_str(&attributes));
    } else {
        count_item(status == STATUS_UNAVAILABLE ? "unavailable" : "rejected");
        http_send_error(request, &error);
    }
    buf_deinit(&attributes);
}

/* ---- GET /api/v1/items/{sku} ---- */

/* By the unique key. */
static const struct db_statement find_sql =
    DB_STATEMENT("select intake.item_json(id, sku, title, created_at, attributes)"
                 " from intake.items where tenant_id = $1 and sku = $2");

static enum status find_item(const struct intake *intake, struct str tenant, struct str sku,
                             int64_t deadline_ns, struct db_result **rows, struct error *error)
{
    return kernel_store_query(intake->kernel, &find_sql, DB_PARAMS(db_text(tenant), db_text(sku)),
                              deadline_ns, rows, error);
}

static void get_item(struct http_request *request)
{
    static const char *const no_parameters[] = {NULL};
    struct db_result *rows = NULL;
    struct error error = {0};
    struct str sku = STR_NONE;
    enum status status = http_request_query_only(request, no_parameters, &error);
    if (status == STATUS_OK)
        status = http_request_param(request, "sku", &sku, &error);
    if (status == STATUS_OK)
        status = find_item(request->context, kernel_identity(request)->tenant, sku,
                           clock_deadline_ms(DATABASE_MS), &rows, &error);
    if (status == STATUS_OK && db_result_rows(rows) == 0)
        status = error_set_field(&error, STATUS_ITEM_NOT_FOUND, "sku", "no item with this sku");
    if (status == STATUS_OK)
        http_send(request, &(struct http_response){.status = 200, .body = db_result_str(rows, 0, 0)});
    else
        http_send_error(request, &error);
    db_result_free(rows);
}

/* ---- as an entity: id = the sku; every caller of the tenant may see it, as by the route ---- */

static enum status look_up_item(void *context, const struct hydration_need *need, int64_t deadline_ns,
                                struct hydration_entity *entity, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status = find_item(context, need->tenant, need->entity_id, deadline_ns, &rows, error);
    if (status == STATUS_OK && db_result_rows(rows)) {
        entity->found = HYDRATION_IS;
        entity->version = 1; /* an item never changes */
        buf_put_str(entity->data, db_result_str(rows, 0, 0));
    } else {
        entity->found = HYDRATION_IS_NOT;
    }
    db_result_free(rows);
    return status;
}

/* "tenant/sku", each percent-encoded: see write_event() of intake.c. */
bool intake_sku_of_key(struct str key, struct arena *arena, struct str *sku)
{
    struct str tenant;
    struct error error;
    return str_split(&key, '/', &tenant) &&
           http_percent_decode(key, false, arena, "aggregate_key", sku, &error) == STATUS_OK && sku->len;
}

static bool read_item_event(const struct bus_message *message, struct arena *arena, struct hydration_ref *ref)
{
    ref->tenant = bus_message_header(message, STR(OUTBOX_HEADER_TENANT));
    return intake_sku_of_key(bus_message_header(message, STR(OUTBOX_HEADER_AGGREGATE)), arena,
                             &ref->entity_id);
}

void intake_owner_provide(struct intake *intake)
{
    hydration_provide(kernel_hydration(intake->kernel), &(struct hydration_owner){.entity_type = "item",
                                                                                  .module = "intake",
                                                                                  .look = look_up_item,
                                                                                  .context = intake,
                                                                                  .topic = INTAKE_EVENTS,
                                                                                  .read = read_item_event});
}

const struct http_route intake_routes[] = {
    {HTTP_POST, "/api/v1/items", post_item, HTTP_WORKER, .idempotency = HTTP_KEY_REJECT,
     .errors = HTTP_ERRORS_DETAIL, .body_bytes_max = BODY_BYTES_MAX},
    {HTTP_GET, "/api/v1/items/{sku}", get_item, HTTP_WORKER, .errors = HTTP_ERRORS_DETAIL},
    {.handler = NULL},
};
