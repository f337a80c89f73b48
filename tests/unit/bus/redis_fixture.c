/* Private Redis servers: children of the test, killed with it. hiredis's own blocking client asks them. */
#include "redis_fixture.h"
#include "../lib/free_port.h"

#include <arpa/inet.h>
#include <ftw.h>
#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPTIONS_MAX 48
#define WAIT_MS 30000

static struct {
    char directory[64], text[4096];
    char addresses[REDIS_FIXTURE_NODES_MAX][32];
    const char *address_list[REDIS_FIXTURE_NODES_MAX];
    unsigned ports[REDIS_FIXTURE_NODES_MAX], bus_ports[REDIS_FIXTURE_NODES_MAX];
    pid_t pids[REDIS_FIXTURE_NODES_MAX];
    unsigned count, masters;
    const char *const *options;
} fixture;

static void die(const char *what)
{
    fprintf(stderr, "redis_fixture: %s\n", what);
    exit(1);
}

/* ---- asking ---- */

static redisReply *ask(unsigned node, const char *command)
{
    struct timeval limit = {.tv_sec = 5};
    redisContext *context = redisConnectWithTimeout("127.0.0.1", (int)fixture.ports[node], limit);
    redisReply *reply = NULL;

    if (context && !context->err && redisSetTimeout(context, limit) == REDIS_OK)
        reply = redisCommand(context, command);
    redisFree(context);
    return reply;
}

static redisReply *ask_formatted(unsigned node, const char *format, va_list arguments)
{
    char command[1024];

    vsnprintf(command, sizeof command, format, arguments);
    return ask(node, command);
}

long long redis_fixture_ask(unsigned node, const char *format, ...)
{
    long long value = -1;
    va_list arguments;

    va_start(arguments, format);
    redisReply *reply = ask_formatted(node, format, arguments);
    va_end(arguments);
    if (reply && reply->type == REDIS_REPLY_INTEGER)
        value = reply->integer;
    else if (reply && reply->type == REDIS_REPLY_ARRAY)
        value = (long long)reply->elements;
    else if (reply && reply->type != REDIS_REPLY_ERROR && reply->str)
        value = atoll(reply->str);
    if (reply)
        freeReplyObject(reply);
    return value;
}

const char *redis_fixture_text(unsigned node, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    redisReply *reply = ask_formatted(node, format, arguments);
    va_end(arguments);
    snprintf(fixture.text, sizeof fixture.text, "%s", reply && reply->str ? reply->str : "");
    if (reply)
        freeReplyObject(reply);
    return fixture.text;
}

void redis_fixture_ask_all(const char *command)
{
    for (unsigned i = 0; i < fixture.count; i++) {
        redisReply *reply = fixture.pids[i] > 0 ? ask(i, command) : NULL;
        if (reply)
            freeReplyObject(reply);
    }
}

void redis_fixture_first_key(unsigned node, unsigned slot, char *key, size_t size)
{
    char command[64];

    snprintf(command, sizeof command, "CLUSTER GETKEYSINSLOT %u 1", slot);
    redisReply *reply = ask(node, command);
    bool there = reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 1;
    snprintf(key, size, "%s", there ? reply->element[0]->str : "");
    if (reply)
        freeReplyObject(reply);
}

unsigned redis_fixture_owner(const char *key)
{
    redisReply *reply = NULL;
    unsigned owner = 0;

    for (unsigned i = 0; i < fixture.count; i++) {
        char command[256];
        snprintf(command, sizeof command, "EXISTS %s", key);
        reply = fixture.pids[i] > 0 ? ask(i, command) : NULL;
        if (reply && reply->type == REDIS_REPLY_INTEGER)
            owner = i;
        if (reply)
            freeReplyObject(reply);
    }
    return owner;
}

/* ---- servers ---- */

static void run_server(unsigned node)
{
    char port[8], bus_port[8], directory[96], log[128];
    const char *arguments[OPTIONS_MAX] = {
        "redis-server", "--port",    port, "--bind",       "127.0.0.1", "--dir",
        directory,      "--logfile", log,  "--appendonly", "yes",       "--appendfsync",
        "always",       "--save",    "",   "--loglevel",   "notice"};
    unsigned count = 17;

    snprintf(port, sizeof port, "%u", fixture.ports[node]);
    snprintf(bus_port, sizeof bus_port, "%u", fixture.bus_ports[node]);
    snprintf(directory, sizeof directory, "%s/%u", fixture.directory, node);
    snprintf(log, sizeof log, "%s/log", directory);
    if (fixture.masters > 0) {
        const char *more[] = {"--cluster-enabled",
                              "yes",
                              "--cluster-port",
                              bus_port,
                              "--cluster-node-timeout",
                              "1000",
                              "--cluster-replica-validity-factor",
                              "0",
                              "--repl-diskless-sync-delay",
                              "0"};
        for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
            arguments[count++] = more[i];
    }
    for (size_t i = 0; fixture.options && fixture.options[i] && count < OPTIONS_MAX - 1; i++)
        arguments[count++] = fixture.options[i];
    mkdir(directory, 0700);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execvp("redis-server", (char *const *)arguments);
    _exit(127);
}

static void await_ping(unsigned node)
{
    for (int i = 0; i < WAIT_MS / 10; i++) {
        redisReply *reply = ask(node, "PING");
        bool answers = reply != NULL; /* also with NOAUTH */
        bool loading = reply && reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "LOADING", 7) == 0;
        if (reply)
            freeReplyObject(reply);
        if (answers && !loading)
            return;
        usleep(10000);
    }
    die("a server does not come up");
}

static void spawn(unsigned node)
{
    pid_t pid = fork();

    if (pid < 0)
        die("fork failed");
    if (pid == 0)
        run_server(node);
    fixture.pids[node] = pid;
}

void redis_fixture_run(unsigned node)
{
    spawn(node);
    await_ping(node);
}

void redis_fixture_kill(unsigned node)
{
    if (fixture.pids[node] <= 0)
        return;
    kill(fixture.pids[node], SIGKILL);
    waitpid(fixture.pids[node], NULL, 0);
    fixture.pids[node] = 0;
}

void redis_fixture_freeze(unsigned node)
{
    kill(fixture.pids[node], SIGSTOP);
}

void redis_fixture_thaw(unsigned node)
{
    kill(fixture.pids[node], SIGCONT);
}

static int remove_entry(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat;
    (void)type;
    (void)ftw;
    return remove(path);
}

void redis_fixture_wipe(unsigned node)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%u/appendonlydir", fixture.directory, node);
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- a cluster ---- */

static bool is_settled(unsigned node)
{
    const char *info = redis_fixture_text(node, "CLUSTER INFO");
    char known[48];

    snprintf(known, sizeof known, "cluster_known_nodes:%u", fixture.count);
    return strstr(info, "cluster_state:ok") && strstr(info, "cluster_slots_ok:16384") && strstr(info, known);
}

static void await_settled(void)
{
    for (unsigned node = 0; node < fixture.count; node++) {
        int tries = WAIT_MS / 10;
        while (fixture.pids[node] > 0 && !is_settled(node) && --tries > 0)
            usleep(10000);
        if (tries == 0)
            die("the cluster does not come up");
    }
}

static void join(unsigned node)
{
    unsigned first = node * 16384 / fixture.masters, next = (node + 1) * 16384 / fixture.masters;

    redis_fixture_ask(node, "CLUSTER SET-CONFIG-EPOCH %u", node + 1);
    if (node < fixture.masters)
        redis_fixture_ask(node, "CLUSTER ADDSLOTSRANGE %u %u", first, next - 1);
    if (node > 0)
        redis_fixture_ask(0, "CLUSTER MEET 127.0.0.1 %u %u", fixture.ports[node], fixture.bus_ports[node]);
}

static void make_replica(unsigned node)
{
    char id[64];

    snprintf(id, sizeof id, "%s", redis_fixture_text(0, "CLUSTER MYID"));
    for (int i = 0; i < WAIT_MS / 10 && redis_fixture_ask(node, "CLUSTER REPLICATE %s", id) < 0; i++)
        usleep(10000);
    for (int i = 0; i < WAIT_MS / 10; i++) {
        if (strstr(redis_fixture_text(node, "INFO replication"), "master_link_status:up"))
            return;
        usleep(10000);
    }
    die("a replica does not follow");
}

static void prepare(unsigned count)
{
    snprintf(fixture.directory, sizeof fixture.directory, "/tmp/freshet-redis-XXXXXX");
    if (!mkdtemp(fixture.directory))
        die("no temporary directory");
    fixture.count = count;
    for (unsigned i = 0; i < count; i++) {
        fixture.ports[i] = free_port();
        fixture.bus_ports[i] = free_port();
        snprintf(fixture.addresses[i], sizeof fixture.addresses[i], "127.0.0.1:%u", fixture.ports[i]);
        fixture.address_list[i] = fixture.addresses[i];
    }
}

void redis_fixture_start_cluster(unsigned masters, unsigned replicas)
{
    fixture.masters = masters;
    fixture.options = NULL;
    prepare(masters + replicas);
    for (unsigned i = 0; i < fixture.count; i++)
        spawn(i);
    for (unsigned i = 0; i < fixture.count; i++)
        await_ping(i);
    for (unsigned i = 0; i < fixture.count; i++)
        join(i);
    await_settled();
    for (unsigned i = masters; i < fixture.count; i++)
        make_replica(i);
}

void redis_fixture_start_single(const char *const *options)
{
    fixture.masters = 0;
    fixture.options = options;
    prepare(1);
    redis_fixture_run(0);
}

void redis_fixture_halt(void)
{
    for (unsigned i = 0; i < fixture.count; i++)
        redis_fixture_kill(i);
}

void redis_fixture_resume(void)
{
    for (unsigned i = 0; i < fixture.count; i++)
        spawn(i);
    for (unsigned i = 0; i < fixture.count; i++)
        await_ping(i);
    if (fixture.masters > 0)
        await_settled();
}

void redis_fixture_stop(void)
{
    redis_fixture_halt();
    nftw(fixture.directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *redis_fixture_directory(void)
{
    return fixture.directory;
}

unsigned redis_fixture_count(void)
{
    return fixture.count;
}

unsigned redis_fixture_port(unsigned node)
{
    return fixture.ports[node];
}

const char *const *redis_fixture_addresses(void)
{
    return fixture.address_list;
}
