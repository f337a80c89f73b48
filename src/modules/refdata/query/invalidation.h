/* One invalidation, the JSON of seed §8.2: this pair is committed in this version. */
#ifndef FRESHET_REFDATA_INVALIDATION_H
#define FRESHET_REFDATA_INVALIDATION_H

#include "base/arena.h"
#include "base/str.h"
#include "base/uuid.h"

struct refdata_invalidation {
    struct str tenant, code;
    int64_t version;
    struct uuid event; /* which event made it */
};

/* Strictly: all five members, each once and of its type; others are left alone. The texts point into `text` or `arena`. */
bool refdata_invalidation_read(struct str text, struct arena *arena, struct refdata_invalidation *out);

#endif
