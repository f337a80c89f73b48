/* Formats of streams (M3, R22): what a request asks for, which position it has, and the topic's own lines as events. */
#include "rig.h"

/* ---- lines ---- */

static void a_line_is_the_object_and_its_end(void **state)
{
    (void)state;
    struct buf out = {0};
    stream_line_put(&out, STREAM_NDJSON, 7, STR("{}"));
    stream_line_put(&out, STREAM_NDJSON, -1, STR("{}"));
    assert_true(str_eq(buf_str(&out), STR("{}\n{}\n")));
    buf_deinit(&out);
}

static void an_event_has_an_id_where_a_client_may_continue(void **state)
{
    (void)state;
    struct buf out = {0};
    stream_line_put(&out, STREAM_SSE, 0, STR("{}"));
    stream_line_put(&out, STREAM_SSE, -1, STR("{}"));
    assert_true(str_eq(buf_str(&out), STR("id: 0\ndata: {}\n\ndata: {}\n\n")));
    buf_deinit(&out);
}

/* ---- requests ---- */

static void answer_format(struct http_request *request)
{
    int64_t after = -1;
    struct error error;
    char text[64];
    if (stream_after_read(request, "version", &after, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    int len = snprintf(text, sizeof text, "%s %lld", stream_format_name(stream_format_of(request))->ptr,
                       (long long)after);
    http_send(request, &(struct http_response){.status = 200, .body = str_of(text, (size_t)len)});
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/", .handler = answer_format},
    {0},
};

static void expect(const char *query, const char *fields, int status, const char *part)
{
    struct harness harness;
    char request[512], body[512];
    harness_init(&harness, routes);
    harness_start(&harness);
    snprintf(request, sizeof request, "GET /%s HTTP/1.1\r\nHost: a\r\n%s\r\n", query, fields);
    assert_int_equal(ask(&harness, str_from(request), body, sizeof body, &(bool){false}), status);
    if (!strstr(body, part))
        fail_msg("%s is not in %s", part, body);
    harness_deinit(&harness);
}

static void events_are_sent_where_they_are_preferred_by_name(void **state)
{
    (void)state;
    expect("", "", 200, "ndjson");
    expect("", "Accept: */*\r\n", 200, "ndjson");
    expect("", "Accept: text/event-stream\r\n", 200, "sse");
    expect("", "Accept: text/event-stream, application/x-ndjson\r\n", 200, "ndjson");
    expect("", "Accept: text/event-stream, application/x-ndjson;q=0.9\r\n", 200, "sse");
    expect("", "Accept: text/event-stream;q=0\r\n", 200, "ndjson");
}

static void the_position_is_the_last_events_or_that_of_the_query(void **state)
{
    (void)state;
    expect("", "", 200, "-1");
    expect("?after=5", "", 200, " 5");
    expect("?after=5", "Last-Event-ID: 8\r\n", 200, " 8");
    expect("", "Last-Event-ID: 0\r\n", 200, " 0");
    expect("", "Last-Event-ID:\r\n", 200, "-1"); /* a browser that has had none */
    expect("?after=x", "Last-Event-ID: 8\r\n", 400, "\"field\":\"after\"");
    expect("", "Last-Event-ID: -1\r\n", 400, "\"field\":\"Last-Event-ID\"");
    expect("", "Last-Event-ID: 9223372036854775808\r\n", 400, "must be a version");
}

/* ---- a topic's own lines ---- */

static int setup_events(void **state)
{
    (void)state;
    rig_start((struct stream_config){.limits = {.positions_max = 2, .bytes_max = 100, .heartbeat_ms = 1},
                                     .format = STREAM_SSE});
    return 0;
}

static void a_greeting_has_an_id_and_a_heartbeat_has_none(void **state)
{
    (void)state;
    struct client client;
    rig_request(&client);
    stream_topic_admit(rig.topic, &(struct stream_entry){.ref = rig.parked, .after = 10});
    const char *text = rig_received(&client);
    assert_true(str_starts_with(str_from(text), STR("id: 10\ndata: at 10\n\n")));
    while (!strstr(text, "still"))
        text = rig_received(&client);
    assert_non_null(strstr(text, "data: still 10\n\n"));
    assert_null(strstr(strstr(text, "still"), "id:"));
    client_close(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_the_object_and_its_end),
        cmocka_unit_test(an_event_has_an_id_where_a_client_may_continue),
        cmocka_unit_test(events_are_sent_where_they_are_preferred_by_name),
        cmocka_unit_test(the_position_is_the_last_events_or_that_of_the_query),
        cmocka_unit_test_setup_teardown(a_greeting_has_an_id_and_a_heartbeat_has_none, setup_events,
                                        rig_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
