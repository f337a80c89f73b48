/* Messages that the server has given up though they were not acknowledged: their deliveries are used up, or another client has
 * terminated them. The server sends an advisory once, so streams keep the advisories, and each partition has a durable consumer
 * there for each kind, read by the holder of the partition. The holder stores a dead letter of the message, by its place in the
 * stream, and only then acknowledges the advisory: a crash between the two stores the same letter again, with the same id.
 *
 * A message that is still here is left to its handler, and the advisory is sent again. A message that was returned to the server
 * and is neither sent again nor in an advisory is given up here, so that the later ones do not wait for ever. */
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

enum {
    PULL_SIZE = 16,
    ARENA_BYTES = 4096,
    LETTER_MS = 5000,
    OVERDUE_WAITS =
        3, /* for acknowledgements: then a message that was returned should have been sent again */
};

/* ---- their consumers ---- */

/* A group's name has no '@', so each name is unique. */
static void watch_name(const struct nats_watch *watch, char out[NATS_LONG_NAME_BYTES])
{
    const struct nats_reader *reader = watch->partition->reader;
    char group[NATS_NAME_BYTES];

    bus_nats_durable(group, reader, watch->partition->number);
    snprintf(out, NATS_LONG_NAME_BYTES, "%s@%s@%s", group, reader->topic->stream,
             bus_nats_advisory_names[watch->kind]);
}

static natsStatus create_watch(const struct nats_watch *watch, const char *stream, const char *name)
{
    const struct nats_reader *reader = watch->partition->reader;
    char subject[NATS_LONG_NAME_BYTES], group[NATS_NAME_BYTES];
    jsConsumerConfig config;

    bus_nats_durable(group, reader, watch->partition->number);
    snprintf(subject, sizeof subject, NATS_ADVISORY_PREFIX "%s.%s.%s", bus_nats_advisory_names[watch->kind],
             reader->topic->stream, group);
    jsConsumerConfig_Init(&config);
    config.Durable = name;
    config.FilterSubject = subject;
    config.AckPolicy = js_AckExplicit;
    config.AckWait = reader->nats->config.ack_wait_ms * 1000000;
    config.MaxDeliver = -1;
    config.DeliverPolicy = js_DeliverAll;
    return js_AddConsumer(NULL, reader->nats->js, stream, &config, NULL, NULL);
}

static bool parse_advisory(natsMsg *message, struct nats_advisory *out)
{
    struct str text = str_of(natsMsg_GetData(message), (size_t)natsMsg_GetDataLength(message));
    struct json_value object, sequence, deliveries;

    if (json_parse(text, JSON_DEPTH_MAX, &object, NULL) != STATUS_OK ||
        !json_get(&object, STR("stream_seq"), &sequence) || !json_to_i64(&sequence, &out->sequence))
        return false;
    if (!json_get(&object, STR("deliveries"), &deliveries) || !json_to_i64(&deliveries, &out->deliveries))
        out->deliveries = 0;
    return out->sequence > 0;
}

static void on_advisory(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                        void *closure)
{
    struct nats_watch *watch = closure;
    struct nats_partition *partition = watch->partition;
    struct nats *nats = partition->reader->nats;
    struct nats_advisory advisory = {.kind = watch->kind, .message = message};
    struct nats_origin origin;
    bool is_ours = false;

    (void)connection;
    (void)subscription;
    if (!bus_nats_origin_parse(message, &origin)) {
        if (bus_nats_pull_end(nats, &watch->pull, message)) {
            pthread_mutex_lock(&nats->lock);
            nats->needs_check = partition->reader->needs_check = true;
            bus_nats_wake(nats);
            pthread_mutex_unlock(&nats->lock);
        }
        natsMsg_Destroy(message);
        return;
    }
    bool is_parsed = parse_advisory(message, &advisory);
    advisory.sent_us = (int64_t)(origin.time_ns / 1000);
    pthread_mutex_lock(&nats->lock);
    watch->pull.requested -= watch->pull.requested > 0;
    if (is_parsed && partition->state != PARTITION_AWAY && !nats->is_stopping) {
        is_ours = true;
        partition->advisories = memory_realloc_array(partition->advisories, partition->advisory_count + 1,
                                                     sizeof partition->advisories[0]);
        partition->advisories[partition->advisory_count++] = advisory;
        bus_nats_reader_dispatch(partition->reader);
    }
    pthread_mutex_unlock(&nats->lock);
    if (is_ours)
        return;
    if (is_parsed)
        bus_nats_nak(nats, message, nats->config.ack_wait_ms);
    else
        bus_nats_reply(nats, message, "+TERM");
    natsMsg_Destroy(message);
}

static bool ensure_watch(struct nats_watch *watch)
{
    struct nats *nats = watch->partition->reader->nats;
    const char *stream = nats->advisory_streams[watch->kind];
    char name[NATS_LONG_NAME_BYTES];
    jsConsumerInfo *info = NULL;

    if (!stream[0])
        return true; /* called again when there is one */
    watch_name(watch, name);
    natsStatus status = js_GetConsumerInfo(&info, nats->js, stream, name, NULL, NULL);
    jsConsumerInfo_Destroy(info);
    if (status == NATS_NOT_FOUND)
        status = create_watch(watch, stream, name);
    if (status == NATS_OK)
        status = bus_nats_pull_open(nats, &watch->pull, on_advisory, watch);
    if (status != NATS_OK) /* the group works without advisories too */
        log_warn("nats_advisories_not_read", LOG_CSTR("stream", stream), LOG_CSTR("consumer", name),
                 LOG_CSTR("error", nats_GetLastError(NULL)));
    pthread_mutex_lock(&nats->lock);
    watch->pull.requested = 0;
    snprintf(watch->stream, sizeof watch->stream, "%s", status == NATS_OK ? stream : "");
    pthread_mutex_unlock(&nats->lock);
    return status == NATS_OK || status == NATS_NOT_FOUND;
}

bool bus_nats_watches_ensure(struct nats_partition *partition)
{
    bool is_good = true;

    for (enum nats_advisory_kind kind = 0; kind < ADVISORY_KINDS && bus_nats_is_watched(partition->reader);
         kind++) {
        partition->watches[kind].partition = partition;
        partition->watches[kind].kind = kind;
        is_good &= ensure_watch(&partition->watches[kind]);
    }
    return is_good;
}

void bus_nats_watches_request(struct nats_partition *partition)
{
    struct nats *nats = partition->reader->nats;
    char name[NATS_LONG_NAME_BYTES];

    for (enum nats_advisory_kind kind = 0; kind < ADVISORY_KINDS; kind++) {
        struct nats_watch *watch = &partition->watches[kind];
        pthread_mutex_lock(&nats->lock);
        bool is_wanted = watch->stream[0] && watch->pull.inbox && partition->state != PARTITION_AWAY &&
                         !nats->is_stopping && !bus_nats_pull_is_open(&watch->pull);
        if (is_wanted)
            bus_nats_pull_begin(nats, &watch->pull, PULL_SIZE);
        pthread_mutex_unlock(&nats->lock);
        if (!is_wanted)
            continue;
        watch_name(watch, name);
        bus_nats_pull_send(nats, &watch->pull, watch->stream, name, PULL_SIZE, 0);
    }
}

/* ---- under the lock ---- */

void bus_nats_dead_note(struct nats_partition *partition, int64_t sequence)
{
    partition->dead_sequences[partition->dead_next++ % NATS_DEAD_KEPT] = sequence;
}

int64_t bus_nats_overdue_ns(const struct nats *nats, int64_t wait_ms)
{
    return clock_deadline_ms(wait_ms + OVERDUE_WAITS * nats->config.ack_wait_ms);
}

static bool is_head_overdue(const struct nats_partition *partition, int64_t now_ns)
{
    return partition->count > 0 && !partition->items[0].message && now_ns > partition->overdue_ns;
}

bool bus_nats_advisories_are_due(const struct nats_partition *partition, int64_t now_ns)
{
    return partition->advisory_count > 0 || is_head_overdue(partition, now_ns);
}

void bus_nats_advisories_drop(struct nats_partition *partition)
{
    for (size_t i = 0; i < partition->advisory_count; i++)
        natsMsg_Destroy(partition->advisories[i].message);
    free(partition->advisories);
    partition->advisories = NULL;
    partition->advisory_count = 0;
    memset(partition->dead_sequences, 0, sizeof partition->dead_sequences);
}

/* The later messages need not wait for it. */
static void remove_returned(struct nats_partition *partition, int64_t sequence)
{
    struct nats_item *item = bus_nats_partition_find(partition, sequence);

    if (!item || item->message)
        return;
    if (item == partition->items) {
        bus_delivery_forget(&partition->delivery);
        partition->due_ns = 0;
    }
    memmove(item, item + 1, (size_t)(partition->items + partition->count - (item + 1)) * sizeof *item);
    partition->count--;
}

/* ---- dead letters, on the job ---- */

static enum status publish_letter(struct nats_partition *partition, const struct nats_advisory *advisory,
                                  natsMsg *message, struct error *error)
{
    const struct bus_consumer *consumer = &partition->reader->consumer;
    const char *reason =
        advisory->kind == ADVISORY_MAX_DELIVERIES ? "deliveries used up" : "terminated by another client";
    struct bus_message dead = {.payload = STR("")};
    struct arena arena;

    arena_init(&arena, ARENA_BYTES);
    if (message)
        bus_nats_decode(message, &arena, &dead);
    dead.topic = consumer->topic->name;
    dead.partition = partition->number;
    dead.offset = advisory->sequence;
    struct bus_message letter = bus_dead_letter(consumer, &dead, reason, &arena);
    unsigned count = letter.header_count < BUS_HEADERS_MAX ? letter.header_count : BUS_HEADERS_MAX - 1;
    struct bus_header *headers = arena_alloc(&arena, (count + 1) * sizeof headers[0]);
    memcpy(headers, letter.headers, count * sizeof headers[0]);
    headers[count] = (struct bus_header){STR(BUS_HEADER_DEAD_DELIVERIES),
                                         arena_printf(&arena, "%lld", (long long)advisory->deliveries)};
    letter.headers = headers;
    letter.header_count = count + 1;
    FAILPOINT("nats.before_given_up_letter");
    enum status status =
        bus_dead_letters_publish(partition->delivery.bus, &letter, 1, clock_deadline_ms(LETTER_MS), error);
    FAILPOINT("nats.after_given_up_letter");
    arena_deinit(&arena);
    if (status == STATUS_OK)
        metric_add(consumer->dead_letters, 1);
    return status;
}

/* A stream that was created after the advisory has another message at that place: then the letter has no content. */
static bool store_letter(struct nats_partition *partition, const struct nats_advisory *advisory)
{
    const struct nats_reader *reader = partition->reader;
    struct nats *nats = reader->nats;
    struct error error = {.status = STATUS_UNAVAILABLE};
    natsMsg *message = NULL;

    pthread_mutex_lock(&nats->lock);
    bool is_gone = advisory->sent_us < partition->stream_created_ns / 1000;
    pthread_mutex_unlock(&nats->lock);
    natsStatus status = is_gone ? NATS_NOT_FOUND
                                : js_GetMsg(&message, nats->js, reader->topic->stream,
                                            (uint64_t)advisory->sequence, NULL, NULL);
    if (status == NATS_OK || status == NATS_NOT_FOUND)
        error.status = publish_letter(partition, advisory, message, &error);
    natsMsg_Destroy(message);
    log_warn("nats_given_up", LOG_CSTR("topic", reader->consumer.spec.topic),
             LOG_CSTR("group", reader->consumer.spec.group), LOG_INT("partition", partition->number),
             LOG_INT("offset", advisory->sequence), LOG_INT("deliveries", advisory->deliveries),
             LOG_BOOL("terminated", advisory->kind == ADVISORY_TERMINATED),
             LOG_BOOL("letter", error.status == STATUS_OK));
    if (error.status != STATUS_OK)
        return false;
    pthread_mutex_lock(&nats->lock);
    bus_nats_dead_note(partition, advisory->sequence);
    remove_returned(partition, advisory->sequence);
    pthread_mutex_unlock(&nats->lock);
    return true;
}

static void settle_advisory(struct nats_partition *partition, const struct nats_advisory *advisory)
{
    struct nats *nats = partition->reader->nats;
    bool has_letter = false;

    pthread_mutex_lock(&nats->lock);
    struct nats_item *item = bus_nats_partition_find(partition, advisory->sequence);
    bool is_here = item && item->message;
    if (is_here)
        item->given_up = true;
    for (size_t i = 0; i < NATS_DEAD_KEPT && !has_letter; i++)
        has_letter = partition->dead_sequences[i] == advisory->sequence;
    pthread_mutex_unlock(&nats->lock);
    if (!is_here && (has_letter || store_letter(partition, advisory)))
        bus_nats_reply(nats, advisory->message, "+ACK");
}

/* The first message was returned to the server and is overdue. When the server counts no more messages as sent and not
 * acknowledged than are here, it does not know this one any more. */
static void check_overdue_head(struct nats_partition *partition)
{
    struct nats *nats = partition->reader->nats;
    struct nats_advisory advisory = {.sent_us = INT64_MAX};
    jsConsumerInfo *info = NULL;
    char consumer[NATS_NAME_BYTES];
    int64_t here = 0;

    pthread_mutex_lock(&nats->lock);
    bool is_overdue = is_head_overdue(partition, clock_mono_ns());
    for (size_t i = 0; i < partition->count; i++)
        here += partition->items[i].message != NULL;
    if (is_overdue) {
        advisory.sequence = partition->items[0].sequence;
        advisory.deliveries = (int64_t)partition->items[0].delivered;
        partition->overdue_ns = bus_nats_overdue_ns(nats, 0);
    }
    memcpy(consumer, partition->consumer, sizeof consumer);
    pthread_mutex_unlock(&nats->lock);
    if (is_overdue &&
        js_GetConsumerInfo(&info, nats->js, partition->reader->topic->stream, consumer, NULL, NULL) ==
            NATS_OK &&
        info->NumAckPending <= here)
        store_letter(partition, &advisory);
    jsConsumerInfo_Destroy(info);
}

void bus_nats_advisories_settle(struct nats_partition *partition)
{
    struct nats *nats = partition->reader->nats;

    pthread_mutex_lock(&nats->lock);
    struct nats_advisory *advisories = partition->advisories;
    size_t count = partition->advisory_count;
    partition->advisories = NULL;
    partition->advisory_count = 0;
    pthread_mutex_unlock(&nats->lock);
    for (size_t i = 0; i < count; i++) {
        settle_advisory(partition, &advisories[i]);
        natsMsg_Destroy(advisories[i].message);
    }
    free(advisories);
    check_overdue_head(partition);
}
