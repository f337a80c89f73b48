/* Pipelines: results in order, the rest skipped after a failure, connections clean afterwards. */
#include <stdio.h>
#include <stdlib.h>

#include "server_tests.h"

static struct db_pool *pool;
static struct db_conn *conn;

static int setup(void **state)
{
    (void)state;
    pool = test_pool(2);
    conn = test_acquire(pool);
    test_sql(conn, "CREATE TEMP TABLE t (n int PRIMARY KEY)");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    db_release(conn);
    db_pool_destroy(pool);
    return 0;
}

static void add(const char *sql)
{
    struct db_statement statement = db_statement_of(str_from(sql));
    db_pipeline_add(conn, &statement, DB_NO_PARAMS);
}

static void add_number(const char *sql, int number)
{
    struct db_statement statement = db_statement_of(str_from(sql));
    db_pipeline_add(conn, &statement, DB_PARAMS(db_int(number)));
}

static void test_results_come_in_order(void **state)
{
    (void)state;
    struct db_result *results[20];
    size_t failed_at;
    for (int round = 0; round < 2; round++) { /* cold, then prepared */
        db_pipeline_begin(conn);
        for (int i = 0; i < 20; i++)
            add_number("SELECT $1 * 2", i);
        assert_ok(db_pipeline_end(conn, soon(), results, 20, &failed_at, NULL));
        for (int i = 0; i < 20; i++) {
            assert_int_equal(db_result_i64(results[i], 0, 0), 2 * i);
            db_result_free(results[i]);
        }
    }
    assert_string_equal(test_sql(conn, "SELECT 1"), "1");
}

/* As if the server had refused it: nothing of the pipeline is committed, and the connection is as good as before. */
static void test_a_parameter_that_cannot_be_sent_fails_in_its_place(void **state)
{
    (void)state;
    static const struct db_statement insert_sql = DB_STATEMENT("INSERT INTO t SELECT length($1)");
    struct db_result *results[4];
    for (int in_transaction = 0; in_transaction < 2; in_transaction++) {
        struct error error = {0};
        size_t failed_at;
        db_pipeline_begin(conn);
        add(in_transaction ? "BEGIN" : "SELECT 1");
        db_pipeline_add(conn, &insert_sql, DB_PARAMS(db_text(STR("one"))));
        db_pipeline_add(conn, &insert_sql, DB_PARAMS(db_text(str_of("a\0b", 3))));
        add(in_transaction ? "COMMIT" : "SELECT 2");
        assert_int_equal(db_pipeline_end(conn, soon(), results, 4, &failed_at, &error), STATUS_DB_ERROR);
        assert_int_equal(failed_at, 2);
        assert_non_null(strstr(error.message, "$1 holds a NUL"));
        assert_null(results[0]);
        db_rollback(conn);
        assert_string_equal(test_sql(conn, "SELECT count(*) FROM t"), "0");
    }
    db_pipeline_begin(conn);
    db_pipeline_add(conn, &insert_sql, DB_PARAMS(db_text(STR("one"))));
    assert_ok(db_pipeline_end(conn, soon(), NULL, 1, NULL, NULL));
    assert_string_equal(test_sql(conn, "SELECT n FROM t"), "3");
}

static void test_what_went_wrong_before_the_end_is_reported_by_it(void **state)
{
    (void)state;
    struct error error = {0};
    size_t failed_at;
    db_pipeline_begin(conn);
    db_pipeline_begin(conn); /* a mistake */
    add("SELECT 1");
    assert_int_equal(db_pipeline_end(conn, soon(), NULL, 1, &failed_at, &error), STATUS_INTERNAL);
    assert_int_equal(failed_at, 1);
    assert_non_null(strstr(error.message, "cannot begin"));
    db_pipeline_begin(conn); /* it was closed */
    add("SELECT 1");
    assert_int_equal(db_pipeline_end(conn, soon(), NULL, 1, NULL, &error), STATUS_DB_DOWN);
}

static void test_begin_and_commit_may_be_inside(void **state)
{
    (void)state;
    struct db_result *results[4];
    db_pipeline_begin(conn);
    add("BEGIN");
    add_number("INSERT INTO t VALUES ($1)", 1);
    add_number("INSERT INTO t VALUES ($1)", 2);
    add("COMMIT");
    assert_ok(db_pipeline_end(conn, soon(), results, 4, NULL, NULL));
    assert_int_equal(db_result_affected(results[1]), 1);
    for (int i = 0; i < 4; i++)
        db_result_free(results[i]);
    assert_string_equal(test_sql(conn, "SELECT count(*) FROM t"), "2");
}

static void test_a_commit_of_a_failed_transaction_is_a_failure(void **state)
{
    (void)state;
    struct error error;
    assert_ok(db_begin(conn, DB_READ_COMMITTED, soon(), NULL));
    db_pipeline_begin(conn);
    add("INSERT INTO t VALUES (1)");
    add("SELECT 1 / 0");
    assert_int_equal(db_pipeline_end(conn, soon(), NULL, 0, NULL, NULL), STATUS_DB_ERROR);
    db_pipeline_begin(conn);
    db_pipeline_add(conn, &db_commit_sql, DB_NO_PARAMS);
    assert_int_equal(db_pipeline_end(conn, soon(), NULL, 0, NULL, &error), STATUS_DB_ERROR);
    assert_non_null(strstr(error.message, "nothing was committed"));
    assert_string_equal(test_sql(conn, "SELECT count(*) FROM t"), "0");
}

static void test_the_first_failure_skips_the_rest(void **state)
{
    (void)state;
    struct db_result *results[5];
    struct error error = {0};
    size_t failed_at;
    db_pipeline_begin(conn);
    add("BEGIN");
    add_number("INSERT INTO t VALUES ($1)", 1);
    add_number("INSERT INTO t VALUES ($1)", 1);
    add("SELECT 'never prepared before'");
    add("COMMIT");
    assert_int_equal(db_pipeline_end(conn, soon(), results, 5, &failed_at, &error), STATUS_DB_ERROR);
    assert_int_equal(failed_at, 2);
    assert_string_equal(db_sqlstate(conn), "23505");
    for (int i = 0; i < 5; i++)
        assert_null(results[i]);
    db_rollback(conn);
    assert_string_equal(db_sqlstate(conn), "23505");
    assert_string_equal(test_sql(conn, "SELECT count(*) FROM t"), "0");
    /* the statement whose PREPARE was skipped works too */
    assert_string_equal(test_sql(conn, "SELECT 'never prepared before'"), "never prepared before");
}

/* Those that were prepared before the failure still are; those behind it are not, and nothing is dropped. */
static void test_a_failure_costs_no_prepared_statement(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        db_pipeline_begin(conn);
        add("BEGIN");
        add("SELECT 'before'");
        add("SELECT 1 / 0");
        add("SELECT 'behind'");
        add("COMMIT");
        assert_int_equal(db_pipeline_end(conn, soon(), NULL, 5, NULL, NULL), STATUS_DB_ERROR);
        db_rollback(conn);
        assert_string_equal(test_sql(conn, "SELECT count(*) FROM pg_prepared_statements WHERE statement IN"
                                           " ('BEGIN', 'SELECT ''before''', 'SELECT 1 / 0')"),
                            "3");
        assert_string_equal(test_sql(conn, "SELECT count(*) FROM pg_prepared_statements WHERE statement IN"
                                           " ('COMMIT', 'SELECT ''behind''')"),
                            "0");
    }
    assert_string_equal(test_sql(conn, "SELECT 'behind'"), "behind");
}

/* Hundreds that were skipped leave no trace among those that were not. */
static void test_what_was_skipped_is_forgotten(void **state)
{
    (void)state;
    static char sql[200][32];
    for (int i = 0; i < 200; i++)
        snprintf(sql[i], sizeof sql[i], "SELECT %d + 5000", i);
    for (int fails_at = 150; fails_at >= 0; fails_at -= 50) {
        db_pipeline_begin(conn);
        for (int i = 0; i < 200; i++)
            add(i == fails_at ? "SELECT nope" : sql[i]);
        assert_int_equal(db_pipeline_end(conn, soon(), NULL, 200, NULL, NULL), STATUS_DB_ERROR);
    }
    db_pipeline_begin(conn);
    for (int i = 0; i < 200; i++)
        add(sql[i]);
    assert_ok(db_pipeline_end(conn, soon(), NULL, 200, NULL, NULL));
}

static void test_a_statement_that_does_not_prepare_fails_in_its_place(void **state)
{
    (void)state;
    size_t failed_at;
    db_pipeline_begin(conn);
    add("SELECT 1");
    add("SELECT nope");
    add("SELECT 2");
    assert_int_equal(db_pipeline_end(conn, soon(), NULL, 3, &failed_at, NULL), STATUS_DB_ERROR);
    assert_int_equal(failed_at, 1);
    assert_string_equal(db_sqlstate(conn), "42703");
    db_pipeline_begin(conn);
    add("SELECT 1");
    add("SELECT 2");
    assert_ok(db_pipeline_end(conn, soon(), NULL, 2, &failed_at, NULL));
}

static void test_a_stale_statement_is_DB_RETRY_and_works_the_next_time(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        db_pipeline_begin(conn);
        add("SELECT * FROM t");
        enum status status = db_pipeline_end(conn, soon(), NULL, 1, NULL, NULL);
        assert_int_equal(status, round == 1 ? STATUS_DB_RETRY : STATUS_OK);
        if (round == 0)
            test_sql(conn, "ALTER TABLE t ADD COLUMN m int");
    }
}

static void test_more_statements_than_are_kept_prepared(void **state)
{
    (void)state;
    struct db_result *results[600];
    db_pipeline_begin(conn);
    for (int i = 0; i < 600; i++) {
        static char sql[600][32];
        snprintf(sql[i], sizeof sql[i], "SELECT %d + 1000", i);
        add(sql[i]);
    }
    assert_ok(db_pipeline_end(conn, soon(), results, 600, NULL, NULL));
    for (int i = 0; i < 600; i++) {
        assert_int_equal(db_result_i64(results[i], 0, 0), i + 1000);
        db_result_free(results[i]);
    }
    assert_true(atoi(test_sql(conn, "SELECT count(*) FROM pg_prepared_statements")) <= 256);
}

static void test_both_sides_full_do_not_deadlock(void **state)
{
    (void)state;
    /* more out and more in than any socket buffer holds */
    static const struct db_statement statement = DB_STATEMENT("SELECT $1");
    size_t len = 1u << 20;
    char *big = malloc(len);
    struct db_result *results[24];
    memset(big, 'x', len);
    db_pipeline_begin(conn);
    for (int i = 0; i < 24; i++)
        db_pipeline_add(conn, &statement, DB_PARAMS(db_text(str_of(big, len))));
    assert_ok(db_pipeline_end(conn, soon(), results, 24, NULL, NULL));
    for (int i = 0; i < 24; i++) {
        assert_int_equal(db_result_str(results[i], 0, 0).len, len);
        db_result_free(results[i]);
    }
    free(big);
}

static void test_a_pipeline_past_its_deadline_is_TIMEOUT(void **state)
{
    (void)state;
    struct db_result *results[2];
    size_t failed_at;
    db_pipeline_begin(conn);
    add("SELECT 1");
    add("SELECT pg_sleep(600)");
    assert_int_equal(db_pipeline_end(conn, clock_deadline_ms(200), results, 2, &failed_at, NULL),
                     STATUS_TIMEOUT);
    assert_int_equal(failed_at, 2);
    assert_null(results[0]);
    db_pipeline_begin(conn);
    assert_int_equal(db_pipeline_end(conn, soon(), NULL, 0, NULL, NULL), STATUS_DB_DOWN);
}

static void test_an_empty_pipeline(void **state)
{
    (void)state;
    db_pipeline_begin(conn);
    assert_ok(db_pipeline_end(conn, soon(), NULL, 0, NULL, NULL));
    assert_string_equal(test_sql(conn, "SELECT 1"), "1");
}

/* Left statements run with the next pipeline; its results are its own. */
static void test_what_is_left_goes_with_the_next(void **state)
{
    (void)state;
    struct db_result *results[2], *left[2];
    db_pipeline_begin(conn);
    add("BEGIN");
    add_number("INSERT INTO t VALUES ($1) RETURNING n + 1", 7);
    db_pipeline_leave(conn, left, 2);
    db_pipeline_begin(conn);
    add("SELECT n FROM t");
    add("COMMIT");
    assert_ok(db_pipeline_end(conn, soon(), results, 2, NULL, NULL));
    assert_int_equal(db_result_i64(results[0], 0, 0), 7);
    assert_int_equal(db_result_i64(left[1], 0, 0), 8);
    for (int i = 0; i < 2; i++) {
        db_result_free(results[i]);
        db_result_free(left[i]);
    }
    assert_string_equal(test_sql(conn, "SELECT count(*) FROM t"), "1");
}

/* Left twice, the results wanted first still come; forgotten, they do not. */
static void test_what_is_left_twice_goes_together(void **state)
{
    (void)state;
    struct db_result *left[2];
    for (int is_forgotten = 0; is_forgotten < 2; is_forgotten++) {
        db_pipeline_begin(conn);
        add("BEGIN");
        add("SELECT 5");
        db_pipeline_leave(conn, left, 2);
        db_pipeline_begin(conn);
        add_number("INSERT INTO t VALUES ($1)", 7 + is_forgotten);
        db_pipeline_leave(conn, NULL, 0);
        if (is_forgotten)
            db_pipeline_forget(conn);
        assert_ok(db_commit(conn, soon(), NULL));
        assert_int_equal(left[1] ? db_result_i64(left[1], 0, 0) : 0, is_forgotten ? 0 : 5);
        for (int i = 0; i < 2; i++)
            db_result_free(left[i]);
    }
    assert_string_equal(test_sql(conn, "SELECT count(*) FROM t"), "2");
}

static void test_what_was_asked_of_what_is_left_is_known_after_the_commit(void **state)
{
    (void)state;
    for (int is_true = 1; is_true >= 0; is_true--) {
        db_pipeline_begin(conn);
        add("BEGIN");
        add_number("SELECT $1 = 1", is_true);
        db_pipeline_ask(conn);
        add("SELECT 5");
        db_pipeline_leave(conn, NULL, 0);
        assert_false(db_pipeline_is_true(conn));
        assert_ok(db_commit(conn, soon(), NULL));
        assert_int_equal(db_pipeline_is_true(conn), is_true);
    }
}

static void test_the_failure_of_what_is_left_is_the_next_ones(void **state)
{
    (void)state;
    struct error error;
    struct db_result *left[2];
    size_t failed_at = 9;
    db_pipeline_begin(conn);
    add("BEGIN");
    add("SELECT 1 / 0");
    db_pipeline_leave(conn, left, 2);
    db_pipeline_begin(conn);
    add("COMMIT");
    assert_int_equal(db_pipeline_end(conn, soon(), NULL, 1, &failed_at, &error), STATUS_DB_ERROR);
    assert_int_equal(failed_at, 0);
    assert_null(left[0]);
    db_rollback(conn);
    assert_string_equal(test_sql(conn, "SELECT count(*) FROM t"), "0");
}

static void test_what_is_left_can_be_rolled_back(void **state)
{
    (void)state;
    db_pipeline_begin(conn);
    add("BEGIN");
    add_number("INSERT INTO t VALUES ($1)", 7);
    db_pipeline_leave(conn, NULL, 0);
    db_rollback(conn);
    assert_string_equal(test_sql(conn, "SELECT count(*) FROM t"), "0");
}

/* A commit is the end of what was left, and none where any of it failed. */
static void test_what_is_left_can_be_committed(void **state)
{
    (void)state;
    struct error error;
    assert_ok(db_begin(conn, DB_READ_COMMITTED, soon(), NULL));
    db_pipeline_begin(conn);
    add_number("INSERT INTO t VALUES ($1)", 7);
    db_pipeline_leave(conn, NULL, 0);
    assert_ok(db_commit(conn, soon(), NULL));
    assert_string_equal(test_sql(conn, "SELECT count(*) FROM t"), "1");
    assert_ok(db_begin(conn, DB_READ_COMMITTED, soon(), NULL));
    db_pipeline_begin(conn);
    add_number("INSERT INTO t VALUES ($1)", 8);
    add("SELECT 1 / 0");
    db_pipeline_leave(conn, NULL, 0);
    assert_int_equal(db_commit(conn, soon(), &error), STATUS_DB_ERROR);
    db_rollback(conn);
    assert_string_equal(test_sql(conn, "SELECT count(*) FROM t"), "1");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int run_pipeline_tests(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_results_come_in_order),
        TEST(test_a_parameter_that_cannot_be_sent_fails_in_its_place),
        TEST(test_what_went_wrong_before_the_end_is_reported_by_it),
        TEST(test_begin_and_commit_may_be_inside),
        TEST(test_a_commit_of_a_failed_transaction_is_a_failure),
        TEST(test_the_first_failure_skips_the_rest),
        TEST(test_a_failure_costs_no_prepared_statement),
        TEST(test_what_was_skipped_is_forgotten),
        TEST(test_a_statement_that_does_not_prepare_fails_in_its_place),
        TEST(test_a_stale_statement_is_DB_RETRY_and_works_the_next_time),
        TEST(test_more_statements_than_are_kept_prepared),
        TEST(test_both_sides_full_do_not_deadlock),
        TEST(test_a_pipeline_past_its_deadline_is_TIMEOUT),
        TEST(test_an_empty_pipeline),
        TEST(test_what_is_left_goes_with_the_next),
        TEST(test_what_is_left_twice_goes_together),
        TEST(test_what_was_asked_of_what_is_left_is_known_after_the_commit),
        TEST(test_the_failure_of_what_is_left_is_the_next_ones),
        TEST(test_what_is_left_can_be_rolled_back),
        TEST(test_what_is_left_can_be_committed),
    };
    return cmocka_run_group_tests_name("pipeline", tests, NULL, NULL);
}
