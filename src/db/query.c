/* Running one statement: prepare where needed, bind, send, fetch; whole results, or row by row. */
#include "db/db.h"

#include "base/clock.h"
#include "db/db_inside.h"

/* A db_result is libpq's, under our name: no wrapper to allocate, and no other folder sees libpq. */
static const PGresult *unwrap(const struct db_result *result)
{
    return (const PGresult *)result;
}

enum status db_conn_command(struct db_conn *conn, const char *sql, int64_t deadline_ns, struct error *error)
{
    enum status status = db_conn_check(conn, error);

    if (status == STATUS_OK && conn->in_pipeline)
        status = error_set(error, STATUS_INTERNAL, "a pipeline is open on this connection");
    if (status != STATUS_OK)
        return status;
    if (!PQsendQuery(conn->pg, sql))
        return db_conn_lost(conn, error);
    status = db_conn_flush(conn, deadline_ns, error);
    return status == STATUS_OK ? db_conn_drain(conn, deadline_ns, error) : status;
}

/* Prepares it first where that is needed. */
static enum status send_statement(struct db_conn *conn, const struct db_statement *statement,
                                  const struct db_param *params, int64_t deadline_ns, struct error *error)
{
    struct db_bound *bound = &conn->bound;
    char name[DB_PREPARED_NAME_BYTES];
    Oid oids[DB_PARAMS_MAX];
    uint64_t hash;
    enum status status = STATUS_OK;

    if (conn->prepared.stale) { /* the server has other statements than we thought: drop all */
        status = db_conn_command(conn, "DEALLOCATE ALL", deadline_ns, error);
        if (status == STATUS_OK)
            db_prepared_clear(&conn->prepared);
    }
    if (status == STATUS_OK)
        status = db_bound_set(bound, statement, params, error);
    if (status != STATUS_OK)
        return status;
    db_conn_note_bytes(conn, bound->bytes);
    if (!db_bound_is_prepared(bound, &conn->prepared, statement, &hash, name)) {
        db_type_oids(bound->types, bound->count, oids);
        if (!PQsendPrepare(conn->pg, name, statement->text.ptr, (int)bound->count, oids))
            return db_conn_lost(conn, error);
        status = db_conn_flush(conn, deadline_ns, error);
        if (status == STATUS_OK)
            status = db_conn_drain(conn, deadline_ns, error);
        if (status != STATUS_OK)
            return status;
        db_prepared_add(&conn->prepared, bound->key, hash);
    }
    if (!PQsendQueryPrepared(conn->pg, name, (int)bound->count, bound->values, bound->lengths, bound->formats,
                             statement->binary_results))
        return db_conn_lost(conn, error);
    return STATUS_OK;
}

/* *first is the first result, so that a stale prepared statement has been seen and dealt with (once, and only outside a
 * transaction); the others are for the caller to fetch. */
static enum status start_statement(struct db_conn *conn, const struct db_statement *statement,
                                   const struct db_param *params, bool row_by_row, int64_t deadline_ns,
                                   PGresult **first, struct error *error)
{
    enum status status = db_conn_check(conn, error);

    if (status == STATUS_OK && conn->in_pipeline)
        status = error_set(error, STATUS_INTERNAL, "a pipeline is open on this connection");
    for (int attempt = 0; status == STATUS_OK; attempt++) {
        bool may_retry = attempt == 0 && PQtransactionStatus(conn->pg) == PQTRANS_IDLE;
        status = send_statement(conn, statement, params, deadline_ns, error);
        if (status == STATUS_OK && row_by_row)
            PQsetSingleRowMode(conn->pg);
        if (status == STATUS_OK)
            status = db_conn_flush(conn, deadline_ns, error);
        if (status == STATUS_OK)
            status = db_conn_result(conn, deadline_ns, first, error);
        if (status != STATUS_OK || !*first || !db_result_is_stale(*first))
            break;
        conn->prepared.stale = true;
        if (!may_retry)
            break;
        PQclear(*first);
        *first = NULL;
        status = db_conn_drain(conn, deadline_ns, error);
    }
    return status;
}

enum status db_query(struct db_conn *conn, const struct db_statement *statement,
                     const struct db_param *params, int64_t deadline_ns, struct db_result **result,
                     struct error *error)
{
    PGresult *first = NULL;
    enum status status = start_statement(conn, statement, params, false, deadline_ns, &first, error);

    *result = NULL;
    if (status != STATUS_OK)
        return status;
    if (first && db_result_is_failure(first))
        status = db_conn_failure(conn, first, error);
    if (conn->pg) {
        /* Its end is the end of its implicit transaction: a failure there is the statement's. */
        enum status drained = db_conn_drain(conn, deadline_ns, status == STATUS_OK ? error : NULL);
        status = status == STATUS_OK ? drained : status;
    }
    if (status == STATUS_OK)
        *result = (struct db_result *)first;
    else
        PQclear(first);
    return status;
}

enum status db_exec(struct db_conn *conn, const struct db_statement *statement, const struct db_param *params,
                    int64_t deadline_ns, int64_t *affected, struct error *error)
{
    struct db_result *result;
    enum status status = db_query(conn, statement, params, deadline_ns, &result, error);

    if (status == STATUS_OK && affected)
        *affected = db_result_affected(result);
    db_result_free(result);
    return status;
}

enum status db_pool_query(struct db_pool *pool, const struct db_statement *statement,
                          const struct db_param *params, int64_t deadline_ns, struct db_result **result,
                          struct error *error)
{
    struct db_conn *conn;
    enum status status = db_acquire(pool, deadline_ns, &conn, error);

    *result = NULL;
    if (status != STATUS_OK)
        return status;
    status = db_query(conn, statement, params, deadline_ns, result, error);
    db_release(conn);
    return status;
}

enum status db_pool_exec(struct db_pool *pool, const struct db_statement *statement,
                         const struct db_param *params, int64_t deadline_ns, int64_t *affected,
                         struct error *error)
{
    struct db_result *result;
    enum status status = db_pool_query(pool, statement, params, deadline_ns, &result, error);

    if (status == STATUS_OK && affected)
        *affected = db_result_affected(result);
    db_result_free(result);
    return status;
}

/* ---- describe ---- */

/* The answer to what was just sent, which has no rows: failed, or kept in *result. */
static enum status take_answer(struct db_conn *conn, int64_t deadline_ns, PGresult **result, size_t *position,
                               struct error *error)
{
    enum status status = db_conn_flush(conn, deadline_ns, error);

    *result = NULL;
    if (status == STATUS_OK)
        status = db_conn_result(conn, deadline_ns, result, error);
    if (status == STATUS_OK && *result && db_result_is_failure(*result)) {
        const char *text = PQresultErrorField(*result, PG_DIAG_STATEMENT_POSITION);
        uint64_t number;
        *position = text && str_to_u64(str_from(text), &number) ? (size_t)number : 0;
        status = db_conn_failure(conn, *result, error);
    }
    if (!conn->pg)
        return status;
    enum status drained = db_conn_drain(conn, deadline_ns, status == STATUS_OK ? error : NULL);
    return status == STATUS_OK ? drained : status;
}

/* The unnamed statement is used: always fresh, and gone with the next one. */
enum status db_describe(struct db_conn *conn, const struct db_statement *statement, struct db_column *columns,
                        unsigned *column_count, int64_t deadline_ns, size_t *position, struct error *error)
{
    Oid oids[DB_PARAMS_MAX];
    PGresult *result = NULL;
    enum status status = db_conn_check(conn, error);

    *position = 0;
    *column_count = 0;
    if (status != STATUS_OK)
        return status;
    db_type_oids(statement->types, statement->param_count, oids);
    if (!PQsendPrepare(conn->pg, "", statement->text.ptr, (int)statement->param_count, oids))
        return db_conn_lost(conn, error);
    status = take_answer(conn, deadline_ns, &result, position, error);
    PQclear(result);
    if (status != STATUS_OK)
        return status;
    if (!PQsendDescribePrepared(conn->pg, ""))
        return db_conn_lost(conn, error);
    status = take_answer(conn, deadline_ns, &result, position, error);
    for (int i = 0; status == STATUS_OK && i < PQnfields(result) && i < DB_COLUMNS_MAX; i++) {
        str_copy(columns[i].name, sizeof columns[i].name, str_from(PQfname(result, i)));
        columns[i].type_oid = PQftype(result, i);
        ++*column_count;
    }
    PQclear(result);
    return status;
}

/* ---- explain ---- */

#define EXPLAINED "freshet_explained"

static enum status prepare_explained(struct db_conn *conn, const struct db_statement *statement,
                                     int64_t deadline_ns, struct error *error)
{
    Oid oids[DB_PARAMS_MAX];
    db_type_oids(statement->types, statement->param_count, oids);
    if (!PQsendPrepare(conn->pg, EXPLAINED, statement->text.ptr, (int)statement->param_count, oids))
        return db_conn_lost(conn, error);
    enum status status = db_conn_flush(conn, deadline_ns, error);
    return status == STATUS_OK ? db_conn_drain(conn, deadline_ns, error) : status;
}

/* EXPLAIN EXECUTE of a named statement, since only that makes the generic plan: with the values at hand, whatever a NULL decides
 * would be left out of the plan, and of its checks. */
static enum status explain_prepared(struct db_conn *conn, unsigned param_count, int64_t deadline_ns,
                                    PGresult **plan, struct error *error)
{
    struct buf sql = {0};
    size_t position;
    buf_put_str(&sql, STR("EXPLAIN (FORMAT JSON, COSTS OFF) EXECUTE " EXPLAINED));
    for (unsigned i = 0; i < param_count; i++)
        buf_put_str(&sql, i ? STR(", NULL") : STR(" (NULL"));
    buf_put_str(&sql, param_count ? STR(")") : STR_NONE);
    buf_put_char(&sql, '\0');
    int is_sent = PQsendQuery(conn->pg, buf_str(&sql).ptr);
    buf_deinit(&sql);
    return is_sent ? take_answer(conn, deadline_ns, plan, &position, error) : db_conn_lost(conn, error);
}

/* It outlives the transaction, so that it is dropped here, also after a refusal. */
static void drop_explained(struct db_conn *conn, int64_t deadline_ns)
{
    char sqlstate[sizeof conn->sqlstate];
    memcpy(sqlstate, conn->sqlstate, sizeof sqlstate);
    if (db_rollback_to_savepoint(conn, deadline_ns, NULL) != STATUS_OK ||
        db_conn_command(conn, "DEALLOCATE " EXPLAINED, deadline_ns, NULL) != STATUS_OK)
        db_conn_abandon(conn);
    memcpy(conn->sqlstate, sqlstate, sizeof sqlstate);
}

enum status db_explain(struct db_conn *conn, const struct db_statement *statement, int64_t deadline_ns,
                       struct db_result **plan, struct error *error)
{
    PGresult *result = NULL;
    enum status status =
        db_conn_command(conn, "SET LOCAL plan_cache_mode = force_generic_plan", deadline_ns, error);

    *plan = NULL;
    if (status == STATUS_OK)
        status = db_conn_command(conn, DB_SAVEPOINT_SQL, deadline_ns, error);
    if (status == STATUS_OK)
        status = prepare_explained(conn, statement, deadline_ns, error);
    if (status != STATUS_OK)
        return status;
    status = explain_prepared(conn, statement->param_count, deadline_ns, &result, error);
    if (conn->pg)
        drop_explained(conn, deadline_ns);
    if (status == STATUS_OK)
        *plan = (struct db_result *)result;
    else
        PQclear(result);
    return status;
}

/* ---- results ---- */

void db_result_free(struct db_result *result)
{
    PQclear((PGresult *)result);
}

size_t db_result_rows(const struct db_result *result)
{
    return (size_t)PQntuples(unwrap(result));
}

int64_t db_result_affected(const struct db_result *result)
{
    int64_t count = 0;
    /* libpq takes no const here, and changes nothing */
    return str_to_i64(str_from(PQcmdTuples((PGresult *)(uintptr_t)unwrap(result))), &count) ? count : 0;
}

bool db_result_is_null(const struct db_result *result, size_t row, unsigned column)
{
    return PQgetisnull(unwrap(result), (int)row, (int)column);
}

struct str db_result_str(const struct db_result *result, size_t row, unsigned column)
{
    return str_of(PQgetvalue(unwrap(result), (int)row, (int)column),
                  (size_t)PQgetlength(unwrap(result), (int)row, (int)column));
}

int64_t db_result_i64(const struct db_result *result, size_t row, unsigned column)
{
    int64_t value = 0;
    return str_to_i64(db_result_str(result, row, column), &value) ? value : 0;
}

bool db_result_find(const struct db_result *result, const char *name, unsigned *column, uint32_t *type_oid)
{
    for (int i = 0; i < PQnfields(unwrap(result)); i++)
        if (strcmp(PQfname(unwrap(result), i), name) == 0) {
            *column = (unsigned)i;
            *type_oid = PQftype(unwrap(result), i);
            return true;
        }
    return false;
}

/* ---- row by row: a result of any size through memory of one row ----
 * libpq's single-row mode. Measured on 1,000,000 rows (112 MB, key and jsonb; 2 cores, PostgreSQL 15):
 * 1.0–1.1 s, of which 0.28 s is our CPU, beside 1.0–1.15 s for psql's COPY of the same query. A cursor with
 * two FETCHes of 2,000 in flight takes 0.95 s, but needs a transaction, forbids parallel plans and takes
 * SELECT only: not worth it. */

enum status db_stream(struct db_conn *conn, const struct db_statement *statement,
                      const struct db_param *params, int64_t deadline_ns, db_row_fn *on_row, void *context,
                      struct error *error)
{
    PGresult *result = NULL;
    enum status status = start_statement(conn, statement, params, true, deadline_ns, &result, error);

    while (status == STATUS_OK && result) {
        bool more = true;
        if (PQresultStatus(result) == PGRES_SINGLE_TUPLE)
            more = on_row(context, (struct db_result *)result);
        else if (db_result_is_failure(result))
            status = db_conn_failure(conn, result, error);
        PQclear(result);
        if (!more) {
            db_conn_abandon(conn);
            return error_set(error, STATUS_CANCELLED, "stopped by the reader");
        }
        if (status != STATUS_OK) {
            if (conn->pg && db_conn_drain(conn, deadline_ns, NULL) != STATUS_OK)
                db_conn_abandon(conn);
            return status;
        }
        status = db_conn_result(conn, deadline_ns, &result, error);
    }
    return status;
}
