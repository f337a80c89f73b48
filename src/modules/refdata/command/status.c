/* GET /updates/{eventId} (R2): the row, as it is. On a worker; an event may be in any of the databases. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/refdata/command/command.h"

enum { READ_MS = 5000 };

static void put_time(struct buf *body, const char *name, int64_t unix_us)
{
    char text[CLOCK_RFC3339_BYTES];
    clock_rfc3339(unix_us, text);
    json_put_member_str(body, name, str_from(text));
}

static void send_row(struct http_request *request, const struct refdata_state_row *row)
{
    const struct refdata_state *state = &row->state;
    struct buf body;
    buf_init(&body);
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
    put_time(&body, "createdAt", row->created_us);
    put_time(&body, "updatedAt", row->updated_us);
    buf_put_char(&body, '}');
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
    buf_deinit(&body);
}

/* What may be written may be followed. An update of a dictionary that is gone needs no scope. */
static enum status check_scope(const struct http_request *request, const struct refdata_catalog *catalog,
                               struct str code, struct error *error)
{
    const struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
    const char *scope = dictionary ? atomic_load(&dictionary->write_scope) : NULL;
    if (!scope || auth_has_scope(kernel_identity(request), str_from(scope)))
        return STATUS_OK;
    return error_set(error, STATUS_INSUFFICIENT_SCOPE, "updates of this dictionary need the scope %s", scope);
}

static enum status look_up(struct refdata_database *database, struct str tenant, struct str event_id,
                           int64_t deadline_ns, struct db_result **result, struct error *error)
{
    struct buf tenants = {0}, event_ids = {0};
    struct db_conn *conn = NULL;
    if (!atomic_load(&database->site.is_ready))
        return error_set(error, STATUS_UNAVAILABLE, "the schema is not in place");
    db_array_begin(&tenants);
    db_array_put(&tenants, tenant);
    db_array_end(&tenants);
    db_array_begin(&event_ids);
    db_array_put(&event_ids, event_id);
    db_array_end(&event_ids);
    enum status status = db_acquire(database->site.pool, deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status =
            refdata_states_query(conn, buf_str(&tenants), buf_str(&event_ids), deadline_ns, result, error);
    if (conn)
        db_release(conn);
    buf_deinit(&tenants);
    buf_deinit(&event_ids);
    return status;
}

/* When a dictionary moves to another database while Kafka has its commands, its PENDING rows stay in the old one, and they are
 * decided in the new one: so a decision counts in any database, and PENDING only if there is none. */
struct found {
    struct db_result *result; /* NULL: not there */
    struct refdata_state_row row;
};

static void take_row(struct found *found, struct db_result *result)
{
    struct refdata_state_row row;
    bool is_there = db_result_rows(result) > 0;
    if (is_there)
        refdata_states_row(result, 0, &row);
    if (!is_there || (found->result && row.state.decision == REFDATA_PENDING)) {
        db_result_free(result);
        return;
    }
    db_result_free(found->result);
    *found = (struct found){result, row};
}

static enum status find_update(struct http_request *request, struct str event_id, struct error *error)
{
    struct refdata_catalog *catalog = refdata_catalog_hold(request->context);
    int64_t deadline_ns = clock_deadline_ms(READ_MS);
    enum status failure = STATUS_UNKNOWN_UPDATE;
    struct error own = {0};
    struct found found = {0};
    error_set(error, STATUS_UNKNOWN_UPDATE, "there is no update %.*s", STR_ARG(event_id));
    for (size_t i = 0; i < catalog->database_count; i++) {
        struct db_result *result = NULL;
        if (found.result && found.row.state.decision != REFDATA_PENDING)
            break;
        enum status status = look_up(catalog->databases[i], kernel_identity(request)->tenant, event_id,
                                     deadline_ns, &result, &own);
        if (status == STATUS_OK) {
            take_row(&found, result);
        } else { /* it may be there */
            failure = status;
            *error = own;
        }
    }
    if (found.result)
        failure = check_scope(request, catalog, found.row.dict_code, error);
    if (found.result && failure == STATUS_OK)
        send_row(request, &found.row);
    db_result_free(found.result);
    refdata_catalog_unref(catalog);
    return failure;
}

void refdata_get_update(struct http_request *request)
{
    char text[UUID_TEXT_BYTES];
    struct str event_id;
    struct error error = {0};
    struct uuid uuid;
    enum status status = http_request_query_only(request, (const char *const[]){NULL}, &error);
    if (status == STATUS_OK)
        status = http_request_param(request, "eventId", &event_id, &error);
    if (status == STATUS_OK && !uuid_parse(event_id, &uuid))
        status = error_set_field(&error, STATUS_BAD_REQUEST, "eventId", "eventId must be a UUID");
    if (status == STATUS_OK) {
        uuid_format(&uuid, text);
        status = find_update(request, str_from(text), &error);
    }
    if (status != STATUS_OK)
        http_send_error(request, &error);
}
