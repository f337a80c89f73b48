/* UUIDs of RFC 9562: version 4 (random) is made here, version 5 (of a name) in auth/digest.h; any version is read and
 * written. */
#ifndef FRESHET_BASE_UUID_H
#define FRESHET_BASE_UUID_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

struct uuid {
    uint8_t bytes[16];
};

#define UUID_TEXT_BYTES 37

struct uuid uuid_random(void);
struct uuid uuid_with_version(struct uuid uuid, unsigned version); /* sets the bits of version and variant */
bool uuid_eq(const struct uuid *a, const struct uuid *b);
bool uuid_parse(struct str text, struct uuid *uuid); /* 8-4-4-4-12 hex digits in either case, nothing else */
void uuid_format(const struct uuid *uuid, char out[UUID_TEXT_BYTES]); /* lower case, NUL-terminated */

#endif
