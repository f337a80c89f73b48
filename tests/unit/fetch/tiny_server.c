/* One thread, one connection at a time: enough to be called by what is tested. */
#include "tiny_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/memory.h"

struct tiny_server {
    int listener, stop_fd;
    pthread_t thread;
    char url[64];
    pthread_mutex_t mutex; /* from here on */
    struct buf answer, seen;
    bool stall;
    unsigned count;
};

static bool readable(struct tiny_server *server, int fd)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = server->stop_fd, .events = POLLIN}};
    return poll(fds, 2, -1) > 0 && !(fds[1].revents & POLLIN);
}

/* Head and, by its Content-Length, body. */
static bool request_is_whole(const struct buf *request)
{
    struct str text = buf_str(request);
    const char *end = text.len ? memmem(text.ptr, text.len, "\r\n\r\n", 4) : NULL;
    const char *length = text.len ? memmem(text.ptr, text.len, "Content-Length: ", 16) : NULL;
    size_t body = length ? strtoul(length + 16, NULL, 10) : 0;
    return end && text.len >= (size_t)(end + 4 - text.ptr) + body;
}

static void serve(struct tiny_server *server, int fd)
{
    struct buf request = {0};

    while (!request_is_whole(&request) && readable(server, fd)) {
        ssize_t got = recv(fd, buf_reserve(&request, 4096), 4096, 0);
        if (got <= 0)
            break;
        buf_commit(&request, (size_t)got);
    }
    pthread_mutex_lock(&server->mutex);
    server->count++;
    buf_clear(&server->seen);
    buf_put_str(&server->seen, buf_str(&request));
    bool stall = server->stall;
    struct str answer = buf_str(&server->answer);
    char *copy = str_dup(answer);
    pthread_mutex_unlock(&server->mutex);

    if (stall)
        readable(server, fd); /* until the client gives up or the test ends */
    else
        (void)!send(fd, copy, answer.len, MSG_NOSIGNAL);
    free(copy);
    buf_deinit(&request);
    close(fd);
}

static void *run(void *arg)
{
    struct tiny_server *server = arg;
    while (readable(server, server->listener)) {
        int fd = accept(server->listener, NULL, NULL);
        if (fd >= 0)
            serve(server, fd);
    }
    return NULL;
}

struct tiny_server *tiny_server_start(void)
{
    struct tiny_server *server = memory_zalloc(sizeof(*server));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);

    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    server->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (bind(server->listener, (struct sockaddr *)&address, len) != 0 || listen(server->listener, 16) != 0 ||
        getsockname(server->listener, (struct sockaddr *)&address, &len) != 0)
        abort();
    snprintf(server->url, sizeof(server->url), "http://127.0.0.1:%u/jwks.json", ntohs(address.sin_port));
    pthread_mutex_init(&server->mutex, NULL);
    tiny_server_say(server, 200, "", STR("{}"));
    if (pthread_create(&server->thread, NULL, run, server) != 0)
        abort();
    return server;
}

void tiny_server_stop(struct tiny_server *server)
{
    uint64_t one = 1;
    (void)!write(server->stop_fd, &one, sizeof(one));
    pthread_join(server->thread, NULL);
    close(server->listener);
    close(server->stop_fd);
    buf_deinit(&server->answer);
    buf_deinit(&server->seen);
    pthread_mutex_destroy(&server->mutex);
    free(server);
}

const char *tiny_server_url(const struct tiny_server *server)
{
    return server->url;
}

void tiny_server_say(struct tiny_server *server, int status, const char *headers, struct str body)
{
    pthread_mutex_lock(&server->mutex);
    buf_clear(&server->answer);
    buf_printf(&server->answer, "HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n", status,
               body.len, headers);
    buf_put_str(&server->answer, body);
    pthread_mutex_unlock(&server->mutex);
}

void tiny_server_stall(struct tiny_server *server, bool stall)
{
    pthread_mutex_lock(&server->mutex);
    server->stall = stall;
    pthread_mutex_unlock(&server->mutex);
}

unsigned tiny_server_count(struct tiny_server *server)
{
    pthread_mutex_lock(&server->mutex);
    unsigned count = server->count;
    pthread_mutex_unlock(&server->mutex);
    return count;
}

bool tiny_server_saw(struct tiny_server *server, const char *text)
{
    pthread_mutex_lock(&server->mutex);
    struct str seen = buf_str(&server->seen);
    bool saw = seen.len > 0 && memmem(seen.ptr, seen.len, text, strlen(text));
    pthread_mutex_unlock(&server->mutex);
    return saw;
}
