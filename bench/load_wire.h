/*
 * Framing of answers, for the load generator: where an answer's head ends, its status, how many bytes follow.
 * Two protocols, one shape: HTTP/1.1 with Content-Length, and RESP2 as Redis answers a GET. It understands
 * what the measured servers send, not everything a server may send. Pure functions; any thread.
 */
#ifndef BENCH_LOAD_WIRE_H
#define BENCH_LOAD_WIRE_H

#include <stddef.h>
#include <sys/types.h>

enum { BENCH_HEAD_BYTES_MAX = 8192 };

struct bench_answer {
    int status;        /* as HTTP; RESP: 200 a value, 404 nil, 500 an error */
    size_t body_bytes; /* what follows the head */
};

/* Where the last head ended and had its Content-Length: the next one is nearly always the same shape. */
struct bench_wire_hint {
    size_t head_bytes;
    size_t length_at;
};

/* Returns the head's length, 0 when it is not whole yet, -1 when this is not the protocol expected. */
typedef ssize_t bench_wire_head_fn(struct bench_wire_hint *hint, const char *bytes, size_t length,
                                   struct bench_answer *answer);

bench_wire_head_fn bench_wire_http_head;
bench_wire_head_fn bench_wire_resp_head;

#endif
