/* GET /openapi.yaml: the description of the routes, api/openapi.yaml as it was when the program was built. Whether it
 * is true is not decided here: the system tests hold it against the routes and the answers. */
#include "kernel/kernel_inside.h"

/* Made from the file by tools/embed_file.py. */
extern const struct str kernel_openapi_text, kernel_openapi_etag;

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
        .body = kernel_openapi_text,
    };
    if (http_request_none_match(request, kernel_openapi_etag))
        response.status = 304, response.body = STR_NONE;
    http_send(request, &response);
}
