/* E4: the duplicate window covers every retry that an event's outbox may make. */
#include "modules/entitlement/entitlement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct outbox_settings seed = {
    .lease_ms = 30000,
    .attempts_max = 10,
    .backoff_base_ms = 1000,
    .backoff_max_ms = 60000,
    .jitter_min = 500,
    .jitter_max = 1500,
};

static void the_horizon_is_all_pauses_at_their_longest_and_all_leases(void **state)
{
    (void)state;
    /* 1 2 4 8 16 32 60 60 60 seconds, each half as long again, and ten leases */
    assert_int_equal(entitlement_retry_horizon_ms(&seed), 243 * 1500 + 10 * 30000);
}

static void short_pauses_count_as_the_shortest_allowed(void **state)
{
    (void)state;
    struct outbox_settings settings = seed;
    settings.backoff_min_ms = 5000;
    settings.attempts_max = 3;
    assert_int_equal(entitlement_retry_horizon_ms(&settings), 5000 + 5000 + 3 * 30000);
}

static void a_jitter_that_is_turned_round_counts_as_its_longest(void **state)
{
    (void)state;
    struct outbox_settings settings = seed;
    settings.jitter_min = 1500;
    settings.jitter_max = 500; /* then every pause is multiplied by the first */
    assert_int_equal(entitlement_retry_horizon_ms(&settings), entitlement_retry_horizon_ms(&seed));
}

static void no_setting_that_is_allowed_overflows(void **state)
{
    (void)state;
    struct outbox_settings settings = {.lease_ms = 3600000,
                                       .attempts_max = 1000,
                                       .backoff_base_ms = 3600000,
                                       .backoff_max_ms = 86400000,
                                       .jitter_max = 10000};
    int64_t horizon_ms = entitlement_retry_horizon_ms(&settings);
    assert_true(horizon_ms > 900 * INT64_C(864000000) && horizon_ms < INT64_MAX / 1000000);
}

static void the_window_is_the_configured_one_or_longer_than_the_horizon(void **state)
{
    (void)state;
    struct entitlement_settings settings = {.outbox = seed};
    assert_true(entitlement_duplicate_window_ms(&settings) > entitlement_retry_horizon_ms(&seed));
    settings.nats.duplicate_window_ms = 3600000;
    assert_int_equal(entitlement_duplicate_window_ms(&settings), 3600000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_horizon_is_all_pauses_at_their_longest_and_all_leases),
        cmocka_unit_test(short_pauses_count_as_the_shortest_allowed),
        cmocka_unit_test(a_jitter_that_is_turned_round_counts_as_its_longest),
        cmocka_unit_test(no_setting_that_is_allowed_overflows),
        cmocka_unit_test(the_window_is_the_configured_one_or_longer_than_the_horizon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
