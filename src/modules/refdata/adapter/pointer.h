/* JSON pointers (RFC 6901): "/a/0/b~1c" is the member "b/c" of the first element of the member "a"; "" is the whole. */
#ifndef FRESHET_REFDATA_ADAPTER_POINTER_H
#define FRESHET_REFDATA_ADAPTER_POINTER_H

#include "base/arena.h"
#include "base/json.h"
#include "base/status.h"

#define REFDATA_POINTER_STEPS_MAX 32

struct refdata_pointer {
    struct str text;
    struct str *steps; /* without their escapes */
    size_t count;
};

/* CONFIG where it is invalid, with the reason. Everything lives in the arena. */
enum status refdata_pointer_compile(struct str text, struct arena *arena, struct refdata_pointer *pointer,
                                    struct error *error) MUST_CHECK;
/* What it points at in `root`; without bytes where there is nothing. BAD_REQUEST, naming the pointer, where a member on
 * the way comes more than once: which one is meant is not known. */
enum status refdata_pointer_find(const struct refdata_pointer *pointer, const struct json_value *root,
                                 struct json_value *value, struct error *error) MUST_CHECK;

#endif
