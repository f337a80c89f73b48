/* The head parser: bytes to request line and fields, in one pass, at any split of the bytes.
 *
 * Pure: no socket, no memory of its own, no meaning of fields. It is fed the head from its first byte each
 * time (with more bytes at the end) and goes on at the line where it stopped. What it finds it keeps as offsets, since the
 * bytes may be moved between two calls.
 *
 * Clients mostly repeat the fields. While the bytes of the head before are still there,
 * http_parser_next() lets the parser compare them with those of the next head: equal bytes are not parsed again. */
#ifndef FRESHET_HTTP_PARSER_H
#define FRESHET_HTTP_PARSER_H

#include <stdint.h>

#include "http/http.h"

/* The fields the server itself, or nearly every handler, looks at: found while parsing, never searched
 * for. */
enum http_field {
    HTTP_FIELD_OTHER,
    HTTP_FIELD_ACCEPT,
    HTTP_FIELD_AUTHORIZATION,
    HTTP_FIELD_CONNECTION,
    HTTP_FIELD_CONTENT_ENCODING,
    HTTP_FIELD_CONTENT_LENGTH,
    HTTP_FIELD_CONTENT_TYPE,
    HTTP_FIELD_EXPECT,
    HTTP_FIELD_FORWARDED_CLIENT_CERT,
    HTTP_FIELD_HOST,
    HTTP_FIELD_IF_NONE_MATCH,
    HTTP_FIELD_ORIGIN,
    HTTP_FIELD_REQUEST_ID,
    HTTP_FIELD_TRACEPARENT,
    HTTP_FIELD_TRANSFER_ENCODING,
    HTTP_FIELDS,
};

struct http_span { /* one field line: offsets from the head's first byte */
    uint32_t name_at, value_at, value_len;
    uint16_t name_len;
    uint16_t field; /* enum http_field */
};

enum http_parse { HTTP_PARSE_MORE, HTTP_PARSE_DONE, HTTP_PARSE_FAILED };

struct http_parser {
    const struct http_limits *limits;
    struct http_span *spans; /* the caller's, limits->header_count_max of them */
    unsigned span_count;
    unsigned phase;
    unsigned blank_lines; /* seen before the request line */
    uint32_t at;          /* where the line being read begins; after DONE the head's length */
    uint32_t scanned;     /* its target or value is good up to here; before `at` = nothing of it */
    uint32_t method_at, method_len, target_at, target_len, fields_at;
    unsigned minor_version;      /* of HTTP/1.x: 0 or 1 */
    uint16_t first[HTTP_FIELDS]; /* 1 + index of the first field line of that name, 0 = none */
    uint32_t repeated;           /* bit per enum http_field that came more than once */
    struct str known; /* the field lines that all of this was found in, for the next head; or STR_NONE */
    bool
        is_known; /* after DONE: the same as those of an earlier head, and the spans' offsets are of that one */
    enum status status; /* after FAILED, with the reason */
    const char *message;
};

void http_parser_init(struct http_parser *parser, const struct http_limits *limits, struct http_span *spans);
void http_parser_reset(struct http_parser *parser); /* for the next head */
/* The same after the head at `data` was read, whose bytes stay there unchanged until http_parser_forget(). */
void http_parser_next(struct http_parser *parser, const char *data);
void http_parser_forget(struct http_parser *parser);
/* `data` is the head from its first byte. Call again with more while it answers MORE. */
enum http_parse http_parser_run(struct http_parser *parser, const char *data, size_t len);
/* Has a request begun? A blank line or two before it are not the beginning. */
bool http_parser_has_begun(const struct http_parser *parser);
enum http_field http_field_of(struct str name);

#endif
