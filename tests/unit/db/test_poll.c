/* Polls on one loop: all conditions of a server are evaluated by one statement, whatever joins, leaves or fails. */
#include "server_tests.h"

enum { EVERY_MS = 20 };

struct seen {
    int calls, unknown;
    int64_t last;
    struct db_poll *destroy; /* on the next call, from inside the callback */
};

static void on_value(void *context, int64_t value)
{
    struct seen *seen = context;
    seen->calls++;
    seen->unknown += value == DB_POLL_UNKNOWN;
    seen->last = value;
    db_poll_destroy(seen->destroy);
    seen->destroy = NULL;
}

static struct db_poll *poll_for(struct loop *loop, const struct db_target *target, const char *sql,
                                struct seen *seen)
{
    struct db_poll *poll = db_poll_create(&(struct db_poll_config){.loop = loop,
                                                                   .target = target,
                                                                   .sql = sql,
                                                                   .every_ms = EVERY_MS,
                                                                   .on_value = on_value,
                                                                   .context = seen});
    assert_non_null(poll);
    return poll;
}

static void run_until(struct loop *loop, const int *value, int wanted)
{
    int64_t limit = clock_deadline_ms(PATIENCE_MS);
    while (*value < wanted && clock_mono_ns() < limit)
        loop_run_once(loop, 100);
    assert_true(*value >= wanted);
}

struct rig {
    struct loop *loop;
    struct db_server *servers;
    struct db_target target;
    struct db_pool *pool;
    struct db_conn *conn;
};

static struct rig rig_start(void)
{
    struct rig rig = {.loop = loop_create(0, 0), .target = pg_fixture_target(), .pool = test_pool(1)};
    rig.target.server = db_server_find(&rig.servers, &rig.target);
    rig.conn = test_acquire(rig.pool);
    test_sql(rig.conn, "DROP TABLE IF EXISTS polled");
    test_sql(rig.conn, "CREATE TABLE polled (n int)");
    return rig;
}

static void rig_end(struct rig *rig)
{
    db_release(rig->conn);
    db_pool_destroy(rig->pool);
    loop_destroy(rig->loop);
    db_servers_destroy(rig->servers);
}

static void test_polls_of_one_server_share_a_statement(void **state)
{
    (void)state;
    struct rig rig = rig_start();
    struct seen first = {0}, second = {0};
    struct db_poll *one = poll_for(rig.loop, &rig.target, "(SELECT count(*) FROM polled)", &first);
    run_until(rig.loop, &first.calls, 2);
    assert_int_equal(first.last, 0);
    assert_true(db_poll_is_up(one));
    struct db_poll *two = poll_for(rig.loop, &rig.target, "EXISTS (SELECT FROM polled)::int + 6", &second);
    run_until(rig.loop, &second.calls, 1);
    test_sql(rig.conn, "INSERT INTO polled VALUES (1), (2)");
    first.calls = second.calls = 0;
    run_until(rig.loop, &first.calls, 2);
    run_until(rig.loop, &second.calls, 2);
    assert_int_equal(first.last, 2);
    assert_int_equal(second.last, 7);
    assert_int_equal(first.unknown + second.unknown, 0);
    assert_string_equal(test_sql(rig.conn, "SELECT count(*) FROM pg_stat_activity"
                                           " WHERE query LIKE '%freshet_poll%' AND pid <> pg_backend_pid()"),
                        "1");
    second.destroy = one; /* the next in the list, or the one before */
    run_until(rig.loop, &second.calls, 4);
    int calls = first.calls;
    run_until(rig.loop, &second.calls, 7);
    assert_int_equal(first.calls, calls);
    assert_int_equal(second.last, 7);
    second.destroy = two; /* itself, and the last */
    run_until(rig.loop, &second.calls, 8);
    rig_end(&rig);
}

/* Nobody is left without an answer: those whose condition is fine look for themselves meanwhile. */
static void test_a_condition_that_fails_calls_all_and_is_tried_again(void **state)
{
    (void)state;
    struct rig rig = rig_start();
    struct seen good = {0}, bad = {0};
    struct db_poll *one = poll_for(rig.loop, &rig.target, "1", &good);
    struct db_poll *two = poll_for(rig.loop, &rig.target, "(SELECT count(*) FROM polled)", &bad);
    run_until(rig.loop, &bad.calls, 1);
    test_sql(rig.conn, "DROP TABLE polled");
    run_until(rig.loop, &good.unknown, 2);
    run_until(rig.loop, &bad.unknown, 2);
    test_sql(rig.conn, "CREATE TABLE polled (n int)");
    while (bad.last == DB_POLL_UNKNOWN)
        run_until(rig.loop, &bad.calls, bad.calls + 1);
    good.unknown = bad.unknown = 0;
    test_sql(rig.conn, "BEGIN");
    test_sql(rig.conn, "LOCK TABLE polled");
    run_until(rig.loop, &bad.unknown, 1);
    run_until(rig.loop, &good.unknown, 1);
    test_sql(rig.conn, "ROLLBACK");
    while (good.last != 1)
        run_until(rig.loop, &good.calls, good.calls + 1);
    assert_int_equal(bad.last, 0);
    db_poll_destroy(one);
    db_poll_destroy(two);
    rig_end(&rig);
}

static void test_a_lost_connection_is_reported_and_comes_back(void **state)
{
    (void)state;
    struct rig rig = rig_start();
    struct seen seen = {0};
    struct db_poll *poll = poll_for(rig.loop, &rig.target, "5", &seen);
    run_until(rig.loop, &seen.calls, 1);
    test_sql(rig.conn,
             "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%freshet_poll%'"
             " AND pid <> pg_backend_pid()");
    run_until(rig.loop, &seen.unknown, 1);
    seen.calls = 0;
    run_until(rig.loop, &seen.calls, 1);
    assert_true(db_poll_is_up(poll));
    assert_int_equal(seen.last, 5);
    db_poll_destroy(poll);
    assert_false(db_poll_is_up(NULL));
    rig_end(&rig);
}

int run_poll_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_polls_of_one_server_share_a_statement),
        cmocka_unit_test(test_a_condition_that_fails_calls_all_and_is_tried_again),
        cmocka_unit_test(test_a_lost_connection_is_reported_and_comes_back),
    };
    return cmocka_run_group_tests_name("poll", tests, NULL, NULL);
}
