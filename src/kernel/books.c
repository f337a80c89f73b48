/* The rows of an outbox in the books: each is its own carrier until it is published or failed. Then its message carries the event, until the
 * readers have it. */
#include "kernel/books.h"

#include <stdio.h>

#include "kernel/audit.h"

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
        while (ids.len && str_split(&ids, ' ', &id))
            books->on_culprit(books, line.kind, id, remedy);
        books->on_line(books, &line);
    }
    db_result_free(counts);
    return status;
}

enum status kernel_books_count_lost(struct books *books, struct db_conn *conn,
                                    const struct kernel_audit *audit, int64_t keep_ms, const char *why,
                                    struct error *error)
{
    const struct outbox_table *table = audit->table;
    struct db_result *counts = NULL, *lost = NULL;
    struct buf sql = {0};
    buf_printf(
        &sql, "SELECT count(*) FROM %s WHERE %s = '%s' AND %s IS NULL AND %s >= now() - $1 * interval '1 ms'",
        table->name, table->words.column, table->words.published, table->last_error, table->created_at);
    buf_put_char(&sql, '\0');
    struct db_statement count_sql = db_statement_of(str_from(buf_str(&sql).ptr));
    enum status status =
        db_query(conn, &count_sql, DB_PARAMS(db_i64(keep_ms)), books->deadline_ns, &counts, error);
    if (status == STATUS_OK)
        status = db_query(conn, &audit->lost_sql, DB_PARAMS(db_i64(keep_ms), db_i64(keep_ms)),
                          books->deadline_ns, &lost, error);
    for (size_t i = 0; status == STATUS_OK && i < db_result_rows(lost); i++)
        books->on_culprit(books, audit->kind, db_result_str(lost, i, 0), why);
    if (status == STATUS_OK) {
        struct books_line line = {.kind = audit->kind,
                                  .accepted = db_result_i64(counts, 0, 0),
                                  .lost = (int64_t)db_result_rows(lost)};
        line.decided = line.accepted - line.lost;
        books->on_line(books, &line);
    }
    buf_deinit(&sql);
    db_result_free(counts);
    db_result_free(lost);
    return status;
}

/* $1 topic. */
static const struct db_statement followers_sql = DB_STATEMENT(
    "SELECT c.group_name, c.partition, c.position, greatest(p.next_offset - c.position, 0),"
    "       (SELECT count(*) FROM platform.bus_message m"
    "         WHERE m.topic = $1 AND m.partition = c.partition AND m.message_offset < c.position),"
    "       (SELECT count(*) FROM platform.bus_message m"
    "         WHERE m.topic = $1 AND m.partition = c.partition AND m.message_offset >= c.position)"
    " FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)"
    " WHERE c.topic = $1 AND c.group_name LIKE 'entity-%' ORDER BY c.group_name, c.partition");
enum { GROUP, PARTITION, POSITION, OWED, HANDLED, STORED };

enum status kernel_books_count_followers(struct books *books, struct db_conn *conn, const char *topic,
                                         struct error *error)
{
    struct db_result *rows = NULL;
    struct books_line line = {0};
    char kind[256], id[96];
    enum status status =
        db_query(conn, &followers_sql, DB_PARAMS(db_cstr(topic)), books->deadline_ns, &rows, error);
    for (size_t i = 0; status == STATUS_OK && i < db_result_rows(rows); i++) {
        int64_t owed = db_result_i64(rows, i, OWED), handled = db_result_i64(rows, i, HANDLED);
        int64_t missing = owed - db_result_i64(rows, i, STORED);
        struct str group = db_result_str(rows, i, GROUP);
        line.decided += handled;
        line.accepted += handled + owed;
        line.lost += missing > 0 ? missing : 0;
        snprintf(kind, sizeof kind, "%s:%.*s", topic, STR_ARG(group));
        line.kind = kind;
        snprintf(id, sizeof id, "%lld from partition %lld, offset %lld", (long long)missing,
                 (long long)db_result_i64(rows, i, PARTITION), (long long)db_result_i64(rows, i, POSITION));
        if (missing > 0)
            books->on_culprit(books, kind, str_from(id), "messages were deleted before the group read them");
        if (i + 1 < db_result_rows(rows) && str_eq(db_result_str(rows, i + 1, GROUP), group))
            continue;
        books->on_line(books, &line);
        line = (struct books_line){0};
    }
    db_result_free(rows);
    return status;
}
