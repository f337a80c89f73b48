/* Changes that have been printed since a version was complete: a set of their hashes, as small as it can be. Two
 * of one hash (64 bits) would be taken for one. */
#ifndef FRESHET_APP_WATCH_SEEN_H
#define FRESHET_APP_WATCH_SEEN_H

#include "base/str.h"

struct watch_seen {
    uint64_t *slots; /* 0 = free */
    size_t count, capacity;
};

bool watch_seen_add(struct watch_seen *seen, int64_t version, struct str key); /* false when it was there */
void watch_seen_clear(struct watch_seen *seen);
void watch_seen_deinit(struct watch_seen *seen);

#endif
