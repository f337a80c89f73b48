/* A small option reader: rows in, values out, help from the same rows. */
#include "app/options.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"

struct reading {
    const char *command;
    const struct option_row *rows;
    char **argv;
    int argc, at;
    struct option_words *words; /* NULL = the command takes none */
};

static void print_help(const char *command, const char *usage, const char *summary,
                       const struct option_row *rows)
{
    printf("usage: freshet %s%s%s [OPTIONS]\n\n%s\n\n", command, usage ? " " : "", usage ? usage : "",
           summary);
    for (; rows->name; rows++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", rows->name, rows->value ? " " : "",
                 rows->value ? rows->value : "");
        printf("  %-24s %s\n", left, rows->help);
    }
    printf("  %-24s %s\n", "--help", "this text");
}

static const struct option_row *find(const struct option_row *rows, const char *argument,
                                     const char **attached)
{
    const char *equals = strchr(argument, '=');
    size_t len = equals ? (size_t)(equals - argument) : strlen(argument);
    *attached = equals ? equals + 1 : NULL;
    for (; rows->name; rows++)
        if (strlen(rows->name) == len && strncmp(rows->name, argument, len) == 0)
            return rows;
    return NULL;
}

static enum options_outcome wrong(const char *command, const char *what, const char *argument)
{
    fprintf(stderr, "freshet %s: %s %s; `freshet %s --help` lists the options\n", command, what, argument,
            command);
    return OPTIONS_WRONG;
}

static enum options_outcome take_value(struct reading *reading, const struct option_row *row,
                                       const char *value)
{
    if (!row->list)
        *row->into = value;
    else if (row->list->count == OPTION_LIST_MAX)
        return wrong(reading->command, "too often:", row->name);
    else
        row->list->items[row->list->count++] = value;
    return OPTIONS_RUN;
}

static enum options_outcome take_option(struct reading *reading)
{
    const char *argument = reading->argv[reading->at], *attached;
    const struct option_row *row = find(reading->rows, argument, &attached);
    if (!row)
        return wrong(reading->command, "there is no option", argument);
    if (!row->value) {
        if (attached)
            return wrong(reading->command, "no value is taken by", row->name);
        *row->flag = true;
        return OPTIONS_RUN;
    }
    if (attached)
        return take_value(reading, row, attached);
    if (reading->at + 1 == reading->argc)
        return wrong(reading->command, "a value is missing behind", argument);
    return take_value(reading, row, reading->argv[++reading->at]);
}

/* Words never outrun the place they are read from. */
static void take_word(struct reading *reading)
{
    reading->words->items[reading->words->count++] = reading->argv[reading->at];
}

static bool is_word(const struct reading *reading, const char *argument)
{
    return reading->words && (argument[0] != '-' || argument[1] == '\0');
}

enum options_outcome options_read_words(int argc, char **argv, const char *usage, const char *summary,
                                        const struct option_row *rows, struct option_words *words)
{
    struct reading reading = {.command = argv[0], .rows = rows, .argv = argv, .argc = argc, .words = words};
    enum options_outcome outcome = OPTIONS_RUN;
    bool only_words = false;
    if (words)
        *words = (struct option_words){.items = argv + 1};
    for (reading.at = 1; reading.at < argc && outcome == OPTIONS_RUN; reading.at++) {
        const char *argument = argv[reading.at];
        if (only_words || is_word(&reading, argument)) {
            take_word(&reading);
        } else if (words && strcmp(argument, "--") == 0) {
            only_words = true;
        } else if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            print_help(argv[0], usage, summary, rows);
            outcome = OPTIONS_HELPED;
        } else {
            outcome = take_option(&reading);
        }
    }
    return outcome;
}

enum options_outcome options_read(int argc, char **argv, const char *summary, const struct option_row *rows)
{
    return options_read_words(argc, argv, NULL, summary, rows, NULL);
}

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
