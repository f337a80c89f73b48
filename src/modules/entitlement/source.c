/* Entitlements for whoever lacks one (H6): entity type `entitlement`, id = user_id/sku.
 *
 * In each of the two '/' is written %2F, '%' %25 and a control character likewise, as in an event's aggregate_key; everything
 * else stands as it is, so of most ids nothing is encoded. There is one spelling of an id, and any other one is not found: a
 * copy under another name would hear of no change. One too long for an id cannot be asked for.
 *
 * By the rules of the route: one's own. Another's need a scope, and scopes do not travel, so they are hidden, whether there
 * are any or not. A revoked one is there, and says so; no entitlement ever ends. */
#include "bus/bus.h"
#include "hydration/hydration.h"
#include "modules/entitlement/entitlement.h"
#include "modules/entitlement/event.h"
#include "outbox/messages.h"

#define ENTITY_TYPE "entitlement"

/* By the primary key. */
static const char look_sql[] = "SELECT " ENTITLEMENT_COLUMNS " FROM entitlement.entitlements e"
                               " WHERE e.tenant_id = $1 AND e.user_id = $2 AND e.stock_keeping_unit = $3";
enum { VERSION_COLUMN = 2 };

static enum status read_row(struct entitlement *entitlement, const struct db_param params[3],
                            int64_t deadline_ns, struct db_result **rows, struct error *error)
{
    struct db_conn *conn = NULL;
    if (!kernel_store_is_ready(entitlement->kernel))
        return error_set(error, STATUS_UNAVAILABLE, "the schema is not there yet");
    enum status status = db_acquire(kernel_store_pool(entitlement->kernel), deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = db_query(conn, &entitlement->look, params, deadline_ns, rows, error);
    if (conn)
        db_release(conn);
    return status;
}

static enum status look(void *context, const struct hydration_question *question, int64_t deadline_ns,
                        struct hydration_entity *entity, struct error *error)
{
    struct str user, sku;
    struct db_result *rows = NULL;
    entity->found = HYDRATION_IS_NOT;
    if (!entitlement_id_read(question->entity_id, entity->arena, &user, &sku))
        return STATUS_OK;
    const struct db_param params[] = {{question->tenant}, {user}, {sku}};
    enum status status = read_row(context, params, deadline_ns, &rows, error);
    bool is_own = !question->subject.len || str_eq(question->subject, user);
    bool is_there = status == STATUS_OK && db_result_rows(rows);
    entity->is_private = true;
    entity->only_subject = user;
    entity->found = !is_own ? HYDRATION_IS_HIDDEN : is_there ? HYDRATION_IS : HYDRATION_IS_NOT;
    if (is_there) /* what is hidden has its version too: an answer that is older than what is known counts for nothing */
        entity->version = db_result_i64(rows, 0, VERSION_COLUMN);
    if (is_there && is_own)
        entitlement_put(entity->data, rows, 0);
    db_result_free(rows);
    return status;
}

void entitlement_source_provide(struct entitlement *entitlement)
{
    db_statement_init(&entitlement->look, look_sql, 3, (const enum db_type[]){DB_TEXT, DB_TEXT, DB_TEXT});
    hydration_provide(
        kernel_hydration(entitlement->kernel),
        &(struct hydration_owner){
            .entity_type = ENTITY_TYPE, .module = "entitlement", .look = look, .context = entitlement});
}

/* ---- following its own events ---- */

static bool read_event(void *context, const void *bus_message, struct arena *arena, struct hydration_ref *ref)
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

enum status entitlement_source_follow(struct entitlement *entitlement, struct bus *events,
                                      struct error *error)
{
    return hydration_follow(kernel_hydration(entitlement->kernel), events, ENTITLEMENT_TOPIC, ENTITY_TYPE,
                            read_event, entitlement, error);
}
