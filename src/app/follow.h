/* Following a stream of lines from a pod, over as many connections as it takes. What the lines mean, and where to go on from,
 * is the command's. Blocking: for the main thread of a command. */
#ifndef FRESHET_APP_FOLLOW_H
#define FRESHET_APP_FOLLOW_H

#include "app/pod.h"

enum { FOLLOW_EXIT_TOO_OLD = 3 };

enum follow_step {
    FOLLOW_ON,
    FOLLOW_DONE,    /* as much as was wanted */
    FOLLOW_STRANGE, /* no line of a stream of freshet's */
};

struct follow {
    const char *command;     /* its name, for what is said on standard error */
    const char *url, *token; /* as given; NULL = pod_session_open()'s */
    struct str tenant;
    void *context;
    /* What to ask for, from where it stands; `text` is for what the call then points to. */
    void (*set_call)(void *context, struct pod_call *call, struct buf *text);
    enum follow_step (*take_line)(void *context, struct str line);
    void (*put_place)(void *context, struct buf *out); /* where it stands: "version 17" */
    void (*explain_too_old)(void *context);            /* on standard error, behind a 410 */

    /* its own; zero at first */
    struct buf line; /* not whole yet */
    enum follow_step step;
    bool has_begun;
    int exit_status; /* of a call that can't be made, which has been said */
    int64_t pause_ms;
};

/* Until it is done or refused, and then the command's exit status: 0, 1, 2, or 3 for a 410. A pod that was there once is
 * waited for. */
int follow_run(struct follow *follow);
bool follow_print(struct str line); /* to standard output, with its newline */

#endif
