/* The connection of listener and notifier, as one state machine on a loop:
 *
 *     WAITING ─ timer ─▶ LOOKING_UP ─▶ CONNECTING (each address in turn) ─▶ READY
 *        ▲                   │              │                                 │
 *        └───── backoff ─────┴──────────────┴────── lost, or no answer ───────┘
 *
 * No step blocks: names are looked up on another thread, and each step has a limit in time. */
#include "db/link.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

static void on_timer(struct loop_timer *timer);
static void on_event(struct loop_io *io, unsigned events);

static void set_timer(struct db_link *link, int64_t ms)
{
    loop_timer_start(link->loop, &link->timer, clock_deadline_ms(ms), on_timer);
}

static void link_unwatch(struct db_link *link)
{
    if (!link->watching)
        return;
    loop_io_stop(link->loop, &link->io);
    close(link->io.fd);
    link->watching = false;
}

static bool link_watch(struct db_link *link, int fd, unsigned interest)
{
    link_unwatch(link);
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
    link_unwatch(link);
    if (link->lookup_fd >= 0)
        close(link->lookup_fd);
    link->lookup_fd = -1;
    PQfinish(link->pg);
    link->pg = NULL;
}

static void link_fail(struct db_link *link, const char *reason)
{
    bool was_ready = link->state == DB_LINK_READY;

    if (!link->reported)
        log_warn("db_link_down", LOG_CSTR("database", link->parsed.name), LOG_CSTR("role", link->kind->role),
                 LOG_CSTR("address", link->parsed.address), LOG_CSTR("error", reason));
    link->reported = true;
    close_all(link);
    link->state = DB_LINK_WAITING;
    set_timer(link, backoff_next_ms(&link->backoff));
    if (was_ready)
        link->kind->on_down(link);
}

static void fail_with_libpq(struct db_link *link)
{
    struct error error = {0};

    db_connect_failed(link->pg, &error);
    link_fail(link, error.message);
}

/* ---- connecting ---- */

static void connect_next(struct db_link *link)
{
    struct error error = {0};

    while (link->endpoint_at < link->endpoints.count) {
        PQfinish(link->pg);
        link->state = DB_LINK_CONNECTING;
        link->pg = db_connect_start(&link->parsed, &link->endpoints.at[link->endpoint_at++], &error);
        set_timer(link, link->parsed.connect_timeout_ms / link->endpoints.count);
        if (PQstatus(link->pg) != CONNECTION_BAD && link_watch(link, PQsocket(link->pg), LOOP_WRITE))
            return;
    }
    if (link->pg)
        fail_with_libpq(link);
    else
        link_fail(link, error.message);
}

static void link_start(struct db_link *link)
{
    struct error error = {0};

    link->state = DB_LINK_LOOKING_UP;
    link->endpoint_at = 0;
    if (db_lookup_start(&link->parsed, &link->lookup_fd, &link->endpoints, &error) != STATUS_OK) {
        link_fail(link, error.message);
    } else if (link->lookup_fd < 0) {
        connect_next(link);
    } else {
        set_timer(link, link->parsed.connect_timeout_ms);
        if (!link_watch(link, link->lookup_fd, LOOP_READ))
            link_fail(link, "the loop takes no more descriptors");
    }
}

/* libpq may have changed its socket meanwhile, so it is registered again for every step. */
static void connect_step(struct db_link *link)
{
    link_unwatch(link);
    PostgresPollingStatusType step = PQconnectPoll(link->pg);
    if (step == PGRES_POLLING_READING || step == PGRES_POLLING_WRITING) {
        if (!link_watch(link, PQsocket(link->pg), step == PGRES_POLLING_READING ? LOOP_READ : LOOP_WRITE))
            connect_next(link);
        return;
    }
    if (step != PGRES_POLLING_OK) {
        connect_next(link);
        return;
    }
    loop_timer_stop(link->loop, &link->timer);
    if (PQsetnonblocking(link->pg, 1) != 0 || !link_watch(link, PQsocket(link->pg), LOOP_READ)) {
        fail_with_libpq(link);
        return;
    }
    if (link->reported)
        log_info("db_link_up", LOG_CSTR("database", link->parsed.name), LOG_CSTR("role", link->kind->role),
                 LOG_CSTR("address", link->parsed.address));
    link->reported = false;
    link->state = DB_LINK_READY;
    backoff_reset(&link->backoff);
    link->kind->on_ready(link);
}

/* ---- events ---- */

static void link_flush(struct db_link *link)
{
    int rc = PQflush(link->pg);

    if (rc < 0)
        fail_with_libpq(link);
    else
        loop_io_change(link->loop, &link->io, rc > 0 ? LOOP_READ | LOOP_WRITE : LOOP_READ);
}

static void on_event(struct loop_io *io, unsigned events)
{
    struct db_link *link = CONTAINER_OF(io, struct db_link, io);
    struct error error = {0};

    if (link->state == DB_LINK_LOOKING_UP) {
        int fd = link->lookup_fd;
        link_unwatch(link);
        link->lookup_fd = -1;
        if (db_lookup_finish(fd, &link->endpoints, &error) != STATUS_OK)
            link_fail(link, error.message);
        else
            connect_next(link);
    } else if (link->state == DB_LINK_CONNECTING) {
        connect_step(link);
    } else {
        bool is_input = events & (LOOP_READ | LOOP_HANGUP);
        if (is_input && !PQconsumeInput(link->pg)) {
            fail_with_libpq(link);
            return;
        }
        if (is_input)
            link->kind->on_input(link);
        if (link->state == DB_LINK_READY && (events & LOOP_WRITE))
            link_flush(link);
    }
}

static void on_timer(struct loop_timer *timer)
{
    struct db_link *link = CONTAINER_OF(timer, struct db_link, timer);

    switch (link->state) {
    case DB_LINK_WAITING: link_start(link); break;
    case DB_LINK_LOOKING_UP: link_fail(link, "the name lookup took too long"); break;
    case DB_LINK_CONNECTING:
        link_unwatch(link);
        if (link->endpoint_at < link->endpoints.count)
            connect_next(link);
        else
            link_fail(link, "no connection in time");
        break;
    case DB_LINK_READY: link_fail(link, "no answer in time"); break;
    }
}

void db_link_sent(struct db_link *link, int sent)
{
    if (!sent) {
        fail_with_libpq(link);
        return;
    }
    set_timer(link, link->parsed.connect_timeout_ms);
    link_flush(link);
}

void db_link_answered(struct db_link *link)
{
    loop_timer_stop(link->loop, &link->timer);
}

/* ---- life ---- */

struct db_link *db_link_ref(struct loop *loop, const struct db_target *target,
                            const struct db_link_kind *kind)
{
    struct db_server *server = target->server;
    struct db_link *link;

    if (server) {
        pthread_mutex_lock(&server->lock);
        LIST_FOREACH(link, &server->links, entry)
            if (link->loop == loop && link->kind == kind) {
                link->users++;
                pthread_mutex_unlock(&server->lock);
                return link;
            }
    }
    link = memory_zalloc(kind->size);
    *link = (struct db_link){.loop = loop, .kind = kind, .server = server, .users = 1, .lookup_fd = -1};
    if (db_parsed_init(&link->parsed, target, NULL) != STATUS_OK) {
        free(link);
        link = NULL;
    } else if (server) {
        LIST_INSERT_HEAD(&server->links, link, entry);
    }
    if (server)
        pthread_mutex_unlock(&server->lock);
    if (link) {
        link->backoff =
            (struct backoff){.min_ms = link->parsed.backoff_min_ms, .max_ms = link->parsed.backoff_max_ms};
        link_start(link);
    }
    return link;
}

bool db_link_unref(struct db_link *link)
{
    struct db_server *server = link->server;

    if (server) {
        pthread_mutex_lock(&server->lock);
        bool is_last = --link->users == 0;
        if (is_last)
            LIST_REMOVE(link, entry);
        pthread_mutex_unlock(&server->lock);
        if (!is_last)
            return false;
    }
    loop_timer_stop(link->loop, &link->timer);
    close_all(link);
    db_parsed_deinit(&link->parsed);
    link->state = DB_LINK_WAITING; /* for what a caller still does in this tick */
    return true;
}
