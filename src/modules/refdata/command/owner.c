/* Looks up items of dictionaries for hydration (H6), in PostgreSQL and not in memory. The dictionary is marked as hydrated first
 * (dictionary_meta.hydrated_until), so that later updates are published; then its provider reads the key and the version in one
 * snapshot of the database.
 *
 * The version is the dictionary's, also for an item that does not exist: so a late "not found" is older than the update that
 * created the item. Every caller of the tenant may see the items. A question carries no scopes, so an item of a dictionary with a
 * readScope is always "not found". */
#include "modules/refdata/command/command.h"

#include "base/clock.h"
#include "base/hash.h"
#include "hydration/hydration.h"
#include "kernel/store.h"
#include "modules/refdata/query/query.h"
#include "modules/refdata/writer.h"

bool refdata_owner_read_id(struct str id, struct str *code, struct str *key)
{
    struct str rest = id;
    if (!str_split(&rest, '/', code) || !rest.len || !str_is_name(*code))
        return false;
    *key = rest;
    return true;
}

/* ---- hydrated pairs ---- */

/* Waits for the row's lock: an update that is being applied is committed first, and then read. The row is made for a pair
 * that was never written: its first update must be published too. $3: how long an item may be held. */
static const struct db_statement mark_sql = DB_STATEMENT(
    "insert into refdata.dictionary_meta as m (tenant_id, dict_code, version, hydrated_until)"
    " values ($1, $2, 0, clock_timestamp() + 2 * $3 * interval '1 ms')"
    " on conflict (tenant_id, dict_code) do update set hydrated_until = excluded.hydrated_until"
    " where m.hydrated_until is null or m.hydrated_until < clock_timestamp() + 1.5 * $3 * interval '1 ms'");

enum { KNOWN_MS = 60 * 1000 };

/* Before an item is read for a consumer: from now on updates of this pair write down what they change (refdata.item_change), for as
 * long as consumers may hold the item. */
static enum status mark_hydrated(struct refdata_database *database, const struct hydration *hydration,
                                 struct str tenant, struct str code, int64_t deadline_ns, struct error *error)
{
    struct hash128 pair = hash_item(tenant, code);
    struct refdata_hydrated *hydrated = &database->hydrated;
    struct refdata_hydrated_pair *known = &hydrated->at[pair.low % REFDATA_HYDRATED_PAIRS];
    pthread_mutex_lock(&hydrated->lock);
    bool is_known =
        known->pair.low == pair.low && known->pair.high == pair.high && known->until_ns > clock_mono_ns();
    pthread_mutex_unlock(&hydrated->lock);
    if (is_known)
        return STATUS_OK;
    enum status status =
        db_pool_exec(database->site.pool, &mark_sql,
                     DB_PARAMS(db_text(tenant), db_text(code), db_i64(hydration_held_ms(hydration))),
                     deadline_ns, NULL, error);
    if (status != STATUS_OK)
        return status;
    pthread_mutex_lock(&hydrated->lock);
    *known = (struct refdata_hydrated_pair){pair, clock_deadline_ms(KNOWN_MS)};
    pthread_mutex_unlock(&hydrated->lock);
    return STATUS_OK;
}

/* ---- answers ---- */

static enum status look_up_item(void *context, const struct hydration_need *need, int64_t deadline_ns,
                                struct hydration_entity *entity, struct error *error)
{
    struct refdata *refdata = context;
    struct refdata_primary_answer answer = {0};
    struct str code, key;
    enum status status = STATUS_OK;
    entity->found = HYDRATION_ENTITY_ABSENT;
    if (!refdata_owner_read_id(need->entity_id, &code, &key))
        return STATUS_OK;
    struct refdata_catalog *catalog = refdata_catalog_hold(refdata);
    const struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
    bool is_answered = dictionary && !atomic_load(&dictionary->read_scope);
    if (is_answered)
        status = mark_hydrated(dictionary->database, kernel_hydration(refdata->kernel), need->tenant, code,
                               deadline_ns, error);
    if (is_answered && status == STATUS_OK && atomic_load(&dictionary->state) != REFDATA_READY)
        status = error_set(error, STATUS_DICTIONARY_UNAVAILABLE,
                           "the SQL of this dictionary is not checked yet; try again");
    if (is_answered && status == STATUS_OK) {
        struct buf keys = {0};
        db_array_put(&keys, key);
        refdata_primary_read(dictionary, need->tenant, db_array_end(&keys),
                             refdata_payload_bytes_max(catalog), deadline_ns, &answer);
        buf_deinit(&keys);
        status = answer.status;
        if (status != STATUS_OK)
            *error = answer.error;
        entity->version = status == STATUS_OK ? answer.committed.version : entity->version;
    }
    refdata_catalog_unref(catalog);
    const struct cache_record *record = answer.snapshot ? cache_find(answer.snapshot, key) : NULL;
    if (status == STATUS_OK && record) {
        entity->found = HYDRATION_ENTITY_EXISTS;
        buf_put_str(entity->data, cache_record_body(record)); /* the body that GET …/items/{key} returns */
    }
    cache_snapshot_unref(answer.snapshot);
    return status;
}

void refdata_owner_provide(struct refdata *refdata)
{
    struct hydration *hydration = kernel_hydration(refdata->kernel);
    if (!hydration) /* without a store no module asks for entities */
        return;
    hydration_provide(hydration, &(struct hydration_owner){.entity_type = REFDATA_ENTITY_TYPE,
                                                           .module = "refdata",
                                                           .look = look_up_item,
                                                           .context = refdata});
}
