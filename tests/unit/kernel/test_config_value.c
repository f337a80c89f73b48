/* Texts to numbers: units, overflow, and what is refused because it could be read in two ways. */
#include "config_load.h"
#include "kernel/config_inside.h"

static enum config_fit parse(enum setting_type type, const char *text, int64_t *value)
{
    static const char *const choices[] = {"red", "green", NULL};
    struct setting_row row = {.type = type, .choices = choices};

    return config_value_parse(&row, str_from(text), value);
}

static void fits(enum setting_type type, const char *text, int64_t expected)
{
    int64_t value = -1;

    assert_int_equal(parse(type, text, &value), CONFIG_FITS);
    assert_int_equal(value, expected);
}

static void malformed(enum setting_type type, const char *const *texts)
{
    int64_t value;

    for (; *texts; texts++)
        if (parse(type, *texts, &value) != CONFIG_MALFORMED)
            fail_msg("taken: '%s'", *texts);
}

static void whole_numbers(void **state)
{
    (void)state;
    int64_t value;

    fits(SETTING_INT, "0", 0);
    fits(SETTING_INT, "-17", -17);
    fits(SETTING_INT, "9223372036854775807", INT64_MAX);
    fits(SETTING_INT, "-9223372036854775808", INT64_MIN);
    assert_int_equal(parse(SETTING_INT, "9223372036854775808", &value), CONFIG_OUT_OF_BOUNDS);
    assert_int_equal(parse(SETTING_INT, "-9223372036854775809", &value), CONFIG_OUT_OF_BOUNDS);
    malformed(SETTING_INT, (const char *const[]){"", "-", "+1", "1 ", " 1", "1.0", "1e3", "0x10", "010",
                                                 "-01", "1_000", "--1", "true", NULL});
}

static void durations(void **state)
{
    (void)state;
    int64_t value;

    fits(SETTING_DURATION_MS, "0", 0);
    fits(SETTING_DURATION_MS, "250", 250);
    fits(SETTING_DURATION_MS, "250ms", 250);
    fits(SETTING_DURATION_MS, "1s", 1000);
    fits(SETTING_DURATION_MS, "5m", 300000);
    fits(SETTING_DURATION_MS, "1h", 3600000);
    fits(SETTING_DURATION_MS, "30d", INT64_C(2592000000));
    fits(SETTING_DURATION_MS, "106751991167d", INT64_C(106751991167) * 86400000);
    assert_int_equal(parse(SETTING_DURATION_MS, "106751991168d", &value), CONFIG_OUT_OF_BOUNDS);
    assert_int_equal(parse(SETTING_DURATION_MS, "99999999999999999999s", &value), CONFIG_OUT_OF_BOUNDS);
    malformed(SETTING_DURATION_MS, (const char *const[]){"", "ms", "-1s", "1.5s", "1 s", "1S", "5min",
                                                         "1h30m", "05s", "1sx", "PT5S", NULL});
}

static void decimals(void **state)
{
    (void)state;
    int64_t value;

    fits(SETTING_DECIMAL, "0", 0);
    fits(SETTING_DECIMAL, "0.5", 500);
    fits(SETTING_DECIMAL, "1.25", 1250);
    fits(SETTING_DECIMAL, "12.034", 12034);
    fits(SETTING_DECIMAL, "9223372036854775.807", INT64_MAX);
    assert_int_equal(parse(SETTING_DECIMAL, "9223372036854775.808", &value), CONFIG_OUT_OF_BOUNDS);
    assert_int_equal(parse(SETTING_DECIMAL, "99999999999999999999", &value), CONFIG_OUT_OF_BOUNDS);
    malformed(SETTING_DECIMAL, (const char *const[]){"", ".", "1.", ".5", "-0.5", "+1", "1,5", "1.2345",
                                                     "1e3", "00.5", "0x1", "1.5.0", "1.-5", " 1", NULL});
}

static void sizes(void **state)
{
    (void)state;
    int64_t value;

    fits(SETTING_SIZE, "1000", 1000);
    fits(SETTING_SIZE, "64KiB", 65536);
    fits(SETTING_SIZE, "8MiB", 8 << 20);
    fits(SETTING_SIZE, "8589934591GiB", INT64_C(8589934591) << 30);
    assert_int_equal(parse(SETTING_SIZE, "8589934592GiB", &value), CONFIG_OUT_OF_BOUNDS);
    malformed(SETTING_SIZE, (const char *const[]){"", "KiB", "8MB", "8M", "8mib", "8 MiB", "8k", "-1",
                                                  "1.5MiB", "0x10", NULL});
}

static void words(void **state)
{
    (void)state;
    fits(SETTING_BOOL, "true", 1);
    fits(SETTING_BOOL, "false", 0);
    malformed(SETTING_BOOL,
              (const char *const[]){"", "True", "TRUE", "yes", "no", "on", "off", "1", "0", NULL});
    fits(SETTING_ENUM, "red", 0);
    fits(SETTING_ENUM, "green", 1);
    malformed(SETTING_ENUM, (const char *const[]){"", "Red", "re", "redd", NULL});
}

static void bounds_are_inclusive_and_printed_in_units(void **state)
{
    (void)state;
    static const struct {
        struct setting_row row;
        const char *text;
    } cases[] = {
        {{.type = SETTING_INT, .min = -5, .max = 5}, "-5 to 5"},
        {{.type = SETTING_INT, .min = 7, .max = 7}, "7"},
        {{.type = SETTING_INT, .min = 7, .max = INT64_MAX}, "at least 7"},
        {{.type = SETTING_INT, .min = INT64_MIN, .max = 7}, "at most 7"},
        {{.type = SETTING_INT}, "a number of 64 bits"},
        {{.type = SETTING_DURATION_MS, .min = 1, .max = 90000}, "1ms to 90s"},
        {{.type = SETTING_DECIMAL, .min = 0, .max = 1500}, "0 to 1.5"},
        {{.type = SETTING_DURATION_MS, .min = 0, .max = 86400000}, "0 to 1d"},
        {{.type = SETTING_SIZE, .min = 1000, .max = 3 << 20}, "1000 to 3MiB"},
        {{.type = SETTING_STRING, .min = 1, .max = 64}, "1 to 64 bytes long"},
        {{.type = SETTING_STRING_LIST, .min = 1, .max = INT64_MAX}, "at least 1 entries long"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buf out = {0};
        config_value_put_bounds(&cases[i].row, &out);
        buf_put_char(&out, '\0');
        assert_string_equal(out.data, cases[i].text);
        buf_deinit(&out);
    }
    assert_true(config_value_within(&cases[0].row, -5));
    assert_true(config_value_within(&cases[0].row, 5));
    assert_false(config_value_within(&cases[0].row, 6));
    assert_true(config_value_within(&cases[4].row, INT64_MIN));
}

static void near_names_are_suggested(void **state)
{
    (void)state;
    static const char *const names[] = {"port", "maxSize", "waitCommitTimeoutMs", "id", NULL};

    assert_string_equal(config_suggest(STR("prot"), names), "port");
    assert_string_equal(config_suggest(STR("Port"), names), "port");
    assert_string_equal(config_suggest(STR("max_size"), names), "maxSize");
    assert_string_equal(config_suggest(STR("maxsise"), names), "maxSize");
    assert_string_equal(config_suggest(STR("wait-commit-timeout"), names), "waitCommitTimeoutMs");
    assert_null(config_suggest(STR("xy"), names));
    assert_null(config_suggest(STR("listen"), names));
    assert_null(config_suggest(STR("__"), names));
    assert_null(config_suggest(STR(""), names));
    assert_null(config_suggest(STR("a-word-that-is-longer-than-any-name-could-be-in-a-table"), names));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers),
        cmocka_unit_test(durations),
        cmocka_unit_test(decimals),
        cmocka_unit_test(sizes),
        cmocka_unit_test(words),
        cmocka_unit_test(bounds_are_inclusive_and_printed_in_units),
        cmocka_unit_test(near_names_are_suggested),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
