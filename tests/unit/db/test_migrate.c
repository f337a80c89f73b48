/* Migrations (C10): once each, safe twice and side by side, a changed one noticed, a failed one leaves
 * nothing. */
#include <pthread.h>
#include <stdatomic.h>

#include "db/db_inside.h"
#include "server_tests.h"

static const struct db_migration two[] = {
    {1, "base",
     "CREATE SCHEMA moved; CREATE TABLE moved.t (n int); INSERT INTO moved.t VALUES (1);"
     "SELECT pg_sleep(0.05);",
     0},
    {2, "more", "ALTER TABLE moved.t ADD m int; -- done\n", 0},
    {0, NULL, NULL, 0},
};

/* sql/001_odd_text.sql and 002_second.sql, through tools/embed_sql.py */
extern const struct db_migration sample_migrations[];

static int setup(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn = test_acquire(pool);
    test_sql(conn, "DROP SCHEMA IF EXISTS platform CASCADE");
    test_sql(conn, "DROP SCHEMA IF EXISTS moved CASCADE");
    db_release(conn);
    db_pool_destroy(pool);
    return 0;
}

static void check_sql(struct db_pool *pool, const char *sql, const char *wanted)
{
    struct db_conn *conn = test_acquire(pool);
    assert_string_equal(test_sql(conn, sql), wanted);
    db_release(conn);
}

static void test_each_is_applied_once(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(1);
    unsigned applied, missing;
    assert_ok(db_migrate_check(pool, "moved", two, soon(), &missing, NULL));
    assert_int_equal(missing, 1);
    assert_ok(db_migrate(pool, "moved", two, soon(), &applied, NULL));
    assert_int_equal(applied, 2);
    assert_ok(db_migrate(pool, "moved", two, soon(), &applied, NULL));
    assert_int_equal(applied, 0);
    assert_ok(db_migrate_check(pool, "moved", two, soon(), &missing, NULL));
    assert_int_equal(missing, 0);
    check_sql(
        pool,
        "SELECT string_agg(module || number || name, ',' ORDER BY number) FROM platform.schema_migration",
        "moved1base,moved2more");
    check_sql(pool, "SELECT count(*) FROM moved.t", "1");
    check_sql(pool, "SHOW statement_timeout", "30s"); /* a migrating session's settings do not come back */
    db_pool_destroy(pool);
}

static void *migrate(void *arg)
{
    struct db_target target = pg_fixture_target();
    struct db_pool *pool;
    struct error error = {0};
    unsigned applied = 0;
    if (db_pool_create(&target, &pool, &error) != STATUS_OK ||
        db_migrate(pool, "moved", two, soon(), &applied, &error) != STATUS_OK)
        applied = 1000;
    atomic_fetch_add((atomic_uint *)arg, applied);
    db_pool_destroy(pool);
    return NULL;
}

static void test_eight_side_by_side_apply_each_once(void **state)
{
    (void)state;
    pthread_t threads[8];
    atomic_uint applied = 0;
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, migrate, &applied);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&applied), 2);
    struct db_pool *pool = test_pool(1);
    check_sql(pool, "SELECT count(*) FROM moved.t", "1");
    db_pool_destroy(pool);
}

static void test_a_changed_migration_is_CONFIG(void **state)
{
    (void)state;
    static const struct db_migration changed[] = {{1, "base", "SELECT 1", 0}, {0, NULL, NULL, 0}};
    struct db_pool *pool = test_pool(1);
    struct error error = {0};
    unsigned missing;
    assert_ok(db_migrate(pool, "moved", two, soon(), NULL, NULL));
    assert_int_equal(db_migrate(pool, "moved", changed, soon(), NULL, &error), STATUS_CONFIG);
    assert_non_null(strstr(error.message, "moved/001_base"));
    assert_int_equal(db_migrate_check(pool, "moved", changed, soon(), &missing, &error), STATUS_CONFIG);
    /* the same number of another module is another migration */
    assert_ok(db_migrate(pool, "other", changed, soon(), NULL, NULL));
    db_pool_destroy(pool);
}

static void test_a_failed_migration_leaves_nothing_behind(void **state)
{
    (void)state;
    static const struct db_migration broken[] = {
        {1, "fine", "CREATE SCHEMA moved; CREATE TABLE moved.t (n int)", 0},
        {2, "broken", "CREATE TABLE moved.half (n int); SELECT nope", 0},
        {3, "after", "CREATE TABLE moved.after (n int)", 0},
        {0, NULL, NULL, 0},
    };
    struct db_pool *pool = test_pool(1);
    struct error error = {0};
    unsigned applied, missing;
    assert_int_equal(db_migrate(pool, "moved", broken, soon(), &applied, &error), STATUS_DB_ERROR);
    assert_int_equal(applied, 1);
    assert_non_null(strstr(error.message, "moved/002_broken"));
    check_sql(pool, "SELECT to_regclass('moved.half') IS NULL AND to_regclass('moved.after') IS NULL", "t");
    assert_ok(db_migrate_check(pool, "moved", broken, soon(), &missing, NULL));
    assert_int_equal(missing, 2);
    db_pool_destroy(pool);
}

static void test_unqualified_names_and_own_commits_are_refused(void **state)
{
    (void)state;
    static const struct db_migration bare[] = {{1, "bare", "CREATE TABLE bare (n int)", 0},
                                               {0, NULL, NULL, 0}};
    static const struct db_migration commits[] = {{1, "commits", "SELECT 1; COMMIT", 0}, {0, NULL, NULL, 0}};
    struct db_target target = pg_fixture_target();
    struct db_pool *pool;
    struct error error = {0};
    target.schema = STR("public");
    assert_ok(db_pool_create(&target, &pool, NULL));
    assert_int_equal(db_migrate(pool, "moved", bare, soon(), NULL, &error), STATUS_DB_ERROR);
    assert_int_equal(db_migrate(pool, "moved", commits, soon(), NULL, &error), STATUS_CONFIG);
    check_sql(pool, "SELECT count(*) FROM platform.schema_migration", "0");
    db_pool_destroy(pool);
}

/* ---- a database that is newer than the program (ADR 18) ---- */

static const struct db_migration newer[] = {
    {1, "base",
     "CREATE SCHEMA moved; CREATE TABLE moved.t (n int); INSERT INTO moved.t VALUES (1);"
     "SELECT pg_sleep(0.05);",
     0},
    {2, "more", "ALTER TABLE moved.t ADD m int; -- done\n", 0},
    {3, "expand", "ALTER TABLE moved.t ADD o int", 0},
    {0, NULL, NULL, 0},
};

static const struct db_migration newest[] = {
    {1, "base",
     "CREATE SCHEMA moved; CREATE TABLE moved.t (n int); INSERT INTO moved.t VALUES (1);"
     "SELECT pg_sleep(0.05);",
     0},
    {2, "more", "ALTER TABLE moved.t ADD m int; -- done\n", 0},
    {3, "expand", "ALTER TABLE moved.t ADD o int", 0},
    {4, "contract", "ALTER TABLE moved.t DROP m", 3},
    {0, NULL, NULL, 0},
};

static void test_c10_a_program_works_with_the_next_schema_until_it_is_refused(void **state)
{
    (void)state;
    const struct db_schema old_schemas[] = {{"moved", two}, {.module = NULL}};
    const struct db_schema new_schemas[] = {{"moved", newer}, {.module = NULL}};
    struct db_pool *pool = test_pool(1);
    struct db_schema_state schema;
    struct error error = {0};
    unsigned applied, missing, count;
    struct buf sql = {0};
    assert_ok(db_migrate(pool, "moved", newer, soon(), NULL, NULL));
    assert_ok(db_migrate(pool, "moved", two, soon(), &applied, NULL));
    assert_int_equal(applied, 0);
    assert_ok(db_migrate_check(pool, "moved", two, soon(), &missing, NULL));
    assert_int_equal(missing, 0);
    assert_ok(db_schemas_check_age(pool, old_schemas, soon(), NULL));

    assert_ok(db_migrate(pool, "moved", newest, soon(), NULL, NULL));
    assert_ok(db_migrate_check(pool, "moved", newer, soon(), &missing, NULL)); /* it knows 3 */
    assert_ok(db_schemas_check_age(pool, new_schemas, soon(), NULL));
    assert_int_equal(db_migrate(pool, "moved", two, soon(), NULL, &error), STATUS_CONFIG);
    assert_string_equal(
        error.message,
        "the schema moved of the database is too new for this program: migration 004, applied by"
        " freshet " FRESHET_VERSION ", needs a program that knows migration 003, and this one, freshet"
        " " FRESHET_VERSION ", ends with 002: run freshet " FRESHET_VERSION " or later");
    assert_int_equal(db_migrate_check(pool, "moved", two, soon(), &missing, &error), STATUS_CONFIG);
    assert_int_equal(db_migrate_plan(pool, "moved", two, soon(), &sql, &count, &error), STATUS_CONFIG);
    assert_int_equal(db_schemas_check_age(pool, old_schemas, soon(), &error), STATUS_CONFIG);
    assert_ok(db_migrate_state(pool, "moved", two, soon(), &schema, NULL));
    assert_int_equal(schema.last, 4);
    assert_int_equal(schema.missing, 0);
    assert_int_equal(schema.oldest_program, 3);
    buf_deinit(&sql);
    db_pool_destroy(pool);
}

/* Programs before ADR 18 made the table without the columns that it needs. */
static void test_c10_a_table_without_the_columns_gets_them(void **state)
{
    (void)state;
    const struct db_schema schemas[] = {{"moved", two}, {.module = NULL}};
    struct db_pool *pool = test_pool(1);
    struct db_schema_state schema;
    struct buf sql = {0};
    unsigned missing, applied;
    static const char column_count[] =
        "SELECT count(*) FROM information_schema.columns"
        " WHERE table_schema = 'platform' AND table_name = 'schema_migration' AND column_name = 'oldest_program'";
    assert_ok(db_migrate(pool, "moved", two, soon(), NULL, NULL));
    struct db_conn *conn = test_acquire(pool);
    test_sql(conn, "ALTER TABLE platform.schema_migration DROP oldest_program, DROP program");
    db_release(conn);
    assert_ok(db_migrate_plan(pool, "moved", two, soon(), &sql, &missing, NULL));
    assert_ok(db_migrate(pool, "moved", two, soon(), &applied, NULL));
    assert_int_equal(missing + applied + buf_len(&sql), 0);
    check_sql(pool, column_count, "0"); /* nothing was planned, and nothing is done */
    assert_ok(db_migrate_check(pool, "moved", newer, soon(), &missing, NULL));
    assert_int_equal(missing, 3);
    assert_ok(db_schemas_check_age(pool, schemas, soon(), NULL));
    assert_ok(db_migrate_state(pool, "moved", newer, soon(), &schema, NULL));
    assert_int_equal(schema.last, 2);
    assert_int_equal(schema.missing, 1);
    assert_ok(db_migrate(pool, "moved", newest, soon(), &applied, NULL));
    assert_int_equal(applied, 2);
    check_sql(
        pool,
        "SELECT string_agg(number || ':' || oldest_program || coalesce(program, ''), ',' ORDER BY number)"
        " FROM platform.schema_migration",
        "1:0,2:0,3:0" FRESHET_VERSION ",4:3" FRESHET_VERSION);
    db_pool_destroy(pool);
}

static void test_c10_a_plan_changes_nothing_and_does_the_same(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(1);
    struct buf sql = {0};
    unsigned count, missing, applied;
    assert_ok(db_migrate_plan(pool, "moved", newest, soon(), &sql, &count, NULL));
    assert_int_equal(count, 4);
    check_sql(pool,
              "SELECT to_regclass('platform.schema_migration') IS NULL AND to_regclass('moved.t') IS NULL",
              "t");
    struct db_conn *conn = test_acquire(pool);
    buf_put_char(&sql, '\0');
    assert_ok(db_conn_command(conn, sql.data + sql.start, soon(), NULL));
    db_release(conn);
    assert_ok(db_migrate_check(pool, "moved", newest, soon(), &missing, NULL));
    assert_int_equal(missing, 0);
    assert_ok(db_migrate(pool, "moved", newest, soon(), &applied, NULL));
    assert_int_equal(applied, 0);
    check_sql(pool, "SELECT max(oldest_program) FROM platform.schema_migration", "3");
    buf_clear(&sql);
    assert_ok(db_migrate_plan(pool, "moved", newest, soon(), &sql, &count, NULL));
    assert_int_equal(count, 0);
    assert_int_equal(buf_len(&sql), 0);
    buf_deinit(&sql);
    db_pool_destroy(pool);
}

static void test_embedded_files_arrive_byte_for_byte(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(1);
    unsigned applied;
    assert_int_equal(sample_migrations[0].number, 1);
    assert_string_equal(sample_migrations[0].name, "odd_text");
    assert_string_equal(sample_migrations[1].name, "second");
    assert_int_equal(sample_migrations[0].oldest_program, 0);
    assert_int_equal(sample_migrations[1].oldest_program, 2); /* its opening comment says so */
    assert_int_equal(sample_migrations[2].number, 0);
    assert_ok(db_migrate(pool, "sample", sample_migrations, soon(), &applied, NULL));
    assert_int_equal(applied, 2);
    check_sql(pool,
              "SELECT text = E'quote \" backslash \\\\ tab \t trigraph ?\?/ \u20ac\nline two' FROM moved.odd",
              "t");
    db_pool_destroy(pool);
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int run_migrate_tests(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_each_is_applied_once),
        TEST(test_eight_side_by_side_apply_each_once),
        TEST(test_a_changed_migration_is_CONFIG),
        TEST(test_a_failed_migration_leaves_nothing_behind),
        TEST(test_embedded_files_arrive_byte_for_byte),
        TEST(test_unqualified_names_and_own_commits_are_refused),
        TEST(test_c10_a_program_works_with_the_next_schema_until_it_is_refused),
        TEST(test_c10_a_table_without_the_columns_gets_them),
        TEST(test_c10_a_plan_changes_nothing_and_does_the_same),
    };
    return cmocka_run_group_tests_name("migrate", tests, NULL, NULL);
}
