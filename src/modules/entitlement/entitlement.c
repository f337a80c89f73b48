/* The module: settings, the audit's partitions, routes and life. */
#include "modules/entitlement/entitlement.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernel/store.h"

enum {
    PARTITIONS = 4,
    BODY_BYTES_MAX = 64 * 1024,
    DAY_MS = 24 * 3600 * 1000,
    AUDIT_RETRY_MS = 10 * 60 * 1000,
    STATEMENT_MS = 10000,
};

/* ---- settings: specification 004's keys, and some more ---- */

#define ROW(member) .offset = offsetof(struct entitlement_settings, member)
#define PLACE(member) .place_offset = 1 + offsetof(struct entitlement_settings, member)

enum { HOUR_MS = 3600 * 1000, MARGIN_MS = 60 * 1000, NAME_BYTES_MAX = 170 };

static const struct setting_row nats_rows[] = {
    {"subject", SETTING_STRING, ROW(nats.subject),
     "The subject that events are published to. Required if bus.events is nats.", "", 0, NAME_BYTES_MAX,
     PLACE(nats.subject_place)},
    {"stream", SETTING_STRING, ROW(nats.stream),
     "The JetStream stream of the events; created if it is missing. Required if bus.events is nats.", "", 0,
     NAME_BYTES_MAX, PLACE(nats.stream_place)},
    {"duplicate-window", SETTING_DURATION_MS, ROW(nats.duplicate_window_ms),
     "How long the stream drops a repeated Nats-Msg-Id. It must exceed the time of all retries of an event; 0 = that time "
     "and a minute.",
     "0", 0, INT64_C(365) * 24 * HOUR_MS, PLACE(nats.window_place)},
    {.name = NULL},
};

static const struct setting_row audit_rows[] = {
    {"months-ahead", SETTING_INT, ROW(audit.months_ahead),
     "Monthly partitions of entitlement_audit that are created ahead.", "3", 1, 120},
    {"keep-months", SETTING_INT, ROW(audit.keep_months),
     "Whole months that are kept besides the current one; older partitions are dropped. 0 = all are kept.",
     "0", 0, 1200},
    {.name = NULL},
};

static const struct setting_row entitlement_rows[] = {
    {"nats", SETTING_OBJECT, .help = "Where events are published if bus.events is nats.", .rows = nats_rows,
     .fallback = ""},
    {"idempotency", SETTING_OBJECT, ROW(idempotency), "Idempotency-Key of grants and revokes.", "",
     .rows = idempotency_setting_rows_day},
    {"audit", SETTING_OBJECT, .help = "The history of changes, partitioned by month.", .rows = audit_rows,
     .fallback = ""},
    {"hydration", SETTING_OBJECT, ROW(hydration),
     "Whether a grant checks that the item of its stock_keeping_unit exists; otherwise it is refused.", "",
     .rows = hydration_use_rows_off},
    {"outbox", SETTING_OBJECT, ROW(outbox), "How events are published.", "", .rows = outbox_setting_rows},
    {.name = NULL},
};

static const struct config_section entitlement_section = {
    .name = "entitlement",
    .help = "Entitlements: granted and revoked, with an event for each change.",
    .rows = entitlement_rows,
    .struct_bytes = sizeof(struct entitlement_settings),
};

int64_t entitlement_retry_horizon_ms(const struct outbox_settings *outbox)
{
    int64_t pauses_ms = 0, pause_ms = outbox->backoff_base_ms;
    int64_t jitter = outbox->jitter_max > outbox->jitter_min ? outbox->jitter_max : outbox->jitter_min;
    for (int64_t attempt = 1; attempt < outbox->attempts_max; attempt++) {
        int64_t capped_ms = pause_ms < outbox->backoff_max_ms ? pause_ms : outbox->backoff_max_ms;
        int64_t longest_ms = capped_ms * jitter / 1000;
        pauses_ms += longest_ms > outbox->backoff_min_ms ? longest_ms : outbox->backoff_min_ms;
        if (pause_ms < outbox->backoff_max_ms)
            pause_ms *= 2;
    }
    return pauses_ms + outbox->attempts_max * outbox->lease_ms;
}

int64_t entitlement_duplicate_window_ms(const struct entitlement_settings *settings)
{
    int64_t own_ms = settings->nats.duplicate_window_ms;
    return own_ms ? own_ms : entitlement_retry_horizon_ms(&settings->outbox) + MARGIN_MS;
}

static bool is_stream(struct str name)
{
    for (size_t i = 0; i < name.len; i++)
        if (name.ptr[i] == '.' || !str_is_name(str_of(name.ptr + i, 1)))
            return false;
    return name.len > 0;
}

/* Tokens joined by dots, none of them empty or a wildcard. */
static bool is_subject(struct str name)
{
    struct str token;
    if (!name.len || name.ptr[name.len - 1] == '.')
        return false;
    while (str_split(&name, '.', &token))
        if (!is_stream(token))
            return false;
    return true;
}

static enum status check_settings(const struct config *config, const void *section, struct error *error)
{
    const struct entitlement_settings *settings = section;
    const struct kernel_bus_settings *bus = config_section(config, "bus");
    bool needed = bus->events == KERNEL_NATS;
    int64_t horizon_ms = entitlement_retry_horizon_ms(&settings->outbox);
    if (needed && !settings->nats.subject.len)
        return config_error_at(
            config, bus->events_place, "entitlement.nats.subject", error,
            "is missing: bus.events is nats, so set the subject that events are published to");
    if (needed && !settings->nats.stream.len)
        return config_error_at(config, bus->events_place, "entitlement.nats.stream", error,
                               "is missing: bus.events is nats, so set the stream that stores the events");
    if (settings->nats.subject.len && !is_subject(settings->nats.subject))
        return config_error_at(config, settings->nats.subject_place, "entitlement.nats.subject", error,
                               "a subject has tokens of A-Z a-z 0-9 _ - with single dots between them");
    if (settings->nats.stream.len && !is_stream(settings->nats.stream))
        return config_error_at(config, settings->nats.stream_place, "entitlement.nats.stream", error,
                               "a stream's name has only A-Z a-z 0-9 _ -");
    if (entitlement_duplicate_window_ms(settings) <= horizon_ms)
        return config_error_at(
            config, settings->nats.window_place, "entitlement.nats.duplicate-window", error,
            "an event's retries can take %lld s by entitlement.outbox: the window must be longer, or 0",
            (long long)(horizon_ms / 1000));
    return STATUS_OK;
}

/* ---- the audit's months: partitions are made ahead at the start and once a day, and old ones dropped where that is configured. Any
 * number of processes may do it. After a failure (a lock, or no right to create tables) it is retried; meanwhile the default partition
 * takes the rows ---- */

static struct metric_family audit_family = {
    .name = "entitlement_audit_upkeep_failures_total",
    .help = "Failures to create or drop partitions of entitlement_audit.",
    .type = METRIC_COUNTER,
};

static const struct db_statement audit_make_sql = DB_STATEMENT("SELECT entitlement.audit_make($1)"),
                                 audit_drop_sql = DB_STATEMENT("SELECT entitlement.audit_drop($1)");

static enum status call_audit(struct entitlement *entitlement, const struct db_statement *statement,
                              int64_t months, int64_t *count, struct error *error)
{
    struct db_result *rows;
    enum status status =
        db_pool_query(kernel_store(entitlement->kernel)->pool, statement, DB_PARAMS(db_int(months)),
                      clock_deadline_ms(STATEMENT_MS), &rows, error);
    *count = status == STATUS_OK ? db_result_i64(rows, 0, 0) : 0;
    db_result_free(rows);
    return status;
}

static int64_t audit_step(struct task *task, void *context)
{
    struct entitlement *entitlement = context;
    int64_t keep = entitlement->settings->audit.keep_months, made = 0, dropped = 0;
    struct error error = {0};
    enum status status =
        call_audit(entitlement, &audit_make_sql, entitlement->settings->audit.months_ahead, &made, &error);
    if (status == STATUS_OK && keep > 0)
        status = call_audit(entitlement, &audit_drop_sql, keep, &dropped, &error);
    if (made || dropped)
        log_info("entitlement_audit_partitions", LOG_INT("made", made), LOG_INT("dropped", dropped));
    if (status == STATUS_OK || task_is_stopping(task))
        return TASK_MS(DAY_MS);
    metric_add(metric_series_get(&audit_family, NULL), 1);
    log_warn("entitlement_audit_upkeep_failed", LOG_ERROR_FIELDS(&error));
    return TASK_MS(AUDIT_RETRY_MS);
}

/* ---- routes and life ---- */

static const struct http_route entitlement_routes[] = {
    {HTTP_POST, ENTITLEMENT_GRANTS_PATH, entitlement_post_change, HTTP_WORKER, .scope = "entitlement:write",
     .idempotency = HTTP_KEY_SERIALIZE, .key_required = true, .key_stores_failures = true,
     .body_bytes_max = BODY_BYTES_MAX, .prepare = entitlement_sku_prepare},
    {HTTP_POST, "/v1/entitlements/revokes", entitlement_post_change, HTTP_WORKER,
     .scope = "entitlement:write", .idempotency = HTTP_KEY_SERIALIZE, .key_required = true,
     .key_stores_failures = true, .body_bytes_max = BODY_BYTES_MAX},
    {HTTP_GET, "/v1/users/{user_id}/entitlements", entitlement_get_of_user, .kind = HTTP_WORKER},
    {.handler = NULL},
};

static void each_entitlement_topic(const void *section,
                                   void (*fn)(const struct kernel_topic *topic, void *arg), void *arg)
{
    const struct entitlement_settings *settings = section;
    struct kernel_topic topic = {
        .topic = {.name = ENTITLEMENT_TOPIC, .partitions = PARTITIONS, .relaxed = true},
        .stream = settings->nats.stream.len ? settings->nats.stream.ptr : NULL,
        .subject = settings->nats.subject.len ? settings->nats.subject.ptr : NULL,
        .duplicate_window_ms = entitlement_duplicate_window_ms(settings),
    };
    fn(&topic, arg);
}

static enum status start_entitlement(struct kernel *kernel, const void *section, void **state,
                                     struct error *error)
{
    (void)error;
    struct entitlement *entitlement = memory_zalloc(sizeof *entitlement);
    entitlement->kernel = kernel;
    entitlement->settings = section;
    entitlement->keys = (struct idempotency_table){
        .name = "entitlement.idempotency_keys",
        .ttl_ms = entitlement->settings->idempotency.ttl_ms,
        .expires_inclusive = true,
        .groups = idempotency_groups_create(IDEMPOTENCY_GROUP_RUNNING, IDEMPOTENCY_GROUP_WAIT_MS),
    };
    entitlement->outbox = kernel_outbox_create(
        kernel, &entitlement_outbox_table, &entitlement->settings->outbox, entitlement_publish, entitlement);
    entitlement_change_init(entitlement);
    entitlement_owner_provide(entitlement);
    kernel_store_task(kernel, "entitlement audit", audit_step, entitlement);
    kernel_retention_add_keys(kernel, &entitlement->keys, entitlement->settings->idempotency.cleanup_ms);
    *state = entitlement;
    return STATUS_OK;
}

static void destroy_entitlement(void *state)
{
    struct entitlement *entitlement = state;
    idempotency_groups_destroy(entitlement->keys.groups);
    free(entitlement);
}

const struct module entitlement_module = {
    .name = "entitlement",
    .roles = (const char *const[]){"entitlement", NULL},
    .section = &entitlement_section,
    .routes = (const struct module_routes[]){{"entitlement", entitlement_routes}, {.role = NULL}},
    .metrics = (struct metric_family *const[]){&entitlement_changes_family, &audit_family, NULL},
    .migrations = entitlement_migrations,
    .grants = entitlement_grants,
    .check = check_settings,
    .start = start_entitlement,
    .destroy = destroy_entitlement,
    .keeps_store = true,
    .provides = (const char *const[]){"entitlement", NULL},
    .each_topic = each_entitlement_topic,
    .outboxes = (const struct outbox_table *const[]){&entitlement_outbox_table, NULL},
};
