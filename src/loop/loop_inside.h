/* The loop's own layout, for the files of this folder only. */
#ifndef FRESHET_LOOP_LOOP_INSIDE_H
#define FRESHET_LOOP_LOOP_INSIDE_H

#include <stdatomic.h>
#include <sys/epoll.h>

#include "loop/loop.h"

enum {
    LOOP_EVENTS_PER_TICK = 256,   /* epoll events taken at once */
    LOOP_MESSAGES_PER_TICK = 256, /* inbox messages run before io gets its turn again */
    LOOP_TIMERS_PER_TICK = 256,
    LOOP_PARKED_MAX_DEFAULT = 65536,
};

/* Messages pushed by any thread: a stack of the newest, taken whole by the loop and turned around. */
struct loop_inbox {
    _Atomic(struct loop_message *) newest;
    atomic_bool woken; /* an eventfd write is under way or was not read yet: the next sender need not write */
    int event_fd;
    struct loop_message *taken; /* in order; the loop's own */
};

/* A 4-ary heap of running timers: shallow, and a moved deadline touches few lines. heap[0] is unused. */
struct loop_timers {
    struct loop_timer **heap;
    size_t count, capacity;
    bool closed;
};

struct loop_parked {
    void *owner;
    loop_park_timeout_fn *on_timeout;
    struct loop_timer timer;
    struct loop *loop;
    uint32_t slot;       /* its own number */
    uint32_t generation; /* odd = occupied */
    uint32_t next_free;  /* slot + 1, 0 = none */
};

/* Slots stand in pages that never move, since their timers are linked into the heap. */
enum { LOOP_PARKED_PAGE = 256 };
struct loop_parking {
    struct loop_parked **pages;
    uint32_t slot_count, slot_max, first_free; /* first_free: slot + 1, 0 = none */
    size_t occupied;
};

struct loop_garbage {
    void *memory;
    void (*free_fn)(void *memory);
};

struct loop {
    int epoll_fd;
    unsigned index;
    int64_t now_ns;
    atomic_bool stopping;
    struct epoll_event events[LOOP_EVENTS_PER_TICK];
    bool has_more;             /* events than it took */
    int event_count, event_at; /* of the io phase: loop_io_stop() drops what is still to come */
    struct loop_io inbox_io;
    struct loop_inbox inbox;
    struct loop_timers timers;
    TAILQ_HEAD(, loop_tick) ticks;
    uint64_t tick_number;
    struct loop_garbage *garbage;
    size_t garbage_count, garbage_capacity;
    struct loop_parking parking;
};

/* The loop has ended: none runs, and none can be started. Owners may be freed in any order, with or without stopping them. */
void loop_timers_close(struct loop_timers *timers);
void loop_timers_run(struct loop *loop); /* those that are due */

#endif
