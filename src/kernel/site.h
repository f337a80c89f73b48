/* A site: one PostgreSQL with what belongs to it in this process: address, schema, pool, workers, buses, outbox engines,
 * retention, health and an orderly end. The store of the modules and each database of refdata is one. What runs on it is a
 * table of parts. Sites of the same server share connections (db_server).
 *
 *     init ─ the owner makes workers ─ prepare: the schema, until it is in place ─ it opens buses ─ run: create and start parts
 *          ─ stop_begin ─ stop_senders ─ stop ─ close ─ deinit
 *
 * The end, each step while what it needs still works:
 *   1. no run of its tasks begins, and the grace runs: when it is over, whatever waits for PostgreSQL or an engine is interrupted;
 *   2. parts stop in the reverse of their order, outbox engines finish what they claimed, for which the buses must publish;
 *   3. buses stop: handlers of messages run till here; then the parts that their handlers use;
 *   4. the pool is interrupted, the workers end. */
#ifndef FRESHET_KERNEL_SITE_H
#define FRESHET_KERNEL_SITE_H

#include <stdatomic.h>

#include "bus/bus.h"
#include "db/db.h"
#include "loop/task.h"
#include "outbox/outbox.h"

struct kernel;

enum {
    KERNEL_PARTS_MAX = 16,
    KERNEL_BUSES_MAX = 3,
    KERNEL_OUTBOXES_MAX = 16,
    KERNEL_TASKS_MAX = 32,
    KERNEL_SCHEMAS_MAX = 18
};

/* A part of what a site runs. `part` is what create() returned. */
struct kernel_part {
    const char *roles[3]; /* where one of them runs; none = everywhere */
    /* Home loop: buses are open and not started. NULL: it is not needed here, or it failed with *error. */
    void *(*create)(void *owner, struct error *error);
    /* All may be NULL. */
    void (*start)(void *part);     /* home loop: buses run */
    void (*stop)(void *part);      /* main thread while loops run; may wait */
    void (*interrupt)(void *part); /* home loop: what stop() waits for ends now */
    void (*destroy)(void *part);   /* no thread uses it any more */
    bool outlives_buses;           /* handlers of messages use it: it stops after them */
};

struct kernel_site {
    struct kernel *kernel;
    struct loop *home;
    struct arena arena; /* the target's texts, which outlive the configuration they came from */
    struct db_schema schemas[KERNEL_SCHEMAS_MAX]; /* that kernel_site_prepare() found or put in place */
    struct db_target target;                      /* for callers that open connections of their own */
    struct db_pool *pool;
    bool is_store;        /* for logs */
    bool migrates;        /* creates and migrates the schema, or only checks that it is there (C10) */
    atomic_bool is_ready; /* the schema is in place; set once, by kernel_site_prepare() */
    atomic_bool is_running;
    _Atomic enum { SITE_UNKNOWN, SITE_DOWN, SITE_UP } state; /* as the last probe or sweep found it */
    enum status logged;                                      /* why it is down */

    /* what runs: the home loop's */
    struct worker_pool *workers; /* made by the owner */
    struct bus *buses[KERNEL_BUSES_MAX];
    struct outbox *outboxes[KERNEL_OUTBOXES_MAX];
    struct kernel_site_task {
        struct task *task;
        int64_t delay_ns;
    } tasks[KERNEL_TASKS_MAX];
    size_t bus_count, outbox_count, task_count, part_count;
    const struct kernel_part *const *parts;
    void *made[KERNEL_PARTS_MAX];  /* by the parts' create() */
    struct kernel_pod_writer *pod; /* pods.c: the row about this process */
    int64_t stop_deadline_ns;
    struct loop_timer grace;
};

/* Opens no connection. Without a kernel (NULL) the site shares no connections, its schema is only checked, and nothing runs. */
enum status kernel_site_init(struct kernel_site *site, struct kernel *kernel, const struct db_target *target,
                             struct error *error) MUST_CHECK;
void kernel_site_deinit(struct kernel_site *site); /* also after a failed init */
/* On a worker: brings the platform's schema, and after it these, to this build's state by connections of `pool`, or reports
 * what is missing. */
enum status kernel_site_prepare(struct kernel_site *site, struct db_pool *pool,
                                const struct db_schema *schemas, int64_t deadline_ns,
                                struct error *error) MUST_CHECK;
/* What a probe or sweep of PostgreSQL found; one thread at a time. Logged when it begins, and when it is over. */
void kernel_site_report(struct kernel_site *site, enum status status, const struct error *error);

/* Home loop. The site starts, stops and destroys them. */
void kernel_site_add_bus(struct kernel_site *site, struct bus *bus);
/* Its loop, workers and target are the site's. */
enum status kernel_site_add_outbox(struct kernel_site *site, const struct outbox_config *config,
                                   struct outbox **outbox, struct error *error) MUST_CHECK;
/* A task that the site starts, `delay_ns` after it runs, and stops before anything else. For work that may be interrupted. */
void kernel_site_add_task(struct kernel_site *site, const char *name, task_run_fn *run, void *context,
                          int64_t delay_ns);
/* A task on the site's loop and workers: the caller's own. */
struct task *kernel_site_task(const struct kernel_site *site, const char *name, task_run_fn *run,
                              void *context);
/* Home loop. `parts` ends in NULL. A failure leaves no part and no bus. */
enum status kernel_site_run(struct kernel_site *site, const struct kernel_part *const *parts, void *owner,
                            struct error *error) MUST_CHECK;

/* ---- the end: main thread, loops running or never started ---- */
void kernel_site_stop_begin(struct kernel_site *site, int64_t grace_ms);
void kernel_site_stop_senders(struct kernel_site *site);
void kernel_site_stop(struct kernel_site *site);
void kernel_site_close(struct kernel_site *site); /* home loop, or loops have ended; also when it never ran */

#endif
