/* The module hydration: settings, tables and topics of src/hydration, and its route (H5, H6):
 *
 * GET /v1/hydration/{entity_type}/{entity_id}: an entity as its owner has it. A hit in memory is answered at once. Otherwise the request
 * is parked with its waiter in its own arena, until the outcome, the end of the connection or the limit. An entity that the caller may
 * not see looks like one that does not exist. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "hydration/event.h"
#include "hydration/hydration.h"
#include "kernel/books.h"
#include "kernel/ops.h"
#include "kernel/store.h"

enum {
    PARTITIONS = 4,
    KEEP_MS = 60 * 1000,
    GRACE_MS = 1000 /* after the wait: then the request ends without an outcome */
};

struct hydration_route {
    struct kernel *kernel;
    struct hydration_policy policy;
};

enum { FAIL_FAST, DEFER, DEGRADE };
static const char *const failure_modes[] = {
    [FAIL_FAST] = "fail-fast", [DEFER] = "defer", [DEGRADE] = "degrade", NULL};

struct entity_request {
    struct hydration_waiter waiter;
    struct http_request *request;
    struct str entity_type, entity_id;
    int failure_mode;
    bool is_parked, is_done;
    struct loop_park_ref ref;
};

/* ---- answers ---- */

static struct str quoted(struct arena *arena, struct str text)
{
    size_t bytes = json_string_size(text);
    struct buf fixed = {.data = arena_alloc(arena, bytes), .capacity = bytes};
    json_put_string(&fixed, text);
    return buf_str(&fixed);
}

static void send_entity(struct http_request *request, const struct entity_request *entity,
                        const struct hydration_outcome *outcome, bool is_degraded)
{
    struct str source = outcome->source_module, data = outcome->data;
    const struct str parts[] = {
        STR("{\"entity_type\":\""),
        entity->entity_type,
        STR("\",\"entity_id\":"),
        quoted(request->arena, entity->entity_id),
        STR(",\"source_module\":"),
        source.len ? quoted(request->arena, source) : STR("null"),
        STR(",\"data\":"),
        data.len ? data : STR("{}"),
        is_degraded ? STR(",\"degraded\":true}") : STR("}"),
    };
    http_send_parts(request, &(struct http_response){.status = 200}, parts, sizeof parts / sizeof *parts);
}

static void send_outcome(struct http_request *request, const struct entity_request *entity,
                         const struct hydration_outcome *outcome)
{
    bool timed_out = outcome->result == HYDRATION_TIMEOUT;
    if (outcome->result == HYDRATION_UPDATED) {
        send_entity(request, entity, outcome, false);
    } else if (outcome->result == HYDRATION_NOT_FOUND) { /* the same bytes whether it is absent or hidden */
        const struct str parts[] = {STR("{\"code\":\""), str_from(status_code(STATUS_ENTITY_NOT_FOUND)),
                                    STR("\",\"message\":\""),
                                    str_from(status_message(STATUS_ENTITY_NOT_FOUND)), STR("\"}")};
        http_send_parts(request, &(struct http_response){.status = status_http(STATUS_ENTITY_NOT_FOUND)},
                        parts, sizeof parts / sizeof *parts);
    } else if (entity->failure_mode == DEGRADE) {
        send_entity(request, entity, outcome, true);
    } else if (entity->failure_mode == DEFER && timed_out) {
        http_send(request, &(struct http_response){.status = 202, .body = STR("{\"status\":\"PENDING\"}")});
    } else {
        http_send_error(request,
                        &(struct error){.status = timed_out ? STATUS_HYDRATION_TIMEOUT : STATUS_UNAVAILABLE});
    }
}

/* ---- waiting ---- */

static void on_entity_done(struct hydration_waiter *waiter, const struct hydration_outcome *outcome)
{
    struct entity_request *entity = CONTAINER_OF(waiter, struct entity_request, waiter);
    struct http_request *request = entity->is_parked ? http_request_unpark(entity->ref) : entity->request;
    entity->is_done = true;
    if (request)
        send_outcome(request, entity, outcome);
}

static void on_entity_drop(struct http_request *request, void *context)
{
    struct entity_request *entity = context;
    (void)request;
    hydration_waiter_cancel(&entity->waiter);
}

static void on_entity_timeout(struct http_request *request, void *context)
{
    struct entity_request *entity = context;
    hydration_waiter_cancel(&entity->waiter);
    send_outcome(request, entity, &(struct hydration_outcome){.result = HYDRATION_TIMEOUT});
}

/* ---- reading the request ---- */

static enum status read_choice(const struct http_request *request, const char *name,
                               const char *const *choices, int *choice, struct error *error)
{
    struct str value;
    bool found;
    enum status status = http_request_query(request, str_from(name), &found, &value, error);
    if (status != STATUS_OK || !found)
        return status;
    for (int i = 0; choices[i]; i++)
        if (str_eq(value, str_from(choices[i]))) {
            *choice = i;
            return STATUS_OK;
        }
    return error_set_field(error, STATUS_BAD_REQUEST, name, "%s: %s, %s or %s", name, choices[0], choices[1],
                           choices[2]);
}

static enum status read_fields(const struct http_request *request, enum hydration_mode mode,
                               struct str *fields, unsigned *count, struct error *error)
{
    size_t given = http_request_query_list(request, STR("fields"), fields, HYDRATION_FIELDS_MAX);
    enum status status = STATUS_OK;
    for (*count = 0; status == STATUS_OK && *count < given; ++*count) {
        if (*count == HYDRATION_FIELDS_MAX)
            return error_set_field(error, STATUS_BAD_REQUEST, "fields", "fields: at most %d",
                                   HYDRATION_FIELDS_MAX);
        status = http_percent_decode(fields[*count], true, request->arena, "fields", &fields[*count], error);
    }
    if (status == STATUS_OK && (*count > 0) != (mode == HYDRATION_PARTIAL))
        return error_set_field(error, STATUS_BAD_REQUEST, "fields",
                               *count > 0 ? "fields: only with mode=partial"
                                          : "fields: needed with mode=partial");
    return status;
}

static enum status read_query(const struct http_request *request, struct hydration_need *need,
                              struct entity_request *entity, struct error *error)
{
    static const char *const names[] = {"mode", "fields", "failure_mode", NULL};
    int mode = HYDRATION_FULL;
    struct str *fields = arena_alloc(request->arena, HYDRATION_FIELDS_MAX * sizeof *fields);
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = read_choice(request, "mode", hydration_mode_names, &mode, error);
    if (status == STATUS_OK)
        status = read_choice(request, "failure_mode", failure_modes, &entity->failure_mode, error);
    need->cover = (struct hydration_cover){.mode = (enum hydration_mode)mode, .fields = fields};
    if (status == STATUS_OK)
        status = read_fields(request, need->cover.mode, fields, &need->cover.field_count, error);
    if (status == STATUS_OK)
        status = hydration_need_check(need, fields, need->cover.field_count, error);
    return status;
}

/* The caller of a token without `sub`: an answer names the caller that it refuses. */
#define NO_CALLER "urn:freshet:nobody"

/* The id of two segments is "first/second": a user's sku, a dictionary's key. */
static enum status read_request(const struct http_request *request, bool has_two, struct hydration_need *need,
                                struct entity_request *entity, struct error *error)
{
    const struct hydration_route *module = request->context;
    const struct auth_identity *who = kernel_identity(request);
    struct str second;
    enum status status = http_request_param(request, "entity_type", &need->entity_type, error);
    if (status == STATUS_OK)
        status = http_request_param(request, has_two ? "first" : "entity_id", &need->entity_id, error);
    if (status == STATUS_OK && has_two)
        status = http_request_param(request, "second", &second, error);
    if (status != STATUS_OK)
        return status;
    if (has_two)
        need->entity_id =
            arena_printf(request->arena, "%.*s/%.*s", STR_ARG(need->entity_id), STR_ARG(second));
    need->tenant = who->tenant;
    need->caller = who->subject.len ? who->subject : STR(NO_CALLER);
    need->trace = request->trace;
    entity->entity_type = need->entity_type;
    entity->entity_id = need->entity_id;
    if (!str_is_name(who->tenant))
        return error_set_field(error, STATUS_BAD_REQUEST, "tenant_id",
                               "a tenant's name is 1 to 64 of A-Z a-z 0-9 . _ -");
    status = read_query(request, need, entity, error);
    return status == STATUS_OK ? kernel_store_require(module->kernel, error) : status;
}

static void get_entity(struct http_request *request, bool has_two)
{
    const struct hydration_route *module = request->context;
    struct entity_request *entity = arena_zalloc(request->arena, sizeof *entity);
    int64_t limit_ns = (module->policy.wait_timeout_ms + GRACE_MS) * CLOCK_NS_PER_MS;
    struct hydration_need need = {0};
    struct error error;
    entity->request = request;
    if (read_request(request, has_two, &need, entity, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    hydration_ask(kernel_hydration(module->kernel), &module->policy, &need, entity->failure_mode == DEFER,
                  request->loop, &entity->waiter, on_entity_done);
    if (entity->is_done)
        return;
    kernel_identity_keep(request);
    entity->is_parked = http_request_park(request, loop_now_ns(request->loop) + limit_ns, on_entity_timeout,
                                          entity, &entity->ref);
    if (entity->is_parked)
        http_request_on_drop(request, on_entity_drop);
    else
        hydration_waiter_cancel(&entity->waiter);
}

static void get_by_id(struct http_request *request)
{
    get_entity(request, false);
}

static void get_by_two(struct http_request *request)
{
    get_entity(request, true);
}

static const struct http_route hydration_routes[] = {
    {HTTP_GET, "/v1/hydration/{entity_type}/{entity_id}", get_by_id, .kind = HTTP_HOT},
    {HTTP_GET, "/v1/hydration/{entity_type}/{first}/{second}", get_by_two, .kind = HTTP_HOT},
    {.handler = NULL},
};

/* ---- settings and topics ---- */

static const struct config_section hydration_section = {.name = "hydration",
                                                        .help =
                                                            "Entities that modules look up at their owners.",
                                                        .rows = hydration_setting_rows,
                                                        .struct_bytes = sizeof(struct hydration_settings)};

/* Questions are useless after a minute. Answers and changes are kept for the process that stores them for as long as an older copy or
 * absence may serve. */
static void each_hydration_topic(const void *section, void (*fn)(const struct kernel_topic *topic, void *arg),
                                 void *arg)
{
    static const char *const streams[HYDRATION_KINDS] = {
        [HYDRATION_EVENT_UPDATED] = "entity_updated", [HYDRATION_EVENT_NOT_FOUND] = "entity_not-found"};
    const struct hydration_settings *settings = section;
    int64_t serves_ms = settings->copy_ttl_ms > settings->policy.negative_cache_ttl_ms
                            ? settings->copy_ttl_ms
                            : settings->policy.negative_cache_ttl_ms;
    for (int i = 0; i < HYDRATION_KINDS; i++)
        fn(&(struct kernel_topic){.topic = {.name = hydration_topics[i],
                                            .partitions = PARTITIONS,
                                            .keep_ms = KEEP_MS,
                                            .keep_ms_hard =
                                                streams[i] && serves_ms > KEEP_MS ? serves_ms : KEEP_MS,
                                            .relaxed = true}, /* a question lost in a crash is asked again */
                                  .stream = streams[i],
                                  .subject = hydration_topics[i],
                                  .is_plain_in_nats = !streams[i]},
           arg);
}

/* ---- life ---- */

/* A misspelt type would show much later, as a type without an owner. */
static enum status check_types(const struct config *config, const struct setting_strings *types,
                               struct setting_place place, const char *field, struct error *error)
{
    for (size_t i = 0; i < types->count; i++)
        if (!hydration_is_type(types->items[i]))
            return config_error_at(
                config, place, field, error,
                "an entity type is 1 to %d of a-z, 0-9 and _, the first a letter, not '%.*s'",
                HYDRATION_TYPE_BYTES_MAX, STR_ARG(str_utf8_cut(types->items[i], 80)));
    return STATUS_OK;
}

static enum status check_hydration(const struct config *config, const void *section, struct error *error)
{
    const struct hydration_settings *settings = section;
    enum status status =
        check_types(config, &settings->required, settings->required_place, "hydration.required", error);
    if (status == STATUS_OK)
        status = check_types(config, &settings->outside, settings->outside_place, "hydration.outside", error);
    return status;
}

static enum status start_hydration(struct kernel *kernel, const void *section, void **state,
                                   struct error *error)
{
    (void)error;
    struct hydration_route *module = memory_zalloc(sizeof *module);
    module->kernel = kernel;
    module->policy = ((const struct hydration_settings *)section)->policy;
    module->policy.module = "hydration";
    kernel_hydration_consumes(kernel, NULL);
    *state = module;
    return STATUS_OK;
}

/* ---- books ---- */

/* A lookup is decided when its owner has answered, or when its window is over and its callers had their time-out. Until then the window
 * carries it: a question that was lost is asked again by the next caller after it. It never ends if the clock was set back. */
static const struct db_statement flights_sql = DB_STATEMENT(
    "select count(*), count(*) filter (where answered or window_until <= now()),"
    "       count(*) filter (where not answered and window_until > now() + interval '1 hour'),"
    "       coalesce((array_agg(concat_ws('/', tenant_id, entity_type, entity_id))"
    "                 filter (where not answered and window_until > now() + interval '1 hour'))[1], '')"
    " from hydration.flights");

static enum status hydration_books(struct books *books, struct db_conn *conn, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status = db_query(conn, &flights_sql, DB_NO_PARAMS, books->deadline_ns, &rows, error);
    if (status == STATUS_OK) {
        struct books_line line = {.kind = "hydration.flights",
                                  .accepted = db_result_i64(rows, 0, 0),
                                  .decided = db_result_i64(rows, 0, 1),
                                  .lost = db_result_i64(rows, 0, 2)};
        if (line.lost)
            books->on_culprit(books, line.kind, db_result_str(rows, 0, 3),
                              "its window ends in hours: delete its row");
        books->on_line(books, &line);
    }
    db_result_free(rows);
    return status;
}

extern const struct ops_view hydration_views[]; /* views.c */

const struct module hydration_module = {
    .name = "hydration",
    .roles = (const char *const[]){"hydration", NULL},
    .section = &hydration_section,
    .migrations = hydration_migrations,
    .grants = hydration_grants,
    .routes = (const struct module_routes[]){{"hydration", hydration_routes}, {.role = NULL}},
    .check = check_hydration,
    .start = start_hydration,
    .destroy = free,
    .reads_events = true,
    .keeps_store = true,
    .each_topic = each_hydration_topic,
    .books = hydration_books,
    .views = hydration_views,
};
