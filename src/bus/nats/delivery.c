/* A partition's job, on a worker: one batch from the head of its queue, then the acknowledgements. A message of a shared group
 * that fails is returned to the server with a delay; the later ones stay here and wait for it. */
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

enum { ARENA_BYTES = 16384 };

/* ---- whose turn it is; under the lock ---- */

static bool may_handle(const struct nats_partition *partition, int64_t now_ns)
{
    return partition->state == PARTITION_RUNNING &&
           (!nats_reader_is_shared(partition->reader) || now_ns < partition->lease_until_ns);
}

void bus_nats_reader_dispatch(struct nats_reader *reader)
{
    struct nats *nats = reader->nats;
    int64_t now_ns = clock_mono_ns();

    for (unsigned i = 0; i < reader->partition_count; i++) {
        struct nats_partition *partition = &reader->partitions[(reader->turn + i) % reader->partition_count];
        if (nats->is_stopping || reader->busy >= reader->consumer.spec.parallel)
            return;
        bool is_batch_due =
            partition->count > 0 && partition->items[0].message && partition->due_ns <= now_ns;
        bool has_work =
            reader->state == READER_READY
                ? reader->busy == 0 /* on_ready first, alone */
                : partition->has_gap || (may_handle(partition, now_ns) &&
                                         (is_batch_due || bus_nats_advisories_are_due(partition, now_ns)));
        if (partition->is_busy || reader->state == READER_STARTING || !has_work)
            continue;
        reader->turn = partition->number + 1;
        if (!worker_pool_submit(nats->config.workers, &partition->work))
            continue; /* the queue of the workers is full: the upkeep tries again */
        partition->is_busy = true;
        partition->busy_since_ns = now_ns;
        reader->busy++;
        nats->busy++;
    }
}

/* ---- a batch ---- */

struct batch {
    struct bus_message *messages;
    natsMsg **raw;
    size_t count;
};

/* Under the lock. The server also counts deliveries to other processes: a message that fails at its last delivery becomes a dead
 * letter here, with the handler's reason, before the server gives it up. */
static void count_deliveries(struct nats_partition *partition)
{
    const struct nats_reader *reader = partition->reader;
    struct bus_delivery *delivery = &partition->delivery;
    unsigned attempts_max = reader->consumer.spec.attempts_max;
    uint64_t delivered = partition->items[0].delivered;

    if (!nats_reader_is_shared(reader) || !reader->consumer.topic->dead || attempts_max == 0 ||
        delivered <= delivery->attempts + 1)
        return;
    delivery->attempts = delivered > attempts_max ? attempts_max : (unsigned)delivered - 1;
    if (!delivery->last_error[0])
        snprintf(delivery->last_error, sizeof delivery->last_error, "delivered %llu times and not settled",
                 (unsigned long long)delivered - 1);
}

/* Removes the settled messages from the queue, which keeps its items while a job runs. After `wait_ms` the first message that is
 * left is handled again. The server waits when the message itself failed; while the database is down the message stays here, as
 * work in progress, and no delivery is used up. */
static void settle_batch(struct nats_partition *partition, const struct batch *batch, size_t settled,
                         int64_t wait_ms, bool is_failure)
{
    struct nats *nats = partition->reader->nats;
    natsMsg *returned = NULL;
    size_t kept = 0;

    pthread_mutex_lock(&nats->lock);
    for (size_t i = 0; i < settled; i++)
        if (partition->dead[i])
            bus_nats_dead_note(partition, batch->messages[i].offset);
    if (settled > 0 && batch->messages[settled - 1].offset > partition->settled)
        partition->settled = batch->messages[settled - 1].offset;
    for (size_t i = 0; i < partition->count && settled > 0; i++) {
        struct nats_item *item = &partition->items[i];
        if (item->sequence > partition->settled) {
            partition->items[kept++] = *item;
            continue;
        }
        if (item->is_given_up)
            bus_nats_dead_note(partition, item->sequence);
        natsMsg_Destroy(item->message);
    }
    if (settled > 0)
        partition->count = kept;
    partition->is_database_down = wait_ms > 0 && !is_failure;
    if (wait_ms > 0) {
        partition->due_ns = clock_deadline_ms(wait_ms);
        partition->overdue_ns = bus_nats_overdue_ns(nats, wait_ms);
        if (nats_reader_is_shared(partition->reader) && is_failure && partition->count > 0 &&
            (partition->state == PARTITION_RUNNING || partition->state == PARTITION_LEAVING)) {
            returned = partition->items[0].message;
            partition->items[0].message = NULL;
        }
        bus_nats_wake(nats);
    }
    pthread_mutex_unlock(&nats->lock);
    if (returned)
        bus_nats_nak(nats, returned, wait_ms);
    natsMsg_Destroy(returned);
}

static void deliver_batch(struct nats_partition *partition, const struct batch *batch)
{
    unsigned attempts = partition->delivery.attempts;
    unsigned attempts_max = partition->reader->consumer.spec.attempts_max;
    bool is_shared = nats_reader_is_shared(partition->reader);
    int64_t wait_ms = 0;

    memset(partition->dead, 0, batch->count * sizeof partition->dead[0]);
    size_t settled = bus_deliver(&partition->delivery, batch->messages, batch->count, &wait_ms);
    bool is_failure = partition->delivery.attempts > attempts;
    if (is_failure && is_shared && attempts_max > 0 && partition->delivery.attempts >= attempts_max)
        wait_ms = 0; /* the last delivery: it is a dead letter next */
    FAILPOINT("nats.before_ack");
    for (size_t i = 0; i < settled && is_shared; i++)
        bus_nats_reply(partition->reader->nats, batch->raw[i], partition->dead[i] ? "+TERM" : "+ACK");
    FAILPOINT("nats.after_ack");
    settle_batch(partition, batch, settled, wait_ms, is_failure);
    bus_nats_partition_request(partition);
}

/* A message that was delivered before may have ended a process: it is handled alone. */
static void handle_batch(struct nats_partition *partition)
{
    const struct bus_consumer *consumer = &partition->reader->consumer;
    struct nats *nats = partition->reader->nats;
    size_t max = consumer->spec.batch_max;
    struct batch batch = {0};
    struct arena arena = ARENA(ARENA_BYTES);

    batch.messages = arena_zalloc(&arena, max * sizeof batch.messages[0]);
    batch.raw = arena_zalloc(&arena, max * sizeof batch.raw[0]);
    pthread_mutex_lock(&nats->lock);
    int64_t now_ns = clock_mono_ns();
    if (!may_handle(partition, now_ns) || nats->is_stopping || partition->due_ns > now_ns)
        max = 0;
    for (; batch.count < partition->count && batch.count < max; batch.count++) {
        const struct nats_item *item = &partition->items[batch.count];
        if (!item->message || (batch.count > 0 && (item->delivered > 1 || partition->items[0].delivered > 1)))
            break;
        batch.raw[batch.count] = item->message;
        batch.messages[batch.count] = (struct bus_message){.topic = consumer->topic->name,
                                                           .partition = partition->number,
                                                           .offset = item->sequence,
                                                           .created_us = item->created_us};
    }
    if (batch.count > 0)
        count_deliveries(partition);
    pthread_mutex_unlock(&nats->lock);
    for (size_t i = 0; i < batch.count; i++)
        bus_nats_decode(batch.raw[i], &arena, &batch.messages[i]);
    if (batch.count > 0)
        deliver_batch(partition, &batch);
    arena_deinit(&arena);
}

/* ---- the job ---- */

static void run_partition(struct worker_job *work)
{
    struct nats_partition *partition = (struct nats_partition *)work;
    struct nats_reader *reader = partition->reader;
    const struct bus_subscription *spec = &reader->consumer.spec;

    pthread_mutex_lock(&reader->nats->lock);
    bool is_first = reader->state == READER_READY, has_gap = partition->has_gap;
    int64_t from = partition->gap_from, next = partition->gap_next;
    reader->state = READER_ANNOUNCED;
    partition->has_gap = false;
    pthread_mutex_unlock(&reader->nats->lock);
    if (is_first && spec->on_ready)
        spec->on_ready(spec->context);
    if (has_gap)
        bus_consumer_gap(&reader->consumer, partition->number, from, next);
    bus_nats_advisories_settle(partition);
    handle_batch(partition);
}

static void partition_done(struct worker_job *work)
{
    struct nats_partition *partition = (struct nats_partition *)work;
    struct nats *nats = partition->reader->nats;

    pthread_mutex_lock(&nats->lock);
    partition->is_busy = false;
    partition->reader->busy--;
    nats->busy--;
    bus_nats_reader_dispatch(partition->reader);
    if (partition->state == PARTITION_LEAVING || nats->busy == 0 || nats->is_stopping)
        bus_nats_wake(nats);
    pthread_mutex_unlock(&nats->lock);
}

void bus_nats_partition_init(struct nats_partition *partition, struct nats_reader *reader, unsigned number)
{
    struct nats *nats = reader->nats;
    char durable[NATS_NAME_BYTES];

    partition->reader = reader;
    partition->number = number;
    bus_nats_durable(durable, reader, number);
    snprintf(partition->lease_key, sizeof partition->lease_key, "%s.%s", reader->topic->stream, durable);
    partition->dead = memory_zalloc(reader->consumer.spec.batch_max * sizeof partition->dead[0]);
    partition->delivery = (struct bus_delivery){.bus = &nats->bus,
                                                .consumer = &reader->consumer,
                                                .pool = nats_reader_is_shared(reader) ? nats->pool : NULL,
                                                .handler_ms = nats->config.handler_ms,
                                                .dead = partition->dead};
    partition->work = (struct worker_job){.run = run_partition, .done = partition_done};
}
