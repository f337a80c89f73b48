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

static size_t take(struct map *waiters, struct str event_id)
{
    struct refdata_waiter *waiter;
    size_t count = 0;
    for (; (waiter = refdata_waiters_find(waiters, STR("t"), event_id)) != NULL; count++)
        assert_true(refdata_waiters_remove(waiters, waiter));
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
    assert_ptr_equal(refdata_waiters_find(&waiters, STR("a"), STR("e")), &a);
    assert_true(refdata_waiters_remove(&waiters, &a));
    assert_null(refdata_waiters_find(&waiters, STR("a"), STR("e")));
    assert_ptr_equal(refdata_waiters_find(&waiters, STR("b"), STR("e")), &b);
    assert_true(refdata_waiters_remove(&waiters, &b));
    assert_false(refdata_waiters_remove(&waiters, &b));
    assert_int_equal(waiters.count, 0);
    map_deinit(&waiters);
}

static void all_waiters_of_an_event_are_found(void **state)
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
    assert_int_equal(take(&waiters, STR("e")), 2);
    assert_int_equal(take(&waiters, STR("f")), 1);
    assert_int_equal(waiters.count, 0);
    map_deinit(&waiters);
}

static void no_waiter_is_lost_while_the_map_grows(void **state)
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
    for (int i = 0; i < MANY; i++)
        assert_int_equal(take(&waiters, str_from(names[i])), 1);
    assert_int_equal(waiters.count, 0);
    map_deinit(&waiters);
    free(names);
    free(each);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_is_a_tenants_own),
        cmocka_unit_test(all_waiters_of_an_event_are_found),
        cmocka_unit_test(no_waiter_is_lost_while_the_map_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
