/* Consumers on the server, one for each slot: a durable one where a group shares, which keeps the group's place; an
 * ephemeral one for a reader of everything, which is made anew from the place in our memory whenever there is doubt. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "bus/nats/inside.h"

#define ACK_PENDING_MAX 10000
#define EPHEMERAL_NS (INT64_C(300) * 1000000000)

/* ---- shared ---- */

/* The server counts deliveries for us, also those that a process died of. A dead letter's are not counted there: it has
 * nowhere to go. */
static int64_t deliveries_max(const struct nats_reader *reader)
{
    unsigned attempts_max = reader->consumer.spec.attempts_max;

    return attempts_max > 0 && reader->consumer.topic->dead ? (int64_t)attempts_max : -1;
}

static natsStatus add_durable(struct nats_slot *slot, const char *name, const char *subject,
                              jsConsumerInfo **info)
{
    const struct bus_subscription *spec = &slot->reader->consumer.spec;
    struct nats *nats = slot->reader->nats;
    jsConsumerConfig config;

    jsConsumerConfig_Init(&config);
    config.Durable = name;
    config.Description = spec->group;
    config.FilterSubject = subject;
    config.AckPolicy = js_AckExplicit;
    config.AckWait = nats->config.ack_wait_ms * 1000000;
    config.MaxDeliver = deliveries_max(slot->reader);
    config.MaxAckPending = ACK_PENDING_MAX;
    config.DeliverPolicy = spec->from == BUS_FROM_START ? js_DeliverAll : js_DeliverNew;
    if (slot->reader->ready) /* it was there, and is lost: rather once more than not at all … */
        config.DeliverPolicy = js_DeliverAll;
    if (slot->settled > 0) { /* … but for what we know of */
        config.DeliverPolicy = js_DeliverByStartSequence;
        config.OptStartSeq = (uint64_t)slot->settled + 1;
    }
    return js_AddConsumer(info, nats->js, slot->reader->topic->stream, &config, NULL, NULL);
}

/* Somebody else may have made it: then it must be of the kind that we can read. NULL = it is. */
static const char *find_problem(const struct nats_reader *reader, const jsConsumerConfig *there,
                                const char *subject)
{
    bool ours = there->Description && strcmp(there->Description, reader->consumer.spec.group) == 0;

    if (!ours && !(reader->topic->exact && reader->consumer.topic->spec.partitions == 1))
        return "it is another group's";
    if (there->AckPolicy != js_AckExplicit)
        return "it has no explicit acknowledgements";
    if (there->DeliverSubject && there->DeliverSubject[0])
        return "it pushes";
    if (there->FilterSubject && there->FilterSubject[0] && strcmp(there->FilterSubject, subject) != 0)
        return "it reads another subject";
    return NULL;
}

/* It works as it is, too, so a refusal is only told. */
static void update_durable(struct nats_slot *slot, const char *name, const jsConsumerConfig *there)
{
    struct nats *nats = slot->reader->nats;
    jsConsumerConfig config = *there;

    config.Durable = name;
    config.AckWait = nats->config.ack_wait_ms * 1000000;
    config.MaxDeliver = deliveries_max(slot->reader);
    if (config.AckWait == there->AckWait && config.MaxDeliver == there->MaxDeliver)
        return;
    if (js_UpdateConsumer(NULL, nats->js, slot->reader->topic->stream, &config, NULL, NULL) == NATS_OK)
        log_info("nats_consumer_updated", LOG_CSTR("consumer", name),
                 LOG_INT("ackWaitMs", nats->config.ack_wait_ms), LOG_INT("maxDeliver", config.MaxDeliver));
    else
        log_warn("nats_consumer_not_updated", LOG_CSTR("consumer", name),
                 LOG_CSTR("error", nats_GetLastError(NULL)));
}

static bool ensure_durable(struct nats_slot *slot)
{
    struct nats_reader *reader = slot->reader;
    struct nats *nats = reader->nats;
    char name[NATS_NAME_BYTES], subject[NATS_NAME_BYTES];
    jsConsumerInfo *info = NULL;

    if (slot->is_unsure)
        return true;
    bus_nats_durable(name, reader, slot->partition);
    bus_nats_subject(subject, nats, reader->consumer.topic, slot->partition);
    natsStatus status = js_GetConsumerInfo(&info, nats->js, reader->topic->stream, name, NULL, NULL);
    if (status == NATS_NOT_FOUND && reader->ready && slot->state == SLOT_AWAY)
        return true; /* it is lost, and who has the partition knows best where it stood */
    if (status == NATS_NOT_FOUND)
        status = add_durable(slot, name, subject, &info);
    const char *problem = status == NATS_OK ? find_problem(reader, info->Config, subject) : NULL;
    bool good = status == NATS_OK && !problem;
    if (problem)
        log_error("nats_consumer_refused", LOG_CSTR("consumer", name), LOG_CSTR("error", problem));
    if (good)
        update_durable(slot, name, info->Config);
    jsConsumerInfo_Destroy(info);
    if (!good)
        return false;
    pthread_mutex_lock(&nats->lock);
    snprintf(slot->consumer, sizeof slot->consumer, "%s", name);
    pthread_mutex_unlock(&nats->lock);
    return true;
}

/* Only what was sent before the answer was made counts: a message that came after it does not stand for an earlier one that is
 * still on its way, perhaps by another member that gives it back. While such a one is here, the answer is too old. */
bool bus_nats_slot_is_whole(struct nats_slot *slot, int64_t pending, uint64_t delivered, uint64_t floor)
{
    bool is_old = slot->turn > delivered;
    int64_t here = 0;

    for (size_t i = 0; i < slot->count; i++) {
        is_old |= slot->items[i].turn > delivered;
        here += slot->items[i].turn <= delivered && slot->items[i].sequence > (int64_t)floor;
    }
    slot->owed = pending > here ? pending - here : 0;
    return slot->owed == 0 && !is_old;
}

static uint64_t newest_turn(const struct nats_slot *slot)
{
    uint64_t newest = slot->turn;

    for (size_t i = 0; i < slot->count; i++)
        newest = slot->items[i].turn > newest ? slot->items[i].turn : newest;
    return newest;
}

void bus_nats_slot_forget_turns(struct nats_slot *slot)
{
    slot->turn = 0;
    for (size_t i = 0; i < slot->count; i++)
        slot->items[i].turn = 0;
}

/* Everything that the server counts as sent and not acknowledged is in our hands: then nothing that comes next can be
 * earlier than what is here. */
void bus_nats_slot_sync(struct nats_slot *slot)
{
    struct nats *nats = slot->reader->nats;
    jsConsumerInfo *info = NULL;

    pthread_mutex_lock(&nats->lock);
    uint64_t newest = newest_turn(slot);
    pthread_mutex_unlock(&nats->lock);
    natsStatus status =
        js_GetConsumerInfo(&info, nats->js, slot->reader->topic->stream, slot->consumer, NULL, NULL);
    pthread_mutex_lock(&nats->lock);
    if (status == NATS_NOT_FOUND)
        slot->reader->doubt = true;
    if (status == NATS_OK && slot->state == SLOT_SYNCING) {
        if (info->Delivered.Consumer < newest) /* the consumer was made anew, and counts anew */
            bus_nats_slot_forget_turns(slot);
        if (bus_nats_slot_is_whole(slot, info->NumAckPending, info->Delivered.Consumer,
                                   info->AckFloor.Stream)) {
            if (slot->turn < info->Delivered.Consumer) /* those were acknowledged, by whoever got them */
                slot->turn = info->Delivered.Consumer;
            slot->state = SLOT_RUNNING;
            bus_nats_reader_wake(slot->reader);
        }
    }
    pthread_mutex_unlock(&nats->lock);
    jsConsumerInfo_Destroy(info);
    bus_nats_slot_pull(slot);
}

/* ---- everything ---- */

static int64_t next_wanted(const struct nats_slot *slot)
{
    return slot->count > 0 ? slot->items[slot->count - 1].sequence + 1 : slot->settled + 1;
}

static int64_t first_wanted(const struct nats_slot *slot, const jsStreamState *state)
{
    const struct bus_subscription *spec = &slot->reader->consumer.spec;

    if (slot->reader->ready)
        return next_wanted(slot);
    return spec->from == BUS_FROM_START && state->FirstSeq > 0 ? (int64_t)state->FirstSeq
                                                               : (int64_t)state->LastSeq + 1;
}

static bool make_ephemeral(struct nats_slot *slot, const jsStreamInfo *stream)
{
    struct nats_reader *reader = slot->reader;
    struct nats *nats = reader->nats;
    char subject[NATS_NAME_BYTES], name[NATS_NAME_BYTES], old[NATS_NAME_BYTES];
    jsConsumerConfig config;
    jsConsumerInfo *info = NULL;

    pthread_mutex_lock(&nats->lock);
    int64_t from = first_wanted(slot, &stream->State);
    snprintf(old, sizeof old, "%s", slot->consumer);
    pthread_mutex_unlock(&nats->lock);
    if (old[0])
        js_DeleteConsumer(nats->js, reader->topic->stream, old, NULL, NULL);
    bus_nats_subject(subject, nats, reader->consumer.topic, slot->partition);
    snprintf(name, sizeof name, "every_%u_%016llx", slot->partition, (unsigned long long)random_u64());
    jsConsumerConfig_Init(&config);
    config.Name = name;
    config.Description = reader->consumer.spec.group;
    config.FilterSubject = subject;
    config.AckPolicy = js_AckNone;
    config.DeliverPolicy = js_DeliverByStartSequence;
    config.OptStartSeq = (uint64_t)from;
    config.InactiveThreshold = EPHEMERAL_NS;
    config.MemoryStorage = true;
    config.Replicas = 1;
    natsStatus status = js_AddConsumer(&info, nats->js, reader->topic->stream, &config, NULL, NULL);
    jsConsumerInfo_Destroy(info);
    if (status != NATS_OK) {
        log_debug("nats_consumer_waits", LOG_CSTR("error", nats_GetLastError(NULL)));
        return false;
    }
    pthread_mutex_lock(&nats->lock);
    if (!reader->ready)
        slot->settled = from - 1;
    snprintf(slot->consumer, sizeof slot->consumer, "%s", name);
    slot->state = SLOT_RUNNING;
    slot->turn = 0;
    slot->asked = 0;
    pthread_mutex_unlock(&nats->lock);
    return true;
}

/* ---- gaps ---- */

/* What comes while the stream is asked about is newer than the answer. */
static natsStatus ask_about_stream(struct nats_reader *reader, jsStreamInfo **stream)
{
    struct nats *nats = reader->nats;

    pthread_mutex_lock(&nats->lock);
    for (unsigned i = 0; i < reader->consumer.topic->spec.partitions; i++)
        reader->slots[i].next_before = next_wanted(&reader->slots[i]);
    pthread_mutex_unlock(&nats->lock);
    return js_GetStreamInfo(stream, nats->js, reader->topic->stream, NULL, NULL);
}

static bool is_made_anew(const struct nats_slot *slot, const jsStreamInfo *stream)
{
    return slot->created_ns && slot->created_ns != stream->Created;
}

static bool has_lost_tail(const struct nats_slot *slot, const jsStreamInfo *stream)
{
    return slot->next_before > (int64_t)stream->State.LastSeq + 1;
}

/* Under the lock. Retention was faster than we were, or the stream is not what it was. Where a group stands is known here
 * only while the partition is ours and something of it was settled. */
static void look_for_gap(struct nats_slot *slot, const jsStreamInfo *stream)
{
    bool anew = is_made_anew(slot, stream), lost_tail = has_lost_tail(slot, stream);
    int64_t first = (int64_t)stream->State.FirstSeq, end = (int64_t)stream->State.LastSeq + 1;
    bool trimmed = next_wanted(slot) < first;
    bool known = slot->state != SLOT_AWAY &&
                 (slot->settled > 0 || slot->count > 0 || slot->reader->consumer.spec.mode == BUS_EVERY);

    slot->created_ns = stream->Created;
    if (!anew && !(known && (lost_tail || trimmed)))
        return;
    for (size_t i = 0; i < slot->count; i++)
        bus_nats_item_free(&slot->items[i]);
    if (anew)
        bus_nats_fates_drop(slot);
    slot->is_out = false;
    slot->gap = known;
    slot->gap_from = next_wanted(slot);
    slot->gap_next = anew ? 1 : lost_tail ? end : first;
    slot->settled = slot->gap_next - 1;
    slot->count = 0;
    slot->reader->doubt = true;
}

/* Under the lock. A slot whose handler runs is looked at again when it is done. What a group has settled means nothing in a
 * stream that counts anew, so it reads nothing there until then: it would take the new messages for old ones. */
static void look_at_busy(struct nats_slot *slot, const jsStreamInfo *stream)
{
    slot->is_unsure = slot->reader->consumer.spec.mode == BUS_SHARED &&
                      (is_made_anew(slot, stream) || has_lost_tail(slot, stream));
    if (!slot->is_unsure)
        return;
    slot->consumer[0] = '\0';
    slot->reader->doubt = true;
}

static void look_for_gaps(struct nats_reader *reader, const jsStreamInfo *stream)
{
    struct nats *nats = reader->nats;

    pthread_mutex_lock(&nats->lock);
    for (unsigned i = 0; i < reader->consumer.topic->spec.partitions; i++) {
        struct nats_slot *slot = &reader->slots[i];
        slot->is_unsure = false;
        if (slot->busy)
            look_at_busy(slot, stream);
        else
            look_for_gap(slot, stream);
    }
    bus_nats_reader_wake(reader);
    pthread_mutex_unlock(&nats->lock);
}

/* ---- a reader ---- */

static void mark_ready(struct nats_reader *reader)
{
    pthread_mutex_lock(&reader->nats->lock);
    reader->ready = true;
    bus_nats_reader_wake(reader);
    pthread_mutex_unlock(&reader->nats->lock);
}

bool bus_nats_consumers_ensure(struct nats_reader *reader)
{
    bool shared = reader->consumer.spec.mode == BUS_SHARED, good = true;
    jsStreamInfo *stream = NULL;

    if (!atomic_load(&reader->consumer.topic->known) || ask_about_stream(reader, &stream) != NATS_OK)
        return false;
    look_for_gaps(reader, stream);
    for (unsigned i = 0; i < reader->consumer.topic->spec.partitions && good; i++) {
        struct nats_slot *slot = &reader->slots[i];
        good =
            bus_nats_inbox_open(reader->nats, &slot->inbox, slot->inbox_subject, bus_nats_on_message, slot) ==
                NATS_OK &&
            (shared ? ensure_durable(slot) && bus_nats_watches_ensure(slot) : make_ephemeral(slot, stream));
    }
    if (good && shared)
        good = bus_nats_members_listen(reader) == NATS_OK;
    jsStreamInfo_Destroy(stream);
    if (good)
        mark_ready(reader);
    for (unsigned i = 0; i < reader->consumer.topic->spec.partitions && good; i++)
        bus_nats_slot_pull(&reader->slots[i]);
    return good;
}

/* A place where nothing of ours was, while others of the stream came: it moves on with the stream. */
static void look_at_slot(struct nats_slot *slot, const jsStreamInfo *stream)
{
    struct nats *nats = slot->reader->nats;
    jsConsumerInfo *info = NULL;

    if (!slot->consumer[0] || js_GetConsumerInfo(&info, nats->js, slot->reader->topic->stream, slot->consumer,
                                                 NULL, NULL) != NATS_OK) {
        pthread_mutex_lock(&nats->lock);
        slot->reader->doubt |= slot->consumer[0] != '\0' && atomic_load(&nats->up);
        pthread_mutex_unlock(&nats->lock);
        return;
    }
    pthread_mutex_lock(&nats->lock);
    bool every = slot->reader->consumer.spec.mode == BUS_EVERY;
    slot->pending = info->NumPending + (every ? slot->count : (uint64_t)info->NumAckPending);
    if (slot->pending == 0 && slot->count == 0 && slot->state == SLOT_RUNNING &&
        info->Delivered.Stream <= stream->State.LastSeq && slot->settled < (int64_t)stream->State.LastSeq &&
        slot->settled > 0 && !slot->busy && (int64_t)info->Delivered.Stream <= slot->settled)
        slot->settled = (int64_t)stream->State.LastSeq;
    pthread_mutex_unlock(&nats->lock);
    jsConsumerInfo_Destroy(info);
}

void bus_nats_reader_look(struct nats_reader *reader)
{
    jsStreamInfo *stream = NULL;
    uint64_t lag = 0;

    if (ask_about_stream(reader, &stream) != NATS_OK)
        return;
    for (unsigned i = 0; i < reader->consumer.topic->spec.partitions; i++) {
        look_at_slot(&reader->slots[i], stream);
        lag += reader->slots[i].pending;
    }
    look_for_gaps(reader, stream);
    metric_set(reader->consumer.lag, (double)lag);
    jsStreamInfo_Destroy(stream);
}
