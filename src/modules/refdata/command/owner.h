/* The owner of dictionaries' items in hydration (H6): entity type `dictionary_item`, id = dict/key.
 *
 *     owner.c     answers lookups by what PostgreSQL has
 *     changes.c   publishes what updates changed, of dictionaries that are hydrated
 *
 * A dictionary's code has no '/', so the key is all that follows the first one, as it is. */
#ifndef FRESHET_REFDATA_COMMAND_OWNER_H
#define FRESHET_REFDATA_COMMAND_OWNER_H

#include "modules/refdata/flow.h"

struct hydration;

#define REFDATA_ENTITY_TYPE "dictionary_item"

/* False: no item can have that id. */
bool refdata_owner_read_id(struct str id, struct str *code, struct str *key);
/* Any thread that may block, before an item is read for a consumer: from now on updates of this pair write down what they
 * change (refdata.item_change), for as long as consumers may hold the item. */
enum status refdata_owner_mark(struct refdata_database *database, const struct hydration *hydration,
                               struct str tenant, struct str code, int64_t deadline_ns,
                               struct error *error) MUST_CHECK;
/* In start(), where the role command runs. */
void refdata_owner_provide(struct refdata *refdata);

#endif
