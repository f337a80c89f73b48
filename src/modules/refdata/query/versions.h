/* The committed versions of a tenant's dictionaries that are not held: for the list of dictionaries, whose clients must not
 * become load on the primary.
 *
 *     list ─ ask ─ home loop ─┬─ read less than VERSIONS_FRESH_MS ago ─ that answer
 *                             ├─ being read ─ waits for it
 *                             └─ else one statement, by the primary key, for all of the tenant's dictionaries in a database
 *
 * So there is at most one read a second of each tenant and database, however many requests there are. That PostgreSQL could not
 * be read is an answer too, which lives as long. */
#ifndef FRESHET_REFDATA_VERSIONS_H
#define FRESHET_REFDATA_VERSIONS_H

#include <stdatomic.h>

#include "base/list.h"
#include "base/map.h"
#include "modules/refdata/query/ask.h"

/* Of one tenant in one database. Immutable, counted, any thread. */
struct refdata_versions {
    atomic_uint refs;
    struct arena arena;
    uint64_t database; /* its fingerprint */
    bool is_known;     /* PostgreSQL was read; else there are no rows */
    size_t count;
    struct refdata_versions_row {
        struct str code;
        int64_t version, committed_at_us;
    } * rows; /* in bytewise order of their codes; a dictionary that was never written has none */
};
void refdata_versions_unref(struct refdata_versions *versions); /* NULL is fine */
/* NULL: it was never written, or nothing is known. */
const struct refdata_versions_row *refdata_versions_find(const struct refdata_versions *versions,
                                                         struct str code);

/* ---- the home loop's ---- */
TAILQ_HEAD(refdata_committed_list, refdata_committed_read);
struct refdata_committed_reads {
    struct map map;                       /* by tenant and database */
    struct refdata_committed_list by_age; /* the same, the oldest first */
};
/* Of the tenant, in the database of the dictionary ask->code: replies with ask->versions. */
refdata_ask_fn refdata_versions_ask;
void refdata_versions_clear(struct refdata *refdata); /* loops have ended: frees everything */

#endif
