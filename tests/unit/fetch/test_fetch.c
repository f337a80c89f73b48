/* R21: calls to others have deadlines and bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "fetch/fetch.h"
#include "tiny_server.h"

static struct tiny_server *server;

static struct fetch_request request_to(const char *url)
{
    return (struct fetch_request){
        .url = str_from(url), .connect_timeout_ms = 5000, .timeout_ms = 5000, .answer_bytes_max = 1000};
}

static void answers_with_status_and_body(void **state)
{
    (void)state;
    static const char *const HEADERS[] = {"X-One: 1", "Accept: text/plain", NULL};
    struct fetch_request request = request_to(tiny_server_url(server));
    struct fetch_answer answer;
    struct error error;

    tiny_server_say(server, 404, "", STR("nothing here"));
    request.headers = HEADERS;
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_OK);
    assert_int_equal(answer.status, 404);
    assert_true(str_eq(buf_str(&answer.body), STR("nothing here")));
    assert_true(tiny_server_saw(server, "GET /jwks.json HTTP/1.1\r\n"));
    assert_true(tiny_server_saw(server, "X-One: 1\r\n"));
    assert_true(tiny_server_saw(server, "Accept: text/plain\r\n"));
    buf_deinit(&answer.body);
}

static void sends_a_body_by_the_method_named(void **state)
{
    (void)state;
    struct fetch_request request = request_to(tiny_server_url(server));
    struct fetch_answer answer;
    struct error error;

    tiny_server_say(server, 200, "", STR("ok"));
    request.method = "PUT";
    request.body = str_of("a\0b", 3);
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_OK);
    assert_true(tiny_server_saw(server, "PUT /jwks.json "));
    assert_true(tiny_server_saw(server, "Content-Length: 3\r\n"));
    buf_deinit(&answer.body);
}

static void a_redirect_is_an_answer_and_not_followed(void **state)
{
    (void)state;
    struct fetch_request request = request_to(tiny_server_url(server));
    struct fetch_answer answer;
    struct error error;
    unsigned before = tiny_server_count(server);

    tiny_server_say(server, 302, "Location: /elsewhere\r\n", STR(""));
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_OK);
    assert_int_equal(answer.status, 302);
    assert_int_equal(tiny_server_count(server), before + 1);
    buf_deinit(&answer.body);
}

static void an_answer_over_the_bound_is_an_error(void **state)
{
    (void)state;
    struct fetch_request request = request_to(tiny_server_url(server));
    struct fetch_answer answer;
    struct error error;
    char big[1001];

    memset(big, 'x', sizeof(big));
    tiny_server_say(server, 200, "", str_of(big, 1000));
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_OK);
    assert_int_equal(buf_len(&answer.body), 1000);
    buf_deinit(&answer.body);
    tiny_server_say(server, 200, "", str_of(big, 1001));
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_IO);
    assert_int_equal(buf_len(&answer.body), 0);
}

static void a_server_that_says_nothing_is_given_up(void **state)
{
    (void)state;
    struct fetch_request request = request_to(tiny_server_url(server));
    struct fetch_answer answer;
    struct error error;

    tiny_server_stall(server, true);
    request.timeout_ms = 200;
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_TIMEOUT);
    tiny_server_stall(server, false);
}

static void only_http_and_https_are_spoken(void **state)
{
    (void)state;
    static const char *const ROWS[] = {
        "file:///etc/passwd", "ftp://127.0.0.1/x",    "gopher://127.0.0.1/", "",
        "not a url",          "dict://127.0.0.1:1/x", "http://127.0.0.1:1/"};
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        struct fetch_request request = request_to(ROWS[i]);
        struct fetch_answer answer;
        struct error error = {0};
        if (fetch_run(&request, &answer, &error) != STATUS_IO)
            fail_msg("fetched %s", ROWS[i]);
        assert_true(error.message[0] != '\0');
    }
}

static void a_proxy_of_the_environment_is_not_used(void **state)
{
    (void)state;
    struct fetch_request request = request_to(tiny_server_url(server));
    struct fetch_answer answer;
    struct error error;

    setenv("http_proxy", "http://127.0.0.1:1", 1);
    tiny_server_say(server, 200, "", STR("direct"));
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_OK);
    unsetenv("http_proxy");
    buf_deinit(&answer.body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_with_status_and_body),
        cmocka_unit_test(sends_a_body_by_the_method_named),
        cmocka_unit_test(a_redirect_is_an_answer_and_not_followed),
        cmocka_unit_test(an_answer_over_the_bound_is_an_error),
        cmocka_unit_test(a_server_that_says_nothing_is_given_up),
        cmocka_unit_test(only_http_and_https_are_spoken),
        cmocka_unit_test(a_proxy_of_the_environment_is_not_used),
    };
    fetch_init();
    server = tiny_server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tiny_server_stop(server);
    return failed;
}
