/* Parts of `freshet verify`. */
#ifndef FRESHET_APP_VERIFY_H
#define FRESHET_APP_VERIFY_H

#include "app/client.h"
#include "cache/cache.h"

/* Prints the keys in which the pod's answer to `call` and the snapshot differ, up to 20. Fails as pod_get(). */
enum status verify_keys_print(struct cache_snapshot *snapshot, const struct pod_call *call,
                              struct error *error) MUST_CHECK;

#endif
