/* Topics and their followers: what each is given, where one may come back, and who is cut off. */
#include <unistd.h>

#include "base/clock.h"
#include "loop/loop_inside.h"
#include "rig.h"

static uint64_t lines_before, cuts_before;

static int start(int64_t heartbeat_ms)
{
    rig_start((struct stream_config){
        .limits = {.positions_max = 100, .bytes_max = 1000, .heartbeat_ms = heartbeat_ms}});
    lines_before = metric_value(rig.lines);
    cuts_before = metric_value(rig.cuts);
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

static void publish(int64_t to, const char *text)
{
    stream_topic_publish(rig.topic, rig_segment(stream_topic_position(rig.topic), to, text, true));
}

static void join(struct client *client, int64_t after)
{
    rig_request(client);
    stream_topic_admit(rig.topic, &(struct stream_entry){.ref = rig.parked, .after = after});
}

/* ---- the tests ---- */

static void test_everybody_is_given_what_is_published(void **state)
{
    (void)state;
    struct client one, two;
    join(&one, 10);
    assert_string_equal(rig_received(&one), "at 10\n");
    publish(11, "a\n");
    join(&two, 11);
    assert_string_equal(rig_received(&two), "at 11\n");
    publish(12, "b\n");
    publish(15, "c\n");
    assert_string_equal(rig_received(&one), "a\nb\nc\n");
    assert_string_equal(rig_received(&two), "b\nc\n");
    assert_int_equal(metric_value(rig.lines) - lines_before, 5);
    client_close(&one);
    client_close(&two);
}

/* C7: topics of a loop share a tick's wakes, so that many that publish at once do not keep the loop from others. */
static void test_topics_that_publish_at_once_share_the_wakes_of_a_tick(void **state)
{
    (void)state;
    enum { TOPICS = 4, EACH = 100 };
    struct client *clients = calloc((size_t)TOPICS * EACH, sizeof *clients);
    struct stream_topic *topics[TOPICS] = {rig.topic};

    rig.harness.loop->parking.slot_max = TOPICS * EACH;
    for (int i = 1; i < TOPICS; i++)
        topics[i] = rig_another_topic();
    for (int i = 0; i < TOPICS * EACH; i++) {
        rig_request(&clients[i]);
        stream_topic_admit(topics[i % TOPICS], &(struct stream_entry){.ref = rig.parked, .after = 10});
    }
    harness_turn(&rig.harness, 3);
    for (int i = 0; i < TOPICS; i++)
        stream_topic_publish(topics[i], rig_segment(10, 11, "a\n", true));
    /* A tick wakes a bounded number. It may serve fewer, which the next ones then serve beside their own: in a long tick
     * connections wait for their turn. */
    uint64_t before = metric_value(rig.lines), given = 0;
    for (uint64_t ticks = 1; given < TOPICS * EACH; ticks++) {
        harness_turn(&rig.harness, 1);
        given = metric_value(rig.lines) - before;
        assert_in_range(given, 0, ticks * (256 + 16));
    }
    for (int i = 0; i < TOPICS * EACH; i++) {
        assert_string_equal(rig_received(&clients[i]), "at 10\na\n");
        client_close(&clients[i]);
    }
    for (int i = 1; i < TOPICS; i++)
        stream_topic_close(topics[i]);
    free(clients);
}

static void test_who_comes_back_goes_on_where_it_was(void **state)
{
    (void)state;
    struct client client;
    publish(11, "a\n");
    publish(14, "b\n"); /* 12, 13 and 14 at once */
    stream_topic_publish(rig.topic, rig_segment(14, 17, "c\n", false));
    assert_false(stream_topic_reaches(rig.topic, 9));
    assert_false(stream_topic_reaches(rig.topic, 18));
    for (int64_t after = 10; after <= 14; after++)
        assert_true(stream_topic_reaches(rig.topic, after));
    assert_false(
        stream_topic_reaches(rig.topic, 15)); /* between two ends of what makes sense only as a whole */
    assert_false(stream_topic_reaches(rig.topic, 16));
    join(&client, 10);
    assert_string_equal(rig_received(&client), "a\nb\nc\n");
    client_close(&client);
    join(&client, 12);
    assert_string_equal(rig_received(&client), "b\nc\n");
    client_close(&client);
    join(&client, 17);
    assert_string_equal(rig_received(&client), "at 17\n");
    client_close(&client);
}

static void test_a_step_that_leads_nowhere_is_given_to_those_who_are_there(void **state)
{
    (void)state;
    struct client client;
    join(&client, 10);
    publish(10, "put right\n");
    assert_string_equal(rig_received(&client), "put right\n");
    client_close(&client);
    join(&client, 10);
    assert_string_equal(rig_received(&client), "at 10\n");
    client_close(&client);
}

static void test_an_opening_comes_first(void **state)
{
    (void)state;
    struct client client;
    publish(11, "a\n");
    rig_request(&client);
    struct stream_segment *opening = rig_segment(3, 11, "skipped\nmissed\n", false);
    stream_topic_admit(
        rig.topic,
        &(struct stream_entry){.ref = rig.parked, .after = 11, .opening = opening, .opening_offset = 8});
    stream_segment_unref(opening);
    publish(12, "b\n");
    assert_string_equal(rig_received(&client), "missed\nb\n");
    client_close(&client);
}

static void test_what_is_kept_is_bounded_by_positions_and_bytes(void **state)
{
    (void)state;
    char text[402];
    memset(text, 'x', 400), strcpy(text + 400, "\n");
    publish(60, "a\n");
    publish(111, "b\n");
    assert_false(stream_topic_reaches(rig.topic, 10)); /* 101 behind */
    assert_true(stream_topic_reaches(rig.topic, 60));
    publish(112, text);
    publish(113, text);
    assert_true(stream_topic_reaches(rig.topic, 60));
    publish(114, text);
    assert_false(stream_topic_reaches(rig.topic, 111)); /* 1,203 bytes behind */
    assert_true(stream_topic_reaches(rig.topic, 112));
}

static void test_a_segment_over_the_bound_is_still_given(void **state)
{
    (void)state;
    static char text[5002];
    struct client client;
    memset(text, 'x', 5000), strcpy(text + 5000, "\n");
    join(&client, 10);
    assert_string_equal(rig_received(&client), "at 10\n");
    publish(11, text);
    assert_int_equal(strlen(rig_received(&client)), 5001);
    publish(12, "b\n");
    assert_string_equal(rig_received(&client), "b\n");
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
    assert_string_equal(rig_received(&quick), "at 10\n");
    for (int64_t to = 11; metric_value(rig.cuts) == cuts_before; to++) {
        assert_true(to < 1000);
        publish(to, text);
        assert_int_equal(strlen(rig_received(&quick)), 60001);
    }
    harness_turn(&rig.harness, 3);
    assert_int_equal(stream_topic_count(rig.topic), 1);
    client_receive(&slow);
    assert_true(slow.at_end);
    struct str in = buf_str(&slow.in);
    assert_memory_not_equal(in.ptr + in.len - 5, "0\r\n\r\n", 5); /* no reader takes it for the end */
    publish(stream_topic_position(rig.topic) + 1, "end\n");
    assert_string_equal(rig_received(&quick), "end\n");
    client_close(&slow);
    client_close(&quick);
}

static void test_a_quiet_stream_says_so(void **state)
{
    (void)state;
    struct client client;
    join(&client, 10);
    const char *at = rig_received(&client);
    assert_memory_equal(at, "at 10\n", strlen("at 10\n")); /* the first beat may be right behind it */
    at += strlen("at 10\n");
    size_t beats = 0;
    while (beats < 2) { /* however long that takes */
        for (; *at; at += strlen("still 10\n"), beats++)
            assert_memory_equal(at, "still 10\n", strlen("still 10\n"));
        usleep(1000);
        at = rig_received(&client);
    }
    client_close(&client);
}

static void test_a_close_comes_after_what_was_published(void **state)
{
    (void)state;
    struct client client;
    join(&client, 10);
    publish(11, "a\n");
    stream_topic_close(rig.topic);
    rig.topic = NULL;
    assert_string_equal(rig_received(&client), "a\n.");
    assert_int_equal(rig.idle, 0); /* whoever closed knows */
    client_close(&client);
}

/* What a waiting stream gave back is there again for the next request; bytes of one that was sent already are kept. */
static void test_the_connection_goes_on_behind_a_stream(void **state)
{
    (void)state;
    const struct str next = STR("GET /now HTTP/1.1\r\nHost: a\r\nX-Name: next\r\n\r\n");
    struct client waits, has_more;
    join(&waits, 10);
    client_connect(&rig.harness, &has_more);
    client_send(&has_more,
                STR("GET /follow HTTP/1.1\r\nHost: a\r\n\r\nGET /now HTTP/1.1\r\nHost: a\r\nX-Name: "));
    harness_turn(&rig.harness, 2);
    stream_topic_admit(rig.topic, &(struct stream_entry){.ref = rig.parked, .after = 10});
    harness_turn(&rig.harness, 3);
    publish(11, "a\n");
    stream_topic_close(rig.topic);
    rig.topic = NULL;
    assert_string_equal(rig_received(&waits), "at 10\na\n.");
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
    rig.expires_at_s = clock_unix_us() / 1000000;
    join(&client, 10);
    publish(11, "secret\n");
    assert_string_equal(rig_received(&client), ".");
    client_close(&client);
}

static void test_the_owner_hears_when_the_last_has_left(void **state)
{
    (void)state;
    struct client one, two;
    join(&one, 10);
    rig_request(&two);
    struct loop_park_ref gone = rig.parked;
    client_close(&two);
    harness_turn(&rig.harness, 3);
    stream_topic_admit(rig.topic,
                       &(struct stream_entry){.ref = gone, .after = 10}); /* left before it was admitted */
    assert_string_equal(rig_received(&one), "at 10\n");
    assert_int_equal(stream_topic_count(rig.topic), 1);
    assert_int_equal(rig.idle, 0);
    client_close(&one);
    harness_turn(&rig.harness, 3);
    assert_int_equal(stream_topic_count(rig.topic), 0);
    assert_int_equal(rig.idle, 1);
}

static void test_head_is_no_follower(void **state)
{
    (void)state;
    struct client client;
    client_connect(&rig.harness, &client);
    client_send(&client, STR("HEAD /follow HTTP/1.1\r\nHost: a\r\n\r\n"));
    harness_turn(&rig.harness, 2);
    stream_topic_admit(rig.topic, &(struct stream_entry){.ref = rig.parked, .after = 10});
    client_receive(&client);
    assert_int_equal(client_take_head_only(&client).status, 200);
    assert_int_equal(stream_topic_count(rig.topic), 0);
    client_close(&client);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_everybody_is_given_what_is_published),
        TEST(test_topics_that_publish_at_once_share_the_wakes_of_a_tick),
        TEST(test_who_comes_back_goes_on_where_it_was),
        TEST(test_a_step_that_leads_nowhere_is_given_to_those_who_are_there),
        TEST(test_an_opening_comes_first),
        TEST(test_what_is_kept_is_bounded_by_positions_and_bytes),
        TEST(test_a_segment_over_the_bound_is_still_given),
        TEST(test_one_who_does_not_read_is_cut_off),
        cmocka_unit_test_setup_teardown(test_a_quiet_stream_says_so, setup_beating, rig_teardown),
        TEST(test_a_close_comes_after_what_was_published),
        TEST(test_the_connection_goes_on_behind_a_stream),
        TEST(test_a_stream_ends_with_its_token),
        TEST(test_the_owner_hears_when_the_last_has_left),
        TEST(test_head_is_no_follower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
