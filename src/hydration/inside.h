/* Hydration from inside: what its files share. A shard is one loop's part: its lookups, waiters and memory. Only its loop touches
 * it, but for a lookup's job while a worker runs it.
 *
 *   waiters.c    asking, waiting, timeouts, callbacks         owner.c      looks entities up, publishes answers and changes
 *   lookup.c     the states of a lookup, its jobs             questions.c  questions that wait for an owner of this process
 *   deliver.c    events to lookups and waiters                wire.c       the three events on the bus
 *   memory.c     copies and absences of a shard               event.c      the three events as messages
 *   ledger.c     copies, absences and flights in PostgreSQL   turns.c      tenants take turns in a queue
 *   wait.c       asking from a thread that may block          cover.c      how much of an entity; names
 *   hydration.c  life, settings, metrics */
#ifndef FRESHET_HYDRATION_INSIDE_H
#define FRESHET_HYDRATION_INSIDE_H

#include <stdatomic.h>
#include <stddef.h>
#include <sys/queue.h>

#include "base/map.h"
#include "base/uuid.h"
#include "hydration/event.h"
#include "hydration/hydration.h"
#include "hydration/ledger.h"

enum {
    HYDRATION_OWNERS_MAX = 16,
    HYDRATION_LOOKUPS_MAX = 4096, /* of a shard */
    HYDRATION_TENANT_MAX = 2048,  /* of these, for one tenant */
    HYDRATION_TYPE_MAX = 1024,    /* of these, of one entity type */
    HYDRATION_JOBS_MAX = 4,       /* of a shard at once: the workers are shared */
    HYDRATION_RECENT_MAX = 1024,  /* questions that late answers are recognized by */
    HYDRATION_REREAD_MS =
        50, /* least time between ledger reads for a lookup; most time of a waiter's last read */
    HYDRATION_MEMORY_MS = 5000, /* memory serves an entry at most so long; then the ledger is read again */
    HYDRATION_OWNER_MS = 5000,  /* how long an owner may look */
    HYDRATION_PARALLEL = 2,     /* questions of a type that are answered at once */
    HYDRATION_ARENA_BYTES = 4096,
};

/* ---- cover.c ---- */
uint64_t hydration_entity_hash(struct str tenant, struct str entity_type, struct str entity_id);
/* Texts copied into one block with their owner: to *at, which moves on. Fields come first in a block: they are aligned. */
size_t hydration_cover_bytes(const struct hydration_cover *cover);
struct hydration_cover hydration_cover_keep(const struct hydration_cover *cover, char **at);
struct hydration_cover hydration_cover_copy(const struct hydration_cover *cover, struct arena *arena);
struct str hydration_text_keep(struct str text, char **at);
bool hydration_cover_equal(const struct hydration_cover *a, const struct hydration_cover *b);
/* Does `data` satisfy `need`? `cover` NULL: its extent is not known, so the members of `data` decide. */
bool hydration_data_includes(const struct hydration_cover *cover, struct str data,
                             const struct hydration_cover *need);

/* ---- memory.c: bounded, the oldest entries go first ---- */
struct hydration_memory;
enum hydration_known { HYDRATION_KNOWN_NOT, HYDRATION_KNOWN_COPY, HYDRATION_KNOWN_ABSENT };
struct hydration_known_entity { /* borrowed until the memory is next written */
    enum hydration_known known;
    struct str data, source_module; /* NOT: of a stale copy (too narrow or too old), if there is one */
    enum hydration_reason reason;
    int64_t version;
    bool is_private;   /* its last event was for single callers */
    bool was_received; /* an event of it arrived without a lookup: the ledger has it, or soon will */
};
struct hydration_memory *hydration_memory_create(size_t entries_max, size_t bytes_max);
void hydration_memory_destroy(struct hydration_memory *memory);
/* Allocates nothing. */
struct hydration_known_entity hydration_memory_find(struct hydration_memory *memory,
                                                    const struct hydration_need *need, int64_t now_ns);
/* Keeps an event of the bus or a row of the ledger for `ttl_ms`. False: a newer version is known, ignore it. `cover` as above. Not
 * `is_wanted`: no lookup needs it, so a current copy is renewed, and otherwise only the version is kept. */
bool hydration_memory_store(struct hydration_memory *memory, const struct hydration_event *event,
                            const struct hydration_cover *cover, bool is_wanted, int64_t ttl_ms,
                            int64_t now_ns);
size_t hydration_memory_count(const struct hydration_memory *memory),
    hydration_memory_bytes(const struct hydration_memory *memory);

/* ---- turns.c: a queue for each tenant, and the tenants take turns. Not synchronized. ---- */
struct hydration_share {  /* what one tenant, or one type of a tenant, has of something bounded */
    struct map_node node; /* by a hash of its name: shares with the same hash are one */
    TAILQ_ENTRY(hydration_share) in_line;
    TAILQ_HEAD(, hydration_turn_item) items;
    size_t members, queued;
};
struct hydration_turn_item {
    TAILQ_ENTRY(hydration_turn_item) link;
    struct hydration_share *share;
};
struct hydration_turns {
    struct map shares;
    TAILQ_HEAD(, hydration_share) line; /* the shares with queued items */
    size_t queued;
};
void hydration_turns_init(struct hydration_turns *turns);
void hydration_turns_deinit(struct hydration_turns *turns);                                 /* empty */
struct hydration_share *hydration_turns_find(struct hydration_turns *turns, uint64_t hash); /* or NULL */
/* One member more of the share, which is made if need be; NULL: it has that many already. */
struct hydration_share *hydration_turns_enter(struct hydration_turns *turns, uint64_t hash,
                                              size_t members_max);
void hydration_turns_leave(struct hydration_turns *turns, struct hydration_share *share);
void hydration_turns_put(struct hydration_turns *turns, struct hydration_share *share,
                         struct hydration_turn_item *item);
/* The oldest item of the share whose turn it is, which goes to the end of the line; NULL: none. */
struct hydration_turn_item *hydration_turns_next(struct hydration_turns *turns);
struct hydration_turn_item *hydration_turns_peek(struct hydration_turns *turns); /* the same, and it stays */
/* The oldest item of a share that has one; its place in the line does not change. */
struct hydration_turn_item *hydration_turns_take(struct hydration_turns *turns,
                                                 struct hydration_share *share);
struct hydration_share *hydration_turns_longest(struct hydration_turns *turns);

/* ---- lookup.c ----
 *
 *              due, or called for                a job slot is free
 *     WAITING ───────────────────▶ QUEUED ─────────────────────────▶ RUNNING (on a worker)
 *      │ ▲ ▲                         │ its waiters have gone              │
 *      │ │ └─────────────────────────┘ or its retry is answered           │
 *      │ └────────────────────────────────────────────────────────────────┘ the result is delivered
 *      └─▶ ENDED  no waiters, no retry due: out of the table, freed when the tick is over */
enum hydration_lookup_state { LOOKUP_WAITING, LOOKUP_QUEUED, LOOKUP_RUNNING, LOOKUP_ENDED };

enum hydration_job_kind {
    LOOKUP_FIND,      /* read the ledger; ask the owner if this lookup is the first */
    LOOKUP_RETRY,     /* ask the owner again, if the ledger allows it */
    LOOKUP_LAST_READ, /* read the ledger only */
};

/* The worker's while its lookup is RUNNING, but for `is_answered`. */
struct hydration_lookup_job {
    struct worker_job worker;
    enum hydration_job_kind kind;
    char correlation_id[UUID_TEXT_BYTES]; /* of the question, if it is asked */
    struct arena arena;
    struct hydration_need need; /* for one caller; texts of the lookup and of the arena */
    int64_t deadline_ns;
    struct hydration_finding finding;
    bool granted;              /* RETRY */
    enum status status, asked; /* of the ledger, of the question */
    struct error error;
    bool is_answered; /* an answer for this lookup arrived while the job was queued or ran */
};

/* One entity that is looked up: for every caller of the tenant or, once it has shown to be private, for one of them. */
struct hydration_lookup {
    LIST_ENTRY(hydration_lookup) in_bucket;
    struct hydration_turn_item turn; /* in line for a job */
    struct hydration_shard *shard;
    struct hydration_share *tenant_share, *type_share;
    enum hydration_lookup_state state;
    uint64_t hash;                  /* of the entity */
    struct hydration_need need;     /* subject empty: for every caller */
    struct hydration_policy policy; /* of the caller that opened it */
    TAILQ_HEAD(, hydration_waiter) waiters;
    struct loop_timer timer;         /* WAITING: the sooner of the next two */
    int64_t retry_at_ns, find_at_ns; /* CLOCK_NEVER: not due */
    int64_t job_ns;                  /* when the last job began */
    int64_t
        lag_ms; /* the ledger may not have stored yet what arrived here: time to the next read; 0: it has */
    struct {    /* the question of this lookup */
        char correlation_id[UUID_TEXT_BYTES];
        char *subject; /* NULL: another lookup asked, of this process or another */
        bool is_full;  /* wider than the need */
        int64_t retries;
    } question;
    struct { /* a copy in the ledger that is too old or too narrow, as the last job found it */
        struct str data, source_module, subject; /* subject empty: for every caller */
        int64_t version;
        char *block; /* holds the texts; NULL: there is none */
    } stale;
    struct hydration_outcome outcome; /* of waiters that leave because the lookup failed */
    struct hydration_lookup_job job;
    struct str block[]; /* fields, then texts */
};

/* NULL: too many. WAITING, in the shard's table. */
struct hydration_lookup *hydration_lookup_open(struct hydration_shard *shard, uint64_t hash,
                                               const struct hydration_need *need, struct str subject,
                                               const struct hydration_policy *policy);
/* In line for a job, if the lookup is WAITING; jobs start when the tick ends. */
void hydration_lookup_start(struct hydration_lookup *lookup, enum hydration_job_kind kind);
/* Reads the ledger again soon: an event that arrived was not enough, or the ledger lags. */
void hydration_lookup_again(struct hydration_lookup *lookup);
void hydration_lookup_answered(
    struct hydration_lookup *lookup); /* an answer for it arrived: no retry is due */
bool hydration_lookup_is_own(const struct hydration_lookup *lookup, struct str correlation_id);
void hydration_lookup_settle(struct hydration_lookup *lookup); /* ends it, if it is not needed */
void hydration_lookups_stop(struct hydration_shard *shard);

/* ---- waiters.c ---- */
struct hydration_recent { /* a question of this shard, by a hash of its correlation id */
    uint64_t correlation, entity;
    enum { RECENT_ASKED, RECENT_ANSWERED_DIRECTLY, RECENT_ANSWERED } state;
};

struct hydration_shard {
    struct hydration *hydration;
    struct loop *loop;
    struct hydration_memory *memory;
    LIST_HEAD(hydration_lookups, hydration_lookup) lookups[HYDRATION_LOOKUPS_MAX]; /* by the entity's hash */
    TAILQ_HEAD(, hydration_waiter) leaving; /* out of their lookups, their callbacks are due */
    size_t lookup_count, waiter_count, background_count;
    struct hydration_turns turns; /* of lookups that are QUEUED */
    struct loop_tick tick;        /* starts jobs */
    unsigned jobs;
    struct hydration_recent recent[HYDRATION_RECENT_MAX];
    int64_t logged_ns; /* the last line about a failure */
    struct buf cut;
    bool cut_in_use, stopping;
};

struct hydration_shard *hydration_shard_create(struct hydration *hydration, struct loop *loop);
void hydration_shard_stop(struct hydration_shard *shard); /* on its loop; new requests are refused too */
void hydration_shard_destroy(
    struct hydration_shard *shard); /* stopped; its loop and the workers have ended */
static inline struct hydration_lookups *hydration_shard_bucket(struct hydration_shard *shard, uint64_t hash)
{
    return &shard->lookups[hash % HYDRATION_LOOKUPS_MAX];
}
/* To the lookup of this need, for this caller or for every one; from another lookup, or new. False: there are too many. */
bool hydration_waiter_join(struct hydration_waiter *waiter, const struct hydration_need *need,
                           struct str subject);
/* Out of its lookup; its callback follows in hydration_waiters_call(). The outcome is borrowed till then. */
void hydration_waiter_leave(struct hydration_waiter *waiter, const struct hydration_outcome *outcome,
                            enum hydration_way way);
void hydration_waiters_call(struct hydration_shard *shard);
/* No outcome can be had: its waiters leave, with the stale copy if there is one. Background waiters stay unless it stops. */
void hydration_waiters_fail(struct hydration_lookup *lookup);

/* ---- deliver.c: on the shard's loop ---- */
/* An event. `is_direct`: from an owner of this process; the bus carries it too. */
void hydration_deliver(struct hydration_shard *shard, const struct hydration_event *event, bool is_direct);
/* What the ledger has. False: a newer version is known here. */
bool hydration_deliver_ledger(struct hydration_shard *shard, const struct hydration_event *event,
                              int64_t ttl_ms);
void hydration_recent_add(struct hydration_lookup *lookup); /* its correlation id is about to be used */
/* From any thread: an event to these shards, on their loops. */
void hydration_post(struct hydration_shard *const *shards, unsigned count,
                    const struct hydration_event *event, bool is_direct);

/* ---- questions.c: the questions to one owner of this process ---- */
struct hydration_questions;
struct hydration_owner_slot {
    struct hydration *hydration;
    struct hydration_owner row;
    struct hydration_questions *questions;
    char group[sizeof "entity-" + HYDRATION_TYPE_BYTES_MAX];
    atomic_llong asked_until_ns; /* until then an entity that was asked for here may be held */
};
struct hydration_questions *hydration_questions_create(struct hydration_owner_slot *slot,
                                                       struct worker_pool *workers);
void hydration_questions_destroy(
    struct hydration_questions *questions); /* waits for running answers; NULL is fine */
/* Any thread, never blocks. The question is borrowed. It is answered, or dropped and counted: then its lookup asks again.
 * `asker`: the shard that asked directly, which gets the answer without the bus too; NULL: it came over the bus. */
void hydration_questions_put(struct hydration_questions *questions, const struct hydration_event *question,
                             struct hydration_shard *asker);

/* ---- owner.c ---- */
/* NULL: no owner of that type in this process. */
struct hydration_owner_slot *hydration_owner_find(struct hydration *hydration, struct str entity_type);
void hydration_owner_answer(struct hydration_owner_slot *slot, const struct hydration_event *question,
                            struct hydration_shard *asker, int64_t deadline_ns);

/* ---- wire.c: the three events on the bus of events ----
 *
 * PostgreSQL: three topics. A question goes to one process of the owner's group (entity-TYPE), an answer to every process that
 * asks, and once more to one process of the group `hydration`, whose transaction the ledger writes in.
 * NATS: questions and answers are plain messages on the events' subjects, so that a module outside needs nothing but a NATS client;
 * a question goes to one member of the owner's queue group. entity.updated and entity.not-found are subjects of NATS streams too:
 * what the ledger stores, and changes, are not lost while no process reads. */
struct hydration_wire;
struct hydration_wire_config {
    struct bus *bus;
    bool is_plain;
    struct hydration *hydration; /* its owners are complete */
    void *context;
    /* Answers and changes in order, in every process. Any thread; must not block. NULL: this process does not ask. */
    void (*on_event)(void *context, const struct hydration_event *event);
    /* The same, in one process of all, in the transaction that commits the consumer's position. */
    enum status (*on_store)(void *context, const struct hydration_event *events, size_t count,
                            struct db_conn *conn, int64_t deadline_ns, struct error *error);
};
/* Before bus_start(). An invalid message is counted, logged and dead-lettered with its reason. */
enum status hydration_wire_open(const struct hydration_wire_config *config, struct hydration_wire **wire,
                                struct error *error) MUST_CHECK;
void hydration_wire_destroy(struct hydration_wire *wire); /* after bus_stop(); NULL is fine */
/* A question or its answer, on a worker. BAD_REQUEST: it makes no valid event. At most once on NATS: it is asked again. */
enum status hydration_wire_send(struct hydration_wire *wire, const struct hydration_event *event,
                                int64_t deadline_ns, struct error *error) MUST_CHECK;
/* A change, on a worker. OK: the bus has stored it. */
enum status hydration_wire_send_change(struct hydration_wire *wire, const struct hydration_event *event,
                                       int64_t deadline_ns, struct error *error) MUST_CHECK;

/* ---- hydration.c ---- */
struct hydration {
    struct hydration_config config;
    struct hydration_shard **shards;                          /* one for each loop, by loop_index() */
    _Atomic(struct hydration_wire *) wire;                    /* NULL before hydration_open() */
    struct hydration_owner_slot owners[HYDRATION_OWNERS_MAX]; /* complete before the bus starts */
    size_t owner_count;
    struct hydration_follower **followers; /* owner.c's */
    size_t follower_count;
    atomic_llong log_at_ns; /* owner.c's: its next line about a failure */
    atomic_bool stopping;
};
/* Metrics (H7): any thread; after the first time on a thread without a lock. */
void hydration_metrics_register(void);
void hydration_count_outcome(const struct hydration_policy *policy, const struct hydration_outcome *outcome,
                             int64_t begun_ns, int64_t now_ns);
void hydration_count_asked(const struct hydration_policy *policy, bool is_retry);
void hydration_count_waiters(int by);
void hydration_count_ignored(const char *why); /* a literal: an event that had no effect */
#endif
