/* Members of an object against a table of names. */
#include "modules/refdata/members.h"

#include <stdio.h>

static enum status refuse(struct error *error, const char *path, struct str name, const char *why)
{
    char field[sizeof error->field];
    size_t room = sizeof field - 1 - strlen(path);
    name = str_utf8_cut(name, room);
    snprintf(field, sizeof field, "%s%.*s", path, STR_ARG(name));
    return error_set_field(error, STATUS_BAD_REQUEST, field, "%s: %s", field, why);
}

static size_t find(const struct str *names, size_t count, struct str raw)
{
    size_t at = 0;
    while (at < count && !json_str_eq(raw, names[at]))
        at++;
    return at;
}

enum status refdata_members_read(const struct json_value *object, const char *path, const struct str *names,
                                 size_t count, struct json_value *values, struct arena *arena,
                                 struct error *error)
{
    struct json_value value;
    struct json_iter it;
    struct str raw;

    memset(values, 0, count * sizeof *values);
    json_iter_init(&it, object);
    while (json_iter_next(&it, &raw, &value)) {
        size_t at = find(names, count, raw);
        if (at == count)
            return refuse(error, path, json_str_decode(raw, arena), "there is no such member");
        if (refdata_member_given(&values[at]))
            return refuse(error, path, names[at], "comes more than once");
        values[at] = value;
    }
    return STATUS_OK;
}
