/* The waiters for decisions of updates (R1). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "modules/refdata/command/command.h"

enum { MANY = 10000 };

static size_t chain_length(const struct refdata_waiter *chain)
{
    size_t count = 0;
    for (; chain; chain = chain->next)
        count++;
    return count;
}

static void an_event_is_a_tenants_own(void **state)
{
    (void)state;
    struct map waiters = {0};
    struct refdata_waiter a = {.tenant = STR("a"), .event_id = STR("e")};
    struct refdata_waiter b = {.tenant = STR("b"), .event_id = STR("e")};
    refdata_waiters_add(&waiters, &a);
    refdata_waiters_add(&waiters, &b);
    assert_ptr_equal(refdata_waiters_take(&waiters, STR("a"), STR("e")), &a);
    assert_null(a.next);
    assert_null(refdata_waiters_take(&waiters, STR("a"), STR("e")));
    assert_true(refdata_waiters_remove(&waiters, &b));
    assert_false(refdata_waiters_remove(&waiters, &b));
    assert_int_equal(waiters.count, 0);
    map_deinit(&waiters);
}

static void all_who_wait_for_an_event_are_taken_at_once(void **state)
{
    (void)state;
    struct map waiters = {0};
    struct refdata_waiter same[3], other = {.tenant = STR("t"), .event_id = STR("f")};
    refdata_waiters_add(&waiters, &other);
    for (size_t i = 0; i < 3; i++) {
        same[i] = (struct refdata_waiter){.tenant = STR("t"), .event_id = STR("e")};
        refdata_waiters_add(&waiters, &same[i]);
    }
    assert_true(refdata_waiters_remove(&waiters, &same[1]));
    assert_int_equal(chain_length(refdata_waiters_take(&waiters, STR("t"), STR("e"))), 2);
    assert_int_equal(chain_length(refdata_waiters_take_all(&waiters)), 1);
    assert_null(refdata_waiters_take_all(&waiters));
    map_deinit(&waiters);
}

static void nobody_is_lost_while_it_grows(void **state)
{
    (void)state;
    struct map waiters = {0};
    struct refdata_waiter *each = calloc(MANY, sizeof *each);
    char(*names)[16] = calloc(MANY, sizeof *names);
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        each[i] = (struct refdata_waiter){.tenant = STR("t"), .event_id = str_from(names[i])};
        refdata_waiters_add(&waiters, &each[i]);
    }
    assert_int_equal(waiters.count, MANY);
    for (int i = 0; i < MANY; i += 2)
        assert_ptr_equal(refdata_waiters_take(&waiters, STR("t"), str_from(names[i])), &each[i]);
    for (int i = 1; i < MANY; i += 4)
        assert_true(refdata_waiters_remove(&waiters, &each[i]));
    assert_int_equal(chain_length(refdata_waiters_take_all(&waiters)), MANY / 4);
    map_deinit(&waiters);
    free(names);
    free(each);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_is_a_tenants_own),
        cmocka_unit_test(all_who_wait_for_an_event_are_taken_at_once),
        cmocka_unit_test(nobody_is_lost_while_it_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
