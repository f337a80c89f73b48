/* Options and words of one command line, by rows; the same rows check the values and print --help. */
#ifndef FRESHET_APP_OPTIONS_H
#define FRESHET_APP_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPTION_LIST_MAX 64
#define OPTION_DAY_MS (INT64_C(24) * 3600 * 1000)

/* Values of an option that may be given several times, in that order. */
struct option_list {
    size_t count;
    const char *items[OPTION_LIST_MAX];
};

struct option_row {
    const char *name;  /* "--listen"; NULL ends a table */
    const char *value; /* what stands for the value in --help; NULL = a flag */
    const char *help;
    /* Where it goes: one of these. The last value wins. */
    const char **into;        /* as given */
    bool *flag;               /* where `value` is NULL */
    struct option_list *list; /* every value */
    int64_t *number;          /* a whole number from `min` to `max` */
    int64_t *duration_ms;     /* of options_duration(), up to `max` */
    int64_t min, max;         /* max 0 = no limit; of a duration a day */
    const char *choices;      /* its values, separated by spaces, for completion; NULL = any */
};

/* The words between the options: a slice of argv, which is put in order for it. */
struct option_words {
    size_t count;
    char **items;
};

/* Anything but OPTIONS_RUN is the exit status of the command. */
enum options_outcome { OPTIONS_RUN = -1, OPTIONS_HELPED = 0, OPTIONS_WRONG = 2 /* the mistake is printed */ };

/* Takes "--name value" and "--name=value"; nothing else may be left over. */
enum options_outcome options_read(int argc, char **argv, const char *summary, const struct option_row *rows);
/* The same with words before, between and after the options; after "--" everything is a word. `usage` shows
 * them in --help: "TENANT DICT [KEY…]". */
enum options_outcome options_read_words(int argc, char **argv, const char *usage, const char *summary,
                                        const struct option_row *rows, struct option_words *words);

/* What --help is made of. Manual pages and completion are made of the same: until it is called with NULL, --help of a command
 * goes to `print` instead of standard output. */
struct option_help {
    const char *command, *usage, *summary; /* usage: NULL = no words */
    const struct option_row *rows;
};
typedef void option_help_fn(const struct option_help *help, void *context);
void options_help_to(option_help_fn *print, void *context);

/* 250ms, 90s, 15m, 1h, 7d; a number without a unit is seconds. False on anything else, or over `max_ms`. */
bool options_duration(const char *text, int64_t max_ms, int64_t *ms);

/* A time, 2026-01-31T12:00:00Z, or how long ago, in microseconds since 1970. */
bool options_moment(const char *text, int64_t *unix_us);

/* "freshet COMMAND: …" on standard error; the exit status 1. */
int app_fail(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same with a pointer to --help, for a wrong call; the exit status 2. */
int app_misuse(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
