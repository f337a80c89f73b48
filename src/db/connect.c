/* Opening a connection within a deadline: look the hosts up, then try each address in turn with a fair share
 * of the time that is left. libpq would try them too, but its own timeout exists only in the call that
 * blocks. */
#include "db/db.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/secret.h"
#include "db/db_inside.h"

/* ---- detached threads, for the two calls that know no deadline: getaddrinfo() and PQcancel() ---- */

bool db_thread_start(void *(*run)(void *arg), void *arg)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all;

    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setsigmask_np(&attributes, &all);
    int rc = pthread_create(&thread, &attributes, run, arg);
    pthread_attr_destroy(&attributes);
    return rc == 0;
}

/* ---- host names to addresses ----
 * getaddrinfo() may block for half a minute on a dead resolver and cannot be interrupted. So it runs on a detached thread that
 * owns copies of all it needs and answers with one datagram; a caller that stops waiting closes the socket. Stuck lookups are
 * counted and bounded. */

#define LOOKUPS_MAX 16

static atomic_uint lookups_running;

struct lookup {
    int fd;
    unsigned host_count;
    char hosts[DB_HOSTS_MAX][256];
};

static bool is_directory(const char *host)
{
    return host[0] == '/' || host[0] == '@';
}

static bool is_numeric(const char *host)
{
    struct in_addr v4;
    return strchr(host, ':') || inet_pton(AF_INET, host, &v4) == 1;
}

static struct db_endpoint *add_endpoint(struct db_endpoints *endpoints, unsigned host)
{
    if (endpoints->count == DB_ENDPOINTS_MAX)
        return NULL;
    struct db_endpoint *endpoint = &endpoints->at[endpoints->count++];
    endpoint->host = host;
    endpoint->address[0] = '\0';
    return endpoint;
}

static void add_plain(struct db_endpoints *endpoints, unsigned host, const char *name)
{
    struct db_endpoint *endpoint = add_endpoint(endpoints, host);

    if (endpoint && !is_directory(name))
        snprintf(endpoint->address, sizeof endpoint->address, "%s", name);
}

static void resolve(struct db_endpoints *endpoints, unsigned host, const char *name)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;

    int rc = getaddrinfo(name, NULL, &hints, &found);
    if (rc != 0) {
        snprintf(endpoints->failure, sizeof endpoints->failure, "host %.64s: %s", name, gai_strerror(rc));
        return;
    }
    for (struct addrinfo *each = found; each; each = each->ai_next) {
        struct db_endpoint *endpoint = add_endpoint(endpoints, host);
        if (endpoint && getnameinfo(each->ai_addr, each->ai_addrlen, endpoint->address,
                                    sizeof endpoint->address, NULL, 0, NI_NUMERICHOST) != 0)
            endpoints->count--;
    }
    freeaddrinfo(found);
}

static void *run_lookup(void *arg)
{
    struct lookup *lookup = arg;
    struct db_endpoints endpoints = {0};

    for (unsigned i = 0; i < lookup->host_count; i++) {
        if (is_directory(lookup->hosts[i]) || is_numeric(lookup->hosts[i]))
            add_plain(&endpoints, i, lookup->hosts[i]);
        else
            resolve(&endpoints, i, lookup->hosts[i]);
    }
    /* The caller may have closed its end. */
    ssize_t sent = send(lookup->fd, &endpoints, sizeof endpoints, MSG_NOSIGNAL);
    (void)sent;
    close(lookup->fd);
    free(lookup);
    atomic_fetch_sub(&lookups_running, 1);
    return NULL;
}

static enum status start_lookup(const struct db_parsed *parsed, int *fd, struct error *error)
{
    int pair[2];

    if (atomic_fetch_add(&lookups_running, 1) >= LOOKUPS_MAX) {
        atomic_fetch_sub(&lookups_running, 1);
        return error_set(error, STATUS_DB_DOWN, "%d name lookups are stuck already", LOOKUPS_MAX);
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        atomic_fetch_sub(&lookups_running, 1);
        return error_set(error, STATUS_DB_DOWN, "no descriptors left for a name lookup");
    }
    struct lookup *lookup = memory_zalloc(sizeof *lookup);
    lookup->fd = pair[1];
    lookup->host_count = parsed->host_count;
    for (unsigned i = 0; i < parsed->host_count; i++)
        snprintf(lookup->hosts[i], sizeof lookup->hosts[i], "%s", parsed->hosts[i].name);
    if (!db_thread_start(run_lookup, lookup)) {
        close(pair[0]);
        close(pair[1]);
        free(lookup);
        atomic_fetch_sub(&lookups_running, 1);
        return error_set(error, STATUS_DB_DOWN, "no thread left for a name lookup");
    }
    *fd = pair[0];
    return STATUS_OK;
}

enum status db_lookup_start(const struct db_parsed *parsed, int *fd, struct db_endpoints *endpoints,
                            struct error *error)
{
    *fd = -1;
    *endpoints = (struct db_endpoints){0};
    for (unsigned i = 0; i < parsed->host_count; i++) {
        const char *name = parsed->hosts[i].name;
        if (!is_directory(name) && !is_numeric(name))
            return start_lookup(parsed, fd, error);
        add_plain(endpoints, i, name);
    }
    return STATUS_OK;
}

enum status db_lookup_finish(int fd, struct db_endpoints *endpoints, struct error *error)
{
    ssize_t len = recv(fd, endpoints, sizeof *endpoints, 0);

    close(fd);
    if (len != (ssize_t)sizeof *endpoints)
        return error_set(error, STATUS_DB_DOWN, "the name lookup gave no answer");
    if (endpoints->count == 0)
        return error_set(error, STATUS_DB_DOWN, "%s", endpoints->failure);
    return STATUS_OK;
}

/* ---- connecting ---- */

/* The server's notices would go to standard error otherwise. An error that no statement of ours has caused
 * comes here too: the session is being ended. */
static void on_server_notice(void *context, const PGresult *result)
{
    struct db_conn *conn = context;
    const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);

    if (conn && severity && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0))
        conn->doomed = true;
    log_debug("db_notice", LOG_CSTR("message", PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY)));
}

PGconn *db_connect_start(const struct db_parsed *parsed, const struct db_endpoint *endpoint,
                         struct error *error)
{
    const char *keywords[DB_KEYWORDS_MAX + 5], *values[DB_KEYWORDS_MAX + 5];
    unsigned count = parsed->keyword_count;
    struct secret password;

    memcpy(keywords, parsed->keywords, count * sizeof keywords[0]);
    memcpy(values, parsed->values, count * sizeof values[0]);
    keywords[count] = "host";
    values[count++] = parsed->hosts[endpoint->host].name;
    keywords[count] = "port";
    values[count++] = parsed->hosts[endpoint->host].port;
    keywords[count] = "hostaddr"; /* empty counts as not given */
    values[count++] = endpoint->address;
    if (parsed->password_file) {
        if (secret_read(&password, parsed->password_file, error) != STATUS_OK)
            return NULL;
        keywords[count] = "password"; /* the last one counts */
        values[count++] = password.text;
    }
    keywords[count] = values[count] = NULL;
    PGconn *pg = PQconnectStartParams(keywords, values, 0);
    if (parsed->password_file)
        secret_wipe(&password);
    if (!pg) {
        error_set(error, STATUS_NO_MEMORY, "out of memory");
        return NULL;
    }
    PQsetNoticeReceiver(pg, on_server_notice, NULL);
    PQsetErrorVerbosity(pg, PQERRORS_TERSE);
    return pg;
}

enum status db_connect_failed(const PGconn *pg, struct error *error)
{
    struct str message = str_from(PQerrorMessage(pg)), line = STR_NONE;

    str_split(&message, '\n', &line);
    return error_set(error, STATUS_DB_DOWN, "%.*s", STR_ARG(str_utf8_cut(line, 300)));
}

short db_wait(const struct db_pool *pool, int fd, short events, int64_t deadline_ns)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};
    int left_ms;

    while ((left_ms = clock_ms_left(deadline_ns)) > 0 && !db_pool_is_interrupted(pool))
        if (poll(&poll_fd, 1, left_ms < DB_INTERRUPT_LOOK_MS ? left_ms : DB_INTERRUPT_LOOK_MS) > 0)
            return poll_fd.revents;
    return 0;
}

static enum status try_endpoint(const struct db_pool *pool, const struct db_parsed *parsed,
                                const struct db_endpoint *endpoint, int64_t deadline_ns, PGconn **out,
                                struct error *error)
{
    struct error reason = {0};
    PGconn *pg = db_connect_start(parsed, endpoint, &reason);
    PostgresPollingStatusType step = PGRES_POLLING_WRITING;
    enum status status = STATUS_OK;

    if (!pg)
        return error_set(error, STATUS_DB_DOWN, "%s", reason.message);
    if (PQstatus(pg) == CONNECTION_BAD)
        step = PGRES_POLLING_FAILED;
    while (status == STATUS_OK && step != PGRES_POLLING_OK) {
        if (step == PGRES_POLLING_FAILED)
            status = db_connect_failed(pg, error);
        else if (db_wait(pool, PQsocket(pg), step == PGRES_POLLING_READING ? POLLIN : POLLOUT, deadline_ns))
            step = PQconnectPoll(pg);
        else
            status = error_set(error, STATUS_TIMEOUT, "no connection in time to %s port %s",
                               parsed->hosts[endpoint->host].name, parsed->hosts[endpoint->host].port);
    }
    if (status == STATUS_OK && PQsetnonblocking(pg, 1) != 0)
        status = db_connect_failed(pg, error);
    if (status != STATUS_OK) {
        PQfinish(pg);
        return status;
    }
    *out = pg;
    return STATUS_OK;
}

static enum status connect_any(const struct db_pool *pool, const struct db_parsed *parsed,
                               int64_t deadline_ns, PGconn **pg, struct error *error)
{
    struct db_endpoints endpoints;
    int fd;
    enum status status = db_lookup_start(parsed, &fd, &endpoints, error);

    if (status == STATUS_OK && fd >= 0) {
        if (!db_wait(pool, fd, POLLIN, deadline_ns)) {
            close(fd);
            return error_set(error, STATUS_TIMEOUT, "the name lookup took too long");
        }
        status = db_lookup_finish(fd, &endpoints, error);
    }
    if (status != STATUS_OK)
        return status;
    for (unsigned i = 0; i < endpoints.count; i++) {
        int64_t now = clock_mono_ns();
        int64_t share_ns = (deadline_ns - now) / (int64_t)(endpoints.count - i);
        status = try_endpoint(pool, parsed, &endpoints.at[i], now + share_ns, pg, error);
        if (status == STATUS_OK)
            return status;
    }
    return status;
}

enum status db_conn_open(struct db_pool *pool, const struct db_parsed *parsed, int64_t deadline_ns,
                         struct db_conn **conn, struct error *error)
{
    int64_t own_deadline_ns = clock_deadline_ms(parsed->connect_timeout_ms);
    bool callers = deadline_ns < own_deadline_ns;
    PGconn *pg;

    enum status status = connect_any(pool, parsed, callers ? deadline_ns : own_deadline_ns, &pg, error);
    /* Our own limit means that the database is not there; the caller's, that the caller had too little time. */
    if (status == STATUS_TIMEOUT && db_pool_is_interrupted(pool))
        status = error_set(error, STATUS_CANCELLED, "the process is stopping");
    else if (status == STATUS_TIMEOUT && !callers)
        status = error_set(error, STATUS_DB_DOWN, "no connection within %lld ms",
                           (long long)parsed->connect_timeout_ms);
    if (status != STATUS_OK)
        return status;
    *conn = memory_zalloc(sizeof **conn);
    (*conn)->opened_ns = clock_mono_ns();
    (*conn)->pg = pg;
    (*conn)->pool = pool;
    PQsetNoticeReceiver(pg, on_server_notice, *conn);
    return STATUS_OK;
}
