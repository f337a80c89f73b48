/* Timers: an intrusive 4-ary heap by deadline. Starting a running timer moves it; nothing is allocated per timer. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "loop/loop_inside.h"

enum { ARITY = 4 };

/* Places are 1-based so that heap_at 0 can mean "not running": children of i are 4(i-1)+2 … 4(i-1)+5. */
static size_t parent_of(size_t at)
{
    return (at - 2) / ARITY + 1;
}

static void put_at(struct loop_timers *timers, size_t at, struct loop_timer *timer)
{
    timers->heap[at] = timer;
    timer->heap_at = at;
}

static void sift_up(struct loop_timers *timers, size_t at, struct loop_timer *timer)
{
    while (at > 1) {
        size_t parent = parent_of(at);
        if (timers->heap[parent]->deadline_ns <= timer->deadline_ns)
            break;
        put_at(timers, at, timers->heap[parent]);
        at = parent;
    }
    put_at(timers, at, timer);
}

static void sift_down(struct loop_timers *timers, size_t at, struct loop_timer *timer)
{
    for (;;) {
        size_t first = ARITY * (at - 1) + 2, best = 0;
        for (size_t child = first; child < first + ARITY && child <= timers->count; child++)
            if (!best || timers->heap[child]->deadline_ns < timers->heap[best]->deadline_ns)
                best = child;
        if (!best || timers->heap[best]->deadline_ns >= timer->deadline_ns)
            break;
        put_at(timers, at, timers->heap[best]);
        at = best;
    }
    put_at(timers, at, timer);
}

void loop_timer_start(struct loop *loop, struct loop_timer *timer, int64_t deadline_ns, loop_timer_fn *on_due)
{
    struct loop_timers *timers = &loop->timers;
    if (timers->closed)
        return;
    timer->on_due = on_due;
    if (timer->heap_at) {
        bool earlier = deadline_ns < timer->deadline_ns;
        timer->deadline_ns = deadline_ns;
        if (earlier)
            sift_up(timers, timer->heap_at, timer);
        else
            sift_down(timers, timer->heap_at, timer);
        return;
    }
    timer->deadline_ns = deadline_ns;
    if (timers->count + 2 > timers->capacity) {
        timers->capacity = timers->capacity ? timers->capacity * 2 : 64;
        timers->heap = memory_realloc_array(timers->heap, timers->capacity, sizeof(struct loop_timer *));
    }
    sift_up(timers, ++timers->count, timer);
}

void loop_timer_stop(struct loop *loop, struct loop_timer *timer)
{
    struct loop_timers *timers = &loop->timers;
    size_t at = timer->heap_at;
    if (!at)
        return;
    timer->heap_at = 0;
    struct loop_timer *last = timers->heap[timers->count--];
    if (last == timer)
        return;
    if (at > 1 && last->deadline_ns < timers->heap[parent_of(at)]->deadline_ns)
        sift_up(timers, at, last);
    else
        sift_down(timers, at, last);
}

void loop_timers_close(struct loop_timers *timers)
{
    for (; timers->count; timers->count--)
        timers->heap[timers->count]->heap_at = 0;
    timers->closed = true;
}

void loop_timers_run(struct loop *loop)
{
    struct loop_timers *timers = &loop->timers;
    for (unsigned i = 0; i < LOOP_TIMERS_PER_TICK && timers->count; i++) {
        struct loop_timer *due = timers->heap[1];
        if (due->deadline_ns > loop->now_ns)
            return;
        loop_timer_stop(loop, due);
        due->on_due(due);
    }
}
