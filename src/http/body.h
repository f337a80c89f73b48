/* The body decoder: Content-Length and chunked framing, at any split of the bytes.
 *
 * Pure: it takes raw bytes and hands back slices of them that are content. Chunk extensions and trailers
 * are checked, bounded and dropped. The caller bounds the content by `received`. */
#ifndef FRESHET_HTTP_BODY_H
#define FRESHET_HTTP_BODY_H

#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

enum http_body_kind { HTTP_BODY_NONE, HTTP_BODY_SIZED, HTTP_BODY_CHUNKED };

enum http_body_step {
    HTTP_BODY_DATA, /* *piece is the next content; call again */
    HTTP_BODY_MORE, /* every byte was taken, more are needed */
    HTTP_BODY_DONE, /* *raw begins after the body */
    HTTP_BODY_FAILED,
};

struct http_body {
    enum http_body_kind kind;
    unsigned phase;
    unsigned digits;         /* of the chunk size */
    uint64_t remaining;      /* of the sized body, or of the chunk */
    uint64_t received;       /* content so far */
    uint64_t overhead_bytes; /* extensions and trailers so far */
    unsigned line_bytes;     /* of the trailer line so far */
    bool name_ended;         /* its colon was seen */
    const char *message;     /* after FAILED */
};

void http_body_init(struct http_body *body, enum http_body_kind kind, uint64_t content_length);
/* Takes bytes off the front of *raw. */
enum http_body_step http_body_next(struct http_body *body, struct str *raw, struct str *piece);
bool http_body_is_done(const struct http_body *body);

#endif
