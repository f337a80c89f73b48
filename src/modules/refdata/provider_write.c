/* Writing dictionaries: into the built-in table refdata.dictionary_item, where a deleted item stays as a row for a while, or by the
 * SQL templates of the configuration, every value bound. */
#include "modules/refdata/provider.h"

/* ---- a hash table by (tenant, dictionary, key) over an array that keeps the order ---- */

/* At most half full. */
void refdata_merge_begin(struct refdata_merge *merge, size_t items_max, struct arena *arena)
{
    size_t slots = 2;
    while (slots < 2 * items_max)
        slots *= 2;
    *merge = (struct refdata_merge){.at = arena_alloc(arena, (items_max + 1) * sizeof *merge->at),
                                    .slots = arena_zalloc(arena, slots * sizeof *merge->slots),
                                    .mask = slots - 1};
}

void refdata_merge_put(struct refdata_merge *merge, const struct refdata_write *change,
                       const struct refdata_item *item)
{
    size_t slot = (size_t)hash_seeded(item->key) & merge->mask;
    for (; merge->slots[slot]; slot = (slot + 1) & merge->mask) {
        struct refdata_merged *there = &merge->at[merge->slots[slot] - 1];
        const struct refdata_write *other = there->change;
        if (!str_eq(there->item->key, item->key))
            continue;
        bool is_same_pair = other == change ||
                            (other && change && str_eq(other->dictionary->code, change->dictionary->code) &&
                             str_eq(other->tenant, change->tenant));
        if (is_same_pair) {
            there->item = item;
            return;
        }
    }
    merge->at[merge->count] = (struct refdata_merged){change, item};
    merge->slots[slot] = (uint32_t)++merge->count;
}

/* ---- the built-in table ---- */

/* Rows that would stay what they are are not written. Payloads are compared by their bytes (*<>), as they are printed: for =
 * of jsonb 1.0 and 1.00 are one number. The pair's dictionary_meta lock keeps other writers away. */
#define UPSERT(rows)                                                                     \
    "insert into refdata.dictionary_item as i (tenant_id, dict_code, item_key, payload)" \
    " select t, d, k, p::jsonb from " rows " as u (t, d, k, p)"                          \
    " on conflict (tenant_id, dict_code, item_key)"                                      \
    " do update set payload = excluded.payload, deleted = false, updated_at = now()"     \
    "  where i.deleted or row(i.payload)::record *<> row(excluded.payload)::record"
static const struct refdata_rows_sql upsert_sql = REFDATA_ROWS_SQL(UPSERT, "$1, $2, $3, $4");
#define DELETE(rows)                                                          \
    "update refdata.dictionary_item i set deleted = true, updated_at = now()" \
    " from " rows " as u (t, d, k)"                                           \
    " where i.tenant_id = u.t and i.dict_code = u.d and i.item_key = u.k and not i.deleted"
static const struct refdata_rows_sql delete_sql = REFDATA_ROWS_SQL(DELETE, "$1, $2, $3");

/* ---- templates ---- */

struct values { /* of a template's parameters */
    struct str of[REFDATA_PARAMETERS];
};

static struct values values_of(const struct refdata_write *change, struct arena *arena)
{
    return (struct values){{[REFDATA_TENANT_ID] = change->tenant,
                            [REFDATA_SNAPSHOT_ID] = change->snapshot_id,
                            [REFDATA_EVENT_VERSION] = REFDATA_I64(arena, change->version),
                            [REFDATA_EVENT_EPOCH] = REFDATA_I64(arena, change->epoch_ms)}};
}

static void add_template(const struct refdata_dictionary *dictionary, enum refdata_field field,
                         const struct values *values, struct refdata_writer *writer)
{
    const struct db_statement *statement = &dictionary->sql[field].statement;
    struct db_param params[DB_PARAMS_MAX];
    refdata_dictionary_bind(statement, values->of, params);
    refdata_writer_add(writer, statement, params);
}

static void write_item(const struct refdata_dictionary *dictionary, const struct refdata_item *item,
                       struct values *values, struct refdata_writer *writer)
{
    values->of[REFDATA_KEY] = item->key;
    values->of[REFDATA_PAYLOAD] = item->payload;
    add_template(dictionary, item->is_delete ? REFDATA_DELETE : REFDATA_UPSERT, values, writer);
}

/* [{"key","payload"}…] by the style the dictionary has. */
static void write_json(const struct refdata_write *change, struct str json, struct refdata_writer *writer)
{
    struct values values = values_of(change, writer->arena);
    bool stages = change->dictionary->sql[REFDATA_SNAPSHOT_STAGE].given;
    values.of[REFDATA_SNAPSHOT_JSON] = json;
    values.of[REFDATA_CHUNK_INDEX] = STR("1");
    add_template(change->dictionary, stages ? REFDATA_SNAPSHOT_STAGE : REFDATA_SNAPSHOT_REPLACE, &values,
                 writer);
    if (stages)
        add_template(change->dictionary, REFDATA_SNAPSHOT_FINALIZE, &values, writer);
}

/* ---- deltas ---- */

/* Built-in ones first, since what follows templates is planned freely. Several are one: of each key only the last item is
 * written. */
void refdata_write_deltas(const struct refdata_write *changes, size_t count, struct refdata_writer *writer)
{
    const struct refdata_write *change, *end = changes + count;
    struct refdata_columns upserts, deletes;
    struct refdata_merge merge;
    size_t item_count = 0;
    for (change = changes; change < end; change++)
        item_count += change->item_count;
    refdata_merge_begin(&merge, item_count, writer->arena);
    for (change = changes; change < end; change++)
        for (size_t i = 0; change->dictionary->is_builtin && i < change->item_count; i++)
            refdata_merge_put(&merge, change, &change->items[i]);
    refdata_columns_begin(&upserts, 4, writer->arena);
    refdata_columns_begin(&deletes, 3, writer->arena);
    for (const struct refdata_merged *merged = merge.at; merged < merge.at + merge.count; merged++)
        refdata_columns_add(merged->item->is_delete ? &deletes : &upserts,
                            REFDATA_ROW(merged->change->tenant, merged->change->dictionary->code,
                                        merged->item->key, merged->item->payload));
    refdata_columns_write(&upserts, &upsert_sql, writer);
    refdata_columns_write(&deletes, &delete_sql, writer);
    for (change = changes; change < end; change++) {
        if (change->dictionary->is_builtin)
            continue;
        refdata_writer_plan_freely(writer);
        struct values values = values_of(change, writer->arena);
        refdata_writer_name_items(writer, change->items, change->item_count);
        for (size_t i = 0; i < change->item_count; i++)
            write_item(change->dictionary, &change->items[i], &values, writer);
    }
}

/* ---- snapshots ---- */

static const struct db_statement replace_sql =
    DB_STATEMENT("select refdata.replace_items($1, $2, $3, $4, $5, $6)");

void refdata_write_snapshot(const struct refdata_write *change, struct refdata_writer *writer)
{
    struct db_param params[7] = {db_text(change->tenant),
                                 db_text(change->dictionary->code), [4] = db_null(DB_UUID),
                                 db_null(DB_BIGINT), DB_END};
    struct refdata_columns columns;
    struct buf json = {0};
    if (change->dictionary->is_builtin) {
        refdata_columns_bind_items(&columns, change->items, change->item_count, writer->arena, params + 2);
        refdata_writer_add(writer, &replace_sql, params);
        refdata_columns_free(&columns);
        return;
    }
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
void refdata_write_staged(const struct refdata_write *change, struct refdata_writer *writer)
{
    struct db_param pair[5] = {db_text(change->tenant), db_text(change->dictionary->code),
                               db_uuid(change->snapshot_id), DB_END, DB_END};
    struct db_result *rows = NULL;
    int64_t chunk = 0;
    if (change->dictionary->is_builtin) {
        refdata_writer_add(writer, &replace_sql,
                           DB_PARAMS(pair[0], pair[1], db_null(DB_TEXT_ARRAY), db_null(DB_TEXT_ARRAY),
                                     pair[2], db_i64(change->begun_version)));
        return;
    }
    struct values values = values_of(change, writer->arena);
    if (!change->dictionary->sql[REFDATA_SNAPSHOT_STAGE].given) {
        rows = refdata_writer_query(writer, &staged_whole_sql, pair);
        if (rows)
            write_json(change, db_result_str(rows, 0, 0), writer);
        db_result_free(rows);
    } else {
        pair[3] = db_int(chunk);
        while ((rows = refdata_writer_query(writer, &staged_chunk_sql, pair)) && db_result_rows(rows) == 1) {
            chunk = db_result_i64(rows, 0, 0);
            pair[3] = db_int(chunk);
            values.of[REFDATA_CHUNK_INDEX] = REFDATA_I64(writer->arena, chunk);
            values.of[REFDATA_SNAPSHOT_JSON] = db_result_str(rows, 0, 1);
            add_template(change->dictionary, REFDATA_SNAPSHOT_STAGE, &values, writer);
            db_result_free(rows);
        }
        db_result_free(rows);
        values.of[REFDATA_SNAPSHOT_JSON] = values.of[REFDATA_CHUNK_INDEX] = STR_NONE;
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
        values.of[REFDATA_EVENT_EPOCH] = db_result_str(deltas, row, 0);
        write_item(change->dictionary, &item, &values, writer);
    }
    db_result_free(deltas);
}
