/* Transactions: isolation, conflicts, time limits, deadlines (R21). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "server_tests.h"

static struct db_pool *pool;
static struct db_conn *conn;

static int setup(void **state)
{
    (void)state;
    pool = test_pool(3);
    conn = test_acquire(pool);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    db_release(conn);
    db_pool_destroy(pool);
    return 0;
}

static void test_a_failed_transaction_never_reports_a_commit(void **state)
{
    (void)state;
    assert_ok(db_begin(conn, DB_READ_COMMITTED, soon(), NULL));
    assert_int_equal(test_try(conn, "SELECT 1/0", PATIENCE_MS, NULL), STATUS_DB_ERROR);
    assert_int_equal(db_commit(conn, soon(), NULL), STATUS_DB_ERROR);
    assert_int_equal(db_commit(conn, soon(), NULL), STATUS_DB_ERROR);
    assert_string_equal(test_sql(conn, "SELECT 1"), "1");
}

static void test_a_transaction_does_not_nest(void **state)
{
    (void)state;
    assert_ok(db_begin(conn, DB_REPEATABLE_READ_ONLY, soon(), NULL));
    assert_string_equal(test_sql(conn, "SHOW transaction_isolation"), "repeatable read");
    assert_string_equal(test_sql(conn, "SHOW transaction_read_only"), "on");
    assert_int_equal(db_begin(conn, DB_READ_COMMITTED, soon(), NULL), STATUS_INTERNAL);
    assert_ok(db_commit(conn, soon(), NULL));
}

static void test_a_long_transaction_may_be_given_more_time(void **state)
{
    (void)state;
    assert_ok(db_begin(conn, DB_READ_COMMITTED, soon(), NULL));
    assert_ok(db_transaction_timeout(conn, 50, soon(), NULL));
    assert_int_equal(test_try(conn, "SELECT pg_sleep(20)", PATIENCE_MS, NULL), STATUS_TIMEOUT);
    assert_string_equal(db_sqlstate(conn), "57014");
    db_rollback(conn);
    assert_string_equal(test_sql(conn, "SHOW statement_timeout"), "30s");
}

static void test_a_read_in_repeatable_read_sees_one_version(void **state)
{
    (void)state;
    struct db_conn *writer = test_acquire(pool);
    test_sql(writer, "CREATE TABLE IF NOT EXISTS public.versions AS SELECT 1 AS version");
    assert_ok(db_begin(conn, DB_REPEATABLE_READ_ONLY, soon(), NULL));
    assert_string_equal(test_sql(conn, "SELECT version FROM public.versions"), "1");
    test_sql(writer, "UPDATE public.versions SET version = 2");
    assert_string_equal(test_sql(conn, "SELECT version FROM public.versions"), "1");
    assert_ok(db_commit(conn, soon(), NULL));
    assert_string_equal(test_sql(conn, "SELECT version FROM public.versions"), "2");
    test_sql(writer, "DROP TABLE public.versions");
    db_release(writer);
}

static void test_a_serialization_failure_is_DB_RETRY(void **state)
{
    (void)state;
    struct db_conn *other = test_acquire(pool);
    test_sql(other, "CREATE TABLE IF NOT EXISTS public.serial AS SELECT 1 AS n");
    test_sql(conn, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    test_sql(conn, "SELECT n FROM public.serial");
    test_sql(other, "UPDATE public.serial SET n = 2");
    assert_int_equal(test_try(conn, "UPDATE public.serial SET n = 3", PATIENCE_MS, NULL), STATUS_DB_RETRY);
    assert_string_equal(db_sqlstate(conn), "40001");
    db_rollback(conn);
    test_sql(other, "DROP TABLE public.serial");
    db_release(other);
}

struct rival {
    struct db_conn *conn;
    enum status status;
};

static void *lock_second(void *arg)
{
    struct rival *rival = arg;
    rival->status = test_try(rival->conn, "UPDATE public.locks SET n = n WHERE id = 1", PATIENCE_MS, NULL);
    db_rollback(rival->conn); /* so that a survivor is freed */
    return NULL;
}

static void test_a_deadlock_is_DB_RETRY(void **state)
{
    (void)state;
    struct rival rival = {.conn = test_acquire(pool)};
    pthread_t thread;
    test_sql(conn,
             "CREATE TABLE IF NOT EXISTS public.locks AS SELECT id, 0 AS n FROM generate_series(1, 2) id");
    assert_ok(db_begin(conn, DB_READ_COMMITTED, soon(), NULL));
    assert_ok(db_begin(rival.conn, DB_READ_COMMITTED, soon(), NULL));
    test_sql(conn, "UPDATE public.locks SET n = 1 WHERE id = 1");
    test_sql(rival.conn, "UPDATE public.locks SET n = 1 WHERE id = 2");
    pthread_create(&thread, NULL, lock_second, &rival);
    enum status status = test_try(conn, "UPDATE public.locks SET n = n WHERE id = 2", PATIENCE_MS, NULL);
    db_rollback(conn);
    pthread_join(thread, NULL);
    assert_true((status == STATUS_DB_RETRY) != (rival.status == STATUS_DB_RETRY));
    assert_true(status == STATUS_OK || rival.status == STATUS_OK);
    db_release(rival.conn);
    test_sql(conn, "DROP TABLE public.locks");
}

/* ---- deadlines ---- */

static void test_a_statement_past_its_deadline_is_cancelled_at_the_server(void **state)
{
    (void)state;
    struct db_conn *watcher = test_acquire(pool);
    assert_int_equal(test_try(conn, "SELECT pg_sleep(600) /* slow one */", 100, NULL), STATUS_TIMEOUT);
    int64_t limit = clock_deadline_ms(PATIENCE_MS);
    const char *running;
    do {
        running = test_sql(watcher, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%slow one%' AND"
                                    " pid <> pg_backend_pid()");
    } while (strcmp(running, "0") != 0 && clock_mono_ns() < limit);
    assert_string_equal(running, "0");
    db_release(watcher);
}

static void test_a_deadline_that_passed_runs_nothing(void **state)
{
    (void)state;
    assert_int_equal(test_try(conn, "SELECT 1", -1, NULL), STATUS_TIMEOUT);
    assert_int_equal(test_try(conn, "SELECT 1", PATIENCE_MS, NULL), STATUS_DB_DOWN);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int run_transaction_tests(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_failed_transaction_never_reports_a_commit),
        TEST(test_a_transaction_does_not_nest),
        TEST(test_a_long_transaction_may_be_given_more_time),
        TEST(test_a_read_in_repeatable_read_sees_one_version),
        TEST(test_a_serialization_failure_is_DB_RETRY),
        TEST(test_a_deadlock_is_DB_RETRY),
        TEST(test_a_statement_past_its_deadline_is_cancelled_at_the_server),
        TEST(test_a_deadline_that_passed_runs_nothing),
    };
    return cmocka_run_group_tests_name("transaction", tests, NULL, NULL);
}
