/* Follows streams on many connections at once, a dictionary's or a chat's: one thread, epoll. Says whether each connection got every change,
 * and how long after "sentUs" (unix, microseconds; a member of each payload) it came.
 *
 * Prints {"ready":N} when all have their first upToDate (or up_to_date), so that the writer may begin, and the figures at the end. A
 * change is known by its sentUs: writers give each its own, and its own key, since what is loaded together is told with
 * its last value only.
 *
 * With --pace it is the readers that nobody wants: once up to date, each takes so many bytes a second, or none, through the
 * smallest window there is, and measures nothing. */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "load_stats.h"

enum {
    LINE_BYTES_MAX = 2048, /* longer lines are read to their end, and known by their beginning */
    CONNECTING_MAX = 128,
    READ_BYTES = 256 * 1024,
    READY_SECONDS_MAX = 120,
    NUMBER_BYTES = 12,
    SLOW_RECEIVE_BYTES = 4096,
};

enum reading { IN_HEAD, IN_SIZE, IN_CHUNK, IN_CHUNK_END, AT_END };

struct line {
    size_t len;
    char text[LINE_BYTES_MAX];
};

struct connection {
    int fd;
    enum reading reading;
    size_t chunk_left;
    struct line frame, data; /* of the HTTP around it, and of what is in it */
    bool is_ready;
    uint64_t changes;
};

struct reader {
    int epoll_fd;
    struct sockaddr_in address;
    char *request;
    size_t request_len;
    char *number; /* in the request: each connection's own goes here; NULL = all ask for the same */
    unsigned first_number, numbers;
    long pace; /* bytes a second of each; -1 = as they come */
    struct connection *connections;
    unsigned count, started, ready, closed;
    struct bench_histogram latencies;
    uint64_t *seen; /* open addressing: the sentUs of every change, by whomever it was seen; 0 = free */
    size_t seen_capacity, seen_count;
    int64_t now_us;
};

static int64_t unix_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static _Noreturn void fail(const char *what, const char *detail)
{
    fprintf(stderr, "watch_reader: %s: %s\n", what, detail);
    exit(1);
}

/* ---- changes ---- */

static void remember(struct reader *reader, uint64_t sent_us)
{
    if (2 * (reader->seen_count + 1) > reader->seen_capacity) {
        struct reader larger = {.seen_capacity = reader->seen_capacity ? 2 * reader->seen_capacity : 1024};
        larger.seen = calloc(larger.seen_capacity, sizeof *larger.seen);
        for (size_t i = 0; i < reader->seen_capacity; i++) {
            if (reader->seen[i]) {
                remember(&larger, reader->seen[i]);
            }
        }
        free(reader->seen);
        reader->seen = larger.seen;
        reader->seen_capacity = larger.seen_capacity;
    }
    size_t at = sent_us * 0x9e3779b97f4a7c15 >> 20 & (reader->seen_capacity - 1);
    while (reader->seen[at] && reader->seen[at] != sent_us) {
        at = (at + 1) & (reader->seen_capacity - 1);
    }
    reader->seen_count += reader->seen[at] == 0;
    reader->seen[at] = sent_us;
}

static void add_to_line(struct line *line, const char *text, size_t len)
{
    size_t room = sizeof line->text - 1 - line->len;
    memcpy(line->text + line->len, text, len < room ? len : room);
    line->len += len < room ? len : room;
    line->text[line->len] = '\0';
}

static void take_line(struct reader *reader, struct connection *connection)
{
    const char *text = connection->data.text, *sent = strstr(text, "sentUs");
    if (!connection->is_ready &&
        (strncmp(text, "{\"upToDate\":", 12) == 0 || strstr(text, "\"up_to_date\""))) {
        connection->is_ready = true;
        reader->ready++;
    }
    if (sent && connection->is_ready) { /* what came before is what was missed */
        int64_t sent_us = strtoll(sent + strcspn(sent, "0123456789"), NULL, 10);
        connection->changes++;
        remember(reader, (uint64_t)sent_us);
        bench_histogram_add(&reader->latencies,
                            reader->now_us > sent_us ? (uint64_t)(reader->now_us - sent_us) : 0, 1);
    }
}

static void take_data(struct reader *reader, struct connection *connection, const char *data, size_t len)
{
    while (len > 0) {
        const char *end = memchr(data, '\n', len);
        size_t part = end ? (size_t)(end - data) : len;
        add_to_line(&connection->data, data, part);
        if (!end) {
            return;
        }
        take_line(reader, connection);
        connection->data.len = 0;
        data += part + 1;
        len -= part + 1;
    }
}

/* ---- HTTP, as far as this answer needs it ---- */

static void take_frame_line(struct connection *connection)
{
    const char *text = connection->frame.text;
    bool is_empty = text[0] == '\r' || text[0] == '\0';
    if (connection->reading == IN_CHUNK_END) {
        connection->reading = IN_SIZE;
    } else if (connection->reading == IN_SIZE) {
        connection->chunk_left = strtoul(text, NULL, 16);
        connection->reading = connection->chunk_left ? IN_CHUNK : AT_END;
    } else if (strncmp(text, "HTTP/1.1 ", 9) == 0 && strncmp(text + 9, "200", 3) != 0) {
        fail("not answered 200", text);
    } else if (is_empty) {
        connection->reading = IN_SIZE;
    }
}

/* A byte at a time: its lines are few and short. */
static void take_frame(struct connection *connection, char c)
{
    if (c != '\n') {
        add_to_line(&connection->frame, &c, 1);
        return;
    }
    take_frame_line(connection);
    connection->frame.len = 0;
    connection->frame.text[0] = '\0';
}

static void take_bytes(struct reader *reader, struct connection *connection, const char *data, size_t len)
{
    while (len > 0 && connection->reading != AT_END) {
        size_t part = 1;
        if (connection->reading == IN_CHUNK) {
            part = len < connection->chunk_left ? len : connection->chunk_left;
            take_data(reader, connection, data, part);
            connection->chunk_left -= part;
            if (connection->chunk_left == 0) {
                connection->reading = IN_CHUNK_END;
            }
        } else {
            take_frame(connection, *data);
        }
        data += part;
        len -= part;
    }
}

/* ---- connections ---- */

static void start_connection(struct reader *reader, struct connection *connection)
{
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = connection};
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (reader->pace >= 0) {
        setsockopt(connection->fd, SOL_SOCKET, SO_RCVBUF, &(int){SLOW_RECEIVE_BYTES}, sizeof(int));
    }
    if (connection->fd < 0 ||
        (connect(connection->fd, (struct sockaddr *)&reader->address, sizeof reader->address) != 0 &&
         errno != EINPROGRESS)) {
        fail("cannot connect", strerror(errno));
    }
    epoll_ctl(reader->epoll_fd, EPOLL_CTL_ADD, connection->fd, &event);
    reader->started++;
}

static void send_request(struct reader *reader, struct connection *connection)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (reader->number) {
        char digits[16];
        snprintf(digits, sizeof digits, "%012u",
                 reader->first_number + (unsigned)(connection - reader->connections) % reader->numbers);
        memcpy(reader->number, digits, NUMBER_BYTES);
    }
    if (send(connection->fd, reader->request, reader->request_len, MSG_NOSIGNAL) !=
        (ssize_t)reader->request_len) {
        fail("cannot send", strerror(errno));
    }
    epoll_ctl(reader->epoll_fd, EPOLL_CTL_MOD, connection->fd, &event);
}

static void end_connection(struct reader *reader, struct connection *connection)
{
    close(connection->fd);
    connection->fd = -1;
    reader->closed++;
}

static void receive(struct reader *reader, struct connection *connection)
{
    static char bytes[READ_BYTES];
    ssize_t got = recv(connection->fd, bytes, sizeof bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (got > 0) {
        reader->now_us = unix_us();
        take_bytes(reader, connection, bytes, (size_t)got);
    }
    if (got <= 0 || connection->reading == AT_END) {
        end_connection(reader, connection);
    }
}

static void turn(struct reader *reader)
{
    struct epoll_event events[1024];
    int count = epoll_wait(reader->epoll_fd, events, 1024, 50);
    for (int i = 0; i < count; i++) {
        struct connection *connection = events[i].data.ptr;
        if (events[i].events & EPOLLOUT && !(events[i].events & (EPOLLERR | EPOLLHUP))) {
            send_request(reader, connection);
        } else {
            receive(reader, connection);
        }
    }
}

static void connect_all(struct reader *reader)
{
    int64_t give_up_us = unix_us() + READY_SECONDS_MAX * INT64_C(1000000);
    while (reader->ready < reader->count) {
        while (reader->started < reader->count && reader->started - reader->ready < CONNECTING_MAX) {
            start_connection(reader, &reader->connections[reader->started]);
        }
        turn(reader);
        if (reader->closed) {
            fail("a connection was closed", "before it was up to date");
        }
        if (unix_us() > give_up_us) {
            fail("not all connections are up to date", "given up");
        }
    }
    printf("{\"ready\":%u}\n", reader->ready);
    fflush(stdout);
}

/* A moment of those who dawdle. */
static void dawdle(struct reader *reader)
{
    static char bytes[READ_BYTES];
    sleep(1);
    for (unsigned i = 0; i < reader->count; i++) {
        struct connection *connection = &reader->connections[i];
        size_t want = (size_t)reader->pace < sizeof bytes ? (size_t)reader->pace : sizeof bytes;
        if (connection->fd >= 0 && want > 0 && recv(connection->fd, bytes, want, MSG_DONTWAIT) == 0) {
            end_connection(reader, connection);
        }
    }
}

static void print_figures(const struct reader *reader, double seconds)
{
    uint64_t least = UINT64_MAX, most = 0, missed = 0;
    for (unsigned i = 0; i < reader->count; i++) {
        uint64_t changes = reader->connections[i].changes;
        least = changes < least ? changes : least;
        most = changes > most ? changes : most;
        missed += reader->seen_count > changes ? reader->seen_count - changes : 0;
    }
    printf("{\"connections\":%u,\"closed\":%u,\"seconds\":%.1f,\"changes\":%zu,\"perConnectionMin\":%llu,"
           "\"perConnectionMax\":%llu,\"missed\":%llu,\"p50Ms\":%.3f,\"p99Ms\":%.3f,\"maxMs\":%.3f}\n",
           reader->count, reader->closed, seconds, reader->seen_count, (unsigned long long)least,
           (unsigned long long)most, (unsigned long long)missed,
           (double)bench_histogram_quantile(&reader->latencies, 0.5) / 1e3,
           (double)bench_histogram_quantile(&reader->latencies, 0.99) / 1e3,
           (double)bench_histogram_quantile(&reader->latencies, 1.0) / 1e3);
}

/* ---- the command line ---- */

struct options {
    unsigned port, connections, first_number, numbers;
    long pace;
    double seconds;
    const char *path;
    char headers[16384];
};

static void add_header(struct options *options, const char *line)
{
    size_t used = strlen(options->headers);
    if ((size_t)snprintf(options->headers + used, sizeof options->headers - used, "%s\r\n", line) >=
        sizeof options->headers - used) {
        fail("--header", "too long");
    }
}

static void usage(void)
{
    printf(
        "watch_reader --port P --path PATH --header \"Authorization: Bearer ...\" --connections N --seconds S\n"
        "\n"
        "Opens N streams of GET PATH on 127.0.0.1:P, prints {\"ready\":N} when all are up to date, reads for S\n"
        "seconds more, and prints one line of JSON: changes (distinct \"sentUs\" seen), perConnectionMin/Max,\n"
        "missed (summed over connections), closed, and p50Ms, p99Ms, maxMs from sentUs to having read the line.\n"
        "Twelve # in PATH stand for the connection's number: from --first N (0) on, and again after --numbers N. --pace B takes B bytes\n"
        "a second of each once it is up to date, 0 none at all. --header may be given several times. Exit status 0 whatever the figures; 1 when it could not measure.\n");
}

static void read_options(struct options *options, int argc, char **argv)
{
    static const struct option known[] = {{"port", 1, NULL, 'p'},    {"path", 1, NULL, 'a'},
                                          {"header", 1, NULL, 'H'},  {"connections", 1, NULL, 'c'},
                                          {"seconds", 1, NULL, 's'}, {"help", 0, NULL, 'h'},
                                          {"numbers", 1, NULL, 'n'}, {"pace", 1, NULL, 'e'},
                                          {"first", 1, NULL, 'f'},   {NULL, 0, NULL, 0}};
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'p': options->port = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'a': options->path = optarg; break;
        case 'H': add_header(options, optarg); break;
        case 'c': options->connections = (unsigned)strtoul(optarg, NULL, 10); break;
        case 's': options->seconds = strtod(optarg, NULL); break;
        case 'f': options->first_number = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'n': options->numbers = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'e': options->pace = strtol(optarg, NULL, 10); break;
        case 'h': usage(); exit(0);
        default: exit(2);
        }
    }
    if (!options->port || !options->path || !options->numbers || !options->connections ||
        options->seconds <= 0) {
        fail("needed", "--port, --path, --connections, --seconds (see --help)");
    }
}

int main(int argc, char **argv)
{
    static struct options options = {.numbers = UINT_MAX, .pace = -1};
    static struct reader reader;
    struct rlimit files;
    read_options(&options, argc, argv);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    reader.epoll_fd = epoll_create1(0);
    reader.address = (struct sockaddr_in){.sin_family = AF_INET,
                                          .sin_port = htons((uint16_t)options.port),
                                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    reader.count = options.connections;
    reader.first_number = options.first_number;
    reader.numbers = options.numbers;
    reader.pace = options.pace;
    reader.connections = calloc(reader.count, sizeof *reader.connections);
    int len = asprintf(&reader.request, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", options.path,
                       options.headers);
    reader.request_len = (size_t)len;
    reader.number = strstr(reader.request, "############");
    connect_all(&reader);
    int64_t began_us = unix_us(), until_us = began_us + (int64_t)(options.seconds * 1e6);
    while (unix_us() < until_us) {
        if (reader.pace < 0) {
            turn(&reader);
        } else {
            dawdle(&reader);
        }
    }
    print_figures(&reader, (double)(unix_us() - began_us) / 1e6);
    return 0;
}
