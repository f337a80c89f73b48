/* Deadlines, and C3: times are RFC 3339 in UTC. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <time.h>

#include "base/clock.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define US INT64_C(1000000)

static void monotonic_time_does_not_go_back(void **state)
{
    (void)state;
    int64_t last = clock_mono_ns();

    for (int i = 0; i < 1000; i++) {
        int64_t now = clock_mono_ns();
        assert_true(now >= last);
        last = now;
    }
    assert_true(clock_deadline_ms(1000) > last);
    assert_true(clock_unix_us() > INT64_C(1600000000) * US);
}

static void ms_left_rounds_up_and_is_capped(void **state)
{
    (void)state;
    assert_int_equal(clock_ms_left(0), 0);
    assert_int_equal(clock_ms_left(INT64_MIN), 0);
    assert_int_equal(clock_ms_left(clock_mono_ns()), 0);
    assert_int_equal(clock_ms_left(CLOCK_NEVER), INT32_MAX);
    int left = clock_ms_left(clock_deadline_ms(3600000));
    assert_in_range(left, 3500000, 3600000);
}

static void formats_as_C3_says(void **state)
{
    (void)state;
    static const struct {
        int64_t unix_us;
        const char *text;
    } cases[] = {
        {0, "1970-01-01T00:00:00Z"},
        {1, "1970-01-01T00:00:00.000001Z"},
        {-1, "1969-12-31T23:59:59.999999Z"},
        {INT64_C(1772193600) * US + 123456, "2026-02-27T12:00:00.123456Z"},
        {INT64_C(951782400) * US, "2000-02-29T00:00:00Z"},
        {INT64_C(-62167219200) * US, "0000-01-01T00:00:00Z"},
        {INT64_C(253402300799) * US + 999999, "9999-12-31T23:59:59.999999Z"},
        {INT64_MAX, "9999-12-31T23:59:59.999999Z"},
        {INT64_MIN, "0000-01-01T00:00:00Z"},
    };
    char out[CLOCK_RFC3339_BYTES];

    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(clock_rfc3339(cases[i].unix_us, out), strlen(cases[i].text));
        assert_string_equal(out, cases[i].text);
    }
}

static void parses_what_RFC_3339_allows(void **state)
{
    (void)state;
    static const struct {
        struct str text;
        int64_t unix_us;
    } cases[] = {
        {STR("1970-01-01T00:00:00Z"), 0},
        {STR("1970-01-01t00:00:00z"), 0},
        {STR("1970-01-01T00:00:00-00:00"), 0},
        {STR("1970-01-01T05:30:00+05:30"), 0},
        {STR("1969-12-31T16:00:00-08:00"), 0},
        {STR("1970-01-02T00:00:00+23:59"), 60 * US},
        {STR("1970-01-01T00:00:00.1Z"), 100000},
        {STR("1970-01-01T00:00:00.123456789Z"), 123456},
        {STR("1969-12-31T23:59:59.5Z"), -500000},
        {STR("2000-02-29T00:00:00Z"), INT64_C(951782400) * US},
        {STR("2024-02-29T00:00:00Z"), INT64_C(1709164800) * US},
        {STR("2016-12-31T23:59:60Z"), INT64_C(1483228800) * US},
        {STR("2017-01-01T00:59:60+01:00"), INT64_C(1483228800) * US},
        {STR("0000-01-01T00:00:00Z"), INT64_C(-62167219200) * US},
        {STR("9999-12-31T23:59:59Z"), INT64_C(253402300799) * US},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t us = -42;
        assert_true(clock_rfc3339_parse(cases[i].text, &us));
        assert_true(us == cases[i].unix_us);
    }
}

static void refuses_everything_else(void **state)
{
    (void)state;
    static const struct str bad[] = {
        STR_NONE,
        STR("2026"),
        STR("2026-02-27"),
        STR("2026-02-27T12:00:00"),
        STR("2026-02-27 12:00:00Z"),
        STR("2026-02-27T12:00Z"),
        STR("2026-2-27T12:00:00Z"),
        STR("26-02-27T12:00:00Z"),
        STR("+2026-02-27T12:00:00Z"),
        STR("2026-02-27T12:00:00ZZ"),
        STR("2026-02-27T12:00:00Z "),
        STR(" 2026-02-27T12:00:00Z"),
        STR("2026-02-27T12:00:00.Z"),
        STR("2026-02-27T12:00:00,5Z"),
        STR("2026-02-27T12:00:00+0100"),
        STR("2026-02-27T12:00:00+01"),
        STR("2026-02-27T12:00:00+24:00"),
        STR("2026-02-27T12:00:00+01:60"),
        STR("2026-02-27T24:00:00Z"),
        STR("2026-02-27T12:60:00Z"),
        STR("2026-02-27T12:00:61Z"),
        STR("2026-02-27T12:00:60Z"),
        STR("2026-02-27T23:59:60Z"),
        STR("2026-00-27T12:00:00Z"),
        STR("2026-13-27T12:00:00Z"),
        STR("2026-02-00T12:00:00Z"),
        STR("2026-02-29T12:00:00Z"),
        STR("1900-02-29T12:00:00Z"),
        STR("2024-02-30T12:00:00Z"),
        STR("2026-04-31T12:00:00Z"),
        STR("0000-01-01T00:00:00+00:01"),
        STR("9999-12-31T23:59:59-00:01"),
        STR("2026-02-27T12:00:0\xD9\xA0Z"),
        STR("2026-02-27T12:00:00Z\0"),
    };
    int64_t us = 42;

    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(clock_rfc3339_parse(bad[i], &us));
    assert_int_equal(us, 42);
}

/* Every day of 0000 to 9999 against the C library's calendar. */
static void agrees_with_the_c_library_on_every_day(void **state)
{
    (void)state;
    char ours[CLOCK_RFC3339_BYTES], theirs[64];

    for (int64_t days = -719528; days <= 2932896; days += 1) {
        time_t seconds = (time_t)(days * 86400 + (days & 0x3FFF));
        struct tm tm;
        int64_t back;
        gmtime_r(&seconds, &tm);
        size_t len = clock_rfc3339((int64_t)seconds * US, ours);
        if (days % 97 == 0) {
            int year = tm.tm_year + 1900;
            assert_true(snprintf(theirs, sizeof(theirs), "%04d-%02d-%02dT%02d:%02d:%02dZ", year,
                                 tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec) == 20);
            assert_string_equal(ours, theirs);
        }
        if (!clock_rfc3339_parse(str_of(ours, len), &back) || back != (int64_t)seconds * US)
            fail_msg("%s does not come back", ours);
    }
}

static void http_dates_are_imf_fixdate(void **state)
{
    (void)state;
    char out[CLOCK_HTTP_DATE_BYTES];

    clock_http_date(INT64_C(784111777) * US, out);
    assert_string_equal(out, "Sun, 06 Nov 1994 08:49:37 GMT");
    clock_http_date(0, out);
    assert_string_equal(out, "Thu, 01 Jan 1970 00:00:00 GMT");
    clock_http_date(-1, out);
    assert_string_equal(out, "Wed, 31 Dec 1969 23:59:59 GMT");
    clock_http_date(INT64_C(951782400) * US + 999999, out);
    assert_string_equal(out, "Tue, 29 Feb 2000 00:00:00 GMT");
}

static void a_wait_for_a_condition_ends_at_its_deadline(void **state)
{
    (void)state;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    int64_t deadline_ns = clock_deadline_ms(20);

    pthread_mutex_lock(&mutex);
    while (clock_cond_wait(&cond, &mutex, deadline_ns)) /* it may wake for nothing */
        assert_true(clock_mono_ns() < deadline_ns);
    pthread_mutex_unlock(&mutex);
    assert_true(clock_mono_ns() >= deadline_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(monotonic_time_does_not_go_back),
        cmocka_unit_test(ms_left_rounds_up_and_is_capped),
        cmocka_unit_test(formats_as_C3_says),
        cmocka_unit_test(parses_what_RFC_3339_allows),
        cmocka_unit_test(refuses_everything_else),
        cmocka_unit_test(agrees_with_the_c_library_on_every_day),
        cmocka_unit_test(http_dates_are_imf_fixdate),
        cmocka_unit_test(a_wait_for_a_condition_ends_at_its_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
