/* Answers that never change while the program runs: files that are built in. They were compressed by the build, so gzip costs
 * nothing here. Anyone may load them, so they are sent as streams: a client that does not read holds a piece, not a copy of the
 * whole. */
#include "http/http_inside.h"

static enum http_producer_state produce_bytes(void *context, struct buf *out, size_t room)
{
    struct str *unsent = context;
    size_t len = unsent->len < room ? unsent->len : room;

    buf_put(out, unsent->ptr, len);
    *unsent = str_skip(*unsent, len);
    return unsent->len == 0 ? HTTP_PRODUCER_END : HTTP_PRODUCER_MORE;
}

static void release_nothing(void *context)
{
    (void)context; /* it is in the request's arena */
}

void http_send_fixed(struct http_request *request, const struct http_fixed *fixed, struct str headers)
{
    bool is_packed = http_request_takes_gzip(request);
    const struct http_form *form = is_packed ? &fixed->gzip : &fixed->plain;
    const struct http_form *other = is_packed ? &fixed->plain : &fixed->gzip;
    bool has_form = http_request_none_match(request, form->etag);
    bool has_other = !has_form && http_request_none_match(request, other->etag);
    struct http_response response = {.content_type = fixed->content_type};

    assert(request->route->gzip == HTTP_GZIP_READY); /* else the answer would not vary */
    response.headers = arena_printf(request->arena, "ETag: %.*s\r\n%.*s%s",
                                    STR_ARG(has_other ? other->etag : form->etag), STR_ARG(headers),
                                    is_packed && !has_form && !has_other ? "Content-Encoding: gzip\r\n" : "");
    if (has_form || has_other) { /* the tag is that of the form that the client has */
        response.status = 304;
        http_send(request, &response);
        return;
    }
    response.status = 200;
    struct str *unsent = arena_alloc(request->arena, sizeof *unsent);
    *unsent = form->bytes;
    http_send_stream(request, &response,
                     &(struct http_producer){
                         .produce = produce_bytes,
                         .release = release_nothing,
                         .context = unsent,
                         .content_length = (int64_t)form->bytes.len,
                     });
}
