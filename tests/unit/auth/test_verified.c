/* C5: the tables of known tokens are bounded, exact, and forget the right ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "auth/state.h"
#include "base/budget.h"

static struct auth_claims claims_of(const char *tenant)
{
    return (struct auth_claims){.tenant = str_from(tenant), .subject = STR("u1"), .exp_us = 5000000};
}

static void put(struct auth_verified_table *table, const char *token, const char *tenant, uint64_t generation)
{
    struct auth_claims claims = claims_of(tenant);
    free(auth_verified_put(table, str_from(token), &claims, generation));
}

static void finds_exactly_what_was_put(void **state)
{
    (void)state;
    struct auth_verified_table table;
    auth_verified_init(&table, 100);
    put(&table, "Bearer aaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "t1", 1);
    put(&table, "Bearer baaaaaaaaaaaaaaaaaaaaaaaaaaaa", "t2", 1);
    for (int round = 0; round < 3; round++) { /* the same tail: the latest hit must not stand for the other */
        struct auth_verified *a = auth_verified_find(&table, STR("Bearer aaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
        struct auth_verified *b = auth_verified_find(&table, STR("Bearer baaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
        assert_true(str_eq(a->identity.tenant, STR("t1")));
        assert_true(str_eq(b->identity.tenant, STR("t2")));
        assert_true(str_eq(b->identity.subject, STR("u1")));
        assert_int_equal(b->identity.expires_at_s, 5);
    }
    assert_null(auth_verified_find(&table, STR("Bearer aaaaaaaaaaaaaaaaaaaaaaaaaaaa")));
    assert_null(auth_verified_find(&table, STR("Bearer aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")));
    assert_null(auth_verified_find(&table, STR("bearer aaaaaaaaaaaaaaaaaaaaaaaaaaaaa")));
    assert_null(auth_verified_find(&table, STR("")));
    auth_verified_deinit(&table);
}

static void a_newer_entry_takes_the_place_of_its_own(void **state)
{
    (void)state;
    struct auth_verified_table table;
    auth_verified_init(&table, 16);
    put(&table, "Bearer x", "t1", 1);
    assert_int_equal(auth_verified_find(&table, STR("Bearer x"))->generation, 1);
    put(&table, "Bearer x", "t2", 2);
    assert_int_equal(auth_verified_find(&table, STR("Bearer x"))->generation, 2);
    assert_true(str_eq(auth_verified_find(&table, STR("Bearer x"))->identity.tenant, STR("t2")));
    auth_verified_deinit(&table);
}

static void a_full_account_keeps_what_is_used(void **state)
{
    (void)state;
    struct auth_verified_table table;
    char token[32];

    budget_set_limit(400 * 1024); /* 20 KiB for tokens */
    auth_verified_init(&table, 10000);
    put(&table, "Bearer dear", "t", 1);
    for (int i = 0; i < 10000; i++) {
        assert_non_null(auth_verified_find(&table, STR("Bearer dear")));
        snprintf(token, sizeof(token), "Bearer %d", i);
        for (struct auth_verified *evicted; (evicted = auth_verified_evict(&table)) != NULL;)
            free(evicted);
        put(&table, token, "t", 1);
    }
    assert_in_range(budget_used(BUDGET_TOKENS), budget_share(BUDGET_TOKENS) / 2,
                    budget_share(BUDGET_TOKENS) + 1024);
    auth_verified_deinit(&table);
    budget_set_limit(0);
}

static void a_full_table_keeps_what_is_used(void **state)
{
    (void)state;
    struct auth_verified_table table;
    char token[32];
    size_t held = 0;

    auth_verified_init(&table, 16);
    put(&table, "Bearer dear", "t", 1);
    for (int i = 0; i < 10000; i++) {
        assert_non_null(auth_verified_find(&table, STR("Bearer dear")));
        snprintf(token, sizeof(token), "Bearer %d", i);
        put(&table, token, "t", 1);
    }
    for (int i = 0; i < 10000; i++) {
        snprintf(token, sizeof(token), "Bearer %d", i);
        held += auth_verified_find(&table, str_from(token)) != NULL;
    }
    assert_int_equal(held, 15);
    auth_verified_deinit(&table);
}

static void denials_end_and_belong_to_a_generation(void **state)
{
    (void)state;
    struct auth_denied_table table;
    enum auth_reason reason;

    auth_denied_init(&table, 100);
    auth_denied_put(&table, STR("Bearer x"), 1, 1000, AUTH_REASON_SIGNATURE);
    assert_true(auth_denied_find(&table, STR("Bearer x"), 1, 999, &reason));
    assert_int_equal(reason, AUTH_REASON_SIGNATURE);
    assert_false(auth_denied_find(&table, STR("Bearer x"), 1, 1000, &reason));
    assert_false(auth_denied_find(&table, STR("Bearer x"), 2, 999, &reason));
    assert_false(auth_denied_find(&table, STR("Bearer y"), 1, 999, &reason));
    auth_denied_put(&table, STR("Bearer x"), 2, 2000, AUTH_REASON_EXPIRED);
    assert_true(auth_denied_find(&table, STR("Bearer x"), 2, 1500, &reason));
    assert_int_equal(reason, AUTH_REASON_EXPIRED);
    auth_denied_deinit(&table);
}

static void denials_are_bounded_and_the_latest_stays(void **state)
{
    (void)state;
    struct auth_denied_table table;
    enum auth_reason reason;
    char token[32];
    size_t held = 0;

    auth_denied_init(&table, 16);
    for (int i = 0; i < 5000; i++) {
        snprintf(token, sizeof(token), "Bearer %d", i);
        auth_denied_put(&table, str_from(token), 1, 1000 + i, AUTH_REASON_SIGNATURE);
        assert_true(auth_denied_find(&table, str_from(token), 1, 0, &reason));
    }
    for (int i = 0; i < 5000; i++) {
        snprintf(token, sizeof(token), "Bearer %d", i);
        held += auth_denied_find(&table, str_from(token), 1, 0, &reason);
    }
    assert_int_equal(held, 16);
    auth_denied_deinit(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_exactly_what_was_put),
        cmocka_unit_test(a_newer_entry_takes_the_place_of_its_own),
        cmocka_unit_test(a_full_account_keeps_what_is_used),
        cmocka_unit_test(a_full_table_keeps_what_is_used),
        cmocka_unit_test(denials_end_and_belong_to_a_generation),
        cmocka_unit_test(denials_are_bounded_and_the_latest_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
