/* Readers who are led up to the chain page by page, those ahead of it, and the last word to those who do not keep up. */
#include "rig.h"

static struct stream_subscriber *asking; /* whom a page was asked for; NULL = nobody */
static int64_t asked_after;

static void read_page(void *context, struct stream_subscriber *subscriber, int64_t after)
{
    (void)context;
    assert_null(asking);
    asking = subscriber;
    asked_after = after;
}

static int start(int64_t heartbeat_ms)
{
    asking = NULL;
    rig_start((struct stream_config){
        .limits = {.positions_max = 3, .bytes_max = 2000000, .heartbeat_ms = heartbeat_ms},
        .cut_off = "cut at %lld",
        .greets_all = true,
        .read_page = read_page,
    });
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
    stream_topic_publish(rig.topic, rig_segment(stream_topic_position(rig.topic), to, text, false));
}

static void join(struct client *client, int64_t after, const char *opening)
{
    struct stream_segment *page = opening ? rig_segment(0, after, opening, false) : NULL;
    rig_request(client);
    stream_topic_admit(rig.topic, &(struct stream_entry){
                                      .ref = rig.parked, .after = after, .opening = page, .is_paged = true});
    stream_segment_unref(page);
}

static void give(int64_t to, const char *text)
{
    struct stream_subscriber *subscriber = asking;
    assert_non_null(subscriber);
    asking = NULL;
    stream_page_give(subscriber, text ? rig_segment(asked_after, to, text, false) : NULL);
}

/* ---- the tests ---- */

static void test_pages_lead_up_to_the_chain(void **state)
{
    (void)state;
    struct client client;
    publish(11, "k\n");
    join(&client, 3, "a\nb\nc\n");
    assert_string_equal(rig_received(&client), "a\nb\nc\n");
    assert_int_equal(asked_after, 3);
    give(7, "d\n");
    assert_string_equal(rig_received(&client), "d\n");
    assert_int_equal(asked_after, 7);
    publish(12, "l\n");
    give(10, "e\n");
    assert_string_equal(rig_received(&client), "e\nk\nl\nat 12\n"); /* from 10 on it is the chain's */
    assert_null(asking);
    publish(13, "m\n");
    assert_string_equal(rig_received(&client), "m\n");
    client_close(&client);
}

static void test_a_page_is_asked_for_when_the_one_before_it_is_given(void **state)
{
    (void)state;
    static char text[1000002];
    struct client client;
    memset(text, 'x', 1000000), strcpy(text + 1000000, "\n");
    join(&client, 3, text);
    harness_turn(&rig.harness, 5);
    assert_null(asking); /* its socket is full */
    size_t got = strlen(rig_received(&client));
    while (got < 1000001)
        got += strlen(rig_received(&client));
    harness_turn(&rig.harness, 3);
    assert_int_equal(asked_after, 3);
    give(10, "a\n");
    assert_string_equal(rig_received(&client), "a\nat 10\n");
    client_close(&client);
}

static void test_who_is_kept_needs_no_page(void **state)
{
    (void)state;
    struct client client;
    publish(11, "a\n");
    join(&client, 10, NULL);
    assert_string_equal(rig_received(&client), "a\nat 11\n");
    assert_null(asking);
    client_close(&client);
}

static void test_who_is_ahead_waits(void **state)
{
    (void)state;
    struct client client, gone;
    join(&client, 12, NULL);
    join(&gone, 12, NULL);
    assert_string_equal(rig_received(&client), "");
    publish(11, "a\n");
    assert_string_equal(rig_received(&client), "");
    client_close(&gone);
    harness_turn(&rig.harness, 3);
    assert_int_equal(stream_topic_count(rig.topic), 1);
    publish(12, "b\n");
    assert_string_equal(rig_received(&client), "at 12\n");
    publish(13, "c\n");
    assert_string_equal(rig_received(&client), "c\n");
    client_close(&client);
}

/* A step over several positions, and somebody in between: it has to be read. */
static void test_between_two_positions_a_page_is_read(void **state)
{
    (void)state;
    struct client client;
    publish(14, "b\n");
    join(&client, 12, NULL);
    assert_string_equal(rig_received(&client), "");
    assert_int_equal(asked_after, 12);
    give(14, "rest\n");
    assert_string_equal(rig_received(&client), "rest\nat 14\n");
    client_close(&client);
}

static void test_what_cannot_be_read_cuts_the_stream(void **state)
{
    (void)state;
    struct client client;
    join(&client, 3, "a\n");
    assert_string_equal(rig_received(&client), "a\n");
    give(0, NULL);
    client_receive(&client);
    assert_true(client.at_end && buf_len(&client.in) == 0); /* no end of chunks */
    client_close(&client);
    harness_turn(&rig.harness, 3);
    assert_int_equal(stream_topic_count(rig.topic), 0);
    assert_true(rig.idle >= 1);
}

/* Whoever goes while its page is being read stays counted until the page has come. */
static void test_who_goes_while_a_page_is_read(void **state)
{
    (void)state;
    struct client client;
    join(&client, 3, "a\n");
    assert_string_equal(rig_received(&client), "a\n");
    client_close(&client);
    harness_turn(&rig.harness, 3);
    assert_int_equal(stream_topic_count(rig.topic), 1);
    give(10, "b\n");
    harness_turn(&rig.harness, 3);
    assert_int_equal(stream_topic_count(rig.topic), 0);
    assert_int_equal(rig.idle, 1);
}

static void test_a_closed_topic_ends_those_who_are_led(void **state)
{
    (void)state;
    struct client reads, ahead;
    join(&reads, 3, "a\n");
    assert_string_equal(rig_received(&reads), "a\n");
    join(&ahead, 12, NULL);
    assert_string_equal(rig_received(&ahead), "");
    stream_topic_close(rig.topic);
    rig.topic = NULL;
    assert_string_equal(rig_received(&reads), ".");
    assert_string_equal(rig_received(&ahead), ".");
    give(10, "b\n"); /* the page comes all the same */
    harness_turn(&rig.harness, 3);
    client_close(&reads);
    client_close(&ahead);
}

static void test_one_who_does_not_read_is_told_where_it_was(void **state)
{
    (void)state;
    static char text[60002];
    struct client slow, quick;
    uint64_t before = metric_value(rig.cuts);
    memset(text, 'x', 60000), strcpy(text + 60000, "\n");
    join(&slow, 10, NULL);
    join(&quick, 10, NULL);
    assert_string_equal(rig_received(&quick), "at 10\n");
    for (int64_t to = 11; metric_value(rig.cuts) == before; to++) {
        assert_true(to < 1000);
        publish(to, text);
        assert_int_equal(strlen(rig_received(&quick)), 60001);
    }
    size_t len = 0;
    char last[32] = "";
    for (const char *more = rig_received(&slow); *more; more = rig_received(&slow)) {
        len += strlen(more);
        snprintf(last, sizeof last, "%s", strlen(more) > 20 ? more + strlen(more) - 20 : more);
    }
    const char *cut = strstr(last, "cut at ");
    assert_non_null(cut);
    int64_t position = strtoll(cut + 7, NULL, 10);
    assert_true(position > 10 && position < stream_topic_position(rig.topic));
    assert_int_equal(last[strlen(last) - 1], '.');
    assert_int_equal(len - strlen("at 10\n") - strlen(cut), (size_t)(position - 10) * 60001);
    client_close(&slow);
    client_close(&quick);
}

/* More at once than is kept: who had everything before is led on, nobody is cut. */
static void test_one_who_keeps_up_is_not_cut_off(void **state)
{
    (void)state;
    struct client client;
    uint64_t before = metric_value(rig.cuts);
    join(&client, 10, NULL);
    assert_string_equal(rig_received(&client), "at 10\n");
    for (int64_t to = 11; to <= 16; to++)
        publish(to, "x\n");
    assert_string_equal(rig_received(&client), "");
    assert_int_equal(asked_after, 10);
    give(13, "y\n");
    assert_string_equal(rig_received(&client), "y\nx\nx\nx\n");
    assert_int_equal(metric_value(rig.cuts), before);
    client_close(&client);
}

/* What was said is let go of after a while, but for who is still at it. */
static void test_when_it_is_quiet_nothing_is_kept(void **state)
{
    (void)state;
    static char text[1000002];
    struct client slow, late;
    memset(text, 'x', 1000000), strcpy(text + 1000000, "\n");
    join(&slow, 10, NULL);
    harness_turn(&rig.harness, 3);
    publish(11, text);
    publish(12, "b\n");
    assert_true(stream_topic_reaches(rig.topic, 10));
    while (stream_topic_reaches(rig.topic, 10) || stream_topic_reaches(rig.topic, 11))
        loop_run_once(rig.harness.loop, 1);
    assert_true(stream_topic_reaches(rig.topic, 12));
    join(&late, 11, NULL);
    while (!asking)
        loop_run_once(rig.harness.loop, 1);
    assert_int_equal(asked_after, 11);
    give(12, "b\n");
    size_t xs = 0, bs = 0;
    while (xs < 1000000 || bs == 0)
        for (const char *at = rig_received(&slow); *at; at++) {
            xs += *at == 'x';
            bs += *at == 'b';
        }
    assert_int_equal(xs, 1000000);
    client_close(&slow);
    client_close(&late);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_pages_lead_up_to_the_chain),
        TEST(test_a_page_is_asked_for_when_the_one_before_it_is_given),
        TEST(test_who_is_kept_needs_no_page),
        TEST(test_who_is_ahead_waits),
        TEST(test_between_two_positions_a_page_is_read),
        TEST(test_what_cannot_be_read_cuts_the_stream),
        TEST(test_who_goes_while_a_page_is_read),
        TEST(test_a_closed_topic_ends_those_who_are_led),
        TEST(test_one_who_does_not_read_is_told_where_it_was),
        TEST(test_one_who_keeps_up_is_not_cut_off),
        cmocka_unit_test_setup_teardown(test_when_it_is_quiet_nothing_is_kept, setup_beating, rig_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
