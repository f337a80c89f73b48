/* The query role (R3–R7, R13–R18): what this pod holds in memory, when it is loaded, and how it is read.
 *
 *     reader ─ reading.c ─┬─ holding's slot ─ items.c, all.c                     (no lock, no allocation)
 *                         └─ not there, or too old ─ ask.c ─ keeper.c, barrier.c ─ schedule.c ─ loader.c ─ slot
 *     a change ─ invalidations.c, or sweep.c ─────────────────────────────────┘        └─ delta.c */
#ifndef FRESHET_REFDATA_QUERY_H
#define FRESHET_REFDATA_QUERY_H

#include "modules/refdata/refdata.h"

/* ---- keeper.c: what is held; on the home loop ---- */
void refdata_keeper_admit(struct refdata_ask *ask); /* of a pair that is not in memory */
void refdata_keeper_adopt(struct refdata *refdata, struct refdata_catalog *catalog); /* after a reload */
void refdata_keeper_preload(struct refdata *refdata); /* the pairs without a star */
void refdata_keeper_preload_pair(struct refdata *refdata, struct str tenant,
                                 struct refdata_dictionary *dictionary);
void refdata_keeper_update_health(struct refdata *refdata);
void refdata_keeper_trim(struct refdata *refdata,
                         const struct refdata_holding *newest); /* to the memory budget */
/* What readers hold of versions that are not current is charged until it is freed: from a moment later on, since a version that was
 * just replaced is freed when all loops have passed; or from now on. */
void refdata_keeper_count_pinned(struct refdata *refdata);
void refdata_keeper_count_pinned_now(struct refdata *refdata);
/* A load or a question has come back. A dropped holding is freed with the last of them, after a grace period. */
void refdata_keeper_unref(struct refdata_holding *holding);
void refdata_keeper_clear(struct refdata *refdata); /* loops have ended: frees everything */

/* ---- what a load changed ---- */
/* From one snapshot of a pair to the next: the keys that the versions in between name; or, where that is not known, everything. */
struct refdata_change {
    int64_t from, to; /* versions; `from` is -1 where there was nothing */
    bool is_fork;     /* `from` is not part of the history that leads to `to`: its content was lost */
    struct str *keys; /* each once, sorted; NULL = a full load: perhaps all keys */
    size_t key_count;
};

/* ---- loader.c: one load ---- */
/* The pair's row of dictionary_meta. A number alone does not name a content: after a failover or a restore that lost the
 * last versions it is reached again with another one. So versions are compared by number and event. */
struct refdata_committed {
    int64_t version;   /* 0 where the tenant never wrote (R3) */
    struct uuid event; /* which event made it; zeroes with version 0 */
    int64_t at_us;     /* updated_at; 0 = no row */
};
struct uuid refdata_loader_event(const struct db_result *result, size_t row,
                                 unsigned column); /* null = zeroes */
/* Is this snapshot exactly what is committed? */
static inline bool refdata_is_committed(const struct cache_snapshot *snapshot,
                                        const struct refdata_committed *committed)
{
    const struct cache_info *info = cache_snapshot_info(snapshot);
    return info->version == committed->version && uuid_eq(&info->event, &committed->event);
}

struct refdata_load {                      /* what to load */
    struct refdata_dictionary *dictionary; /* must live until it is done */
    struct str tenant;
    int64_t timeout_ms;
    uint64_t memory_max;      /* 0 = no bound */
    size_t payload_bytes_max; /* of one row */
    /* What is held, by the same definition: does it belong to the history of what is loaded? NULL = nothing. */
    struct cache_snapshot *held;
    bool is_delta;       /* only what changed since is loaded, where that is known (R16) */
    struct arena *arena; /* of loaded.change; needed for a delta */
};
size_t refdata_payload_bytes_max(
    const struct refdata_catalog *catalog); /* of one row, however it was written */
struct refdata_loaded {                     /* how it ended */
    enum status status;
    struct error error;
    struct cache_snapshot *snapshot; /* load.held itself, referenced once more, when nothing changed */
    struct refdata_change change;    /* from what is held */
    int64_t committed_at_us;         /* dictionary_meta.updated_at, 0 = no row */
    double seconds;
    size_t replaced; /* keys that came twice */
};
static inline bool refdata_loaded_is_delta(const struct refdata_loaded *loaded)
{
    return loaded->change.keys != NULL;
}
/* On a worker, or in a command without any loop: loads now. The snapshot is the caller's. */
void refdata_loader_load(const struct refdata_load *load, struct refdata_loaded *loaded);
/* On a worker: loads in one transaction what changed since load.held, and everything. Do they differ, in this version? */
bool refdata_loader_differs(const struct refdata_load *load, int64_t *version);
/* On the home loop: a load of this pair, with the pair's name in the arena. It references its dictionary and what is held; the
 * counterpart, on any thread, gives them back. */
void refdata_load_begin(struct refdata_load *load, const struct refdata_holding *holding, bool is_delta,
                        struct arena *arena);
void refdata_load_end(struct refdata_load *load);
/* refdata_schedule_loaded() follows; false = no thread. */
bool refdata_loader_start(struct refdata_holding *holding, bool is_delta);

/* On a worker: dictionary_meta's row as this transaction sees it. */
enum status refdata_loader_version(struct db_conn *conn, struct str tenant, struct str code,
                                   int64_t deadline_ns, struct refdata_committed *committed,
                                   struct error *error) MUST_CHECK;

/* ---- delta.c: what changed since a snapshot (R16), from the outbox: one row per version with the keys it touched ----
 * Trusted only when it is whole: every version from the snapshot's own to the committed one, each with its keys, and not
 * more than loading everything would cost. Otherwise nothing is known, and the caller loads everything. */
struct refdata_delta {
    struct arena *arena;
    struct refdata_change change; /* its keys are in the arena: until the end in the order they came */
    bool broken;                  /* a version is missing, out of order or without its keys */
};

/* Gathering: no database here. */
void refdata_delta_begin(struct refdata_delta *delta, struct arena *arena, int64_t from, size_t rows_max);
/* One row: `listed` = the version knows its keys, `key` one of them (ptr NULL = it has none). Copies the key. */
void refdata_delta_take(struct refdata_delta *delta, int64_t version, bool listed, struct str key);
/* Are these all versions up to `committed`? */
bool refdata_delta_end(struct refdata_delta *delta, int64_t committed);

/* On a worker, inside the load's transaction: adds the question to a pipeline. */
void refdata_delta_ask(const struct refdata_load *load, struct db_conn *conn);
/* Its answer: false when a full load is due. The base must belong to the history of what is committed. */
bool refdata_delta_read(const struct refdata_load *load, const struct db_result *answer, int64_t committed,
                        struct refdata_delta *delta);
/* Loads the keys and builds on load->held. *snapshot NULL with STATUS_OK: a full load is due after all. */
enum status refdata_delta_build(const struct refdata_load *load, const struct refdata_change *change,
                                struct db_conn *conn, int64_t deadline_ns, struct cache_snapshot **snapshot,
                                struct error *error) MUST_CHECK;

/* ---- primary.c: questions to the primary on behalf of readers: is a version committed, and what do these keys hold ----
 * On threads of their own, bounded in number and queue, after the pool's circuit breaker (R21). */
struct refdata_primary_answer {
    enum status status;
    struct error error;
    struct refdata_committed committed;
    struct cache_snapshot
        *snapshot; /* of the keys asked for, under that version; the callee's. NULL = none asked for */
};

/* On a worker: the version, and unless `keys` (a text[]) is empty what they hold under it, by one transaction. The answer
 * is zeroed to begin with. NO_MEMORY: they hold more than the share of old versions. */
void refdata_primary_read(const struct refdata_dictionary *dictionary, struct str tenant, struct str keys,
                          size_t payload_bytes_max, int64_t deadline_ns,
                          struct refdata_primary_answer *answer);

/* On the home loop. Calls on_answer(context, answer) there, once. `keys` (a text[], copied) empty = the version alone.
 * False when too much waits: nothing will be called. */
bool refdata_primary_ask(struct refdata *refdata, struct refdata_dictionary *dictionary, struct str tenant,
                         struct str keys,
                         void (*on_answer)(void *context, struct refdata_primary_answer *answer),
                         void *context);

/* ---- schedule.c: when to load ---- */
/* A load is wanted at `due_ns`, which may have passed; coalesces with one that is waiting, runs once more after one under way. */
void refdata_schedule_want(struct refdata_holding *holding, int64_t due_ns);
/* The pair is known to be committed in this version: a load, unless one under way brings it. Not before the debounce
 * window of full loads and the backoff of failed ones are over. */
void refdata_schedule_behind(struct refdata_holding *holding, int64_t version, int64_t delay_ms);
/* The version held may be lost, or made by another event than the committed one: a load, as above. */
void refdata_schedule_compare(struct refdata_holding *holding, int64_t delay_ms);
/* The same as refdata_schedule_behind() where a request waits for it: now. */
void refdata_schedule_urge(struct refdata_holding *holding, int64_t version);
int64_t refdata_schedule_jitter_ms(const struct refdata *refdata); /* of a bulk load: a start, a comparison */
void refdata_schedule_loaded(struct refdata_holding *holding, const struct refdata_load *load,
                             struct refdata_loaded *loaded);
/* PostgreSQL has been asked about a dictionary's templates: its pairs load now, or are given up. */
void refdata_schedule_checked(struct refdata *refdata, struct refdata_dictionary *dictionary);

/* ---- load_span.c: on the home loop ---- */
/* A traced message: this version was committed. */
void refdata_load_span_caused(struct refdata_holding *holding, const struct trace *cause, int64_t version);
void refdata_load_span_loaded(struct refdata_holding *holding, int64_t version, bool is_delta);

/* ---- checks.c: audits and drift checks of one database, beside its sweep ---- */
struct refdata_checks *refdata_checks_create(struct refdata *refdata, struct refdata_database *database);
void refdata_checks_wake(struct refdata_checks *checks);    /* home loop: what is due, after a sweep */
void refdata_checks_destroy(struct refdata_checks *checks); /* main thread: waits for the one under way */

/* ---- invalidations.c: one invalidation, the JSON of the specification §8.2: this pair is committed in this version ---- */
struct refdata_invalidation {
    struct str tenant, code;
    int64_t version;
    struct uuid event; /* which event made it */
};

/* Strictly: all five members, each once and of its type; others are left alone. The texts point into `text` or `arena`. */
bool refdata_invalidation_read(struct str text, struct arena *arena, struct refdata_invalidation *out);

/* ---- metrics.c ---- */
/* Counters by dictionary; UNREADABLE, which are messages that are no invalidation, by database. */
enum refdata_metric {
    REFDATA_RELOAD_ERRORS,
    REFDATA_REGRESSIONS,
    REFDATA_MISMATCHES,
    REFDATA_FALLBACK_READS,
    REFDATA_UNREADABLE,
    REFDATA_COUNTERS,
    REFDATA_WATCHERS = REFDATA_COUNTERS,
    REFDATA_WATCH_LINES,
    REFDATA_WATCH_CUTS,
    REFDATA_METRICS
};
void refdata_metrics_count(enum refdata_metric counter, struct str label); /* any thread */
void refdata_metrics_detach(struct refdata_holding *holding);
void refdata_metrics_loaded(struct refdata_holding *holding, const struct refdata_loaded *loaded,
                            bool is_update);
/* refdata_freshness_seconds of all dictionaries: metrics_buckets(). */
const double *refdata_metrics_freshness(uint64_t counts[METRIC_BUCKETS_MAX]);
double refdata_metrics_watchers(void); /* of all dictionaries */
void refdata_metrics_lag(const struct refdata_holding *holding, int64_t local_version);
void refdata_metrics_drift(struct refdata_holding *holding);
void refdata_metrics_dictionary(const struct refdata_dictionary *dictionary);

#endif
