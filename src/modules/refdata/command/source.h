/* Dictionaries' items for whoever lacks one (H6): entity type `dictionary_item`, id = dict/key.
 *
 *     source.c    answers: what PostgreSQL has, whichever process asks and whatever is in anybody's memory
 *     changes.c   publishes what updates changed, of dictionaries that are hydrated
 *
 * A dictionary's code has no '/', so the key is all behind the first one, as it is. */
#ifndef FRESHET_REFDATA_COMMAND_SOURCE_H
#define FRESHET_REFDATA_COMMAND_SOURCE_H

#include "modules/refdata/flow.h"

struct hydration;

#define REFDATA_ENTITY_TYPE "dictionary_item"

/* False: no item can have that id. */
bool refdata_source_read_id(struct str id, struct str *code, struct str *key);
/* Any thread that may block, before an item is read for a consumer: from now on updates of this pair write down what they
 * change (refdata.item_change), for as long as consumers may hold the item. */
enum status refdata_source_mark(struct refdata_database *database, const struct hydration *hydration,
                                struct str tenant, struct str code, int64_t deadline_ns,
                                struct error *error) MUST_CHECK;
/* In start(), where the role command runs. */
void refdata_source_provide(struct refdata *refdata);

#endif
