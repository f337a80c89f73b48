/* POST /v1/ops/hydration/forget: what the ledger has of an entity is removed, so that the next lookup asks its owner again. Processes serve
 * what they have in memory for some seconds more. */
#include "modules/ops/ops.h"

enum { ENTITY_TYPE, ENTITY_ID, TEXTS };

/* Answered lookups go too: within their window they would stand for an answer. By the primary keys. */
static const struct db_statement forget_sql = DB_STATEMENT(
    "with absences as (delete from hydration.absences where tenant_id = $1 and entity_type = $2 and entity_id = $3 returning 1),"
    " copies as (delete from hydration.copies where tenant_id = $1 and entity_type = $2 and entity_id = $3 returning 1),"
    " flights as (delete from hydration.flights where tenant_id = $1 and entity_type = $2 and entity_id = $3 and answered)"
    " select (select count(*) from absences) + (select count(*) from copies)");

static enum status forget_entity(struct ops_change *change, struct db_conn *conn, int64_t deadline_ns,
                                 struct error *error)
{
    struct db_result *rows = NULL;
    const struct db_param *params =
        DB_PARAMS(db_text(change->tenant), db_text(change->texts[ENTITY_TYPE].value),
                  db_text(change->texts[ENTITY_ID].value));
    enum status status = db_query(conn, &forget_sql, params, deadline_ns, &rows, error);
    if (status == STATUS_OK)
        change->matched = change->changed = db_result_i64(rows, 0, 0);
    db_result_free(rows);
    return status;
}

void ops_forget_entity(struct http_request *request)
{
    struct ops_text texts[] = {[ENTITY_TYPE] = {"entity_type", STR_NONE},
                               [ENTITY_ID] = {"entity_id", STR_NONE},
                               [TEXTS] = {NULL, STR_NONE}};
    struct ops_change change = {.texts = texts, .action = "hydration.forget", .run = forget_entity};
    struct error error = {0};
    enum status status = ops_change_read(request, &change, &error);
    if (status == STATUS_OK && !change.tenant.ptr)
        status = error_set_field(&error, STATUS_BAD_REQUEST, "tenant", "tenant must name one tenant");
    if (status != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    change.target = arena_printf(request->arena, "%.*s/%.*s", STR_ARG(texts[ENTITY_TYPE].value),
                                 STR_ARG(texts[ENTITY_ID].value));
    ops_send_change(request, &change, OPS_STORE);
}
