/* The least that sending one line to many readers takes: no request is parsed, no event is stored, and a line is the same bytes for
 * all. Each thread sends to its part of the sockets, one after the other. What a server of streams takes beside this is its own. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 64, REQUEST_BYTES_MAX = 16 * 1024, LINE_BYTES = 300 };

#define FIRST_CHUNK "{\"upToDate\":1}\n"
static const char head[] =
    "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    "f\r\n" FIRST_CHUNK "\r\n";
_Static_assert(sizeof FIRST_CHUNK - 1 == 0xf, "the chunk's size is written in the head");

static struct {
    int *sockets;
    unsigned count, threads, messages;
    pthread_barrier_t turn; /* all threads, and main, which writes the line before it */
    char chunk[LINE_BYTES + 16];
    size_t chunk_bytes;
} sender;

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void *send_part(void *arg)
{
    for (unsigned message = 0; message < sender.messages; message++) {
        pthread_barrier_wait(&sender.turn);
        for (unsigned i = (unsigned)(uintptr_t)arg; i < sender.count; i += sender.threads)
            if (send(sender.sockets[i], sender.chunk, sender.chunk_bytes, MSG_NOSIGNAL) < 0)
                fail("sender: send");
    }
    return NULL;
}

static void put_line(void)
{
    char line[LINE_BYTES + 1];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(line, ' ', LINE_BYTES);
    int len = snprintf(line, sizeof line, "{\"sentUs\":%lld}",
                       (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
    line[len] = ' ';
    line[LINE_BYTES - 1] = '\n';
    line[LINE_BYTES] = '\0';
    sender.chunk_bytes =
        (size_t)snprintf(sender.chunk, sizeof sender.chunk, "%x\r\n%s\r\n", LINE_BYTES, line);
}

static int listen_anywhere(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, len) != 0 ||
        listen(listener, SOMAXCONN) != 0 || getsockname(listener, (struct sockaddr *)&address, &len) != 0)
        fail("sender: listen");
    printf("%u\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

/* A request comes whole: its client sends it at once. */
static int accept_one(int listener)
{
    char request[REQUEST_BYTES_MAX];
    int fd = accept(listener, NULL, NULL);
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) != 0 ||
        recv(fd, request, sizeof request, 0) <= 0 || send(fd, head, sizeof head - 1, MSG_NOSIGNAL) < 0)
        fail("sender: accept");
    return fd;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MAX];
    struct rlimit files;
    if (argc != 4) {
        fprintf(
            stderr,
            "sender READERS THREADS MESSAGES: prints its port; a message a second, the first after two\n");
        return 2;
    }
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    sender.count = (unsigned)strtoul(argv[1], NULL, 10);
    sender.threads = (unsigned)strtoul(argv[2], NULL, 10);
    sender.messages = (unsigned)strtoul(argv[3], NULL, 10);
    sender.sockets = calloc(sender.count, sizeof *sender.sockets);
    if (!sender.sockets || sender.threads == 0 || sender.threads > THREADS_MAX)
        return 2;
    int listener = listen_anywhere();
    for (unsigned i = 0; i < sender.count; i++)
        sender.sockets[i] = accept_one(listener);
    pthread_barrier_init(&sender.turn, NULL, sender.threads + 1);
    for (unsigned i = 0; i < sender.threads; i++)
        if (pthread_create(&threads[i], NULL, send_part, (void *)(uintptr_t)i) != 0)
            fail("sender: thread");
    sleep(1);
    for (unsigned message = 0; message < sender.messages; message++) {
        sleep(1);
        put_line();
        pthread_barrier_wait(&sender.turn);
    }
    for (unsigned i = 0; i < sender.threads; i++)
        pthread_join(threads[i], NULL);
    pause(); /* until the bench ends it: a closed socket would be counted as cut off */
}
