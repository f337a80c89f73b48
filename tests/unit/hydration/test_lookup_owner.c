/* Lookups of entities whose owner runs in this process. */
#include <stdio.h>

#include "base/log.h"
#include "lookup_rig.h"

static void test_a_local_owner_is_asked_without_the_bus(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    uint64_t duplicate = ignored("duplicate");
    rig_provide();
    ask(&ann, "ann", rig_title);
    assert_true(turn_until_done(&ann)); /* the bus delivers nothing in this rig */
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    assert_int_equal(ann.way, HYDRATION_BY_QUESTION);
    assert_string_equal(ann.data, "{\"title\":\"T\"}");
    assert_string_equal(ann.source_module, "intake");
    assert_int_equal(rig_questions(), 0);
    assert_true(turn_until_count(rig_answers, 1)); /* for other processes and the ledger */
    assert_int_equal(rig_owner_looks(), 1);
    ask(&bob, "bob", rig_existence);
    assert_int_equal(bob.way, HYDRATION_BY_MEMORY);
    hear_updated(3); /* the bus's copy of the answer */
    assert_int_equal(ignored("duplicate"), duplicate);
    hear_updated(3);
    assert_int_equal(ignored("duplicate"), duplicate + 1);
    assert_true(turn_until_empty());
}

static void test_an_entity_that_a_local_owner_does_not_have_is_not_found(void **state)
{
    (void)state;
    struct person ann = {0};
    struct hydration_need need = rig_need("ann", rig_full);
    rig_provide();
    need.entity_id = STR("b");
    ask_need(&ann, need, false);
    assert_true(turn_until_done(&ann));
    assert_int_equal(ann.result, HYDRATION_NOT_FOUND);
    assert_false(ann.is_negative_hit);
    assert_int_equal(rig_questions(), 0);
    assert_true(turn_until_empty());
}

static void test_a_type_without_a_local_owner_is_asked_over_the_bus(void **state)
{
    (void)state;
    struct person ann = {0};
    struct hydration_need need = rig_need("ann", rig_full);
    rig_provide();
    need.entity_type = STR("session");
    ask_need(&ann, need, false);
    assert_true(turn_until_count(rig_questions, 1));
    assert_int_equal(rig_owner_looks(), 0);
    hydration_waiter_cancel(&ann.waiter);
}

/* Another process that runs the owner may answer the retry. */
static void test_the_retry_of_a_direct_question_goes_over_the_bus(void **state)
{
    (void)state;
    struct person ann = {0};
    rig_provide();
    script.owner_fails = true;
    script.grants = true;
    rig_policy.retry_backoff_ms = 5;
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    assert_int_equal(rig_retries(), 1);
    assert_int_equal(rig_owner_looks(), 1);
    assert_int_equal(ann.times, 0);
    hear_updated(1);
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    assert_true(turn_until_empty());
}

/* Only an answer of the same version is the bus's copy of the direct one. */
static void test_the_answer_to_a_retry_counts_after_an_older_direct_answer(void **state)
{
    (void)state;
    struct person ann = {0};
    struct hydration_need need = rig_need("ann", rig_full);
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    struct hydration_event direct = answer_of(HYDRATION_EVENT_UPDATED, 1);
    hydration_deliver(rig_shard, &direct, true);
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    hear_updated(2);
    assert_int_equal(hydration_memory_find(&rig_shard->memory, &need, loop_now_ns(rig_loop)).outcome.version,
                     2);
    assert_true(turn_until_empty());
}

static void test_many_questions_to_a_local_owner_are_all_answered(void **state)
{
    (void)state;
    struct person people[20];
    struct hydration_need need = rig_need("ann", rig_full);
    char ids[20][8];
    memset(people, 0, sizeof people);
    rig_provide();
    rig_policy.max_retries = 0;
    for (int i = 0; i < 20; i++) {
        snprintf(ids[i], sizeof ids[i], "x%d", i);
        need.entity_id = str_from(ids[i]);
        ask_need(&people[i], need, false);
    }
    for (int i = 0; i < 20; i++)
        assert_true(turn_until_done(&people[i]));
    assert_int_equal(rig_questions(), 0);
    assert_true(turn_until_empty());
}

/* The owner hangs for one tenant: the last place is for another one. */
static void test_blocked_looks_of_one_tenant_leave_a_place_to_another(void **state)
{
    (void)state;
    struct person people[4 * HYDRATION_PARALLEL], bob = {0};
    char ids[4 * HYDRATION_PARALLEL][8];
    struct hydration_need need = rig_need("ann", rig_full);
    memset(people, 0, sizeof people);
    rig_provide();
    rig_policy.max_retries = 0;
    rig_hold_owner("acme");
    for (int i = 0; i < 4 * HYDRATION_PARALLEL; i++) {
        snprintf(ids[i], sizeof ids[i], "x%d", i);
        need.entity_id = str_from(ids[i]);
        ask_need(&people[i], need, false);
    }
    assert_true(turn_until_count(rig_held, HYDRATION_PARALLEL));
    need.tenant = STR("modest");
    for (int i = 0; i < 3; i++) {
        need.entity_id = str_from(ids[i]);
        ask_need(&bob, need, false);
        assert_true(turn_until_done(&bob));
        assert_int_equal(bob.result, HYDRATION_NOT_FOUND);
    }
    assert_int_equal(rig_held(), HYDRATION_PARALLEL);
    assert_int_equal(rig_owner_looks(), HYDRATION_PARALLEL + 3);
    rig_let_go();
    for (int i = 0; i < 4 * HYDRATION_PARALLEL; i++)
        assert_true(turn_until_done(&people[i]));
    assert_true(turn_until_empty());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_local_owner_is_asked_without_the_bus),
        TEST(test_an_entity_that_a_local_owner_does_not_have_is_not_found),
        TEST(test_a_type_without_a_local_owner_is_asked_over_the_bus),
        TEST(test_the_retry_of_a_direct_question_goes_over_the_bus),
        TEST(test_the_answer_to_a_retry_counts_after_an_older_direct_answer),
        TEST(test_many_questions_to_a_local_owner_are_all_answered),
        TEST(test_blocked_looks_of_one_tenant_leave_a_place_to_another),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
