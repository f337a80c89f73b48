/* Parts of `freshet verify`. */
#ifndef FRESHET_APP_VERIFY_H
#define FRESHET_APP_VERIFY_H

#include "app/client.h"
#include "cache/cache.h"

int app_books(const char *config_path, int64_t patience_ms,
              bool is_json); /* `freshet verify --books`; the exit status */
/* Prints the keys in which the pod's answer to `call` and the snapshot differ, up to 20. Fails as pod_get(). */
enum status verify_keys_print(struct cache_snapshot *snapshot, const struct pod_call *call,
                              struct error *error) MUST_CHECK;

#endif
