/* The pool: its bound, its waiters, what it does with connections that come back dirty or died meanwhile. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/turns.h"
#include "server_tests.h"

static void test_one_connection_is_used_again(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(2);
    assert_false(db_pool_is_up(pool));
    struct db_conn *conn = test_acquire(pool);
    assert_true(db_pool_is_up(pool));
    int pid = atoi(test_sql(conn, "SELECT pg_backend_pid()"));
    db_release(conn);
    conn = test_acquire(pool);
    assert_int_equal(atoi(test_sql(conn, "SELECT pg_backend_pid()")), pid);
    db_release(conn);
    db_pool_destroy(pool);
}

static void test_sessions_begin_as_we_need_them(void **state)
{
    (void)state;
    struct db_target target = pg_fixture_target();
    struct db_pool *pool;
    target.schema = STR("App, pg_catalog");
    target.statement_timeout_ms = 12345;
    assert_ok(db_pool_create(&target, &pool, NULL));
    struct db_conn *conn = test_acquire(pool);
    assert_string_equal(test_sql(conn, "SHOW client_encoding"), "UTF8");
    assert_string_equal(test_sql(conn, "SHOW timezone"), "UTC");
    assert_string_equal(test_sql(conn, "SHOW application_name"), "freshet");
    assert_string_equal(test_sql(conn, "SHOW search_path"), "\"App\",\"pg_catalog\"");
    assert_string_equal(test_sql(conn, "SHOW statement_timeout"), "12345ms");
    assert_string_equal(test_sql(conn, "SHOW idle_in_transaction_session_timeout"), "30s");
    db_release(conn);
    db_pool_destroy(pool);
}

static void test_the_bound_holds_and_waiting_ends_at_the_deadline(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(2);
    struct db_conn *a = test_acquire(pool), *b = test_acquire(pool), *c;
    struct error error = {0};
    int64_t begun = clock_mono_ns();
    assert_int_equal(db_acquire(pool, clock_deadline_ms(50), &c, &error), STATUS_TIMEOUT);
    assert_true(clock_mono_ns() - begun >= 50 * CLOCK_NS_PER_MS);
    assert_null(c);
    db_release(a);
    c = test_acquire(pool);
    db_release(b);
    db_release(c);
    db_pool_destroy(pool);
}

static void test_long_work_leaves_connections_to_all_else(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(4);
    struct db_conn *longs[2], *third, *quick[2];
    for (int i = 0; i < 2; i++)
        assert_ok(db_acquire_long(pool, clock_deadline_ms(PATIENCE_MS), &longs[i], NULL));
    assert_int_equal(db_acquire_long(pool, clock_deadline_ms(50), &third, NULL), STATUS_TIMEOUT);
    quick[0] = test_acquire(pool);
    quick[1] = test_acquire(pool);
    db_release(quick[0]); /* idle now, and still not for long work */
    assert_int_equal(db_acquire_long(pool, clock_deadline_ms(50), &third, NULL), STATUS_TIMEOUT);
    (void)test_try(longs[0], "SELECT pg_terminate_backend(pg_backend_pid())", PATIENCE_MS, NULL);
    db_release(longs[0]); /* closed: its place is free all the same */
    assert_ok(db_acquire_long(pool, clock_deadline_ms(PATIENCE_MS), &third, NULL));
    db_release(third);
    db_release(longs[1]);
    db_release(quick[1]);
    db_pool_destroy(pool);
}

static void test_a_pool_of_one_connection_lends_it_for_long_work(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn;
    assert_ok(db_acquire_long(pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL));
    db_release(conn);
    db_release(test_acquire(pool));
    db_pool_destroy(pool);
}

struct crowd {
    struct db_pool *pool;
    atomic_int inside, most, most_long, longs;
};

static void raise_to(atomic_int *most, int now)
{
    int known = atomic_load(most);
    while (now > known && !atomic_compare_exchange_weak(most, &known, now))
        continue;
}

static const char *visit_once(struct crowd *crowd, bool is_long, const char *sql)
{
    struct db_conn *conn;
    enum status (*acquire)(struct db_pool *, int64_t, struct db_conn **, struct error *) =
        is_long ? db_acquire_long : db_acquire;
    if (acquire(crowd->pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL) != STATUS_OK)
        return "acquire failed";
    raise_to(&crowd->most, atomic_fetch_add(&crowd->inside, 1) + 1);
    raise_to(&crowd->most_long, atomic_fetch_add(&crowd->longs, is_long) + is_long);
    enum status status = test_try(conn, sql, PATIENCE_MS, NULL);
    atomic_fetch_sub(&crowd->inside, 1);
    atomic_fetch_sub(&crowd->longs, is_long);
    db_release(conn);
    return status == STATUS_DB_DOWN ? "connection lost" : NULL;
}

static void *visit_long_and_short(void *arg)
{
    const char *complaint = NULL;
    for (int i = 0; i < 20 && !complaint; i++) {
        (void)visit_once(arg, i % 2, "SELECT pg_terminate_backend(pg_backend_pid())");
        complaint = visit_once(arg, i % 3 != 0, "SELECT 1");
    }
    return (void *)complaint;
}

static void test_long_and_short_work_share_a_pool(void **state)
{
    (void)state;
    struct crowd crowd = {.pool = test_pool(3)};
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, visit_long_and_short, &crowd);
    for (int i = 0; i < 8; i++) {
        void *complaint;
        pthread_join(threads[i], &complaint);
        if (complaint)
            fail_msg("%s", (char *)complaint);
    }
    assert_in_range(atomic_load(&crowd.most), 1, 3);
    assert_in_range(atomic_load(&crowd.most_long), 1, 2);
    db_pool_destroy(crowd.pool);
}

static void *visit(void *arg)
{
    struct crowd *crowd = arg;
    for (int i = 0; i < 20; i++) {
        const char *complaint = visit_once(crowd, false, i % 7 == 0 ? "SELECT 1/0" : "SELECT 1");
        if (complaint)
            return (void *)complaint;
    }
    return NULL;
}

static void test_twelve_threads_share_three_connections(void **state)
{
    (void)state;
    struct crowd crowd = {.pool = test_pool(3)};
    pthread_t threads[12];
    for (int i = 0; i < 12; i++)
        pthread_create(&threads[i], NULL, visit, &crowd);
    for (int i = 0; i < 12; i++) {
        void *complaint;
        pthread_join(threads[i], &complaint);
        if (complaint)
            fail_msg("%s", (char *)complaint);
    }
    assert_true(atomic_load(&crowd.most) >= 1 && atomic_load(&crowd.most) <= 3);
    db_pool_destroy(crowd.pool);
}

enum { GREEDY = 1, MODEST };

struct guest {
    struct db_pool *pool;
    uint64_t share;
    pthread_t thread;
    atomic_bool has_begun;
    enum status status;
    struct db_conn *conn;
};

static void *acquire_for_share(void *arg)
{
    struct guest *guest = arg;
    turns_work_for(guest->share);
    atomic_store(&guest->has_begun, true);
    guest->status = db_acquire(guest->pool, clock_deadline_ms(PATIENCE_MS), &guest->conn, NULL);
    return NULL;
}

static void start_guest(struct guest *guest)
{
    pthread_create(&guest->thread, NULL, acquire_for_share, guest);
    while (!atomic_load(&guest->has_begun))
        usleep(1000);
    usleep(50000); /* it waits by then, and the line is in the order that matters; any order has to pass */
}

/* The connection that a share gave back is another one's, which was before it in line; it may have the last one. */
static void test_a_share_without_a_connection_has_the_last_one(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(3);
    struct guest greedy = {.pool = pool, .share = GREEDY}, modest = {.pool = pool, .share = MODEST};
    turns_work_for(GREEDY);
    struct db_conn *greedys = test_acquire(pool);
    turns_work_for(MODEST);
    struct db_conn *modests = test_acquire(pool);
    turns_work_for(0);
    start_guest(&greedy); /* both wait: one is left, and each has one */
    start_guest(&modest);
    db_release(modests);
    pthread_join(modest.thread, NULL);
    assert_ok(modest.status); /* although greedy gives none back */
    db_release(modest.conn);
    pthread_join(greedy.thread, NULL);
    assert_ok(greedy.status);
    db_release(greedy.conn);
    db_release(greedys);
    db_pool_destroy(pool);
}

static void test_an_open_transaction_is_rolled_back_on_release(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn = test_acquire(pool);
    test_sql(conn, "CREATE TABLE IF NOT EXISTS public.dirty (n int)");
    assert_ok(db_begin(conn, DB_READ_COMMITTED, clock_deadline_ms(PATIENCE_MS), NULL));
    test_sql(conn, "INSERT INTO public.dirty VALUES (1)");
    db_release(conn);
    conn = test_acquire(pool);
    assert_string_equal(test_sql(conn, "SELECT count(*) FROM public.dirty"), "0");
    assert_ok(db_begin(conn, DB_READ_COMMITTED, clock_deadline_ms(PATIENCE_MS), NULL));
    db_release(conn);
    db_pool_destroy(pool);
}

static void test_an_unfinished_pipeline_is_not_reused(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn = test_acquire(pool);
    struct db_statement statement;
    statement = db_statement_of(STR("SELECT 1"));
    db_pipeline_begin(conn);
    db_pipeline_add(conn, &statement, NULL);
    db_release(conn);
    conn = test_acquire(pool);
    assert_string_equal(test_sql(conn, "SELECT 2"), "2");
    db_release(conn);
    db_pool_destroy(pool);
}

/* C6: libpq's buffers never shrink. */
static void test_a_connection_is_closed_after_a_large_statement_or_result(void **state)
{
    (void)state;
    static const char *const statements[] = {"SELECT length(repeat('x', 8000000))", /* small on the wire */
                                             "SELECT repeat('x', 8000000)"};
    struct db_pool *pool = test_pool(1);
    int pid = 0, last;
    for (size_t i = 0; i <= 2; i++) {
        struct db_conn *conn = test_acquire(pool);
        last = pid;
        pid = atoi(test_sql(conn, "SELECT pg_backend_pid()"));
        if (i < 2)
            test_sql(conn, statements[i]);
        db_release(conn);
        assert_int_equal(pid == last, i == 1);
    }
    static const struct db_statement length_sql = DB_STATEMENT("SELECT length($1)");
    struct buf large = {0};
    while (buf_len(&large) < 8000000)
        buf_put_char(&large, 'x');
    for (int piped = 0; piped < 2; piped++) {
        struct db_conn *conn = test_acquire(pool);
        struct db_result *result = NULL;
        last = atoi(test_sql(conn, "SELECT pg_backend_pid()"));
        int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
        if (piped) {
            db_pipeline_begin(conn);
            db_pipeline_add(conn, &length_sql, DB_PARAMS(db_text(buf_str(&large))));
            assert_ok(db_pipeline_end(conn, deadline_ns, &result, 1, NULL, NULL));
        } else {
            assert_ok(
                db_query(conn, &length_sql, DB_PARAMS(db_text(buf_str(&large))), deadline_ns, &result, NULL));
        }
        db_result_free(result);
        db_release(conn);
        conn = test_acquire(pool);
        assert_int_not_equal(atoi(test_sql(conn, "SELECT pg_backend_pid()")), last);
        db_release(conn);
    }
    buf_deinit(&large);
    db_pool_destroy(pool);
}

/* Ends `pid` from another session, and returns when it is gone. */
static void terminate(int pid)
{
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn = test_acquire(pool);
    char sql[160];
    snprintf(sql, sizeof sql, "SELECT pg_terminate_backend(%d, 10000)", pid);
    assert_string_equal(test_sql(conn, sql), "t");
    db_release(conn);
    db_pool_destroy(pool);
}

static void test_a_connection_that_died_idle_is_not_handed_out(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn = test_acquire(pool);
    int pid = atoi(test_sql(conn, "SELECT pg_backend_pid()"));
    db_release(conn);
    terminate(pid);
    conn = test_acquire(pool);
    assert_int_not_equal(atoi(test_sql(conn, "SELECT pg_backend_pid()")), pid);
    db_release(conn);
    db_pool_destroy(pool);
}

static void test_a_connection_that_dies_in_use_is_DB_DOWN_and_replaced(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn = test_acquire(pool);
    struct error error = {0};
    int pid = atoi(test_sql(conn, "SELECT pg_backend_pid()"));
    assert_ok(db_begin(conn, DB_READ_COMMITTED, clock_deadline_ms(PATIENCE_MS), NULL));
    terminate(pid);
    assert_int_equal(test_try(conn, "SELECT 1", PATIENCE_MS, &error), STATUS_DB_DOWN);
    assert_int_equal(test_try(conn, "SELECT 1", PATIENCE_MS, &error), STATUS_DB_DOWN);
    assert_int_equal(db_commit(conn, clock_deadline_ms(PATIENCE_MS), &error), STATUS_DB_DOWN);
    db_rollback(conn);
    db_release(conn);
    conn = test_acquire(pool);
    /* prepared anew on the new connection */
    assert_string_equal(test_sql(conn, "SELECT 1"), "1");
    db_release(conn);
    db_pool_destroy(pool);
}

static void test_pools_of_one_server_share_idle_connections(void **state)
{
    (void)state;
    struct db_server *servers = NULL;
    struct db_pool *pools[3];
    char pid[32];
    struct db_target target = pg_fixture_target();
    target.server = db_server_find(&servers, &target);
    target.connections_max = 1;
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            target.schema = STR("pg_catalog"); /* other sessions: these connections are not for it */
        assert_ok(db_pool_create(&target, &pools[i], NULL));
    }
    struct db_conn *conn = test_acquire(pools[0]);
    snprintf(pid, sizeof pid, "%s", test_sql(conn, "SELECT pg_backend_pid()::text"));
    db_release(conn);
    conn = test_acquire(pools[1]);
    assert_string_equal(test_sql(conn, "SELECT pg_backend_pid()::text"), pid);
    assert_true(db_pool_is_up(pools[1]));            /* though it opened none */
    struct db_conn *second = test_acquire(pools[0]); /* its limit is its own */
    assert_string_not_equal(test_sql(second, "SELECT pg_backend_pid()::text"), pid);
    db_release(conn);
    conn = test_acquire(pools[2]);
    assert_string_not_equal(test_sql(conn, "SELECT pg_backend_pid()::text"), pid);
    db_release(conn);
    db_release(second);
    struct db_target other = target;
    other.username = STR("somebody");
    assert_ptr_not_equal(db_server_find(&servers, &other), target.server);
    for (int i = 0; i < 3; i++)
        db_pool_destroy(pools[i]);
    db_servers_destroy(servers);
}

static void test_idle_connections_are_closed_after_their_time(void **state)
{
    (void)state;
    struct db_target target = pg_fixture_target();
    struct db_pool *pool;
    target.idle_timeout_ms = 1;
    assert_ok(db_pool_create(&target, &pool, NULL));
    struct db_conn *conn = test_acquire(pool);
    int pid = atoi(test_sql(conn, "SELECT pg_backend_pid()"));
    db_release(conn);
    int64_t later = clock_deadline_ms(5);
    while (clock_mono_ns() < later)
        continue;
    conn = test_acquire(pool);
    assert_int_not_equal(atoi(test_sql(conn, "SELECT pg_backend_pid()")), pid);
    db_release(conn);
    db_pool_destroy(pool);
}

static void test_nobody_there_opens_the_breaker(void **state)
{
    (void)state;
    struct db_target target = pg_fixture_target();
    struct db_pool *pool;
    struct db_conn *conn;
    struct error error = {0};
    target.url = STR("postgresql://u:hunter2@127.0.0.1:1/db");
    target.backoff_min_ms = target.backoff_max_ms = 600000;
    assert_ok(db_pool_create(&target, &pool, NULL));
    assert_string_equal(db_pool_address(pool), "127.0.0.1:1/db");
    assert_int_equal(db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, &error), STATUS_DB_DOWN);
    assert_null(strstr(error.message, "hunter2"));
    assert_null(strstr(error.message, "not tried again yet"));
    assert_false(db_pool_is_up(pool));
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, &error), STATUS_DB_DOWN);
        assert_non_null(strstr(error.message, "not tried again yet"));
    }
    db_pool_destroy(pool);
}

struct stopped {
    struct db_pool *pool;
    struct db_conn *conn; /* NULL: wait for one */
    enum status status;
};

static void *be_stopped(void *arg)
{
    struct stopped *stopped = arg;
    if (stopped->conn)
        stopped->status = test_try(stopped->conn, "SELECT pg_sleep(600) /* stopped */", 600000, NULL);
    else
        stopped->status = db_acquire(stopped->pool, clock_deadline_ms(600000), &stopped->conn, NULL);
    return NULL;
}

static void test_a_stop_ends_statements_and_waiting(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(1), *other = test_pool(1);
    struct stopped running = {.pool = pool, .conn = test_acquire(pool)}, waiting = {.pool = pool};
    struct db_conn *watcher = test_acquire(other), *conn;
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, be_stopped, &running);
    pthread_create(&threads[1], NULL, be_stopped, &waiting);
    while (
        strcmp(test_sql(watcher, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%/* stopped */'"),
               "1") != 0)
        continue;
    db_pool_interrupt(pool);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_int_equal(running.status, STATUS_CANCELLED);
    assert_int_equal(waiting.status, STATUS_CANCELLED);
    assert_int_equal(db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL), STATUS_CANCELLED);
    db_release(running.conn);
    db_release(watcher);
    db_pool_destroy(other);
    db_pool_destroy(pool);
}

static void test_the_second_host_is_tried(void **state)
{
    (void)state;
    struct db_target target = pg_fixture_target();
    struct db_pool *pool;
    char url[600];
    const char *at = memchr(target.url.ptr, '@', target.url.len);
    assert_non_null(at);
    snprintf(url, sizeof url, "%.*s@127.0.0.1:1,localhost:1,%s", (int)(at - target.url.ptr), target.url.ptr,
             at + 1);
    target.url = str_from(url);
    assert_ok(db_pool_create(&target, &pool, NULL));
    struct db_conn *conn = test_acquire(pool);
    assert_string_equal(test_sql(conn, "SELECT 1"), "1");
    db_release(conn);
    db_pool_destroy(pool);
}

static void test_a_socket_directory_is_a_host(void **state)
{
    (void)state;
    struct db_target target = pg_fixture_target();
    struct db_pool *pool;
    target.url = str_from(pg_fixture_socket_url());
    assert_ok(db_pool_create(&target, &pool, NULL));
    struct db_conn *conn = test_acquire(pool);
    assert_string_equal(test_sql(conn, "SELECT inet_server_addr() IS NULL"), "t");
    db_release(conn);
    db_pool_destroy(pool);
}

static void test_a_name_without_address_is_DB_DOWN(void **state)
{
    (void)state;
    struct db_target target = pg_fixture_target();
    struct db_pool *pool;
    struct db_conn *conn;
    struct error error = {0};
    target.url = STR("postgresql://no-such-host.invalid/db");
    assert_ok(db_pool_create(&target, &pool, NULL));
    enum status status = db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, &error);
    assert_int_equal(status, STATUS_DB_DOWN);
    db_pool_destroy(pool);
}

int run_pool_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_connection_is_used_again),
        cmocka_unit_test(test_sessions_begin_as_we_need_them),
        cmocka_unit_test(test_the_bound_holds_and_waiting_ends_at_the_deadline),
        cmocka_unit_test(test_long_work_leaves_connections_to_all_else),
        cmocka_unit_test(test_a_pool_of_one_connection_lends_it_for_long_work),
        cmocka_unit_test(test_long_and_short_work_share_a_pool),
        cmocka_unit_test(test_twelve_threads_share_three_connections),
        cmocka_unit_test(test_a_share_without_a_connection_has_the_last_one),
        cmocka_unit_test(test_an_open_transaction_is_rolled_back_on_release),
        cmocka_unit_test(test_an_unfinished_pipeline_is_not_reused),
        cmocka_unit_test(test_a_connection_is_closed_after_a_large_statement_or_result),
        cmocka_unit_test(test_a_connection_that_died_idle_is_not_handed_out),
        cmocka_unit_test(test_a_connection_that_dies_in_use_is_DB_DOWN_and_replaced),
        cmocka_unit_test(test_idle_connections_are_closed_after_their_time),
        cmocka_unit_test(test_pools_of_one_server_share_idle_connections),
        cmocka_unit_test(test_nobody_there_opens_the_breaker),
        cmocka_unit_test(test_a_stop_ends_statements_and_waiting),
        cmocka_unit_test(test_the_second_host_is_tried),
        cmocka_unit_test(test_a_socket_directory_is_a_host),
        cmocka_unit_test(test_a_name_without_address_is_DB_DOWN),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
