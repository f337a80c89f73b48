/* The loop: phases, descriptors, timers, inbox, parked work, freeing. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "loop/loop_inside.h"

static struct loop *new_loop(unsigned parked_max)
{
    return loop_create(3, parked_max);
}

struct seen {
    struct loop_io io;
    struct loop *loop;
    struct seen *stops;
    unsigned events, calls;
};

static void on_io(struct loop_io *io, unsigned events)
{
    struct seen *seen = (struct seen *)io;
    seen->events |= events;
    seen->calls++;
    if (seen->stops)
        loop_io_stop(seen->loop, &seen->stops->io);
}

static void a_readable_descriptor_is_reported_until_it_is_read(void **state)
{
    (void)state;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    struct loop *loop = new_loop(0);
    struct seen seen = {.loop = loop};
    assert_int_equal(loop_io_start(loop, &seen.io, pair[0], LOOP_READ, on_io, NULL), STATUS_OK);
    loop_run_once(loop, 0);
    assert_int_equal(seen.calls, 0);
    assert_int_equal(write(pair[1], "x", 1), 1);
    loop_run_once(loop, 1000);
    loop_run_once(loop, 0);
    assert_int_equal(seen.calls, 2);
    loop_io_change(loop, &seen.io, LOOP_WRITE);
    loop_run_once(loop, 1000);
    assert_true(seen.events & LOOP_WRITE);
    close(pair[1]);
    loop_run_once(loop, 1000);
    assert_true(seen.events & LOOP_HANGUP);
    loop_io_stop(loop, &seen.io);
    close(pair[0]);
    loop_destroy(loop);
}

static void a_stopped_descriptor_gets_no_event_of_the_same_tick(void **state)
{
    (void)state;
    int a[2], b[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, a), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, b), 0);
    struct loop *loop = new_loop(0);
    struct seen first = {.loop = loop}, second = {.loop = loop};
    first.stops = &second;
    second.stops = &first;
    assert_int_equal(loop_io_start(loop, &first.io, a[0], LOOP_READ, on_io, NULL), STATUS_OK);
    assert_int_equal(loop_io_start(loop, &second.io, b[0], LOOP_READ, on_io, NULL), STATUS_OK);
    assert_int_equal(write(a[1], "x", 1), 1);
    assert_int_equal(write(b[1], "x", 1), 1);
    loop_run_once(loop, 1000);
    assert_int_equal(first.calls + second.calls, 1);
    loop_io_stop(loop, first.calls ? &first.io : &second.io);
    for (int i = 0; i < 2; i++)
        close(a[i]), close(b[i]);
    loop_destroy(loop);
}

enum { TIMERS = 500 };
struct timed {
    struct loop_timer timer;
    int64_t *last_ns;
    unsigned *fired;
};

static void on_timed(struct loop_timer *timer)
{
    struct timed *timed = (struct timed *)timer;
    assert_true(timer->deadline_ns >= *timed->last_ns);
    *timed->last_ns = timer->deadline_ns;
    ++*timed->fired;
}

static void timers_fire_in_order_however_they_were_moved_or_stopped(void **state)
{
    (void)state;
    struct loop *loop = new_loop(0);
    static struct timed timed[TIMERS];
    int64_t last_ns = 0, now_ns = clock_mono_ns();
    unsigned fired = 0, stopped = 0;
    for (int i = 0; i < TIMERS; i++) {
        timed[i] = (struct timed){.last_ns = &last_ns, .fired = &fired};
        loop_timer_start(loop, &timed[i].timer, now_ns + (int64_t)(random_u64() % 1000), on_timed);
    }
    for (int i = 0; i < TIMERS; i += 3)
        loop_timer_start(loop, &timed[i].timer, now_ns + (int64_t)(random_u64() % 1000), on_timed);
    for (int i = 1; i < TIMERS; i += 5, stopped++)
        loop_timer_stop(loop, &timed[i].timer);
    loop_timer_stop(loop, &timed[1].timer); /* twice does nothing */
    while (fired + stopped < TIMERS)
        loop_run_once(loop, 10);
    loop_run_once(loop, 0);
    assert_int_equal(fired + stopped, TIMERS);
    loop_destroy(loop);
}

enum { SENDERS = 4, MESSAGES = 20000 };
struct numbered {
    struct loop_message message;
    unsigned sender, number;
};
static unsigned next_of[SENDERS];
static unsigned received;

static void on_numbered(struct loop *loop, struct loop_message *message)
{
    struct numbered *numbered = (struct numbered *)message;
    assert_int_equal(numbered->number, next_of[numbered->sender]++);
    free(numbered);
    if (++received == SENDERS * MESSAGES)
        loop_stop(loop);
}

struct sender {
    struct loop *loop;
    unsigned index;
};

static void *send_many(void *arg)
{
    struct sender *sender = arg;
    for (unsigned i = 0; i < MESSAGES; i++) {
        struct numbered *numbered = malloc(sizeof *numbered);
        *numbered =
            (struct numbered){.message.on_message = on_numbered, .sender = sender->index, .number = i};
        loop_post(sender->loop, &numbered->message);
    }
    return NULL;
}

static void messages_of_each_sender_arrive_in_order_and_none_is_lost(void **state)
{
    (void)state;
    struct loop *loop = new_loop(0);
    pthread_t threads[SENDERS];
    struct sender senders[SENDERS];
    for (unsigned i = 0; i < SENDERS; i++) {
        senders[i] = (struct sender){loop, i};
        pthread_create(&threads[i], NULL, send_many, &senders[i]);
    }
    loop_run(loop);
    for (unsigned i = 0; i < SENDERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(received, SENDERS * MESSAGES);
    loop_destroy(loop);
}

static unsigned orphans;
static void on_orphan(struct loop *loop, struct loop_message *message)
{
    (void)loop, (void)message;
    orphans++;
}

static void a_message_to_an_ended_loop_runs_when_it_is_destroyed(void **state)
{
    (void)state;
    struct loop *loop = new_loop(0);
    struct loop_message message = {.on_message = on_orphan};
    loop_post(loop, &message);
    loop_destroy(loop);
    assert_int_equal(orphans, 1);
}

static void on_timeout(void *owner)
{
    ++*(int *)owner;
}

static void a_parked_owner_is_found_once_by_message_or_by_timer(void **state)
{
    (void)state;
    struct loop *loop = new_loop(2);
    int timeouts = 0, other = 0;
    struct loop_park_ref early, late, refused;
    assert_true(loop_park(loop, &timeouts, clock_deadline_ms(0), on_timeout, &early));
    assert_true(loop_park(loop, &other, CLOCK_NEVER, on_timeout, &late));
    assert_false(loop_park(loop, &other, CLOCK_NEVER, on_timeout, &refused)); /* C7: bounded */
    assert_ptr_equal(loop_park_peek(late), &other);
    while (!timeouts)
        loop_run_once(loop, 10);
    assert_null(loop_park_take(early)); /* timed out: too late */
    assert_true(loop_park(loop, &timeouts, clock_deadline_ms(60000), on_timeout, &refused));
    assert_null(loop_park_take(early)); /* the slot is somebody else's now */
    assert_ptr_equal(loop_park_take(late), &other);
    assert_null(loop_park_take(late));
    assert_ptr_equal(loop_park_take(refused), &timeouts);
    loop_run_once(loop, 0);
    assert_int_equal(timeouts, 1);
    assert_int_equal(loop->parking.occupied, 0);
    assert_null(loop_park_take((struct loop_park_ref){.loop = loop}));
    loop_destroy(loop);
}

static void ten_thousand_can_be_parked_and_their_slots_are_used_again(void **state)
{
    (void)state;
    enum { MANY = 10000 };
    static struct loop_park_ref refs[MANY];
    struct loop *loop = new_loop(0);
    int owner = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MANY; i++)
            assert_true(loop_park(loop, &owner, clock_deadline_ms(60000 + i), on_timeout, &refs[i]));
        assert_int_equal(loop->parking.occupied, MANY);
        for (int i = 0; i < MANY; i++)
            assert_non_null(loop_park_take(refs[i]));
    }
    loop_destroy(loop);
}

static int order[4], order_count;
static struct loop_tick ticks[3];
static struct loop *tick_loop;
static void on_tick(struct loop_tick *tick)
{
    order[order_count++] = (int)(tick - ticks);
}
static void free_number(void *memory)
{
    (void)memory;
    order[order_count++] = 9;
}
static void on_tick_message(struct loop *loop, struct loop_message *message)
{
    (void)message;
    loop_free_later(loop, NULL, free_number);
    for (int i = 0; i < 3; i++)
        loop_at_tick_end(loop, &ticks[i], on_tick);
    loop_at_tick_end(loop, &ticks[0], on_tick); /* queued once */
    loop_tick_cancel(loop, &ticks[1]);
}

static void on_tick_again(struct loop_tick *tick)
{
    order_count++;
    loop_at_tick_end(tick_loop, tick, on_tick_again);
}

static void a_tick_end_that_asks_for_another_has_it_in_the_next_tick(void **state)
{
    (void)state;
    struct loop_tick again = {0};
    tick_loop = new_loop(0);
    order_count = 0;
    loop_at_tick_end(tick_loop, &again, on_tick_again);
    for (int tick = 1; tick <= 3; tick++) {
        loop_run_once(tick_loop, -1); /* does not sleep */
        assert_int_equal(order_count, tick);
    }
    loop_tick_cancel(tick_loop, &again);
    order_count = 0;
    loop_destroy(tick_loop);
}

static void tick_ends_run_once_in_order_and_before_freeing(void **state)
{
    (void)state;
    tick_loop = new_loop(0);
    struct loop_message message = {.on_message = on_tick_message};
    loop_post(tick_loop, &message);
    loop_run_once(tick_loop, 100);
    assert_int_equal(order_count, 3);
    assert_int_equal(order[0], 0);
    assert_int_equal(order[1], 2);
    assert_int_equal(order[2], 9);
    loop_destroy(tick_loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_readable_descriptor_is_reported_until_it_is_read),
        cmocka_unit_test(a_stopped_descriptor_gets_no_event_of_the_same_tick),
        cmocka_unit_test(timers_fire_in_order_however_they_were_moved_or_stopped),
        cmocka_unit_test(messages_of_each_sender_arrive_in_order_and_none_is_lost),
        cmocka_unit_test(a_message_to_an_ended_loop_runs_when_it_is_destroyed),
        cmocka_unit_test(a_parked_owner_is_found_once_by_message_or_by_timer),
        cmocka_unit_test(ten_thousand_can_be_parked_and_their_slots_are_used_again),
        cmocka_unit_test(tick_ends_run_once_in_order_and_before_freeing),
        cmocka_unit_test(a_tick_end_that_asks_for_another_has_it_in_the_next_tick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
