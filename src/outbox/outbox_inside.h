/* What the engine's files share.
 *
 *   sql.c      a table's statements from its descriptor
 *   claim.c    settle and claim: everything a batch says to the database
 *   verdict.c  verdicts, and what they come to
 *   jobs.c     the step a worker takes, renewal, upkeep: who runs when
 *   engine.c   life: wakes, timer, stop
 *   upkeep.c   gauges, retention
 *   metrics.c, settings.c, bell.c, by_hand.c
 *
 * The step, on a worker; it comes again while it found something or was woken meanwhile:
 *
 *   ┌─▶ settle what was published, claim more ── nothing ──▶ idle
 *   │            │ some
 *   └─────── publish */
#ifndef FRESHET_OUTBOX_OUTBOX_INSIDE_H
#define FRESHET_OUTBOX_OUTBOX_INSIDE_H

#include <pthread.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/uuid.h"
#include "outbox/outbox.h"

enum {
    OUTBOX_CLAIM_PARAMS = 6, /* before the cursor's */
    OUTBOX_STRIDE = 16,      /* rows that are read at once; more of an aggregate only if there is room */
    OUTBOX_LOST_CLAIMS_SUSPECT = 2 /* an event with so many claims nobody came back from goes alone */
};

/* ---- sql.c ---- */
struct outbox_sql {
    struct db_statement begin, local, settle, claim_first, claim_after, commit;
    struct db_statement release, renew, gauge, cleanup;
};
void outbox_sql_init(struct outbox_sql *sql, const struct outbox_table *table, struct arena *arena);
/* @names in a template replaced by the table's own. */
const char *outbox_sql_expand(const struct outbox_table *table, const char *template, struct arena *arena);
unsigned outbox_aggregate_columns(const struct outbox_table *table);

/* ---- metrics.c ---- */
struct outbox_counters {
    struct metric_series *success, *failed, *dead, *latency;
};
void outbox_metrics_init(void);
void outbox_metrics_of(const char *module, struct str event_type, struct outbox_counters *counters);
void outbox_metrics_pending(const char *module, struct str event_type, int64_t count, int64_t age_ms);

/* ---- claim.c ---- */
struct outbox_claims { /* one worker at a time */
    const struct outbox_table *table;
    const struct outbox_settings *settings;
    const struct outbox_sql *sql;
    struct str worker; /* locked_by */
    /* the batch: from a claim until it is settled */
    struct arena arena; /* its events and verdicts; texts are in `rows` */
    struct db_result *rows;
    struct outbox_event *events;
    struct outbox_verdict *verdicts;
    size_t count;
    char id[UUID_TEXT_BYTES]; /* of the claim */
    struct buf ids;           /* text[] of the events' */
    int64_t claimed_ns;       /* just before the claim went out: the lease can't end before this + lease */
    int64_t published_ns;     /* just before it was published; is_relaxed: as outbox_batch has it */
    bool is_relaxed;
    /* A claim whose answer never came: perhaps it stands. "" = none. */
    char doubtful[UUID_TEXT_BYTES];
    /* where the walk goes on: behind this aggregate; cursor[0].ptr NULL = at the beginning */
    struct str cursor[OUTBOX_AGGREGATE_MAX];
    struct buf cursor_text;
    bool more;          /* the last walk did not reach the end, or did not begin at the beginning */
    size_t settled;     /* by the last exchange: verdicts that still counted */
    int64_t backoff_ms; /* the shortest pause it gave; 0 = none */
    int64_t away_ms;    /* the pause of those whose engine is away */
};
void outbox_claims_init(struct outbox_claims *claims);
void outbox_claims_deinit(struct outbox_claims *claims);
/* Settles the batch if there is one and, if `claim`, takes the next, in one transaction. On failure the batch
 * is as it was: try again. */
enum status outbox_claims_exchange(struct outbox_claims *claims, struct db_conn *conn, bool claim,
                                   int64_t deadline_ns, struct error *error) MUST_CHECK;

/* ---- verdict.c ---- */
/* What is written in the end: the first RETRY of a run leaves those behind it, and the last allowed one is
 * FAILED. */
void outbox_verdicts_conclude(struct outbox_claims *claims);
/* What was published may have been lost again: it is not done, and comes with the next claim. */
void outbox_verdicts_doubt(struct outbox_claims *claims);
const char *outbox_verdict_word(enum outbox_verdict_kind kind); /* as the settle statement has them */
/* Tells metrics and log what was settled; `rows` as the statement returns them. */
void outbox_verdicts_report(const struct outbox_table *table, const struct db_result *rows);

/* ---- engine.c, jobs.c, upkeep.c ---- */
struct outbox {
    struct outbox_config config;
    struct outbox_settings settings;
    struct db_target target; /* texts in `arena` */
    struct arena arena;
    struct outbox_sql sql;
    char worker[256];
    struct db_pool *pool, *upkeep_pool; /* of one connection each */
    struct db_listener *listener;
    struct outbox_claims claims; /* the step's, as the following */
    unsigned outages;            /* batches in a row that found the engine away */
    int64_t away_since_ns;
    struct str *gauged; /* upkeep's: event types a gauge was set for; heap */
    size_t gauged_count;
    int64_t measure_ns; /* upkeep's: no gauges before that */

    struct loop_timer timer; /* the loop's */
    int64_t poll_at_ns, upkeep_at_ns;

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t idle;
    struct worker_job step, renewal, upkeep;
    bool step_busy, renewal_busy, upkeep_busy;
    bool woken, again; /* while the step was busy; it found something */
    bool owes;         /* the database has not heard the verdicts yet, or a claim's answer was lost */
    bool started, stopping, destroyed;
    unsigned failures;
    int64_t due_ns;   /* look again then: a backoff, or after a failure */
    int64_t pace_ns;  /* no step before that, unless it stops … */
    bool paced;       /* … and one then */
    int64_t renew_ns; /* the lease of what is being published; CLOCK_NEVER = nothing is */
    char renew_id[UUID_TEXT_BYTES];
    char *renew_ids; /* heap */
    int64_t armed_ns, cleanup_ns;
    bool rearm_posted;
    struct loop_message rearm; /* something is due earlier than the timer knows */
};
void outbox_jobs_init(struct outbox *outbox);
void outbox_jobs_wake(struct outbox *outbox); /* the next three: under the lock */
void outbox_jobs_renew(struct outbox *outbox);
void outbox_jobs_upkeep(struct outbox *outbox);
void outbox_upkeep_run(struct outbox *outbox, bool cleanup);
bool outbox_is_stopping(struct outbox *outbox);
void outbox_channel(const struct outbox_table *table, char out[64]);

#endif
