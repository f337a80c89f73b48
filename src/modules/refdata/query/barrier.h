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

/* After refdata_reading_begin(): may this request be answered from what was found? `keys` (count 0 = whole dictionary)
 * is what it would read from the primary. False when it was answered or parked. */
bool refdata_barrier_pass(struct http_request *request, const struct refdata_reading *reading,
                          const struct str *keys, size_t count);

/* The same for a version that did not come by the header. */
bool refdata_barrier_reach(struct http_request *request, const struct refdata_reading *reading,
                           int64_t version, const struct str *keys, size_t count);

/* ---- the home loop's half ---- */

/* A version has been loaded: those it satisfies start over. */
void refdata_barrier_loaded(struct refdata_holding *holding, int64_t version);
/* PostgreSQL refuses the definition: no request waits for a load. */
void refdata_barrier_refuse(struct refdata_holding *holding);

#endif
