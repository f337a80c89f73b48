/* TLS and passwords, with a Redis of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../lib/free_port.h"
#include "test_redis.h"

static char directory[64];
static bool as_cluster;

static const char *file(const char *name)
{
    static char paths[8][128];
    static unsigned turn;
    char *path = paths[turn++ % 8];

    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static bool make_certificate(const char *name, const char *alternative)
{
    char command[512];

    snprintf(
        command, sizeof command,
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
        " -addext subjectAltName=%s -keyout %s/%s.key -out %s/%s.pem 2>/dev/null",
        alternative, directory, name, directory, name);
    return system(command) == 0;
}

static enum status publish_with(struct bus_security security, const char *node, struct error *error)
{
    static const struct bus_topic topic = {.name = "secret", .partitions = 1};
    struct process process;
    struct bus_redis_config before = redis_next;

    redis_next = (struct bus_redis_config){
        .nodes = &node, .node_count = 1, .cluster = as_cluster, .security = security};
    redis_open_with(&process, &topic);
    redis_next = before;
    process_start(&process);
    struct bus_message message = {.topic = STR("secret"), .key = STR("k"), .payload = STR("1")};
    enum status status = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), error);
    process_close(&process);
    return status;
}

static void test_tls_and_password(void **state)
{
    (void)state;
    char port[8], plain[32], address[32], name[32];
    struct error error = {0};
    snprintf(directory, sizeof directory, "/tmp/freshet-redis-tls-XXXXXX");
    assert_non_null(mkdtemp(directory));
    if (!make_certificate("server", "IP:127.0.0.1") || !make_certificate("other", "IP:127.0.0.1"))
        skip();
    snprintf(port, sizeof port, "%u", free_port());
    const char *const options[] = {"--tls-port",
                                   port,
                                   "--tls-cert-file",
                                   file("server.pem"),
                                   "--tls-key-file",
                                   file("server.key"),
                                   "--tls-ca-cert-file",
                                   file("server.pem"),
                                   "--tls-auth-clients",
                                   "no",
                                   NULL};
    redis_fixture_start_single(options);
    redis_fixture_ask(
        0,
        "ACL SETUSER freshet on >sesame ~* &* +multi +exec +xadd +xtrim +xlen +publish +subscribe +ping +xreadgroup"
        " +xack +xgroup +xinfo +set +del +exists +asking +cluster|slots");
    redis_fixture_ask(0, "ACL SETUSER default -xadd");
    snprintf(plain, sizeof plain, "127.0.0.1:%u", redis_fixture_port(0));
    snprintf(address, sizeof address, "127.0.0.1:%s", port);
    snprintf(name, sizeof name, "localhost:%s", port);
    struct bus_security good = {
        .tls = true, .ca_file = file("server.pem"), .username = "freshet", .password = "sesame"};
    struct bus_security wrong = good, foreign = good, bare = good;
    wrong.password = "mustard";
    foreign.ca_file = file("other.pem");
    bare.tls = false;

    assert_int_equal(publish_with(good, address, &error), STATUS_OK);
    assert_int_equal(publish_with(bare, plain, &error), STATUS_OK);
    assert_int_not_equal(publish_with(wrong, address, &error), STATUS_OK);
    assert_non_null(strstr(error.message, "AUTH"));
    assert_null(strstr(error.message, "mustard"));
    assert_int_not_equal(publish_with(foreign, address, &error), STATUS_OK);
    assert_non_null(strstr(error.message, "certificate"));
    assert_int_not_equal(publish_with(good, name, &error), STATUS_OK); /* the certificate has no such name */
    assert_int_not_equal(publish_with(good, plain, &error), STATUS_OK);
    assert_int_not_equal(publish_with((struct bus_security){0}, plain, &error), STATUS_OK);
    assert_non_null(strstr(error.message, "NOPERM"));
    as_cluster = true; /* it is none, and says so */
    assert_int_not_equal(publish_with(bare, plain, &error), STATUS_OK);
    assert_non_null(strstr(error.message, "cluster support disabled"));
    redis_fixture_stop();
    for (const char *const *at =
             (const char *const[]){"server.pem", "server.key", "other.pem", "other.key", NULL};
         *at; at++)
        unlink(file(*at));
    rmdir(directory);
}

static void write_password(const char *path, const char *password)
{
    FILE *out = fopen(path, "w");

    assert_non_null(out);
    fprintf(out, "%s\n", password);
    fclose(out);
}

/* One bus, whose connections end while the password changes: it logs in with what the file holds then. */
static void test_a_rotated_password_is_read_from_its_file(void **state)
{
    (void)state;
    static const struct bus_topic topic = {.name = "secret", .partitions = 1};
    struct bus_message message = {.topic = STR("secret"), .key = STR("k"), .payload = STR("1")};
    struct process process;
    struct bus_redis_config before = redis_next;
    char path[] = "/tmp/freshet-redis-password-XXXXXX", plain[32];
    struct error error = {0};
    close(mkstemp(path));
    write_password(path, "sesame");
    redis_fixture_start_single(NULL);
    redis_fixture_ask(0, "ACL SETUSER freshet on >sesame ~* &* +@all");
    snprintf(plain, sizeof plain, "127.0.0.1:%u", redis_fixture_port(0));
    redis_next = (struct bus_redis_config){
        .nodes = &(const char *){plain},
        .node_count = 1,
        .security = {.username = "freshet", .password_file = path},
    };
    redis_open_with(&process, &topic);
    redis_next = before;
    process_start(&process);
    enum status first = bus_publish(process.bus, &message, 1, clock_deadline_ms(PATIENCE_MS), &error);
    redis_fixture_ask(0, "ACL SETUSER freshet <sesame >mustard");
    redis_fixture_ask(0, "CLIENT KILL USER freshet");
    enum status refused = bus_publish(process.bus, &message, 1, clock_deadline_ms(1500), &error);
    char reason[sizeof error.message];
    memcpy(reason, error.message, sizeof reason);
    write_password(path, "mustard");
    enum status rotated = STATUS_UNAVAILABLE;
    for (int64_t end = clock_deadline_ms(PATIENCE_MS); rotated != STATUS_OK && clock_mono_ns() < end;)
        rotated = bus_publish(process.bus, &message, 1, clock_deadline_ms(1000), &error);
    process_close(&process);
    redis_fixture_stop();
    unlink(path);
    assert_int_equal(first, STATUS_OK);
    assert_int_not_equal(refused, STATUS_OK);
    assert_null(strstr(reason, "sesame"));
    assert_int_equal(rotated, STATUS_OK);
}

int redis_run_security(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tls_and_password),
        cmocka_unit_test(test_a_rotated_password_is_read_from_its_file),
    };
    return cmocka_run_group_tests_name("redis security", tests, NULL, NULL);
}
