/* The head parser: a phase per element, each resuming at parser->at.
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

/* ---- phases ---- */

enum phase {
    PHASE_BLANK,  /* before the request line: at most BLANK_LINES_MAX empty ones */
    PHASE_METHOD, /* up to the first space */
    PHASE_TARGET, /* up to the second space */
    PHASE_VERSION,
    PHASE_LINE,  /* at the first byte of a field line, or of the empty line that ends the head */
    PHASE_NAME,  /* up to the colon */
    PHASE_VALUE, /* up to CRLF */
    PHASE_DONE,
    PHASE_FAILED,
};

enum step { STEP_NEXT, STEP_MORE, STEP_FAILED };

#define BLANK_LINES_MAX 2
#define METHOD_BYTES_MAX 32
#define NAME_BYTES_MAX 256

void http_parser_init(struct http_parser *parser, const struct http_parser_limits *limits,
                      struct http_span *spans)
{
    parser->limits = limits;
    parser->spans = spans;
    http_parser_reset(parser);
}

void http_parser_reset(struct http_parser *parser)
{
    parser->span_count = 0;
    parser->phase = PHASE_BLANK;
    parser->blank_lines = 0;
    parser->at = parser->mark = 0;
    parser->repeated = 0;
    memset(parser->first, 0, sizeof parser->first);
}

bool http_parser_has_begun(const struct http_parser *parser)
{
    return parser->phase != PHASE_BLANK || parser->at > parser->mark;
}

static enum step fail_parse(struct http_parser *parser, enum status status, const char *message)
{
    parser->phase = PHASE_FAILED;
    parser->status = status;
    parser->message = message;
    return STEP_FAILED;
}

static enum step fail_line(struct http_parser *parser, const char *message)
{
    return fail_parse(parser, STATUS_BAD_REQUEST, message);
}

static enum step enter(struct http_parser *parser, enum phase phase, size_t at)
{
    parser->phase = phase;
    parser->at = parser->mark = (uint32_t)at;
    return STEP_NEXT;
}

static enum step wait_at(struct http_parser *parser, size_t at)
{
    parser->at = (uint32_t)at;
    return STEP_MORE;
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
        return (name.ptr[0] | 0x20) == 'a' ? FIELD_IF("accept", HTTP_FIELD_ACCEPT)
                                           : FIELD_IF("expect", HTTP_FIELD_EXPECT);
    case 10: return FIELD_IF("connection", HTTP_FIELD_CONNECTION);
    case 11: return FIELD_IF("traceparent", HTTP_FIELD_TRACEPARENT);
    case 12: return FIELD_IF("content-type", HTTP_FIELD_CONTENT_TYPE);
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

/* ---- the request line ---- */

static enum step read_blank(struct http_parser *parser, const char *data, size_t len)
{
    size_t at = parser->at;

    if (at == len)
        return STEP_MORE;
    if (data[at] != '\r') {
        parser->method_at = (uint32_t)at;
        return enter(parser, PHASE_METHOD, at);
    }
    if (at + 1 == len)
        return STEP_MORE;
    if (data[at + 1] != '\n')
        return fail_line(parser, "there is a bare CR before the request line");
    if (++parser->blank_lines > BLANK_LINES_MAX)
        return fail_line(parser, "too many empty lines before the request line");
    return enter(parser, PHASE_BLANK, at + 2);
}

static enum step read_method(struct http_parser *parser, const char *data, size_t len)
{
    size_t at = (size_t)(http_scan(data + parser->at, data + len, HTTP_BYTE_TOKEN) - data);

    if (at - parser->mark > METHOD_BYTES_MAX)
        return fail_line(parser, "the method is too long");
    if (at == len)
        return wait_at(parser, at);
    if (data[at] != ' ' || at == parser->mark)
        return fail_line(parser, "the request line does not begin with a method and one space");
    parser->method_len = (uint32_t)(at - parser->mark);
    parser->target_at = (uint32_t)(at + 1);
    return enter(parser, PHASE_TARGET, at + 1);
}

static enum step read_target(struct http_parser *parser, const char *data, size_t len)
{
    size_t at = (size_t)(http_scan_target(data + parser->at, data + len) - data);

    if (at - parser->mark > parser->limits->target_bytes_max)
        return fail_parse(parser, STATUS_URI_TOO_LONG, "the request target is over the limit");
    if (at == len)
        return wait_at(parser, at);
    if (at == parser->mark)
        return fail_line(parser, "the request target is empty or begins with a byte that must be encoded");
    if (data[at] != ' ')
        return fail_line(parser,
                         "the request target contains a byte that must be encoded, or no version follows it");
    parser->target_len = (uint32_t)(at - parser->mark);
    return enter(parser, PHASE_VERSION, at + 1);
}

/* Byte by byte against the pattern, so that a wrong version is refused before it is complete. */
static enum step read_version(struct http_parser *parser, const char *data, size_t len)
{
    static const char pattern[] = "HTTP/#.#\r\n";
    size_t at = parser->at;

    for (; at - parser->mark < sizeof pattern - 1; at++) {
        if (at == len)
            return wait_at(parser, at);
        char expected = pattern[at - parser->mark];
        if (expected == '#' ? data[at] < '0' || data[at] > '9' : data[at] != expected)
            return fail_line(parser, "the request line does not end in a version and CRLF");
    }
    parser->major_version = (unsigned)(data[parser->mark + 5] - '0');
    parser->minor_version = (unsigned)(data[parser->mark + 7] - '0');
    if (parser->major_version != 1)
        return fail_parse(parser, STATUS_HTTP_VERSION, status_message(STATUS_HTTP_VERSION));
    if (parser->minor_version > 1) /* a later 1.x is processed as the highest that we know (RFC 9110 2.5) */
        parser->minor_version = 1;
    parser->fields_at = (uint32_t)at;
    return enter(parser, PHASE_LINE, at);
}

/* ---- fields ---- */

static bool fields_too_long(const struct http_parser *parser, size_t at)
{
    return at - parser->fields_at > parser->limits->header_bytes_max;
}

static enum step fail_too_large(struct http_parser *parser, const char *message)
{
    return fail_parse(parser, STATUS_HEADERS_TOO_LARGE, message);
}

static enum step read_line(struct http_parser *parser, const char *data, size_t len)
{
    size_t at = parser->at;

    if (at == len)
        return STEP_MORE;
    if (data[at] == '\r') {
        if (at + 1 == len)
            return STEP_MORE;
        if (data[at + 1] != '\n')
            return fail_line(parser, "there is a bare CR in the header section");
        return enter(parser, PHASE_DONE, at + 2);
    }
    if (data[at] == ' ' || data[at] == '\t')
        return fail_line(parser, "a header line begins with white space");
    if (parser->span_count == parser->limits->header_count_max)
        return fail_too_large(parser, "there are too many header fields");
    return enter(parser, PHASE_NAME, at);
}

static enum step read_name(struct http_parser *parser, const char *data, size_t len)
{
    size_t at = (size_t)(http_scan(data + parser->at, data + len, HTTP_BYTE_TOKEN) - data);

    if (fields_too_long(parser, at) || at - parser->mark > NAME_BYTES_MAX)
        return fail_too_large(parser, "the header section is over the limit");
    if (at == len)
        return wait_at(parser, at);
    if (data[at] != ':' || at == parser->mark)
        return fail_line(parser, "a header name is empty, or contains a byte that is not allowed in a name");
    struct http_span *span = &parser->spans[parser->span_count];
    span->name_at = parser->mark;
    span->name_len = (uint16_t)(at - parser->mark);
    return enter(parser, PHASE_VALUE, at + 1);
}

static void keep_field(struct http_parser *parser, const char *data, size_t end)
{
    struct http_span *span = &parser->spans[parser->span_count++];
    size_t begin = parser->mark;

    while (begin < end && (data[begin] == ' ' || data[begin] == '\t'))
        begin++;
    while (end > begin && (data[end - 1] == ' ' || data[end - 1] == '\t'))
        end--;
    span->value_at = (uint32_t)begin;
    span->value_len = (uint32_t)(end - begin);
    enum http_field field = http_field_of(str_of(data + span->name_at, span->name_len));
    span->field = (uint16_t)field;
    if (parser->first[field] == 0)
        parser->first[field] = (uint16_t)parser->span_count;
    else
        parser->repeated |= 1u << field;
}

static enum step read_value(struct http_parser *parser, const char *data, size_t len)
{
    size_t at = (size_t)(http_scan_value(data + parser->at, data + len) - data);

    if (fields_too_long(parser, at))
        return fail_too_large(parser, "the header section is over the limit");
    if (at == len || (data[at] == '\r' && at + 1 == len))
        return wait_at(parser, at);
    if (data[at] != '\r')
        return fail_line(parser, data[at] == '\n' ? "a header line ends in a bare LF"
                                                  : "a header value contains a control byte");
    if (data[at + 1] != '\n')
        return fail_line(parser, "a header value contains a bare CR");
    keep_field(parser, data, at);
    return enter(parser, PHASE_LINE, at + 2);
}

static enum step read_next(struct http_parser *parser, const char *data, size_t len)
{
    switch ((enum phase)parser->phase) {
    case PHASE_BLANK: return read_blank(parser, data, len);
    case PHASE_METHOD: return read_method(parser, data, len);
    case PHASE_TARGET: return read_target(parser, data, len);
    case PHASE_VERSION: return read_version(parser, data, len);
    case PHASE_LINE: return read_line(parser, data, len);
    case PHASE_NAME: return read_name(parser, data, len);
    case PHASE_VALUE: return read_value(parser, data, len);
    case PHASE_DONE:
    case PHASE_FAILED: break;
    }
    return STEP_FAILED;
}

enum http_parse http_parser_run(struct http_parser *parser, const char *data, size_t len)
{
    while (parser->phase != PHASE_DONE) {
        enum step step = read_next(parser, data, len);
        if (step == STEP_MORE)
            return HTTP_PARSE_MORE;
        if (step == STEP_FAILED)
            return HTTP_PARSE_FAILED;
    }
    return HTTP_PARSE_DONE;
}
