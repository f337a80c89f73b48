/* What a handler reads of its request: header fields, path and query parameters, Accept, If-None-Match.
 *
 * Percent-decoding happens here, when a handler asks, and never before routing. */
#include "base/hash.h"
#include "base/hex.h"
#include "http/http_inside.h"

struct str http_request_header(const struct http_request *request, struct str name)
{
    for (size_t i = 0; i < request->header_count; i++)
        if (request->headers[i].name.len == name.len && str_eq_nocase(request->headers[i].name, name))
            return request->headers[i].value;
    return STR_NONE;
}

size_t http_request_header_count(const struct http_request *request, struct str name)
{
    size_t count = 0;

    for (size_t i = 0; i < request->header_count; i++)
        count += str_eq_nocase(request->headers[i].name, name);
    return count;
}

enum status http_request_param(const struct http_request *request, const char *name, struct str *value,
                               struct error *error)
{
    const struct http_exchange *exchange = (const struct http_exchange *)request;
    const struct http_entry *entry = exchange->entry;

    for (unsigned i = 0; i < entry->param_count; i++) {
        struct str known = entry->param_names[i];
        if (known.ptr[0] != name[0] || strncmp(known.ptr, name, known.len) != 0 || name[known.len] != '\0')
            continue;
        *value = request->params[i];
        return exchange->head.has_escapes
                   ? http_percent_decode(*value, false, request->arena, name, value, error)
                   : STATUS_OK;
    }
    return error_set_field(error, STATUS_INTERNAL, name, "the route has no such parameter");
}

/* ---- percent-decoding ---- */

enum status http_percent_decode(struct str raw, bool plus_is_space, struct arena *arena, const char *field,
                                struct str *out, struct error *error)
{
    *out = raw;
    if (raw.len == 0 ||
        (!memchr(raw.ptr, '%', raw.len) && (!plus_is_space || !memchr(raw.ptr, '+', raw.len))))
        return STATUS_OK;
    char *text = arena_alloc(arena, raw.len + 1), *to = text;
    for (size_t i = 0; i < raw.len; i++) {
        char c = raw.ptr[i];
        if (c == '%') {
            int high = i + 2 < raw.len ? hex_digit(raw.ptr[i + 1]) : -1;
            int low = i + 2 < raw.len ? hex_digit(raw.ptr[i + 2]) : -1;
            if (high < 0 || low < 0 || (high | low) == 0)
                return error_set_field(error, STATUS_BAD_REQUEST, field,
                                       "%s: has a bad percent escape, or %%00", field);
            c = (char)(high << 4 | low);
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        *to++ = c;
    }
    *to = '\0';
    *out = str_of(text, (size_t)(to - text));
    return str_is_utf8(*out)
               ? STATUS_OK
               : error_set_field(error, STATUS_BAD_REQUEST, field, "%s: is not valid UTF-8", field);
}

void http_percent_encode(struct buf *out, struct str text)
{
    static const char unreserved[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    for (size_t i = 0; i < text.len; i++)
        if (text.ptr[i] && strchr(unreserved, text.ptr[i]))
            buf_put_char(out, text.ptr[i]);
        else
            buf_printf(out, "%%%02X", (unsigned char)text.ptr[i]);
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

static enum status refuse_query(struct error *error, struct str name, const char *message)
{
    char field[FIELD_BYTES];

    str_copy(field, sizeof field, name);
    return error_set_field(error, STATUS_BAD_REQUEST, field, "%s: %s", field, message);
}

static enum status query_raw(const struct http_request *request, struct str name, bool *found,
                             struct str *value, struct error *error)
{
    struct str rest = request->query, pair, pair_name, pair_value;

    *found = false;
    *value = STR_NONE;
    while (str_split(&rest, '&', &pair)) {
        split_pair(pair, &pair_name, &pair_value);
        if (!name_is(request, pair_name, name))
            continue;
        if (*found)
            return refuse_query(error, name, "given more than once");
        *found = true;
        *value = pair_value;
    }
    return STATUS_OK;
}

enum status http_request_query(const struct http_request *request, struct str name, bool *found,
                               struct str *value, struct error *error)
{
    char field[FIELD_BYTES];
    enum status status = query_raw(request, name, found, value, error);

    if (status != STATUS_OK || !*found)
        return status;
    str_copy(field, sizeof field, name);
    return http_percent_decode(*value, true, request->arena, field, value, error);
}

size_t http_request_query_list(const struct http_request *request, struct str name, struct str *raw,
                               size_t max)
{
    struct str rest = request->query, pair, pair_name, value;
    size_t count = 0;

    while (str_split(&rest, '&', &pair)) {
        split_pair(pair, &pair_name, &value);
        if (name_is(request, pair_name, name))
            count +=
                str_split_all(value, ',', raw + (count < max ? count : max), count < max ? max - count : 0);
    }
    return count;
}

enum status http_request_query_i64(const struct http_request *request, const char *name, int64_t min,
                                   int64_t max, int64_t *value, struct error *error)
{
    bool found;
    struct str text;
    enum status status = http_request_query(request, str_from(name), &found, &text, error);

    if (status == STATUS_OK && found && (!str_to_i64(text, value) || *value < min || *value > max))
        return error_set_field(error, STATUS_BAD_REQUEST, name, "must be a number from %lld to %lld",
                               (long long)min, (long long)max);
    return status;
}

enum status http_request_query_only(const struct http_request *request, const char *const *names,
                                    struct error *error)
{
    struct str rest = request->query, pair, name, value;

    while (str_split(&rest, '&', &pair)) {
        split_pair(pair, &name, &value);
        const char *const *known = names;
        while (*known && !name_is(request, name, str_from(*known)))
            known++;
        if (pair.len > 0 && !*known)
            return refuse_query(error, name, "this route has no such query parameter");
    }
    return STATUS_OK;
}

/* ---- Accept ---- */

/* 1, 0.5, 0.333 as thousandths; an invalid weight counts as 1. */
static unsigned weight_of(struct str value)
{
    unsigned weight = 0, unit = 1000;

    if (value.len == 0)
        return 1000;
    for (size_t i = 0; i < value.len; i++) {
        if (i == 1 && value.ptr[i] == '.')
            continue;
        if (i == 1 || i == 5 || value.ptr[i] < '0' || value.ptr[i] > '9')
            return 1000;
        weight += (unsigned)(value.ptr[i] - '0') * unit;
        unit /= 10;
    }
    return weight < 1000 ? weight : 1000;
}

/* The weight `range`, one member of the list (type;param=…;q=0.5), gives to the type; 0 when it is not its name. */
static unsigned range_weight(struct str range, struct str type)
{
    struct str part;

    if (!str_split(&range, ';', &part) || !str_eq_nocase(str_trim(part), type))
        return 0;
    while (str_split(&range, ';', &part)) {
        part = str_trim(part);
        if (part.len >= 2 && (part.ptr[0] | 0x20) == 'q' && part.ptr[1] == '=')
            return weight_of(str_skip(part, 2));
    }
    return 1000;
}

unsigned http_request_accepts(const struct http_request *request, struct str type)
{
    unsigned weight = 0;

    for (size_t i = 0; i < request->header_count; i++) {
        if (!str_eq_nocase(request->headers[i].name, STR("accept")))
            continue;
        struct str list = request->headers[i].value, range;
        while (str_split(&list, ',', &range)) {
            unsigned named = range_weight(range, type);
            weight = named > weight ? named : weight;
        }
    }
    return weight;
}

/* ---- If-None-Match ---- */

/* Takes one tag off the list: an optional W/, then "…", whose inside may hold commas. False when there is
 * none. */
static bool take_tag(struct str *list, struct str *tag)
{
    while (list->len > 0 && (*list->ptr == ' ' || *list->ptr == '\t' || *list->ptr == ','))
        *list = str_skip(*list, 1);
    if (str_starts_with(*list, STR("W/")))
        *list = str_skip(*list, 2);
    if (list->len < 2 || *list->ptr != '"')
        return false;
    const char *quote = memchr(list->ptr + 1, '"', list->len - 1);
    if (!quote)
        return false;
    *tag = str_of(list->ptr, (size_t)(quote + 1 - list->ptr));
    *list = str_of(quote + 1, list->len - tag->len);
    return true;
}

bool http_request_none_match(const struct http_request *request, struct str etag)
{
    const struct http_exchange *exchange = (const struct http_exchange *)request;

    if (exchange->parser.first[HTTP_FIELD_IF_NONE_MATCH] == 0)
        return false;
    for (size_t i = 0; i < request->header_count; i++) {
        if (exchange->spans[i].field != HTTP_FIELD_IF_NONE_MATCH)
            continue;
        struct str list = request->headers[i].value, tag;
        if (str_eq(list, STR("*")))
            return true;
        while (take_tag(&list, &tag))
            if (str_eq(tag, etag))
                return true;
    }
    return false;
}

uint64_t http_peer_hash(const struct sockaddr_in6 *peer)
{
    struct str address = STR_NONE;

    if (peer->sin6_family == AF_INET)
        address = str_of((const char *)&((const struct sockaddr_in *)peer)->sin_addr, 4);
    else if (peer->sin6_family == AF_INET6)
        address = str_of((const char *)&peer->sin6_addr, 8);
    return hash_seeded(address);
}

uint64_t http_request_sender(const struct http_request *request)
{
    return http_peer_hash(request->peer);
}
