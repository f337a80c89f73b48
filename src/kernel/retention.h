/* Retention: what is old goes, in small batches, at its own interval, from any number of processes side by side.
 *
 * A rule is one table's. Its statement deletes at most $2 rows that are older than $1 milliseconds (by the database's clock)
 * and skips what is locked; it is run until it finds fewer, then not before the interval is over. Runs on the store's
 * workers, holds none of them between batches, gives up when the process stops. Counts and logs what it deleted. */
#ifndef FRESHET_KERNEL_RETENTION_H
#define FRESHET_KERNEL_RETENTION_H

#include "idempotency/idempotency.h"
#include "kernel/kernel.h"

struct retention_rule {
    const char *
        name; /* "notification.processed_events": label of freshet_retention_deleted_total and of the log line */
    const char *
        sql; /* "delete from … where ctid = any(array(select ctid … limit $2 for update skip locked))": bigint, int */
    int64_t keep_ms, interval_ms; /* keep_ms: $1 */
    /* Instead of that log line; NULL = retention_deleted. Called on a worker when something was deleted. */
    void (*on_deleted)(void *context, int64_t count);
    /* A look at what should not be there, once an interval, before deleting; NULL = none. On a worker. */
    void (*inspect)(void *context, struct db_conn *conn, int64_t deadline_ns);
    void *context;
    /* Grouped: the statement answers rows (text, count) of what it deleted, and this is called for each; on a worker. NULL = not
     * grouped. */
    void (*on_group)(void *context, struct str group, int64_t count);
};

/* In start(). The rule is copied; its texts and context stay until the module's destroy(). First run within a
 * minute at most (jitter), so that a process that is restarted often still cleans up. */
void kernel_retention_add(struct kernel *kernel, const struct retention_rule *rule);
/* The rule of a module's stored answers by Idempotency-Key (I6): those that expired go. The table stays as long. */
void kernel_retention_add_keys(struct kernel *kernel, const struct idempotency_table *table,
                               int64_t interval_ms);

#endif
