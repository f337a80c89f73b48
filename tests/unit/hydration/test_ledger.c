/* The ledger: which lookup asks, how much an answer covers, and the negative cache (H3, H4). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ledger_rig.h"

/* ---- collapse (H3, H4) ---- */

static void test_the_first_asks_and_all_others_join(void **state)
{
    (void)state;
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    expect_of("u", EXISTENCE, "", "c2", "join");
    expect_of("v", EXISTENCE, "", "c3", "join");
    const struct hydration_finding joined = find("w", EXISTENCE, "", "c4");
    assert_in_range(joined.ttl_ms, 1, 600000);
    windows_end();
    expect_of("v", EXISTENCE, "", "c5", "ask existence");
    expect_of("u", EXISTENCE, "", "c6", "join");
}

static void test_tenants_share_nothing(void **state)
{
    (void)state;
    const struct hydration_policy policy = policy_of();
    struct hydration_need other = need_of("a", "u", EXISTENCE, "");
    other.tenant = STR("t2");
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    store(not_found(0, "c1"));
    expect_of("u", EXISTENCE, "", "c2", "absent");
    struct hydration_finding got = find_by(&other, &policy, "c3", &arena);
    assert_string_equal(finding_text(&got), "ask existence");
    other = need_of("a", "u", EXISTENCE, "");
    other.entity_type = STR("entitlement");
    got = find_by(&other, &policy, "c4", &arena);
    assert_string_equal(finding_text(&got), "ask existence");
}

static void test_a_read_without_correlation_id_begins_no_flight(void **state)
{
    (void)state;
    expect_known("u", FULL, "", "join");
    assert_string_equal(sql("select count(*) from hydration.flights"), "0");
    expect_of("u", FULL, "", "c1", "ask full");
}

static pthread_barrier_t barrier;

static void *find_at_once(void *arg)
{
    const struct hydration_policy policy = policy_of();
    unsigned *asked = arg;
    struct arena own = ARENA(1024);
    for (int round = 0; round < 20; round++) {
        char id[24];
        snprintf(id, sizeof id, "k%d", round);
        const struct hydration_need need = need_of(id, "u", round % 2 ? EXISTENCE : FULL, "");
        pthread_barrier_wait(&barrier);
        *asked += find_by(&need, &policy, id, &own).kind == HYDRATION_LEDGER_ASK;
    }
    arena_deinit(&own);
    return NULL;
}

static void test_of_concurrent_lookups_one_asks(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    unsigned asked[THREADS] = {0}, sum = 0;
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int again = 0; again < 2; again++) { /* the second time the rows are there */
        for (int i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, find_at_once, &asked[i]);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        windows_end();
    }
    for (int i = 0; i < THREADS; i++)
        sum += asked[i];
    assert_int_equal(sum, 2 * 20);
    pthread_barrier_destroy(&barrier);
}

static void test_one_retry_in_a_window_by_the_lookup_that_asked(void **state)
{
    (void)state;
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    expect_of("v", EXISTENCE, "", "c2", "join");
    assert_false(retry("v", "c2"));
    assert_true(retry("u", "c1"));
    assert_false(retry("u", "c1"));
    windows_end();
    assert_false(retry("u", "c1"));
    expect_of("u", EXISTENCE, "", "c3", "ask existence");
    assert_false(retry("u", "c1"));
    assert_true(retry("u", "c3"));
}

static void test_no_retry_after_an_answer(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    store(updated(1, "{}", "c1"));
    assert_false(retry("u", "c1"));
}

static void test_a_wider_need_asks_for_the_whole_entity_once(void **state)
{
    (void)state;
    expect_of("u", PARTIAL, "a,b", "c1", "ask partial a,b");
    expect_of("u", PARTIAL, "b", "c2", "join");
    expect_of("u", EXISTENCE, "", "c3", "join");
    expect_of("u", PARTIAL, "b,c", "c4", "ask full");
    expect_of("u", FULL, "", "c5", "join");
    expect_of("u", PARTIAL, "z", "c6", "join");
    assert_false(retry("u", "c1")); /* 1 + max_retries were asked */
    store(updated(1, "{\"a\":1,\"b\":2}", "c1"));
    expect_known("u", PARTIAL, "a,b", "copy {\"a\":1,\"b\":2}");
    expect_of("u", FULL, "", "c7", "join"); /* the narrow answer did not end the wide question */
    store(updated(1, "{\"a\":1,\"b\":2,\"c\":3}", "c4"));
    expect_known("u", FULL, "", "copy {\"a\":1,\"b\":2,\"c\":3}");
}

static void test_a_third_need_waits_and_gets_the_stale_copy(void **state)
{
    (void)state;
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    store(updated(1, "{}", "c1"));
    expect_of("u", PARTIAL, "a", "c2", "ask full");
    store(covering(updated(1, "{\"a\":1}", "c2"), HYDRATION_PARTIAL, (const struct str[]){STR("a")}, 1));
    struct hydration_finding got = find("u", FULL, "", "c3"); /* 2 were asked in this window */
    assert_string_equal(finding_text(&got), "join");
    assert_string_equal(got.event.data.ptr, "{\"a\":1}");
}

/* ---- how much an answer is ---- */

static void test_an_answer_without_cover_has_that_of_its_question(void **state)
{
    (void)state;
    const struct str fields[] = {STR("a"), STR("b")};
    expect_of("u", PARTIAL, "a,b", "c1", "ask partial a,b");
    store(updated(1, "{\"a\":1}", "c1")); /* it has no b: that is known too */
    expect_known("u", PARTIAL, "b", "copy {\"a\":1}");
    expect_known("u", FULL, "", "join");
    store(covering(updated(2, "{\"a\":1,\"b\":1,\"x\":1}", "c1"), HYDRATION_PARTIAL, fields, 2));
    expect_known("u", PARTIAL, "x", "join");
    store(covering(updated(3, "{}", ""), HYDRATION_FULL, NULL, 0));
    expect_known("u", FULL, "", "copy {}");
}

static void test_a_change_without_cover_covers_its_members(void **state)
{
    (void)state;
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    store(updated(1, "{\"b\":{\"x\":1},\"a\":[1.50],\"\\u0041\":1}", ""));
    expect_known("u", EXISTENCE, "", "copy {\"b\":{\"x\":1},\"a\":[1.50],\"\\u0041\":1}");
    expect_known("u", PARTIAL, "A,a,b", "copy {\"b\":{\"x\":1},\"a\":[1.50],\"\\u0041\":1}");
    expect_known("u", PARTIAL, "a,x", "join");
    expect_known("u", FULL, "", "join");
}

static void test_copies_of_one_version_are_merged_and_a_newer_one_replaces_them(void **state)
{
    (void)state;
    const struct str a[] = {STR("a"), STR("m")}, b[] = {STR("b"), STR("m")};
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    store(covering(updated(5, "{\"a\":1.50,\"m\":1}", ""), HYDRATION_PARTIAL, a, 2));
    store(covering(updated(5, "{\"b\":2,\"m\":1}", ""), HYDRATION_PARTIAL, b, 2));
    expect_known("u", PARTIAL, "a,b,m", "copy {\"a\":1.50,\"b\":2,\"m\":1}");
    store(covering(updated(5, "{}", ""), HYDRATION_EXISTENCE, NULL, 0));
    expect_known("u", PARTIAL, "a,b,m", "copy {\"a\":1.50,\"b\":2,\"m\":1}");
    store(covering(updated(5, "{\"all\":1}", ""), HYDRATION_FULL, NULL, 0));
    store(covering(updated(5, "{\"a\":1.50,\"m\":1}", ""), HYDRATION_PARTIAL, a, 2));
    expect_known("u", FULL, "", "copy {\"all\":1}");
    store(covering(updated(6, "{\"a\":2}", ""), HYDRATION_PARTIAL, a, 1));
    expect_known("u", FULL, "", "join");
    expect_known("u", PARTIAL, "a", "copy {\"a\":2}");
    store(covering(updated(4, "{\"old\":1}", ""), HYDRATION_FULL, NULL, 0));
    expect_known("u", FULL, "", "join");
}

static void test_names_that_postgresql_cannot_hold_are_ignored(void **state)
{
    (void)state;
    const struct str a[] = {STR("a")}, b[] = {STR("b")};
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    store(updated(5, "{\"\\u0000\":1,\"a\":\"\\u0000\"}", ""));
    expect_known("u", PARTIAL, "a", "copy {\"\\u0000\":1,\"a\":\"\\u0000\"}");
    store(covering(updated(5, "{\"b\":2}", ""), HYDRATION_PARTIAL, b, 1));
    expect_known("u", PARTIAL, "b", "copy {\"b\":2}");
    store(covering(updated(5, "{\"a\":\"{,\\\"'\\\\\"}", ""), HYDRATION_PARTIAL, a, 1));
    expect_known("u", PARTIAL, "a,b", "copy {\"a\":\"{,\\\"'\\\\\",\"b\":2}");
}

static void test_merged_copies_are_no_larger_than_an_event(void **state)
{
    (void)state;
    const struct str a[] = {STR("a")}, b[] = {STR("b")};
    const size_t bytes = 600 * 1024;
    char *of_a = malloc(bytes + 16), *of_b = malloc(bytes + 16);
    memset(of_a, 'x', bytes + 16);
    memcpy(of_a, "{\"a\":\"", 6);
    memcpy(of_a + bytes, "\"}", 3);
    memcpy(of_b, of_a, bytes + 16);
    of_b[2] = 'b';
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    store(covering(updated(5, of_a, ""), HYDRATION_PARTIAL, a, 1));
    store(covering(updated(5, of_b, ""), HYDRATION_PARTIAL, b, 1));
    assert_string_equal(sql("select octet_length(data) || fields::text from hydration.copies"), "614402{b}");
    free(of_a);
    free(of_b);
}

static void test_changes_of_entities_without_lookups_are_not_copied(void **state)
{
    (void)state;
    store(updated(1, "{\"a\":1}", ""));
    store(not_found(2, ""));
    assert_string_equal(sql("select count(*) from hydration.copies"), "0");
    assert_string_equal(sql("select count(*) from hydration.absences"), "0");
    expect_of("u", FULL, "", "c1", "ask full");
    store(updated(3, "{\"a\":1}", "c1"));
    windows_end();
    store(covering(updated(4, "{\"a\":2}", ""), HYDRATION_FULL, NULL,
                   0)); /* a copy is kept up without asking */
    expect_known("u", FULL, "", "copy {\"a\":2}");
    store(not_found(5, ""));
    expect_of("u", FULL, "", "c2", "ask full");
    assert_string_equal(sql("select count(*) from hydration.absences"), "0");
}

static void test_an_expired_copy_is_asked_for_again_and_returned_as_stale(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    store(updated(7, "{\"a\":1}", "c1"));
    windows_end();
    copies_expire();
    const struct hydration_finding got = find("u", FULL, "", "c2");
    assert_string_equal(finding_text(&got), "ask full");
    assert_string_equal(got.event.data.ptr, "{\"a\":1}");
    assert_int_equal(got.event.version, 7);
    store(covering(updated(7, "{\"a\":1}", ""), HYDRATION_FULL, NULL, 0)); /* told of: it is good again */
    expect_known("u", FULL, "", "copy {\"a\":1}");
    windows_end();
    copies_expire();
    sql("update hydration.flights set heard_at = heard_at - interval '2 min'"); /* nothing comes that late */
    expect_of("u", FULL, "", "c3", "ask full");
    store(not_found(0, "c3")); /* its owner forgot it: what is old does not stand against that */
    expect_known("u", FULL, "", "absent");
}

/* ---- the negative cache ---- */

static void test_an_absence_serves_every_caller_until_it_expires(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    store(not_found(0, "c1"));
    const struct hydration_finding got = find("v", PARTIAL, "a", "c2");
    assert_string_equal(finding_text(&got), "absent");
    assert_in_range(got.ttl_ms, 1, 300000);
    assert_int_equal(got.event.caller.len, 0);
    windows_end();
    expect_of("u", FULL, "", "c3", "absent");
    absences_expire();
    expect_of("u", FULL, "", "c4", "ask full");
}

/* Scenario 5 of the seed where the negative cache is shorter than the window; and still at most 1 + max_retries. */
static void test_an_absence_that_expired_within_a_window_is_asked_for_again(void **state)
{
    (void)state;
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    store(not_found(0, "c1"));
    absences_expire();
    expect_of("u", EXISTENCE, "", "c2", "ask existence");
    expect_of("u", EXISTENCE, "", "c3", "join");
    store(not_found(0, "c2"));
    sql("update hydration.absences set until = now()");
    expect_of("u", EXISTENCE, "", "c4", "absent");
    windows_end();
    expect_of("u", EXISTENCE, "", "c5", "ask existence");
}

static void test_updated_clears_an_absence(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    store(not_found(3, "c1"));
    store(updated(2, "{\"old\":1}", ""));
    expect_known("u", FULL, "", "absent");
    store(covering(updated(3, "{\"a\":1}", ""), HYDRATION_FULL, NULL, 0)); /* at the same version it wins */
    expect_known("u", FULL, "", "copy {\"a\":1}");
}

static void test_an_older_not_found_hides_nothing(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    store(updated(1, "{\"a\":1}", "c1"));
    store(not_found(0, "c1"));
    store(not_found(1, ""));
    expect_known("u", FULL, "", "copy {\"a\":1}");
    sql("delete from hydration.copies"); /* as if there had been no room: the flight still knows */
    store(not_found(0, "c1"));
    assert_string_equal(sql("select count(*) from hydration.absences"), "0");
    store(not_found(2, ""));
    expect_known("u", FULL, "", "absent");
}

static void test_a_not_found_of_an_earlier_window_hides_nothing(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    windows_end();
    store(updated(1, "{}", "")); /* nobody asks: nothing is copied */
    sql("delete from hydration.flights");
    expect_of("u", FULL, "", "c2", "ask full");
    store(not_found(0, "c1"));
    expect_known("u", FULL, "", "join");
    assert_true(retry("u", "c2"));
    store(updated(1, "{}", "c2"));
    expect_known("u", FULL, "", "copy {}");
}

static void test_without_versions_a_current_copy_counts_more_than_not_found(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    store(updated(0, "{\"a\":1}", "c1"));
    store(not_found(0, "c1"));
    expect_known("u", FULL, "", "copy {\"a\":1}");
    store(covering(updated(0, "{\"a\":2}", ""), HYDRATION_FULL, NULL, 0));
    expect_known("u", FULL, "", "copy {\"a\":2}");
    store(covering(updated(0, "{}", ""), HYDRATION_EXISTENCE, NULL, 0));
    expect_known("u", FULL, "", "copy {\"a\":2}");
}

/* A failover may lose what was published (R14): the owner's answer to a later question is newer, whatever its version. */
static void test_an_answer_to_a_question_after_everything_known_is_believed(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    store(updated(9, "{\"a\":1}", "c1"));
    store(not_found(0, "c1")); /* late */
    store(not_found(8, ""));
    expect_known("v", FULL, "", "copy {\"a\":1}");
    copies_expire();
    sql("update hydration.flights set window_until = begun_at");
    expect_of("u", FULL, "", "c2", "ask full");
    store(not_found(0, "c1")); /* still late */
    expect_known("u", FULL, "", "join");
    store(not_found(0, "c2"));
    expect_known("u", FULL, "", "absent");
    expect_known("v", FULL, "", "absent");
    const struct hydration_finding absent = find("u", FULL, "", "");
    assert_true(absent.asked_ns > 0 && absent.asked_ns < clock_mono_ns());
    store(updated(3, "{\"a\":3}", "")); /* versions count on from there */
    expect_of("u", FULL, "", "c3", "ask full");
    store(updated(3, "{\"a\":3}", "c3"));
    expect_known("u", FULL, "", "copy {\"a\":3}");
}

/* The entity was created while the clock was set back: the question before it is still the earlier one. */
static void test_a_clock_that_was_set_back_makes_no_answer_newer(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    sql("update hydration.flights set begun_at = begun_at + interval '1 h', window_until = window_until + interval '1 h'");
    store(covering(updated(1, "{\"a\":1}", ""), HYDRATION_FULL, NULL, 0));
    store(not_found(0, "c1"));
    expect_known("u", FULL, "", "copy {\"a\":1}");
}

/* Whatever the order, an entity that is there is not hidden (H4). */
static void test_all_orders_of_updated_not_found_and_lookup(void **state)
{
    (void)state;
    static const char *const orders[] = {"cun", "cnu", "ucn", "unc", "ncu", "nuc"};
    static const char *const ends[] = {"copy {}", "copy {}", "join", "join", "copy {}", "join"};
    for (size_t i = 0; i < 6; i++) {
        sql("truncate hydration.copies, hydration.absences, hydration.flights");
        for (const char *step = orders[i]; *step; step++) {
            if (*step == 'c')
                expect_of("u", FULL, "", "c1", "ask full");
            else
                store(*step == 'u' ? covering(updated(1, "{}", ""), HYDRATION_FULL, NULL, 0)
                                   : not_found(0, "earlier"));
        }
        expect_of("u", FULL, "", "", ends[i]);
        assert_string_equal(sql("select count(*) from hydration.absences"), "0");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_the_first_asks_and_all_others_join),
        TEST(test_tenants_share_nothing),
        TEST(test_a_read_without_correlation_id_begins_no_flight),
        TEST(test_of_concurrent_lookups_one_asks),
        TEST(test_one_retry_in_a_window_by_the_lookup_that_asked),
        TEST(test_no_retry_after_an_answer),
        TEST(test_a_wider_need_asks_for_the_whole_entity_once),
        TEST(test_a_third_need_waits_and_gets_the_stale_copy),
        TEST(test_an_answer_without_cover_has_that_of_its_question),
        TEST(test_a_change_without_cover_covers_its_members),
        TEST(test_copies_of_one_version_are_merged_and_a_newer_one_replaces_them),
        TEST(test_names_that_postgresql_cannot_hold_are_ignored),
        TEST(test_merged_copies_are_no_larger_than_an_event),
        TEST(test_changes_of_entities_without_lookups_are_not_copied),
        TEST(test_an_expired_copy_is_asked_for_again_and_returned_as_stale),
        TEST(test_an_absence_serves_every_caller_until_it_expires),
        TEST(test_an_absence_that_expired_within_a_window_is_asked_for_again),
        TEST(test_updated_clears_an_absence),
        TEST(test_an_older_not_found_hides_nothing),
        TEST(test_a_not_found_of_an_earlier_window_hides_nothing),
        TEST(test_without_versions_a_current_copy_counts_more_than_not_found),
        TEST(test_an_answer_to_a_question_after_everything_known_is_believed),
        TEST(test_a_clock_that_was_set_back_makes_no_answer_newer),
        TEST(test_all_orders_of_updated_not_found_and_lookup),
    };
    if (ledger_rig_start(NULL) != 0)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    failed += _cmocka_run_group_tests("tables", ledger_table_tests, ledger_table_test_count, NULL, NULL);
    ledger_rig_stop(NULL);
    return failed;
}
