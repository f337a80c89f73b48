/* GET /openapi.yaml: the description of the routes, api/openapi.yaml as it was when the program was built. Whether it
 * is true is not decided here: the system tests hold it against the routes and the answers. */
#include "kernel/kernel_inside.h"

/* Made from the file by tools/embed_file.py. */
extern const struct str kernel_openapi_text, kernel_openapi_etag;

/* A piece at a time, so that a client that does not read holds a piece and not a copy of the whole. */
static enum http_source_state produce_text(void *context, struct buf *out, size_t room)
{
    size_t *sent = context, left = kernel_openapi_text.len - *sent, len = left < room ? left : room;
    buf_put(out, kernel_openapi_text.ptr + *sent, len);
    *sent += len;
    return len == left ? HTTP_SOURCE_END : HTTP_SOURCE_MORE;
}

static void release_nothing(void *context)
{
    (void)context; /* it is in the request's arena */
}

void kernel_get_openapi(struct http_request *request)
{
    static const char *const none[] = {NULL};
    struct error error;
    if (http_request_query_only(request, none, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    struct http_response response = {
        .status = 200,
        .content_type = STR("application/yaml"),
        .headers = arena_printf(request->arena, "ETag: %.*s\r\nCache-Control: no-cache\r\n",
                                STR_ARG(kernel_openapi_etag)),
    };
    if (http_request_none_match(request, kernel_openapi_etag)) {
        response.status = 304;
        http_send(request, &response);
        return;
    }
    size_t *sent = arena_zalloc(request->arena, sizeof *sent);
    http_send_stream(request, &response,
                     &(struct http_source){
                         .produce = produce_text,
                         .release = release_nothing,
                         .context = sent,
                         .content_length = (int64_t)kernel_openapi_text.len,
                     });
}
