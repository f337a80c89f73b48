/* A writer: statements on their way to PostgreSQL, many to a round trip. They are sent as they are added; the first failure is kept,
 * what is added after it does nothing, and refdata_writer_wait() returns it. */
#ifndef FRESHET_REFDATA_WRITER_H
#define FRESHET_REFDATA_WRITER_H

#include "db/db.h"

struct refdata_writer {
    struct db_conn *conn;
    int64_t deadline_ns;
    struct arena *arena;
    size_t pending, bytes; /* added since the last wait */
    bool open;             /* a pipeline is */
    bool plans_freely;
    size_t added, begun; /* all statements so far; those before the open pipeline */
    /* Which of them write one item each, in this order: a failure names the item. */
    const struct refdata_item *items;
    size_t item_count, items_from;
    enum status status; /* the first failure */
    struct error error;
};

struct refdata_item;
/* The next `count` statements write these items, one each. The array lives as long as the writer. */
void refdata_writer_name_items(struct refdata_writer *writer, const struct refdata_item *items, size_t count);

/* Values are copied. After a failure nothing more is sent: a new writer is needed. */
void refdata_writer_add(struct refdata_writer *writer, const struct db_statement *statement,
                        const struct db_param *params);
/* Waits for what was added, then asks. NULL after a failure. */
struct db_result *refdata_writer_query(struct refdata_writer *writer, const struct db_statement *statement,
                                       const struct db_param *params);
/* The first failure, or OK: all of it was done. */
enum status refdata_writer_wait(struct refdata_writer *writer, struct error *error) MUST_CHECK;
/* Instead of a wait, at the end: what was added goes out with the caller's commit. */
enum status refdata_writer_leave(struct refdata_writer *writer, struct error *error) MUST_CHECK;
/* What follows in this transaction is known to be long (a whole snapshot): statements may take this long, and are planned
 * freely. */
void refdata_writer_allow(struct refdata_writer *writer, int64_t timeout_ms);
/* What follows in this transaction is not our SQL, or large: db.h's DB_PLAN_FREELY_SQL. */
void refdata_writer_plan_freely(struct refdata_writer *writer);

/* ---- values as text ---- */
/* Rows to be written by one statement. Many go as arrays side by side, for unnest(). One alone, which is what most updates are,
 * needs no arrays: its statement's parameters are the values themselves. */
#define REFDATA_COLUMNS_MAX 12
struct refdata_columns {
    struct arena *arena;
    unsigned count;
    size_t rows, capacity;
    struct str *cells; /* row by row; no ptr = NULL */
    struct buf arrays;
};
struct refdata_rows_sql {
    struct db_statement many; /* … from unnest($1, $2) as u (a, b) … */
    struct db_statement one;  /* … from (values ($1, $2)) as u (a, b) … */
};
/* Both of a macro that writes the SQL around its rows; ORDERED: their place is one more column. */
#define REFDATA_ROWS_SQL(sql, values)                                                       \
    {                                                                                       \
        DB_STATEMENT(sql("unnest(" values ")")), DB_STATEMENT(sql("(values (" values "))")) \
    }
#define REFDATA_ORDERED_SQL(sql, values)                         \
    {                                                            \
        DB_STATEMENT(sql("unnest(" values ") with ordinality")), \
            DB_STATEMENT(sql("(values (" values ", 1))"))        \
    }
void refdata_columns_begin(struct refdata_columns *columns, unsigned count, struct arena *arena);
/* A value for each column; no ptr = NULL. The texts are borrowed until the statement is sent. */
void refdata_columns_add(struct refdata_columns *columns, const struct str *row);
#define REFDATA_ROW(...) ((const struct str[]){__VA_ARGS__})
#define REFDATA_I64(arena, number) arena_printf(arena, "%lld", (long long)(number))
/* Adds the statement, whose parameters are the columns, unless there are no rows; frees them. */
void refdata_columns_write(struct refdata_columns *columns, const struct refdata_rows_sql *sql,
                           struct refdata_writer *writer);
/* The same for a caller that adds it itself: the statement, and its parameters, which live until the columns are freed. */
const struct db_statement *refdata_columns_bind(struct refdata_columns *columns,
                                                const struct refdata_rows_sql *sql,
                                                struct db_param params[REFDATA_COLUMNS_MAX + 1]);
/* The arrays alone. */
void refdata_columns_bind_arrays(struct refdata_columns *columns, struct db_param *params);
/* Those of items: keys, and payloads, of which a deletion has none. */
void refdata_columns_bind_items(struct refdata_columns *columns, const struct refdata_item *items,
                                size_t count, struct arena *arena, struct db_param *params);
void refdata_columns_free(struct refdata_columns *columns);

#endif
