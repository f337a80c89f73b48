/* What a request asks for: parameters, the tenant, the cursor. */
#include "base/hex.h"
#include "base/uuid.h"
#include "modules/ops/ops.h"

/* ---- the tenant ---- */

enum status ops_tenant_read(const struct http_request *request, struct str named, struct str *tenant,
                            struct error *error)
{
    const struct auth_identity *identity = kernel_identity(request);
    bool found = named.ptr != NULL;
    enum status status =
        found ? STATUS_OK : http_request_query(request, STR("tenant"), &found, &named, error);
    if (status != STATUS_OK)
        return status;
    *tenant = found ? named : identity->tenant;
    if (!str_eq(*tenant, identity->tenant) && !auth_has_scope(identity, STR("ops:all-tenants")))
        return error_set(error, STATUS_TENANT_MISMATCH,
                         "rows of other tenants need the scope ops:all-tenants");
    if (found && str_eq(*tenant, STR("*")))
        *tenant = STR_NONE;
    else if (!str_is_name(*tenant))
        return error_set_field(error, STATUS_BAD_REQUEST, "tenant",
                               "tenant must be a tenant's name, or * for all");
    return STATUS_OK;
}

bool ops_tenant_only(struct http_request *request, struct str *tenant)
{
    static const char *const names[] = {"tenant", NULL};
    struct error error = {0};
    enum status status = http_request_query_only(request, names, &error);
    if (status == STATUS_OK)
        status = ops_tenant_read(request, STR_NONE, tenant, &error);
    if (status != STATUS_OK)
        http_send_error(request, &error);
    return status == STATUS_OK;
}

/* ---- the cursor: the view's name, the database, the keys, each ended by NUL, in hexadecimal digits ---- */

void ops_put_hex(struct buf *out, struct str bytes)
{
    hex_put(buf_reserve(out, 2 * bytes.len), (const uint8_t *)bytes.ptr, bytes.len);
    buf_commit(out, 2 * bytes.len);
}

void ops_cursor_put(struct buf *out, const struct ops_view *view, const struct str *keys,
                    const char *database)
{
    struct buf bytes = {0};
    buf_put(&bytes, view->name, strlen(view->name) + 1);
    buf_put(&bytes, database, strlen(database) + 1);
    for (size_t i = 0; i < OPS_KEYS_MAX && view->keys[i].sql; i++) {
        buf_put_str(&bytes, keys[i]);
        buf_put_char(&bytes, '\0');
    }
    ops_put_hex(out, buf_str(&bytes));
    buf_deinit(&bytes);
}

static bool read_cursor(struct str text, struct arena *arena, struct ops_request *wanted)
{
    const struct ops_view *view = wanted->view;
    struct ops_question *question = &wanted->question;
    size_t len = text.len / 2;
    uint8_t *bytes = arena_alloc(arena, len + 1);
    struct str rest = {(const char *)bytes, len}, name;
    struct error error;
    if (text.len % 2 || !hex_get(text.ptr, bytes, len) || len == 0 || bytes[len - 1] != '\0')
        return false;
    rest.len--;
    if (!str_split(&rest, '\0', &name) || !str_eq(name, str_from(view->name)) ||
        !str_split(&rest, '\0', &wanted->after_database))
        return false;
    for (size_t i = 0; i < OPS_KEYS_MAX && view->keys[i].sql; i++) {
        const struct ops_filter as = {.name = "cursor", .type = view->keys[i].type};
        if (!str_split(&rest, '\0', &question->after[i]) ||
            kernel_ops_value_check(&as, &question->after[i], arena, &error) != STATUS_OK)
            return false;
    }
    question->has_after = true;
    return rest.len == 0;
}

/* ---- parameters ---- */

enum { OWN_NAMES = 5 };

static enum status check_names(const struct http_request *request, const struct ops_view *view,
                               struct error *error)
{
    const char *names[OWN_NAMES + OPS_FILTERS_MAX + 1];
    size_t count = 0;
    if (!view->is_single) {
        names[count++] = "limit";
        names[count++] = "cursor";
    }
    if (view->tenant && !strstr(request->route->path, "{tenant_id}"))
        names[count++] = "tenant";
    if (view->by && view->is)
        names[count++] = view->by;
    if (view->place != OPS_STORE)
        names[count++] = "database";
    for (const struct ops_filter *filter = view->filters; filter && filter->name; filter++)
        if (!filter->is_path)
            names[count++] = filter->name;
    names[count] = NULL;
    return http_request_query_only(request, names, error);
}

static enum status read_filters(const struct http_request *request, const struct ops_view *view,
                                struct ops_question *question, struct error *error)
{
    enum status status = STATUS_OK;
    size_t i = 0;
    for (const struct ops_filter *filter = view->filters; filter && filter->name && status == STATUS_OK;
         filter++, i++) {
        struct str *value = &question->values[i];
        bool found = true;
        status = filter->is_path ? http_request_param(request, filter->name, value, error)
                                 : http_request_query(request, str_from(filter->name), &found, value, error);
        if (status == STATUS_OK && found)
            status = kernel_ops_value_check(filter, value, request->arena, error);
        else
            *value = STR_NONE;
    }
    return status;
}

void ops_request_go_on(struct ops_request *wanted, const struct str *keys, struct arena *arena)
{
    for (size_t i = 0; i < OPS_KEYS_MAX && wanted->view->keys[i].sql; i++)
        wanted->question.after[i] = arena_str(arena, keys[i]);
    wanted->question.has_after = true;
}

enum status ops_request_read(const struct http_request *request, const struct ops_view *view,
                             struct ops_request *wanted, struct error *error)
{
    struct str cursor, named = STR_NONE; /* a tenant in the path is decided about as one in the query */
    bool has_cursor = false, has_database = false;
    *wanted = (struct ops_request){.view = view, .question = {.limit = OPS_LIMIT}};
    enum status status = check_names(request, view, error);
    if (status == STATUS_OK && strstr(request->route->path, "{tenant_id}"))
        status = http_request_param(request, "tenant_id", &named, error);
    if (status == STATUS_OK && view->tenant)
        status = ops_tenant_read(request, named, &wanted->question.tenant, error);
    if (status == STATUS_OK)
        status = http_request_query_i64(request, "limit", 1, OPS_LIMIT_MAX, &wanted->question.limit, error);
    if (status == STATUS_OK)
        status = read_filters(request, view, &wanted->question, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("database"), &has_database, &wanted->only, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("cursor"), &has_cursor, &cursor, error);
    if (!has_database)
        wanted->only = STR_NONE;
    if (status == STATUS_OK && has_cursor && !read_cursor(cursor, request->arena, wanted))
        status = error_set_field(error, STATUS_BAD_REQUEST, "cursor",
                                 "cursor must be the next_cursor of an answer of this list");
    return status;
}
