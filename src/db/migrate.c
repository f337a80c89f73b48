/* Migrations: numbered SQL files per module, applied once each, by the first process that starts.
 *
 * One session-level advisory lock serialises every process that migrates this database. A migration and its
 * row in platform.schema_migration commit together, so a crash leaves it done or not begun. The search path
 * is emptied while they run: what is not qualified fails here instead of landing in someone's default
 * schema. */
#include "db/db.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "db/db_inside.h"

/* "freshet" in ASCII: any constant does, as long as every process uses the same. */
#define LOCK_SQL "SELECT pg_catalog.pg_advisory_lock(28836227677971828)"
#define UNLOCK_SQL "SELECT pg_catalog.pg_advisory_unlock(28836227677971828)"

/* A deadline of ours bounds each wait; a statement_timeout would break long migrations, and the wait for the
 * lock. */
static const char session_sql[] =
    "SET statement_timeout = 0; SET search_path = pg_catalog; SET lock_timeout = 0";

static const struct db_statement exists_sql =
    DB_STATEMENT("SELECT pg_catalog.to_regclass('platform.schema_migration') IS NOT NULL");
static const struct db_statement applied_sql =
    DB_STATEMENT("SELECT number, checksum FROM platform.schema_migration WHERE module = $1 ORDER BY number");
static const struct db_statement record_sql = DB_STATEMENT(
    "INSERT INTO platform.schema_migration (module, number, name, checksum) VALUES ($1, $2, $3, $4)");

static const char create_sql[] = "CREATE SCHEMA IF NOT EXISTS platform;"
                                 "CREATE TABLE platform.schema_migration ("
                                 "    module     text        NOT NULL,"
                                 "    number     integer     NOT NULL,"
                                 "    name       text        NOT NULL,"
                                 "    checksum   text        NOT NULL,"
                                 "    applied_at timestamptz NOT NULL DEFAULT now(),"
                                 "    PRIMARY KEY (module, number))";

struct migration_run {
    struct db_conn *conn;
    const char *module;
    int64_t deadline_ns;
    struct db_result *applied; /* (number, checksum), NULL when the table does not exist */
};

/* Into run->applied, unless the table does not exist. */
static enum status read_applied(struct migration_run *run, struct error *error)
{
    struct db_result *result;
    enum status status = db_query(run->conn, &exists_sql, DB_NO_PARAMS, run->deadline_ns, &result, error);
    bool exists = status == STATUS_OK && str_eq(db_result_str(result, 0, 0), STR("t"));

    db_result_free(result);
    if (!exists)
        return status;
    return db_query(run->conn, &applied_sql, DB_PARAMS(db_cstr(run->module)), run->deadline_ns, &run->applied,
                    error);
}

static void checksum(const struct db_migration *migration, char out[HASH128_HEX_BYTES])
{
    hash128_hex(hash_item(STR(""), str_from(migration->sql)), out);
}

/* Is it applied, and still the same text? */
static enum status is_applied(const struct migration_run *run, const struct db_migration *migration,
                              bool *applied, struct error *error)
{
    char sum[HASH128_HEX_BYTES];

    *applied = false;
    checksum(migration, sum);
    for (size_t row = 0; run->applied && row < db_result_rows(run->applied); row++) {
        if (db_result_i64(run->applied, row, 0) != migration->number)
            continue;
        *applied = true;
        if (!str_eq(db_result_str(run->applied, row, 1), str_from(sum)))
            return error_set(error, STATUS_CONFIG, "migration %s/%03u_%s was changed after it was applied",
                             run->module, migration->number, migration->name);
    }
    return STATUS_OK;
}

static enum status apply(struct migration_run *run, const struct db_migration *migration, struct error *error)
{
    char sum[HASH128_HEX_BYTES];
    enum status status = db_begin(run->conn, DB_READ_COMMITTED, run->deadline_ns, error);

    checksum(migration, sum);
    if (status == STATUS_OK)
        status = db_conn_command(run->conn, migration->sql, run->deadline_ns, error);
    if (status == STATUS_OK && PQtransactionStatus(run->conn->pg) != PQTRANS_INTRANS)
        status = error_set(error, STATUS_CONFIG, "it ends its transaction by itself");
    if (status == STATUS_OK)
        status = db_exec(run->conn, &record_sql,
                         DB_PARAMS(db_cstr(run->module), db_int(migration->number), db_cstr(migration->name),
                                   db_cstr(sum)),
                         run->deadline_ns, NULL, error);
    if (status == STATUS_OK)
        status = db_commit(run->conn, run->deadline_ns, error);
    if (status == STATUS_OK) {
        log_info("migration_applied", LOG_CSTR("module", run->module), LOG_INT("number", migration->number),
                 LOG_CSTR("name", migration->name));
        return status;
    }
    db_rollback(run->conn);
    if (error)
        error_context(error, "migration %s/%03u_%s", run->module, migration->number, migration->name);
    return status;
}

/* With the lock held. */
static enum status apply_missing(struct migration_run *run, const struct db_migration *migrations,
                                 unsigned *count, struct error *error)
{
    bool applied;
    enum status status = read_applied(run, error);

    if (status == STATUS_OK && !run->applied)
        status = db_conn_command(run->conn, create_sql, run->deadline_ns, error);
    for (; status == STATUS_OK && migrations->number > 0; migrations++) {
        status = is_applied(run, migrations, &applied, error);
        if (status == STATUS_OK && !applied) {
            status = apply(run, migrations, error);
            *count += status == STATUS_OK;
        }
    }
    return status;
}

enum status db_migrate(struct db_pool *pool, const char *module, const struct db_migration *migrations,
                       int64_t deadline_ns, unsigned *applied, struct error *error)
{
    struct migration_run run = {.module = module, .deadline_ns = deadline_ns};
    unsigned unused = 0;

    applied = applied ? applied : &unused;
    *applied = 0;
    enum status status = db_acquire(pool, deadline_ns, &run.conn, error);
    if (status != STATUS_OK)
        return status;
    status = db_conn_command(run.conn, session_sql, deadline_ns, error);
    if (status == STATUS_OK)
        status = db_conn_command(run.conn, LOCK_SQL, deadline_ns, error);
    if (status == STATUS_OK) {
        status = apply_missing(&run, migrations, applied, error);
        if (run.conn->pg && db_conn_command(run.conn, UNLOCK_SQL, deadline_ns, NULL) != STATUS_OK)
            log_debug("migration_unlock_failed", LOG_CSTR("module", module));
    }
    db_result_free(run.applied);
    db_conn_abandon(
        run.conn); /* its settings are not a pooled connection's, and the lock ends with it for sure */
    db_release(run.conn);
    return status;
}

enum status db_migrate_check(struct db_pool *pool, const char *module, const struct db_migration *migrations,
                             int64_t deadline_ns, unsigned *missing, struct error *error)
{
    struct migration_run run = {.module = module, .deadline_ns = deadline_ns};
    bool applied = true;

    *missing = 0;
    enum status status = db_acquire(pool, deadline_ns, &run.conn, error);
    if (status != STATUS_OK)
        return status;
    status = read_applied(&run, error);
    for (; status == STATUS_OK && applied && migrations->number > 0; migrations++) {
        status = is_applied(&run, migrations, &applied, error);
        if (!applied)
            *missing = migrations->number;
    }
    db_result_free(run.applied);
    db_release(run.conn);
    return status;
}
