/* `freshet dlq` (N2): two tables in one list, messages of the bus, with a number, and deliveries, with their notification's UUID.
 * Blocking; on the caller's thread and connection. Every change is one transaction with its row in notification.dlq_audit. */
#ifndef FRESHET_MODULES_NOTIFICATION_DLQ_H
#define FRESHET_MODULES_NOTIFICATION_DLQ_H

#include "kernel/dead_letters.h"

struct notification_dlq_selection { /* all conditions hold; ptr NULL = any */
    struct str messages;            /* dlq_ids, text[] literal; set with deliveries */
    struct str deliveries;          /* notification_ids, the same */
    struct str kind;                /* terminated, max_deliver, delivery */
    struct str reason;              /* a part of it */
    struct str tenant;
    struct str status;   /* of a list: DEAD, REQUEUED …; changes take DEAD ones */
    struct str from, to; /* created_at: from this moment on, before this one, as PostgreSQL reads it */
    int64_t rows_max;
};

/* Rows: id, kind, status, tenant, event id, event type, deliveries, age ("90s"), reason. Oldest first. */
enum status notification_dlq_list(struct db_conn *conn, const struct notification_dlq_selection *selection,
                                  int64_t deadline_ns, struct db_result **rows,
                                  struct error *error) MUST_CHECK;
/* All columns of one that have a value, as rows of name and value; no row: it does not exist. Payloads of the bus are base64. */
enum status notification_dlq_show(struct db_conn *conn, struct str id, int64_t deadline_ns,
                                  struct db_result **rows, struct error *error) MUST_CHECK;

enum notification_dlq_action { NOTIFICATION_DLQ_REQUEUE, NOTIFICATION_DLQ_DISCARD };
/* In the caller's transaction: messages, or deliveries. A process with the role notification publishes requeued messages. */
enum status notification_dlq_change_in_tx(struct db_conn *conn, enum notification_dlq_action action,
                                          bool of_deliveries,
                                          const struct notification_dlq_selection *selection,
                                          struct str actor, struct str note, int64_t deadline_ns,
                                          int64_t *count, struct error *error) MUST_CHECK;
/* How many it would change. */
enum status notification_dlq_count(struct db_conn *conn, bool of_deliveries,
                                   const struct notification_dlq_selection *selection, int64_t deadline_ns,
                                   int64_t *count, struct error *error) MUST_CHECK;

extern const struct kernel_dead_table notification_dead_tables[]; /* ops.c */

#endif
