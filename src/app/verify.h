/* What the two files of `freshet verify` share: verify.c is the command and finds the pairs, verify_pair.c compares one
 * pair with the pods. */
#ifndef FRESHET_APP_VERIFY_H
#define FRESHET_APP_VERIFY_H

#include "app/client.h"
#include "modules/refdata/query/query.h"

struct verify_pod {
    struct str url;
    bool is_down; /* did not answer: it is not called for the other pairs */
    struct error error;
};

struct verify {
    int64_t patience_ms;
    bool show_keys;
    struct str token; /* client_token_given() */
    struct config *config;
    const struct refdata_settings *settings;
    struct refdata_catalog *catalog;
    struct verify_pod pods[OPTION_LIST_MAX];
    size_t pod_count;
    uint64_t equal_count, other_count; /* lines printed: ok, and others */
};

/* Compares one pair with every pod and prints a line for each; nothing where it was never written and is not named. */
void verify_pair_run(struct verify *verify, struct str tenant, struct refdata_dictionary *dictionary,
                     bool is_named);

#endif
