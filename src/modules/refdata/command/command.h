/* The command role (R1, R2, R11): POST /updates, and the status of an update.
 *
 *     loop ─ post.c: check, park ─ committer.c: queue ─ worker ─ commit.c: one transaction for all that are queued
 *          ─ loop ─ post.c: answered, or it waits for its decision ─ decisions.c
 *
 * A post belongs to its loop. In the steps PARSING and COMMITTING a worker uses it, except for the members that are marked as the
 * loop's. */
#ifndef FRESHET_REFDATA_COMMAND_H
#define FRESHET_REFDATA_COMMAND_H

#include <sys/queue.h>

#include "base/map.h"
#include "base/span.h"
#include "modules/refdata/acceptance.h"
#include "modules/refdata/refdata.h"

/* ---- decisions.c: clients that wait for the decision of an update, and how it reaches them (R1) ----
 * A decision of this process reaches its waiters at once, a decision of another process by a notice of the database. Waiting takes no
 * thread. Rows are read only where a notice may be missing, or is not trusted. */

/* Embedded in its owner. `message` is posted to `loop` once, unless refdata_decisions_remove() was in time. */
struct refdata_waiter {
    struct loop_message message; /* the owner sets on_message */
    struct loop *loop;
    struct str tenant, event_id;   /* of the owner's memory */
    struct refdata_state decision; /* PENDING: the process stops */
    struct map_node node;
    bool is_waiting; /* in the map */
};

void refdata_decisions_add(struct refdata_decisions *decisions,
                           struct refdata_waiter *waiter); /* any thread */
/* Any thread. False: it was posted already, or is about to be. */
bool refdata_decisions_remove(struct refdata_decisions *decisions, struct refdata_waiter *waiter);
/* Any thread: soon reads the rows of all waiters in one query, for a waiter that a notice may not reach. */
void refdata_decisions_read(struct refdata_decisions *decisions);

/* ---- the waiters by (tenant, eventId); not locked ---- */
void refdata_waiters_add(struct map *waiters, struct refdata_waiter *waiter);
bool refdata_waiters_remove(struct map *waiters, struct refdata_waiter *waiter); /* false: it is not there */
struct refdata_waiter *refdata_waiters_find(const struct map *waiters, struct str tenant,
                                            struct str event_id); /* one of them; NULL: none */

/* ---- a POST ---- */

enum refdata_post_step {
    REFDATA_POST_NEW,
    REFDATA_POST_PARSING,    /* a worker checks its large body */
    REFDATA_POST_COMMITTING, /* the committer has it */
    REFDATA_POST_WAITING,    /* for its decision */
    REFDATA_POST_ANSWERED,   /* or its client has gone; kept until the message of its decision arrives */
};

enum refdata_post_result {
    REFDATA_POST_REFUSED,  /* for the reason in `error`; nothing was accepted */
    REFDATA_POST_ACCEPTED, /* committed by this request */
    REFDATA_POST_REPLAYED, /* the event was known before, with the same content */
    REFDATA_POST_UNKNOWN,  /* whether it was committed is not known */
};

struct refdata_post {
    /* the loop's */
    struct refdata *refdata;
    struct loop *loop;
    enum refdata_post_step step;
    struct loop_park_ref ref; /* of its request; generation 0 = answered, or the client went away */
    bool is_listed;           /* among the waiters, or the message of its decision is on its way */
    bool is_charged;          /* to refdata->post_bytes */
    size_t charged_bytes;     /* to the memory budget: its arena */
    int64_t wait_until_ns;    /* of WAIT_COMMIT */
    struct loop_timer reread; /* of an event that was known before: its row is read from time to time */
    int64_t reread_ms;

    /* of the loop, or of the worker that has it */
    struct worker_job parsing;
    struct loop_message committed; /* the way back from the committer */
    struct refdata_waiter waiter;
    struct refdata_database *database;
    struct refdata_dictionary *dictionary; /* referenced once it is known */
    bool waits;                            /* consistencyMode=WAIT_COMMIT */
    int64_t deadline_ns;                   /* for its commit */
    char tenant[65];
    uint64_t share;                       /* the tenant's */
    struct arena arena;                   /* of what follows; empty once it is committed */
    const struct auth_identity *identity; /* NULL: no dictionary had a writeScope when it arrived */
    struct str body, traceparent;
    struct span *span; /* of its commit; NULL = not recorded */
    int64_t key_keep_ms;
    struct refdata_update update;

    /* the committer's */
    struct turns_item turn;
    size_t bytes;        /* of the body */
    uint64_t event_hash; /* of (tenant, eventId) */
    struct refdata_acceptance acceptance;
    enum refdata_post_result result;
    struct error error; /* of REFUSED and UNKNOWN */
};

/* ---- answer.c; each of them counts the update ---- */
/* For a post that has its result. */
void refdata_answer_post(struct http_request *request, const struct refdata_post *post);
void refdata_answer_error(struct http_request *request, const struct error *error);
/* 503: whether the update was accepted is not known. */
void refdata_answer_unknown(struct http_request *request, const struct refdata_post *post);
void refdata_answer_count_unavailable(void); /* the request was answered 503 without it */

/* ---- status.c ---- */
void refdata_get_update(struct http_request *request); /* the GET route */

/* ---- committer.c ---- */
/* On a loop. OVERLOADED or CANCELLED: the caller keeps the post. */
enum status refdata_committer_add(struct refdata_committer *committer, struct refdata_post *post,
                                  struct error *error) MUST_CHECK;

/* ---- commit.c ---- */
struct refdata_commit_pace { /* of one committer: what its calls learn from one another */
    int64_t direct_from_ns;  /* until then all updates are queued */
    int64_t
        guess_from_ns; /* until then no group is guessed to be new, except for one update with WAIT_COMMIT */
    int64_t warn_from_ns; /* until then no warning is logged */
    bool is_queued;       /* set before a call: its updates are queued */
    bool was_slow;        /* set by a call: updates were applied directly, and their SQL took too long */
};
/* On a worker: every post gets its result. No two of them name the same event, key or chunk. The array is overwritten. */
void refdata_commit_posts(struct refdata_database *database, struct refdata_commit_pace *pace,
                          struct refdata_post **posts, size_t count);

/* ---- owner.c, changes.c: the owner of dictionaries' items in hydration (H6): entity type `dictionary_item`, id = dict/key ----
 * owner.c answers lookups by what PostgreSQL has; changes.c publishes what updates changed, of dictionaries that are hydrated. A
 * dictionary's code has no '/', so the key is everything after the first '/', without decoding. */

struct hydration;
struct refdata_changes;

#define REFDATA_ENTITY_TYPE "dictionary_item"

/* False: no item can have that id. */
bool refdata_owner_read_id(struct str id, struct str *code, struct str *key);
/* Any thread: rows of refdata.item_change are committed. */
void refdata_changes_wake(struct refdata_changes *changes);
/* In start(), where the role command runs. */
void refdata_owner_provide(struct refdata *refdata);

extern struct metric_family refdata_updates_family, refdata_commit_size_family, refdata_commit_seconds_family;

extern const struct http_route refdata_command_routes[];

#endif
