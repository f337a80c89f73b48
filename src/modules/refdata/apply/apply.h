/* Apply: from commands to data (R8, R10). One function does it, inside a transaction that is the caller's: the bus
 * handler's (the position of the partition commits with it) or the committer's (a POST applied in its own commit).
 *
 * For each pair (tenant, dictionary) its dictionary_meta row is locked first, pairs in bytewise order; so versions,
 * outbox order and commit order agree. Then dedup, stale check, data, version, status, outbox; each command its own. */
#ifndef FRESHET_REFDATA_APPLY_H
#define FRESHET_REFDATA_APPLY_H

#include "base/span.h"
#include "modules/refdata/refdata.h"

struct refdata_command {
    struct refdata_update update; /* its slices live as long as the call */
    struct str requested_by;      /* update_request.requested_by; ptr NULL = not known */
    struct str traceparent;       /* goes on with the invalidation; ptr NULL = none */
    struct span *span;            /* its own, whose traceparent that is; NULL = not recorded */
    bool waited;                  /* in another process perhaps */
    bool is_accepted;             /* by a POST or the adapter: it has its row of update_request */
    /* With the decision FAILED: it is a dead letter, and recorded only where it was accepted before. */
    bool is_dead_letter;
    /* Set by refdata_apply_run(). A command that comes with the decision FAILED was refused by the caller: that is
     * recorded, no more. */
    bool decided; /* false: a chunk that waits for the others, or an event that was decided before */
    struct refdata_outcome outcome; /* also of one decided before, where it is still known; else PENDING */
    /* The last chunk of a snapshot decides the updates that brought the other ones too. In the arena. */
    struct refdata_outcome *others;
    size_t other_count;
    unsigned result; /* enum apply_result: what it is counted as after the commit */
};

enum refdata_apply_flags {
    REFDATA_APPLY_ALONE =
        1, /* one command: its failing SQL is rolled back to a savepoint and recorded as FAILED */
    /* The last statements may be left in the pipeline, to go out with the caller's COMMIT: done where they are short and
     * hardly ever fail (the built-in table), and then instead of ALONE. If they do fail, the commit does: run them again
     * without this. */
    REFDATA_APPLY_OPEN = 2,
    /* The rows of update_request are not there yet: inserts them as decided. Not for chunks. */
    REFDATA_APPLY_INSERTS = 8,
    /* Some may be unknown, published by others without being accepted: the rows of update_request that are missing are inserted. */
    REFDATA_APPLY_UNKNOWN = 16,
    /* With OPEN: nothing needs to be read first, as far as the caller is concerned. Then all of it may be left to the commit, which
     * fails where the pair is not as this process left it: run them again without this. Not with UNKNOWN. */
    REFDATA_APPLY_EXPECTED = 32,
    REFDATA_APPLY_LAST =
        4, /* with ALONE: a statement that takes too long is FAILED too, it had its chances */
};

void refdata_apply_metrics_register(void); /* once, before the first run */
/* On a worker, inside an open READ COMMITTED transaction. OK: all outcomes are written there, the caller commits and
 * then calls refdata_apply_report(), or rolls back. DB_ERROR: some command's SQL was refused and the transaction is
 * spoilt; run them one by one with REFDATA_APPLY_ALONE. Other failures (DB_DOWN, TIMEOUT, DB_RETRY): run all again. */
enum status refdata_apply_run(struct refdata_database *database, struct db_conn *conn,
                              struct refdata_command *commands, size_t count, unsigned flags,
                              int64_t deadline_ns, struct arena *arena, struct error *error) MUST_CHECK;
/* Are these of one pair of the built-in table whose state is expected, so that REFDATA_APPLY_EXPECTED has an effect? */
bool refdata_apply_expects(struct refdata_database *database, const struct refdata_command *commands,
                           size_t count);
/* After the commit: releases the clients that wait for these updates, and notifies the readers of the dictionaries. Updates decided
 * before are reported again: the reply to an earlier commit may have been lost. `is_published`: what the run asked of its connection
 * (db_pipeline_ask), whether versions are published that may be; else the relay is woken. */
void refdata_apply_report(struct refdata_database *database, const struct refdata_command *commands,
                          size_t count, bool is_published);

#endif
