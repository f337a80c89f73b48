/* What the files of watch share: watch.c admits and feeds, watch_lines.c writes lines, watch_history.c asks PostgreSQL
 * what followers that reconnect have missed. */
#ifndef FRESHET_REFDATA_WATCH_INSIDE_H
#define FRESHET_REFDATA_WATCH_INSIDE_H

#include "modules/refdata/query/watch.h"
#include "stream/stream.h"

/* A request that wants to follow and was not admitted yet. */
struct refdata_follower {
    struct refdata_follower *next;
    struct loop_park_ref ref;
    int64_t after;                  /* the version it has, or the opening gives it */
    struct stream_segment *opening; /* referenced; what it missed, NULL = nothing */
    size_t opening_offset;
};

/* From one snapshot to the next, until it is written down. */
struct refdata_watch_change {
    struct worker_job job;
    struct refdata_watch_change *next;
    struct refdata_watch *watch;           /* referenced while on a worker */
    struct cache_snapshot *before, *after; /* referenced */
    struct arena arena;
    struct str *keys; /* those that may have changed, each once, sorted; NULL = compare everything */
    size_t key_count;
    size_t bytes_max;
    struct stream_segment *segment; /* the outcome; NULL = it was more than bytes_max */
    bool is_nothing;                /* no line to publish */
};

struct refdata_watch {
    unsigned refs; /* the holding, each job under way; the home loop's */
    struct refdata *refdata;
    struct refdata_holding *holding; /* NULL = dissolved */
    struct stream_topic *topic;
    struct refdata_watch_change *change_first, **change_last; /* not written down yet, in order */
    bool writing;                                             /* a worker is at the first of them */
    struct refdata_follower *waiting;                         /* for what is being written down */
    struct refdata_follower *queued, *asked;                  /* for the next query; for the one under way */
    struct refdata_history *history;                          /* the last answer; NULL = none */
};

/* On the home loop: those in force. */
static inline const struct refdata_watch_settings *refdata_watch_settings(const struct refdata *refdata)
{
    return &atomic_load(&refdata->catalog)->watch;
}

void refdata_watch_unref(struct refdata_watch *watch);
/* Admits it, lets it wait, asks for its history, or refuses it. Takes it over. */
void refdata_watch_place(struct refdata_watch *watch, struct refdata_follower *follower);
void refdata_watch_refuse(struct refdata_follower *follower, enum status status, int64_t current);
void refdata_watch_start_over(struct refdata_follower *follower); /* the handler runs again */
void refdata_watch_settle(struct refdata_watch *watch);           /* closes it when no follower is left */

/* ---- watch_lines.c ---- */
/* Copies what it needs; NULL when nothing changed. */
struct refdata_watch_change *refdata_watch_change_create(const struct cache_snapshot *before,
                                                         const struct cache_snapshot *after,
                                                         const struct refdata_change *change,
                                                         size_t bytes_max);
void refdata_watch_change_destroy(struct refdata_watch_change *change);
bool refdata_watch_change_is_small(const struct refdata_watch_change *change);
void refdata_watch_change_write(struct refdata_watch_change *change); /* any thread */
void refdata_watch_put_line(struct buf *out, int64_t version, struct str key,
                            const struct cache_record *record);
void refdata_watch_put_up_to_date(struct buf *out, int64_t version);
void refdata_watch_put_heartbeat(struct buf *out, int64_t version);

/* ---- watch_history.c ---- */
void refdata_watch_ask(struct refdata_watch *watch); /* for those queued, unless a query is under way */
/* From the last answer, where it still holds for this version. False = it has to be asked. */
bool refdata_watch_recall(struct refdata_watch *watch, struct refdata_follower *follower, int64_t version);
void refdata_watch_forget(struct refdata_watch *watch); /* the last answer */

#endif
