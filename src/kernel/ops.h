/* What operators may list (docs/OPS.md), as rows that a module exports: views in its `const struct module`. The module ops serves them all by
 * one handler; the command line uses the same rows without a server.
 *
 * A view is one SELECT that is put together of its rows: only the conditions that were asked for stand in it, so that PostgreSQL finds the
 * index of each. A page begins after the keys of the last row of the page before (never OFFSET); the keys are unique together and ascend
 * or descend together, as an index of the table has them. Every value is a bound parameter.
 *
 * A view that is scanned has no index for some of its conditions, because one would cost every write. Of its table OPS_SCAN_ROWS rows are
 * read in the order of the keys, and those that fit are shown: a page may be short, and the next one begins where the scan stopped. */
#ifndef FRESHET_KERNEL_OPS_H
#define FRESHET_KERNEL_OPS_H

#include "db/db.h"
#include "kernel/kernel.h"

enum { OPS_KEYS_MAX = 6, OPS_FILTERS_MAX = 12, OPS_LIMIT = 50, OPS_LIMIT_MAX = 500, OPS_SCAN_ROWS = 20000 };

/* Of columns, filters and keys. */
enum ops_type {
    OPS_TEXT,   /* as a key: bytewise, so its SQL has `collate "C"` unless the column does */
    OPS_NUMBER, /* bigint; as a column any number */
    OPS_BOOL,
    OPS_UUID,
    OPS_TIME, /* timestamptz; shown as RFC 3339 to the microsecond */
    OPS_JSON, /* columns only */
};

/* A member of a row's JSON object. */
struct ops_column {
    const char *name, *sql; /* NULL ends the table */
    enum ops_type type;
    bool is_optional; /* left out where it is null */
};

/* A value that a filter takes, with its own condition; NULL = the filter's. */
struct ops_choice {
    const char *name, *sql;
};

/* A query parameter, or with is_path a parameter of the route's path. */
struct ops_filter {
    const char *name; /* NULL ends the table */
    enum ops_type type;
    const char *sql;                  /* a condition with $? for the value */
    const struct ops_choice *choices; /* the only values, ended by a NULL name; NULL = any */
    const char *fallback;             /* where it is not given; NULL = no condition */
    bool is_path;
    /* Of a view that is scanned: the index has it, so that the scan begins with it; with tenant_is_indexed where a tenant is asked for. */
    bool is_indexed;
};

struct ops_key {
    const char *sql; /* NULL ends them */
    enum ops_type type;
};

enum ops_place {
    OPS_STORE,     /* the database of the modules' own tables (store.h) */
    OPS_DATABASES, /* each database of the module (each_database): refdata's */
    OPS_ANYWHERE,  /* tables of the schema platform: the store and all databases, each once */
};

struct ops_view {
    const char *name; /* its path after /v1/ops/: "updates", "updates/{tenant_id}/{event_id}" */
    enum ops_place place;
    const char *from;   /* "refdata.update_request r"; of a view that is scanned always as r */
    const char *join;   /* "left join … on …", for columns; NULL = none */
    const char *where;  /* always; NULL = nothing */
    const char *tenant; /* the column or expression that holds a row's tenant; NULL: rows belong to none */
    const struct ops_column *columns;
    const struct ops_filter *filters; /* NULL = none */
    struct ops_key keys[OPS_KEYS_MAX];
    bool is_descending;
    bool is_scanned, tenant_is_indexed;
    /* Of the same keys in several databases one row is shown: the one whose column of this name is the greatest text. NULL = all are. */
    const char *merged_by;
    /* Of several views of one name that one is shown whose `is` the query parameter `by` has; without it the first. `is` NULL: for all other
     * values, which are those of its filter of that name. */
    const char *by, *is;
    bool is_single;      /* at most one row, answered as an object */
    enum status missing; /* of a single one that is not there; 0 = NOT_FOUND */
};

/* ---- one database ---- */
/* What is asked of a view. Texts are borrowed. */
struct ops_question {
    struct str tenant;                  /* whose rows; ptr NULL = of all tenants, and of none */
    struct str values[OPS_FILTERS_MAX]; /* in the order of the view's filters; ptr NULL = not asked for */
    bool has_after;                     /* else the first page */
    struct str after[OPS_KEYS_MAX];     /* keys of the last row before this page */
    bool includes_after; /* a row with exactly these keys belongs to this page: another database had them */
    int64_t limit;
};
/* Is it a value of that type? BAD_REQUEST that names the filter. A time becomes its UTC form, in the arena. */
enum status kernel_ops_value_check(const struct ops_filter *filter, struct str *value, struct arena *arena,
                                   struct error *error) MUST_CHECK;
/* Rows of one database, at most the limit, and how far it was looked through. */
struct ops_answer {
    struct db_result *rows; /* columns: the view's, then its keys */
    struct db_result *end;  /* its only row has the keys at which the scan stopped; else NULL, or no row */
    bool has_more;          /* there may be rows after those keys, or after the last row */
    struct str stop[OPS_KEYS_MAX]; /* with has_more: all rows up to these keys are in the answer */
};
/* On a worker. */
enum status kernel_ops_list(struct db_conn *conn, const struct ops_view *view,
                            const struct ops_question *question, int64_t deadline_ns,
                            struct ops_answer *answer, struct error *error) MUST_CHECK;
void kernel_ops_answer_free(struct ops_answer *answer);
/* A row of that result as a JSON object, with a comma before it where it is not the first of a list; `database` NULL = it is not shown. */
void kernel_ops_put_row(struct buf *out, const struct ops_view *view, const struct db_result *rows,
                        size_t row, const char *database);
/* The keys of a row. */
void kernel_ops_row_keys(const struct ops_view *view, const struct db_result *rows, size_t row,
                         struct str keys[OPS_KEYS_MAX]);
/* The order of rows by their keys: < 0, 0, > 0. */
int kernel_ops_keys_compare(const struct ops_view *view, const struct str *a, const struct str *b);

/* ---- keys of a dictionary in memory, for list_keys() of a module ---- */
struct ops_keys {
    struct str tenant, dict_code, prefix; /* empty = all */
    struct str after;                     /* ptr NULL = from the first on */
    int64_t limit;
    struct arena *arena;
    /* the answer */
    struct buf *items; /* {"key","bytes"}, with commas between them, in bytewise order */
    struct str last;   /* in the arena */
    bool has_more;     /* after it */
    int64_t version;
};

/* ---- the audit: who changed what, when and why ----
 * One row for each change by an operator, in the transaction of the change, by whichever way it came. */
struct ops_audit {
    struct str tenant;         /* whose rows were changed; ptr NULL = of all tenants */
    struct str who;            /* the token's subject; "cli:USER" for the command line */
    struct str action, target; /* "outbox.retry", "refdata.outbox_event" */
    struct str ids;            /* JSON array, or ptr NULL */
    struct str filter;         /* JSON object, or ptr NULL */
    int64_t matched, changed;
    struct str reason; /* 1 to 500 characters */
};
enum status kernel_ops_audit_write(struct db_conn *conn, const struct ops_audit *audit, int64_t deadline_ns,
                                   struct error *error) MUST_CHECK;

/* Main thread: the server that targets of this process share connections by. */
struct db_server *kernel_server_of(struct kernel *kernel, const struct db_target *target);

#endif
