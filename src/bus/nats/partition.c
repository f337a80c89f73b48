/* A partition: its states, and the queue of messages that the server has sent and that are not settled, by sequence.
 *
 * Order: the server sends in order, but what was sent to an earlier connection or an earlier holder comes again later. So a
 * partition whose history is not known is SYNCING until everything that the server counts as sent and not acknowledged is
 * here; then no message that arrives next can be earlier than those in the queue. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define FROM(state) (1u << (state))

void bus_nats_partition_move(struct nats_partition *partition, enum nats_partition_state to)
{
    static const unsigned allowed[] = {
        [PARTITION_AWAY] = FROM(PARTITION_AWAY) | FROM(PARTITION_SYNCING) | FROM(PARTITION_RUNNING) |
                           FROM(PARTITION_LEAVING),
        [PARTITION_SYNCING] = FROM(PARTITION_AWAY) | FROM(PARTITION_SYNCING) | FROM(PARTITION_RUNNING),
        [PARTITION_RUNNING] = FROM(PARTITION_AWAY) | FROM(PARTITION_SYNCING) | FROM(PARTITION_RUNNING),
        [PARTITION_LEAVING] = FROM(PARTITION_SYNCING) | FROM(PARTITION_RUNNING) | FROM(PARTITION_LEAVING),
    };

    if (!(allowed[to] & FROM(partition->state))) {
        log_error("nats_partition_state_wrong", LOG_INT("from", partition->state), LOG_INT("to", to));
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

void bus_nats_partition_clear(struct nats_partition *partition)
{
    for (size_t i = 0; i < partition->count; i++)
        natsMsg_Destroy(partition->items[i].message);
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
            natsMsg_Destroy(item.message);
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
    struct nats_partition *partition = closure;
    struct nats_reader *reader = partition->reader;
    struct nats *nats = reader->nats;
    struct nats_origin origin;
    bool is_taken = false, is_settled = false;

    (void)connection;
    (void)subscription;
    if (!bus_nats_origin_parse(message, &origin)) {
        bus_nats_pull_end(reader, &partition->pull, message, false);
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
    return bus_nats_pull_open(partition->reader->nats, &partition->pull, on_message, partition);
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
    bus_nats_pull_request(nats, &partition->pull, count,
                          (int64_t)spec->batch_bytes_max +
                              2 * natsConnection_GetMaxPayload(nats->connection));
}

/* ---- all messages that are here ---- */

static void reply_to_all(const struct nats_partition *partition, const char *text)
{
    for (size_t i = 0; i < partition->count; i++)
        if (partition->items[i].message)
            bus_nats_reply(partition->reader->nats, partition->items[i].message, text);
}

/* The server does not send them to another member while they wait or are handled here. */
void bus_nats_partition_extend(struct nats_partition *partition)
{
    reply_to_all(partition, "+WPI");
}

/* No job runs. */
void bus_nats_partition_drop(struct nats_partition *partition, bool give_back)
{
    if (give_back)
        reply_to_all(partition, "-NAK");
    bus_nats_partition_clear(partition);
    partition->pull.requested = 0;
    partition->due_ns = 0;
    bus_delivery_forget(&partition->delivery);
    bus_nats_advisories_drop(partition);
}
