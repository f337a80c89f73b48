/* The outbox: an event that is committed together with a change is published, in order, at least once (SPEC O1–O6).
 * One engine, a descriptor per table; any number of engines may work on one table, in one or many processes.
 *
 *   writer's transaction ── INSERT event ── COMMIT ── outbox_wake(), or outbox_notify() to another process
 *                                                        │
 *      ┌── wake · notice · poll interval · end of a backoff ◀┘
 *      ▼
 *   claim      one statement walks the heads, the first live event of each aggregate, locks those that are due and takes a run
 *      │       from each: marked with a new claim id, and leased by the database's clock
 *      ▼
 *   publish    the owner's callback, outside any transaction: a result for each event; the lease is extended meanwhile. A publisher
 *      │       of independent events may leave slow ones under way, and sets their results later
 *      ▼
 *   settle     where that claim id is still on the row: done, retry after a backoff, FAILED, or released as if it had not been
 *              claimed; in one round trip with the next claim
 *
 * An event's states (tables with flags instead of words: published, failed_at, locked_until):
 *
 *   PENDING ── claim ──▶ IN_FLIGHT ── done ─────────────────────▶ PUBLISHED ── retention ──▶ deleted
 *      ▲                     │ retry, or an outage of the bus: attempt + 1, backoff
 *      ├─────────────────────┤ lease expired: the next claim takes it
 *      │                     └ poison, the 10th failure, or 10 claims whose worker died ──▶ FAILED
 *      └── `freshet outbox retry` ─────────────────────────────────────────────────────────────┘
 *
 * Order: while an earlier event of an aggregate is live, a later one is claimed only together with it. FAILED blocks nothing.
 * The sequence column must ascend in commit order within an aggregate: take it under the aggregate's row lock. A table without
 * a sequence (deliveries, which are independent) keeps no order: the event that has been due longest is claimed first.
 *
 * Turns: where the table names a tenant (`turn`), a tenant with any number of events delays those of another one by a few claims. A claim
 * takes `batch` events, and no more than 8 MiB unless the first one is larger.
 *
 * An event that kills its worker leaves a claim that nothing settles. One with two of these is claimed alone, so that it takes no
 * other with it, and after max-attempt of them it is FAILED.
 *
 * Claims and results commit with synchronous_commit off. If the server crashes and loses them, an event is published again,
 * which at-least-once allows. The event itself is safe: its writer committed the row in full. A message that was published to the
 * same server (a relaxed topic) may be lost in the same crash, so its result counts only on a connection that was open before; on
 * any other the events are released and published again.
 *
 * Ownership: a descriptor and what it points to must outlive the engine; the target and settings are copied.
 *
 * Threads: outbox_wake() and outbox_notify() are for any; create, start and destroy are for the loop's (or before it runs, or
 * after it ended); publish runs on a worker. */
#ifndef FRESHET_OUTBOX_OUTBOX_H
#define FRESHET_OUTBOX_OUTBOX_H

#include "base/arena.h"
#include "base/setting.h"
#include "base/status.h"
#include "base/uuid.h"
#include "bus/bus.h"
#include "db/db.h"
#include "loop/worker.h"

/* ---- a table: names of columns are identifiers, taken as they stand ---- */
#define OUTBOX_AGGREGATE_MAX 3
#define OUTBOX_EXTRA_MAX 8
#define OUTBOX_LOGGED_MAX 5

struct outbox_column {
    const char *name, *type; /* "session_id", "uuid" */
};

struct outbox_logged {
    const char *name, *value; /* of a log line's member; an expression over the row `e` */
    bool is_number;           /* a whole one */
};

#define OUTBOX_LOGGED_TRACE                              \
    {                                                    \
        "traceId", "substr(e.traceparent, 4, 32)", false \
    }

/* The words of a row's state. */
struct outbox_words {
    const char *column; /* "status"; NULL = flags: `published` and `failed_at` */
    const char *pending, *in_flight, *published, *failed;
};

struct outbox_table {
    const char *module;      /* label of metrics and logs */
    const char *name;        /* "refdata.outbox_event" */
    const char *role;        /* of the processes that publish its events; NULL = named as the module */
    struct outbox_column id; /* the primary key */
    /* Order is kept within an aggregate; NULL ends it. With `sequence` the table needs a partial index on (aggregate…, sequence)
     * WHERE the row is live, that is, NOT published AND failed_at IS NULL, or status IN (pending, in_flight). */
    struct outbox_column aggregate[OUTBOX_AGGREGATE_MAX + 1];
    /* bigint; NULL = no order: `aggregate` is only shown, and may be empty. Then the partial index WHERE the row is live is on
     * the time it is due: (coalesce(greatest(next_attempt_at, locked_until), created_at)). */
    const char *sequence;
    /* Text, never empty; rows with the same are a tenant's, and tenants take turns. NULL = they do not.
     * With `sequence` it is the first column of the aggregate. Without, it is in the collation "C" and the index begins with it; where it
     * is NULL the row that is due longest is claimed first. */
    const char *turn;
    /* With `sequence`: a character, in the collation "C"; rows with the same text before it are a tenant's. NULL = with the same
     * text. */
    const char *turn_end;
    const char *tenant;     /* an expression over the row `e`: whose event it is; NULL = not known */
    const char *event_type; /* the same: "e.event_type", "'invalidation'" */
    const char *payload;    /* the same: "e.payload" */
    bool payload_is_bytes;  /* bytea */
    const char
        *size; /* the same: its bytes as stored, found without reading them: "octet_length(e.payload)" */
    const char *extra[OUTBOX_EXTRA_MAX + 1]; /* further expressions for the publisher; NULL ends it */
    struct outbox_logged logged[OUTBOX_LOGGED_MAX + 1]; /* members of log lines; NULL ends it */
    struct outbox_words words;
    const char *published, *failed_at;        /* of flags: boolean, timestamptz */
    const char *published_at, *created_at;    /* timestamptz */
    const char *attempts, *claims;            /* int: failures; claims */
    const char *outages;                      /* int, NULL = 0: attempts that failed only by an outage.
                                               * NULL = the table does not count them */
    const char *claim_id, *locked_until;      /* uuid, timestamptz */
    const char *locked_by;                    /* text: HOSTNAME, or the machine's name */
    const char *locked_at;                    /* timestamptz; NULL = the table has none */
    const char *next_attempt_at, *last_error; /* timestamptz; text, NULL = none */
};
static inline const char *outbox_role(const struct outbox_table *table)
{
    return table->role ? table->role : table->module;
}

/* The last eight as specification 004 names them; `attempts` and `published_at` are in each table's own words. */
#define OUTBOX_LEASE_COLUMNS                                                                               \
    .created_at = "created_at", .claims = "claim_count", .claim_id = "claim_id", .locked_by = "locked_by", \
    .locked_at = "locked_at", .locked_until = "lease_until", .next_attempt_at = "next_retry_at",           \
    .last_error = "last_error"

/* ---- settings: `<module>.outbox`, with specification 004's names ---- */
struct outbox_settings {
    int64_t poll_ms, batch, lease_ms, attempts_max;
    int64_t backoff_base_ms, backoff_max_ms, backoff_min_ms;
    int64_t jitter_min, jitter_max; /* thousandths */
    int64_t keep_ms, cleanup_ms;    /* keep_ms 0 = the engine deletes nothing */
};
extern const struct setting_row outbox_setting_rows[];

/* The pause before attempt + 1: min(max, base·2^(attempt-1))·jitter, at least backoff-min. */
int64_t outbox_backoff_ms(const struct outbox_settings *settings, int64_t attempt);

/* ---- publishing ---- */
struct outbox_event { /* texts as PostgreSQL writes them; ptr NULL = NULL */
    struct str id, event_type, payload;
    struct str aggregate[OUTBOX_AGGREGATE_MAX];
    struct str extra[OUTBOX_EXTRA_MAX];
    int64_t attempts; /* failures so far, without outages */
    int64_t claims;   /* with this one, without those that ended by an outage */
    size_t run;       /* the same for events of one aggregate, which are adjacent and in order */
};

enum outbox_result_kind {
    OUTBOX_DONE,
    OUTBOX_RETRY,   /* after a backoff, and with it all later events of its aggregate */
    OUTBOX_POISON,  /* can never be published: FAILED at once */
    OUTBOX_RELEASE, /* not tried: as if it had not been claimed, with all later events of its aggregate */
    /* The bus or receiver is unavailable. The row shows attempt, error and next try; it never becomes FAILED by it. The engine
     * pauses, at most OUTBOX_OUTAGE_PAUSE_MS_MAX. */
    OUTBOX_OUTAGE,
    /* publish() goes on with it: it stays claimed, and is one of batch->late from then on. Of tables without order, with `later`. */
    OUTBOX_UNDER_WAY,
};
enum { OUTBOX_OUTAGE_PAUSE_MS_MAX = 2000 };

#define OUTBOX_REASON_BYTES 256
struct outbox_result {
    enum outbox_result_kind kind;
    union {
        char reason[OUTBOX_REASON_BYTES]; /* of RETRY, POISON and OUTAGE; UTF-8, no payload */
        void *call;                       /* of UNDER_WAY: the publisher's */
    };
};

struct outbox_late {             /* an event that an earlier publish() left under way */
    struct outbox_result result; /* UNDER_WAY, with its call, until publish() sets another one */
    /* the engine's */
    char id[UUID_TEXT_BYTES], claim_id[UUID_TEXT_BYTES];
    int64_t attempts;
};

struct outbox_batch {
    const struct outbox_event *events;
    size_t count;
    struct outbox_result *results; /* initially OUTBOX_DONE */
    int64_t deadline_ns;           /* one lease after the claim: wait no longer */
    /* Set by publish(): the messages are on the table's own server, which may not have them on its disk yet. */
    bool is_relaxed;

    /* For a publisher with `later`; `count` may be 0. */
    struct outbox_late *late;
    size_t late_count;
    int64_t until_ns; /* with nothing new to publish: return at this time, also without a result */
    bool is_last;     /* the engine stops: leave nothing under way */
};

/* The result of events[at], or any; the format is that of its reason. */
void outbox_batch_set(struct outbox_batch *batch, size_t at, enum outbox_result_kind kind, const char *format,
                      ...) PRINTF_LIKE(4, 5);
void outbox_result_set(struct outbox_result *result, enum outbox_result_kind kind, const char *format, ...)
    PRINTF_LIKE(3, 4);
/* An earlier event of its aggregate is not published yet, so this one must not be published before it. For publishers that
 * publish one by one; the result of such an event is ignored. */
bool outbox_batch_is_held(const struct outbox_batch *batch, size_t at);

/* ---- messages.c: events as messages of a bus, what all publishers have in common ---- */

/* A bus that does not answer blocks a thread for OUTBOX_PUBLISH_MS; then the events wait for the next try. An outbox that stops
 * waits a little longer, so that they are released (C7). */
enum { OUTBOX_PUBLISH_MS = 3000, OUTBOX_STOP_MS = 4000 };

/* Writes the message of an event; false: the event is invalid, and *reason is set. Texts live in the arena. */
typedef bool outbox_message_fn(void *context, const struct outbox_event *event, struct bus_message *message,
                               struct arena *arena, const char **reason);

/* The message of a module's domain event (E4). Its key is the aggregate's, so that a partition keeps the order. The headers are
 * event-id, event_type, aggregate_key, occurred_at and tenant_id, the module's own, and trace_id and traceparent where the
 * request was traced. */
#define OUTBOX_HEADER_EVENT_TYPE "event_type"
#define OUTBOX_HEADER_AGGREGATE "aggregate_key"
#define OUTBOX_HEADER_TENANT "tenant_id"

/* An aggregate's key, in the arena: its parts with a slash between them, percent-encoded, so that no part has a slash or a control
 * character. */
struct str outbox_key(const struct str *parts, size_t count, struct arena *arena);

struct outbox_message {
    struct str topic, key, payload;
    struct str tenant, occurred_at; /* RFC 3339 */
    struct str traceparent;         /* left out when it is invalid */
    const struct bus_header *more;
    unsigned more_count;
};
/* For an outbox_message_fn. Texts are borrowed, headers live in the arena. */
void outbox_message_write(const struct outbox_message *outgoing, const struct outbox_event *event,
                          struct bus_message *message, struct arena *arena);

/* On a worker, from an outbox's publish(): publishes a message for each event and sets every result. An outage makes no event
 * FAILED, however long it lasts. */
void outbox_messages_publish(struct bus *bus, struct outbox_batch *batch, outbox_message_fn *write,
                             void *context);

/* ---- the engine ---- */

/* For a publisher that goes on with slow events while the engine settles the others and claims more (OUTBOX_UNDER_WAY). Its
 * publish() is called again and again while any is under way, and returns when there is something to settle or to claim. */
struct outbox_later {
    /* Before a claim: may more events be claimed? Puts the tenants (`turn`) that must not be among them into a text[]. */
    bool (*may_claim)(void *context, struct buf *left_out);
    void (*wake)(void *context); /* any thread: there may be more to claim, so publish() should return soon */
};

struct outbox;
struct outbox_config {
    const struct outbox_table *table;
    const struct outbox_settings *settings;
    struct loop *loop;              /* timer and notices */
    struct worker_pool *workers;    /* outlives outbox_stop() */
    const struct db_target *target; /* the engine opens two connections and one that listens */
    int64_t pace_ms;                /* between claims while events trickle in; 0 = 4 ms */
    void *context;
    void (*publish)(void *context, struct outbox_batch *batch);
    const struct outbox_later *later; /* NULL = every event has its result when publish() returns */
};

/* Opens nothing yet. CONFIG when the target is invalid. */
enum status outbox_create(const struct outbox_config *config, struct outbox **outbox,
                          struct error *error) MUST_CHECK;
void outbox_start(struct outbox *outbox);
void outbox_wake(struct outbox *outbox); /* any thread: something was committed */
/* Any thread: events were committed as published, by a writer that published them in the same transaction. */
void outbox_count_published(const struct outbox_table *table, struct str event_type, size_t count);
/* No new claims. A batch that is being published gets `grace_ms` to end and is settled; claimed events that are not yet
 * published are released at once (C7). Any thread but a worker's or the loop's. */
void outbox_stop(struct outbox *outbox, int64_t grace_ms);
/* Aborts running statements, for a caller without time left; claimed events wait until their lease ends. Any thread, also
 * while another is in outbox_stop(), which must still be called. */
void outbox_interrupt(struct outbox *outbox);
void outbox_destroy(struct outbox *outbox); /* after outbox_stop(); NULL is fine */

/* Any thread: events were committed by this process (O5). */
void outbox_count_enqueued(const struct outbox_table *table, struct str event_type, size_t count);
/* The same for one event, with the debug line of its writer. */
void outbox_log_enqueued(const struct outbox_table *table, struct str event_type, struct str id);

/* For a process that writes events and has no engine: notifies those of other processes. Any thread, after the commit; coalesced. */
enum { OUTBOX_NOTICE_WINDOW_US = 1000 }; /* of the notifier */
void outbox_notify(const struct outbox_table *table, struct db_notifier *notifier);

/* ---- operator.c: `freshet outbox` (O4) and /v1/ops/outboxes. Blocking, on the caller's connection. ---- */
enum outbox_state {
    OUTBOX_PENDING,
    OUTBOX_IN_FLIGHT,
    OUTBOX_PUBLISHED,
    OUTBOX_FAILED,
    OUTBOX_STUCK, /* failed; or live, and an attempt has failed or it is leased for too long */
    OUTBOX_STATES
};
const char *outbox_state_name(enum outbox_state state); /* "failed" */
#define OUTBOX_LEASED_LONG_SQL "5 minutes" /* the age at which an event should not be in flight any more */

/* SQL of a table for views: the template with each @name replaced (sql.c), over the row `e`. Conditions of a state; of STUCK its live rows
 * only: the failed ones are those of FAILED. */
struct str outbox_expand(const struct outbox_table *table, const char *template, struct arena *arena);
const char *outbox_condition(enum outbox_state state);

struct outbox_selection {   /* all conditions hold; empty = any */
    struct str ids;         /* text[] literal of db_array_*(); ptr NULL = any */
    struct str first, last; /* sequence, inclusive; ptr NULL = open */
    struct str aggregate;   /* its columns joined by '/'; ptr NULL = any */
    struct str since,
        until; /* created_at: from this moment on, before this one, as PostgreSQL reads it; ptr NULL = open */
    struct str event_type, tenant; /* ptr NULL = any */
    struct str error;              /* a part of the last error; ptr NULL = any */
    bool
        is_narrow; /* of a retry: not those that wait for their next attempt; of an unlock: only those that are stuck */
    int64_t rows_max;
};

/* Rows: id, aggregate joined by '/', sequence, event type, attempts, claims, age in seconds, last error, state, locked by, next retry. */
enum status outbox_list(struct db_conn *conn, const struct outbox_table *table, enum outbox_state state,
                        const struct outbox_selection *selection, int64_t deadline_ns,
                        struct db_result **rows, struct error *error) MUST_CHECK;
/* For books, four columns: all rows; those published or failed; those that no engine can claim, because their lease ends later than any
 * lease that can be set; the ids of some of the last, separated by spaces. */
enum status outbox_count(struct db_conn *conn, const struct outbox_table *table, int64_t deadline_ns,
                         struct db_result **counts, struct error *error) MUST_CHECK;
enum outbox_change {
    /* FAILED ones, and those that wait for their next attempt, become PENDING with their counts at zero */
    OUTBOX_CHANGE_RETRY,
    OUTBOX_CHANGE_DISCARD, /* FAILED ones count as published, keep their error, and are deleted by retention */
    OUTBOX_CHANGE_REPUBLISH, /* published ones, again: receivers recognise them by event id and version */
    OUTBOX_CHANGE_UNLOCK,    /* live ones with a lease, such as of a worker that died, can be claimed now */
};
enum status outbox_change(struct db_conn *conn, const struct outbox_table *table, enum outbox_change change,
                          const struct outbox_selection *selection, int64_t deadline_ns, int64_t *count,
                          struct error *error) MUST_CHECK;
/* How many it would change. */
enum status outbox_change_count(struct db_conn *conn, const struct outbox_table *table,
                                enum outbox_change change, const struct outbox_selection *selection,
                                int64_t deadline_ns, int64_t *count, struct error *error) MUST_CHECK;

#endif
