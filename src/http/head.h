/* What a parsed head means for the server: method, path, framing of the body, life of the connection.
 *
 * Pure. Whatever would let two readers see two different requests is refused here (C6): a length beside a
 * coding, two lengths, a coding that is not exactly "chunked", no or two hosts. */
#ifndef FRESHET_HTTP_HEAD_H
#define FRESHET_HTTP_HEAD_H

#include "base/status.h"
#include "base/str.h"
#include "http/body.h"
#include "http/http.h"
#include "http/parser.h"

struct http_head {
    enum http_method method;
    struct str target, path, query; /* slices of the head's bytes */
    enum http_body_kind body_kind;
    uint64_t content_length; /* of a sized body */
    bool keep_alive;
    bool expects_continue; /* waits for 100 before it sends the body */
    bool is_server_wide;   /* OPTIONS * */
};

/* Any failure here leaves the framing in doubt: answer it and close. */
enum status http_head_read(const struct http_parser *parser, const char *data, struct http_head *head,
                           struct error *error) MUST_CHECK;
bool http_method_of(struct str token, enum http_method *method);
const char *http_method_name(enum http_method method);
/* Is `token` a member of this comma-separated list, whatever the case? */
bool http_list_has(struct str list, struct str token);

#endif
