/* CORS (issue 15, point 4): which settings are accepted, and what each answer has. Browsers' side: the Fetch standard. */
#include "harness.h"

#define APP "https://app.example.com"
#define OTHER "http://localhost:3000"

static struct http_cors *cors_of(const char *const *origins, bool credentials)
{
    struct str items[8], headers[] = {STR("ETag"), STR("X-Dict-Version")};
    size_t count = 0;
    for (; origins[count]; count++)
        items[count] = str_from(origins[count]);
    const struct http_cors_settings settings = {.origins = {items, count},
                                                .expose_headers = {headers, 2},
                                                .allows_credentials = credentials,
                                                .max_age_s = 60};
    struct error error;
    assert_int_equal(http_cors_check(&settings, &error), STATUS_OK);
    return http_cors_create(&settings);
}

static const char *const two[] = {APP, OTHER, NULL}, *const any[] = {"*", NULL}, *const none[] = {NULL};

/* ---- settings ---- */

static const char *refusal(const char *first, const char *second, bool credentials, const char *header)
{
    static struct error error;
    struct str items[] = {str_from(first), str_from(second ? second : "")},
               headers[] = {str_from(header ? header : "ETag")};
    const struct http_cors_settings settings = {.origins = {items, second ? 2 : 1},
                                                .expose_headers = {headers, 1},
                                                .allows_credentials = credentials};
    error = (struct error){0};
    return http_cors_check(&settings, &error) == STATUS_OK ? "" : error.field;
}

static void origins_are_written_as_browsers_send_them(void **state)
{
    (void)state;
    const char *const good[] = {APP, OTHER, "*", "http://[::1]:8080", "https://a.b-c.example:8443"};
    const char *const bad[] = {
        "",        "null",        "app.example.com",       "https://", "https://App.example.com",
        APP "/",   APP "/path",   "https://*.example.com", APP ":443", "http://a:80",
        "ftp://a", "https://a b", "https://a\r\nX: y",     "https://ä"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_string_equal(refusal(good[i], NULL, false, NULL), "");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_string_equal(refusal(bad[i], NULL, false, NULL), "allowedOrigins");
}

static void a_star_stands_alone_and_without_credentials(void **state)
{
    (void)state;
    assert_string_equal(refusal("*", APP, false, NULL), "allowedOrigins");
    assert_string_equal(refusal("*", NULL, true, NULL), "allowCredentials");
    assert_string_equal(refusal(APP, NULL, true, NULL), "");
}

static void exposed_headers_are_names(void **state)
{
    (void)state;
    const char *const bad[] = {"", "a b", "a:", "a\r\nX", "é"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_string_equal(refusal(APP, NULL, false, bad[i]), "exposeHeaders");
}

/* ---- answers ---- */

static struct harness harness;

static enum http_producer_state produce(void *context, struct buf *out, size_t room)
{
    (void)context, (void)room;
    buf_put_str(out, STR("streamed"));
    return HTTP_PRODUCER_END;
}

static void release(void *context)
{
    (void)context;
}

static void answer_stream(struct http_request *request)
{
    http_send_stream(request, &(struct http_response){.status = 200},
                     &(struct http_producer){.produce = produce, .release = release, .content_length = -1});
}

static void answer_unavailable(struct http_request *request)
{
    http_send_error(request, &(struct error){.status = STATUS_UNAVAILABLE});
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/items/{key}", .handler = answer_key},
    {.method = HTTP_POST, .path = "/items/{key}", .handler = answer_body, .body_bytes_max = 10},
    {.method = HTTP_GET, .path = "/stream", .handler = answer_stream},
    {.method = HTTP_GET, .path = "/worker", .handler = answer_unavailable, .kind = HTTP_WORKER},
    {0},
};

static void start(const char *const *origins, bool credentials)
{
    harness_init(&harness, routes);
    harness.config.cors = cors_of(origins, credentials);
    harness_start(&harness);
    http_cors_unref(harness.config.cors);
}

/* The head of the answer to this request line and fields, in `head`. */
static int head_of(const char *line, const char *fields, char head[2048])
{
    struct client client;
    char text[1024];
    snprintf(text, sizeof text, "%s HTTP/1.1\r\nHost: a\r\n%s\r\n", line, fields);
    client_connect(&harness, &client);
    client_send(&client, str_from(text));
    client_receive(&client);
    struct answer answer =
        strncmp(line, "HEAD", 4) == 0 ? client_take_head_only(&client) : client_take(&client);
    snprintf(head, 2048, "%.*s", STR_ARG(answer.head));
    int status = answer.status;
    client_close(&client);
    return status;
}

static const struct {
    const char *line, *fields;
    int status;
} requests[] = {
    {"GET /items/a", "", 200},
    {"HEAD /items/a", "", 200},
    {"GET /items/a", "X-Request-Id: r1\r\n", 200},
    {"GET /stream", "", 200},
    {"GET /worker", "", 503},
    {"GET /nowhere", "", 404},
    {"DELETE /items/a", "", 405},
    {"OPTIONS /items/a", "", 204},
    {"POST /items/a", "Content-Type: text/plain\r\nContent-Length: 1\r\n", 415},
    {"POST /items/a", "Content-Type: application/json\r\nContent-Length: 11\r\n", 413},
};
enum { REQUESTS = sizeof requests / sizeof *requests };

static void every_answer_to_an_allowed_origin_names_it(void **state)
{
    (void)state;
    char fields[256], head[2048];
    start(two, true);
    for (int i = 0; i < 2 * REQUESTS; i++) {
        const char *origin = two[i / REQUESTS];
        char line[128];
        snprintf(fields, sizeof fields, "Origin: %s\r\n%s", origin, requests[i % REQUESTS].fields);
        assert_int_equal(head_of(requests[i % REQUESTS].line, fields, head), requests[i % REQUESTS].status);
        snprintf(line, sizeof line, "\r\nAccess-Control-Allow-Origin: %s\r\n", origin);
        assert_non_null(strstr(head, line));
        assert_non_null(strstr(head, "\r\nAccess-Control-Allow-Credentials: true\r\n"));
        assert_non_null(strstr(head, "\r\nAccess-Control-Expose-Headers: ETag, X-Dict-Version\r\n"));
        assert_non_null(strstr(head, "\r\nVary: Origin\r\n"));
        assert_null(strstr(head, "Allow-Methods")); /* no preflight */
    }
}

static void other_origins_get_no_permission_and_caches_are_warned(void **state)
{
    (void)state;
    const char *const strangers[] = {
        "",
        "Origin: https://app.example.com.evil.org\r\n",
        "Origin: http://app.example.com\r\n",
        "Origin: https://APP.example.com\r\n",
        "Origin: null\r\n",
        "Origin:\r\n",
        "Origin: *\r\n",
        "Origin: https://app.example.co\r\n",
        "Origin: " APP "\r\nOrigin: " APP "\r\n",
        "Origin: " APP " " OTHER "\r\n",
    };
    char head[2048];
    start(two, true);
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        assert_int_equal(head_of("GET /items/a", strangers[i], head), 200);
        assert_null(strstr(head, "Access-Control"));
        assert_non_null(strstr(head, "\r\nVary: Origin\r\n"));
    }
    assert_int_equal(head_of("OPTIONS /items/a",
                             "Origin: https://evil.org\r\nAccess-Control-Request-Method: GET\r\n", head),
                     204);
    assert_null(strstr(head, "Access-Control"));
}

static void a_star_is_named_to_everybody_and_no_origin_is_repeated(void **state)
{
    (void)state;
    char head[2048];
    start(any, false);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(head_of("GET /items/a", i ? "Origin: https://evil.org\r\n" : "", head), 200);
        assert_non_null(strstr(head, "\r\nAccess-Control-Allow-Origin: *\r\n"));
        assert_null(strstr(head, "evil"));
        assert_null(strstr(head, "Credentials"));
        assert_null(strstr(head, "Vary"));
    }
}

static void a_preflight_names_the_methods_of_the_path(void **state)
{
    (void)state;
    char head[2048];
    start(two, false);
    assert_int_equal(head_of("OPTIONS /items/a",
                             "Origin: " OTHER "\r\nAccess-Control-Request-Method: POST\r\n"
                             "Access-Control-Request-Headers: authorization, x-evil\r\n",
                             head),
                     204);
    assert_non_null(strstr(head, "\r\nAccess-Control-Allow-Origin: " OTHER "\r\n"));
    assert_non_null(strstr(head, "\r\nAccess-Control-Allow-Methods: GET, HEAD, POST, OPTIONS\r\n"));
    assert_non_null(strstr(head, "\r\nAccess-Control-Allow-Headers: Authorization, Content-Type, "));
    assert_non_null(strstr(head, "\r\nAccess-Control-Max-Age: 60\r\n"));
    assert_null(strstr(head, "evil"));
    assert_int_equal(
        head_of("OPTIONS /nowhere", "Origin: " OTHER "\r\nAccess-Control-Request-Method: GET\r\n", head),
        404);
}

static void without_origins_there_is_no_cors_at_all(void **state)
{
    (void)state;
    char fields[256], head[2048];
    start(none, false);
    for (int i = 0; i < REQUESTS; i++) {
        snprintf(fields, sizeof fields, "Origin: " APP "\r\nAccess-Control-Request-Method: GET\r\n%s",
                 requests[i].fields);
        assert_int_equal(head_of(requests[i].line, fields, head), requests[i].status);
        assert_null(strstr(head, "Access-Control"));
        assert_null(strstr(head, "Vary"));
    }
}

static void answers_go_by_the_settings_of_the_last_reload(void **state)
{
    (void)state;
    char head[2048];
    start(none, false);
    for (int round = 0; round < 3; round++) {
        struct http_cors *cors = round == 2 ? NULL : cors_of(two, false);
        http_server_use_cors(harness.server, cors);
        http_cors_unref(cors);
        harness_turn(&harness, 2);
        assert_int_equal(head_of("GET /items/a", "Origin: " APP "\r\n", head), 200);
        assert_int_equal(strstr(head, "Access-Control-Allow-Origin") != NULL, round < 2);
    }
}

static int teardown(void **state)
{
    (void)state;
    harness_deinit(&harness);
    return 0;
}

int main(void)
{
#define ANSWER_TEST(test) cmocka_unit_test_teardown(test, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(origins_are_written_as_browsers_send_them),
        cmocka_unit_test(a_star_stands_alone_and_without_credentials),
        cmocka_unit_test(exposed_headers_are_names),
        ANSWER_TEST(every_answer_to_an_allowed_origin_names_it),
        ANSWER_TEST(other_origins_get_no_permission_and_caches_are_warned),
        ANSWER_TEST(a_star_is_named_to_everybody_and_no_origin_is_repeated),
        ANSWER_TEST(a_preflight_names_the_methods_of_the_path),
        ANSWER_TEST(without_origins_there_is_no_cors_at_all),
        ANSWER_TEST(answers_go_by_the_settings_of_the_last_reload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
