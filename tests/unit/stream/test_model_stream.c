/* Streams against the list of what was published: topics on one loop, readers on two, which the test turns in any order. A reader
 * gets every step from its position on, once and in order, and is disconnected only where the topic was closed, a page was refused or
 * it was too slow. Readers come and go at any moment, pages are given late, and a topic closes itself when the last reader has left. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "loop/loop_inside.h"
#include "model.h"
#include "stream/stream_inside.h"

enum {
    LOOPS = 2,
    READERS = 12,
    CROWD = 600,
    PAGES_MAX = 4096,
    STEPS_MAX = 256,
    STEP_MAX = 3,
    HEARTBEAT_MS = 1000,
    QUIET_ROUNDS = 4
};

struct reader {
    int fd;
    bool is_open;
    unsigned loop;
    size_t connection;                                   /* its number */
    struct loop_park_ref ref;                            /* parked, not admitted yet */
    bool is_admitted, is_paged, may_be_cut, was_refused; /* paged: need not reach the end of a closed topic */
    unsigned topic;                                      /* its number */
    int64_t position;
    struct buf in;
};

static struct loop_group *group;
static struct http_router *router;
static struct http_server *server;
static struct reader readers[CROWD];
static size_t reader_count, connections;
static struct stream_topic *topic;
static unsigned topic_number;
static bool is_paged, closes_when_idle;
static struct stream_limits limits;
static int64_t newest, began_at, closed_at, published_ns; /* closed_at: of the topic before this one */
static struct {
    int64_t to;
    size_t bytes;
} steps[STEPS_MAX]; /* after the position at which the topic began; those from `first` on are kept */
static size_t step_count, first;
static struct stream_subscriber *pages[PAGES_MAX];
static int64_t page_after[PAGES_MAX];
static size_t page_count;

/* ---- topics ---- */

static void on_admitted(struct http_request *request, struct stream_subscriber *subscriber, int64_t position)
{
    (void)position;
    stream_send(subscriber, request, &(struct http_response){.status = 200}, INT64_MAX);
}

static void give_page(void);

static void read_page(void *context, struct stream_subscriber *subscriber, int64_t after)
{
    (void)context;
    MODEL_CHECK(page_count < PAGES_MAX, "too many pages are read");
    pages[page_count] = subscriber;
    page_after[page_count++] = after;
    if (model_one_in(4)) /* at once, in the middle of stream_topic_publish() too */
        give_page();
}

static void close_topic(void)
{
    if (!topic)
        return;
    model_note("closed at %lld", (long long)newest);
    stream_topic_close(topic);
    topic = NULL;
    closed_at = newest;
}

static void on_idle(void *context)
{
    MODEL_CHECK(context == topic && topic && stream_topic_count(topic) == 0, "idle, but it has subscribers");
    if (closes_when_idle)
        close_topic();
}

static struct metric_series *series(struct metric_family *family)
{
    metrics_register(family);
    return metric_series_get(family, NULL);
}

static void open_topic(void)
{
    static struct metric_family gauge = {.name = "s", .help = "s", .type = METRIC_GAUGE},
                                counter = {.name = "l", .help = "l", .type = METRIC_COUNTER};
    for (size_t i = 0; i < reader_count; i++)
        if (readers[i].is_open && readers[i].is_admitted)
            return; /* one topic at a time has readers */
    if (topic || page_count)
        return;
    is_paged = model_one_in(2);
    closes_when_idle = model_one_in(2);
    limits = (struct stream_limits){1 + (int64_t)model_below(12), 1 + model_below(40000), HEARTBEAT_MS};
    struct stream_config config = {.loops = group,
                                   .owner = loop_group_loop(group, 0),
                                   .limits = limits,
                                   .greeting = "at %lld",
                                   .heartbeat = "at %lld",
                                   .cut_off = model_one_in(2) ? "cut %lld" : NULL,
                                   .greets_all = model_one_in(2),
                                   .read_page = is_paged ? read_page : NULL,
                                   .on_admitted = on_admitted,
                                   .on_idle = on_idle,
                                   .subscribers = series(&gauge),
                                   .lines = series(&counter),
                                   .cuts = series(&counter)};
    topic = stream_topic_create(&config, newest);
    topic->config.context = topic;
    topic_number++;
    step_count = first = 0;
    began_at = newest;
    published_ns = model_now_ns();
    model_note("topic %u at %lld%s", topic_number, (long long)newest, is_paged ? ", with pages" : "");
}

static int64_t first_position(void)
{
    return first > 0 ? steps[first - 1].to : INT64_MIN;
}

/* Its own rule for what is kept, from the first step on. */
static void trim(void)
{
    for (;;) {
        int64_t from = first > 0 ? steps[first - 1].to : began_at;
        size_t bytes = 0;
        for (size_t i = first; i < step_count; i++)
            bytes += steps[i].bytes;
        if (step_count - first <= 1 || (newest - from <= limits.positions_max && bytes <= limits.bytes_max))
            return;
        first++;
    }
}

static void note_slow_readers(int64_t before)
{
    for (size_t i = 0; i < reader_count; i++)
        readers[i].may_be_cut |= readers[i].is_admitted && readers[i].position < before;
}

static struct stream_segment *segment_of(int64_t from, int64_t to, char mark)
{
    static char padding[6000];
    struct buf text = {0};
    memset(padding, '.', sizeof padding);
    buf_printf(&text, "%c %lld %lld %.*s\n", mark, (long long)from, (long long)to,
               (int)model_below(model_one_in(3) ? sizeof padding : 10), padding);
    struct stream_segment *segment = stream_segment_create(&(struct stream_step){
        .from = from, .to = to, .can_be_joined = mark == '*', .lines = 1, .bytes = buf_str(&text)});
    buf_deinit(&text);
    return segment;
}

static void publish(void)
{
    if (!topic || step_count == STEPS_MAX)
        return;
    int64_t to = newest + 1 + (int64_t)model_below(STEP_MAX);
    struct stream_segment *segment = segment_of(newest, to, model_one_in(2) ? '*' : '+');
    model_note("%lld to %lld", (long long)newest, (long long)to);
    steps[step_count].to = to;
    steps[step_count++].bytes = segment->len;
    newest = to;
    published_ns = model_now_ns();
    trim();
    note_slow_readers(first_position());
    stream_topic_publish(topic, segment);
}

static void give_page(void)
{
    if (page_count == 0)
        return;
    size_t at = model_below(page_count);
    struct stream_subscriber *subscriber = pages[at];
    int64_t after = page_after[at];
    pages[at] = pages[--page_count];
    page_after[at] = page_after[page_count];
    int64_t left = newest - after;
    bool refuses = left <= 0 || model_one_in(12);
    for (size_t i = 0; i < reader_count && refuses; i++)
        readers[i].was_refused |= readers[i].position <= after;
    model_note("after %lld%s", (long long)after, refuses ? ": refused" : "");
    int64_t to = after + 1 + (refuses ? 0 : (int64_t)model_below((uint64_t)left));
    stream_page_give(subscriber, refuses ? NULL : segment_of(after, to, '#'));
}

/* ---- readers ---- */

static void turn_all(int times)
{
    for (int i = 0; i < times; i++)
        for (unsigned loop = 0; loop < LOOPS; loop++)
            loop_run_once(loop_group_loop(group, loop), 0);
}

static void follow(struct http_request *request)
{
    uint64_t number = 0;
    MODEL_CHECK(str_to_u64(http_request_header(request, STR("X-Number")), &number), "no number");
    struct reader *reader = &readers[number % CROWD];
    struct loop_park_ref ref;
    MODEL_CHECK(http_request_park(request, CLOCK_NEVER, NULL, NULL, &ref), "cannot be parked");
    if (number / CROWD == reader->connection) /* else it is gone, and another one came */
        reader->ref = ref;
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/follow", .handler = follow, .kind = HTTP_STREAM}, {0}};

static void connect_reader(size_t number)
{
    struct reader *reader = &readers[number];
    int pair[2], room = 4096;
    char text[96];
    MODEL_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "no sockets");
    setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    *reader = (struct reader){.fd = pair[0],
                              .is_open = true,
                              .loop = model_one_in(reader_count == CROWD ? 20 : 2),
                              .connection = ++connections};
    http_server_adopt(server, loop_group_loop(group, reader->loop), pair[1]);
    int len = snprintf(text, sizeof text, "GET /follow HTTP/1.0\r\nHost: a\r\nX-Number: %zu\r\n\r\n",
                       reader->connection * CROWD + number);
    MODEL_CHECK(send(reader->fd, text, (size_t)len, 0) == len, "cannot send");
}

static void arrive(void)
{
    size_t number = model_below(reader_count);
    if (readers[number].is_open)
        return;
    connect_reader(number);
    model_note("reader %zu on loop %u", number, readers[number].loop);
}

static void admit(void)
{
    size_t number = model_below(reader_count);
    struct reader *reader = &readers[number];
    if (!topic || !reader->is_open || reader->is_admitted || !reader->ref.generation)
        return;
    struct stream_entry entry = {.ref = reader->ref, .is_paged = is_paged && !model_one_in(3)};
    entry.after = newest - (int64_t)model_below(8) + (entry.is_paged ? 3 : 0);
    if (!entry.is_paged && !stream_topic_reaches(topic, entry.after))
        entry.after = newest;
    reader->position = entry.after;
    if (model_one_in(3)) {
        reader->position = entry.after - 1;
        entry.opening = segment_of(reader->position, entry.after, '#');
    }
    reader->is_admitted = true;
    reader->is_paged = entry.is_paged;
    reader->topic = topic_number;
    reader->may_be_cut = reader->position < first_position();
    model_note("reader %zu after %lld%s", number, (long long)entry.after, entry.is_paged ? ", by pages" : "");
    stream_topic_admit(topic, &entry);
    stream_segment_unref(entry.opening);
}

static void forget_reader(struct reader *reader)
{
    close(reader->fd);
    buf_deinit(&reader->in);
    *reader = (struct reader){0};
}

static void leave(void)
{
    size_t number = model_below(reader_count);
    for (size_t i = reader_count == CROWD ? 40 : 1; i > 0; i--, number = (number + 1) % reader_count) {
        if (!readers[number].is_open)
            continue;
        model_note("reader %zu", number);
        forget_reader(&readers[number]);
    }
}

/* In a crowd some are woken in this turn and some in the next: those that leave in between may be next. */
static void publish_and_leave(void)
{
    publish();
    if (reader_count < CROWD)
        return;
    turn_all(1);
    leave();
    if (model_one_in(2))
        publish();
    for (int i = 0; i < 200; i++)
        arrive(), admit();
}

static void close_sometimes(void)
{
    if (reader_count < CROWD || model_one_in(10))
        close_topic();
}

static void check_line(struct reader *reader, const char *line)
{
    long long from = 0, to = 0;
    char mark = line[0];
    if (sscanf(line, "at %lld", &to) == 1) {
        MODEL_CHECK(to == reader->position, "is told to be at %lld, not %lld", to,
                    (long long)reader->position);
    } else if (sscanf(line, "cut %lld", &to) == 1) {
        /* Before the end of a step that it joined in the middle, it is told where that step begins. */
        MODEL_CHECK(to <= reader->position && to > reader->position - STEP_MAX && reader->may_be_cut,
                    "is cut off at %lld, but is at %lld", to, (long long)reader->position);
    } else {
        MODEL_CHECK(sscanf(line + 1, "%lld %lld", &from, &to) == 2, "a line of its own: %.40s", line);
        bool is_next =
            from == reader->position || (mark == '*' && from < reader->position && to > reader->position);
        MODEL_CHECK(is_next, "from %lld to %lld, but it is at %lld", from, to, (long long)reader->position);
        reader->position = to;
    }
}

static void take_lines(struct reader *reader)
{
    char *end;
    struct str in = buf_str(&reader->in);
    if (in.len && in.ptr[0] == 'H') { /* the head; nothing precedes it */
        end = memmem(in.ptr, in.len, "\r\n\r\n", 4);
        if (!end)
            return;
        MODEL_CHECK(strncmp(in.ptr + 9, "200", 3) == 0, "not a stream: %.*s", (int)in.len, in.ptr);
        reader->in.start += (size_t)(end + 4 - in.ptr);
    }
    while ((in = buf_str(&reader->in)).len && (end = memchr(in.ptr, '\n', in.len)) != NULL) {
        *end = '\0';
        check_line(reader, in.ptr);
        reader->in.start += (size_t)(end + 1 - in.ptr);
    }
}

static void check_end(struct reader *reader)
{
    bool is_over = !topic || reader->topic != topic_number;
    if (!reader->may_be_cut && !reader->was_refused) {
        MODEL_CHECK(is_over, "a reader at %lld is disconnected", (long long)reader->position);
        MODEL_CHECK(reader->is_paged || reader->position >= closed_at, "ends at %lld, not %lld",
                    (long long)reader->position, (long long)closed_at);
    }
    forget_reader(reader);
}

/* False: there is nothing to read. */
static bool read_bytes(struct reader *reader, size_t most)
{
    if (!reader->is_open)
        return false;
    ssize_t got = recv(reader->fd, buf_reserve(&reader->in, most), most, 0);
    if (got > 0) {
        buf_commit(&reader->in, (size_t)got);
        take_lines(reader);
    } else if (got == 0 || errno != EAGAIN) {
        check_end(reader);
    }
    return got >= 0;
}

static void read_some(void)
{
    struct reader *reader = &readers[model_below(reader_count)];
    read_bytes(reader, model_one_in(2) ? 65536 : 1 + model_below(3000));
}

/* ---- turns ---- */

static void turn(void)
{
    loop_run_once(loop_group_loop(group, (unsigned)model_below(LOOPS)), 0);
}

/* After a quiet period a topic with pages keeps nothing. */
static void pass_time(void)
{
    model_pass_ms((int64_t)model_below(HEARTBEAT_MS));
    if (topic && is_paged && model_now_ns() - published_ns >= HEARTBEAT_MS * CLOCK_NS_PER_MS)
        note_slow_readers(newest);
    turn();
}

static void settle(void)
{
    size_t admitted = 0;
    for (int i = 0, quiet = 0; i < 60 && quiet < QUIET_ROUNDS; i++, quiet++) {
        turn_all(3);
        if (page_count)
            quiet = 0;
        while (page_count)
            give_page();
        for (size_t reader = 0; reader < reader_count; reader++)
            if (read_bytes(&readers[reader], 65536))
                quiet = 0;
    }
    for (size_t i = 0; i < reader_count; i++) {
        struct reader *reader = &readers[i];
        admitted += reader->is_open && reader->is_admitted;
        if (!reader->is_open || !reader->is_admitted || reader->may_be_cut || reader->was_refused)
            continue;
        MODEL_CHECK(topic && reader->topic == topic_number, "reader %zu does not end with its topic", i);
        MODEL_CHECK(reader->position >= newest, "reader %zu stays at %lld", i, (long long)reader->position);
    }
    if (topic)
        MODEL_CHECK(stream_topic_count(topic) == admitted, "%zu subscribers, but %zu readers",
                    stream_topic_count(topic), admitted);
}

/* ---- life ---- */

static void begin(void)
{
    struct error error;
    group = loop_group_create(LOOPS, CROWD);
    router = http_router_create();
    struct http_server_config config = {.group = group, .router = router, .limits = http_limits_default};
    config.limits.write_timeout_ms = config.limits.idle_timeout_ms = 100000000;
    MODEL_CHECK(http_router_add(router, routes, NULL, &error) == STATUS_OK, "no routes");
    MODEL_CHECK(http_server_create(&config, &server, &error) == STATUS_OK, "no server");
    reader_count = READERS;
    newest = 100;
    closed_at = 0;
    page_count = 0;
    memset(readers, 0, sizeof readers);
    open_topic();
    if (!model_one_in(40))
        return;
    reader_count = CROWD; /* more than are woken in two turns */
    for (size_t i = 0; i < CROWD; i++)
        connect_reader(i);
    turn_all(5);
    for (size_t i = 0; i < 10 * CROWD; i++)
        admit();
}

static void check(void)
{
}

static void end(void)
{
    if (model_one_in(2))
        settle();
    if (model_one_in(2))
        close_topic();
    if (model_one_in(2))
        settle();
    for (size_t i = 0; i < reader_count; i++)
        if (readers[i].is_open)
            forget_reader(&readers[i]);
    if (model_one_in(2))
        turn_all(4);
    close_topic();
    while (page_count)
        give_page();
    turn_all(6);
    http_server_destroy(server);
    loop_group_destroy(group);
    http_router_destroy(router);
}

static void be_silent(void)
{
    log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
}

int main(void)
{
    static const struct model_operation operations[] = {{"arrive", 20, arrive},
                                                        {"admit", 25, admit},
                                                        {"leave", 5, leave},
                                                        {"read", 20, read_some},
                                                        {"publish", 20, publish_and_leave},
                                                        {"give page", 10, give_page},
                                                        {"turn", 40, turn},
                                                        {"pass time", 10, pass_time},
                                                        {"settle", 1, settle},
                                                        {"close topic", 1, close_sometimes},
                                                        {"open topic", 4, open_topic}};
    return model_main(&(struct model){.name = "streams",
                                      .seeds = 1500,
                                      .steps = 200,
                                      .open = be_silent,
                                      .begin = begin,
                                      .check = check,
                                      .end = end,
                                      MODEL_OPERATIONS(operations)});
}
