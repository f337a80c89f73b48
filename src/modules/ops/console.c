/* GET /console and the files it loads, from memory: they never change while the program runs.
 *
 * The headers tell the browser to run nothing but these files, to connect to no other host, and to show them in no frame. */
#include "modules/ops/console.h"

#include "base/status.h"
#include "modules/ops/ops.h"

#define CONSOLE_HEADERS                                                                                      \
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " \
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "                    \
    "require-trusted-types-for 'script'; trusted-types 'none'\r\n"                                           \
    "X-Content-Type-Options: nosniff\r\n"                                                                    \
    "Referrer-Policy: no-referrer\r\n"                                                                       \
    "Cross-Origin-Opener-Policy: same-origin\r\n"                                                            \
    "Cache-Control: no-cache\r\n"

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
            http_send_fixed(request, &file->fixed, STR(CONSOLE_HEADERS));
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
    {HTTP_GET, "/console", get_console, .access = HTTP_PUBLIC, .gzip = HTTP_GZIP_READY},
    {HTTP_GET, "/console/{file}", get_console_file, .access = HTTP_PUBLIC, .gzip = HTTP_GZIP_READY},
    {.handler = NULL},
};
