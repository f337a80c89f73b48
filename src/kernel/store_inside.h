/* The store's own layout, for store.c, events.c, hydration.c and retention.c only. Everything but the atomics belongs to the
 * home loop. */
#ifndef FRESHET_KERNEL_STORE_INSIDE_H
#define FRESHET_KERNEL_STORE_INSIDE_H

#include <stdatomic.h>

#include "kernel/site.h"
#include "kernel/store.h"
#include "loop/task.h"

struct retention;

enum { KERNEL_CONSUMED_MAX = 16, KERNEL_OUTBOXES_MAX = 16 };

struct kernel_store {
    struct kernel *kernel;
    struct kernel_site site;
    struct worker_pool *workers;
    struct loop *home;
    struct retention *rules; /* retention.c */
    struct outbox *outboxes[KERNEL_OUTBOXES_MAX];
    size_t outbox_count;
    _Atomic(struct bus *) events;

    /* hydration.c: types of entities that modules here ask for, complete before the loops run */
    struct hydration *hydration;
    const char *consumed[KERNEL_CONSUMED_MAX];
    size_t consumed_count;
    bool consumes;

    _Atomic enum { STORE_UNKNOWN, STORE_AWAITED, STORE_GONE, STORE_UP } state; /* as the last look found it */
    struct db_pool *look_pool;
    struct worker_pool *looker;
    struct task *look;
    enum status look_status; /* of the last look, with its reason */
    struct error look_error;
    char logged[sizeof(((struct error *)0)->message)]; /* the reason that was logged last; empty = none */

    int64_t stop_deadline_ns;
    struct loop_timer grace;
};

/* ---- events.c: on the home loop ---- */
/* Opens the bus, has modules subscribe, starts it. A failure leaves nothing open. */
enum status kernel_events_open(struct kernel_store *store, struct error *error) MUST_CHECK;
/* Of the configuration alone: topics that modules name must be the same ones. */
enum status kernel_events_check(const struct config *config, const struct module *const *modules,
                                struct error *error) MUST_CHECK;
unsigned kernel_events_handlers(const struct kernel *kernel); /* threads that its handlers may need */

/* ---- retention.c ---- */
bool kernel_retention_stop(struct kernel_store *store, int64_t grace_ns); /* as task_stop() */
void kernel_retention_destroy(struct kernel_store *store);                /* all have stopped */

/* ---- hydration.c: no-ops where the program has no such module ---- */
void kernel_hydration_create(struct kernel_store *store); /* before modules start */
enum status kernel_hydration_open(struct kernel_store *store,
                                  struct bus *events, /* home loop, all have subscribed */
                                  struct error *error) MUST_CHECK;
void kernel_hydration_start(struct kernel_store *store); /* home loop: the schema stands */
void kernel_hydration_warn(
    const struct kernel_store *store); /* after modules have started: logs types without an owner */

const char *kernel_host_name(void); /* HOSTNAME, or the machine's */

/* Checks `postgres:` as far as the file allows. */
enum status kernel_store_check(const struct config *config, struct error *error) MUST_CHECK;

/* ---- the process's life: kernel.c, all no-ops without a store ---- */
/* Before the modules start, if one of them keeps something there. Opens no connection. */
enum status kernel_store_create(struct kernel *kernel, struct error *error) MUST_CHECK;
void kernel_store_start(struct kernel *kernel);       /* before the loops run */
void kernel_store_begin_stop(struct kernel *kernel);  /* before modules stop: outboxes do */
void kernel_store_finish_stop(struct kernel *kernel); /* after modules have; loops still run */
void kernel_store_destroy(struct kernel *kernel);     /* after modules are gone, before the loops are */
void kernel_store_health(const struct kernel *kernel, struct health *health);
/* Of a module that reports none itself. */
void kernel_store_role_health(const struct kernel *kernel, const struct module *module,
                              struct health *health);

#endif
