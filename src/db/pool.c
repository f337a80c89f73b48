/* The pool: at most connections_max connections in use, opened on demand, given to waiters in the order of arrival.
 *
 * A slot is the right to use one connection. A connection or a slot that is given up goes to the first waiter, except
 * that long work (db_acquire_long) never has all of them. Idle connections lie on a shelf (server.c), which pools of the
 * same server share. Under the lock nothing blocks: connecting, rolling back and closing happen outside it.
 *
 *     breaker:  CLOSED ── a connect fails ──▶ OPEN until `retry_at_ns` ── first caller after that ──▶ PROBING
 *                 ▲                            ▲                                                       │
 *                 └──────── it connects ───────┼───────────────────────────────────────────────────────┤
 *                                              └──────────────────── it fails, with a longer wait ─────┘
 * While it is not CLOSED, callers for whom there is no idle connection get DB_DOWN at once. */
#include "db/db.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"
#include "db/db_inside.h"

/* A connect that its caller gave less time than this says nothing about the database. One that had more, but not half of the
 * connect timeout, says little: several in a row count, without one that succeeded among them. */
#define TELLING_CONNECT_MS 100
#define GIVEN_UP_MAX 3

enum grant { GRANT_NONE, GRANT_CONN, GRANT_SLOT, GRANT_REFUSED };

struct waiter {
    TAILQ_ENTRY(waiter) link;
    pthread_cond_t granted;
    enum grant grant;
    bool is_long;
    struct db_conn *conn;
};

enum breaker { BREAKER_CLOSED, BREAKER_OPEN, BREAKER_PROBING };

struct db_pool {
    struct db_parsed parsed;
    struct db_metrics metrics;
    pthread_mutex_t lock;
    struct db_shelf *shelf;       /* of idle connections */
    unsigned slots_used;          /* connections that are in use or being opened */
    unsigned long_used;           /* of them, those that have long work */
    TAILQ_HEAD(, waiter) waiters; /* in the order of arrival */
    enum breaker breaker;
    uint64_t outages;  /* times it opened */
    unsigned given_up; /* connects whose callers had no time left, in a row */
    struct backoff backoff;
    int64_t retry_at_ns;
    char reason[256]; /* why the breaker opened */
    atomic_bool up, interrupted;
};

enum status db_pool_create(const struct db_target *target, struct db_pool **out, struct error *error)
{
    struct db_pool *pool = memory_zalloc(sizeof *pool);
    enum status status = db_parsed_init(&pool->parsed, target, error);

    *out = NULL;
    if (status != STATUS_OK) {
        free(pool);
        return status;
    }
    db_metrics_init(&pool->metrics, pool->parsed.name);
    pthread_mutex_init(&pool->lock, NULL);
    TAILQ_INIT(&pool->waiters);
    pool->shelf = db_shelf_ref(target->server, &pool->parsed);
    pool->backoff =
        (struct backoff){.min_ms = pool->parsed.backoff_min_ms, .max_ms = pool->parsed.backoff_max_ms};
    *out = pool;
    return STATUS_OK;
}

void db_pool_destroy(struct db_pool *pool)
{
    if (!pool)
        return;
    db_shelf_unref(pool->shelf);
    metric_set(pool->metrics.used, 0);
    pthread_mutex_destroy(&pool->lock);
    db_parsed_deinit(&pool->parsed);
    free(pool);
}

const char *db_pool_name(const struct db_pool *pool)
{
    return pool->parsed.name;
}

const char *db_pool_address(const struct db_pool *pool)
{
    return pool->parsed.address;
}

bool db_pool_is_up(const struct db_pool *pool)
{
    return atomic_load_explicit(&pool->up, memory_order_relaxed);
}

bool db_pool_is_interrupted(const struct db_pool *pool)
{
    return atomic_load_explicit(&pool->interrupted, memory_order_relaxed);
}

struct db_metrics *db_pool_metrics(struct db_pool *pool)
{
    return &pool->metrics;
}

/* ---- everything down to the next rule happens under the lock ---- */

static void show_counts(struct db_pool *pool)
{
    metric_set(pool->metrics.used, pool->slots_used);
}

static bool has_long_room(const struct db_pool *pool)
{
    unsigned max = pool->parsed.connections_max;
    unsigned reserved = max > 3 ? 2 : max > 1 ? 1 : 0;

    return pool->long_used < max - reserved;
}

static void lend(struct db_pool *pool, struct db_conn *conn, bool is_long)
{
    conn->pool = pool;
    db_shelf_lend(pool->shelf, conn);
    conn->answered = false;
    conn->outages = pool->outages;
    conn->is_long = is_long;
}

/* Who is next; NULL also if only long work waits that may not have another connection now. */
static struct waiter *next_waiter(struct db_pool *pool)
{
    struct waiter *waiter = TAILQ_FIRST(&pool->waiters);

    while (waiter && waiter->is_long && !has_long_room(pool))
        waiter = TAILQ_NEXT(waiter, link);
    return waiter;
}

static void grant(struct db_pool *pool, struct waiter *waiter, enum grant what, struct db_conn *conn)
{
    TAILQ_REMOVE(&pool->waiters, waiter, link);
    waiter->grant = what;
    waiter->conn = conn;
    pool->long_used += waiter->is_long && what != GRANT_REFUSED;
    if (conn)
        lend(pool, conn, waiter->is_long);
    pthread_cond_signal(&waiter->granted);
}

static void give_slot_back(struct db_pool *pool, bool was_long)
{
    pool->long_used -= was_long;
    struct waiter *next = next_waiter(pool);
    if (next && pool->breaker == BREAKER_CLOSED)
        grant(pool, next, GRANT_SLOT, NULL);
    else
        pool->slots_used--;
    show_counts(pool);
}

static void refuse_waiters(struct db_pool *pool)
{
    while (!TAILQ_EMPTY(&pool->waiters))
        grant(pool, TAILQ_FIRST(&pool->waiters), GRANT_REFUSED, NULL);
}

/* May this caller open a connection now? Turns OPEN into PROBING for the first one after the wait. */
static bool breaker_lets_through(struct db_pool *pool)
{
    if (pool->breaker == BREAKER_CLOSED)
        return true;
    if (pool->breaker == BREAKER_PROBING || clock_mono_ns() < pool->retry_at_ns)
        return false;
    pool->breaker = BREAKER_PROBING;
    return true;
}

static void breaker_close(struct db_pool *pool)
{
    if (pool->breaker != BREAKER_CLOSED || !db_pool_is_up(pool))
        log_info("db_up", LOG_CSTR("database", pool->parsed.name), LOG_CSTR("address", pool->parsed.address));
    pool->breaker = BREAKER_CLOSED;
    pool->given_up = 0;
    backoff_reset(&pool->backoff);
    atomic_store_explicit(&pool->up, true, memory_order_relaxed);
    metric_set(pool->metrics.breaker_open, 0);
}

static void breaker_open(struct db_pool *pool, const char *reason)
{
    if (pool->breaker == BREAKER_OPEN)
        return; /* several were connecting when it went down: that is one failure, not several */
    int64_t wait_ms = backoff_next_ms(&pool->backoff);
    if (pool->breaker == BREAKER_CLOSED)
        log_warn("db_down", LOG_CSTR("database", pool->parsed.name),
                 LOG_CSTR("address", pool->parsed.address), LOG_CSTR("error", reason));
    pool->breaker = BREAKER_OPEN;
    pool->outages++;
    pool->retry_at_ns = clock_deadline_ms(wait_ms);
    str_copy(pool->reason, sizeof pool->reason, str_from(reason));
    atomic_store_explicit(&pool->up, false, memory_order_relaxed);
    metric_set(pool->metrics.breaker_open, 1);
    refuse_waiters(pool);
}

static enum grant wait_for_grant(struct db_pool *pool, bool is_long, int64_t deadline_ns,
                                 struct db_conn **conn)
{
    struct waiter waiter = {.grant = GRANT_NONE, .is_long = is_long};
    bool in_time = true;

    pthread_cond_init(&waiter.granted, NULL);
    TAILQ_INSERT_TAIL(&pool->waiters, &waiter, link);
    while (waiter.grant == GRANT_NONE && in_time)
        in_time = clock_cond_wait(&waiter.granted, &pool->lock, deadline_ns);
    if (waiter.grant == GRANT_NONE)
        TAILQ_REMOVE(&pool->waiters, &waiter, link);
    pthread_cond_destroy(&waiter.granted);
    *conn = waiter.conn;
    return waiter.grant;
}

void db_pool_interrupt(struct db_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->interrupted, true);
    refuse_waiters(pool);
    pthread_mutex_unlock(&pool->lock);
}

/* An idle connection, the right to open one, or neither. */
static enum grant take(struct db_pool *pool, bool is_long, int64_t deadline_ns, struct db_conn **conn)
{
    if (db_pool_is_interrupted(pool))
        return GRANT_REFUSED;
    bool room = (!is_long || has_long_room(pool)) && pool->slots_used < pool->parsed.connections_max;
    *conn = room ? db_shelf_take(pool->shelf) : NULL;
    if (*conn) {
        pool->slots_used++;
        pool->long_used += is_long;
        lend(pool, *conn, is_long);
        return GRANT_CONN;
    }
    if (!room && pool->breaker == BREAKER_CLOSED)
        return wait_for_grant(pool, is_long, deadline_ns, conn);
    if (!room || !breaker_lets_through(pool))
        return GRANT_REFUSED;
    pool->slots_used++;
    pool->long_used += is_long;
    return GRANT_SLOT;
}

/* ---- outside the lock ---- */

static enum grant take_locked(struct db_pool *pool, bool is_long, int64_t deadline_ns, struct db_conn **conn)
{
    db_shelf_close_unused(pool->shelf);
    pthread_mutex_lock(&pool->lock);
    enum grant granted = take(pool, is_long, deadline_ns, conn);
    show_counts(pool);
    pthread_mutex_unlock(&pool->lock);
    return granted;
}

/* Does a connect that took all of `given_ms` tell that the database is down? */
static bool is_telling(struct db_pool *pool, int64_t given_ms)
{
    if (pool->breaker == BREAKER_PROBING || 2 * given_ms >= pool->parsed.connect_timeout_ms)
        return true;
    return given_ms >= TELLING_CONNECT_MS && ++pool->given_up >= GIVEN_UP_MAX;
}

/* With a slot in hand: one that comes back in a moment? */
static bool take_returned(struct db_pool *pool, bool is_long, int64_t deadline_ns, struct db_conn **conn)
{
    *conn = db_shelf_open(pool->shelf, deadline_ns);
    if (!*conn)
        return false;
    pthread_mutex_lock(&pool->lock);
    if (pool->breaker == BREAKER_PROBING)
        pool->breaker = BREAKER_OPEN; /* nothing was tried: the next caller may */
    lend(pool, *conn, is_long);
    pthread_mutex_unlock(&pool->lock);
    return true;
}

/* A pool that opened none yet is up by one that another pool opened. */
static void note_alive(struct db_pool *pool)
{
    if (db_pool_is_up(pool))
        return;
    pthread_mutex_lock(&pool->lock);
    if (pool->breaker == BREAKER_CLOSED)
        breaker_close(pool);
    pthread_mutex_unlock(&pool->lock);
}

/* With a slot in hand: connects, and tells the breaker. */
static enum status open_conn(struct db_pool *pool, bool is_long, int64_t deadline_ns, struct db_conn **conn,
                             struct error *error)
{
    struct error own = {0};
    int64_t given_ms = clock_ms_left(deadline_ns);
    enum status status = db_conn_open(pool, &pool->parsed, deadline_ns, conn, &own);
    db_shelf_opened(pool->shelf, status == STATUS_OK);

    pthread_mutex_lock(&pool->lock);
    if (status == STATUS_OK)
        breaker_close(pool);
    else if (status == STATUS_DB_DOWN || (status == STATUS_TIMEOUT && is_telling(pool, given_ms)))
        breaker_open(pool, own.message);
    if (status != STATUS_OK)
        give_slot_back(pool, is_long);
    pthread_mutex_unlock(&pool->lock);
    if (status == STATUS_OK) {
        (*conn)->is_long = is_long;
        db_shelf_lend(pool->shelf, *conn);
        return status;
    }
    db_metrics_error(&pool->metrics, status);
    return error_set(error, status, "%s: %s", pool->parsed.address, own.message);
}

static void discard(struct db_pool *pool, struct db_conn *conn)
{
    bool was_long = conn->is_long;

    db_conn_destroy(conn);
    db_shelf_closed(pool->shelf);
    pthread_mutex_lock(&pool->lock);
    give_slot_back(pool, was_long);
    pthread_mutex_unlock(&pool->lock);
}

static enum status refused(struct db_pool *pool, struct error *error)
{
    if (db_pool_is_interrupted(pool))
        return error_set(error, STATUS_CANCELLED, "the process is stopping");
    db_metrics_error(&pool->metrics, STATUS_DB_DOWN);
    pthread_mutex_lock(&pool->lock);
    error_set(error, STATUS_DB_DOWN, "not tried again yet: %s", pool->reason);
    pthread_mutex_unlock(&pool->lock);
    return STATUS_DB_DOWN;
}

static enum status acquire(struct db_pool *pool, bool is_long, int64_t deadline_ns, struct db_conn **conn,
                           struct error *error)
{
    for (;;) {
        switch (take_locked(pool, is_long, deadline_ns, conn)) {
        case GRANT_SLOT:
            if (!take_returned(pool, is_long, deadline_ns, conn))
                return open_conn(pool, is_long, deadline_ns, conn, error);
            /* fall through */
        case GRANT_CONN:
            if (db_conn_is_alive(*conn)) {
                note_alive(pool);
                return STATUS_OK;
            }
            discard(pool, *conn); /* it died while it was idle: take the next */
            *conn = NULL;
            break;
        case GRANT_REFUSED: return refused(pool, error);
        case GRANT_NONE:
            db_metrics_error(&pool->metrics, STATUS_TIMEOUT);
            return error_set(error, STATUS_TIMEOUT, "no connection of %s became free in time",
                             pool->parsed.name);
        }
    }
}

static enum status acquire_measured(struct db_pool *pool, bool is_long, int64_t deadline_ns,
                                    struct db_conn **conn, struct error *error)
{
    int64_t begun_ns = clock_mono_ns();

    *conn = NULL;
    enum status status = acquire(pool, is_long, deadline_ns, conn, error);
    metric_observe(pool->metrics.acquire_wait, (double)(clock_mono_ns() - begun_ns) / 1e9);
    if (status == STATUS_OK)
        (*conn)->sqlstate[0] = '\0';
    else
        *conn = NULL;
    return status;
}

enum status db_acquire(struct db_pool *pool, int64_t deadline_ns, struct db_conn **conn, struct error *error)
{
    return acquire_measured(pool, false, deadline_ns, conn, error);
}

enum status db_acquire_long(struct db_pool *pool, int64_t deadline_ns, struct db_conn **conn,
                            struct error *error)
{
    return acquire_measured(pool, true, deadline_ns, conn, error);
}

int64_t db_conn_opened_ns(const struct db_conn *conn)
{
    return conn->uncrashed_ns;
}

void db_release(struct db_conn *conn)
{
    if (!conn)
        return;
    struct db_pool *pool = conn->pool;
    db_rollback(conn); /* before anyone can be given it */
    if (!db_conn_is_clean(conn)) {
        discard(pool, conn);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    /* A server that hung answers on its old connections again: as good as a new one. */
    if (pool->breaker == BREAKER_OPEN && conn->answered && conn->outages == pool->outages)
        breaker_close(pool);
    pool->long_used -= conn->is_long;
    struct waiter *next = next_waiter(pool);
    if (next) {
        grant(pool, next, GRANT_CONN, conn);
    } else {
        pool->slots_used--;
        db_shelf_put(pool->shelf, conn);
    }
    show_counts(pool);
    pthread_mutex_unlock(&pool->lock);
}
