/* Shares take turns, none has all places, and the longest gives way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/turns.h"

enum { OWN, GREEDY, MODEST, THIRD };

static struct turns turns;
static struct turns_item items[8];

static int set_up(void **state)
{
    (void)state;
    turns_init(&turns);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    turns_deinit(&turns);
    return 0;
}

/* items[i] is of the i-th share named. */
static void put(const char *shares)
{
    for (size_t i = 0; shares[i]; i++)
        turns_put(&turns, (uint64_t)(shares[i] - '0'), &items[i]);
}

static void shares_take_turns_and_each_is_in_order(void **state)
{
    (void)state;
    static const int order[] = {0, 3, 1, 4, 2};
    put("11122");
    for (int i = 0; i < 5; i++)
        assert_ptr_equal(turns_next(&turns), &items[order[i]]);
    assert_null(turns_next(&turns));
}

static void an_item_that_is_put_back_is_its_shares_oldest(void **state)
{
    (void)state;
    put("1122");
    struct turns_item *first = turns_next(&turns);
    turns_put_back(&turns, GREEDY, first);
    assert_ptr_equal(turns_next(&turns), &items[2]); /* it was MODEST's turn */
    assert_ptr_equal(turns_next(&turns), first);
    turns_remove(&turns, &items[1]);
    assert_ptr_equal(turns_next(&turns), &items[3]);
    assert_int_equal(turns.queued, 0);
}

static void the_longest_share_gives_its_newest_item_to_a_shorter_one(void **state)
{
    (void)state;
    put("11122");
    assert_null(turns_displace(&turns, GREEDY)); /* it is the longest itself */
    assert_null(turns_displace(&turns, MODEST)); /* it would be as long */
    assert_ptr_equal(turns_displace(&turns, THIRD), &items[2]);
    assert_ptr_equal(turns_next(&turns), &items[0]);
}

static size_t enter_all(uint64_t hash, size_t *free)
{
    size_t entered = 0;
    for (; turns_may_enter_hash(&turns, hash, *free); entered++, --*free)
        turns_enter(&turns, hash, SIZE_MAX);
    return entered;
}

static void no_share_has_all_places_and_each_further_one_finds_some(void **state)
{
    (void)state;
    for (size_t members = 1; members <= 256; members++) {
        size_t free = turns_places(members);
        assert_int_equal(enter_all(GREEDY, &free), members);
        assert_true(free > 0);
        assert_true(enter_all(MODEST, &free) > 0);
        assert_true(members < 6 || enter_all(THIRD, &free) > 0);
        free = 3;
        assert_int_equal(enter_all(OWN, &free), 3); /* the process's own work is not bounded */
        turns_deinit(&turns);
        turns_init(&turns);
    }
}

static void a_place_that_is_left_can_be_had_again(void **state)
{
    (void)state;
    size_t free = 2;
    struct turns_share *share = turns_enter(&turns, GREEDY, 1);
    assert_non_null(share);
    assert_null(turns_enter(&turns, GREEDY, 1));
    put("11");
    free--;
    assert_null(turns_first_to_enter(&turns, free)); /* the last place is not GREEDY's */
    turns_leave(&turns, share);
    assert_ptr_equal(turns_first_to_enter(&turns, ++free), items[0].share);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(shares_take_turns_and_each_is_in_order),
        TEST(an_item_that_is_put_back_is_its_shares_oldest),
        TEST(the_longest_share_gives_its_newest_item_to_a_shorter_one),
        TEST(no_share_has_all_places_and_each_further_one_finds_some),
        TEST(a_place_that_is_left_can_be_had_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
