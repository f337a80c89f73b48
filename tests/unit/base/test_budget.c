/* The memory budget (C6): shares, the common part, tenants, and what many threads make of it. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/budget.h"

enum { LIMIT = 100 * 1024, THREADS = 8, ROUNDS = 20000 };

static int reset(void **state)
{
    (void)state;
    budget_set_limit(LIMIT);
    budget_freed_reset();
    for (int i = 0; i < BUDGET_ACCOUNTS; i++) {
        budget_set_bound(i, 0);
        assert_int_equal(budget_used(i), 0);
    }
    return 0;
}

static size_t common_bytes(void)
{
    return budget_most(BUDGET_BODIES) - budget_share(BUDGET_BODIES);
}

/* Of the share, without a tenant: not the reserve. */
static size_t unreserved(enum budget_account account)
{
    return budget_share(account) - (budget_first(account) ? budget_share(account) / 8 : 0);
}

static void fill(enum budget_account account, size_t bytes)
{
    assert_true(budget_charge(account, bytes));
}

/* ---- shares ---- */

static void test_shares_and_the_common_part_are_the_limit(void **state)
{
    (void)state;
    size_t sum = common_bytes();
    for (int i = 0; i < BUDGET_ACCOUNTS; i++) {
        assert_true(budget_share(i) > 0);
        sum += budget_share(i);
    }
    assert_int_equal(sum, LIMIT);
}

static void test_an_account_within_its_share_is_never_refused(void **state)
{
    (void)state;
    fill(BUDGET_UNSENT, budget_most(BUDGET_UNSENT)); /* with the whole common part */
    assert_false(budget_is_full(BUDGET_UNSENT));
    assert_false(budget_charge(BUDGET_UNSENT, 1));
    for (int i = 0; i < BUDGET_ACCOUNTS; i++) {
        if (i == BUDGET_UNSENT)
            continue;
        fill(i, unreserved(i));
        assert_false(budget_charge(i, 1)); /* nothing common is left */
        assert_int_equal(budget_used(i), unreserved(i));
    }
    budget_release(BUDGET_UNSENT, 1);
    assert_false(budget_charge(BUDGET_TOKENS, 1)); /* a cache keeps to its share */
    fill(BUDGET_WRITES, 1);
    budget_release(BUDGET_WRITES, 1);
    fill(BUDGET_UNSENT, 1);
    for (int i = 0; i < BUDGET_ACCOUNTS; i++)
        budget_release(i, budget_used(i));
}

static void test_what_cannot_be_refused_makes_its_account_full(void **state)
{
    (void)state;
    budget_add(BUDGET_UNSENT, budget_most(BUDGET_UNSENT) + 1);
    assert_true(budget_is_full(BUDGET_UNSENT));
    assert_false(budget_is_full(BUDGET_BODIES));
    budget_release(BUDGET_UNSENT, 1);
    assert_false(budget_is_full(BUDGET_UNSENT));
    budget_release(BUDGET_UNSENT, budget_used(BUDGET_UNSENT));
}

static void test_a_bound_holds_without_a_limit(void **state)
{
    (void)state;
    budget_set_limit(0);
    fill(BUDGET_STREAMS, SIZE_MAX / 2);
    budget_release(BUDGET_STREAMS, SIZE_MAX / 2);
    budget_set_bound(BUDGET_STREAMS, 1000);
    fill(BUDGET_STREAMS, 1000);
    assert_false(budget_charge(BUDGET_STREAMS, 1));
    budget_release(BUDGET_STREAMS, 1000);
}

static void test_a_bound_above_the_share_does_not_raise_it(void **state)
{
    (void)state;
    size_t most = budget_most(BUDGET_BODIES);
    budget_set_bound(BUDGET_BODIES, 10 * LIMIT);
    assert_int_equal(budget_most(BUDGET_BODIES), most);
    assert_false(budget_charge(BUDGET_BODIES, most + 1));
}

/* ---- tenants ---- */

static size_t take_all(enum budget_account account, uint64_t tenant)
{
    size_t taken = 0;
    while (budget_charge_tenant(account, tenant, 64))
        taken += 64;
    return taken;
}

static size_t general(enum budget_account account)
{
    return unreserved(account) + common_bytes();
}

static void test_a_tenant_leaves_room_for_others(void **state)
{
    (void)state;
    size_t most = general(BUDGET_BODIES), own = budget_first(BUDGET_BODIES);
    size_t first = take_all(BUDGET_BODIES, 1), second = take_all(BUDGET_BODIES, 2),
           third = take_all(BUDGET_BODIES, 3);
    assert_in_range(first, most / 2 - 128, most / 2 + own + 128);
    assert_in_range(second, most / 4 - 128, most / 4 + own + 128);
    assert_in_range(third, most / 8 - 128, most / 8 + own + 128);
    assert_false(budget_has_room(BUDGET_BODIES, 1, 64));
    assert_true(budget_has_room(BUDGET_BODIES, 4, 64));
    budget_release_tenant(BUDGET_BODIES, 1, first);
    assert_true(budget_has_room(BUDGET_BODIES, 1, 64));
    budget_release_tenant(BUDGET_BODIES, 2, second);
    budget_release_tenant(BUDGET_BODIES, 3, third);
}

static void test_a_tenant_takes_half_of_what_other_accounts_have_left(void **state)
{
    (void)state;
    fill(BUDGET_UNSENT, budget_most(BUDGET_UNSENT)); /* with the whole common part */
    size_t most = unreserved(BUDGET_BODIES), own = budget_first(BUDGET_BODIES);
    size_t first = take_all(BUDGET_BODIES, 1), second = take_all(BUDGET_BODIES, 2);
    assert_in_range(first, most / 2 - 128, most / 2 + own + 128);
    assert_in_range(second, most / 4 - 128, most / 4 + own + 128);
    budget_release_tenant(BUDGET_BODIES, 1, first);
    budget_release_tenant(BUDGET_BODIES, 2, second);
    budget_release(BUDGET_UNSENT, budget_used(BUDGET_UNSENT));
}

static void test_a_tenant_holds_what_is_charged_already(void **state)
{
    (void)state;
    size_t half = general(BUDGET_REQUESTS) / 2;
    fill(BUDGET_REQUESTS, half);
    assert_true(budget_hold_tenant(BUDGET_REQUESTS, 1, half - 64));
    assert_false(budget_hold_tenant(BUDGET_REQUESTS, 1, 2 * budget_first(BUDGET_REQUESTS)));
    assert_true(budget_hold_tenant(BUDGET_REQUESTS, 2, 64));
    budget_leave_tenant(BUDGET_REQUESTS, 1, half - 64);
    budget_leave_tenant(BUDGET_REQUESTS, 2, 64);
    assert_int_equal(budget_used(BUDGET_REQUESTS), half);
    budget_release(BUDGET_REQUESTS, half);
}

/* ---- the reserve ---- */

enum { GREEDY = 3, MODEST = 4 };

/* Everything that is not reserved is used: by charges without a tenant, and past the limit by what cannot be refused. */
static void use_all_but_the_reserve(void)
{
    for (int i = 0; i < BUDGET_ACCOUNTS; i++)
        while (budget_charge(i, 16))
            ;
    budget_add(BUDGET_VERSIONS, LIMIT);
}

static void release_all(void)
{
    for (int i = 0; i < BUDGET_ACCOUNTS; i++)
        budget_release(i, budget_used(i));
}

static void test_the_first_bytes_of_a_tenant_have_room_whatever_others_hold(void **state)
{
    (void)state;
    static const enum budget_account by_tenant[] = {BUDGET_REQUESTS, BUDGET_BODIES, BUDGET_WRITES};
    size_t held[GREEDY];
    for (size_t i = 0; i < sizeof by_tenant / sizeof *by_tenant; i++) {
        enum budget_account account = by_tenant[i];
        size_t first = budget_first(account);
        for (int greedy = 0; greedy < GREEDY; greedy++)
            held[greedy] = take_all(account, (uint64_t)greedy);
        use_all_but_the_reserve();
        for (unsigned modest = 0; modest < MODEST; modest++) {
            assert_true(budget_has_room(account, 100 + modest, first));
            assert_true(budget_charge_tenant(account, 100 + modest, first));
            assert_false(budget_charge_tenant(account, 100 + modest, 1)); /* only its first bytes */
        }
        assert_false(budget_charge_tenant(account, 0, 1));
        assert_false(budget_charge(account, 1));
        budget_release_tenant(account, 100, first);
        assert_false(budget_charge(account, 1)); /* what is released is reserved again */
        assert_true(budget_charge_tenant(account, 100, first));
        for (unsigned modest = 0; modest < MODEST; modest++)
            budget_release_tenant(account, 100 + modest, first);
        for (int greedy = 0; greedy < GREEDY; greedy++)
            budget_release_tenant(account, (uint64_t)greedy, held[greedy]);
        release_all();
    }
}

/* Bytes that were charged without a tenant become the tenant's: then they are reserved ones. */
static void test_first_bytes_that_are_charged_already_make_room_for_others(void **state)
{
    (void)state;
    size_t first = budget_first(BUDGET_REQUESTS);
    fill(BUDGET_REQUESTS, general(BUDGET_REQUESTS));
    assert_false(budget_charge(BUDGET_REQUESTS, 1));
    assert_true(budget_hold_tenant(BUDGET_REQUESTS, 1, first));
    fill(BUDGET_REQUESTS, first);
    assert_false(budget_charge(BUDGET_REQUESTS, 1));
    budget_leave_tenant(BUDGET_REQUESTS, 1, first);
    assert_true(budget_is_full(BUDGET_REQUESTS));
    release_all();
}

static void test_many_tenants_together_stay_within_the_limit(void **state)
{
    (void)state;
    enum { TENANTS = 1000 };
    static size_t held[TENANTS];
    use_all_but_the_reserve();
    budget_release(BUDGET_VERSIONS, LIMIT);
    size_t sum = 0;
    for (unsigned tenant = 0; tenant < TENANTS; tenant++)
        held[tenant] = take_all(BUDGET_WRITES, tenant);
    for (int i = 0; i < BUDGET_ACCOUNTS; i++)
        sum += budget_used(i);
    assert_in_range(sum, LIMIT - 8 * 1024, LIMIT); /* the reserves of two accounts are left */
    for (unsigned tenant = 0; tenant < TENANTS; tenant++)
        budget_release_tenant(BUDGET_WRITES, tenant, held[tenant]);
    release_all();
}

static void test_a_bound_has_a_reserve_too(void **state)
{
    (void)state;
    budget_set_limit(0);
    budget_set_bound(BUDGET_BODIES, 16 * 1024);
    while (budget_charge(BUDGET_BODIES, 16))
        ;
    assert_int_equal(budget_used(BUDGET_BODIES), 14 * 1024);
    assert_true(budget_charge_tenant(BUDGET_BODIES, 1, budget_first(BUDGET_BODIES)));
    assert_false(budget_charge_tenant(BUDGET_BODIES, 1, 1));
    budget_release_tenant(BUDGET_BODIES, 1, budget_first(BUDGET_BODIES));
    release_all();
}

/* ---- after a burst ---- */

static void count_call(void *context)
{
    ++*(int *)context;
}

static void test_a_burst_is_reported_once(void **state)
{
    (void)state;
    const size_t burst = 64u << 20;
    int calls = 0;
    budget_on_freed(count_call, &calls);
    for (int i = 0; i < 3; i++) {
        budget_add(BUDGET_VERSIONS, burst);
        budget_release(BUDGET_VERSIONS, burst);
    }
    assert_int_equal(calls, 1);
    budget_freed_reset();
    budget_add(BUDGET_VERSIONS, burst);
    budget_release(BUDGET_VERSIONS, burst);
    assert_int_equal(calls, 2);
    budget_on_freed(NULL, NULL);
}

/* Memory that is used again at once would only be faulted in again. */
static void test_a_steady_load_is_no_burst(void **state)
{
    (void)state;
    const size_t mib = 1u << 20;
    int calls = 0;
    budget_set_limit(0);
    budget_set_bound(BUDGET_BODIES, 32 * mib);
    budget_on_freed(count_call, &calls);
    budget_add(BUDGET_VERSIONS, 31 * mib);
    for (int i = 0; i < 1000; i++) {
        budget_release(BUDGET_VERSIONS, mib);
        budget_add(BUDGET_VERSIONS, mib);
        assert_false(budget_charge(BUDGET_BODIES, 64 * mib)); /* what is refused was never used */
    }
    budget_release(BUDGET_VERSIONS, 31 * mib);
    assert_int_equal(calls, 0);
    budget_add(BUDGET_VERSIONS, 32 * mib);
    budget_release(BUDGET_VERSIONS, 32 * mib);
    assert_int_equal(calls, 1);
    budget_on_freed(NULL, NULL);
}

/* ---- threads ---- */

/* What was admitted, counted apart from the budget. */
static atomic_size_t admitted;
static atomic_bool was_exceeded;

static void *charge_much(void *number)
{
    enum budget_account account = (uintptr_t)number % BUDGET_ACCOUNTS;
    for (unsigned i = 0; i < ROUNDS; i++) {
        size_t bytes = 1024 * (1 + (i + (uintptr_t)number) % 12);
        if (!budget_charge_tenant(account, i, bytes))
            continue;
        if (bytes + atomic_fetch_add(&admitted, bytes) > LIMIT)
            atomic_store(&was_exceeded, true);
        atomic_fetch_sub(&admitted, bytes);
        budget_release_tenant(account, i, bytes);
    }
    return NULL;
}

static void test_threads_never_exceed_the_limit_together(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, charge_much, (void *)(i / 2)), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_false(atomic_load(&was_exceeded));
    for (int i = 0; i < BUDGET_ACCOUNTS; i++)
        assert_int_equal(budget_used(i), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_shares_and_the_common_part_are_the_limit, reset),
        cmocka_unit_test_setup(test_an_account_within_its_share_is_never_refused, reset),
        cmocka_unit_test_setup(test_what_cannot_be_refused_makes_its_account_full, reset),
        cmocka_unit_test_setup(test_a_bound_holds_without_a_limit, reset),
        cmocka_unit_test_setup(test_a_bound_above_the_share_does_not_raise_it, reset),
        cmocka_unit_test_setup(test_a_tenant_leaves_room_for_others, reset),
        cmocka_unit_test_setup(test_a_tenant_holds_what_is_charged_already, reset),
        cmocka_unit_test_setup(test_a_tenant_takes_half_of_what_other_accounts_have_left, reset),
        cmocka_unit_test_setup(test_the_first_bytes_of_a_tenant_have_room_whatever_others_hold, reset),
        cmocka_unit_test_setup(test_first_bytes_that_are_charged_already_make_room_for_others, reset),
        cmocka_unit_test_setup(test_many_tenants_together_stay_within_the_limit, reset),
        cmocka_unit_test_setup(test_a_bound_has_a_reserve_too, reset),
        cmocka_unit_test_setup(test_a_steady_load_is_no_burst, reset),
        cmocka_unit_test_setup(test_a_burst_is_reported_once, reset),
        cmocka_unit_test_setup(test_threads_never_exceed_the_limit_together, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
