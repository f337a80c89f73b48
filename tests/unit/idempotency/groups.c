/* Calls that share a transaction (I2–I5): each has its own answer, whatever becomes of the others. */
#include <pthread.h>

#include "base/hash.h"
#include "idempotency/idempotency_inside.h"
#include "rig.h"

enum { RUNNING = 2, MEMBERS = 6, CALLS = RUNNING + MEMBERS };

/* Two calls that block, and those that queue behind them. */
struct crowd {
    struct idempotency_groups *groups;
    struct db_conn *conn; /* holds the lock that the two wait for */
    struct call calls[CALLS];
    char keys[CALLS][16];
    pthread_t threads[CALLS];
    struct call *members; /* calls + RUNNING */
};

static void conn_exec(struct db_conn *conn, const char *sql)
{
    struct db_statement statement = db_statement_of(str_from(sql));
    struct error error = {0};
    if (db_exec(conn, &statement, NULL, clock_deadline_ms(PATIENCE_MS), NULL, &error) != STATUS_OK)
        fail_msg("%s: %s", sql, error.message);
}

static void await_sql(const char *sql)
{
    while (strcmp(rig_sql("%s", sql), "t") != 0)
        nanosleep(&(struct timespec){.tv_nsec = 2 * CLOCK_NS_PER_MS}, NULL);
}

static void *run_in_thread(void *arg)
{
    rig_run(arg);
    return NULL;
}

static struct crowd *crowd_create(void)
{
    static struct crowd crowd;
    crowd = (struct crowd){.groups = idempotency_groups_create(RUNNING, PATIENCE_MS),
                           .members = crowd.calls + RUNNING};
    for (int i = 0; i < CALLS; i++) {
        snprintf(crowd.keys[i], sizeof crowd.keys[i], "call-%d", i);
        crowd.calls[i] = rig_call(crowd.keys[i]);
        crowd.calls[i].table.groups = crowd.groups;
        if (i < RUNNING)
            crowd.calls[i].effect = "SELECT 201, pg_advisory_xact_lock_shared(77)::text";
    }
    return &crowd;
}

static void crowd_block(struct crowd *crowd)
{
    assert_int_equal(db_acquire(rig_pool, clock_deadline_ms(PATIENCE_MS), &crowd->conn, NULL), STATUS_OK);
    conn_exec(crowd->conn, "BEGIN");
    conn_exec(crowd->conn, "SELECT pg_advisory_xact_lock(77)");
    for (int i = 0; i < CALLS; i++) {
        if (i == RUNNING)
            await_sql(
                "SELECT count(*) = 2 FROM pg_locks WHERE locktype = 'advisory' AND objid = 77 AND NOT granted");
        pthread_create(&crowd->threads[i], NULL, run_in_thread, &crowd->calls[i]);
    }
}

static void crowd_queue(struct crowd *crowd)
{
    crowd_block(crowd);
    while (idempotency_groups_queued(crowd->groups) < MEMBERS)
        nanosleep(&(struct timespec){.tv_nsec = 2 * CLOCK_NS_PER_MS}, NULL);
}

static void crowd_release(struct crowd *crowd)
{
    conn_exec(crowd->conn, "COMMIT");
    db_release(crowd->conn);
}

static void crowd_join(struct crowd *crowd)
{
    for (int i = 0; i < CALLS; i++)
        pthread_join(crowd->threads[i], NULL);
    idempotency_groups_destroy(crowd->groups);
}

static void crowd_run(struct crowd *crowd)
{
    crowd_queue(crowd);
    crowd_release(crowd);
    crowd_join(crowd);
}

static void expect_bought(const struct call *call)
{
    assert_int_equal(call->status, STATUS_OK);
    assert_int_equal(call->answered, 201);
    assert_false(call->replayed);
    assert_true(call->has_effect);
}

static int setup(void **state)
{
    (void)state;
    rig_clear();
    return 0;
}

static void test_those_that_queue_are_committed_together(void **state)
{
    (void)state;
    struct crowd *crowd = crowd_create();
    crowd_run(crowd);
    for (int i = 0; i < MEMBERS; i++)
        expect_bought(&crowd->members[i]);
    rig_expect("SELECT count(DISTINCT xmin::text) FROM shop.bought", "1");
    rig_expect("SELECT count(*) FROM shop.bought", "6");
    rig_expect("SELECT count(*) FROM shop.idempotency_keys WHERE idempotency_key LIKE 'call-%'", "8");
    rig_expect("SELECT count(DISTINCT response_body) FROM shop.idempotency_keys WHERE response_body <> ''",
               "6");
    for (int i = 0; i < MEMBERS; i++) {
        struct call again = crowd->members[i];
        again.table.groups = NULL;
        rig_run(&again);
        assert_true(again.replayed);
        assert_string_equal(again.text, crowd->members[i].text);
    }
}

static int bought(void)
{
    return atoi(rig_sql("SELECT count(*) FROM shop.bought"));
}

static void crowd_settle(const struct crowd *crowd)
{
    while ((int)idempotency_groups_queued(crowd->groups) + bought() < MEMBERS)
        nanosleep(&(struct timespec){.tv_nsec = 2 * CLOCK_NS_PER_MS}, NULL);
}

/* The hash of its name is so alike that of "t" that whatever has fewer places than these keeps both in one. */
static struct str similar_tenant(void)
{
    static char name[32];
    enum { PLACES = 4096 };
    uint64_t wanted = hash_seeded(STR("t")) % PLACES;
    for (int i = 0;; i++) {
        snprintf(name, sizeof name, "tenant-%d", i);
        if (hash_seeded(str_from(name)) % PLACES == wanted)
            return str_from(name);
    }
}

static void test_a_tenant_does_not_wait_for_calls_of_another_one(void **state)
{
    (void)state;
    struct crowd *crowd = crowd_create();
    crowd->members[0].tenant = similar_tenant();
    crowd_block(crowd);
    crowd_settle(crowd);
    int bought_meanwhile = bought();
    crowd_release(crowd);
    crowd_join(crowd);
    assert_int_equal(bought_meanwhile, 1);
    for (int i = 0; i < MEMBERS; i++)
        expect_bought(&crowd->members[i]);
}

/* The queue of one tenant, where another one's calls are in it too. */
static void test_tenants_share_no_transaction(void **state)
{
    (void)state;
    struct crowd *crowd = crowd_create();
    struct str another = similar_tenant();
    for (int i = 0; i < CALLS; i += 2)
        crowd->calls[i].tenant = another;
    crowd_block(crowd);
    crowd_settle(crowd);
    crowd_release(crowd);
    crowd_join(crowd);
    for (int i = 0; i < MEMBERS; i++)
        expect_bought(&crowd->members[i]);
    rig_expect("SELECT count(*) FROM shop.idempotency_keys a JOIN shop.idempotency_keys b"
               " ON a.xmin::text = b.xmin::text AND a.tenant_id <> b.tenant_id",
               "0");
}

static void test_i5_an_effect_that_fails_harms_no_other(void **state)
{
    (void)state;
    struct crowd *crowd = crowd_create();
    crowd->members[2].effect = "SELECT 201, (1 / (random() * 0)::int)::text";
    crowd_run(crowd);
    for (int i = 0; i < MEMBERS; i++)
        if (i != 2)
            expect_bought(&crowd->members[i]);
    assert_int_equal(crowd->members[2].status, STATUS_DB_ERROR);
    rig_expect("SELECT count(*) FROM shop.bought", "5");
    rig_expect("SELECT count(*) FROM shop.idempotency_keys", "7");
}

static void test_i4_a_refusal_is_answered_and_not_stored(void **state)
{
    (void)state;
    struct crowd *crowd = crowd_create();
    crowd->members[1].wanted = 409;
    crowd_run(crowd);
    assert_int_equal(crowd->members[1].answered, 409);
    assert_false(crowd->members[1].has_effect);
    rig_expect("SELECT count(*) FROM shop.bought", "5");
    rig_expect("SELECT count(*) FROM shop.idempotency_keys", "7");
}

static void test_i2_a_known_key_is_replayed_or_a_conflict(void **state)
{
    (void)state;
    struct crowd *crowd = crowd_create();
    struct call known = crowd->members[0];
    known.table.groups = NULL;
    rig_run(&known);
    crowd->members[1].key = crowd->members[0].key;
    crowd->members[1].body = STR("{\"other\":1}");
    crowd->members[2].key = crowd->members[3].key; /* twice in one group */
    crowd_run(crowd);
    assert_true(crowd->members[0].replayed);
    assert_string_equal(crowd->members[0].text, known.text);
    assert_int_equal(crowd->members[1].status, STATUS_IDEMPOTENCY_KEY_CONFLICT);
    assert_int_equal(crowd->members[2].replayed + crowd->members[3].replayed, 1);
    assert_string_equal(crowd->members[2].text, crowd->members[3].text);
    rig_expect("SELECT count(*) FROM shop.bought", "4");
}

static void test_i3_a_busy_key_is_refused_and_no_other(void **state)
{
    (void)state;
    struct crowd *crowd = crowd_create();
    struct http_request request = {.method = HTTP_POST, .route = &crowd->members[4].route};
    struct db_conn *conn;
    char sql[96];
    snprintf(sql, sizeof sql, "SELECT pg_advisory_xact_lock(%lld)",
             (long long)idempotency_lock_key(&request, STR("t"), STR("u"), crowd->members[4].key));
    assert_int_equal(db_acquire(rig_pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL), STATUS_OK);
    conn_exec(conn, "BEGIN");
    conn_exec(conn, sql);
    crowd_run(crowd);
    conn_exec(conn, "COMMIT");
    db_release(conn);
    for (int i = 0; i < MEMBERS; i++)
        if (i != 4)
            expect_bought(&crowd->members[i]);
    assert_int_equal(crowd->members[4].status, STATUS_IDEMPOTENCY_KEY_PROCESSING);
    rig_expect("SELECT count(*) FROM shop.bought", "5");
}

static void test_an_effect_that_waits_for_a_lock_delays_no_other(void **state)
{
    (void)state;
    struct crowd *crowd = crowd_create();
    struct db_conn *conn;
    crowd->members[0].effect = "SELECT 201, pg_advisory_xact_lock(78)::text";
    assert_int_equal(db_acquire(rig_pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL), STATUS_OK);
    conn_exec(conn, "BEGIN");
    conn_exec(conn, "SELECT pg_advisory_xact_lock(78)");
    crowd_queue(crowd);
    crowd_release(crowd);
    await_sql("SELECT count(*) = 5 FROM shop.bought");
    conn_exec(conn, "COMMIT");
    db_release(conn);
    crowd_join(crowd);
    assert_int_equal(crowd->members[0].status, STATUS_OK);
    rig_expect("SELECT count(*) FROM shop.idempotency_keys", "8");
}

static void test_i5_a_lost_reply_of_the_commit_is_found_out(void **state)
{
    (void)state;
    struct crowd *crowd = crowd_create();
    crowd_queue(crowd);
    rig_lose_reply();
    crowd_release(crowd);
    crowd_join(crowd);
    for (int i = 0; i < MEMBERS; i++) {
        assert_int_equal(crowd->members[i].status, STATUS_OK);
        assert_true(crowd->members[i].replayed);
        assert_true(crowd->members[i].has_effect); /* its publisher is woken */
    }
    rig_expect("SELECT count(*) FROM shop.bought", "6");
}

static void test_one_that_has_queued_for_long_runs_alone(void **state)
{
    (void)state;
    struct crowd *crowd = crowd_create();
    idempotency_groups_destroy(crowd->groups);
    crowd->groups = idempotency_groups_create(RUNNING, 1);
    for (int i = 0; i < CALLS; i++)
        crowd->calls[i].table.groups = crowd->groups;
    assert_int_equal(db_acquire(rig_pool, clock_deadline_ms(PATIENCE_MS), &crowd->conn, NULL), STATUS_OK);
    conn_exec(crowd->conn, "BEGIN");
    conn_exec(crowd->conn, "SELECT pg_advisory_xact_lock(77)");
    for (int i = 0; i < CALLS; i++)
        pthread_create(&crowd->threads[i], NULL, run_in_thread, &crowd->calls[i]);
    await_sql("SELECT count(*) = 6 FROM shop.bought");
    crowd_release(crowd);
    crowd_join(crowd);
}

#define TEST(name) cmocka_unit_test_setup(test_##name, setup)

int run_groups_tests(void)
{
    const struct CMUnitTest tests[] = {
        TEST(those_that_queue_are_committed_together),
        TEST(i5_an_effect_that_fails_harms_no_other),
        TEST(i4_a_refusal_is_answered_and_not_stored),
        TEST(i2_a_known_key_is_replayed_or_a_conflict),
        TEST(i3_a_busy_key_is_refused_and_no_other),
        TEST(an_effect_that_waits_for_a_lock_delays_no_other),
        TEST(i5_a_lost_reply_of_the_commit_is_found_out),
        TEST(one_that_has_queued_for_long_runs_alone),
        TEST(a_tenant_does_not_wait_for_calls_of_another_one),
        TEST(tenants_share_no_transaction),
    };
    return cmocka_run_group_tests_name("groups", tests, NULL, NULL);
}
