/* Leases that run out, workers that die, connections that are cut; on each form of table. */
#include <stdatomic.h>
#include <time.h>

#include "rig.h"

static const struct rig_form *form;
static atomic_int stallers;
static struct journal journal;
static struct outbox_settings settings;

static int setup(void **state)
{
    (void)state;
    rig_clear();
    stallers = 0;
    journal_init(&journal);
    settings = rig_settings();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    journal_deinit(&journal);
    return 0;
}

/* The first to come tells so (step 1), waits until the test says 2, and fails. */
static enum outbox_result_kind stall_then_fail(struct journal *own, const struct outbox_event *event,
                                               int aggregate, int number)
{
    (void)event, (void)aggregate, (void)number;
    if (atomic_fetch_add(&stallers, 1) > 0)
        return OUTBOX_DONE;
    journal_step(own, 1);
    journal_await_step(own, 2);
    return OUTBOX_RETRY;
}

static void test_o1_a_claim_whose_lease_ran_out_settles_nothing(void **state)
{
    (void)state;
    struct station slow, quick;
    journal.judge = stall_then_fail;
    settings.poll_ms = 10;
    rig_insert(form->table, 1, 1, 1);
    station_open(&slow, &journal, form->table, &settings);
    assert_true(journal_await_step(&journal, 1));
    rig_form_sql(form, "UPDATE @table SET @leased = now() - interval '1 second'");
    station_open(&quick, &journal, form->table, &settings);
    assert_true(rig_await_live(form, 0));
    journal_step(&journal, 2);
    station_close(&slow); /* its result went out */
    station_close(&quick);
    assert_int_equal(journal.count, 2);
    assert_int_equal(rig_count(form, "@published AND @attempts = 0 AND claim_count = 2"), 1);
    if (form->table->last_error)
        assert_int_equal(rig_count(form, "last_error IS NULL"), 1);
}

static void test_o1_a_living_lease_keeps_others_away_from_the_aggregate(void **state)
{
    (void)state;
    struct station station;
    rig_insert(form->table, 1, 1, 5);
    rig_insert(form->table, 2, 1, 5);
    rig_form_sql(form, "UPDATE @table SET @leased = now() + interval '1 hour', claim_id = gen_random_uuid(),"
                       " claim_count = 1 WHERE @a = 1 AND @n = 1");
    settings.poll_ms = 10;
    station_open(&station, &journal, form->table, &settings);
    assert_true(rig_await_live(form, 5));
    assert_int_equal(journal.count, 5);
    rig_form_sql(form, "UPDATE @table SET @leased = now() WHERE @leased IS NOT NULL");
    assert_true(rig_await_live(form, 0));
    station_close(&station);
    for (size_t i = 5; i < 10; i++)
        assert_int_equal(journal.items[i].number, i - 4);
}

static enum outbox_result_kind leave_at_first(struct journal *own, const struct outbox_event *event,
                                              int aggregate, int number)
{
    (void)event, (void)aggregate, (void)number;
    pthread_mutex_lock(&own->lock);
    bool down = own->step++ < 3;
    pthread_mutex_unlock(&own->lock);
    return down ? OUTBOX_RELEASE : OUTBOX_DONE;
}

static void test_o2_what_was_left_was_not_claimed(void **state)
{
    (void)state;
    struct station station;
    journal.judge = leave_at_first;
    rig_insert(form->table, 1, 1, 3);
    station_open(&station, &journal, form->table, &settings);
    assert_true(rig_await_live(form, 0));
    station_close(&station);
    assert_int_equal(journal_times(&journal, 1, 1, OUTBOX_RELEASE), 3);
    assert_int_equal(rig_count(form, "@published AND @attempts = 0 AND claim_count = 1"), 3);
}

/* Three times away, then a failure of its own, then done. */
static enum outbox_result_kind away_then_fail(struct journal *own, const struct outbox_event *event,
                                              int aggregate, int number)
{
    (void)aggregate, (void)number;
    pthread_mutex_lock(&own->lock);
    int step = own->step++;
    pthread_mutex_unlock(&own->lock);
    if (step < 3)
        return OUTBOX_OUTAGE;
    return event->attempts == 0 ? OUTBOX_RETRY : OUTBOX_DONE;
}

/* The second failure would be the last: those of the outage do not count towards it. */
static void test_o1_an_outage_is_shown_and_fails_no_event(void **state)
{
    (void)state;
    struct station station;
    bool counts = form->table->outages != NULL;
    journal.judge = away_then_fail;
    settings.attempts_max = 2;
    rig_insert(form->table, 1, 1, 1);
    station_open(&station, &journal, form->table, &settings);
    assert_true(rig_await_live(form, 0));
    station_close(&station);
    assert_int_equal(journal_times(&journal, 1, 1, OUTBOX_OUTAGE), 3);
    assert_int_equal(journal_times(&journal, 1, 1, OUTBOX_RETRY), 1);
    assert_int_equal(rig_count(form, counts ? "@published AND @attempts = 4 AND claim_count = 5"
                                            : "@published AND @attempts = 1 AND claim_count = 2"),
                     1);
}

/* A worker that dies with its batch leaves claims behind. Two lost ones make a suspect, which goes alone. */
static void test_o1_an_event_that_kills_its_worker_ends_failed(void **state)
{
    (void)state;
    struct station station;
    rig_insert(form->table, 1, 1, 4);
    rig_insert(form->table, 2, 1, 4);
    rig_form_sql(form, "UPDATE @table SET @leased = now() - interval '1 s', claim_id = gen_random_uuid(),"
                       " claim_count = CASE @n WHEN 1 THEN 10 WHEN 2 THEN 2 ELSE 1 END WHERE @a = 1");
    station_open(&station, &journal, form->table, &settings);
    assert_true(rig_await_live(form, 0));
    station_close(&station);
    assert_int_equal(rig_count(form, "@failed AND @a = 1 AND @n = 1"), 1);
    if (form->table->last_error)
        assert_int_equal(rig_count(form, "last_error LIKE 'claimed 10 times%'"), 1);
    assert_int_equal(journal.count, 7); /* the publisher never saw it */
    for (size_t i = 0; i < journal.count; i++)
        if (journal.items[i].aggregate == 1 && journal.items[i].number == 2)
            assert_int_equal(journal.items[i].batch_count, 1);
}

static enum outbox_result_kind wait_for_renewals(struct journal *own, const struct outbox_event *event,
                                                 int aggregate, int number)
{
    (void)own, (void)event, (void)aggregate, (void)number;
    static const char ends[] = "SELECT (extract(epoch FROM max(@leased)) * 1000)::bigint FROM @table";
    int64_t until = rig_form_sql(form, ends);
    for (int i = 0; i < 3; i++) {
        int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS), now;
        while ((now = rig_form_sql(form, ends)) <= until && clock_mono_ns() < deadline_ns)
            ;
        until = now;
    }
    return OUTBOX_DONE;
}

static void test_o1_a_long_batch_renews_its_lease(void **state)
{
    (void)state;
    struct station station, other;
    journal.judge = wait_for_renewals;
    settings.lease_ms = 3000;
    rig_insert(form->table, 1, 1, 1);
    station_open(&station, &journal, form->table, &settings);
    settings.poll_ms = 10;
    station_open(&other, &journal, form->table, &settings); /* would take it */
    assert_true(rig_await_live(form, 0));
    station_close(&station);
    station_close(&other);
    assert_int_equal(journal.count, 1);
    assert_int_equal(rig_form_sql(form, "SELECT claim_count FROM @table"), 1);
}

static void test_c7_a_stopped_engine_leaves_no_lease(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        struct station station;
        rig_insert(form->table, round, 1, 500);
        station_open(&station, &journal, form->table, &settings);
        pthread_mutex_lock(&journal.lock);
        size_t before = journal.count;
        pthread_mutex_unlock(&journal.lock);
        assert_true(journal_await(&journal, before + 1));
        station_close(&station);
        assert_int_equal(rig_count(form, "claim_id IS NOT NULL OR @leased IS NOT NULL OR claim_count > 1"),
                         0);
    }
    assert_int_equal(rig_count(form, "@published"), journal.count);
}

/* The answer to a claim is lost with the connection: given back at once, not when the lease ends (an hour
 * here). */
static void test_o1_cut_connections_lose_nothing(void **state)
{
    (void)state;
    struct station stations[2];
    settings.lease_ms = 3600000;
    settings.poll_ms = 20;
    for (int i = 0; i < 20; i++)
        rig_insert(form->table, i, 1, 100);
    for (int i = 0; i < 2; i++)
        station_open(&stations[i], &journal, form->table, &settings);
    for (int i = 0; i < 30; i++)
        rig_sql("SELECT count(pg_terminate_backend(pid)), pg_sleep(0.01) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'");
    assert_true(rig_await_live(form, 0));
    for (int i = 0; i < 2; i++)
        station_close(&stations[i]);
    assert_int_equal(rig_count(form, "@published"), 2000);
}

/* A new connection cannot vouch for what was published before; where everything is settled, nothing needs that. */
static void test_o2_a_new_connection_delays_no_claim(void **state)
{
    (void)state;
    struct station station;
    int64_t best_ns = INT64_MAX;
    journal.is_relaxed = true;
    station_open(&station, &journal, form->table, &settings);
    for (int i = 0; i < 10; i++) {
        rig_insert(form->table, 1, 2 * i, 2 * i);
        outbox_wake(station.engine);
        assert_true(rig_await_live(form, 0));
        rig_sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'");
        nanosleep(&(struct timespec){.tv_nsec = 20 * CLOCK_NS_PER_MS}, NULL);
        rig_insert(form->table, 1, 2 * i + 1, 2 * i + 1);
        int64_t begun_ns = clock_mono_ns();
        outbox_wake(station.engine);
        while (journal_times(&journal, 1, 2 * i + 1, OUTBOX_DONE) == 0 &&
               clock_ms_left(begun_ns + PATIENCE_MS * CLOCK_NS_PER_MS) > 0)
            nanosleep(&(struct timespec){.tv_nsec = CLOCK_NS_PER_MS}, NULL);
        int64_t took_ns = clock_mono_ns() - begun_ns;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    assert_true(rig_await_live(form, 0));
    station_close(&station);
    assert_in_range(best_ns, 0, 80 * CLOCK_NS_PER_MS); /* waiting for an older connection takes 90 */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int run_fault_tests(void)
{
    const struct CMUnitTest each[] = {
        TEST(test_o1_a_claim_whose_lease_ran_out_settles_nothing),
        TEST(test_o1_an_event_that_kills_its_worker_ends_failed),
        TEST(test_c7_a_stopped_engine_leaves_no_lease),
        TEST(test_o1_cut_connections_lose_nothing),
    };
    const struct CMUnitTest ordered[] = {
        TEST(test_o1_a_living_lease_keeps_others_away_from_the_aggregate),
        TEST(test_o2_what_was_left_was_not_claimed),
        TEST(test_o1_an_outage_is_shown_and_fails_no_event),
    };
    const struct CMUnitTest once[] = {
        TEST(test_o2_a_new_connection_delays_no_claim),
        TEST(test_o1_a_long_batch_renews_its_lease), /* takes its time */
    };
    int failed = 0;
    for (form = rig_forms; form < rig_forms + RIG_FORMS; form++) {
        failed += cmocka_run_group_tests_name(form->name, each, NULL, NULL);
        if (form->table->sequence)
            failed += cmocka_run_group_tests_name(form->name, ordered, NULL, NULL);
    }
    form = &rig_forms[2];
    return failed + cmocka_run_group_tests_name("faults", once, NULL, NULL);
}
