/* The two providers: SQL templates of the configuration, and the built-in table. */
#include "modules/refdata/provider.h"

/* ---- rows into a builder ---- */

static enum status check_value_type(uint32_t type_oid, struct error *error)
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

/* By name and anew with every load: behind a `select *` a table may have changed its shape since the check. */
static enum status find_in_row(struct row_sink *sink, const struct db_row *row)
{
    uint32_t key_type, value_type;
    if (!db_row_find(row, "k", &sink->key_column, &key_type))
        return error_set(sink->error, STATUS_DB_ERROR, "the result has no column k");
    if (!db_row_find(row, "v", &sink->value_column, &value_type))
        return error_set(sink->error, STATUS_DB_ERROR, "the result has no column v");
    return check_value_type(value_type, sink->error);
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

enum status refdata_provider_load(const struct db_statement *statement, const struct db_param *params,
                                  struct db_conn *conn, int64_t deadline_ns, struct cache_builder *builder,
                                  struct error *error)
{
    struct row_sink sink = {.builder = builder, .error = error};
    struct error stream_error = {0};
    enum status status = db_stream(conn, statement, params, deadline_ns, on_row, &sink, &stream_error);
    if (sink.status != STATUS_OK)
        return error_context(error, "row %llu", (unsigned long long)sink.row);
    if (status != STATUS_OK && error)
        *error = stream_error;
    return status;
}

/* ---- SQL templates ---- */

static enum status refuse(const struct refdata_sql *sql, enum refdata_field field, size_t position,
                          struct error *error)
{
    size_t offset = position ? db_statement_offset(&sql->statement, sql->text, position) : 0;
    unsigned line = 1, column = 1;
    for (size_t i = 0; i < offset && i < sql->text.len; i++) {
        column = sql->text.ptr[i] == '\n' ? 1 : column + 1;
        line += sql->text.ptr[i] == '\n';
    }
    if (position)
        return error_context(error, "%s, line %u column %u of the template", refdata_field_name(field), line,
                             column);
    return error_context(error, "%s", refdata_field_name(field));
}

static const struct db_column *find_column(const struct db_column *columns, unsigned count, const char *name)
{
    for (unsigned i = 0; i < count; i++)
        if (strcmp(columns[i].name, name) == 0)
            return &columns[i];
    return NULL;
}

static enum status check_item_columns(const struct db_column *columns, unsigned count, struct error *error)
{
    const struct db_column *key = find_column(columns, count, "k"), *value = find_column(columns, count, "v");
    if (!key || !value)
        return error_set(error, STATUS_DB_ERROR, "the result has no column %s", key ? "v" : "k");
    return check_value_type(value->type_oid, error);
}

static enum status check_drift_columns(const struct db_column *columns, unsigned count, struct error *error)
{
    enum { OID_INT8 = 20, OID_INT2 = 21, OID_INT4 = 23 };
    uint32_t type = count == 1 ? columns[0].type_oid : 0;
    if (type == OID_INT8 || type == OID_INT4 || type == OID_INT2)
        return STATUS_OK;
    return error_set(error, STATUS_DB_ERROR, "the result must be one column of type bigint");
}

static enum status check_field(struct refdata_dictionary *dictionary, enum refdata_field field,
                               struct db_conn *conn, int64_t deadline_ns, struct error *error)
{
    struct refdata_sql *sql = &dictionary->sql[field];
    struct db_column columns[DB_COLUMNS_MAX];
    unsigned count = 0;
    size_t position = 0;
    enum status status = db_describe(conn, &sql->statement, columns, &count, deadline_ns, &position, error);
    if (status == STATUS_OK && (field == REFDATA_LOAD || field == REFDATA_LOAD_KEYS))
        status = check_item_columns(columns, count, error);
    if (status == STATUS_OK && field == REFDATA_DRIFT_CHECK)
        status = check_drift_columns(columns, count, error);
    return status == STATUS_DB_ERROR ? refuse(sql, field, position, error) : status;
}

/* A loadSql that cannot stand inside another statement is no mistake: everything is loaded where some would do. */
static enum status check_lookup(struct refdata_dictionary *dictionary, struct db_conn *conn,
                                int64_t deadline_ns, struct error *error)
{
    struct db_column columns[DB_COLUMNS_MAX];
    unsigned count = 0;
    size_t position = 0;
    enum status status =
        db_describe(conn, &dictionary->lookup, columns, &count, deadline_ns, &position, error);
    dictionary->can_lookup = status == STATUS_OK;
    return status == STATUS_DB_ERROR ? STATUS_OK : status;
}

static enum status check_templates(struct refdata_dictionary *dictionary, struct db_conn *conn,
                                   int64_t deadline_ns, struct error *error)
{
    enum status status = STATUS_OK;
    for (unsigned field = 0; field < REFDATA_FIELDS && status == STATUS_OK; field++)
        if (dictionary->sql[field].given)
            status = check_field(dictionary, field, conn, deadline_ns, error);
    return status == STATUS_OK ? check_lookup(dictionary, conn, deadline_ns, error) : status;
}

static enum status load_by_template(const struct refdata_dictionary *dictionary, struct str tenant,
                                    struct db_conn *conn, int64_t deadline_ns, struct cache_builder *builder,
                                    struct error *error)
{
    const struct db_statement *statement = &dictionary->sql[REFDATA_LOAD].statement;
    struct str values[REFDATA_PARAMETERS] = {[REFDATA_TENANT_ID] = tenant};
    struct db_param params[DB_PARAMS_MAX];
    refdata_dictionary_bind(statement, values, params);
    return refdata_provider_load(statement, params, conn, deadline_ns, builder, error);
}

static enum status load_keys_by_template(const struct refdata_dictionary *dictionary, struct str tenant,
                                         struct str keys, struct db_conn *conn, int64_t deadline_ns,
                                         struct cache_builder *builder, struct error *error)
{
    if (!dictionary->can_lookup)
        return load_by_template(dictionary, tenant, conn, deadline_ns, builder, error);
    struct str values[REFDATA_PARAMETERS] = {[REFDATA_TENANT_ID] = tenant, [REFDATA_KEYS] = keys};
    struct db_param params[DB_PARAMS_MAX];
    refdata_dictionary_bind(&dictionary->lookup, values, params);
    return refdata_provider_load(&dictionary->lookup, params, conn, deadline_ns, builder, error);
}

const struct refdata_provider refdata_provider_sql = {
    .name = "postgres_sql",
    .check = check_templates,
    .load_all = load_by_template,
    .load_keys = load_keys_by_template,
};

/* ---- the built-in table ---- */

/* By the primary key (tenant_id, dict_code, item_key). */
static const char load_builtin_sql[] = "select item_key as k, payload as v from refdata.dictionary_item"
                                       " where tenant_id = $1 and dict_code = $2 and not deleted";

static enum status check_builtin(struct refdata_dictionary *dictionary, struct db_conn *conn,
                                 int64_t deadline_ns, struct error *error)
{
    (void)dictionary, (void)conn, (void)deadline_ns,
        (void)error; /* the table is ours: migrated, hence there */
    return STATUS_OK;
}

static enum status load_builtin(const struct refdata_dictionary *dictionary, struct str tenant,
                                struct db_conn *conn, int64_t deadline_ns, struct cache_builder *builder,
                                struct error *error)
{
    struct db_statement statement;
    db_statement_init(&statement, load_builtin_sql, 2, (const enum db_type[]){DB_TEXT, DB_TEXT});
    const struct db_param params[] = {{tenant}, {dictionary->code}};
    return refdata_provider_load(&statement, params, conn, deadline_ns, builder, error);
}

static const char load_builtin_keys_sql[] =
    "select item_key as k, payload as v from refdata.dictionary_item"
    " where tenant_id = $1 and dict_code = $2 and item_key = any($3) and not deleted";

static enum status load_builtin_keys(const struct refdata_dictionary *dictionary, struct str tenant,
                                     struct str keys, struct db_conn *conn, int64_t deadline_ns,
                                     struct cache_builder *builder, struct error *error)
{
    struct db_statement statement;
    db_statement_init(&statement, load_builtin_keys_sql, 3,
                      (const enum db_type[]){DB_TEXT, DB_TEXT, DB_TEXT_ARRAY});
    const struct db_param params[] = {{tenant}, {dictionary->code}, {keys}};
    return refdata_provider_load(&statement, params, conn, deadline_ns, builder, error);
}

const struct refdata_provider refdata_provider_builtin = {
    .name = "builtin",
    .check = check_builtin,
    .load_all = load_builtin,
    .load_keys = load_builtin_keys,
};
