/* CORS (Fetch standard): which origins' scripts may read answers, as lines that are put together once.
 *
 * An origin is compared with the configured ones byte by byte, and only those are ever named in an answer. Lines for all answers
 * of the server are added where the request's id is, so that a server without CORS does nothing for it. */
#include <stdlib.h>

#include "base/memory.h"
#include "http/http_inside.h"

#define ALLOWED_HEADERS                                                                           \
    "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, X-Min-Version, " \
    "X-Request-Id, X-Tenant-Id, traceparent"

struct http_cors {
    atomic_uint refs;
    struct arena arena;
    bool allows_any;
    struct str *origins;
    size_t origin_count;
    struct str lines;     /* of an answer to an allowed origin, after Access-Control-Allow-Origin */
    struct str preflight; /* the same of a preflight's, after Access-Control-Allow-Methods */
};

/* ---- settings ---- */

static bool is_token(struct str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (!str_is_name(str_of(text.ptr + i, 1)) && !memchr("!#$%&'*+^`|~", text.ptr[i], 12))
            return false;
    return text.len > 0;
}

/* scheme://host[:port] as browsers write it: lower case, without a default port, without anything after it. */
static const char *what_is_wrong(struct str origin)
{
    struct str scheme = str_starts_with(origin, STR("https://")) ? STR("https://") : STR("http://");
    if (!str_starts_with(origin, scheme) || origin.len == scheme.len)
        return "is not an origin: http://HOST or https://HOST, perhaps with :PORT, or *";
    for (size_t i = scheme.len; i < origin.len; i++) {
        char c = origin.ptr[i];
        if (c >= 'A' && c <= 'Z')
            return "must be in lower case, as browsers send it";
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || memchr("-._:[]", c, 6)))
            return "has more than scheme, host and port";
    }
    if (str_ends_with(origin, scheme.len == 8 ? STR(":443") : STR(":80")))
        return "names the default port, which browsers leave out";
    return NULL;
}

enum status http_cors_check(const struct http_cors_settings *settings, struct error *error)
{
    for (size_t i = 0; i < settings->origins.count; i++) {
        struct str origin = settings->origins.items[i];
        if (str_eq(origin, STR("*"))) {
            if (settings->origins.count > 1)
                return error_set_field(error, STATUS_CONFIG, "allowedOrigins", "\"*\" stands alone");
            if (settings->allows_credentials)
                return error_set_field(
                    error, STATUS_CONFIG, "allowCredentials",
                    "needs origins by name: with \"*\" every page could use the credentials "
                    "of a browser");
            continue;
        }
        const char *wrong = what_is_wrong(origin);
        if (wrong)
            return error_set_field(error, STATUS_CONFIG, "allowedOrigins", "\"%.*s\" %s", STR_ARG(origin),
                                   wrong);
    }
    for (size_t i = 0; i < settings->expose_headers.count; i++)
        if (!is_token(settings->expose_headers.items[i]))
            return error_set_field(error, STATUS_CONFIG, "exposeHeaders", "\"%.*s\" is not a header's name",
                                   STR_ARG(settings->expose_headers.items[i]));
    return STATUS_OK;
}

struct http_cors *http_cors_create(const struct http_cors_settings *settings)
{
    if (settings->origins.count == 0)
        return NULL;
    struct http_cors *cors = memory_zalloc(sizeof *cors);
    struct buf text = {0};
    atomic_init(&cors->refs, 1);
    cors->arena = ARENA(1024);
    cors->origin_count = settings->origins.count;
    cors->origins = arena_alloc(&cors->arena, cors->origin_count * sizeof *cors->origins);
    for (size_t i = 0; i < cors->origin_count; i++)
        cors->origins[i] = arena_str(&cors->arena, settings->origins.items[i]);
    cors->allows_any = str_eq(cors->origins[0], STR("*"));
    if (settings->allows_credentials)
        buf_put_str(&text, STR("Access-Control-Allow-Credentials: true\r\n"));
    for (size_t i = 0; i < settings->expose_headers.count; i++)
        buf_printf(&text, "%s%.*s",
                   i ? ", " : "Access-Control-Expose-Headers: ", STR_ARG(settings->expose_headers.items[i]));
    if (settings->expose_headers.count)
        buf_put_str(&text, STR("\r\n"));
    cors->lines = arena_str(&cors->arena, buf_str(&text));
    buf_deinit(&text);
    cors->preflight = arena_printf(
        &cors->arena, "Access-Control-Allow-Headers: " ALLOWED_HEADERS "\r\nAccess-Control-Max-Age: %lld\r\n",
        (long long)settings->max_age_s);
    return cors;
}

struct http_cors *http_cors_ref(struct http_cors *cors)
{
    if (cors)
        atomic_fetch_add(&cors->refs, 1);
    return cors;
}

void http_cors_unref(struct http_cors *cors)
{
    if (!cors || atomic_fetch_sub(&cors->refs, 1) != 1)
        return;
    arena_deinit(&cors->arena);
    free(cors);
}

/* ---- answers ---- */

static bool allows(const struct http_cors *cors, struct str origin)
{
    for (size_t i = 0; i < cors->origin_count; i++)
        if (str_eq(cors->origins[i], origin))
            return true;
    return false;
}

/* Vary also where there is no origin: a cache must not give that answer to a script. */
void http_cors_put_lines(const struct http_exchange *exchange, struct buf *out)
{
    const struct http_cors *cors = exchange->home->cors;
    struct str origin = http_exchange_field_once(exchange, HTTP_FIELD_ORIGIN);

    if (cors->allows_any) {
        buf_put_str(out, STR("Access-Control-Allow-Origin: *\r\n"));
        buf_put_str(out, cors->lines);
        return;
    }
    if (origin.len > 0 && allows(cors, origin)) {
        buf_put_str(out, STR("Access-Control-Allow-Origin: "));
        buf_put_str(out, origin);
        buf_put_str(out, STR("\r\n"));
        buf_put_str(out, cors->lines);
    }
    buf_put_str(out, STR("Vary: Origin\r\n"));
}

void http_cors_put_preflight(const struct http_exchange *exchange, struct str methods, struct buf *out)
{
    const struct http_cors *cors = exchange->home->cors;
    struct str origin = http_exchange_field_once(exchange, HTTP_FIELD_ORIGIN);
    struct str method = http_request_header(&exchange->request, STR("access-control-request-method"));

    if (!cors || origin.len == 0 || method.len == 0 || !(cors->allows_any || allows(cors, origin)))
        return;
    buf_put_str(out, STR("Access-Control-Allow-Methods: "));
    buf_put_str(out, methods);
    buf_put_str(out, STR("\r\n"));
    buf_put_str(out, cors->preflight);
}

/* ---- a reload ---- */

struct cors_change {
    struct http_server *server;
    struct http_cors *cors;
    atomic_uint left; /* loops that have not taken it */
};

static void change_on_loop(struct loop *loop, void *arg)
{
    struct cors_change *change = arg;
    struct http_server *server = change->server;
    struct http_home *home = &server->homes[loop_index(loop)];

    if (!server->is_destroyed) {
        http_cors_unref(home->cors);
        home->cors = http_cors_ref(change->cors);
    }
    if (atomic_fetch_sub(&change->left, 1) > 1)
        return;
    http_cors_unref(change->cors);
    http_server_unref(server);
    free(change);
}

void http_server_use_cors(struct http_server *server, struct http_cors *cors)
{
    struct cors_change *change = memory_zalloc(sizeof *change);

    *change = (struct cors_change){.server = server, .cors = http_cors_ref(cors)};
    atomic_init(&change->left, server->home_count);
    atomic_fetch_add(&server->refs, 1);
    loop_group_broadcast(server->config.group, change_on_loop, change);
}
