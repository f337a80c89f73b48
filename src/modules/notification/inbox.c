/* A user's notifications (N5), newest first, a page at a time, for the user and, where it is switched on, below /debug. On a worker. */
#include "base/clock.h"
#include "kernel/page.h"
#include "modules/notification/notification.h"

enum { READ_MS = 5000, LIMIT_DEFAULT = 100 };

/* $1 tenant, $2 user, $3 before this sequence (NULL = from the newest on), $4 rows at most. By notifications_inbox. A notification
 * without a title has no such member. */
static const struct db_statement page_sql = DB_STATEMENT(
    "SELECT CASE WHEN t.item_title IS NULL THEN row_to_json(p) ELSE row_to_json(t) END, n.sequence"
    " FROM notification.notifications n"
    " CROSS JOIN LATERAL (SELECT n.notification_id, n.event_id, n.event_type, n.stock_keeping_unit, n.status,"
    "    platform.rfc3339(n.created_at) AS created_at, platform.rfc3339(n.sent_at) AS sent_at) p"
    " CROSS JOIN LATERAL (SELECT p.notification_id, p.event_id, p.event_type, p.stock_keeping_unit,"
    "    n.payload_json ->> 'item_title' AS item_title, p.status, p.created_at, p.sent_at) t"
    " WHERE n.tenant_id = $1 AND n.user_id = $2 AND n.sequence < coalesce($3, 9223372036854775807)"
    " ORDER BY n.sequence DESC LIMIT $4");
enum { NOTIFICATION, SEQUENCE };

static void send_page(struct http_request *request, const char *scope)
{
    const struct notification *notification = request->context;
    struct kernel_page page = {.name = "notifications", .scope = scope, .limit = LIMIT_DEFAULT};
    struct db_result *rows = NULL;
    struct error error = {0};
    int64_t before;
    enum status status = kernel_page_read(request, &page, &error);
    if (status == STATUS_OK && (page.user.len == 0 || page.user.len > NOTIFICATION_TEXT_BYTES_MAX))
        status = error_set_field(&error, STATUS_BAD_REQUEST, "user_id", "user_id must be 1 to %d bytes",
                                 NOTIFICATION_TEXT_BYTES_MAX);
    if (status == STATUS_OK && page.has_cursor && (!str_to_i64(page.cursor, &before) || before < 1))
        status = kernel_page_bad_cursor(&error);
    if (status == STATUS_OK)
        status = kernel_store_query(notification->kernel, &page_sql,
                                    DB_PARAMS(db_text(kernel_identity(request)->tenant), db_text(page.user),
                                              db_bigint(page.cursor), db_i64(page.limit + 1)),
                                    clock_deadline_ms(READ_MS), &rows, &error);
    if (status != STATUS_OK)
        http_send_error(request, &error);
    else
        kernel_page_send(request, &page, rows, NOTIFICATION,
                         db_result_rows(rows) > (size_t)page.limit
                             ? db_result_str(rows, (size_t)page.limit - 1, SEQUENCE)
                             : STR_NONE);
    db_result_free(rows);
}

static void get_notifications(struct http_request *request)
{
    send_page(request, "notification:read");
}

static void get_debug_inbox(struct http_request *request)
{
    const struct notification *notification = request->context;
    struct error error;
    error_set(&error, STATUS_NOT_FOUND, "%s", status_message(STATUS_NOT_FOUND));
    if (kernel_debug_is_enabled(notification->kernel))
        send_page(request, NULL);
    else
        http_send_error(request, &error);
}

const struct http_route notification_routes[] = {
    {HTTP_GET, "/v1/users/{user_id}/notifications", get_notifications, .kind = HTTP_WORKER},
    {HTTP_GET, "/debug/notification/inbox/{user_id}", get_debug_inbox, .kind = HTTP_WORKER},
    {.handler = NULL},
};
