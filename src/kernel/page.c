/* Pages of a user's rows. */
#include "kernel/page.h"

#include "base/json.h"

enum status kernel_page_bad_cursor(struct error *error)
{
    return error_set_field(error, STATUS_BAD_REQUEST, "cursor",
                           "cursor must be the next_cursor of an answer");
}

enum status kernel_page_read(const struct http_request *request, struct kernel_page *page,
                             struct error *error)
{
    static const char *const names[] = {"limit", "cursor", NULL};
    const struct auth_identity *identity = kernel_identity(request);
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = http_request_param(request, "user_id", &page->user, error);
    if (status == STATUS_OK)
        status = http_request_query_i64(request, "limit", 1, KERNEL_PAGE_LIMIT_MAX, &page->limit, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("cursor"), &page->has_cursor, &page->cursor, error);
    if (status == STATUS_OK && page->scope && !str_eq(page->user, identity->subject) &&
        !auth_has_scope(identity, str_from(page->scope)))
        status = error_set(error, STATUS_INSUFFICIENT_SCOPE, "another user's %s need the scope %s",
                           page->name, page->scope);
    return status;
}

void kernel_page_send(struct http_request *request, const struct kernel_page *page,
                      const struct db_result *rows, unsigned column, struct str next_cursor)
{
    size_t count = db_result_rows(rows), limit = (size_t)page->limit;
    struct buf body = {0};
    buf_put_char(&body, '{');
    json_put_member_str(&body, "user_id", page->user);
    json_put_key(&body, str_from(page->name));
    for (size_t i = 0; i < count && i < limit; i++) {
        buf_put_char(&body, i ? ',' : '[');
        buf_put_str(&body, db_result_str(rows, i, column));
    }
    buf_put_str(&body, count ? STR("]") : STR("[]"));
    if (count > limit)
        json_put_member_str(&body, "next_cursor", next_cursor);
    buf_put_char(&body, '}');
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
    buf_deinit(&body);
}
