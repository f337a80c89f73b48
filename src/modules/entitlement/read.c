/* Entitlements, read: a user's, by sku, a page at a time; and as the owner of the entity type `entitlement` (H6). A user's own need no
 * scope. */
#include "base/clock.h"
#include "base/hex.h"
#include "bus/bus.h"
#include "kernel/audit.h"
#include "kernel/page.h"
#include "modules/entitlement/entitlement.h"
#include "outbox/outbox.h"

enum { READ_MS = 5000, CURSOR_BYTES_MAX = 4096 };

/* A row: its sku, its version, and the object that clients see. */
#define COLUMNS                                                                                 \
    "e.stock_keeping_unit, e.version, row_to_json((SELECT j FROM (SELECT e.stock_keeping_unit," \
    " e.status, e.version, platform.rfc3339(e.updated_at) AS updated_at) j))"
enum { SKU, VERSION, ENTITLEMENT };

/* $1 tenant, $2 user, $3 after this sku ('' = from the first on; a sku is never empty), $4 rows at most. By the primary key. */
static const struct db_statement list_sql = DB_STATEMENT(
    "SELECT " COLUMNS " FROM entitlement.entitlements e WHERE e.tenant_id = $1 AND e.user_id = $2"
    " AND e.stock_keeping_unit > $3 ORDER BY e.stock_keeping_unit LIMIT $4");

void entitlement_get_of_user(struct http_request *request)
{
    const struct entitlement *entitlement = request->context;
    struct kernel_page page = {
        .name = "entitlements", .scope = "entitlement:read", .limit = KERNEL_PAGE_LIMIT_MAX};
    struct str after = STR(""), next = STR_NONE;
    struct error error = {0};
    struct db_result *rows = NULL;
    enum status status = kernel_page_read(request, &page, &error);
    if (status == STATUS_OK && page.has_cursor) { /* the last sku of the page before, in hex */
        struct str cursor = page.cursor;
        char *sku = arena_alloc(request->arena, cursor.len / 2 + 1);
        after = str_of(sku, cursor.len / 2);
        if (!cursor.len || cursor.len % 2 || after.len > CURSOR_BYTES_MAX ||
            !hex_get(cursor.ptr, (uint8_t *)sku, after.len) || !str_is_text(after))
            status = kernel_page_bad_cursor(&error);
    }
    if (status == STATUS_OK)
        status = kernel_store_query(entitlement->kernel, &list_sql,
                                    DB_PARAMS(db_text(kernel_identity(request)->tenant), db_text(page.user),
                                              db_text(after), db_i64(page.limit + 1)),
                                    clock_deadline_ms(READ_MS), &rows, &error);
    if (status == STATUS_OK && db_result_rows(rows) > (size_t)page.limit) {
        struct str last = db_result_str(rows, (size_t)page.limit - 1, SKU);
        char *hex = arena_alloc(request->arena, 2 * last.len);
        hex_put(hex, (const uint8_t *)last.ptr, last.len);
        next = str_of(hex, 2 * last.len);
    }
    if (status == STATUS_OK)
        kernel_page_send(request, &page, rows, ENTITLEMENT, next);
    else
        http_send_error(request, &error);
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
    entity->found = HYDRATION_ENTITY_ABSENT;
    if (!entitlement_id_read(need->entity_id, entity->arena, &user, &sku))
        return STATUS_OK;
    enum status status = kernel_store_query(entitlement->kernel, &look_sql,
                                            DB_PARAMS(db_text(need->tenant), db_text(user), db_text(sku)),
                                            deadline_ns, &rows, error);
    bool is_own = !need->caller.len || str_eq(need->caller, user);
    bool is_there = status == STATUS_OK && db_result_rows(rows);
    entity->is_private = true;
    entity->only_caller = user;
    entity->found = !is_own    ? HYDRATION_ENTITY_HIDDEN
                    : is_there ? HYDRATION_ENTITY_EXISTS
                               : HYDRATION_ENTITY_ABSENT;
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

static void on_event_gap(void *context, unsigned partition, int64_t offset)
{
    const struct entitlement *entitlement = context;
    kernel_audit_gap(entitlement->kernel, &entitlement_outbox_table, ENTITLEMENT_TOPIC, partition, offset);
}

void entitlement_owner_provide(struct entitlement *entitlement)
{
    hydration_provide(kernel_hydration(entitlement->kernel),
                      &(struct hydration_owner){.entity_type = "entitlement",
                                                .module = "entitlement",
                                                .look = look_up_entitlement,
                                                .context = entitlement,
                                                .topic = ENTITLEMENT_TOPIC,
                                                .read = read_entitlement_event,
                                                .on_gap = on_event_gap});
}
