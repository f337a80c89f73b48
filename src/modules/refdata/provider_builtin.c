/* The provider `builtin`: the table refdata.dictionary_item, for dictionaries without SQL of their own. A deleted item
 * stays as a row for a while. */
#include "base/hash.h"
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

/* ---- writing ---- */

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

/* Several deltas are one: of each key only what the last of them says is written. Where the same pair has several, they
 * are merged first. */
static void write_builtin_deltas(const struct refdata_write *changes, size_t count,
                                 struct refdata_writer *writer)
{
    struct refdata_merge merge;
    struct refdata_columns upserts, deletes;
    size_t item_count = 0;
    for (size_t at = 0; at < count; at++)
        item_count += changes[at].item_count;
    refdata_merge_begin(&merge, item_count, writer->arena);
    for (size_t at = 0; at < count; at++)
        for (size_t i = 0; i < changes[at].item_count; i++)
            refdata_merge_put(&merge, &changes[at], &changes[at].items[i]);
    refdata_columns_begin(&upserts, 4, writer->arena);
    refdata_columns_begin(&deletes, 3, writer->arena);
    for (size_t i = 0; i < merge.count; i++) {
        const struct refdata_merged *merged = &merge.at[i];
        struct refdata_columns *columns = merged->item->is_delete ? &deletes : &upserts;
        refdata_columns_add(columns, REFDATA_ROW(merged->change->tenant, merged->change->dictionary->code,
                                                 merged->item->key, merged->item->payload));
    }
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
    for (size_t i = 0; i < change->item_count; i++)
        refdata_columns_add(&columns, REFDATA_ROW(change->items[i].key, change->items[i].payload));
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
    .write_deltas = write_builtin_deltas,
    .write_snapshot = write_builtin_snapshot,
    .write_staged = write_builtin_staged,
};
