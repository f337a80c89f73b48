/* Topics and their followers: what each is given, where one may come back, and who is cut off. */
#include <unistd.h>

#include "base/clock.h"
#include "harness.h"
#include "stream/stream.h"

static struct harness harness;
static struct stream_topic *topic;
static struct loop_park_ref parked; /* of the request that came last */
static int idle;
static int64_t expires_at_s;

static struct metric_family gauge_family = {.name = "s", .help = "s", .type = METRIC_GAUGE};
static struct metric_family lines_family = {.name = "l", .help = "l", .type = METRIC_COUNTER};
static struct metric_family cuts_family = {.name = "c", .help = "c", .type = METRIC_COUNTER};
static struct metric_series *lines, *cuts;
static uint64_t lines_before, cuts_before;

/* ---- a server whose one route parks, and is admitted by the test ---- */

static void on_timeout(struct http_request *request, void *context)
{
    (void)context;
    http_send(request, &(struct http_response){.status = 500});
}

static void follow(struct http_request *request)
{
    (void)http_request_park(request, CLOCK_NEVER, on_timeout, NULL, &parked);
}

static void now(struct http_request *request)
{
    struct str name = http_request_header(request, STR("x-name"));
    http_send(request, &(struct http_response){.status = 200, .body = name});
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/follow", .handler = follow, .kind = HTTP_STREAM},
    {.method = HTTP_GET, .path = "/now", .handler = now},
    {0},
};

static void put_greeting(struct buf *out, int64_t position)
{
    buf_printf(out, "at %lld\n", (long long)position);
}

static void put_heartbeat(struct buf *out, int64_t position)
{
    buf_printf(out, "still %lld\n", (long long)position);
}

static void on_admitted(struct http_request *request, struct stream_subscriber *subscriber, int64_t position)
{
    (void)position;
    stream_send(subscriber, request, &(struct http_response){.status = 200}, expires_at_s);
}

static void on_idle(void *context)
{
    ++*(int *)context;
}

static int start(int64_t heartbeat_ms)
{
    harness_init(&harness, routes);
    harness.config.limits.write_timeout_ms = 600000; /* nobody is cut off for a slow machine */
    harness_start(&harness);
    metrics_register(&gauge_family);
    metrics_register(&lines_family);
    metrics_register(&cuts_family);
    lines = metric_series_get(&lines_family, NULL);
    cuts = metric_series_get(&cuts_family, NULL);
    lines_before = metric_value(lines);
    cuts_before = metric_value(cuts);
    idle = 0;
    expires_at_s = INT64_MAX;
    topic = stream_topic_create(
        &(struct stream_config){
            .loops = harness.group,
            .owner = harness.loop,
            .limits = {.positions_max = 100, .bytes_max = 1000, .heartbeat_ms = heartbeat_ms},
            .put_greeting = put_greeting,
            .put_heartbeat = put_heartbeat,
            .on_admitted = on_admitted,
            .on_idle = on_idle,
            .context = &idle,
            .subscribers = metric_series_get(&gauge_family, NULL),
            .lines = lines,
            .cuts = cuts,
        },
        10);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    return start(3600000);
}

static int setup_beating(void **state)
{
    (void)state;
    return start(1);
}

static int teardown(void **state)
{
    (void)state;
    if (topic)
        stream_topic_close(topic);
    harness_deinit(&harness);
    return 0;
}

static struct stream_segment *segment(int64_t from, int64_t to, const char *text, bool can_be_joined)
{
    return stream_segment_create(&(struct stream_step){
        .from = from, .to = to, .can_be_joined = can_be_joined, .lines = 1, .bytes = str_from(text)});
}

static void publish(int64_t to, const char *text)
{
    stream_topic_publish(topic, segment(stream_topic_position(topic), to, text, true));
}

static void request(struct client *client)
{
    client_connect(&harness, client);
    client_send(client, STR("GET /follow HTTP/1.1\r\nHost: a\r\n\r\n"));
    harness_turn(&harness, 2);
}

static void join(struct client *client, int64_t after)
{
    request(client);
    stream_topic_admit(topic, &(struct stream_entry){.ref = parked, .after = after});
}

/* What has come since, chunks taken apart; ends in "." when the stream is over as it should be. */
static const char *received(struct client *client)
{
    static char text[65536];
    size_t len = 0;
    client_receive(client);
    struct str in = buf_str(&client->in);
    const char *head_end = in.len ? memmem(in.ptr, in.len, "\r\n\r\n", 4) : NULL;
    const char *at = in.len && in.ptr[0] == 'H' ? head_end + 4 : in.ptr;
    const char *end = in.ptr + in.len;
    while (at < end) {
        char *data;
        size_t size = strtoul(at, &data, 16);
        data += 2;
        memcpy(text + len, data, size);
        len += size;
        if (size == 0)
            text[len++] = '.';
        at = data + size + 2;
    }
    text[len] = '\0';
    buf_clear(&client->in);
    return text;
}

/* ---- the tests ---- */

static void test_everybody_is_given_what_is_published(void **state)
{
    (void)state;
    struct client one, two;
    join(&one, 10);
    assert_string_equal(received(&one), "at 10\n");
    publish(11, "a\n");
    join(&two, 11);
    assert_string_equal(received(&two), "at 11\n");
    publish(12, "b\n");
    publish(15, "c\n");
    assert_string_equal(received(&one), "a\nb\nc\n");
    assert_string_equal(received(&two), "b\nc\n");
    assert_int_equal(metric_value(lines) - lines_before, 5);
    client_close(&one);
    client_close(&two);
}

static void test_who_comes_back_goes_on_where_it_was(void **state)
{
    (void)state;
    struct client client;
    publish(11, "a\n");
    publish(14, "b\n"); /* 12, 13 and 14 at once */
    stream_topic_publish(topic, segment(14, 17, "c\n", false));
    assert_false(stream_topic_reaches(topic, 9));
    assert_false(stream_topic_reaches(topic, 18));
    for (int64_t after = 10; after <= 14; after++)
        assert_true(stream_topic_reaches(topic, after));
    assert_false(stream_topic_reaches(topic, 15)); /* between two ends of what makes sense only as a whole */
    assert_false(stream_topic_reaches(topic, 16));
    join(&client, 10);
    assert_string_equal(received(&client), "a\nb\nc\n");
    client_close(&client);
    join(&client, 12);
    assert_string_equal(received(&client), "b\nc\n");
    client_close(&client);
    join(&client, 17);
    assert_string_equal(received(&client), "at 17\n");
    client_close(&client);
}

static void test_a_step_that_leads_nowhere_is_given_to_those_who_are_there(void **state)
{
    (void)state;
    struct client client;
    join(&client, 10);
    publish(10, "put right\n");
    assert_string_equal(received(&client), "put right\n");
    client_close(&client);
    join(&client, 10);
    assert_string_equal(received(&client), "at 10\n");
    client_close(&client);
}

static void test_an_opening_comes_first(void **state)
{
    (void)state;
    struct client client;
    publish(11, "a\n");
    request(&client);
    struct stream_segment *opening = segment(3, 11, "skipped\nmissed\n", false);
    stream_topic_admit(
        topic, &(struct stream_entry){.ref = parked, .after = 11, .opening = opening, .opening_offset = 8});
    stream_segment_unref(opening);
    publish(12, "b\n");
    assert_string_equal(received(&client), "missed\nb\n");
    client_close(&client);
}

static void test_what_is_kept_is_bounded_by_positions_and_bytes(void **state)
{
    (void)state;
    char text[402];
    memset(text, 'x', 400), strcpy(text + 400, "\n");
    publish(60, "a\n");
    publish(111, "b\n");
    assert_false(stream_topic_reaches(topic, 10)); /* 101 behind */
    assert_true(stream_topic_reaches(topic, 60));
    publish(112, text);
    publish(113, text);
    assert_true(stream_topic_reaches(topic, 60));
    publish(114, text);
    assert_false(stream_topic_reaches(topic, 111)); /* 1,203 bytes behind */
    assert_true(stream_topic_reaches(topic, 112));
}

static void test_a_segment_over_the_bound_is_still_given(void **state)
{
    (void)state;
    static char text[5002];
    struct client client;
    memset(text, 'x', 5000), strcpy(text + 5000, "\n");
    join(&client, 10);
    assert_string_equal(received(&client), "at 10\n");
    publish(11, text);
    assert_int_equal(strlen(received(&client)), 5001);
    publish(12, "b\n");
    assert_string_equal(received(&client), "b\n");
    client_close(&client);
}

/* The socket's buffers are full; what is published meanwhile is not kept for it, and others do not notice. */
static void test_one_who_does_not_read_is_cut_off(void **state)
{
    (void)state;
    static char text[60002];
    struct client slow, quick;
    memset(text, 'x', 60000), strcpy(text + 60000, "\n");
    join(&slow, 10);
    join(&quick, 10);
    assert_string_equal(received(&quick), "at 10\n");
    for (int64_t to = 11; metric_value(cuts) == cuts_before; to++) {
        assert_true(to < 1000);
        publish(to, text);
        assert_int_equal(strlen(received(&quick)), 60001);
    }
    harness_turn(&harness, 3);
    assert_int_equal(stream_topic_count(topic), 1);
    client_receive(&slow);
    assert_true(slow.at_end);
    struct str in = buf_str(&slow.in);
    assert_memory_not_equal(in.ptr + in.len - 5, "0\r\n\r\n", 5); /* no reader takes it for the end */
    publish(stream_topic_position(topic) + 1, "end\n");
    assert_string_equal(received(&quick), "end\n");
    client_close(&slow);
    client_close(&quick);
}

static void test_a_quiet_stream_says_so(void **state)
{
    (void)state;
    struct client client;
    join(&client, 10);
    assert_string_equal(received(&client), "at 10\n");
    size_t beats = 0;
    while (beats < 2) { /* however long that takes */
        usleep(1000);
        const char *text = received(&client);
        for (const char *at = text; *at; at += strlen("still 10\n"), beats++)
            assert_memory_equal(at, "still 10\n", strlen("still 10\n"));
    }
    client_close(&client);
}

static void test_a_close_comes_after_what_was_published(void **state)
{
    (void)state;
    struct client client;
    join(&client, 10);
    publish(11, "a\n");
    stream_topic_close(topic);
    topic = NULL;
    assert_string_equal(received(&client), "a\n.");
    assert_int_equal(idle, 0); /* whoever closed knows */
    client_close(&client);
}

/* What a waiting stream gave back is there again for the next request; bytes of one that was sent already are kept. */
static void test_the_connection_goes_on_behind_a_stream(void **state)
{
    (void)state;
    const struct str next = STR("GET /now HTTP/1.1\r\nHost: a\r\nX-Name: next\r\n\r\n");
    struct client waits, has_more;
    join(&waits, 10);
    client_connect(&harness, &has_more);
    client_send(&has_more,
                STR("GET /follow HTTP/1.1\r\nHost: a\r\n\r\nGET /now HTTP/1.1\r\nHost: a\r\nX-Name: "));
    harness_turn(&harness, 2);
    stream_topic_admit(topic, &(struct stream_entry){.ref = parked, .after = 10});
    harness_turn(&harness, 3);
    publish(11, "a\n");
    stream_topic_close(topic);
    topic = NULL;
    assert_string_equal(received(&waits), "at 10\na\n.");
    client_send(&waits, next);
    client_receive(&waits);
    assert_true(str_eq(client_take(&waits).body, STR("next")));
    client_receive(&has_more);
    assert_int_equal(client_take(&has_more).status, 200);
    client_send(&has_more, STR("late\r\n\r\n"));
    client_receive(&has_more);
    assert_true(str_eq(client_take(&has_more).body, STR("late")));
    client_close(&waits);
    client_close(&has_more);
}

static void test_a_stream_ends_with_its_token(void **state)
{
    (void)state;
    struct client client;
    expires_at_s = clock_unix_us() / 1000000;
    join(&client, 10);
    publish(11, "secret\n");
    assert_string_equal(received(&client), ".");
    client_close(&client);
}

static void test_the_owner_hears_when_the_last_has_left(void **state)
{
    (void)state;
    struct client one, two;
    join(&one, 10);
    request(&two);
    struct loop_park_ref gone = parked;
    client_close(&two);
    harness_turn(&harness, 3);
    stream_topic_admit(topic,
                       &(struct stream_entry){.ref = gone, .after = 10}); /* left before it was admitted */
    assert_string_equal(received(&one), "at 10\n");
    assert_int_equal(stream_topic_count(topic), 1);
    assert_int_equal(idle, 0);
    client_close(&one);
    harness_turn(&harness, 3);
    assert_int_equal(stream_topic_count(topic), 0);
    assert_int_equal(idle, 1);
}

static void test_head_is_no_follower(void **state)
{
    (void)state;
    struct client client;
    client_connect(&harness, &client);
    client_send(&client, STR("HEAD /follow HTTP/1.1\r\nHost: a\r\n\r\n"));
    harness_turn(&harness, 2);
    stream_topic_admit(topic, &(struct stream_entry){.ref = parked, .after = 10});
    client_receive(&client);
    assert_int_equal(client_take_head_only(&client).status, 200);
    assert_int_equal(stream_topic_count(topic), 0);
    client_close(&client);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_everybody_is_given_what_is_published),
        TEST(test_who_comes_back_goes_on_where_it_was),
        TEST(test_a_step_that_leads_nowhere_is_given_to_those_who_are_there),
        TEST(test_an_opening_comes_first),
        TEST(test_what_is_kept_is_bounded_by_positions_and_bytes),
        TEST(test_a_segment_over_the_bound_is_still_given),
        TEST(test_one_who_does_not_read_is_cut_off),
        cmocka_unit_test_setup_teardown(test_a_quiet_stream_says_so, setup_beating, teardown),
        TEST(test_a_close_comes_after_what_was_published),
        TEST(test_the_connection_goes_on_behind_a_stream),
        TEST(test_a_stream_ends_with_its_token),
        TEST(test_the_owner_hears_when_the_last_has_left),
        TEST(test_head_is_no_follower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
