/* A user's entitlements, by sku. One's own need no scope. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/entitlement/entitlement.h"

enum { READ_MS = 5000 };

static const char list_sql[] =
    "SELECT " ENTITLEMENT_COLUMNS " FROM entitlement.entitlements e WHERE e.tenant_id = $1 AND e.user_id = $2"
    " ORDER BY e.stock_keeping_unit";

void entitlement_list_init(struct entitlement *entitlement)
{
    db_statement_init(&entitlement->list, list_sql, 2, (const enum db_type[]){DB_TEXT, DB_TEXT});
}

void entitlement_put(struct buf *out, const struct db_result *rows, size_t row)
{
    buf_put_char(out, '{');
    json_put_member_str(out, "stock_keeping_unit", db_result_str(rows, row, 0));
    json_put_member_str(out, "status", db_result_str(rows, row, 1));
    json_put_member_raw(out, "version", db_result_str(rows, row, 2));
    json_put_member_str(out, "updated_at", db_result_str(rows, row, 3));
    buf_put_char(out, '}');
}

static void write_answer(struct str user, const struct db_result *rows, struct buf *out)
{
    buf_put_char(out, '{');
    json_put_member_str(out, "user_id", user);
    json_put_key(out, STR("entitlements"));
    buf_put_char(out, '[');
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        if (i)
            buf_put_char(out, ',');
        entitlement_put(out, rows, i);
    }
    buf_put_str(out, STR("]}"));
}

static enum status check(struct http_request *request, struct str *user, struct error *error)
{
    const struct entitlement *entitlement = request->context;
    const struct auth_identity *who = kernel_identity(request);
    enum status status = http_request_query_only(request, (const char *const[]){NULL}, error);
    if (status == STATUS_OK)
        status = http_request_param(request, "user_id", user, error);
    if (status != STATUS_OK)
        return status;
    if (!str_eq(*user, who->subject) && !auth_has_scope(who, STR("entitlement:read")))
        return error_set(error, STATUS_INSUFFICIENT_SCOPE,
                         "another user's entitlements need the scope entitlement:read");
    if (!kernel_store_is_ready(entitlement->kernel))
        return error_set(error, STATUS_UNAVAILABLE, "the schema is not there yet");
    return STATUS_OK;
}

static enum status read_rows(struct http_request *request, struct str user, struct db_result **rows,
                             struct error *error)
{
    const struct entitlement *entitlement = request->context;
    const struct db_param params[] = {{kernel_identity(request)->tenant}, {user}};
    int64_t deadline_ns = clock_deadline_ms(READ_MS);
    struct db_conn *conn = NULL;
    enum status status = db_acquire(kernel_store_pool(entitlement->kernel), deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = db_query(conn, &entitlement->list, params, deadline_ns, rows, error);
    db_release(conn);
    return status;
}

void entitlement_get_of_user(struct http_request *request)
{
    struct str user = STR_NONE;
    struct error error = {0};
    struct db_result *rows = NULL;
    enum status status = check(request, &user, &error);
    if (status == STATUS_OK)
        status = read_rows(request, user, &rows, &error);
    if (status == STATUS_OK) {
        struct buf body;
        buf_init(&body);
        write_answer(user, rows, &body);
        http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
        buf_deinit(&body);
    } else {
        http_send_error(request, &error);
    }
    db_result_free(rows);
}
