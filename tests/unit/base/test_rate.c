/* Token buckets: what passes, when, and what a full table does. The clock is the caller's. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/rate.h"

enum { LINES = 4, PLACES = 8 };
#define START_NS (INT64_C(12345) * CLOCK_NS_PER_S)

/* A key of line 0 with a tag of its own. */
static uint64_t key_of(unsigned number)
{
    return (uint64_t)(number + 1) << 48;
}

static unsigned passing(struct rate_table *table, uint64_t key, const struct rate *rate, int64_t now_ns,
                        unsigned tries)
{
    unsigned passed = 0;
    int64_t wait_ns;

    for (unsigned i = 0; i < tries; i++)
        passed += rate_take(table, key, rate, now_ns, &wait_ns) == RATE_PASSES;
    return passed;
}

static void a_burst_passes_then_the_rate(void **state)
{
    (void)state;
    struct rate_table *table = rate_table_create(LINES);
    struct rate rate = rate_make(10 * 1000, 5);
    int64_t wait_ns = 0;

    assert_int_equal(passing(table, 7, &rate, START_NS, 20), 5);
    assert_int_equal(rate_take(table, 7, &rate, START_NS, &wait_ns), RATE_REFUSED);
    assert_in_range(wait_ns, CLOCK_NS_PER_S / 10 - 1000, CLOCK_NS_PER_S / 10);
    assert_int_equal(passing(table, 7, &rate, START_NS + wait_ns - 1000, 3), 0);
    assert_int_equal(passing(table, 7, &rate, START_NS + wait_ns, 3), 1);
    assert_int_equal(passing(table, 7, &rate, START_NS + 20 * CLOCK_NS_PER_S, 20), 5); /* and never more */
    rate_table_destroy(table);
}

static void rates_below_and_far_above_one_a_second_hold(void **state)
{
    (void)state;
    struct rate_table *table = rate_table_create(LINES);
    struct rate slow = rate_make(1, 1), fast = rate_make(INT64_C(100000) * 1000, 1);
    int64_t wait_ns = 0;
    unsigned passed = 0;

    assert_int_equal(passing(table, 1, &slow, START_NS, 2), 1);
    assert_int_equal(rate_take(table, 1, &slow, START_NS + CLOCK_NS_PER_S, &wait_ns), RATE_REFUSED);
    assert_in_range(wait_ns, 998 * CLOCK_NS_PER_S, 999 * CLOCK_NS_PER_S);
    assert_int_equal(passing(table, 1, &slow, START_NS + 1000 * CLOCK_NS_PER_S, 2), 1);
    for (int64_t at_ns = 0; at_ns < CLOCK_NS_PER_S / 100; at_ns += 1000)
        passed += passing(table, 2, &fast, START_NS + at_ns, 1);
    assert_in_range(passed, 900, 1003);
    rate_table_destroy(table);
}

static void keys_do_not_share_and_a_full_line_counts_no_more(void **state)
{
    (void)state;
    struct rate_table *table = rate_table_create(LINES);
    struct rate rate = rate_make(1000, 1);
    int64_t wait_ns = 0;

    for (unsigned i = 0; i < PLACES; i++)
        assert_int_equal(passing(table, key_of(i), &rate, START_NS, 3), 1);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(rate_take(table, key_of(PLACES), &rate, START_NS, &wait_ns), RATE_UNCOUNTED);
    assert_int_equal(passing(table, key_of(0), &rate, START_NS, 1), 0); /* and took no place */
    /* A bucket that is full again leaves its place. */
    assert_int_equal(passing(table, key_of(PLACES), &rate, START_NS + CLOCK_NS_PER_S, 3), 1);
    assert_int_equal(passing(table, key_of(PLACES - 1), &rate, START_NS + CLOCK_NS_PER_S, 3), 1);
    rate_table_destroy(table);
}

static void a_clock_that_wraps_changes_nothing(void **state)
{
    (void)state;
    struct rate_table *table = rate_table_create(LINES);
    struct rate rate = rate_make(1000, 2);
    int64_t wrap_ns = INT64_C(1) << 56;

    assert_int_equal(passing(table, 9, &rate, wrap_ns - CLOCK_NS_PER_S / 2, 5), 2);
    assert_int_equal(passing(table, 9, &rate, wrap_ns + CLOCK_NS_PER_S / 4, 5), 0);
    assert_int_equal(passing(table, 9, &rate, wrap_ns + CLOCK_NS_PER_S / 2, 5), 1);
    assert_int_equal(passing(table, 9, &rate, wrap_ns + 400 * 24 * 3600 * CLOCK_NS_PER_S, 5), 2);
    rate_table_destroy(table);
}

struct race {
    struct rate_table *table;
    struct rate rate;
    atomic_uint passed;
};

static void *run_racer(void *arg)
{
    struct race *race = arg;
    atomic_fetch_add(&race->passed, passing(race->table, 5, &race->rate, START_NS, 2000));
    return NULL;
}

static void threads_share_one_bucket_exactly(void **state)
{
    (void)state;
    struct race race = {rate_table_create(LINES), rate_make(1000, 3001), 0};
    pthread_t threads[4];

    assert_int_equal(passing(race.table, 5, &race.rate, START_NS, 1), 1); /* it has its place */
    for (unsigned i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, run_racer, &race);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(race.passed, 3000);
    rate_table_destroy(race.table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_burst_passes_then_the_rate),
        cmocka_unit_test(rates_below_and_far_above_one_a_second_hold),
        cmocka_unit_test(keys_do_not_share_and_a_full_line_counts_no_more),
        cmocka_unit_test(a_clock_that_wraps_changes_nothing),
        cmocka_unit_test(threads_share_one_bucket_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
