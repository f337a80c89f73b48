/* Options and words of a command: both spellings, any order, and nothing silently ignored. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "app/options.h"

struct given {
    const char *file, *name;
    bool loud;
    struct option_list urls;
    struct option_words words;
};

static enum options_outcome read_as(struct given *given, const char *line, bool takes_words)
{
    const struct option_row rows[] = {
        {"--file", "FILE", "a file", .into = &given->file},
        {"--name", "NAME", "a name", .into = &given->name},
        {"--loud", NULL, "a flag", .flag = &given->loud},
        {"--url", "URL", "one of several", .list = &given->urls},
        {.name = NULL},
    };
    static char copy[1024];
    static char *argv[2 * OPTION_LIST_MAX + 8];
    int argc = 0;

    *given = (struct given){0};
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    if (!takes_words)
        return options_read(argc, argv, "Tries options.", rows);
    return options_read_words(argc, argv, "A [B…]", "Tries options.", rows, &given->words);
}

static enum options_outcome read_line(struct given *given, const char *line)
{
    return read_as(given, line, false);
}

static void assert_words(const char *line, const char *const *words)
{
    struct given given;
    size_t count = 0;

    assert_int_equal(read_as(&given, line, true), OPTIONS_RUN);
    for (; words[count]; count++) {
        assert_true(count < given.words.count);
        assert_string_equal(given.words.items[count], words[count]);
    }
    assert_int_equal(given.words.count, count);
}

static void values_stand_behind_a_space_or_an_equals_sign(void **state)
{
    (void)state;
    struct given given;

    assert_int_equal(read_line(&given, "cmd --file a.yaml --name=b --loud"), OPTIONS_RUN);
    assert_string_equal(given.file, "a.yaml");
    assert_string_equal(given.name, "b");
    assert_true(given.loud);
    assert_int_equal(read_line(&given, "cmd"), OPTIONS_RUN);
    assert_null(given.file);
    assert_false(given.loud);
    assert_int_equal(read_line(&given, "cmd --file=a=b --name="), OPTIONS_RUN);
    assert_string_equal(given.file, "a=b");
    assert_string_equal(given.name, "");
    assert_int_equal(read_line(&given, "cmd --file --loud --file last"), OPTIONS_RUN);
    assert_string_equal(given.file, "last");
    assert_false(given.loud);
}

static void what_is_not_known_is_wrong(void **state)
{
    (void)state;
    static const char *const lines[] = {"cmd stray",        "cmd --fil x", "cmd --files x", "cmd --loud=1",
                                        "cmd --loud stray", "cmd --file",  "cmd -f x",      "cmd --",
                                        "cmd --file a b",   "cmd =",       "cmd --=x",      "cmd --help=1"};
    struct given given;

    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_int_equal(read_line(&given, lines[i]), OPTIONS_WRONG);
}

static void help_is_heard_anywhere(void **state)
{
    (void)state;
    struct given given;

    assert_int_equal(read_line(&given, "cmd --help"), OPTIONS_HELPED);
    assert_int_equal(read_line(&given, "cmd --loud -h"), OPTIONS_HELPED);
}

static void words_stand_anywhere_among_the_options(void **state)
{
    (void)state;
    static const char *const none[] = {NULL}, *const two[] = {"a", "b", NULL},
                             *const odd[] = {"-", "--loud", "-x", "--", NULL};
    struct given given;

    assert_words("cmd", none);
    assert_words("cmd a b", two);
    assert_words("cmd --loud a --file f b", two);
    assert_words("cmd --file=f a --name n --loud b --url u", two);
    assert_words("cmd -- a b", two);
    assert_words("cmd --file f a -- b", two);
    assert_words("cmd - -- --loud -x --", odd);
    assert_int_equal(read_as(&given, "cmd a --file f b --loud", true), OPTIONS_RUN);
    assert_string_equal(given.file, "f");
    assert_true(given.loud);
    assert_int_equal(read_as(&given, "cmd a -x", true), OPTIONS_WRONG);
    assert_int_equal(read_as(&given, "cmd a --file", true), OPTIONS_WRONG);
    assert_int_equal(read_as(&given, "cmd a -h", true), OPTIONS_HELPED);
}

static void an_option_with_a_list_keeps_every_value(void **state)
{
    (void)state;
    struct given given;
    char line[1024] = "cmd";

    assert_int_equal(read_line(&given, "cmd --url a --loud --url=b"), OPTIONS_RUN);
    assert_int_equal(given.urls.count, 2);
    assert_string_equal(given.urls.items[0], "a");
    assert_string_equal(given.urls.items[1], "b");
    for (size_t i = 0; i < OPTION_LIST_MAX; i++)
        strcat(line, " --url u");
    assert_int_equal(read_line(&given, line), OPTIONS_RUN);
    assert_int_equal(given.urls.count, OPTION_LIST_MAX);
    strcat(line, " --url u");
    assert_int_equal(read_line(&given, line), OPTIONS_WRONG);
}

static void durations_have_units_and_bounds(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t ms;
    } good[] = {{"250ms", 250},  {"3s", 3000},     {"2", 2000}, {"1m", 60000},
                {"1h", 3600000}, {"1d", 86400000}, {"0", 0}};
    static const char *const bad[] = {"",   "s",   "ms",  "-1s", "1.5s",
                                      "1w", "1 s", "25h", "2d",  "99999999999999999999s"};
    int64_t ms;

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(options_duration(good[i].text, 86400000, &ms));
        assert_int_equal(ms, good[i].ms);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(options_duration(bad[i], 86400000, &ms));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_stand_behind_a_space_or_an_equals_sign),
        cmocka_unit_test(what_is_not_known_is_wrong),
        cmocka_unit_test(help_is_heard_anywhere),
        cmocka_unit_test(words_stand_anywhere_among_the_options),
        cmocka_unit_test(an_option_with_a_list_keeps_every_value),
        cmocka_unit_test(durations_have_units_and_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
