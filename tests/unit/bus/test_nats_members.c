/* A member of a group that dies or freezes while it handles a batch: a process of its own, which is this program once
 * more. Then TLS and passwords, with a server of their own. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "bus/nats/inside.h"
#include "nats_fixture.h"
#include "test_nats.h"

static const struct bus_topic topics[] = {{.name = "death", .partitions = 1},
                                          {.name = "frost", .partitions = 1},
                                          {.name = "poison", .partitions = 1}};
enum { TOPICS = sizeof topics / sizeof topics[0] };

/* ---- the member that does not come back ---- */

static void never_return(struct recorder *recorder, struct bus_batch *batch)
{
    (void)recorder;
    (void)batch;
    if (write(STDOUT_FILENO, "h", 1) == 1)
        pause();
}

static unsigned attempts_of(const char *topic)
{
    return strcmp(topic, "poison") == 0 ? 2 : 0;
}

int nats_run_member(const char *topic)
{
    struct process process;
    struct recorder recorder;

    recorder_init(&recorder);
    recorder.behave = never_return;
    nats_open_with(&process, topics, TOPICS);
    subscribe(&process, &recorder,
              (struct bus_subscription){.topic = topic, .attempts_max = attempts_of(topic)});
    process_start(&process);
    await_ready(&recorder);
    if (write(STDOUT_FILENO, "r", 1) == 1)
        pause(); /* till it is killed */
    return 0;
}

static pid_t start_member(const char *topic, int *out)
{
    int pipes[2];

    assert_int_equal(pipe(pipes), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(pipes[1], STDOUT_FILENO);
        close(pipes[0]);
        execl("/proc/self/exe", "member", topic, nats_fixture_url(), NULL);
        _exit(127);
    }
    close(pipes[1]);
    *out = pipes[0];
    return pid;
}

static bool await_word(int fd, char word)
{
    char got = 0;

    return read(fd, &got, 1) == 1 && got == word;
}

/* All that it had, from its first on and in order, comes to the one that is left. */
static void lose_a_member(const char *topic, int by)
{
    struct process process;
    struct recorder recorder;
    int fd;
    recorder_init(&recorder);
    pid_t member = start_member(topic, &fd);
    bool ready = await_word(fd, 'r');
    nats_open_with(&process, topics, TOPICS);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = topic});
    struct process publisher;
    nats_open_with(&publisher, topics, TOPICS);
    process_start(&publisher);
    for (int i = 0; i < 10; i++)
        publish(&publisher, topic, "k", i);
    bool began = await_word(fd, 'h');
    process_start(&process);
    kill(member, by);
    bool came = recorder_await_committed(&recorder, 10);
    kill(member, SIGKILL);
    waitpid(member, NULL, 0);
    close(fd);
    process_close(&process);
    process_close(&publisher);
    assert_true(ready && began && came);
    assert_int_equal(recorder.count, 10);
    for (int i = 0; i < 10; i++)
        assert_int_equal(recorder.seen[i].number, i);
    recorder_deinit(&recorder);
}

static void test_what_a_killed_member_had_comes_to_another_in_order(void **state)
{
    (void)state;
    lose_a_member("death", SIGKILL);
}

static void test_what_a_frozen_member_had_comes_to_another_in_order(void **state)
{
    (void)state;
    lose_a_member("frost", SIGSTOP);
}

/* N2: a message that kills who handles it ends among the dead, whole, and those behind it go on. */
static void test_what_kills_two_members_is_a_dead_letter(void **state)
{
    (void)state;
    struct process process;
    struct recorder recorder, dead;
    bool began = true;
    recorder_init(&recorder);
    recorder_init(&dead);
    for (int i = 0; i < 2 && began; i++) {
        int fd;
        pid_t member = start_member("poison", &fd);
        began = await_word(fd, 'r');
        if (i == 0) {
            nats_open_with(&process, topics, TOPICS);
            process_start(&process);
            publish(&process, "poison", "k", 7);
            process_close(&process);
        }
        began = began && await_word(fd, 'h');
        kill(member, SIGKILL);
        waitpid(member, NULL, 0);
        close(fd);
    }
    nats_open_with(&process, topics, TOPICS);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "poison", .attempts_max = 2});
    subscribe(&process, &dead,
              (struct bus_subscription){.topic = "poison.dlq", .group = "dead", .from = BUS_FROM_START});
    process_start(&process);
    bool buried = recorder_await_committed(&dead, 1);
    publish(&process, "poison", "k", 8);
    bool goes_on = recorder_await_committed(&recorder, 1);
    process_close(&process);
    assert_true(began);
    assert_true(buried);
    assert_true(goes_on);
    assert_int_equal(dead.seen[0].number, 7);
    assert_int_equal(recorder.seen[0].number, 8);
    recorder_deinit(&recorder);
    recorder_deinit(&dead);
}

static bool is_complete(struct nats_partition *partition, int64_t pending, uint64_t sent, uint64_t delivered)
{
    jsConsumerInfo info = {.NumAckPending = pending, .AckFloor.Stream = 1};

    info.Delivered.Consumer = sent;
    info.Delivered.Stream = delivered;
    return bus_nats_partition_is_complete(partition, &info);
}

/* A partition changes hands: 2 and 3 were with the member before, which gives them back. 3 and a new one come first, the new one
 * while the server's answer is on its way: it must not be taken for 2, or 2 would be acknowledged unread when it comes. */
static void test_a_new_message_does_not_stand_for_one_that_is_missing(void **state)
{
    (void)state;
    struct nats_item items[] = {{.sequence = 3, .consumer_sequence = 4},
                                {.sequence = 6, .consumer_sequence = 5},
                                {.sequence = 2, .consumer_sequence = 6}};
    struct nats_partition *partition = calloc(1, sizeof *partition);
    partition->items = items;
    partition->count = 2;
    partition->consumer_sequence = 5;
    bool by_old_answer = is_complete(partition, 2, 4, 3);
    int64_t missing_by_old_answer = partition->missing;
    bool by_new_answer = is_complete(partition, 3, 5, 6);
    int64_t missing_by_new_answer = partition->missing;
    partition->count = 3; /* 2 has come */
    partition->consumer_sequence = 6;
    bool before_it_is_counted = is_complete(partition, 2, 5, 6);
    bool at_last = is_complete(partition, 3, 6, 6);
    free(partition);
    assert_false(by_old_answer);
    assert_int_equal(missing_by_old_answer, 1);
    assert_false(by_new_answer);
    assert_int_equal(missing_by_new_answer, 1);
    assert_false(before_it_is_counted);
    assert_true(at_last);
}

/* 3 and 4 came on an earlier connection; the server has forgotten that it sent 4. It does not stand for 2. */
static void test_a_delivery_that_the_server_forgot_does_not_stand_for_one_that_is_missing(void **state)
{
    (void)state;
    struct nats_item items[] = {{.sequence = 3}, {.sequence = 4}};
    struct nats_partition *partition = calloc(1, sizeof *partition);
    partition->items = items;
    partition->count = 2;
    bool is_all_here = is_complete(partition, 2, 3, 3);
    size_t kept = partition->count;
    int64_t missing = partition->missing;
    free(partition);
    assert_false(is_all_here);
    assert_int_equal(missing, 1);
    assert_int_equal(kept, 1);
}

int nats_run_members(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_killed_member_had_comes_to_another_in_order),
        cmocka_unit_test(test_what_a_frozen_member_had_comes_to_another_in_order),
        cmocka_unit_test(test_what_kills_two_members_is_a_dead_letter),
        cmocka_unit_test(test_a_new_message_does_not_stand_for_one_that_is_missing),
        cmocka_unit_test(test_a_delivery_that_the_server_forgot_does_not_stand_for_one_that_is_missing),
    };
    return cmocka_run_group_tests_name("nats members", tests, NULL, NULL);
}

/* ---- TLS and passwords ---- */

static char directory[64];

static const char *file(const char *name)
{
    static char paths[8][96];
    static unsigned turn;
    char *path = paths[turn++ % 8];

    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static bool make_certificate(const char *name)
{
    char command[512];

    snprintf(command, sizeof command,
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
             " -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
             " -keyout %s/%s.key -out %s/%s.pem 2>/dev/null",
             directory, name, directory, name);
    return system(command) == 0;
}

static enum status publish_with(struct bus_security security, int64_t wait_ms)
{
    struct bus_message message = {.topic = STR("death"), .key = STR("k"), .payload = STR("1")};
    struct process process;

    nats_next_security = security;
    nats_open_with(&process, topics, 1);
    process_start(&process);
    enum status status = bus_publish(process.bus, &message, 1, clock_deadline_ms(wait_ms), NULL);
    process_close(&process);
    return status;
}

static void test_tls_and_password(void **state)
{
    (void)state;
    char settings[512];
    snprintf(directory, sizeof directory, "/tmp/freshet-nats-tls-XXXXXX");
    assert_non_null(mkdtemp(directory));
    if (!make_certificate("server") || !make_certificate("other"))
        skip();
    snprintf(settings, sizeof settings,
             "tls { cert_file: \"%s\", key_file: \"%s\" }\nauthorization { user: freshet, password: sesame }",
             file("server.pem"), file("server.key"));
    nats_fixture_start(settings);
    struct bus_security good = {
        .tls = true, .ca_file = file("server.pem"), .username = "freshet", .password = "sesame"};
    struct bus_security wrong = good, foreign = good;
    struct bus_nats_config nowhere = {
        .servers = "nats://127.0.0.1:1", .security = good, .topics = topics, .topic_count = 1};
    struct error error = {0};
    struct bus *bus;
    wrong.password = "mustard";
    foreign.ca_file = file("other.pem");
    enum status taken = publish_with(good, PATIENCE_MS), refused = publish_with(wrong, 700);
    enum status distrusted = publish_with(foreign, 700);
    nowhere.security.ca_file = file("nothing.pem");
    enum status missing = bus_nats_create(&nowhere, &bus, &error);
    nats_fixture_stop();
    nats_next_security = (struct bus_security){0};
    for (const char *const *at =
             (const char *const[]){"server.pem", "server.key", "other.pem", "other.key", NULL};
         *at; at++)
        unlink(file(*at));
    rmdir(directory);
    assert_int_equal(taken, STATUS_OK);
    assert_int_equal(refused, STATUS_UNAVAILABLE);
    assert_int_equal(distrusted, STATUS_UNAVAILABLE);
    assert_int_equal(missing, STATUS_CONFIG);
}

/* The server does not take our password for a while, and the client gives up: we do not. */
static void test_a_password_that_is_taken_again(void **state)
{
    (void)state;
    struct process process;
    nats_fixture_start("authorization { user: freshet, password: sesame }");
    nats_next_security = (struct bus_security){.username = "freshet", .password = "sesame"};
    nats_open_with(&process, topics, 1);
    process_start(&process);
    publish(&process, "death", "k", 1);
    nats_fixture_halt();
    nats_fixture_configure("authorization { user: freshet, password: mustard }");
    nats_fixture_resume();
    struct bus_message message = {.topic = STR("death"), .key = STR("k"), .payload = STR("1")};
    enum status refused = bus_publish(process.bus, &message, 1, clock_deadline_ms(1500), NULL);
    nats_fixture_halt();
    nats_fixture_configure("authorization { user: freshet, password: sesame }");
    nats_fixture_resume();
    publish(&process, "death", "k", 2);
    process_close(&process);
    nats_next_security = (struct bus_security){0};
    nats_fixture_stop();
    assert_int_not_equal(refused, STATUS_OK);
}

static void write_password(const char *path, const char *password)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fprintf(file, "%s\n", password);
    fclose(file);
}

/* Rotation: the server has a new password first, the file later. Only a program that reads the file again is let in. */
static void test_a_rotated_password_is_read_from_its_file(void **state)
{
    (void)state;
    struct process process;
    char path[] = "/tmp/freshet-nats-password-XXXXXX";
    close(mkstemp(path));
    write_password(path, "sesame");
    nats_fixture_start("authorization { user: freshet, password: sesame }");
    nats_next_security = (struct bus_security){.username = "freshet", .password_file = path};
    nats_open_with(&process, topics, 1);
    process_start(&process);
    publish(&process, "death", "k", 1);
    nats_fixture_halt();
    nats_fixture_configure("authorization { user: freshet, password: mustard }");
    nats_fixture_resume();
    struct bus_message message = {.topic = STR("death"), .key = STR("k"), .payload = STR("1")};
    enum status refused = bus_publish(process.bus, &message, 1, clock_deadline_ms(1500), NULL);
    write_password(path, "mustard");
    publish(&process, "death", "k", 2);
    process_close(&process);
    nats_next_security = (struct bus_security){0};
    nats_fixture_stop();
    unlink(path);
    assert_int_not_equal(refused, STATUS_OK);
}

/* Nothing has expired: leases last for 20 minutes, on a server that has no others. */
static void test_what_a_killed_member_had_does_not_wait_for_its_lease(void **state)
{
    (void)state;
    nats_fixture_start("");
    setenv(NATS_ACK_WAIT, "600000", 1);
    lose_a_member("death", SIGKILL);
    unsetenv(NATS_ACK_WAIT);
    nats_fixture_stop();
}

/* The server has expired nothing, and knows nobody of that id. */
static void test_a_member_that_was_first_heard_of_by_its_lease_is_asked_too(void **state)
{
    (void)state;
    struct process process;
    struct recorder recorder;
    bool was_known = false, is_known = true;
    nats_fixture_start("");
    setenv(NATS_ACK_WAIT, "600000", 1);
    recorder_init(&recorder);
    nats_open_with(&process, topics, TOPICS);
    subscribe(&process, &recorder, (struct bus_subscription){.topic = "death"});
    process_start(&process);
    await_ready(&recorder);
    struct nats *nats = (struct nats *)process.bus;
    struct nats_reader *reader = nats->readers[0];
    natsConnection_PublishString(nats->connection, reader->members_subject, "0000000000000000 free");
    natsConnection_PublishString(nats->connection, reader->members_subject, "0000000000000000 here+");
    for (int64_t until_ns = clock_deadline_ms(PATIENCE_MS); is_known && clock_mono_ns() < until_ns;) {
        nanosleep(&(struct timespec){.tv_nsec = 20 * CLOCK_NS_PER_MS}, NULL);
        pthread_mutex_lock(&nats->lock);
        was_known |= reader->members != NULL; /* which stays when all have left */
        is_known = !was_known || reader->member_count > 0;
        pthread_mutex_unlock(&nats->lock);
    }
    publish(&process, "death", "k", 1);
    bool came = recorder_await_committed(&recorder, 1);
    process_close(&process);
    recorder_deinit(&recorder);
    unsetenv(NATS_ACK_WAIT);
    nats_fixture_stop();
    assert_true(was_known);
    assert_false(is_known);
    assert_true(came);
}

int nats_run_security(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tls_and_password),
        cmocka_unit_test(test_a_password_that_is_taken_again),
        cmocka_unit_test(test_a_rotated_password_is_read_from_its_file),
        cmocka_unit_test(test_what_a_killed_member_had_does_not_wait_for_its_lease),
        cmocka_unit_test(test_a_member_that_was_first_heard_of_by_its_lease_is_asked_too),
    };
    return cmocka_run_group_tests_name("nats security", tests, NULL, NULL);
}
