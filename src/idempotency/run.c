/* Effect and answer in one transaction and one round trip (I2–I5).
 *
 *     BEGIN ─ lock ─ look ─ effect + stored answer ─ COMMIT
 *
 * All of it may be run again at any time: a try whose commit was not answered is found by the next one as its stored
 * answer. So a deadlock, a statement gone stale and a connection that broke are tried again; only without a key is a broken
 * one told to the client. */
#include <stdio.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "idempotency/idempotency_inside.h"

enum {
    TRIES_MAX = 5,
    STATEMENTS = 5,
    NUMBER_BYTES = 24,
};

static const char lock_sql[] = "SELECT platform.idempotency_lock($1, $2)";

struct run {
    struct db_pool *pool;
    const struct idempotency_table *table;
    struct http_request *request;
    const struct idempotency_effect *effect;
    int64_t deadline_ns;
    bool waits;   /* for the lock */
    bool unknown; /* some try's commit was not answered */
    int64_t lock_key;
    uint8_t hash[AUTH_SHA256_BYTES];
    struct db_param key_params[IDEMPOTENCY_STORE_PARAMS]; /* tenant … hash, time to live */
    char ttl[NUMBER_BYTES];
};

/* ---- the pipeline ---- */

/* The first failure stays, and makes the rest nothing. */
struct pipe {
    struct db_conn *conn;
    int64_t deadline_ns;
    enum status status;
    struct db_result *results[STATEMENTS];
    size_t added, sent; /* before `sent`, results are there */
    size_t failed_at;
    struct error *error;
};

static void pipe_begin(struct pipe *pipe)
{
    if (pipe->status == STATUS_OK)
        pipe->status = db_pipeline_begin_checked(pipe->conn, pipe->error);
}

static void pipe_add(struct pipe *pipe, const struct db_statement *statement, const struct db_param *params)
{
    if (pipe->status == STATUS_OK)
        pipe->status = db_pipeline_add_checked(pipe->conn, statement, params, pipe->error);
    pipe->added++;
}

static void pipe_end(struct pipe *pipe)
{
    size_t failed_at = 0;

    if (pipe->status == STATUS_OK)
        pipe->status = db_pipeline_end(pipe->conn, pipe->deadline_ns, pipe->results + pipe->sent,
                                       pipe->added - pipe->sent, &failed_at, pipe->error);
    if (pipe->status != STATUS_OK)
        pipe->failed_at = pipe->sent + failed_at;
    pipe->sent = pipe->added;
}

/* A process can die between two statements only if they are sent apart: where a test asks for it, they are. */
#define PIPE_FAILPOINT(pipe, name)           \
    do {                                     \
        if (FAILPOINT_IS_ARMED(name)) {      \
            pipe_end(pipe);                  \
            if ((pipe)->status == STATUS_OK) \
                FAILPOINT(name);             \
            pipe_begin(pipe);                \
        }                                    \
    } while (0)

static void pipe_free(struct pipe *pipe)
{
    for (size_t i = 0; i < STATEMENTS; i++)
        db_result_free(pipe->results[i]);
}

/* ---- its statements ---- */

enum { AT_BEGIN, AT_LOCK, AT_LOOK, AT_EFFECT, AT_COMMIT };

static const enum db_type key_types[IDEMPOTENCY_STORE_PARAMS] = {DB_TEXT, DB_TEXT,  DB_TEXT,  DB_TEXT,
                                                                 DB_TEXT, DB_BYTEA, DB_BIGINT};

static void add_plain(struct pipe *pipe, const char *sql)
{
    struct db_statement statement;

    db_statement_init(&statement, sql, 0, NULL);
    pipe_add(pipe, &statement, NULL);
}

static void add_lock(struct pipe *pipe, const struct run *run)
{
    static const enum db_type types[] = {DB_BIGINT, DB_INT};
    char key[NUMBER_BYTES], wait[NUMBER_BYTES];
    struct db_statement statement;
    int left_ms = clock_ms_left(run->deadline_ns) / 2; /* the other half is for the effect */
    int wait_ms = left_ms < IDEMPOTENCY_WAIT_MS ? left_ms : IDEMPOTENCY_WAIT_MS;

    snprintf(key, sizeof key, "%lld", (long long)run->lock_key);
    snprintf(wait, sizeof wait, "%d", run->waits || run->unknown ? wait_ms : 0);
    db_statement_init(&statement, lock_sql, 2, types);
    pipe_add(pipe, &statement, (struct db_param[]){{str_from(key)}, {str_from(wait)}});
}

static void add_look(struct pipe *pipe, const struct run *run)
{
    struct db_statement statement;
    struct buf sql;

    buf_init(&sql);
    idempotency_look_sql(run->table, &sql);
    db_statement_init(&statement, sql.data, IDEMPOTENCY_LOOK_PARAMS, key_types);
    pipe_add(pipe, &statement, run->key_params);
    buf_deinit(&sql);
}

static void add_effect(struct pipe *pipe, const struct run *run)
{
    const struct db_statement *effect = run->effect->statement;
    unsigned own = effect->param_count, count = own + IDEMPOTENCY_STORE_PARAMS;
    enum db_type types[DB_PARAMS_MAX];
    struct db_param params[DB_PARAMS_MAX];
    struct db_statement statement;
    struct buf sql;

    if (count > DB_PARAMS_MAX) {
        pipe->status = error_set(pipe->error, STATUS_INTERNAL, "the effect has too many parameters");
        return;
    }
    memcpy(types, effect->types, own * sizeof *types);
    memcpy(types + own, key_types, sizeof key_types);
    if (own > 0)
        memcpy(params, run->effect->params, own * sizeof *params);
    memcpy(params + own, run->key_params, sizeof run->key_params);
    buf_init(&sql);
    idempotency_store_sql(run->table, effect, run->request->route->key_stores_failures, &sql);
    db_statement_init(&statement, sql.data, count, types);
    pipe_add(pipe, &statement, params);
    buf_deinit(&sql);
}

/* ---- one try ---- */

static enum status take_effect(struct db_result *rows, struct idempotency_outcome *outcome,
                               struct error *error)
{
    if (db_result_rows(rows) != 1 || db_result_is_null(rows, 0, 0) || db_result_is_null(rows, 0, 1)) {
        db_result_free(rows);
        return error_set(error, STATUS_INTERNAL, "an effect gave no answer, or several");
    }
    *outcome = (struct idempotency_outcome){
        .status = (int)db_result_i64(rows, 0, 0),
        .body = db_result_str(rows, 0, 1),
        .rows = rows,
    };
    outcome->has_effect = outcome->status < 400;
    return STATUS_OK;
}

/* The stored answer, behind the end of the transaction that found it. DB_RETRY: it is gone, so look again. */
static enum status replay(const struct run *run, struct db_conn *conn, struct idempotency_outcome *outcome,
                          struct error *error)
{
    struct db_statement statement;
    struct db_result *found = NULL;
    struct buf sql;

    buf_init(&sql);
    idempotency_fetch_sql(run->table, &sql);
    db_statement_init(&statement, sql.data, IDEMPOTENCY_LOOK_PARAMS, key_types);
    db_rollback(conn);
    enum status status = db_query(conn, &statement, run->key_params, run->deadline_ns, &found, error);
    buf_deinit(&sql);
    if (status == STATUS_OK && db_result_rows(found) == 0)
        status = error_set(error, STATUS_DB_RETRY, "the stored answer was cleaned up meanwhile");
    if (status == STATUS_OK)
        *outcome = (struct idempotency_outcome){
            .status = (int)db_result_i64(found, 0, 0),
            .body = arena_str(run->request->arena, db_result_str(found, 0, 1)),
            .replayed = true,
        };
    db_result_free(found);
    return status;
}

/* Why the pipeline ended early. */
static enum status explain(struct run *run, const struct pipe *pipe, struct idempotency_outcome *outcome,
                           struct error *error)
{
    char state[8];

    snprintf(state, sizeof state, "%s", db_sqlstate(pipe->conn));
    bool waited_long = strcmp(state, "55P03") == 0 || strcmp(state, "57014") == 0;
    if (strcmp(state, "FR002") == 0)
        return replay(run, pipe->conn, outcome, error);
    if (strcmp(state, "FR003") == 0)
        return error_set(error, STATUS_IDEMPOTENCY_KEY_CONFLICT, "%s",
                         status_message(STATUS_IDEMPOTENCY_KEY_CONFLICT));
    if (strcmp(state, "FR001") == 0 || (waited_long && pipe->failed_at == AT_LOCK))
        return error_set(error, STATUS_IDEMPOTENCY_KEY_PROCESSING, "%s",
                         status_message(STATUS_IDEMPOTENCY_KEY_PROCESSING));
    /* The effect waited for a lock as long as it was meant to: once more would be longer. */
    if (pipe->status == STATUS_DB_RETRY && strcmp(state, "55P03") == 0)
        return error_set(error, STATUS_UNAVAILABLE, "the effect waited too long for a lock");
    run->unknown |= pipe->status == STATUS_DB_DOWN || pipe->status == STATUS_TIMEOUT;
    return pipe->status;
}

static enum status commit(struct run *run, struct db_conn *conn, struct idempotency_outcome *outcome,
                          struct error *error)
{
    struct pipe pipe = {.conn = conn, .deadline_ns = run->deadline_ns, .error = error};

    pipe_begin(&pipe);
    add_plain(&pipe, "BEGIN");
    add_lock(&pipe, run);
    add_look(&pipe, run);
    PIPE_FAILPOINT(&pipe, "idempotency.before_effect");
    add_effect(&pipe, run);
    PIPE_FAILPOINT(&pipe, "idempotency.before_commit");
    add_plain(&pipe, "COMMIT");
    pipe_end(&pipe);
    enum status status = pipe.status;
    if (status == STATUS_OK) {
        status = take_effect(pipe.results[AT_EFFECT], outcome, error);
        pipe.results[AT_EFFECT] = NULL;
    } else {
        status = explain(run, &pipe, outcome, error);
    }
    pipe_free(&pipe);
    return status;
}

static enum status run_alone(struct run *run, struct db_conn *conn, struct idempotency_outcome *outcome,
                             struct error *error)
{
    struct db_result *rows;
    enum status status =
        db_query(conn, run->effect->statement, run->effect->params, run->deadline_ns, &rows, error);

    return status == STATUS_OK ? take_effect(rows, outcome, error) : status;
}

static enum status try_once(struct run *run, bool *connected, struct idempotency_outcome *outcome,
                            struct error *error)
{
    struct db_conn *conn = NULL;
    enum status status = db_acquire(run->pool, run->deadline_ns, &conn, error);

    *connected = status == STATUS_OK;
    if (status != STATUS_OK)
        return status;
    bool has_key = run->request->idempotency_key.ptr != NULL;
    status = has_key ? commit(run, conn, outcome, error) : run_alone(run, conn, outcome, error);
    db_release(conn); /* rolls back what was not committed */
    return status;
}

/* ---- the whole ---- */

static void begin(struct run *run, struct str tenant, struct str subject)
{
    struct http_request *request = run->request;
    struct str key = request->idempotency_key;

    run->waits = request->route->idempotency == HTTP_KEY_SERIALIZE;
    run->lock_key = idempotency_lock_key(request, tenant, subject, key);
    auth_sha256(&request->body, 1, run->hash);
    snprintf(run->ttl, sizeof run->ttl, "%lld", (long long)run->table->ttl_ms);
    const struct str values[IDEMPOTENCY_STORE_PARAMS] = {
        tenant.ptr ? tenant : STR(""),
        subject.ptr ? subject : STR(""),
        STR("POST"),
        str_from(request->route->path),
        key,
        str_of((const char *)run->hash, sizeof run->hash),
        str_from(run->ttl),
    };
    for (size_t i = 0; i < IDEMPOTENCY_STORE_PARAMS; i++)
        run->key_params[i].value = values[i];
}

/* A connection that broke may have been an old one; with a key, whatever came of it is found. */
static bool goes_on(const struct run *run, enum status status, bool connected, int tries)
{
    if (tries >= TRIES_MAX || clock_mono_ns() >= run->deadline_ns)
        return false;
    return status == STATUS_DB_RETRY ||
           (status == STATUS_DB_DOWN && connected && run->request->idempotency_key.ptr);
}

static void count(const struct run *run, enum status status, const struct idempotency_outcome *outcome)
{
    if (status == STATUS_OK)
        idempotency_count(run->request->route, outcome->replayed ? IDEMPOTENCY_HIT : IDEMPOTENCY_MISS);
    else if (status == STATUS_IDEMPOTENCY_KEY_CONFLICT)
        idempotency_count(run->request->route, IDEMPOTENCY_CONFLICT);
    else if (status == STATUS_IDEMPOTENCY_KEY_PROCESSING)
        idempotency_count(run->request->route, IDEMPOTENCY_COLLISION);
}

enum status idempotency_run(struct db_pool *pool, const struct idempotency_table *table,
                            struct http_request *request, struct str tenant, struct str subject,
                            const struct idempotency_effect *effect, int64_t deadline_ns,
                            struct idempotency_outcome *outcome, struct error *error)
{
    struct run run = {
        .pool = pool, .table = table, .request = request, .effect = effect, .deadline_ns = deadline_ns};
    bool has_key = request->idempotency_key.ptr != NULL, connected = false;
    enum status status;
    int tries = 0;

    if (has_key)
        begin(&run, tenant, subject);
    FAILPOINT("idempotency.before_begin");
    do
        status = try_once(&run, &connected, outcome, error);
    while (status != STATUS_OK && goes_on(&run, status, connected, ++tries));
    FAILPOINT("idempotency.after_commit");
    if (status == STATUS_OK && run.unknown) /* what is replayed may be this call's own */
        outcome->has_effect = outcome->status < 400;
    if (has_key)
        count(&run, status, outcome);
    return status;
}

bool idempotency_answer(struct db_pool *pool, const struct idempotency_table *table,
                        struct http_request *request, struct str tenant, struct str subject,
                        const struct idempotency_effect *effect, int64_t deadline_ns)
{
    struct idempotency_outcome outcome = {0};
    struct error error = {0};
    enum status status =
        idempotency_run(pool, table, request, tenant, subject, effect, deadline_ns, &outcome, &error);

    if (status == STATUS_IDEMPOTENCY_KEY_CONFLICT || status == STATUS_IDEMPOTENCY_KEY_PROCESSING)
        idempotency_send_error(request, &error, request->idempotency_key);
    else if (status != STATUS_OK)
        http_send_error(request, &error);
    if (status != STATUS_OK)
        return false;
    http_send(request, &(struct http_response){
                           .status = outcome.status,
                           .headers = outcome.replayed        ? STR("Idempotency-Replayed: true\r\n")
                                      : outcome.status == 503 ? STR("Retry-After: 1\r\n")
                                                              : STR_NONE,
                           .body = outcome.body,
                       });
    db_result_free(outcome.rows);
    return outcome.has_effect;
}
