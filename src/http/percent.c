/* Percent-decoding and the query string. Decoding happens here, when a handler asks, and never before
 * routing. */
#include "base/hex.h"
#include "http/http.h"

/* Decodes into `to`, which is large enough. False on a bad escape or a NUL. */
static bool decode(struct str raw, bool plus_is_space, char *to, size_t *len)
{
    char *begin = to;

    for (size_t i = 0; i < raw.len; i++) {
        char c = raw.ptr[i];
        if (c == '%') {
            int high = i + 2 < raw.len ? hex_digit(raw.ptr[i + 1]) : -1;
            int low = i + 2 < raw.len ? hex_digit(raw.ptr[i + 2]) : -1;
            if (high < 0 || low < 0 || (high | low) == 0)
                return false;
            c = (char)(high << 4 | low);
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        *to++ = c;
    }
    *len = (size_t)(to - begin);
    return true;
}

enum status http_percent_decode(struct str raw, bool plus_is_space, struct arena *arena, const char *field,
                                struct str *out, struct error *error)
{
    bool is_plain = raw.len == 0 ||
                    (!memchr(raw.ptr, '%', raw.len) && (!plus_is_space || !memchr(raw.ptr, '+', raw.len)));
    *out = raw;
    if (!is_plain) {
        char *text = arena_alloc(arena, raw.len + 1);
        size_t len;
        if (!decode(raw, plus_is_space, text, &len))
            return error_set_field(error, STATUS_BAD_REQUEST, field, "%s: has a bad percent escape, or %%00",
                                   field);
        text[len] = '\0';
        *out = str_of(text, len);
    }
    if (!is_plain && !str_is_utf8(*out))
        return error_set_field(error, STATUS_BAD_REQUEST, field, "%s: is not valid UTF-8", field);
    return STATUS_OK;
}

/* ---- the query ---- */

/* A name as it would be written: names of ours are plain, so an encoded one is decoded before it is
 * compared. */
static bool name_is(const struct http_request *request, struct str raw_name, struct str name)
{
    struct str decoded;

    if (str_eq(raw_name, name))
        return true;
    if (raw_name.len <= name.len)
        return false;
    return http_percent_decode(raw_name, true, request->arena, "query", &decoded, NULL) == STATUS_OK &&
           str_eq(decoded, name);
}

static void split_pair(struct str pair, struct str *name, struct str *value)
{
    const char *equals = pair.len > 0 ? memchr(pair.ptr, '=', pair.len) : NULL;

    *name = pair;
    *value = STR("");
    if (equals) {
        name->len = (size_t)(equals - pair.ptr);
        *value = str_of(equals + 1, pair.len - name->len - 1);
    }
}

#define FIELD_BYTES sizeof(((struct error *)NULL)->field)

/* A name for an error: cut to what fits, NUL-terminated. */
static const char *field_name(struct str name, char out[FIELD_BYTES])
{
    size_t len = name.len < FIELD_BYTES - 1 ? name.len : FIELD_BYTES - 1;

    if (len > 0)
        memcpy(out, name.ptr, len);
    out[len] = '\0';
    return out;
}

enum status http_request_query_raw(const struct http_request *request, struct str name, bool *found,
                                   struct str *value, struct error *error)
{
    struct str rest = request->query, pair, pair_name, pair_value;
    char field[FIELD_BYTES];

    *found = false;
    *value = STR_NONE;
    while (str_split(&rest, '&', &pair)) {
        split_pair(pair, &pair_name, &pair_value);
        if (!name_is(request, pair_name, name))
            continue;
        if (*found)
            return error_set_field(error, STATUS_BAD_REQUEST, field_name(name, field),
                                   "%s: is given more than once", field);
        *found = true;
        *value = pair_value;
    }
    return STATUS_OK;
}

enum status http_request_query(const struct http_request *request, struct str name, bool *found,
                               struct str *value, struct error *error)
{
    char field[FIELD_BYTES];
    enum status status = http_request_query_raw(request, name, found, value, error);

    if (status != STATUS_OK || !*found)
        return status;
    return http_percent_decode(*value, true, request->arena, field_name(name, field), value, error);
}

static bool is_known(const struct http_request *request, struct str name, const char *const *names)
{
    for (; *names; names++)
        if (name_is(request, name, str_from(*names)))
            return true;
    return false;
}

enum status http_request_query_only(const struct http_request *request, const char *const *names,
                                    struct error *error)
{
    struct str rest = request->query, pair, name, value;
    char field[FIELD_BYTES];

    while (str_split(&rest, '&', &pair)) {
        split_pair(pair, &name, &value);
        if (pair.len == 0 || is_known(request, name, names))
            continue;
        return error_set_field(error, STATUS_BAD_REQUEST, field_name(name, field),
                               "%s: is not a query parameter here", field);
    }
    return STATUS_OK;
}
