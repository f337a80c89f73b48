/* What results come to, and backoff: O2, O3. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "outbox/outbox_inside.h"

static const struct outbox_settings settings = {.attempts_max = 10,
                                                .backoff_base_ms = 1000,
                                                .backoff_max_ms = 60000,
                                                .backoff_min_ms = 600,
                                                .jitter_min = 500,
                                                .jitter_max = 1500};

static void a_pause_doubles_up_to_its_cap_and_is_jittered(void **state)
{
    (void)state;
    int64_t least = INT64_MAX, most = 0;
    for (int i = 0; i < 2000; i++) {
        int64_t first = outbox_backoff_ms(&settings, 1), third = outbox_backoff_ms(&settings, 3),
                far = outbox_backoff_ms(&settings, 1000);
        assert_in_range(first, 600, 1500);
        assert_in_range(third, 2000, 6000);
        assert_in_range(far, 30000, 90000);
        least = third < least ? third : least;
        most = third > most ? third : most;
    }
    assert_true(least < 2500 && most > 5500); /* 2,000 draws that miss an eighth: not in a lifetime */
}

static void conclude(struct outbox_event *events, struct outbox_result *results, size_t count)
{
    struct outbox outbox = {.settings = settings,
                            .claim = {.events = events, .results = results, .count = count}};
    outbox_results_conclude(&outbox);
}

static void what_stands_behind_a_retry_is_left(void **state)
{
    (void)state;
    struct outbox_event events[] = {{.run = 1}, {.run = 1}, {.run = 1}, {.run = 2}, {.run = 2}};
    struct outbox_result results[] = {{.kind = OUTBOX_DONE},
                                      {.kind = OUTBOX_RETRY},
                                      {.kind = OUTBOX_DONE},
                                      {.kind = OUTBOX_POISON},
                                      {.kind = OUTBOX_DONE}};
    conclude(events, results, 5);
    assert_int_equal(results[0].kind, OUTBOX_DONE);
    assert_int_equal(results[1].kind, OUTBOX_RETRY);
    assert_int_equal(results[2].kind, OUTBOX_RELEASE);
    assert_int_equal(results[3].kind, OUTBOX_POISON);
    assert_int_equal(results[4].kind, OUTBOX_DONE); /* FAILED blocks nothing */
}

static void the_tenth_failure_is_the_last(void **state)
{
    (void)state;
    struct outbox_event events[] = {{.run = 1, .attempts = 8}, {.run = 2, .attempts = 9}, {.run = 2}};
    struct outbox_result results[] = {{.kind = OUTBOX_RETRY}, {.kind = OUTBOX_RETRY}, {.kind = OUTBOX_DONE}};
    conclude(events, results, 3);
    assert_int_equal(results[0].kind, OUTBOX_RETRY);
    assert_int_equal(results[1].kind, OUTBOX_POISON);
    assert_int_equal(results[2].kind,
                     OUTBOX_RELEASE); /* the publisher held it back, whatever its result says */
}

static void reasons_are_cut_between_characters(void **state)
{
    (void)state;
    struct outbox_event event = {0};
    struct outbox_result result = {0};
    struct outbox_batch batch = {.events = &event, .count = 1, .results = &result};
    char long_text[600];
    for (size_t i = 0; i + 2 < sizeof long_text; i += 2)
        memcpy(long_text + i, "é", 3);
    for (int shift = 0; shift < 2; shift++) {
        outbox_batch_set(&batch, 0, OUTBOX_RETRY, "%s%s", shift ? "x" : "", long_text);
        assert_int_equal(result.kind, OUTBOX_RETRY);
        assert_true(str_is_utf8(str_from(result.reason)));
        assert_true(strlen(result.reason) > OUTBOX_REASON_BYTES - 5);
        assert_memory_equal(result.reason + shift, "éé", 4);
    }
    outbox_batch_set(&batch, 0, OUTBOX_POISON, "odd %s bytes", "\xff\xc3");
    assert_string_equal(result.reason, "odd ?? bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pause_doubles_up_to_its_cap_and_is_jittered),
        cmocka_unit_test(what_stands_behind_a_retry_is_left),
        cmocka_unit_test(the_tenth_failure_is_the_last),
        cmocka_unit_test(reasons_are_cut_between_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
