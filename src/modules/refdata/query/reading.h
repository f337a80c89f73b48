/* A read's beginning: from a request to the snapshot it reads, and the headers every data answer carries (R7). */
#ifndef FRESHET_REFDATA_READING_H
#define FRESHET_REFDATA_READING_H

#include "modules/refdata/query/query.h"

struct refdata_reading {
    const struct refdata_holding *holding;
    const struct cache_snapshot *snapshot; /* valid until the handler returns */
    const struct cache_info *info;
    char headers[192]; /* X-Dict-Version, X-Data-Source */
    size_t headers_len;
};

/* False when the request has been answered, or parked until its dictionary is loaded (the handler then runs again). `query`: the
 * parameters it may have, ended by NULL. */
bool refdata_reading_begin(struct http_request *request, const char *const *query,
                           struct refdata_reading *reading);
/* A reference to the very snapshot being read, for answers that outlive the handler. The slot itself may hold a newer
 * one by now. */
struct cache_snapshot *refdata_reading_keep(const struct refdata_reading *reading);
void refdata_reading_tag(struct refdata_reading *reading, uint64_t tag, struct str *etag); /* adds ETag */

static inline struct str refdata_reading_headers(const struct refdata_reading *reading)
{
    return str_of(reading->headers, reading->headers_len);
}

/* A body made of pieces of a snapshot, streamed with a reference held. The beginning of its user's own struct, on the heap. */
struct refdata_pieces {
    struct cache_snapshot *snapshot;             /* by refdata_reading_keep() */
    struct str piece;                            /* what is left of the one being given */
    bool (*next)(struct refdata_pieces *pieces); /* sets it; false = there is none */
    uint64_t sender;                             /* that `charged` is charged to */
    size_t charged;
};
/* Takes the pieces over, whose struct has so many bytes. The body has `bytes`. 503 where their tenant has no room for them. */
void refdata_reading_stream(struct http_request *request, const struct http_response *response,
                            struct refdata_pieces *pieces, size_t own_bytes, uint64_t bytes);

/* ---- barrier.c ---- */
/* The barrier (R7): a request with X-Min-Version: N gets version N or later, or 409 when N is not committed.
 *
 *     local ≥ N ─ memory
 *     else wait (barrier.waitMs) for a reload, which the demand itself sets off
 *     else ask the primary ─┬─ ≥ N: read the keys there, answer (postgres_fallback); the reload goes on
 *                           └─ < N: 409 VERSION_NOT_COMMITTED
 *
 * No thread waits. A made-up N is cheap: one query of the primary at a time per pair, shared by all requests that came
 * before it began, and no more than barrier.checksPerSecond of them. */
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

/* ---- items.c, all.c, watch.c, list.c ---- */
http_handler_fn refdata_get_item, refdata_get_items, refdata_get_all, refdata_get_version, refdata_get_watch,
    refdata_get_dictionaries;

#endif
