/* The connection behind listener and notifier, as one state machine on a loop:
 *
 *     WAITING ─ timer ─▶ LOOKING_UP ─▶ CONNECTING (each address in turn) ─▶ READY
 *        ▲                   │              │                                 │
 *        └───── backoff ─────┴──────────────┴────── lost, or no answer ───────┘
 *
 * No step blocks: names are looked up on another thread, and each step has a limit in time. */
#include "db/link.h"

#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

static void connect_next(struct db_link *link);

static struct db_link *link_of_io(struct loop_io *io)
{
    return CONTAINER_OF(io, struct db_link, io);
}

static struct db_link *link_of_timer(struct loop_timer *timer)
{
    return CONTAINER_OF(timer, struct db_link, timer);
}

static void unwatch(struct db_link *link)
{
    if (!link->watching)
        return;
    loop_io_stop(link->loop, &link->io);
    close(link->io.fd);
    link->watching = false;
}

static bool watch(struct db_link *link, int fd, unsigned interest, loop_io_fn *on_event)
{
    unwatch(link);
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return false;
    link->watching = loop_io_start(link->loop, &link->io, own, interest, on_event, NULL) == STATUS_OK;
    if (!link->watching)
        close(own);
    return link->watching;
}

static void close_all(struct db_link *link)
{
    unwatch(link);
    if (link->lookup_fd >= 0)
        close(link->lookup_fd);
    link->lookup_fd = -1;
    PQfinish(link->pg);
    link->pg = NULL;
}

static void on_retry(struct loop_timer *timer)
{
    db_link_start(link_of_timer(timer));
}

static void fail(struct db_link *link, const char *reason)
{
    bool was_ready = link->state == DB_LINK_READY;

    if (!link->reported)
        log_warn("db_link_down", LOG_CSTR("database", link->parsed.name),
                 LOG_CSTR("role", link->events->role), LOG_CSTR("address", link->parsed.address),
                 LOG_CSTR("error", reason));
    link->reported = true;
    close_all(link);
    link->state = DB_LINK_WAITING;
    loop_timer_start(link->loop, &link->timer, clock_deadline_ms(backoff_next_ms(&link->backoff)), on_retry);
    if (was_ready)
        link->events->on_down(link);
}

static void fail_with_libpq(struct db_link *link)
{
    struct error error = {0};

    db_connect_failed(link->pg, &error);
    fail(link, error.message);
}

/* ---- ready ---- */

static void on_no_answer(struct loop_timer *timer)
{
    fail(link_of_timer(timer), "no answer in time");
}

static void flush(struct db_link *link)
{
    int rc = PQflush(link->pg);

    if (rc < 0)
        fail_with_libpq(link);
    else
        loop_io_change(link->loop, &link->io, rc > 0 ? LOOP_READ | LOOP_WRITE : LOOP_READ);
}

static void on_ready_event(struct loop_io *io, unsigned events)
{
    struct db_link *link = link_of_io(io);

    if ((events & (LOOP_READ | LOOP_HANGUP)) && !PQconsumeInput(link->pg)) {
        fail_with_libpq(link);
        return;
    }
    if (events & (LOOP_READ | LOOP_HANGUP))
        link->events->on_input(link);
    if (link->state == DB_LINK_READY && (events & LOOP_WRITE))
        flush(link);
}

void db_link_sent(struct db_link *link, int sent)
{
    if (!sent) {
        fail_with_libpq(link);
        return;
    }
    loop_timer_start(link->loop, &link->timer, clock_deadline_ms(link->parsed.connect_timeout_ms),
                     on_no_answer);
    flush(link);
}

void db_link_answered(struct db_link *link)
{
    loop_timer_stop(link->loop, &link->timer);
}

static void become_ready(struct db_link *link)
{
    loop_timer_stop(link->loop, &link->timer);
    if (PQsetnonblocking(link->pg, 1) != 0 || !watch(link, PQsocket(link->pg), LOOP_READ, on_ready_event)) {
        fail_with_libpq(link);
        return;
    }
    if (link->reported)
        log_info("db_link_up", LOG_CSTR("database", link->parsed.name), LOG_CSTR("role", link->events->role),
                 LOG_CSTR("address", link->parsed.address));
    link->reported = false;
    link->state = DB_LINK_READY;
    backoff_reset(&link->backoff);
    link->events->on_ready(link);
}

/* ---- connecting ---- */

static void connect_failed(struct db_link *link)
{
    if (link->endpoint_at >= link->endpoints.count) {
        fail_with_libpq(link);
        return;
    }
    PQfinish(link->pg);
    link->pg = NULL;
    connect_next(link);
}

static void on_connect_timeout(struct loop_timer *timer)
{
    struct db_link *link = link_of_timer(timer);

    unwatch(link);
    if (link->endpoint_at >= link->endpoints.count)
        fail(link, "no connection in time");
    else
        connect_failed(link);
}

/* libpq may have changed its socket meanwhile, so it is registered anew for every step. */
static void on_connect_event(struct loop_io *io, unsigned events)
{
    struct db_link *link = link_of_io(io);
    (void)events;

    unwatch(link);
    PostgresPollingStatusType step = PQconnectPoll(link->pg);
    if (step == PGRES_POLLING_OK)
        become_ready(link);
    else if (step == PGRES_POLLING_FAILED ||
             !watch(link, PQsocket(link->pg), step == PGRES_POLLING_READING ? LOOP_READ : LOOP_WRITE,
                    on_connect_event))
        connect_failed(link);
}

static void connect_next(struct db_link *link)
{
    const struct db_endpoint *endpoint = &link->endpoints.at[link->endpoint_at++];
    int64_t share_ms = link->parsed.connect_timeout_ms / link->endpoints.count;

    link->state = DB_LINK_CONNECTING;
    link->pg = db_connect_start(&link->parsed, endpoint);
    loop_timer_start(link->loop, &link->timer, clock_deadline_ms(share_ms), on_connect_timeout);
    if (PQstatus(link->pg) == CONNECTION_BAD ||
        !watch(link, PQsocket(link->pg), LOOP_WRITE, on_connect_event))
        connect_failed(link);
}

static void on_looked_up(struct loop_io *io, unsigned events)
{
    struct db_link *link = link_of_io(io);
    struct error error = {0};
    int fd = link->lookup_fd;
    (void)events;

    unwatch(link);
    link->lookup_fd = -1;
    if (db_lookup_finish(fd, &link->endpoints, &error) != STATUS_OK)
        fail(link, error.message);
    else
        connect_next(link);
}

static void on_lookup_timeout(struct loop_timer *timer)
{
    fail(link_of_timer(timer), "the name lookup took too long");
}

void db_link_start(struct db_link *link)
{
    struct error error = {0};

    link->state = DB_LINK_LOOKING_UP;
    link->endpoint_at = 0;
    if (db_lookup_start(&link->parsed, &link->lookup_fd, &link->endpoints, &error) != STATUS_OK) {
        fail(link, error.message);
        return;
    }
    if (link->lookup_fd < 0) {
        connect_next(link);
        return;
    }
    loop_timer_start(link->loop, &link->timer, clock_deadline_ms(link->parsed.connect_timeout_ms),
                     on_lookup_timeout);
    if (!watch(link, link->lookup_fd, LOOP_READ, on_looked_up))
        fail(link, "the loop takes no more descriptors");
}

enum status db_link_init(struct db_link *link, struct loop *loop, const struct db_target *target,
                         const struct db_link_events *events, struct error *error)
{
    *link = (struct db_link){.loop = loop, .events = events, .lookup_fd = -1};
    enum status status = db_parsed_init(&link->parsed, target, error);
    if (status == STATUS_OK)
        link->backoff =
            (struct backoff){.min_ms = link->parsed.backoff_min_ms, .max_ms = link->parsed.backoff_max_ms};
    return status;
}

void db_link_deinit(struct db_link *link)
{
    loop_timer_stop(link->loop, &link->timer);
    close_all(link);
    db_parsed_deinit(&link->parsed);
}
