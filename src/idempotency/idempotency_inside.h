/* Shared by the files of idempotency:
 *
 *   step.c     keys in use in this process: which duplicate's turn it is
 *   run.c      one call: effect and stored answer in a transaction of its own
 *   groups.c   several calls that share a transaction */
#ifndef FRESHET_IDEMPOTENCY_IDEMPOTENCY_INSIDE_H
#define FRESHET_IDEMPOTENCY_IDEMPOTENCY_INSIDE_H

#include <pthread.h>

#include "base/list.h"
#include "idempotency/idempotency.h"

enum idempotency_member_state {
    IDEMPOTENCY_QUEUED,
    IDEMPOTENCY_LEADS, /* its thread runs the group that begins with it */
    IDEMPOTENCY_FOLLOWS,
    IDEMPOTENCY_DECIDED, /* the outcome holds */
    IDEMPOTENCY_ALONE,   /* it runs in a transaction of its own */
};

/* A call with a key, on its thread's stack until it is decided. What it points to is the caller's. */
struct idempotency_member {
    const struct idempotency_call *call;
    struct idempotency_outcome *outcome;
    int64_t lock_key;
    struct db_statement statement; /* effect and stored answer; no row where the key is known or busy */
    const struct db_param *params;

    enum idempotency_member_state state;
    uint64_t tenant_hash;
    bool is_counted;                        /* one of those of its tenant that may run at the same time */
    bool unknown;                           /* the reply of the group's commit was lost */
    LIST_ENTRY(idempotency_member) running; /* while it is counted */
    pthread_cond_t decided;
    struct idempotency_member *next;
};

/* True: the caller runs it alone, at once. False: wait() follows, for which `statement` and `params` must be set. */
bool idempotency_groups_enter(struct idempotency_groups *groups, struct idempotency_member *member);
/* Waits for its turn, and runs a group if it leads one. True: the call is decided. False: the caller runs it alone. */
bool idempotency_groups_wait(struct idempotency_groups *groups, struct idempotency_member *member);
/* After every enter(), once the call has ended. */
void idempotency_groups_leave(struct idempotency_groups *groups, struct idempotency_member *member);

size_t idempotency_groups_queued(struct idempotency_groups *groups); /* calls, of all tenants */

/* The outcome of an effect's rows, which it takes. */
enum status idempotency_take_effect(struct db_result *rows, struct idempotency_outcome *outcome);

#endif
