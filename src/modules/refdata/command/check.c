/* Is it an update, of a dictionary that is there and can take it? In the order of R1: the dictionary before the rest of
 * the body. On a loop or a worker: nothing is touched but the post and a catalog that stays. */
#include "modules/refdata/command/command.h"
#include "modules/refdata/provider.h"

static enum status find_dictionary(struct refdata_post *post, const struct refdata_catalog *catalog,
                                   struct str code)
{
    struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
    if (!dictionary)
        return error_set(&post->error, STATUS_UNKNOWN_DICTIONARY, "there is no dictionary called %.*s",
                         STR_ARG(code));
    if (atomic_load(&dictionary->state) == REFDATA_DISABLED)
        return error_set(&post->error, STATUS_DICTIONARY_UNAVAILABLE, "PostgreSQL refuses its SQL");
    post->dictionary = refdata_dictionary_ref(dictionary);
    return STATUS_OK;
}

static enum status needs(struct refdata_post *post, enum refdata_field field)
{
    if (post->dictionary->sql[field].given)
        return STATUS_OK;
    return error_set(&post->error, STATUS_DICTIONARY_READ_ONLY, "the dictionary %.*s has no %s",
                     STR_ARG(post->dictionary->code), refdata_field_name(field));
}

/* The built-in table takes everything. An empty DELTA writes no item, but a dictionary without any SQL takes no updates
 * at all. */
static enum status check_writable(struct refdata_post *post)
{
    const struct refdata_update *update = &post->update;
    const struct refdata_sql *sql = post->dictionary->sql;
    enum status status = STATUS_OK;
    if (post->dictionary->provider == &refdata_provider_builtin)
        return STATUS_OK;
    if (update->type == REFDATA_SNAPSHOT)
        return sql[REFDATA_SNAPSHOT_STAGE].given ? STATUS_OK : needs(post, REFDATA_SNAPSHOT_REPLACE);
    if (update->has_upsert || !sql[REFDATA_DELETE].given)
        status = needs(post, REFDATA_UPSERT);
    if (status == STATUS_OK && update->has_delete)
        status = needs(post, REFDATA_DELETE);
    return status;
}

/* Chunks may share an event, so what its row remembers of them is the snapshot; each chunk's own content is kept apart. */
static struct str hash_of(struct refdata_post *post)
{
    const struct refdata_update *update = &post->update;
    if (refdata_update_is_chunk(update))
        return arena_printf(&post->arena, "snapshot %s/%d", update->snapshot_id, (int)update->chunks_total);
    char hex[HASH128_HEX_BYTES];
    hash128_hex(update->content, hex);
    return arena_str(&post->arena, str_from(hex));
}

enum status refdata_post_check(struct refdata_post *post, const struct refdata_catalog *catalog)
{
    struct json_value body;
    struct str code;
    enum status status =
        refdata_update_open(post->body, &post->limits, &body, &code, &post->arena, &post->error);
    if (status == STATUS_OK)
        status = find_dictionary(post, catalog, code);
    if (status == STATUS_OK)
        status = refdata_update_read(&body, REFDATA_FROM_CLIENT, str_from(post->tenant), &post->limits,
                                     &post->arena, &post->update, &post->error);
    if (status == STATUS_OK)
        status = check_writable(post);
    if (status != STATUS_OK)
        return status;
    post->hash = hash_of(post);
    post->event_hash =
        hash_seeded(str_from(post->tenant)) * 31 + hash_seeded(str_from(post->update.event_id));
    return STATUS_OK;
}
