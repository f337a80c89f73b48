/* The meaning of a head. Each check reads the fields the parser has already found; a request without a body
 * and without a Connection field, the common one, passes in a handful of comparisons. */
#include "http/http_inside.h"
#include "http/scan.h"

static const char *const method_names[HTTP_METHODS] = {
    [HTTP_GET] = "GET",     [HTTP_HEAD] = "HEAD",     [HTTP_POST] = "POST",       [HTTP_PUT] = "PUT",
    [HTTP_PATCH] = "PATCH", [HTTP_DELETE] = "DELETE", [HTTP_OPTIONS] = "OPTIONS",
};

const char *http_method_name(enum http_method method)
{
    return (unsigned)method < HTTP_METHODS ? method_names[method] : "";
}

static enum status refuse_field(struct error *error, const char *field, const char *message)
{
    return error_set_field(error, STATUS_BAD_REQUEST, field, "%s", message);
}

static bool has_field(const struct http_parser *parser, enum http_field field)
{
    return parser->first[field] != 0;
}

/* Of the first field line of that name, which is there. */
static struct str value_of(const struct http_parser *parser, const char *data, enum http_field field)
{
    const struct http_span *span = &parser->spans[parser->first[field] - 1];
    return str_of(data + span->value_at, span->value_len);
}

static bool is_repeated(const struct http_parser *parser, enum http_field field)
{
    return (parser->repeated & 1u << field) != 0;
}

/* ---- target ---- */

static void split_target(struct http_head *head, struct str origin_form)
{
    const char *question = memchr(origin_form.ptr, '?', origin_form.len);

    head->path = origin_form;
    if (question) {
        head->path.len = (size_t)(question - origin_form.ptr);
        head->query = str_of(question + 1, origin_form.len - head->path.len - 1);
    }
    head->has_escapes = head->path.len > 0 && memchr(head->path.ptr, '%', head->path.len) != NULL;
}

/* host [":" port], where a port is up to five digits and an IPv6 address stands in brackets. */
static bool is_authority(struct str text)
{
    const char *end = text.ptr + text.len, *colon = end;

    if (text.len == 0 || text.len > 512 || http_scan(text.ptr, end, HTTP_BYTE_HOST) != end)
        return false;
    if (text.ptr[0] == '[') {
        const char *bracket = memchr(text.ptr, ']', text.len);
        if (!bracket || bracket == text.ptr + 1)
            return false;
        colon = bracket + 1;
    } else {
        const char *first = memchr(text.ptr, ':', text.len);
        colon = first ? first : end;
        if (colon == text.ptr || memchr(text.ptr, '[', text.len) || memchr(text.ptr, ']', text.len))
            return false;
    }
    if (colon == end)
        return true;
    if (*colon != ':' || end - colon > 6)
        return false;
    for (const char *at = colon + 1; at < end; at++)
        if (*at < '0' || *at > '9')
            return false;
    return true;
}

static enum status read_target(struct str rest, struct http_head *head, struct error *error)
{
    struct str scheme = STR("http://");
    size_t host_len = 0;

    if (rest.ptr[0] == '/') {
        split_target(head, rest);
        return STATUS_OK;
    }
    if (str_eq(rest, STR("*"))) {
        head->path = rest;
        head->is_server_wide = true;
        return head->method == HTTP_OPTIONS
                   ? STATUS_OK
                   : refuse_field(error, "target", "the target * is for OPTIONS only");
    }
    /* http://authority[/path][?query]: the authority replaces Host, which is required nevertheless. */
    if (rest.len <= scheme.len || !str_eq_nocase(str_of(rest.ptr, scheme.len), scheme))
        return refuse_field(error, "target", "the request target must be a path or an http URL");
    rest = str_skip(rest, scheme.len);
    while (host_len < rest.len && rest.ptr[host_len] != '/' && rest.ptr[host_len] != '?')
        host_len++;
    if (!is_authority(str_of(rest.ptr, host_len)))
        return refuse_field(error, "target", "the host of the request target is not valid");
    split_target(head, str_skip(rest, host_len));
    if (head->path.len == 0)
        head->path = STR("/");
    return STATUS_OK;
}

/* ---- fields ---- */

static bool list_has(struct str list, struct str token)
{
    struct str part;

    while (str_split(&list, ',', &part))
        if (str_eq_nocase(str_trim(part), token))
            return true;
    return false;
}

/* Exactly "chunked". An unknown coding is 501; "chunked" in a wrong place or number is 400. */
static enum status read_transfer_encoding(const struct http_parser *parser, struct str value,
                                          struct error *error)
{
    static const char name[] = "Transfer-Encoding";

    if (has_field(parser, HTTP_FIELD_CONTENT_LENGTH))
        return refuse_field(error, name, "Content-Length and Transfer-Encoding exclude each other");
    if (parser->minor_version == 0)
        return refuse_field(error, name, "Transfer-Encoding is not allowed in HTTP/1.0");
    if (is_repeated(parser, HTTP_FIELD_TRANSFER_ENCODING))
        return refuse_field(error, name, "there is more than one Transfer-Encoding");
    if (str_eq_nocase(value, STR("chunked")))
        return STATUS_OK;
    if (value.len == 0 || list_has(value, STR("chunked")))
        return refuse_field(error, name, "Transfer-Encoding must be chunked, once");
    return error_set_field(error, STATUS_NOT_IMPLEMENTED, name,
                           "the only supported transfer coding is chunked");
}

static enum status read_framing(const struct http_parser *parser, const char *data, struct http_head *head,
                                struct error *error)
{
    if (is_repeated(parser, HTTP_FIELD_CONTENT_TYPE)) /* two readers may use different ones */
        return refuse_field(error, "Content-Type", "there is more than one Content-Type");
    if (has_field(parser, HTTP_FIELD_TRANSFER_ENCODING)) {
        head->body_kind = HTTP_BODY_CHUNKED;
        return read_transfer_encoding(parser, value_of(parser, data, HTTP_FIELD_TRANSFER_ENCODING), error);
    }
    if (!has_field(parser, HTTP_FIELD_CONTENT_LENGTH))
        return STATUS_OK;
    if (is_repeated(parser, HTTP_FIELD_CONTENT_LENGTH))
        return refuse_field(error, "Content-Length", "there is more than one Content-Length");
    if (!str_to_u64(value_of(parser, data, HTTP_FIELD_CONTENT_LENGTH), &head->content_length) ||
        head->content_length > INT64_MAX)
        return refuse_field(error, "Content-Length", "Content-Length must be one decimal number");
    head->body_kind = head->content_length > 0 ? HTTP_BODY_SIZED : HTTP_BODY_NONE;
    return STATUS_OK;
}

static bool connection_has(const struct http_parser *parser, const char *data, struct str token)
{
    for (unsigned i = 0; i < parser->span_count; i++) {
        const struct http_span *span = &parser->spans[i];
        if (span->field == HTTP_FIELD_CONNECTION &&
            list_has(str_of(data + span->value_at, span->value_len), token))
            return true;
    }
    return false;
}

enum status http_head_read(const struct http_parser *parser, const char *data, struct http_head *head,
                           struct error *error)
{
    struct str method = str_of(data + parser->method_at, parser->method_len);

    /* Of fields that were read before, only this is left: they announce no body. */
    *head = (struct http_head){.keep_alive = parser->is_known && head->keep_alive};
    while (head->method < HTTP_METHODS && (method.ptr[0] != method_names[head->method][0] ||
                                           !str_eq(method, str_from(method_names[head->method]))))
        head->method++;
    /* An unknown method is 405 or 404, by its path. CONNECT is the exception: what follows its head need not be a request. */
    if (head->method == HTTP_METHOD_OTHER && str_eq(method, STR("CONNECT")))
        return error_set(error, STATUS_NOT_IMPLEMENTED, "this method is not supported");
    enum status status = read_target(str_of(data + parser->target_at, parser->target_len), head, error);
    if (status != STATUS_OK || parser->is_known)
        return status;
    if (is_repeated(parser, HTTP_FIELD_HOST))
        return refuse_field(error, "Host", "there is more than one Host");
    if (!has_field(parser, HTTP_FIELD_HOST) && parser->minor_version > 0)
        return refuse_field(error, "Host", "Host is required in HTTP/1.1");
    if (has_field(parser, HTTP_FIELD_HOST) && !is_authority(value_of(parser, data, HTTP_FIELD_HOST)))
        return refuse_field(error, "Host", "Host is not a valid host and port");
    status = read_framing(parser, data, head, error);
    if (status != STATUS_OK)
        return status;
    /* An expectation in HTTP/1.0 is ignored, as RFC 9110 asks. */
    if (has_field(parser, HTTP_FIELD_EXPECT) && parser->minor_version > 0) {
        if (is_repeated(parser, HTTP_FIELD_EXPECT) ||
            !str_eq_nocase(value_of(parser, data, HTTP_FIELD_EXPECT), STR("100-continue")))
            return error_set_field(error, STATUS_EXPECTATION_FAILED, "Expect",
                                   "the only supported expectation is 100-continue");
        head->expects_continue = head->body_kind != HTTP_BODY_NONE;
    }
    head->keep_alive = parser->minor_version == 1;
    if (has_field(parser, HTTP_FIELD_CONNECTION))
        head->keep_alive = !connection_has(parser, data, STR("close")) &&
                           (head->keep_alive || connection_has(parser, data, STR("keep-alive")));
    return STATUS_OK;
}
