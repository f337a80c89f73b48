/* One connection: bounded waits, results, what an error means, cancel requests, and transactions.
 *
 * libpq's socket is non-blocking; every wait is a poll() that ends at the caller's deadline. A connection
 * that timed out or broke is closed on the spot, since what the server would still send belongs to no caller;
 * its struct stays with its user until released, and answers DB_DOWN. */
#include "db/db.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/budget.h"
#include "base/clock.h"
#include "db/db_inside.h"

/* ---- cancel requests ----
 * A statement whose caller gave up must not go on at the server, holding locks until its statement_timeout. libpq's
 * PQcancel() opens a connection and blocks without a time limit, so it runs on a detached thread; past a few at once
 * the request is left out, and statement_timeout does the work. */

#define CANCELS_MAX 8

static atomic_uint cancels_running;

static void *run_cancel(void *arg)
{
    char message[256];

    PQcancel(arg, message, sizeof message);
    PQfreeCancel(arg);
    atomic_fetch_sub(&cancels_running, 1);
    return NULL;
}

/* ---- life ---- */

/* What libpq's buffers of an idle connection may have: a part of limits.memory, between these bounds. */
#define BUFFERS_PART 64
#define BUFFERS_BYTES_MIN (256u << 10)
#define BUFFERS_BYTES_MAX (4u << 20)

/* Closes the socket where nothing can be running. The struct stays for its user. */
static void drop_conn(struct db_conn *conn)
{
    PQfinish(conn->pg);
    conn->pg = NULL;
    conn->in_pipeline = false;
    conn->queued = 0;
}

void db_conn_abandon(struct db_conn *conn)
{
    if (!conn->pg)
        return;
    PGcancel *cancel = PQtransactionStatus(conn->pg) == PQTRANS_ACTIVE ? PQgetCancel(conn->pg) : NULL;
    if (cancel &&
        (atomic_fetch_add(&cancels_running, 1) >= CANCELS_MAX || !db_thread_start(run_cancel, cancel))) {
        atomic_fetch_sub(&cancels_running, 1);
        PQfreeCancel(cancel);
    }
    drop_conn(conn);
}

void db_conn_destroy(struct db_conn *conn)
{
    db_conn_abandon(conn);
    buf_deinit(&conn->bound.scratch);
    free(conn->queue);
    free(conn);
}

/* An idle connection receives a FATAL notice and an end of file when the server ends it, or a notice of changed settings: reading
 * shows which. */
bool db_conn_is_alive(struct db_conn *conn)
{
    if (!conn->pg)
        return false;
    struct pollfd poll_fd = {.fd = PQsocket(conn->pg), .events = POLLIN};
    while (poll(&poll_fd, 1, 0) != 0) {
        if (!PQconsumeInput(conn->pg) || PQisBusy(conn->pg) || conn->doomed)
            return false;
    }
    return PQstatus(conn->pg) == CONNECTION_OK;
}

bool db_conn_is_clean(const struct db_conn *conn)
{
    return conn->pg && !conn->in_pipeline && PQstatus(conn->pg) == CONNECTION_OK &&
           PQtransactionStatus(conn->pg) == PQTRANS_IDLE;
}

void db_conn_note_bytes(struct db_conn *conn, size_t bytes)
{
    if (bytes > conn->most_bytes)
        conn->most_bytes = bytes;
}

/* Opening another connection takes less time than a statement that is so large. */
bool db_conn_is_bulky(const struct db_conn *conn)
{
    size_t limit = budget_limit(), kept = limit / BUFFERS_PART;

    if (limit == 0 || kept > BUFFERS_BYTES_MAX)
        kept = BUFFERS_BYTES_MAX;
    else if (kept < BUFFERS_BYTES_MIN)
        kept = BUFFERS_BYTES_MIN;
    return conn->most_bytes > kept;
}

enum status db_conn_check(struct db_conn *conn, struct error *error)
{
    conn->sqlstate[0] = '\0';
    if (!conn->pg)
        return error_set(error, STATUS_DB_DOWN, "the connection was lost");
    if (PQtransactionStatus(conn->pg) == PQTRANS_ACTIVE && !conn->in_pipeline)
        return error_set(error, STATUS_INTERNAL, "the connection is busy with another statement");
    return STATUS_OK;
}

const char *db_sqlstate(const struct db_conn *conn)
{
    return conn->sqlstate;
}

/* ---- failures ---- */

enum status db_conn_lost(struct db_conn *conn, struct error *error)
{
    enum status status = db_connect_failed(conn->pg, error);

    drop_conn(conn);
    return db_pool_count_error(conn->pool, status);
}

bool db_result_is_failure(const PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);

    return status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_SINGLE_TUPLE &&
           status != PGRES_EMPTY_QUERY && status != PGRES_PIPELINE_SYNC;
}

bool db_result_is_stale(const PGresult *result)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *function = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);

    if (!state)
        return false;
    /* "cached plan must not change result type" shares its SQLSTATE with all that is not supported. */
    return strcmp(state, "26000") == 0 ||
           (strcmp(state, "0A000") == 0 && function && strcmp(function, "RevalidateCachedQuery") == 0);
}

static const struct {
    const char *prefix;
    enum status status;
} sqlstates[] = {
    {"40001", STATUS_DB_RETRY}, /* serialization failure */
    {"40P01", STATUS_DB_RETRY}, /* deadlock */
    {"55P03", STATUS_DB_RETRY}, /* lock_timeout, NOWAIT */
    {"57014", STATUS_TIMEOUT},  /* statement_timeout, or cancelled by hand */
    {"57P", STATUS_DB_DOWN},    /* shutdown, crash, not yet up */
    {"08", STATUS_DB_DOWN},     /* connection trouble */
    {"53300", STATUS_DB_DOWN},  /* too many connections */
};

#define VALUE_LEFT_OUT "(value left out)"

/* The server's message without values: those of class 22 quote what was sent ("invalid input …: "abc""). */
static void copy_message(const char *message, bool may_quote_values, char *out, size_t size)
{
    bool quoted = false;
    size_t len = 0;

    for (; *message && len + sizeof VALUE_LEFT_OUT < size; message++) {
        if (may_quote_values && (unsigned char)*message >= 0x80)
            break; /* a translation, with quotes of its own */
        if (!quoted || *message == '"')
            out[len++] = *message;
        else if (out[len - 1] == '"')
            len += (size_t)snprintf(out + len, size - len, VALUE_LEFT_OUT);
        if (may_quote_values && *message == '"')
            quoted = !quoted;
    }
    out[str_utf8_cut(str_of(out, len), len).len] = '\0';
}

enum status db_conn_failure(struct db_conn *conn, const PGresult *result, struct error *error)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    char message[400];

    snprintf(conn->sqlstate, sizeof conn->sqlstate, "%s", state ? state : "");
    if (!state && PQstatus(conn->pg) == CONNECTION_OK) {
        /* Not the server's error: a result we cannot take, such as COPY's. */
        db_conn_abandon(conn);
        error_set(error, STATUS_DB_ERROR, "a statement of this kind is not supported");
        return db_pool_count_error(conn->pool, STATUS_DB_ERROR);
    }
    if (!state)
        return db_conn_lost(conn, error);
    copy_message(primary ? primary : "no message", strncmp(state, "22", 2) == 0, message, sizeof message);
    enum status status = db_result_is_stale(result) ? STATUS_DB_RETRY : STATUS_DB_ERROR;
    for (size_t i = 0; i < sizeof sqlstates / sizeof sqlstates[0] && status == STATUS_DB_ERROR; i++)
        if (strncmp(state, sqlstates[i].prefix, strlen(sqlstates[i].prefix)) == 0)
            status = sqlstates[i].status;
    if (PQstatus(conn->pg) != CONNECTION_OK || status == STATUS_DB_DOWN) {
        status = STATUS_DB_DOWN;
        drop_conn(conn);
    }
    error_set(error, status, "%s (SQLSTATE %s)", message, conn->sqlstate);
    return strncmp(state, DB_SIGNAL_CLASS, 2) == 0 ? status : db_pool_count_error(conn->pool, status);
}

/* ---- bounded waits ---- */

static enum status wait_for(struct db_conn *conn, short events, int64_t deadline_ns, struct error *error)
{
    short happened = db_wait(conn->pool, PQsocket(conn->pg), events, deadline_ns);

    if (happened)
        return !(happened & ~POLLOUT) || PQconsumeInput(conn->pg) ? STATUS_OK : db_conn_lost(conn, error);
    bool is_late = clock_ms_left(deadline_ns) <= 0;
    db_conn_abandon(conn);
    if (!is_late)
        return error_set(error, STATUS_CANCELLED, "the process is stopping");
    error_set(error, STATUS_TIMEOUT, "the database did not answer in time");
    return db_pool_count_error(conn->pool, STATUS_TIMEOUT);
}

enum status db_conn_flush(struct db_conn *conn, int64_t deadline_ns, struct error *error)
{
    int rc;

    /* Reads too: a server that is blocked writing to us would never read the rest. */
    while ((rc = PQflush(conn->pg)) > 0) {
        enum status status = wait_for(conn, POLLIN | POLLOUT, deadline_ns, error);
        if (status != STATUS_OK)
            return status;
    }
    return rc == 0 ? STATUS_OK : db_conn_lost(conn, error);
}

enum status db_conn_result(struct db_conn *conn, int64_t deadline_ns, PGresult **result, struct error *error)
{
    *result = NULL;
    while (PQisBusy(conn->pg)) {
        enum status status = wait_for(conn, POLLIN, deadline_ns, error);
        if (status != STATUS_OK)
            return status;
    }
    *result = PQgetResult(conn->pg);
    conn->answered |= *result != NULL;
    db_conn_note_bytes(conn, PQresultMemorySize(*result));
    return STATUS_OK;
}

enum status db_conn_drain(struct db_conn *conn, int64_t deadline_ns, struct error *error)
{
    enum status first = STATUS_OK, status;
    PGresult *result;

    while ((status = db_conn_result(conn, deadline_ns, &result, first == STATUS_OK ? error : NULL)) ==
               STATUS_OK &&
           result) {
        if (first == STATUS_OK && db_result_is_failure(result))
            first = db_conn_failure(conn, result, error);
        PQclear(result);
        if (!conn->pg)
            break;
    }
    return first == STATUS_OK ? status : first;
}

/* ---- transactions: the simple protocol, since there is nothing to bind ---- */

#define ROLLBACK_MS 1000

static const char *const begin_sql[] = {
    [DB_READ_COMMITTED] = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
    [DB_REPEATABLE_READ_ONLY] = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
};

enum status db_begin(struct db_conn *conn, enum db_isolation isolation, int64_t deadline_ns,
                     struct error *error)
{
    enum status status = db_conn_check(conn, error);

    if (status != STATUS_OK)
        return status;
    /* The server would only warn, and the outer transaction's user lose its atomicity. */
    if (PQtransactionStatus(conn->pg) != PQTRANS_IDLE)
        return error_set(error, STATUS_INTERNAL, "a transaction is open on this connection already");
    return db_conn_command(conn, begin_sql[isolation], deadline_ns, error);
}

enum status db_transaction_timeout(struct db_conn *conn, int64_t timeout_ms, int64_t deadline_ns,
                                   struct error *error)
{
    char sql[64];

    snprintf(sql, sizeof sql, "SET LOCAL statement_timeout = %lld", (long long)timeout_ms);
    return db_conn_command(conn, sql, deadline_ns, error);
}

const struct db_statement db_begin_sql = DB_STATEMENT("BEGIN"), db_commit_sql = DB_STATEMENT("COMMIT"),
                          db_flush_sql = DB_STATEMENT("SELECT pg_logical_emit_message(true, 'freshet', '')");

enum status db_commit(struct db_conn *conn, int64_t deadline_ns, struct error *error)
{
    enum status status = db_conn_check(conn, error);

    if (status != STATUS_OK)
        return status;
    if (conn->in_pipeline &&
        conn->pipeline_left) { /* if any of what was left fails, the server skips the COMMIT */
        db_pipeline_begin(conn);
        db_pipeline_add(conn, &db_commit_sql, DB_NO_PARAMS);
        return db_pipeline_end(conn, deadline_ns, NULL, 0, NULL, error);
    }
    /* COMMIT of a failed transaction "succeeds" by rolling back: never report that as done. */
    if (PQtransactionStatus(conn->pg) != PQTRANS_INTRANS) {
        db_rollback(conn);
        return error_set(error, STATUS_DB_ERROR,
                         "nothing was committed: no transaction is open, or one has failed");
    }
    return db_conn_command(conn, "COMMIT", deadline_ns, error);
}

enum status db_rollback_to_savepoint(struct db_conn *conn, int64_t deadline_ns, struct error *error)
{
    return db_conn_command(conn, "ROLLBACK TO SAVEPOINT freshet", deadline_ns, error);
}

void db_rollback(struct db_conn *conn)
{
    char sqlstate[sizeof conn->sqlstate];

    if (!conn->pg || db_conn_is_clean(conn))
        return;
    memcpy(sqlstate, conn->sqlstate, sizeof sqlstate);
    struct error ignored;
    if (conn->in_pipeline && conn->pipeline_left &&
        db_pipeline_end(conn, clock_deadline_ms(ROLLBACK_MS), NULL, 0, NULL, &ignored) != STATUS_OK &&
        !conn->pg)
        return;
    if (conn->in_pipeline || PQtransactionStatus(conn->pg) == PQTRANS_ACTIVE ||
        db_conn_command(conn, "ROLLBACK", clock_deadline_ms(ROLLBACK_MS), NULL) != STATUS_OK)
        db_conn_abandon(conn);
    memcpy(conn->sqlstate, sqlstate, sizeof sqlstate); /* why it came to this is still worth asking */
}
