/* The store's own layout, for store.c, events.c, hydration.c and retention.c only. Everything but the atomics belongs to the
 * home loop. */
#ifndef FRESHET_KERNEL_STORE_INSIDE_H
#define FRESHET_KERNEL_STORE_INSIDE_H

#include "kernel/site.h"
#include "kernel/store.h"

enum { KERNEL_CONSUMED_MAX = 16 };

struct kernel_store {
    struct kernel *kernel;
    struct kernel_site site;
    _Atomic(struct bus *) events; /* the site's, when it runs */

    /* hydration.c: types of entities that modules here ask for, complete before the loops run */
    struct hydration *hydration;
    const char *consumed[KERNEL_CONSUMED_MAX];
    size_t consumed_count;
    bool consumes;

    struct db_pool *look_pool;
    struct worker_pool *looker;
    struct task *look;
    enum status look_status; /* of the last look, with its reason */
    struct error look_error;
};

/* ---- events.c: on the home loop ---- */
enum status kernel_events_open(struct kernel_store *store, struct error *error) MUST_CHECK;
/* Of the configuration alone: topics that modules name must be the same ones. */
enum status kernel_events_check(const struct config *config, const struct module *const *modules,
                                struct error *error) MUST_CHECK;
unsigned kernel_events_handlers(const struct kernel *kernel); /* threads that its handlers may need */

/* ---- hydration.c: no-ops where the program has no such module ---- */
void kernel_hydration_create(struct kernel_store *store); /* before modules start */
extern const struct kernel_part kernel_hydration_part;    /* of the store; modules have subscribed */
void kernel_hydration_warn(
    const struct kernel_store *store); /* after modules have started: logs types without an owner */

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
