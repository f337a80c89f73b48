/* Pipelines: several statements, one round trip.
 *
 * A statement not yet prepared brings its PREPARE along, so a cold pipeline takes one round trip too. Whether
 * a PREPARE worked is known only when its answer comes: one that failed, or was skipped after a failure, is
 * forgotten then. */
#include "db/db.h"

#include "base/memory.h"
#include "db/db_inside.h"

/* The first failure before the end, kept for it. A pipeline that cannot go on must not end well: its connection is closed. */
static void stick(struct db_conn *conn, const struct error *error)
{
    if (conn->pipeline_error.status == STATUS_OK)
        conn->pipeline_error = *error;
    db_conn_abandon(conn);
}

void db_pipeline_begin(struct db_conn *conn)
{
    struct error error;

    if (conn->in_pipeline && conn->pipeline_left) {
        conn->pipeline_left = false;
        conn->queue_first = conn->queued;
        return;
    }
    conn->pipeline_error.status = STATUS_OK;
    conn->queued = conn->queue_first = conn->left_count = conn->asked = 0;
    conn->pipeline_bytes = 0;
    conn->pipeline_left = false;
    if (db_conn_check(conn, &error) != STATUS_OK) {
        stick(conn, &error);
    } else if (conn->in_pipeline || !PQenterPipelineMode(conn->pg)) {
        error_set(&error, STATUS_INTERNAL, "a pipeline cannot begin here");
        stick(conn, &error);
    } else {
        conn->in_pipeline = true;
    }
}

void db_pipeline_leave(struct db_conn *conn, struct db_result **results, size_t count)
{
    conn->pipeline_left = conn->in_pipeline;
    if (!results)
        return;
    conn->left_results = results;
    conn->left_count = count;
    for (size_t i = 0; i < count; i++)
        results[i] = NULL;
}

void db_pipeline_forget(struct db_conn *conn)
{
    conn->left_count = 0;
}

void db_pipeline_ask(struct db_conn *conn)
{
    conn->asked = conn->queued;
    conn->is_true = false;
}

bool db_pipeline_is_true(const struct db_conn *conn)
{
    return conn->is_true;
}

static struct db_queued *queue_push(struct db_conn *conn)
{
    if (conn->queued == conn->queue_capacity) {
        conn->queue_capacity = conn->queue_capacity ? 2 * conn->queue_capacity : 16;
        conn->queue = memory_realloc_array(conn->queue, conn->queue_capacity, sizeof conn->queue[0]);
    }
    conn->queue[conn->queued] = (struct db_queued){0};
    return &conn->queue[conn->queued++];
}

/* Prepares it first where that is needed. */
static bool send_bound(struct db_conn *conn, const struct db_statement *statement)
{
    struct db_bound *bound = &conn->bound;
    struct db_queued *queued = queue_push(conn);
    char name[DB_PREPARED_NAME_BYTES];
    Oid oids[DB_PARAMS_MAX];
    uint64_t hash;

    if (conn->prepared.stale) {
        if (!PQsendQueryParams(conn->pg, "DEALLOCATE ALL", 0, NULL, NULL, NULL, NULL, 0))
            return false;
        queued->drops = true;
        db_prepared_clear(&conn->prepared);
    }
    if (!db_bound_is_prepared(bound, &conn->prepared, statement, &hash, name)) {
        db_type_oids(bound->types, bound->count, oids);
        if (!PQsendPrepare(conn->pg, name, statement->text.ptr, (int)bound->count, oids))
            return false;
        queued->prepares = true;
        queued->name = hash;
        db_prepared_add(&conn->prepared, bound->key, hash);
    }
    return PQsendQueryPrepared(conn->pg, name, (int)bound->count, bound->values, bound->lengths,
                               bound->formats, statement->binary_results);
}

void db_pipeline_add(struct db_conn *conn, const struct db_statement *statement,
                     const struct db_param *params)
{
    struct error error;
    enum status status = db_conn_check(conn, &error);
    bool sent;

    if (status == STATUS_OK && !conn->in_pipeline)
        status = error_set(&error, STATUS_INTERNAL, "no pipeline was begun");
    if (status != STATUS_OK) {
        stick(conn, &error);
        return;
    }
    if (db_bound_set(&conn->bound, statement, params, &error) == STATUS_OK) {
        conn->pipeline_bytes += conn->bound.bytes;
        db_conn_note_bytes(conn, conn->pipeline_bytes);
        sent = send_bound(conn, statement);
        conn->queue[conn->queued - 1].is_commit = statement == &db_commit_sql;
    } else {
        /* In place of a statement whose parameters cannot be sent: fails at the server, so that what was added before is
         * not committed by itself, and what follows is skipped. */
        if (conn->pipeline_error.status == STATUS_OK)
            conn->pipeline_error = error;
        queue_push(conn)->is_refused = true;
        sent = PQsendQueryParams(conn->pg, "SELECT 'a parameter could not be sent'::int", 0, NULL, NULL, NULL,
                                 NULL, 0);
    }
    if (!sent) {
        (void)db_conn_lost(conn, &error);
        stick(conn, &error);
    }
}

static const struct db_statement notice_sql =
    DB_STATEMENT("SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)");

void db_pipeline_add_notice(struct db_conn *conn, struct str channel, struct str payload)
{
    db_pipeline_add(conn, &notice_sql, DB_PARAMS(db_text(channel), db_text(payload)));
}

/* ---- the end ---- */

static enum status pipeline_status(struct db_conn *conn, struct error *error)
{
    if (conn->pipeline_error.status != STATUS_OK && error)
        *error = conn->pipeline_error;
    return conn->pipeline_error.status;
}

/* The result of one thing sent, and the NULL that ends it. */
static enum status fetch_one(struct db_conn *conn, int64_t deadline_ns, PGresult **result,
                             struct error *error)
{
    enum status status = db_conn_result(conn, deadline_ns, result, error);

    if (status != STATUS_OK || !*result || PQresultStatus(*result) == PGRES_PIPELINE_SYNC)
        return status;
    if (PQresultStatus(*result) == PGRES_PIPELINE_ABORTED)
        status = error_set(error, STATUS_CANCELLED, "skipped after an earlier failure");
    else if (db_result_is_failure(*result))
        status = db_conn_failure(conn, *result, error);
    PGresult *end = NULL;
    if (conn->pg) {
        enum status ended = db_conn_result(conn, deadline_ns, &end, status == STATUS_OK ? error : NULL);
        status = ended == STATUS_OK ? status : ended;
        PQclear(end);
    }
    return status;
}

/* COMMIT of a transaction that has failed succeeds by rolling back, and says so in its tag. */
static enum status check_commit(PGresult *result, struct error *error)
{
    if (strcmp(PQcmdStatus(result), "COMMIT") == 0)
        return STATUS_OK;
    return error_set(error, STATUS_DB_ERROR, "nothing was committed: the transaction had failed");
}

/* A queued statement's results: those of what went before it are only checked. */
static enum status fetch_queued(struct db_conn *conn, const struct db_queued *queued, int64_t deadline_ns,
                                PGresult **result, struct error *error)
{
    enum status first = STATUS_OK;
    int before = queued->drops + queued->prepares;

    for (int i = 0; i <= before; i++) {
        *result = NULL;
        enum status status = fetch_one(conn, deadline_ns, result, first == STATUS_OK ? error : NULL);
        if (status == STATUS_OK && i == before && queued->is_commit)
            status = check_commit(*result, first == STATUS_OK ? error : NULL);
        first = first == STATUS_OK ? status : first;
        if (status == STATUS_OK && i == before)
            break;
        /* What the server did not do: it has other statements than we thought. */
        if (status != STATUS_OK && queued->prepares && i == queued->drops)
            db_prepared_remove(&conn->prepared, queued->name);
        conn->prepared.stale |=
            (status != STATUS_OK && queued->drops && i == 0) || (*result && db_result_is_stale(*result));
        PQclear(*result);
        *result = NULL;
        if (!conn->pg)
            break;
    }
    return first;
}

static void drop_results(struct db_result **results, size_t count)
{
    for (size_t i = 0; results && i < count; i++) {
        db_result_free(results[i]);
        results[i] = NULL;
    }
}

/* All of them in order; what follows the first failure is fetched too, to leave the connection clean. */
static enum status fetch_all(struct db_conn *conn, int64_t deadline_ns, struct db_result **results,
                             size_t count, size_t *failed_at, struct error *error)
{
    enum status first = STATUS_OK;
    PGresult *result;

    for (size_t i = 0; i < conn->queued; i++) {
        enum status status =
            fetch_queued(conn, &conn->queue[i], deadline_ns, &result, first == STATUS_OK ? error : NULL);
        size_t at = i < conn->queue_first ? 0 : i - conn->queue_first;
        if (status != STATUS_OK && first == STATUS_OK) {
            if (conn->queue[i].is_refused && conn->pg)
                status = pipeline_status(conn, error);
            first = status;
            *failed_at = conn->pg ? at : count;
        }
        if (status == STATUS_OK && i + 1 == conn->asked)
            conn->is_true = str_eq(db_result_str((struct db_result *)result, 0, 0), STR("t"));
        if (status == STATUS_OK && results && i >= conn->queue_first && at < count)
            results[at] = (struct db_result *)result;
        else if (status == STATUS_OK && i < conn->queue_first && i < conn->left_count)
            conn->left_results[i] = (struct db_result *)result;
        else
            PQclear(result);
        if (!conn->pg)
            return first;
    }
    enum status status =
        db_conn_result(conn, deadline_ns, &result, first == STATUS_OK ? error : NULL); /* the sync */
    PQclear(result);
    conn->asked = 0;
    return first == STATUS_OK ? status : first;
}

enum status db_pipeline_end(struct db_conn *conn, int64_t deadline_ns, struct db_result **results,
                            size_t count, size_t *failed_at, struct error *error)
{
    enum status status = pipeline_status(conn, error);
    size_t unused;

    failed_at = failed_at ? failed_at : &unused;
    *failed_at = count;
    for (size_t i = 0; results && i < count; i++)
        results[i] = NULL;
    if (status == STATUS_OK || conn->pg) /* a refused statement is reported in its place */
        status = db_conn_check(conn, error);
    if (status != STATUS_OK)
        return status;
    if (!conn->in_pipeline || !PQpipelineSync(conn->pg))
        return db_conn_lost(conn, error);
    status = db_conn_flush(conn, deadline_ns, error);
    if (status == STATUS_OK)
        status = fetch_all(conn, deadline_ns, results, count, failed_at, error);
    conn->queued = conn->queue_first = 0;
    if (conn->pg) {
        conn->in_pipeline = false;
        if (!PQexitPipelineMode(conn->pg)) /* lost right after its answers: they are not to be trusted */
            status = db_conn_lost(conn, error);
    }
    if (status != STATUS_OK) {
        drop_results(results, count);
        drop_results(conn->left_results, conn->left_count);
    }
    conn->left_count = 0;
    return status;
}
