/* --name VALUE options of one command, by rows; the same rows print its --help. */
#ifndef FRESHET_APP_OPTIONS_H
#define FRESHET_APP_OPTIONS_H

#include <stdbool.h>

struct option_row {
    const char *name;  /* "--listen"; NULL ends a table */
    const char *value; /* what stands for the value in --help; NULL = a flag */
    const char *help;
    const char **into; /* the value, as given */
    bool *flag;        /* where `value` is NULL */
};

enum options_outcome { OPTIONS_RUN, OPTIONS_HELPED /* exit 0 */, OPTIONS_WRONG /* exit 2; has been said */ };

/* Takes "--name value" and "--name=value"; nothing else may be left over. */
enum options_outcome options_read(int argc, char **argv, const char *summary, const struct option_row *rows);

#endif
