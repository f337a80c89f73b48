/* An engine at its ordinary work, on each form of table. */
#include <stdio.h>

#include "rig.h"

#define PENDING "SELECT count(*) FROM public.flag_outbox WHERE NOT published AND failed_at IS NULL"

static const struct rig_form *form;
static struct journal journal;
static struct outbox_settings settings;

static int setup(void **state)
{
    (void)state;
    rig_clear();
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

static void assert_in_order(int aggregate, int last)
{
    int expected = 1;
    for (size_t i = 0; i < journal.count; i++)
        if (journal.items[i].aggregate == aggregate)
            assert_int_equal(journal.items[i].number, expected++);
    assert_int_equal(expected, last + 1);
}

/* Polls are an hour apart: whatever comes was woken for. */
static void test_o1_events_are_published_in_order_and_marked(void **state)
{
    (void)state;
    struct station station;
    for (int i = 1; i <= 7; i++)
        rig_insert(form->table, i, 1, 120);
    station_open(&station, &journal, form->table, &settings);
    assert_true(rig_await_live(form, 0));
    station_close(&station);
    assert_int_equal(journal.count, 7 * 120);
    for (int i = 1; i <= 7 && form->table->sequence; i++)
        assert_in_order(i, 120);
    char marked[256];
    snprintf(marked, sizeof marked,
             "@published AND %s IS NOT NULL AND claim_id IS NULL AND @leased IS NULL AND locked_by IS NULL"
             " AND @attempts = 0 AND claim_count = 1",
             form->table->published_at);
    assert_int_equal(rig_count(form, marked), 7 * 120);
}

/* Statistics of a table where all is published say that nothing is live; a plan must not believe them. */
static void test_o1_a_long_tail_goes_in_full_batches_behind_much_that_is_published(void **state)
{
    (void)state;
    struct station station;
    rig_insert(form->table, 1, 1, 2000);
    rig_form_sql(form, form->table->words.column ? "UPDATE @table SET @published"
                                                 : "UPDATE @table SET published = true");
    rig_form_sql(form, "ANALYZE @table");
    rig_insert(form->table, 1, 2001, 2600);
    station_open(&station, &journal, form->table, &settings);
    assert_true(rig_await_live(form, 0));
    station_close(&station);
    assert_int_equal(journal.count, 600);
    for (size_t i = 0; i < journal.count; i++)
        assert_int_equal(journal.items[i].batch_count, settings.batch);
}

static enum outbox_result_kind fail_second(struct journal *own, const struct outbox_event *event,
                                           int aggregate, int number)
{
    (void)own;
    return aggregate == 1 && number == 2 && event->attempts < 3 ? OUTBOX_RETRY : OUTBOX_DONE;
}

static void test_o3_while_an_event_waits_none_behind_it_goes(void **state)
{
    (void)state;
    struct station station;
    static const int expected[] = {1, 2, 2, 2, 2, 3, 4};
    journal.judge = fail_second;
    rig_insert(&rig_flags, 1, 1, 4);
    rig_insert(&rig_flags, 2, 1, 4);
    station_open(&station, &journal, &rig_flags, &settings);
    assert_true(rig_await(0, PENDING));
    station_close(&station);
    size_t at = 0;
    for (size_t i = 0; i < journal.count; i++)
        if (journal.items[i].aggregate == 1)
            assert_int_equal(journal.items[i].number, expected[at++]);
    assert_int_equal(at, sizeof expected / sizeof *expected);
    assert_in_order(2, 4);
    /* Failures count as attempts; being held back counts as nothing. */
    assert_int_equal(rig_sql("SELECT attempt_count * 100 + claim_count FROM public.flag_outbox"
                             " WHERE dict_code = 'D001' AND payload->>'n' = '2'"),
                     304);
    assert_int_equal(rig_sql("SELECT attempt_count * 100 + claim_count FROM public.flag_outbox"
                             " WHERE dict_code = 'D001' AND payload->>'n' = '3'"),
                     1);
}

static enum outbox_result_kind always_fail_first(struct journal *own, const struct outbox_event *event,
                                                 int aggregate, int number)
{
    (void)own, (void)event, (void)aggregate;
    return number == 1 ? OUTBOX_RETRY : OUTBOX_DONE;
}

static void test_o2_the_tenth_failure_is_failed_and_blocks_no_longer(void **state)
{
    (void)state;
    struct station station;
    journal.judge = always_fail_first;
    rig_insert(form->table, 1, 1, 3);
    station_open(&station, &journal, form->table, &settings);
    assert_true(rig_await_live(form, 0));
    station_close(&station);
    assert_int_equal(journal_times(&journal, 1, 1, OUTBOX_RETRY), 10);
    if (form->table->sequence)
        assert_int_equal(journal.items[10].number, 2); /* not one moment earlier */
    assert_int_equal(rig_count(form, "@failed AND @attempts = 10 AND claim_id IS NULL AND @n = 1"), 1);
    if (form->table->last_error)
        assert_int_equal(rig_count(form, "last_error = 'attempt 10 of 1'"), 1);
    assert_int_equal(rig_count(form, "@published"), 2);
}

static void test_o4_a_payload_that_cannot_be_read_fails_at_once(void **state)
{
    (void)state;
    struct station station;
    rig_insert(form->table, 1, 1, 3);
    rig_form_sql(form, "UPDATE @table SET payload = '\"poison\"' WHERE @n = 1");
    station_open(&station, &journal, form->table, &settings);
    assert_true(rig_await_live(form, 0));
    station_close(&station);
    assert_int_equal(journal.count, 3);
    assert_int_equal(rig_count(form, "@failed AND @attempts = 1"), 1);
    assert_int_equal(rig_count(form, "@published"), 2);
}

static void test_o2_a_wake_finds_what_was_committed_here(void **state)
{
    (void)state;
    struct station station;
    rig_insert(form->table, 9, 1, 1);
    station_open(&station, &journal, form->table, &settings);
    assert_true(journal_await(&journal, 1)); /* its first looks are over */
    for (int i = 1; i <= 20; i++) {
        rig_insert(form->table, 1, i, i);
        outbox_wake(station.engine);
        assert_true(journal_await(&journal, (size_t)i + 1));
    }
    station_close(&station);
}

/* A second process writes and rings; the polls of the first are an hour apart. */
static void test_o2_a_notice_of_another_process_wakes_the_engine(void **state)
{
    (void)state;
    struct station station, other;
    struct journal unused;
    journal_init(&unused);
    rig_insert(&rig_flags, 9, 1, 1);
    station_open(&station, &journal, &rig_flags, &settings);
    assert_true(journal_await(&journal, 1));
    station_open(&other, &unused, &rig_words, &settings);
    for (int i = 1; i <= 5; i++) {
        rig_insert(&rig_flags, 1, i, i);
        outbox_notify(&rig_flags, other.notifier);
        assert_true(journal_await(&journal, (size_t)i + 1));
    }
    station_close(&station);
    station_close(&other);
    journal_deinit(&unused);
}

static void test_o2_polling_finds_what_nobody_told_of(void **state)
{
    (void)state;
    struct station station;
    settings.poll_ms = 10;
    station_open(&station, &journal, &rig_flags, &settings);
    rig_insert(&rig_flags, 1, 1, 3);
    assert_true(journal_await(&journal, 3));
    station_close(&station);
}

static void test_o6_retention_takes_old_published_ones_only(void **state)
{
    (void)state;
    struct station station;
    settings.cleanup_ms = 50;
    rig_insert(&rig_flags, 1, 1, 6);
    rig_sql("UPDATE public.flag_outbox SET created_at = now() - interval '9 days', published = true,"
            " published_at = now() - interval '2 hours' WHERE payload->>'n' IN ('1', '2')");
    rig_sql("UPDATE public.flag_outbox SET created_at = now() - interval '9 days', published = true,"
            " published_at = now() - interval '59 minutes' WHERE payload->>'n' = '3'");
    rig_sql("UPDATE public.flag_outbox SET created_at = now() - interval '9 days',"
            " failed_at = now() - interval '8 days' WHERE payload->>'n' = '4'");
    rig_sql("UPDATE public.flag_outbox SET created_at = now() - interval '9 days',"
            " next_attempt_at = now() + interval '1 day' WHERE payload->>'n' = '5'");
    station_open(&station, &journal, &rig_flags, &settings);
    assert_true(rig_await(4, "SELECT count(*) FROM public.flag_outbox"));
    rig_sql(
        "UPDATE public.flag_outbox SET published_at = now() - interval '61 minutes' WHERE payload->>'n' = '3'");
    assert_true(rig_await(3, "SELECT count(*) FROM public.flag_outbox")); /* it comes again */
    station_close(&station);
    assert_int_equal(rig_sql("SELECT sum((payload->>'n')::int) FROM public.flag_outbox"), 4 + 5 + 6);
    assert_int_equal(journal.count, 0); /* 6 stands behind 5, which waits */
}

/* The table's owner sees to it. */
static void test_o6_retention_can_be_somebody_elses(void **state)
{
    (void)state;
    struct station station;
    settings.keep_ms = settings.cleanup_ms = 0;
    rig_insert(&rig_deliveries, 1, 1, 2);
    rig_sql("UPDATE public.delivery SET status = 'SENT', sent_at = now() - interval '9 years'"
            " WHERE delivery_id = (SELECT min(delivery_id::text)::uuid FROM public.delivery)");
    station_open(&station, &journal, &rig_deliveries, &settings);
    assert_true(rig_await(2, "SELECT count(*) FROM public.delivery WHERE status = 'SENT'"));
    station_close(&station);
    assert_int_equal(rig_sql("SELECT count(*) FROM public.delivery"), 2);
}

/* A thousand wait for their backoff, the longest due is first; nobody waits for anybody. */
static void test_n3_a_delivery_waits_for_no_other(void **state)
{
    (void)state;
    struct station station;
    settings.batch = 2;
    rig_insert(&rig_deliveries, 1, 1, 1000);
    rig_form_sql(form, "UPDATE @table SET @retry = now() + interval '1 hour', @attempts = 1");
    rig_insert(&rig_deliveries, 1, 1001, 1003);
    rig_form_sql(form, "UPDATE @table SET @retry = now() - interval '1 hour', @attempts = 1 WHERE @n = 7");
    station_open(&station, &journal, &rig_deliveries, &settings);
    assert_true(rig_await_live(form, 999));
    station_close(&station);
    static const int expected[] = {7, 1001, 1002, 1003};
    assert_int_equal(journal.count, 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(journal.items[i].number, expected[i]);
}

/* The first tenant's have been due longest. */
static void test_c11_tenants_take_turns(void **state)
{
    (void)state;
    struct station station;
    settings.batch = 8;
    rig_insert(&rig_turns, 1, 1, 1000);
    for (int tenant = 2; tenant <= 9; tenant++)
        rig_insert(&rig_turns, tenant, 1, 3);
    rig_sql("UPDATE public.turn_delivery SET created_at = now() - interval '1 hour' WHERE user_id = 'u1'");
    station_open(&station, &journal, &rig_turns, &settings);
    assert_true(rig_await(0, "SELECT count(*) FROM public.turn_delivery WHERE status <> 'SENT'"));
    station_close(&station);
    assert_int_equal(journal.count, 1000 + 8 * 3);
    size_t of_others = 0, last = 0;
    for (size_t i = 0; i < journal.count; i++)
        if (journal.items[i].aggregate != 1) {
            of_others++;
            last = i;
        }
    assert_int_equal(of_others, 8 * 3);
    assert_in_range(last, 8 * 3, 8 * 3 + 40); /* u1's part of the batches until then */
    assert_int_equal(journal.items[0].batch_count, 8);
    assert_int_equal(journal.items[journal.count / 2].batch_count, 8);
}

/* A thousand tenants of which none is due are passed, also before and after the ones that are; so is a suspect, which goes alone. */
static void test_c11_tenants_that_wait_and_suspects_delay_no_other(void **state)
{
    (void)state;
    struct station station;
    settings.batch = 2;
    rig_sql("INSERT INTO public.turn_delivery (user_id, event_type, payload, next_retry_at)"
            " SELECT to_char(n, 'FM0000'), 'sent', '{\"a\": 1, \"n\": 0}', now() + interval '1 hour'"
            " FROM generate_series(1, 2500) n");
    rig_insert(&rig_turns, 1, 1, 20);
    rig_insert(&rig_turns, 2, 1, 20);
    rig_sql("UPDATE public.turn_delivery SET claim_count = 2, created_at = created_at - interval '1 s'"
            " WHERE user_id = 'u1' AND payload = '{\"a\": 1, \"n\": 20}'");
    station_open(&station, &journal, &rig_turns, &settings);
    assert_true(rig_await(2500, "SELECT count(*) FROM public.turn_delivery WHERE status <> 'SENT'"));
    station_close(&station);
    assert_int_equal(journal.count, 40);
    for (size_t i = 0; i < journal.count; i++)
        if (journal.items[i].aggregate == 1 && journal.items[i].number == 20)
            assert_int_equal(journal.items[i].batch_count, 1);
}

/* Four tenants fill a batch: a suspect of one that is never the first of it has its turn too, while the others have rows that are due. */
static void test_c11_a_suspect_has_its_turn_while_batches_are_full(void **state)
{
    (void)state;
    struct station station;
    settings.batch = 8;
    for (int tenant = 1; tenant <= 4; tenant++)
        rig_insert(&rig_turns, tenant, 1, 100);
    rig_sql("UPDATE public.turn_delivery SET claim_count = 2, created_at = created_at - interval '1 hour'"
            " WHERE user_id = 'u3' AND payload = '{\"a\": 3, \"n\": 100}'");
    station_open(&station, &journal, &rig_turns, &settings);
    assert_true(rig_await(0, "SELECT count(*) FROM public.turn_delivery WHERE status <> 'SENT'"));
    station_close(&station);
    size_t at = 0;
    while (journal.items[at].aggregate != 3 || journal.items[at].number != 100)
        at++;
    assert_int_equal(journal.items[at].batch_count, 1);
    assert_in_range(at, 0, 2 * settings.batch);
}

/* The last one of a batch gets what is left of it: the next batch begins with that tenant. */
static void test_c11_no_tenant_is_always_the_last_of_a_batch(void **state)
{
    (void)state;
    struct station station;
    size_t of_last = 0;
    settings.batch = 50;
    for (int tenant = 1; tenant <= 5; tenant++)
        rig_insert(&rig_turns, tenant, 1, 200);
    station_open(&station, &journal, &rig_turns, &settings);
    assert_true(rig_await(0, "SELECT count(*) FROM public.turn_delivery WHERE status <> 'SENT'"));
    station_close(&station);
    assert_int_equal(journal.count, 1000);
    for (size_t i = 0; i < journal.count / 2; i++)
        of_last += journal.items[i].aggregate == 5;
    assert_in_range(of_last, 80, 120);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int run_engine_tests(void)
{
    const struct CMUnitTest each[] = {
        TEST(test_o1_events_are_published_in_order_and_marked),
        TEST(test_o1_a_long_tail_goes_in_full_batches_behind_much_that_is_published),
        TEST(test_o2_the_tenth_failure_is_failed_and_blocks_no_longer),
        TEST(test_o4_a_payload_that_cannot_be_read_fails_at_once),
        TEST(test_o2_a_wake_finds_what_was_committed_here),
    };
    const struct CMUnitTest once[] = {
        TEST(test_o3_while_an_event_waits_none_behind_it_goes),
        TEST(test_o2_a_notice_of_another_process_wakes_the_engine),
        TEST(test_o2_polling_finds_what_nobody_told_of),
        TEST(test_o6_retention_takes_old_published_ones_only),
        TEST(test_o6_retention_can_be_somebody_elses),
        TEST(test_n3_a_delivery_waits_for_no_other),
        TEST(test_c11_tenants_take_turns),
        TEST(test_c11_tenants_that_wait_and_suspects_delay_no_other),
        TEST(test_c11_a_suspect_has_its_turn_while_batches_are_full),
        TEST(test_c11_no_tenant_is_always_the_last_of_a_batch),
    };
    int failed = 0;
    for (form = rig_forms; form < rig_forms + RIG_FORMS; form++)
        failed += cmocka_run_group_tests_name(form->name, each, NULL, NULL);
    form = &rig_forms[2];
    return failed + cmocka_run_group_tests_name("engine", once, NULL, NULL);
}
