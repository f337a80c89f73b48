/* GET /updates/{eventId} (R2): the status of an update, from its row. On a worker; the row may be in any of the databases. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/refdata/command/command.h"

enum { READ_MS = 5000 };

static void send_row(struct http_request *request, const struct refdata_state_row *row)
{
    const struct refdata_state *state = &row->state;
    char created_at[CLOCK_RFC3339_BYTES], updated_at[CLOCK_RFC3339_BYTES];
    struct buf body = {0};
    clock_rfc3339(row->created_us, created_at);
    clock_rfc3339(row->updated_us, updated_at);
    buf_put_char(&body, '{');
    json_put_member_str(&body, "eventId", str_from(state->event_id));
    json_put_member_str(&body, "dictCode", row->dict_code);
    json_put_member_str(&body, "status", str_from(refdata_decision_name(state->decision)));
    if (state->decision == REFDATA_COMMITTED)
        json_put_member_i64(&body, "committedVersion", state->version);
    if (state->decision == REFDATA_FAILED) {
        json_put_member_str(&body, "errorCode", str_from(state->code));
        json_put_member_str(&body, "errorMessage", str_from(state->reason));
    }
    if (row->requested_by.ptr)
        json_put_member_str(&body, "requestedBy", row->requested_by);
    else
        json_put_member_raw(&body, "requestedBy", STR("null"));
    json_put_member_str(&body, "createdAt", str_from(created_at));
    json_put_member_str(&body, "updatedAt", str_from(updated_at));
    buf_put_char(&body, '}');
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
    buf_deinit(&body);
}

static struct str array_of(struct str element, struct arena *arena)
{
    struct buf array = {0};
    db_array_put(&array, element);
    struct str text = arena_str(arena, db_array_end(&array));
    buf_deinit(&array);
    return text;
}

/* The update's row. When a dictionary moves to another database while Kafka has its commands, its PENDING rows stay in the old one,
 * and they are decided in the new one: so a decision in any database counts, and PENDING only if no database has a decision.
 * UNKNOWN_UPDATE: no database has it; another failure: one that did not answer may have it. The row's texts are *result's. */
static enum status find_update(const struct http_request *request, const struct refdata_catalog *catalog,
                               struct str event_id, struct db_result **result, struct refdata_state_row *row,
                               struct error *error)
{
    const struct db_param params[] = {
        db_text_array(array_of(kernel_identity(request)->tenant, request->arena)),
        db_text_array(array_of(event_id, request->arena)), DB_END};
    int64_t deadline_ns = clock_deadline_ms(READ_MS);
    enum status failure =
        error_set(error, STATUS_UNKNOWN_UPDATE, "there is no update %.*s", STR_ARG(event_id));
    for (size_t i = 0; i < catalog->database_count; i++) {
        const struct kernel_site *site = &catalog->databases[i]->site;
        struct refdata_state_row found;
        struct db_result *rows = NULL;
        struct error own = {0};
        enum status status =
            atomic_load(&site->is_ready)
                ? db_pool_query(site->pool, &refdata_states_sql, params, deadline_ns, &rows, &own)
                : error_set(&own, STATUS_UNAVAILABLE, "the schema of the database is not ready; try again");
        if (status != STATUS_OK) {
            failure = status;
            *error = own;
            continue;
        }
        if (db_result_rows(rows) > 0)
            refdata_states_row(rows, 0, &found);
        if (db_result_rows(rows) == 0 || (*result && found.state.decision == REFDATA_PENDING)) {
            db_result_free(rows);
            continue;
        }
        db_result_free(*result);
        *result = rows;
        *row = found;
        if (found.state.decision != REFDATA_PENDING)
            break;
    }
    return *result ? STATUS_OK : failure;
}

void refdata_get_update(struct http_request *request)
{
    char text[UUID_TEXT_BYTES];
    struct str event_id;
    struct refdata_catalog *catalog = refdata_catalog_hold(request->context);
    struct refdata_state_row row;
    struct db_result *result = NULL;
    struct error error = {0};
    struct uuid uuid;
    enum status status = http_request_query_only(request, (const char *const[]){NULL}, &error);
    if (status == STATUS_OK)
        status = http_request_param(request, "eventId", &event_id, &error);
    if (status == STATUS_OK && !uuid_parse(event_id, &uuid))
        status = error_set_field(&error, STATUS_BAD_REQUEST, "eventId", "eventId must be a UUID");
    if (status == STATUS_OK) {
        uuid_format(&uuid, text);
        status = find_update(request, catalog, str_from(text), &result, &row, &error);
    }
    /* Needs the scope for writing, unless the dictionary is not configured any more. */
    if (status == STATUS_OK) {
        const struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, row.dict_code);
        const char *scope = dictionary ? atomic_load(&dictionary->write_scope) : NULL;
        if (scope && !auth_has_scope(kernel_identity(request), str_from(scope)))
            status = error_set(&error, STATUS_INSUFFICIENT_SCOPE,
                               "updates of this dictionary need the scope %s", scope);
    }
    if (status == STATUS_OK)
        send_row(request, &row);
    else
        http_send_error(request, &error);
    db_result_free(result);
    refdata_catalog_unref(catalog);
}
