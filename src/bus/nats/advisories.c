/* Advisories: the server reports a message that it does not deliver again though it was not acknowledged, since its deliveries are
 * used up, or another client has terminated it. It sends an advisory once, so streams keep the advisories, and each partition has a
 * durable consumer there for each kind, read by the holder of the partition. The holder stores a dead letter of the message, by its
 * place in the stream, and only then acknowledges the advisory: a crash between the two stores the dead letter again, with the same
 * id.
 *
 * A message that is still here is left to its handler, and the advisory is sent again. A message that was returned to the server
 * and is neither sent again nor in an advisory becomes a dead letter here, so that the later ones do not wait for ever.
 *
 * The streams that configuration names keep the advisories of our streams only; several programs may add their subjects. Two
 * streams cannot have the same subject: where another stream has it, the default stream is tried. */
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define ADVISORY_PREFIX "$JS.EVENT.ADVISORY.CONSUMER."
#define DEFAULT_STREAM "freshet_advisories"
#define KEEP_NS (INT64_C(30) * 24 * 3600 * 1000000000)

enum {
    PULL_SIZE = 16,
    ARENA_BYTES = 4096,
    DEAD_LETTER_MS = 5000,
    /* For acknowledgements: then a message that was returned should have been sent again. */
    OVERDUE_WAITS = 3,
};

static const char *const kind_names[ADVISORY_KINDS] = {
    [ADVISORY_MAX_DELIVERIES] = "MAX_DELIVERIES",
    [ADVISORY_TERMINATED] = "MSG_TERMINATED",
};

/* Dead letters have no dead-letter topic; the consumer of a reader of everything has no acknowledgements. */
static bool is_watched(const struct nats_reader *reader)
{
    return nats_reader_is_shared(reader) && reader->consumer.topic->dead;
}

/* ---- the streams ---- */

/* Does a pattern match everything that `subject` matches? */
static bool is_covered(const char *subject, const char *const *patterns, int count)
{
    for (int i = 0; i < count; i++) {
        struct str pattern = str_from(patterns[i]), rest = str_from(subject), left, right;
        for (;;) {
            bool has_left = str_split(&pattern, '.', &left), has_right = str_split(&rest, '.', &right);
            if ((!has_left && !has_right) || (has_left && has_right && str_eq(left, STR(">"))))
                return true;
            if (!has_left || !has_right ||
                (!str_eq(left, right) && (!str_eq(left, STR("*")) || str_eq(right, STR(">")))))
                break;
        }
    }
    return false;
}

/* Gives the stream our subjects, and leaves those that it has and ours do not replace: a stream has no two subjects that overlap.
 * False: it covers ours already. */
static bool join_subjects(const struct nats *nats, enum nats_advisory_kind kind, jsStreamConfig *config,
                          struct arena *arena)
{
    bool is_default = strcmp(config->Name, DEFAULT_STREAM) == 0, is_wider = false;
    const char *const *had = config->Subjects;
    int had_count = config->SubjectsLen, our_count = 0, count = 0;
    const char **ours = arena_alloc(arena, (nats->reader_count + 1) * sizeof ours[0]);
    const char **joined = arena_alloc(arena, (nats->reader_count + (size_t)had_count + 1) * sizeof joined[0]);

    for (size_t i = 0; i < nats->reader_count; i++) {
        const char *stream = nats->readers[i]->topic->stream, *end = is_default ? ">" : ".*";
        struct str subject =
            arena_printf(arena, ADVISORY_PREFIX "%s.%s%s", kind_names[kind], is_default ? "" : stream, end);
        if (is_watched(nats->readers[i]) && !is_covered(subject.ptr, ours, our_count))
            ours[our_count++] = subject.ptr;
    }
    for (int i = 0; i < had_count; i++)
        if (!is_covered(had[i], ours, our_count))
            joined[count++] = had[i];
    for (int i = 0; i < our_count; i++) {
        is_wider |= !is_covered(ours[i], had, had_count);
        if (!is_covered(ours[i], joined, count))
            joined[count++] = ours[i];
    }
    config->Subjects = joined;
    config->SubjectsLen = count;
    return is_wider;
}

static natsStatus ensure_stream(struct nats *nats, enum nats_advisory_kind kind, const char *stream,
                                jsErrCode *code)
{
    struct arena arena = ARENA(ARENA_BYTES);
    jsStreamConfig config;
    jsStreamInfo *info = NULL;
    natsStatus status = js_GetStreamInfo(&info, nats->js, stream, NULL, code);

    jsStreamConfig_Init(&config);
    config.Name = stream;
    config.Description = "messages that were given up";
    config.MaxAge = KEEP_NS;
    config.Replicas = nats->config.replicas;
    if (info)
        config = *info->Config;
    bool is_wider = join_subjects(nats, kind, &config, &arena);
    if (status == NATS_NOT_FOUND)
        status = js_AddStream(NULL, nats->js, &config, NULL, code);
    else if (status == NATS_OK && is_wider)
        status = js_UpdateStream(NULL, nats->js, &config, NULL, code);
    jsStreamInfo_Destroy(info);
    arena_deinit(&arena);
    return status;
}

/* Two processes that add their subjects to a named stream at the same time both write the whole list: the subjects of the first
 * are lost, and added again by the next call. The default stream has one subject for all. */
void bus_nats_advisory_streams_ensure(struct nats *nats)
{
    const char *const names[] = {nats->config.advisory_stream, nats->config.terminated_stream};
    bool is_any_watched = false, is_new = false;

    for (size_t i = 0; i < nats->reader_count; i++)
        is_any_watched |= is_watched(nats->readers[i]);
    for (enum nats_advisory_kind kind = 0; kind < ADVISORY_KINDS && is_any_watched; kind++) {
        const char *stream = names[kind] ? names[kind] : DEFAULT_STREAM;
        char *used = nats->advisory_streams[kind];
        jsErrCode code = 0;
        if (strcmp(used, DEFAULT_STREAM) == 0)
            continue;
        natsStatus status = ensure_stream(nats, kind, stream, &code);
        if (code == JSStreamSubjectOverlapErr && strcmp(stream, DEFAULT_STREAM) != 0) {
            stream = DEFAULT_STREAM;
            status = ensure_stream(nats, kind, stream, &code);
        }
        if (status != NATS_OK && !nats->advisory_stream_failed[kind])
            log_warn("nats_advisories_not_kept", LOG_CSTR("kind", kind_names[kind]),
                     LOG_CSTR("stream", stream), LOG_CSTR("error", nats_GetLastError(NULL)),
                     LOG_INT("code", code));
        nats->advisory_stream_failed[kind] = status != NATS_OK;
        if (status != NATS_OK || strcmp(used, stream) == 0)
            continue;
        if (names[kind] && strcmp(names[kind], stream) != 0)
            log_warn("nats_advisories_elsewhere", LOG_CSTR("stream", stream), LOG_CSTR("not", names[kind]));
        snprintf(used, sizeof nats->advisory_streams[kind], "%s", stream);
        is_new = true;
    }
    pthread_mutex_lock(&nats->lock);
    for (size_t i = 0; i < nats->reader_count && is_new; i++)
        nats->readers[i]->needs_check |= is_watched(nats->readers[i]); /* its watches can be created now */
    pthread_mutex_unlock(&nats->lock);
}

/* ---- their consumers ---- */

static void on_advisory(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                        void *closure)
{
    struct nats_pull *watch = closure;
    struct nats_partition *partition = watch->partition;
    struct nats *nats = partition->reader->nats;
    struct nats_advisory advisory = {.kind = (unsigned)(watch - partition->watches), .message = message};
    struct str text = str_of(natsMsg_GetData(message), (size_t)natsMsg_GetDataLength(message));
    struct json_value object, sequence, deliveries;
    struct nats_origin origin;
    bool is_ours = false;

    (void)connection;
    (void)subscription;
    if (!bus_nats_origin_parse(message, &origin)) {
        bus_nats_pull_end(watch, message);
        return;
    }
    bool is_parsed = json_parse(text, JSON_DEPTH_MAX, &object, NULL) == STATUS_OK &&
                     json_get(&object, STR("stream_seq"), &sequence) &&
                     json_to_i64(&sequence, &advisory.sequence) && advisory.sequence > 0;
    if (!is_parsed || !json_get(&object, STR("deliveries"), &deliveries) ||
        !json_to_i64(&deliveries, &advisory.deliveries))
        advisory.deliveries = 0;
    advisory.sent_us = (int64_t)(origin.time_ns / 1000);
    pthread_mutex_lock(&nats->lock);
    watch->requested -= watch->requested > 0;
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

static bool ensure_watch(struct nats_partition *partition, enum nats_advisory_kind kind)
{
    const struct nats_reader *reader = partition->reader;
    struct nats *nats = reader->nats;
    const char *stream = nats->advisory_streams[kind];
    struct nats_pull *watch = &partition->watches[kind];
    char group[NATS_NAME_BYTES], name[NATS_LONG_NAME_BYTES], subject[NATS_LONG_NAME_BYTES];
    jsConsumerInfo *info = NULL;
    jsConsumerConfig config;

    if (!stream[0])
        return true; /* called again when there is one */
    pthread_mutex_unlock(&nats->lock);
    bus_nats_durable(group, reader, partition->number);
    /* a group's name has no '@', so each name is unique */
    snprintf(name, sizeof name, "%s@%s@%s", group, reader->topic->stream, kind_names[kind]);
    snprintf(subject, sizeof subject, ADVISORY_PREFIX "%s.%s.%s", kind_names[kind], reader->topic->stream,
             group);
    natsStatus status = js_GetConsumerInfo(&info, nats->js, stream, name, NULL, NULL);
    jsConsumerInfo_Destroy(info);
    if (status == NATS_NOT_FOUND) {
        jsConsumerConfig_Init(&config);
        config.Durable = name;
        config.FilterSubject = subject;
        config.AckPolicy = js_AckExplicit;
        config.AckWait = nats->config.ack_wait_ms * 1000000;
        config.MaxDeliver = -1;
        config.DeliverPolicy = js_DeliverAll;
        status = js_AddConsumer(NULL, nats->js, stream, &config, NULL, NULL);
    }
    if (status == NATS_OK)
        status = bus_nats_pull_open(watch, on_advisory);
    if (status != NATS_OK) /* the group works without advisories too */
        log_warn("nats_advisories_not_read", LOG_CSTR("stream", stream), LOG_CSTR("consumer", name),
                 LOG_CSTR("error", nats_GetLastError(NULL)));
    pthread_mutex_lock(&nats->lock);
    bus_nats_pull_set(watch, stream, status == NATS_OK ? name : "");
    watch->requested = 0;
    return status == NATS_OK || status == NATS_NOT_FOUND;
}

bool bus_nats_watches_ensure(struct nats_partition *partition)
{
    bool is_good = true;

    for (enum nats_advisory_kind kind = 0; kind < ADVISORY_KINDS && is_watched(partition->reader); kind++)
        is_good &= ensure_watch(partition, kind);
    return is_good;
}

void bus_nats_watches_request(struct nats_partition *partition)
{
    bool is_away = partition->state == PARTITION_AWAY;

    for (enum nats_advisory_kind kind = 0; kind < ADVISORY_KINDS && !is_away; kind++)
        if (partition->watches[kind].inbox)
            bus_nats_pull_request(&partition->watches[kind], PULL_SIZE, 0);
}

/* ---- messages that have a dead letter, or need one ---- */

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

/* ---- dead letters, on the job ---- */

static enum status publish_dead_letter(struct nats_partition *partition, const struct nats_advisory *advisory,
                                       natsMsg *message, struct error *error)
{
    const struct bus_consumer *consumer = &partition->reader->consumer;
    const char *reason =
        advisory->kind == ADVISORY_MAX_DELIVERIES ? "deliveries used up" : "terminated by another client";
    struct bus_message dead = {.payload = STR("")};
    struct arena arena = ARENA(ARENA_BYTES);

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
    FAILPOINT("nats.before_advisory_dead_letter");
    enum status status = bus_dead_letters_publish(partition->delivery.bus, &letter, 1,
                                                  clock_deadline_ms(DEAD_LETTER_MS), error);
    FAILPOINT("nats.after_advisory_dead_letter");
    arena_deinit(&arena);
    if (status == STATUS_OK)
        metric_add(consumer->dead_letters, 1);
    return status;
}

/* A stream that was created after the advisory has another message at that place: then the dead letter has no content. */
static bool store_dead_letter(struct nats_partition *partition, const struct nats_advisory *advisory)
{
    const struct nats_reader *reader = partition->reader;
    struct nats *nats = reader->nats;
    struct error error = {.status = STATUS_UNAVAILABLE};
    natsMsg *message = NULL;
    bool is_gone = advisory->sent_us < partition->stream_created_ns / 1000;

    pthread_mutex_unlock(&nats->lock);
    natsStatus status = is_gone ? NATS_NOT_FOUND
                                : js_GetMsg(&message, nats->js, reader->topic->stream,
                                            (uint64_t)advisory->sequence, NULL, NULL);
    if (status == NATS_OK || status == NATS_NOT_FOUND)
        error.status = publish_dead_letter(partition, advisory, message, &error);
    natsMsg_Destroy(message);
    log_warn("nats_dead_letter", LOG_CSTR("topic", reader->consumer.spec.topic),
             LOG_CSTR("group", reader->consumer.spec.group), LOG_INT("partition", partition->number),
             LOG_INT("offset", advisory->sequence), LOG_INT("deliveries", advisory->deliveries),
             LOG_BOOL("terminated", advisory->kind == ADVISORY_TERMINATED),
             LOG_BOOL("stored", error.status == STATUS_OK));
    pthread_mutex_lock(&nats->lock);
    if (error.status != STATUS_OK)
        return false;
    bus_nats_dead_note(partition, advisory->sequence);
    struct nats_item *item = bus_nats_partition_find(partition, advisory->sequence);
    if (item && !item->message) { /* the later messages need not wait for it */
        if (item == partition->items) {
            bus_delivery_forget(&partition->delivery);
            partition->due_ns = 0;
        }
        memmove(item, item + 1, (size_t)(partition->items + partition->count - (item + 1)) * sizeof *item);
        partition->count--;
    }
    return true;
}

/* At last the first message, if it was returned to the server and is overdue: when the server counts no more messages as sent and
 * not acknowledged than are here, it does not know this one any more. */
void bus_nats_advisories_settle(struct nats_partition *partition)
{
    struct nats *nats = partition->reader->nats;
    jsConsumerInfo *info = NULL;
    int64_t here = 0;

    for (size_t i = 0; i < partition->advisory_count; i++) {
        const struct nats_advisory advisory = partition->advisories[i]; /* others may arrive meanwhile */
        struct nats_item *item = bus_nats_partition_find(partition, advisory.sequence);
        bool is_here = item && item->message, has_letter = false;
        if (is_here)
            item->is_redelivery_over = true;
        for (size_t at = 0; at < NATS_DEAD_KEPT && !has_letter; at++)
            has_letter = partition->dead_sequences[at] == advisory.sequence;
        if (!is_here && (has_letter || store_dead_letter(partition, &advisory)))
            bus_nats_reply(nats, advisory.message, "+ACK");
        natsMsg_Destroy(advisory.message);
    }
    partition->advisory_count = 0;
    if (!is_head_overdue(partition, clock_mono_ns()))
        return;
    const struct nats_advisory overdue = {.sequence = partition->items[0].sequence,
                                          .deliveries = (int64_t)partition->items[0].delivered,
                                          .sent_us = INT64_MAX};
    const struct nats_pull pull = partition->pull; /* the upkeep may change it meanwhile */
    for (size_t i = 0; i < partition->count; i++)
        here += partition->items[i].message != NULL;
    partition->overdue_ns = bus_nats_overdue_ns(nats, 0);
    if (bus_nats_pull_info(&pull, &info) == NATS_OK && info->NumAckPending <= here)
        store_dead_letter(partition, &overdue);
    jsConsumerInfo_Destroy(info);
}
