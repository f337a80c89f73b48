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
    assert_string_equal(rig_question().subject, "ann");
    assert_int_equal(rig_question().mode, HYDRATION_PARTIAL);
    hear_updated(1);
    assert_int_equal(ann.times, 1);
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    assert_int_equal(ann.way, HYDRATION_BY_ASKING);
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
        char subject[16];
        snprintf(subject, sizeof subject, "u%d", are_different ? i : 0);
        ask(&people[i], subject, rig_full);
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
        assert_int_equal(people[i].way, i == 0 ? HYDRATION_BY_ASKING : HYDRATION_BY_JOINING);
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

static void test_h4_a_late_not_found_does_not_hide_a_fresh_entity(void **state)
{
    (void)state;
    struct person ann = {0};
    struct hydration_event created = answer_of(HYDRATION_EVENT_UPDATED, 1);
    created.correlation_id = STR_NONE;
    hear(created); /* nobody asked yet */
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    uint64_t before = ignored("stale");
    hear_not_found(0);
    assert_int_equal(ann.times, 0);
    assert_int_equal(ignored("stale"), before + 1);
    hear_updated(1);
    assert_int_equal(ann.result, HYDRATION_UPDATED);
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
    assert_string_equal(rig_question().subject, "bob");
    turn_for_ms(1);
    struct hydration_event hidden = answer_of(HYDRATION_EVENT_NOT_FOUND, 5);
    hidden.reason = HYDRATION_INACCESSIBLE;
    hidden.is_private = true;
    hidden.subject = STR("bob");
    hear(hidden);
    assert_int_equal(bob.result, HYDRATION_NOT_FOUND);
    assert_int_equal(bob.reason, HYDRATION_INACCESSIBLE);
    assert_int_equal(ann.times, 0);
    assert_true(turn_until_count(rig_questions, 2));
    assert_string_equal(rig_question().subject, "ann");
    struct hydration_event hers = answer_of(HYDRATION_EVENT_UPDATED, 5);
    hers.is_private = true;
    hers.subject = STR("ann");
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
    script.find.event.subject = STR("ann");
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
    his.subject = STR("bob");
    hear(his);
    his.subject = STR_NONE; /* and nobody said whose */
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
    assert_string_equal(rig_question().subject, "bob");
    hydration_waiter_cancel(&bob.waiter);
}

/* ---- an owner in this process ---- */

static void test_a_local_owner_is_asked_without_the_bus(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    uint64_t duplicate = ignored("duplicate");
    rig_provide();
    ask(&ann, "ann", rig_title);
    assert_true(turn_until_done(&ann)); /* the bus delivers nothing in this rig */
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    assert_int_equal(ann.way, HYDRATION_BY_ASKING);
    assert_string_equal(ann.data, "{\"title\":\"T\"}");
    assert_string_equal(ann.source_module, "intake");
    assert_int_equal(rig_questions(), 0);
    assert_int_equal(rig_answers(), 1); /* for other processes and the ledger */
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
        TEST(test_h2_an_answer_may_arrive_before_the_job_is_done),
        TEST(test_h2_a_cancelled_waiter_is_never_called),
        TEST(test_h2_a_callback_may_cancel_others_and_ask_again),
        TEST(test_h2_a_callback_that_asks_again_is_answered_though_memory_keeps_nothing),
        TEST(test_h4_a_late_not_found_does_not_hide_a_fresh_entity),
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
        TEST(test_a_local_owner_is_asked_without_the_bus),
        TEST(test_an_entity_that_a_local_owner_does_not_have_is_not_found),
        TEST(test_a_type_without_a_local_owner_is_asked_over_the_bus),
        TEST(test_the_retry_of_a_direct_question_goes_over_the_bus),
        TEST(test_many_questions_to_a_local_owner_are_all_answered),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
