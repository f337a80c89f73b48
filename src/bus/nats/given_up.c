/* Messages that the server is done with though nobody acknowledged them: each becomes a dead letter, from its place in the
 * stream, before the advisory is acknowledged. So the letter is sent whoever dies meanwhile; sent twice it has the same id,
 * and the place in it tells those who read it later.
 *
 * One that is still in our hands is spared: its handler decides, and the advisory comes again. One that was NAKed and does
 * not come again, with no advisory either, is given up here: nothing waits behind it for ever. */
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "bus/nats/inside.h"

enum {
    ARENA_BYTES = 4096,
    LETTER_MS = 5000,
};

/* ---- under the lock ---- */

static struct nats_item *find_item(struct nats_slot *slot, int64_t sequence)
{
    for (size_t i = 0; i < slot->count; i++)
        if (slot->items[i].sequence == sequence)
            return &slot->items[i];
    return NULL;
}

static bool is_noted(const struct nats_slot *slot, int64_t sequence)
{
    for (size_t i = 0; i < NATS_BURIED_KEPT; i++)
        if (slot->buried[i] == sequence)
            return true;
    return false;
}

void bus_nats_bury_note(struct nats_slot *slot, int64_t sequence)
{
    slot->buried[slot->buried_next++ % NATS_BURIED_KEPT] = sequence;
}

static bool is_head_overdue(const struct nats_slot *slot, int64_t now_ns)
{
    return slot->count > 0 && !slot->items[0].message && now_ns > slot->overdue_ns;
}

bool bus_nats_fates_are_due(const struct nats_slot *slot, int64_t now_ns)
{
    return slot->fate_count > 0 || is_head_overdue(slot, now_ns);
}

void bus_nats_fates_drop(struct nats_slot *slot)
{
    for (size_t i = 0; i < slot->fate_count; i++)
        natsMsg_Destroy(slot->fates[i].advisory);
    free(slot->fates);
    slot->fates = NULL;
    slot->fate_count = 0;
    memset(slot->buried, 0, sizeof slot->buried);
}

/* Those behind it need not wait for it any longer. */
static void let_go(struct nats_slot *slot, int64_t sequence)
{
    struct nats_item *item = find_item(slot, sequence);

    bus_nats_bury_note(slot, sequence);
    if (!item || item->message)
        return;
    if (item == slot->items) {
        bus_delivery_forget(&slot->delivery);
        slot->due_ns = 0;
    }
    memmove(item, item + 1, (size_t)(slot->items + slot->count - (item + 1)) * sizeof *item);
    slot->count--;
}

/* ---- the letter ---- */

/* A stream that was made after the advisory has something else at that place: the message is gone. */
static natsStatus fetch(struct nats_slot *slot, const struct nats_fate *fate, natsMsg **message)
{
    const struct nats_reader *reader = slot->reader;

    pthread_mutex_lock(&reader->nats->lock);
    bool gone = fate->told_us < slot->created_ns / 1000;
    pthread_mutex_unlock(&reader->nats->lock);
    return gone ? NATS_NOT_FOUND
                : js_GetMsg(message, reader->nats->js, reader->topic->stream, (uint64_t)fate->sequence, NULL,
                            NULL);
}

static struct bus_message original(struct nats_slot *slot, const struct nats_fate *fate, natsMsg *message,
                                   struct arena *arena)
{
    struct bus_message out = {.topic = slot->reader->consumer.topic->name,
                              .payload = STR(""),
                              .partition = slot->partition,
                              .offset = fate->sequence};

    if (!message)
        return out;
    bus_nats_decode_headers(message, arena, &out);
    out.payload = str_of(natsMsg_GetData(message), (size_t)natsMsg_GetDataLength(message));
    return out;
}

static void add_deliveries(struct bus_message *letter, int64_t deliveries, struct arena *arena)
{
    unsigned count = letter->header_count < BUS_HEADERS_MAX ? letter->header_count : BUS_HEADERS_MAX - 1;
    struct bus_header *headers = arena_alloc(arena, (count + 1) * sizeof headers[0]);

    memcpy(headers, letter->headers, count * sizeof headers[0]);
    headers[count] = (struct bus_header){STR(BUS_HEADER_DEAD_DELIVERIES),
                                         arena_printf(arena, "%lld", (long long)deliveries)};
    letter->headers = headers;
    letter->header_count = count + 1;
}

static enum status send_letter(struct nats_slot *slot, const struct nats_fate *fate, natsMsg *message,
                               struct error *error)
{
    const struct bus_consumer *consumer = &slot->reader->consumer;
    const char *reason = fate->kind == FATE_USED_UP ? "deliveries used up" : "terminated by another client";
    struct arena arena;

    arena_init(&arena, ARENA_BYTES);
    struct bus_message dead = original(slot, fate, message, &arena);
    struct bus_message letter = bus_dead_letter(consumer, &dead, reason, &arena);
    add_deliveries(&letter, fate->deliveries, &arena);
    FAILPOINT("nats.before_given_up_letter");
    enum status status =
        bus_dead_letters_publish(slot->delivery.bus, &letter, 1, clock_deadline_ms(LETTER_MS), error);
    FAILPOINT("nats.after_given_up_letter");
    arena_deinit(&arena);
    if (status == STATUS_OK)
        metric_add(consumer->dead_letters, 1);
    return status;
}

static bool bury(struct nats_slot *slot, const struct nats_fate *fate)
{
    struct nats *nats = slot->reader->nats;
    struct error error = {.status = STATUS_UNAVAILABLE};
    natsMsg *message = NULL;
    natsStatus status = fetch(slot, fate, &message);

    if (status == NATS_OK || status == NATS_NOT_FOUND)
        error.status = send_letter(slot, fate, message, &error);
    natsMsg_Destroy(message);
    log_warn("nats_given_up", LOG_CSTR("topic", slot->reader->consumer.spec.topic),
             LOG_CSTR("group", slot->reader->consumer.spec.group), LOG_INT("partition", slot->partition),
             LOG_INT("offset", fate->sequence), LOG_INT("deliveries", fate->deliveries),
             LOG_BOOL("terminated", fate->kind == FATE_TERMINATED),
             LOG_BOOL("letter", error.status == STATUS_OK));
    if (error.status != STATUS_OK)
        return false;
    pthread_mutex_lock(&nats->lock);
    let_go(slot, fate->sequence);
    pthread_mutex_unlock(&nats->lock);
    return true;
}

/* ---- the job's part ---- */

static void settle(struct nats_slot *slot, const struct nats_fate *fate)
{
    struct nats *nats = slot->reader->nats;

    pthread_mutex_lock(&nats->lock);
    struct nats_item *item = find_item(slot, fate->sequence);
    bool here = item && item->message, noted = is_noted(slot, fate->sequence);
    if (here)
        item->given_up = true;
    pthread_mutex_unlock(&nats->lock);
    if (!here && (noted || bury(slot, fate)))
        bus_nats_tell(nats, fate->advisory, "+ACK");
}

/* The server counts what it has sent and nobody has settled. When that is no more than what is here, it does not think of
 * the one that is missing any more. */
static void look_for_head(struct nats_slot *slot)
{
    struct nats *nats = slot->reader->nats;
    struct nats_fate fate = {.told_us = INT64_MAX};
    char consumer[NATS_NAME_BYTES];
    jsConsumerInfo *info = NULL;
    int64_t here = 0;

    pthread_mutex_lock(&nats->lock);
    bool overdue = is_head_overdue(slot, clock_mono_ns());
    for (size_t i = 0; i < slot->count; i++)
        here += slot->items[i].message != NULL;
    if (overdue) {
        fate.sequence = slot->items[0].sequence;
        fate.deliveries = (int64_t)slot->items[0].delivered;
        slot->overdue_ns = clock_deadline_ms(NATS_OVERDUE_WAITS * nats->config.ack_wait_ms);
    }
    snprintf(consumer, sizeof consumer, "%s", slot->consumer);
    pthread_mutex_unlock(&nats->lock);
    if (!overdue)
        return;
    if (js_GetConsumerInfo(&info, nats->js, slot->reader->topic->stream, consumer, NULL, NULL) == NATS_OK &&
        info->NumAckPending <= here)
        bury(slot, &fate);
    jsConsumerInfo_Destroy(info);
}

void bus_nats_fates_settle(struct nats_slot *slot)
{
    struct nats *nats = slot->reader->nats;

    pthread_mutex_lock(&nats->lock);
    struct nats_fate *fates = slot->fates;
    size_t count = slot->fate_count;
    slot->fates = NULL;
    slot->fate_count = 0;
    pthread_mutex_unlock(&nats->lock);
    for (size_t i = 0; i < count; i++) {
        settle(slot, &fates[i]);
        natsMsg_Destroy(fates[i].advisory);
    }
    free(fates);
    look_for_head(slot);
}
