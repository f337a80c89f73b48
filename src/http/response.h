/* Writing an answer's head. Pure: bytes into a buffer. */
#ifndef FRESHET_HTTP_RESPONSE_H
#define FRESHET_HTTP_RESPONSE_H

#include "base/buf.h"
#include "http/http.h"

enum http_persistence {
    HTTP_PERSIST_DEFAULT,    /* nothing to say */
    HTTP_PERSIST_CLOSE,      /* Connection: close */
    HTTP_PERSIST_KEEP_ALIVE, /* Connection: keep-alive, for HTTP/1.0 */
};

struct http_response_head {
    int status;
    struct str date_line;    /* "Date: …\r\n" */
    struct str content_type; /* empty = application/json */
    struct str headers;
    int64_t content_length; /* -1 = none */
    bool is_chunked;
    bool has_content; /* false: neither type nor length (204, 304) */
    enum http_persistence persistence;
};

void http_response_put_head(struct buf *out, const struct http_response_head *head);
/* {"code","message"} or {"detail","error_code"}, the field at fault if there is one, then `extra_members`. */
void http_response_put_error(struct buf *out, enum http_errors style, const struct error *error,
                             struct str extra_members);
bool http_status_has_content(int status);
/* A small number for each status we answer with, for tables; unknown ones share the last. */
unsigned http_status_slot(int status);

#endif
