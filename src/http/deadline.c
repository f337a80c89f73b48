/* Deadlines of a connection: one lazy timer for all of them, and the least rates of bodies and readers (C6).
 *
 * A rate is measured in windows as long as its timeout: a body or a reader that moves less than the window's bytes is ended
 * with the window. */
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "base/memory.h"
#include "http/http_inside.h"

static const struct http_limits *limits_of(const struct http_connection *connection)
{
    return &connection->home->server->config.limits;
}

static int64_t now_ns(const struct http_connection *connection)
{
    return loop_now_ns(connection->home->loop);
}

static int64_t after_ms(int64_t since_ns, int64_t ms)
{
    return since_ns + ms * CLOCK_NS_PER_MS;
}

/* Of a window of that length, at that rate in bytes a second. */
static uint64_t least_bytes(size_t rate, int64_t window_ms)
{
    uint64_t bytes = (uint64_t)rate * (uint64_t)window_ms / 1000;
    return bytes > 0 ? bytes : 1;
}

/* After body_timeout_ms without progress, or below the least rate. A new window begins when the bytes of a whole window have
 * arrived, so that a fast beginning does not make up for a slow rest. */
static int64_t body_deadline(const struct http_connection *connection)
{
    const struct http_limits *limits = limits_of(connection);
    struct http_exchange *exchange = connection->exchange;
    uint64_t least = least_bytes(limits->body_rate_min, limits->body_timeout_ms);

    if (exchange->body_since_ns < connection->state_since_ns ||
        exchange->body.received - exchange->body_before >= least) {
        exchange->body_since_ns = now_ns(connection);
        exchange->body_before = exchange->body.received;
    }
    int64_t since_ns =
        exchange->body_since_ns < connection->progress_ns ? exchange->body_since_ns : connection->progress_ns;
    return after_ms(since_ns, limits->body_timeout_ms);
}

static int64_t deadline_of(const struct http_connection *connection)
{
    const struct http_limits *limits = limits_of(connection);
    int64_t since_ns = connection->state_since_ns;

    if (connection->is_behind)
        return after_ms(connection->reading_since_ns, limits->write_timeout_ms);
    switch (connection->state) {
    case HTTP_STATE_HEAD:
        if (connection->exchange)
            return after_ms(since_ns, limits->header_timeout_ms);
        /* Idle: from the last byte or, where the last request took long, from its answer. */
        return after_ms(connection->progress_ns > since_ns ? connection->progress_ns : since_ns,
                        limits->idle_timeout_ms);
    case HTTP_STATE_BODY:
    case HTTP_STATE_DISCARD: return body_deadline(connection);
    case HTTP_STATE_LINGER: return after_ms(since_ns, HTTP_LINGER_MS);
    case HTTP_STATE_BUSY:
    case HTTP_STATE_FLUSH:
    case HTTP_STATE_DEAD: break;
    }
    return CLOCK_NEVER;
}

/* What the client's system has acknowledged: the socket's buffer may hold megabytes more. */
static uint64_t read_bytes(const struct http_connection *connection)
{
    int waiting = 0;

    if (ioctl(connection->io.fd, SIOCOUTQ, &waiting) != 0 || (uint64_t)waiting > connection->sent_bytes)
        waiting = 0;
    return connection->sent_bytes - (uint64_t)waiting;
}

void http_deadline_begin_reading(struct http_connection *connection)
{
    connection->reading_since_ns = now_ns(connection);
    connection->reading_before = read_bytes(connection);
}

static bool reads_fast_enough(const struct http_connection *connection)
{
    const struct http_limits *limits = limits_of(connection);
    return read_bytes(connection) - connection->reading_before >=
           least_bytes(limits->write_rate_min, limits->write_timeout_ms);
}

static void expire(struct http_connection *connection)
{
    bool is_reading = connection->state == HTTP_STATE_BODY ||
                      (connection->state == HTTP_STATE_HEAD && connection->exchange &&
                       http_parser_has_begun(&connection->exchange->parser));

    if (connection->is_behind && reads_fast_enough(connection)) {
        http_deadline_begin_reading(connection);
        http_deadline_set(connection);
    } else if (connection->is_behind) {
        metric_add(connection->home->server->budget.slow_cuts, 1);
        http_connection_cut(connection);
    } else if (is_reading) {
        http_connection_fail(connection, STATUS_REQUEST_TIMEOUT);
    } else {
        http_connection_drop(connection);
    }
}

static void on_deadline_timer(struct loop_timer *timer)
{
    struct http_connection *connection = CONTAINER_OF(timer, struct http_connection, timer);

    if (connection->deadline_ns <= now_ns(connection))
        expire(connection);
    else if (connection->deadline_ns != CLOCK_NEVER)
        loop_timer_start(connection->home->loop, timer, connection->deadline_ns, on_deadline_timer);
}

/* Touches the timer only when it would be too late; a deadline that moved away is checked when the timer
 * fires. */
void http_deadline_set(struct http_connection *connection)
{
    connection->deadline_ns = deadline_of(connection);
    if (connection->deadline_ns == CLOCK_NEVER)
        return;
    if (connection->timer.heap_at == 0 || connection->deadline_ns < connection->timer.deadline_ns)
        loop_timer_start(connection->home->loop, &connection->timer, connection->deadline_ns,
                         on_deadline_timer);
}
