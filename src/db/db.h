/* PostgreSQL: connections, transactions, pipelines and named-parameter SQL. The only folder that knows libpq.
 *
 * A connection is used by one thread at a time, a worker's: calls block, but never past their deadline,
 * whatever the peer does (sockets are non-blocking inside, and each wait is a poll() bounded by the
 * deadline). The pool opens connections on demand, checks what it hands out, and stops trying for a while
 * after failures (a circuit breaker: DB_DOWN at once instead of a connect timeout for every caller).
 *
 * Failures: DB_DOWN (cannot connect, connection lost: outcome of a COMMIT in flight is unknown), TIMEOUT,
 * DB_RETRY (deadlock, serialization failure: run the whole transaction again), DB_ERROR (the statement was
 * refused; see db_sqlstate()). */
#ifndef FRESHET_DB_DB_H
#define FRESHET_DB_DB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"
#include "loop/loop.h"

/* ---- where the database is ---- */
struct db_target {
    const char *name;    /* for logs and metrics: "main" */
    struct str url;      /* jdbc:postgresql://host:port/db?…, postgresql://…, or postgres://… */
    struct str username; /* empty = from the URL */
    struct str password; /* empty = from the URL; never logged */
    struct str
        password_file; /* holds the password instead, and is read for each connection; empty = without */
    struct str
        schema; /* search_path: names, comma-separated, taken literally; empty = the server's default */
    unsigned connections_max;
    int64_t connect_timeout_ms, statement_timeout_ms, idle_timeout_ms;
    int64_t backoff_min_ms, backoff_max_ms; /* of reconnecting; the breaker's open time */
    /* Statements are planned once per connection, as lookups by index, whatever size the tables had at that moment: for
     * SQL of our own, written for it. SQL of users runs after DB_PLAN_FREELY_SQL. */
    bool fixed_plans;
    struct db_server *server; /* NULL: shares nothing */
};

/* ---- a server: one database of one PostgreSQL, as one user, with what its users in this process share ----
 * Named by the targets of pools, listeners and notifiers, it has their idle connections, and one LISTEN connection and one
 * notifier per loop. It opens nothing by itself, and outlives what was created with it. */
/* The one of the list (NULL = empty) with the target's hosts, database and login, or a new one; NULL when the URL cannot
 * be understood. A list is for one thread. */
struct db_server *db_server_find(struct db_server **list, const struct db_target *target);
void db_servers_destroy(struct db_server *list);

/* Its texts are in the arena; its name is that of the target, or with a suffix NAME-SUFFIX. */
struct db_target db_target_copy(const struct db_target *target, const char *suffix, struct arena *arena);
/* The status and error of a db_pool_create() with it. */
enum status db_target_check(const struct db_target *target, struct error *error) MUST_CHECK;

struct db_pool;
/* Opens nothing yet. CONFIG when the URL cannot be understood (the message names the part, never the
 * password). */
enum status db_pool_create(const struct db_target *target, struct db_pool **pool,
                           struct error *error) MUST_CHECK;
void db_pool_destroy(struct db_pool *pool);     /* every connection must have been released */
bool db_pool_is_up(const struct db_pool *pool); /* any thread: did the last attempt succeed? */
/* Any thread: the process is stopping. Statements under way are given up within a moment and every later call
 * answers CANCELLED, so that a stop never waits for a query's own deadline. */
void db_pool_interrupt(struct db_pool *pool);
/* "host:port/database", without user or password, for logs */
const char *db_pool_address(const struct db_pool *pool);
const char *db_pool_database(const struct db_pool *pool); /* its name on the server; "" = not said */
struct buf;
void db_pool_put_hosts(const struct db_pool *pool, struct buf *names,
                       struct buf *ports); /* comma-separated */

struct db_conn;
enum status db_acquire(struct db_pool *pool, int64_t deadline_ns, struct db_conn **conn,
                       struct error *error) MUST_CHECK;
/* The same for work that may take long, such as SQL of users: it never has all connections. Two are left to db_acquire(), or one
 * where there are two or three. */
enum status db_acquire_long(struct db_pool *pool, int64_t deadline_ns, struct db_conn **conn,
                            struct error *error) MUST_CHECK;
/* Back to the pool; one that is broken or still inside a transaction is rolled back or closed, never reused
 * dirty. */
void db_release(struct db_conn *conn);
/* A time (clock_mono_ns()) since which its server is known not to have crashed: this connection, or one that was open before
 * and after this one was opened, would be gone. */
int64_t db_conn_opened_ns(const struct db_conn *conn);

/* ---- statements ----
 * SQL of our own is a static statement without types; each parameter brings its type:
 *
 *     static const struct db_statement find_sql = DB_STATEMENT("SELECT title FROM intake.item"
 *                                                              " WHERE tenant = $1 AND id = $2");
 *     status = db_query(conn, &find_sql, DB_PARAMS(db_text(tenant), db_i64(id)), deadline_ns, &rows, error);
 *
 * A statement is prepared on a connection at its first use there and kept (a bounded number per connection); it is found
 * again by its address and its parameters' types, without reading its text. */
enum db_type {
    DB_NO_TYPE, /* ends a list of parameters */
    DB_TEXT,
    DB_JSONB,
    DB_BIGINT,
    DB_INT,
    DB_TEXT_ARRAY,
    DB_BOOL,
    DB_UUID,
    DB_BYTEA,
    DB_BYTEA_ARRAY
};

/* A value as text, with its type; ptr NULL = SQL NULL. Numbers become text when they are sent. The text is borrowed until the
 * statement has been sent: until db_query() or db_pipeline_add() returns. */
struct db_param {
    struct str value;
    enum db_type type;
    bool is_number;
    int64_t number;
};

#define DB_VALUE(text, of_type) ((struct db_param){.value = (text), .type = (of_type)})
#define DB_NUMBER(n, of_type) ((struct db_param){.type = (of_type), .is_number = true, .number = (n)})
#define db_text(s) DB_VALUE(s, DB_TEXT)
#define db_cstr(z) DB_VALUE(str_from(z), DB_TEXT)
#define db_jsonb(s) DB_VALUE(s, DB_JSONB)
#define db_i64(n) DB_NUMBER(n, DB_BIGINT)
#define db_int(n) DB_NUMBER(n, DB_INT)
#define db_bigint(s) DB_VALUE(s, DB_BIGINT) /* already text */
#define db_bool(b) DB_VALUE((b) ? STR("true") : STR("false"), DB_BOOL)
#define db_uuid(s) DB_VALUE(s, DB_UUID)
#define db_bytea(s) DB_VALUE(s, DB_BYTEA)             /* the bytes themselves */
#define db_text_array(s) DB_VALUE(s, DB_TEXT_ARRAY)   /* as db_array_put() wrote it */
#define db_bytea_array(s) DB_VALUE(s, DB_BYTEA_ARRAY) /* as db_bytes_array_put() wrote it */
#define db_null(of_type) DB_VALUE(STR_NONE, of_type)

/* A list of parameters always ends in DB_END. */
#define DB_END ((struct db_param){.type = DB_NO_TYPE})
#define DB_PARAMS(...) ((const struct db_param[]){__VA_ARGS__, DB_END})
#define DB_NO_PARAMS NULL
#define DB_PARAMS_MAX 32

struct db_statement {
    struct str text; /* NUL-terminated */
    uint64_t id;     /* hash of the text; 0 = the text is static, and found by its address */
    /* Results in PostgreSQL's binary form: bytea is the bytes themselves, text is text; everything else must be cast to text. */
    bool binary_results;
    /* Of templates: the types stand here; of the parameters only their values are read. */
    bool has_types;
    unsigned param_count;
    enum db_type types[DB_PARAMS_MAX];
    unsigned names[DB_PARAMS_MAX]; /* which row of the name table $n is: db_sql_compile() */
};

#define DB_STATEMENT(sql)                \
    {                                    \
        .text = { sql, sizeof(sql) - 1 } \
    }
#define DB_STATEMENT_BINARY(sql)                               \
    {                                                          \
        .text = {sql, sizeof(sql) - 1}, .binary_results = true \
    }
/* For SQL that is put together at run time: hashes the text, which the caller keeps as long as the statement. */
struct db_statement db_statement_of(struct str sql);
unsigned db_param_count(const struct db_statement *statement, const struct db_param *params);

/* The parameters a template may name. */
struct db_name {
    const char *name; /* without the colon; NULL ends the table */
    enum db_type type;
};

/* Compiles ":name" SQL into "$n" SQL. Casts (::type), string literals ('…', E'…', U&'…'), quoted identifiers,
 * dollar quotes, line and nested block comments and array slices [a:b] are left alone; every parameter is
 * bound, never pasted. A colon directly before a letter or '_' is a parameter unless it is the second of a
 * cast, so a slice bound that is a column needs a space: a[1: n]. One statement only: a second one after ';'
 * is refused, as are $1 and NUL bytes. CONFIG on failure, and *offset is the byte the error stands at. The
 * result lives in `arena`. */
enum status db_sql_compile(struct str sql, const struct db_name *names, struct arena *arena,
                           struct db_statement *statement, size_t *offset, struct error *error) MUST_CHECK;
/* The byte offset in the template `sql` of PostgreSQL's error position (1-based, in characters, of the
 * compiled text; see db_describe()). */
size_t db_statement_offset(const struct db_statement *statement, struct str sql, size_t position);

/* A text[] literal, into a buf that is empty at first: put …, end. */
void db_array_put(struct buf *out, struct str element); /* quoted and escaped */
void db_array_put_i64(struct buf *out, int64_t number);
void db_array_put_null(struct buf *out);
struct str db_array_end(struct buf *out); /* the whole literal */

void db_bytes_array_begin(struct buf *out, size_t count);     /* bytea[], in binary form: then as many … */
void db_bytes_array_put(struct buf *out, struct str element); /* … of these; ptr NULL = NULL */

/* Till the end of the transaction, plans are made as the server sees fit. */
#define DB_PLAN_FREELY_SQL                                                                          \
    "select set_config('plan_cache_mode', 'auto', true), set_config('enable_seqscan', 'on', true)," \
    " set_config('enable_hashjoin', 'on', true), set_config('enable_mergejoin', 'on', true)"

/* ---- running them ---- */
struct db_result; /* all rows of one statement */
enum status db_query(struct db_conn *conn, const struct db_statement *statement,
                     const struct db_param *params, int64_t deadline_ns, struct db_result **result,
                     struct error *error) MUST_CHECK;
/* The same where no rows matter. *affected may be NULL. */
enum status db_exec(struct db_conn *conn, const struct db_statement *statement, const struct db_param *params,
                    int64_t deadline_ns, int64_t *affected, struct error *error) MUST_CHECK;
/* The same for a single statement: a connection of the pool for this call only. */
enum status db_pool_query(struct db_pool *pool, const struct db_statement *statement,
                          const struct db_param *params, int64_t deadline_ns, struct db_result **result,
                          struct error *error) MUST_CHECK;
enum status db_pool_exec(struct db_pool *pool, const struct db_statement *statement,
                         const struct db_param *params, int64_t deadline_ns, int64_t *affected,
                         struct error *error) MUST_CHECK;
void db_result_free(struct db_result *result); /* NULL is fine */
size_t db_result_rows(const struct db_result *result);
int64_t db_result_affected(const struct db_result *result); /* rows written (or read, for a SELECT) */
bool db_result_is_null(const struct db_result *result, size_t row, unsigned column);
struct str db_result_str(const struct db_result *result, size_t row,
                         unsigned column); /* valid till freed; NUL-terminated */
int64_t db_result_i64(const struct db_result *result, size_t row, unsigned column); /* 0 for NULL */
/* The first column called `name` and its type; false when there is none. */
bool db_result_find(const struct db_result *result, const char *name, unsigned *column, uint32_t *type_oid);

/* Row by row: memory does not grow with the result. `on_row` returns false to stop early: the statement is
 * then cancelled, its connection closed, and db_stream() answers CANCELLED. */
typedef bool db_row_fn(void *context, const struct db_result *row); /* a result of one row, borrowed */
enum status db_stream(struct db_conn *conn, const struct db_statement *statement,
                      const struct db_param *params, int64_t deadline_ns, db_row_fn *on_row, void *context,
                      struct error *error) MUST_CHECK;

/* What PostgreSQL itself knows of a statement: prepares it and lists its result columns. On DB_ERROR,
 * *position is the 1-based character in the statement's text (0 = none): db_statement_offset() maps it back
 * to the template. */
#define DB_COLUMNS_MAX 64
struct db_column {
    char name[64];
    uint32_t type_oid;
};
enum { DB_OID_JSON = 114, DB_OID_JSONB = 3802 };
enum status db_describe(struct db_conn *conn, const struct db_statement *statement, struct db_column *columns,
                        unsigned *column_count, int64_t deadline_ns, size_t *position,
                        struct error *error) MUST_CHECK;

/* Inside a transaction: plans a statement that db_describe() accepts, and has the server check the user's privileges on what it uses,
 * without running it. *plan is one row of JSON, which says so where the statement has no plan (CALL). Refused by the planner
 * or for a privilege, the transaction can still be used; its plans are generic from then on. */
enum status db_explain(struct db_conn *conn, const struct db_statement *statement, int64_t deadline_ns,
                       struct db_result **plan, struct error *error) MUST_CHECK;

/* The last failure's SQLSTATE on this connection ("" when there was none), e.g. "23505". */
const char *db_sqlstate(const struct db_conn *conn);
/* SQLSTATEs of this class are raised by functions of our own to end a pipeline early: an answer, not counted as a failure. */
#define DB_SIGNAL_CLASS "FR"

/* ---- transactions ---- */
enum db_isolation { DB_READ_COMMITTED, DB_REPEATABLE_READ_ONLY };
enum status db_begin(struct db_conn *conn, enum db_isolation isolation, int64_t deadline_ns,
                     struct error *error) MUST_CHECK;
enum status db_commit(struct db_conn *conn, int64_t deadline_ns, struct error *error) MUST_CHECK;
/* Inside a transaction: lets its statements take this long instead of the target's statement_timeout (0 = for
 * ever). For what is known to be long, such as a full load; the deadline of each call still holds. */
enum status db_transaction_timeout(struct db_conn *conn, int64_t timeout_ms, int64_t deadline_ns,
                                   struct error *error) MUST_CHECK;
void db_rollback(
    struct db_conn *conn); /* never fails: a connection that cannot roll back is closed on release */

/* Inside a transaction: a place to come back to; one at a time. After a statement was refused, rolling back to it makes
 * the transaction usable again. As a statement, for a pipeline: DB_SAVEPOINT_SQL. */
#define DB_SAVEPOINT_SQL "SAVEPOINT freshet"
enum status db_rollback_to_savepoint(struct db_conn *conn, int64_t deadline_ns,
                                     struct error *error) MUST_CHECK;

/* ---- pipelines: several statements in one round trip ----
 * Everything between begin and end goes out together; the first failure makes the server skip the rest. BEGIN
 * and COMMIT may be among them; a BEGIN whose COMMIT was skipped needs a db_rollback().
 *
 *     db_pipeline_begin(conn);
 *     db_pipeline_add(conn, &db_begin_sql, DB_NO_PARAMS);
 *     db_pipeline_add(conn, &insert_sql, DB_PARAMS(db_text(name)));
 *     db_pipeline_add(conn, &db_commit_sql, DB_NO_PARAMS);
 *     status = db_pipeline_end(conn, deadline_ns, results, 3, &failed_at, error);
 *
 * The first failure sticks and is reported by the end, also that of a begin or an add; a parameter that cannot be sent counts
 * as a statement that the server refused.
 *
 * db_pipeline_end() waits for all. `results` (NULL = not wanted) has room for `count` of them, in order; on
 * failure none is handed out, *failed_at is the first that failed (`count` when it was the connection) and
 * the status is its. DB_RETRY also stands for a prepared statement the server dropped or no longer accepts:
 * run the whole again. */
extern const struct db_statement db_begin_sql, db_commit_sql;
/* A transaction with it ends, unless its synchronous_commit is off, when all that was committed before it is on disk too. */
extern const struct db_statement db_flush_sql;
void db_pipeline_begin(struct db_conn *conn);
void db_pipeline_add(struct db_conn *conn, const struct db_statement *statement,
                     const struct db_param *params);
enum status db_pipeline_end(struct db_conn *conn, int64_t deadline_ns, struct db_result **results,
                            size_t count, size_t *failed_at, struct error *error) MUST_CHECK;
/* Instead of an end: what was added goes out with the connection's next pipeline, in that one's round trip. Its failure
 * is the next one's, whose results and places are counted from its own begin. Only a pipeline, a commit or a rollback may
 * follow.
 * `results` must live until then: that end fills in `count` of them, or NULLs. NULL: those wanted by an earlier leave, if any. */
void db_pipeline_leave(struct db_conn *conn, struct db_result **results, size_t count);
/* The results of what was left are not wanted any more, or have come. */
void db_pipeline_forget(struct db_conn *conn);
/* Of the last statement added: is its first field true? Known when the pipeline has ended; false until then. */
void db_pipeline_ask(struct db_conn *conn);
bool db_pipeline_is_true(const struct db_conn *conn); /* what was asked last */
/* A notice as a statement of a pipeline. Its transaction waits for no disk, so that the lock all notices queue for is not held
 * meanwhile: most often one of its own, after the COMMIT. For a single notice that a client waits for; many notices are sent by a
 * notifier. The payload is UTF-8 of less than 8,000 bytes. */
void db_pipeline_add_notice(struct db_conn *conn, struct str channel, struct str payload);

/* ---- notices ----
 * Listener: LISTENs on a loop; survives a dead server (backoff), and reports when it is listening again, since notices
 * sent meanwhile are lost. Listeners of one server on one loop share a connection. Its callbacks run on that loop. */
struct db_listener;
struct db_listener_config {
    struct loop *loop;
    const struct db_target *target;
    const char *channels[3]; /* plain identifiers that outlive it; NULL ends them */
    void (*on_notice)(void *context, struct str channel, struct str payload);
    void (*on_listening)(void *context); /* (re)connected: look for what was missed */
    void *context;
};
/* NULL when the target's URL cannot be understood: db_pool_create() reports why. */
struct db_listener *db_listener_create(const struct db_listener_config *config);
/* Created on its loop or before that runs; destroyed on it or after it ended, also by its own callbacks. */
void db_listener_destroy(struct db_listener *listener);

/* Poll: a condition that is looked at in intervals, in case a notice was lost. Polls of one server on one loop share a connection
 * and a statement, which has the shortest of their intervals. The callback runs on that loop. */
#define DB_POLL_UNKNOWN \
    (-1) /* the condition could not be evaluated, or the connection was lost: the owner checks by itself */
struct db_poll;
struct db_poll_config {
    struct loop *loop;
    const struct db_target *target;
    const char *
        sql; /* an expression of a whole number that is not negative; copied. It must be cheap while there is nothing to do */
    int64_t every_ms;
    void (*on_value)(void *context, int64_t value);
    void *context;
};
/* NULL when the target's URL cannot be understood. Created and destroyed as a listener. */
struct db_poll *db_poll_create(const struct db_poll_config *config);
void db_poll_destroy(struct db_poll *poll);
/* Any thread. While it is false the poll does not run; on_value(DB_POLL_UNKNOWN) is called when it becomes false. False for NULL. */
bool db_poll_is_up(const struct db_poll *poll);

/* Notifier: one connection that sends coalesced NOTIFYs after commits, at most one round every `window_us`. Those of one
 * server on one loop are one; it has the shortest window. NOTIFY inside a writing transaction would serialise all commits. db_notify() is
 * for any thread, takes no round trip, and the same (channel, payload) waiting already is sent once. Bounded:
 * past 10,000 waiting ones the payload is dropped to "" (receivers then look everywhere); polling covers what
 * is lost. */
struct db_notifier;
/* NULL when the target's URL cannot be understood. */
struct db_notifier *db_notifier_create(struct loop *loop, const struct db_target *target, int64_t window_us);
void db_notifier_destroy(
    struct db_notifier *notifier); /* on its loop, or after the loop ended; after the last db_notify() */
void db_notify(struct db_notifier *notifier, struct str channel, struct str payload);

/* ---- migrations (C10) ----
 * Numbered per module; each in its own transaction together with its row in platform.schema_migration; all
 * under one advisory lock, so that any number of processes may start at once. A migration whose text changed
 * after it was applied is CONFIG.
 *
 * A database may be newer than the program, while a release replaces the one before it (ADR 18). A migration that older
 * programs do not survive names the oldest that does, by the last migration it knows. The database records it, and everything
 * below refuses with CONFIG to work for a program older than that. */
struct db_migration { /* tools/embed_sql.py makes the table from sql/<module>/NNN_name.sql */
    unsigned number;  /* 0 ends the table */
    const char *name, *sql;
    unsigned oldest_program; /* 0 = all that worked before it */
};
unsigned db_migrations_last(const struct db_migration *migrations); /* its number */
struct db_schema {
    const char *module; /* NULL ends a list */
    const struct db_migration *migrations;
};
enum status db_migrate(struct db_pool *pool, const char *module, const struct db_migration *migrations,
                       int64_t deadline_ns, unsigned *applied, struct error *error) MUST_CHECK;
/* Are all of them applied? *missing is the first that is not, 0 = none. */
enum status db_migrate_check(struct db_pool *pool, const char *module, const struct db_migration *migrations,
                             int64_t deadline_ns, unsigned *missing, struct error *error) MUST_CHECK;
/* What db_migrate() would run, as a script for psql that does the same. Changes nothing. */
enum status db_migrate_plan(struct db_pool *pool, const char *module, const struct db_migration *migrations,
                            int64_t deadline_ns, struct buf *sql, unsigned *count,
                            struct error *error) MUST_CHECK;

/* Is the database too new for this program (CONFIG)? One statement for all schemas of the list. */
enum status db_schemas_check_age(struct db_pool *pool, const struct db_schema *schemas, int64_t deadline_ns,
                                 struct error *error) MUST_CHECK;

struct db_schema_state {
    unsigned last;           /* applied; 0 = none */
    unsigned missing;        /* how many this program has that are not */
    unsigned oldest_program; /* that works with it; 0 = any */
};
/* Also where the database is too new for this program: *state shows it. */
enum status db_migrate_state(struct db_pool *pool, const char *module, const struct db_migration *migrations,
                             int64_t deadline_ns, struct db_schema_state *state,
                             struct error *error) MUST_CHECK;

#endif
