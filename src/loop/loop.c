/* The loop: its phases and descriptors. Timers, the inbox and parked work have files of their own.
 *
 * One idea: a tick is a fixed row of bounded phases, so that no source of work can starve another, and everything
 * that must outlive a callback is freed only when the tick is over. */
#include "loop/loop_inside.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

static uint32_t epoll_mask(unsigned interest)
{
    return (interest & LOOP_READ ? (uint32_t)EPOLLIN : 0u) |
           (interest & LOOP_WRITE ? (uint32_t)EPOLLOUT : 0u);
}

static unsigned events_of(uint32_t mask)
{
    unsigned events = 0;
    if (mask & EPOLLIN)
        events |= LOOP_READ;
    if (mask & EPOLLOUT)
        events |= LOOP_WRITE;
    if (mask & (EPOLLHUP | EPOLLERR))
        events |= LOOP_HANGUP;
    return events;
}

enum status loop_io_start(struct loop *loop, struct loop_io *io, int fd, unsigned interest,
                          loop_io_fn *on_event, struct error *error)
{
    struct epoll_event event = {.events = epoll_mask(interest), .data.ptr = io};
    io->fd = fd;
    io->interest = interest;
    io->on_event = on_event;
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return error_set(error, STATUS_IO, "cannot watch a descriptor: %s", strerror(errno));
    return STATUS_OK;
}

void loop_io_change(struct loop *loop, struct loop_io *io, unsigned interest)
{
    if (io->interest == interest)
        return;
    struct epoll_event event = {.events = epoll_mask(interest), .data.ptr = io};
    io->interest = interest;
    epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, io->fd, &event);
}

void loop_io_stop(struct loop *loop, struct loop_io *io)
{
    epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, io->fd, NULL);
    for (int i = loop->event_at; i < loop->event_count; i++)
        if (loop->events[i].data.ptr == io)
            loop->events[i].data.ptr = NULL;
}

void loop_at_tick_end(struct loop *loop, struct loop_tick *tick, loop_tick_fn *on_tick_end)
{
    if (tick->queued)
        return;
    tick->queued = true;
    tick->on_tick_end = on_tick_end;
    tick->next = NULL;
    *loop->ticks_tail = tick;
    loop->ticks_tail = &tick->next;
}

void loop_tick_cancel(struct loop *loop, struct loop_tick *tick)
{
    if (!tick->queued)
        return;
    struct loop_tick **at = &loop->ticks;
    while (*at != tick)
        at = &(*at)->next;
    *at = tick->next;
    if (loop->ticks_tail == &tick->next)
        loop->ticks_tail = at;
    tick->queued = false;
}

void loop_free_later(struct loop *loop, void *memory, void (*free_fn)(void *memory))
{
    if (loop->garbage_count == loop->garbage_capacity) {
        loop->garbage_capacity = loop->garbage_capacity ? loop->garbage_capacity * 2 : 64;
        loop->garbage = memory_realloc_array(loop->garbage, loop->garbage_capacity, sizeof *loop->garbage);
    }
    loop->garbage[loop->garbage_count++] = (struct loop_garbage){memory, free_fn};
}

/* ---- the phases, in order ---- */

static int poll_events(struct loop *loop, int wait_ms)
{
    return epoll_wait(loop->epoll_fd, loop->events, LOOP_EVENTS_PER_TICK, wait_ms);
}

static int wait_ms_of(const struct loop *loop, int wait_ms_max)
{
    int wait_ms = wait_ms_max < 0 ? INT_MAX : wait_ms_max;
    int64_t next_ns = loop_timers_next_ns(&loop->timers);
    if (loop_inbox_has_some(&loop->inbox))
        return 0;
    if (next_ns != CLOCK_NEVER && clock_ms_left(next_ns) < wait_ms)
        wait_ms = clock_ms_left(next_ns);
    return wait_ms == INT_MAX ? -1 : wait_ms;
}

/* Before it sleeps, a loop lets others run once: where threads outnumber processors, those are the ones that bring it
 * work, and it goes on with a whole batch instead of being put to sleep and woken for each request. Two loops and their
 * clients on two processors: 6.7 µs a request instead of 9.2. Where a processor is free it costs two short calls. */
static void wait_for_events(struct loop *loop, int wait_ms_max)
{
    int wait_ms = wait_ms_of(loop, wait_ms_max);
    int count = poll_events(loop, 0);
    if (count == 0 && wait_ms != 0) {
        sched_yield();
        count = poll_events(loop, wait_ms);
    }
    loop->event_count = count > 0 ? count : 0; /* EINTR is an empty tick */
    loop->now_ns = clock_mono_ns();
}

static void run_io(struct loop *loop)
{
    for (loop->event_at = 0; loop->event_at < loop->event_count;) {
        struct epoll_event *event = &loop->events[loop->event_at++];
        struct loop_io *io = event->data.ptr;
        if (io)
            io->on_event(io, events_of(event->events));
    }
    loop->event_count = loop->event_at = 0;
}

static void run_tick_ends(struct loop *loop)
{
    struct loop_tick *tick;
    while ((tick = loop->ticks) != NULL) {
        loop->ticks = tick->next;
        if (!loop->ticks)
            loop->ticks_tail = &loop->ticks;
        tick->queued = false;
        tick->on_tick_end(tick);
    }
}

static void free_garbage(struct loop *loop)
{
    for (size_t i = 0; i < loop->garbage_count; i++)
        loop->garbage[i].free_fn(loop->garbage[i].memory);
    loop->garbage_count = 0;
}

void loop_run_once(struct loop *loop, int wait_ms_max)
{
    wait_for_events(loop, wait_ms_max);
    run_io(loop);
    loop_inbox_run(loop, LOOP_MESSAGES_PER_TICK);
    loop_timers_run(loop, LOOP_TIMERS_PER_TICK);
    run_tick_ends(loop);
    free_garbage(loop);
}

void loop_run(struct loop *loop)
{
    loop->thread = pthread_self();
    atomic_store(&loop->has_thread, true);
    while (!atomic_load_explicit(&loop->stopping, memory_order_acquire))
        loop_run_once(loop, -1);
    atomic_store(&loop->has_thread, false);
}

/* ---- life ---- */

static void on_inbox_event(struct loop_io *io, unsigned events)
{
    (void)events;
    uint64_t count;
    ssize_t got = read(io->fd, &count, sizeof count);
    (void)got; /* the counter's value means nothing: the inbox phase of this tick takes what is there */
}

struct loop *loop_create(const struct loop_options *options)
{
    struct loop *loop = memory_zalloc(sizeof *loop);
    struct error error;
    loop->index = options->index;
    loop->ticks_tail = &loop->ticks;
    loop->now_ns = clock_mono_ns();
    loop_inbox_init(&loop->inbox);
    loop_parking_init(&loop->parking, options->parked_max ? options->parked_max : LOOP_PARKED_MAX_DEFAULT);
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0 || loop->inbox.event_fd < 0 ||
        loop_io_start(loop, &loop->inbox_io, loop->inbox.event_fd, LOOP_READ, on_inbox_event, &error) !=
            STATUS_OK) {
        log_error("loop_create_failed",
                  LOG_CSTR("error", "no descriptors left: raise the limit (ulimit -n)"));
        abort();
    }
    return loop;
}

bool loop_settle(struct loop *loop)
{
    bool some = loop_inbox_has_some(&loop->inbox) || loop->ticks || loop->garbage_count;
    while (loop_inbox_has_some(&loop->inbox))
        loop_inbox_run(loop, LOOP_MESSAGES_PER_TICK);
    run_tick_ends(loop);
    free_garbage(loop);
    return some;
}

void loop_destroy(struct loop *loop)
{
    while (loop_settle(loop))
        ;
    loop_inbox_deinit(&loop->inbox);
    loop_timers_deinit(&loop->timers);
    loop_parking_deinit(&loop->parking);
    close(loop->epoll_fd);
    free(loop->garbage);
    free(loop);
}

static void on_stop_message(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    free(message);
}

void loop_stop(struct loop *loop)
{
    atomic_store_explicit(&loop->stopping, true, memory_order_release);
    struct loop_message *message = memory_alloc(sizeof *message);
    message->on_message = on_stop_message;
    loop_post(loop, message);
}

unsigned loop_index(const struct loop *loop)
{
    return loop->index;
}

int64_t loop_now_ns(const struct loop *loop)
{
    return loop->now_ns;
}

bool loop_is_current(const struct loop *loop)
{
    return atomic_load(&loop->has_thread) && pthread_equal(loop->thread, pthread_self());
}
