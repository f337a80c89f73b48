/* The private Kafka of the tests: Java run as a child, a proxy as another, the mock cluster where there are no jars. */
#include "kafka_fixture.h"
#include "../lib/free_port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ftw.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    char directory[64], brokers[64], login_brokers[64];
    const char *jars;
    unsigned broker_port, controller_port, login_port, proxy_port;
    pid_t broker, proxy;
    rd_kafka_t *mock_owner;
    rd_kafka_mock_cluster_t *mock;
} fixture;

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "kafka_fixture: %s\n", what);
    exit(1);
}

/* ---- sockets ---- */

static struct sockaddr_in loopback(unsigned port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
}

static int listen_anywhere(unsigned *port)
{
    struct sockaddr_in address = loopback(0);
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        die("no free port");
    *port = ntohs(address.sin_port);
    return fd;
}

static int dial(unsigned port)
{
    struct sockaddr_in address = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

/* ---- the proxy: a process of its own, so that SIGSTOP makes every connection half-open ---- */

#define PAIRS_MAX 200

static volatile sig_atomic_t cut_wanted;

static void on_cut(int number)
{
    (void)number;
    cut_wanted = 1;
}

static bool pass_on(int from, int to)
{
    static char bytes[65536];
    ssize_t got = read(from, bytes, sizeof bytes);

    for (ssize_t done = 0; done < got;) {
        ssize_t put = write(to, bytes + done, (size_t)(got - done));
        if (put < 0)
            return false;
        done += put;
    }
    return got > 0;
}

static void take_one(int listener, struct pollfd *polled, nfds_t *count)
{
    int client = accept(listener, NULL, NULL), server = client < 0 ? -1 : dial(fixture.broker_port);

    if (server < 0 || *count + 2 > 2 * PAIRS_MAX) {
        close(client);
        close(server);
        return;
    }
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    polled[(*count)++] = (struct pollfd){.fd = client, .events = POLLIN};
    polled[(*count)++] = (struct pollfd){.fd = server, .events = POLLIN};
}

static void end_pair(struct pollfd *polled, nfds_t *count, nfds_t at)
{
    close(polled[at].fd);
    close(polled[at + 1].fd);
    *count -= 2;
    polled[at] = polled[*count];
    polled[at + 1] = polled[*count + 1];
}

static void run_proxy(int listener)
{
    static struct pollfd polled[2 * PAIRS_MAX + 1];
    nfds_t count = 1;

    polled[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    for (;;) {
        poll(polled, count, 20);
        for (nfds_t at = 1; at < count;) {
            bool good = !cut_wanted;
            for (nfds_t side = 0; side < 2 && good; side++)
                if (polled[at + side].revents)
                    good = pass_on(polled[at + side].fd, polled[at + 1 - side].fd);
            if (good)
                at += 2;
            else
                end_pair(polled, &count, at);
        }
        cut_wanted = 0;
        if (polled[0].revents)
            take_one(listener, polled, &count);
    }
}

static void start_proxy(void)
{
    int listener = listen_anywhere(&fixture.proxy_port);

    fixture.proxy = fork();
    if (fixture.proxy == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGUSR1, on_cut);
        signal(SIGPIPE, SIG_IGN);
        run_proxy(listener);
    }
    close(listener);
}

/* ---- the broker ---- */

static void write_file(const char *name, const char *text)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", fixture.directory, name);
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0)
        die("cannot write the broker's files");
}

static void make_data(void)
{
    char data[96];

    snprintf(data, sizeof data, "%s/data", fixture.directory);
    if (mkdir(data, 0700) != 0)
        die("no data directory");
    write_file("data/meta.properties", "version=1\nnode.id=1\ncluster.id=ZnJlc2hldC10ZXN0cy0wMQ\n");
}

void kafka_fixture_set_password(const char *password)
{
    char text[4096];

    snprintf(
        text, sizeof text,
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:%u\n"
        "listeners=PLAINTEXT://127.0.0.1:%u,CONTROLLER://127.0.0.1:%u,LOGIN://127.0.0.1:%u\n"
        "advertised.listeners=PLAINTEXT://127.0.0.1:%u,LOGIN://127.0.0.1:%u\n"
        "controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT\n"
        "sasl.enabled.mechanisms=PLAIN\n"
        "listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule"
        " required user_freshet=\"%s\";\n"
        "log.dirs=%s/data\n"
        "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        "group.initial.rebalance.delay.ms=0\nnum.partitions=7\nlog.retention.check.interval.ms=500\n"
        "group.min.session.timeout.ms=1000\nlog.cleaner.enable=false\nauto.create.topics.enable=false\n"
        /* after a kill it is taken back without waiting for its former self's session to end */
        "broker.session.timeout.ms=1000\nbroker.heartbeat.interval.ms=200\n"
        "controller.quorum.election.timeout.ms=200\ncontroller.quorum.election.backoff.max.ms=100\n",
        fixture.controller_port, fixture.broker_port, fixture.controller_port, fixture.login_port,
        fixture.proxy_port, fixture.login_port, password, fixture.directory);
    write_file("server.properties", text);
}

static void exec_broker(void)
{
    char classes[512], settings[96], log[96];

    snprintf(classes, sizeof classes, "%s/*", fixture.jars);
    snprintf(settings, sizeof settings, "%s/server.properties", fixture.directory);
    snprintf(log, sizeof log, "%s/log", fixture.directory);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!freopen(log, "a", stdout) || !freopen(log, "a", stderr))
        _exit(127);
    execlp("java", "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
           "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classes, "kafka.Kafka", settings,
           (char *)NULL);
    _exit(127);
}

void kafka_fixture_resume(void)
{
    int fd = -1;

    fixture.broker = fork();
    if (fixture.broker == 0)
        exec_broker();
    for (int i = 0; i < 2400 && fd < 0; i++) {
        usleep(25000);
        fd = dial(fixture.broker_port);
        if (fd < 0 && waitpid(fixture.broker, NULL, WNOHANG) == fixture.broker)
            die("the broker ended");
    }
    if (fd < 0)
        die("the broker does not come up");
    close(fd);
}

void kafka_fixture_halt(void)
{
    if (fixture.broker <= 0)
        return;
    kill(fixture.broker, SIGKILL);
    waitpid(fixture.broker, NULL, 0);
    fixture.broker = 0;
}

static void start_broker(void)
{
    snprintf(fixture.directory, sizeof fixture.directory, "/tmp/freshet-kafka-XXXXXX");
    if (!mkdtemp(fixture.directory))
        die("no temporary directory");
    fixture.broker_port = free_port();
    fixture.controller_port = free_port();
    fixture.login_port = free_port();
    start_proxy();
    make_data();
    kafka_fixture_set_password("sesame");
    kafka_fixture_resume();
    snprintf(fixture.brokers, sizeof fixture.brokers, "127.0.0.1:%u", fixture.proxy_port);
    snprintf(fixture.login_brokers, sizeof fixture.login_brokers, "127.0.0.1:%u", fixture.login_port);
}

/* ---- the mock ---- */

static void start_mock(void)
{
    char why[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();

    fprintf(stderr,
            "kafka_fixture: FRESHET_KAFKA_JARS is not set: no broker, only a smoke test on librdkafka's mock"
            " cluster; the conformance suite is left out\n");
    rd_kafka_conf_set(conf, "log_level", "0", why, sizeof why);
    fixture.mock_owner = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
    fixture.mock = fixture.mock_owner ? rd_kafka_mock_cluster_new(fixture.mock_owner, 1) : NULL;
    if (!fixture.mock)
        die("no mock cluster");
    snprintf(fixture.brokers, sizeof fixture.brokers, "%s", rd_kafka_mock_cluster_bootstraps(fixture.mock));
}

/* The mock looks at what it is asked for once a second, or when there is something on a socket. */
static void *tickle(void *done)
{
    unsigned port = (unsigned)atoi(strrchr(fixture.brokers, ':') + 1);

    while (!atomic_load((atomic_bool *)done)) {
        int fd = dial(port);
        if (fd >= 0)
            close(fd);
        usleep(1000);
    }
    return NULL;
}

void kafka_fixture_make_topic(const char *name, unsigned partitions)
{
    static char made[100][64];
    size_t at = 0;
    atomic_bool done = false;
    pthread_t thread;

    if (!fixture.mock || partitions == 0)
        return;
    while (at < 99 && made[at][0] && strcmp(made[at], name) != 0)
        at++;
    if (made[at][0] || pthread_create(&thread, NULL, tickle, &done) != 0)
        return;
    rd_kafka_mock_topic_create(fixture.mock, name, (int)partitions, 1);
    snprintf(made[at], sizeof made[at], "%s", name);
    atomic_store(&done, true);
    pthread_join(thread, NULL);
}

/* ---- both ---- */

void kafka_fixture_start(void)
{
    fixture.jars = getenv("FRESHET_KAFKA_JARS");
    if (fixture.jars && fixture.jars[0])
        start_broker();
    else
        start_mock();
}

static int remove_entry(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat;
    (void)type;
    (void)ftw;
    return remove(path);
}

void kafka_fixture_stop(void)
{
    if (fixture.mock) {
        rd_kafka_mock_cluster_destroy(fixture.mock);
        rd_kafka_destroy(fixture.mock_owner);
        return;
    }
    kafka_fixture_halt();
    kill(fixture.proxy, SIGKILL);
    waitpid(fixture.proxy, NULL, 0);
    nftw(fixture.directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

bool kafka_fixture_is_real(void)
{
    return fixture.mock == NULL;
}

const char *kafka_fixture_login_brokers(void)
{
    return fixture.login_brokers;
}

const char *kafka_fixture_brokers(void)
{
    return fixture.brokers;
}

void kafka_fixture_cut(void)
{
    if (fixture.mock) {
        rd_kafka_mock_broker_set_down(fixture.mock, 1);
        rd_kafka_mock_broker_set_up(fixture.mock, 1);
    } else {
        kill(fixture.proxy, SIGUSR1);
    }
}

void kafka_fixture_freeze(void)
{
    kill(fixture.proxy, SIGSTOP);
}

void kafka_fixture_thaw(void)
{
    kill(fixture.proxy, SIGCONT);
}
