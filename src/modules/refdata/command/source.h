/* Dictionaries' items for whoever lacks one (H6): entity type `dictionary_item`, id = dict/key.
 *
 *     source.c    answers: what PostgreSQL has, whichever process asks and whatever is in anybody's memory
 *     changes.c   tells of what updates changed, from the topic of invalidations
 *
 * A dictionary's code has no '/', so the key is all behind the first one, as it is. */
#ifndef FRESHET_REFDATA_COMMAND_SOURCE_H
#define FRESHET_REFDATA_COMMAND_SOURCE_H

#include "modules/refdata/flow.h"

#define REFDATA_ENTITY_TYPE "dictionary_item"

/* False: no item can have that id. */
bool refdata_source_read_id(struct str id, struct str *code, struct str *key);
/* In start(), where the role command runs. */
void refdata_source_provide(struct refdata *refdata);

#endif
