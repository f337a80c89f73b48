/* A partition: its states, and the queue of messages that the server has sent and that are not settled, by sequence.
 *
 * Order: the server sends in order, but what was sent to an earlier connection or an earlier holder is redelivered later. So a
 * partition whose history is not known is SYNCING until everything that the server counts as sent and not acknowledged is
 * here; then no message that arrives next can be earlier than those in the queue.
 *
 * Its job, on a worker: one batch from the head of the queue, then the acknowledgements. A message of a shared group that fails
 * is returned to the server with a delay; the later ones stay here and wait for it. */
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

enum { ARENA_BYTES = 16384 };

/* Not from AWAY to LEAVING, nor from LEAVING to SYNCING or RUNNING. */
void bus_nats_partition_move(struct nats_partition *partition, enum nats_partition_state to)
{
    enum nats_partition_state from = partition->state;

    if (to == PARTITION_LEAVING ? from == PARTITION_AWAY
                                : from == PARTITION_LEAVING && to != PARTITION_AWAY) {
        log_error("nats_partition_state_wrong", LOG_INT("from", from), LOG_INT("to", to));
        abort();
    }
    partition->state = to;
}

/* ---- the queue ---- */

static size_t place_of(const struct nats_partition *partition, int64_t sequence)
{
    size_t at = partition->count;

    while (at > 0 && partition->items[at - 1].sequence >= sequence)
        at--;
    return at;
}

struct nats_item *bus_nats_partition_find(struct nats_partition *partition, int64_t sequence)
{
    size_t at = place_of(partition, sequence);

    return at < partition->count && partition->items[at].sequence == sequence ? &partition->items[at] : NULL;
}

/* True: the queue owns the message now. */
static bool insert_message(struct nats_partition *partition, natsMsg *message,
                           const struct nats_origin *origin)
{
    int64_t sequence = (int64_t)origin->sequence;
    struct nats_item *item = bus_nats_partition_find(partition, sequence);

    if (item) {
        item->delivered = origin->delivered;
        item->consumer_sequence = origin->consumer_sequence;
        if (item->message)
            return false;
        item->message = message; /* it was returned, and its delay is over */
        return true;
    }
    if (partition->count == partition->capacity) {
        partition->capacity = partition->capacity ? 2 * partition->capacity : 32;
        partition->items =
            memory_realloc_array(partition->items, partition->capacity, sizeof partition->items[0]);
    }
    size_t at = place_of(partition, sequence);
    memmove(&partition->items[at + 1], &partition->items[at],
            (partition->count++ - at) * sizeof partition->items[0]);
    partition->items[at] = (struct nats_item){.sequence = sequence,
                                              .created_us = (int64_t)(origin->time_ns / 1000),
                                              .delivered = origin->delivered,
                                              .consumer_sequence = origin->consumer_sequence,
                                              .message = message};
    return true;
}

static void count_bytes(struct nats_partition *partition, const natsMsg *message)
{
    partition->bytes += (size_t)natsMsg_GetDataLength(message);
    bus_queue_charge(&partition->charged, partition->bytes);
}

/* NULL: it was given back before. */
static void drop_message(struct nats_partition *partition, natsMsg *message)
{
    if (!message)
        return;
    partition->bytes -= (size_t)natsMsg_GetDataLength(message);
    bus_queue_charge(&partition->charged, partition->bytes);
    natsMsg_Destroy(message);
}

void bus_nats_partition_clear(struct nats_partition *partition)
{
    for (size_t i = 0; i < partition->count; i++)
        drop_message(partition, partition->items[i].message);
    partition->count = 0;
    partition->is_database_down = false;
}

/* ---- is anything missing? ---- */

/* By the server's answer about the consumer. Only what was sent before the answer counts: a message that arrived after it does
 * not stand for an earlier one that is still on its way, perhaps by another member that returns it. While such a message is here,
 * the answer is too old.
 *
 * A server that crashed may have forgotten deliveries. A message of an earlier connection that it does not count as delivered
 * does not stand for one that it does: it is dropped here, and the server sends it again, in order. */
bool bus_nats_partition_is_complete(struct nats_partition *partition, const jsConsumerInfo *info)
{
    bool is_old = partition->consumer_sequence > info->Delivered.Consumer;
    int64_t here = 0;
    size_t kept = 0;

    for (size_t i = 0; i < partition->count; i++) {
        struct nats_item item = partition->items[i];
        if (item.consumer_sequence == 0 && item.sequence > (int64_t)info->Delivered.Stream) {
            drop_message(partition, item.message);
            continue;
        }
        is_old |= item.consumer_sequence > info->Delivered.Consumer;
        here += item.consumer_sequence <= info->Delivered.Consumer &&
                item.sequence > (int64_t)info->AckFloor.Stream;
        partition->items[kept++] = item;
    }
    partition->count = kept;
    partition->missing = info->NumAckPending > here ? info->NumAckPending - here : 0;
    return partition->missing == 0 && !is_old;
}

/* The consumer may count from 1 again. */
void bus_nats_partition_reset_sequences(struct nats_partition *partition)
{
    partition->consumer_sequence = 0;
    for (size_t i = 0; i < partition->count; i++)
        partition->items[i].consumer_sequence = 0;
}

/* ---- messages that arrive ---- */

static void on_message(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                       void *closure)
{
    struct nats_pull *pull = closure;
    struct nats_partition *partition = pull->partition;
    struct nats_reader *reader = partition->reader;
    struct nats *nats = reader->nats;
    struct nats_origin origin;
    bool is_taken = false, is_settled = false;

    (void)connection;
    (void)subscription;
    if (!bus_nats_origin_parse(message, &origin)) {
        bus_nats_pull_end(pull, message);
        return;
    }
    pthread_mutex_lock(&nats->lock);
    bool is_away = partition->state == PARTITION_AWAY;
    bool is_ours = str_eq(origin.consumer, str_from(partition->pull.consumer));
    if (!is_away && is_ours) {
        /* A message that was sent on a broken connection never arrives: the consumer's count shows it, also before the client
         * reports the break. The consumer of a reader of everything is created again, and sends this message again. */
        bool is_next = partition->state != PARTITION_RUNNING ||
                       origin.consumer_sequence == partition->consumer_sequence + 1;
        bool is_kept = is_next || nats_reader_is_shared(reader);
        partition->pull.requested -= partition->pull.requested > 0;
        if (is_next) {
            partition->consumer_sequence = origin.consumer_sequence;
        } else {
            if (is_kept)
                bus_nats_partition_move(partition, PARTITION_SYNCING);
            else
                reader->needs_check = true;
            bus_nats_wake(nats);
        }
        is_settled = (int64_t)origin.sequence <= partition->settled;
        is_taken = is_kept && !is_settled && insert_message(partition, message, &origin);
        if (is_taken)
            count_bytes(partition, message);
        bus_nats_reader_dispatch(reader);
    }
    pthread_mutex_unlock(&nats->lock);
    if (is_settled && nats_reader_is_shared(reader)) /* its acknowledgement got lost */
        bus_nats_reply(nats, message, "+ACK");
    else if (is_away && is_ours && nats_reader_is_shared(reader)) /* requested while the partition was ours */
        bus_nats_nak(nats, message, nats->config.ack_wait_ms);
    if (!is_taken)
        natsMsg_Destroy(message);
}

natsStatus bus_nats_partition_open(struct nats_partition *partition)
{
    return bus_nats_pull_open(&partition->pull, on_message);
}

/* ---- requests ---- */

void bus_nats_partition_request(struct nats_partition *partition)
{
    struct nats *nats = partition->reader->nats;
    const struct bus_subscription *spec = &partition->reader->consumer.spec;
    int64_t count = 0, here = 0;

    for (size_t i = 0; i < partition->count; i++)
        here += partition->items[i].message != NULL;
    if (partition->state == PARTITION_SYNCING)
        count = partition->missing;
    else if (partition->state == PARTITION_RUNNING && !partition->is_database_down)
        count = here < spec->batch_max ? spec->batch_max - here
                                       : here < (int64_t)partition->count; /* that one is handled first */
    bus_nats_pull_request(
        &partition->pull, count,
        (int64_t)bus_queue_bytes_max(&partition->reader->consumer, partition->reader->partition_count) +
            2 * natsConnection_GetMaxPayload(nats->connection));
}

/* ---- all messages that are here ---- */

void bus_nats_partition_reply(const struct nats_partition *partition, const char *text)
{
    for (size_t i = 0; i < partition->count; i++)
        if (partition->items[i].message)
            bus_nats_reply(partition->reader->nats, partition->items[i].message, text);
}

/* No job runs. */
void bus_nats_partition_drop(struct nats_partition *partition, bool give_back)
{
    if (give_back)
        bus_nats_partition_reply(partition, "-NAK");
    bus_nats_partition_clear(partition);
    partition->pull.requested = 0;
    partition->due_ns = 0;
    bus_delivery_forget(&partition->delivery);
    bus_nats_advisories_drop(partition);
}

/* ---- whose turn it is ---- */

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

/* The server also counts deliveries to other processes: a message that fails at its last delivery becomes a dead
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
static void settle_batch(struct nats_partition *partition, const struct bus_message *messages, size_t settled,
                         int64_t wait_ms, bool is_failure)
{
    struct nats *nats = partition->reader->nats;
    size_t kept = 0;

    for (size_t i = 0; i < settled; i++)
        if (partition->delivery.dead[i])
            bus_nats_dead_note(partition, messages[i].offset);
    if (settled > 0 && messages[settled - 1].offset > partition->settled)
        partition->settled = messages[settled - 1].offset;
    for (size_t i = 0; i < partition->count && settled > 0; i++) {
        struct nats_item *item = &partition->items[i];
        if (item->sequence > partition->settled) {
            partition->items[kept++] = *item;
            continue;
        }
        if (item->is_redelivery_over)
            bus_nats_dead_note(partition, item->sequence);
        drop_message(partition, item->message);
    }
    if (settled > 0)
        partition->count = kept;
    partition->is_database_down = wait_ms > 0 && !is_failure;
    if (wait_ms > 0) {
        struct nats_item *first = partition->items;
        partition->due_ns = clock_deadline_ms(wait_ms);
        partition->overdue_ns = bus_nats_overdue_ns(nats, wait_ms);
        if (nats_reader_is_shared(partition->reader) && is_failure && partition->count > 0 &&
            (partition->state == PARTITION_RUNNING || partition->state == PARTITION_LEAVING)) {
            if (first->message)
                bus_nats_nak(nats, first->message, wait_ms);
            drop_message(partition, first->message);
            first->message = NULL;
        }
        bus_nats_wake(nats);
    }
    bus_nats_partition_request(partition);
}

/* The lock is released while the handler runs. A message that was delivered before may have ended a process: it is
 * handled alone. */
static void handle_batch(struct nats_partition *partition)
{
    const struct bus_consumer *consumer = &partition->reader->consumer;
    struct bus_delivery *delivery = &partition->delivery;
    struct nats *nats = partition->reader->nats;
    size_t max = consumer->spec.batch_max, count = 0;
    bool is_shared = nats_reader_is_shared(partition->reader);
    int64_t wait_ms, now_ns = clock_mono_ns();
    struct arena arena = ARENA(ARENA_BYTES);

    if (!may_handle(partition, now_ns) || nats->is_stopping || partition->due_ns > now_ns)
        return;
    struct bus_message *messages = arena_zalloc(&arena, max * sizeof messages[0]);
    natsMsg **raw = arena_alloc(&arena, max * sizeof raw[0]);
    for (; count < partition->count && count < max; count++) {
        const struct nats_item *item = &partition->items[count];
        if (!item->message || (count > 0 && (item->delivered > 1 || partition->items[0].delivered > 1)))
            break;
        raw[count] = item->message;
        messages[count] = (struct bus_message){.topic = consumer->topic->name,
                                               .partition = partition->number,
                                               .offset = item->sequence,
                                               .created_us = item->created_us};
    }
    if (count > 0) {
        count_deliveries(partition);
        pthread_mutex_unlock(&nats->lock);
        unsigned attempts = delivery->attempts;
        for (size_t i = 0; i < count; i++)
            bus_nats_decode(raw[i], &arena, &messages[i]);
        memset(delivery->dead, 0, count * sizeof delivery->dead[0]);
        size_t settled = bus_deliver(delivery, messages, count, &wait_ms);
        bool is_failure = delivery->attempts > attempts;
        if (is_failure && is_shared && consumer->spec.attempts_max > 0 &&
            delivery->attempts >= consumer->spec.attempts_max)
            wait_ms = 0; /* the last delivery: it is a dead letter next */
        FAILPOINT("nats.before_ack");
        for (size_t i = 0; i < settled && is_shared; i++)
            bus_nats_reply(nats, raw[i], delivery->dead[i] ? "+TERM" : "+ACK");
        FAILPOINT("nats.after_ack");
        pthread_mutex_lock(&nats->lock);
        settle_batch(partition, messages, settled, wait_ms, is_failure);
    }
    arena_deinit(&arena);
}

/* ---- the job ---- */

static void run_partition(struct worker_job *work)
{
    struct nats_partition *partition = (struct nats_partition *)work;
    struct nats_reader *reader = partition->reader;

    pthread_mutex_lock(&reader->nats->lock);
    bool is_first = reader->state == READER_READY, has_gap = partition->has_gap;
    int64_t from = partition->gap_from, next = partition->gap_next;
    reader->state = READER_ANNOUNCED;
    partition->has_gap = false;
    pthread_mutex_unlock(&reader->nats->lock);
    if (is_first)
        bus_consumer_ready(&reader->consumer);
    if (has_gap)
        bus_consumer_gap(&reader->consumer, partition->number, from, next);
    pthread_mutex_lock(&reader->nats->lock);
    bus_nats_advisories_settle(partition);
    handle_batch(partition);
    pthread_mutex_unlock(&reader->nats->lock);
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
    partition->delivery = (struct bus_delivery){.bus = &nats->bus,
                                                .consumer = &reader->consumer,
                                                .pool = nats_reader_is_shared(reader) ? nats->pool : NULL,
                                                .handler_ms = nats->config.handler_ms,
                                                .dead = memory_zalloc(reader->consumer.spec.batch_max)};
    partition->work = (struct worker_job){.run = run_partition, .done = partition_done};
    partition->pull.partition = partition;
    for (int kind = 0; kind < ADVISORY_KINDS; kind++)
        partition->watches[kind].partition = partition;
}

void bus_nats_partition_deinit(struct nats_partition *partition)
{
    bus_nats_partition_clear(partition);
    bus_nats_advisories_drop(partition);
    natsSubscription_Destroy(partition->pull.inbox);
    for (int kind = 0; kind < ADVISORY_KINDS; kind++)
        natsSubscription_Destroy(partition->watches[kind].inbox);
    free(partition->items);
    free(partition->delivery.dead);
}
