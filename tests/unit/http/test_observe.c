/* C9: what can be seen of a request afterwards: its span, its line of the access log, its ids. */
#include <unistd.h>

#include "harness.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/span.h"

#define TRACE "0af7651916cd43dd8448eb211c80319c"
#define PARENT "b7ad6b7169203331"
#define CONTEXT "traceparent: 00-" TRACE "-" PARENT "-01\r\n"

static void answer_failure(struct http_request *request)
{
    http_send_error(request, &(struct error){.status = STATUS_INTERNAL, .message = "the reason"});
}

static void answer_logging(struct http_request *request)
{
    log_info("inside");
    http_send(request, &(struct http_response){.status = 200, .body = STR("x")});
    log_info("after");
}

static void park(struct http_request *request)
{
    struct loop_park_ref parked;
    (void)http_request_park(request, CLOCK_NEVER, NULL, NULL, &parked);
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/items/{key}", .handler = answer_key},
    {.method = HTTP_GET, .path = "/failure", .handler = answer_failure},
    {.method = HTTP_GET, .path = "/logging", .handler = answer_logging},
    {.method = HTTP_GET, .path = "/park", .handler = park},
    {0},
};

static struct harness harness;
static int log_file = -1;
static struct span last;

static struct str tenant_of(const struct http_request *request)
{
    (void)request;
    return STR("demo");
}

static int setup(void **state)
{
    char path[] = "/tmp/freshet-observe-XXXXXX";

    (void)state;
    log_file = mkstemp(path);
    if (log_file < 0 || unlink(path) != 0)
        return -1;
    harness_init(&harness, routes); /* which logs to nowhere */
    log_set_fd(log_file);
    harness.config.tenant_of = tenant_of;
    harness_start(&harness);
    span_open(&(struct span_settings){.ring_spans = 64, .sample_share = 0});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    http_set_access_log(HTTP_ACCESS_OFF);
    span_close();
    harness_deinit(&harness);
    span_free();
    log_set_fd(STDERR_FILENO);
    return close(log_file);
}

static const char *logged(void)
{
    static char text[8192];
    ssize_t len = pread(log_file, text, sizeof text - 1, 0);

    assert_true(len >= 0);
    text[len] = '\0';
    return text;
}

static void keep_span(void *context, const struct span *span)
{
    (void)context;
    last = *span;
}

static size_t spans(void)
{
    return span_take(64, keep_span, NULL);
}

static const char *attribute(const char *name)
{
    static char text[SPAN_TEXT_BYTES + 1];

    for (unsigned i = 0; i < last.attribute_count; i++) {
        const struct span_attribute *at = &last.attributes[i];
        if (strcmp(at->name, name) != 0)
            continue;
        if (at->is_text)
            snprintf(text, sizeof text, "%.*s", (int)at->text_len, last.text + at->text_at);
        else
            snprintf(text, sizeof text, "%lld", (long long)at->number);
        return text;
    }
    return "";
}

static struct answer get(struct client *client, const char *target, const char *headers)
{
    char request[1024];
    int len = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: a\r\n%s\r\n", target, headers);

    client_send(client, str_of(request, (size_t)len));
    client_receive(client);
    return client_take(client);
}

static void test_c9_a_sampled_request_has_a_span(void **state)
{
    (void)state;
    struct client client;

    client_connect(&harness, &client);
    assert_int_equal(get(&client, "/items/a?secret=1", CONTEXT "X-Request-Id: r-1\r\n").status, 200);
    assert_int_equal(spans(), 1);
    assert_string_equal(last.name, "GET");
    assert_string_equal(last.detail, "/items/{key}");
    assert_int_equal(last.kind, SPAN_SERVER);
    assert_string_equal(attribute("http.route"), "/items/{key}");
    assert_string_equal(attribute("url.path"), "/items/a");
    assert_string_equal(attribute("http.response.status_code"), "200");
    assert_string_equal(attribute("freshet.tenant.id"), "demo");
    assert_string_equal(attribute("freshet.request.id"), "r-1");
    assert_false(last.is_failed);
    assert_int_equal(get(&client, "/items/a", "").status, 200);
    assert_int_equal(get(&client, "/items/a", "traceparent: 00-" TRACE "-" PARENT "-00\r\n").status, 200);
    assert_int_equal(get(&client, "/items/a", CONTEXT CONTEXT).status, 200); /* two are none */
    assert_int_equal(spans(), 0);
    assert_int_equal(get(&client, "/nowhere", CONTEXT).status, 404);
    assert_int_equal(spans(), 1);
    assert_null(last.detail);
    assert_int_equal(get(&client, "/failure", CONTEXT).status, 500);
    assert_int_equal(spans(), 1);
    assert_true(last.is_failed);
    assert_string_equal(attribute("error.type"), "500");
    client_close(&client);
}

static void test_c9_an_answer_repeats_the_id_of_its_request(void **state)
{
    (void)state;
    struct client client;
    struct answer answer;

    client_connect(&harness, &client);
    answer = get(&client, "/items/a", "X-Request-Id: r-1\r\n");
    assert_true(answer_has(&answer, "X-Request-Id: r-1"));
    answer = get(&client, "/nowhere", "x-request-id: r-2\r\n");
    assert_true(answer_has(&answer, "X-Request-Id: r-2"));
    static const char *const none[] = {"", "X-Request-Id: with space\r\n", "X-Request-Id: \x80\r\n",
                                       "X-Request-Id: \r\n", "X-Request-Id: a\r\nX-Request-Id: b\r\n"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        answer = get(&client, "/items/a", none[i]);
        assert_null(memmem(answer.head.ptr, answer.head.len, "X-Request-Id", 12));
    }
    client_close(&client);
}

/* A client that reports a 500 can name it. */
static void test_c9_a_failure_gets_an_id_that_its_line_has(void **state)
{
    (void)state;
    struct client client;
    char id[37], wanted[64];

    client_connect(&harness, &client);
    struct answer answer = get(&client, "/failure", CONTEXT);
    const char *at = memmem(answer.head.ptr, answer.head.len, "X-Request-Id: ", 14);
    assert_non_null(at);
    snprintf(id, sizeof id, "%.36s", at + 14);
    snprintf(wanted, sizeof wanted, "\"requestId\":\"%s\"", id);
    assert_non_null(strstr(logged(), "request_failed"));
    assert_non_null(strstr(logged(), wanted));
    assert_non_null(strstr(logged(), "\"traceId\":\"" TRACE "\""));
    answer = get(&client, "/failure", "X-Request-Id: mine\r\n");
    assert_true(answer_has(&answer, "X-Request-Id: mine"));
    client_close(&client);
}

static void test_c9_lines_of_a_handler_have_the_ids(void **state)
{
    (void)state;
    struct client client;

    client_connect(&harness, &client);
    get(&client, "/logging", CONTEXT "X-Request-Id: r-1\r\n");
    log_info("outside");
    get(&client, "/logging", "");
    client_close(&client);
    char lines[8192];
    snprintf(lines, sizeof lines, "%s", logged());
    static const bool has_ids[] = {true, true, false, false,
                                   false}; /* inside, after, outside, inside, after */
    char *rest = lines;
    for (size_t i = 0; i < sizeof has_ids / sizeof *has_ids; i++) {
        const char *line = strsep(&rest, "\n");
        assert_int_equal(strstr(line, "\"requestId\":\"r-1\"") != NULL, has_ids[i]);
        assert_int_equal(strstr(line, "\"traceId\":\"" TRACE "\"") != NULL, has_ids[i]);
    }
}

static unsigned lines_of(struct client *client, enum http_access_log access)
{
    unsigned lines = 0;

    assert_int_equal(ftruncate(log_file, 0) | (int)lseek(log_file, 0, SEEK_SET), 0);
    http_set_access_log(access);
    get(client, "/items/a?token=secret", "Authorization: Bearer secret\r\n");
    get(client, "/nowhere", "");
    get(client, "/failure", CONTEXT);
    for (const char *at = logged(); (at = strstr(at, "\"http_request\"")) != NULL; at++)
        lines++;
    return lines;
}

static void test_c9_the_access_log(void **state)
{
    (void)state;
    struct client client;

    client_connect(&harness, &client);
    assert_int_equal(lines_of(&client, HTTP_ACCESS_OFF), 0);
    assert_int_equal(lines_of(&client, HTTP_ACCESS_ERRORS), 2);
    assert_null(strstr(logged(), "/items/a"));
    assert_int_equal(lines_of(&client, HTTP_ACCESS_ALL), 3);
    assert_non_null(strstr(
        logged(),
        "\"method\":\"GET\",\"route\":\"/items/{key}\",\"path\":\"/items/a\",\"status\":200,\"bytes\":"));
    assert_non_null(strstr(logged(), "\"route\":\"unmatched\",\"path\":\"/nowhere\",\"status\":404"));
    assert_non_null(strstr(logged(), "\"tenantId\":\"demo\""));
    assert_non_null(strstr(logged(), "\"traceId\":\"" TRACE "\""));
    assert_null(strstr(logged(), "secret"));
    client_close(&client);
    client_connect(&harness, &client);
    client_send(&client, STR("GET / HTTP/9.9\r\n\r\n")); /* not a request: nothing of it is repeated */
    client_receive(&client);
    assert_non_null(strstr(logged(), "\"event\":\"http_request\",\"route\":\"unmatched\",\"status\":"));
    client_close(&client);
}

/* The exchange is that of an answered request. */
static void test_c9_a_request_without_an_answer_has_no_bytes_in_the_access_log(void **state)
{
    (void)state;
    struct client client;

    http_set_access_log(HTTP_ACCESS_ALL);
    client_connect(&harness, &client);
    assert_int_equal(get(&client, "/items/a", "").status, 200);
    client_send(&client, STR("GET /park HTTP/1.1\r\nHost: a\r\n\r\n"));
    harness_turn(&harness, 3);
    client_close(&client);
    harness_turn(&harness, 3);
    assert_non_null(strstr(logged(), "\"path\":\"/park\",\"status\":0,\"bytes\":0,"));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_c9_a_sampled_request_has_a_span),
        T(test_c9_an_answer_repeats_the_id_of_its_request),
        T(test_c9_a_failure_gets_an_id_that_its_line_has),
        T(test_c9_lines_of_a_handler_have_the_ids),
        T(test_c9_the_access_log),
        T(test_c9_a_request_without_an_answer_has_no_bytes_in_the_access_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
