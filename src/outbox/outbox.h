/* The outbox: what was committed together with a change is published, in order, at least once (SPEC O1–O6).
 * One engine, a descriptor per table; any number of engines may work on one table, in one or many processes.
 *
 *   writer's transaction ── INSERT event ── COMMIT ── outbox_wake(), or outbox_notify() to another process
 *                                                        │
 *      ┌── wake · notice · poll timer · backoff is over ◀┘
 *      ▼
 *   claim      one statement walks the heads, the first live event of each aggregate, locks those that are
 *      │       due and takes a run from each: marked with a claim id that is new each time, and leased by
 *      │       the database's clock
 *      ▼
 *   publish    the owner's callback, outside any transaction: a verdict for each event; a long one renews its
 *      │       lease
 *      ▼
 *   settle     only where that claim id still stands: done, again after a backoff, FAILED, or as if it had
 *              not been claimed; in one round trip with the next claim
 *
 * An event's life (tables with flags instead of words: published, failed_at, locked_until):
 *
 *   PENDING ── claim ──▶ IN_FLIGHT ── done ─────────────────────▶ PUBLISHED ── retention ──▶ gone
 *      ▲                     │ retry, or the engine is away: attempt + 1, backoff
 *      ├─────────────────────┤ lease ran out: the next claim takes it
 *      │                     └ poison, the 10th failure, or 10 claims nobody came back from ──▶ FAILED
 *      └── `freshet outbox retry` ──────────────────────────────────────────────────────────────┘
 *
 * Order: while an earlier event of an aggregate is live, a later one is claimed only together with it. FAILED
 * blocks nothing. It rests on the sequence column ascending in commit order within an aggregate: take it
 * under the aggregate's row lock. A table without a sequence keeps no order (deliveries, which have nothing to do with
 * each other): what has been due longest is claimed first, and nothing waits for anything.
 *
 * An event that kills its worker leaves a claim without an end. One with two of these is claimed alone, so
 * that it drags no other with it, and after max-attempt of them it is FAILED.
 *
 * Claims and verdicts commit with synchronous_commit off. If the server loses its last moments, an event is
 * published again, which at-least-once allows. It can't be lost: its writer committed the row in full. What was published
 * there (a relaxed topic) may be lost in the same moments, so a verdict on it counts only by a connection that was open
 * before; with any other the events are given back and published again.
 *
 * Ownership: a descriptor and what it points to must outlive the engine; the target and settings are copied.
 *
 * Threads: outbox_wake() and outbox_notify() are for any; create, start and destroy are for the loop's (or
 * before it runs, or after it ended); publish and on_settled run on a worker. No thread is held while there
 * is nothing to do. */
#ifndef FRESHET_OUTBOX_OUTBOX_H
#define FRESHET_OUTBOX_OUTBOX_H

#include "base/setting.h"
#include "base/status.h"
#include "db/db.h"
#include "loop/worker.h"

/* ---- a table: names of columns are identifiers, taken as they stand ---- */
#define OUTBOX_AGGREGATE_MAX 3
#define OUTBOX_EXTRA_MAX 8
#define OUTBOX_LOGGED_MAX 4

struct outbox_column {
    const char *name, *type; /* "session_id", "uuid" */
};

struct outbox_logged {
    const char *name, *value; /* of a log line's member; an expression over the row `e` */
    bool is_number;           /* a whole one */
};

/* How a row says what became of it. */
struct outbox_words {
    const char *column; /* "status"; NULL = flags: `published` and `failed_at` */
    const char *pending, *in_flight, *published, *failed;
};

struct outbox_table {
    const char *module;      /* label of metrics and logs */
    const char *name;        /* "refdata.outbox_event" */
    struct outbox_column id; /* the primary key */
    /* What order is kept within; NULL ends it. With `sequence` the table needs a partial index over exactly
     * these: (aggregate…, sequence) WHERE the row is live, that is, NOT published AND failed_at IS NULL, or
     * status IN (pending, in_flight). */
    struct outbox_column aggregate[OUTBOX_AGGREGATE_MAX + 1];
    /* bigint; NULL = no order: `aggregate` only says whom a row is about, and may be empty. Then the partial index, WHERE
     * the row is live, is on when it is due: (coalesce(greatest(next_attempt_at, locked_until), created_at)). */
    const char *sequence;
    const char *event_type; /* an expression over the row `e`: "e.event_type", "'invalidation'" */
    const char *payload;    /* the same: "e.payload" */
    bool payload_is_bytes;  /* bytea: handed over as it is */
    const char *extra[OUTBOX_EXTRA_MAX + 1]; /* whatever else the publisher needs, the same; NULL ends it */
    struct outbox_logged logged[OUTBOX_LOGGED_MAX + 1]; /* what tells an event in logs; NULL ends it */
    struct outbox_words words;
    const char *published, *failed_at;     /* of flags: boolean, timestamptz */
    const char *published_at, *created_at; /* timestamptz */
    const char *attempts, *claims;         /* int: failures; claims */
    const char *outages; /* int, NULL = 0: attempts that failed only because the engine was away.
                                               * NULL = the table has none, and counts no such attempt */
    const char *claim_id, *locked_until;      /* uuid, timestamptz */
    const char *locked_by;                    /* text: HOSTNAME, or the machine's name */
    const char *locked_at;                    /* timestamptz; NULL = the table has none */
    const char *next_attempt_at, *last_error; /* timestamptz; text, NULL = none */
};
/* The last eight as seed 004 names them; `attempts` and `published_at` are in each table's own words. */
#define OUTBOX_LEASE_COLUMNS                                                                               \
    .created_at = "created_at", .claims = "claim_count", .claim_id = "claim_id", .locked_by = "locked_by", \
    .locked_at = "locked_at", .locked_until = "lease_until", .next_attempt_at = "next_retry_at",           \
    .last_error = "last_error"

/* ---- settings: `<module>.outbox`, with seed 004's names ---- */
struct outbox_settings {
    int64_t poll_ms, batch, lease_ms, attempts_max;
    int64_t backoff_base_ms, backoff_max_ms, backoff_min_ms;
    int64_t jitter_min, jitter_max; /* thousandths */
    int64_t keep_ms, cleanup_ms;    /* keep_ms 0 = no retention here: the table's owner sees to it */
};
extern const struct setting_row outbox_setting_rows[];

/* The pause before attempt + 1: min(max, base·2^(attempt-1))·jitter, at least backoff-min. */
int64_t outbox_backoff_ms(const struct outbox_settings *settings, int64_t attempt);

/* ---- publishing ---- */
struct outbox_event { /* texts as PostgreSQL writes them; ptr NULL = NULL */
    struct str id, event_type, payload;
    struct str aggregate[OUTBOX_AGGREGATE_MAX];
    struct str extra[OUTBOX_EXTRA_MAX];
    int64_t attempts; /* failures so far, those by an outage excepted */
    int64_t claims;   /* this one included, those that ended by an outage excepted */
    size_t run;       /* events of one aggregate in a batch have the same; they stand together, in order */
};

enum outbox_verdict_kind {
    OUTBOX_DONE,
    OUTBOX_RETRY,  /* again after a backoff, and with it all behind it of its aggregate */
    OUTBOX_POISON, /* can't ever be published: FAILED at once */
    /* Not tried: as if it had not been claimed, and with it all behind it of its aggregate. A batch left as a whole waits a
     * moment. */
    OUTBOX_RELEASE,
    /* The engine behind the publisher is away. The row shows attempt, error and next try; it never becomes FAILED by it. Nothing
     * is claimed for a moment, at most OUTBOX_OUTAGE_PAUSE_MS_MAX. */
    OUTBOX_OUTAGE,
};
enum { OUTBOX_OUTAGE_PAUSE_MS_MAX = 2000 };

#define OUTBOX_REASON_BYTES 256
struct outbox_verdict {
    enum outbox_verdict_kind kind;
    char reason[OUTBOX_REASON_BYTES]; /* of RETRY, POISON and AWAY; UTF-8, no payload */
};

struct outbox_batch {
    const struct outbox_event *events;
    size_t count;
    struct outbox_verdict *verdicts; /* all OUTBOX_DONE to begin with */
    int64_t deadline_ns;             /* one lease after the claim: wait no longer */
    /* Set by publish(): it went to the table's own server, which need not have it on its disk yet. */
    bool is_relaxed;
};

void outbox_batch_retry(struct outbox_batch *batch, size_t at, const char *format, ...) PRINTF_LIKE(3, 4);
void outbox_batch_poison(struct outbox_batch *batch, size_t at, const char *format, ...) PRINTF_LIKE(3, 4);
void outbox_batch_outage(struct outbox_batch *batch, size_t at, const char *format, ...) PRINTF_LIKE(3, 4);
void outbox_batch_release(struct outbox_batch *batch, size_t at);
/* An earlier event of its aggregate comes again, so this one must not be published before it. Whoever
 * publishes one by one asks; the verdict on such a one counts for nothing. */
bool outbox_batch_is_held(const struct outbox_batch *batch, size_t at);

/* ---- the engine ---- */
struct outbox;
struct outbox_config {
    const struct outbox_table *table;
    const struct outbox_settings *settings;
    struct loop *loop;              /* timer and notices */
    struct worker_pool *workers;    /* outlives outbox_stop() */
    const struct db_target *target; /* two connections of its own, and one that listens */
    int64_t pace_ms;                /* while events trickle in, claims are so far apart; 0 = 4 ms */
    void *context;
    void (*publish)(void *context, struct outbox_batch *batch);
    void (*on_settled)(void *context,
                       size_t count); /* verdicts of `count` events are committed; may be NULL */
};

/* Opens nothing yet. CONFIG when the target cannot be understood. */
enum status outbox_create(const struct outbox_config *config, struct outbox **outbox,
                          struct error *error) MUST_CHECK;
void outbox_start(struct outbox *outbox);
void outbox_wake(struct outbox *outbox); /* any thread: something was committed */
/* No new claims. A batch that is being published gets `grace_ms` to end and is settled; what was claimed and
 * not yet handed over is given back at once (C7). Any thread but a worker's or the loop's. */
void outbox_stop(struct outbox *outbox, int64_t grace_ms);
/* Whoever stops it has no time left: statements under way are given up now, and what is claimed waits for its lease to end.
 * Any thread, also while another is in outbox_stop(), which is still to be called. */
void outbox_interrupt(struct outbox *outbox);
void outbox_destroy(struct outbox *outbox); /* after outbox_stop(); NULL is fine */

/* What a writer says after its commit, for each event (O5); a debug line. */
void outbox_log_enqueued(const struct outbox_table *table, struct str event_type, struct str id);

/* ---- the bell: for a process that writes and has no engine ---- */
struct outbox_notifier;
struct outbox_notifier *outbox_notifier_create(
    const struct outbox_table *table, struct loop *loop,
    const struct db_target *target);              /* NULL: the target is no target */
void outbox_notify(struct outbox_notifier *bell); /* any thread, after the commit; coalesced */
void outbox_notifier_destroy(struct outbox_notifier *bell);

/* ---- by hand: `freshet outbox` (O4). Blocking; the caller's thread and connection. ---- */
enum outbox_state { OUTBOX_PENDING, OUTBOX_IN_FLIGHT, OUTBOX_PUBLISHED, OUTBOX_FAILED };
const char *outbox_state_name(enum outbox_state state); /* "failed" */

struct outbox_selection {   /* all conditions hold; empty = any */
    struct str ids;         /* text[] literal of db_array_*(); ptr NULL = any */
    struct str first, last; /* sequence, inclusive; ptr NULL = open */
    struct str aggregate;   /* its columns joined by '/'; ptr NULL = any */
    struct str since;       /* created_at: from this moment on, as PostgreSQL reads it; ptr NULL = open */
    int64_t rows_max;
};

/* Rows: id, aggregate joined by '/', sequence, event type, attempts, claims, age in seconds, last error. */
enum status outbox_list(struct db_conn *conn, const struct outbox_table *table, enum outbox_state state,
                        const struct outbox_selection *selection, int64_t deadline_ns,
                        struct db_result **rows, struct error *error) MUST_CHECK;
/* FAILED ones become PENDING with their counts at zero. */
enum status outbox_retry(struct db_conn *conn, const struct outbox_table *table,
                         const struct outbox_selection *selection, int64_t deadline_ns, int64_t *count,
                         struct error *error) MUST_CHECK;
/* FAILED ones are given up: they count as published without having been, keep their error, and go by
 * retention. */
enum status outbox_discard(struct db_conn *conn, const struct outbox_table *table,
                           const struct outbox_selection *selection, int64_t deadline_ns, int64_t *count,
                           struct error *error) MUST_CHECK;
/* Published ones are published once more. Receivers tell them by event id and version. */
enum status outbox_republish(struct db_conn *conn, const struct outbox_table *table,
                             const struct outbox_selection *selection, int64_t deadline_ns, int64_t *count,
                             struct error *error) MUST_CHECK;
/* What is left when a worker died holding it: live ones with a lease are free again now, not when it ends. */
enum status outbox_unlock(struct db_conn *conn, const struct outbox_table *table,
                          const struct outbox_selection *selection, int64_t deadline_ns, int64_t *count,
                          struct error *error) MUST_CHECK;

#endif
