/* The ledger: what all processes together know, in PostgreSQL (schema hydration): copies, absences, and who is being asked.
 *
 *   hydration.copies    (tenant, type, id, subject '' = everybody's): version, cover, data, until
 *   hydration.absences  (tenant, type, id, subject): version, reason, until                               negative cache
 *   hydration.flights   (tenant, type, id, subject): window, asked, covers, correlation ids, versions heard     collapse
 *
 * One call looks and claims; one call, of the shared group's transaction, writes down what was heard. Nothing here needs to
 * survive a crash of PostgreSQL: commits do not wait for the disk, and flights and absences are unlogged. */
#ifndef FRESHET_HYDRATION_LEDGER_H
#define FRESHET_HYDRATION_LEDGER_H

#include "hydration/event.h"
#include "hydration/hydration.h"

enum hydration_ledger_verdict {
    HYDRATION_LEDGER_COPY,   /* here it is */
    HYDRATION_LEDGER_ABSENT, /* not found, till then */
    HYDRATION_LEDGER_ASK, /* yours to publish, with the cover given back: wider than asked for where others asked too */
    HYDRATION_LEDGER_JOIN, /* asked already and not answered yet, or asked too often in this window: wait */
};

struct hydration_claim { /* texts are the arena's */
    enum hydration_ledger_verdict verdict;
    struct str subject; /* COPY, ABSENT: '' = everybody's */
    struct str
        data; /* COPY; of ASK and JOIN: a copy too old or too narrow for the need, with its version; else empty */
    struct str source_module;
    struct hydration_cover cover; /* of the copy, or to be asked for */
    enum hydration_reason reason;
    int64_t version;
    int64_t ttl_ms; /* COPY, ABSENT: how long it is good for still; ASK, JOIN: of the window */
};

/* On a worker; one round trip. `correlation_id` is the caller's for this request, used if it is theirs to publish. Callers of
 * several subjects share a flight; an answer that is somebody's alone does not end it for the others. An empty correlation
 * id only looks, when time is nearly up: nothing is claimed, and JOIN says that nothing is known. */
enum status hydration_ledger_claim(struct db_pool *pool, const struct hydration_need *need,
                                   const struct hydration_policy *policy, struct str correlation_id,
                                   int64_t copy_ttl_ms, int64_t deadline_ns, struct arena *arena,
                                   struct hydration_claim *claim, struct error *error) MUST_CHECK;
/* May the one that published ask once more? Counts it if so (H3: 1 + max_retries in a window, over all processes). */
enum status hydration_ledger_retry(struct db_pool *pool, const struct hydration_need *need,
                                   const struct hydration_policy *policy, struct str correlation_id,
                                   int64_t deadline_ns, bool *granted, struct error *error) MUST_CHECK;
/* Answers and changes heard, in order, by the caller's transaction. */
enum status hydration_ledger_write(struct db_conn *conn, const struct hydration_event *events, size_t count,
                                   int64_t deadline_ns, struct error *error) MUST_CHECK;
/* held[i]: is subjects[i] held or asked for? One round trip for all of them. */
enum status hydration_ledger_held_of(struct db_pool *pool, struct str entity_type,
                                     const struct hydration_subject *subjects, size_t count,
                                     int64_t deadline_ns, bool *held, struct error *error) MUST_CHECK;
/* Calls fn for every id of that type and tenant that begins so and is held or asked for. */
enum status hydration_ledger_held(struct db_pool *pool, struct str entity_type, struct str tenant,
                                  struct str id_prefix, int64_t deadline_ns,
                                  void (*fn)(struct str entity_id, void *arg), void *arg,
                                  struct error *error) MUST_CHECK;

/* Copies stay so long after they have expired: a change of theirs makes them good again. */
#define HYDRATION_EXPIRED_COPY_MS (INT64_C(3600) * 1000)
/* For the kernel's retention (kernel/retention.h): $1 = how many rows may stay (bigint), $2 = how many go at once (int). */
extern const char hydration_absences_cleanup_sql[], hydration_copies_cleanup_sql[],
    hydration_flights_cleanup_sql[];

#endif
