/* Effect and answer (I2, I4–I7): what is stored, for whom, how long, and what is not. */
#include "rig.h"

static int setup(void **state)
{
    (void)state;
    rig_clear();
    return 0;
}

static void expect_new(struct call *call, const char *effects)
{
    rig_run(call);
    assert_int_equal(call->status, STATUS_OK);
    assert_false(call->replayed);
    rig_expect("SELECT count(*) FROM shop.bought", effects);
}

static void expect_replay(const struct call *first)
{
    struct call again = rig_again(first);
    assert_int_equal(again.status, STATUS_OK);
    assert_true(again.replayed);
    assert_false(again.has_effect);
    assert_int_equal(again.answered, first->answered);
    assert_string_equal(again.text, first->text);
}

/* ---- replay and conflict ---- */

static void test_i2_the_same_again_is_the_same_answer_to_the_byte(void **state)
{
    (void)state;
    unsigned hits = rig_counted(&idempotency_families[IDEMPOTENCY_HIT], "/things");
    unsigned misses = rig_counted(&idempotency_families[IDEMPOTENCY_MISS], "/things");
    struct call call = rig_call("first");
    expect_new(&call, "1");
    assert_true(call.has_effect);
    assert_int_equal(call.answered, 201);
    assert_string_equal(call.text, "{\"id\": 1,  \"é\":1.50}");
    for (int i = 0; i < 3; i++)
        expect_replay(&call);
    rig_expect("SELECT count(*) FROM shop.bought", "1");
    rig_expect("SELECT count(*) FROM shop.idempotency_keys", "1");
    rig_expect("SELECT request_hash = sha256('{}') FROM shop.idempotency_keys", "t");
    assert_int_equal(rig_counted(&idempotency_families[IDEMPOTENCY_HIT], "/things"), hits + 3);
    assert_int_equal(rig_counted(&idempotency_families[IDEMPOTENCY_MISS], "/things"), misses + 1);
}

static void test_i2_another_body_is_a_conflict_and_changes_nothing(void **state)
{
    (void)state;
    unsigned conflicts = rig_counted(&idempotency_families[IDEMPOTENCY_CONFLICT], "/things");
    struct call call = rig_call("used"), other = rig_call("used");
    other.body = STR("{} ");
    expect_new(&call, "1");
    rig_run(&other);
    assert_int_equal(other.status, STATUS_IDEMPOTENCY_KEY_CONFLICT);
    assert_string_equal(other.error.message, "Idempotency key already used with different request body");
    rig_expect("SELECT count(*) FROM shop.bought", "1");
    expect_replay(&call);
    assert_int_equal(rig_counted(&idempotency_families[IDEMPOTENCY_CONFLICT], "/things"), conflicts + 1);
}

static void test_i2_another_user_tenant_or_route_has_a_key_of_its_own(void **state)
{
    (void)state;
    struct call calls[5];
    char effects[8];
    for (int i = 0; i < 5; i++)
        calls[i] = rig_call("shared");
    calls[1].tenant = STR("tu"); /* "t","u" and "tu","" must not read alike */
    calls[1].subject = STR("");
    calls[2].subject = STR("v");
    calls[3].route.path = "/others";
    calls[4].tenant = STR("T");
    for (int i = 0; i < 5; i++) {
        snprintf(effects, sizeof effects, "%d", i + 1);
        expect_new(&calls[i], effects);
    }
    for (int i = 0; i < 5; i++)
        expect_replay(&calls[i]);
}

static void test_without_a_key_every_call_is_its_own(void **state)
{
    (void)state;
    struct call call = rig_call(NULL);
    expect_new(&call, "1");
    expect_new(&call, "2");
    rig_expect("SELECT count(*) FROM shop.idempotency_keys", "0");
}

/* ---- failures ---- */

static void test_i4_a_failure_frees_its_key(void **state)
{
    (void)state;
    struct call call = rig_call("taken");
    call.wanted = 409;
    rig_run(&call);
    assert_int_equal(call.status, STATUS_OK);
    assert_int_equal(call.answered, 409);
    assert_false(call.has_effect);
    rig_expect("SELECT count(*) FROM shop.idempotency_keys", "0");
    call.wanted = 201;
    call.body = STR("{\"other\":1}");
    expect_new(&call, "1");
}

static void test_i4_a_business_failure_is_kept_where_the_row_says_so(void **state)
{
    (void)state;
    const int kept[] = {404, 409, 422}, never[] = {400, 401, 403, 500, 503};
    char key[16];
    for (size_t i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "kept-%d", kept[i]);
        struct call call = rig_call(key);
        call.route.key_stores_failures = true;
        call.wanted = kept[i];
        rig_run(&call);
        call.wanted = 201; /* would go through now, and is not asked */
        struct call again = rig_again(&call);
        assert_true(again.replayed);
        assert_int_equal(again.answered, kept[i]);
        assert_string_equal(again.text, call.text);
    }
    for (size_t i = 0; i < 5; i++) {
        snprintf(key, sizeof key, "never-%d", never[i]);
        struct call call = rig_call(key);
        call.route.key_stores_failures = true;
        call.wanted = never[i];
        rig_run(&call);
        assert_int_equal(call.answered, never[i]);
        assert_false(rig_again(&call).replayed);
    }
    rig_expect("SELECT count(*) FROM shop.idempotency_keys", "3");
}

static void test_i5_a_refused_effect_leaves_neither(void **state)
{
    (void)state;
    struct call call = rig_call("refused");
    call.effect = "WITH done AS (INSERT INTO shop.bought (note) VALUES ('x') RETURNING id)"
                  " SELECT (200 / (id - id))::int, 'never' FROM done";
    rig_run(&call);
    assert_int_equal(call.status, STATUS_DB_ERROR);
    rig_expect("SELECT count(*) FROM shop.bought", "0");
    rig_expect("SELECT count(*) FROM shop.idempotency_keys", "0");
    call.effect = NULL;
    expect_new(&call, "1");
}

/* ---- time ---- */

static void at(const char *when)
{
    rig_sql("WITH gone AS (DELETE FROM clock.now)"
            " INSERT INTO clock.now VALUES ('2026-01-01 00:00:00+00'::timestamptz + '%s'::interval)",
            when);
}

/* The seed's table: T+0, T+1m, T+10m, T+60m from the store, T+61m anew; replays extend nothing. */
static void test_i6_the_times_of_the_seed(void **state)
{
    (void)state;
    const char *const replays[] = {"1 minute", "10 minutes", "60 minutes"};
    struct call call = rig_call("timed");
    call.pool = rig_clock_pool;
    at("0");
    expect_new(&call, "1");
    rig_expect("SELECT expires_at - created_at FROM shop.idempotency_keys", "01:00:00");
    for (int i = 0; i < 3; i++) {
        at(replays[i]);
        expect_replay(&call);
    }
    at("61 minutes");
    expect_new(&call, "2");
    expect_replay(&call);
    rig_expect("SELECT count(*) FROM shop.idempotency_keys", "1");
    rig_expect("SELECT created_at = '2026-01-01 01:01:00+00' AND expires_at = '2026-01-01 02:01:00+00'"
               " FROM shop.idempotency_keys",
               "t");
}

static void test_i6_at_the_very_moment(void **state)
{
    (void)state;
    struct call call = rig_call("edge"), inclusive = rig_call("edge-inclusive");
    call.pool = inclusive.pool = rig_clock_pool;
    inclusive.table.expires_inclusive = true;
    at("0");
    expect_new(&call, "1");
    expect_new(&inclusive, "2");
    at("59:59.999999");
    at("00:59:59.999999");
    expect_replay(&call);
    expect_replay(&inclusive);
    at("1 hour");
    expect_replay(&call);
    expect_new(&inclusive, "3");
    at("01:00:00.000001");
    expect_new(&call, "4");
}

static void test_i6_an_expired_key_takes_another_body(void **state)
{
    (void)state;
    struct call call = rig_call("again"), other = rig_call("again");
    other.body = STR("[]");
    expect_new(&call, "1");
    rig_sql("UPDATE shop.idempotency_keys SET expires_at = now() - interval '1 second'");
    expect_new(&other, "2");
    expect_replay(&other);
    rig_run(&call);
    assert_int_equal(call.status, STATUS_IDEMPOTENCY_KEY_CONFLICT);
}

/* ---- cleaning up ---- */

static int64_t clean(struct db_conn *conn, const char *limit, bool inclusive)
{
    const struct idempotency_table table = {.name = "shop.idempotency_keys", .expires_inclusive = inclusive};
    struct buf sql = {0};
    struct error error = {0};
    struct db_result *groups;
    int64_t count = 0;

    idempotency_cleanup_sql(&table, &sql);
    struct db_statement statement = db_statement_of(buf_str(&sql));
    if (db_query(conn, &statement, DB_PARAMS(db_i64(0), DB_VALUE(str_from(limit), DB_INT)),
                 clock_deadline_ms(PATIENCE_MS), &groups, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    for (size_t row = 0; row < db_result_rows(groups); row++)
        count += db_result_i64(groups, row, 1);
    db_result_free(groups);
    buf_deinit(&sql);
    return count;
}

static void test_i6_cleaning_takes_what_has_expired_and_nothing_else(void **state)
{
    (void)state;
    struct db_conn *conn;
    assert_int_equal(db_acquire(rig_clock_pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL), STATUS_OK);
    at("0");
    rig_sql(
        "INSERT INTO shop.idempotency_keys SELECT 't', 'u', 'POST', '/things', 'key' || n, '', 201, '', at,"
        " at + n * interval '1 second' FROM clock.now, generate_series(-5, 5) n");
    assert_int_equal(clean(conn, "3", false), 3);
    assert_int_equal(clean(conn, "100", false), 2);
    assert_int_equal(clean(conn, "100", false), 0);
    rig_expect("SELECT count(*) FROM shop.idempotency_keys", "6");
    assert_int_equal(clean(conn, "100", true), 1); /* the one of this very moment */
    rig_expect("SELECT min(idempotency_key) FROM shop.idempotency_keys", "key1");
    db_release(conn);
}

static void exec(struct db_conn *conn, const char *sql)
{
    struct db_statement statement;
    struct error error = {0};
    statement = db_statement_of(str_from(sql));
    if (db_exec(conn, &statement, NULL, clock_deadline_ms(PATIENCE_MS), NULL, &error) != STATUS_OK)
        fail_msg("%s: %s", sql, error.message);
}

/* An expired key is being used anew: cleaning passes it by and waits for nobody. */
static void test_i6_cleaning_leaves_a_key_in_use_alone(void **state)
{
    (void)state;
    struct db_conn *user, *cleaner;
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    struct call call = rig_call("busy");
    expect_new(&call, "1");
    rig_sql("UPDATE shop.idempotency_keys SET expires_at = now() - interval '1 second'");
    assert_int_equal(db_acquire(rig_pool, deadline_ns, &user, NULL), STATUS_OK);
    assert_int_equal(db_acquire(rig_pool, deadline_ns, &cleaner, NULL), STATUS_OK);
    exec(user, "BEGIN");
    exec(user, "UPDATE shop.idempotency_keys SET expires_at = now() + interval '1 hour'");
    assert_int_equal(clean(cleaner, "100", false), 0);
    exec(user, "COMMIT");
    assert_int_equal(clean(cleaner, "100", false), 0);
    db_release(user);
    db_release(cleaner);
    expect_replay(&call);
}

/* ---- what must not be ---- */

static void test_a_stored_answer_that_appears_under_the_lock_is_an_error_of_ours(void **state)
{
    (void)state;
    struct call call = rig_call("intruder");
    call.effect = "WITH effect AS (INSERT INTO shop.bought (note) VALUES ('x') RETURNING id)"
                  " SELECT 201, 'mine' FROM effect";
    rig_sql(
        "CREATE FUNCTION shop.intrude() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO shop.idempotency_keys VALUES ('t', 'u', 'POST', '/things', 'intruder', '', 201, 'theirs', now(),"
        " now() + interval '1 hour'); RETURN new; END $$");
    rig_sql("CREATE TRIGGER intrude BEFORE INSERT ON shop.bought EXECUTE FUNCTION shop.intrude()");
    rig_run(&call);
    rig_sql("DROP FUNCTION shop.intrude CASCADE");
    assert_int_equal(call.status, STATUS_DB_ERROR);
    assert_int_equal(status_http(call.error.status), 500);
    rig_expect("SELECT count(*) FROM shop.bought", "0");
    rig_expect("SELECT count(*) FROM shop.idempotency_keys", "0");
}

static void test_an_effect_without_an_answer_is_an_error_of_ours(void **state)
{
    (void)state;
    struct call call = rig_call(NULL);
    call.effect = "SELECT 201, 'x' WHERE false";
    rig_run(&call);
    assert_int_equal(call.status, STATUS_INTERNAL);
    call.effect = "SELECT 201, NULL::text";
    rig_run(&call);
    assert_int_equal(call.status, STATUS_INTERNAL);
}

/* ---- again, by itself ---- */

static const char *const once_sql[] = {
    "CREATE FUNCTION shop.at_first(OUT status int, OUT body text) LANGUAGE plpgsql AS $$ BEGIN"
    " INSERT INTO shop.bought (note) VALUES ('x');"
    " IF nextval('shop.calls') < 3 THEN RAISE EXCEPTION USING errcode = '40P01'; END IF;"
    " status := 201; body := 'at last'; END $$",
    "CREATE FUNCTION shop.always(OUT status int, OUT body text) LANGUAGE plpgsql AS $$ BEGIN"
    " PERFORM nextval('shop.calls'); RAISE EXCEPTION USING errcode = '40001'; END $$",
};

static void test_a_deadlock_is_tried_again_a_few_times(void **state)
{
    (void)state;
    struct call call = rig_call("deadlock"), keyless = rig_call(NULL), never = rig_call("never");
    rig_sql("%s", once_sql[0]);
    rig_sql("%s", once_sql[1]);
    call.effect = keyless.effect = "SELECT * FROM shop.at_first()";
    never.effect = "SELECT * FROM shop.always()";
    expect_new(&call, "1");
    assert_string_equal(call.text, "at last");
    rig_sql("ALTER SEQUENCE shop.calls RESTART");
    expect_new(&keyless, "2");
    rig_sql("ALTER SEQUENCE shop.calls RESTART");
    rig_run(&never);
    assert_int_equal(never.status, STATUS_DB_RETRY);
    rig_expect("SELECT last_value <= 10 FROM shop.calls", "t");
}

static void test_statements_the_server_forgot_are_prepared_again(void **state)
{
    (void)state;
    struct db_target target = pg_fixture_target();
    struct call call = rig_call("forgotten");
    struct db_conn *conn;
    target.connections_max = 1;
    assert_int_equal(db_pool_create(&target, &call.pool, NULL), STATUS_OK);
    expect_new(&call, "1");
    assert_int_equal(db_acquire(call.pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL), STATUS_OK);
    exec(conn, "DEALLOCATE ALL");
    db_release(conn);
    call.key = STR("forgotten-too");
    expect_new(&call, "2");
    db_pool_destroy(call.pool);
}

#define TEST(name) cmocka_unit_test_setup(test_##name, setup)

static int run_answers_tests(void)
{
    const struct CMUnitTest tests[] = {
        TEST(i2_the_same_again_is_the_same_answer_to_the_byte),
        TEST(i2_another_body_is_a_conflict_and_changes_nothing),
        TEST(i2_another_user_tenant_or_route_has_a_key_of_its_own),
        TEST(without_a_key_every_call_is_its_own),
        TEST(i4_a_failure_frees_its_key),
        TEST(i4_a_business_failure_is_kept_where_the_row_says_so),
        TEST(i5_a_refused_effect_leaves_neither),
        TEST(i6_the_times_of_the_seed),
        TEST(i6_at_the_very_moment),
        TEST(i6_an_expired_key_takes_another_body),
        TEST(i6_cleaning_takes_what_has_expired_and_nothing_else),
        TEST(i6_cleaning_leaves_a_key_in_use_alone),
        TEST(a_stored_answer_that_appears_under_the_lock_is_an_error_of_ours),
        TEST(an_effect_without_an_answer_is_an_error_of_ours),
        TEST(a_deadlock_is_tried_again_a_few_times),
        TEST(statements_the_server_forgot_are_prepared_again),
    };
    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    (void)argv;
    rig_start();
    int failed = run_model_tests();
    if (argc == 1) /* else that alone, to repeat a run */
        failed += run_answers_tests() + run_duplicates_tests() + run_groups_tests();
    rig_stop();
    return failed ? 1 : 0;
}
