/* The private nats-server of the tests. Every "process" of the suite is in this one, so connections are cut here, at the
 * client's end: for both ends it is a connection that breaks. */
#include "nats_fixture.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    char directory[64], url[64];
    in_port_t port;
    pid_t server;
} fixture;

static void die(const char *what)
{
    fprintf(stderr, "nats_fixture: %s\n", what);
    exit(1);
}

static struct sockaddr_in address(void)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(fixture.port)};
}

static void choose_port(void)
{
    struct sockaddr_in any = address();
    socklen_t len = sizeof any;

    any.sin_port = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&any, len) != 0 ||
        getsockname(fd, (struct sockaddr *)&any, &len) != 0)
        die("no free port");
    close(fd);
    fixture.port = ntohs(any.sin_port);
}

void nats_fixture_configure(const char *settings)
{
    char path[96];

    snprintf(path, sizeof path, "%s/nats.conf", fixture.directory);
    FILE *file = fopen(path, "w");
    if (!file)
        die("no configuration");
    fprintf(file, "listen: 127.0.0.1:%u\njetstream { store_dir: \"%s/store\" }\n%s\n", fixture.port,
            fixture.directory, settings);
    fclose(file);
}

static bool answers(void)
{
    struct sockaddr_in there = address();
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool up = fd >= 0 && connect(fd, (struct sockaddr *)&there, sizeof there) == 0;

    close(fd);
    return up;
}

void nats_fixture_resume(void)
{
    char path[96], log[96];

    snprintf(path, sizeof path, "%s/nats.conf", fixture.directory);
    snprintf(log, sizeof log, "%s/log", fixture.directory);
    fixture.server = fork();
    if (fixture.server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
            _exit(127);
        execlp("nats-server", "nats-server", "-c", path, NULL);
        execl("/usr/sbin/nats-server", "nats-server", "-c", path, NULL);
        _exit(127);
    }
    for (int i = 0; i < 600 && !answers(); i++)
        usleep(20000);
    if (!answers())
        die("the server does not come up");
}

void nats_fixture_halt(void)
{
    if (fixture.server <= 0)
        return;
    kill(fixture.server, SIGKILL);
    waitpid(fixture.server, NULL, 0);
    fixture.server = 0;
}

void nats_fixture_start(const char *settings)
{
    snprintf(fixture.directory, sizeof fixture.directory, "/tmp/freshet-nats-XXXXXX");
    if (!mkdtemp(fixture.directory))
        die("no temporary directory");
    choose_port();
    snprintf(fixture.url, sizeof fixture.url, "nats://127.0.0.1:%u", fixture.port);
    nats_fixture_configure(settings);
    nats_fixture_resume();
}

static int remove_entry(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat;
    (void)type;
    (void)ftw;
    return remove(path);
}

void nats_fixture_forget(void)
{
    char store[96];

    snprintf(store, sizeof store, "%s/store", fixture.directory);
    nftw(store, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void nats_fixture_consumer_file(const char *stream, const char *consumer, char *path, size_t size)
{
    snprintf(path, size, "%s/store/jetstream/$G/streams/%s/obs/%s/o.dat", fixture.directory, stream,
             consumer);
}

void nats_fixture_stop(void)
{
    nats_fixture_halt();
    nftw(fixture.directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void nats_fixture_freeze(void)
{
    kill(fixture.server, SIGSTOP);
    waitpid(fixture.server, NULL, WUNTRACED); /* till it has stopped */
}

void nats_fixture_thaw(void)
{
    kill(fixture.server, SIGCONT);
}

void nats_fixture_cut(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in peer;
        socklen_t len = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && peer.sin_family == AF_INET &&
            peer.sin_port == htons(fixture.port))
            shutdown(fd, SHUT_RDWR);
    }
}

const char *nats_fixture_url(void)
{
    return fixture.url;
}

void nats_fixture_borrow(const char *url)
{
    snprintf(fixture.url, sizeof fixture.url, "%s", url);
}
