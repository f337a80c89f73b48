/* Transactions: begin, commit, rollback; the simple protocol, since there is nothing to bind. */
#include "db/db.h"

#include <stdio.h>

#include "base/clock.h"
#include "db/db_inside.h"

#define ROLLBACK_MS 1000

static const char *const begin_sql[] = {
    [DB_READ_COMMITTED] = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
    [DB_REPEATABLE_READ_ONLY] = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    [DB_REPEATABLE_READ] = "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE",
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

/* Behind what was left: if any of it fails, the server skips the COMMIT. */
static enum status commit_left(struct db_conn *conn, int64_t deadline_ns, struct error *error)
{
    static const struct db_statement commit_sql = DB_STATEMENT("COMMIT");

    db_pipeline_begin(conn);
    db_pipeline_add(conn, &commit_sql, DB_NO_PARAMS);
    return db_pipeline_end(conn, deadline_ns, NULL, 0, NULL, error);
}

enum status db_commit(struct db_conn *conn, int64_t deadline_ns, struct error *error)
{
    enum status status = db_conn_check(conn, error);

    if (status != STATUS_OK)
        return status;
    if (conn->in_pipeline && conn->pipeline_left)
        return commit_left(conn, deadline_ns, error);
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
    enum status status = db_conn_check(conn, error);

    return status == STATUS_OK ? db_conn_command(conn, "ROLLBACK TO SAVEPOINT freshet", deadline_ns, error)
                               : status;
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
