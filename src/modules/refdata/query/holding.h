/* What this pod holds: one holding per (tenant, dictionary) pair, in a table that every loop reads without a lock.
 *
 * The home loop owns the holdings and a table of its own; readers see a copy of that table by one atomic pointer,
 * replaced at the end of a tick in which pairs came or went. Replaced tables and dropped holdings are freed after a
 * grace period. */
#ifndef FRESHET_REFDATA_HOLDING_H
#define FRESHET_REFDATA_HOLDING_H

#include <stdatomic.h>

#include "base/backoff.h"
#include "base/map.h"
#include "base/trace.h"
#include "base/turns.h"
#include "cache/cache.h"
#include "modules/refdata/dictionary.h"
#include "modules/refdata/query/ask.h"

struct refdata;
TAILQ_HEAD(refdata_holdings, refdata_holding);

/* Loads waiting for their turn; tenants take turns. Those of changed keys alone have a queue and places of their own, so that no
 * long load holds them up. */
struct refdata_queue {
    struct turns
        urgent; /* with waiters: before the others; its members are the loads of both kinds that run */
    struct turns rest;
    unsigned running;
};

/*     IDLE → [WANTED →] [DELAYED →] QUEUED → LOADING [→ LOADING_AGAIN] → IDLE; any → DROPPED */
enum refdata_holding_state {
    HOLDING_IDLE,          /* no load is due */
    HOLDING_WANTED,        /* one is as soon as PostgreSQL has accepted the dictionary's definition */
    HOLDING_DELAYED,       /* its timer runs */
    HOLDING_QUEUED,        /* in `queue`, for a free place */
    HOLDING_LOADING,       /* single flight */
    HOLDING_LOADING_AGAIN, /* something changed meanwhile: it runs once more */
    HOLDING_DROPPED,       /* out of the table; freed when its load and its question have come back */
};

/* Of the next load: */
enum refdata_basis {
    BASIS_HELD,      /* what is held, where the changes since are known */
    BASIS_NONE,      /* a full one, whatever is known of the changes */
    BASIS_REDEFINED, /* the same; what is held was loaded by an earlier definition */
};

/* Of the last load: */
enum refdata_failure {
    FAILURE_NONE,
    FAILURE_OUTAGE,    /* of the server: mends by itself */
    FAILURE_REFUSED,   /* of what it has: trying again does not mend it */
    FAILURE_TOO_LARGE, /* the same: a row is, at failed_version */
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
    unsigned refs; /* the table, the load and the question under way */
    bool preload;  /* asked for by configuration: never evicted, part of readiness */
    enum refdata_holding_state state;
    enum refdata_basis basis;
    enum refdata_failure failure;
    int64_t failed_version;
    char *last_error;     /* of that load, for operators; NULL = none failed yet */
    int64_t freshness_us; /* from the last commit that was loaded until it was served; -1 = not known */
    struct backoff retry;
    int64_t retry_at_ns; /* after a failure: not before */
    struct loop_timer timer;
    struct refdata_queue *queue; /* it is, or runs, in */
    struct turns *line;          /* QUEUED: there */
    struct turns_item turn;
    struct turns_share *place;            /* of the load that runs */
    TAILQ_ENTRY(refdata_holding) retired; /* among those to be freed */
    /* Requests that wait: for the first load while there is nothing, for a version (barrier.c) afterwards. */
    struct refdata_asks waiting;
    struct refdata_barrier {
        struct refdata_asks queued; /* for the next question to the primary: their wait is over */
        struct refdata_asks asked;  /* for the one under way: */
        const struct refdata_dictionary
            *definition; /* by which it was asked, and which it references; NULL = none is */
        int64_t second;  /* of the rate limit */
        unsigned asked_this_second;
    } barrier;
    int64_t wanted_version;     /* committed since the last load began, as other processes report; 0 = none */
    int64_t began_ns;           /* the last load */
    struct refdata_load_trace { /* load_span.c */
        struct trace
            cause; /* of the newest traced message that no span was recorded for; none = there is none */
        int64_t caused_version, recorded_version;
        int64_t start_us, end_us, loaded_version; /* of the last load; 0 = its span is recorded */
        bool is_delta;
    } load_trace;
    int64_t audit_at_ns;         /* 0 = not decided yet */
    struct refdata_watch *watch; /* NULL = no followers */
    uint64_t memory_bytes;
    int64_t committed_version; /* as the sweep last saw it */
    int64_t lost_version; /* up to here a number may also mean a version that was lost (R14); 0 = none was */
    int64_t drift_checked_at_ns, drift_value;
    int64_t drift_version;           /* -1 = the value is not known */
    struct metric_series *series[5]; /* metrics.c */

    _Atomic uint32_t
        used_at_s[]; /* per loop: seconds of the monotonic clock; written at most once a second */
};

struct refdata_table {
    size_t mask, count;
    struct refdata_holding *slots[]; /* open addressing, at most half full; NULL = free */
};

struct refdata_table *refdata_table_create(size_t capacity); /* a power of two */
struct refdata_table *refdata_table_copy(const struct refdata_table *table);
/* The table it is in afterwards: a larger one when it had to grow (the old one is freed). */
struct refdata_table *refdata_table_add(struct refdata_table *table, struct refdata_holding *holding);
void refdata_table_remove(struct refdata_table *table, const struct refdata_holding *holding);

static inline struct refdata_holding *refdata_table_find(const struct refdata_table *table, struct str tenant,
                                                         struct str code)
{
    uint64_t hash = map_hash_pair(tenant, code);
    for (size_t at = hash & table->mask;; at = (at + 1) & table->mask) {
        struct refdata_holding *holding = table->slots[at];
        if (!holding ||
            (holding->hash == hash && str_eq(holding->code, code) && str_eq(holding->tenant, tenant)))
            return holding;
    }
}

struct refdata_holding *refdata_holding_create(struct refdata *refdata, struct str tenant,
                                               struct refdata_dictionary *dictionary, unsigned loops);
void refdata_holding_destroy(struct refdata_holding *holding); /* its slot must be empty */
uint32_t refdata_holding_used_at_s(const struct refdata_holding *holding, unsigned loops);
/* Leaves its queue or stops its timer, as the state it leaves has it. The process ends where that move is not allowed. */
void refdata_holding_move(struct refdata_holding *holding, enum refdata_holding_state to);

static inline bool refdata_holding_is_loading(const struct refdata_holding *holding)
{
    return holding->state == HOLDING_LOADING || holding->state == HOLDING_LOADING_AGAIN;
}

/* On a loop: the version it has; -1 = none. */
static inline int64_t refdata_holding_version(const struct refdata_holding *holding)
{
    const struct cache_snapshot *snapshot = cache_slot_read(&holding->slot);
    return snapshot ? cache_snapshot_info(snapshot)->version : -1;
}

#endif
