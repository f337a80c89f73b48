/* A small option reader: rows in, values out, help from the same rows. */
#include "app/options.h"

#include <stdio.h>
#include <string.h>

static void print_help(const char *command, const char *summary, const struct option_row *rows)
{
    printf("usage: freshet %s [OPTIONS]\n\n%s\n\n", command, summary);
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

enum options_outcome options_read(int argc, char **argv, const char *summary, const struct option_row *rows)
{
    for (int i = 1; i < argc; i++) {
        const char *attached;
        const struct option_row *row = find(rows, argv[i], &attached);
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(argv[0], summary, rows);
            return OPTIONS_HELPED;
        }
        if (!row)
            return wrong(argv[0], "there is no option", argv[i]);
        if (!row->value) {
            if (attached)
                return wrong(argv[0], "no value is taken by", row->name);
            *row->flag = true;
        } else if (attached) {
            *row->into = attached;
        } else if (i + 1 < argc) {
            *row->into = argv[++i];
        } else {
            return wrong(argv[0], "a value is missing behind", argv[i]);
        }
    }
    return OPTIONS_RUN;
}
