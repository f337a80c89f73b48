/*
 * When does a pod serve a version? Asks one path over one connection again and again, and prints a line
 * `VERSION UNIX_US` whenever X-Dict-Version has changed: the moment the first answer with it had come.
 *
 *     poll HOST:PORT REQUEST_FILE INTERVAL_US SECONDS
 *
 * Between two questions it sleeps INTERVAL_US, so that it does not itself take the processor from what it watches;
 * the times it prints are late by at most that and one answer.
 */
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "load_requests.h"
#include "load_wire.h"

enum { ANSWER_BYTES_MAX = 64 * 1024 };

static int64_t now_us(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

static void give_up(const char *what)
{
    fprintf(stderr, "poll: %s\n", what);
    exit(1);
}

static int connect_to(const char *address)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int on = 1;
    if (colon == NULL || (size_t)(colon - address) >= sizeof host) {
        give_up("HOST:PORT, please");
        return -1;
    }
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0) {
        give_up("no such address");
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
        give_up("cannot connect");
    }
    freeaddrinfo(found);
    return fd;
}

/* One question and its whole answer; returns the version its head names. */
static long long ask(int fd, const struct bench_requests *requests, char *in, struct bench_wire_hint *hint)
{
    static const char name[] = "x-dict-version:";
    size_t length = requests->starts[1];
    size_t have = 0;
    ssize_t head = 0;
    struct bench_answer answer = {0};
    if (write(fd, requests->bytes, length) != (ssize_t)length) {
        give_up("cannot send");
    }
    while (head == 0 || have < (size_t)head + answer.body_bytes) {
        ssize_t got = read(fd, in + have, ANSWER_BYTES_MAX - have);
        if (got <= 0) {
            give_up("the answer broke off");
        }
        have += (size_t)got;
        head = head == 0 ? bench_wire_http_head(hint, in, have, &answer) : head;
        if (head < 0) {
            give_up("no HTTP answer");
        }
    }
    in[head] = '\0';
    const char *field = strcasestr(in, name);
    if (answer.status != 200 || field == NULL) {
        give_up("an answer without a version");
        return 0;
    }
    return strtoll(field + sizeof name - 1, NULL, 10);
}

int main(int argc, char **argv)
{
    struct bench_requests requests;
    struct bench_wire_hint hint = {0};
    if (argc != 5) {
        fputs("usage: poll HOST:PORT REQUEST_FILE INTERVAL_US SECONDS\n", stderr);
        return 2;
    }
    if (bench_requests_read(&requests, argv[2], 1) != 0) {
        return 1;
    }
    int fd = connect_to(argv[1]);
    char *in = malloc(ANSWER_BYTES_MAX + 1);
    struct timespec pause = {.tv_nsec = atol(argv[3]) * 1000};
    int64_t end = now_us(CLOCK_MONOTONIC) + (int64_t)(atof(argv[4]) * 1e6);
    long long last = -1;
    while (in != NULL && now_us(CLOCK_MONOTONIC) < end) {
        long long version = ask(fd, &requests, in, &hint);
        if (version != last) {
            printf("%lld %lld\n", version, (long long)now_us(CLOCK_REALTIME));
            last = version;
        }
        nanosleep(&pause, NULL);
    }
    free(in);
    close(fd);
    bench_requests_deinit(&requests);
    return 0;
}
