/* Effect and stored answer in one transaction and one round trip (I2–I5), by itself or in a group (groups.c).
 *
 *     BEGIN ─ lock ─ look ─ effect + stored answer ─ COMMIT
 *
 * All of it may run again at any time: a retry finds the row of a commit whose reply was lost. So a deadlock, a stale prepared
 * statement and a lost connection are retried; only without a key a lost connection is reported to the client.
 *
 * The statements are written for the module's table. Their texts are the same every time, so that each is prepared once per
 * connection; all of them find their row by the primary key. Times are the server's at the start of each statement, that is, after
 * the wait for the lock. */
#include <stdio.h>

#include "auth/digest.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "idempotency/idempotency_inside.h"

enum {
    TRIES_MAX = 5,
    LOOK_PARAMS = 6, /* $1 … tenant, subject, method, route, key, hash */
    STORE_PARAMS = 7 /* and the time to live in milliseconds */
};

/* ---- statements ---- */

static const struct db_statement lock_sql = DB_STATEMENT("SELECT platform.idempotency_lock($1, $2)");

#define SCOPE_SQL "tenant_id = $1 AND subject = $2 AND method = $3 AND route = $4 AND idempotency_key = $5"

static const char *expired_operator(const struct idempotency_table *table)
{
    return table->expires_inclusive ? "<=" : "<";
}

struct attempt {
    const struct idempotency_call *call;
    bool unknown; /* the reply of a commit was lost */
    int64_t lock_key;
    const struct db_param *look_params;
};

/* Effect and stored answer are one statement. The effect's parameters come first, `at` of them. */
static struct db_statement store_statement(const struct attempt *run, unsigned at, struct str effect,
                                           struct db_param *params)
{
    const struct idempotency_call *call = run->call;
    const char *failures = call->request->route->key_stores_failures
                               ? " OR (status < 500 AND status NOT IN (400, 401, 403))"
                               : "";
    if (at)
        memcpy(params, call->params, at * sizeof *params);
    memcpy(params + at, run->look_params, LOOK_PARAMS * sizeof *params);
    params[at + LOOK_PARAMS] = db_i64(call->table->ttl_ms);
    params[at + STORE_PARAMS] = DB_END;
    return db_statement_of(arena_printf(
        call->request->arena,
        "WITH effect (status, body) AS MATERIALIZED (%.*s), stored AS ("
        "INSERT INTO %s AS k (tenant_id, subject, method, route, idempotency_key, request_hash,"
        " response_status, response_body, created_at, expires_at)"
        " SELECT $%u, $%u, $%u, $%u, $%u, $%u, status, body, statement_timestamp(),"
        " statement_timestamp() + $%u * interval '1 millisecond' FROM effect WHERE status < 400%s"
        " ON CONFLICT (tenant_id, subject, method, route, idempotency_key) DO UPDATE SET"
        " request_hash = excluded.request_hash, response_status = excluded.response_status,"
        " response_body = excluded.response_body, created_at = excluded.created_at,"
        " expires_at = excluded.expires_at"
        " WHERE platform.idempotency_overwrite(k.expires_at %s statement_timestamp()))"
        " SELECT * FROM effect",
        STR_ARG(effect), call->table->name, at + 1, at + 2, at + 3, at + 4, at + 5, at + 6, at + 7, failures,
        expired_operator(call->table)));
}

static struct db_statement look_statement(const struct idempotency_call *call)
{
    return db_statement_of(
        arena_printf(call->request->arena,
                     "SELECT platform.idempotency_found((SELECT request_hash = $6 FROM %s WHERE " SCOPE_SQL
                     " AND NOT expires_at %s statement_timestamp()))",
                     call->table->name, expired_operator(call->table)));
}

/* Of a group: nothing happens where a key is busy or this one is known. Both are found out before the effect, since neither depends
 * on its rows. */
static struct str gated_effect(const struct idempotency_call *call, unsigned at)
{
    return arena_printf(
        call->request->arena,
        "SELECT * FROM (%.*s) AS effect"
        " WHERE current_setting('freshet.key_is_busy', true) IS DISTINCT FROM 'yes' AND NOT EXISTS ("
        "SELECT FROM %s WHERE tenant_id = $%u AND subject = $%u AND method = $%u AND route = $%u"
        " AND idempotency_key = $%u AND NOT expires_at %s statement_timestamp())",
        STR_ARG(call->statement->text), call->table->name, at + 1, at + 2, at + 3, at + 4, at + 5,
        expired_operator(call->table));
}

/* ---- one attempt ---- */

enum status idempotency_take_effect(struct db_result *rows, struct idempotency_outcome *outcome)
{
    if (db_result_rows(rows) != 1 || db_result_is_null(rows, 0, 0) || db_result_is_null(rows, 0, 1)) {
        db_result_free(rows);
        return error_set(&outcome->error, STATUS_INTERNAL, "an effect must return one row");
    }
    *outcome = (struct idempotency_outcome){
        .status = (int)db_result_i64(rows, 0, 0),
        .body = db_result_str(rows, 0, 1),
        .rows = rows,
    };
    outcome->has_effect = outcome->status < 400;
    return STATUS_OK;
}

/* The stored answer, after the end of the transaction that found it, even if it has expired since. DB_RETRY: it was deleted
 * meanwhile. */
static enum status read_stored(const struct attempt *run, struct db_conn *conn,
                               struct idempotency_outcome *outcome)
{
    struct arena *arena = run->call->request->arena;
    struct db_result *found = NULL;
    struct db_statement statement = db_statement_of(arena_printf(
        arena, "SELECT response_status, response_body FROM %s WHERE " SCOPE_SQL " AND request_hash = $6",
        run->call->table->name));

    db_rollback(conn);
    enum status status =
        db_query(conn, &statement, run->look_params, run->call->deadline_ns, &found, &outcome->error);
    if (status == STATUS_OK && db_result_rows(found) == 0)
        status = error_set(&outcome->error, STATUS_DB_RETRY, "the stored answer was deleted meanwhile");
    if (status == STATUS_OK)
        *outcome = (struct idempotency_outcome){
            .status = (int)db_result_i64(found, 0, 0),
            .body = arena_str(arena, db_result_str(found, 0, 1)),
            .replayed = true,
        };
    db_result_free(found);
    return status;
}

/* The meaning of the failure that ended the pipeline. */
static enum status read_failure(struct attempt *run, struct db_conn *conn, enum status status, bool is_lock,
                                struct idempotency_outcome *outcome)
{
    struct error *error = &outcome->error;
    char state[8];

    snprintf(state, sizeof state, "%s", db_sqlstate(conn));
    bool waited_long = strcmp(state, "55P03") == 0 || strcmp(state, "57014") == 0;
    if (strcmp(state, "FR002") == 0)
        return read_stored(run, conn, outcome);
    if (strcmp(state, "FR003") == 0)
        return error_set(error, STATUS_IDEMPOTENCY_KEY_CONFLICT, "%s",
                         status_message(STATUS_IDEMPOTENCY_KEY_CONFLICT));
    if (strcmp(state, "FR001") == 0 || (waited_long && is_lock))
        return error_set(error, STATUS_IDEMPOTENCY_KEY_PROCESSING, "%s",
                         status_message(STATUS_IDEMPOTENCY_KEY_PROCESSING));
    /* The effect has waited for a lock as long as it may: a retry would double that. */
    if (status == STATUS_DB_RETRY && strcmp(state, "55P03") == 0)
        return error_set(error, STATUS_UNAVAILABLE, "the effect waited too long for a lock");
    run->unknown |= status == STATUS_DB_DOWN || status == STATUS_TIMEOUT;
    return status;
}

static enum status run_with_key(struct attempt *run, struct db_conn *conn,
                                struct idempotency_outcome *outcome)
{
    const struct idempotency_call *call = run->call;
    bool waits = call->request->route->idempotency == HTTP_KEY_SERIALIZE || run->unknown;
    unsigned first = db_param_count(call->statement, call->params);
    int left_ms = clock_ms_left(call->deadline_ns) / 2; /* the other half is for the effect */
    int wait_ms = left_ms < IDEMPOTENCY_WAIT_MS ? left_ms : IDEMPOTENCY_WAIT_MS;
    struct db_param params[DB_PARAMS_MAX + 1];

    if (first + STORE_PARAMS > DB_PARAMS_MAX)
        return error_set(&outcome->error, STATUS_INTERNAL, "the effect has too many parameters");
    const struct db_statement look = look_statement(call),
                              store = store_statement(run, first, call->statement->text, params);
    enum { AT_LOCK = 1, AT_EFFECT = 3, STATEMENTS = 5 };
    const struct {
        const struct db_statement *statement;
        const struct db_param *params;
        const char *failpoint; /* before it */
    } steps[STATEMENTS] = {
        {&db_begin_sql, DB_NO_PARAMS, NULL},
        {&lock_sql, DB_PARAMS(db_i64(run->lock_key), db_int(waits ? wait_ms : 0)), NULL},
        {&look, run->look_params, NULL},
        {&store, params, "idempotency.before_effect"},
        {&db_commit_sql, DB_NO_PARAMS, "idempotency.before_commit"},
    };
    struct db_result *results[STATEMENTS] = {0};
    enum status status = STATUS_OK;
    size_t sent = 0, failed_at = 0;

    db_pipeline_begin(conn);
    for (size_t i = 0; i <= STATEMENTS && status == STATUS_OK; i++) {
        /* A process can die between two statements only if they are sent separately: with an armed failpoint they are. */
        bool is_split = i < STATEMENTS && steps[i].failpoint && FAILPOINT_IS_ARMED(steps[i].failpoint);
        if (i == STATEMENTS || is_split) {
            status = db_pipeline_end(conn, call->deadline_ns, results + sent, i - sent, &failed_at,
                                     &outcome->error);
            failed_at += sent;
            sent = i;
        }
        if (is_split && status == STATUS_OK) {
            FAILPOINT(steps[i].failpoint);
            db_pipeline_begin(conn);
        }
        if (i < STATEMENTS && status == STATUS_OK)
            db_pipeline_add(conn, steps[i].statement, steps[i].params);
    }
    if (status == STATUS_OK) {
        status = idempotency_take_effect(results[AT_EFFECT], outcome);
        results[AT_EFFECT] = NULL;
    } else {
        status = read_failure(run, conn, status, failed_at == AT_LOCK, outcome);
    }
    for (size_t i = 0; i < STATEMENTS; i++)
        db_result_free(results[i]);
    return status;
}

/* ---- the run ---- */

/* True when a group has decided it. With an armed failpoint every call is alone, since it is sent in parts. */
static bool run_in_group(struct attempt *run, struct idempotency_member *member,
                         struct idempotency_outcome *outcome)
{
    const struct idempotency_call *call = run->call;
    unsigned first = db_param_count(call->statement, call->params);
    struct db_param params[DB_PARAMS_MAX + 1];
    if (!call->table->groups || first + STORE_PARAMS > DB_PARAMS_MAX ||
        FAILPOINT_IS_ARMED("idempotency.before_effect") || FAILPOINT_IS_ARMED("idempotency.before_commit"))
        return false;
    *member = (struct idempotency_member){
        .call = call, .outcome = outcome, .lock_key = run->lock_key, .params = params};
    if (idempotency_groups_enter(call->table->groups, member))
        return false;
    member->statement = store_statement(run, first, gated_effect(call, first), params);
    bool is_decided = idempotency_groups_wait(call->table->groups, member);
    run->unknown = member->unknown;
    return is_decided;
}

void idempotency_run(const struct idempotency_call *call, struct idempotency_outcome *outcome)
{
    const struct http_request *request = call->request;
    struct str key = request->idempotency_key;
    uint8_t hash[AUTH_SHA256_BYTES];
    bool has_key = key.ptr != NULL, may_retry;
    enum status status;
    int tries = 0;

    *outcome = (struct idempotency_outcome){0};
    if (has_key)
        auth_sha256(&request->body, 1, hash);
    struct attempt run = {
        .call = call,
        .lock_key = has_key ? idempotency_lock_key(request, call->tenant, call->subject, key) : 0,
        .look_params = DB_PARAMS(db_text(call->tenant.ptr ? call->tenant : STR("")),
                                 db_text(call->subject.ptr ? call->subject : STR("")), db_text(STR("POST")),
                                 db_cstr(request->route->path), db_text(key),
                                 db_bytea(str_of((const char *)hash, sizeof hash))),
    };
    struct idempotency_member member = {.call = NULL};
    FAILPOINT("idempotency.before_begin");
    bool is_decided = has_key && run_in_group(&run, &member, outcome);
    status = outcome->error.status;
    may_retry = !is_decided;
    while (may_retry && tries++ < TRIES_MAX && (tries == 1 || clock_mono_ns() < call->deadline_ns)) {
        struct db_conn *conn = NULL;
        struct db_result *rows;
        status = db_acquire(call->pool, call->deadline_ns, &conn, &outcome->error);
        if (status == STATUS_OK && has_key) {
            status = run_with_key(&run, conn, outcome);
        } else if (status == STATUS_OK) {
            status = db_query(conn, call->statement, call->params, call->deadline_ns, &rows, &outcome->error);
            if (status == STATUS_OK)
                status = idempotency_take_effect(rows, outcome);
        }
        /* A lost connection may have been an old one; with a key, a retry finds out whether it committed. */
        may_retry = status == STATUS_DB_RETRY || (status == STATUS_DB_DOWN && conn && has_key);
        db_release(conn); /* rolls back what was not committed */
    }
    if (member.call)
        idempotency_groups_leave(call->table->groups, &member);
    FAILPOINT("idempotency.after_commit");
    outcome->error.status = status;
    if (status == STATUS_OK && run.unknown) /* the stored answer may be of this call */
        outcome->has_effect = outcome->status < 400;
    if (has_key && status == STATUS_OK)
        idempotency_count(request->route, outcome->replayed ? IDEMPOTENCY_HIT : IDEMPOTENCY_MISS);
    else if (has_key && status == STATUS_IDEMPOTENCY_KEY_CONFLICT)
        idempotency_count(request->route, IDEMPOTENCY_CONFLICT);
    else if (has_key && status == STATUS_IDEMPOTENCY_KEY_PROCESSING)
        idempotency_count(request->route, IDEMPOTENCY_COLLISION);
}

void idempotency_send(struct http_request *request, struct idempotency_outcome *outcome, struct str headers)
{
    struct str own = outcome->replayed        ? STR("Idempotency-Replayed: true\r\n")
                     : outcome->status == 503 ? STR("Retry-After: 1\r\n")
                                              : STR("");
    struct http_response response = {
        .status = outcome->status,
        .headers = headers.len ? arena_printf(request->arena, "%.*s%s", STR_ARG(headers), own.ptr) : own,
        .body = outcome->body,
    };
    enum status failure = outcome->error.status;

    if (failure == STATUS_IDEMPOTENCY_KEY_CONFLICT || failure == STATUS_IDEMPOTENCY_KEY_PROCESSING)
        idempotency_send_error(request, &outcome->error, request->idempotency_key);
    else if (failure != STATUS_OK)
        http_send_error(request, &outcome->error);
    else
        http_send(request, &response);
    db_result_free(outcome->rows);
    outcome->rows = NULL;
}

#define HOUR_MS INT64_C(3600000)
#define ROWS(ttl, ttl_min_ms, cleanup)                                                   \
    {                                                                                    \
        {"ttl",                                                                          \
         SETTING_DURATION_MS,                                                            \
         .offset = offsetof(struct idempotency_settings, ttl_ms),                        \
         "How long the answer to an Idempotency-Key is kept; replays do not extend it.", \
         ttl,                                                                            \
         ttl_min_ms,                                                                     \
         365 * 24 * HOUR_MS},                                                            \
            {"cleanup-interval",                                                         \
             SETTING_DURATION_MS,                                                        \
             .offset = offsetof(struct idempotency_settings, cleanup_ms),                \
             "How often expired answers are deleted.",                                   \
             cleanup,                                                                    \
             10,                                                                         \
             24 * HOUR_MS},                                                              \
        {                                                                                \
            .name = NULL                                                                 \
        }                                                                                \
    }
const struct setting_row idempotency_setting_rows[] = ROWS("1h", 1, "10m"),
                         idempotency_setting_rows_day[] = ROWS("24h", 1000, "1h");

/* The condition stands twice: a row that was used again between being found and being deleted stays. */
void idempotency_cleanup_sql(const struct idempotency_table *table, struct buf *out)
{
    buf_printf(out,
               "WITH cleaned AS (DELETE FROM %s WHERE ctid = ANY (ARRAY(SELECT ctid FROM %s"
               " WHERE expires_at %s statement_timestamp() - $1 * interval '1 millisecond'"
               " ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))"
               " AND expires_at %s statement_timestamp() - $1 * interval '1 millisecond' RETURNING route)"
               " SELECT route, count(*) FROM cleaned GROUP BY route",
               table->name, table->name, expired_operator(table), expired_operator(table));
    buf_put_char(out, '\0');
}
