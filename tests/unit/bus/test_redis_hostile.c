/* Servers that are no Redis, or a broken one, and what a configuration may have wrong. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "test_redis.h"

/* ---- a server that answers whatever it is told to ---- */

static struct {
    int fd;
    unsigned port;
    pthread_t thread;
    struct str answer;
    bool endless; /* sends it over and over */
    atomic_int connections;
    atomic_bool stop;
} fake;

static void answer(int fd)
{
    char bytes[4096];

    while (recv(fd, bytes, sizeof bytes, 0) > 0 && !fake.stop) {
        ssize_t sent;
        do
            sent = fake.answer.len ? send(fd, fake.answer.ptr, fake.answer.len, MSG_NOSIGNAL) : 0;
        while (fake.endless && sent > 0 && !fake.stop);
        if (sent < 0)
            return;
    }
}

static void *serve(void *arg)
{
    int fd;

    (void)arg;
    while ((fd = accept(fake.fd, NULL, NULL)) >= 0) {
        struct timeval limit = {.tv_sec = 3};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        fake.connections++;
        if (!fake.stop)
            answer(fd);
        close(fd);
    }
    return NULL;
}

static void fake_start(struct str bytes, bool endless)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;

    fake.answer = bytes;
    fake.endless = endless;
    fake.stop = false;
    fake.connections = 0;
    fake.fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fake.fd, (struct sockaddr *)&address, len), 0);
    assert_int_equal(listen(fake.fd, 16), 0);
    getsockname(fake.fd, (struct sockaddr *)&address, &len);
    fake.port = ntohs(address.sin_port);
    pthread_create(&fake.thread, NULL, serve, NULL);
}

static void fake_stop(void)
{
    fake.stop = true;
    shutdown(fake.fd, SHUT_RDWR);
    pthread_join(fake.thread, NULL);
    close(fake.fd);
}

/* A bus with a reader that has only this server: it must fail, try again, stop at once, and not grow. */
static void meet(struct str bytes, bool endless, bool cluster)
{
    static const struct bus_topic topic = {.name = "hostile", .partitions = 1};
    struct process process;
    struct recorder every;
    char address[32];
    const char *nodes[] = {address};

    fake_start(bytes, endless);
    snprintf(address, sizeof address, "127.0.0.1:%u", fake.port);
    struct bus_redis_config before = redis_next;
    redis_next = (struct bus_redis_config){
        .nodes = nodes, .node_count = 1, .cluster = cluster, .answer_ms = 40, .connect_ms = 40};
    recorder_init(&every);
    redis_open_with(&process, &topic);
    redis_next = before;
    subscribe(&process, &every,
              (struct bus_subscription){.topic = "hostile", .mode = BUS_EVERY, .hints = true});
    process_start(&process);
    for (int i = 0; i < 3; i++) {
        enum status status = try_publish(&process, "hostile", "k", i);
        assert_int_not_equal(status, STATUS_OK);
        nanosleep(&(const struct timespec){.tv_nsec = 5000000}, NULL);
    }
    for (int64_t limit_ns = clock_deadline_ms(60000); fake.connections == 0 && clock_mono_ns() < limit_ns;)
        nanosleep(&(const struct timespec){.tv_nsec = 5000000}, NULL);
    process_close(&process);
    fake_stop();
    assert_true(fake.connections >= 1);
    assert_int_equal(every.count, 0);
    recorder_deinit(&every);
}

static void test_nonsense_is_an_error_and_no_more(void **state)
{
    (void)state;
    static const struct str answers[] = {
        STR(""),                                 /* silence */
        STR("HTTP/1.1 400 Bad Request\r\n\r\n"), /* somebody else */
        STR("$2147483647\r\nabc"),               /* a text of 2 GiB */
        STR("$99999999999999999999\r\n"),
        STR("*2147483647\r\n"), /* an array of as many */
        STR("*1000000\r\n*1000000\r\n*1000000\r\n"),
        STR("*-7\r\n"),
        STR("$-5\r\n"),
        STR(":12a\r\n"),
        STR("+OK\r\n"), /* too few, then too many of them */
        STR("+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n"),
        STR("*0\r\n"),
        STR("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"),
        STR("*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\nx\r\n:1\r\n"), /* slots that do not exist */
        STR("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:0\r\n"),
        STR("-MOVED 99999 a:1\r\n"),
        STR("-MOVED 1 :1\r\n"),
        STR("-ASK 0 127.0.0.1:1\r\n"),
        STR("*4\r\n:1\r\n:1\r\n$3\r\n1-1\r\n*1\r\n*2\r\n$1\r\nx\r\n*0\r\n"), /* an entry with no id */
        STR("*3\r\n$7\r\nmessage\r\n:1\r\n*0\r\n"),
        STR("+OK\r\n*4\r\n:1\r\n:1\r\n$3\r\n1-1\r\n$1\r\nx\r\n\xff\xfe"),
    };
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++)
        meet(answers[i], false, false);
    for (size_t i = 9; i < 18; i++) /* what a cluster asks for first is its map */
        meet(answers[i], false, true);
}

/* However much it sends, there is a limit to what we keep of it. */
static void test_an_endless_answer_is_cut_off(void **state)
{
    (void)state;
    static char bytes[65536];
    struct rusage usage;
    memset(bytes, 'x', sizeof bytes);
    memcpy(bytes, "$1073741824\r\n", 13);
    meet(str_of(bytes, sizeof bytes), true, false);
    getrusage(RUSAGE_SELF, &usage);
    assert_true(usage.ru_maxrss < 1200 * 1024);
}

/* ---- configuration ---- */

static enum status try_config(struct bus_redis_config config, struct error *error)
{
    static const struct bus_topic topic = {.name = "config", .partitions = 1};
    struct bus *bus;
    enum status status;

    config.topics = &topic;
    config.topic_count = 1;
    status = bus_redis_create(&config, &bus, error);
    if (status == STATUS_OK) {
        bus_stop(bus, 0);
        bus_destroy(bus);
    }
    return status;
}

static void test_a_configuration_that_makes_no_sense_is_refused(void **state)
{
    (void)state;
    static const char *const good[] = {"127.0.0.1:1"}, *const bad[][1] = {{"host"}, {"host:"},   {":1"},
                                                                          {"h:0"},  {"h:65536"}, {"h:x"},
                                                                          {""}};
    struct error error = {0};
    assert_int_equal(try_config((struct bus_redis_config){.nodes = good, .node_count = 1}, &error),
                     STATUS_OK);
    assert_int_equal(try_config((struct bus_redis_config){0}, &error), STATUS_CONFIG);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(try_config((struct bus_redis_config){.nodes = bad[i], .node_count = 1}, &error),
                         STATUS_CONFIG);
    struct bus_redis_config no_ca = {.nodes = good, .node_count = 1};
    no_ca.security = (struct bus_security){.tls = true, .ca_file = "/nowhere/ca.pem"};
    assert_int_equal(try_config(no_ca, &error), STATUS_CONFIG);
    assert_non_null(strstr(error.message, "/nowhere/ca.pem"));
}

static void test_a_bus_never_started_can_be_destroyed(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "idle", .partitions = 1};
    static const char *const nodes[] = {"127.0.0.1:1"};
    struct process process;
    struct recorder recorder;
    recorder_init(&recorder);
    redis_next.nodes = nodes;
    redis_next.node_count = 1;
    redis_open_with(&process, &topic);
    redis_next.nodes = NULL;
    redis_next.node_count = 0;
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "idle", .mode = BUS_EVERY});
    assert_false(bus_is_up(process.bus));
    redis_close_unstarted(&process);
    recorder_deinit(&recorder);
}

int redis_run_hostile(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nonsense_is_an_error_and_no_more),
        cmocka_unit_test(test_an_endless_answer_is_cut_off),
        cmocka_unit_test(test_a_configuration_that_makes_no_sense_is_refused),
        cmocka_unit_test(test_a_bus_never_started_can_be_destroyed),
    };
    return cmocka_run_group_tests_name("redis hostile", tests, NULL, NULL);
}
