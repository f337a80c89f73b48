/* What an answer is to a lookup: how much of the entity it covers, whom it is for, and what it is when it comes early, late or
 * twice. */
#include "base/clock.h"
#include "base/log.h"
#include "lookup_rig.h"

static void test_h4_a_late_not_found_does_not_hide_a_fresh_entity(void **state)
{
    (void)state;
    struct person ann = {0};
    struct hydration_event created = answer_of(HYDRATION_EVENT_UPDATED, 1);
    created.correlation_id = STR_NONE;
    created.has_cover = false; /* not enough for ann */
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    hear(created);
    uint64_t before = ignored("stale");
    hear_not_found(0); /* the owner looked before it was created */
    assert_int_equal(ann.times, 0);
    assert_int_equal(ignored("stale"), before + 1);
    hear_updated(1);
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    assert_true(turn_until_empty());
}

static void test_r14_a_not_found_asked_for_after_the_entity_was_known_is_believed(void **state)
{
    (void)state;
    struct person ann = {0};
    struct hydration_event created = answer_of(HYDRATION_EVENT_UPDATED, 1);
    created.correlation_id = STR_NONE;
    hear(created);
    turn_for_ms(1);
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    hear_not_found(0); /* its owner has lost it */
    assert_int_equal(ann.times, 1);
    assert_int_equal(ann.result, HYDRATION_NOT_FOUND);
    assert_true(turn_until_empty());
}

static void test_r14_a_row_asked_for_after_the_entity_was_known_is_believed(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    struct hydration_event created = answer_of(HYDRATION_EVENT_UPDATED, 7);
    created.correlation_id = STR_NONE;
    hear(created);
    script.find = not_in_ledger;
    script.find.asked_ns = clock_mono_ns() - CLOCK_NS_PER_S; /* another process asked before */
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_finds, 2));
    assert_int_equal(ann.times, 0);
    rig_hold();
    assert_true(turn_until_count(rig_finds, 3)); /* which has not read the script yet */
    script.find.asked_ns = clock_mono_ns();
    rig_let_go();
    ask(&bob, "bob", rig_full);
    assert_true(turn_until_done(&ann) && turn_until_done(&bob));
    assert_int_equal(ann.result, HYDRATION_NOT_FOUND);
    assert_int_equal(bob.result, HYDRATION_NOT_FOUND);
    assert_true(turn_until_empty());
}

static void test_h4_a_ledger_that_lags_is_read_again(void **state)
{
    (void)state;
    struct person ann = {0};
    struct hydration_event created = answer_of(HYDRATION_EVENT_UPDATED, 7);
    created.correlation_id = STR_NONE;
    hear(created);
    script.find = not_in_ledger; /* version 0 */
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_finds, 1));
    rig_hold();
    assert_true(turn_until_count(rig_finds, 2));
    assert_int_equal(ann.times, 0);
    script.find = in_ledger; /* it has written it down */
    rig_let_go();
    assert_true(turn_until_done(&ann));
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    assert_true(turn_until_empty());
}

static void test_h2_a_partial_answer_never_stands_for_a_wider_request(void **state)
{
    (void)state;
    struct person part = {0}, whole = {0};
    ask(&part, "ann", rig_title);
    ask(&whole, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 2));
    turn_for_ms(1);
    struct hydration_event narrow = answer_of(HYDRATION_EVENT_UPDATED, 1);
    narrow.cover = rig_title;
    hear(narrow);
    assert_int_equal(part.times, 1);
    assert_int_equal(whole.times, 0);
    script.find = in_ledger;
    assert_true(turn_until_done(&whole)); /* it claims again, by itself */
    assert_string_equal(whole.data, DATA);
    assert_true(turn_until_empty());
}

static void test_an_answer_without_extent_is_as_wide_as_its_question(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    struct hydration_event plain = answer_of(HYDRATION_EVENT_UPDATED, 1);
    plain.has_cover = false;
    plain.correlation_id = STR("somebody else's");
    hear(plain);
    assert_int_equal(ann.times, 0); /* all of it, or a part? nobody knows */
    plain = answer_of(HYDRATION_EVENT_UPDATED, 2);
    plain.has_cover = false;
    hear(plain);
    assert_int_equal(ann.times, 1);
    ask(&bob, "bob", rig_full);
    assert_int_equal(bob.way, HYDRATION_BY_MEMORY);
    assert_true(turn_until_empty());
}

/* It was heard before anybody here asked: nobody will say it again. */
static void test_h2_an_event_from_before_the_lookup_is_found_in_the_ledger(void **state)
{
    (void)state;
    struct person ann = {0};
    script.find = join_others;
    hear(answer_of(HYDRATION_EVENT_UPDATED, 1));
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_finds, 2)); /* it is not written down yet */
    rig_hold();
    assert_true(turn_until_count(rig_finds, 3));
    script.find = in_ledger;
    rig_let_go();
    assert_true(turn_until_done(&ann));
    assert_string_equal(ann.data, DATA);
    assert_true(turn_until_empty());
}

/* Asked by another process, which alone knows how much it asked for: the ledger does as soon as it has written it down. */
static void test_h2_the_answer_to_a_question_of_another_process_is_found_in_the_ledger(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    script.find = join_others;
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_finds, 1));
    struct hydration_event plain = answer_of(HYDRATION_EVENT_UPDATED, 1);
    plain.has_cover = false;
    plain.correlation_id = STR("somebody else's");
    hear(plain);
    ask(&bob, "bob", rig_full);
    assert_true(turn_until_count(rig_finds, 3)); /* it has not yet */
    rig_hold();
    assert_true(turn_until_count(rig_finds, 4));
    script.find = in_ledger;
    rig_let_go();
    assert_true(turn_until_done(&ann));
    assert_string_equal(ann.data, DATA);
    assert_int_equal(bob.times, 1);
    assert_true(turn_until_empty());
}

static void test_the_extent_of_an_answer_outlives_the_lookup_that_asked(void **state)
{
    (void)state;
    struct person some = {0}, whole = {0}, none = {0};
    rig_policy.max_retries = 0;
    ask(&none, "ann", rig_existence);
    ask(&whole, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 2));
    ask(&some, "ann", rig_title);
    assert_true(turn_until_count(rig_questions, 3));
    turn_for_ms(1);
    struct hydration_event plain = answer_of(HYDRATION_EVENT_UPDATED, 1);
    plain.has_cover = false;
    hear(plain); /* the last one's asking ends before the others are told */
    assert_string_equal(some.data, "{\"title\":\"T\"}");
    assert_string_equal(none.data, "{}");
    assert_int_equal(whole.times, 0);
    hydration_waiter_cancel(&whole.waiter);
    assert_true(turn_until_empty());
}

static void test_answers_without_effect_are_counted(void **state)
{
    (void)state;
    struct person ann = {0};
    uint64_t mismatch = ignored("mismatch"), duplicate = ignored("duplicate"), late = ignored("late");
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    turn_for_ms(1);
    struct hydration_event wrong = answer_of(HYDRATION_EVENT_UPDATED, 1);
    wrong.entity_type = STR("session");
    hear(wrong);
    wrong = answer_of(HYDRATION_EVENT_UPDATED, 1);
    wrong.entity_id = STR("b");
    hear(wrong);
    wrong = answer_of(HYDRATION_EVENT_UPDATED, 1);
    wrong.tenant = STR("other");
    hear(wrong);
    assert_int_equal(ann.times, 0);
    assert_int_equal(ignored("mismatch"), mismatch + 3);
    hear_updated(1);
    hear_updated(1);
    assert_int_equal(ann.times, 1);
    assert_int_equal(ignored("duplicate"), duplicate + 1);
    struct hydration_need other = rig_need("ann", rig_full);
    other.entity_id = STR("b");
    script.find.ttl_ms = 60000;
    rig_policy.max_retries = 0;
    ask_need(&ann, other, false);
    assert_true(turn_until_count(rig_questions, 2));
    turn_for_ms(1);
    hydration_waiter_cancel(&ann.waiter);
    struct hydration_event answer = answer_of(HYDRATION_EVENT_NOT_FOUND, 0);
    answer.entity_id = STR("b");
    assert_true(turn_until_empty());
    hear(answer);
    assert_int_equal(ignored("late"), late + 1);
}

/* ---- whose ---- */

static void test_h4_each_caller_has_a_lookup_of_its_own_once_the_entity_is_private(void **state)
{
    (void)state;
    struct person bob = {0}, ann = {0}, too = {0};
    ask(&bob, "bob", rig_full);
    ask(&ann, "ann", rig_full);
    ask(&too, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    assert_string_equal(rig_question().caller, "bob");
    turn_for_ms(1);
    struct hydration_event hidden = answer_of(HYDRATION_EVENT_NOT_FOUND, 5);
    hidden.reason = HYDRATION_INACCESSIBLE;
    hidden.is_private = true;
    hidden.caller = STR("bob");
    hear(hidden);
    assert_int_equal(bob.result, HYDRATION_NOT_FOUND);
    assert_int_equal(bob.reason, HYDRATION_INACCESSIBLE);
    assert_int_equal(ann.times, 0);
    assert_true(turn_until_count(rig_questions, 2));
    assert_string_equal(rig_question().caller, "ann");
    struct hydration_event hers = answer_of(HYDRATION_EVENT_UPDATED, 5);
    hers.is_private = true;
    hers.caller = STR("ann");
    hear(hers);
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    assert_int_equal(too.result, HYDRATION_UPDATED);
    ask(&bob, "bob", rig_full);
    assert_int_equal(bob.result, HYDRATION_NOT_FOUND); /* for him, from memory */
    assert_true(turn_until_empty());
    assert_int_equal(rig_finds(), 2);
}

/* Issue 11.1: all lookups of an entity hear an answer in turn. The first visit that comes back gives its place free, and its
 * answer leaves the lookup that is in line for that place without waiters. */
static void test_h4_an_answer_that_splits_callers_may_end_a_queued_lookup(void **state)
{
    (void)state;
    static const struct str names[] = {{"a", 1}, {"b", 1}, {"c", 1}};
    struct person people[HYDRATION_JOBS_MAX], last = {0};
    memset(people, 0, sizeof people);
    script.find = in_ledger; /* a private copy, enough for existence alone */
    script.find.event.caller = STR("ann");
    script.find.event.cover = rig_existence;
    script.find.event.data = STR("{}");
    rig_hold();
    ask(&people[0], "ann", rig_existence);
    for (int i = 1; i < HYDRATION_JOBS_MAX; i++)
        ask(&people[i], "ann", (struct hydration_cover){HYDRATION_PARTIAL, &names[i - 1], 1});
    assert_true(turn_until_count(rig_held, HYDRATION_JOBS_MAX));
    ask(&last, "ann", rig_full);
    turn_for_ms(1);
    rig_let_go();
    assert_true(turn_until_done(&people[0]));
    assert_int_equal(people[0].result, HYDRATION_UPDATED);
    assert_true(
        turn_until_count(rig_finds, HYDRATION_JOBS_MAX + 1)); /* they ask again, each for themselves */
    assert_int_equal(last.times, 0);
    hydration_waiter_cancel(&last.waiter);
    for (int i = 1; i < HYDRATION_JOBS_MAX; i++)
        hydration_waiter_cancel(&people[i].waiter);
    assert_true(turn_until_empty());
}

static void test_h4_a_private_answer_reaches_no_other_caller(void **state)
{
    (void)state;
    struct person ann = {0};
    script.find = join_others;
    ask(&ann, "ann", rig_existence);
    assert_true(turn_until_count(rig_finds, 1));
    turn_for_ms(1);
    struct hydration_event his = answer_of(HYDRATION_EVENT_UPDATED, 5);
    his.is_private = true;
    his.caller = STR("bob");
    hear(his);
    his.caller = STR_NONE; /* and nobody said whose */
    his.version = 6;
    hear(his);
    assert_int_equal(ann.times, 0);
    hydration_waiter_cancel(&ann.waiter);
    assert_true(turn_until_empty());
}

static void test_a_private_answer_without_sub_is_for_the_caller_that_asked(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    ask(&ann, "ann", rig_full);
    ask(&bob, "bob", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    turn_for_ms(1);
    struct hydration_event hidden = answer_of(HYDRATION_EVENT_NOT_FOUND, 0);
    hidden.reason = HYDRATION_INACCESSIBLE;
    hidden.is_private = true;
    hear(hidden);
    assert_int_equal(ann.result, HYDRATION_NOT_FOUND);
    assert_int_equal(bob.times, 0);
    assert_true(turn_until_count(rig_questions, 2));
    assert_string_equal(rig_question().caller, "bob");
    hydration_waiter_cancel(&bob.waiter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_h4_a_late_not_found_does_not_hide_a_fresh_entity),
        TEST(test_r14_a_not_found_asked_for_after_the_entity_was_known_is_believed),
        TEST(test_r14_a_row_asked_for_after_the_entity_was_known_is_believed),
        TEST(test_h4_a_ledger_that_lags_is_read_again),
        TEST(test_h2_a_partial_answer_never_stands_for_a_wider_request),
        TEST(test_an_answer_without_extent_is_as_wide_as_its_question),
        TEST(test_h2_an_event_from_before_the_lookup_is_found_in_the_ledger),
        TEST(test_h2_the_answer_to_a_question_of_another_process_is_found_in_the_ledger),
        TEST(test_the_extent_of_an_answer_outlives_the_lookup_that_asked),
        TEST(test_answers_without_effect_are_counted),
        TEST(test_h4_each_caller_has_a_lookup_of_its_own_once_the_entity_is_private),
        TEST(test_h4_an_answer_that_splits_callers_may_end_a_queued_lookup),
        TEST(test_h4_a_private_answer_reaches_no_other_caller),
        TEST(test_a_private_answer_without_sub_is_for_the_caller_that_asked),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
