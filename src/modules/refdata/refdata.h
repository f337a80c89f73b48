/* refdata's own layout: what the files of this module share.
 *
 * One loop, the home, decides everything about what is held: which pairs, when they load, what is dropped. Others ask it
 * by messages. Loads and sweeps block on the module's own worker threads and come back to the home loop. Readers only
 * follow two atomic pointers, `catalog` and `table`. */
#ifndef FRESHET_REFDATA_REFDATA_H
#define FRESHET_REFDATA_REFDATA_H

#include <pthread.h>

#include "kernel/ops.h"
#include "modules/refdata/catalog.h"
#include "modules/refdata/query/holding.h"
#include "modules/refdata/query/versions.h"

struct refdata_sweep;

/* report.c: observations of refdata_freshness_seconds, as they were at the last turns, five seconds apart. */
enum { REFDATA_FRESHNESS_TURNS = 12 };
struct refdata_freshness {
    uint64_t counts[REFDATA_FRESHNESS_TURNS][METRIC_BUCKETS_MAX];
    unsigned at; /* the oldest */
    int64_t turned_ns;
};

struct refdata {
    /* read on every loop */
    struct kernel *kernel;
    struct loop_group *loops;
    struct loop *home;
    const struct refdata_settings *first; /* as they were at the start, for what a reload cannot change */
    _Atomic(struct refdata_catalog *) catalog;
    pthread_mutex_t catalog_lock; /* swapping it, and holding it: refdata_catalog_hold() */
    _Atomic(struct refdata_table *) table;
    atomic_bool query_up;    /* for health */
    atomic_llong post_bytes; /* bodies of updates that wait for their commit */

    /* the home loop's alone */
    struct worker_pool *loaders, *readers; /* of loads and sweeps; of questions to the primary */
    struct refdata_table *own;             /* the table readers get copies of */
    struct loop_tick publish_tick;
    struct refdata_holdings retired; /* dropped since the table was last published */
    struct refdata_queue full_loads, delta_loads;
    struct refdata_committed_reads committed_reads; /* versions.c */
    uint64_t memory_bytes;
    uint64_t pinned_bytes;          /* of old versions that readers hold, when they were last counted */
    struct loop_timer pinned_timer; /* counts them again */
    struct refdata_freshness freshness;
    bool stopping;
};

/* Any thread: the catalog in force, with a reference. */
struct refdata_catalog *refdata_catalog_hold(struct refdata *refdata);

/* ---- sweep.c: the periodic look at each database ---- */
void refdata_sweeps_start(
    struct refdata *refdata); /* home loop: of all databases, those that run look at once */
/* On the home loop: something may have been missed, every version is compared at once. */
void refdata_sweep_now(struct refdata_database *database);
void refdata_sweep_stop(struct refdata_sweep *sweep);    /* main thread; its database's pool is interrupted */
void refdata_sweep_destroy(struct refdata_sweep *sweep); /* NULL is fine */

extern struct metric_family *const refdata_metrics[];
extern const struct http_route refdata_query_routes[];
extern const struct ops_view refdata_views[];               /* ops.c */
bool refdata_list_keys(void *state, struct ops_keys *keys); /* keys.c */
void refdata_report(void *state, struct buf *out);          /* report.c */
extern const struct module refdata_module;

#endif
