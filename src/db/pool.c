/* The pool: at most connections_max connections in use, opened on demand, given to waiters; shares (tenants) take turns.
 *
 * A slot is the right to use one connection. A connection or slot that is released goes to the waiter whose turn it is. Neither long
 * work (db_acquire_long) nor one share (base/turns.h) may have all slots; the worker pool knows whose job a thread runs. Idle
 * connections lie on a shelf (server.c), which pools of the same server share; one whose buffers have grown large is closed instead.
 * Under the lock nothing blocks: connecting, rolling back and closing happen outside it.
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
#include "base/turns.h"
#include "db/db_inside.h"

/* A connect that timed out after less than this does not count as a failure of the database. One that had more, but not half of
 * the connect timeout, counts when several fail in a row. */
#define COUNTED_CONNECT_MS 100
#define TIMED_OUT_CONNECTS_MAX 3

enum grant { GRANT_NONE, GRANT_CONN, GRANT_SLOT, GRANT_REFUSED };

struct waiter {
    struct turns_item turn;
    pthread_cond_t granted;
    enum grant grant;
    uint64_t share;
    bool is_long;
    struct db_conn *conn;
    struct db_use use;
};

enum breaker { BREAKER_CLOSED, BREAKER_OPEN, BREAKER_PROBING };

struct db_pool {
    struct db_parsed parsed;
    struct metric_series *used, *acquire_wait, *breaker_is_open;
    pthread_mutex_t lock;
    struct db_shelf *shelf; /* of idle connections */
    unsigned slots_used;    /* connections that are in use or being opened */
    unsigned long_used;     /* of them, those that have long work */
    struct turns turns;     /* waiters; members are slots in use */
    enum breaker breaker;
    uint64_t outages;            /* times it opened */
    unsigned timed_out_connects; /* in a row: their callers had no time left */
    struct backoff backoff;
    int64_t retry_at_ns;
    char reason[256]; /* why the breaker opened */
    atomic_bool up, interrupted;
};

/* ---- metrics ---- */

enum { CONNECTIONS, ACQUIRE_WAIT, ERRORS, BREAKER_IS_OPEN, FAMILIES };
#define BY_DATABASE .labels[0] = "database"
static struct metric_family families[FAMILIES] = {
    [CONNECTIONS] = {"db_connections", "Open PostgreSQL connections by state.", METRIC_GAUGE, BY_DATABASE,
                     .labels[1] = "state"},
    [ACQUIRE_WAIT] = {"db_acquire_wait_seconds", "Time to get a connection from the pool, in seconds.",
                      METRIC_HISTOGRAM, BY_DATABASE},
    [ERRORS] = {"db_errors_total", "Failed database calls by status.", METRIC_COUNTER, BY_DATABASE,
                .labels[1] = "status"},
    [BREAKER_IS_OPEN] = {"db_breaker_open",
                         "1 while the circuit breaker is open: no connection attempts after failures.",
                         METRIC_GAUGE, BY_DATABASE},
};

static void register_families(void)
{
    for (int i = 0; i < FAMILIES; i++)
        metrics_register(&families[i]);
}

struct metric_series *db_metric_connections(const char *database, const char *state)
{
    return metric_series_get(&families[CONNECTIONS], (struct str[]){str_from(database), str_from(state)});
}

enum status db_pool_count_error(const struct db_pool *pool, enum status status)
{
    struct str labels[] = {str_from(pool->parsed.name), str_from(status_name(status))};

    metric_add(metric_series_get(&families[ERRORS], labels), 1);
    return status;
}

/* ---- life ---- */

enum status db_pool_create(const struct db_target *target, struct db_pool **out, struct error *error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct db_pool *pool = memory_zalloc(sizeof *pool);
    enum status status = db_parsed_init(&pool->parsed, target, error);

    *out = NULL;
    if (status != STATUS_OK) {
        free(pool);
        return status;
    }
    pthread_once(&once, register_families);
    struct str name = str_from(pool->parsed.name);
    pool->used = db_metric_connections(pool->parsed.name, "used");
    pool->acquire_wait = metric_series_get(&families[ACQUIRE_WAIT], &name);
    pool->breaker_is_open = metric_series_get(&families[BREAKER_IS_OPEN], &name);
    pthread_mutex_init(&pool->lock, NULL);
    turns_init(&pool->turns);
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
    metric_set(pool->used, 0);
    turns_deinit(&pool->turns);
    pthread_mutex_destroy(&pool->lock);
    db_parsed_deinit(&pool->parsed);
    free(pool);
}

const char *db_pool_address(const struct db_pool *pool)
{
    return pool->parsed.address;
}

const char *db_pool_database(const struct db_pool *pool)
{
    const char *name = db_keyword_get(&pool->parsed, "dbname");
    if (!name || !*name)
        name = db_keyword_get(&pool->parsed, "user"); /* as libpq does */
    return name ? name : "";
}

void db_pool_put_hosts(const struct db_pool *pool, struct buf *names, struct buf *ports)
{
    for (unsigned i = 0; i < pool->parsed.host_count; i++) {
        buf_printf(names, i > 0 ? ",%s" : "%s", pool->parsed.hosts[i].name);
        buf_printf(ports, i > 0 ? ",%s" : "%s", pool->parsed.hosts[i].port);
    }
}

bool db_pool_is_up(const struct db_pool *pool)
{
    return atomic_load_explicit(&pool->up, memory_order_relaxed);
}

bool db_pool_is_interrupted(const struct db_pool *pool)
{
    return atomic_load_explicit(&pool->interrupted, memory_order_relaxed);
}

/* ---- everything down to the next rule happens under the lock ---- */

/* Slots that are free for work of this kind. */
static size_t free_slots(const struct db_pool *pool, bool is_long)
{
    unsigned max = pool->parsed.connections_max, free = max - pool->slots_used;
    unsigned reserved = max > 3 ? 2 : max > 1 ? 1 : 0; /* of long work */

    if (!is_long || free == 0)
        return free;
    unsigned long_free = max - reserved - pool->long_used;
    return long_free < free ? long_free : free;
}

/* What an acquired slot is for; kept with the connection. */
static struct db_use take_slot(struct db_pool *pool, uint64_t share, bool is_long)
{
    pool->slots_used++;
    pool->long_used += is_long;
    return (struct db_use){turns_enter(&pool->turns, share, SIZE_MAX), is_long};
}

static void pool_lend(struct db_pool *pool, struct db_conn *conn, struct db_use use)
{
    conn->pool = pool;
    db_shelf_lend(pool->shelf, conn);
    conn->answered = false;
    conn->outages = pool->outages;
    conn->use = use;
}

/* Removed from the line; NULL also if only work waits that may not have another connection now. */
static struct waiter *next_waiter(struct db_pool *pool)
{
    struct turns_share *share;
    struct turns_item *item;
    TAILQ_FOREACH(share, &pool->turns.line, in_line)
        TAILQ_FOREACH(item, &share->items, link) {
            struct waiter *waiter = CONTAINER_OF(item, struct waiter, turn);
            if (turns_may_enter(share, free_slots(pool, waiter->is_long))) {
                turns_remove_turn(&pool->turns, item);
                return waiter;
            }
        }
    return NULL;
}

static void pool_grant(struct db_pool *pool, struct waiter *waiter, enum grant what, struct db_conn *conn)
{
    waiter->grant = what;
    waiter->conn = conn;
    if (what != GRANT_REFUSED)
        waiter->use = take_slot(pool, waiter->share, waiter->is_long);
    if (conn)
        pool_lend(pool, conn, waiter->use);
    pthread_cond_signal(&waiter->granted);
}

/* With a connection, or without one: then the next one opens its own. True if a waiter has it. Two may go on: one takes the slot,
 * and the share that had it may have another one now. */
static bool give_slot_back(struct db_pool *pool, struct db_use use, struct db_conn *conn)
{
    struct waiter *next;
    bool is_given = false;
    pool->slots_used--;
    pool->long_used -= use.is_long;
    turns_leave(&pool->turns, use.share);
    while (((conn && !is_given) || pool->breaker == BREAKER_CLOSED) && (next = next_waiter(pool)) != NULL) {
        bool has_conn = conn && !is_given;
        pool_grant(pool, next, has_conn ? GRANT_CONN : GRANT_SLOT, has_conn ? conn : NULL);
        is_given = true;
    }
    metric_set(pool->used, pool->slots_used);
    return is_given;
}

static void refuse_waiters(struct db_pool *pool)
{
    for (struct turns_item *item; (item = turns_next(&pool->turns)) != NULL;)
        pool_grant(pool, CONTAINER_OF(item, struct waiter, turn), GRANT_REFUSED, NULL);
}

static void breaker_close(struct db_pool *pool)
{
    if (pool->breaker != BREAKER_CLOSED || !db_pool_is_up(pool))
        log_info("db_up", LOG_CSTR("database", pool->parsed.name), LOG_CSTR("address", pool->parsed.address));
    pool->breaker = BREAKER_CLOSED;
    pool->timed_out_connects = 0;
    backoff_reset(&pool->backoff);
    atomic_store_explicit(&pool->up, true, memory_order_relaxed);
    metric_set(pool->breaker_is_open, 0);
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
    metric_set(pool->breaker_is_open, 1);
    refuse_waiters(pool);
}

static enum grant wait_for_grant(struct db_pool *pool, bool is_long, int64_t deadline_ns,
                                 struct db_conn **conn, struct db_use *use)
{
    struct waiter waiter = {.grant = GRANT_NONE, .share = turns_worked_for(), .is_long = is_long};
    bool in_time = true;

    pthread_cond_init(&waiter.granted, NULL);
    turns_put(&pool->turns, waiter.share, &waiter.turn);
    while (waiter.grant == GRANT_NONE && in_time)
        in_time = clock_cond_wait(&waiter.granted, &pool->lock, deadline_ns);
    if (waiter.grant == GRANT_NONE)
        turns_remove(&pool->turns, &waiter.turn);
    pthread_cond_destroy(&waiter.granted);
    *conn = waiter.conn;
    *use = waiter.use;
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
static enum grant pool_take(struct db_pool *pool, bool is_long, int64_t deadline_ns, struct db_conn **conn,
                            struct db_use *use)
{
    if (db_pool_is_interrupted(pool))
        return GRANT_REFUSED;
    uint64_t share = turns_worked_for();
    bool room = turns_may_enter_hash(&pool->turns, share, free_slots(pool, is_long));
    *conn = room ? db_shelf_take(pool->shelf) : NULL;
    if (*conn) {
        *use = take_slot(pool, share, is_long);
        pool_lend(pool, *conn, *use);
        return GRANT_CONN;
    }
    if (!room && pool->breaker == BREAKER_CLOSED)
        return wait_for_grant(pool, is_long, deadline_ns, conn, use);
    bool is_closed = pool->breaker == BREAKER_CLOSED;
    if (!room || pool->breaker == BREAKER_PROBING || (!is_closed && clock_mono_ns() < pool->retry_at_ns))
        return GRANT_REFUSED;
    if (!is_closed)
        pool->breaker = BREAKER_PROBING; /* the first caller after the wait */
    *use = take_slot(pool, share, is_long);
    return GRANT_SLOT;
}

/* ---- outside the lock ---- */

/* With a slot in hand: connects, and moves the breaker. */
static enum status open_conn(struct db_pool *pool, struct db_use use, int64_t deadline_ns,
                             struct db_conn **conn, struct error *error)
{
    struct error own = {0};
    int64_t given_ms = clock_ms_left(deadline_ns);
    enum status status = db_conn_open(pool, &pool->parsed, deadline_ns, conn, &own);

    db_shelf_opened(pool->shelf, status == STATUS_OK);
    if (status == STATUS_OK) {
        pthread_mutex_lock(&pool->lock);
        breaker_close(pool);
        pthread_mutex_unlock(&pool->lock);
        (*conn)->use = use;
        db_shelf_lend(pool->shelf, *conn);
        return status;
    }
    pthread_mutex_lock(&pool->lock);
    bool is_down = status == STATUS_DB_DOWN;
    /* Does a connect that took all of its time count as a failure of the database? */
    if (status == STATUS_TIMEOUT)
        is_down = pool->breaker == BREAKER_PROBING || 2 * given_ms >= pool->parsed.connect_timeout_ms ||
                  (given_ms >= COUNTED_CONNECT_MS && ++pool->timed_out_connects >= TIMED_OUT_CONNECTS_MAX);
    if (is_down)
        breaker_open(pool, own.message);
    give_slot_back(pool, use, NULL);
    pthread_mutex_unlock(&pool->lock);
    db_pool_count_error(pool, status);
    return error_set(error, status, "%s: %s", pool->parsed.address, own.message);
}

static void pool_discard(struct db_pool *pool, struct db_conn *conn)
{
    struct db_use use = conn->use;

    db_conn_destroy(conn);
    db_shelf_closed(pool->shelf);
    pthread_mutex_lock(&pool->lock);
    give_slot_back(pool, use, NULL);
    pthread_mutex_unlock(&pool->lock);
}

/* Takes, or opens; one that died while it was idle is discarded, and the next one taken. */
static enum status try_acquire(struct db_pool *pool, bool is_long, int64_t deadline_ns, struct db_conn **conn,
                               struct error *error)
{
    for (;;) {
        struct db_use use = {0};
        db_shelf_close_unused(pool->shelf);
        pthread_mutex_lock(&pool->lock);
        enum grant granted = pool_take(pool, is_long, deadline_ns, conn, &use);
        metric_set(pool->used, pool->slots_used);
        if (granted == GRANT_REFUSED && !db_pool_is_interrupted(pool))
            error_set(error, STATUS_DB_DOWN, "not tried again yet: %s", pool->reason);
        pthread_mutex_unlock(&pool->lock);
        if (granted == GRANT_REFUSED && db_pool_is_interrupted(pool))
            return error_set(error, STATUS_CANCELLED, "the process is stopping");
        if (granted == GRANT_REFUSED)
            return db_pool_count_error(pool, STATUS_DB_DOWN);
        if (granted == GRANT_NONE) {
            db_pool_count_error(pool, STATUS_TIMEOUT);
            return error_set(error, STATUS_TIMEOUT, "no connection of %s became free in time",
                             pool->parsed.name);
        }
        if (granted == GRANT_SLOT && !(*conn = db_shelf_open(pool->shelf, deadline_ns)))
            return open_conn(pool, use, deadline_ns, conn, error);
        bool is_alive = db_conn_is_alive(*conn), is_first_sign = is_alive && !db_pool_is_up(pool);
        if (granted == GRANT_SLOT || is_first_sign) {
            pthread_mutex_lock(&pool->lock);
            if (granted == GRANT_SLOT && pool->breaker == BREAKER_PROBING)
                pool->breaker =
                    BREAKER_OPEN; /* another caller returned one: nothing was tried, the next caller may */
            if (granted == GRANT_SLOT)
                pool_lend(pool, *conn, use);
            if (is_first_sign && pool->breaker == BREAKER_CLOSED)
                breaker_close(pool); /* a pool that opened none yet is up by one that another pool opened */
            pthread_mutex_unlock(&pool->lock);
        }
        if (is_alive)
            return STATUS_OK;
        pool_discard(pool, *conn);
        *conn = NULL;
    }
}

static enum status pool_acquire(struct db_pool *pool, bool is_long, int64_t deadline_ns,
                                struct db_conn **conn, struct error *error)
{
    int64_t begun_ns = clock_mono_ns();

    *conn = NULL;
    enum status status = try_acquire(pool, is_long, deadline_ns, conn, error);
    metric_observe(pool->acquire_wait, (double)(clock_mono_ns() - begun_ns) / 1e9);
    if (status == STATUS_OK)
        (*conn)->sqlstate[0] = '\0';
    else
        *conn = NULL;
    return status;
}

enum status db_acquire(struct db_pool *pool, int64_t deadline_ns, struct db_conn **conn, struct error *error)
{
    return pool_acquire(pool, false, deadline_ns, conn, error);
}

enum status db_acquire_long(struct db_pool *pool, int64_t deadline_ns, struct db_conn **conn,
                            struct error *error)
{
    return pool_acquire(pool, true, deadline_ns, conn, error);
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
        pool_discard(pool, conn);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    /* A server that hung answers on its old connections again: as good as a new one. */
    if (pool->breaker == BREAKER_OPEN && conn->answered && conn->outages == pool->outages)
        breaker_close(pool);
    bool is_kept = !db_conn_is_bulky(conn);
    if (is_kept && !give_slot_back(pool, conn->use, conn))
        db_shelf_put(pool->shelf, conn);
    pthread_mutex_unlock(&pool->lock);
    if (!is_kept)
        pool_discard(pool, conn);
}
