/* GET /console and the files it loads, from memory: they never change while the program runs.
 *
 * Anyone may load them, so they are sent as streams: a client that does not read holds a piece, not a copy of the whole. The
 * headers tell the browser to run nothing but these files, to connect to no other host, and to show them in no frame. */
#include "modules/ops/console.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"
#include "modules/ops/ops.h"

#define CONSOLE_HEADERS                                                                                      \
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " \
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "                    \
    "require-trusted-types-for 'script'; trusted-types 'none'\r\n"                                           \
    "X-Content-Type-Options: nosniff\r\n"                                                                    \
    "Referrer-Policy: no-referrer\r\n"                                                                       \
    "Cross-Origin-Opener-Policy: same-origin\r\n"                                                            \
    "Cache-Control: no-cache\r\n"                                                                            \
    "Vary: Accept-Encoding\r\n"

/* ---- Accept-Encoding ---- */

/* "q=0", "q=0.000": the coding is refused. */
static bool is_weight_zero(struct str parameter)
{
    parameter = str_trim(parameter);
    if (parameter.len < 3 || (parameter.ptr[0] | 0x20) != 'q' || parameter.ptr[1] != '=')
        return false;
    for (size_t i = 2; i < parameter.len; i++)
        if (parameter.ptr[i] != '0' && parameter.ptr[i] != '.')
            return false;
    return true;
}

/* Does the client take gzip? By its name, or by a star where its name is not there. */
static bool takes_gzip(const struct http_request *request)
{
    bool by_star = false;
    for (size_t i = 0; i < request->header_count; i++) {
        if (!str_eq_nocase(request->headers[i].name, STR("accept-encoding")))
            continue;
        struct str list = request->headers[i].value, coding, name = STR_NONE;
        while (str_split(&list, ',', &coding)) {
            bool is_named = str_split(&coding, ';', &name) && str_eq_nocase(str_trim(name), STR("gzip"));
            if (is_named)
                return !is_weight_zero(coding);
            if (str_eq(str_trim(name), STR("*")))
                by_star = !is_weight_zero(coding);
        }
    }
    return by_star;
}

/* ---- answers ---- */

static enum http_source_state produce_file(void *context, struct buf *out, size_t room)
{
    struct str *unsent = context;
    size_t len = unsent->len < room ? unsent->len : room;
    buf_put(out, unsent->ptr, len);
    *unsent = str_skip(*unsent, len);
    return unsent->len == 0 ? HTTP_SOURCE_END : HTTP_SOURCE_MORE;
}

static void release_nothing(void *context)
{
    (void)context; /* it is in the request's arena */
}

static void send_file(struct http_request *request, const struct ops_console_file *file)
{
    bool is_packed = takes_gzip(request);
    const struct ops_console_body *body = is_packed ? &file->gzip : &file->plain;
    struct http_response response = {
        .status = 200,
        .content_type = file->type,
        .headers = arena_printf(request->arena, CONSOLE_HEADERS "ETag: %.*s\r\n%s", STR_ARG(body->etag),
                                is_packed ? "Content-Encoding: gzip\r\n" : ""),
    };
    if (http_request_none_match(request, body->etag)) {
        response.status = 304;
        http_send(request, &response);
        return;
    }
    struct str *unsent = arena_alloc(request->arena, sizeof *unsent);
    *unsent = body->bytes;
    http_send_stream(request, &response,
                     &(struct http_source){
                         .produce = produce_file,
                         .release = release_nothing,
                         .context = unsent,
                         .content_length = (int64_t)body->bytes.len,
                     });
}

static void send_named(struct http_request *request, struct str name)
{
    static const char *const none[] = {NULL};
    const struct ops *ops = request->context;
    struct error error = {.status = STATUS_NOT_FOUND};
    if (!ops->settings->enabled || !ops->settings->console) {
        http_send_error(request, &error);
        return;
    }
    if (http_request_query_only(request, none, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    for (const struct ops_console_file *file = ops_console_files; file->name.len; file++)
        if (str_eq(file->name, name)) {
            send_file(request, file);
            return;
        }
    http_send_error(request, &(struct error){.status = STATUS_NOT_FOUND});
}

static void get_console(struct http_request *request)
{
    send_named(request, STR("index.html"));
}

static void get_console_file(struct http_request *request)
{
    send_named(request, request->params[0]);
}

const struct http_route ops_console_routes[] = {
    {HTTP_GET, "/console", get_console, .access = HTTP_PUBLIC},
    {HTTP_GET, "/console/{file}", get_console_file, .access = HTTP_PUBLIC},
    {.handler = NULL},
};
