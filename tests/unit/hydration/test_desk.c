/* Waiting (H2, H3, H5): who asks is answered once, whatever happens in whatever order, and nothing stays behind. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "desk_rig.h"

static const struct hydration_claim in_ledger = {.verdict = HYDRATION_LEDGER_COPY,
                                                 .data = {DATA, sizeof DATA - 1},
                                                 .source_module = {"intake", 6},
                                                 .cover = {.mode = HYDRATION_FULL},
                                                 .version = 7,
                                                 .ttl_ms = 300000},
                                    not_in_ledger = {.verdict = HYDRATION_LEDGER_ABSENT, .ttl_ms = 300000},
                                    join_others = {.verdict = HYDRATION_LEDGER_JOIN, .ttl_ms = 60000};

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
    assert_int_equal(rig_claims(), 1);
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
    assert_int_equal(rig_claims(), 1);
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
    assert_int_equal(rig_claims(), 1);
}

static void test_h2_what_the_ledger_knows_is_asked_of_nobody(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    script.claim = in_ledger;
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
    script.claim = not_in_ledger;
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
    assert_int_equal(hydration_desk_waiters(rig_desk), MANY);
    assert_int_equal(hydration_desk_askings(rig_desk), 1);
    assert_true(turn_until_count(rig_questions, 1));
    hear_not_found(0);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(people[i].times, 1);
        assert_int_equal(people[i].result, HYDRATION_NOT_FOUND);
        assert_int_equal(people[i].way, i == 0 ? HYDRATION_BY_ASKING : HYDRATION_BY_JOINING);
    }
    assert_true(turn_until_empty());
    assert_int_equal(rig_claims(), 1);
    assert_int_equal(rig_questions(), 1);
    free(people);
}

static void test_h2_ten_thousand_of_one_caller_are_one_claim(void **state)
{
    (void)state;
    check_many(false);
}

static void test_h2_ten_thousand_callers_are_one_claim(void **state)
{
    (void)state;
    check_many(true);
}

static void test_too_many_entities_at_once_are_refused(void **state)
{
    (void)state;
    static const char *const tenants[] = {"acme", "beta", "gamma", "delta", "omega"};
    struct person *people = calloc(HYDRATION_ASKINGS_MAX + 1, sizeof *people);
    script.claim = join_others;
    rig_hold();
    for (int i = 0; i <= HYDRATION_ASKINGS_MAX; i++) {
        char id[16];
        struct hydration_need need = rig_need("ann", rig_full);
        need.tenant = str_from(tenants[i / HYDRATION_SHARE_MAX]);
        snprintf(id, sizeof id, "%d", i);
        need.entity_id = str_from(id);
        ask_need(&people[i], need, false);
    }
    assert_int_equal(people[HYDRATION_ASKINGS_MAX].times, 1);
    assert_int_equal(people[HYDRATION_ASKINGS_MAX].result, HYDRATION_UNAVAILABLE);
    assert_int_equal(people[0].times, 0);
    assert_true(turn_until_count(rig_held, HYDRATION_VISITS_MAX));
    turn_for_ms(5);
    assert_int_equal(rig_claims(), HYDRATION_VISITS_MAX); /* the others are in line, and hold no worker */
    for (int i = 0; i < HYDRATION_ASKINGS_MAX; i++)
        hydration_waiter_cancel(&people[i].waiter);
    assert_int_equal(hydration_desk_waiters(rig_desk), 0);
    rig_let_go();
    assert_true(turn_until_empty());
    assert_int_equal(rig_claims(), HYDRATION_VISITS_MAX); /* nobody was there any more */
    free(people);
}

/* ---- orders ---- */

/* Issue 11.13: one tenant has a part of the askings, and its line does not stand before another tenant's asking. */
static void test_a_greedy_tenant_leaves_places_and_turns_to_others(void **state)
{
    (void)state;
    struct person *people = calloc(HYDRATION_SHARE_MAX + 1, sizeof *people), bob = {0};
    struct hydration_need need = rig_need("ann", rig_full);
    char id[16];
    script.claim = not_in_ledger;
    rig_hold();
    for (int i = 0; i <= HYDRATION_SHARE_MAX; i++) {
        snprintf(id, sizeof id, "%d", i);
        need.entity_id = str_from(id);
        ask_need(&people[i], need, false);
    }
    assert_int_equal(people[HYDRATION_SHARE_MAX].result, HYDRATION_UNAVAILABLE);
    assert_int_equal(people[HYDRATION_SHARE_MAX].times, 1);
    assert_true(turn_until_count(rig_held, HYDRATION_VISITS_MAX));
    need.tenant = STR("modest");
    ask_need(&bob, need, false);
    turn_for_ms(1);
    rig_let_go();
    assert_true(turn_until_done(&bob));
    assert_int_equal(bob.result, HYDRATION_NOT_FOUND);
    unsigned answered = 0;
    for (int i = 0; i < HYDRATION_SHARE_MAX; i++)
        answered += people[i].times;
    assert_true(answered < HYDRATION_SHARE_MAX / 2);
    assert_true(turn_until_empty());
    free(people);
}

/* The same where it asks for as many types as it likes, which need not exist. */
static void test_a_greedy_tenant_of_many_types_leaves_places_and_turns_to_others(void **state)
{
    (void)state;
    struct person *people = calloc(HYDRATION_ASKINGS_MAX, sizeof *people), bob = {0};
    struct hydration_need need = rig_need("ann", rig_full);
    char type[16];
    script.claim = not_in_ledger;
    rig_hold();
    for (int i = 0; i < HYDRATION_ASKINGS_MAX; i++) {
        snprintf(type, sizeof type, "type-%d", i);
        need.entity_type = str_from(type);
        ask_need(&people[i], need, false);
    }
    assert_true(turn_until_count(rig_held, HYDRATION_VISITS_MAX));
    need.tenant = STR("modest");
    ask_need(&bob, need, false);
    turn_for_ms(1);
    assert_int_equal(bob.times, 0);
    rig_let_go();
    assert_true(turn_until_done(&bob));
    assert_int_equal(bob.result, HYDRATION_NOT_FOUND);
    unsigned found = 0;
    for (int i = 0; i < HYDRATION_ASKINGS_MAX; i++)
        found += people[i].times && people[i].result == HYDRATION_NOT_FOUND;
    assert_true(found < HYDRATION_SHARE_MAX / 2);
    assert_true(turn_until_empty());
    free(people);
}

static void test_h2_an_answer_may_come_before_the_claim_is_back(void **state)
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
    assert_int_equal(hydration_desk_waiters(rig_desk), 0);
    rig_let_go();
    assert_true(turn_until_empty());
    assert_int_equal(ann.times, 1);
}

static void test_h2_who_cancels_is_never_called(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    script.claim = join_others;
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
    assert_true(turn_until_count(rig_claims, 2));
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

static void test_h2_who_asks_again_for_what_is_not_kept_is_not_forgotten(void **state)
{
    (void)state;
    struct person ann = {0}, next = {0};
    static char data[300 * 1024]; /* more than this memory cares for */
    snprintf(data, sizeof data, "{\"title\":\"%0290000d\"}", 0);
    script.claim = in_ledger;
    script.claim.data = str_from(data);
    ann.asks = &next;
    ask(&ann, "ann", rig_title);
    assert_true(turn_until_done(&ann));
    assert_int_equal(next.times, 0);
    assert_true(turn_until_done(&next));
    assert_int_equal(next.result, HYDRATION_UPDATED);
    assert_true(turn_until_empty());
    assert_int_equal(rig_claims(), 2);
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

static void test_h4_a_ledger_that_is_behind_is_asked_again(void **state)
{
    (void)state;
    struct person ann = {0};
    struct hydration_event created = answer_of(HYDRATION_EVENT_UPDATED, 7);
    created.correlation_id = STR_NONE;
    hear(created);
    script.claim = not_in_ledger; /* version 0 */
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_claims, 1));
    rig_hold();
    assert_true(turn_until_count(rig_claims, 2));
    assert_int_equal(ann.times, 0);
    script.claim = in_ledger; /* it has written it down */
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
    script.claim = in_ledger;
    assert_true(turn_until_done(&whole)); /* it claims again, by itself */
    assert_string_equal(whole.data, DATA);
    assert_true(turn_until_empty());
}

static void test_an_answer_that_says_nothing_of_its_extent_is_what_was_asked_for(void **state)
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
static void test_h2_what_was_heard_too_early_is_looked_for_in_the_ledger(void **state)
{
    (void)state;
    struct person ann = {0};
    script.claim = join_others;
    hear(answer_of(HYDRATION_EVENT_UPDATED, 1));
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_claims, 2)); /* it is not written down yet */
    rig_hold();
    assert_true(turn_until_count(rig_claims, 3));
    script.claim = in_ledger;
    rig_let_go();
    assert_true(turn_until_done(&ann));
    assert_string_equal(ann.data, DATA);
    assert_true(turn_until_empty());
}

/* Asked by another process, which alone knows how much it asked for: the ledger does as soon as it has written it down. */
static void test_h2_the_answer_to_anothers_question_is_looked_for_in_the_ledger(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    script.claim = join_others;
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_claims, 1));
    struct hydration_event plain = answer_of(HYDRATION_EVENT_UPDATED, 1);
    plain.has_cover = false;
    plain.correlation_id = STR("somebody else's");
    hear(plain);
    ask(&bob, "bob", rig_full);
    assert_true(turn_until_count(rig_claims, 3)); /* it has not yet */
    rig_hold();
    assert_true(turn_until_count(rig_claims, 4));
    script.claim = in_ledger;
    rig_let_go();
    assert_true(turn_until_done(&ann));
    assert_string_equal(ann.data, DATA);
    assert_int_equal(bob.times, 1);
    assert_true(turn_until_empty());
}

static void test_what_an_answer_leaves_unsaid_outlives_the_question(void **state)
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

static void test_answers_nobody_waits_for_are_counted(void **state)
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
    script.claim.ttl_ms = 60000;
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

static void test_h4_each_caller_asks_alone_once_it_is_a_matter_of_callers(void **state)
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
    assert_int_equal(rig_claims(), 2);
}

/* Issue 11.1: all lookups of an entity hear an answer in turn. The first visit that comes back gives its place free, and its
 * answer leaves the lookup that is in line for that place without waiters. */
static void test_h4_an_answer_that_parts_callers_may_end_a_lookup_that_is_in_line(void **state)
{
    (void)state;
    static const struct str names[] = {{"a", 1}, {"b", 1}, {"c", 1}};
    struct person people[HYDRATION_VISITS_MAX], last = {0};
    memset(people, 0, sizeof people);
    script.claim = in_ledger; /* a private copy, enough for existence alone */
    script.claim.subject = STR("ann");
    script.claim.cover = rig_existence;
    script.claim.data = STR("{}");
    rig_hold();
    ask(&people[0], "ann", rig_existence);
    for (int i = 1; i < HYDRATION_VISITS_MAX; i++)
        ask(&people[i], "ann", (struct hydration_cover){HYDRATION_PARTIAL, &names[i - 1], 1});
    assert_true(turn_until_count(rig_held, HYDRATION_VISITS_MAX));
    ask(&last, "ann", rig_full);
    turn_for_ms(1);
    rig_let_go();
    assert_true(turn_until_done(&people[0]));
    assert_int_equal(people[0].result, HYDRATION_UPDATED);
    assert_true(
        turn_until_count(rig_claims, HYDRATION_VISITS_MAX + 1)); /* they ask again, each for themselves */
    assert_int_equal(last.times, 0);
    hydration_waiter_cancel(&last.waiter);
    for (int i = 1; i < HYDRATION_VISITS_MAX; i++)
        hydration_waiter_cancel(&people[i].waiter);
    assert_true(turn_until_empty());
}

static void test_h4_what_is_anothers_reaches_nobody(void **state)
{
    (void)state;
    struct person ann = {0};
    script.claim = join_others;
    ask(&ann, "ann", rig_existence);
    assert_true(turn_until_count(rig_claims, 1));
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

static void test_an_answer_that_does_not_name_its_caller_is_for_who_asked(void **state)
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

/* ---- time ---- */

static void test_h3_time_is_up(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    rig_policy.wait_timeout_ms = 100;
    rig_policy.max_retries = 0;
    int64_t begun_ns = clock_mono_ns();
    ask(&ann, "ann", rig_full);
    ask(&bob, "bob", rig_full);
    assert_true(turn_until_done(&ann));
    assert_true(turn_until_done(&bob));
    assert_true(clock_mono_ns() - begun_ns >= 100 * CLOCK_NS_PER_MS);
    assert_int_equal(ann.result, HYDRATION_TIMEOUT);
    assert_string_equal(ann.data, "");
    assert_true(turn_until_empty());
    assert_int_equal(rig_questions(), 1);
    assert_int_equal(rig_looks(), 1); /* for both */
}

static void test_h2_the_last_look_finds_an_answer_that_was_not_heard(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    struct hydration_need need = rig_need("ann", rig_full);
    char id[16];
    rig_policy.wait_timeout_ms = 500;
    script.claim = join_others;
    script.look = in_ledger;
    script.look_is_set = true;
    unsigned tries = 0;
    do { /* a machine so slow that the look comes back too late has another try */
        snprintf(id, sizeof id, "%u", tries);
        need.entity_id = str_from(id);
        ask_need(&ann, need, false);
        ask_need(&bob, need, false);
        assert_true(turn_until_done(&ann));
        assert_true(turn_until_done(&bob));
        assert_true(turn_until_empty());
        assert_true(rig_looks() <= ++tries); /* one for both */
    } while (bob.result == HYDRATION_TIMEOUT && tries < 20);
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    assert_int_equal(bob.result, HYDRATION_UPDATED);
    assert_int_equal(bob.way, HYDRATION_BY_LEDGER);
}

static void hear_title(void)
{
    struct hydration_event narrow = answer_of(HYDRATION_EVENT_UPDATED, 1);
    narrow.cover = rig_title;
    narrow.data = STR("{\"title\":\"T\"}");
    narrow.correlation_id = STR("another's");
    hear(narrow);
}

static void test_h5_what_is_known_all_the_same_comes_with_the_timeout(void **state)
{
    (void)state;
    struct person ann = {0};
    hear_title();
    rig_policy.wait_timeout_ms = 20;
    rig_policy.max_retries = 0;
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_done(&ann));
    assert_int_equal(ann.result, HYDRATION_TIMEOUT);
    assert_string_equal(ann.data, "{\"title\":\"T\"}");
    assert_true(turn_until_empty());
}

static void test_h5_a_stale_copy_is_returned_while_the_last_look_is_under_way(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    rig_policy.wait_timeout_ms = 300;
    script.claim = join_others;
    script.claim.data = STR(DATA);
    script.claim.source_module = STR("intake");
    script.claim.subject = STR("ann");
    ask(&ann, "ann", rig_title);
    ask(&bob, "bob", rig_title);
    assert_true(turn_until_count(rig_claims, 1));
    turn_for_ms(1);
    rig_hold(); /* the last look does not come back */
    assert_true(turn_until_done(&ann));
    assert_true(turn_until_done(&bob));
    assert_int_equal(ann.result, HYDRATION_TIMEOUT);
    assert_string_equal(ann.data, "{\"title\":\"T\"}");
    assert_string_equal(ann.source_module, "intake");
    assert_string_equal(bob.data, ""); /* it is hers alone */
    rig_let_go();
    assert_true(turn_until_empty());
}

static void test_h3_who_published_asks_again_even_if_its_caller_has_gone(void **state)
{
    (void)state;
    struct person ann = {0};
    rig_policy.retry_backoff_ms = 10;
    rig_policy.max_retries = 2;
    script.grants = true;
    ask(&ann, "ann", rig_title);
    assert_true(turn_until_count(rig_questions, 1));
    struct rig_question first = rig_question();
    turn_for_ms(1);
    hydration_waiter_cancel(&ann.waiter);
    assert_true(turn_until_count(rig_questions, 3));
    assert_string_equal(rig_question().correlation_id, first.correlation_id);
    assert_string_equal(rig_question().subject, "ann");
    assert_int_equal(rig_question().mode, HYDRATION_PARTIAL);
    assert_true(turn_until_empty());
    assert_int_equal(rig_questions(), 3);
    assert_int_equal(rig_claims(), 1);
}

static void test_h3_a_retry_that_is_not_granted_is_none(void **state)
{
    (void)state;
    struct person ann = {0};
    rig_policy.retry_backoff_ms = 5;
    rig_policy.max_retries = 3;
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_retries, 1));
    turn_for_ms(30);
    assert_int_equal(rig_retries(), 1);
    assert_int_equal(rig_questions(), 1);
    hydration_waiter_cancel(&ann.waiter);
    assert_true(turn_until_empty());
}

static void test_h3_a_question_that_could_not_be_published_is_tried_again(void **state)
{
    (void)state;
    struct person ann = {0};
    rig_policy.retry_backoff_ms = 5;
    script.publish_fails = true;
    script.grants = true;
    rig_hold();
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_held, 1));
    rig_let_go();
    assert_true(turn_until_count(rig_retries, 1));
    assert_int_equal(ann.times, 0);
    hydration_waiter_cancel(&ann.waiter);
    assert_true(turn_until_empty());
}

static void test_the_window_over_it_is_claimed_again(void **state)
{
    (void)state;
    struct person ann = {0};
    script.claim = join_others;
    script.claim.ttl_ms = 60;
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_claims, 3));
    hear_updated(1);
    assert_int_equal(ann.times, 1);
    assert_true(turn_until_empty());
}

/* ---- trouble ---- */

static void test_nothing_is_known_while_postgresql_is_down(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    script.fails = true;
    rig_hold();
    ask(&ann, "ann", rig_full);
    ask(&bob, "bob", rig_full);
    rig_let_go();
    assert_true(turn_until_done(&ann));
    assert_int_equal(ann.result, HYDRATION_UNAVAILABLE);
    assert_int_equal(bob.result, HYDRATION_UNAVAILABLE);
    assert_true(turn_until_empty());
}

static void test_h5_what_is_known_all_the_same_is_known_without_postgresql_too(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    hear_title();
    script.fails = true;
    rig_hold();
    ask(&ann, "ann", rig_full);
    ask(&bob, "bob", rig_full);
    rig_let_go();
    assert_true(turn_until_done(&ann));
    assert_int_equal(ann.result, HYDRATION_UNAVAILABLE);
    assert_string_equal(ann.data, "{\"title\":\"T\"}");
    assert_string_equal(bob.data, ann.data);
    assert_true(turn_until_empty());
}

static void test_h5_asking_goes_on_behind_a_caller_who_defers(void **state)
{
    (void)state;
    struct person ann = {0}, again = {0};
    rig_policy.wait_timeout_ms = 20;
    rig_policy.max_retries = 0;
    rig_policy.in_flight_window_ms = 30;
    script.claim = join_others;
    script.claim.ttl_ms = 60;
    ask_need(&ann, rig_need("ann", rig_full), true);
    ask_need(&again, rig_need("ann", rig_full), true);
    assert_true(turn_until_done(&ann));
    assert_true(turn_until_done(&again));
    assert_int_equal(ann.result, HYDRATION_TIMEOUT);
    assert_int_equal(hydration_desk_waiters(rig_desk), 1); /* one for both */
    rig_hold();
    script.fails = true; /* it outlasts an outage */
    rig_let_go();
    unsigned before = rig_claims();
    assert_true(turn_until_count(rig_claims, before + 2));
    hear_updated(1);
    assert_true(turn_until_empty());
    ask(&again, "ann", rig_full);
    assert_int_equal(again.way, HYDRATION_BY_MEMORY);
}

static void test_the_end_tells_everybody(void **state)
{
    (void)state;
    struct person running = {0}, waiting = {0}, queued[HYDRATION_VISITS_MAX] = {0}, deferred = {0};
    struct hydration_need other = rig_need("ann", rig_full);
    ask(&waiting, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    turn_for_ms(1);
    rig_hold();
    other.entity_id = STR("b");
    ask_need(&running, other, false);
    for (int i = 0; i < HYDRATION_VISITS_MAX; i++) {
        char id[] = {(char)('c' + i), 0};
        other.entity_id = str_from(id);
        ask_need(&queued[i], other, i == 0);
    }
    assert_true(turn_until_count(rig_held, HYDRATION_VISITS_MAX));
    waiting.cancels = &queued[HYDRATION_VISITS_MAX - 1];
    waiting.asks = &deferred;
    hydration_desk_stop(rig_desk);
    assert_int_equal(running.result, HYDRATION_UNAVAILABLE);
    assert_int_equal(waiting.result, HYDRATION_UNAVAILABLE);
    assert_int_equal(queued[0].result, HYDRATION_UNAVAILABLE);
    assert_int_equal(deferred.result, HYDRATION_UNAVAILABLE);
    assert_int_equal(running.times + waiting.times + queued[0].times + deferred.times, 4);
    assert_int_equal(hydration_desk_waiters(rig_desk), 0);
    rig_let_go();
    assert_true(turn_until_empty());
    ask(&waiting, "ann", rig_full);
    assert_int_equal(waiting.result, HYDRATION_UNAVAILABLE);
}

static void test_a_pool_that_has_ended_is_as_good_as_none(void **state)
{
    (void)state;
    struct person ann = {0};
    worker_pool_stop(rig.config.workers);
    ask(&ann, "ann", rig_full);
    assert_int_equal(ann.times, 0); /* not in the middle of asking */
    assert_true(turn_until_done(&ann));
    assert_int_equal(ann.result, HYDRATION_UNAVAILABLE);
    assert_true(turn_until_empty());
}

/* ---- a thread that blocks ---- */

enum { BATCH = 50 };

struct batch_call {
    struct arena arena;
    struct hydration_outcome outcomes[BATCH];
    atomic_bool is_back;
};

static void *ask_batch(void *arg)
{
    struct batch_call *call = arg;
    struct hydration_need needs[BATCH];
    char ids[BATCH][8];
    for (int i = 0; i < BATCH; i++) {
        needs[i] = rig_need("ann", i % 2 ? rig_title : rig_full);
        snprintf(ids[i], sizeof ids[i], "%d", i / 2);
        needs[i].entity_id = str_from(ids[i]);
    }
    hydration_ask_and_wait(&rig, &rig_policy, needs, BATCH, &call->arena, call->outcomes);
    atomic_store(&call->is_back, true);
    return NULL;
}

static bool is_back(void *arg)
{
    return atomic_load(&((struct batch_call *)arg)->is_back);
}

static void run_batch(struct batch_call *call)
{
    pthread_t thread;
    arena_init(&call->arena, 1024);
    atomic_init(&call->is_back, false);
    pthread_create(&thread, NULL, ask_batch, call);
    bool came_back = turn_until(is_back, call);
    pthread_join(thread, NULL);
    assert_true(came_back);
}

static void test_a_thread_waits_for_all_at_once(void **state)
{
    (void)state;
    static struct batch_call call;
    script.claim = in_ledger;
    run_batch(&call);
    for (int i = 0; i < BATCH; i++) {
        assert_int_equal(call.outcomes[i].result, HYDRATION_UPDATED);
        assert_true(str_eq(call.outcomes[i].data, i % 2 ? STR("{\"title\":\"T\"}") : STR(DATA)));
        assert_true(str_eq(call.outcomes[i].source_module, STR("intake")));
    }
    arena_deinit(&call.arena);
    assert_true(turn_until_empty());
}

static void test_a_thread_is_told_that_time_is_up(void **state)
{
    (void)state;
    static struct batch_call call;
    script.claim = join_others;
    rig_policy.wait_timeout_ms = 30;
    run_batch(&call);
    for (int i = 0; i < BATCH; i++)
        assert_int_equal(call.outcomes[i].result, HYDRATION_TIMEOUT);
    arena_deinit(&call.arena);
    assert_true(turn_until_empty());
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_open, rig_close)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_h2_unknown_then_updated),
        TEST(test_h4_unknown_then_not_found_then_negative_hit),
        TEST(test_h4_a_hit_allocates_nothing_and_asks_nobody),
        TEST(test_h2_what_the_ledger_knows_is_asked_of_nobody),
        TEST(test_h4_the_ledgers_absence_is_a_negative_hit),
        TEST(test_h2_ten_thousand_of_one_caller_are_one_claim),
        TEST(test_h2_ten_thousand_callers_are_one_claim),
        TEST(test_too_many_entities_at_once_are_refused),
        TEST(test_a_greedy_tenant_leaves_places_and_turns_to_others),
        TEST(test_a_greedy_tenant_of_many_types_leaves_places_and_turns_to_others),
        TEST(test_h2_an_answer_may_come_before_the_claim_is_back),
        TEST(test_h2_who_cancels_is_never_called),
        TEST(test_h2_a_callback_may_cancel_others_and_ask_again),
        TEST(test_h2_who_asks_again_for_what_is_not_kept_is_not_forgotten),
        TEST(test_h4_a_late_not_found_does_not_hide_a_fresh_entity),
        TEST(test_h4_a_ledger_that_is_behind_is_asked_again),
        TEST(test_h2_a_partial_answer_never_stands_for_a_wider_request),
        TEST(test_an_answer_that_says_nothing_of_its_extent_is_what_was_asked_for),
        TEST(test_h2_what_was_heard_too_early_is_looked_for_in_the_ledger),
        TEST(test_h2_the_answer_to_anothers_question_is_looked_for_in_the_ledger),
        TEST(test_what_an_answer_leaves_unsaid_outlives_the_question),
        TEST(test_answers_nobody_waits_for_are_counted),
        TEST(test_h4_each_caller_asks_alone_once_it_is_a_matter_of_callers),
        TEST(test_h4_an_answer_that_parts_callers_may_end_a_lookup_that_is_in_line),
        TEST(test_h4_what_is_anothers_reaches_nobody),
        TEST(test_an_answer_that_does_not_name_its_caller_is_for_who_asked),
        TEST(test_h3_time_is_up),
        TEST(test_h2_the_last_look_finds_an_answer_that_was_not_heard),
        TEST(test_h5_what_is_known_all_the_same_comes_with_the_timeout),
        TEST(test_h5_a_stale_copy_is_returned_while_the_last_look_is_under_way),
        TEST(test_h3_who_published_asks_again_even_if_its_caller_has_gone),
        TEST(test_h3_a_retry_that_is_not_granted_is_none),
        TEST(test_h3_a_question_that_could_not_be_published_is_tried_again),
        TEST(test_the_window_over_it_is_claimed_again),
        TEST(test_nothing_is_known_while_postgresql_is_down),
        TEST(test_h5_what_is_known_all_the_same_is_known_without_postgresql_too),
        TEST(test_h5_asking_goes_on_behind_a_caller_who_defers),
        TEST(test_the_end_tells_everybody),
        TEST(test_a_pool_that_has_ended_is_as_good_as_none),
        TEST(test_a_thread_waits_for_all_at_once),
        TEST(test_a_thread_is_told_that_time_is_up),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
