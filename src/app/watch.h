/* A dictionary's changes on standard output: `freshet watch`, and `freshet tail` of a dictionary. */
#ifndef FRESHET_APP_WATCH_H
#define FRESHET_APP_WATCH_H

struct watch_call {
    const char *command; /* which of the two, for what is said on standard error */
    /* As given; NULL = not. */
    const char *tenant, *code, *after, *count, *url, *token;
};
int watch_run(const struct watch_call *call); /* the exit status */

#endif
