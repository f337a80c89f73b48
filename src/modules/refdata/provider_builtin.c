/* The provider `builtin`: the table refdata.dictionary_item, for dictionaries without SQL of their own. A deleted item
 * stays as a row for a while. */
#include "modules/refdata/merge.h"
#include "modules/refdata/provider.h"

/* By the primary key (tenant_id, dict_code, item_key). */
static const struct db_statement load_builtin_sql =
    DB_STATEMENT("select item_key as k, payload as v from refdata.dictionary_item"
                 " where tenant_id = $1 and dict_code = $2 and not deleted");

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
    enum status status = refdata_provider_plan_freely(conn, deadline_ns, error);
    if (status != STATUS_OK)
        return status;
    return refdata_provider_load(&load_builtin_sql, DB_PARAMS(db_text(tenant), db_text(dictionary->code)),
                                 conn, deadline_ns, builder, error);
}

/* Key by key: with `item_key = any($3)` a table without statistics has the whole dictionary read and filtered. */
static const struct db_statement load_builtin_keys_sql = DB_STATEMENT(
    "select i.item_key as k, i.payload as v from unnest($3) as wanted (key) cross join lateral"
    " (select item_key, payload from refdata.dictionary_item"
    "   where tenant_id = $1 and dict_code = $2 and item_key = wanted.key and not deleted offset 0) i");

static enum status load_builtin_keys(const struct refdata_dictionary *dictionary, struct str tenant,
                                     struct str keys, struct db_conn *conn, int64_t deadline_ns,
                                     struct cache_builder *builder, struct error *error)
{
    return refdata_provider_load(&load_builtin_keys_sql,
                                 DB_PARAMS(db_text(tenant), db_text(dictionary->code), db_text_array(keys)),
                                 conn, deadline_ns, builder, error);
}

/* ---- writing ---- */

static bool takes_builtin(const struct refdata_dictionary *dictionary, const struct refdata_update *update)
{
    (void)dictionary, (void)update;
    return true;
}

/* Rows that would stay what they are are not written. Payloads are compared by their bytes (*<>), as they are printed: for =
 * of jsonb 1.0 and 1.00 are one number. The pair's dictionary_meta lock keeps other writers away. */
#define UPSERT(rows)                                                                     \
    "insert into refdata.dictionary_item as i (tenant_id, dict_code, item_key, payload)" \
    " select t, d, k, p::jsonb from " rows " as u (t, d, k, p)"                          \
    " on conflict (tenant_id, dict_code, item_key)"                                      \
    " do update set payload = excluded.payload, deleted = false, updated_at = now()"     \
    "  where i.deleted or row(i.payload)::record *<> row(excluded.payload)::record"
static const struct refdata_rows_sql upsert_sql = {DB_STATEMENT(UPSERT("unnest($1, $2, $3, $4)")),
                                                   DB_STATEMENT(UPSERT("(values ($1, $2, $3, $4))"))};
#define DELETE(rows)                                                          \
    "update refdata.dictionary_item i set deleted = true, updated_at = now()" \
    " from " rows " as u (t, d, k)"                                           \
    " where i.tenant_id = u.t and i.dict_code = u.d and i.item_key = u.k and not i.deleted"
static const struct refdata_rows_sql delete_sql = {DB_STATEMENT(DELETE("unnest($1, $2, $3)")),
                                                   DB_STATEMENT(DELETE("(values ($1, $2, $3))"))};

static void put_row(struct refdata_columns *columns, const struct refdata_merged *merged)
{
    refdata_columns_put(columns, 0, merged->change->tenant);
    refdata_columns_put(columns, 1, merged->change->dictionary->code);
    refdata_columns_put(columns, 2, merged->item->key);
    if (!merged->item->is_delete)
        refdata_columns_put(columns, 3, merged->item->payload);
    refdata_columns_next(columns);
}

/* Several deltas are one: of each key only what the last of them says is written. Where the same pair has several, they
 * are merged first. */
static void write_builtin_deltas(const struct refdata_write *changes, size_t count,
                                 struct refdata_writer *writer)
{
    struct refdata_merge merge;
    struct refdata_columns upserts, deletes;
    refdata_merge_begin(&merge, writer->arena);
    for (size_t at = 0; at < count; at++)
        for (size_t i = 0; i < changes[at].item_count; i++)
            refdata_merge_put(&merge, &changes[at], &changes[at].items[i]);
    refdata_columns_begin(&upserts, 4, writer->arena);
    refdata_columns_begin(&deletes, 3, writer->arena);
    for (size_t i = 0; i < merge.count; i++)
        put_row(merge.at[i].item->is_delete ? &deletes : &upserts, &merge.at[i]);
    refdata_columns_write(&upserts, &upsert_sql, writer);
    refdata_columns_write(&deletes, &delete_sql, writer);
}

static const struct db_statement replace_sql =
    DB_STATEMENT("select refdata.replace_items($1, $2, $3, $4, $5, $6)");

static void write_builtin_snapshot(const struct refdata_write *change, struct refdata_writer *writer)
{
    struct refdata_columns columns;
    struct db_param params[7] = {db_text(change->tenant),
                                 db_text(change->dictionary->code), [4] = db_null(DB_UUID),
                                 db_null(DB_BIGINT), DB_END};
    refdata_columns_begin(&columns, 2, writer->arena);
    for (size_t i = 0; i < change->item_count; i++) {
        refdata_columns_put(&columns, 0, change->items[i].key);
        refdata_columns_put(&columns, 1, change->items[i].payload);
        refdata_columns_next(&columns);
    }
    refdata_columns_bind_arrays(&columns, params + 2);
    refdata_writer_add(writer, &replace_sql, params);
    refdata_columns_free(&columns);
}

static void write_builtin_staged(const struct refdata_write *change, struct refdata_writer *writer)
{
    refdata_writer_add(writer, &replace_sql,
                       DB_PARAMS(db_text(change->tenant), db_text(change->dictionary->code),
                                 db_null(DB_TEXT_ARRAY), db_null(DB_TEXT_ARRAY), db_uuid(change->snapshot_id),
                                 db_i64(change->begun_version)));
}

const struct refdata_provider refdata_provider_builtin = {
    .name = "builtin",
    .check = check_builtin,
    .load_all = load_builtin,
    .load_keys = load_builtin_keys,
    .takes = takes_builtin,
    .write_deltas = write_builtin_deltas,
    .write_snapshot = write_builtin_snapshot,
    .write_staged = write_builtin_staged,
};
