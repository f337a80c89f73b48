/* GET /v1/hydration/{entity_type}/{entity_id}: an entity as its owner has it, for whoever asks (H5, H6).
 *
 * What is remembered is answered at once. Else the request is parked with its waiter in its own arena, and the first of three
 * ends both: the outcome, the client's going away, the bound on the whole. What the caller may not see looks like what is not
 * there. */
#include "base/clock.h"
#include "base/json.h"
#include "hydration/event.h"
#include "kernel/store.h"
#include "modules/hydration/hydration.h"

enum {
    GRACE_MS = 1000
}; /* the outcome comes within the wait; should it not, the request ends all the same */

enum failure_mode { FAIL_FAST, DEFER, DEGRADE };

static const char *const failure_modes[] = {
    [FAIL_FAST] = "fail-fast", [DEFER] = "defer", [DEGRADE] = "degrade", NULL};

struct visit {
    struct hydration_waiter waiter; /* first: a waiter is its visit */
    struct http_request *request;
    struct str entity_type, entity_id;
    enum failure_mode failure_mode;
    bool is_parked, is_done;
    struct loop_park_ref ref;
};

/* ---- answers ---- */

static struct str quote(struct arena *arena, struct str text)
{
    size_t bytes = json_string_size(text);
    struct buf fixed = {.data = arena_alloc(arena, bytes), .capacity = bytes};
    json_put_string(&fixed, text);
    return buf_str(&fixed);
}

static void send_entity(struct http_request *request, const struct visit *visit,
                        const struct hydration_outcome *outcome, bool is_degraded)
{
    struct str source = outcome->source_module, data = outcome->data;
    const struct str parts[] = {
        STR("{\"entity_type\":\""),
        visit->entity_type,
        STR("\",\"entity_id\":"),
        quote(request->arena, visit->entity_id),
        STR(",\"source_module\":"),
        source.len ? quote(request->arena, source) : STR("null"),
        STR(",\"data\":"),
        data.len ? data : STR("{}"),
        is_degraded ? STR(",\"degraded\":true}") : STR("}"),
    };
    http_send_parts(request, &(struct http_response){.status = 200}, parts, sizeof parts / sizeof *parts);
}

/* The same bytes whether it is absent or hidden, and as cheap as what is remembered should be. */
static void send_not_found(struct http_request *request)
{
    const struct str parts[] = {
        STR("{\"code\":\""),
        str_from(status_code(STATUS_ENTITY_NOT_FOUND)),
        STR("\",\"message\":\""),
        str_from(status_message(STATUS_ENTITY_NOT_FOUND)),
        STR("\"}"),
    };
    http_send_parts(request, &(struct http_response){.status = status_http(STATUS_ENTITY_NOT_FOUND)}, parts,
                    sizeof parts / sizeof *parts);
}

static void send_nothing_known(struct http_request *request, const struct visit *visit,
                               const struct hydration_outcome *outcome)
{
    bool timed_out = outcome->result == HYDRATION_TIMEOUT;
    if (visit->failure_mode == DEGRADE)
        send_entity(request, visit, outcome, true);
    else if (visit->failure_mode == DEFER && timed_out)
        http_send(request, &(struct http_response){.status = 202, .body = STR("{\"status\":\"PENDING\"}")});
    else
        http_send_error(request,
                        &(struct error){.status = timed_out ? STATUS_HYDRATION_TIMEOUT : STATUS_UNAVAILABLE});
}

static void send_outcome(struct http_request *request, const struct visit *visit,
                         const struct hydration_outcome *outcome)
{
    switch (outcome->result) {
    case HYDRATION_UPDATED: send_entity(request, visit, outcome, false); return;
    case HYDRATION_NOT_FOUND: send_not_found(request); return;
    case HYDRATION_TIMEOUT:
    case HYDRATION_UNAVAILABLE: send_nothing_known(request, visit, outcome); return;
    }
}

/* ---- waiting ---- */

static void on_done(struct hydration_waiter *waiter, const struct hydration_outcome *outcome)
{
    struct visit *visit = (struct visit *)waiter;
    struct http_request *request = visit->is_parked ? http_request_unpark(visit->ref) : visit->request;
    visit->is_done = true;
    if (request)
        send_outcome(request, visit, outcome);
}

static void on_drop(struct http_request *request, void *context)
{
    struct visit *visit = context;
    (void)request;
    hydration_waiter_cancel(&visit->waiter);
}

static void on_timeout(struct http_request *request, void *context)
{
    struct visit *visit = context;
    hydration_waiter_cancel(&visit->waiter);
    send_outcome(request, visit, &(struct hydration_outcome){.result = HYDRATION_TIMEOUT});
}

static void ask(struct http_request *request, const struct hydration_need *need, struct visit *visit)
{
    const struct hydration_module *module = request->context;
    hydration_ask(kernel_hydration(module->kernel), &module->policy, need, visit->failure_mode == DEFER,
                  request->loop, &visit->waiter, on_done);
    if (visit->is_done)
        return;
    int64_t limit_ms = module->policy.wait_timeout_ms + GRACE_MS;
    kernel_identity_keep(request);
    visit->is_parked = http_request_park(request, loop_now_ns(request->loop) + limit_ms * CLOCK_NS_PER_MS,
                                         on_timeout, visit, &visit->ref);
    if (visit->is_parked)
        http_request_on_drop(request, on_drop);
    else
        hydration_waiter_cancel(&visit->waiter);
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

/* A comma inside a name is %2C. */
static enum status split_fields(const struct http_request *request, struct str list, struct str *fields,
                                unsigned *count, struct error *error)
{
    struct str raw;
    while (str_split(&list, ',', &raw)) {
        if (*count == HYDRATION_FIELDS_MAX)
            return error_set_field(error, STATUS_BAD_REQUEST, "fields", "fields: at most %d",
                                   HYDRATION_FIELDS_MAX);
        enum status status = http_percent_decode(raw, true, request->arena, "fields", &fields[*count], error);
        if (status != STATUS_OK)
            return status;
        ++*count;
    }
    return STATUS_OK;
}

static enum status read_fields(const struct http_request *request, enum hydration_mode mode,
                               struct str *fields, unsigned *count, struct error *error)
{
    struct str list;
    bool found;
    enum status status = http_request_query_raw(request, STR("fields"), &found, &list, error);
    if (status != STATUS_OK)
        return status;
    if (found != (mode == HYDRATION_PARTIAL))
        return error_set_field(error, STATUS_BAD_REQUEST, "fields",
                               found ? "fields: only with mode=partial" : "fields: needed with mode=partial");
    return found ? split_fields(request, list, fields, count, error) : STATUS_OK;
}

static enum status read_query(const struct http_request *request, struct hydration_need *need,
                              struct visit *visit, struct error *error)
{
    static const char *const names[] = {"mode", "fields", "failure_mode", NULL};
    int mode = HYDRATION_FULL, failure_mode = FAIL_FAST;
    struct str *fields = arena_alloc(request->arena, HYDRATION_FIELDS_MAX * sizeof *fields);
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = read_choice(request, "mode", hydration_mode_names, &mode, error);
    if (status == STATUS_OK)
        status = read_choice(request, "failure_mode", failure_modes, &failure_mode, error);
    need->cover = (struct hydration_cover){.mode = (enum hydration_mode)mode, .fields = fields};
    visit->failure_mode = (enum failure_mode)failure_mode;
    if (status == STATUS_OK)
        status = read_fields(request, need->cover.mode, fields, &need->cover.field_count, error);
    if (status == STATUS_OK)
        status = hydration_need_check(need, fields, &need->cover.field_count, error);
    return status;
}

/* The id of two segments is "first/second": a user's sku, a dictionary's key. */
static enum status read_id(const struct http_request *request, bool has_two, struct str *id,
                           struct error *error)
{
    struct str first, second;
    enum status status = http_request_param(request, has_two ? "first" : "entity_id", &first, error);
    *id = first;
    if (status != STATUS_OK || !has_two)
        return status;
    status = http_request_param(request, "second", &second, error);
    if (status == STATUS_OK)
        *id = arena_printf(request->arena, "%.*s/%.*s", STR_ARG(first), STR_ARG(second));
    return status;
}

/* A token without `sub`: owners refuse it what is somebody's, and an answer must say to whom it was refused. */
#define NOBODY "urn:freshet:nobody"

static enum status read_request(const struct http_request *request, bool has_two, struct hydration_need *need,
                                struct visit *visit, struct error *error)
{
    const struct hydration_module *module = request->context;
    const struct auth_identity *who = kernel_identity(request);
    enum status status = http_request_param(request, "entity_type", &need->entity_type, error);
    if (status == STATUS_OK)
        status = read_id(request, has_two, &need->entity_id, error);
    if (status != STATUS_OK)
        return status;
    need->tenant = who->tenant;
    need->subject = who->subject.len ? who->subject : STR(NOBODY);
    need->trace = request->trace;
    visit->entity_type = need->entity_type;
    visit->entity_id = need->entity_id;
    if (!str_is_name(who->tenant))
        return error_set_field(error, STATUS_BAD_REQUEST, "tenant_id",
                               "a tenant's name is 1 to 64 of A-Z a-z 0-9 . _ -");
    status = read_query(request, need, visit, error);
    if (status == STATUS_OK && !kernel_store_is_ready(module->kernel))
        return error_set(error, STATUS_UNAVAILABLE, "the schema is not there yet");
    return status;
}

static void get(struct http_request *request, bool has_two)
{
    struct visit *visit = arena_zalloc(request->arena, sizeof *visit);
    struct hydration_need need = {0};
    struct error error = {0};
    visit->request = request;
    if (read_request(request, has_two, &need, visit, &error) == STATUS_OK)
        ask(request, &need, visit);
    else
        http_send_error(request, &error);
}

static void get_entity(struct http_request *request)
{
    get(request, false);
}

static void get_entity_of_two(struct http_request *request)
{
    get(request, true);
}

const struct http_route hydration_routes[] = {
    {HTTP_GET, "/v1/hydration/{entity_type}/{entity_id}", get_entity, .kind = HTTP_HOT},
    {HTTP_GET, "/v1/hydration/{entity_type}/{first}/{second}", get_entity_of_two, .kind = HTTP_HOT},
    {.handler = NULL},
};
