/* The rig of the tests of streams. */
#include "rig.h"

#include "base/clock.h"

struct rig rig;

static struct metric_family gauge_family = {.name = "s", .help = "s", .type = METRIC_GAUGE};
static struct metric_family lines_family = {.name = "l", .help = "l", .type = METRIC_COUNTER};
static struct metric_family cuts_family = {.name = "c", .help = "c", .type = METRIC_COUNTER};

/* ---- the server ---- */

static void on_timeout(struct http_request *request, void *context)
{
    (void)context;
    http_send(request, &(struct http_response){.status = 500});
}

static void follow(struct http_request *request)
{
    (void)http_request_park(request, CLOCK_NEVER, on_timeout, NULL, &rig.parked);
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

/* ---- the topic ---- */

static void on_admitted(struct http_request *request, struct stream_subscriber *subscriber, int64_t position)
{
    (void)position;
    stream_send(subscriber, request, &(struct http_response){.status = 200}, rig.expires_at_s);
}

static void on_idle(void *context)
{
    ++*(int *)context;
}

static struct metric_series *series(struct metric_family *family)
{
    metrics_register(family);
    return metric_series_get(family, NULL);
}

static struct stream_config made;

void rig_start(struct stream_config config)
{
    harness_init(&rig.harness, routes);
    harness_start(&rig.harness);
    rig.lines = series(&lines_family);
    rig.cuts = series(&cuts_family);
    rig.idle = 0;
    rig.expires_at_s = INT64_MAX;
    config.loops = rig.harness.group;
    config.owner = rig.harness.loop;
    config.greeting = "at %lld";
    config.heartbeat = "still %lld";
    config.on_admitted = on_admitted;
    config.on_idle = on_idle;
    config.context = &rig.idle;
    config.subscribers = series(&gauge_family);
    config.lines = rig.lines;
    config.cuts = rig.cuts;
    made = config;
    rig.topic = stream_topic_create(&config, 10);
}

struct stream_topic *rig_another_topic(void)
{
    return stream_topic_create(&made, 10);
}

int rig_teardown(void **state)
{
    (void)state;
    if (rig.topic)
        stream_topic_close(rig.topic);
    harness_deinit(&rig.harness);
    return 0;
}

struct stream_segment *rig_segment(int64_t from, int64_t to, const char *text, bool can_be_joined)
{
    return stream_segment_create(&(struct stream_step){
        .from = from, .to = to, .can_be_joined = can_be_joined, .lines = 1, .bytes = str_from(text)});
}

/* ---- clients ---- */

void rig_request(struct client *client)
{
    client_connect(&rig.harness, client);
    client_send(client, STR("GET /follow HTTP/1.1\r\nHost: a\r\n\r\n"));
    harness_turn(&rig.harness, 2);
}

const char *rig_received(struct client *client)
{
    static char text[4 << 20];
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
        assert_true(len + size + 1 < sizeof text);
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
