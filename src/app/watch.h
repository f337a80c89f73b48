/* Following a stream of lines from a pod, over as many connections as it takes: `freshet watch` and `freshet tail`. Each command
 * knows what its lines mean. */
#ifndef FRESHET_APP_WATCH_H
#define FRESHET_APP_WATCH_H

#include "app/client.h"
#include "base/json.h"

enum { FOLLOW_EXIT_TOO_OLD = 3 };

enum follow_step {
    FOLLOW_ON,
    FOLLOW_DONE,    /* --count is reached */
    FOLLOW_STRANGE, /* not a line of such a stream */
};

struct follow {
    struct client client;
    int64_t after; /* printed up to this version or sequence; -1 = from where the pod begins */
    int64_t count; /* lines still wanted; 0 = no limit */
    struct str path;
    const char *unit;    /* of `after`: "version" */
    const char *too_old; /* after a 410: what to do, on standard error */
    /* `object` is what the line holds; the arena is reset after it. */
    enum follow_step (*take_line)(void *context, struct str line, const struct json_value *object,
                                  struct arena *arena);
    void *context;

    /* its own; zero at first */
    struct pod_lines lines;
    struct arena arena;
    enum follow_step step;
    bool has_begun;
    int64_t pause_ms;
};

/* The command's exit status: 0 done, 1 refused or never there, 3 for a 410. A pod that answered once is waited for. */
int follow_run(struct follow *follow);
enum follow_step follow_print(struct follow *follow, struct str line); /* one more of --count */
int watch_run(struct follow *follow); /* the changes of a dictionary: follow_run() with all that it needs */

#endif
