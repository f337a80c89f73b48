/* Deltas: from the outbox's rows to a snapshot that shares all but the changed keys with the one before. The work grows
 * with what changed, never with what is held. */
#include "modules/refdata/query/query.h"

#include <stdio.h>
#include <stdlib.h>

#include "modules/refdata/provider.h"

/* Past these a full load is due: it may cost less, and a pod that slept for days asks for no list of all it missed. */
enum { VERSIONS_MAX = 10000, KEYS_MIN = 1000, KEYS_MAX = 50000, FULL_SHARE = 4 };

/* The versions after the base's. By the index (tenant_id, dict_code, version). The limits stop it early; the order, which
 * the join keeps, is checked by the reader of the rows. */
static const struct db_statement changes_sql = DB_STATEMENT(
    "select o.version, o.keys is not null, k.key"
    "  from (select version, keys from refdata.outbox_event"
    "         where tenant_id = $1 and dict_code = $2 and version > $3 order by version limit $4) o"
    "  left join lateral unnest(o.keys) as k(key) on true"
    " limit $5");
enum { VERSION, LISTED, KEY };

/* ---- gathering ---- */

void refdata_delta_begin(struct refdata_delta *delta, struct arena *arena, int64_t from, size_t rows_max)
{
    *delta = (struct refdata_delta){.arena = arena, .change = {.from = from, .to = from}};
    delta->change.keys = arena_alloc(arena, (rows_max + 1) * sizeof(struct str));
}

void refdata_delta_take(struct refdata_delta *delta, int64_t version, bool listed, struct str key)
{
    struct refdata_change *change = &delta->change;
    if (version == change->to + 1)
        change->to = version;
    if (!listed || version != change->to || change->to == change->from)
        delta->broken = true;
    if (!delta->broken && key.ptr)
        change->keys[change->key_count++] = arena_str(delta->arena, key);
}

bool refdata_delta_end(struct refdata_delta *delta, int64_t committed)
{
    struct refdata_change *change = &delta->change;
    delta->broken |= change->to != committed;
    change->key_count = str_sort(change->keys, change->key_count);
    return !delta->broken;
}

/* ---- asking ---- */

static size_t keys_max(const struct refdata_load *load)
{
    uint64_t share = cache_snapshot_info(load->held)->item_count / FULL_SHARE;
    return share < KEYS_MIN ? KEYS_MIN : share > KEYS_MAX ? KEYS_MAX : (size_t)share;
}

void refdata_delta_ask(const struct refdata_load *load, struct db_conn *conn)
{
    db_pipeline_add(conn, &changes_sql,
                    DB_PARAMS(db_text(load->tenant), db_text(load->dictionary->code),
                              db_i64((int64_t)cache_snapshot_info(load->held)->version),
                              db_i64(VERSIONS_MAX + 1), db_i64((int64_t)keys_max(load) + 1)));
}

bool refdata_delta_read(const struct refdata_load *load, const struct db_result *answer, int64_t committed,
                        struct refdata_delta *delta)
{
    size_t rows = db_result_rows(answer);
    refdata_delta_begin(delta, load->arena, cache_snapshot_info(load->held)->version, rows);
    if (rows > keys_max(load))
        return false;
    for (size_t i = 0; i < rows && !delta->broken; i++)
        refdata_delta_take(delta, db_result_i64(answer, i, VERSION),
                           str_eq(db_result_str(answer, i, LISTED), STR("t")),
                           db_result_is_null(answer, i, KEY) ? STR_NONE : db_result_str(answer, i, KEY));
    return refdata_delta_end(delta, committed) && delta->change.to - delta->change.from <= VERSIONS_MAX;
}

/* ---- building ---- */

static struct cache_builder *new_builder(const struct refdata_load *load, struct cache_snapshot *base)
{
    struct cache_builder *builder = cache_builder_create(base, load->memory_max);
    cache_builder_limit_payloads(builder, load->payload_bytes_max);
    return builder;
}

enum status refdata_delta_build(const struct refdata_load *load, const struct refdata_change *change,
                                struct db_conn *conn, int64_t deadline_ns, struct cache_snapshot **snapshot,
                                struct error *error)
{
    enum status status = STATUS_OK;
    *snapshot = NULL;
    /* Those of the keys that are there, as a snapshot of their own: so that what a loadKeysSql gives beside them is seen. */
    struct cache_builder *builder = new_builder(load, NULL);
    if (change->key_count) {
        struct buf array = {0};
        for (size_t i = 0; i < change->key_count; i++)
            db_array_put(&array, change->keys[i]);
        status = refdata_provider_load(load->dictionary, load->tenant, db_array_end(&array), conn,
                                       deadline_ns, builder, error);
        buf_deinit(&array);
    }
    if (status != STATUS_OK) {
        cache_builder_abandon(builder);
        return status;
    }
    struct cache_snapshot *found = cache_builder_finish(builder, 0);
    uint64_t taken = 0;
    bool fits = true;
    builder = new_builder(load, load->held);
    for (size_t i = 0; i < change->key_count && fits; i++) {
        const struct cache_record *record = cache_find(found, change->keys[i]);
        if (record)
            fits =
                cache_builder_put(builder, change->keys[i], cache_record_payload(record), NULL) == STATUS_OK;
        else
            cache_builder_delete(builder, change->keys[i]);
        taken += record != NULL;
    }
    /* What was found is not what was asked for, or does not fit: then only everything is sure to be right. */
    if (fits && taken == cache_snapshot_info(found)->item_count)
        *snapshot = cache_builder_finish(builder, change->to);
    else
        cache_builder_abandon(builder);
    cache_snapshot_unref(found);
    return STATUS_OK;
}
