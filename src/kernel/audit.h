/* Auditors of published events (OPERATIONS.md): an event that did not arrive is published again from its outbox. Receivers recognise an
 * event that they have, so one too many has no effect. */
#ifndef FRESHET_KERNEL_AUDIT_H
#define FRESHET_KERNEL_AUDIT_H

#include "kernel/store.h"

/* Events that must have arrived in a table of the store: a row for each of a module. */
struct kernel_audit {
    const char *kind; /* in the books */
    const struct outbox_table *table;
    /* $1, $2 milliseconds. The ids of events, as text, that were published in the last $1, created in the last $2 (of older ones nothing
     * is known: retention) and did not arrive. */
    struct db_statement lost_sql;
};
/* In start(). The row is static. Looks at all events once, then every minute at those that were published lately. */
void kernel_audit_add(struct kernel *kernel, const struct kernel_audit *audit, int64_t keep_ms);

/* On a worker, when the bus has reported a gap to a reader: the events that were published after the last message before `offset` and are not
 * on the bus are published again. On NATS the bus recognises those that it has. What fails, such as while PostgreSQL is away, is tried
 * again until it succeeded or the process ends. Table and topic are static. */
void kernel_audit_gap(struct kernel *kernel, const struct outbox_table *table, const char *topic,
                      unsigned partition, int64_t offset);

/* The store's: gaps that are to be tried again. The task is the site's, and has ended before the second call. */
struct kernel_gaps *kernel_gaps_create(struct kernel *kernel, struct kernel_site *site);
void kernel_gaps_destroy(struct kernel_gaps *gaps);

extern struct metric_family kernel_audit_family;

#endif
