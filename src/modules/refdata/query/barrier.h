/* The barrier (R7): a request with X-Min-Version: N gets version N or later, or 409 when N is not committed.
 *
 *     local ≥ N ─ memory
 *     else wait (barrier.waitMs) for a reload, which the demand itself sets off
 *     else ask the primary ─┬─ ≥ N: read the keys there, answer (postgres_fallback); the reload goes on
 *                           └─ < N: 409 VERSION_NOT_COMMITTED
 *
 * No thread waits. A made-up N is cheap: one query of the primary at a time per pair, shared by all requests that came
 * before it began, and no more than barrier.checksPerSecond of them. */
#ifndef FRESHET_REFDATA_BARRIER_H
#define FRESHET_REFDATA_BARRIER_H

#include "modules/refdata/query/reading.h"

/* What a waiting request demands: in its arena, kept in request->handler_data. */
struct refdata_demand {
    int64_t version;
    struct str code;
    struct str keys;               /* text[] of the keys asked for; empty = the whole dictionary */
    bool from_primary;             /* what it reads now was read from the primary on its behalf */
    struct cache_snapshot *answer; /* the keys' own snapshot; lives until the handler returns */
};

static inline struct refdata_demand *refdata_demand_of(const struct http_request *request)
{
    return request->handler_data;
}

/* After refdata_reading_begin(): may this request be answered from what was found? `keys` (count 0 = whole dictionary)
 * is what it would read from the primary. False when it was answered or parked. */
bool refdata_barrier_pass(struct http_request *request, const struct refdata_reading *reading,
                          const struct str *keys, size_t count);

/* The same for a version that did not come by the header. */
bool refdata_barrier_reach(struct http_request *request, const struct refdata_reading *reading,
                           int64_t version, const struct str *keys, size_t count);

/* ---- the home loop's half ---- */

/* A version has been swapped in: those it satisfies start over. */
void refdata_barrier_loaded(struct refdata_holding *holding, int64_t version);
/* PostgreSQL refuses the definition: no request waits for a later version. */
void refdata_barrier_refuse(struct refdata_holding *holding);
/* The holding is removed: every waiting request starts over. */
void refdata_barrier_dissolve(struct refdata_holding *holding);

#endif
