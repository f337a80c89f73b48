/* The provider `postgres_sql`: SQL templates of the configuration, every value bound. */
#include "modules/refdata/provider.h"

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
    return refdata_provider_check_value(value->type_oid, error);
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
        if (dictionary->sql[field].given && field != REFDATA_DRIFT_CHECK)
            status = check_field(dictionary, field, conn, deadline_ns, error);
    return status == STATUS_OK ? check_lookup(dictionary, conn, deadline_ns, error) : status;
}

enum status refdata_provider_check_drift(struct refdata_dictionary *dictionary, struct db_conn *conn,
                                         int64_t deadline_ns, struct error *error)
{
    return dictionary->sql[REFDATA_DRIFT_CHECK].given
               ? check_field(dictionary, REFDATA_DRIFT_CHECK, conn, deadline_ns, error)
               : STATUS_OK;
}

static enum status load_by_template(const struct refdata_dictionary *dictionary, struct str tenant,
                                    struct db_conn *conn, int64_t deadline_ns, struct cache_builder *builder,
                                    struct error *error)
{
    const struct db_statement *statement = &dictionary->sql[REFDATA_LOAD].statement;
    struct str values[REFDATA_PARAMETERS] = {[REFDATA_TENANT_ID] = tenant};
    struct db_param params[DB_PARAMS_MAX];
    refdata_dictionary_bind(statement, values, params);
    enum status status = refdata_provider_plan_freely(conn, deadline_ns, error);
    return status == STATUS_OK ? refdata_provider_load(statement, params, conn, deadline_ns, builder, error)
                               : status;
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
    enum status status = refdata_provider_plan_freely(conn, deadline_ns, error);
    return status == STATUS_OK
               ? refdata_provider_load(&dictionary->lookup, params, conn, deadline_ns, builder, error)
               : status;
}

/* ---- writing ---- */

static bool takes_by_template(const struct refdata_dictionary *dictionary,
                              const struct refdata_update *update)
{
    const struct refdata_sql *sql = dictionary->sql;
    if (update->type == REFDATA_SNAPSHOT)
        return sql[REFDATA_SNAPSHOT_REPLACE].given || sql[REFDATA_SNAPSHOT_STAGE].given;
    return (sql[REFDATA_UPSERT].given || !update->has_upsert) &&
           (sql[REFDATA_DELETE].given || !update->has_delete) &&
           (sql[REFDATA_UPSERT].given || sql[REFDATA_DELETE].given);
}

struct change_values { /* of a template's parameters; the numbers have their text here */
    struct str values[REFDATA_PARAMETERS];
    char version[REFDATA_NUMBER_BYTES], epoch[REFDATA_NUMBER_BYTES];
};

static void set_values(struct change_values *out, const struct refdata_write *change)
{
    *out = (struct change_values){
        .values = {[REFDATA_TENANT_ID] = change->tenant, [REFDATA_SNAPSHOT_ID] = change->snapshot_id}};
    out->values[REFDATA_EVENT_VERSION] = refdata_number(out->version, change->version);
    out->values[REFDATA_EVENT_EPOCH] = refdata_number(out->epoch, change->epoch_ms);
}

static void add_template(const struct refdata_dictionary *dictionary, enum refdata_field field,
                         const struct change_values *values, struct refdata_writer *writer)
{
    const struct db_statement *statement = &dictionary->sql[field].statement;
    struct db_param params[DB_PARAMS_MAX];
    refdata_dictionary_bind(statement, values->values, params);
    refdata_writer_add(writer, statement, params);
}

static void write_item(const struct refdata_dictionary *dictionary, const struct refdata_item *item,
                       struct change_values *values, struct refdata_writer *writer)
{
    values->values[REFDATA_KEY] = item->key;
    values->values[REFDATA_PAYLOAD] = item->payload;
    add_template(dictionary, item->is_delete ? REFDATA_DELETE : REFDATA_UPSERT, values, writer);
}

static void write_deltas_by_template(const struct refdata_write *changes, size_t count,
                                     struct refdata_writer *writer)
{
    struct change_values values;
    refdata_writer_plan_freely(writer);
    for (size_t at = 0; at < count; at++) {
        set_values(&values, &changes[at]);
        refdata_writer_name_items(writer, changes[at].items, changes[at].item_count);
        for (size_t i = 0; i < changes[at].item_count; i++)
            write_item(changes[at].dictionary, &changes[at].items[i], &values, writer);
    }
}

/* [{"key","payload"}…] by the style the dictionary has. */
static void write_json(const struct refdata_write *change, struct str json, struct refdata_writer *writer)
{
    struct change_values values;
    bool stages = change->dictionary->sql[REFDATA_SNAPSHOT_STAGE].given;
    set_values(&values, change);
    values.values[REFDATA_SNAPSHOT_JSON] = json;
    values.values[REFDATA_CHUNK_INDEX] = STR("1");
    add_template(change->dictionary, stages ? REFDATA_SNAPSHOT_STAGE : REFDATA_SNAPSHOT_REPLACE, &values,
                 writer);
    if (stages)
        add_template(change->dictionary, REFDATA_SNAPSHOT_FINALIZE, &values, writer);
}

static void write_snapshot_by_template(const struct refdata_write *change, struct refdata_writer *writer)
{
    struct buf json;
    buf_init(&json);
    buf_put_char(&json, '[');
    for (size_t i = 0; i < change->item_count; i++) {
        buf_put_str(&json, i ? STR(",{") : STR("{"));
        json_put_member_str(&json, "key", change->items[i].key);
        json_put_member_raw(&json, "payload", change->items[i].payload);
        buf_put_char(&json, '}');
    }
    buf_put_char(&json, ']');
    write_json(change, buf_str(&json), writer);
    buf_deinit(&json);
}

/* ---- writing what was staged ---- */

#define JSON_OF_ITEMS \
    "'[' || coalesce(string_agg('{\"key\":' || to_json(k) || ',\"payload\":' || p || '}', ','), '') || ']'"

/* All chunks as one array; of a key that came in several, the last one's. */
static const struct db_statement staged_whole_sql =
    DB_STATEMENT("select " JSON_OF_ITEMS " from ("
                 " select distinct on (k collate \"C\") k, p from refdata.snapshot_chunk c,"
                 "  unnest(c.keys, c.payloads) as u (k, p)"
                 " where c.tenant_id = $1 and c.dict_code = $2 and c.snapshot_id = $3"
                 " order by k collate \"C\", c.chunk_index desc) as items");
static const struct db_statement staged_chunk_sql = DB_STATEMENT(
    "select c.chunk_index, (select " JSON_OF_ITEMS " from unnest(c.keys, c.payloads) as u (k, p))"
    " from refdata.snapshot_chunk c"
    " where c.tenant_id = $1 and c.dict_code = $2 and c.snapshot_id = $3 and c.chunk_index > $4"
    " order by c.chunk_index limit 1");
static const struct db_statement staged_deltas_sql =
    DB_STATEMENT("select d.occurred_ms, u.k, u.p from refdata.snapshot_delta d,"
                 "  unnest(d.keys, d.payloads) with ordinality as u (k, p, at)"
                 " where d.tenant_id = $1 and d.dict_code = $2 and d.version > $3 order by d.version, u.at");

static void write_staged_whole(const struct refdata_write *change, struct refdata_writer *writer)
{
    struct db_result *result = refdata_writer_query(
        writer, &staged_whole_sql,
        DB_PARAMS(db_text(change->tenant), db_text(change->dictionary->code), db_uuid(change->snapshot_id)));
    if (result)
        write_json(change, db_result_str(result, 0, 0), writer);
    db_result_free(result);
}

/* One chunk after another, so that the memory of one is enough. */
static void write_staged_chunks(const struct refdata_write *change, struct refdata_writer *writer)
{
    struct change_values values;
    char index[REFDATA_NUMBER_BYTES];
    int64_t last = 0;
    bool found = true;
    set_values(&values, change);
    while (found) {
        struct db_result *result =
            refdata_writer_query(writer, &staged_chunk_sql,
                                 DB_PARAMS(db_text(change->tenant), db_text(change->dictionary->code),
                                           db_uuid(change->snapshot_id), db_int(last)));
        found = result && db_result_rows(result) == 1;
        if (found) {
            last = db_result_i64(result, 0, 0);
            values.values[REFDATA_CHUNK_INDEX] = refdata_number(index, last);
            values.values[REFDATA_SNAPSHOT_JSON] = db_result_str(result, 0, 1);
            add_template(change->dictionary, REFDATA_SNAPSHOT_STAGE, &values, writer);
        }
        db_result_free(result);
    }
    values.values[REFDATA_SNAPSHOT_JSON] = STR_NONE; /* the result's */
    add_template(change->dictionary, REFDATA_SNAPSHOT_FINALIZE, &values, writer);
}

/* The deltas that came meanwhile, each with its own time and the snapshot's version. */
static void write_staged_deltas(const struct refdata_write *change, struct refdata_writer *writer)
{
    struct change_values values;
    struct db_result *result = refdata_writer_query(
        writer, &staged_deltas_sql,
        DB_PARAMS(db_text(change->tenant), db_text(change->dictionary->code), db_i64(change->begun_version)));
    set_values(&values, change);
    for (size_t row = 0; result && row < db_result_rows(result); row++) {
        struct refdata_item item = {.key = db_result_str(result, row, 1),
                                    .is_delete = db_result_is_null(result, row, 2)};
        if (!item.is_delete)
            item.payload = db_result_str(result, row, 2);
        values.values[REFDATA_EVENT_EPOCH] = db_result_str(result, row, 0);
        write_item(change->dictionary, &item, &values, writer);
    }
    db_result_free(result);
}

static void write_staged_by_template(const struct refdata_write *change, struct refdata_writer *writer)
{
    if (change->dictionary->sql[REFDATA_SNAPSHOT_STAGE].given)
        write_staged_chunks(change, writer);
    else
        write_staged_whole(change, writer);
    write_staged_deltas(change, writer);
}

const struct refdata_provider refdata_provider_sql = {
    .name = "postgres_sql",
    .check = check_templates,
    .load_all = load_by_template,
    .load_keys = load_keys_by_template,
    .takes = takes_by_template,
    .write_deltas = write_deltas_by_template,
    .write_snapshot = write_snapshot_by_template,
    .write_staged = write_staged_by_template,
};
