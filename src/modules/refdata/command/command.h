/* The command role (R1, R2, R11): POST /updates and what became of it.
 *
 *     loop ─ post.c: check, park ─ committer.c: queue ─ worker ─ commit.c: one transaction for all that queued
 *          ─ loop ─ post.c: answered, or it waits for its decision ─ news.c
 *
 * A post is the loop's; while `busy` it is lent to a worker, which touches nothing above that line in the struct. */
#ifndef FRESHET_REFDATA_COMMAND_H
#define FRESHET_REFDATA_COMMAND_H

#include "base/trace.h"
#include "modules/refdata/command/news.h"

enum refdata_post_result {
    REFDATA_POST_REFUSED,  /* `error` says why; nothing was accepted */
    REFDATA_POST_TAKEN,    /* committed by this very request */
    REFDATA_POST_REPLAYED, /* was there before, with the same content */
    REFDATA_POST_UNKNOWN,  /* nobody can tell whether it was committed */
};

struct refdata_post {
    /* the loop's */
    struct refdata *refdata;
    struct loop *loop;
    struct loop_park_ref ref; /* of its request; generation 0 = answered, or the client went away */
    bool busy;                /* a worker has it */
    bool listed;              /* the news has it, or its message is on its way */
    bool decided;             /* that message came, with a decision */
    int64_t wait_until_ns;    /* of WAIT_COMMIT */
    struct loop_timer reread; /* of an event that was known before: its row is read from time to time */
    int64_t reread_ms;
    bool charged; /* to refdata->post_bytes */

    /* whose turn it is */
    struct worker_job parsing;
    struct loop_message committed; /* the way back from the committer */
    struct refdata_waiter waiter;
    struct refdata_flow *flow;
    struct refdata_dictionary *dictionary; /* referenced once it is known */
    bool waits;                            /* consistencyMode=WAIT_COMMIT */
    int64_t deadline_ns;                   /* for its commit */
    char tenant[65];
    struct refdata_limits limits;
    struct arena arena;                   /* of what follows; empty once it is committed */
    const struct auth_identity *identity; /* NULL = no dictionary needed a scope when it came */
    struct str body, subject, key /* Idempotency-Key; ptr NULL = none */;
    int64_t key_lock; /* of (scope, key), for those of other processes */
    int64_t key_keep_ms;
    struct str traceparent;
    struct refdata_update update;

    /* the committer's */
    struct refdata_post *next;
    size_t bytes;        /* of the body */
    uint64_t event_hash; /* of (tenant, eventId) */
    struct str hash;     /* update_request.content_hash */
    bool is_new, is_chunk_new;
    bool by_key;       /* stands for the event that came with its Idempotency-Key before */
    bool is_key_known; /* the key came before, whoever chose the eventId */
    enum refdata_post_result result;
    struct refdata_state state; /* of TAKEN and REPLAYED */
    struct error error;         /* of REFUSED and UNKNOWN */
};

/* ---- post.c ---- */
void refdata_post_update(struct http_request *request); /* the POST route */
/* On a worker: the post has its result. It is no longer the caller's. */
void refdata_post_return(struct refdata_post *post);

/* ---- check.c: is it an update that its dictionary can take? ---- */
enum status refdata_post_check(struct refdata_post *post, const struct refdata_catalog *catalog) MUST_CHECK;

/* ---- answer.c ---- */
void refdata_answer_state(struct http_request *request, const struct refdata_post *post,
                          const struct refdata_state *state);
void refdata_answer_error(struct http_request *request, const struct error *error);
void refdata_answer_unknown(struct http_request *request, const struct refdata_post *post);

/* ---- status.c ---- */
void refdata_get_update(struct http_request *request); /* the GET route */

/* ---- committer.c ---- */
/* On a loop. OVERLOADED or CANCELLED: it stays the caller's. */
enum status refdata_committer_add(struct refdata_committer *committer, struct refdata_post *post,
                                  struct error *error) MUST_CHECK;
/* Its job's own: before this time no update is applied in its own commit. */
int64_t *refdata_committer_direct_from(struct refdata_committer *committer);
bool refdata_committer_may_complain(struct refdata_committer *committer); /* once a second */

/* ---- commit.c ---- */
/* On a worker: every post gets its result. No two of them name the same event, key or chunk. */
void refdata_commit_posts(struct refdata_flow *flow, struct refdata_post **posts, size_t count);

/* ---- claims.c: the statements of that transaction before anything is published ---- */
/* Which partitions the posts go to, each once; asked for in the same round trip: bus_own_ask(). */
struct refdata_owning {
    struct bus *bus;
    unsigned *partitions;
    size_t count; /* 0 = none is asked for */
    bool granted;
    uint64_t mark; /* bus_own_commit()'s */
};
enum {
    OPENING_MAX = 2
}; /* a transaction's first statements: BEGIN, and perhaps the question for partitions */
/* No claims, as a guess that the updates are all new: their rows are written once, when they are decided, and that fails
 * if one was there. Nothing is waited for, the next pipeline takes the question for the partitions along;
 * refdata_claims_hold() then says whether they were granted. If anything was otherwise, roll back and claim in earnest.
 * Not for posts with a key, and not for chunks. */
struct refdata_guess {
    struct db_result *results[OPENING_MAX];
};
bool refdata_claims_are_plain(struct refdata_post *const *posts, size_t count);
enum status refdata_claims_guess(struct refdata_guess *guess, struct db_conn *conn,
                                 struct refdata_post **posts, size_t count, struct refdata_owning *owning,
                                 struct error *error) MUST_CHECK;
bool refdata_claims_hold(struct refdata_guess *guess, struct db_conn *conn, struct refdata_owning *owning);
/* The same for a single plain post that goes by the bus: left in the pipeline for whoever commits. DB_ERROR then means that
 * it was not new after all, or worse. */
enum status refdata_claims_guess_one(struct db_conn *conn, struct refdata_post *post,
                                     struct error *error) MUST_CHECK; /* frees it */
/* Begins the transaction too, in its first round trip. */
enum status refdata_claims_write(struct db_conn *conn, struct refdata_post **posts, size_t count,
                                 struct refdata_owning *owning, int64_t deadline_ns, struct arena *arena,
                                 struct error *error) MUST_CHECK;

/* ---- metrics.c ---- */
enum refdata_update_result {
    REFDATA_UPDATE_ACCEPTED,
    REFDATA_UPDATE_REPLAYED,
    REFDATA_UPDATE_REJECTED,
    REFDATA_UPDATE_UNAVAILABLE,
    REFDATA_UPDATE_RESULTS
};
void refdata_command_metrics_count(enum refdata_update_result result);
void refdata_command_metrics_commit(size_t posts, double seconds);
extern struct metric_family refdata_updates_family, refdata_commit_size_family, refdata_commit_seconds_family;

extern const struct http_route refdata_command_routes[];

#endif
