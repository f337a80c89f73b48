/* Is an engine there? Each of its servers is asked something that every client may ask before it logs in, so that one that accepts
 * connections and is frozen is found: NATS greets by itself, Redis answers a PING, Kafka the question for its versions. Behind TLS only the
 * connection is tried. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "app/doctor.h"
#include "base/clock.h"

enum { NODE_MS = 1000, NODES_MAX = 32 };

/* ApiVersions, version 0: length, key 18, version, correlation id, client id. */
static const char kafka_question[] = "\0\0\0\x11\0\x12\0\0\0\0\0\1\0\7freshet";

static bool wait_for(int fd, short events, int64_t deadline_ns)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};
    int ready;
    do
        ready = poll(&poll_fd, 1, clock_ms_left(deadline_ns));
    while (ready < 0 && errno == EINTR);
    return ready == 1;
}

/* "HOST:PORT" or "[IPV6]:PORT", with anything before "://" or "@". */
static bool split_address(struct str node, char host[256], char port[16])
{
    const char *scheme = memmem(node.ptr, node.len, "://", 3);
    if (scheme)
        node = str_skip(node, (size_t)(scheme + 3 - node.ptr));
    const char *user = memrchr(node.ptr, '@', node.len);
    if (user)
        node = str_skip(node, (size_t)(user + 1 - node.ptr));
    const char *colon = memrchr(node.ptr, ':', node.len);
    if (!colon)
        return false;
    struct str name = str_of(node.ptr, (size_t)(colon - node.ptr));
    if (str_starts_with(name, STR("[")) && str_ends_with(name, STR("]")))
        name = str_of(name.ptr + 1, name.len - 2);
    str_copy(host, 256, name);
    str_copy(port, 16, str_skip(node, name.len == (size_t)(colon - node.ptr) ? name.len + 1 : name.len + 3));
    return true;
}

static int connect_to(const char *host, const char *port, int64_t deadline_ns, const char **why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int fd = -1;
    int code = getaddrinfo(host, port, &hints, &found);
    *why = code ? gai_strerror(code) : "no answer in time";
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next) {
        int failure = 0;
        socklen_t len = sizeof failure;
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        if (connect(fd, at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS)
            failure = errno;
        else if (!wait_for(fd, POLLOUT, deadline_ns))
            failure = ETIMEDOUT;
        else
            (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &len);
        if (failure) {
            *why = failure == ETIMEDOUT ? "no answer in time" : strerrordesc_np(failure);
            close(fd);
            fd = -1;
        }
    }
    if (found)
        freeaddrinfo(found);
    return fd;
}

/* NULL: it answers. */
static const char *ask_node(const struct doctor_place *place, struct str node)
{
    static const struct {
        struct str question;
        const char *expected; /* how an answer begins; NULL = any byte */
    } talks[] = {[DOCTOR_KAFKA] = {{kafka_question, sizeof kafka_question - 1}, NULL},
                 [DOCTOR_REDIS] = {{"PING\r\n", 6}, NULL},
                 [DOCTOR_NATS] = {{NULL, 0}, "INFO"}};
    char host[256], port[16], answer[8] = "";
    const char *why = "it is not HOST:PORT";
    int64_t limit_ns = clock_deadline_ms(NODE_MS),
            deadline_ns = limit_ns < place->deadline_ns ? limit_ns : place->deadline_ns;
    int fd = split_address(node, host, port) ? connect_to(host, port, deadline_ns, &why) : -1;
    if (fd < 0)
        return why;
    struct str question = talks[place->engine].question;
    why = "it accepts connections, but does not answer";
    if (place->has_tls && place->engine != DOCTOR_NATS)
        why = NULL;
    else if ((!question.len || send(fd, question.ptr, question.len, MSG_NOSIGNAL) == (ssize_t)question.len) &&
             wait_for(fd, POLLIN, deadline_ns) && recv(fd, answer, sizeof answer - 1, 0) > 0)
        why = talks[place->engine].expected &&
                      !str_starts_with(str_from(answer), str_from(talks[place->engine].expected))
                  ? "what answers is something else"
                  : NULL;
    close(fd);
    return why;
}

void doctor_check_engine(struct doctor_place *place)
{
    static const char *const services[] = {
        [DOCTOR_KAFKA] = "kafka", [DOCTOR_REDIS] = "redis-server", [DOCTOR_NATS] = "nats-server"};
    size_t count = place->nodes->count < NODES_MAX ? place->nodes->count : NODES_MAX, down = 0;
    const char *whys[NODES_MAX];
    for (size_t i = 0; i < count; i++) {
        whys[i] = ask_node(place, place->nodes->items[i]);
        down += whys[i] != NULL;
    }
    for (size_t i = 0; i < count; i++) {
        char host[256], port[16];
        if (!whys[i])
            continue;
        if (!split_address(place->nodes->items[i], host, port))
            doctor_found(place, doctor_command(place, "config"), "%.*s: %s", STR_ARG(place->nodes->items[i]),
                         whys[i]);
        else
            doctor_found(place, doctor_restart(place, services[place->engine], str_from(host)),
                         "%s:%s does not answer (%s)%s", host, port, whys[i],
                         down == count ? "" : "; others do");
    }
}
