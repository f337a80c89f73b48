/* Statements: parameters, results, streams, describe, and what errors become (R15, R21). */
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

static void test_every_type_is_bound(void **state)
{
    (void)state;
    static const struct db_statement statement =
        DB_STATEMENT("SELECT $1, $2->>'a', $3, $4, $5[1], $5[2] IS NULL, $6, $7, $8, $9::timestamptz, $10");
    struct db_result *result;
    struct buf array = {0};
    db_array_put(&array, STR("x,\"y\""));
    db_array_put(&array, STR("NULL"));
    db_array_end(&array);
    /* text is sent from where it stands: it need not end in NUL */
    const struct db_param params[] = {
        db_text(str_of("it's :xyz", 4)),
        db_jsonb(str_of("{\"a\": 1}trailing", 8)),
        db_bigint(STR("9007199254740993")),
        DB_VALUE(STR("-7"), DB_INT),
        db_text_array(buf_str(&array)),
        db_bool(true),
        db_uuid(STR("0a0b0c0d-0000-4000-8000-000000000001")),
        db_null(DB_TEXT),
        db_text(STR("2026-02-27T12:00:00Z")),
        db_bytea(STR("\0\xff")),
        DB_END,
    };
    assert_ok(db_query(conn, &statement, params, soon(), &result, NULL));
    assert_string_equal(db_result_str(result, 0, 0).ptr, "it's");
    assert_string_equal(db_result_str(result, 0, 1).ptr, "1");
    assert_true(db_result_i64(result, 0, 2) == INT64_C(9007199254740993));
    assert_int_equal(db_result_i64(result, 0, 3), -7);
    assert_string_equal(db_result_str(result, 0, 4).ptr, "x,\"y\"");
    assert_string_equal(db_result_str(result, 0, 5).ptr, "f");
    assert_string_equal(db_result_str(result, 0, 6).ptr, "t");
    assert_string_equal(db_result_str(result, 0, 7).ptr, "0a0b0c0d-0000-4000-8000-000000000001");
    assert_true(db_result_is_null(result, 0, 8));
    assert_int_equal(db_result_i64(result, 0, 8), 0);
    assert_string_equal(db_result_str(result, 0, 9).ptr, "2026-02-27 12:00:00+00");
    assert_string_equal(db_result_str(result, 0, 10).ptr, "\\x00ff");
    db_result_free(result);
    buf_deinit(&array);
}

static void test_parameters_bring_their_types(void **state)
{
    (void)state;
    static const struct db_statement types_sql =
        DB_STATEMENT("SELECT $1, $2 + 1, $3 * 2, $4 ->> 'a', $5[2], NOT $6, $7, $8 IS NULL,"
                     " $9::timestamptz AT TIME ZONE 'UTC', encode($10, 'hex'), cardinality($11), $12 - 1");
    struct buf array = {0}, bytes = {0};
    struct db_result *result;
    db_array_put(&array, STR("x")), db_array_put(&array, STR("y\"")), db_array_end(&array);
    db_bytes_array_begin(&bytes, 1), db_bytes_array_put(&bytes, STR("\0"));
    for (int round = 0; round < 2; round++) { /* prepared, then found */
        assert_ok(db_pool_query(pool, &types_sql,
                                DB_PARAMS(db_text(STR("it's")), db_i64(INT64_MIN), db_int(-21),
                                          db_jsonb(STR("{\"a\": 1}")), db_text_array(buf_str(&array)),
                                          db_bool(true), db_uuid(STR("0a0b0c0d-0000-4000-8000-000000000001")),
                                          db_null(DB_BIGINT), db_text(STR("2026-02-27T12:00:00Z")),
                                          db_bytea(STR("\0\xff")), db_bytea_array(buf_str(&bytes)),
                                          db_bigint(STR("43"))),
                                soon(), &result, NULL));
        static const char *const wanted[] = {
            "it's", "-9223372036854775807", "-42",  "1", "y\"", "f", "0a0b0c0d-0000-4000-8000-000000000001",
            "t",    "2026-02-27 12:00:00",  "00ff", "1", "42"};
        for (unsigned i = 0; i < 12; i++)
            assert_string_equal(db_result_str(result, 0, i).ptr, wanted[i]);
        db_result_free(result);
    }
    buf_deinit(&array), buf_deinit(&bytes);
}

/* The same text with other types is another statement; the same types again are not. */
static void test_a_statement_is_prepared_once_for_its_types(void **state)
{
    (void)state;
    static const struct db_statement sql = DB_STATEMENT("SELECT pg_typeof($1)");
    struct db_result *result;
    const struct db_param params[] = {db_i64(1), db_text(STR("1")), db_null(DB_BIGINT), db_i64(-1)};
    static const char *const wanted[] = {"bigint", "text", "bigint", "bigint"};
    for (unsigned i = 0; i < 4; i++) {
        assert_ok(db_query(conn, &sql, DB_PARAMS(params[i]), soon(), &result, NULL));
        assert_string_equal(db_result_str(result, 0, 0).ptr, wanted[i]);
        db_result_free(result);
    }
    char text[] = "SELECT pg_typeof($1)"; /* elsewhere, and known under the same name */
    struct db_statement copy = db_statement_of(str_from(text));
    assert_ok(db_exec(conn, &copy, DB_PARAMS(db_i64(1)), soon(), NULL, NULL));
    assert_ok(db_exec(conn, &copy, DB_PARAMS(db_bigint(STR("1"))), soon(), NULL, NULL));
    assert_string_equal(test_sql(conn,
                                 "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%typeof%'"
                                 " AND statement NOT LIKE '%count%'"),
                        "2");
}

/* Any bytes, both ways, in a statement and in a pipeline. */
static void test_bytes_travel_as_they_are(void **state)
{
    (void)state;
    static const struct db_statement statement = DB_STATEMENT_BINARY(
        "SELECT $1, $2, $3[1], $3[2], $3[3], cardinality($3)::text, cardinality($4)::text");
    struct db_result *result;
    struct buf array = {0}, empty = {0};
    db_bytes_array_begin(&array, 3);
    db_bytes_array_put(&array, STR("\0\\x\xff\"{,"));
    db_bytes_array_put(&array, STR_NONE);
    db_bytes_array_put(&array, STR(""));
    db_bytes_array_begin(&empty, 0);
    const struct db_param *params =
        DB_PARAMS(db_bytea(STR("a\0\xfe")), db_null(DB_BYTEA), db_bytea_array(buf_str(&array)),
                  db_bytea_array(buf_str(&empty)));
    for (int piped = 0; piped < 2; piped++) {
        if (piped) {
            db_pipeline_begin(conn);
            db_pipeline_add(conn, &statement, params);
            assert_ok(db_pipeline_end(conn, soon(), &result, 1, NULL, NULL));
        } else {
            assert_ok(db_query(conn, &statement, params, soon(), &result, NULL));
        }
        assert_true(str_eq(db_result_str(result, 0, 0), STR("a\0\xfe")));
        assert_true(db_result_is_null(result, 0, 1));
        assert_true(str_eq(db_result_str(result, 0, 2), STR("\0\\x\xff\"{,")));
        assert_true(db_result_is_null(result, 0, 3));
        assert_true(!db_result_is_null(result, 0, 4) && db_result_str(result, 0, 4).len == 0);
        assert_int_equal(db_result_i64(result, 0, 5), 3);
        assert_int_equal(db_result_i64(result, 0, 6), 0);
        db_result_free(result);
    }
    buf_deinit(&array);
    buf_deinit(&empty);
}

static void test_a_NUL_in_a_parameter_is_refused(void **state)
{
    (void)state;
    static const struct db_statement statement = DB_STATEMENT("SELECT $1, $2");
    struct error error = {0};
    const struct db_param *text = DB_PARAMS(db_text(str_of("a\0b", 3)), db_jsonb(STR("1")));
    assert_int_equal(db_exec(conn, &statement, text, soon(), NULL, &error), STATUS_DB_ERROR);
    assert_non_null(strstr(error.message, "$1 holds a NUL"));
    const struct db_param *json = DB_PARAMS(db_text(STR("a")), db_jsonb(str_of("1\0", 2)));
    assert_int_equal(db_exec(conn, &statement, json, soon(), NULL, &error), STATUS_DB_ERROR);
    assert_non_null(strstr(error.message, "$2 holds a NUL"));
    assert_string_equal(test_sql(conn, "SELECT 1"), "1");
}

static void test_big_parameters_and_results_pass(void **state)
{
    (void)state;
    size_t len = 20u << 20;
    char *big = malloc(len);
    static const struct db_statement statement = DB_STATEMENT("SELECT $1, $2");
    struct db_result *result;
    memset(big, 'x', len);
    assert_ok(db_query(conn, &statement, DB_PARAMS(db_text(str_of(big, len)), db_jsonb(STR("\"j\""))), soon(),
                       &result, NULL));
    assert_int_equal(db_result_str(result, 0, 0).len, len);
    db_result_free(result);
    free(big);
}

static void test_errors_carry_the_sqlstate_but_no_values(void **state)
{
    (void)state;
    struct db_statement statement = DB_STATEMENT("SELECT $1::text::bigint");
    struct error error = {0};
    const struct db_param *params = DB_PARAMS(db_text(STR("hunter2")));
    assert_int_equal(db_exec(conn, &statement, params, soon(), NULL, &error), STATUS_DB_ERROR);
    assert_string_equal(db_sqlstate(conn), "22P02");
    assert_non_null(strstr(error.message, "invalid input syntax"));
    assert_null(strstr(error.message, "hunter2"));
    test_sql(conn, "CREATE TEMP TABLE secrets (s text PRIMARY KEY)");
    statement = db_statement_of(STR("INSERT INTO secrets VALUES ($1)"));
    assert_ok(db_exec(conn, &statement, params, soon(), NULL, &error));
    assert_string_equal(db_sqlstate(conn), "");
    assert_int_equal(db_exec(conn, &statement, params, soon(), NULL, &error), STATUS_DB_ERROR);
    assert_string_equal(db_sqlstate(conn), "23505");
    assert_null(strstr(error.message, "hunter2"));
}

static void test_exec_counts_rows(void **state)
{
    (void)state;
    struct db_statement statement;
    int64_t affected = -1;
    test_sql(conn, "CREATE TEMP TABLE counted AS SELECT generate_series(1, 10) AS n");
    statement = db_statement_of(STR("DELETE FROM counted WHERE n > 3"));
    assert_ok(db_exec(conn, &statement, NULL, soon(), &affected, NULL));
    assert_int_equal(affected, 7);
}

static void test_copy_is_refused_and_the_pool_recovers(void **state)
{
    (void)state;
    assert_int_equal(test_try(conn, "COPY (SELECT 1) TO STDOUT", PATIENCE_MS, NULL), STATUS_DB_ERROR);
    db_release(conn);
    conn = test_acquire(pool);
    assert_string_equal(test_sql(conn, "SELECT 1"), "1");
}

/* ---- prepared statements ---- */

static void test_statements_are_prepared_once(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++)
        test_sql(conn, "SELECT 42");
    assert_string_equal(
        test_sql(conn, "SELECT count(*) FROM pg_prepared_statements WHERE statement = 'SELECT 42'"), "1");
}

static void test_the_number_of_prepared_statements_is_bounded(void **state)
{
    (void)state;
    for (int i = 0; i < 600; i++) {
        char sql[32];
        snprintf(sql, sizeof sql, "SELECT %d", i);
        assert_int_equal(atoi(test_sql(conn, sql)), i);
    }
    assert_true(atoi(test_sql(conn, "SELECT count(*) FROM pg_prepared_statements")) <= 256);
}

static void test_a_changed_row_type_is_prepared_anew(void **state)
{
    (void)state;
    test_sql(conn, "CREATE TEMP TABLE shape AS SELECT 1 AS a");
    assert_string_equal(test_sql(conn, "SELECT * FROM shape"), "1");
    test_sql(conn, "ALTER TABLE shape ALTER a TYPE text USING 'one'");
    assert_string_equal(test_sql(conn, "SELECT * FROM shape"), "one");
    /* inside a transaction only the whole can be repeated */
    test_sql(conn, "ALTER TABLE shape ALTER a TYPE int USING 2");
    assert_ok(db_begin(conn, DB_READ_COMMITTED, soon(), NULL));
    assert_int_equal(test_try(conn, "SELECT * FROM shape", PATIENCE_MS, NULL), STATUS_DB_RETRY);
    db_rollback(conn);
    assert_ok(db_begin(conn, DB_READ_COMMITTED, soon(), NULL));
    assert_string_equal(test_sql(conn, "SELECT * FROM shape"), "2");
    assert_ok(db_commit(conn, soon(), NULL));
}

static void test_statements_dropped_behind_our_back_are_prepared_anew(void **state)
{
    (void)state;
    test_sql(conn, "SELECT 'again'");
    test_sql(conn, "DISCARD ALL");
    assert_string_equal(test_sql(conn, "SELECT 'again'"), "again");
}

/* ---- streams ---- */

struct counter {
    int64_t rows, sum, stop_at;
};

static bool count_row(void *context, const struct db_result *row)
{
    struct counter *counter = context;
    counter->rows++;
    counter->sum += db_result_is_null(row, 0, 0) ? 0 : atoll(db_result_str(row, 0, 0).ptr);
    return counter->rows != counter->stop_at;
}

static void test_a_stream_passes_every_row(void **state)
{
    (void)state;
    static const struct db_statement statement =
        DB_STATEMENT("SELECT CASE WHEN n % 2 = 0 THEN n END FROM generate_series(1, $1) n");
    struct counter counter = {0};
    assert_ok(db_stream(conn, &statement, DB_PARAMS(db_int(10000)), soon(), count_row, &counter, NULL));
    assert_int_equal(counter.rows, 10000);
    assert_int_equal(counter.sum, 25005000);
    assert_string_equal(test_sql(conn, "SELECT 1"), "1");
}

static void test_a_stream_stops_early_without_reading_the_rest(void **state)
{
    (void)state;
    struct db_statement statement;
    struct counter counter = {.stop_at = 3};
    statement = db_statement_of(STR("SELECT generate_series(1, 1000000000000)"));
    assert_int_equal(db_stream(conn, &statement, NULL, soon(), count_row, &counter, NULL), STATUS_CANCELLED);
    assert_int_equal(counter.rows, 3);
    db_release(conn);
    conn = test_acquire(pool);
    assert_string_equal(test_sql(conn, "SELECT 1"), "1");
}

static void test_a_stream_that_fails_midway_says_so(void **state)
{
    (void)state;
    struct db_statement statement;
    struct counter counter = {0};
    statement = db_statement_of(STR("SELECT 1 / (5000 - n) FROM generate_series(1, 10000) n"));
    assert_int_equal(db_stream(conn, &statement, NULL, soon(), count_row, &counter, NULL), STATUS_DB_ERROR);
    assert_string_equal(db_sqlstate(conn), "22012");
    assert_int_equal(counter.rows, 4999);
    assert_string_equal(test_sql(conn, "SELECT 1"), "1");
}

/* Rows never stop coming, so no wait ever ends in vain: the clock has to be looked at all the same. */
static bool outlast(void *context, const struct db_result *row)
{
    (void)row;
    while (clock_mono_ns() < *(int64_t *)context)
        continue;
    return true;
}

static void test_an_endless_stream_ends_at_its_deadline(void **state)
{
    (void)state;
    struct db_statement statement;
    int64_t deadline_ns = clock_deadline_ms(300);
    statement = db_statement_of(STR("SELECT generate_series(1, 1000000000000)"));
    assert_int_equal(db_stream(conn, &statement, NULL, deadline_ns, outlast, &deadline_ns, NULL),
                     STATUS_TIMEOUT);
}

/* ---- describe ---- */

static void test_describe_lists_columns(void **state)
{
    (void)state;
    static const struct db_name names[] = {{"tenantId", DB_TEXT}, {NULL, DB_TEXT}};
    struct db_statement statement;
    struct db_column columns[DB_COLUMNS_MAX];
    struct arena arena = ARENA(1024);
    unsigned count;
    size_t offset, position;
    struct str sql = STR("SELECT :tenantId AS k, '{}'::jsonb AS v, '1'::json");
    assert_ok(db_sql_compile(sql, names, &arena, &statement, &offset, NULL));
    assert_ok(db_describe(conn, &statement, columns, &count, soon(), &position, NULL));
    assert_int_equal(count, 3);
    assert_string_equal(columns[0].name, "k");
    assert_int_equal(columns[0].type_oid, 25);
    assert_string_equal(columns[1].name, "v");
    assert_int_equal(columns[1].type_oid, DB_OID_JSONB);
    assert_int_equal(columns[2].type_oid, DB_OID_JSON);
    arena_deinit(&arena);
}

static void test_describe_points_into_the_template(void **state)
{
    (void)state;
    static const struct db_name names[] = {{"tenantId", DB_TEXT}, {NULL, DB_TEXT}};
    struct db_statement statement;
    struct db_column columns[DB_COLUMNS_MAX];
    struct error error = {0};
    struct arena arena = ARENA(1024);
    unsigned count;
    size_t offset, position;
    const char *sql = "SELECT '\xe2\x82\xac', :tenantId, nope FROM pg_class";
    assert_ok(db_sql_compile(str_from(sql), names, &arena, &statement, &offset, NULL));
    assert_int_equal(db_describe(conn, &statement, columns, &count, soon(), &position, &error),
                     STATUS_DB_ERROR);
    assert_string_equal(db_sqlstate(conn), "42703");
    assert_int_equal(db_statement_offset(&statement, str_from(sql), position), strstr(sql, "nope") - sql);
    /* a statement without rows has no columns */
    statement = db_statement_of(STR("CREATE TEMP TABLE x (n int)"));
    assert_ok(db_describe(conn, &statement, columns, &count, soon(), &position, NULL));
    assert_int_equal(count, 0);
    arena_deinit(&arena);
}

/* ---- explain ---- */

static void test_explain_plans_and_runs_nothing(void **state)
{
    (void)state;
    struct db_statement insert = db_statement_of(STR("INSERT INTO explained SELECT 1 FROM pg_sleep(600)"));
    struct db_statement create = DB_STATEMENT("CREATE TEMP TABLE explained (n int UNIQUE)");
    struct db_statement count = DB_STATEMENT("SELECT count(*) FROM explained");
    struct db_result *result;
    assert_ok(db_exec(conn, &create, DB_NO_PARAMS, soon(), NULL, NULL));
    assert_ok(db_begin(conn, DB_REPEATABLE_READ_ONLY, soon(), NULL));
    assert_ok(db_explain(conn, &insert, soon(), &result, NULL));
    assert_int_equal(db_result_rows(result), 1);
    assert_non_null(strstr(db_result_str(result, 0, 0).ptr, "\"Node Type\": \"ModifyTable\""));
    db_result_free(result);
    assert_ok(db_query(conn, &count, DB_NO_PARAMS, soon(), &result, NULL));
    assert_int_equal(db_result_i64(result, 0, 0), 0);
    db_result_free(result);
    db_rollback(conn);
}

/* The generic plan: with a NULL for the parameter, nothing of the table would be left in it. */
static void test_explain_plans_for_any_value(void **state)
{
    (void)state;
    static const struct db_name names[] = {{"tenantId", DB_TEXT}, {NULL, DB_TEXT}};
    struct db_statement statement;
    struct db_result *plan;
    struct arena arena = ARENA(1024);
    size_t offset;
    struct str sql = STR("SELECT relname FROM pg_class WHERE :tenantId = 'a' AND relname = :tenantId");
    assert_ok(db_sql_compile(sql, names, &arena, &statement, &offset, NULL));
    assert_ok(db_begin(conn, DB_REPEATABLE_READ_ONLY, soon(), NULL));
    assert_ok(db_explain(conn, &statement, soon(), &plan, NULL));
    assert_non_null(strstr(db_result_str(plan, 0, 0).ptr, "pg_class"));
    db_result_free(plan);
    db_rollback(conn);
    arena_deinit(&arena);
}

static void test_explain_that_is_refused_leaves_the_transaction_usable(void **state)
{
    (void)state;
    struct db_statement create = DB_STATEMENT("CREATE TEMP TABLE unindexed (n int)");
    struct db_statement refused = DB_STATEMENT("INSERT INTO unindexed VALUES (1) ON CONFLICT (n) DO NOTHING");
    struct db_statement good = DB_STATEMENT("SELECT n FROM unindexed");
    struct db_result *plan;
    struct error error = {0};
    assert_ok(db_exec(conn, &create, DB_NO_PARAMS, soon(), NULL, NULL));
    assert_ok(db_begin(conn, DB_REPEATABLE_READ_ONLY, soon(), NULL));
    for (int i = 0; i < 2; i++) { /* its name is free again, too */
        assert_int_equal(db_explain(conn, &refused, soon(), &plan, &error), STATUS_DB_ERROR);
        assert_null(plan);
        assert_string_equal(db_sqlstate(conn), "42P10");
        assert_ok(db_explain(conn, &good, soon(), &plan, NULL));
        assert_int_equal(db_result_rows(plan), 1);
        db_result_free(plan);
    }
    db_rollback(conn);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int run_query_tests(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_every_type_is_bound),
        TEST(test_parameters_bring_their_types),
        TEST(test_a_statement_is_prepared_once_for_its_types),
        TEST(test_bytes_travel_as_they_are),
        TEST(test_a_NUL_in_a_parameter_is_refused),
        TEST(test_big_parameters_and_results_pass),
        TEST(test_errors_carry_the_sqlstate_but_no_values),
        TEST(test_exec_counts_rows),
        TEST(test_copy_is_refused_and_the_pool_recovers),
        TEST(test_statements_are_prepared_once),
        TEST(test_the_number_of_prepared_statements_is_bounded),
        TEST(test_a_changed_row_type_is_prepared_anew),
        TEST(test_statements_dropped_behind_our_back_are_prepared_anew),
        TEST(test_a_stream_passes_every_row),
        TEST(test_a_stream_stops_early_without_reading_the_rest),
        TEST(test_a_stream_that_fails_midway_says_so),
        TEST(test_an_endless_stream_ends_at_its_deadline),
        TEST(test_describe_lists_columns),
        TEST(test_describe_points_into_the_template),
        TEST(test_explain_plans_and_runs_nothing),
        TEST(test_explain_plans_for_any_value),
        TEST(test_explain_that_is_refused_leaves_the_transaction_usable),
    };
    return cmocka_run_group_tests_name("query", tests, NULL, NULL);
}
