/* What update.c and update_items.c have between them. */
#ifndef FRESHET_REFDATA_UPDATE_INSIDE_H
#define FRESHET_REFDATA_UPDATE_INSIDE_H

#include "modules/refdata/update.h"

/* A hash as the bytes that the next one is made of; the same on every machine. */
#define REFDATA_HASH_BYTES 16
struct str refdata_hash_bytes(struct hash128 hash, char out[REFDATA_HASH_BYTES]);

/* Checks update->items, an array, and counts what is in it. The update's type is known. */
enum status refdata_items_check(struct refdata_update *update, const struct refdata_limits *limits,
                                struct arena *arena, struct hash128 *content, struct error *error) MUST_CHECK;

#endif
