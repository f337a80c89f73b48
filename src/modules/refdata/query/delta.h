/* What changed since a snapshot (R16), from the outbox: one row per version with the keys it touched.
 *
 * Trusted only when it is whole: every version from the snapshot's own to the committed one, each with its keys, and not
 * more than loading everything would cost. Otherwise nothing is known, and the caller loads everything. */
#ifndef FRESHET_REFDATA_DELTA_H
#define FRESHET_REFDATA_DELTA_H

#include "modules/refdata/query/query.h"

struct refdata_delta {
    struct arena *arena;
    struct refdata_change change; /* its keys are in the arena: until the end in the order they came */
    bool broken;                  /* a version is missing, out of order or without its keys */
};

/* ---- gathering: no database here ---- */
void refdata_delta_begin(struct refdata_delta *delta, struct arena *arena, int64_t from, size_t rows_max);
/* One row: `listed` = the version knows its keys, `key` one of them (ptr NULL = it has none). Copies the key. */
void refdata_delta_take(struct refdata_delta *delta, int64_t version, bool listed, struct str key);
/* Are these all versions up to `committed`? */
bool refdata_delta_end(struct refdata_delta *delta, int64_t committed);

/* ---- on a worker, inside the load's transaction ---- */
/* Adds the question to a pipeline. */
void refdata_delta_ask(const struct refdata_load *load, struct db_conn *conn);
/* Its answer: false when a full load is due. The base must belong to the history of what is committed. */
bool refdata_delta_read(const struct refdata_load *load, const struct db_result *answer, int64_t committed,
                        struct refdata_delta *delta);
/* Loads the keys and builds on load->base. *snapshot NULL with STATUS_OK: a full load is due after all. */
enum status refdata_delta_build(const struct refdata_load *load, const struct refdata_change *change,
                                struct db_conn *conn, int64_t deadline_ns, struct cache_snapshot **snapshot,
                                struct error *error) MUST_CHECK;

#endif
