/* Commands that show rows of a database and change them by hand (`freshet outbox`, `freshet dlq`): the first word says what is
 * done, those behind it name rows, and a limit bounds both. */
#ifndef FRESHET_APP_BY_HAND_H
#define FRESHET_APP_BY_HAND_H

#include "app/options.h"

enum { BY_HAND_MS = 60000 }; /* a statement's time */

struct by_hand_action {
    const char *name; /* NULL ends a table */
    const char *done; /* what became of the rows, for people; NULL = they are only shown */
};

/* Which of the actions, by its place, and the words behind it. Usage and mistakes are said from the same rows. */
enum options_outcome by_hand_read(int argc, char **argv, const struct by_hand_action *actions,
                                  const char *summary, const struct option_row *rows, size_t *action,
                                  struct option_words *ids);

#define BY_HAND_LIMIT_ROW(limit)                                                                        \
    {                                                                                                   \
        "--limit", "N", "at most so many, oldest first (default 100, changes 100000)", .into = &(limit) \
    }
#define BY_HAND_LIMIT_MISTAKE "--limit is 1 to 10000000"
bool by_hand_limit(const char *given, bool changes, int64_t *rows_max); /* NULL = not given */

/* The command's exit status: what was printed must have arrived, or it did not succeed. */
int by_hand_end(const char *command, int exit_status);

#endif
