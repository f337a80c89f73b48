/* Answers by the truth: the dictionary's provider reads the one key, and the version with it, in one snapshot of its database.
 * The version is the dictionary's, for an item that is there and for one that is not: so a late "not found" is seen to be
 * older than the update that made the item. The rules are the routes': the tenant's own, without a scope. */
#include "modules/refdata/command/source.h"

#include "hydration/hydration.h"
#include "kernel/store.h"
#include "modules/refdata/query/primary.h"

bool refdata_source_read_id(struct str id, struct str *code, struct str *key)
{
    struct str rest = id;
    if (!str_split(&rest, '/', code) || !rest.len || !str_is_name(*code))
        return false;
    *key = rest;
    return true;
}

/* What the route shows of an item. */
static void take_answer(const struct refdata_primary_answer *answer, struct str key,
                        struct hydration_entity *entity)
{
    const struct cache_record *record = cache_find(answer->snapshot, key);
    entity->version = answer->version;
    if (!record)
        return;
    entity->found = HYDRATION_IS;
    buf_put_str(entity->data, cache_record_body(record));
}

static enum status read_item(const struct refdata_dictionary *dictionary, struct str tenant, struct str key,
                             int64_t deadline_ns, struct hydration_entity *entity, struct error *error)
{
    struct refdata_primary_answer answer = {0};
    struct buf keys;
    if (atomic_load(&dictionary->state) != REFDATA_READY)
        return error_set(error, STATUS_DICTIONARY_UNAVAILABLE, "PostgreSQL has not agreed with its SQL");
    buf_init(&keys);
    db_array_begin(&keys);
    db_array_put(&keys, key);
    db_array_end(&keys);
    refdata_primary_read(dictionary, tenant, buf_str(&keys), deadline_ns, &answer);
    buf_deinit(&keys);
    if (answer.status == STATUS_OK)
        take_answer(&answer, key, entity);
    else
        *error = answer.error;
    if (answer.snapshot)
        cache_snapshot_unref(answer.snapshot);
    return answer.status;
}

static enum status look(void *context, const struct hydration_question *question, int64_t deadline_ns,
                        struct hydration_entity *entity, struct error *error)
{
    struct str code, key;
    enum status status = STATUS_OK;
    entity->found = HYDRATION_IS_NOT;
    if (!refdata_source_read_id(question->entity_id, &code, &key))
        return STATUS_OK;
    struct refdata_catalog *catalog = refdata_catalog_hold(context);
    const struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
    if (dictionary)
        status = read_item(dictionary, question->tenant, key, deadline_ns, entity, error);
    refdata_catalog_unref(catalog);
    return status;
}

void refdata_source_provide(struct refdata *refdata)
{
    struct hydration *hydration = kernel_hydration(refdata->kernel);
    if (!hydration) /* no store: nobody can ask */
        return;
    hydration_provide(hydration, &(struct hydration_source){.entity_type = REFDATA_ENTITY_TYPE,
                                                            .module = "refdata",
                                                            .look = look,
                                                            .context = refdata});
}
