/* Memory of messages between an engine and the database: the account BUDGET_QUEUES.
 *
 * Half of its share is for handlers: a batch has at most bus_batch_bytes_max(), so that the batches of all handlers fit into it. A message
 * that is larger is handled alone, and only when there is room for it, or when no other such message is handled: then one at least goes
 * on. A quarter is for queues of messages that were received, and a quarter for the clients of the engines. Without limits.memory there
 * are the bounds of the subscriptions only. */
#include <pthread.h>

#include "base/budget.h"
#include "base/clock.h"
#include "bus/bus_inside.h"

enum {
    /* Of a message while it is handled: it is in a result and in libpq's buffer, which may be twice as large; and what is written out of
     * it as well. */
    COPIES = 6,
    HANDLERS_PART = 2,
    QUEUES_PART = 4,
    BATCH_BYTES_MIN = 64 * 1024,
    CLIENT_BYTES_MIN = 4 * 1024 * 1024,
    STEP_BYTES = 64 * 1024,
    TURN_MS = 1000, /* for the next one to ask again */
};

static atomic_uint handlers, subscriptions; /* of this process */

/* Messages that are larger than a batch. */
static struct {
    pthread_mutex_t lock;
    unsigned held;
    bool is_overdrawn;     /* the only one of them needs more than the share */
    const void *next;      /* was refused first, and comes before the others … */
    int64_t next_until_ns; /* … until then */
} large = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- bounds ---- */

void bus_memory_join(const struct bus_consumer *consumer)
{
    atomic_fetch_add(&handlers, consumer->spec.parallel);
    atomic_fetch_add(&subscriptions, 1);
}

void bus_memory_leave(const struct bus_consumer *consumer)
{
    atomic_fetch_sub(&handlers, consumer->spec.parallel);
    atomic_fetch_sub(&subscriptions, 1);
}

static size_t between(size_t bytes, size_t min, size_t max)
{
    bytes = bytes > min ? bytes : min;
    return bytes < max ? bytes : max;
}

static size_t part_of_share(size_t parts)
{
    return budget_share(BUDGET_QUEUES) / (parts ? parts : 1);
}

size_t bus_batch_bytes_max(const struct bus_consumer *consumer)
{
    return between(part_of_share((size_t)HANDLERS_PART * COPIES * atomic_load(&handlers)), BATCH_BYTES_MIN,
                   consumer->spec.batch_bytes_max);
}

size_t bus_queue_bytes_max(const struct bus_consumer *consumer, unsigned queues)
{
    return between(part_of_share((size_t)QUEUES_PART * queues * atomic_load(&subscriptions)), BATCH_BYTES_MIN,
                   consumer->spec.batch_bytes_max);
}

size_t bus_client_bytes_max(size_t bytes_max)
{
    return between(part_of_share((size_t)QUEUES_PART * atomic_load(&subscriptions)), CLIENT_BYTES_MIN,
                   bytes_max);
}

/* ---- messages that are handled ---- */

/* Returns what was charged, 0: the message has to wait. The one that goes on in any case is charged with the share at most, so that no
 * other account is refused because of it. */
static size_t hold_large(const void *owner, size_t bytes)
{
    size_t share = budget_share(BUDGET_QUEUES), charged = bytes;
    int64_t now_ns = clock_mono_ns();

    pthread_mutex_lock(&large.lock);
    bool is_turn = !large.next || large.next == owner || now_ns >= large.next_until_ns;
    if (is_turn && large.held == 0) {
        large.is_overdrawn = bytes > share;
        charged = large.is_overdrawn ? share : bytes;
        budget_add(BUDGET_QUEUES, charged);
    } else if (!is_turn || large.is_overdrawn || !budget_charge(BUDGET_QUEUES, bytes)) {
        charged = 0;
    }
    large.held += charged > 0;
    if (charged > 0) {
        large.next = NULL;
    } else if (is_turn) {
        large.next = owner;
        large.next_until_ns = now_ns + TURN_MS * CLOCK_NS_PER_MS;
    }
    pthread_mutex_unlock(&large.lock);
    return charged;
}

bool bus_hold_take(struct bus_hold *hold, const void *owner, size_t bytes, size_t batch_bytes_max)
{
    hold->is_large = bytes > batch_bytes_max;
    hold->bytes = hold->is_large ? hold_large(owner, COPIES * bytes) : COPIES * bytes;
    if (!hold->is_large)
        budget_add(BUDGET_QUEUES, hold->bytes);
    return hold->bytes > 0 || bytes == 0;
}

void bus_hold_release(struct bus_hold *hold)
{
    if (hold->bytes > 0)
        budget_release(BUDGET_QUEUES, hold->bytes);
    if (hold->bytes > 0 && hold->is_large) {
        pthread_mutex_lock(&large.lock);
        large.held--;
        pthread_mutex_unlock(&large.lock);
    }
    *hold = (struct bus_hold){0};
}

/* ---- queues ---- */

void bus_queue_charge(size_t *charged, size_t bytes)
{
    size_t wanted = (bytes + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;

    if (wanted > *charged)
        budget_add(BUDGET_QUEUES, wanted - *charged);
    else if (wanted < *charged)
        budget_release(BUDGET_QUEUES, *charged - wanted);
    *charged = wanted;
}
