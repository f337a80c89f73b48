/* A small option reader: rows in, values out, help from the same rows. */
#include "app/options.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"

static void print_message(const char *command, const char *format, va_list arguments)
{
    fprintf(stderr, "freshet %s: ", command);
    vfprintf(stderr, format, arguments);
}

int app_fail(const char *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_message(command, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return 1;
}

int app_misuse(const char *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_message(command, format, arguments);
    va_end(arguments);
    fprintf(stderr, "; see `freshet %.*s --help`\n", (int)strcspn(command, " "), command);
    return OPTIONS_WRONG;
}

/* ---- help ---- */

static void print_help(const struct option_help *help, void *context)
{
    (void)context;
    printf("usage: freshet %s%s%s [OPTIONS]\n\n%s\n\n", help->command, help->usage ? " " : "",
           help->usage ? help->usage : "", help->summary);
    for (const struct option_row *row = help->rows; row->name; row++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", row->name, row->value ? " " : "", row->value ? row->value : "");
        printf("  %-24s %s\n", left, row->help);
    }
    printf("  %-24s %s\n", "--help", "print this text");
}

static struct {
    option_help_fn *print;
    void *context;
} help_to = {print_help, NULL};

void options_help_to(option_help_fn *print, void *context)
{
    help_to.print = print ? print : print_help;
    help_to.context = context;
}

/* ---- values ---- */

bool options_duration(const char *text, int64_t max_ms, int64_t *ms)
{
    static const struct {
        const char *unit;
        int64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
    struct str number = str_from(text);
    int64_t factor = 1000;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (str_ends_with(number, str_from(units[i].unit))) {
            number.len -= strlen(units[i].unit);
            factor = units[i].ms;
            break;
        }
    uint64_t count;
    if (!str_to_u64(number, &count) || count > (uint64_t)(max_ms / factor))
        return false;
    *ms = (int64_t)count * factor;
    return true;
}

bool options_moment(const char *text, int64_t *unix_us)
{
    int64_t ago_ms;
    if (!options_duration(text, 3650 * OPTION_DAY_MS, &ago_ms))
        return clock_rfc3339_parse(str_from(text), unix_us);
    *unix_us = clock_unix_us() - ago_ms * 1000;
    return true;
}

static int take_value(const char *command, const struct option_row *row, const char *value)
{
    if (row->number) {
        if (str_to_i64(str_from(value), row->number) && *row->number >= row->min &&
            (!row->max || *row->number <= row->max))
            return OPTIONS_RUN;
        if (row->max)
            return app_misuse(command, "%s needs a whole number from %lld to %lld", row->name,
                              (long long)row->min, (long long)row->max);
        if (row->min == INT64_MIN)
            return app_misuse(command, "%s needs a whole number", row->name);
        return app_misuse(command, "%s needs a whole number from %lld", row->name, (long long)row->min);
    }
    if (row->duration_ms) {
        int64_t max_ms = row->max ? row->max : OPTION_DAY_MS;
        return options_duration(value, max_ms, row->duration_ms)
                   ? OPTIONS_RUN
                   : app_misuse(command, "%s needs a duration, such as 500ms, 3s, 15m or 1h; at most %lldd",
                                row->name, (long long)(max_ms / OPTION_DAY_MS));
    }
    if (!row->list) {
        *row->into = value;
        return OPTIONS_RUN;
    }
    if (row->list->count == OPTION_LIST_MAX)
        return app_misuse(command, "%s is given more than %d times", row->name, OPTION_LIST_MAX);
    row->list->items[row->list->count++] = value;
    return OPTIONS_RUN;
}

/* The option at argv[*at], with its value. */
static int take_option(int argc, char **argv, const struct option_row *rows, int *at)
{
    const char *argument = argv[*at], *equals = strchr(argument, '=');
    size_t len = equals ? (size_t)(equals - argument) : strlen(argument);
    while (rows->name && (strlen(rows->name) != len || strncmp(rows->name, argument, len) != 0))
        rows++;
    if (!rows->name)
        return app_misuse(argv[0], argument[0] == '-' ? "unknown option %s" : "unexpected argument %s",
                          argument);
    if (!rows->value) {
        if (equals)
            return app_misuse(argv[0], "%s takes no value", rows->name);
        *rows->flag = true;
        return OPTIONS_RUN;
    }
    if (equals)
        return take_value(argv[0], rows, equals + 1);
    if (*at + 1 == argc)
        return app_misuse(argv[0], "%s needs a value", argument);
    return take_value(argv[0], rows, argv[++*at]);
}

enum options_outcome options_read_words(int argc, char **argv, const char *usage, const char *summary,
                                        const struct option_row *rows, struct option_words *words)
{
    int outcome = OPTIONS_RUN;
    bool only_words = false;
    if (words)
        *words = (struct option_words){.items = argv + 1};
    for (int at = 1; at < argc && outcome == OPTIONS_RUN; at++) {
        const char *argument = argv[at];
        if (words && (only_words || argument[0] != '-' || argument[1] == '\0')) {
            words->items[words->count++] = argv[at]; /* at or before where it was read */
        } else if (words && strcmp(argument, "--") == 0) {
            only_words = true;
        } else if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            help_to.print(&(struct option_help){argv[0], usage, summary, rows}, help_to.context);
            outcome = OPTIONS_HELPED;
        } else {
            outcome = take_option(argc, argv, rows, &at);
        }
    }
    return (enum options_outcome)outcome;
}

enum options_outcome options_read(int argc, char **argv, const char *summary, const struct option_row *rows)
{
    return options_read_words(argc, argv, NULL, summary, rows, NULL);
}
