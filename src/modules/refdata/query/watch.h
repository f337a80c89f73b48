/* Watch (R22): a dictionary's changes as they are swapped in, one NDJSON line each, for any number of followers.
 *
 *     {"version":8,"key":"DE","op":"UPSERT","payload":{…}}      one line a key that changed
 *     {"upToDate":8}                                            here, and only here, the reader has exactly version 8
 *     {"heartbeat":8}                                           nothing new for a while
 *
 * A pod that loads versions 6, 7 and 8 at once knows what each key holds in 8 and not what it held in 6. So a line is
 * true for the version it names, keys of versions in between come with their value in the last one, and upToDate marks
 * where all of it fits together. No changed key is left out.
 *
 * A snapshot (or any load that is not known key by key) is published as the difference between the two snapshots.
 * A client that reconnects with after=N continues from the segments in memory, or gets the keys the outbox names since N, with
 * their current values; where neither reaches back to N without a gap, it gets 410 and starts again with /all.
 *
 * The home loop decides and publishes; src/stream keeps and sends. A pair without followers costs nothing. */
#ifndef FRESHET_REFDATA_WATCH_H
#define FRESHET_REFDATA_WATCH_H

#include "modules/refdata/query/query.h"

struct refdata_watch;

/* On the home loop, all of them. */
/* A load has been swapped in. `before` NULL = there was nothing. */
void refdata_watch_published(struct refdata_holding *holding, const struct cache_snapshot *before,
                             const struct cache_snapshot *after, const struct refdata_change *change);
void refdata_watch_dissolve(struct refdata_holding *holding); /* its streams end, in order */
void refdata_watch_adopt(struct refdata *refdata);            /* new settings */

extern struct metric_family refdata_watchers, refdata_watch_lines, refdata_watch_cuts;

#endif
