/* The loop: its phases, descriptors and inbox. Timers and parked work have files of their own.
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

/* ---- descriptors ---- */

enum { LOOP_ALL = LOOP_READ | LOOP_WRITE | LOOP_HANGUP };
_Static_assert((int)LOOP_READ == (int)EPOLLIN && (int)LOOP_WRITE == (int)EPOLLOUT &&
                   (int)LOOP_HANGUP == (int)(EPOLLHUP | EPOLLERR),
               "events are epoll's own bits");

enum status loop_io_start(struct loop *loop, struct loop_io *io, int fd, unsigned interest,
                          loop_io_fn *on_event, struct error *error)
{
    struct epoll_event event = {.events = interest, .data.ptr = io};
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
    struct epoll_event event = {.events = interest, .data.ptr = io};
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

/* ---- the inbox: a lock-free stack of messages from any thread, taken whole and turned around, so that each sender's messages
 * run in the order they were sent. Only the sender that finds the loop not yet woken pays for the eventfd write. ---- */

static void write_event(struct loop *loop)
{
    uint64_t one = 1;
    ssize_t put = write(loop->inbox.event_fd, &one, sizeof one);
    (void)put; /* EAGAIN only when the counter is full, and then the loop is awake */
}

void loop_post(struct loop *loop, struct loop_message *message)
{
    struct loop_inbox *inbox = &loop->inbox;
    struct loop_message *newest = atomic_load_explicit(&inbox->newest, memory_order_relaxed);
    do
        message->next = newest;
    while (!atomic_compare_exchange_weak(&inbox->newest, &newest, message));
    /* `message` may be gone from here on. The order push → woken matches the loop's woken=false → take: one of the
     * two always sees the other. */
    if (!atomic_exchange(&inbox->woken, true))
        write_event(loop);
}

static bool has_messages(const struct loop *loop)
{
    return loop->inbox.taken || atomic_load(&loop->inbox.newest);
}

/* ---- the end of a tick ---- */

void loop_at_tick_end(struct loop *loop, struct loop_tick *tick, loop_tick_fn *on_tick_end)
{
    if (tick->queued)
        return;
    tick->queued = true;
    tick->on_tick_end = on_tick_end;
    TAILQ_INSERT_TAIL(&loop->ticks, tick, link);
}

void loop_tick_cancel(struct loop *loop, struct loop_tick *tick)
{
    if (tick->queued)
        TAILQ_REMOVE(&loop->ticks, tick, link);
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

#define LONGEST_WAIT_NS \
    (3600 * CLOCK_NS_PER_S) /* a timer may be due never; a tick without events does no harm */

/* Until a timer is due to the nanosecond; in whole milliseconds where the kernel (before 5.11) or a sandbox has no epoll_pwait2.
 * Negative: without limit. */
static int poll_events(struct loop *loop, int64_t wait_ns)
{
    static atomic_bool is_coarse;
    int wait_ms = wait_ns < 0 ? -1 : (int)((wait_ns + CLOCK_NS_PER_MS - 1) / CLOCK_NS_PER_MS);
    if (wait_ns > 0 && !atomic_load_explicit(&is_coarse, memory_order_relaxed)) {
        struct timespec wait = {.tv_sec = wait_ns / CLOCK_NS_PER_S, .tv_nsec = wait_ns % CLOCK_NS_PER_S};
        int count = epoll_pwait2(loop->epoll_fd, loop->events, LOOP_EVENTS_PER_TICK, &wait, NULL);
        if (count >= 0 || errno == EINTR)
            return count;
        atomic_store_explicit(&is_coarse, true, memory_order_relaxed);
    }
    return epoll_wait(loop->epoll_fd, loop->events, LOOP_EVENTS_PER_TICK, wait_ms);
}

/* Before it sleeps, a loop lets others run once: where threads outnumber processors, those are the ones that bring it
 * work, and it goes on with a whole batch instead of being put to sleep and woken for each request. Two loops and their
 * clients on two processors: 6.7 µs a request instead of 9.2. Where a processor is free it costs two short calls. */
static void wait_for_events(struct loop *loop, int wait_ms_max)
{
    const struct loop_timers *timers = &loop->timers;
    int64_t wait_ns = wait_ms_max < 0 ? -1 : wait_ms_max * CLOCK_NS_PER_MS;
    if (has_messages(loop) || !TAILQ_EMPTY(&loop->ticks)) {
        wait_ns = 0;
    } else if (timers->count) {
        int64_t left_ns = timers->heap[1]->deadline_ns - clock_mono_ns();
        left_ns = left_ns > 0 ? left_ns : 0;
        left_ns = left_ns < LONGEST_WAIT_NS ? left_ns : LONGEST_WAIT_NS;
        if (wait_ns < 0 || left_ns < wait_ns)
            wait_ns = left_ns;
    }
    int count = poll_events(loop, 0);
    if (count == 0 && wait_ns != 0) {
        sched_yield();
        count = poll_events(loop, wait_ns);
    }
    loop->event_count = count > 0 ? count : 0; /* EINTR is an empty tick */
    loop->has_more = count == LOOP_EVENTS_PER_TICK;
    loop->now_ns = clock_mono_ns();
}

static void run_io(struct loop *loop)
{
    for (loop->event_at = 0; loop->event_at < loop->event_count;) {
        struct epoll_event *event = &loop->events[loop->event_at++];
        struct loop_io *io = event->data.ptr;
        if (io)
            io->on_event(io, event->events & LOOP_ALL);
    }
    loop->event_count = loop->event_at = 0;
}

static void run_inbox(struct loop *loop)
{
    struct loop_inbox *inbox = &loop->inbox;
    struct loop_message *newest = NULL, *next;
    /* Also before the sender has set `woken`: it may have been interrupted there. */
    if (!inbox->taken && (atomic_load_explicit(&inbox->newest, memory_order_relaxed) ||
                          atomic_load_explicit(&inbox->woken, memory_order_relaxed))) {
        atomic_store(&inbox->woken, false);
        newest = atomic_exchange(&inbox->newest, NULL);
    }
    for (; newest; newest = next) {
        next = newest->next;
        newest->next = inbox->taken;
        inbox->taken = newest;
    }
    for (unsigned i = 0; i < LOOP_MESSAGES_PER_TICK && inbox->taken; i++) {
        struct loop_message *message = inbox->taken;
        inbox->taken = message->next;
        message->on_message(loop, message);
    }
}

/* Each once: one that is queued again, and all after it, wait for the next tick. */
static void run_tick_ends(struct loop *loop)
{
    struct loop_tick *tick;
    loop->tick_number++;
    while ((tick = TAILQ_FIRST(&loop->ticks)) != NULL && tick->ran_in != loop->tick_number) {
        loop_tick_cancel(loop, tick);
        tick->ran_in = loop->tick_number;
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
    run_inbox(loop);
    loop_timers_run(loop);
    run_tick_ends(loop);
    free_garbage(loop);
}

void loop_run(struct loop *loop)
{
    while (!atomic_load_explicit(&loop->stopping, memory_order_acquire))
        loop_run_once(loop, -1);
}

/* ---- life ---- */

static void on_inbox_event(struct loop_io *io, unsigned events)
{
    (void)events;
    uint64_t count;
    ssize_t got = read(io->fd, &count, sizeof count);
    (void)got; /* the counter's value means nothing: the inbox phase of this tick takes what is there */
}

struct loop *loop_create(unsigned index, unsigned parked_max)
{
    struct loop *loop = memory_zalloc(sizeof *loop);
    struct error error;
    loop->index = index;
    TAILQ_INIT(&loop->ticks);
    loop->now_ns = clock_mono_ns();
    loop->parking.slot_max = parked_max ? parked_max : LOOP_PARKED_MAX_DEFAULT;
    loop->inbox.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
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
    bool some = has_messages(loop) || !TAILQ_EMPTY(&loop->ticks) || loop->garbage_count;
    while (has_messages(loop))
        run_inbox(loop);
    run_tick_ends(loop);
    free_garbage(loop);
    return some;
}

void loop_destroy(struct loop *loop)
{
    while (loop_settle(loop))
        ;
    for (uint32_t page = 0; page * LOOP_PARKED_PAGE < loop->parking.slot_count; page++)
        free(loop->parking.pages[page]);
    free(loop->parking.pages);
    free(loop->timers.heap);
    close(loop->inbox.event_fd);
    close(loop->epoll_fd);
    free(loop->garbage);
    free(loop);
}

void loop_stop(struct loop *loop)
{
    atomic_store_explicit(&loop->stopping, true, memory_order_release);
    write_event(loop);
}

unsigned loop_index(const struct loop *loop)
{
    return loop->index;
}

int64_t loop_now_ns(const struct loop *loop)
{
    return loop->now_ns;
}

bool loop_has_more(const struct loop *loop)
{
    return loop->has_more;
}
