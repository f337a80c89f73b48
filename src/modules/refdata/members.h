/* Reading a JSON object whose members are all known: a stranger or one that comes twice is refused by name. */
#ifndef FRESHET_REFDATA_MEMBERS_H
#define FRESHET_REFDATA_MEMBERS_H

#include "base/arena.h"
#include "base/json.h"
#include "base/status.h"

/* values[i] is the member names[i], or has no bytes where it lacks. `path` is what stands before a member's name in
 * errors ("items[3]."), "" for the outermost object. */
enum status refdata_members_read(const struct json_value *object, const char *path, const struct str *names,
                                 size_t count, struct json_value *values, struct arena *arena,
                                 struct error *error) MUST_CHECK;

static inline bool refdata_member_given(const struct json_value *value)
{
    return value->raw.len > 0;
}

#endif
