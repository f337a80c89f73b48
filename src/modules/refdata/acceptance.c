/* What has to be known of a dictionary before an update of it is accepted. Touches nothing but a catalog that stays. */
#include "modules/refdata/acceptance.h"

#include "idempotency/idempotency.h"
#include "modules/refdata/provider.h"

enum status refdata_acceptance_find(const struct refdata_catalog *catalog, struct str code,
                                    struct refdata_dictionary **dictionary, struct error *error)
{
    struct refdata_dictionary *found = refdata_catalog_find(catalog, code);
    if (!found)
        return error_set(error, STATUS_UNKNOWN_DICTIONARY, "there is no dictionary called %.*s",
                         STR_ARG(code));
    if (atomic_load(&found->state) == REFDATA_DISABLED)
        return error_set(error, STATUS_DICTIONARY_UNAVAILABLE, "PostgreSQL refuses its SQL");
    *dictionary = found;
    return STATUS_OK;
}

static enum status needs(const struct refdata_dictionary *dictionary, enum refdata_field field,
                         struct error *error)
{
    if (dictionary->sql[field].given)
        return STATUS_OK;
    return error_set(error, STATUS_DICTIONARY_READ_ONLY, "the dictionary %.*s has no %s",
                     STR_ARG(dictionary->code), refdata_field_name(field));
}

/* The built-in table takes everything. An empty DELTA writes no item, but a dictionary without any SQL takes no updates
 * at all. */
enum status refdata_acceptance_check(const struct refdata_dictionary *dictionary,
                                     const struct refdata_update *update, struct error *error)
{
    const struct refdata_sql *sql = dictionary->sql;
    enum status status = STATUS_OK;
    if (dictionary->provider == &refdata_provider_builtin)
        return STATUS_OK;
    if (update->type == REFDATA_SNAPSHOT)
        return sql[REFDATA_SNAPSHOT_STAGE].given ? STATUS_OK
                                                 : needs(dictionary, REFDATA_SNAPSHOT_REPLACE, error);
    if (update->has_upsert || !sql[REFDATA_DELETE].given)
        status = needs(dictionary, REFDATA_UPSERT, error);
    if (status == STATUS_OK && update->has_delete)
        status = needs(dictionary, REFDATA_DELETE, error);
    return status;
}

/* Chunks may share an event, so what its row remembers of them is the snapshot; each chunk's own content is kept apart. */
struct str refdata_acceptance_hash(const struct refdata_update *update, struct arena *arena)
{
    if (refdata_update_is_chunk(update))
        return arena_printf(arena, "snapshot %s/%d", update->snapshot_id, (int)update->chunks_total);
    char hex[HASH128_HEX_BYTES];
    hash128_hex(update->content, hex);
    return arena_str(arena, str_from(hex));
}

struct refdata_limits refdata_acceptance_limits(const struct refdata_catalog *catalog)
{
    const struct refdata_update_settings *settings = &catalog->updates;
    return (struct refdata_limits){(size_t)settings->items_max, (size_t)settings->key_bytes_max,
                                   (size_t)settings->payload_bytes_max, (unsigned)settings->depth_max};
}

void refdata_acceptance_keys_expired(int64_t count)
{
    idempotency_count_cleaned(STR(REFDATA_UPDATES_ROUTE), count);
    idempotency_log_cleaned(STR("refdata.update_key"), count);
}
