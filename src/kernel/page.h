/* A page of a user's rows: GET …/{user_id}/…?limit=…&cursor=… answers {"user_id", NAME: […], "next_cursor"}, the last only where
 * there is a next page. A user's own rows need no scope. */
#ifndef FRESHET_KERNEL_PAGE_H
#define FRESHET_KERNEL_PAGE_H

#include "kernel/kernel.h"

enum { KERNEL_PAGE_LIMIT_MAX = 1000 };

struct kernel_page {
    const char *name;  /* of the rows */
    const char *scope; /* for those of other users; NULL = none is needed */
    int64_t limit;     /* before kernel_page_read(): the default */
    struct str user, cursor;
    bool has_cursor; /* else the first page */
};

/* What the request asks for, and whether its caller may. */
enum status kernel_page_read(const struct http_request *request, struct kernel_page *page,
                             struct error *error) MUST_CHECK;
enum status kernel_page_bad_cursor(struct error *error);
/* `rows`: one more than the limit means that there is a next page, after next_cursor. The column is JSON. */
void kernel_page_send(struct http_request *request, const struct kernel_page *page,
                      const struct db_result *rows, unsigned column, struct str next_cursor);

#endif
