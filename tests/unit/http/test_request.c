/* What a handler can ask of its request: query, headers, Accept, If-None-Match, trace. Asked inside a
 * handler, over a real connection. */
#include "harness.h"

static void answer_query(struct http_request *request)
{
    static const char *const names[] = {"a", "b", "keys", NULL};
    struct error error;
    bool found;
    struct str value, keys[8] = {{0}};

    if (http_request_query_only(request, names, &error) != STATUS_OK ||
        http_request_query(request, STR("a"), &found, &value, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    struct str parts[] = {found ? STR("a=") : STR("none"), value, [2 ... 11] = STR(";")};
    size_t count = http_request_query_list(request, STR("keys"), keys, 4);
    for (size_t i = 0; i < 4 && i < count; i++)
        parts[3 + 2 * i] = keys[i];
    http_send_parts(request, &(struct http_response){.status = 200}, parts, 12);
}

static void answer_accepts(struct http_request *request)
{
    bool accepts = http_request_accepts(request, STR("application/x-ndjson"));
    http_send(request, &(struct http_response){.status = 200, .body = accepts ? STR("yes") : STR("no")});
}

static void answer_match(struct http_request *request)
{
    bool matches = http_request_none_match(request, STR("\"tag,1\""));
    http_send(request, &(struct http_response){.status = matches ? 304 : 200,
                                               .headers = STR("ETag: \"tag,1\"\r\n"),
                                               .body = STR("x")});
}

static void answer_headers(struct http_request *request)
{
    char text[200], trace[TRACE_PARENT_BYTES];
    struct str first = http_request_header(request, STR("x-TWICE"));

    trace_format(&request->trace, trace);
    int len =
        snprintf(text, sizeof text, "%.*s %zu auth=%.*s %.16s", STR_ARG(first),
                 http_request_header_count(request, STR("X-Twice")), STR_ARG(request->authorization), trace);
    http_send(request, &(struct http_response){.status = 200, .body = str_of(text, (size_t)len)});
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/query", .handler = answer_query},
    {.method = HTTP_GET, .path = "/accepts", .handler = answer_accepts},
    {.method = HTTP_GET, .path = "/match", .handler = answer_match},
    {.method = HTTP_GET, .path = "/headers", .handler = answer_headers},
    {0},
};

static struct harness harness;

static int setup(void **state)
{
    (void)state;
    harness_init(&harness, routes);
    harness_start(&harness);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    harness_deinit(&harness);
    return 0;
}

static void expect(const char *target, const char *headers, int status, const char *body_has)
{
    char request[1024], body[1024];
    int len = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: a\r\n%s\r\n", target, headers);
    int got = ask(&harness, str_of(request, (size_t)len), body, sizeof body, NULL);

    if (got != status || !strstr(body, body_has))
        fail_msg("%s %s: %d %s", target, headers, got, body);
}

static void test_query(void **state)
{
    (void)state;
    expect("/query", "", 200, "none;");
    expect("/query?a=", "", 200, "a=;");
    expect("/query?a", "", 200, "a=;");
    expect("/query?a=x+y%20z%2B", "", 200, "a=x y z+;");
    expect("/query?%61=1", "", 200, "a=1;");
    expect("/query?keys=p%2Cq,r&a=1", "", 200, "a=1;p%2Cq;r;");
    expect("/query?keys=p&a=1&keys=q,r&k%65ys=s", "", 200, "a=1;p;q;r;s;");
    expect("/query?keys=&keys=,q", "", 200, "none;;;q;");
    expect("/query?a=%C3%A9", "", 200, "a=\xc3\xa9;");
    expect("/query?&&a=1&", "", 200, "a=1;");
}

static void test_c6_bad_queries_name_the_field(void **state)
{
    (void)state;
    expect("/query?a=1&a=2", "", 400, "\"field\":\"a\"");
    expect("/query?a=1&%61=2", "", 400, "\"field\":\"a\"");
    expect("/query?a=%", "", 400, "\"field\":\"a\"");
    expect("/query?a=%4", "", 400, "\"field\":\"a\"");
    expect("/query?a=%00", "", 400, "\"field\":\"a\"");
    expect("/query?a=%C3", "", 400, "\"field\":\"a\"");
    expect("/query?stranger=1", "", 400, "stranger");
}

static void test_accept(void **state)
{
    (void)state;
    expect("/accepts", "", 200, "no");
    expect("/accepts", "Accept: */*\r\n", 200, "no");
    expect("/accepts", "Accept: application/*\r\n", 200, "no");
    expect("/accepts", "Accept: application/x-ndjson\r\n", 200, "yes");
    expect("/accepts", "Accept: text/html, APPLICATION/X-NDJSON ; q=0.5\r\n", 200, "yes");
    expect("/accepts", "Accept: text/html\r\nAccept: application/x-ndjson\r\n", 200, "yes");
    expect("/accepts", "Accept: application/x-ndjson;q=0\r\n", 200, "no");
    expect("/accepts", "Accept: application/x-ndjson; q=0.000, */*\r\n", 200, "no");
    expect("/accepts", "Accept: application/x-ndjson-other\r\n", 200, "no");
}

static void test_r3_if_none_match(void **state)
{
    (void)state;
    expect("/match", "", 200, "x");
    expect("/match", "If-None-Match: \"tag,1\"\r\n", 304, "");
    expect("/match", "If-None-Match: W/\"tag,1\"\r\n", 304, "");
    expect("/match", "If-None-Match: \"other\", \"tag,1\"\r\n", 304, "");
    expect("/match", "If-None-Match: \"other\"\r\nIf-None-Match: \"tag,1\"\r\n", 304, "");
    expect("/match", "If-None-Match: *\r\n", 304, "");
    expect("/match", "If-None-Match: \"tag\"\r\n", 200, "x");
    expect("/match", "If-None-Match: tag,1\r\n", 200, "x");
    expect("/match", "If-None-Match: \"unclosed\r\n", 200, "x");
}

static void test_headers_authorization_and_trace(void **state)
{
    (void)state;
    expect("/headers", "X-Twice: 1\r\nx-twice: 2\r\nAuthorization: Bearer t\r\n", 200,
           "1 2 auth=Bearer t 00-0000000000000");
    expect("/headers", "Authorization: a\r\nAuthorization: b\r\n", 200, "auth= ");
    expect("/headers", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n", 200,
           "00-0af7651916cd4");
    expect("/headers", "traceparent: junk\r\n", 200, "00-0000000000000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_query),
        cmocka_unit_test(test_c6_bad_queries_name_the_field),
        cmocka_unit_test(test_accept),
        cmocka_unit_test(test_r3_if_none_match),
        cmocka_unit_test(test_headers_authorization_and_trace),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
