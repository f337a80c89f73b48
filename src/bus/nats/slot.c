/* A slot's queue: what the server sent and is not settled, by sequence; the requests that bring more, and what the server
 * is told of each message. Pull requests are asynchronous: messages come to the slot's inbox, on the client's threads. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define PULL_SLACK_MS 2000

void bus_nats_item_free(struct nats_item *item)
{
    natsMsg_Destroy(item->message);
    item->message = NULL;
}

bool bus_nats_tell(struct nats *nats, natsMsg *message, const char *what)
{
    const char *reply = natsMsg_GetReply(message);

    return reply && natsConnection_PublishString(nats->connection, reply, what) == NATS_OK;
}

void bus_nats_refuse(struct nats *nats, natsMsg *message)
{
    char nak[64];

    snprintf(nak, sizeof nak, "-NAK {\"delay\": %lld}", (long long)(nats->config.ack_wait_ms * 1000000));
    bus_nats_tell(nats, message, nak);
}

/* ---- what comes in ---- */

/* $JS.ACK.[domain.account.]stream.consumer.delivered.sequence.consumer-sequence.time.pending[.token] */
bool bus_nats_origin_parse(const char *reply, struct nats_origin *origin)
{
    struct str rest = str_from(reply), tokens[16];
    size_t count = 0, at;

    if (!str_starts_with(rest, STR("$JS.ACK.")))
        return false;
    while (count < 16 && str_split(&rest, '.', &tokens[count]))
        count++;
    at = count >= 11 ? 4 : 2;
    origin->consumer = tokens[at + 1];
    return count >= 9 && str_to_u64(tokens[at + 2], &origin->delivered) &&
           str_to_u64(tokens[at + 3], &origin->sequence) && str_to_u64(tokens[at + 4], &origin->turn) &&
           str_to_u64(tokens[at + 5], &origin->time_ns);
}

static size_t place_of(const struct nats_slot *slot, int64_t sequence)
{
    size_t at = slot->count;

    while (at > 0 && slot->items[at - 1].sequence >= sequence)
        at--;
    return at;
}

/* Takes the message when it is new here. */
static bool insert(struct nats_slot *slot, natsMsg *message, const struct nats_origin *origin)
{
    int64_t sequence = (int64_t)origin->sequence;
    size_t at = place_of(slot, sequence);

    if (at < slot->count && slot->items[at].sequence == sequence) {
        slot->items[at].delivered = origin->delivered;
        slot->items[at].turn = origin->turn;
        if (slot->items[at].message)
            return false;
        slot->items[at].message = message; /* it was NAKed, and its time has come */
        return true;
    }
    if (slot->count == slot->capacity) {
        slot->capacity = slot->capacity ? 2 * slot->capacity : 32;
        slot->items = memory_realloc_array(slot->items, slot->capacity, sizeof slot->items[0]);
    }
    memmove(&slot->items[at + 1], &slot->items[at], (slot->count - at) * sizeof slot->items[0]);
    slot->items[at] = (struct nats_item){.sequence = sequence,
                                         .created_us = (int64_t)(origin->time_ns / 1000),
                                         .delivered = origin->delivered,
                                         .turn = origin->turn,
                                         .message = message};
    slot->count++;
    return true;
}

/* Under the lock. What was sent on a connection that broke never came, and what comes on the next one may be behind it: the
 * consumer's own count tells, before anybody has heard of the break. */
static bool is_next(struct nats_slot *slot, const struct nats_origin *origin)
{
    bool next = origin->turn == slot->turn + 1;

    if (slot->state == SLOT_SYNCING || next) {
        slot->turn = origin->turn;
        return true;
    }
    if (slot->reader->consumer.spec.mode == BUS_EVERY)
        slot->reader->doubt = true;
    else
        slot->state = SLOT_SYNCING;
    bus_nats_kick(slot->reader->nats);
    return slot->state == SLOT_SYNCING; /* it is held with the others; an ephemeral consumer is made anew */
}

/* The request is over, by the server's word: time, or the consumer is gone. */
static void on_status(struct nats_slot *slot, natsMsg *message)
{
    struct nats *nats = slot->reader->nats;
    const char *code = NULL;
    bool none = natsMsg_IsNoResponders(message);

    if (!none && natsMsgHeader_Get(message, "Status", &code) != NATS_OK)
        return;
    if (code && strcmp(code, "100") == 0)
        return;
    pthread_mutex_lock(&nats->lock);
    slot->asked = 0;
    slot->asked_until_ns = 0;
    if (none || (code && strcmp(code, "409") == 0))
        slot->reader->doubt = true;
    bus_nats_kick(nats);
    pthread_mutex_unlock(&nats->lock);
}

void bus_nats_on_message(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                         void *closure)
{
    struct nats_slot *slot = closure;
    struct nats *nats = slot->reader->nats;
    struct nats_origin origin;
    bool taken = false, settled = false;

    (void)connection;
    (void)subscription;
    if (!natsMsg_GetReply(message) || !bus_nats_origin_parse(natsMsg_GetReply(message), &origin)) {
        on_status(slot, message);
        natsMsg_Destroy(message);
        return;
    }
    pthread_mutex_lock(&nats->lock);
    bool expected = slot->state != SLOT_AWAY, mine = str_eq(origin.consumer, str_from(slot->consumer));
    if (expected && mine) {
        slot->asked -= slot->asked > 0;
        settled = (int64_t)origin.sequence <= slot->settled;
        taken = is_next(slot, &origin) && !settled && insert(slot, message, &origin);
        bus_nats_reader_wake(slot->reader);
    }
    bool shared = slot->reader->consumer.spec.mode == BUS_SHARED;
    pthread_mutex_unlock(&nats->lock);
    if (settled && shared) /* its acknowledgement got lost */
        bus_nats_tell(nats, message, "+ACK");
    else if (!expected && mine && shared) /* it was asked for while the partition was ours */
        bus_nats_refuse(nats, message);
    if (!taken)
        natsMsg_Destroy(message);
}

/* ---- asking for more ----
 * A request ends by itself, and then there is another. It lasts shorter than a lease, or what comes again would go to a
 * holder that is frozen, and not to the next. */

static int64_t room(const struct nats_slot *slot)
{
    size_t size = slot->reader->consumer.spec.batch_max;
    size_t here = 0;

    for (size_t i = 0; i < slot->count; i++)
        here += slot->items[i].message != NULL;
    if (slot->state == SLOT_SYNCING) /* all that is owed must get in, and nothing else is worth asking for */
        return slot->owed;
    if (here < slot->count && here >= size) /* the one that was NAKed must get in */
        return 1;
    return here < size ? (int64_t)(size - here) : 0;
}

bool bus_nats_slot_pull(struct nats_slot *slot)
{
    struct nats *nats = slot->reader->nats;
    char subject[3 * NATS_NAME_BYTES], body[160];
    int64_t now_ns = clock_mono_ns(), wanted = 0;

    pthread_mutex_lock(&nats->lock);
    bool open = slot->asked > 0 && now_ns < slot->asked_until_ns;
    bool out = slot->is_out && slot->state == SLOT_RUNNING; /* what is owed is needed all the same */
    if (!open && !out && slot->state != SLOT_AWAY && slot->consumer[0] && !nats->stopping && !slot->give_up)
        wanted = room(slot);
    if (wanted > 0) {
        slot->asked = wanted;
        slot->asked_until_ns = now_ns + (nats->config.ack_wait_ms + PULL_SLACK_MS) * CLOCK_NS_PER_MS;
        snprintf(subject, sizeof subject, "$JS.API.CONSUMER.MSG.NEXT.%s.%s", slot->reader->topic->stream,
                 slot->consumer);
    }
    pthread_mutex_unlock(&nats->lock);
    if (wanted == 0)
        return true;
    long long bytes = (long long)slot->reader->consumer.spec.batch_bytes_max +
                      2 * natsConnection_GetMaxPayload(nats->connection);
    snprintf(body, sizeof body, "{\"batch\":%lld,\"max_bytes\":%lld,\"expires\":%lld}", (long long)wanted,
             bytes, (long long)nats->config.ack_wait_ms * 1000000);
    if (natsConnection_PublishRequestString(nats->connection, subject, slot->inbox_subject, body) == NATS_OK)
        return true;
    pthread_mutex_lock(&nats->lock);
    slot->asked = 0;
    pthread_mutex_unlock(&nats->lock);
    return false;
}

/* ---- what is in our hands ---- */

/* Replies of what is here, so that they can be told without the lock. */
static char **list_replies(struct nats_slot *slot, size_t *count)
{
    char **replies = memory_zalloc((slot->count + 1) * sizeof replies[0]);

    *count = 0;
    for (size_t i = 0; i < slot->count; i++)
        if (slot->items[i].message)
            replies[(*count)++] = str_dup(str_from(natsMsg_GetReply(slot->items[i].message)));
    return replies;
}

static void tell_all(struct nats *nats, char **replies, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        if (what)
            natsConnection_PublishString(nats->connection, replies[i], what);
        free(replies[i]);
    }
    free(replies);
}

/* They are being worked on, or wait for their turn: do not send them to anybody else. */
void bus_nats_slot_extend(struct nats_slot *slot)
{
    struct nats *nats = slot->reader->nats;
    size_t count;

    pthread_mutex_lock(&nats->lock);
    char **replies = list_replies(slot, &count);
    pthread_mutex_unlock(&nats->lock);
    tell_all(nats, replies, count, "+WPI");
}

void bus_nats_slot_drop(struct nats_slot *slot, bool give_back)
{
    struct nats *nats = slot->reader->nats;
    size_t count;

    pthread_mutex_lock(&nats->lock);
    char **replies = list_replies(slot, &count);
    for (size_t i = 0; i < slot->count; i++)
        bus_nats_item_free(&slot->items[i]);
    slot->count = 0;
    slot->asked = 0;
    slot->due_ns = 0;
    slot->is_out = false;
    bus_delivery_forget(&slot->delivery);
    bus_nats_fates_drop(slot);
    pthread_mutex_unlock(&nats->lock);
    tell_all(nats, replies, count, give_back ? "-NAK" : NULL);
}
