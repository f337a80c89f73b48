/* The head parser: line by line. A line that is not complete is read again from its beginning when more bytes came, except for
 * what is long in it, the target or the value: that goes on where it stopped, so that single bytes cost a client as much as us.
 *
 * Strict where leniency is how requests are smuggled: lines end in CRLF and nothing else, one space between
 * the parts of the request line, no white space around a field name, no folded lines, no control bytes
 * anywhere. */
#include "http/parser.h"

#include "http/scan.h"

/* ---- byte classes of RFC 9110, RFC 9112 and RFC 3986 ---- */

#define K HTTP_BYTE_TOKEN
#define T HTTP_BYTE_TARGET
#define V HTTP_BYTE_VALUE
#define H HTTP_BYTE_HOST

const uint8_t http_byte_class[256] = {
    ['\t'] = V,
    [' '] = V,
    ['!'] = K | T | V | H,
    ['"'] = V,
    ['#'] = K | V,
    ['$' ... '\''] = K | T | V | H,
    ['(' ... ')'] = T | V | H,
    ['*' ... '+'] = K | T | V | H,
    [','] = T | V | H,
    ['-' ... '.'] = K | T | V | H,
    ['/'] = T | V,
    ['0' ... '9'] = K | T | V | H,
    [':' ... ';'] = T | V | H,
    ['<'] = V,
    ['='] = T | V | H,
    ['>'] = V,
    ['?' ... '@'] = T | V,
    ['A' ... 'Z'] = K | T | V | H,
    ['['] = T | V | H,
    ['\\'] = V,
    [']'] = T | V | H,
    ['^'] = K | V,
    ['_'] = K | T | V | H,
    ['`'] = K | V,
    ['a' ... 'z'] = K | T | V | H,
    ['{'] = V,
    ['|'] = K | V,
    ['}'] = V,
    ['~'] = K | T | V | H,
    [0x80 ... 0xff] = V,
};

enum phase {
    PHASE_BLANK, /* before the request line: at most BLANK_LINES_MAX empty ones */
    PHASE_REQUEST_LINE,
    PHASE_FIELDS, /* up to the empty line that ends the head */
    PHASE_DONE,
    PHASE_FAILED,
};

#define BLANK_LINES_MAX 2
#define METHOD_BYTES_MAX 32
#define NAME_BYTES_MAX 256

void http_parser_init(struct http_parser *parser, const struct http_limits *limits, struct http_span *spans)
{
    parser->limits = limits;
    parser->spans = spans;
    http_parser_reset(parser);
}

static void begin_head(struct http_parser *parser)
{
    parser->phase = PHASE_BLANK;
    parser->blank_lines = 0;
    parser->at = parser->scanned = 0;
}

static void clear_fields(struct http_parser *parser)
{
    parser->span_count = 0;
    parser->repeated = 0;
    memset(parser->first, 0, sizeof parser->first);
    parser->known = STR_NONE;
    parser->is_known = false;
}

void http_parser_reset(struct http_parser *parser)
{
    begin_head(parser);
    clear_fields(parser);
}

/* Not with a body: then the bytes after the head may move. Nor with HTTP/1.0, where the same fields mean something else. */
void http_parser_next(struct http_parser *parser, const char *data)
{
    if (!parser->is_known && parser->phase == PHASE_DONE && parser->minor_version == 1 &&
        parser->first[HTTP_FIELD_CONTENT_LENGTH] == 0 && parser->first[HTTP_FIELD_TRANSFER_ENCODING] == 0)
        parser->known = str_of(data + parser->fields_at, parser->at - parser->fields_at);
    begin_head(parser);
    if (parser->known.len == 0)
        clear_fields(parser);
}

void http_parser_forget(struct http_parser *parser)
{
    if (parser->known.len > 0)
        clear_fields(parser);
}

bool http_parser_has_begun(const struct http_parser *parser)
{
    return parser->phase != PHASE_BLANK;
}

static enum http_parse fail_parse(struct http_parser *parser, enum status status, const char *message)
{
    parser->phase = PHASE_FAILED;
    parser->status = status;
    parser->message = message;
    return HTTP_PARSE_FAILED;
}

static enum http_parse fail_line(struct http_parser *parser, const char *message)
{
    return fail_parse(parser, STATUS_BAD_REQUEST, message);
}

/* ---- names ---- */

/* `lower` holds letters and hyphens only, which is what makes one OR a case fold. */
static bool name_is(const char *name, const char *lower, size_t len)
{
    unsigned differ = 0;

    for (size_t i = 0; i < len; i++)
        differ |= (unsigned)((name[i] | 0x20) ^ lower[i]);
    return differ == 0;
}

#define FIELD_IF(lower, field) (name_is(name.ptr, lower, sizeof(lower) - 1) ? (field) : HTTP_FIELD_OTHER)

enum http_field http_field_of(struct str name)
{
    switch (name.len) {
    case 4: return FIELD_IF("host", HTTP_FIELD_HOST);
    case 6:
        return (name.ptr[0] | 0x20) == 'a'   ? FIELD_IF("accept", HTTP_FIELD_ACCEPT)
               : (name.ptr[0] | 0x20) == 'e' ? FIELD_IF("expect", HTTP_FIELD_EXPECT)
                                             : FIELD_IF("origin", HTTP_FIELD_ORIGIN);
    case 10: return FIELD_IF("connection", HTTP_FIELD_CONNECTION);
    case 11: return FIELD_IF("traceparent", HTTP_FIELD_TRACEPARENT);
    case 12:
        return (name.ptr[0] | 0x20) == 'c' ? FIELD_IF("content-type", HTTP_FIELD_CONTENT_TYPE)
                                           : FIELD_IF("x-request-id", HTTP_FIELD_REQUEST_ID);
    case 13:
        return (name.ptr[0] | 0x20) == 'a' ? FIELD_IF("authorization", HTTP_FIELD_AUTHORIZATION)
                                           : FIELD_IF("if-none-match", HTTP_FIELD_IF_NONE_MATCH);
    case 14: return FIELD_IF("content-length", HTTP_FIELD_CONTENT_LENGTH);
    case 16: return FIELD_IF("content-encoding", HTTP_FIELD_CONTENT_ENCODING);
    case 17: return FIELD_IF("transfer-encoding", HTTP_FIELD_TRANSFER_ENCODING);
    case 23: return FIELD_IF("x-forwarded-client-cert", HTTP_FIELD_FORWARDED_CLIENT_CERT);
    default: return HTTP_FIELD_OTHER;
    }
}

/* ---- lines: DONE when one was read, MORE when it is not complete ---- */

/* Where to go on with the target or the value that begins there. */
static const char *scan_from(const struct http_parser *parser, const char *data, size_t begin)
{
    return data + (parser->scanned > begin ? parser->scanned : begin);
}

static enum http_parse read_request_line(struct http_parser *parser, const char *data, size_t len)
{
    static const char version[] = "HTTP/#.#\r\n", usual_end[] = " HTTP/1.1\r\n";
    size_t begin = parser->at, at = (size_t)(http_scan(data + begin, data + len, HTTP_BYTE_TOKEN) - data);

    if (at - begin > METHOD_BYTES_MAX)
        return fail_line(parser, "the method is too long");
    if (at == len)
        return HTTP_PARSE_MORE;
    if (data[at] != ' ' || at == begin)
        return fail_line(parser, "the request line does not begin with a method and one space");
    parser->method_at = (uint32_t)begin;
    parser->method_len = (uint32_t)(at - begin);
    begin = at + 1;
    at = (size_t)(http_scan_target(scan_from(parser, data, begin), data + len) - data);
    if (at - begin > parser->limits->target_bytes_max)
        return fail_parse(parser, STATUS_URI_TOO_LONG, "the request target is over the limit");
    parser->scanned = (uint32_t)at;
    if (at == len)
        return HTTP_PARSE_MORE;
    if (at == begin)
        return fail_line(parser, "the request target is empty or begins with a byte that must be encoded");
    if (data[at] != ' ')
        return fail_line(parser,
                         "the request target contains a byte that must be encoded, or no version follows it");
    parser->target_at = (uint32_t)begin;
    parser->target_len = (uint32_t)(at - begin);
    if (len - at >= sizeof usual_end - 1 && memcmp(data + at, usual_end, sizeof usual_end - 1) == 0) {
        parser->phase = PHASE_FIELDS;
        parser->minor_version = 1;
        parser->fields_at = parser->at = (uint32_t)(at + sizeof usual_end - 1);
        return HTTP_PARSE_DONE;
    }
    /* Byte by byte against the pattern, so that a wrong version is refused before it is complete. */
    for (const char *expected = version; *expected; expected++) {
        if (++at == len)
            return HTTP_PARSE_MORE;
        if (*expected == '#' ? data[at] < '0' || data[at] > '9' : data[at] != *expected)
            return fail_line(parser, "the request line does not end in a version and CRLF");
    }
    if (data[at - 4] != '1')
        return fail_parse(parser, STATUS_HTTP_VERSION, status_message(STATUS_HTTP_VERSION));
    parser->minor_version =
        data[at - 2] != '0'; /* a later 1.x is processed as the highest that we know (RFC 9110 2.5) */
    parser->fields_at = parser->at = (uint32_t)(at + 1);
    parser->phase = PHASE_FIELDS;
    return HTTP_PARSE_DONE;
}

/* The colon that ends the name of a field line, or of the line that ends the head, which moves the phase. */
static enum http_parse read_name(struct http_parser *parser, const char *data, size_t len, size_t *colon)
{
    size_t begin = parser->at;

    if (begin == len || (data[begin] == '\r' && begin + 1 == len))
        return HTTP_PARSE_MORE;
    if (data[begin] == '\r') {
        if (data[begin + 1] != '\n')
            return fail_line(parser, "there is a bare CR in the header section");
        parser->at += 2;
        parser->phase = PHASE_DONE;
        return HTTP_PARSE_DONE;
    }
    if (data[begin] == ' ' || data[begin] == '\t')
        return fail_line(parser, "a header line begins with white space");
    if (parser->span_count == parser->limits->header_count_max)
        return fail_parse(parser, STATUS_HEADERS_TOO_LARGE, "there are too many header fields");
    size_t at = (size_t)(http_scan(data + begin, data + len, HTTP_BYTE_TOKEN) - data);
    if (at - parser->fields_at > parser->limits->header_bytes_max || at - begin > NAME_BYTES_MAX)
        return fail_parse(parser, STATUS_HEADERS_TOO_LARGE, "the header section is over the limit");
    if (at == len)
        return HTTP_PARSE_MORE;
    if (data[at] != ':' || at == begin)
        return fail_line(parser, "a header name is empty, or contains a byte that is not allowed in a name");
    *colon = at;
    return HTTP_PARSE_DONE;
}

static enum http_parse read_field(struct http_parser *parser, const char *data, size_t len)
{
    size_t colon, name_at = parser->at;
    enum http_parse result = read_name(parser, data, len, &colon);

    if (result != HTTP_PARSE_DONE || parser->phase == PHASE_DONE)
        return result;
    size_t begin = colon + 1,
           end = (size_t)(http_scan_value(scan_from(parser, data, begin), data + len) - data);
    if (end - parser->fields_at > parser->limits->header_bytes_max)
        return fail_parse(parser, STATUS_HEADERS_TOO_LARGE, "the header section is over the limit");
    parser->scanned = (uint32_t)end;
    if (end == len || (data[end] == '\r' && end + 1 == len))
        return HTTP_PARSE_MORE;
    if (data[end] != '\r')
        return fail_line(parser, data[end] == '\n' ? "a header line ends in a bare LF"
                                                   : "a header value contains a control byte");
    if (data[end + 1] != '\n')
        return fail_line(parser, "a header value contains a bare CR");
    parser->at = (uint32_t)(end + 2);
    while (begin < end && (data[begin] == ' ' || data[begin] == '\t'))
        begin++;
    while (end > begin && (data[end - 1] == ' ' || data[end - 1] == '\t'))
        end--;
    enum http_field field = http_field_of(str_of(data + name_at, colon - name_at));
    parser->spans[parser->span_count++] = (struct http_span){
        .name_at = (uint32_t)name_at,
        .name_len = (uint16_t)(colon - name_at),
        .value_at = (uint32_t)begin,
        .value_len = (uint32_t)(end - begin),
        .field = (uint16_t)field,
    };
    if (parser->first[field] == 0)
        parser->first[field] = (uint16_t)parser->span_count;
    else
        parser->repeated |= 1u << field;
    return HTTP_PARSE_DONE;
}

/* After the request line: all field lines at once, where they are those of the head before. */
static void match_known(struct http_parser *parser, const char *data, size_t len)
{
    struct str known = parser->known;

    parser->is_known = known.len > 0 && known.len <= len - parser->at && parser->minor_version == 1 &&
                       memcmp(data + parser->at, known.ptr, known.len) == 0;
    if (parser->is_known) {
        parser->at += (uint32_t)known.len;
        parser->phase = PHASE_DONE;
    } else if (known.len > 0) {
        clear_fields(parser);
    }
}

enum http_parse http_parser_run(struct http_parser *parser, const char *data, size_t len)
{
    enum http_parse result = HTTP_PARSE_DONE;

    while (parser->phase == PHASE_BLANK) {
        const char *at = data + parser->at;
        if (parser->at == len || (*at == '\r' && parser->at + 1 == len))
            return HTTP_PARSE_MORE;
        if (*at != '\r')
            parser->phase = PHASE_REQUEST_LINE;
        else if (at[1] != '\n')
            return fail_line(parser, "there is a bare CR before the request line");
        else if (++parser->blank_lines > BLANK_LINES_MAX)
            return fail_line(parser, "too many empty lines before the request line");
        else
            parser->at += 2;
    }
    if (parser->phase == PHASE_REQUEST_LINE) {
        result = read_request_line(parser, data, len);
        if (result == HTTP_PARSE_DONE)
            match_known(parser, data, len);
    }
    while (parser->phase == PHASE_FIELDS && result == HTTP_PARSE_DONE)
        result = read_field(parser, data, len);
    return parser->phase == PHASE_FAILED ? HTTP_PARSE_FAILED : result;
}
