/* Options and words of one command line, by rows; the same rows print its --help. */
#ifndef FRESHET_APP_OPTIONS_H
#define FRESHET_APP_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPTION_LIST_MAX 64

/* Values of an option that may be given several times, in that order. */
struct option_list {
    size_t count;
    const char *items[OPTION_LIST_MAX];
};

struct option_row {
    const char *name;  /* "--listen"; NULL ends a table */
    const char *value; /* what stands for the value in --help; NULL = a flag */
    const char *help;
    const char **into;        /* the value, as given; the last one wins */
    bool *flag;               /* where `value` is NULL */
    struct option_list *list; /* instead of `into`: every value */
};

/* The words between the options: a slice of argv, which is put in order for it. */
struct option_words {
    size_t count;
    char **items;
};

enum options_outcome { OPTIONS_RUN, OPTIONS_HELPED /* exit 0 */, OPTIONS_WRONG /* exit 2; has been said */ };

/* Takes "--name value" and "--name=value"; nothing else may be left over. */
enum options_outcome options_read(int argc, char **argv, const char *summary, const struct option_row *rows);
/* The same with words before, between and behind the options; behind "--" everything is a word. `usage` shows
 * them in --help: "TENANT DICT [KEY…]". */
enum options_outcome options_read_words(int argc, char **argv, const char *usage, const char *summary,
                                        const struct option_row *rows, struct option_words *words);

/* 250ms, 90s, 15m, 1h, 7d; a bare number is seconds. False on anything else, or over `max_ms`. */
bool options_duration(const char *text, int64_t max_ms, int64_t *ms);

#endif
