/* The rows of an outbox in the books: each is its own carrier until it is published or failed. */
#include "kernel/books.h"

enum status kernel_books_count_rows(struct books *books, struct db_conn *conn,
                                    const struct outbox_table *table, const char *remedy, struct error *error)
{
    struct db_result *counts = NULL;
    enum status status = outbox_count(conn, table, books->deadline_ns, &counts, error);
    if (status == STATUS_OK) {
        struct books_line line = {.kind = table->name,
                                  .accepted = db_result_i64(counts, 0, 0),
                                  .decided = db_result_i64(counts, 0, 1),
                                  .lost = db_result_i64(counts, 0, 2)};
        struct str ids = db_result_str(counts, 0, 3), id;
        for (bool more = ids.len > 0; more;) {
            more = str_split(&ids, ' ', &id);
            books->on_culprit(books, line.kind, more ? id : ids, remedy);
        }
        books->on_line(books, &line);
    }
    db_result_free(counts);
    return status;
}
