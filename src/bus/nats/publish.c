/* Publishing, in rounds: a round sends the first message of each key that is not acknowledged and waits for the answers, and the
 * call returns when all are acknowledged. So a message that the server refuses (its stream has no leader for a moment, or no room)
 * is not stored after a later one of its key (O3).
 *
 * Messages that are not acknowledged when the connection is back are sent again, in order and with the same Nats-Msg-Id: the
 * server drops those that it has. The id is the event id, so a retry of the caller is dropped too; a second message of the same
 * event id in one call is intended, and gets an id of its own. The id of a dead letter is made of the group and the place, since
 * several groups may give up the same event, and two members of a group the same message; a dead letter that is sent back to its
 * topic still has these headers, and is not a repetition of the first message. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

enum { AGAIN_MS = 50 /* after a refusal */, IN_FLIGHT_MAX = 4000 };

struct entry {
    struct bus_message *message;
    natsMsg *sent; /* on its way; only compared */
    char id[BUS_REASON_BYTES];
    bool is_acked;
    struct entry *before;   /* of the same topic and key; NULL = none */
    struct map_node by_key; /* the last one of its key, while they are linked */
};

/* One call. Under nats->lock, which is open while messages are sent. */
struct nats_publication {
    LIST_ENTRY(nats_publication) link;
    struct nats *nats;
    int64_t deadline_ns;
    unsigned epoch; /* of the connection that its messages are on */
    struct entry *entries;
    size_t count, acked, in_flight, next_expected;
    enum status status; /* of a refusal for which a retry is useless */
    char refusal[128];
};

/* ---- ids ---- */

static void make_id(struct nats *nats, const struct bus_message *messages, size_t at,
                    char out[BUS_REASON_BYTES])
{
    const struct bus_message *message = &messages[at];
    struct str id = bus_message_header(message, STR(BUS_HEADER_EVENT_ID));
    struct str group = bus_message_header(message, STR(BUS_HEADER_DEAD_GROUP));
    struct str offset = bus_message_header(message, STR(BUS_HEADER_DEAD_OFFSET));
    bool is_usable = id.len > 0 && id.len <= 100;
    unsigned before = 0;

    for (size_t i = 0; i < id.len && is_usable; i++)
        is_usable = id.ptr[i] > ' ' && id.ptr[i] < 0x7f;
    if (group.ptr && offset.ptr && !bus_topic_find(&nats->bus, message->topic)->dead) {
        /* a dead letter; a stream that was created again has other content at the same place */
        snprintf(out, BUS_REASON_BYTES, "freshet:dlq-%.*s-%u-%.*s-%016llx", STR_ARG(group),
                 message->partition, STR_ARG(offset), (unsigned long long)hash_content(message->payload));
        return;
    }
    if (!is_usable) {
        snprintf(out, BUS_REASON_BYTES, "freshet:%016llx%016llx", (unsigned long long)random_u64(),
                 (unsigned long long)random_u64());
        return;
    }
    for (size_t i = 0; i < at; i++)
        before += str_eq(bus_message_header(&messages[i], STR(BUS_HEADER_EVENT_ID)), id) &&
                  str_eq(messages[i].topic, message->topic);
    int len = snprintf(out, BUS_REASON_BYTES, "%.*s", STR_ARG(id));
    if (group.ptr)
        len += snprintf(out + len, BUS_REASON_BYTES - (size_t)len, "@%.*s@%u@%.*s", STR_ARG(group),
                        message->partition, STR_ARG(offset));
    if (before > 0)
        snprintf(out + len, BUS_REASON_BYTES - (size_t)len, "#%u", before + 1);
}

/* Links the messages of each key in their order. Those without a key wait for none. */
static void link_keys(struct nats_publication *publication)
{
    struct map last_of_key = {0};

    for (size_t i = 0; i < publication->count; i++) {
        struct entry *entry = &publication->entries[i];
        struct map_node *node;
        if (!entry->message->key.ptr)
            continue;
        uint64_t hash = map_hash_pair(entry->message->key, entry->message->topic);
        MAP_MATCH(node, &last_of_key, hash) {
            struct entry *last = CONTAINER_OF(node, struct entry, by_key);
            if (str_eq(last->message->key, entry->message->key) &&
                str_eq(last->message->topic, entry->message->topic)) {
                entry->before = last;
                break;
            }
        }
        if (node)
            map_remove(&last_of_key, node);
        map_add(&last_of_key, &entry->by_key, hash);
    }
    map_deinit(&last_of_key);
}

/* ---- acknowledgements, on a thread of the client ---- */

/* OK: a retry may succeed. */
static enum status classify_refusal(const jsPubAckErr *refusal)
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

static void refuse_publication(struct nats_publication *publication, enum status status, const char *text)
{
    if (publication->status == STATUS_OK)
        publication->status = status;
    snprintf(publication->refusal, sizeof publication->refusal, "%s", text);
}

void bus_nats_on_ack(jsCtx *js, natsMsg *message, jsPubAck *ack, jsPubAckErr *refusal, void *closure)
{
    struct nats *nats = closure;
    struct nats_publication *publication;
    struct entry *entry = NULL;

    (void)js;
    pthread_mutex_lock(&nats->lock);
    LIST_FOREACH(publication, &nats->publications, link) {
        for (size_t i = 0; i < publication->count && !entry; i++) {
            /* Mostly they arrive in order. */
            size_t at = (publication->next_expected + i) % publication->count;
            if (publication->entries[at].sent == message) {
                entry = &publication->entries[at];
                publication->next_expected = at + 1;
            }
        }
        if (entry)
            break;
    }
    if (entry) {
        entry->sent = NULL;
        publication->in_flight--;
        if (ack) {
            entry->is_acked = true;
            publication->acked++;
            entry->message->offset = (int64_t)ack->Sequence;
        } else if (refusal) {
            refuse_publication(publication, classify_refusal(refusal),
                               refusal->ErrText ? refusal->ErrText : natsStatus_GetText(refusal->Err));
            if (refusal->Err == NATS_NO_RESPONDERS) { /* the stream does not exist, or has no leader */
                nats->needs_check = true;
                bus_nats_wake(nats);
            }
        }
        if (publication->in_flight == 0)
            pthread_cond_broadcast(&nats->changed);
    }
    pthread_mutex_unlock(&nats->lock);
    natsMsg_Destroy(message);
}

/* ---- a call ---- */

/* The lock is released meanwhile. False: nothing more is sent in this round. */
static bool send_entry(struct nats_publication *publication, struct entry *entry)
{
    struct nats *nats = publication->nats;
    const struct bus_message *message = entry->message;
    char subject[NATS_NAME_BYTES];
    natsMsg *out = NULL;
    jsPubOptions options;
    size_t bytes;

    pthread_mutex_unlock(&nats->lock);
    bus_nats_subject(subject, nats, bus_topic_find(&nats->bus, message->topic), message->partition);
    natsStatus status = bus_nats_encode(message, subject, entry->id, &out, &bytes);
    jsPubOptions_Init(&options);
    options.MaxWait = clock_ms_left(publication->deadline_ns) + 1;
    pthread_mutex_lock(&nats->lock);
    entry->sent = out;
    publication->in_flight++;
    pthread_mutex_unlock(&nats->lock);
    if (status == NATS_OK)
        status = js_PublishMsgAsync(nats->js, &out, &options);
    pthread_mutex_lock(&nats->lock);
    if (status == NATS_OK)
        return true;
    entry->sent = NULL;
    publication->in_flight--;
    if (status == NATS_MAX_PAYLOAD)
        refuse_publication(publication, STATUS_PAYLOAD_TOO_LARGE, "a message is over the server's limit");
    natsMsg_Destroy(out);
    return false;
}

/* Nothing of a call is sent when one message is too large. Escaping makes three bytes of one, and names are there twice: smaller
 * messages need no check. */
static enum status check_sizes(const struct nats_publication *publication, struct error *error)
{
    int64_t limit = natsConnection_GetMaxPayload(publication->nats->connection);

    for (size_t i = 0; i < publication->count; i++) {
        const struct bus_message *message = publication->entries[i].message;
        size_t bytes = message->key.len + message->payload.len;
        natsMsg *encoded = NULL;
        for (unsigned at = 0; at < message->header_count; at++)
            bytes += message->headers[at].name.len + message->headers[at].value.len;
        if (bytes < (size_t)limit / 8)
            continue;
        natsStatus status = bus_nats_encode(message, "x", publication->entries[i].id, &encoded, &bytes);
        natsMsg_Destroy(encoded);
        if (status != NATS_OK || (int64_t)bytes > limit)
            return error_set(error, STATUS_PAYLOAD_TOO_LARGE,
                             "a message of %zu bytes is over the server's limit of %lld", bytes,
                             (long long)limit);
    }
    return STATUS_OK;
}

static enum status check_time(const struct nats_publication *publication, bool was_sent, struct error *error)
{
    if (publication->nats->is_cancelled)
        return error_set(error, STATUS_CANCELLED, "stopping");
    if (clock_mono_ns() < publication->deadline_ns)
        return STATUS_OK;
    if (publication->refusal[0])
        return error_set(error, STATUS_TIMEOUT, "NATS: %s", publication->refusal);
    return was_sent ? error_set(error, STATUS_TIMEOUT, "NATS has not acknowledged in time")
                    : error_set(error, STATUS_UNAVAILABLE, "NATS cannot be reached");
}

/* Until there is a connection and the streams exist. */
static enum status await_server(const struct nats_publication *publication, bool was_sent,
                                struct error *error)
{
    struct nats *nats = publication->nats;

    for (;;) {
        bool is_ready = atomic_load(&nats->bus.is_up);
        for (size_t i = 0; i < publication->count; i++) {
            const struct bus_topic_state *topic =
                bus_topic_find(&nats->bus, publication->entries[i].message->topic);
            const char *problem = bus_nats_topic(nats, topic)->problem;
            if (problem[0])
                return error_set(error, STATUS_CONFIG, "%s", problem);
            is_ready &= atomic_load(&topic->known);
        }
        enum status status = is_ready ? STATUS_OK : check_time(publication, was_sent, error);
        if (is_ready || status != STATUS_OK)
            return status;
        clock_cond_wait(&nats->changed, &nats->lock, publication->deadline_ns);
    }
}

/* A refused message, and those after it of its key, are left for the next round; so are all when the connection is lost. */
static enum status send_round(struct nats_publication *publication, struct error *error)
{
    struct nats *nats = publication->nats;
    enum status status = STATUS_OK;
    bool is_sent = true;

    publication->refusal[0] = '\0';
    for (size_t i = 0; i < publication->count && is_sent; i++) {
        struct entry *entry = &publication->entries[i];
        if (entry->is_acked || (entry->before && !entry->before->is_acked))
            continue;
        is_sent = send_entry(publication, entry);
    }
    pthread_mutex_unlock(&nats->lock);
    FAILPOINT("nats.publish_sent");
    pthread_mutex_lock(&nats->lock);
    while (publication->in_flight > 0 && nats->epoch == publication->epoch && status == STATUS_OK) {
        status = check_time(publication, true, error);
        if (status == STATUS_OK)
            clock_cond_wait(&nats->changed, &nats->lock, publication->deadline_ns);
    }
    for (size_t i = 0; i < publication->count; i++)
        publication->entries[i].sent = NULL; /* later acknowledgements are ignored */
    publication->in_flight = 0;
    if (status != STATUS_OK || publication->status == STATUS_OK)
        return status;
    return error_set(error, publication->status, "NATS: %s", publication->refusal);
}

static enum status send_all(struct nats_publication *publication, struct error *error)
{
    struct nats *nats = publication->nats;

    for (bool was_sent = false;; was_sent = true) {
        enum status status = await_server(publication, was_sent, error);
        if (status != STATUS_OK)
            return status;
        size_t acked = publication->acked;
        publication->epoch = nats->epoch;
        if (!was_sent) {
            pthread_mutex_unlock(&nats->lock);
            status = check_sizes(publication, error);
            pthread_mutex_lock(&nats->lock);
        }
        if (status == STATUS_OK)
            status = send_round(publication, error);
        if (status != STATUS_OK || publication->acked == publication->count)
            return status;
        status = check_time(publication, true, error);
        if (status != STATUS_OK)
            return status;
        if (nats->epoch == publication->epoch && publication->acked == acked)
            clock_cond_wait(&nats->changed, &nats->lock, clock_deadline_ms(AGAIN_MS));
    }
}

enum status bus_nats_publish(struct bus *bus, struct bus_message *messages, size_t count, int64_t deadline_ns,
                             struct error *error)
{
    struct nats *nats = (struct nats *)bus;
    enum status status = STATUS_OK;

    for (size_t some; count > 0 && status == STATUS_OK; messages += some, count -= some) {
        some = count < IN_FLIGHT_MAX ? count : IN_FLIGHT_MAX;
        struct nats_publication publication = {.nats = nats, .deadline_ns = deadline_ns, .count = some};
        publication.entries = memory_zalloc(some * sizeof publication.entries[0]);
        for (size_t i = 0; i < some; i++) {
            publication.entries[i].message = &messages[i];
            make_id(nats, messages, i, publication.entries[i].id);
        }
        link_keys(&publication);
        pthread_mutex_lock(&nats->lock);
        LIST_INSERT_HEAD(&nats->publications, &publication, link);
        status = nats->is_stopping ? error_set(error, STATUS_CANCELLED, "stopping")
                                   : send_all(&publication, error);
        LIST_REMOVE(&publication, link);
        pthread_cond_broadcast(&nats->changed);
        pthread_mutex_unlock(&nats->lock);
        for (size_t i = 0; i < some && status == STATUS_OK; i++)
            metric_add(bus_topic_find(bus, messages[i].topic)->published, 1);
        free(publication.entries);
    }
    return status;
}
