/* Opening a connection within a deadline: look the hosts up, then try each address in turn with a fair share
 * of the time that is left. libpq would try them too, but its own timeout exists only in the call that
 * blocks. */
#include "db/db.h"

#include <poll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "db/db_inside.h"

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

PGconn *db_connect_start(const struct db_parsed *parsed, const struct db_endpoint *endpoint)
{
    const char *keywords[DB_KEYWORDS_MAX + 4], *values[DB_KEYWORDS_MAX + 4];
    unsigned count = parsed->keyword_count;

    memcpy(keywords, parsed->keywords, count * sizeof keywords[0]);
    memcpy(values, parsed->values, count * sizeof values[0]);
    keywords[count] = "host";
    values[count++] = parsed->hosts[endpoint->host].name;
    keywords[count] = "port";
    values[count++] = parsed->hosts[endpoint->host].port;
    keywords[count] = "hostaddr"; /* empty counts as not given */
    values[count++] = endpoint->address;
    keywords[count] = values[count] = NULL;
    PGconn *pg = PQconnectStartParams(keywords, values, 0);
    if (pg) {
        PQsetNoticeReceiver(pg, on_server_notice, NULL);
        PQsetErrorVerbosity(pg, PQERRORS_TERSE);
    }
    return pg;
}

enum status db_connect_failed(const PGconn *pg, struct error *error)
{
    struct str message = str_from(PQerrorMessage(pg)), line = STR_NONE;

    str_split(&message, '\n', &line);
    return error_set(error, STATUS_DB_DOWN, "%.*s", STR_ARG(str_utf8_cut(line, 300)));
}

/* Readable or writable before the deadline, and before the process stops? */
static bool wait_for(const struct db_pool *pool, int fd, short events, int64_t deadline_ns)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};
    int left_ms;

    while ((left_ms = clock_ms_left(deadline_ns)) > 0 && !db_pool_is_interrupted(pool))
        if (poll(&poll_fd, 1, left_ms < DB_INTERRUPT_LOOK_MS ? left_ms : DB_INTERRUPT_LOOK_MS) > 0)
            return true;
    return false;
}

static enum status try_endpoint(const struct db_pool *pool, const struct db_parsed *parsed,
                                const struct db_endpoint *endpoint, int64_t deadline_ns, PGconn **out,
                                struct error *error)
{
    PGconn *pg = db_connect_start(parsed, endpoint);
    PostgresPollingStatusType step = PGRES_POLLING_WRITING;
    enum status status = STATUS_OK;

    if (!pg)
        return error_set(error, STATUS_DB_DOWN, "out of memory");
    if (PQstatus(pg) == CONNECTION_BAD)
        step = PGRES_POLLING_FAILED;
    while (status == STATUS_OK && step != PGRES_POLLING_OK) {
        if (step == PGRES_POLLING_FAILED)
            status = db_connect_failed(pg, error);
        else if (wait_for(pool, PQsocket(pg), step == PGRES_POLLING_READING ? POLLIN : POLLOUT, deadline_ns))
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

static enum status look_up(const struct db_pool *pool, const struct db_parsed *parsed, int64_t deadline_ns,
                           struct db_endpoints *endpoints, struct error *error)
{
    int fd;
    enum status status = db_lookup_start(parsed, &fd, endpoints, error);

    if (status != STATUS_OK || fd < 0)
        return status;
    if (wait_for(pool, fd, POLLIN, deadline_ns))
        return db_lookup_finish(fd, endpoints, error);
    close(fd);
    return error_set(error, STATUS_TIMEOUT, "the name lookup took too long");
}

static enum status connect_any(const struct db_pool *pool, const struct db_parsed *parsed,
                               int64_t deadline_ns, PGconn **pg, struct error *error)
{
    struct db_endpoints endpoints;
    enum status status = look_up(pool, parsed, deadline_ns, &endpoints, error);

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
    /* Our own limit means that the database is not there; the caller's, that it came late. */
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
    buf_init(&(*conn)->bound.scratch);
    PQsetNoticeReceiver(pg, on_server_notice, *conn);
    return STATUS_OK;
}
