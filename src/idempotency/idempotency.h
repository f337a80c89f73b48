/* Idempotency-Key for POST (SPEC I1–I7): one effect and one answer, however often the request is sent.
 *
 *   loop    the body is complete ─ idempotency_enter(): is the key valid? (400) serialize: has a duplicate in this process the key?
 *              Then the request is parked until its turn, in order
 *   worker  handler ─ idempotency_run(): ONE round trip
 *              BEGIN; lock (scope and key); look for a stored answer; effect + stored answer; COMMIT
 *              or, with others of its tenant: BEGIN; try all locks; each: look, effect + stored answer; COMMIT
 *   loop    answered ─ idempotency_leave(): the next duplicate's turn
 *
 * There is no row for "being processed". The lock is a transaction's advisory lock on the first 8 bytes of SHA-256(scope and key):
 * reject tries it, and is busy only where a look without the lock finds nothing, so that duplicates of an answered request are all
 * replayed; serialize waits, bounded. The look is a statement of its own, which sees what was committed meanwhile. Busy, replay and
 * conflict are SQLSTATEs of their own (sql/platform/003_idempotency.sql): they end the pipeline before the effect. So a process that
 * dies in the middle leaves both effect and answer, or neither, and the lock goes with the connection.
 *
 * Scope: tenant, sub, method and the route's path pattern (I2): no caller reads another's answer.
 *
 * A module's table is in its own schema, created by its migrations: `select platform.idempotency_table_make('intake')`
 * (sql/platform/004_idempotency_table.sql).
 *
 * Threads: enter and leave on the request's loop; run and answer on a worker; the rest on any. */
#ifndef FRESHET_IDEMPOTENCY_IDEMPOTENCY_H
#define FRESHET_IDEMPOTENCY_IDEMPOTENCY_H

#include "base/setting.h"
#include "db/db.h"
#include "http/http.h"

#define IDEMPOTENCY_KEY_BYTES_MAX 255
/* serialize: how long a duplicate may wait for the one before it, parked or, for one of another process, in PostgreSQL */
#define IDEMPOTENCY_WAIT_MS 5000

/* ---- the idempotency step: keys in use in this process ---- */
struct idempotency;
struct idempotency *idempotency_create(int64_t wait_ms);
void idempotency_destroy(struct idempotency *idempotency); /* after its loops */

/* For requests of rows with a policy, when their body is complete. PASS: the handler may run, and leave() follows once it has
 * answered. PARKED: http_request_resume() follows at its turn. The key, if there is one, is then in request->idempotency_key. */
enum http_step idempotency_enter(struct idempotency *idempotency, struct http_request *request,
                                 struct str tenant, struct str subject);
void idempotency_leave(struct http_request *request);

/* The first 8 bytes of SHA-256(scope and key), as the advisory lock wants them. */
int64_t idempotency_lock_key(const struct http_request *request, struct str tenant, struct str subject,
                             struct str key);
/* A failure in the route's error style, with the member `idempotency_key` if there is a key. */
void idempotency_send_error(struct http_request *request, const struct error *error, struct str key);

/* ---- settings: `<module>.idempotency` ---- */
struct idempotency_settings {
    int64_t ttl_ms, cleanup_ms;
};
extern const struct setting_row idempotency_setting_rows[], /* an hour */
    idempotency_setting_rows_day[];

/* ---- effect and answer together ---- */

/* Calls with a key that come while running_max others of their tenant run share a transaction, and so a connection and a wait for the
 * disk (groups.c). A call that has waited wait_ms for the others runs alone. */
enum { IDEMPOTENCY_GROUP_RUNNING = 8, IDEMPOTENCY_GROUP_WAIT_MS = 50 };
struct idempotency_groups;
struct idempotency_groups *idempotency_groups_create(unsigned running_max, int64_t wait_ms);
void idempotency_groups_destroy(struct idempotency_groups *groups); /* after its calls; NULL is fine */

struct idempotency_table {
    const char *name; /* "intake.idempotency_keys" */
    int64_t ttl_ms;
    /* I6: is a row expired at the very moment of expires_at (entitlement), or only after it (intake)? */
    bool expires_inclusive;
    struct idempotency_groups *groups; /* NULL = every call is alone; else effects are SELECTs */
};

struct idempotency_call {
    struct db_pool *pool;
    const struct idempotency_table *table;
    struct http_request *request;
    struct str tenant, subject; /* of the key's scope */
    /* The effect: one statement whose one row begins with: the answer's HTTP status (int), its body (text). Further columns are the
     * module's. It may be a call of a function that does everything; it runs once, inside the transaction. A status of 400 and
     * more means that it wrote nothing: such an answer is stored only where the route has key_stores_failures, and never a 5xx,
     * 400, 401 or 403. Not with binary_results. */
    const struct db_statement *statement;
    const struct db_param *params;
    int64_t deadline_ns;
};

struct idempotency_outcome {
    struct error error; /* status OK: all below holds */
    int status;
    struct str body; /* as stored, to the byte; in `rows`, or in the request's arena */
    bool replayed;
    bool has_effect;        /* this call had an effect, or may have had: wake its publisher */
    struct db_result *rows; /* of the effect, NULL when replayed; idempotency_send() frees them */
};

/* On a worker. Without a key the statement runs alone. Failures: IDEMPOTENCY_KEY_CONFLICT, IDEMPOTENCY_KEY_PROCESSING, and the
 * database's (DB_DOWN also when it is unknown whether it committed: a request with the same key finds out). */
void idempotency_run(const struct idempotency_call *call, struct idempotency_outcome *outcome);
/* Sends its answer: the failure in the route's style, or the outcome's status and body with these header lines and those that
 * belong to it. Ends the outcome. */
void idempotency_send(struct http_request *request, struct idempotency_outcome *outcome, struct str headers);

/* The statement of a grouped retention rule for such a table (I6), keep_ms 0: expired rows only, never one whose key is
 * being processed; answers (route, count). Into `out`, NUL-terminated. */
void idempotency_cleanup_sql(const struct idempotency_table *table, struct buf *out);
void idempotency_count_cleaned(struct str route, int64_t count); /* idempotency_cleanup_count_total */
void idempotency_log_cleaned(struct str table, int64_t count);
/* Sets idempotency_keys and idempotency_table_bytes; blocks for one statement, which reads statistics only. */
enum status idempotency_measure(struct db_conn *conn, struct str table, int64_t deadline_ns,
                                struct error *error) MUST_CHECK;

/* ---- metrics (I7): counted by enter() and run(), and by modules that store keys themselves ---- */
enum idempotency_event {
    IDEMPOTENCY_HIT,
    IDEMPOTENCY_MISS,
    IDEMPOTENCY_CONFLICT,
    IDEMPOTENCY_COLLISION,
    IDEMPOTENCY_EVENTS
};
void idempotency_count(const struct http_route *route, enum idempotency_event event);
extern struct metric_family
    idempotency_families[IDEMPOTENCY_EVENTS + 1]; /* the last: keys that were cleaned */

#endif
