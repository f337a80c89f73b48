/* What a handler asks of its request: fields, path parameters, and the two headers that are lists with
 * rules. */
#include "http/http_inside.h"

struct str http_request_header(const struct http_request *request, struct str name)
{
    for (size_t i = 0; i < request->header_count; i++)
        if (str_eq_nocase(request->headers[i].name, name))
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
    const struct http_entry *entry = ((const struct http_exchange *)request)->entry;
    struct str wanted = str_from(name);

    for (unsigned i = 0; i < entry->param_count; i++)
        if (str_eq(entry->param_names[i], wanted))
            return http_percent_decode(request->params[i], false, request->arena, name, value, error);
    return error_set_field(error, STATUS_INTERNAL, name, "the route has no such parameter");
}

/* ---- Accept ---- */

/* 1, 0.5, 0.333 as thousandths; what is no weight counts as 1. */
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
            return weight_of(str_of(part.ptr + 2, part.len - 2));
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
        *list = str_of(list->ptr + 1, list->len - 1);
    if (str_starts_with(*list, STR("W/")))
        *list = str_of(list->ptr + 2, list->len - 2);
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
