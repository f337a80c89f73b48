/* The inbox: a lock-free stack of messages from any thread, taken whole by the loop and turned around, so that each
 * sender's messages run in the order they were sent. Woken once: only the sender that finds nobody awake pays for
 * the eventfd write. */
#include <sys/eventfd.h>
#include <unistd.h>

#include "loop/loop_inside.h"

void loop_inbox_init(struct loop_inbox *inbox)
{
    atomic_init(&inbox->newest, NULL);
    atomic_init(&inbox->woken, false);
    inbox->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}

void loop_inbox_deinit(struct loop_inbox *inbox)
{
    if (inbox->event_fd >= 0)
        close(inbox->event_fd);
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
    if (!atomic_exchange(&inbox->woken, true)) {
        uint64_t one = 1;
        ssize_t put = write(inbox->event_fd, &one, sizeof one);
        (void)put; /* EAGAIN only when the counter is full, and then the loop is awake */
    }
}

bool loop_inbox_has_some(const struct loop_inbox *inbox)
{
    return inbox->oldest || atomic_load(&inbox->newest);
}

static void take_all(struct loop_inbox *inbox)
{
    atomic_store(&inbox->woken, false);
    struct loop_message *newest = atomic_exchange(&inbox->newest, NULL);
    struct loop_message *oldest = NULL, *last = newest;
    while (newest) {
        struct loop_message *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    if (!oldest)
        return;
    if (inbox->oldest)
        inbox->oldest_last->next = oldest;
    else
        inbox->oldest = oldest;
    inbox->oldest_last = last;
}

void loop_inbox_run(struct loop *loop, unsigned max)
{
    struct loop_inbox *inbox = &loop->inbox;
    if (atomic_load_explicit(&inbox->newest, memory_order_relaxed))
        take_all(inbox);
    else if (atomic_load_explicit(&inbox->woken, memory_order_relaxed))
        take_all(inbox); /* woken for messages that an earlier tick took already */
    for (unsigned i = 0; i < max && inbox->oldest; i++) {
        struct loop_message *message = inbox->oldest;
        inbox->oldest = message->next;
        message->on_message(loop, message);
    }
}
