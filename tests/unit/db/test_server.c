/* Everything of src/db that needs a PostgreSQL, in one program: starting one costs more than all the
 * tests. */
#include <stdio.h>
#include <unistd.h>

#include "server_tests.h"

#include "base/log.h"

struct db_pool *test_pool(unsigned connections_max)
{
    struct db_target target = pg_fixture_target();
    struct db_pool *pool;

    target.connections_max = connections_max;
    assert_ok(db_pool_create(&target, &pool, NULL));
    return pool;
}

int64_t soon(void)
{
    return clock_deadline_ms(PATIENCE_MS);
}

struct db_conn *test_acquire(struct db_pool *pool)
{
    struct db_conn *conn;
    struct error error = {0};

    if (db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, &error) != STATUS_OK)
        fail_msg("acquire: %s", error.message);
    return conn;
}

enum status test_try(struct db_conn *conn, const char *sql, int64_t timeout_ms, struct error *error)
{
    struct db_statement statement;

    statement = db_statement_of(str_from(sql));
    return db_exec(conn, &statement, NULL, clock_deadline_ms(timeout_ms), NULL, error);
}

const char *test_sql(struct db_conn *conn, const char *sql)
{
    static char text[4096];
    struct db_statement statement;
    struct db_result *result;
    struct error error = {0};

    statement = db_statement_of(str_from(sql));
    if (db_query(conn, &statement, NULL, clock_deadline_ms(PATIENCE_MS), &result, &error) != STATUS_OK)
        fail_msg("%s: %s", sql, error.message);
    text[0] = '\0';
    if (db_result_rows(result) > 0)
        snprintf(text, sizeof text, "%s", db_result_str(result, 0, 0).ptr);
    db_result_free(result);
    return text;
}

int main(void)
{
    int failed = 0;

    log_set_level(LOG_LEVEL_ERROR);
    pg_fixture_start();
    failed += run_pool_tests();
    failed += run_query_tests();
    failed += run_transaction_tests();
    failed += run_pipeline_tests();
    failed += run_migrate_tests();
    failed += run_listener_tests();
    failed += run_poll_tests();
    failed += run_outage_tests();
    pg_fixture_stop();
    return failed ? 1 : 0;
}
