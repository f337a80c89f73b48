/* R21: a server that died or froze holds nobody past the deadline, and all is well when it is back. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "server_tests.h"

static pid_t backend_of(struct db_conn *conn)
{
    return (pid_t)atoi(test_sql(conn, "SELECT pg_backend_pid()"));
}

/* Once the server is well again: after a crash it may still take connections just to end them. */
static struct db_conn *acquire_working(struct db_pool *pool)
{
    int64_t limit = clock_deadline_ms(PATIENCE_MS);
    struct db_conn *conn = NULL;

    while (db_acquire(pool, clock_deadline_ms(1000), &conn, NULL) != STATUS_OK ||
           test_try(conn, "SELECT 1", 1000, NULL) != STATUS_OK) {
        db_release(conn);
        assert_true(clock_mono_ns() < limit);
    }
    return conn;
}

/* How long is too long: far over the deadlines below, far under any timeout of libpq or TCP. */
#define BOUND_NS (10 * CLOCK_NS_PER_S)

static void test_a_frozen_server_is_TIMEOUT(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(2);
    struct db_conn *conn = test_acquire(pool), *other;
    struct error error = {0};
    pid_t backend = backend_of(conn);
    pg_fixture_freeze(backend);
    int64_t begun = clock_mono_ns();
    enum status in_use = test_try(conn, "SELECT 1", 300, &error);
    enum status connecting = db_acquire(pool, clock_deadline_ms(300), &other, &error);
    bool still_up = db_pool_is_up(pool);
    for (int i = 0; i < 2; i++)
        connecting |= db_acquire(pool, clock_deadline_ms(300), &other, &error);
    enum status refused = db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &other, &error);
    db_release(conn); /* with its cancel request, which nobody answers */
    int64_t took = clock_mono_ns() - begun;
    pg_fixture_thaw(backend);
    assert_int_equal(in_use, STATUS_TIMEOUT);
    assert_int_equal(connecting, STATUS_TIMEOUT);
    assert_true(still_up); /* one caller that had little time does not take the database from the others */
    assert_int_equal(refused, STATUS_DB_DOWN); /* the breaker: after three of them nobody waits any more */
    assert_true(took >= 1200 * CLOCK_NS_PER_MS && took < BOUND_NS);
    conn = acquire_working(pool);
    assert_string_equal(test_sql(conn, "SELECT 1"), "1");
    db_release(conn);
    db_pool_destroy(pool);
}

static void test_a_release_into_a_frozen_server_is_bounded(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn = test_acquire(pool);
    pid_t backend = backend_of(conn);
    assert_ok(db_begin(conn, DB_READ_COMMITTED, clock_deadline_ms(PATIENCE_MS), NULL));
    pg_fixture_freeze(backend);
    int64_t begun = clock_mono_ns();
    db_release(conn); /* wants to roll back */
    int64_t took = clock_mono_ns() - begun;
    pg_fixture_thaw(backend);
    assert_true(took < BOUND_NS);
    db_pool_destroy(pool);
}

static void test_a_killed_backend_is_DB_DOWN_and_the_server_comes_back(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(2);
    struct db_conn *conn = test_acquire(pool), *other = test_acquire(pool);
    struct error error = {0};
    test_sql(conn, "SELECT 'prepared before'");
    /* kill -9: the postmaster then ends all others, as soon as it notices, and restarts everything */
    kill(backend_of(conn), SIGKILL);
    assert_int_equal(test_try(conn, "SELECT 'prepared before'", PATIENCE_MS, &error), STATUS_DB_DOWN);
    while (test_try(other, "SELECT 1", PATIENCE_MS, &error) == STATUS_OK)
        ;
    db_release(conn);
    db_release(other);
    conn = acquire_working(pool);
    assert_string_equal(test_sql(conn, "SELECT 'prepared before'"), "prepared before");
    db_release(conn);
    db_pool_destroy(pool);
}

static void test_a_dead_server_is_refused_at_once_until_it_is_back(void **state)
{
    (void)state;
    struct db_pool *pool = test_pool(2);
    struct db_conn *a = acquire_working(pool), *b = test_acquire(pool), *conn;
    struct error error = {0};
    int downs = 0;
    db_release(b); /* idle while the server dies */
    pg_fixture_halt();
    assert_int_equal(test_try(a, "SELECT 1", PATIENCE_MS, &error), STATUS_DB_DOWN);
    db_release(a);
    int64_t begun = clock_mono_ns();
    for (; downs < 10000; downs++)
        if (db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, &error) != STATUS_DB_DOWN)
            break;
    assert_int_equal(downs, 10000);
    assert_true(clock_mono_ns() - begun < BOUND_NS);
    assert_false(db_pool_is_up(pool));
    pg_fixture_resume();
    conn = acquire_working(pool);
    assert_true(db_pool_is_up(pool));
    assert_string_equal(test_sql(conn, "SELECT 1"), "1");
    db_release(conn);
    db_pool_destroy(pool);
}

static void *release_soon(void *conn)
{
    nanosleep(&(struct timespec){.tv_nsec = 2 * CLOCK_NS_PER_MS}, NULL);
    db_release(conn);
    return NULL;
}

/* The pool that wants to try again gets a connection that another pool gave back meanwhile: it must be able to open others
 * still. Whether it gets that one is a matter of milliseconds, so this is tried until it does. */
static void test_a_connection_of_another_pool_instead_of_the_probe(void **state)
{
    (void)state;
    enum { BUSY = 4 };
    struct db_target target = pg_fixture_target();
    struct db_pool *busy_pool, *pool;
    struct db_conn *busy[BUSY], *conn, *second;
    struct error error = {0};
    bool is_anothers = false;
    target.connections_max = BUSY;
    target.connect_timeout_ms = 300;
    target.backoff_min_ms = target.backoff_max_ms = 1;
    for (int tries = 0; tries < 20 && !is_anothers; tries++) {
        struct db_server *servers =
            NULL; /* each try anew, so that no idle connection is left of the last one */
        target.server = db_server_find(&servers, &target);
        assert_ok(db_pool_create(&target, &busy_pool, NULL));
        assert_ok(db_pool_create(&target, &pool, NULL));
        for (int i = 0; i < BUSY; i++)
            busy[i] = acquire_working(busy_pool);
        pid_t backend = backend_of(busy[0]), others = backend_of(busy[1]);
        pg_fixture_freeze(backend);
        enum status down = db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, &error);
        pg_fixture_thaw(backend);
        assert_int_equal(down, STATUS_DB_DOWN);
        nanosleep(&(struct timespec){.tv_nsec = 5 * CLOCK_NS_PER_MS}, NULL);
        pthread_t thread;
        pthread_create(&thread, NULL, release_soon, busy[1]);
        assert_ok(db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, &error));
        pthread_join(thread, NULL);
        is_anothers = backend_of(conn) == others;
        assert_ok(db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &second, &error));
        db_release(second);
        db_release(conn);
        assert_true(db_pool_is_up(pool));
        for (int i = 0; i < BUSY; i++)
            if (i != 1)
                db_release(busy[i]);
        db_pool_destroy(pool);
        db_pool_destroy(busy_pool);
        db_servers_destroy(servers);
    }
    assert_true(is_anothers);
}

/* By name: looking at descriptors that other threads open would be a race of the test. */
static unsigned count_sockets(void)
{
    unsigned count = 0;
    char path[32], name[16] = "";

    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        count += readlink(path, name, sizeof name) > 7 && memcmp(name, "socket:", 7) == 0;
    }
    return count;
}

static void *acquire_once(void *pool)
{
    db_release(test_acquire(pool));
    return NULL;
}

/* How many connections the pools opened after 50 ms of a frozen server; 0 when this machine took so long that their wait for
 * each other may have been over. */
static unsigned open_side_by_side(struct db_pool **pools, unsigned count)
{
    pthread_t threads[8];
    unsigned before = count_sockets();
    pg_fixture_freeze(0);
    int64_t begun = clock_mono_ns();
    for (unsigned i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, acquire_once, pools[i]);
    nanosleep(&(struct timespec){.tv_nsec = 50 * CLOCK_NS_PER_MS}, NULL);
    unsigned opened = count_sockets() - before;
    bool is_slow = clock_mono_ns() - begun > 150 * CLOCK_NS_PER_MS;
    pg_fixture_thaw(0);
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return is_slow ? 0 : opened;
}

/* C10: as at the start of a process, when many pools have work at once and the server is slow. */
static void test_many_pools_do_not_open_connections_all_at_once(void **state)
{
    (void)state;
    enum { BUSY = 4, POOLS = 8, OPENING_MAX = 2 };
    unsigned opened = 0;
    for (int tries = 0; tries < 20 && opened == 0; tries++) {
        struct db_target target = pg_fixture_target();
        struct db_server *servers = NULL;
        struct db_pool *busy_pool, *pools[POOLS];
        struct db_conn *busy[BUSY];
        target.connections_max = BUSY;
        target.connect_timeout_ms = PATIENCE_MS;
        target.server = db_server_find(&servers, &target);
        assert_ok(db_pool_create(&target, &busy_pool, NULL));
        for (int i = 0; i < BUSY; i++)
            busy[i] = acquire_working(busy_pool);
        for (int i = 0; i < POOLS; i++)
            assert_ok(db_pool_create(&target, &pools[i], NULL));
        opened = open_side_by_side(pools, POOLS);
        for (int i = 0; i < POOLS; i++)
            db_pool_destroy(pools[i]);
        for (int i = 0; i < BUSY; i++)
            db_release(busy[i]);
        db_pool_destroy(busy_pool);
        db_servers_destroy(servers);
    }
    assert_in_range(opened, 1, OPENING_MAX);
}

static void on_notice(void *context, struct str channel, struct str payload)
{
    (void)channel;
    (void)payload;
    ++((int *)context)[1];
}

static void on_listening(void *context)
{
    ++*(int *)context;
}

static void test_the_listener_finds_a_restarted_server(void **state)
{
    (void)state;
    struct loop *loop = loop_create(0, 0);
    struct db_target target = pg_fixture_target();
    int counts[2] = {0};
    struct db_listener *listener =
        db_listener_create(&(struct db_listener_config){.loop = loop,
                                                        .target = &target,
                                                        .channels = {"freshet_one"},
                                                        .on_notice = on_notice,
                                                        .on_listening = on_listening,
                                                        .context = counts});
    struct db_notifier *notifier = db_notifier_create(loop, &target, 1000);
    int64_t limit = clock_deadline_ms(PATIENCE_MS);
    while (counts[0] < 1 && clock_mono_ns() < limit)
        loop_run_once(loop, 50);
    pg_fixture_halt();
    db_notify(notifier, STR("freshet_one"), STR("sent while it was away"));
    for (int i = 0; i < 10; i++)
        loop_run_once(loop, 50);
    pg_fixture_resume();
    while (counts[0] < 2 && clock_mono_ns() < limit)
        loop_run_once(loop, 50);
    db_notify(notifier, STR("freshet_one"), STR("new"));
    while (counts[1] < 1 && clock_mono_ns() < limit)
        loop_run_once(loop, 50);
    assert_int_equal(counts[0], 2);
    assert_true(counts[1] >= 1);
    db_notifier_destroy(notifier);
    db_listener_destroy(listener);
    loop_destroy(loop);
}

int run_outage_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_frozen_server_is_TIMEOUT),
        cmocka_unit_test(test_a_release_into_a_frozen_server_is_bounded),
        cmocka_unit_test(test_a_killed_backend_is_DB_DOWN_and_the_server_comes_back),
        cmocka_unit_test(test_a_dead_server_is_refused_at_once_until_it_is_back),
        cmocka_unit_test(test_a_connection_of_another_pool_instead_of_the_probe),
        cmocka_unit_test(test_many_pools_do_not_open_connections_all_at_once),
        cmocka_unit_test(test_the_listener_finds_a_restarted_server),
    };
    return cmocka_run_group_tests_name("outage", tests, NULL, NULL);
}
