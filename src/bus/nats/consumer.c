/* Consumers on the server, one for each partition of a reader: durable for a shared group, whose place it keeps; ephemeral for a
 * reader of everything, created again from the place in our memory whenever something may be lost. */
#include <stdio.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "bus/nats/inside.h"

#define ACK_PENDING_MAX 10000
#define EPHEMERAL_NS (INT64_C(300) * 1000000000)

/* ---- shared groups ---- */

/* Another program may have created it. */
static bool is_durable_usable(const struct nats_reader *reader, const jsConsumerConfig *found,
                              const char *name, const char *subject)
{
    bool is_ours = found->Description && strcmp(found->Description, reader->consumer.spec.group) == 0;
    const char *problem = NULL;

    if (!is_ours && !(reader->topic->exact && reader->partition_count == 1))
        problem = "it is another group's";
    else if (found->AckPolicy != js_AckExplicit)
        problem = "it has no explicit acknowledgements";
    else if (found->DeliverSubject && found->DeliverSubject[0])
        problem = "it pushes";
    else if (found->FilterSubject && found->FilterSubject[0] && strcmp(found->FilterSubject, subject) != 0)
        problem = "it reads another subject";
    if (problem)
        log_error("nats_consumer_refused", LOG_CSTR("consumer", name), LOG_CSTR("error", problem));
    return !problem;
}

static bool ensure_durable(struct nats_partition *partition)
{
    struct nats_reader *reader = partition->reader;
    struct nats *nats = reader->nats;
    const struct bus_consumer *consumer = &reader->consumer;
    int64_t ack_wait_ns = nats->config.ack_wait_ms * 1000000;
    /* the server counts deliveries, also to a process that crashed; dead letters have no dead-letter topic, and no limit */
    int64_t max_deliver =
        consumer->spec.attempts_max > 0 && consumer->topic->dead ? (int64_t)consumer->spec.attempts_max : -1;
    char name[NATS_NAME_BYTES], subject[NATS_NAME_BYTES];
    jsConsumerInfo *info = NULL;
    jsConsumerConfig config;
    bool is_lost = reader->state != READER_STARTING, is_away = partition->state == PARTITION_AWAY;
    bool from_start = is_lost || consumer->spec.from == BUS_FROM_START;
    uint64_t settled = (uint64_t)partition->settled;

    if (partition->is_stream_replaced)
        return true;
    bus_nats_durable(name, reader, partition->number);
    bus_nats_subject(subject, nats, consumer->topic, partition->number);
    pthread_mutex_unlock(&nats->lock);
    natsStatus status = js_GetConsumerInfo(&info, nats->js, reader->topic->stream, name, NULL, NULL);
    /* To the holder, which knows what is settled. */
    bool is_left = status == NATS_NOT_FOUND && is_lost && is_away;
    if (status == NATS_NOT_FOUND && !is_left) {
        /* one that was lost begins at the oldest message that is not known to be settled */
        jsConsumerConfig_Init(&config);
        config.Durable = name;
        config.Description = consumer->spec.group;
        config.FilterSubject = subject;
        config.AckPolicy = js_AckExplicit;
        config.AckWait = ack_wait_ns;
        config.MaxDeliver = max_deliver;
        config.MaxAckPending = ACK_PENDING_MAX;
        config.DeliverPolicy = settled > 0  ? js_DeliverByStartSequence
                               : from_start ? js_DeliverAll
                                            : js_DeliverNew;
        config.OptStartSeq = settled > 0 ? settled + 1 : 0;
        status = js_AddConsumer(&info, nats->js, reader->topic->stream, &config, NULL, NULL);
    }
    bool is_usable = status == NATS_OK && is_durable_usable(reader, info->Config, name, subject);
    if (is_usable && (info->Config->AckWait != ack_wait_ns || info->Config->MaxDeliver != max_deliver)) {
        config = *info->Config; /* a refusal is only logged: the consumer works with its old limits too */
        config.Durable = name;
        config.AckWait = ack_wait_ns;
        config.MaxDeliver = max_deliver;
        if (js_UpdateConsumer(NULL, nats->js, reader->topic->stream, &config, NULL, NULL) == NATS_OK)
            log_info("nats_consumer_updated", LOG_CSTR("consumer", name),
                     LOG_INT("ackWaitMs", nats->config.ack_wait_ms), LOG_INT("maxDeliver", max_deliver));
        else
            log_warn("nats_consumer_not_updated", LOG_CSTR("consumer", name),
                     LOG_CSTR("error", nats_GetLastError(NULL)));
    }
    jsConsumerInfo_Destroy(info);
    pthread_mutex_lock(&nats->lock);
    if (is_usable)
        bus_nats_pull_set(&partition->pull, reader->topic->stream, name);
    return is_usable || is_left;
}

/* What the last holder had when it died: the server sends it again now, and not when its wait for acknowledgements is over. It ignores
 * the sequences that are acknowledged. */
static void return_inherited(struct nats_partition *partition, const jsConsumerInfo *info)
{
    const struct nats_pull *pull = &partition->pull;
    char subject[NATS_NAME_BYTES + NATS_LONG_NAME_BYTES + 64];
    uint64_t first = info->AckFloor.Stream + 1, last = info->Delivered.Stream;

    partition->is_inherited = false;
    for (uint64_t sequence = first; sequence <= last && sequence < first + ACK_PENDING_MAX; sequence++) {
        if (bus_nats_partition_find(partition, (int64_t)sequence))
            continue;
        snprintf(subject, sizeof subject, "$JS.ACK.%s.%s.1.%llu.%llu.0.0", pull->stream, pull->consumer,
                 (unsigned long long)sequence, (unsigned long long)info->Delivered.Consumer);
        natsConnection_PublishString(partition->reader->nats->connection, subject, "-NAK");
    }
}

/* SYNCING to RUNNING, when nothing is missing; then requests messages. Not while a job runs: the messages that it acknowledges are
 * still in the queue, and would stand for others that are missing. */
void bus_nats_partition_sync(struct nats_partition *partition)
{
    struct nats_reader *reader = partition->reader;
    uint64_t newest = partition->consumer_sequence;
    natsStatus status = NATS_NOT_INITIALIZED;
    jsConsumerInfo *info = NULL;

    for (size_t i = 0; i < partition->count; i++)
        if (partition->items[i].consumer_sequence > newest)
            newest = partition->items[i].consumer_sequence;
    if (partition->state == PARTITION_SYNCING && !partition->is_busy)
        status = bus_nats_pull_info(&partition->pull, &info);
    if (status == NATS_NOT_FOUND)
        reader->needs_check = true;
    if (status == NATS_OK && partition->is_inherited)
        return_inherited(partition, info);
    if (status == NATS_OK && info->Delivered.Consumer < newest) {
        /* the consumer was created again, and counts from 1: messages that arrived since may be newer than the answer */
        bus_nats_partition_reset_sequences(partition);
    } else if (status == NATS_OK && partition->state == PARTITION_SYNCING &&
               bus_nats_partition_is_complete(partition, info)) {
        /* Those before it are here or acknowledged. */
        partition->consumer_sequence = info->Delivered.Consumer;
        bus_nats_partition_move(partition, PARTITION_RUNNING);
        bus_nats_reader_dispatch(reader);
    }
    jsConsumerInfo_Destroy(info);
    bus_nats_partition_request(partition);
}

/* ---- readers of everything ---- */

static int64_t next_sequence(const struct nats_partition *partition)
{
    return partition->count > 0 ? partition->items[partition->count - 1].sequence + 1
                                : partition->settled + 1;
}

static bool replace_ephemeral(struct nats_partition *partition, const jsStreamInfo *stream)
{
    struct nats_reader *reader = partition->reader;
    struct nats *nats = reader->nats;
    char subject[NATS_NAME_BYTES], name[NATS_NAME_BYTES];
    jsConsumerConfig config;
    int64_t from = next_sequence(partition);

    if (reader->state == READER_STARTING)
        from = reader->consumer.spec.from == BUS_FROM_START && stream->State.FirstSeq > 0
                   ? (int64_t)stream->State.FirstSeq
                   : (int64_t)stream->State.LastSeq + 1;
    bus_nats_subject(subject, nats, reader->consumer.topic, partition->number);
    snprintf(name, sizeof name, "every_%u_%016llx", partition->number, (unsigned long long)random_u64());
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
    pthread_mutex_unlock(&nats->lock);
    if (partition->pull.consumer[0])
        js_DeleteConsumer(nats->js, reader->topic->stream, partition->pull.consumer, NULL, NULL);
    natsStatus status = js_AddConsumer(NULL, nats->js, reader->topic->stream, &config, NULL, NULL);
    pthread_mutex_lock(&nats->lock);
    if (status != NATS_OK) {
        log_debug("nats_consumer_waits", LOG_CSTR("error", nats_GetLastError(NULL)));
        return false;
    }
    if (reader->state == READER_STARTING)
        partition->settled = from - 1;
    bus_nats_pull_set(&partition->pull, reader->topic->stream, name);
    bus_nats_partition_move(partition, PARTITION_RUNNING);
    partition->consumer_sequence = 0;
    partition->pull.requested = 0;
    return true;
}

/* ---- gaps ---- */

/* What arrives during the request is newer than the answer. */
static natsStatus get_stream(struct nats_reader *reader, jsStreamInfo **stream)
{
    struct nats *nats = reader->nats;

    for (unsigned i = 0; i < reader->partition_count; i++)
        reader->partitions[i].next_before = next_sequence(&reader->partitions[i]);
    pthread_mutex_unlock(&nats->lock);
    natsStatus status = js_GetStreamInfo(stream, nats->js, reader->topic->stream, NULL, NULL);
    pthread_mutex_lock(&nats->lock);
    return status;
}

/* Retention deleted messages before they were handled, or the stream lost its tail or was created again. The place of a group is
 * known here only while the partition is ours and something of it was settled. While a job runs the partition is looked at again
 * after it; what a group has settled means nothing in a stream that counts from 1 again, so until then nothing is read. */
static void check_gaps(struct nats_reader *reader, const jsStreamInfo *stream)
{
    bool is_shared = nats_reader_is_shared(reader);
    int64_t first = (int64_t)stream->State.FirstSeq, end = (int64_t)stream->State.LastSeq + 1;

    for (unsigned i = 0; i < reader->partition_count; i++) {
        struct nats_partition *partition = &reader->partitions[i];
        bool is_new = partition->stream_created_ns && partition->stream_created_ns != stream->Created;
        bool has_lost_tail = partition->next_before > end, is_trimmed = next_sequence(partition) < first;
        bool is_known = partition->state != PARTITION_AWAY &&
                        (partition->settled > 0 || partition->count > 0 || !is_shared);
        partition->is_stream_replaced = partition->is_busy && is_shared && (is_new || has_lost_tail);
        if (partition->is_stream_replaced) {
            partition->pull.consumer[0] = '\0';
            reader->needs_check = true;
        }
        if (partition->is_busy)
            continue;
        partition->stream_created_ns = stream->Created;
        if (!is_new && !(is_known && (has_lost_tail || is_trimmed)))
            continue;
        partition->gap_from = next_sequence(partition);
        bus_nats_partition_clear(partition);
        if (is_new)
            bus_nats_advisories_drop(partition);
        partition->has_gap = is_known;
        partition->gap_next = is_new ? 1 : has_lost_tail ? end : first;
        partition->settled = partition->gap_next - 1;
        reader->needs_check = true;
    }
    bus_nats_reader_dispatch(reader);
}

/* ---- a reader ---- */

bool bus_nats_consumers_ensure(struct nats_reader *reader)
{
    bool is_shared = nats_reader_is_shared(reader), is_good = true;
    jsStreamInfo *stream = NULL;

    if (!atomic_load(&reader->consumer.topic->known) || get_stream(reader, &stream) != NATS_OK)
        return false;
    check_gaps(reader, stream);
    for (unsigned i = 0; i < reader->partition_count && is_good; i++) {
        struct nats_partition *partition = &reader->partitions[i];
        is_good = bus_nats_partition_open(partition) == NATS_OK &&
                  (is_shared ? ensure_durable(partition) && bus_nats_watches_ensure(partition)
                             : replace_ephemeral(partition, stream));
    }
    if (is_good && is_shared)
        is_good = bus_nats_members_subscribe(reader) == NATS_OK;
    jsStreamInfo_Destroy(stream);
    if (!is_good)
        return false;
    if (reader->state == READER_STARTING)
        reader->state = READER_READY;
    bus_nats_reader_dispatch(reader);
    for (unsigned i = 0; i < reader->partition_count; i++)
        bus_nats_partition_request(&reader->partitions[i]);
    return true;
}

void bus_nats_reader_look(struct nats_reader *reader)
{
    struct nats *nats = reader->nats;
    jsStreamInfo *stream = NULL;
    uint64_t lag = 0;

    if (get_stream(reader, &stream) != NATS_OK)
        return;
    int64_t last = (int64_t)stream->State.LastSeq;
    for (unsigned i = 0; i < reader->partition_count; i++) {
        struct nats_partition *partition = &reader->partitions[i];
        struct nats_pull *pull = &partition->pull;
        jsConsumerInfo *info = NULL;
        if (pull->consumer[0] && bus_nats_pull_info(pull, &info) == NATS_OK) {
            partition->pending =
                info->NumPending +
                (nats_reader_is_shared(reader) ? (uint64_t)info->NumAckPending : partition->count);
            /* the place of a partition without new messages moves on with the stream */
            if (partition->pending == 0 && partition->count == 0 && partition->state == PARTITION_RUNNING &&
                !partition->is_busy && partition->settled > 0 &&
                (int64_t)info->Delivered.Stream <= partition->settled && partition->settled < last)
                partition->settled = last;
        } else {
            reader->needs_check |= pull->consumer[0] && atomic_load(&nats->bus.is_up);
        }
        lag += partition->pending;
        jsConsumerInfo_Destroy(info);
    }
    check_gaps(reader, stream);
    metric_set(reader->consumer.lag, (double)lag);
    jsStreamInfo_Destroy(stream);
}
