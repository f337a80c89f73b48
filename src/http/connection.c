/* A connection: its life, its turns, its input and output, its deadlines.
 *
 * A turn is everything one event leads to: read once, take requests as far as bytes and room allow, write
 * once. In the common case that is read and write and no other system call: readiness is level-triggered and
 * changed only when it gets in the way, and one lazy timer serves every deadline (C6, C7).
 *
 * The least rates of bodies and readers are measured in windows as long as their timeout: a body or a reader that moves less
 * than the window's bytes is ended with the window. */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/budget.h"
#include "base/memory.h"
#include "http/tls.h"

static int64_t now_ns(const struct http_connection *connection)
{
    return loop_now_ns(connection->home->loop);
}

/* ---- life ---- */

void http_connection_move(struct http_connection *connection, enum http_state state)
{
    connection->state = state;
    connection->state_since_ns = now_ns(connection);
}

void http_connection_unref(struct http_connection *connection)
{
    if (--connection->refs > 0)
        return;
    budget_release(BUDGET_REQUESTS, sizeof *connection);
    if (connection->client_cert)
        loop_free_later(connection->home->loop, connection->client_cert, free);
    loop_free_later(connection->home->loop, connection, free);
}

static void drop_request(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;

    if (!exchange)
        return;
    connection->exchange = NULL;
    http_exchange_unpark(exchange);
    if (exchange->progress == HTTP_ON_WORKER)
        return; /* freed when its worker returns */
    if (exchange->observed.is_due && exchange->progress != HTTP_READING)
        http_observe_end(exchange, 0);
    if (exchange->progress == HTTP_PARKED && exchange->on_drop)
        exchange->on_drop(&exchange->request, exchange->park_context);
    http_dispatch_end_key(exchange);
    http_stream_release(exchange);
    http_exchange_release(exchange);
}

static void end_connection(struct http_connection *connection, bool is_cut)
{
    struct http_home *home = connection->home;

    if (connection->state == HTTP_STATE_DEAD)
        return;
    http_connection_move(connection, HTTP_STATE_DEAD);
    drop_request(connection);
    http_turns_leave(connection);
    loop_io_stop(home->loop, &connection->io);
    loop_timer_stop(home->loop, &connection->timer);
    loop_tick_cancel(home->loop, &connection->tick);
    http_tls_close(connection, is_cut);
    close(connection->io.fd);
    http_budget_free_unsent(connection);
    if (home->idle_hand == connection)
        home->idle_hand = LIST_NEXT(connection, entry);
    LIST_REMOVE(connection, entry);
    atomic_fetch_sub_explicit(&home->server->connection_count, 1, memory_order_relaxed);
    metric_change(home->server->connections_gauge, -1);
    http_connection_unref(connection);
    http_drain_check(home);
}

void http_connection_drop(struct http_connection *connection)
{
    end_connection(connection, false);
}

void http_connection_cut(struct http_connection *connection)
{
    (void)setsockopt(connection->io.fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1},
                     sizeof(struct linger));
    end_connection(connection, true);
}

void http_connection_finish(struct http_connection *connection, bool may_be_unread)
{
    drop_request(connection);
    connection->may_be_unread = may_be_unread;
    http_connection_move(connection, HTTP_STATE_FLUSH);
}

/* ---- deadlines ---- */

static void set_deadline(struct http_connection *connection);

static const struct http_limits *limits_of(const struct http_connection *connection)
{
    return &connection->home->server->config.limits;
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

static int64_t deadline_of(const struct http_connection *connection)
{
    const struct http_limits *limits = limits_of(connection);
    struct http_exchange *exchange = connection->exchange;
    int64_t since_ns = connection->state_since_ns;

    if (connection->is_behind)
        return after_ms(connection->reading_since_ns, limits->write_timeout_ms);
    switch (connection->state) {
    case HTTP_STATE_HEAD:
        if (exchange || http_tls_is_opening(connection) || http_tls_has_input(connection))
            return after_ms(since_ns, limits->header_timeout_ms);
        /* Idle: from the last byte or, where the last request took long, from its answer. A drain has left only those that
         * have not sent their first request since the handshake. */
        return after_ms(connection->progress_ns > since_ns ? connection->progress_ns : since_ns,
                        connection->home->draining && limits->idle_timeout_ms > HTTP_IDLE_MIN_MS
                            ? HTTP_IDLE_MIN_MS
                            : limits->idle_timeout_ms);
    case HTTP_STATE_BODY:
    case HTTP_STATE_DISCARD:
        /* After body_timeout_ms without progress, or below the least rate. A new window begins when the bytes of a whole window
         * have arrived, so that a fast beginning does not make up for a slow rest. */
        if (exchange->body_since_ns < since_ns ||
            exchange->body.received - exchange->body_before >=
                least_bytes(limits->body_rate_min, limits->body_timeout_ms)) {
            exchange->body_since_ns = now_ns(connection);
            exchange->body_before = exchange->body.received;
        }
        return after_ms(exchange->body_since_ns < connection->progress_ns ? exchange->body_since_ns
                                                                          : connection->progress_ns,
                        limits->body_timeout_ms);
    case HTTP_STATE_LINGER: return after_ms(since_ns, HTTP_LINGER_MS);
    case HTTP_STATE_BUSY:
    case HTTP_STATE_FLUSH:
    case HTTP_STATE_DEAD: break;
    }
    return CLOCK_NEVER;
}

static void begin_reading(struct http_connection *connection)
{
    connection->reading_since_ns = now_ns(connection);
    connection->reading_before = http_socket_taken(connection);
}

static void on_deadline(struct loop_timer *timer)
{
    struct http_connection *connection = CONTAINER_OF(timer, struct http_connection, timer);
    const struct http_limits *limits = limits_of(connection);
    uint64_t least = least_bytes(limits->write_rate_min, limits->write_timeout_ms);

    if (connection->deadline_ns > now_ns(connection)) {
        if (connection->deadline_ns != CLOCK_NEVER)
            loop_timer_start(connection->home->loop, timer, connection->deadline_ns, on_deadline);
    } else if (connection->is_behind && http_socket_taken(connection) - connection->reading_before >= least) {
        begin_reading(connection);
        set_deadline(connection);
    } else if (connection->is_behind) {
        metric_add(connection->home->server->slow_cuts, 1);
        http_connection_cut(connection);
    } else if (connection->state == HTTP_STATE_BODY ||
               (connection->state == HTTP_STATE_HEAD && connection->exchange &&
                http_parser_has_begun(&connection->exchange->parser))) {
        http_connection_fail(connection, STATUS_REQUEST_TIMEOUT);
    } else {
        http_connection_drop(connection);
    }
}

/* After a turn. Touches the timer only when it would be too late; a deadline that moved away is checked when the timer
 * fires. */
static void set_deadline(struct http_connection *connection)
{
    connection->deadline_ns = deadline_of(connection);
    if (connection->deadline_ns != CLOCK_NEVER &&
        (connection->timer.heap_at == 0 || connection->deadline_ns < connection->timer.deadline_ns))
        loop_timer_start(connection->home->loop, &connection->timer, connection->deadline_ns, on_deadline);
}

/* ---- output ---- */

/* False when the client is gone. After a short write the socket is full: LOOP_WRITE follows. */
static bool write_out(struct http_connection *connection)
{
    while (buf_len(connection->out) > 0) {
        size_t len = buf_len(connection->out);
        ssize_t sent = http_socket_send(connection, connection->out->data + connection->out->start, len);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        buf_consume(connection->out, (size_t)sent);
        if ((size_t)sent < len)
            return true;
    }
    if (connection->state == HTTP_STATE_FLUSH && connection->tls && !http_tls_end(connection->tls))
        connection->wants_turn = true;
    return true;
}

/* Moves what the socket did not take from the loop's buffer to the connection's own. */
static void keep_unsent(struct http_connection *connection)
{
    struct buf *shared = &connection->home->out;

    if (connection->out == shared && buf_len(shared) > 0)
        buf_put_str(&connection->own_out, buf_str(shared));
    buf_clear(shared);
    if (shared->capacity > HTTP_SHARED_OUT_BYTES_MAX)
        buf_deinit(shared);
    connection->out = &connection->own_out;
    /* A client is behind while unsent bytes, or a turn that its full socket delays, wait for it to read. While it is behind it
     * must keep the least rate. */
    bool was_behind = connection->is_behind;
    connection->is_behind = buf_len(&connection->own_out) > 0 || connection->wants_turn;
    if (connection->is_behind && !was_behind)
        begin_reading(connection);
    else if (!connection->is_behind && was_behind && connection->state == HTTP_STATE_HEAD)
        connection->state_since_ns = now_ns(connection); /* its next head was not read until now */
    if (buf_len(&connection->own_out) > 0) {
        http_budget_keep_unsent(connection, connection->sent_bytes != connection->seen_sent_bytes);
        connection->seen_sent_bytes = connection->sent_bytes;
    } else if (connection->is_unsent || connection->own_out.data) {
        http_budget_free_unsent(connection);
    }
}

/* ---- turns ---- */

/* Is an earlier answer not yet read by the client? No further request is parsed then. */
static bool waits_for_reader(const struct http_connection *connection)
{
    return connection->state == HTTP_STATE_HEAD && connection->is_unsent && buf_len(&connection->own_out) > 0;
}

/* True when it stopped only because enough output is waiting to be written. */
static bool advance(struct http_connection *connection, const struct http_turn *turn)
{
    for (unsigned requests = 0; connection->state != HTTP_STATE_DEAD;) {
        if (buf_len(connection->out) >= HTTP_OUT_BYTES_MAX || waits_for_reader(connection))
            return true;
        if (connection->state == HTTP_STATE_HEAD) {
            if (++requests > turn->requests_max ||
                ((requests & turn->check_mask) == 0 && http_turn_is_over(turn, connection->home))) {
                connection->wants_turn = true;
                return false;
            }
        } else if (connection->home->has_compressed && http_stream_rests(connection, turn)) {
            return false;
        }
        if (!http_dispatch_step(connection))
            return false;
    }
    return false;
}

static bool may_read(const struct http_connection *connection)
{
    switch (connection->state) {
    case HTTP_STATE_HEAD:
    case HTTP_STATE_BODY:
    case HTTP_STATE_DISCARD:
        return !connection->saw_end && !connection->wants_turn && !waits_for_reader(connection);
    case HTTP_STATE_LINGER: return true;
    case HTTP_STATE_BUSY:
    case HTTP_STATE_FLUSH:
    case HTTP_STATE_DEAD: break;
    }
    return false;
}

/* After a turn: releases what an idle connection need not hold, ends what is over, waits for the right events. */
static void end_turn(struct http_connection *connection)
{
    bool has_unsent = buf_len(&connection->own_out) > 0;
    struct http_exchange *exchange = connection->exchange;

    if (connection->state == HTTP_STATE_HEAD && exchange && exchange->start == exchange->end) {
        connection->exchange = NULL;
        http_exchange_release(exchange);
    }
    if (connection->state == HTTP_STATE_FLUSH && !has_unsent && !connection->wants_turn) {
        /* Our side is shut, so that a client which waits for the end of the answer reads it and closes. */
        if (!connection->may_be_unread || connection->saw_end || shutdown(connection->io.fd, SHUT_WR) != 0)
            http_connection_drop(connection);
        else
            http_connection_move(connection, HTTP_STATE_LINGER);
    } else if (connection->state == HTTP_STATE_HEAD && !connection->exchange && !has_unsent) {
        if (connection->saw_end)
            http_connection_drop(connection);
        else if (connection->home->draining)
            http_drain_end_idle(connection);
    }
    if (connection->state == HTTP_STATE_DEAD)
        return;
    /* Interest in reading is left on while nothing is read; the next such event turns it off. */
    unsigned interest = connection->io.interest & LOOP_READ;
    if (may_read(connection))
        interest = LOOP_READ;
    if (has_unsent || connection->wants_turn)
        interest |= LOOP_WRITE;
    if (connection->tls && connection->tls->has_more && may_read(connection)) {
        if (connection->tls->is_blocked)
            interest |= LOOP_WRITE;
        else
            http_connection_resume(connection);
    }
    loop_io_change(connection->home->loop, &connection->io, interest);
    set_deadline(connection);
}

/* After a turn: is there memory for the exchange, if it still needs one? */
static bool may_stay(const struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;

    if (exchange && connection->state == HTTP_STATE_DISCARD) /* it waits for its client, not as a head */
        return http_budget_hold_waiting(exchange);
    if (!exchange || (exchange->charged > 0 && !exchange->has_waited))
        return true;
    if (connection->state != HTTP_STATE_HEAD)
        return exchange->charged > 0 || http_budget_hold_waiting(exchange);
    return exchange->start == exchange->end ||
           (exchange->charged > 0 ? http_budget_may_stay(exchange) : http_exchange_admit(exchange));
}

static void take_turn(struct http_connection *connection, const struct http_turn *turn)
{
    if (connection->state == HTTP_STATE_DEAD)
        return;
    connection->running = true;
    connection->wants_turn = false;
    if (connection->exchange)
        connection->exchange->request.carried = (struct http_carried){0};
    bool is_alive = true;
    for (unsigned round = 0; is_alive; round++) {
        if (connection->out == &connection->own_out && buf_len(&connection->own_out) == 0) {
            if (connection->own_out.data)
                buf_deinit(&connection->own_out);
            connection->out = &connection->home->out; /* gathered there while nothing is unsent */
        }
        bool has_more = advance(connection, turn);
        is_alive = connection->state != HTTP_STATE_DEAD && write_out(connection);
        if (!has_more || !is_alive || buf_len(connection->out) > 0)
            break;
        if (round == HTTP_ROUNDS_PER_TURN || http_turn_is_over(turn, connection->home)) {
            connection->wants_turn = true;
            break;
        }
    }
    connection->running = false;
    http_tally_flush(connection->home);
    if (!is_alive) {
        buf_clear(&connection->home->out);
        connection->out = &connection->own_out;
        http_connection_drop(connection);
        return;
    }
    if (!may_stay(connection)) {
        if (connection->state == HTTP_STATE_BUSY) { /* in the middle of its answer */
            buf_clear(&connection->home->out);
            connection->out = &connection->own_out;
            http_connection_cut(connection);
            return;
        }
        http_connection_fail(connection, STATUS_OVERLOADED);
    }
    keep_unsent(connection);
    end_turn(connection);
}

/* ---- input ---- */

/* One read. False when no turn is needed. */
static bool read_some(struct http_connection *connection)
{
    if (connection->state == HTTP_STATE_LINGER) {
        char dropped[HTTP_BLOCK_BYTES];
        ssize_t got = recv(connection->io.fd, dropped, sizeof dropped, 0);
        connection->lingered_bytes += got > 0 ? (uint64_t)got : 0;
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR) ||
            connection->lingered_bytes > HTTP_LINGER_BYTES_MAX)
            http_connection_drop(connection);
        return false;
    }
    if (!connection->exchange) {
        connection->exchange = http_exchange_acquire(connection);
        if (!http_tls_has_input(connection)) /* else its first bytes are in the record that was begun */
            connection->state_since_ns = now_ns(connection);
    }
    struct http_exchange *exchange = connection->exchange;
    size_t room = http_exchange_make_room(exchange, connection->state != HTTP_STATE_HEAD);
    if (room == 0) {
        http_connection_fail(connection, STATUS_OVERLOADED);
        return false;
    }
    ssize_t got = http_socket_receive(connection, exchange->block + exchange->end, room);
    if (got < 0 && errno != EAGAIN && errno != EINTR) {
        if (errno == ENOBUFS)
            http_connection_fail(connection, STATUS_OVERLOADED);
        else
            http_connection_drop(connection);
        return false;
    }
    if (got > 0) {
        exchange->end += (size_t)got;
        connection->progress_ns = now_ns(connection);
    }
    connection->saw_end |= got == 0;
    return true;
}

void http_connection_serve(struct http_connection *connection, bool is_readable, const struct http_turn *turn)
{
    if (is_readable || (connection->tls && connection->tls->has_more && may_read(connection))) {
        if (!may_read(connection))
            loop_io_change(connection->home->loop, &connection->io,
                           connection->io.interest & ~(unsigned)LOOP_READ);
        else if (!read_some(connection))
            return;
    }
    take_turn(connection, turn);
}

static void on_event(struct loop_io *io, unsigned events)
{
    struct http_connection *connection = (struct http_connection *)io;

    if (events & LOOP_HANGUP && (!(events & LOOP_READ) || connection->state == HTTP_STATE_BUSY))
        http_connection_drop(connection);
    else if (http_tls_is_opening(connection))
        http_turns_take_handshake(connection);
    else
        http_turns_take(connection, events & LOOP_READ);
}

void http_connection_open(struct http_home *home, int fd, const struct sockaddr_in6 *peer)
{
    const struct http_limits *limits = &home->server->config.limits;
    atomic_uint *count = &home->server->connection_count;
    unsigned before = atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
    struct http_connection *connection = memory_zalloc(sizeof *connection);
    struct error error;
    int on = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connection->home = home;
    connection->refs = 1;
    connection->out = &connection->own_out;
    if (peer)
        connection->peer = *peer;
    connection->io.fd = fd;
    http_turns_join(connection);
    bool is_full = before >= limits->connections_max && !http_home_close_idle(home);
    if ((is_full && before >= limits->connections_max + limits->connections_extra) ||
        (home->tls && !http_tls_open(connection)) ||
        loop_io_start(home->loop, &connection->io, fd, LOOP_READ, on_event, &error) != STATUS_OK) {
        http_tls_close(connection, true);
        close(fd);
        free(connection);
        atomic_fetch_sub_explicit(count, 1, memory_order_relaxed);
        return;
    }
    LIST_INSERT_HEAD(&home->connections, connection, entry);
    budget_add(BUDGET_REQUESTS, sizeof *connection);
    metric_change(home->server->connections_gauge, 1);
    connection->progress_ns = now_ns(connection);
    http_connection_move(connection, HTTP_STATE_HEAD);
    enum status refusal = is_full ? STATUS_OVERLOADED : home->draining ? STATUS_UNAVAILABLE : STATUS_OK;
    if (connection->tls)
        connection->tls->refusal = refusal; /* it cannot be read before the handshake */
    else if (refusal != STATUS_OK)
        http_connection_fail(connection, refusal);
    set_deadline(connection);
}
