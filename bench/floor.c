/*
 * The floor: the least an epoll server can do, to measure others against.
 *
 * Nothing is parsed. It is told how long a request is and what to answer; it reads what is there, divides by
 * that length, and answers so many copies of the fixed bytes in one write. Each thread has its own epoll and
 * its own SO_REUSEPORT listener, as the real server has. It is not a web server: send it exactly the request
 * it was told about, or the answers mean nothing.
 */
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS_MAX = 256, READ_BYTES = 256 * 1024, THREADS_MAX = 64 };

struct settings {
    const char *listen;
    const char *response_file;
    size_t request_bytes;
    int threads;
    size_t copies;
};

/* The answer, `copies` times in a row, so that a pipeline's answers leave in one write. */
struct image {
    char *bytes;
    size_t bytes_total;
    size_t response_bytes;
};

/*
 * What a connection owes is a count, not a buffer: the bytes to send repeat with the answer's length, so
 * `at` (where in the answer the next byte lies) and `owed` say everything.
 */
struct conn {
    int fd;
    size_t request_read; /* bytes of a request that is not whole yet */
    size_t owed;
    size_t at;
    bool blocked;
};

struct worker {
    pthread_t thread;
    const struct settings *settings;
    const struct image *image;
    int epoll;
    int listener;
    char *in;
};

static void die(const char *what)
{
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct image image_read(const char *path, size_t copies)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        die(path);
    }
    if (fseek(file, 0, SEEK_END) != 0) {
        die(path);
    }
    long size = ftell(file);
    rewind(file);
    if (size <= 0) {
        errno = EINVAL;
        die(path);
    }
    struct image image = {.response_bytes = (size_t)size, .bytes_total = (size_t)size * copies};
    image.bytes = malloc(image.bytes_total);
    if (image.bytes == NULL || fread(image.bytes, 1, image.response_bytes, file) != image.response_bytes) {
        die(path);
    }
    fclose(file);
    for (size_t i = 1; i < copies; i++) {
        memcpy(image.bytes + i * image.response_bytes, image.bytes, image.response_bytes);
    }
    return image;
}

static int listener_open(const char *address)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    if (colon == NULL || (size_t)(colon - address) >= sizeof host) {
        errno = EINVAL;
        die(address);
    }
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0) {
        errno = EINVAL;
        die(address);
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1024) != 0) {
        die(address);
    }
    freeaddrinfo(found);
    return fd;
}

static void watch(int epoll, int op, int fd, uint32_t events, struct conn *conn)
{
    struct epoll_event event = {.events = events, .data.ptr = conn};
    if (epoll_ctl(epoll, op, fd, &event) != 0) {
        die("epoll_ctl");
    }
}

static void accept_all(struct worker *worker)
{
    for (;;) {
        int fd = accept4(worker->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            return;
        }
        int on = 1;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct conn *conn = calloc(1, sizeof *conn);
        if (conn == NULL) {
            die("calloc");
        }
        conn->fd = fd;
        watch(worker->epoll, EPOLL_CTL_ADD, fd, EPOLLIN, conn);
    }
}

static void conn_destroy(struct conn *conn)
{
    close(conn->fd);
    free(conn);
}

/* Sends what is owed; a full socket stops the reading until it drains. False when the peer is gone. */
static bool conn_flush(struct worker *worker, struct conn *conn)
{
    const struct image *image = worker->image;
    while (conn->owed > 0) {
        size_t run = image->bytes_total - conn->at;
        size_t want = conn->owed < run ? conn->owed : run;
        ssize_t sent = send(conn->fd, image->bytes + conn->at, want, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN) {
                return false;
            }
            if (!conn->blocked) {
                conn->blocked = true;
                watch(worker->epoll, EPOLL_CTL_MOD, conn->fd, EPOLLOUT, conn);
            }
            return true;
        }
        conn->owed -= (size_t)sent;
        conn->at = (conn->at + (size_t)sent) % image->response_bytes;
    }
    if (conn->blocked) {
        conn->blocked = false;
        watch(worker->epoll, EPOLL_CTL_MOD, conn->fd, EPOLLIN, conn);
    }
    return true;
}

static bool conn_serve(struct worker *worker, struct conn *conn)
{
    if (conn->blocked) {
        return conn_flush(worker, conn);
    }
    ssize_t got = recv(conn->fd, worker->in, READ_BYTES, 0);
    if (got <= 0) {
        return got < 0 && errno == EAGAIN;
    }
    size_t request_bytes = worker->settings->request_bytes;
    size_t read_bytes = conn->request_read + (size_t)got;
    conn->request_read = read_bytes % request_bytes;
    conn->owed += read_bytes / request_bytes * worker->image->response_bytes;
    return conn_flush(worker, conn);
}

static void *worker_run(void *arg)
{
    struct worker *worker = arg;
    struct epoll_event events[EVENTS_MAX];
    for (;;) {
        int ready = epoll_wait(worker->epoll, events, EVENTS_MAX, -1);
        for (int i = 0; i < ready; i++) {
            struct conn *conn = events[i].data.ptr;
            if (conn == NULL) {
                accept_all(worker);
            } else if (!conn_serve(worker, conn)) {
                conn_destroy(conn);
            }
        }
    }
    return NULL;
}

static void worker_start(struct worker *worker, const struct settings *settings, const struct image *image)
{
    worker->settings = settings;
    worker->image = image;
    worker->listener = listener_open(settings->listen);
    worker->epoll = epoll_create1(EPOLL_CLOEXEC);
    worker->in = malloc(READ_BYTES);
    if (worker->epoll < 0 || worker->in == NULL) {
        die("worker");
    }
    watch(worker->epoll, EPOLL_CTL_ADD, worker->listener, EPOLLIN, NULL);
    errno = pthread_create(&worker->thread, NULL, worker_run, worker);
    if (errno != 0) {
        die("pthread_create");
    }
}

static size_t number(const char *text, size_t max)
{
    char *end = NULL;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value == 0 || value > max) {
        fprintf(stderr, "floor: %s: not a number from 1 to %zu\n", text, max);
        exit(2);
    }
    return (size_t)value;
}

static void usage(void)
{
    fputs("usage: floor --listen HOST:PORT --request-bytes N --response FILE\n"
          "             [--threads N] [--max-pipeline N]\n",
          stderr);
    exit(2);
}

static struct settings settings_parse(int argc, char **argv)
{
    static const struct option options[] = {
        {"listen", required_argument, NULL, 'l'},       {"threads", required_argument, NULL, 't'},
        {"response", required_argument, NULL, 'f'},     {"request-bytes", required_argument, NULL, 'r'},
        {"max-pipeline", required_argument, NULL, 'p'}, {NULL, 0, NULL, 0},
    };
    struct settings settings = {.threads = 1, .copies = 64};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'l': settings.listen = optarg; break;
        case 'f': settings.response_file = optarg; break;
        case 't': settings.threads = (int)number(optarg, THREADS_MAX); break;
        case 'r': settings.request_bytes = number(optarg, 1 << 20); break;
        case 'p': settings.copies = number(optarg, 4096); break;
        default: usage();
        }
    }
    if (settings.listen == NULL || settings.response_file == NULL || settings.request_bytes == 0 ||
        optind != argc) {
        usage();
    }
    return settings;
}

int main(int argc, char **argv)
{
    struct settings settings = settings_parse(argc, argv);
    struct image image = image_read(settings.response_file, settings.copies);
    static struct worker workers[THREADS_MAX];
    for (int i = 0; i < settings.threads; i++) {
        worker_start(&workers[i], &settings, &image);
    }
    printf("listening %s\n", settings.listen);
    fflush(stdout);
    for (int i = 0; i < settings.threads; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    return 0;
}
