/* The engine from inside: what its files share. */
#ifndef FRESHET_HYDRATION_INSIDE_H
#define FRESHET_HYDRATION_INSIDE_H

#include <stdatomic.h>

#include "hydration/desk.h"
#include "hydration/hydration.h"
#include "hydration/ledger.h"
#include "hydration/wire.h"

enum { HYDRATION_SOURCES_MAX = 16 };

struct hydration {
    struct hydration_config config;
    struct hydration_desk **desks;                          /* one for each loop, by loop_index() */
    _Atomic(struct hydration_wire *) wire;                  /* NULL before hydration_open() */
    struct hydration_source sources[HYDRATION_SOURCES_MAX]; /* complete before the bus starts */
    size_t source_count;
    /* By source: until then an entity that was asked for here may be held. */
    atomic_llong asked_until_ns[HYDRATION_SOURCES_MAX];
    struct hydration_follower **followers; /* follow.c's */
    size_t follower_count;
    atomic_llong complain_at_ns; /* source.c's: its next line about an answer that could not be given */
    atomic_bool stopping;
};

/* ---- source.c ---- */
/* Any thread: may consumers hold entities of this type, as far as this process knows? */
bool hydration_is_asked_for(const struct hydration *hydration, const char *entity_type);
void hydration_source_answer(void *context, const struct hydration_event *question, int64_t deadline_ns,
                             struct hydration_reply *reply);

/* ---- metrics.c (H7): any thread; after the first time on a thread without a lock ---- */
void hydration_metrics_register(void);
void hydration_count_outcome(const struct hydration_policy *policy, const struct hydration_outcome *outcome,
                             int64_t begun_ns, int64_t now_ns);
void hydration_count_asked(const struct hydration_policy *policy,
                           bool is_retry); /* entity/unknown published */
void hydration_count_waiters(int by);
void hydration_count_ignored(const char *why); /* a literal: an event that had no effect */

#endif
