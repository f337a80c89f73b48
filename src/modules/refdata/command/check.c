/* Is it an update, of a dictionary that is there and can take it? In the order of R1: the dictionary before the rest of
 * the body. On a loop or a worker: nothing is touched but the post and a catalog that stays. */
#include "modules/refdata/command/command.h"

static enum status find_dictionary(struct refdata_post *post, const struct refdata_catalog *catalog,
                                   struct str code)
{
    struct refdata_dictionary *dictionary;
    enum status status = refdata_acceptance_find(catalog, code, &dictionary, &post->error);
    if (status == STATUS_OK)
        post->dictionary = refdata_dictionary_ref(dictionary);
    return status;
}

/* Before the rest of the body: a caller that may not write learns nothing of it. */
static enum status check_scope(struct refdata_post *post)
{
    const char *scope = atomic_load(&post->dictionary->write_scope);
    if (!scope)
        return STATUS_OK;
    if (!post->identity) /* a reload came between */
        return error_set(&post->error, STATUS_UNAVAILABLE, "the configuration has just changed, try again");
    if (auth_has_scope(post->identity, str_from(scope)))
        return STATUS_OK;
    return error_set(&post->error, STATUS_INSUFFICIENT_SCOPE, "updating this dictionary needs the scope %s",
                     scope);
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
        status = check_scope(post);
    if (status == STATUS_OK)
        status = refdata_update_read(&body, REFDATA_FROM_CLIENT, str_from(post->tenant), &post->limits,
                                     &post->arena, &post->update, &post->error);
    if (status == STATUS_OK)
        status = refdata_acceptance_check(post->dictionary, &post->update, &post->error);
    if (status != STATUS_OK)
        return status;
    post->acceptance.content_hash = refdata_acceptance_hash(&post->update, &post->arena);
    post->event_hash =
        hash_seeded(str_from(post->tenant)) * 31 + hash_seeded(str_from(post->update.event_id));
    return STATUS_OK;
}
