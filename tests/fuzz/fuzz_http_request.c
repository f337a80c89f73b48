/* A whole connection under arbitrary bytes, without threads: through a socketpair, in two pieces, with routes
 * that answer at once, park, stream and decode. Whatever comes, what comes back begins as an answer does, the
 * connection ends, and nothing is left parked. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "http/http.h"
#include "loop/loop_inside.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct loop_park_ref parked;

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void echo(struct http_request *request)
{
    struct error error;
    struct str key = STR_NONE, value;
    bool found;

    if ((request->route->tenant_param && http_request_param(request, "key", &key, &error) != STATUS_OK) ||
        http_request_query(request, STR("q"), &found, &value, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    (void)http_request_accepts(request, STR("application/x-ndjson"));
    int status = http_request_none_match(request, STR("\"e\"")) ? 304 : 200;
    const struct str parts[] = {key, value, request->body};
    http_send_parts(request, &(struct http_response){.status = status}, parts, 3);
}

static void on_timeout(struct http_request *request, void *context)
{
    (void)context;
    http_send_error(request, &(struct error){.status = STATUS_TIMEOUT});
}

static void park(struct http_request *request)
{
    (void)http_request_park(request, INT64_MAX, on_timeout, NULL, &parked);
}

static enum http_producer_state produce(void *context, struct buf *out, size_t room)
{
    (void)context;
    (void)room;
    buf_put_str(out, STR("{}\n"));
    return HTTP_PRODUCER_END;
}

static void release(void *context)
{
    (void)context;
}

static void stream(struct http_request *request)
{
    http_send_stream(request, &(struct http_response){.status = 200},
                     &(struct http_producer){.produce = produce, .release = release, .content_length = -1});
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/", .handler = echo},
    {.method = HTTP_POST, .path = "/", .handler = echo, .body_bytes_max = 50},
    {.method = HTTP_GET, .path = "/i/{key}", .handler = echo, .tenant_param = "key"},
    {.method = HTTP_PUT, .path = "/i/{key}", .handler = echo, .tenant_param = "key", .consumes = HTTP_ANY},
    {.method = HTTP_GET, .path = "/park", .handler = park},
    {.method = HTTP_GET, .path = "/stream", .handler = stream},
    {0},
};

static struct loop *loop;
static struct http_server *server;

static void start(void)
{
    struct error error;
    struct loop_group *group = loop_group_create(1, 16);
    struct http_router *router = http_router_create();
    struct http_server_config config = {.group = group, .router = router, .limits = http_limits_default};

    log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
    config.limits.target_bytes_max = 300;
    config.limits.header_bytes_max = 600;
    config.limits.header_count_max = 16;
    check(http_router_add(router, routes, NULL, &error) == STATUS_OK);
    check(http_server_create(&config, &server, &error) == STATUS_OK);
    loop = loop_group_loop(group, 0);
}

/* Turns the loop until it has nothing more to say, answering what was parked on the way. */
static void receive(int fd, struct buf *in)
{
    for (int quiet = 0; quiet < 3;) {
        loop_run_once(loop, 0);
        struct http_request *request = http_request_unpark(parked);
        if (request)
            http_send(request, &(struct http_response){.status = 202, .body = STR("later")});
        ssize_t got = recv(fd, buf_reserve(in, 65536), 65536, 0);
        if (got > 0)
            buf_commit(in, (size_t)got);
        quiet = got > 0 || request ? 0 : quiet + 1;
    }
}

static void send_all(int fd, struct str text)
{
    if (text.len > 0 && send(fd, text.ptr, text.len, MSG_NOSIGNAL) < 0)
        check(errno == EPIPE || errno == ECONNRESET || errno == EAGAIN); /* it may have hung up already */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    struct buf in = {0};

    if (size < 2 || size > 60000)
        return 0;
    if (!server)
        start();
    struct str text = str_of((const char *)data + 1, size - 1);
    size_t split = text.len * data[0] / 256;
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    http_server_adopt(server, loop, pair[1]);
    send_all(pair[0], str_of(text.ptr, split));
    receive(pair[0], &in);
    send_all(pair[0], str_of(text.ptr + split, text.len - split));
    receive(pair[0], &in);
    shutdown(pair[0], SHUT_WR);
    receive(pair[0], &in);
    if (buf_len(&in) > 0)
        check(str_starts_with(buf_str(&in), STR("HTTP/1.1 ")));
    close(pair[0]);
    loop_run_once(loop, 0);
    loop_run_once(loop, 0);
    check(loop->parking.occupied == 0);
    buf_deinit(&in);
    return 0;
}
