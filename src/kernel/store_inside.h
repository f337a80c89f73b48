/* The store's own layout, for store.c, look.c, events.c, hydration.c, outboxes.c and retention.c only. Everything but the atomics
 * belongs to the home loop. */
#ifndef FRESHET_KERNEL_STORE_INSIDE_H
#define FRESHET_KERNEL_STORE_INSIDE_H

#include <stdatomic.h>

#include "kernel/store.h"

struct retention;
struct kernel_outbox;

enum { KERNEL_CONSUMED_MAX = 16 };

struct kernel_store {
    struct kernel *kernel;
    struct arena arena; /* texts of the target and of rules */
    struct db_target target;
    struct db_pool *pool;
    struct worker_pool *workers;
    struct loop *home;
    struct retention *rules;        /* retention.c */
    struct kernel_outbox *outboxes; /* outboxes.c */
    _Atomic(struct bus *) events;

    /* hydration.c: types of entities that modules here ask for, complete before the loops run */
    struct hydration *hydration;
    const char *consumed[KERNEL_CONSUMED_MAX];
    size_t consumed_count;
    bool consumes;

    /* Looking: first until the schema stands, then whether PostgreSQL answers. By a thread and a connection of its own: what
     * waits for a busy database must not look like a dead one. */
    struct db_pool *look_pool;
    struct worker_pool *looker;
    struct loop_timer look;
    struct worker_job job;
    bool stands; /* the schema does */
    enum status
        status; /* of the last look, with its reason: the job's while that is under way, as `stands` */
    struct error error;
    char told[sizeof(((struct error *)0)->message)]; /* the reason that was logged last; empty = none */
    int64_t pause_ms;
    atomic_bool ready, reachable, looked;

    bool stopping;
    int64_t stop_deadline_ns;
    struct loop_timer grace;
};

/* ---- look.c: before the loops run ---- */
void kernel_look_start(struct kernel_store *store);

/* ---- events.c: on the home loop ---- */
/* Opens the bus, has modules subscribe, starts it. Nothing is left behind by a failure. */
enum status kernel_events_open(struct kernel_store *store, struct error *error) MUST_CHECK;
/* Of the configuration alone: topics that modules name must be the same ones. */
enum status kernel_events_check(const struct config *config, const struct module *const *modules,
                                struct error *error) MUST_CHECK;
unsigned kernel_events_handlers(const struct kernel *kernel); /* threads that its handlers may need */

/* ---- retention.c ---- */
void kernel_retention_stop(struct kernel_store *store);    /* home loop: no new runs */
void kernel_retention_destroy(struct kernel_store *store); /* no job is under way */

/* ---- hydration.c: no-ops where the program has no such module ---- */
void kernel_hydration_create(struct kernel_store *store); /* before modules start */
enum status kernel_hydration_open(struct kernel_store *store,
                                  struct bus *events, /* home loop, all have subscribed */
                                  struct error *error) MUST_CHECK;
void kernel_hydration_start(struct kernel_store *store); /* home loop: the schema stands */
void kernel_hydration_warn(
    const struct kernel_store *store); /* modules have started: who asks for what nobody has? */

/* ---- outboxes.c ---- */
void kernel_outboxes_start(struct kernel_store *store);   /* home loop */
void kernel_outboxes_stop(struct kernel_store *store);    /* main thread; the bus still publishes */
void kernel_outboxes_destroy(struct kernel_store *store); /* no job is under way */
/* What is left of the time that all who stop share. */
int64_t kernel_stop_grace_ms(const struct kernel *kernel);

const char *kernel_host_name(void); /* HOSTNAME, or the machine's */

/* What the file alone can tell of `postgres:`. */
enum status kernel_store_check(const struct config *config, struct error *error) MUST_CHECK;

/* ---- the process's life: kernel.c, all no-ops without a store ---- */
/* Before the modules start, if one of them keeps something there. Opens no connection. */
enum status kernel_store_create(struct kernel *kernel, struct error *error) MUST_CHECK;
void kernel_store_start(struct kernel *kernel);       /* before the loops run */
void kernel_store_begin_stop(struct kernel *kernel);  /* before modules stop: outboxes do */
void kernel_store_finish_stop(struct kernel *kernel); /* after modules have; loops still run */
void kernel_store_destroy(struct kernel *kernel);     /* after modules are gone, before the loops are */
void kernel_store_health(const struct kernel *kernel, struct health *health);
/* Of a module that has nothing to say itself. */
void kernel_store_role_health(const struct kernel *kernel, const struct module *module,
                              struct health *health);

#endif
