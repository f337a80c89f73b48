/* Entitlements, read: a user's, by sku, a page at a time; and as the owner of the entity type `entitlement` (H6). A user's own need no
 * scope. */
#include "base/clock.h"
#include "base/hex.h"
#include "base/json.h"
#include "bus/bus.h"
#include "modules/entitlement/entitlement.h"
#include "outbox/messages.h"

enum { READ_MS = 5000, LIMIT_MAX = 1000, CURSOR_BYTES_MAX = 4096 };

/* A row: its sku, its version, and the object that clients see. */
#define COLUMNS                                                                                 \
    "e.stock_keeping_unit, e.version, row_to_json((SELECT j FROM (SELECT e.stock_keeping_unit," \
    " e.status, e.version, platform.rfc3339(e.updated_at) AS updated_at) j))"
enum { SKU, VERSION, ENTITLEMENT };

/* $1 tenant, $2 user, $3 after this sku ('' = from the first on; a sku is never empty), $4 rows at most. By the primary key. */
static const struct db_statement list_sql = DB_STATEMENT(
    "SELECT " COLUMNS " FROM entitlement.entitlements e WHERE e.tenant_id = $1 AND e.user_id = $2"
    " AND e.stock_keeping_unit > $3 ORDER BY e.stock_keeping_unit LIMIT $4");

struct page {
    struct str user, after; /* after: the last sku of the page before */
    int64_t limit;
};

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
        buf_put_str(out, db_result_str(rows, i, ENTITLEMENT));
    }
    buf_put_char(out, ']');
    if (count > limit) {
        struct str last = db_result_str(rows, limit - 1, SKU);
        char *cursor = arena_alloc(arena, 2 * last.len);
        hex_put(cursor, (const uint8_t *)last.ptr, last.len);
        json_put_member_str(out, "next_cursor", str_of(cursor, 2 * last.len));
    }
    buf_put_char(out, '}');
}

/* A cursor is the last sku of the page before, in hex. */
static enum status take_page(struct http_request *request, struct page *page, struct error *error)
{
    static const char *const names[] = {"limit", "cursor", NULL};
    bool found = false;
    struct str text;
    page->limit = LIMIT_MAX;
    page->after = STR("");
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = http_request_param(request, "user_id", &page->user, error);
    if (status == STATUS_OK)
        status = http_request_query_i64(request, "limit", 1, LIMIT_MAX, &page->limit, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("cursor"), &found, &text, error);
    if (status != STATUS_OK || !found)
        return status;
    char *sku = arena_alloc(request->arena, text.len / 2 + 1);
    bool is_hex = text.len > 0 && text.len % 2 == 0 && text.len / 2 <= CURSOR_BYTES_MAX &&
                  hex_get(text.ptr, (uint8_t *)sku, text.len / 2);
    page->after = str_of(sku, text.len / 2);
    if (!is_hex || !str_is_utf8(page->after) || memchr(sku, '\0', page->after.len))
        return error_set_field(error, STATUS_BAD_REQUEST, "cursor",
                               "cursor must be the next_cursor of an answer");
    return STATUS_OK;
}

void entitlement_get_of_user(struct http_request *request)
{
    const struct entitlement *entitlement = request->context;
    const struct auth_identity *who = kernel_identity(request);
    struct page page;
    struct error error = {0};
    struct db_result *rows = NULL;
    enum status status = take_page(request, &page, &error);
    if (status == STATUS_OK && !str_eq(page.user, who->subject) &&
        !auth_has_scope(who, STR("entitlement:read")))
        status = error_set(&error, STATUS_INSUFFICIENT_SCOPE,
                           "another user's entitlements need the scope entitlement:read");
    if (status == STATUS_OK)
        status = kernel_store_query(
            entitlement->kernel, &list_sql,
            DB_PARAMS(db_text(who->tenant), db_text(page.user), db_text(page.after), db_i64(page.limit + 1)),
            clock_deadline_ms(READ_MS), &rows, &error);
    if (status == STATUS_OK) {
        struct buf body = {0};
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

/* By the primary key. */
static const struct db_statement look_sql =
    DB_STATEMENT("SELECT " COLUMNS " FROM entitlement.entitlements e"
                 " WHERE e.tenant_id = $1 AND e.user_id = $2 AND e.stock_keeping_unit = $3");

static enum status look_up_entitlement(void *context, const struct hydration_need *need, int64_t deadline_ns,
                                       struct hydration_entity *entity, struct error *error)
{
    struct entitlement *entitlement = context;
    struct str user, sku;
    struct db_result *rows;
    entity->found = HYDRATION_IS_NOT;
    if (!entitlement_id_read(need->entity_id, entity->arena, &user, &sku))
        return STATUS_OK;
    enum status status = kernel_store_query(entitlement->kernel, &look_sql,
                                            DB_PARAMS(db_text(need->tenant), db_text(user), db_text(sku)),
                                            deadline_ns, &rows, error);
    bool is_own = !need->subject.len || str_eq(need->subject, user);
    bool is_there = status == STATUS_OK && db_result_rows(rows);
    entity->is_private = true;
    entity->only_subject = user;
    entity->found = !is_own ? HYDRATION_IS_HIDDEN : is_there ? HYDRATION_IS : HYDRATION_IS_NOT;
    if (is_there) /* also when it is hidden: an older answer is ignored */
        entity->version = db_result_i64(rows, 0, VERSION);
    if (is_there && is_own)
        buf_put_str(entity->data, db_result_str(rows, 0, ENTITLEMENT));
    db_result_free(rows);
    return status;
}

static bool read_entitlement_event(const struct bus_message *message, struct arena *arena,
                                   struct hydration_ref *ref)
{
    (void)arena;
    struct str id = bus_message_header(message, STR(OUTBOX_HEADER_AGGREGATE)), tenant;
    ref->tenant = bus_message_header(message, STR(OUTBOX_HEADER_TENANT));
    bool has_id = str_split(&id, '/', &tenant) && id.len && id.len <= HYDRATION_ID_BYTES_MAX;
    ref->entity_id = id;
    return has_id;
}

void entitlement_owner_provide(struct entitlement *entitlement)
{
    hydration_provide(kernel_hydration(entitlement->kernel),
                      &(struct hydration_owner){.entity_type = "entitlement",
                                                .module = "entitlement",
                                                .look = look_up_entitlement,
                                                .context = entitlement,
                                                .topic = ENTITLEMENT_TOPIC,
                                                .read = read_entitlement_event});
}
