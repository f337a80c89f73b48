/* Migrations: numbered SQL files per module, applied once each, by the first process that starts.
 *
 * One session-level advisory lock serialises every process that migrates this database. A migration and its
 * row in platform.schema_migration commit together, so a crash leaves it done or not begun. The search path
 * is emptied while they run: what is not qualified fails here instead of landing in someone's default
 * schema.
 *
 * The table of migrations has no migration of its own: it is created with the first one, and the columns that programs before
 * oldest_program did not know are added by the next program that migrates. Until then they are read as absent. */
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
/* to_jsonb(): a column that is not there is null. */
static const struct db_statement applied_sql =
    DB_STATEMENT("SELECT m.number, m.checksum, coalesce((to_jsonb(m) ->> 'oldest_program')::integer, 0),"
                 "       coalesce(to_jsonb(m) ->> 'program', ''), to_jsonb(m) ? 'oldest_program'"
                 " FROM platform.schema_migration m WHERE m.module = $1 ORDER BY m.number");
/* The same columns; the module's name takes the place of the checksum. */
static const struct db_statement demands_sql = DB_STATEMENT(
    "SELECT m.number, m.module, (to_jsonb(m) ->> 'oldest_program')::integer AS oldest,"
    "       coalesce(to_jsonb(m) ->> 'program', '')"
    " FROM platform.schema_migration m WHERE (to_jsonb(m) ->> 'oldest_program')::integer > 0 ORDER BY oldest DESC");
static const struct db_statement record_sql = DB_STATEMENT(
    "INSERT INTO platform.schema_migration (module, number, name, checksum, oldest_program, program)"
    " VALUES ($1, $2, $3, $4, $5, '" FRESHET_VERSION "')");

static const char create_sql[] = "CREATE SCHEMA IF NOT EXISTS platform;\n"
                                 "CREATE TABLE IF NOT EXISTS platform.schema_migration (\n"
                                 "    module     text        NOT NULL,\n"
                                 "    number     integer     NOT NULL,\n"
                                 "    name       text        NOT NULL,\n"
                                 "    checksum   text        NOT NULL,\n"
                                 "    applied_at timestamptz NOT NULL DEFAULT now(),\n"
                                 "    PRIMARY KEY (module, number));\n";
static const char add_columns_sql[] =
    "ALTER TABLE platform.schema_migration\n"
    "    ADD COLUMN IF NOT EXISTS oldest_program integer NOT NULL DEFAULT 0,\n"
    "    ADD COLUMN IF NOT EXISTS program text;\n";

enum applied_column { NUMBER, CHECKSUM, MODULE = CHECKSUM, OLDEST_PROGRAM, PROGRAM, HAS_COLUMNS };

struct migration_run {
    struct db_conn *conn;
    const char *module;
    const struct db_migration *migrations;
    int64_t deadline_ns;
    struct db_result *applied; /* by applied_sql; NULL when the table does not exist */
};

unsigned db_migrations_last(const struct db_migration *migrations)
{
    unsigned last = 0;
    for (; migrations->number > 0; migrations++)
        last = migrations->number;
    return last;
}

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
        if (db_result_i64(run->applied, row, NUMBER) != migration->number)
            continue;
        *applied = true;
        if (!str_eq(db_result_str(run->applied, row, CHECKSUM), str_from(sum)))
            return error_set(error, STATUS_CONFIG, "migration %s/%03u_%s was changed after it was applied",
                             run->module, migration->number, migration->name);
    }
    return STATUS_OK;
}

/* The row of run->applied that demands the newest program, -1 = none does. */
static int most_demanding(const struct migration_run *run)
{
    int found = -1;
    for (size_t row = 0; run->applied && row < db_result_rows(run->applied); row++)
        if (db_result_i64(run->applied, row, OLDEST_PROGRAM) >
            (found < 0 ? 0 : db_result_i64(run->applied, (size_t)found, OLDEST_PROGRAM)))
            found = (int)row;
    return found;
}

/* Does a program whose migrations are these survive what a row of applied_sql or demands_sql says? */
static enum status check_row(const char *module, const struct db_migration *migrations,
                             const struct db_result *rows, size_t row, struct error *error)
{
    unsigned known = db_migrations_last(migrations);
    long long oldest = db_result_i64(rows, row, OLDEST_PROGRAM);
    struct str program = db_result_str(rows, row, PROGRAM);
    if (oldest <= known)
        return STATUS_OK;
    return error_set(
        error, STATUS_CONFIG,
        "the schema %s of the database is too new for this program: migration %03lld, applied by freshet"
        " %.*s, needs a program that knows migration %03lld, and this one, freshet " FRESHET_VERSION
        ", ends with %03u: run freshet %.*s or later",
        module, (long long)db_result_i64(rows, row, NUMBER), STR_ARG(program), oldest, known,
        STR_ARG(program));
}

/* Does the database work with this program? */
static enum status check_age(const struct migration_run *run, struct error *error)
{
    int row = most_demanding(run);
    return row < 0 ? STATUS_OK : check_row(run->module, run->migrations, run->applied, (size_t)row, error);
}

/* Reads what is applied, and refuses what is too new. */
static enum status migration_read_and_check(struct migration_run *run, struct error *error)
{
    enum status status = read_applied(run, error);
    return status == STATUS_OK ? check_age(run, error) : status;
}

static enum status migration_apply(struct migration_run *run, const struct db_migration *migration,
                                   struct error *error)
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
                                   db_cstr(sum), db_int(migration->oldest_program)),
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

static bool has_columns(const struct migration_run *run)
{
    return run->applied && db_result_rows(run->applied) > 0 &&
           str_eq(db_result_str(run->applied, 0, HAS_COLUMNS), STR("t"));
}

/* Before the first migration that is recorded in it. */
static enum status prepare_table(const struct migration_run *run, struct error *error)
{
    enum status status = STATUS_OK;

    if (!run->applied)
        status = db_conn_command(run->conn, create_sql, run->deadline_ns, error);
    if (status == STATUS_OK && !has_columns(run))
        status = db_conn_command(run->conn, add_columns_sql, run->deadline_ns, error);
    return status;
}

/* With the lock held. */
static enum status apply_missing(struct migration_run *run, unsigned *count, struct error *error)
{
    const struct db_migration *migrations = run->migrations;
    bool applied;
    enum status status = migration_read_and_check(run, error);

    for (; status == STATUS_OK && migrations->number > 0; migrations++) {
        status = is_applied(run, migrations, &applied, error);
        if (status != STATUS_OK || applied)
            continue;
        if (*count == 0)
            status = prepare_table(run, error);
        if (status == STATUS_OK)
            status = migration_apply(run, migrations, error);
        *count += status == STATUS_OK;
    }
    return status;
}

enum status db_migrate(struct db_pool *pool, const char *module, const struct db_migration *migrations,
                       int64_t deadline_ns, unsigned *applied, struct error *error)
{
    struct migration_run run = {.module = module, .migrations = migrations, .deadline_ns = deadline_ns};
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
        status = apply_missing(&run, applied, error);
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
    struct migration_run run = {.module = module, .migrations = migrations, .deadline_ns = deadline_ns};
    bool applied = true;

    *missing = 0;
    enum status status = db_acquire(pool, deadline_ns, &run.conn, error);
    if (status != STATUS_OK)
        return status;
    status = migration_read_and_check(&run, error);
    for (; status == STATUS_OK && applied && migrations->number > 0; migrations++) {
        status = is_applied(&run, migrations, &applied, error);
        if (!applied)
            *missing = migrations->number;
    }
    db_result_free(run.applied);
    db_release(run.conn);
    return status;
}

/* ---- without changing anything ---- */

static void plan_one(const struct migration_run *run, const struct db_migration *migration, struct buf *sql)
{
    char sum[HASH128_HEX_BYTES];

    checksum(migration, sum);
    struct str text = str_from(migration->sql);
    while (str_ends_with(text, STR("\n")))
        text.len--;
    buf_printf(sql, "\n-- %s/%03u_%s\nBEGIN;\n%.*s%s", run->module, migration->number, migration->name,
               STR_ARG(text), str_ends_with(text, STR(";")) ? "\n" : "\n;\n");
    buf_printf(
        sql,
        "INSERT INTO platform.schema_migration (module, number, name, checksum, oldest_program, program)\n"
        "VALUES ('%s', %u, '%s', '%s', %u, '%s');\nCOMMIT;\n",
        run->module, migration->number, migration->name, sum, migration->oldest_program, FRESHET_VERSION);
}

static enum status migration_plan(const struct migration_run *run, struct buf *sql, unsigned *count,
                                  struct error *error)
{
    enum status status = STATUS_OK;
    bool applied;

    for (const struct db_migration *each = run->migrations; status == STATUS_OK && each->number > 0; each++) {
        status = is_applied(run, each, &applied, error);
        if (status != STATUS_OK || applied)
            continue;
        if (++*count == 1)
            buf_printf(sql, "%s;\n%s;\n%s%s", session_sql, LOCK_SQL, run->applied ? "" : create_sql,
                       has_columns(run) ? "" : add_columns_sql);
        plan_one(run, each, sql);
    }
    if (*count > 0)
        buf_printf(sql, "\n%s;\n", UNLOCK_SQL);
    return status;
}

enum status db_migrate_plan(struct db_pool *pool, const char *module, const struct db_migration *migrations,
                            int64_t deadline_ns, struct buf *sql, unsigned *count, struct error *error)
{
    struct migration_run run = {.module = module, .migrations = migrations, .deadline_ns = deadline_ns};

    *count = 0;
    enum status status = db_acquire(pool, deadline_ns, &run.conn, error);
    if (status != STATUS_OK)
        return status;
    status = migration_read_and_check(&run, error);
    if (status == STATUS_OK)
        status = migration_plan(&run, sql, count, error);
    db_result_free(run.applied);
    db_release(run.conn);
    return status;
}

enum status db_schemas_check_age(struct db_pool *pool, const struct db_schema *schemas, int64_t deadline_ns,
                                 struct error *error)
{
    struct db_result *rows = NULL;
    enum status status = db_pool_query(pool, &demands_sql, DB_NO_PARAMS, deadline_ns, &rows, error);

    for (; schemas->module && status == STATUS_OK; schemas++)
        for (size_t row = 0; row < db_result_rows(rows) && status == STATUS_OK; row++)
            if (str_eq(db_result_str(rows, row, MODULE), str_from(schemas->module)))
                status = check_row(schemas->module, schemas->migrations, rows, row, error);
    db_result_free(rows);
    return status;
}

enum status db_migrate_state(struct db_pool *pool, const char *module, const struct db_migration *migrations,
                             int64_t deadline_ns, struct db_schema_state *state, struct error *error)
{
    struct migration_run run = {.module = module, .migrations = migrations, .deadline_ns = deadline_ns};
    bool applied = true;

    *state = (struct db_schema_state){0};
    enum status status = db_acquire(pool, deadline_ns, &run.conn, error);
    if (status != STATUS_OK)
        return status;
    status = read_applied(&run, error);
    size_t rows = run.applied ? db_result_rows(run.applied) : 0;
    int row = most_demanding(&run);
    if (rows > 0)
        state->last = (unsigned)db_result_i64(run.applied, rows - 1, NUMBER);
    if (row >= 0)
        state->oldest_program = (unsigned)db_result_i64(run.applied, (size_t)row, OLDEST_PROGRAM);
    for (; status == STATUS_OK && migrations->number > 0; migrations++) {
        status = is_applied(&run, migrations, &applied, error);
        state->missing += !applied;
    }
    db_result_free(run.applied);
    db_release(run.conn);
    return status;
}
