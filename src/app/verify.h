/* verify's own layout: what its three files share. verify.c reads the call and finds the pairs,
 * verify_pair.c compares one pair with one pod, verify_keys.c lists the keys that differ. */
#ifndef FRESHET_APP_VERIFY_H
#define FRESHET_APP_VERIFY_H

#include "app/options.h"
#include "app/pod.h"
#include "modules/refdata/query/query.h"

struct verify_pod {
    struct str url;
    bool is_down; /* did not answer: the other pairs do not wait for it again */
    struct error error;
};

struct verify {
    int64_t patience_ms;
    bool show_keys;
    const char *token; /* as given */
    struct config *config;
    const struct refdata_settings *settings;
    struct refdata_catalog *catalog;
    struct verify_pod pods[OPTION_LIST_MAX];
    size_t pod_count;
    uint64_t equal_count, other_count; /* lines printed: ok, and those that are not */
};

/* One pair while it is compared, and the database's side of it. */
struct verify_pair {
    struct str tenant;
    struct refdata_dictionary *dictionary;
    struct str token;
    struct refdata_loaded loaded;
};

/* Compares one pair with every pod, and prints a line for each; nothing where the pair was never written and is not named. */
void verify_pair_run(struct verify *verify, struct str tenant, struct refdata_dictionary *dictionary,
                     bool is_named);
/* Prints which keys of the pod's differ from those of the pair's snapshot, the first of them by name. */
enum status verify_keys_print(const struct verify_pair *pair, const struct pod_call *call,
                              struct error *error) MUST_CHECK;

#endif
