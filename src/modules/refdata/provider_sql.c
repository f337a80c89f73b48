/* The provider `postgres_sql`: SQL templates of the configuration, every value bound. */
#include "modules/refdata/provider.h"

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
    struct buf json = {0};
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

/* Chunks are staged one after another, so that the memory of one is enough. */
static void write_staged_by_template(const struct refdata_write *change, struct refdata_writer *writer)
{
    struct db_param pair[5] = {db_text(change->tenant), db_text(change->dictionary->code),
                               db_uuid(change->snapshot_id), DB_END, DB_END};
    struct change_values values;
    struct db_result *rows = NULL;
    int64_t chunk = 0;
    set_values(&values, change);
    if (!change->dictionary->sql[REFDATA_SNAPSHOT_STAGE].given) {
        rows = refdata_writer_query(writer, &staged_whole_sql, pair);
        if (rows)
            write_json(change, db_result_str(rows, 0, 0), writer);
        db_result_free(rows);
    } else {
        pair[3] = db_int(chunk);
        while ((rows = refdata_writer_query(writer, &staged_chunk_sql, pair)) && db_result_rows(rows) == 1) {
            char index[REFDATA_NUMBER_BYTES];
            chunk = db_result_i64(rows, 0, 0);
            pair[3] = db_int(chunk);
            values.values[REFDATA_CHUNK_INDEX] = refdata_number(index, chunk);
            values.values[REFDATA_SNAPSHOT_JSON] = db_result_str(rows, 0, 1);
            add_template(change->dictionary, REFDATA_SNAPSHOT_STAGE, &values, writer);
            db_result_free(rows);
        }
        db_result_free(rows);
        values.values[REFDATA_SNAPSHOT_JSON] = values.values[REFDATA_CHUNK_INDEX] = STR_NONE;
        add_template(change->dictionary, REFDATA_SNAPSHOT_FINALIZE, &values, writer);
    }
    /* The deltas that came meanwhile, each with its own time and the snapshot's version. */
    pair[2] = db_i64(change->begun_version);
    pair[3] = DB_END;
    struct db_result *deltas = refdata_writer_query(writer, &staged_deltas_sql, pair);
    for (size_t row = 0; deltas && row < db_result_rows(deltas); row++) {
        struct refdata_item item = {.key = db_result_str(deltas, row, 1),
                                    .is_delete = db_result_is_null(deltas, row, 2)};
        if (!item.is_delete)
            item.payload = db_result_str(deltas, row, 2);
        values.values[REFDATA_EVENT_EPOCH] = db_result_str(deltas, row, 0);
        write_item(change->dictionary, &item, &values, writer);
    }
    db_result_free(deltas);
}

const struct refdata_provider refdata_provider_sql = {
    .write_deltas = write_deltas_by_template,
    .write_snapshot = write_snapshot_by_template,
    .write_staged = write_staged_by_template,
};
