/* The harness of the connection tests. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"

void harness_init(struct harness *harness, const struct http_route *routes)
{
    struct error error;

    *harness = (struct harness){0};
    log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC)); /* failures are provoked by the hundred */
    harness->group = loop_group_create(1, 64);
    harness->loop = loop_group_loop(harness->group, 0);
    harness->router = http_router_create();
    assert_int_equal(http_router_add(harness->router, routes, harness, &error), STATUS_OK);
    harness->config = (struct http_server_config){
        .group = harness->group,
        .router = harness->router,
        .limits = http_limits_default,
    };
    harness->config.limits.header_timeout_ms =
        HARNESS_PATIENCE_MS; /* no client is cut off for a slow machine */
    harness->config.limits.write_timeout_ms = HARNESS_PATIENCE_MS;
    signal(SIGPIPE, SIG_IGN);
}

void harness_start(struct harness *harness)
{
    struct error error;

    assert_int_equal(http_server_create(&harness->config, &harness->server, &error), STATUS_OK);
}

void harness_deinit(struct harness *harness)
{
    if (harness->workers)
        worker_pool_stop(harness->workers);
    http_server_destroy(harness->server);
    loop_group_destroy(harness->group);
    http_router_destroy(harness->router);
    if (harness->workers)
        worker_pool_destroy(harness->workers);
}

void harness_turn(struct harness *harness, int times)
{
    for (int i = 0; i < times; i++)
        loop_run_once(harness->loop, 0);
}

void client_connect(struct harness *harness, struct client *client)
{
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    *client = (struct client){.harness = harness, .fd = pair[0]};
    http_server_adopt(harness->server, harness->loop, pair[1]);
}

void client_send(struct client *client, struct str bytes)
{
    while (bytes.len > 0) {
        ssize_t sent = send(client->fd, bytes.ptr, bytes.len, MSG_NOSIGNAL);
        if (sent < 0) {
            assert_true(errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
            if (errno != EAGAIN)
                return;
            harness_turn(client->harness, 1);
            continue;
        }
        bytes = str_of(bytes.ptr + sent, bytes.len - (size_t)sent);
    }
}

void client_receive(struct client *client)
{
    for (int quiet = 0; quiet < 3 && !client->at_end;) {
        harness_turn(client->harness, 1);
        ssize_t got = recv(client->fd, buf_reserve(&client->in, 65536), 65536, 0);
        if (got > 0)
            buf_commit(&client->in, (size_t)got);
        quiet = got > 0 ? 0 : quiet + 1;
        client->at_end = got == 0 || (got < 0 && errno != EAGAIN);
    }
}

void client_close(struct client *client)
{
    close(client->fd);
    buf_deinit(&client->in);
    harness_turn(client->harness, 3);
}

static struct str find_line(struct str head, const char *name)
{
    struct str rest = head, line;

    while (str_split(&rest, '\n', &line)) {
        size_t len = strlen(name);
        if (line.len > len && strncasecmp(line.ptr, name, len) == 0 && line.ptr[len] == ':')
            return str_trim(str_of(line.ptr + len + 1, line.len - len - 2));
    }
    return STR_NONE;
}

/* Joins chunks in place; returns how many raw bytes they took. */
static size_t join_chunks(char *raw, size_t len, size_t *joined)
{
    size_t at = 0;

    *joined = 0;
    for (;;) {
        char *line_end = memmem(raw + at, len - at, "\r\n", 2);
        assert_non_null(line_end);
        size_t size = strtoul(raw + at, NULL, 16);
        at = (size_t)(line_end + 2 - raw);
        assert_true(at + size + 2 <= len);
        memmove(raw + *joined, raw + at, size);
        *joined += size;
        at += size + 2;
        if (size == 0)
            return at;
    }
}

static struct answer take(struct client *client, bool has_body)
{
    struct str all = buf_str(&client->in);
    const char *end = all.len ? memmem(all.ptr, all.len, "\r\n\r\n", 4) : NULL;
    struct answer answer = {0};

    if (!end)
        fail_msg("no answer in %zu bytes: %.*s", all.len, STR_ARG(all));
    answer.head = str_of(all.ptr, (size_t)(end + 4 - all.ptr));
    answer.status = atoi(all.ptr + 9);
    char *body = client->in.data + client->in.start + answer.head.len;
    size_t rest = all.len - answer.head.len, raw = 0, len = 0;
    struct str sized = find_line(answer.head, "Content-Length");
    if (!has_body || answer.status == 204 || answer.status == 304 || answer.status == 100) {
        raw = 0;
    } else if (find_line(answer.head, "Transfer-Encoding").len > 0) {
        raw = join_chunks(body, rest, &len);
    } else if (sized.len > 0) {
        raw = len = strtoul(sized.ptr, NULL, 10);
        assert_true(raw <= rest);
    } else {
        assert_true(client->at_end);
        raw = len = rest;
    }
    answer.body = str_of(body, len);
    client->in.start += answer.head.len + raw;
    return answer;
}

struct answer client_take(struct client *client)
{
    return take(client, true);
}

struct answer client_take_head_only(struct client *client)
{
    return take(client, false);
}

bool answer_has(const struct answer *answer, const char *line)
{
    return memmem(answer->head.ptr, answer->head.len, line, strlen(line)) != NULL;
}

int ask(struct harness *harness, struct str request, char *body, size_t body_bytes, bool *closed)
{
    struct client client;

    client_connect(harness, &client);
    client_send(&client, request);
    client_receive(&client);
    struct answer answer = client_take(&client);
    if (body)
        snprintf(body, body_bytes, "%.*s", STR_ARG(answer.body));
    if (closed)
        *closed = client.at_end;
    client_close(&client);
    return answer.status;
}

void answer_body(struct http_request *request)
{
    http_send(request, &(struct http_response){
                           .status = 200, .content_type = STR("text/plain"), .body = request->body});
}

void answer_key(struct http_request *request)
{
    struct error error;
    struct str key;

    if (http_request_param(request, "key", &key, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    const struct str parts[] = {STR("<"), key, STR(">")};
    http_send_parts(request, &(struct http_response){.status = 200, .headers = STR("X-Extra: 1\r\n")}, parts,
                    3);
}
