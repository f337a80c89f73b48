/* A desk from inside: desk.c keeps who waits, asking.c does what they wait for. All of it on the desk's loop, but for the
 * part of a visit that a worker has while it runs. */
#ifndef FRESHET_HYDRATION_DESK_INSIDE_H
#define FRESHET_HYDRATION_DESK_INSIDE_H

#include "base/uuid.h"
#include "hydration/inside.h"

enum {
    HYDRATION_ASKINGS_MAX = 4096, /* of a desk */
    HYDRATION_TENANT_MAX = 2048,  /* of these, for one tenant */
    HYDRATION_SHARE_MAX = 1024,   /* of these, of one entity type */
    HYDRATION_SHARE_BUCKETS = 256,
    HYDRATION_VISITS_MAX = 4,       /* at once: the workers are everybody's */
    HYDRATION_BACKGROUND_MAX = 256, /* waiters that nobody waits for */
    HYDRATION_RECENT_MAX = 1024,    /* questions a late answer is known by */
    HYDRATION_LOOK_MS =
        50, /* the ledger is not visited more often for one entity; the last look's part of a wait */
};

/* ---- asking.c ---- */

enum hydration_visit_kind {
    HYDRATION_VISIT_CLAIM, /* and publish, if it is ours to */
    HYDRATION_VISIT_RETRY, /* publish again, if it is granted */
    HYDRATION_VISIT_LOOK,  /* only look */
};

/* One way to the ledger, and to the bus. The worker's while `is_running`, all but that flag. */
struct hydration_visit {
    struct worker_job job;
    bool is_queued, is_running;
    enum hydration_visit_kind kind;
    char correlation_id[UUID_TEXT_BYTES]; /* of the question, if it comes to one */
    struct arena arena;
    struct hydration_need need; /* for one caller; of the asking and of the arena */
    int64_t deadline_ns;
    struct hydration_claim claim;
    bool has_claimed; /* holds, whether its question could be published or not */
    bool granted;
    enum status status;
    struct error error;
};

/* What is being found out: an entity, for everybody or, where it is the matter of single callers, for one of them. */
struct hydration_asking {
    struct hydration_asking *next_in_bucket, *next_in_queue;
    struct hydration_desk *desk;
    struct hydration_share *share;  /* its tenant's and type's */
    uint64_t hash;                  /* of the entity */
    struct hydration_need need;     /* subject empty: everybody's */
    struct hydration_policy policy; /* of who opened it */
    struct hydration_waiter *waiters, **last;
    struct loop_timer timer;          /* the sooner of the next two */
    int64_t retry_at_ns, claim_at_ns; /* CLOCK_NEVER: not */
    int64_t visited_ns;
    int64_t
        behind_ms; /* the ledger may not have written down yet what was heard: so long to the next look at it; 0: it has */
    uint64_t heard; /* the turn of telling that it had its part in */
    bool is_answered, has_ended;
    struct { /* our question, if it was ours to ask */
        char correlation_id[UUID_TEXT_BYTES];
        char *subject; /* NULL: it was not */
        bool is_full;  /* more than was needed here */
        int64_t retries;
    } question;
    struct
    { /* a copy in the ledger that is too old or too narrow, as the last visit that came back found it */
        struct str data, source_module, subject; /* subject empty: everybody's */
        int64_t version;
        char *block; /* holds the texts; NULL: there is none */
    } stale;
    struct hydration_visit visit;
    struct str block[]; /* fields, then texts */
};

struct hydration_asking *hydration_asking_create(struct hydration_desk *desk, uint64_t hash,
                                                 const struct hydration_need *need, struct str subject,
                                                 const struct hydration_policy *policy);
void hydration_asking_visit(struct hydration_asking *asking, enum hydration_visit_kind kind);
/* Soon, but never in a hurry: something was heard that was not enough, or the ledger knows less than we do. */
void hydration_asking_again(struct hydration_asking *asking);
bool hydration_asking_is_own(const struct hydration_asking *asking,
                             struct str correlation_id); /* ours, or about to be */
bool hydration_asking_is_needed(const struct hydration_asking *asking);
/* Of no table, no queue and no worker. Its memory is there until the tick is over: who is in the middle of it may go on. */
void hydration_asking_end(struct hydration_asking *asking);

/* ---- turns.c ---- */

struct hydration_turns {
    struct hydration_share *buckets[HYDRATION_SHARE_BUCKETS];
    struct hydration_share *first, **last; /* those that have askings in line */
    struct hydration_share *spare;
    size_t spare_count;
};
void hydration_turns_init(struct hydration_turns *turns);
void hydration_turns_deinit(struct hydration_turns *turns); /* no asking is left */
/* NULL: this tenant has as many askings, or as many of this type, as it may have. Leave it when the asking ends, not in line. */
struct hydration_share *hydration_share_enter(struct hydration_desk *desk, const struct hydration_need *need);
void hydration_share_leave(struct hydration_desk *desk, struct hydration_share *share);
void hydration_turns_queue(struct hydration_asking *asking);                /* in line for a visit */
struct hydration_asking *hydration_turns_next(struct hydration_desk *desk); /* NULL: none is in line */

/* ---- desk.c ---- */

struct hydration_recent { /* a question of this desk, by a hash of its correlation id */
    uint64_t correlation, entity;
    bool is_answered;
};

struct hydration_desk {
    struct hydration *hydration;
    struct loop *loop;
    struct hydration_memory *memory;
    struct hydration_asking *buckets[HYDRATION_ASKINGS_MAX];
    size_t asking_count, waiter_count, background_count;
    struct hydration_turns turns;
    struct loop_tick tick; /* starts visits */
    unsigned visits;
    struct hydration_recent recent[HYDRATION_RECENT_MAX];
    uint64_t turn;
    int64_t complained_ns;
    struct buf cut;
    bool cut_in_use, stopping;
};

struct hydration_asking *hydration_desk_bucket(struct hydration_desk *desk, uint64_t hash); /* a chain */
void hydration_desk_settle(
    struct hydration_asking *asking); /* ends it, if nobody needs it any more; once or more is the same */
void hydration_desk_fail(struct hydration_asking *asking); /* nothing can be found out: all are told so */
/* What was needed of `data`: a slice of it, a literal, or cut into `out`. */
struct str hydration_desk_cut(const struct hydration_cover *cover, struct str data, struct buf *out);
/* To the asking of this need, for this caller or for everybody; from another one, or new. False: there are too many. */
bool hydration_waiter_join(struct hydration_waiter *waiter, const struct hydration_need *need,
                           struct str subject);

/* Waiters on their way from their asking, which may end meanwhile, to their callbacks. */
struct hydration_leaving {
    struct hydration_waiter *first, **last;
};
void hydration_waiter_leave(struct hydration_leaving *leaving, struct hydration_waiter *waiter,
                            struct hydration_outcome *outcome);
void hydration_waiters_call(struct hydration_leaving *leaving, struct hydration_outcome *outcome);

/* ---- telling.c ---- */
void hydration_desk_note(struct hydration_asking *asking); /* its correlation id is about to be used */
/* What the ledger knows. False: more is known here. */
bool hydration_desk_learn(struct hydration_desk *desk, const struct hydration_event *event, int64_t ttl_ms);

#endif
