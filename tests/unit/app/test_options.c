/* Options of a command: both spellings, and nothing silently ignored. */
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
};

static enum options_outcome read_line(struct given *given, const char *line)
{
    const struct option_row rows[] = {
        {"--file", "FILE", "a file", &given->file, NULL},
        {"--name", "NAME", "a name", &given->name, NULL},
        {"--loud", NULL, "a flag", NULL, &given->loud},
        {NULL},
    };
    static char copy[256];
    char *argv[16] = {0};
    int argc = 0;

    *given = (struct given){0};
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    return options_read(argc, argv, "Tries options.", rows);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_stand_behind_a_space_or_an_equals_sign),
        cmocka_unit_test(what_is_not_known_is_wrong),
        cmocka_unit_test(help_is_heard_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
