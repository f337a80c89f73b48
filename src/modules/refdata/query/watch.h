/* Watch (R22): a dictionary's changes as they are swapped in, one line each, for any number of followers. A line is NDJSON, or the
 * data of a server-sent event.
 *
 *     {"version":8,"key":"DE","op":"UPSERT","payload":{…}}      one line a key that changed
 *     {"upToDate":8}                                            here, and only here, the reader has exactly version 8
 *     {"heartbeat":8}                                           nothing new for a while
 *
 * A pod that loads versions 6, 7 and 8 at once knows what each key holds in 8 and not what it held in 6. So a line is
 * true for the version it names, keys of versions in between come with their value in the last one, and upToDate marks
 * where all of it fits together. No changed key is left out. As a server-sent event it alone has an id: a browser that reconnects
 * in the middle of a version gets all of that version.
 *
 * A snapshot (or any load that is not known key by key) is published as the difference between the two snapshots.
 * A client that reconnects with after=N continues from the segments in memory, or gets the keys the outbox names since N, with
 * their current values; where neither reaches back to N without a gap, it gets 410 and starts again with /all.
 *
 * The home loop decides and publishes; src/stream keeps and sends. A pair without followers costs nothing. */
#ifndef FRESHET_REFDATA_WATCH_H
#define FRESHET_REFDATA_WATCH_H

#include "modules/refdata/query/query.h"
#include "stream/stream.h"

/* On the home loop, all of them. */
/* A load has been swapped in. `before` NULL = there was nothing. */
void refdata_watch_published(struct refdata_holding *holding, const struct cache_snapshot *before,
                             const struct cache_snapshot *after, const struct refdata_change *change);
void refdata_watch_dissolve(struct refdata_holding *holding); /* its streams end, in order */
void refdata_watch_adopt(struct refdata *refdata);            /* new settings */

/* ---- inside: watch.c admits and feeds, watch_lines.c writes lines, watch_history.c asks PostgreSQL what followers that
 * reconnect have missed ---- */

/* From one snapshot to the next, until it is written down. */
struct refdata_watch_change {
    struct worker_job job;
    STAILQ_ENTRY(refdata_watch_change) next;
    struct refdata_watch *watch;           /* referenced while on a worker */
    struct cache_snapshot *before, *after; /* referenced */
    struct arena arena;
    struct str *keys; /* those that may have changed, each once, sorted; NULL = compare everything */
    size_t key_count;
    size_t bytes_max;
    unsigned formats; /* bits: those that are followed */
    unsigned lines;
    struct stream_segment *segments[STREAM_FORMATS]; /* the outcome; NULL = not followed, or is_too_large */
    bool is_too_large;                               /* more than bytes_max */
};

struct refdata_watch {
    unsigned refs; /* the holding, each job under way; the home loop's */
    struct refdata *refdata;
    struct refdata_holding *holding;             /* NULL = dissolved */
    struct stream_topic *topics[STREAM_FORMATS]; /* NULL = without a follower */
    STAILQ_HEAD(, refdata_watch_change) changes; /* not written down yet, in order */
    bool is_writing;                             /* a worker has the one before them */
    /* Requests that want to follow and were not admitted yet: */
    struct refdata_asks waiting;       /* for what is being written down */
    struct refdata_asks queued, asked; /* for the next query; for the one under way */
    struct refdata_history *history;   /* the last answer; NULL = none */
};

/* On the home loop: those in force. */
static inline const struct refdata_watch_settings *refdata_watch_settings(const struct refdata *refdata)
{
    return &atomic_load(&refdata->catalog)->watch;
}

void refdata_watch_unref(struct refdata_watch *watch);
/* Admits it, lets it wait, asks for its history, or refuses it. Takes it over. */
void refdata_watch_place(struct refdata_watch *watch, struct refdata_ask *ask);
void refdata_watch_settle(void *watch); /* closes it when no follower is left */

/* ---- watch_lines.c ---- */
/* Copies what it needs; NULL when nothing changed. */
struct refdata_watch_change *refdata_watch_change_create(const struct cache_snapshot *before,
                                                         const struct cache_snapshot *after,
                                                         const struct refdata_change *change,
                                                         unsigned formats, size_t bytes_max);
void refdata_watch_change_destroy(struct refdata_watch_change *change);
bool refdata_watch_change_is_small(const struct refdata_watch_change *change);
void refdata_watch_change_write(struct worker_job *job); /* the change's; any thread */
void refdata_watch_put_line(struct buf *out, enum stream_format format, int64_t version, struct str key,
                            const struct cache_record *record);
#define REFDATA_WATCH_UP_TO_DATE "{\"upToDate\":%lld}"
void refdata_watch_put_up_to_date(struct buf *out, enum stream_format format, int64_t version);

/* ---- watch_history.c ---- */
void refdata_watch_ask(struct refdata_watch *watch); /* for those queued, unless a query is under way */
/* From the last answer, where it still holds for this version. False = it has to be asked. */
bool refdata_watch_recall(struct refdata_watch *watch, struct refdata_ask *ask, int64_t version);
void refdata_watch_forget(struct refdata_watch *watch); /* the last answer */

#endif
