/* The private PostgreSQL of the tests: initdb, run as a child, killed with us. */
#include "pg_fixture.h"
#include "../lib/free_port.h"

#include <arpa/inet.h>
#include <ftw.h>
#include <glob.h>
#include <libpq-fe.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    char bindir[256], directory[64], url[512];
    unsigned port;
    pid_t postmaster;
} fixture;

static void die(const char *what)
{
    fprintf(stderr, "pg_fixture: %s\n", what);
    exit(1);
}

static void find_programs(void)
{
    glob_t found;

    if (glob("/usr/lib/postgresql/*/bin/postgres", 0, NULL, &found) != 0)
        die("PostgreSQL is not installed");
    const char *last = found.gl_pathv[found.gl_pathc - 1];
    snprintf(fixture.bindir, sizeof fixture.bindir, "%.*s", (int)(strlen(last) - strlen("/postgres")), last);
    globfree(&found);
}

/* In the child: PostgreSQL refuses root, and must not outlive us. */
static void become_server_user(void)
{
    const struct passwd *user = getuid() == 0 ? getpwnam("postgres") : NULL;

    if (user && (setgid(user->pw_gid) != 0 || setuid(user->pw_uid) != 0))
        _exit(127);
    if (chdir(fixture.directory) != 0)
        _exit(127);
    prctl(PR_SET_PDEATHSIG, SIGQUIT);
}

static pid_t run(const char *program, char *const *arguments)
{
    char path[320], log[128];

    snprintf(path, sizeof path, "%s/%s", fixture.bindir, program);
    snprintf(log, sizeof log, "%s/log", fixture.directory);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    become_server_user();
    if (!freopen(log, "a", stdout) || !freopen(log, "a", stderr))
        _exit(127);
    execv(path, arguments);
    _exit(127);
}

static int initdb(char *data)
{
    int status = 0;
    char *const arguments[] = {"initdb", "-D",        data, "-U",   "freshet",          "-A",
                               "trust",  "--no-sync", "-E", "UTF8", "--locale=C.UTF-8", NULL};
    waitpid(run("initdb", arguments), &status, 0);
    return status;
}

/* ./dev test has called initdb once for all. Its copy asks for no password. */
static int copy_cluster(const char *made, const char *data)
{
    char command[512];
    snprintf(command, sizeof command, "cp -a '%s/data' '%s' && sed -i 's/ md5$/ trust/' '%s/pg_hba.conf'",
             made, data, data);
    return system(command);
}

static void make_cluster(void)
{
    char data[96];
    const char *parent = getenv("TMPDIR");
    snprintf(fixture.directory, sizeof fixture.directory, "%s/freshet-pg-XXXXXX",
             parent && strlen(parent) <= 40 ? parent : "/tmp"); /* a socket's path is short */
    if (!mkdtemp(fixture.directory))
        die("no temporary directory");
    const struct passwd *user = getuid() == 0 ? getpwnam("postgres") : NULL;
    if (user && chown(fixture.directory, user->pw_uid, user->pw_gid) != 0)
        die("chown failed");
    snprintf(data, sizeof data, "%s/data", fixture.directory);
    const char *made = getenv("FRESHET_TEST_CLUSTER");
    if ((made ? copy_cluster(made, data) : initdb(data)) != 0)
        die("initdb failed");
}

/* False where it ends instead: another server may have the port. */
static bool server_comes_up(void)
{
    char data[96], port[16];

    snprintf(data, sizeof data, "%s/data", fixture.directory);
    snprintf(port, sizeof port, "%u", fixture.port);
    char *const arguments[] = {"postgres",
                               "-D",
                               data,
                               "-p",
                               port,
                               "-k",
                               fixture.directory,
                               "-c",
                               "listen_addresses=127.0.0.1",
                               "-c",
                               "fsync=off",
                               "-c",
                               "max_connections=40",
                               "-c",
                               "deadlock_timeout=50ms",
                               NULL};
    fixture.postmaster = run("postgres", arguments);
    for (int i = 0; i < 1200 && PQping(fixture.url) != PQPING_OK; i++) {
        usleep(50000);
        if (waitpid(fixture.postmaster, NULL, WNOHANG) != 0)
            return false;
    }
    return PQping(fixture.url) == PQPING_OK;
}

void pg_fixture_resume(void)
{
    if (!server_comes_up())
        die("the server does not come up");
}

void pg_fixture_halt(void)
{
    if (fixture.postmaster <= 0)
        return;
    kill(fixture.postmaster, SIGQUIT);
    waitpid(fixture.postmaster, NULL, 0);
    fixture.postmaster = 0;
}

void pg_fixture_start(void)
{
    find_programs();
    make_cluster();
    for (int tries = 0; tries < 5; tries++) {
        fixture.port = free_port();
        snprintf(fixture.url, sizeof fixture.url, "postgresql://freshet@127.0.0.1:%u/postgres", fixture.port);
        if (server_comes_up())
            return;
    }
    die("no server comes up");
}

static int remove_entry(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat;
    (void)type;
    (void)ftw;
    return remove(path);
}

void pg_fixture_stop(void)
{
    pg_fixture_halt();
    nftw(fixture.directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void pg_fixture_freeze(pid_t backend)
{
    kill(fixture.postmaster, SIGSTOP);
    if (backend > 0)
        kill(backend, SIGSTOP);
}

void pg_fixture_thaw(pid_t backend)
{
    if (backend > 0)
        kill(backend, SIGCONT);
    kill(fixture.postmaster, SIGCONT);
}

const char *pg_fixture_url(void)
{
    return fixture.url;
}

void pg_fixture_borrow(const char *url)
{
    snprintf(fixture.url, sizeof fixture.url, "%s", url);
}

const char *pg_fixture_socket_url(void)
{
    static char url[256];

    snprintf(url, sizeof url, "postgresql:///postgres?user=freshet&host=%s&port=%u", fixture.directory,
             fixture.port);
    return url;
}

struct db_target pg_fixture_target(void)
{
    return (struct db_target){
        .name = "test",
        .url = str_from(fixture.url),
        .connections_max = 4,
        .connect_timeout_ms = 5000,
        .statement_timeout_ms = 30000,
        .idle_timeout_ms = 60000,
        .backoff_min_ms = 50,
        .backoff_max_ms = 200,
    };
}
