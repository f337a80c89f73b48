/* What is the same for whatever rows. */
#include "app/by_hand.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"

enum { LIST_MAX = 100, CHANGE_MAX = 100000, ROWS_LIMIT = 10000000 };

static void put_names(struct buf *out, const struct by_hand_action *actions, const char *between,
                      const char *before_last)
{
    for (const struct by_hand_action *at = actions; at->name; at++)
        buf_printf(out, "%s%s", at == actions ? "" : at[1].name ? between : before_last, at->name);
}

static bool find(const struct by_hand_action *actions, const struct option_words *words, size_t *action)
{
    for (size_t i = 0; words->count && actions[i].name; i++)
        if (strcmp(actions[i].name, words->items[0]) == 0) {
            *action = i;
            return true;
        }
    return false;
}

static enum options_outcome ask(const char *command, const struct by_hand_action *actions)
{
    struct buf names;
    buf_init(&names);
    put_names(&names, actions, ", ", " or ");
    fprintf(stderr, "freshet %s: %.*s? --help says more\n", command, STR_ARG(buf_str(&names)));
    buf_deinit(&names);
    return OPTIONS_WRONG;
}

enum options_outcome by_hand_read(int argc, char **argv, const struct by_hand_action *actions,
                                  const char *summary, const struct option_row *rows, size_t *action,
                                  struct option_words *ids)
{
    struct option_words words;
    struct buf usage;
    buf_init(&usage);
    put_names(&usage, actions, "|", "|");
    buf_put_str(&usage, STR(" [ID…]"));
    buf_put_char(&usage, '\0');
    enum options_outcome outcome = options_read_words(argc, argv, buf_str(&usage).ptr, summary, rows, &words);
    buf_deinit(&usage);
    if (outcome != OPTIONS_RUN)
        return outcome;
    if (!find(actions, &words, action))
        return ask(argv[0], actions);
    *ids = (struct option_words){words.count - 1, words.items + 1};
    return OPTIONS_RUN;
}

bool by_hand_limit(const char *given, bool changes, int64_t *rows_max)
{
    *rows_max = changes ? CHANGE_MAX : LIST_MAX;
    return !given || (str_to_i64(str_from(given), rows_max) && *rows_max >= 1 && *rows_max <= ROWS_LIMIT);
}

int by_hand_end(const char *command, int exit_status)
{
    if (exit_status != 0 || (fflush(stdout) == 0 && !ferror(stdout)))
        return exit_status;
    fprintf(stderr, "freshet %s: standard output: %s\n", command, strerror(errno));
    return 1;
}
