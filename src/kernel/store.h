/* The store: the PostgreSQL that the modules' own tables live in, and the bus that carries their events (C2, C10).
 *
 * Where: `postgres:` of the file; without it the first database that a module's section names (refdata's). It exists
 * only where a module that uses it runs. The start does not wait for it: a task migrates the schema (or, where migrations are
 * applied by other means, checks it) and retries until it is ready; then, on the home loop, modules subscribe, the bus starts,
 * and with it outboxes, tasks and retention. Until then, and whenever PostgreSQL does not answer, requests that need the store get
 * 503.
 *
 * refdata has databases of its own; it uses the store only as an owner in hydration. */
#ifndef FRESHET_KERNEL_STORE_H
#define FRESHET_KERNEL_STORE_H

#include "bus/bus.h"
#include "kernel/kernel.h"
#include "kernel/site.h"

struct idempotency_table;

/* ---- for modules: valid from start() to destroy() of a module with keeps_store ---- */
/* Its home loop is for timers and notices; its workers for the background: publishing, delivering, retention, handlers of
 * events, not for requests. */
struct kernel_site *kernel_store(struct kernel *kernel);
/* UNAVAILABLE until it is ready. */
enum status kernel_store_require(const struct kernel *kernel, struct error *error) MUST_CHECK;
/* On a worker: that check, and one statement on a connection of the pool. *rows is NULL after a failure. */
enum status kernel_store_query(struct kernel *kernel, const struct db_statement *statement,
                               const struct db_param *params, int64_t deadline_ns, struct db_result **rows,
                               struct error *error) MUST_CHECK;
struct bus *kernel_events(struct kernel *kernel); /* NULL before subscribe() */
/* The stream of NATS that has this topic; NULL where PostgreSQL carries events, or the bus chose the name. */
const char *kernel_events_stream(const struct kernel *kernel, const char *topic);
bool kernel_events_are_up(const struct kernel *kernel); /* does NATS answer? Always true on PostgreSQL */
/* In start(): an outbox engine over a table in the store, whose loop, workers and target are the store's. It starts with the bus,
 * finishes what it claimed before modules stop, and is destroyed after them: a module only wakes it. */
struct outbox *kernel_outbox_create(struct kernel *kernel, const struct outbox_table *table,
                                    const struct outbox_settings *settings,
                                    void (*publish)(void *context, struct outbox_batch *batch),
                                    void *context);
struct outbox *kernel_outbox_add(struct kernel *kernel, const struct outbox_config *config); /* the same */
/* In start(): a task on the store's loop and workers. It starts with the bus and has stopped before destroy(); its statements are
 * interrupted when the process stops. */
void kernel_store_task(struct kernel *kernel, const char *name, task_run_fn *run, void *context);

/* ---- retention: old rows are deleted in small batches, at intervals, by any number of processes side by side ----
 * A rule is one table's. Its statement deletes at most $2 rows that are older than $1 milliseconds (by the database's clock)
 * and skips what is locked; it is run until it finds fewer, then not before the interval is over. It runs on the store's
 * workers, holds none of them between batches, and ends when the process stops. What it deleted is counted and logged. */
struct retention_rule {
    /* "notification.processed_events": label of freshet_retention_deleted_total and of the log line. */
    const char *name;
    /* "delete from … where ctid = any(array(select ctid … limit $2 for update skip locked))": bigint, int. */
    const char *sql;
    int64_t keep_ms, interval_ms; /* keep_ms: $1 */
    bool is_quiet;                /* rows expire all the time: their deletion is not logged */
    /* On a worker, once an interval, before deleting: finds what should not be there. NULL = nothing. */
    void (*inspect)(void *context, struct db_conn *conn, int64_t deadline_ns);
    void *context;
};
/* In start(). The rule is copied; its texts and context stay until the module's destroy(). First run within a
 * minute at most (jitter), so that a process that is restarted often still cleans up. */
void kernel_retention_add(struct kernel *kernel, const struct retention_rule *rule);
/* The rule of a module's stored answers by Idempotency-Key (I6): those that expired are deleted. The table stays as long. */
void kernel_retention_add_keys(struct kernel *kernel, const struct idempotency_table *table,
                               int64_t interval_ms);

/* ---- hydration (hydration/hydration.h), from start() to destroy() ---- */
struct hydration;
struct hydration *kernel_hydration(struct kernel *kernel); /* NULL: this process has no store */
/* In start(): the module asks for entities of this type; NULL: of whichever type its clients name. Answers are read
 * only where a module asks; the start logs a warning for a type without an owner. The text is borrowed. */
void kernel_hydration_consumes(struct kernel *kernel, const char *entity_type);

/* ---- without a process: `freshet migrate`, `freshet outbox` ----
 * Calls `fn` for each database that a module has as its own, with the module. */
typedef void kernel_database_fn(const struct db_target *target, const struct module *module, void *arg);
void kernel_each_database(struct config *config, const struct module *const *modules, kernel_database_fn *fn,
                          void *arg);
/* Where the store is. False: no section names a database. Texts are borrowed from the configuration and the environment. */
bool kernel_store_find(struct config *config, const struct module *const *modules, struct db_target *target);

/* Where NATS carries events: has the group settled all messages that the topic has now? Waits for that until the deadline. */
enum status kernel_events_are_settled(const struct config *config, const struct module *const *modules,
                                      const char *topic, const char *group, int64_t deadline_ns,
                                      bool *are_settled, struct error *error) MUST_CHECK;

/* ---- topics of events, as modules' sections name them ----
 * The module that publishes a topic names it with its partitions. A module that reads it may name it after its owner, without
 * partitions: its settings override the owner's, except the stream, which must be the same. */
struct kernel_topic {
    struct bus_topic topic; /* its name in PostgreSQL */
    /* In NATS, with one partition: exactly this stream and this subject. NULL: by the topic's name. */
    const char *stream, *subject;
    bool is_plain_in_nats;    /* there it is a subject without a stream: not stored */
    const char *stream_field; /* a reader's: where its stream was named, for errors */
    struct setting_place stream_place;
    int64_t duplicate_window_ms; /* 0 = the driver's */
    /* Of the bus as a whole in NATS, as bus_nats.h describes them: one topic sets them for all. NULL and 0 = the driver's. */
    const char *advisory_stream, *terminated_stream;
    int64_t ack_wait_ms;
};

#endif
