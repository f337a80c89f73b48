/* Reading dictionaries, whichever provider they have: does PostgreSQL agree with their SQL, and rows with columns k and v straight
 * into a builder. */
#include "modules/refdata/provider.h"

#define TOO_LARGE_SQLSTATE "54000" /* a text of more than 1 GB */

/* ---- checks ---- */

static enum status check_value(uint32_t type_oid, struct error *error)
{
    if (type_oid == DB_OID_JSON || type_oid == DB_OID_JSONB)
        return STATUS_OK;
    return error_set(error, STATUS_DB_ERROR, "column v must be json or jsonb: use to_jsonb() or a cast");
}

/* Does the result have what the field needs? */
static enum status check_columns(enum refdata_field field, const struct db_column *columns, unsigned count,
                                 struct error *error)
{
    enum { OID_INT8 = 20, OID_INT2 = 21, OID_INT4 = 23 };
    const struct db_column *key = NULL, *value = NULL;
    bool is_load = field == REFDATA_LOAD || field == REFDATA_LOAD_KEYS;
    uint32_t type = count == 1 ? columns[0].type_oid : 0;
    for (unsigned i = count; i-- > 0;) { /* the first of a name counts */
        if (strcmp(columns[i].name, "k") == 0)
            key = &columns[i];
        if (strcmp(columns[i].name, "v") == 0)
            value = &columns[i];
    }
    if (is_load && (!key || !value))
        return error_set(error, STATUS_DB_ERROR, "the result has no column %s: name it with \"as %s\"",
                         key ? "v" : "k", key ? "v" : "k");
    if (is_load)
        return check_value(value->type_oid, error);
    if (field == REFDATA_DRIFT_CHECK && type != OID_INT8 && type != OID_INT4 && type != OID_INT2)
        return error_set(error, STATUS_DB_ERROR, "the result must be one column of type bigint");
    return STATUS_OK;
}

enum status refdata_provider_describe_field(const struct refdata_sql *sql, enum refdata_field field,
                                            struct db_conn *conn, int64_t deadline_ns, size_t *offset,
                                            struct error *error)
{
    struct db_column columns[DB_COLUMNS_MAX];
    unsigned count = 0;
    size_t position = 0;
    enum status status = db_describe(conn, &sql->statement, columns, &count, deadline_ns, &position, error);
    *offset = position ? db_statement_offset(&sql->statement, sql->text, position) : REFDATA_NO_OFFSET;
    return status == STATUS_OK ? check_columns(field, columns, count, error) : status;
}

enum status refdata_provider_check_field(const struct refdata_dictionary *dictionary,
                                         enum refdata_field field, struct db_conn *conn, int64_t deadline_ns,
                                         struct error *error)
{
    const struct refdata_sql *sql = &dictionary->sql[field];
    unsigned line = 1, column = 1;
    size_t offset;
    if (!sql->given)
        return STATUS_OK;
    enum status status = refdata_provider_describe_field(sql, field, conn, deadline_ns, &offset, error);
    if (status != STATUS_DB_ERROR)
        return status;
    if (offset == REFDATA_NO_OFFSET)
        return error_context(error, "%s", refdata_field_name(field));
    for (size_t i = 0; i < offset && i < sql->text.len; i++) {
        column = sql->text.ptr[i] == '\n' ? 1 : column + 1;
        line += sql->text.ptr[i] == '\n';
    }
    return error_context(error, "%s, line %u column %u of the template", refdata_field_name(field), line,
                         column);
}

enum status refdata_provider_check(struct refdata_dictionary *dictionary, struct db_conn *conn,
                                   int64_t deadline_ns, struct error *error)
{
    struct db_column columns[DB_COLUMNS_MAX];
    unsigned count = 0;
    size_t position = 0;
    enum status status = STATUS_OK;
    for (unsigned field = 0; field < REFDATA_FIELDS && status == STATUS_OK; field++)
        if (field != REFDATA_DRIFT_CHECK)
            status = refdata_provider_check_field(dictionary, field, conn, deadline_ns, error);
    if (status != STATUS_OK || dictionary->is_builtin)
        return status;
    /* A loadSql that cannot stand inside another statement is not a mistake: everything is loaded where some would do. */
    status = db_describe(conn, &dictionary->lookup, columns, &count, deadline_ns, &position, error);
    dictionary->can_lookup = status == STATUS_OK;
    return status == STATUS_DB_ERROR ? STATUS_OK : status;
}

/* ---- rows into a builder ---- */

struct row_sink {
    struct cache_builder *builder;
    unsigned key_column, value_column;
    uint64_t row;
    enum status status;
    struct error *error;
};

static bool on_row(void *context, const struct db_result *row)
{
    struct row_sink *sink = context;
    uint32_t key_type, value_type;
    if (sink->row++ ==
        0) { /* by name in every load: a table that `select *` reads may have changed since the check */
        bool has_key = db_result_find(row, "k", &sink->key_column, &key_type);
        if (!has_key || !db_result_find(row, "v", &sink->value_column, &value_type))
            sink->status =
                error_set(sink->error, STATUS_DB_ERROR, "the result has no column %s", has_key ? "v" : "k");
        else
            sink->status = check_value(value_type, sink->error);
        if (sink->status != STATUS_OK)
            return false;
    }
    if (db_result_is_null(row, 0, sink->key_column)) {
        sink->status = error_set_field(sink->error, STATUS_DB_ERROR, "k", "the key is null");
    } else {
        struct str payload = db_result_is_null(row, 0, sink->value_column)
                                 ? STR("null")
                                 : db_result_str(row, 0, sink->value_column);
        sink->status =
            cache_builder_put(sink->builder, db_result_str(row, 0, sink->key_column), payload, sink->error);
    }
    return sink->status == STATUS_OK;
}

enum status refdata_provider_plan_freely(struct db_conn *conn, int64_t deadline_ns, struct error *error)
{
    static const struct db_statement plan_freely_sql = DB_STATEMENT(DB_PLAN_FREELY_SQL);
    return db_exec(conn, &plan_freely_sql, DB_NO_PARAMS, deadline_ns, NULL, error);
}

/* By the primary key (tenant_id, dict_code, item_key). */
static const struct db_statement load_builtin_sql =
    DB_STATEMENT("select item_key as k, payload as v from refdata.dictionary_item"
                 " where tenant_id = $1 and dict_code = $2 and not deleted");
/* Key by key: with `item_key = any($3)` a table without statistics has the whole dictionary read and filtered. */
static const struct db_statement load_builtin_keys_sql = DB_STATEMENT(
    "select i.item_key as k, i.payload as v from unnest($3) as wanted (key) cross join lateral"
    " (select item_key, payload from refdata.dictionary_item"
    "   where tenant_id = $1 and dict_code = $2 and item_key = wanted.key and not deleted offset 0) i");

enum status refdata_provider_load(const struct refdata_dictionary *dictionary, struct str tenant,
                                  struct str keys, struct db_conn *conn, int64_t deadline_ns,
                                  struct cache_builder *builder, struct error *error)
{
    bool is_builtin = dictionary->is_builtin;
    bool is_lookup = keys.ptr && (is_builtin || dictionary->can_lookup);
    const struct db_statement *statement = is_lookup ? &load_builtin_keys_sql : &load_builtin_sql;
    struct db_param params[DB_PARAMS_MAX] = {db_text(tenant), db_text(dictionary->code),
                                             is_lookup ? db_text_array(keys) : DB_END, DB_END};
    struct row_sink sink = {.builder = builder, .error = error};
    struct error stream_error = {0};
    enum status status = STATUS_OK;
    if (!is_builtin) {
        statement = is_lookup ? &dictionary->lookup : &dictionary->sql[REFDATA_LOAD].statement;
        refdata_dictionary_bind(
            statement,
            (const struct str[REFDATA_PARAMETERS]){[REFDATA_TENANT_ID] = tenant, [REFDATA_KEYS] = keys},
            params);
    }
    if (keys.ptr && !is_builtin)
        status = refdata_provider_plan_freely(conn, deadline_ns, error);
    if (status != STATUS_OK)
        return status;
    status = db_stream(conn, statement, params, deadline_ns, on_row, &sink, &stream_error);
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
