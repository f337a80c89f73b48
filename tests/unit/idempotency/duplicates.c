/* Duplicates on different connections, as of different processes (I3, I5): one effect, whoever waits, is refused or dies. */
#include <pthread.h>

#include "rig.h"

enum { TWINS = 16 };

static int setup(void **state)
{
    (void)state;
    rig_clear();
    return 0;
}

/* ---- somebody else is at it ---- */

struct holder {
    struct db_conn *conn;
};

static void conn_exec(struct db_conn *conn, const char *sql)
{
    struct db_statement statement;
    struct error error = {0};
    statement = db_statement_of(str_from(sql));
    if (db_exec(conn, &statement, NULL, clock_deadline_ms(PATIENCE_MS), NULL, &error) != STATUS_OK)
        fail_msg("%s: %s", sql, error.message);
}

/* A transaction that has the key's lock, as another process's would. */
static struct holder hold(const struct call *call)
{
    struct holder holder;
    struct http_request request = {.method = HTTP_POST, .route = &call->route};
    char sql[96];
    assert_int_equal(db_acquire(rig_pool, clock_deadline_ms(PATIENCE_MS), &holder.conn, NULL), STATUS_OK);
    snprintf(sql, sizeof sql, "SELECT pg_advisory_xact_lock(%lld)",
             (long long)idempotency_lock_key(&request, call->tenant, call->subject, call->key));
    conn_exec(holder.conn, "BEGIN");
    conn_exec(holder.conn, sql);
    return holder;
}

static void let_go(struct holder *holder)
{
    conn_exec(holder->conn, "COMMIT");
    db_release(holder->conn);
}

static void test_i3_reject_does_not_wait(void **state)
{
    (void)state;
    unsigned collisions = rig_counted(&idempotency_families[IDEMPOTENCY_COLLISION], "/things");
    struct call call = rig_call("held");
    struct holder holder = hold(&call);
    rig_run(&call);
    assert_int_equal(call.status, STATUS_IDEMPOTENCY_KEY_PROCESSING);
    assert_string_equal(call.error.message, "Request with this idempotency key is already being processed");
    assert_int_equal(rig_counted(&idempotency_families[IDEMPOTENCY_COLLISION], "/things"), collisions + 1);
    struct call other = rig_call("another");
    rig_run(&other);
    assert_int_equal(other.status, STATUS_OK);
    let_go(&holder);
    rig_run(&call);
    assert_int_equal(call.status, STATUS_OK);
    assert_false(call.replayed);
    rig_expect("SELECT count(*) FROM shop.bought", "2");
}

static void test_i3_serialize_waits_no_longer_than_it_may(void **state)
{
    (void)state;
    struct call call = rig_call("held");
    struct holder holder = hold(&call);
    call.route.idempotency = HTTP_KEY_SERIALIZE;
    call.timeout_ms = 1000;
    rig_run(&call);
    assert_int_equal(call.status, STATUS_IDEMPOTENCY_KEY_PROCESSING);
    let_go(&holder);
    rig_expect("SELECT count(*) FROM shop.bought", "0");
}

static void *run_in_thread(void *arg)
{
    rig_run(arg);
    return NULL;
}

static void wait_until(const char *sql)
{
    for (int i = 0; i < 2000 && strcmp(rig_sql("%s", sql), "t") != 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 5 * CLOCK_NS_PER_MS}, NULL);
    rig_expect(sql, "t");
}

#define SOMEBODY_WAITS_SQL "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

/* Behind the wait the session's own lock_timeout holds again. */
static void test_i3_serialize_waits_its_turn(void **state)
{
    (void)state;
    struct call call = rig_call("held");
    struct holder holder = hold(&call);
    pthread_t thread;
    call.route.idempotency = HTTP_KEY_SERIALIZE;
    call.effect = "SELECT 200, current_setting('lock_timeout')";
    pthread_create(&thread, NULL, run_in_thread, &call);
    wait_until(SOMEBODY_WAITS_SQL);
    let_go(&holder);
    pthread_join(thread, NULL);
    assert_int_equal(call.status, STATUS_OK);
    assert_string_equal(call.text, "0");
}

/* ---- storms ---- */

struct duplicates {
    struct call calls[TWINS];
    pthread_t threads[TWINS];
};

static void storm(struct duplicates *duplicates, enum http_idempotency policy, const char *key)
{
    for (int i = 0; i < TWINS; i++) {
        duplicates->calls[i] = rig_call(key);
        duplicates->calls[i].route.idempotency = policy;
        pthread_create(&duplicates->threads[i], NULL, run_in_thread, &duplicates->calls[i]);
    }
    for (int i = 0; i < TWINS; i++)
        pthread_join(duplicates->threads[i], NULL);
}

static void test_i3_of_sixteen_duplicates_that_wait_one_has_the_effect_and_all_its_answer(void **state)
{
    (void)state;
    static struct duplicates duplicates;
    char key[16], effects[16];
    for (int round = 1; round <= 10; round++) {
        int replays = 0;
        snprintf(key, sizeof key, "storm-%d", round);
        snprintf(effects, sizeof effects, "%d", round);
        storm(&duplicates, HTTP_KEY_SERIALIZE, key);
        for (int i = 0; i < TWINS; i++) {
            assert_int_equal(duplicates.calls[i].status, STATUS_OK);
            assert_string_equal(duplicates.calls[i].text, duplicates.calls[0].text);
            replays += duplicates.calls[i].replayed;
        }
        assert_int_equal(replays, TWINS - 1);
        rig_expect("SELECT count(*) FROM shop.bought", effects);
    }
}

static void test_i3_of_sixteen_duplicates_that_do_not_wait_one_has_the_effect(void **state)
{
    (void)state;
    static struct duplicates duplicates;
    char key[16], effects[16];
    for (int round = 1; round <= 10; round++) {
        int first = 0;
        snprintf(key, sizeof key, "storm-%d", round);
        snprintf(effects, sizeof effects, "%d", round);
        storm(&duplicates, HTTP_KEY_REJECT, key);
        for (int i = 0; i < TWINS; i++) {
            const struct call *call = &duplicates.calls[i];
            assert_true(call->status == STATUS_OK || call->status == STATUS_IDEMPOTENCY_KEY_PROCESSING);
            first += call->status == STATUS_OK && !call->replayed;
        }
        assert_int_equal(first, 1);
        rig_expect("SELECT count(*) FROM shop.bought", effects);
    }
}

/* ---- the connection dies in the middle ---- */

static const char slow_sql[] =
    "CREATE OR REPLACE FUNCTION shop.slowly(OUT status int, OUT body text) LANGUAGE plpgsql AS $$ BEGIN"
    " INSERT INTO shop.bought (note) VALUES ('x');"
    " IF nextval('shop.calls') = 1 THEN PERFORM pg_sleep(60); END IF;" /* ended by the test */
    " status := 201; body := 'done'; END $$";

#define SLEEPING_SQL "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"

static void run_and_terminate(struct call *call)
{
    pthread_t thread;
    rig_sql("%s", slow_sql);
    call->effect = "SELECT * FROM shop.slowly()";
    pthread_create(&thread, NULL, run_in_thread, call);
    wait_until(SLEEPING_SQL);
    rig_sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
    pthread_join(thread, NULL);
}

static void test_i5_a_key_is_free_when_its_connection_dies_and_is_tried_again(void **state)
{
    (void)state;
    struct call call = rig_call("dies");
    run_and_terminate(&call);
    assert_int_equal(call.status, STATUS_OK);
    assert_false(call.replayed);
    rig_expect("SELECT count(*) FROM shop.bought", "1");
    rig_expect("SELECT count(*) FROM shop.idempotency_keys", "1");
    assert_true(rig_again(&call).replayed);
}

static void test_without_a_key_a_lost_connection_is_told(void **state)
{
    (void)state;
    struct call call = rig_call(NULL);
    run_and_terminate(&call);
    assert_int_equal(call.status, STATUS_DB_DOWN);
    rig_expect("SELECT count(*) FROM shop.bought", "0");
}

/* The effect waits for a lock of its own, bounded by itself: that is neither tried again nor a duplicate. */
static void test_an_effect_that_waited_too_long_is_not_run_twice(void **state)
{
    (void)state;
    struct call call = rig_call("waited");
    call.effect = "SELECT nextval('shop.calls')::int, set_config('lock_timeout', '1', true)"
                  " || pg_advisory_xact_lock(4711)::text";
    struct db_conn *conn;
    assert_int_equal(db_acquire(rig_pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL), STATUS_OK);
    conn_exec(conn, "BEGIN");
    conn_exec(conn, "SELECT pg_advisory_xact_lock(4711)");
    rig_run(&call);
    assert_int_equal(call.status, STATUS_UNAVAILABLE);
    conn_exec(conn, "ROLLBACK");
    db_release(conn);
    rig_expect("SELECT last_value FROM shop.calls", "1");
}

#define TEST(name) cmocka_unit_test_setup(test_##name, setup)

int run_duplicates_tests(void)
{
    const struct CMUnitTest tests[] = {
        TEST(i3_reject_does_not_wait),
        TEST(i3_serialize_waits_no_longer_than_it_may),
        TEST(i3_serialize_waits_its_turn),
        TEST(i3_of_sixteen_duplicates_that_wait_one_has_the_effect_and_all_its_answer),
        TEST(i3_of_sixteen_duplicates_that_do_not_wait_one_has_the_effect),
        TEST(i5_a_key_is_free_when_its_connection_dies_and_is_tried_again),
        TEST(without_a_key_a_lost_connection_is_told),
        TEST(an_effect_that_waited_too_long_is_not_run_twice),
    };
    return cmocka_run_group_tests_name("duplicates", tests, NULL, NULL);
}
