/* The store: the PostgreSQL that the modules' own tables live in, and the bus that carries their events (C2, C10).
 *
 * Where: `postgres:` of the file; without it the first database that a module's section names (refdata's). Only where a
 * module that keeps something there runs. Nobody waits for it at the start: the schema is put in place (or, where migrations
 * are somebody else's, looked for) in the background, again and again until it is there; then, on the home loop, modules
 * subscribe, the bus starts, and each module is told by on_store(). Till then, and whenever PostgreSQL does not answer,
 * requests that need it get 503.
 *
 * refdata keeps databases of its own and is not concerned. */
#ifndef FRESHET_KERNEL_STORE_H
#define FRESHET_KERNEL_STORE_H

#include "bus/bus.h"
#include "kernel/kernel.h"

/* ---- for modules: valid from start() to destroy() of a module whose row says keeps_store ---- */
struct loop *kernel_store_loop(struct kernel *kernel); /* the home loop: timers, notices, on_store() */
struct db_pool *kernel_store_pool(struct kernel *kernel);
const struct db_target *kernel_store_target(
    struct kernel *kernel); /* for engines with connections of their own */
/* For what the modules do in the background: publishing, delivering, retention, handlers of events. Not for requests. */
struct worker_pool *kernel_store_workers(struct kernel *kernel);
bool kernel_store_is_ready(const struct kernel *kernel); /* any thread: the schema stands */
bool kernel_store_is_up(const struct kernel *kernel);    /* the same, and PostgreSQL answered last */
struct bus *kernel_events(struct kernel *kernel);        /* NULL before subscribe() */
bool kernel_events_are_up(const struct kernel *kernel);  /* does NATS answer? Always true on PostgreSQL */
const char *kernel_host_name(void);                      /* HOSTNAME, or the machine's (locked_by) */

/* ---- topics of events, as modules' sections name them ---- */
struct kernel_topic {
    struct bus_topic topic; /* its name in PostgreSQL */
    /* In NATS, with one partition: exactly this stream and this subject. NULL: by the topic's name. */
    const char *stream, *subject;
    int64_t duplicate_window_ms; /* 0 = the driver's */
};
typedef void kernel_topic_fn(const struct kernel_topic *topic, void *arg);

#endif
