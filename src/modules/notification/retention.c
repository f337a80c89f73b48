/* Retention of N4, by the kernel's engine: strictly older than so many days. A notification that is that old and was
 * neither sent nor given up stays: it is an error that somebody has to look at. */
#include "kernel/retention.h"

#include <stdio.h>

#include "base/log.h"
#include "modules/notification/notification.h"

#define DAY_MS (INT64_C(24) * 3600 * 1000)
#define OLDER(column) column " < now() - $1 * interval '1 ms'"
#define DELETE(table, condition, column)                                                               \
    "DELETE FROM " table " WHERE ctid = ANY (ARRAY(SELECT ctid FROM " table " WHERE " condition OLDER( \
        column) " ORDER BY " column " LIMIT $2 FOR UPDATE SKIP LOCKED))"
/* Dead letters stay until somebody decides; dlq_audit says for ever what. */
#define DECIDED "status IN ('REQUEUED', 'DISCARDED') AND "

/* $1 milliseconds. */
static const char overdue_sql[] =
    "SELECT count(*), min(notification_id::text), min(event_id::text),"
    "       coalesce((extract(epoch FROM now() - min(created_at)) * 1000)::bigint, 0)"
    " FROM (SELECT * FROM notification.notifications"
    "       WHERE status IN ('PENDING', 'PROCESSING') AND " OLDER(
        "created_at") " ORDER BY created_at LIMIT 1000) o";

static int64_t keep_ms(const struct notification *notification)
{
    return notification->settings->retention.days * DAY_MS;
}

static void inspect(void *context, struct db_conn *conn, int64_t deadline_ns)
{
    const struct notification *notification = context;
    struct db_statement statement;
    struct db_result *rows = NULL;
    struct error error = {0};
    char age[24];
    snprintf(age, sizeof age, "%lld", (long long)keep_ms(notification));
    db_statement_init(&statement, overdue_sql, 1, (enum db_type[]){DB_BIGINT});
    if (db_query(conn, &statement, (struct db_param[]){{str_from(age)}}, deadline_ns, &rows, &error) ==
        STATUS_OK) {
        int64_t count = db_result_i64(rows, 0, 0);
        notification_set_overdue(count);
        if (count > 0)
            log_error("notifications_overdue", LOG_INT("count", count),
                      LOG_STR("notificationId", db_result_str(rows, 0, 1)),
                      LOG_STR("eventId", db_result_str(rows, 0, 2)),
                      LOG_INT("oldestAgeMs", db_result_i64(rows, 0, 3)));
    }
    db_result_free(rows);
}

void notification_retention_start(struct notification *notification)
{
    const struct retention_rule rules[] = {
        {.name = "notification.processed_events",
         .sql = DELETE("notification.processed_events", "", "processed_at")},
        {.name = "notification.notifications",
         .sql = DELETE("notification.notifications", "status IN ('SENT', 'FAILED') AND ", "created_at"),
         .inspect = inspect},
        {.name = "notification.notification_dlq",
         .sql = DELETE("notification.notification_dlq", DECIDED, "decided_at")},
        {.name = "notification.notification_nats_dlq",
         .sql = DELETE("notification.notification_nats_dlq", DECIDED, "decided_at")},
    };
    if (!notification->settings->retention.enabled)
        return;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct retention_rule rule = rules[i];
        rule.keep_ms = keep_ms(notification);
        rule.interval_ms = notification->settings->retention.interval_ms;
        rule.context = notification;
        kernel_retention_add(notification->kernel, &rule);
    }
}
