/* What can be seen of a request afterwards: its span (C9), its line of the access log, and the ids that log lines about it carry. Span
 * and line end when the answer's head is written, as http_request_duration_seconds does, or when the client has gone. The query of
 * a target may hold a secret, so neither has it. */
#include "base/log.h"
#include "base/span.h"
#include "base/uuid.h"
#include "http/http_inside.h"

enum { FIRST_ERROR = 400, FIRST_FAILURE = 500, PATH_BYTES_MAX = 160 };

/* ---- ids ---- */

static bool is_request_id(struct str value)
{
    for (size_t i = 0; i < value.len; i++)
        if (value.ptr[i] <= ' ' || value.ptr[i] > '~')
            return false;
    return value.len > 0 && value.len <= HTTP_REQUEST_ID_BYTES_MAX;
}

void http_observe_read(struct http_exchange *exchange)
{
    struct http_request *request = &exchange->request;
    struct str traceparent = http_exchange_field_once(exchange, HTTP_FIELD_TRACEPARENT);
    struct str request_id = http_exchange_field_once(exchange, HTTP_FIELD_REQUEST_ID);

    exchange->observed.has_ids = traceparent.len > 0 && trace_parse(traceparent, &request->trace);
    if (is_request_id(request_id)) {
        request->request_id = request_id;
        exchange->observed.has_ids = true;
    }
}

void http_observe_put_lines(const struct http_exchange *exchange, int status, struct buf *out)
{
    struct str request_id = exchange->request.request_id;

    out->end -= 2; /* the empty line */
    if (request_id.len > 0) {
        buf_put_str(out, STR("X-Request-Id: "));
        buf_put_str(out, request_id);
        buf_put_str(out, STR("\r\n"));
    }
    if (exchange->entry->varies && status < 400 && exchange->home->server->config.gzip)
        buf_put_str(out, STR("Vary: Accept-Encoding\r\n"));
    if (exchange->home->cors)
        http_cors_put_lines(exchange, out);
    buf_put_str(out, STR("\r\n"));
}

/* ---- the span and the line ---- */

static atomic_int access_log; /* enum http_access_log */

void http_set_access_log(enum http_access_log access)
{
    atomic_store_explicit(&access_log, (int)access, memory_order_relaxed);
}

bool http_observe_is_on(void)
{
    return span_is_on() || atomic_load_explicit(&access_log, memory_order_relaxed) != HTTP_ACCESS_OFF;
}

void http_observe_begin(struct http_exchange *exchange)
{
    struct http_observed *observed = &exchange->observed;

    observed->is_traced = span_enter_root(&exchange->request.trace, observed->parent_span);
    observed->has_ids |= observed->is_traced;
    observed->is_due = true;
    exchange->answer_bytes = 0; /* until its head is put */
}

static struct str tenant_of(const struct http_exchange *exchange)
{
    const struct http_server_config *config = &exchange->home->server->config;
    return config->tenant_of ? config->tenant_of(&exchange->request) : STR_NONE;
}

static const char *route_of(const struct http_exchange *exchange)
{
    return exchange->entry && exchange->entry->route ? exchange->entry->route->path : NULL;
}

/* Probes and scrapes of nobody's trace, of which each process gets many a minute. */
static bool is_noise(const struct http_exchange *exchange)
{
    static const uint8_t none[sizeof exchange->observed.parent_span];

    return memcmp(exchange->observed.parent_span, none, sizeof none) == 0 &&
           str_starts_with(exchange->request.path, STR("/actuator/"));
}

/* Names and attributes are those of OpenTelemetry's conventions for HTTP. */
static void record_span(const struct http_exchange *exchange, int status, int64_t elapsed_ns)
{
    const struct http_request *request = &exchange->request;
    const char *method = http_method_name(request->method), *route = route_of(exchange);
    struct span span;

    span_resume(&span, SPAN_SERVER, method, &request->trace, exchange->observed.parent_span, elapsed_ns);
    span.detail = route;
    span_put_str(&span, "http.request.method", str_from(method));
    if (route)
        span_put_str(&span, "http.route", str_from(route));
    span_put_str(&span, "url.path", str_utf8_cut(request->path, PATH_BYTES_MAX));
    span_put_str(&span, "url.scheme", exchange->home->tls ? STR("https") : STR("http"));
    span_put_str(&span, "freshet.tenant.id", tenant_of(exchange));
    span_put_str(&span, "freshet.request.id", request->request_id);
    if (status == 0) {
        span_fail(&span, STR("client_gone"));
    } else {
        char digits[4] = {(char)('0' + status / 100 % 10), (char)('0' + status / 10 % 10),
                          (char)('0' + status % 10)};
        span_put_int(&span, "http.response.status_code", status);
        if (status >= FIRST_FAILURE)
            span_fail(&span, str_from(digits));
    }
    span_end(&span);
}

static void write_line(const struct http_exchange *exchange, int status, int64_t elapsed_ns)
{
    const struct http_request *request = &exchange->request;
    const char *route = route_of(exchange);

    bool is_nested = log_is_entered(); /* by the request itself */

    if (!is_nested)
        log_enter(&request->trace, request->request_id);
    log_info("http_request",
             LOG_CSTR("method", request->path.len > 0 ? http_method_name(request->method) : ""),
             LOG_CSTR("route", route ? route : "unmatched"), LOG_STR("path", request->path),
             LOG_INT("status", status), LOG_INT("bytes", exchange->answer_bytes),
             LOG_DOUBLE("durationMs", (double)(elapsed_ns / 1000) / 1000),
             LOG_STR("tenantId", tenant_of(exchange)));
    if (!is_nested)
        log_leave();
}

void http_observe_end(struct http_exchange *exchange, int status)
{
    enum http_access_log access =
        (enum http_access_log)atomic_load_explicit(&access_log, memory_order_relaxed);
    int64_t elapsed_ns = clock_mono_ns() - exchange->started_ns;

    exchange->observed.is_due = false;
    if (exchange->observed.is_traced && !is_noise(exchange))
        record_span(exchange, status, elapsed_ns);
    if (access == HTTP_ACCESS_ALL || (access == HTTP_ACCESS_ERRORS && (status == 0 || status >= FIRST_ERROR)))
        write_line(exchange, status, elapsed_ns);
}

/* ---- log lines ---- */

void http_observe_enter(const struct http_exchange *exchange)
{
    if (exchange->observed.has_ids)
        log_enter(&exchange->request.trace, exchange->request.request_id);
}

void http_observe_failure(const struct http_request *request, const struct error *error, struct buf *headers)
{
    bool is_nested = log_is_entered();
    char text[UUID_TEXT_BYTES];
    struct str id = request->request_id;

    if (id.len == 0) {
        struct uuid made = uuid_random();
        uuid_format(&made, text);
        id = str_from(text);
        buf_printf(headers, "X-Request-Id: %s\r\n", text);
    }
    log_enter(&request->trace, id);
    log_error("request_failed", LOG_CSTR("route", request->route ? request->route->path : ""),
              LOG_ERROR_FIELDS(error));
    if (!is_nested)
        log_leave();
}
