/* Lookups (H2, H4): each waiter is completed once, whatever happens in whatever order, and nothing is left. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "lookup_rig.h"

/* ---- answers ---- */

static void test_h2_unknown_then_updated(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    ask(&ann, "ann", rig_title);
    assert_true(turn_until_count(rig_questions, 1));
    assert_string_equal(rig_question().caller, "ann");
    assert_int_equal(rig_question().mode, HYDRATION_PARTIAL);
    hear_updated(1);
    assert_int_equal(ann.times, 1);
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    assert_int_equal(ann.way, HYDRATION_BY_QUESTION);
    assert_string_equal(ann.data, "{\"title\":\"T\"}");
    assert_string_equal(ann.source_module, "intake");
    assert_true(turn_until_empty());
    ask(&bob, "bob", rig_existence);
    assert_int_equal(bob.result, HYDRATION_UPDATED);
    assert_int_equal(bob.way, HYDRATION_BY_MEMORY);
    assert_string_equal(bob.data, "{}");
    assert_int_equal(rig_finds(), 1);
}

static void test_h4_unknown_then_not_found_then_negative_hit(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    hear_not_found(0);
    assert_int_equal(ann.result, HYDRATION_NOT_FOUND);
    assert_false(ann.is_negative_hit);
    ask(&bob, "bob", rig_full);
    assert_int_equal(bob.times, 1);
    assert_int_equal(bob.result, HYDRATION_NOT_FOUND);
    assert_true(bob.is_negative_hit);
    assert_true(turn_until_empty());
    assert_int_equal(rig_finds(), 1);
}

static void check_hit(struct hydration_cover cover, enum hydration_result result)
{
    struct person ann = {0};
    ask(&ann, "ann", cover); /* series and buffers are there from now on */
    unsigned before = rig_allocations();
    ask(&ann, "ann", cover);
    assert_int_equal(rig_allocations(), before);
    assert_int_equal(ann.result, result);
    assert_int_equal(ann.way, HYDRATION_BY_MEMORY);
}

static void test_h4_a_hit_allocates_nothing_and_asks_nobody(void **state)
{
    (void)state;
    struct person ann = {0};
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    assert_true(rig_allocations() > 0);
    hear_not_found(0);
    check_hit(rig_full, HYDRATION_NOT_FOUND);
    hear_updated(1);
    check_hit(rig_full, HYDRATION_UPDATED);
    check_hit(rig_title, HYDRATION_UPDATED);
    check_hit(rig_existence, HYDRATION_UPDATED);
    assert_true(turn_until_empty());
    assert_int_equal(rig_finds(), 1);
}

static void test_h2_a_copy_in_the_ledger_needs_no_question(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    script.find = in_ledger;
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_done(&ann));
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    assert_int_equal(ann.way, HYDRATION_BY_LEDGER);
    assert_string_equal(ann.data, DATA);
    ask(&bob, "bob", rig_full);
    assert_int_equal(bob.way, HYDRATION_BY_MEMORY);
    assert_true(turn_until_empty());
    assert_int_equal(rig_questions(), 0);
}

static void test_h4_the_ledgers_absence_is_a_negative_hit(void **state)
{
    (void)state;
    struct person ann = {0};
    script.find = not_in_ledger;
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_done(&ann));
    assert_int_equal(ann.result, HYDRATION_NOT_FOUND);
    assert_true(ann.is_negative_hit);
    assert_int_equal(rig_questions(), 0);
}

/* ---- many ---- */

enum { MANY = 10000 };

static void ask_many(struct person *people, bool are_different)
{
    for (int i = 0; i < MANY; i++) {
        char caller[16];
        snprintf(caller, sizeof caller, "u%d", are_different ? i : 0);
        ask(&people[i], caller, rig_full);
    }
}

static void check_many(bool are_different)
{
    struct person *people = calloc(MANY, sizeof *people);
    ask_many(people, are_different);
    assert_int_equal(rig_shard->waiter_count, MANY);
    assert_int_equal(rig_shard->lookups.count, 1);
    assert_true(turn_until_count(rig_questions, 1));
    hear_not_found(0);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(people[i].times, 1);
        assert_int_equal(people[i].result, HYDRATION_NOT_FOUND);
        assert_int_equal(people[i].way, i == 0 ? HYDRATION_BY_QUESTION : HYDRATION_BY_JOINING);
    }
    assert_true(turn_until_empty());
    assert_int_equal(rig_finds(), 1);
    assert_int_equal(rig_questions(), 1);
    free(people);
}

static void test_h2_ten_thousand_of_one_caller_are_one_ledger_read(void **state)
{
    (void)state;
    check_many(false);
}

static void test_h2_ten_thousand_callers_are_one_ledger_read(void **state)
{
    (void)state;
    check_many(true);
}

static void test_too_many_entities_at_once_are_refused(void **state)
{
    (void)state;
    static const char *const tenants[] = {"acme", "beta", "gamma", "delta", "omega"};
    struct person *people = calloc(HYDRATION_LOOKUPS_MAX + 1, sizeof *people);
    script.find = join_others;
    rig_hold();
    for (int i = 0; i <= HYDRATION_LOOKUPS_MAX; i++) {
        char id[16];
        struct hydration_need need = rig_need("ann", rig_full);
        need.tenant = str_from(tenants[i / HYDRATION_TYPE_MAX]);
        snprintf(id, sizeof id, "%d", i);
        need.entity_id = str_from(id);
        ask_need(&people[i], need, false);
    }
    assert_int_equal(people[HYDRATION_LOOKUPS_MAX].times, 1);
    assert_int_equal(people[HYDRATION_LOOKUPS_MAX].result, HYDRATION_UNAVAILABLE);
    assert_int_equal(people[0].times, 0);
    assert_true(turn_until_count(rig_held, HYDRATION_JOBS_MAX));
    turn_for_ms(5);
    assert_int_equal(rig_finds(), HYDRATION_JOBS_MAX); /* the others are in line, and hold no worker */
    for (int i = 0; i < HYDRATION_LOOKUPS_MAX; i++)
        hydration_waiter_cancel(&people[i].waiter);
    assert_int_equal(rig_shard->waiter_count, 0);
    rig_let_go();
    assert_true(turn_until_empty());
    assert_int_equal(rig_finds(), HYDRATION_JOBS_MAX); /* nobody was there any more */
    free(people);
}

/* ---- orders ---- */

/* Issue 11.13: one tenant has a part of the askings, and its line does not stand before another tenant's asking. */
static void test_a_greedy_tenant_leaves_places_and_turns_to_others(void **state)
{
    (void)state;
    struct person *people = calloc(HYDRATION_TYPE_MAX + 1, sizeof *people), bob = {0};
    struct hydration_need need = rig_need("ann", rig_full);
    char id[16];
    script.find = not_in_ledger;
    rig_hold();
    for (int i = 0; i <= HYDRATION_TYPE_MAX; i++) {
        snprintf(id, sizeof id, "%d", i);
        need.entity_id = str_from(id);
        ask_need(&people[i], need, false);
    }
    assert_int_equal(people[HYDRATION_TYPE_MAX].result, HYDRATION_UNAVAILABLE);
    assert_int_equal(people[HYDRATION_TYPE_MAX].times, 1);
    assert_true(turn_until_count(rig_held, HYDRATION_JOBS_MAX));
    need.tenant = STR("modest");
    ask_need(&bob, need, false);
    turn_for_ms(1);
    rig_let_go();
    assert_true(turn_until_done(&bob));
    assert_int_equal(bob.result, HYDRATION_NOT_FOUND);
    unsigned answered = 0;
    for (int i = 0; i < HYDRATION_TYPE_MAX; i++)
        answered += people[i].times;
    assert_true(answered < HYDRATION_TYPE_MAX / 2);
    assert_true(turn_until_empty());
    free(people);
}

/* The same where it asks for as many types as it likes, which need not exist. */
static void test_a_greedy_tenant_of_many_types_leaves_places_and_turns_to_others(void **state)
{
    (void)state;
    struct person *people = calloc(HYDRATION_LOOKUPS_MAX, sizeof *people), bob = {0};
    struct hydration_need need = rig_need("ann", rig_full);
    char type[16];
    script.find = not_in_ledger;
    rig_hold();
    for (int i = 0; i < HYDRATION_LOOKUPS_MAX; i++) {
        snprintf(type, sizeof type, "type-%d", i);
        need.entity_type = str_from(type);
        ask_need(&people[i], need, false);
    }
    assert_true(turn_until_count(rig_held, HYDRATION_JOBS_MAX));
    need.tenant = STR("modest");
    ask_need(&bob, need, false);
    turn_for_ms(1);
    assert_int_equal(bob.times, 0);
    rig_let_go();
    assert_true(turn_until_done(&bob));
    assert_int_equal(bob.result, HYDRATION_NOT_FOUND);
    unsigned found = 0;
    for (int i = 0; i < HYDRATION_LOOKUPS_MAX; i++)
        found += people[i].times && people[i].result == HYDRATION_NOT_FOUND;
    assert_true(found < HYDRATION_TYPE_MAX / 2);
    assert_true(turn_until_empty());
    free(people);
}

/* Its jobs wait for connections that its other work has: the last place of the loop is for another tenant. */
static void test_blocked_jobs_of_one_tenant_leave_a_place_to_another(void **state)
{
    (void)state;
    struct person people[2 * HYDRATION_JOBS_MAX], bob = {0};
    char ids[2 * HYDRATION_JOBS_MAX][8];
    struct hydration_need need = rig_need("ann", rig_full);
    memset(people, 0, sizeof people);
    script.find = not_in_ledger;
    rig_hold_tenant("acme");
    for (int i = 0; i < 2 * HYDRATION_JOBS_MAX; i++) {
        snprintf(ids[i], sizeof ids[i], "%d", i);
        need.entity_id = str_from(ids[i]);
        ask_need(&people[i], need, false);
    }
    assert_true(turn_until_count(rig_held, HYDRATION_JOBS_MAX));
    need.tenant = STR("modest");
    for (int i = 0; i < 3; i++) {
        need.entity_id = str_from(ids[i]);
        ask_need(&bob, need, false);
        assert_true(turn_until_done(&bob));
        assert_int_equal(bob.result, HYDRATION_NOT_FOUND);
    }
    assert_int_equal(rig_held(), HYDRATION_JOBS_MAX);
    assert_int_equal(rig_finds(), HYDRATION_JOBS_MAX + 3);
    rig_let_go();
    for (int i = 0; i < 2 * HYDRATION_JOBS_MAX; i++)
        assert_true(turn_until_done(&people[i]));
    assert_true(turn_until_empty());
}

static void test_h2_an_answer_may_arrive_before_the_job_is_done(void **state)
{
    (void)state;
    struct person ann = {0};
    rig_hold();
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_held, 1));
    struct hydration_event change = answer_of(HYDRATION_EVENT_UPDATED, 3);
    change.correlation_id = STR_NONE;
    hear(change);
    assert_int_equal(ann.times, 1);
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    assert_int_equal(rig_shard->waiter_count, 0);
    rig_let_go();
    assert_true(turn_until_empty());
    assert_int_equal(ann.times, 1);
}

static void test_h2_a_cancelled_waiter_is_never_called(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    script.find = join_others;
    ask(&ann, "ann", rig_full);
    hydration_waiter_cancel(&ann.waiter); /* before its claim */
    hydration_waiter_cancel(&ann.waiter);
    assert_true(turn_until_empty());
    rig_hold();
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_held, 1));
    hydration_waiter_cancel(&ann.waiter); /* while the claim runs */
    rig_let_go();
    assert_true(turn_until_empty());
    ask(&ann, "ann", rig_full);
    ask(&bob, "bob", rig_full);
    assert_true(turn_until_count(rig_finds, 2));
    turn_for_ms(1);
    hydration_waiter_cancel(&ann.waiter); /* while it waits */
    hear_updated(1);
    assert_int_equal(ann.times, 0);
    assert_int_equal(bob.times, 1);
    hydration_waiter_cancel(&bob.waiter); /* harmless */
    assert_true(turn_until_empty());
}

static void test_h2_a_callback_may_cancel_others_and_ask_again(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0}, eve = {0}, next = {0};
    ann.cancels = &bob;
    ann.asks = &next;
    ask(&ann, "ann", rig_full);
    ask(&bob, "bob", rig_full);
    ask(&eve, "eve", rig_existence); /* an asking of its own */
    assert_true(turn_until_count(rig_questions, 2));
    hear_updated(1);
    assert_int_equal(ann.times, 1);
    assert_int_equal(bob.times, 0);
    assert_int_equal(eve.times, 1);
    assert_int_equal(next.times, 1);
    assert_string_equal(next.data, "{\"title\":\"T\"}");
    assert_true(turn_until_empty());
}

static void test_h2_a_callback_that_asks_again_is_answered_though_memory_keeps_nothing(void **state)
{
    (void)state;
    struct person ann = {0}, next = {0};
    static char data[300 * 1024]; /* more than this memory cares for */
    snprintf(data, sizeof data, "{\"title\":\"%0290000d\"}", 0);
    script.find = in_ledger;
    script.find.event.data = str_from(data);
    ann.asks = &next;
    ask(&ann, "ann", rig_title);
    assert_true(turn_until_done(&ann));
    assert_int_equal(next.times, 0);
    assert_true(turn_until_done(&next));
    assert_int_equal(next.result, HYDRATION_UPDATED);
    assert_true(turn_until_empty());
    assert_int_equal(rig_finds(), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_h2_unknown_then_updated),
        TEST(test_h4_unknown_then_not_found_then_negative_hit),
        TEST(test_h4_a_hit_allocates_nothing_and_asks_nobody),
        TEST(test_h2_a_copy_in_the_ledger_needs_no_question),
        TEST(test_h4_the_ledgers_absence_is_a_negative_hit),
        TEST(test_h2_ten_thousand_of_one_caller_are_one_ledger_read),
        TEST(test_h2_ten_thousand_callers_are_one_ledger_read),
        TEST(test_too_many_entities_at_once_are_refused),
        TEST(test_a_greedy_tenant_leaves_places_and_turns_to_others),
        TEST(test_a_greedy_tenant_of_many_types_leaves_places_and_turns_to_others),
        TEST(test_blocked_jobs_of_one_tenant_leave_a_place_to_another),
        TEST(test_h2_an_answer_may_arrive_before_the_job_is_done),
        TEST(test_h2_a_cancelled_waiter_is_never_called),
        TEST(test_h2_a_callback_may_cancel_others_and_ask_again),
        TEST(test_h2_a_callback_that_asks_again_is_answered_though_memory_keeps_nothing),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
