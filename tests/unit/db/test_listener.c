/* Listener and notifier on one loop: notices arrive, are coalesced, and survive a lost connection. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "server_tests.h"

struct heard {
    int listening, notices;
    char last_channel[64], last_payload[64];
    int payloads[256];           /* how often the payload with this number came */
    struct db_listener *destroy; /* on the next notice, from inside the callback */
};

static void on_notice(void *context, struct str channel, struct str payload)
{
    struct heard *heard = context;
    heard->notices++;
    snprintf(heard->last_channel, sizeof heard->last_channel, "%.*s", STR_ARG(channel));
    snprintf(heard->last_payload, sizeof heard->last_payload, "%.*s", STR_ARG(payload));
    heard->payloads[(unsigned)atoi(heard->last_payload) % 256]++;
    if (heard->destroy)
        db_listener_destroy(heard->destroy);
    heard->destroy = NULL;
}

static void on_listening(void *context)
{
    ((struct heard *)context)->listening++;
}

static struct db_listener *listen_at(struct loop *loop, const struct db_target *target, struct heard *heard)
{
    struct db_listener_config config = {.loop = loop,
                                        .target = target,
                                        .channels = {"freshet_one", "freshet_Two"},
                                        .on_notice = on_notice,
                                        .on_listening = on_listening,
                                        .context = heard};
    struct db_listener *listener = db_listener_create(&config);
    assert_non_null(listener);
    return listener;
}

static struct db_listener *listen_on(struct loop *loop, struct heard *heard)
{
    struct db_target target = pg_fixture_target();
    return listen_at(loop, &target, heard);
}

static void run_until(struct loop *loop, const int *value, int wanted)
{
    int64_t limit = clock_deadline_ms(PATIENCE_MS);
    while (*value < wanted && clock_mono_ns() < limit)
        loop_run_once(loop, 100);
    assert_true(*value >= wanted);
}

static void run_for(struct loop *loop, int64_t ms)
{
    int64_t limit = clock_deadline_ms(ms);
    while (clock_mono_ns() < limit)
        loop_run_once(loop, 10);
}

static void test_notices_arrive(void **state)
{
    (void)state;
    struct loop *loop = loop_create(0, 0);
    struct heard heard = {0};
    struct db_listener *listener = listen_on(loop, &heard);
    run_until(loop, &heard.listening, 1);
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn = test_acquire(pool);
    test_sql(conn, "SELECT pg_notify('freshet_one', 'hello')");
    run_until(loop, &heard.notices, 1);
    assert_string_equal(heard.last_channel, "freshet_one");
    assert_string_equal(heard.last_payload, "hello");
    test_sql(conn, "SELECT pg_notify('freshet_Two', ''), pg_notify('freshet_other', '')");
    run_until(loop, &heard.notices, 2);
    assert_string_equal(heard.last_channel, "freshet_Two");
    db_release(conn);
    db_pool_destroy(pool);
    db_listener_destroy(listener);
    loop_destroy(loop);
}

/* Two listeners and two notifiers of one server: one connection each. One that is added later LISTENs too, and one that ends
 * leaves the other in peace. */
static void test_listeners_of_one_server_share_a_connection(void **state)
{
    (void)state;
    struct loop *loop = loop_create(0, 0);
    struct db_server *servers = NULL;
    struct heard first = {0}, second = {0};
    struct db_target target = pg_fixture_target();
    target.server = db_server_find(&servers, &target);
    assert_ptr_equal(target.server, db_server_find(&servers, &target));
    struct db_listener *one = listen_at(loop, &target, &first);
    run_until(loop, &first.listening, 1);
    struct db_listener_config config = {.loop = loop,
                                        .target = &target,
                                        .channels = {"freshet_other", "freshet_one"},
                                        .on_notice = on_notice,
                                        .on_listening = on_listening,
                                        .context = &second};
    struct db_listener *two = db_listener_create(&config);
    run_until(loop, &second.listening, 1);
    assert_int_equal(first.listening, 1);
    struct db_notifier *notifier = db_notifier_create(loop, &target, 1000);
    assert_ptr_equal(notifier, db_notifier_create(loop, &target, 200));
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn = test_acquire(pool);
    db_notify(notifier, STR("freshet_one"), STR("1"));
    run_until(loop, &first.payloads[1], 1);
    run_until(loop, &second.payloads[1], 1);
    assert_string_equal(
        test_sql(conn, "SELECT count(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend'"
                       " AND pid <> pg_backend_pid()"),
        "2");
    test_sql(conn,
             "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'");
    run_until(loop, &first.listening, 2);
    run_until(loop, &second.listening, 2);
    first.destroy = one; /* by its own callback */
    db_notifier_destroy(notifier);
    db_notify(notifier, STR("freshet_one"), STR("2"));
    run_until(loop, &second.payloads[2], 1);
    assert_int_equal(first.payloads[2], 1);
    db_notify(notifier, STR("freshet_other"), STR("3"));
    run_until(loop, &second.payloads[3], 1);
    db_release(conn);
    db_pool_destroy(pool);
    db_notifier_destroy(notifier);
    db_listener_destroy(two);
    loop_destroy(loop);
    db_servers_destroy(servers);
}

struct adding {
    struct loop *loop;
    struct db_target target;
    struct heard heard;
    struct db_listener *added;
};

static void add_a_listener(void *context)
{
    struct adding *adding = context;
    if (!adding->added)
        adding->added = listen_at(adding->loop, &adding->target, &adding->heard);
}

/* It reports that it listens once the server has answered, so that what was sent before is looked for. */
static void test_a_listener_that_a_callback_adds_listens_by_its_own_answer(void **state)
{
    (void)state;
    struct db_server *servers = NULL;
    struct adding adding = {.loop = loop_create(0, 0), .target = pg_fixture_target()};
    adding.target.server = db_server_find(&servers, &adding.target);
    struct db_listener *first =
        db_listener_create(&(struct db_listener_config){.loop = adding.loop,
                                                        .target = &adding.target,
                                                        .channels = {"freshet_first"},
                                                        .on_notice = on_notice,
                                                        .on_listening = add_a_listener,
                                                        .context = &adding});
    struct heard second_heard = {0};
    struct db_listener *second = listen_at(adding.loop, &adding.target, &second_heard);
    int64_t limit = clock_deadline_ms(PATIENCE_MS);
    while (!adding.added && clock_mono_ns() < limit)
        loop_run_once(adding.loop, 100);
    assert_non_null(adding.added);
    assert_int_equal(adding.heard.listening, 0);
    run_until(adding.loop, &adding.heard.listening, 1);
    run_for(adding.loop, 50);
    assert_int_equal(adding.heard.listening, 1);
    assert_int_equal(second_heard.listening, 1);
    db_listener_destroy(adding.added);
    db_listener_destroy(second);
    db_listener_destroy(first);
    loop_destroy(adding.loop);
    db_servers_destroy(servers);
}

static void test_the_listener_comes_back_after_its_backend_was_ended(void **state)
{
    (void)state;
    struct loop *loop = loop_create(0, 0);
    struct heard heard = {0};
    struct db_listener *listener = listen_on(loop, &heard);
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn = test_acquire(pool);
    for (int round = 1; round <= 3; round++) {
        run_until(loop, &heard.listening, round);
        test_sql(conn, "SELECT pg_notify('freshet_one', 'again')");
        run_until(loop, &heard.notices, round);
        test_sql(conn,
                 "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'");
    }
    db_release(conn);
    db_pool_destroy(pool);
    db_listener_destroy(listener);
    loop_destroy(loop);
}

static void test_a_listener_may_end_itself(void **state)
{
    (void)state;
    struct loop *loop = loop_create(0, 0);
    struct heard heard = {0};
    heard.destroy = listen_on(loop, &heard);
    run_until(loop, &heard.listening, 1);
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn = test_acquire(pool);
    test_sql(conn, "SELECT pg_notify('freshet_one', n::text) FROM generate_series(1, 5) n");
    run_until(loop, &heard.notices, 1);
    run_for(loop, 20);
    assert_int_equal(heard.notices, 1);
    db_release(conn);
    db_pool_destroy(pool);
    loop_destroy(loop);
}

static void test_the_same_notice_waiting_is_sent_once(void **state)
{
    (void)state;
    struct loop *loop = loop_create(0, 0);
    struct heard heard = {0};
    struct db_target target = pg_fixture_target();
    struct db_listener *listener = listen_on(loop, &heard);
    run_until(loop, &heard.listening, 1);
    struct db_notifier *notifier = db_notifier_create(loop, &target, 1000);
    /* nothing is sent before the loop runs: these all wait together */
    for (int i = 0; i < 1000; i++)
        db_notify(notifier, STR("freshet_one"), i % 2 ? STR("1") : STR("2"));
    db_notify(notifier, STR("freshet_one"), STR("3 \"quoted\\\" {,}"));
    run_until(loop, &heard.payloads[3], 1);
    assert_string_equal(heard.last_payload, "3 \"quoted\\\" {,}");
    assert_int_equal(heard.payloads[1], 1);
    assert_int_equal(heard.payloads[2], 1);
    assert_int_equal(heard.notices, 3);
    /* and it is free to be sent again */
    db_notify(notifier, STR("freshet_one"), STR("1"));
    run_until(loop, &heard.payloads[1], 2);
    db_notifier_destroy(notifier);
    db_listener_destroy(listener);
    loop_destroy(loop);
}

static void test_payloads_that_cannot_be_sent_become_empty(void **state)
{
    (void)state;
    struct loop *loop = loop_create(0, 0);
    struct heard heard = {0};
    struct db_target target = pg_fixture_target();
    static char big[9000];
    memset(big, '7', sizeof big);
    struct db_listener *listener = listen_on(loop, &heard);
    run_until(loop, &heard.listening, 1);
    struct db_notifier *notifier = db_notifier_create(loop, &target, 1000);
    db_notify(notifier, STR("freshet_one"), str_of(big, sizeof big));
    db_notify(notifier, STR("freshet_one"), STR("bad \xff"));
    db_notify(notifier, STR("freshet_one"), str_of("1\0", 2));
    db_notify(notifier, STR("freshet_one"), STR("5"));
    run_until(loop, &heard.payloads[5], 1);
    assert_int_equal(heard.notices, 2); /* "" once, and "5" */
    for (int i = 0; i < 11000; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", 1000 + i);
        db_notify(notifier, STR("freshet_one"), str_from(text));
    }
    run_until(loop, &heard.notices, 2 + 10001); /* 10,000 and one "" for all the others */
    run_for(loop, 20);
    assert_int_equal(heard.notices, 2 + 10001);
    assert_string_equal(heard.last_payload, "");
    db_notifier_destroy(notifier);
    db_listener_destroy(listener);
    loop_destroy(loop);
}

static void test_notices_survive_the_notifiers_connection(void **state)
{
    (void)state;
    struct loop *loop = loop_create(0, 0);
    struct heard heard = {0};
    struct db_target target = pg_fixture_target();
    struct db_listener *listener = listen_on(loop, &heard);
    struct db_notifier *notifier = db_notifier_create(loop, &target, 1000);
    run_until(loop, &heard.listening, 1);
    struct db_pool *pool = test_pool(1);
    struct db_conn *conn = test_acquire(pool);
    for (int round = 1; round <= 3; round++) {
        db_notify(notifier, STR("freshet_one"), STR("9"));
        run_until(loop, &heard.payloads[9], round);
        test_sql(conn, "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
                       " WHERE pid <> pg_backend_pid()"
                       " AND backend_type = 'client backend' AND query NOT LIKE 'LISTEN%'");
    }
    db_release(conn);
    db_pool_destroy(pool);
    db_notifier_destroy(notifier);
    db_listener_destroy(listener);
    loop_destroy(loop);
}

static void *run_loop(void *loop)
{
    loop_run(loop);
    return NULL;
}

static void *notify_much(void *notifier)
{
    for (int i = 0; i < 2000; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i % 50);
        db_notify(notifier, STR("freshet_one"), str_from(text));
    }
    return NULL;
}

static void test_many_threads_notify(void **state)
{
    (void)state;
    struct loop *loop = loop_create(0, 0), *own = loop_create(1, 0);
    struct heard heard = {0};
    struct db_target target = pg_fixture_target();
    struct db_listener *listener = listen_on(own, &heard);
    run_until(own, &heard.listening, 1);
    struct db_notifier *notifier = db_notifier_create(loop, &target, 1000);
    pthread_t loop_thread, threads[4];
    pthread_create(&loop_thread, NULL, run_loop, loop);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, notify_much, notifier);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 50; i++)
        run_until(own, &heard.payloads[i], 1);
    db_notify(notifier, STR("freshet_one"), STR("last")); /* its message may still be in the inbox below */
    loop_stop(loop);
    pthread_join(loop_thread, NULL);
    db_notifier_destroy(notifier);
    db_listener_destroy(listener);
    loop_destroy(loop);
    loop_destroy(own);
}

static void test_a_link_to_nowhere_keeps_trying_and_can_be_ended(void **state)
{
    (void)state;
    static const char *const urls[] = {"postgresql://127.0.0.1:1/db", "postgresql://no-such-host.invalid/db",
                                       "postgresql://localhost:1,127.0.0.1:1/db"};
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        struct loop *loop = loop_create(0, 0);
        struct db_target target = pg_fixture_target();
        target.url = str_from(urls[i]);
        struct db_notifier *notifier = db_notifier_create(loop, &target, 1000);
        db_notify(notifier, STR("freshet_one"), STR("1"));
        run_for(loop, 150);
        db_notifier_destroy(notifier);
        loop_destroy(loop);
    }
    struct db_target wrong = pg_fixture_target();
    wrong.url = STR("nonsense");
    assert_null(db_notifier_create(NULL, &wrong, 1000));
}

int run_listener_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_notices_arrive),
        cmocka_unit_test(test_listeners_of_one_server_share_a_connection),
        cmocka_unit_test(test_a_listener_that_a_callback_adds_listens_by_its_own_answer),
        cmocka_unit_test(test_the_listener_comes_back_after_its_backend_was_ended),
        cmocka_unit_test(test_a_listener_may_end_itself),
        cmocka_unit_test(test_the_same_notice_waiting_is_sent_once),
        cmocka_unit_test(test_payloads_that_cannot_be_sent_become_empty),
        cmocka_unit_test(test_notices_survive_the_notifiers_connection),
        cmocka_unit_test(test_many_threads_notify),
        cmocka_unit_test(test_a_link_to_nowhere_keeps_trying_and_can_be_ended),
    };
    return cmocka_run_group_tests_name("listener", tests, NULL, NULL);
}
