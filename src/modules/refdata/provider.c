/* What both providers' loads come down to: rows with columns k and v, straight into a builder. */
#include "modules/refdata/provider.h"

#define TOO_LARGE_SQLSTATE "54000" /* a text of more than 1 GB */

/* ---- rows into a builder ---- */

enum status refdata_provider_check_value(uint32_t type_oid, struct error *error)
{
    if (type_oid == DB_OID_JSON || type_oid == DB_OID_JSONB)
        return STATUS_OK;
    return error_set(error, STATUS_DB_ERROR, "column v must be json or jsonb: use to_jsonb() or a cast");
}

struct row_sink {
    struct cache_builder *builder;
    unsigned key_column, value_column;
    uint64_t row;
    enum status status;
    struct error *error;
};

/* Columns are found by name in every load: a table that `select *` reads may have changed since the check. */
static enum status find_in_row(struct row_sink *sink, const struct db_row *row)
{
    uint32_t key_type, value_type;
    if (!db_row_find(row, "k", &sink->key_column, &key_type))
        return error_set(sink->error, STATUS_DB_ERROR, "the result has no column k");
    if (!db_row_find(row, "v", &sink->value_column, &value_type))
        return error_set(sink->error, STATUS_DB_ERROR, "the result has no column v");
    return refdata_provider_check_value(value_type, sink->error);
}

static bool on_row(void *context, const struct db_row *row)
{
    struct row_sink *sink = context;
    if (sink->row++ == 0 && (sink->status = find_in_row(sink, row)) != STATUS_OK)
        return false;
    if (db_row_is_null(row, sink->key_column)) {
        sink->status = error_set_field(sink->error, STATUS_DB_ERROR, "k", "the key is null");
    } else {
        struct str payload =
            db_row_is_null(row, sink->value_column) ? STR("null") : db_row_str(row, sink->value_column);
        sink->status =
            cache_builder_put(sink->builder, db_row_str(row, sink->key_column), payload, sink->error);
    }
    return sink->status == STATUS_OK;
}

enum status refdata_provider_plan_freely(struct db_conn *conn, int64_t deadline_ns, struct error *error)
{
    static const struct db_statement plan_freely_sql = DB_STATEMENT(DB_PLAN_FREELY_SQL);
    return db_exec(conn, &plan_freely_sql, DB_NO_PARAMS, deadline_ns, NULL, error);
}

enum status refdata_provider_load(const struct db_statement *statement, const struct db_param *params,
                                  struct db_conn *conn, int64_t deadline_ns, struct cache_builder *builder,
                                  struct error *error)
{
    struct row_sink sink = {.builder = builder, .error = error};
    struct error stream_error = {0};
    enum status status = db_stream(conn, statement, params, deadline_ns, on_row, &sink, &stream_error);
    if (sink.status != STATUS_OK)
        return error_context(error, "row %llu", (unsigned long long)sink.row);
    if (status == STATUS_DB_ERROR && strcmp(db_sqlstate(conn), TOO_LARGE_SQLSTATE) == 0)
        status = error_set(&stream_error, STATUS_PAYLOAD_TOO_LARGE,
                           "row %llu: its value is too large for PostgreSQL to print",
                           (unsigned long long)sink.row + 1);
    if (status != STATUS_OK && error)
        *error = stream_error;
    return status;
}
