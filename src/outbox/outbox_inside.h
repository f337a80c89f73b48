/* Shared by the files of the outbox:
 *
 *   engine.c    an engine's life and its tasks: step, lease, upkeep
 *   claim.c     the claimed batch, its results, and the exchange that settles and claims
 *   walk.c      where the next claim begins, so that tenants take turns
 *   sql.c       a table's statements, from its descriptor
 *   metrics.c   metrics and log lines
 *   messages.c  events as messages of a bus
 *   operator.c  `freshet outbox` */
#ifndef FRESHET_OUTBOX_OUTBOX_INSIDE_H
#define FRESHET_OUTBOX_OUTBOX_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/backoff.h"
#include "base/buf.h"
#include "base/uuid.h"
#include "loop/task.h"
#include "outbox/outbox.h"

enum {
    OUTBOX_CLAIM_PARAMS = 6, /* before the cursor's */
    OUTBOX_STRIDE = 16,      /* rows read at once; more of an aggregate only if the batch has room */
};

/* ---- sql.c ---- */
/* Where the walk of a claim begins, or ends. Tables without a sequence have the first one only. */
enum outbox_place {
    OUTBOX_FROM_START,
    OUTBOX_BEFORE_TENANT, /* from the start, up to a tenant */
    OUTBOX_AFTER_TENANT,
    OUTBOX_AFTER_AGGREGATE,
    OUTBOX_PLACES
};
struct outbox_sql {
    struct db_statement claims[OUTBOX_PLACES], settle, settle_done, release, renew, gauge, cleanup;
    struct db_statement pending; /* an expression, for the poll */
};
void outbox_sql_init(struct outbox_sql *sql, const struct outbox_table *table, struct arena *arena);
/* The template with each @name replaced by the table's own. */
struct db_statement outbox_sql_expand(const struct outbox_table *table, const char *template,
                                      struct arena *arena);
unsigned outbox_aggregate_columns(const struct outbox_table *table);

/* ---- walk.c ---- */
struct
    outbox_mark { /* an aggregate; only its first part is set for a table without a sequence, whose tenant it is */
    struct str parts[OUTBOX_AGGREGATE_MAX];
    char *text; /* of all parts; NULL = no mark */
};
struct outbox_walk {
    int64_t rows_max;        /* rows that one claim looks at, at least */
    enum outbox_place place; /* where the round goes on, */
    struct outbox_mark mark; /* after this */
    /* Tenants that had more than one claim took, each with the aggregate to go on after; the first one is next. */
    struct outbox_mark *tails;
    size_t tail_count;
    bool is_tails_turn;
    unsigned suspects; /* claims in a row that took one */
    bool is_quiet;     /* nothing was claimed since the round began */
    bool is_lapped;    /* the round has reached the end of the table */
    bool is_partial;   /* it began with tails, so it has not seen what is before them */
};
int64_t outbox_walk_rows_max(const struct outbox *outbox); /* rows that the next claim looks at, at most */
void outbox_walk_deinit(struct outbox_walk *walk);
/* The statement of the next claim; sets its parameters from params[0] on, and their number. */
const struct db_statement *outbox_walk_next(struct outbox *outbox, struct db_param *params, unsigned *count);
/* After a claim: `rows` as it returned them, `count` events. Returns whether more can be there to claim. */
bool outbox_walk_move(struct outbox *outbox, const struct db_result *rows, size_t count);
unsigned outbox_walk_columns(const struct outbox_table *table); /* of an aggregate in `rows`, from 1 on */

/* ---- claim.c ---- */
/* The claimed batch, from its claim until it is settled. Used by the step only, but for `id`, `events` and `is_moved`. */
struct outbox_claim {
    struct arena arena; /* of events and results; texts are in `rows` */
    struct db_result *rows;
    struct outbox_event *events;
    struct outbox_result *results;
    size_t count;
    char id[UUID_TEXT_BYTES]; /* of the claim */
    struct buf places;        /* tid[] of its rows */
    bool is_moved;            /* they are not there any more: the lease was extended */
    int64_t claimed_ns;   /* just before the claim was sent: the lease ends no earlier than this + lease */
    int64_t published_ns; /* just before it was published */
    bool is_relaxed;      /* as in outbox_batch */
    /* The id of a claim whose reply was lost: the database may have it. "" = none. */
    char doubtful[UUID_TEXT_BYTES];
    bool more;               /* there may be more to claim */
    size_t settled;          /* by the last exchange: events whose claim was still valid */
    int64_t backoff_ms;      /* the shortest pause that it recorded; 0 = none */
    int64_t outage_pause_ms; /* the pause to record for OUTBOX_OUTAGE */
};
/* Settles the batch if there is one and, if `claims`, takes the next one, in one transaction. A failure leaves the batch as it
 * was: try again. */
enum status outbox_claim_exchange(struct outbox *outbox, struct db_conn *conn, bool claims,
                                  int64_t deadline_ns, struct error *error) MUST_CHECK;
/* Results as they are recorded: the first RETRY of a run releases later events of it, and the last allowed one is POISON. */
void outbox_results_conclude(struct outbox *outbox);
void outbox_late_add(struct outbox *outbox); /* what the publisher left under way of the batch */
size_t outbox_late_ended(const struct outbox *outbox);

/* ---- metrics.c ---- */
struct outbox_gauges { /* event types whose gauges were set: those that no longer wait are set to 0 */
    struct str *types;
    size_t count;
};
void outbox_metrics_init(void);
void outbox_gauges_set(struct outbox_gauges *gauges, const char *module, const struct db_result *rows);
void outbox_gauges_deinit(struct outbox_gauges *gauges);
void outbox_report_settled(const struct outbox_table *table, const struct db_result *rows);

/* ---- engine.c ---- */
struct outbox {
    struct outbox_config config;
    struct outbox_settings settings;
    struct db_target target; /* texts in `arena` */
    struct arena arena;
    struct outbox_sql sql;
    char worker[256]; /* locked_by */
    struct db_listener *listener;
    struct db_poll *poll;
    atomic_bool is_empty; /* as the last poll found it */
    atomic_bool is_woken; /* a commit, a notice or the poll has woken the step */
    atomic_bool is_new;   /* the same since the last claim was made */
    struct task *step, *lease, *upkeep;
    /* One connection each. Step and lease share one, so that a batch is settled by the connection that claimed it, unless
     * that was lost. Upkeep, which may take long, has another. */
    struct db_pool *pool, *upkeep_pool;

    /* the step's */
    struct outbox_claim claim;
    struct outbox_walk walk;
    int64_t due_ns;        /* the earliest end of a backoff */
    struct backoff outage; /* batches in a row that the bus could not take */
    int64_t outage_ns;     /* when the first of them failed */

    /* upkeep's */
    struct outbox_gauges gauges;
    int64_t measure_ns, cleanup_ns; /* not before */
    bool is_gauged_empty;           /* all gauges are 0 */

    /* For what follows, and for id, events and is_moved of `claim` while it is published. */
    pthread_mutex_t lock;
    bool is_publishing;
    int64_t leased_ns; /* when the lease of the published batch was last extended */
    /* Changed by the step only; results are the publisher's and the step's. */
    struct outbox_late *late;
    size_t late_count;
};

#endif
