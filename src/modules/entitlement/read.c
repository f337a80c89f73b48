/* Entitlements, read: a user's, by sku, a page at a time; and as the owner of the entity type `entitlement` (H6). A user's own need no
 * scope. */
#include "base/clock.h"
#include "base/hex.h"
#include "base/json.h"
#include "bus/bus.h"
#include "modules/entitlement/entitlement.h"
#include "modules/entitlement/event.h"
#include "outbox/messages.h"

enum { READ_MS = 5000, LIMIT_MAX = 1000, CURSOR_BYTES_MAX = 4096 };

/* A row as clients see it. */
#define COLUMNS "e.stock_keeping_unit, e.status, e.version, platform.rfc3339(e.updated_at)"

/* $1 tenant, $2 user, $3 after this sku ('' = from the first on; a sku is never empty), $4 rows at most. By the primary key. */
static const struct db_statement list_sql = DB_STATEMENT(
    "SELECT " COLUMNS " FROM entitlement.entitlements e WHERE e.tenant_id = $1 AND e.user_id = $2"
    " AND e.stock_keeping_unit > $3 ORDER BY e.stock_keeping_unit LIMIT $4");

struct page {
    struct str user, after; /* after: the last sku of the page before */
    int64_t limit;
};

static void put_entitlement(struct buf *out, const struct db_result *rows, size_t row)
{
    buf_put_char(out, '{');
    json_put_member_str(out, "stock_keeping_unit", db_result_str(rows, row, 0));
    json_put_member_str(out, "status", db_result_str(rows, row, 1));
    json_put_member_raw(out, "version", db_result_str(rows, row, 2));
    json_put_member_str(out, "updated_at", db_result_str(rows, row, 3));
    buf_put_char(out, '}');
}

/* A row more than the limit means that there is a next page. */
static void write_page(const struct page *page, const struct db_result *rows, struct arena *arena,
                       struct buf *out)
{
    size_t count = db_result_rows(rows), limit = (size_t)page->limit, shown = count < limit ? count : limit;
    buf_put_char(out, '{');
    json_put_member_str(out, "user_id", page->user);
    json_put_key(out, STR("entitlements"));
    buf_put_char(out, '[');
    for (size_t i = 0; i < shown; i++) {
        if (i)
            buf_put_char(out, ',');
        put_entitlement(out, rows, i);
    }
    buf_put_char(out, ']');
    if (count > limit) {
        struct str last = db_result_str(rows, limit - 1, 0);
        char *cursor = arena_alloc(arena, 2 * last.len);
        hex_put(cursor, (const uint8_t *)last.ptr, last.len);
        json_put_member_str(out, "next_cursor", str_of(cursor, 2 * last.len));
    }
    buf_put_char(out, '}');
}

static enum status take_limit(const struct http_request *request, struct page *page, struct error *error)
{
    bool found;
    struct str text;
    enum status status = http_request_query(request, STR("limit"), &found, &text, error);
    page->limit = LIMIT_MAX;
    if (status == STATUS_OK && found &&
        (!str_to_i64(text, &page->limit) || page->limit < 1 || page->limit > LIMIT_MAX))
        return error_set_field(error, STATUS_BAD_REQUEST, "limit", "limit must be 1 to %d", LIMIT_MAX);
    return status;
}

/* A cursor is the last sku of the page before, in hex. */
static enum status take_cursor(struct http_request *request, struct page *page, struct error *error)
{
    bool found;
    struct str text;
    enum status status = http_request_query(request, STR("cursor"), &found, &text, error);
    page->after = STR("");
    if (status != STATUS_OK || !found)
        return status;
    bool fits = text.len > 0 && text.len % 2 == 0 && text.len / 2 <= CURSOR_BYTES_MAX;
    char *sku = arena_alloc(request->arena, text.len / 2 + 1);
    fits = fits && hex_get(text.ptr, (uint8_t *)sku, text.len / 2);
    page->after = str_of(sku, text.len / 2);
    if (!fits || !str_is_utf8(page->after) || memchr(sku, '\0', page->after.len))
        return error_set_field(error, STATUS_BAD_REQUEST, "cursor",
                               "cursor must be the next_cursor of an answer");
    return STATUS_OK;
}

static enum status take_page(struct http_request *request, struct page *page, struct error *error)
{
    static const char *const names[] = {"limit", "cursor", NULL};
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = http_request_param(request, "user_id", &page->user, error);
    if (status == STATUS_OK)
        status = take_limit(request, page, error);
    return status == STATUS_OK ? take_cursor(request, page, error) : status;
}

static enum status check_page(struct http_request *request, struct page *page, struct error *error)
{
    const struct entitlement *entitlement = request->context;
    const struct auth_identity *who = kernel_identity(request);
    enum status status = take_page(request, page, error);
    if (status != STATUS_OK)
        return status;
    if (!str_eq(page->user, who->subject) && !auth_has_scope(who, STR("entitlement:read")))
        return error_set(error, STATUS_INSUFFICIENT_SCOPE,
                         "another user's entitlements need the scope entitlement:read");
    if (!kernel_store_is_ready(entitlement->kernel))
        return error_set(error, STATUS_UNAVAILABLE, "the schema is not ready yet");
    return STATUS_OK;
}

static enum status read_rows(struct http_request *request, const struct page *page, struct db_result **rows,
                             struct error *error)
{
    const struct entitlement *entitlement = request->context;
    int64_t deadline_ns = clock_deadline_ms(READ_MS);
    struct db_conn *conn = NULL;
    enum status status = db_acquire(kernel_store_pool(entitlement->kernel), deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = db_query(conn, &list_sql,
                          DB_PARAMS(db_text(kernel_identity(request)->tenant), db_text(page->user),
                                    db_text(page->after), db_i64(page->limit + 1)),
                          deadline_ns, rows, error);
    db_release(conn);
    return status;
}

void entitlement_get_of_user(struct http_request *request)
{
    struct page page;
    struct error error = {0};
    struct db_result *rows = NULL;
    enum status status = check_page(request, &page, &error);
    if (status == STATUS_OK)
        status = read_rows(request, &page, &rows, &error);
    if (status == STATUS_OK) {
        struct buf body;
        buf_init(&body);
        write_page(&page, rows, request->arena, &body);
        http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
        buf_deinit(&body);
    } else {
        http_send_error(request, &error);
    }
    db_result_free(rows);
}

/* ---- as an entity, id = user_id/sku ----
 *
 * In each of the two '/' is %2F, '%' is %25 and control characters are encoded too, as in an event's aggregate_key. An id has one
 * spelling; any other is not found, since a copy under another id would miss changes.
 *
 * The route's rules: a user sees its own. Those of others need a scope, and scopes do not travel, so they are hidden, whether they
 * exist or not. A revoked one exists and has that status; entitlements are never deleted. */

#define ENTITY_TYPE "entitlement"

/* By the primary key. */
static const struct db_statement look_sql =
    DB_STATEMENT("SELECT " COLUMNS " FROM entitlement.entitlements e"
                 " WHERE e.tenant_id = $1 AND e.user_id = $2 AND e.stock_keeping_unit = $3");
enum { VERSION_COLUMN = 2 };

static enum status read_row(struct entitlement *entitlement, const struct db_param *params,
                            int64_t deadline_ns, struct db_result **rows, struct error *error)
{
    struct db_conn *conn = NULL;
    if (!kernel_store_is_ready(entitlement->kernel))
        return error_set(error, STATUS_UNAVAILABLE, "the schema is not ready yet");
    enum status status = db_acquire(kernel_store_pool(entitlement->kernel), deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = db_query(conn, &look_sql, params, deadline_ns, rows, error);
    if (conn)
        db_release(conn);
    return status;
}

static enum status look_up_entitlement(void *context, const struct hydration_question *question,
                                       int64_t deadline_ns, struct hydration_entity *entity,
                                       struct error *error)
{
    struct str user, sku;
    struct db_result *rows = NULL;
    entity->found = HYDRATION_IS_NOT;
    if (!entitlement_id_read(question->entity_id, entity->arena, &user, &sku))
        return STATUS_OK;
    enum status status = read_row(context, DB_PARAMS(db_text(question->tenant), db_text(user), db_text(sku)),
                                  deadline_ns, &rows, error);
    bool is_own = !question->subject.len || str_eq(question->subject, user);
    bool is_there = status == STATUS_OK && db_result_rows(rows);
    entity->is_private = true;
    entity->only_subject = user;
    entity->found = !is_own ? HYDRATION_IS_HIDDEN : is_there ? HYDRATION_IS : HYDRATION_IS_NOT;
    if (is_there) /* also when it is hidden: an older answer is ignored */
        entity->version = db_result_i64(rows, 0, VERSION_COLUMN);
    if (is_there && is_own)
        put_entitlement(entity->data, rows, 0);
    db_result_free(rows);
    return status;
}

void entitlement_owner_provide(struct entitlement *entitlement)
{
    hydration_provide(kernel_hydration(entitlement->kernel),
                      &(struct hydration_owner){.entity_type = ENTITY_TYPE,
                                                .module = "entitlement",
                                                .look = look_up_entitlement,
                                                .context = entitlement});
}

static bool read_entitlement_event(void *context, const void *bus_message, struct arena *arena,
                                   struct hydration_ref *ref)
{
    (void)context;
    (void)arena;
    struct str id = bus_message_header(bus_message, STR(OUTBOX_HEADER_AGGREGATE)), tenant;
    if (!str_split(&id, '/', &tenant) || !id.len || id.len > HYDRATION_ID_BYTES_MAX)
        return false;
    ref->tenant = bus_message_header(bus_message, STR(OUTBOX_HEADER_TENANT));
    ref->entity_id = id;
    return true;
}

enum status entitlement_owner_follow(struct entitlement *entitlement, struct bus *events, struct error *error)
{
    return hydration_follow(kernel_hydration(entitlement->kernel), events, ENTITLEMENT_TOPIC, ENTITY_TYPE,
                            read_entitlement_event, entitlement, error);
}
