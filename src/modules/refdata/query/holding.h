/* What this pod holds: one holding per (tenant, dictionary) pair, in a table that every loop reads without a lock.
 *
 * The home loop owns the holdings and a table of its own; readers see a copy of that table behind one atomic pointer,
 * replaced at the end of a tick in which pairs came or went. Replaced tables and dropped holdings are freed after a
 * grace period. */
#ifndef FRESHET_REFDATA_HOLDING_H
#define FRESHET_REFDATA_HOLDING_H

#include <stdatomic.h>

#include "cache/cache.h"
#include "modules/refdata/dictionary.h"

struct refdata;

/* ---- requests that wait at the barrier (barrier.h), per holding ---- */

/* A reader waiting for a version. */
struct refdata_waiting {
    struct loop_park_ref ref;
    int64_t version;
    int64_t expires_ns; /* it will not be there any more */
    bool from_primary;  /* the reload it waits for was asked of the primary on its behalf */
};

/* A reader whose wait is over: the primary decides. */
struct refdata_deciding {
    struct refdata_deciding *next;
    struct loop_park_ref ref;
    int64_t version;
    size_t keys_len;
    char keys[];
};

struct refdata_barrier { /* of one holding */
    struct refdata_waiting *waiting;
    size_t waiting_count, waiting_capacity;
    struct refdata_deciding *queued; /* for the next query */
    struct refdata_deciding *asked;  /* for the one under way */
    bool asking;
    const struct refdata_dictionary *definition; /* of the query under way, which references it */
    int64_t second;                              /* of the rate limit */
    unsigned asked_this_second;
};

/* Loads waiting for their turn. Those of changed keys alone have a queue and places of their own, so that no long load
 * holds them up. */
struct refdata_queue {
    struct refdata_holding *first, **last;
    unsigned running;
};

struct refdata_holding {
    /* read on every loop */
    struct str tenant, code;
    uint64_t hash;
    struct cache_slot slot;           /* empty = not loaded yet */
    _Atomic(const char *) read_scope; /* the dictionary's; NULL = none */

    /* the home loop's alone */
    struct refdata *refdata;
    struct refdata_dictionary *dictionary;
    bool preload;   /* asked for by configuration: never evicted, part of readiness */
    bool wanted;    /* a load is due as soon as one may start */
    bool loading;   /* one load at a time: single-flight */
    bool again;     /* something changed during the load: it runs once more */
    bool whole;     /* the next load is a full one, whatever is known of the changes */
    bool redefined; /* what is held was loaded by an earlier definition */
    bool dropped;   /* out of the table; freed when its load has come back */
    bool refused;   /* its last load failed for a reason that trying again does not mend */
    unsigned failures;
    int64_t retry_at_ns; /* after a failure: not before */
    bool too_large;      /* the last load met a row that is, at this version: */
    int64_t too_large_version;
    struct loop_timer timer;
    struct loop_park_ref *waiters;
    size_t waiter_count, waiter_capacity;
    struct refdata_queue *queue, *running_in; /* NULL = neither */
    struct refdata_holding *queue_next;
    int64_t wanted_version; /* committed since the last load began, as other processes report; 0 = none */
    int64_t began_ns;       /* the last load */
    int64_t audit_at_ns;    /* 0 = not decided yet */
    struct refdata_barrier barrier;
    struct refdata_watch *watch; /* NULL = no followers */
    uint64_t memory_bytes;
    int64_t committed_version; /* as the sweep last saw it */
    int64_t lost_version; /* up to here a number may also mean a version that was lost (R14); 0 = none was */
    int64_t drift_checked_at_ns, drift_value, drift_version;
    bool drift_known;
    struct metric_series *lag, *version_gauge, *items, *memory_gauge, *drift;

    _Atomic uint32_t
        used_at_s[]; /* per loop: seconds of the monotonic clock; written at most once a second */
};

struct refdata_table {
    size_t mask, count;
    struct refdata_holding *slots[]; /* open addressing, at most half full; NULL = free */
};

uint64_t refdata_pair_hash(struct str tenant, struct str code);
struct refdata_table *refdata_table_create(size_t capacity); /* a power of two */
struct refdata_table *refdata_table_copy(const struct refdata_table *table);
/* The table it is in afterwards: a larger one when it had to grow (the old one is freed). */
struct refdata_table *refdata_table_add(struct refdata_table *table, struct refdata_holding *holding);
void refdata_table_remove(struct refdata_table *table, const struct refdata_holding *holding);

static inline struct refdata_holding *refdata_table_find(const struct refdata_table *table, struct str tenant,
                                                         struct str code)
{
    uint64_t hash = refdata_pair_hash(tenant, code);
    for (size_t at = hash & table->mask;; at = (at + 1) & table->mask) {
        struct refdata_holding *holding = table->slots[at];
        if (!holding ||
            (holding->hash == hash && str_eq(holding->code, code) && str_eq(holding->tenant, tenant)))
            return holding;
    }
}

/* Adds a request that waits at the barrier, and removes those whose time is over (they went on to the primary, or are gone), so
 * that the list has the size of the waiting requests. */
void refdata_waiting_add(struct refdata_barrier *barrier, struct refdata_waiting waiting, int64_t now_ns);
void refdata_waiting_forget(struct refdata_barrier *barrier, int64_t now_ns);

struct refdata_holding *refdata_holding_create(struct refdata *refdata, struct str tenant,
                                               struct refdata_dictionary *dictionary, unsigned loops);
void refdata_holding_destroy(struct refdata_holding *holding); /* its slot must be empty */
uint32_t refdata_holding_used_at_s(const struct refdata_holding *holding, unsigned loops);

#endif
