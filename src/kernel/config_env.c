/* ${NAME} and ${NAME:default} in a value. Runs on the text of a parsed scalar, so that what the environment holds can
 * never become structure, and once only: a value is not searched again.
 *
 * A reference is ${ before a letter or an underscore; its default runs to the next }. A variable that is set counts
 * even when it is empty. $${ before a letter is the text ${. Every other dollar is a dollar: SQL's $1, $$ and $tag$
 * (and $${"a":1}$$) stay as they are. */
#include "kernel/config_inside.h"

#include <stdlib.h>

static bool begins_name(struct str rest, size_t at)
{
    char c = at < rest.len ? rest.ptr[at] : '\0';

    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

static size_t name_end(struct str rest, size_t at)
{
    while (at < rest.len && (begins_name(rest, at) || (rest.ptr[at] >= '0' && rest.ptr[at] <= '9')))
        at++;
    return at;
}

static bool put_variable(struct str name, const struct str *fallback, struct buf *out, struct buf *why)
{
    char *zname = str_dup(name);
    struct str value = str_from(getenv(zname));

    free(zname);
    if (!value.ptr && !fallback) {
        buf_printf(why, "the environment has no %.*s, and ${%.*s} gives no default", STR_ARG(name),
                   STR_ARG(name));
        return false;
    }
    if (value.ptr && !str_is_utf8(value)) {
        buf_printf(why, "the environment's %.*s is not UTF-8", STR_ARG(name));
        return false;
    }
    buf_put_str(out, value.ptr ? value : *fallback);
    return true;
}

/* `rest` begins with ${ and a letter. Returns how many bytes of it were read, 0 with the reason in `why`. */
static size_t put_reference(struct str rest, struct buf *out, struct buf *why)
{
    const char *brace = memchr(rest.ptr, '}', rest.len);
    size_t end = name_end(rest, 2);
    struct str name = str_of(rest.ptr + 2, end - 2);

    if (!brace) {
        buf_printf(why, "${%.*s has no closing }; for a literal ${ write $${", STR_ARG(name));
        return 0;
    }
    size_t close = (size_t)(brace - rest.ptr);
    if (end != close && rest.ptr[end] != ':') {
        buf_printf(why, "${%.*s must go on with } or :default}; for a literal ${ write $${", STR_ARG(name));
        return 0;
    }
    struct str fallback = end == close ? STR_NONE : str_of(rest.ptr + end + 1, close - end - 1);
    if (!put_variable(name, end == close ? NULL : &fallback, out, why))
        return 0;
    return close + 1;
}

/* The next byte, escape or reference of `rest`; how many bytes it took, 0 on failure. */
static size_t put_next(struct str rest, struct buf *out, struct buf *why)
{
    if (str_starts_with(rest, STR("${")) && begins_name(rest, 2))
        return put_reference(rest, out, why);
    if (str_starts_with(rest, STR("$${")) && begins_name(rest, 3)) {
        buf_put_str(out, STR("${"));
        return 3;
    }
    buf_put_char(out, rest.ptr[0]);
    return 1;
}

bool config_env_expand(struct arena *arena, struct str raw, struct str *out, struct buf *why)
{
    struct buf filled;
    bool fine = true;

    *out = raw;
    if (raw.len == 0 || !memmem(raw.ptr, raw.len, "${", 2))
        return true;
    buf_init(&filled);
    for (size_t at = 0, taken; fine && at < raw.len; at += taken) {
        taken = put_next(str_of(raw.ptr + at, raw.len - at), &filled, why);
        fine = taken > 0;
        if (fine && buf_len(&filled) > CONFIG_FILE_BYTES_MAX) {
            buf_put_str(why, STR("the environment makes it larger than 4 MiB"));
            fine = false;
        }
    }
    if (fine)
        *out = arena_str(arena, buf_str(&filled));
    buf_deinit(&filled);
    return fine;
}
