/* Publishing: the first message of each key flies at once, the next one when it is acknowledged, and the call returns when all
 * are. So a message that the server refuses (its stream has no leader for a moment, or no room) is not overtaken by a later one
 * of its key (O3), and keys do not wait for each other.
 *
 * What is not acknowledged when the connection comes back is sent again, in its order and with the same Nats-Msg-Id: the
 * server drops it if it had it already. The id is the event id, so that the same holds for a caller who tries again;
 * the second of the same event id in one call is meant, and gets one of its own. A dead letter's is made of the group and
 * the place, since several groups may bury the same event, and one group's members the same message; a letter that goes back
 * to its topic carries these still, and is no repetition of what it was. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hash.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

enum { AGAIN_MS = 50 /* after the server had nobody to answer */, IN_FLIGHT_MAX = 4000 };

/* ---- ids ---- */

static unsigned occurrences_before(const struct bus_message *messages, size_t at, struct str id)
{
    unsigned count = 0;

    for (size_t i = 0; i < at; i++)
        count += str_eq(bus_message_header(&messages[i], STR(BUS_HEADER_EVENT_ID)), id) &&
                 str_eq(messages[i].topic, messages[at].topic);
    return count;
}

/* The content tells places of a stream that was made anew from those of the old one. */
static void make_letter_id(const struct bus_message *letter, char out[BUS_REASON_BYTES])
{
    struct str group = bus_message_header(letter, STR(BUS_HEADER_DEAD_GROUP));
    struct str offset = bus_message_header(letter, STR(BUS_HEADER_DEAD_OFFSET));

    snprintf(out, BUS_REASON_BYTES, "freshet:dlq-%.*s-%u-%.*s-%016llx", STR_ARG(group), letter->partition,
             STR_ARG(offset), (unsigned long long)hash_content(letter->payload));
}

static void make_id(struct nats *nats, const struct bus_message *messages, size_t at,
                    char out[BUS_REASON_BYTES])
{
    const struct bus_message *message = &messages[at];
    struct str id = bus_message_header(message, STR(BUS_HEADER_EVENT_ID));
    struct str group = bus_message_header(message, STR(BUS_HEADER_DEAD_GROUP));
    struct str offset = bus_message_header(message, STR(BUS_HEADER_DEAD_OFFSET));
    bool carries = id.len > 0 && id.len <= 100;

    for (size_t i = 0; i < id.len && carries; i++)
        carries = id.ptr[i] > ' ' && id.ptr[i] < 0x7f;
    if (group.ptr && offset.ptr && !bus_topic_find(&nats->bus, message->topic)->dead) {
        make_letter_id(message, out);
        return;
    }
    if (!carries) {
        snprintf(out, BUS_REASON_BYTES, "freshet:%016llx%016llx", (unsigned long long)random_u64(),
                 (unsigned long long)random_u64());
        return;
    }
    unsigned before = occurrences_before(messages, at, id);
    int len = snprintf(out, BUS_REASON_BYTES, "%.*s", STR_ARG(id));
    if (group.ptr)
        len += snprintf(out + len, BUS_REASON_BYTES - (size_t)len, "@%.*s@%u@%.*s", STR_ARG(group),
                        message->partition, STR_ARG(offset));
    if (before > 0)
        snprintf(out + len, BUS_REASON_BYTES - (size_t)len, "#%u", before + 1);
}

/* ---- who waits for whom ---- */

static void make_ready(struct nats_publication *publication, struct nats_entry *entry)
{
    entry->next_ready = NULL;
    *publication->ready_end = entry;
    publication->ready_end = &entry->next_ready;
}

static struct nats_entry *take_ready(struct nats_publication *publication)
{
    struct nats_entry *entry = publication->ready;

    if (entry && !(publication->ready = entry->next_ready))
        publication->ready_end = &publication->ready;
    return entry;
}

static void clear_ready(struct nats_publication *publication)
{
    publication->ready = NULL;
    publication->ready_end = &publication->ready;
}

static bool is_same_key(const struct bus_message *a, const struct bus_message *b)
{
    return str_eq(a->key, b->key) && str_eq(a->topic, b->topic);
}

/* Links the messages of each key in their order. Those without a key wait for none. */
static void link_keys(struct nats_publication *publication, const struct bus_message *messages)
{
    size_t slots = 2;

    while (slots < 2 * publication->count)
        slots *= 2;
    size_t *last = memory_zalloc(slots * sizeof last[0]); /* of a key: its place + 1; 0 = free */
    for (size_t i = 0; i < publication->count; i++) {
        if (!messages[i].key.ptr)
            continue;
        size_t slot = hash_seeded(messages[i].key) & (slots - 1);
        while (last[slot] && !is_same_key(&messages[last[slot] - 1], &messages[i]))
            slot = (slot + 1) & (slots - 1);
        if (last[slot]) {
            publication->entries[i].before = &publication->entries[last[slot] - 1];
            publication->entries[i].before->after = &publication->entries[i];
        }
        last[slot] = i + 1;
    }
    free(last);
}

/* ---- acknowledgements, on a thread of the client's ---- */

static struct nats_entry *find_entry(struct nats *nats, const natsMsg *message,
                                     struct nats_publication **publication)
{
    for (struct nats_publication *at = nats->publications; at; at = at->next)
        for (size_t i = 0; i < at->count; i++) {
            size_t index = (at->next_expected + i) % at->count; /* they come in order, mostly */
            if (at->entries[index].message != message)
                continue;
            at->next_expected = index + 1;
            *publication = at;
            return &at->entries[index];
        }
    return NULL;
}

/* Is there no use in sending it again? */
static enum status judge_refusal(const jsPubAckErr *refusal)
{
    switch (refusal->ErrCode) {
    case JSStreamMessageExceedsMaximumErr: return STATUS_PAYLOAD_TOO_LARGE;
    case JSStreamSealedErr: return STATUS_CONFIG;
    case JSStorageResourcesExceededErr:
    case JSMemoryResourcesExceededErr:
    case JSAccountResourcesExceededErr:
    case JSInsufficientResourcesErr: return STATUS_UNAVAILABLE;
    default: return STATUS_OK;
    }
}

static void take_refusal(struct nats *nats, struct nats_publication *publication, const jsPubAckErr *refusal)
{
    if (publication->status == STATUS_OK)
        publication->status = judge_refusal(refusal);
    snprintf(publication->refusal, sizeof publication->refusal, "%s",
             refusal->ErrText ? refusal->ErrText : natsStatus_GetText(refusal->Err));
    if (refusal->Err == NATS_NO_RESPONDERS) { /* the stream is not there, or has no leader */
        nats->doubt = true;
        bus_nats_kick(nats);
    }
}

void bus_nats_on_ack(jsCtx *js, natsMsg *message, jsPubAck *ack, jsPubAckErr *refusal, void *closure)
{
    struct nats *nats = closure;
    struct nats_publication *publication;

    (void)js;
    pthread_mutex_lock(&nats->lock);
    struct nats_entry *entry = find_entry(nats, message, &publication);
    if (entry) {
        entry->message = NULL;
        publication->flying--;
        entry->settled = ack != NULL;
        if (ack) {
            entry->offset = (int64_t)ack->Sequence;
            if (entry->after)
                make_ready(publication, entry->after);
        } else if (refusal) {
            take_refusal(nats, publication, refusal);
        }
        if (publication->flying == 0 || publication->ready)
            pthread_cond_broadcast(&nats->changed);
    }
    pthread_mutex_unlock(&nats->lock);
    natsMsg_Destroy(message);
}

/* ---- a call ---- */

struct call {
    struct nats *nats;
    struct bus_message *messages;
    struct nats_publication publication;
    int64_t deadline_ns;
    unsigned epoch; /* when it was sent */
};

static enum status send_one(struct call *call, size_t at, struct error *error)
{
    struct nats *nats = call->nats;
    struct bus_message *message = &call->messages[at];
    struct nats_entry *entry = &call->publication.entries[at];
    char subject[NATS_NAME_BYTES];
    natsMsg *out = NULL;
    jsPubOptions options;
    size_t bytes;

    bus_nats_subject(subject, nats, bus_topic_find(&nats->bus, message->topic), message->partition);
    natsStatus status = bus_nats_encode(message, subject, entry->id, &out, &bytes);
    jsPubOptions_Init(&options);
    options.MaxWait = clock_ms_left(call->deadline_ns) + 1;
    pthread_mutex_lock(&nats->lock);
    entry->message = out;
    call->publication.flying++;
    pthread_mutex_unlock(&nats->lock);
    if (status == NATS_OK)
        status = js_PublishMsgAsync(nats->js, &out, &options);
    if (status == NATS_OK)
        return STATUS_OK;
    pthread_mutex_lock(&nats->lock);
    entry->message = NULL;
    call->publication.flying--;
    pthread_mutex_unlock(&nats->lock);
    natsMsg_Destroy(out);
    return status == NATS_MAX_PAYLOAD
               ? error_set(error, STATUS_PAYLOAD_TOO_LARGE, "a message is over the server's limit")
               : STATUS_UNAVAILABLE;
}

/* Under the lock, which is open while it sends. */
static enum status send_ready(struct call *call, struct error *error)
{
    struct nats_publication *publication = &call->publication;
    struct nats_entry *entry;
    enum status status = STATUS_OK;

    while (status == STATUS_OK && (entry = take_ready(publication)) != NULL) {
        pthread_mutex_unlock(&call->nats->lock);
        status = send_one(call, (size_t)(entry - publication->entries), error);
        pthread_mutex_lock(&call->nats->lock);
    }
    pthread_mutex_unlock(&call->nats->lock);
    FAILPOINT("nats.publish_sent");
    pthread_mutex_lock(&call->nats->lock);
    if (status == STATUS_OK || status == STATUS_PAYLOAD_TOO_LARGE)
        return status;
    clear_ready(publication); /* the connection is gone: all wait for it */
    return STATUS_OK;
}

static size_t raw_bytes(const struct bus_message *message)
{
    size_t bytes = message->key.len + message->payload.len;

    for (unsigned i = 0; i < message->header_count; i++)
        bytes += message->headers[i].name.len + message->headers[i].value.len;
    return bytes;
}

/* Nothing of a call goes out when one of it is too large. */
static enum status check_sizes(struct call *call, struct error *error)
{
    int64_t limit = natsConnection_GetMaxPayload(call->nats->connection);
    enum status status = STATUS_OK;

    for (size_t i = 0; i < call->publication.count && status == STATUS_OK; i++) {
        natsMsg *message = NULL;
        size_t bytes = 0;
        if (raw_bytes(&call->messages[i]) <
            (size_t)limit / 8) /* escaping makes three of one, names are there twice */
            continue;
        if (bus_nats_encode(&call->messages[i], "x", call->publication.entries[i].id, &message, &bytes) !=
                NATS_OK ||
            (int64_t)bytes > limit)
            status = error_set(error, STATUS_PAYLOAD_TOO_LARGE,
                               "a message of %zu bytes is over the server's limit of %lld", bytes,
                               (long long)limit);
        natsMsg_Destroy(message);
    }
    return status;
}

static enum status check_topics(const struct call *call, bool *known, struct error *error)
{
    *known = true;
    for (size_t i = 0; i < call->publication.count; i++) {
        const struct bus_topic_state *topic = bus_topic_find(&call->nats->bus, call->messages[i].topic);
        const struct nats_topic *there = bus_nats_topic(call->nats, topic);
        if (there->problem[0])
            return error_set(error, STATUS_CONFIG, "%s", there->problem);
        *known &= atomic_load(&topic->known);
    }
    return STATUS_OK;
}

static enum status is_over(const struct call *call, bool flew, struct error *error)
{
    if (call->nats->cancelled)
        return error_set(error, STATUS_CANCELLED, "stopping");
    if (clock_mono_ns() < call->deadline_ns)
        return STATUS_OK;
    if (call->publication.refusal[0])
        return error_set(error, STATUS_TIMEOUT, "NATS: %s", call->publication.refusal);
    return flew ? error_set(error, STATUS_TIMEOUT, "NATS has not acknowledged in time")
                : error_set(error, STATUS_UNAVAILABLE, "NATS cannot be reached");
}

/* Under the lock: until there is a connection and the streams are there. */
static enum status await_engine(struct call *call, bool flew, struct error *error)
{
    enum status status;
    bool known;

    for (;;) {
        status = check_topics(call, &known, error);
        if (status != STATUS_OK || (known && atomic_load(&call->nats->up)))
            return status;
        status = is_over(call, flew, error);
        if (status != STATUS_OK)
            return status;
        bus_nats_wait(call->nats, call->deadline_ns);
    }
}

/* Until all are acknowledged or refused, or others may be sent. */
static enum status await_acks(struct call *call, struct error *error)
{
    struct nats *nats = call->nats;
    struct nats_publication *publication = &call->publication;
    enum status status = STATUS_OK;

    while (publication->flying > 0 && !publication->ready && nats->epoch == call->epoch &&
           status == STATUS_OK) {
        status = is_over(call, true, error);
        if (status == STATUS_OK)
            bus_nats_wait(nats, call->deadline_ns);
    }
    if (status == STATUS_OK && publication->status != STATUS_OK)
        status = error_set(error, publication->status, "NATS: %s", publication->refusal);
    return status;
}

static bool all_settled(const struct nats_publication *publication)
{
    for (size_t i = 0; i < publication->count; i++)
        if (!publication->entries[i].settled)
            return false;
    return true;
}

static void begin_round(struct nats_publication *publication)
{
    clear_ready(publication);
    publication->refusal[0] = '\0';
    for (size_t i = 0; i < publication->count; i++) {
        struct nats_entry *entry = &publication->entries[i];
        if (!entry->settled && (!entry->before || entry->before->settled))
            make_ready(publication, entry);
    }
}

/* Under the lock, which is open while it sends. Sends what may be sent until nothing is on its way; what was refused, and all after it of its key, is for the next round. */
static enum status run_round(struct call *call, struct error *error)
{
    struct nats *nats = call->nats;
    struct nats_publication *publication = &call->publication;
    enum status status;

    begin_round(publication);
    do {
        status = send_ready(call, error);
        enum status answer = await_acks(call, status == STATUS_OK ? error : NULL);
        status = status == STATUS_OK ? answer : status;
    } while (status == STATUS_OK && publication->ready && nats->epoch == call->epoch);
    for (size_t i = 0; i < publication->count; i++)
        publication->entries[i].message = NULL; /* what still flies is for nobody */
    publication->flying = 0;
    return status;
}

/* Under the lock, which is open while it sends. */
static enum status fly(struct call *call, struct error *error)
{
    struct nats *nats = call->nats;
    bool flew = false;

    for (;;) {
        enum status status = await_engine(call, flew, error);
        if (status != STATUS_OK)
            return status;
        call->epoch = nats->epoch;
        if (!flew) {
            pthread_mutex_unlock(&nats->lock);
            status = check_sizes(call, error);
            pthread_mutex_lock(&nats->lock);
        }
        if (status == STATUS_OK)
            status = run_round(call, error);
        flew = true;
        if (status != STATUS_OK || all_settled(&call->publication))
            return status;
        status = is_over(call, true, error);
        if (status != STATUS_OK)
            return status;
        if (nats->epoch == call->epoch)
            bus_nats_wait(nats, clock_deadline_ms(AGAIN_MS));
    }
}

static void leave(struct nats *nats, struct nats_publication *publication)
{
    struct nats_publication **at = &nats->publications;

    while (*at != publication)
        at = &(*at)->next;
    *at = publication->next;
    pthread_cond_broadcast(&nats->changed);
}

static enum status publish_some(struct nats *nats, struct bus_message *messages, size_t count,
                                int64_t deadline_ns, struct error *error)
{
    struct call call = {.nats = nats, .messages = messages, .deadline_ns = deadline_ns};
    enum status status;

    call.publication.count = count;
    call.publication.entries = memory_zalloc(count * sizeof call.publication.entries[0]);
    for (size_t i = 0; i < count; i++)
        make_id(nats, messages, i, call.publication.entries[i].id);
    clear_ready(&call.publication);
    link_keys(&call.publication, messages);
    pthread_mutex_lock(&nats->lock);
    call.publication.next = nats->publications;
    nats->publications = &call.publication;
    status = nats->stopping ? error_set(error, STATUS_CANCELLED, "stopping") : fly(&call, error);
    leave(nats, &call.publication);
    pthread_mutex_unlock(&nats->lock);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        messages[i].offset = call.publication.entries[i].offset;
        metric_add(bus_topic_find(&nats->bus, messages[i].topic)->published, 1);
    }
    free(call.publication.entries);
    return status;
}

enum status bus_nats_publish(struct bus *bus, struct bus_message *messages, size_t count, int64_t deadline_ns,
                             struct error *error)
{
    enum status status = STATUS_OK;

    for (size_t at = 0, some; at < count && status == STATUS_OK; at += some) {
        some = count - at < IN_FLIGHT_MAX ? count - at : IN_FLIGHT_MAX;
        status = publish_some((struct nats *)bus, messages + at, some, deadline_ns, error);
    }
    return status;
}
