/* A user's notifications (N5), newest first, a page at a time, for the user and, where it is switched on, below /debug. On a worker. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/notification/notification.h"

enum { READ_MS = 5000, LIMIT_DEFAULT = 100, LIMIT_MAX = 1000 };

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

struct page {
    struct str user, cursor; /* cursor.ptr NULL = the first page */
    int64_t limit;
};

/* ---- the request ---- */

static enum status take_page(const struct http_request *request, struct page *page, struct error *error)
{
    static const char *const names[] = {"limit", "cursor", NULL};
    bool found;
    int64_t number;
    enum status status = http_request_param(request, "user_id", &page->user, error);
    page->limit = LIMIT_DEFAULT;
    if (status == STATUS_OK && (page->user.len == 0 || page->user.len > NOTIFICATION_TEXT_BYTES_MAX))
        status = error_set_field(error, STATUS_BAD_REQUEST, "user_id", "user_id must be 1 to %d bytes",
                                 NOTIFICATION_TEXT_BYTES_MAX);
    if (status == STATUS_OK)
        status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = http_request_query_i64(request, "limit", 1, LIMIT_MAX, &page->limit, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("cursor"), &found, &page->cursor, error);
    if (status == STATUS_OK && found && (!str_to_i64(page->cursor, &number) || number < 1))
        status = error_set_field(error, STATUS_BAD_REQUEST, "cursor",
                                 "cursor must be the next_cursor of an answer");
    return status;
}

/* ---- the answer ---- */

/* A row more than the limit means that there is a next page. */
static void answer_page(struct http_request *request, const struct page *page)
{
    const struct notification *notification = request->context;
    size_t limit = (size_t)page->limit;
    struct db_result *rows;
    struct error error = {0};
    struct buf body = {0};
    if (kernel_store_query(notification->kernel, &page_sql,
                           DB_PARAMS(db_text(kernel_identity(request)->tenant), db_text(page->user),
                                     db_bigint(page->cursor), db_i64(page->limit + 1)),
                           clock_deadline_ms(READ_MS), &rows, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    buf_put_char(&body, '{');
    json_put_member_str(&body, "user_id", page->user);
    json_put_key(&body, STR("notifications"));
    buf_put_char(&body, '[');
    for (size_t i = 0; i < limit && i < db_result_rows(rows); i++) {
        if (i)
            buf_put_char(&body, ',');
        buf_put_str(&body, db_result_str(rows, i, NOTIFICATION));
    }
    buf_put_char(&body, ']');
    if (db_result_rows(rows) > limit)
        json_put_member_str(&body, "next_cursor", db_result_str(rows, limit - 1, SEQUENCE));
    buf_put_char(&body, '}');
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
    buf_deinit(&body);
    db_result_free(rows);
}

/* ---- the routes ---- */

static void get_notifications(struct http_request *request)
{
    const struct auth_identity *identity = kernel_identity(request);
    struct page page;
    struct error error = {0};
    enum status status = take_page(request, &page, &error);
    if (status == STATUS_OK && !str_eq(identity->subject, page.user) &&
        !auth_has_scope(identity, STR("notification:read")))
        status = error_set(&error, STATUS_INSUFFICIENT_SCOPE,
                           "another user's notifications need the scope %s", "notification:read");
    if (status == STATUS_OK)
        answer_page(request, &page);
    else
        http_send_error(request, &error);
}

static void get_debug_inbox(struct http_request *request)
{
    struct notification *notification = request->context;
    struct page page;
    struct error error = {0};
    enum status status = kernel_debug_is_enabled(notification->kernel)
                             ? take_page(request, &page, &error)
                             : error_set(&error, STATUS_NOT_FOUND, "%s", status_message(STATUS_NOT_FOUND));
    if (status == STATUS_OK)
        answer_page(request, &page);
    else
        http_send_error(request, &error);
}

const struct http_route notification_routes[] = {
    {HTTP_GET, "/v1/users/{user_id}/notifications", get_notifications, .kind = HTTP_WORKER},
    {HTTP_GET, "/debug/notification/inbox/{user_id}", get_debug_inbox, .kind = HTTP_WORKER},
    {.handler = NULL},
};
