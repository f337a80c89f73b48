/* The event loop: one per core, one thread each, nothing shared but messages.
 *
 * loop_run_once() is a screen of named, bounded phases, the same as docs/LOOP.md lists:
 *     wait → io → inbox → timers → tick end → free
 * Everything here is called on the loop's own thread unless marked "any thread". Callbacks never block. Nothing is
 * freed inside a callback: what is done with is handed to loop_free_later() and freed when the tick is over. */
#ifndef FRESHET_LOOP_LOOP_H
#define FRESHET_LOOP_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/status.h"

struct loop;

/* ---- io: level-triggered readiness of one descriptor; embedded in its owner ---- */
enum {
    LOOP_READ = 0x1,
    LOOP_WRITE = 0x4,
    LOOP_HANGUP = 0x18 /* reported, never asked for: peer gone or error */
};

struct loop_io;
typedef void loop_io_fn(struct loop_io *io, unsigned events);
struct loop_io {
    int fd;
    unsigned interest; /* LOOP_READ | LOOP_WRITE as registered */
    loop_io_fn *on_event;
};
enum status loop_io_start(struct loop *loop, struct loop_io *io, int fd, unsigned interest,
                          loop_io_fn *on_event, struct error *error) MUST_CHECK;
void loop_io_change(struct loop *loop, struct loop_io *io, unsigned interest); /* no syscall when unchanged */
void loop_io_stop(struct loop *loop, struct loop_io *io); /* before close(); drops this tick's events, too */

/* ---- timers: embedded, at most one deadline each; starting again moves it ---- */
struct loop_timer;
typedef void loop_timer_fn(struct loop_timer *timer);
struct loop_timer {
    int64_t deadline_ns; /* monotonic */
    loop_timer_fn *on_due;
    size_t heap_at; /* 1-based place in the loop's heap, 0 = not running: zero-initialise */
};
void loop_timer_start(struct loop *loop, struct loop_timer *timer, int64_t deadline_ns,
                      loop_timer_fn *on_due);
void loop_timer_stop(struct loop *loop, struct loop_timer *timer);

/* ---- inbox: messages from any thread, in order per sender ---- */
struct loop_message;
typedef void loop_message_fn(struct loop *loop, struct loop_message *message);
struct loop_message {
    struct loop_message *next;
    loop_message_fn *on_message; /* runs on the loop; the message is the callee's from then on */
};
/* Any thread. Lock-free; the loop is woken by one eventfd write however many messages wait. After the loop has
 * ended, messages are still taken and run by loop_destroy(), so that none is lost or leaked. */
void loop_post(struct loop *loop, struct loop_message *message);

/* ---- tick end: run once after this tick's events (to write out what several events gathered). One that asks for it again while it
 * runs, or after, has it in the next tick, which does not sleep. ---- */
struct loop_tick;
typedef void loop_tick_fn(struct loop_tick *tick);
struct loop_tick {
    TAILQ_ENTRY(loop_tick) link;
    loop_tick_fn *on_tick_end;
    uint64_t ran_in; /* the tick */
    bool queued;
};
void loop_at_tick_end(struct loop *loop, struct loop_tick *tick, loop_tick_fn *on_tick_end);
void loop_tick_cancel(struct loop *loop, struct loop_tick *tick);

/* ---- end-of-tick freeing ---- */
void loop_free_later(struct loop *loop, void *memory, void (*free_fn)(void *memory));

/* ---- parked work: an owner waiting for a message or its timer, whichever is first, exactly once ----
 * Others refer to it by (loop, slot, generation), never by pointer: a reference to something that is gone finds
 * nothing. At most parked_max of loop_create() at once (C7). */
struct loop_park_ref {
    struct loop *loop;
    uint32_t slot;
    uint32_t generation; /* 0 = no reference */
};
typedef void loop_park_timeout_fn(void *owner);
/* False when the bound is reached: answer 503. deadline_ns may be CLOCK_NEVER, on_timeout then NULL. It runs after the slot is free. */
bool loop_park(struct loop *loop, void *owner, int64_t deadline_ns, loop_park_timeout_fn *on_timeout,
               struct loop_park_ref *ref);
/* On ref.loop's thread: the owner, now unparked, or NULL when it timed out, was cancelled or taken before. */
void *loop_park_take(struct loop_park_ref ref);
void *loop_park_peek(struct loop_park_ref ref); /* the same without unparking */

/* ---- the loop itself ---- */
/* `index`: its number in its group; parked_max 0 = 65,536. Aborts without memory or descriptors. */
struct loop *loop_create(unsigned index, unsigned parked_max);
void loop_destroy(struct loop *loop);                   /* after its thread ended */
void loop_run(struct loop *loop);                       /* until loop_stop() */
void loop_run_once(struct loop *loop, int wait_ms_max); /* for tests and drains */
void loop_stop(struct loop *loop);                      /* any thread */
/* After its thread ended: runs and frees what is left. Was there anything? */
bool loop_settle(struct loop *loop);
unsigned loop_index(const struct loop *loop);
int64_t loop_now_ns(const struct loop *loop); /* the time this tick began; no syscall */
bool loop_has_more(const struct loop *loop);  /* than the events that this tick took */

#endif
