/* Dead letters on NATS, by a connection of its own. A few letters are asked for one by one; more by a consumer that only this read knows
 * and that the server removes soon. Publishing: in order, each acknowledged before the next, with a new Nats-Msg-Id: the server would
 * drop the old one within its duplicate window. The header event-id stays, so receivers recognise the event. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "bus/dead.h"
#include "bus/nats/inside.h"

enum { ONE_BY_ONE_MAX = 16, AGAIN_MS = 20, PULL_MAX = 500, INACTIVE_S = 10 };

struct nats_dead {
    struct bus_dead dead; /* first */
    struct nats *nats;
};

static enum status refused(natsStatus status, struct error *error)
{
    return error_set(error, status == NATS_TIMEOUT ? STATUS_TIMEOUT : STATUS_UNAVAILABLE, "nats: %s",
                     natsStatus_GetText(status));
}

static struct bus_topic_state *find_topic(const struct nats *nats, struct str name, enum status *status,
                                          struct error *error)
{
    struct bus_topic_state *topic = bus_topic_find(&nats->bus, name);
    *status = topic ? STATUS_OK : error_set(error, STATUS_NOT_FOUND, "there is no topic %.*s", STR_ARG(name));
    return topic;
}

static int64_t ms_left(int64_t deadline_ns)
{
    int64_t left_ms = clock_ms_left(deadline_ns);
    return left_ms > 1 ? left_ms : 1;
}

/* ---- reading ---- */

/* The first sequence that the group may not have settled; 0: there is no such group. */
static int64_t ask_floor(struct nats *nats, const struct bus_topic_state *topic, const char *group)
{
    struct nats_reader reader = {.nats = nats,
                                 .topic = bus_nats_topic(nats, topic),
                                 .partition_count = topic->spec.partitions,
                                 .consumer = {.spec = {.group = group}}};
    int64_t floor = INT64_MAX;
    for (unsigned i = 0; i < reader.partition_count; i++) {
        char name[NATS_NAME_BYTES];
        jsConsumerInfo *info = NULL;
        bus_nats_durable(name, &reader, i);
        bool is_known =
            js_GetConsumerInfo(&info, nats->js, reader.topic->stream, name, NULL, NULL) == NATS_OK;
        bool is_through = is_known && info->NumPending == 0 && info->NumAckPending == 0;
        int64_t own = is_through ? INT64_MAX : is_known ? (int64_t)info->AckFloor.Stream + 1 : 0;
        floor = own < floor ? own : floor;
        jsConsumerInfo_Destroy(info);
    }
    return floor;
}

static enum status nats_look(struct bus_dead *base, const char *topic, const char *group, struct arena *arena,
                             struct bus_dead_range **ranges, size_t *count, int64_t deadline_ns,
                             struct error *error)
{
    struct nats *nats = ((struct nats_dead *)base)->nats;
    enum status status;
    jsStreamInfo *info = NULL;
    const struct bus_topic_state *state = find_topic(nats, str_from(topic), &status, error);
    (void)deadline_ns; /* an answer takes NATS_API_MS at most */
    if (!state)
        return status;
    natsStatus asked = js_GetStreamInfo(&info, nats->js, bus_nats_topic(nats, state)->stream, NULL, NULL);
    if (asked == NATS_NOT_FOUND)
        return STATUS_OK;
    if (asked != NATS_OK)
        return refused(asked, error);
    int64_t floor = group ? ask_floor(nats, state, group) : 0;
    *ranges = arena_alloc(arena, sizeof **ranges);
    **ranges = (struct bus_dead_range){0, (int64_t)info->State.FirstSeq, (int64_t)info->State.LastSeq + 1};
    if ((*ranges)->first < floor)
        (*ranges)->first = floor;
    *count = info->State.Msgs > 0 && (*ranges)->first < (*ranges)->next;
    jsStreamInfo_Destroy(info);
    return STATUS_OK;
}

struct nats_read {
    struct nats *nats;
    const char *stream;
    struct bus_dead_list *list;
    int64_t deadline_ns;
    bool is_full;
};

static void take_letter(struct nats_read *read, natsMsg *from, int64_t sequence, int64_t time_ns)
{
    struct arena arena = ARENA(4096);
    struct bus_message message = {
        .topic = str_from(read->list->query->topic), .offset = sequence, .created_us = time_ns / 1000};
    bus_nats_decode(from, &arena, &message);
    message.poison = NULL;
    message.topic = str_from(read->list->query->topic);
    read->is_full = !bus_dead_list_add(read->list, &message, message.payload.len);
    arena_deinit(&arena);
}

static natsStatus read_one_by_one(struct nats_read *read, const struct bus_dead_range *span)
{
    for (int64_t at = span->first; at < span->next && !read->is_full; at++) {
        natsMsg *found = NULL;
        natsStatus status = js_GetMsg(&found, read->nats->js, read->stream, (uint64_t)at, NULL, NULL);
        if (status == NATS_OK)
            take_letter(read, found, at, natsMsg_GetTime(found));
        natsMsg_Destroy(found);
        if (status != NATS_OK && status != NATS_NOT_FOUND) /* deleted ones leave holes */
            return status;
        if (clock_ms_left(read->deadline_ns) == 0)
            return NATS_TIMEOUT;
    }
    return NATS_OK;
}

/* One request to the consumer; *last is the sequence that was received last. */
static natsStatus pull_some(struct nats_read *read, natsSubscription *inbox, const char *subject,
                            const char *reply, const struct bus_dead_range *span, int64_t *last)
{
    char body[96];
    int64_t wanted = span->next - 1 - *last;
    wanted = wanted < PULL_MAX ? wanted : PULL_MAX;
    snprintf(body, sizeof body, "{\"batch\":%lld,\"no_wait\":true}", (long long)wanted);
    natsStatus status = natsConnection_PublishRequestString(read->nats->connection, subject, reply, body);
    while (status == NATS_OK && wanted > 0 && !read->is_full) {
        natsMsg *found = NULL;
        struct nats_origin origin;
        status = natsSubscription_NextMsg(&found, inbox, ms_left(read->deadline_ns));
        if (status != NATS_OK)
            break;
        bool is_letter = bus_nats_origin_parse(found, &origin);
        if (is_letter && (int64_t)origin.sequence < span->next)
            take_letter(read, found, (int64_t)origin.sequence, (int64_t)origin.time_ns);
        *last = is_letter ? (int64_t)origin.sequence : span->next; /* else the end: there are no more */
        wanted = *last < span->next - 1 ? wanted - 1 : 0;
        natsMsg_Destroy(found);
    }
    return status;
}

static natsStatus read_by_consumer(struct nats_read *read, const struct bus_dead_range *span)
{
    char subject[2 * NATS_LONG_NAME_BYTES];
    jsConsumerConfig config;
    jsConsumerInfo *info = NULL;
    natsInbox *reply = NULL;
    natsSubscription *inbox = NULL;
    int64_t last = span->first - 1;
    jsConsumerConfig_Init(&config);
    config.AckPolicy = js_AckNone;
    config.DeliverPolicy = js_DeliverByStartSequence;
    config.OptStartSeq = (uint64_t)span->first;
    config.InactiveThreshold = INACTIVE_S * CLOCK_NS_PER_S;
    natsStatus status = js_AddConsumer(&info, read->nats->js, read->stream, &config, NULL, NULL);
    if (status == NATS_OK)
        status = natsInbox_Create(&reply);
    if (status == NATS_OK)
        status = natsConnection_SubscribeSync(&inbox, read->nats->connection, reply);
    if (status == NATS_OK)
        snprintf(subject, sizeof subject, "$JS.API.CONSUMER.MSG.NEXT.%s.%s", read->stream, info->Name);
    while (status == NATS_OK && last < span->next - 1 && !read->is_full)
        status = pull_some(read, inbox, subject, reply, span, &last);
    if (info)
        js_DeleteConsumer(read->nats->js, read->stream, info->Name, NULL, NULL);
    natsSubscription_Destroy(inbox);
    natsInbox_Destroy(reply);
    jsConsumerInfo_Destroy(info);
    return status;
}

static enum status nats_read(struct bus_dead *base, const struct bus_dead_query *query,
                             struct bus_dead_list *list, int64_t deadline_ns, struct error *error)
{
    struct nats *nats = ((struct nats_dead *)base)->nats;
    enum status status;
    natsStatus asked = NATS_OK;
    const struct bus_topic_state *topic = find_topic(nats, str_from(query->topic), &status, error);
    if (!topic)
        return status;
    struct nats_read read = {.nats = nats,
                             .stream = bus_nats_topic(nats, topic)->stream,
                             .list = list,
                             .deadline_ns = deadline_ns};
    for (size_t i = 0; i < query->span_count && asked == NATS_OK && !read.is_full; i++) {
        const struct bus_dead_range *span = &query->spans[i];
        if (span->partition == 0)
            asked = (span->next - span->first <= ONE_BY_ONE_MAX ? read_one_by_one : read_by_consumer)(&read,
                                                                                                      span);
    }
    return asked == NATS_OK || asked == NATS_NOT_FOUND ? STATUS_OK : refused(asked, error);
}

/* ---- publishing ---- */

static natsStatus publish_one(struct nats *nats, const struct bus_topic_state *topic,
                              const struct bus_message *message, int64_t deadline_ns, jsErrCode *code)
{
    char subject[NATS_NAME_BYTES], id[64];
    natsMsg *encoded = NULL;
    jsPubOptions options;
    size_t bytes;
    snprintf(id, sizeof id, "freshet:requeue-%016llx%016llx", (unsigned long long)random_u64(),
             (unsigned long long)random_u64());
    bus_nats_subject(subject, nats, topic, bus_dead_partition(message, topic->spec.partitions));
    natsStatus status = bus_nats_encode(message, subject, id, &encoded, &bytes);
    jsPubOptions_Init(&options);
    options.MaxWait = ms_left(deadline_ns);
    options.ExpectStream = bus_nats_topic(nats, topic)->stream;
    if (status == NATS_OK)
        status = js_PublishMsg(NULL, nats->js, encoded, &options, code);
    natsMsg_Destroy(encoded);
    return status;
}

static enum status nats_publish(struct bus_dead *base, struct bus_message *messages, size_t count,
                                int64_t deadline_ns, struct error *error)
{
    struct nats *nats = ((struct nats_dead *)base)->nats;
    enum status status;
    jsErrCode code = 0;
    const struct bus_topic_state *topic = find_topic(nats, messages[0].topic, &status, error);
    natsStatus sent = NATS_OK;
    for (size_t i = 0; topic && i < count && sent == NATS_OK; i++)
        sent = publish_one(nats, topic, &messages[i], deadline_ns, &code);
    if (sent == NATS_MAX_PAYLOAD || code == JSStreamMessageExceedsMaximumErr)
        return error_set(error, STATUS_PAYLOAD_TOO_LARGE, "a message is over the server's limit");
    return sent == NATS_OK ? status : refused(sent, error);
}

/* ---- life ---- */

static void nats_close(struct bus_dead *base)
{
    struct nats_dead *dead = (struct nats_dead *)base;
    bus_stop(&dead->nats->bus, 0);
    bus_destroy(&dead->nats->bus);
    free(dead);
}

static const struct bus_dead_driver driver = {
    .engine = "nats", .look = nats_look, .read = nats_read, .publish = nats_publish, .close = nats_close};

enum status bus_dead_open_nats(const struct bus_nats_config *config, int64_t deadline_ns,
                               struct bus_dead **out, struct error *error)
{
    struct bus *bus = NULL;
    *out = NULL;
    enum status status = bus_nats_create(config, &bus, error);
    if (status != STATUS_OK)
        return status;
    struct nats_dead *dead = memory_zalloc(sizeof *dead);
    dead->dead.driver = &driver;
    dead->nats = (struct nats *)bus;
    while (!bus_nats_connect(dead->nats) && clock_ms_left(deadline_ns) > 0)
        nanosleep(&(struct timespec){.tv_nsec = AGAIN_MS * CLOCK_NS_PER_MS}, NULL);
    if (bus_is_up(bus)) {
        *out = &dead->dead;
        return STATUS_OK;
    }
    nats_close(&dead->dead);
    return error_set(error, STATUS_UNAVAILABLE, "nats: no server answers");
}
