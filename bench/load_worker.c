/*
 * The load generator's loop. It does as little as it can per answer, since it shares the machine with what it
 * measures: one clock reading per ready socket, bodies skipped unseen, batches written straight from the
 * shared run of requests. It does not compare bodies; the status of every answer is checked.
 */
#include "load_worker.h"

#include "load_tls.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS_MAX = 256, READ_BYTES = 256 * 1024, IDLE_MS = 20 };

struct conn {
    int fd;
    SSL *ssl;         /* NULL = plain */
    size_t next;      /* the request that the next batch begins with */
    size_t waiting;   /* answers still to come for the batch that was sent */
    size_t body_left; /* bytes of the present answer's body not read yet */
    size_t out_at;    /* the part of the batch that the socket did not take */
    size_t out_end;
    bool blocked; /* the socket was full: EPOLLOUT is asked for */
    bool is_idle; /* with a rate: in the list of those that wait */
    int status;   /* of the answer whose body is being skipped */
    uint64_t sent_ns;
    size_t rest_bytes; /* an answer's head that has not come whole */
    char rest[BENCH_HEAD_BYTES_MAX];
};

struct state {
    struct bench_worker *worker;
    struct bench_plan *plan;
    struct bench_wire_hint hint;
    struct bench_tls tls;
    int epoll;
    struct conn *conns;
    struct conn **idle; /* with a rate: connections that wait for the next due time */
    int idle_count;
    int rested; /* with `once`: connections that found nothing left to send */
    uint64_t due_ns;
    char *in;
};

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

/* One writer, so no read-modify-write is needed. */
static void count(_Atomic uint64_t *counter, uint64_t more)
{
    uint64_t value = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, value + more, memory_order_relaxed);
}

static void error_note(struct state *state, int status)
{
    count(&state->worker->errors, 1);
    if (atomic_load_explicit(&state->worker->first_bad_status, memory_order_relaxed) == 0) {
        atomic_store_explicit(&state->worker->first_bad_status, status, memory_order_relaxed);
    }
}

static bool conn_watch(struct state *state, struct conn *conn, int op, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = conn};
    return epoll_ctl(state->epoll, op, conn->fd, &event) == 0;
}

static bool conn_flush(struct state *state, struct conn *conn)
{
    while (conn->out_at != conn->out_end) {
        const char *from = state->plan->requests->bytes + conn->out_at;
        size_t len = conn->out_end - conn->out_at;
        ssize_t sent =
            conn->ssl ? bench_tls_send(conn->ssl, from, len) : send(conn->fd, from, len, MSG_NOSIGNAL);
        if (sent < 0) {
            conn->blocked = true;
            return errno == EAGAIN && conn_watch(state, conn, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
        }
        conn->out_at += (size_t)sent;
    }
    if (!conn->blocked) {
        return true;
    }
    conn->blocked = false;
    return conn_watch(state, conn, EPOLL_CTL_MOD, EPOLLIN);
}

/* What the connection sends next; false when all has been handed out. */
static bool conn_choose(struct state *state, struct conn *conn)
{
    struct bench_plan *plan = state->plan;
    if (!plan->once) {
        return true;
    }
    conn->next = atomic_fetch_add(&plan->taken, plan->depth);
    if (conn->next + plan->depth <= plan->requests->count) {
        return true;
    }
    state->rested++;
    return false;
}

/* Sends the next batch, whose latency counts from `now`. */
static bool conn_send_batch(struct state *state, struct conn *conn, uint64_t now)
{
    const struct bench_requests *requests = state->plan->requests;
    if (!conn_choose(state, conn)) {
        return true;
    }
    conn->out_at = requests->starts[conn->next];
    conn->out_end = requests->starts[conn->next + state->plan->depth];
    conn->next = (conn->next + state->plan->depth) % requests->count;
    conn->waiting = state->plan->depth;
    conn->sent_ns = now;
    return conn_flush(state, conn);
}

/* All that was sent is answered: sends more, or with a rate waits for its time. */
static bool conn_next(struct state *state, struct conn *conn, uint64_t now)
{
    if (state->plan->interval_ns == 0) {
        return conn_send_batch(state, conn, now);
    }
    if (!conn->is_idle) {
        conn->is_idle = true;
        state->idle[state->idle_count++] = conn;
    }
    return true;
}

static bool conn_secure(struct state *state, struct conn *conn)
{
    if (state->plan->link == BENCH_LINK_PLAIN) {
        return true;
    }
    conn->ssl = bench_tls_open(&state->tls, conn->fd, state->plan->link == BENCH_LINK_RESUMED);
    return conn->ssl != NULL;
}

/* By a reset, after close_notify: a connection a request would use up the ports of the machine. */
static void conn_close(struct conn *conn)
{
    struct linger now = {.l_onoff = 1};
    bench_tls_close(conn->ssl);
    if (conn->ssl != NULL) {
        setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    conn->ssl = NULL;
    close(conn->fd);
}

static bool conn_open(struct state *state, struct conn *conn)
{
    const struct sockaddr *address = (const struct sockaddr *)&state->plan->address;
    conn->waiting = conn->body_left = conn->rest_bytes = 0;
    conn->blocked = false;
    conn->fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (conn->fd < 0) {
        return false;
    }
    int on = 1;
    if (connect(conn->fd, address, state->plan->address_bytes) != 0 ||
        setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 || !conn_secure(state, conn) ||
        fcntl(conn->fd, F_SETFL, O_NONBLOCK) != 0 || !conn_watch(state, conn, EPOLL_CTL_ADD, EPOLLIN)) {
        return false;
    }
    return conn_next(state, conn, now_ns());
}

/* A server that closes or talks nonsense is an error in the figures, and the connection starts anew. */
static bool conn_reopen(struct state *state, struct conn *conn)
{
    error_note(state, -1);
    conn_close(conn);
    return conn_open(state, conn);
}

static bool is_accepted(const struct bench_plan *plan, int status)
{
    for (int i = 0; i < BENCH_ACCEPTED_MAX && plan->accepted[i] != 0; i++) {
        if (plan->accepted[i] == status) {
            return true;
        }
    }
    return false;
}

static void answer_done(struct state *state, struct conn *conn, uint64_t *done)
{
    conn->waiting--;
    (*done)++;
    if (!is_accepted(state->plan, conn->status)) {
        error_note(state, conn->status);
    }
}

/*
 * Walks through `length` bytes of answers; what is left of a broken-off head goes to `rest`. False when the
 * bytes are not answers, or more of them than asked for.
 */
static bool answers_walk(struct state *state, struct conn *conn, const char *bytes, size_t length,
                         uint64_t *done)
{
    size_t at = 0;
    while (at < length) {
        if (conn->body_left == 0) {
            struct bench_answer answer;
            if (conn->waiting == 0) {
                return false;
            }
            ssize_t head = state->plan->head(&state->hint, bytes + at, length - at, &answer);
            if (head < 0 || (head == 0 && length - at > sizeof conn->rest)) {
                return false;
            }
            if (head == 0) {
                break;
            }
            at += (size_t)head;
            conn->status = answer.status;
            conn->body_left = answer.body_bytes;
        }
        size_t skip = conn->body_left < length - at ? conn->body_left : length - at;
        at += skip;
        conn->body_left -= skip;
        if (conn->body_left == 0) {
            answer_done(state, conn, done);
        }
    }
    conn->rest_bytes = length - at;
    memcpy(conn->rest, bytes + at, conn->rest_bytes);
    return true;
}

static bool conn_read(struct state *state, struct conn *conn)
{
    size_t kept = conn->rest_bytes;
    memcpy(state->in, conn->rest, kept);
    ssize_t got = conn->ssl ? bench_tls_receive(conn->ssl, state->in + kept, READ_BYTES - kept)
                            : recv(conn->fd, state->in + kept, READ_BYTES - kept, 0);
    if (got <= 0) {
        return got < 0 && errno == EAGAIN;
    }
    uint64_t now = now_ns();
    uint64_t done = 0;
    if (!answers_walk(state, conn, state->in, kept + (size_t)got, &done)) {
        return false;
    }
    count(&state->worker->answers, done);
    count(&state->worker->bytes, (uint64_t)got);
    if (atomic_load_explicit(&state->plan->phase, memory_order_relaxed) == BENCH_MEASURING) {
        bench_histogram_add(&state->worker->latency_ns, now - conn->sent_ns, done);
    }
    if (conn->waiting == 0 && state->plan->link >= BENCH_LINK_FULL) {
        conn_close(conn);
        return conn_open(state, conn);
    }
    return conn->waiting > 0 || conn_next(state, conn, now);
}

static bool conn_handle(struct state *state, struct conn *conn, uint32_t events)
{
    bool well = true;
    if ((events & EPOLLOUT) != 0) {
        well = conn_flush(state, conn);
    }
    if (well && (events & ~(uint32_t)EPOLLOUT) != 0) {
        well = conn_read(state, conn);
    }
    return well || conn_reopen(state, conn);
}

static bool conns_open(struct state *state)
{
    size_t spacing = state->plan->requests->count / (size_t)state->worker->connections;
    for (int i = 0; i < state->worker->connections; i++) {
        struct conn *conn = &state->conns[i];
        conn->next = (state->worker->first_request + (size_t)i * spacing) % state->plan->requests->count;
        if (!conn_open(state, conn)) {
            return false;
        }
    }
    return true;
}

/* With a rate: sends what is due, as far as connections are free. The time it fell due is kept, late or not. */
static bool due_send(struct state *state, uint64_t now)
{
    while (state->due_ns <= now && state->idle_count > 0) {
        struct conn *conn = state->idle[--state->idle_count];
        conn->is_idle = false;
        if (!conn_send_batch(state, conn, state->due_ns) && !conn_reopen(state, conn)) {
            return false;
        }
        state->due_ns += state->plan->interval_ns;
    }
    return true;
}

/* How long the worker may sleep: to the next due time where there is one. */
static struct timespec nap(const struct state *state)
{
    uint64_t ns = state->plan->spins ? 0 : (uint64_t)IDLE_MS * 1000000U;
    if (state->plan->interval_ns != 0 && state->idle_count > 0) {
        uint64_t now = now_ns();
        uint64_t left = state->due_ns > now ? state->due_ns - now : 0;
        ns = left < ns ? left : ns;
    }
    return (struct timespec){.tv_nsec = (long)ns};
}

static bool is_done(const struct state *state)
{
    return (state->plan->once && state->rested >= state->worker->connections) ||
           atomic_load_explicit(&state->plan->phase, memory_order_acquire) == BENCH_STOPPING;
}

static bool run(struct state *state)
{
    struct epoll_event events[EVENTS_MAX];
    state->due_ns = now_ns();
    while (!is_done(state)) {
        struct timespec timeout = nap(state);
        int ready = epoll_pwait2(state->epoll, events, EVENTS_MAX, &timeout, NULL);
        for (int i = 0; i < ready; i++) {
            if (!conn_handle(state, events[i].data.ptr, events[i].events)) {
                return false;
            }
        }
        if (state->plan->interval_ns != 0 && !due_send(state, now_ns())) {
            return false;
        }
    }
    return true;
}

static void *worker_main(void *arg)
{
    struct bench_worker *worker = arg;
    struct state state = {.worker = worker, .plan = worker->plan, .epoll = epoll_create1(EPOLL_CLOEXEC)};
    state.conns = calloc((size_t)worker->connections, sizeof *state.conns);
    state.idle = calloc((size_t)worker->connections, sizeof(struct conn *));
    state.in = malloc(READ_BYTES);
    bool is_ready = worker->plan->link == BENCH_LINK_PLAIN || bench_tls_init(&state.tls);
    if (!is_ready || state.epoll < 0 || state.conns == NULL || state.idle == NULL || state.in == NULL ||
        !conns_open(&state) || !run(&state)) {
        fprintf(stderr, "load: connection lost for good: %s\n", strerror(errno));
        atomic_store(&worker->failed, true);
    }
    for (int i = 0; state.conns != NULL && i < worker->connections; i++) {
        if (state.conns[i].fd > 0) {
            conn_close(&state.conns[i]);
        }
    }
    bench_tls_deinit(&state.tls);
    close(state.epoll);
    free(state.conns);
    free(state.idle);
    free(state.in);
    return NULL;
}

int bench_worker_start(struct bench_worker *worker)
{
    return pthread_create(&worker->thread, NULL, worker_main, worker);
}
