/* What became of updates, by the rows themselves. */
#include "modules/refdata/command/states.h"

#include <stdio.h>

/* By the primary key, one probe for each event asked for. */
static const char states_sql[] =
    "SELECT asked.at - 1, r.event_id, r.dict_code, r.content_hash, r.status, r.committed_version,"
    "       r.error_code, r.error_message, (extract(epoch from r.created_at) * 1000000)::bigint,"
    "       (extract(epoch from r.updated_at) * 1000000)::bigint, r.requested_by"
    " FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS asked (tenant_id, event_id, at)"
    " JOIN refdata.update_request r ON r.tenant_id = asked.tenant_id AND r.event_id = asked.event_id::uuid";
enum {
    AT,
    EVENT_ID,
    DICT_CODE,
    CONTENT_HASH,
    STATUS,
    VERSION,
    CODE,
    MESSAGE,
    CREATED,
    UPDATED,
    REQUESTED_BY
};

enum status refdata_states_query(struct db_conn *conn, struct str tenants, struct str event_ids,
                                 int64_t deadline_ns, struct db_result **result, struct error *error)
{
    static const enum db_type types[] = {DB_TEXT_ARRAY, DB_TEXT_ARRAY};
    struct db_param params[] = {{tenants}, {event_ids}};
    struct db_statement statement;
    db_statement_init(&statement, states_sql, 2, types);
    return db_query(conn, &statement, params, deadline_ns, result, error);
}

static enum refdata_decision decision_of(struct str status)
{
    if (str_eq(status, STR("COMMITTED")))
        return REFDATA_COMMITTED;
    return str_eq(status, STR("FAILED")) ? REFDATA_FAILED : REFDATA_PENDING;
}

static void copy(char *out, size_t room, struct str text)
{
    snprintf(out, room, "%.*s", STR_ARG(str_utf8_cut(text, room - 1)));
}

void refdata_states_row(const struct db_result *result, size_t row, struct refdata_states_row *out)
{
    struct refdata_state *state = &out->state;
    *out = (struct refdata_states_row){
        .asked = (size_t)db_result_i64(result, row, AT),
        .dict_code = db_result_str(result, row, DICT_CODE),
        .content_hash = db_result_str(result, row, CONTENT_HASH),
        .created_us = db_result_i64(result, row, CREATED),
        .updated_us = db_result_i64(result, row, UPDATED),
    };
    if (!db_result_is_null(result, row, REQUESTED_BY))
        out->requested_by = db_result_str(result, row, REQUESTED_BY);
    state->decision = decision_of(db_result_str(result, row, STATUS));
    state->version = db_result_i64(result, row, VERSION);
    copy(state->event_id, sizeof state->event_id, db_result_str(result, row, EVENT_ID));
    copy(state->code, sizeof state->code, db_result_str(result, row, CODE));
    copy(state->reason, sizeof state->reason, db_result_str(result, row, MESSAGE));
}
