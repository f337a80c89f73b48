/*
 * One thread of the load generator: its connections, its epoll, its counts.
 *
 * A connection sends `depth` requests in one write, reads until all are answered, and sends the next ones; so
 * depth 1 is one at a time, and the load is closed (a slow server is asked less). With a rate the load is open:
 * requests fall due by the clock, take any connection that is free, and their latency counts from when they were
 * due. The main thread reads the counts while the worker runs: they are atomics with one writer. Everything else
 * is the worker's own.
 */
#ifndef BENCH_LOAD_WORKER_H
#define BENCH_LOAD_WORKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "load_requests.h"
#include "load_stats.h"
#include "load_wire.h"

enum bench_phase { BENCH_WARMING, BENCH_MEASURING, BENCH_STOPPING };
enum { BENCH_ACCEPTED_MAX = 8 };

/* How connections are made. */
enum bench_link {
    BENCH_LINK_PLAIN,
    BENCH_LINK_TLS,     /* kept open */
    BENCH_LINK_FULL,    /* TLS, a new one with a full handshake for each batch */
    BENCH_LINK_RESUMED, /* the same with a resumed session */
};

/* What all workers share; only `phase` and `taken` change while they run. */
struct bench_plan {
    const struct bench_requests *requests;
    bench_wire_head_fn *head;
    struct sockaddr_storage address;
    socklen_t address_bytes;
    size_t depth;
    enum bench_link link;
    bool spins;                       /* polls without ever sleeping */
    bool once;                        /* every request is sent one time, then all is done */
    uint64_t interval_ns;             /* between two requests of a worker; 0 = as fast as answers come */
    int accepted[BENCH_ACCEPTED_MAX]; /* statuses that are no error, 0 ends them */
    _Atomic size_t taken;             /* with `once`: how many requests were handed out */
    _Atomic int phase;
};

struct bench_worker {
    pthread_t thread;
    struct bench_plan *plan;
    int connections;
    size_t first_request;
    _Atomic uint64_t answers;
    _Atomic uint64_t bytes; /* received, heads and bodies */
    _Atomic uint64_t errors;
    _Atomic int first_bad_status; /* 0 none, -1 a broken connection, else what was answered */
    _Atomic bool failed;          /* it could not go on, and said why on stderr */
    struct bench_histogram latency_ns;
};

/* 0, or an errno. The worker then belongs to its thread until joined. */
int bench_worker_start(struct bench_worker *worker);

#endif
