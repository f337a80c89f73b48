/* Memory of messages (C6): batches of all handlers fit into a share, and of those that are larger one at least goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/budget.h"
#include "bus/bus_inside.h"

#define MIB ((size_t)1 << 20)
enum { HANDLERS = 8 };

static const struct bus_consumer consumer = {.spec = {.parallel = HANDLERS, .batch_bytes_max = 8 << 20}};
static const char owners[3];

static int setup(void **state)
{
    (void)state;
    budget_set_limit(100 * MIB);
    bus_memory_join(&consumer);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bus_memory_leave(&consumer);
    assert_int_equal(budget_used(BUDGET_QUEUES), 0);
    budget_set_limit(0);
    return 0;
}

static bool take(struct bus_hold *hold, size_t owner, size_t bytes)
{
    return bus_hold_take(hold, &owners[owner], bytes, bus_batch_bytes_max(&consumer));
}

static void test_batches_of_all_handlers_fit_into_the_share(void **state)
{
    (void)state;
    struct bus_hold holds[HANDLERS] = {{0}};
    budget_set_limit(32768 * MIB);
    assert_int_equal(bus_batch_bytes_max(&consumer), 8 * MIB);
    budget_set_limit(1024 * MIB);
    size_t bytes = bus_batch_bytes_max(&consumer);
    assert_in_range(bytes, MIB / 2, 2 * MIB);
    for (size_t i = 0; i < HANDLERS; i++)
        assert_true(take(&holds[i], 0, bytes));
    assert_in_range(budget_used(BUDGET_QUEUES), HANDLERS * bytes, budget_share(BUDGET_QUEUES));
    for (size_t i = 0; i < HANDLERS; i++)
        bus_hold_release(&holds[i]);
    bus_memory_join(&consumer); /* another subscription */
    assert_in_range(bus_batch_bytes_max(&consumer), bytes / 2 - 1, bytes / 2);
    assert_true(bus_queue_bytes_max(&consumer, 4) <= budget_share(BUDGET_QUEUES) / 4 / 2 / 4);
    bus_memory_leave(&consumer);
}

static void test_a_message_for_which_there_is_no_room_waits_while_another_one_is_handled(void **state)
{
    (void)state;
    struct bus_hold first = {0}, second = {0}, small = {0};
    assert_true(take(&first, 0, 50 * MIB)); /* more than there ever is */
    assert_int_equal(budget_used(BUDGET_QUEUES), budget_share(BUDGET_QUEUES));
    assert_false(take(&second, 1, 50 * MIB));
    assert_int_equal(second.bytes, 0);
    assert_false(take(&second, 1, MIB / 2)); /* although the account has the common part */
    assert_true(take(&small, 2, 1000));      /* a batch of small ones never waits */
    bus_hold_release(&small);
    bus_hold_release(&first);
    bus_hold_release(&first); /* once more does no harm */
    assert_true(take(&second, 1, 50 * MIB));
    bus_hold_release(&second);
}

static void test_several_large_messages_are_handled_while_there_is_room(void **state)
{
    (void)state;
    struct bus_hold first = {0}, second = {0};
    assert_true(take(&first, 0, MIB / 2));
    assert_true(take(&second, 1, MIB / 2));
    bus_hold_release(&first);
    bus_hold_release(&second);
}

static void test_the_one_that_was_refused_comes_first(void **state)
{
    (void)state;
    struct bus_hold first = {0}, second = {0}, third = {0};
    assert_true(take(&first, 0, MIB / 2));
    assert_false(take(&second, 1, 50 * MIB));
    assert_false(take(&third, 2, MIB / 2)); /* there is room for it, but the other would wait for ever */
    bus_hold_release(&first);
    assert_false(take(&third, 2, MIB / 2));
    assert_true(take(&second, 1, 50 * MIB));
    bus_hold_release(&second);
    assert_true(take(&third, 2, MIB / 2));
    bus_hold_release(&third);
}

static void test_a_queue_is_charged_in_steps(void **state)
{
    (void)state;
    size_t charged = 0;
    bus_queue_charge(&charged, 1);
    size_t step = budget_used(BUDGET_QUEUES);
    assert_in_range(step, 1, MIB);
    bus_queue_charge(&charged, step);
    assert_int_equal(budget_used(BUDGET_QUEUES), step);
    bus_queue_charge(&charged, 3 * step + 1);
    assert_int_equal(budget_used(BUDGET_QUEUES), 4 * step);
    bus_queue_charge(&charged, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_batches_of_all_handlers_fit_into_the_share),
        TEST(test_a_message_for_which_there_is_no_room_waits_while_another_one_is_handled),
        TEST(test_several_large_messages_are_handled_while_there_is_room),
        TEST(test_the_one_that_was_refused_comes_first),
        TEST(test_a_queue_is_charged_in_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
