/* Slots: one share leaves some to the others, a batch counts for each of its shares and ends before one that has enough. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bus/bus_inside.h"

enum { SLOTS = 5, OF_ONE = 4 };

/* "ab": for a and for b. */
static unsigned shares_of(const struct bus_message *message, uint64_t shares[BUS_SHARES_MAX])
{
    for (unsigned i = 0; i < message->key.len; i++)
        shares[i] = (uint64_t)message->key.ptr[i];
    return (unsigned)message->key.len;
}

static struct bus_slots slots;
static struct bus_slot taken[SLOTS + 1];

static int setup(void **state)
{
    (void)state;
    const struct bus_consumer consumer = {.spec = {.parallel = SLOTS, .shares = shares_of}};
    bus_slots_init(&slots, &consumer);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i <= SLOTS; i++)
        bus_slots_leave(&slots, &taken[i]);
    assert_int_equal(slots.free, SLOTS);
    assert_int_equal(slots.turns.shares.count, 0);
    bus_slots_deinit(&slots);
    return 0;
}

static size_t enter(size_t at, const char *keys)
{
    struct bus_message messages[16] = {0};
    struct str rest = str_from(keys), key;
    size_t count = 0;
    while (str_split(&rest, ' ', &key))
        messages[count++].key = key;
    return bus_slots_enter(&slots, &taken[at], messages, count);
}

static void test_one_share_leaves_a_slot_to_others(void **state)
{
    (void)state;
    assert_false(bus_slots_are_scarce(&slots));
    for (size_t i = 0; i < OF_ONE; i++)
        assert_int_equal(enter(i, "a"), 1);
    assert_true(bus_slots_are_scarce(&slots));
    assert_int_equal(enter(OF_ONE, "a"), 0);
    assert_false(bus_slots_may_enter(&slots, &(struct bus_message){.key = STR("a")}));
    assert_true(bus_slots_may_enter(&slots, &(struct bus_message){.key = STR("b")}));
    assert_int_equal(enter(OF_ONE, "b"), 1);
    bus_slots_leave(&slots, &taken[0]);
    assert_int_equal(enter(0, "a"), 0); /* one is left, for others */
    bus_slots_leave(&slots, &taken[OF_ONE]);
    assert_int_equal(enter(0, "a"), 1);
}

static void test_a_batch_counts_for_all_its_shares_and_ends_before_one_that_has_enough(void **state)
{
    (void)state;
    for (size_t i = 0; i < OF_ONE; i++)
        assert_int_equal(enter(i, "b a c ca"), 4);
    assert_int_equal(enter(OF_ONE, "d e d a d"), 3);
    bus_slots_leave(&slots, &taken[OF_ONE]);
    assert_int_equal(enter(OF_ONE, "dc d"), 0); /* for two, and one of them has enough */
}

static void test_a_slot_is_extended(void **state)
{
    (void)state;
    for (size_t i = 0; i < OF_ONE; i++)
        assert_int_equal(enter(i, "a"), 1);
    assert_int_equal(enter(0, "a b a"), 3);
    assert_int_equal(slots.free, SLOTS - OF_ONE);
    assert_int_equal(enter(OF_ONE, "c"), 1);
    assert_int_equal(enter(OF_ONE, "c a"), 1);
}

static void test_messages_without_a_share_are_not_bounded(void **state)
{
    (void)state;
    struct bus_message messages[2] = {0};
    for (size_t i = 0; i < SLOTS; i++)
        assert_int_equal(bus_slots_enter(&slots, &taken[i], messages, 2), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_share_leaves_a_slot_to_others, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_a_batch_counts_for_all_its_shares_and_ends_before_one_that_has_enough, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_slot_is_extended, setup, teardown),
        cmocka_unit_test_setup_teardown(test_messages_without_a_share_are_not_bounded, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
