/* Intake: items that are created by POST, once each (I8, specification 002), with an event for each.
 *
 * An item and its `item_created` commit together, by one function in PostgreSQL (sql/intake), which makes the bytes of the answer too;
 * the stored answer to its Idempotency-Key commits with them (src/idempotency). An outbox engine in every process of the role
 * publishes the events on the topic intake.events. Intake is the owner of the entity type `item` (H6). */
#include "modules/intake/intake.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/json.h"
#include "base/json_texts.h"
#include "base/memory.h"
#include "bus/bus.h"
#include "hydration/hydration.h"
#include "idempotency/idempotency.h"
#include "kernel/audit.h"
#include "outbox/outbox.h"

#define INTAKE_EVENTS "intake.events"

enum {
    PARTITIONS = 4,
    DATABASE_MS = 5000,
    /* So that an item's event, which holds all of it, fits into a message of NATS. */
    BODY_BYTES_MAX = 512 * 1024,
    SKU_CHARS_MAX = 128,
    TITLE_CHARS_MAX = 1024,
};

struct intake_settings {
    struct idempotency_settings idempotency;
    struct outbox_settings outbox;
};

struct intake {
    struct kernel *kernel;
    const struct intake_settings *settings; /* as at the start */
    struct idempotency_table keys;
    struct outbox *publisher;
};

extern const struct db_migration intake_migrations[]; /* sql/intake */
extern const char intake_grants[];

/* ---- settings and topic ---- */

#define ROW(member) .offset = offsetof(struct intake_settings, member)

static const struct setting_row section_rows[] = {
    {"idempotency", SETTING_OBJECT, ROW(idempotency), "Idempotency-Key of POST /api/v1/items.", "",
     .rows = idempotency_setting_rows},
    {"outbox", SETTING_OBJECT, ROW(outbox), "How events of items are published.", "",
     .rows = outbox_setting_rows},
    {.name = NULL},
};

static const struct config_section intake_section = {.name = "intake",
                                                     .help = "Items created by POST.",
                                                     .rows = section_rows,
                                                     .struct_bytes = sizeof(struct intake_settings)};

/* Relaxed: PostgreSQL loses a message in a crash together with its result in the outbox, so it is published again. */
static const struct kernel_topic intake_topic = {
    .topic = {.name = INTAKE_EVENTS, .partitions = PARTITIONS, .relaxed = true}};

/* ---- events ---- */

enum { EXTRA_TENANT, EXTRA_SKU, EXTRA_OCCURRED_AT, EXTRA_TRACEPARENT };

static const struct outbox_table intake_outbox_table = {
    .module = "intake",
    .name = "intake.event_outbox",
    .id = {"event_id", "uuid"},
    .aggregate = {{"tenant_id", "text"}, {"sku", "text"}},
    .sequence = "sequence",
    .turn = "tenant_id",
    .tenant = "e.tenant_id",
    .event_type = "e.event_type",
    .payload = "e.payload",
    .size = "octet_length(e.payload)",
    .extra = {[EXTRA_TENANT] = "e.tenant_id",
              [EXTRA_SKU] = "e.sku",
              [EXTRA_OCCURRED_AT] = "platform.rfc3339(e.created_at)",
              [EXTRA_TRACEPARENT] = "e.traceparent"},
    .logged = {{"eventId", "e.event_id", false}, {"tenantId", "e.tenant_id", false}, OUTBOX_LOGGED_TRACE},
    .words = {"status", "PENDING", "IN_FLIGHT", "PUBLISHED", "FAILED"},
    .published_at = "published_at",
    .attempts = "attempt_count",
    .outages = "outage_count",
    OUTBOX_LEASE_COLUMNS,
};

static bool write_event(void *context, const struct outbox_event *event, struct bus_message *message,
                        struct arena *arena, const char **reason)
{
    struct json_value body, member;
    (void)context;
    *reason = "the payload is not an event";
    if (json_parse_stored(event->payload, JSON_DEPTH_LIMIT, &body, NULL) != STATUS_OK ||
        body.type != JSON_OBJECT || !json_get(&body, STR("event_id"), &member) ||
        member.type != JSON_STRING || !json_get(&body, STR("item"), &member) || member.type != JSON_OBJECT)
        return false;
    const struct outbox_message fields = {
        .topic = STR(INTAKE_EVENTS),
        .key = outbox_key((struct str[]){event->extra[EXTRA_TENANT], event->extra[EXTRA_SKU]}, 2, arena),
        .payload = event->payload,
        .tenant = event->extra[EXTRA_TENANT],
        .occurred_at = event->extra[EXTRA_OCCURRED_AT],
        .traceparent = event->extra[EXTRA_TRACEPARENT],
    };
    outbox_message_write(&fields, event, message, arena);
    return true;
}

static void publish_events(void *context, struct outbox_batch *batch)
{
    struct intake *intake = context;
    FAILPOINT("intake.after_claim");
    outbox_messages_publish(kernel_events(intake->kernel), batch, write_event, NULL);
    FAILPOINT("intake.after_publish");
}

/* ---- items ---- */

static struct metric_family intake_items_family = {
    .name = "intake_items_total",
    .help = "POSTed items: created, taken (409 SKU_TAKEN), rejected (other 4xx), unavailable (5xx).",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};

static void count_item(const char *result)
{
    metric_add(metric_series_get(&intake_items_family, (struct str[]){str_from(result)}), 1);
}

enum { SKU, TITLE, ID, CREATED_AT, TEXTS };

static const struct json_text members[] = {
    [SKU] = {"sku", 1, SKU_CHARS_MAX, .is_plain = true},
    [TITLE] = {"title", 1, TITLE_CHARS_MAX, .is_plain = true},
    [ID] = {.name = "id", .is_reserved = true},
    [CREATED_AT] = {.name = "created_at", .is_reserved = true},
    [TEXTS] = {.name = NULL},
};

static const struct db_statement create_sql =
    DB_STATEMENT("select status, body, event_id::text from intake.create_item($1, $2, $3, $4, $5, $6)");
enum { CREATE_EVENT_ID = 2 };

static void create_item(struct http_request *request, const struct str *texts, struct str attributes)
{
    struct intake *intake = request->context;
    const struct auth_identity *identity = kernel_identity(request);
    struct idempotency_outcome outcome;
    struct buf location = {0};
    const struct db_param *params =
        DB_PARAMS(db_text(identity->tenant), db_text(identity->subject.ptr ? identity->subject : STR("")),
                  db_text(texts[SKU]), db_text(texts[TITLE]), db_text(attributes.ptr ? attributes : STR("")),
                  db_text(trace_text(&request->trace, request->arena)));
    FAILPOINT("intake.before_commit");
    idempotency_run(&(struct idempotency_call){.pool = kernel_store(intake->kernel)->pool,
                                               .table = &intake->keys,
                                               .request = request,
                                               .tenant = identity->tenant,
                                               .subject = identity->subject,
                                               .statement = &create_sql,
                                               .params = params,
                                               .deadline_ns = clock_deadline_ms(DATABASE_MS)},
                    &outcome);
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
    idempotency_send(request, &outcome, buf_str(&location));
    enum status failure = outcome.error.status;
    if (!outcome.replayed && failure != STATUS_IDEMPOTENCY_KEY_CONFLICT &&
        failure != STATUS_IDEMPOTENCY_KEY_PROCESSING)
        count_item(failure != STATUS_OK ? "unavailable" : outcome.status < 400 ? "created" : "taken");
    buf_deinit(&location);
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
        entity->found = HYDRATION_ENTITY_EXISTS;
        entity->version = 1; /* an item never changes */
        buf_put_str(entity->data, db_result_str(rows, 0, 0));
    } else {
        entity->found = HYDRATION_ENTITY_ABSENT;
    }
    db_result_free(rows);
    return status;
}

/* "tenant/sku", each percent-encoded: see write_event(). */
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

static void on_event_gap(void *context, unsigned partition, int64_t offset)
{
    const struct intake *intake = context;
    kernel_audit_gap(intake->kernel, &intake_outbox_table, INTAKE_EVENTS, partition, offset);
}

static const struct http_route intake_routes[] = {
    {HTTP_POST, "/api/v1/items", post_item, HTTP_WORKER, .idempotency = HTTP_KEY_REJECT,
     .errors = HTTP_ERRORS_DETAIL, .body_bytes_max = BODY_BYTES_MAX},
    {HTTP_GET, "/api/v1/items/{sku}", get_item, HTTP_WORKER, .errors = HTTP_ERRORS_DETAIL},
    {.handler = NULL},
};

/* ---- life ---- */

static enum status start_intake(struct kernel *kernel, const void *section, void **state, struct error *error)
{
    (void)error;
    struct intake *intake = memory_zalloc(sizeof *intake);
    intake->kernel = kernel;
    intake->settings = section;
    intake->keys = (struct idempotency_table){
        .name = "intake.idempotency_keys",
        .ttl_ms = intake->settings->idempotency.ttl_ms,
        .expires_inclusive = false,
        .groups = idempotency_groups_create(IDEMPOTENCY_GROUP_RUNNING, IDEMPOTENCY_GROUP_WAIT_MS)};
    intake->publisher =
        kernel_outbox_create(kernel, &intake_outbox_table, &intake->settings->outbox, publish_events, intake);
    kernel_retention_add_keys(kernel, &intake->keys, intake->settings->idempotency.cleanup_ms);
    hydration_provide(kernel_hydration(kernel), &(struct hydration_owner){.entity_type = "item",
                                                                          .module = "intake",
                                                                          .look = look_up_item,
                                                                          .context = intake,
                                                                          .topic = INTAKE_EVENTS,
                                                                          .read = read_item_event,
                                                                          .on_gap = on_event_gap});
    *state = intake;
    return STATUS_OK;
}

static void destroy_intake(void *state)
{
    struct intake *intake = state;
    idempotency_groups_destroy(intake->keys.groups);
    free(intake);
}

const struct module intake_module = {
    .name = "intake",
    .roles = (const char *const[]){"intake", NULL},
    .section = &intake_section,
    .routes = (const struct module_routes[]){{"intake", intake_routes}, {.role = NULL}},
    .metrics = (struct metric_family *const[]){&intake_items_family, NULL},
    .migrations = intake_migrations,
    .grants = intake_grants,
    .start = start_intake,
    .destroy = destroy_intake,
    .keeps_store = true,
    .provides = (const char *const[]){"item", NULL},
    .topic = &intake_topic,
    .outboxes = (const struct outbox_table *const[]){&intake_outbox_table, NULL},
};
