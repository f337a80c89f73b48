/* R21: calls to others have deadlines and bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
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

struct taken {
    size_t bytes, pieces, pieces_max;
};

static bool take(void *context, struct str bytes)
{
    struct taken *taken = context;

    taken->bytes += bytes.len;
    return ++taken->pieces < taken->pieces_max;
}

static void a_streamed_answer_has_no_bound_and_is_not_kept(void **state)
{
    (void)state;
    static char big[1 << 20];
    struct taken taken = {.pieces_max = SIZE_MAX};
    struct fetch_request request = request_to(tiny_server_url(server));
    struct fetch_answer answer;
    struct error error;

    memset(big, 'x', sizeof(big));
    tiny_server_say(server, 200, "", str_of(big, sizeof(big)));
    request.on_body = take;
    request.context = &taken;
    request.timeout_ms = 0;
    request.stall_timeout_ms = 5000;
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_OK);
    assert_int_equal(answer.status, 200);
    assert_int_equal(taken.bytes, sizeof(big));
    assert_true(taken.pieces > 1);
    assert_int_equal(buf_len(&answer.body), 0);
    buf_deinit(&answer.body);
}

static void a_stream_ends_when_its_reader_has_enough(void **state)
{
    (void)state;
    static char big[1 << 20];
    struct taken taken = {.pieces_max = 2};
    struct fetch_request request = request_to(tiny_server_url(server));
    struct fetch_answer answer;
    struct error error;

    tiny_server_say(server, 200, "", str_of(big, sizeof(big)));
    request.on_body = take;
    request.context = &taken;
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_CANCELLED);
    assert_int_equal(taken.pieces, 2);
}

static void an_error_is_kept_and_bounded_also_where_a_stream_was_wanted(void **state)
{
    (void)state;
    char big[1001];
    struct taken taken = {.pieces_max = SIZE_MAX};
    struct fetch_request request = request_to(tiny_server_url(server));
    struct fetch_answer answer;
    struct error error;

    request.on_body = take;
    request.context = &taken;
    tiny_server_say(server, 404, "", STR("nothing here"));
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_OK);
    assert_int_equal(answer.status, 404);
    assert_true(str_eq(buf_str(&answer.body), STR("nothing here")));
    buf_deinit(&answer.body);
    memset(big, 'x', sizeof(big));
    tiny_server_say(server, 500, "", str_of(big, sizeof(big)));
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_IO);
    assert_int_equal(taken.bytes, 0);
}

static void a_stream_that_stands_still_is_given_up(void **state)
{
    (void)state;
    struct taken taken = {.pieces_max = SIZE_MAX};
    struct fetch_request request = request_to(tiny_server_url(server));
    struct fetch_answer answer;
    struct error error;

    tiny_server_stall(server, true);
    request.on_body = take;
    request.context = &taken;
    request.timeout_ms = 0;
    request.stall_timeout_ms = 1000;
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_TIMEOUT);
    tiny_server_stall(server, false);
}

static void a_stream_cut_short_is_an_error(void **state)
{
    (void)state;
    struct taken taken = {.pieces_max = SIZE_MAX};
    struct fetch_request request = request_to(tiny_server_url(server));
    struct fetch_answer answer;
    struct error error;

    tiny_server_say(server, 200, "Transfer-Encoding: chunked\r\n", STR("5\r\nhello\r\n5\r\nhe"));
    request.on_body = take;
    request.context = &taken;
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_IO);
    assert_int_equal(taken.bytes, 7);
}

static void dots_in_a_path_are_sent_as_they_are(void **state)
{
    (void)state;
    struct buf url = {0};
    struct fetch_answer answer;
    struct error error;

    buf_printf(&url, "%s/a/../.", tiny_server_url(server));
    struct fetch_request request = request_to(tiny_server_url(server));
    request.url = buf_str(&url);
    tiny_server_say(server, 200, "", STR("ok"));
    assert_int_equal(fetch_run(&request, &answer, &error), STATUS_OK);
    assert_true(tiny_server_saw(server, "GET /jwks.json/a/../. HTTP/1.1\r\n"));
    buf_deinit(&answer.body);
    buf_deinit(&url);
}

/* ---- many at once ---- */

#define MANY 40

struct many {
    struct fetch_call calls[MANY];
};

/* At most `parallel` under way. */
static void run_many(struct many *many, size_t count, size_t parallel)
{
    struct fetch_calls *calls = fetch_calls_open();
    size_t begun = 0, running = 0;

    while (begun < count || running > 0) {
        for (; begun < count && running < parallel; begun++)
            fetch_calls_begin(calls, &many->calls[begun]), running += !many->calls[begun].has_ended;
        running = fetch_calls_run(calls, 1000);
    }
    fetch_calls_close(calls);
}

static void many_are_run_and_each_has_its_own_outcome(void **state)
{
    (void)state;
    struct many many = {0};
    unsigned before = tiny_server_count(server);

    tiny_server_say(server, 201, "", STR("made"));
    for (size_t i = 0; i < MANY; i++) {
        many.calls[i].request = request_to(tiny_server_url(server));
        many.calls[i].request.method = "POST";
        many.calls[i].request.body = STR("{}");
    }
    many.calls[3].request.url = STR("");
    many.calls[5].request.url = STR("http://127.0.0.1:1/");
    many.calls[7].request.answer_bytes_max = 2;
    run_many(&many, MANY, 8);
    for (size_t i = 0; i < MANY; i++) {
        bool fails = i == 3 || i == 5 || i == 7;
        assert_int_equal(many.calls[i].status, fails ? STATUS_IO : STATUS_OK);
        assert_int_equal(many.calls[i].error.message[0] != '\0', fails);
        assert_int_equal(many.calls[i].answer.status, i == 3 || i == 5 ? 0 : 201);
        assert_true(fails || str_eq(buf_str(&many.calls[i].answer.body), STR("made")));
        buf_deinit(&many.calls[i].answer.body);
    }
    assert_int_equal(tiny_server_count(server), before + MANY - 2);
}

static void none_at_once_is_nothing(void **state)
{
    (void)state;
    struct many many = {0};

    run_many(&many, 0, 4);
}

/* The server takes one connection at a time, and the first stalls it: every one waits its own time, not the sum. */
static void many_that_get_no_answer_are_given_up_together(void **state)
{
    (void)state;
    struct many many = {0};
    int64_t begun_ns = clock_mono_ns();

    tiny_server_stall(server, true);
    for (size_t i = 0; i < 10; i++) {
        many.calls[i].request = request_to(tiny_server_url(server));
        many.calls[i].request.timeout_ms = 300;
    }
    run_many(&many, 10, 10);
    for (size_t i = 0; i < 10; i++)
        assert_int_equal(many.calls[i].status, STATUS_TIMEOUT);
    assert_true(clock_mono_ns() - begun_ns < 2900 * CLOCK_NS_PER_MS);
    tiny_server_stall(server, false);
}

static void calls_that_are_cancelled_have_ended(void **state)
{
    (void)state;
    struct fetch_calls *calls = fetch_calls_open();
    struct many many = {0};

    tiny_server_stall(server, true);
    for (size_t i = 0; i < 3; i++) {
        many.calls[i].request = request_to(tiny_server_url(server));
        fetch_calls_begin(calls, &many.calls[i]);
    }
    assert_int_equal(fetch_calls_run(calls, 0), 3);
    fetch_calls_cancel(calls);
    for (size_t i = 0; i < 3; i++)
        assert_true(many.calls[i].has_ended && many.calls[i].status == STATUS_CANCELLED);
    assert_int_equal(fetch_calls_run(calls, 0), 0);
    tiny_server_stall(server, false);
    tiny_server_say(server, 200, "", STR("ok"));
    fetch_calls_begin(calls, &many.calls[0]); /* further ones can begin */
    while (fetch_calls_run(calls, 1000) > 0)
        ;
    assert_int_equal(many.calls[0].status, STATUS_OK);
    buf_deinit(&many.calls[0].answer.body);
    fetch_calls_close(calls);
}

static void *wake_calls(void *arg)
{
    fetch_calls_wake(arg);
    return NULL;
}

/* The wait would last as long as the test's own time limit. */
static void a_wake_ends_the_wait(void **state)
{
    (void)state;
    struct fetch_calls *calls = fetch_calls_open();
    struct fetch_call call = {.request = request_to(tiny_server_url(server))};
    unsigned before = tiny_server_count(server);
    pthread_t thread;

    tiny_server_stall(server, true);
    call.request.timeout_ms = call.request.connect_timeout_ms = 3600000;
    fetch_calls_begin(calls, &call);
    while (fetch_calls_run(calls, 10) && tiny_server_count(server) == before)
        ;
    fetch_calls_run(calls, 10); /* nothing moves any more */
    assert_int_equal(pthread_create(&thread, NULL, wake_calls, calls), 0);
    assert_int_equal(fetch_calls_run(calls, 3600000), 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    fetch_calls_close(calls);
    assert_int_equal(call.status, STATUS_CANCELLED);
    tiny_server_stall(server, false);
}

static void *fetch_many_for_long(void *arg)
{
    struct many *many = arg;

    for (size_t i = 0; i < MANY; i++) {
        many->calls[i].request = request_to(tiny_server_url(server));
        many->calls[i].request.timeout_ms = many->calls[i].request.connect_timeout_ms = 600000;
    }
    run_many(many, MANY, 4);
    return NULL;
}

static void *fetch_for_long(void *arg)
{
    struct fetch_request request = request_to(tiny_server_url(server));
    struct fetch_answer answer;
    struct error error;

    request.timeout_ms = request.connect_timeout_ms = 600000;
    *(enum status *)arg = fetch_run(&request, &answer, &error);
    return NULL;
}

/* C7: a server that hangs does not keep the process from ending in its time. The last test: after it there is
 * no fetching. */
static void a_stop_ends_what_is_under_way(void **state)
{
    (void)state;
    enum status status = STATUS_OK;
    static struct many many;
    unsigned before = tiny_server_count(server);
    pthread_t thread, other;

    tiny_server_stall(server, true);
    assert_int_equal(pthread_create(&thread, NULL, fetch_for_long, &status), 0);
    assert_int_equal(pthread_create(&other, NULL, fetch_many_for_long, &many), 0);
    while (tiny_server_count(server) == before)
        usleep(1000);
    fetch_stop();
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pthread_join(other, NULL), 0);
    tiny_server_stall(server, false);
    assert_int_equal(status, STATUS_CANCELLED);
    for (size_t i = 0; i < MANY; i++) /* under way, or not begun */
        assert_int_equal(many.calls[i].status, STATUS_CANCELLED);
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
        cmocka_unit_test(a_streamed_answer_has_no_bound_and_is_not_kept),
        cmocka_unit_test(a_stream_ends_when_its_reader_has_enough),
        cmocka_unit_test(an_error_is_kept_and_bounded_also_where_a_stream_was_wanted),
        cmocka_unit_test(a_stream_that_stands_still_is_given_up),
        cmocka_unit_test(a_stream_cut_short_is_an_error),
        cmocka_unit_test(dots_in_a_path_are_sent_as_they_are),
        cmocka_unit_test(many_are_run_and_each_has_its_own_outcome),
        cmocka_unit_test(calls_that_are_cancelled_have_ended),
        cmocka_unit_test(a_wake_ends_the_wait),
        cmocka_unit_test(none_at_once_is_nothing),
        cmocka_unit_test(many_that_get_no_answer_are_given_up_together),
        cmocka_unit_test(a_stop_ends_what_is_under_way),
    };
    fetch_init();
    server = tiny_server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tiny_server_stop(server);
    return failed;
}
