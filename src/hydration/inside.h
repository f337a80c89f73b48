/* Hydration from inside: what its files share. A shard is the part that belongs to one loop: its lookups, waiters and memory. Only
 * that loop touches it, except for a lookup's job while a worker runs it.
 *
 *   waiters.c  asking, waiting, timeouts, callbacks         owner.c      an owner's questions, answers and changes
 *   lookup.c   the states of a lookup, its jobs             wire.c       the three events on the bus
 *   deliver.c  events to lookups and waiters                event.c      the three events as messages
 *   memory.c   copies and absences of a shard               cover.c      how much of an entity; names
 *   ledger.c   copies, absences and flights in PostgreSQL   hydration.c  settings, life
 *   wait.c     asking from a thread that may block          metrics.c    metrics */
#ifndef FRESHET_HYDRATION_INSIDE_H
#define FRESHET_HYDRATION_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/queue.h>

#include "base/clock.h"
#include "base/map.h"
#include "base/turns.h"
#include "base/uuid.h"
#include "hydration/event.h"
#include "hydration/hydration.h"
#include "loop/task.h"

enum {
    HYDRATION_OWNERS_MAX = 16,
    HYDRATION_LOOKUPS_MAX = 4096, /* of a shard */
    HYDRATION_TENANT_MAX = 2048,  /* of these, for one tenant */
    HYDRATION_TYPE_MAX = 1024,    /* of these, of one entity type */
    HYDRATION_JOBS_MAX = 4,       /* of one tenant at once in a shard: the workers are shared */
    HYDRATION_JOB_PLACES = 5,     /* of all tenants: turns_places() of that many */
    HYDRATION_RECENT_MAX = 1024,  /* recent questions of a shard, by which it recognizes late answers */
    /* Minimum interval between two ledger reads of a lookup, and maximum duration of a waiter's last read. */
    HYDRATION_REREAD_MS = 50,
    HYDRATION_MEMORY_MS = 5000, /* memory serves an entry at most so long; then the ledger is read again */
    HYDRATION_OWNER_MS = 5000,  /* time limit for an owner to read an entity */
    HYDRATION_PARALLEL = 2,     /* questions of one tenant and type that are answered at once */
    HYDRATION_LOOK_PLACES = 3,  /* of all tenants: turns_places() of that many */
    HYDRATION_ARENA_BYTES = 4096,
};

/* ---- cover.c ---- */
uint64_t hydration_entity_hash(struct str tenant, struct str entity_type, struct str entity_id);
bool hydration_cover_equal(const struct hydration_cover *a, const struct hydration_cover *b);
/* Copies of a need or an event in one block of memory: ..._bytes() is its size, ..._keep() copies the texts into it and points to the
 * copies. Fields come first, because the block is aligned for them. */
struct str hydration_text_keep(struct str text, char **at); /* copies to *at and advances it */
size_t hydration_need_bytes(const struct hydration_need *need);
void hydration_need_keep(struct hydration_need *need, char *at);
size_t hydration_event_bytes(const struct hydration_event *event);
void hydration_event_keep(struct hydration_event *event, char *at);
/* Does its data satisfy `need`? Where its cover is not known, the members of the data decide. */
bool hydration_event_includes(const struct hydration_event *event, const struct hydration_cover *need);

/* ---- ledger.c: copies, absences and questions under way of all processes, in PostgreSQL (schema hydration) ----
 *
 *   hydration.copies    (tenant, type, id, subject): version, cover, data, until
 *   hydration.absences  (tenant, type, id, subject): version, reason, until                               negative cache
 *   hydration.flights   (tenant, type, id, subject): window, asked, covers, correlation ids, versions     request collapse
 *
 * `subject` is the caller; '' stands for every caller. One call finds a copy or begins a flight; one call, in the transaction of the
 * shared group, stores events. Nothing here has to survive a crash of PostgreSQL: commits do not wait for the disk, and flights and
 * absences are unlogged. */
enum hydration_finding_kind {
    HYDRATION_LEDGER_COPY,
    HYDRATION_LEDGER_ABSENT,
    HYDRATION_LEDGER_ASK, /* a flight began: ask the owner for the cover in `event`, which may be wider than needed */
    HYDRATION_LEDGER_JOIN, /* asked already and not answered yet, or asked too often in this window: wait */
};

struct hydration_finding {
    enum hydration_finding_kind kind;
    /* COPY, ABSENT: as if it arrived from the bus. ASK: its cover is to be asked for. ASK, JOIN: data, module, caller and version of
     * a stale copy (too old or too narrow), if there is one. Texts are the need's and the arena's. */
    struct hydration_event event;
    int64_t ttl_ms; /* COPY, ABSENT: how long it is still valid; ASK, JOIN: rest of the window */
    /* COPY, ABSENT: the earliest time at which the question that it answers was asked; 0: unknown. */
    int64_t asked_ns;
};

/* On a worker; one round trip. `correlation_id` is for the question, if there is one. Several callers share a flight; an answer
 * for one of them does not end it for the others. Without a correlation id no flight begins, and JOIN means that the ledger has neither
 * a copy nor an absence. */
enum status hydration_ledger_find(struct db_pool *pool, const struct hydration_need *need,
                                  const struct hydration_policy *policy, struct str correlation_id,
                                  int64_t copy_ttl_ms, int64_t deadline_ns, struct arena *arena,
                                  struct hydration_finding *finding, struct error *error) MUST_CHECK;
/* *granted: the lookup that asked may ask once more, and this is counted (H3: 1 + max_retries in a window, over all processes). */
enum status hydration_ledger_retry(struct db_pool *pool, const struct hydration_need *need,
                                   const struct hydration_policy *policy, struct str correlation_id,
                                   int64_t deadline_ns, bool *granted, struct error *error) MUST_CHECK;
/* Answers and changes, in order, in the caller's transaction. */
enum status hydration_ledger_store(struct db_conn *conn, const struct hydration_event *events, size_t count,
                                   int64_t deadline_ns, struct error *error) MUST_CHECK;
/* held[i]: refs[i] has a copy, an absence or a flight. One round trip for all of them. */
enum status hydration_ledger_find_held(struct db_pool *pool, struct str entity_type,
                                       const struct hydration_ref *refs, size_t count, int64_t deadline_ns,
                                       bool *held, struct error *error) MUST_CHECK;

/* ---- memory.c: bounded, the oldest entries go first ---- */
struct hydration_known_entity { /* borrowed until the memory is next written */
    /* True: the outcome is a copy that is wide enough, or an absence. False: it has a stale copy (too narrow or too old), or no data. */
    bool serves;
    struct hydration_outcome outcome; /* with data that is not cut */
    bool is_private;                  /* an event of this entity was for one caller */
    bool was_received; /* an event of it arrived without a lookup: the ledger has it, or will have it soon */
};
struct hydration_memory {
    struct map entries;                          /* by the entity's hash */
    TAILQ_HEAD(, hydration_memory_entry) by_age; /* the oldest first */
    size_t entries_max, bytes, bytes_max;
};
void hydration_memory_init(struct hydration_memory *memory, size_t entries_max, size_t bytes_max);
void hydration_memory_deinit(struct hydration_memory *memory);
/* Allocates nothing. */
struct hydration_known_entity hydration_memory_find(const struct hydration_memory *memory,
                                                    const struct hydration_need *need, int64_t now_ns);
/* Keeps an event of the bus or a row of the ledger for `ttl_ms`. False: a newer version is known, ignore it.
 * `is_wanted` false: no lookup needs it; a current copy is renewed, otherwise only the version is kept. `asked_ns`: the earliest time at
 * which its question was asked, 0 if unknown. If that is later than everything stored here about the entity, the answer is newer,
 * whatever its version. */
bool hydration_memory_store(struct hydration_memory *memory, const struct hydration_event *event,
                            bool is_wanted, int64_t ttl_ms, int64_t asked_ns, int64_t now_ns);

/* ---- lookup.c ----
 *
 *              due, or requested                 a job slot is free
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

/* A worker uses it while its lookup is RUNNING, except `is_answered`, which only the loop uses. */
struct hydration_lookup_job {
    struct worker_job worker;
    enum hydration_job_kind kind;
    char correlation_id[UUID_TEXT_BYTES]; /* of the question, if it is asked */
    struct turns_share *place;            /* RUNNING: of the tenant, in the turns of its shard's jobs */
    struct arena arena;
    struct hydration_need need;          /* for one caller; texts of the lookup and of the arena */
    int64_t deadline_ns, waits_until_ns; /* of the job; of the last waiter */
    struct hydration_finding finding;
    bool granted;              /* RETRY */
    enum status status, asked; /* results of the ledger call and of sending the question */
    struct error error;
    bool is_answered; /* an answer for this lookup arrived while the job was queued or ran */
};

/* One entity that is looked up: for every caller of the tenant or, once an answer has shown that it is private, for one of them. */
struct hydration_lookup {
    struct map_node node;   /* by the entity's hash */
    struct turns_item turn; /* QUEUED: in the queue of its shard's jobs */
    struct hydration_shard *shard;
    struct turns_share *tenant_share, *type_share;
    enum hydration_lookup_state state;
    struct hydration_need need;     /* caller empty: for every caller */
    struct hydration_policy policy; /* of the caller that opened it */
    TAILQ_HEAD(hydration_waiters, hydration_waiter) waiters;
    struct loop_timer timer;         /* WAITING: the sooner of the next two */
    int64_t retry_at_ns, find_at_ns; /* CLOCK_NEVER: not due */
    int64_t read_ns;                 /* when the last job that reads the ledger began */
    /* Pause before the next ledger read, after an event that did not satisfy a waiter (the ledger may not have stored it yet).
     * Doubles; 0: not used. */
    int64_t lag_ms;
    struct { /* the question of this lookup */
        char correlation_id[UUID_TEXT_BYTES];
        char *caller; /* NULL: another lookup asked, of this process or another */
        bool is_full; /* for the whole entity, which may be more than the need */
        int64_t retries;
    } question;
    struct { /* a copy in the ledger that is too old or too narrow, as the last job found it */
        struct hydration_outcome outcome;
        struct str caller; /* empty: for every caller */
        char *block;       /* holds the texts; NULL: there is none */
        size_t bytes;      /* of the block */
    } stale;
    struct hydration_outcome outcome; /* of waiters that leave because the lookup failed */
    struct hydration_lookup_job job;
    size_t bytes;       /* of itself, its arena and the stale copy: charged */
    struct str block[]; /* fields, then texts */
};

/* A new lookup, WAITING, in the shard's table. NULL: there are too many. */
struct hydration_lookup *hydration_lookup_open(struct hydration_shard *shard, uint64_t hash,
                                               const struct hydration_need *need, struct str caller,
                                               const struct hydration_policy *policy);
/* Queues a job, if the lookup is WAITING; jobs start when the tick ends. */
void hydration_lookup_start(struct hydration_lookup *lookup, enum hydration_job_kind kind);
/* Reads the ledger again soon: an event did not satisfy a waiter, or the ledger has not stored it yet. */
void hydration_lookup_reread_soon(struct hydration_lookup *lookup);
/* The same, if it has waiters and no read is scheduled. */
void hydration_lookup_reread_if_idle(struct hydration_lookup *lookup);
/* An answer for it arrived: no retry is due. */
void hydration_lookup_answered(struct hydration_lookup *lookup);
/* Is this the id of the question that the lookup asked, or of its current job? */
bool hydration_lookup_is_own(const struct hydration_lookup *lookup, struct str correlation_id);
void hydration_lookup_end_unused(struct hydration_lookup *lookup); /* if it has no waiters and no retry */
void hydration_lookups_stop(struct hydration_shard *shard);

/* ---- waiters.c ---- */
/* A recent question of this shard, found by a hash of its correlation id. With it the shard recognizes late, repeated and wrong
 * answers, and the bus's copy of an answer that was delivered locally. */
struct hydration_recent {
    uint64_t correlation, entity;
    int64_t asked_ns;
    int64_t version; /* of the last answer: a retry over the bus may be answered with another one */
    enum { RECENT_ASKED, RECENT_ANSWERED_LOCALLY, RECENT_ANSWERED } state;
};

struct hydration_shard {
    struct hydration *hydration;
    struct loop *loop;
    struct hydration_memory memory;
    struct map lookups;
    size_t lookup_bytes;
    TAILQ_HEAD(, hydration_waiter) leaving; /* removed from their lookups; their callbacks have not run yet */
    size_t waiter_count, background_count;
    struct turns turns;     /* members: lookups, by tenant and by its types */
    struct turns job_turns; /* queue: lookups that are QUEUED; members: those that are RUNNING */
    struct loop_tick tick;  /* starts jobs */
    unsigned jobs;          /* HYDRATION_JOB_PLACES at most */
    struct hydration_recent recent[HYDRATION_RECENT_MAX];
    struct buf cut; /* for hits in memory, so that they allocate nothing */
    bool stopping;
};

struct hydration_shard *hydration_shard_create(struct hydration *hydration, struct loop *loop);
void hydration_shard_stop(struct hydration_shard *shard); /* on its loop; new requests are refused too */
/* Stopped; its loop and the workers have ended. */
void hydration_shard_destroy(struct hydration_shard *shard);
/* Adds the waiter to the lookup of this need, for this caller or for every caller, and takes it out of the lookup that it was in.
 * False: there are too many lookups. */
bool hydration_waiter_join(struct hydration_waiter *waiter, const struct hydration_need *need,
                           struct str caller);
/* Takes the waiter out of its lookup; hydration_waiters_call() runs its callback. The outcome is borrowed until then. */
void hydration_waiter_leave(struct hydration_waiter *waiter, const struct hydration_outcome *outcome,
                            enum hydration_way way);
void hydration_waiters_call(struct hydration_shard *shard);
/* The ledger cannot be read, or the process stops: its waiters leave as UNAVAILABLE, with the copy in memory if there is one.
 * Waiters in the background stay, unless the process stops. */
void hydration_waiters_fail(struct hydration_lookup *lookup);

/* ---- deliver.c: on the shard's loop ---- */
/* An event. `is_local`: from an owner of this process, without the bus; the bus delivers it a second time. */
void hydration_deliver(struct hydration_shard *shard, const struct hydration_event *event, bool is_local);
/* A row of the ledger. False: a newer version is known here. */
bool hydration_deliver_ledger(struct hydration_shard *shard, const struct hydration_finding *finding);
void hydration_recent_add(struct hydration_lookup *lookup); /* its correlation id is about to be used */
/* From any thread: delivers an event on the loops. `asker`: only to this shard, which asked an owner of this process. NULL: to every shard, as
 * the bus does. */
void hydration_post(struct hydration *hydration, struct hydration_shard *asker,
                    const struct hydration_event *event);

/* ---- owner.c: an owner in this process, and the questions that wait for it ---- */
struct hydration_owner_slot {
    struct hydration *hydration;
    struct hydration_owner row;
    char group[sizeof "entity-" + HYDRATION_TYPE_BYTES_MAX]; /* of processes with this owner */
    atomic_llong asked_until_ns; /* until then a consumer may hold an entity that it asked for here */
    struct task *answering[HYDRATION_LOOK_PLACES];
    pthread_mutex_t lock; /* for what follows */
    struct turns turns;   /* queue: waiting questions; members: looks under way */
    unsigned looks;       /* HYDRATION_LOOK_PLACES at most */
    unsigned busy;        /* how many of `answering` run */
};
/* NULL: no owner of that type in this process. */
struct hydration_owner_slot *hydration_owner_find(struct hydration *hydration, struct str entity_type);
enum status hydration_owner_follow(struct hydration_owner_slot *slot, struct bus *events,
                                   struct error *error) MUST_CHECK; /* its topic, if it has one */
/* Any thread, never blocks. The question is borrowed. It is answered, or dropped and counted: then its lookup asks again.
 * `asker`: the shard of this process that asked, which gets the answer also without the bus; NULL: the question came over the bus. */
void hydration_owner_ask(struct hydration_owner_slot *slot, const struct hydration_event *question,
                         struct hydration_shard *asker);
void hydration_owner_close(struct hydration_owner_slot *slot); /* waits for running answers */

/* ---- wire.c ---- */
/* Before bus_start(): questions for the owners of this process, and where it `consumes`, answers and changes. */
enum status hydration_wire_subscribe(struct hydration *hydration, struct bus *events, bool consumes,
                                     struct error *error) MUST_CHECK;
/* On a worker: a question, a change, or answers. BAD_REQUEST: one of them is not a valid event, and none is sent. PAYLOAD_TOO_LARGE:
 * the bus refuses one of them; on NATS those before it have been sent. OK of a change: the bus has stored it. Over NATS a question or
 * an answer may be lost: then its lookup asks again. */
enum status hydration_wire_send(struct hydration *hydration, const struct hydration_event *events,
                                size_t count, int64_t deadline_ns, struct error *error) MUST_CHECK;

/* ---- hydration.c ---- */
struct hydration {
    struct hydration_config config;
    struct hydration_shard **shards;                          /* one for each loop, by loop_index() */
    _Atomic(struct bus *) bus;                                /* of events; NULL before hydration_open() */
    struct hydration_owner_slot owners[HYDRATION_OWNERS_MAX]; /* complete before the bus starts */
    size_t owner_count;
    atomic_llong lookup_logged_ns, answer_logged_ns, invalid_logged_ns; /* for hydration_may_log() */
    atomic_uint invalid_not_logged;
    atomic_bool stopping;
};
/* At most once a second: in an outage every lookup fails, and a client may send nothing but invalid events. */
static inline bool hydration_may_log(atomic_llong *logged_ns)
{
    long long now_ns = clock_mono_ns(), last_ns = atomic_load(logged_ns);
    return (!last_ns || now_ns - last_ns >= CLOCK_NS_PER_S) &&
           atomic_compare_exchange_strong(logged_ns, &last_ns, now_ns);
}

/* ---- metrics.c (H7): any thread; takes no lock after the first call on a thread ---- */
void hydration_metrics_register(void); /* before the rest; main thread */
/* "updated", "not-found", "timeout", "unavailable" */
const char *hydration_result_name(enum hydration_result result);
void hydration_count_outcome(const struct hydration_policy *policy, const struct hydration_outcome *outcome,
                             int64_t begun_ns, int64_t now_ns);
void hydration_count_asked(const struct hydration_policy *policy, bool is_retry);
void hydration_count_waiters(int by);
void hydration_count_ignored(const char *why); /* a literal: an event that had no effect */
#endif
