/* The hash of a JSON value's content: the same for any white space and any order of an object's members. Texts and
 * numbers count as they were written: 1.0 is not 1. */
#ifndef FRESHET_REFDATA_CONTENT_H
#define FRESHET_REFDATA_CONTENT_H

#include "base/arena.h"
#include "base/hash.h"

/* One open container. */
struct refdata_content_level {
    struct hash128 sum;
    struct str name; /* of the member whose value comes next; ptr NULL = none was read */
    bool is_object;
};

/* `raw` is validated and at most as deep as `levels` has room. */
struct hash128 refdata_content_hash(struct str raw, struct refdata_content_level *levels);

/* A hash as the bytes that the next one is made of; the same on every machine. */
#define REFDATA_HASH_BYTES 16
struct str refdata_hash_bytes(struct hash128 hash, char out[REFDATA_HASH_BYTES]);

#endif
