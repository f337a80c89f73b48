/* The ledger: copies, absences and questions under way of all processes, in PostgreSQL (schema hydration).
 *
 *   hydration.copies    (tenant, type, id, subject '' = every caller's): version, cover, data, until
 *   hydration.absences  (tenant, type, id, subject): version, reason, until                               negative cache
 *   hydration.flights   (tenant, type, id, subject): window, asked, covers, correlation ids, versions     request collapse
 *
 * One call finds a copy or begins a flight; one call, in the transaction of the shared group, stores events. Nothing here has to
 * survive a crash of PostgreSQL: commits do not wait for the disk, and flights and absences are unlogged. */
#ifndef FRESHET_HYDRATION_LEDGER_H
#define FRESHET_HYDRATION_LEDGER_H

#include "hydration/event.h"
#include "hydration/hydration.h"

enum hydration_ledger_verdict {
    HYDRATION_LEDGER_COPY,
    HYDRATION_LEDGER_ABSENT,
    HYDRATION_LEDGER_ASK, /* a flight began: ask the owner, with the cover given back, which may be wider than needed */
    HYDRATION_LEDGER_JOIN, /* asked already and not answered yet, or asked too often in this window: wait */
};

struct hydration_finding { /* texts are the arena's */
    enum hydration_ledger_verdict verdict;
    struct str subject; /* COPY, ABSENT: '' = every caller's */
    struct str data;    /* COPY; of ASK and JOIN: a stale copy (too old or too narrow), or empty */
    struct str source_module;
    struct hydration_cover cover; /* of the copy, or to be asked for */
    enum hydration_reason reason;
    int64_t version;
    int64_t ttl_ms; /* COPY, ABSENT: how long it serves still; ASK, JOIN: rest of the window */
};

/* On a worker; one round trip. `correlation_id` is for the question, if there is one. Callers of several subjects share a flight;
 * an answer for one caller does not end it for the others. Without a correlation id nothing begins, and JOIN means: not found. */
enum status hydration_ledger_find(struct db_pool *pool, const struct hydration_need *need,
                                  const struct hydration_policy *policy, struct str correlation_id,
                                  int64_t copy_ttl_ms, int64_t deadline_ns, struct arena *arena,
                                  struct hydration_finding *finding, struct error *error) MUST_CHECK;
/* May the lookup that asked ask once more? Counts it if so (H3: 1 + max_retries in a window, over all processes). */
enum status hydration_ledger_retry(struct db_pool *pool, const struct hydration_need *need,
                                   const struct hydration_policy *policy, struct str correlation_id,
                                   int64_t deadline_ns, bool *granted, struct error *error) MUST_CHECK;
/* Answers and changes, in order, in the caller's transaction. */
enum status hydration_ledger_store(struct db_conn *conn, const struct hydration_event *events, size_t count,
                                   int64_t deadline_ns, struct error *error) MUST_CHECK;
/* held[i]: has refs[i] a copy, an absence or a flight? One round trip for all of them. */
enum status hydration_ledger_find_held(struct db_pool *pool, struct str entity_type,
                                       const struct hydration_ref *refs, size_t count, int64_t deadline_ns,
                                       bool *held, struct error *error) MUST_CHECK;
/* Every held id of that type and tenant with this prefix, in the arena. */
enum status hydration_ledger_list_held(struct db_pool *pool, struct str entity_type, struct str tenant,
                                       struct str id_prefix, int64_t deadline_ns, struct arena *arena,
                                       struct hydration_ref **refs, size_t *count,
                                       struct error *error) MUST_CHECK;

/* Expired copies are kept so long: a change that is published renews them. */
#define HYDRATION_EXPIRED_COPY_MS (INT64_C(3600) * 1000)
/* For the kernel's retention (kernel/retention.h): $1 = how many rows may stay (bigint), $2 = how many go at once (int). */
extern const char hydration_absences_cleanup_sql[], hydration_copies_cleanup_sql[],
    hydration_flights_cleanup_sql[];

#endif
