/* Advisories: the server tells when it will not send a message again though nobody has acknowledged it: its deliveries are
 * used up, or somebody ended it. Whoever does not listen at that moment never hears of it, so streams keep them; and each
 * slot has a durable consumer there for each kind, read by whoever holds the partition. What is heard is the job's business
 * (given_up.c).
 *
 * Where the streams are named by configuration they keep what concerns our streams only; several programs may add their
 * own. Two streams cannot keep the same, so where somebody has that subject already, the default one is tried. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define PREFIX "$JS.EVENT.ADVISORY.CONSUMER."
#define DEFAULT_STREAM "freshet_advisories"
#define KEEP_NS (INT64_C(30) * 24 * 3600 * 1000000000)

enum { PULL_SLACK_MS = 2000, PULL_SIZE = 16, SUBJECT_BYTES = 3 * NATS_NAME_BYTES };

static const char *const kinds[FATE_KINDS] = {
    [FATE_USED_UP] = "MAX_DELIVERIES",
    [FATE_TERMINATED] = "MSG_TERMINATED",
};

/* A dead letter that dies has nowhere to go, and who reads everything buries for itself. */
static bool is_watched(const struct nats_reader *reader)
{
    return reader->consumer.spec.mode == BUS_SHARED && reader->consumer.topic->dead;
}

/* ---- the streams ---- */

static const char *configured(const struct nats *nats, enum nats_fate_kind kind)
{
    return kind == FATE_USED_UP ? nats->config.advisory_stream : nats->config.terminated_stream;
}

/* Does it match everything that `subject` does? */
static bool covers(const char *pattern, const char *subject)
{
    struct str patterns = str_from(pattern), subjects = str_from(subject), left, right;

    for (;;) {
        bool more = str_split(&patterns, '.', &left), wanted = str_split(&subjects, '.', &right);
        if (!more || !wanted)
            return more == wanted;
        if (str_eq(left, STR(">")))
            return true;
        if (!str_eq(left, right) && (!str_eq(left, STR("*")) || str_eq(right, STR(">"))))
            return false;
    }
}

struct subjects {
    char (*texts)[SUBJECT_BYTES];
    const char **list; /* ours, and those that were there */
    int wanted, count;
};

static void want_subjects(const struct nats *nats, enum nats_fate_kind kind, const char *stream,
                          struct subjects *out)
{
    bool all = strcmp(stream, DEFAULT_STREAM) == 0;

    out->texts = memory_alloc((nats->reader_count + 1) * sizeof out->texts[0]);
    out->wanted = 0;
    if (all)
        snprintf(out->texts[out->wanted++], SUBJECT_BYTES, PREFIX "%s.>", kinds[kind]);
    for (size_t i = 0; i < nats->reader_count && !all; i++) {
        char *text = out->texts[out->wanted];
        bool known = !is_watched(nats->readers[i]);
        snprintf(text, SUBJECT_BYTES, PREFIX "%s.%s.*", kinds[kind], nats->readers[i]->topic->stream);
        for (int before = 0; before < out->wanted; before++)
            known |= strcmp(out->texts[before], text) == 0;
        out->wanted += !known;
    }
}

static bool is_covered(const char *subject, const char *const *by, int count)
{
    for (int i = 0; i < count; i++)
        if (covers(by[i], subject))
            return true;
    return false;
}

static bool are_covered(const struct subjects *subjects, const jsStreamConfig *there)
{
    for (int i = 0; i < subjects->wanted; i++)
        if (!is_covered(subjects->texts[i], there->Subjects, there->SubjectsLen))
            return false;
    return true;
}

/* The stream's own subjects that ours do not replace, then those of ours that the list does not have yet. A stream has no two
 * subjects that overlap. */
static void join_subjects(struct subjects *subjects, const jsStreamConfig *there)
{
    int had = there ? there->SubjectsLen : 0;

    subjects->list = memory_alloc((size_t)(subjects->wanted + had) * sizeof subjects->list[0]);
    subjects->count = 0;
    for (int at = 0; at < had; at++) {
        bool replaced = false;
        for (int i = 0; i < subjects->wanted && !replaced; i++)
            replaced = covers(subjects->texts[i], there->Subjects[at]);
        if (!replaced)
            subjects->list[subjects->count++] = there->Subjects[at];
    }
    for (int i = 0; i < subjects->wanted; i++)
        if (!is_covered(subjects->texts[i], subjects->list, subjects->count))
            subjects->list[subjects->count++] = subjects->texts[i];
}

static natsStatus add_stream(struct nats *nats, const char *stream, struct subjects *subjects,
                             jsErrCode *code)
{
    jsStreamConfig config;

    join_subjects(subjects, NULL);
    jsStreamConfig_Init(&config);
    config.Name = stream;
    config.Description = "messages that were given up";
    config.Subjects = subjects->list;
    config.SubjectsLen = subjects->count;
    config.MaxAge = KEEP_NS;
    config.Replicas = nats->config.replicas;
    return js_AddStream(NULL, nats->js, &config, NULL, code);
}

static natsStatus widen_stream(struct nats *nats, const jsStreamInfo *info, struct subjects *subjects,
                               jsErrCode *code)
{
    jsStreamConfig config = *info->Config;

    join_subjects(subjects, info->Config);
    config.Subjects = subjects->list;
    config.SubjectsLen = subjects->count;
    return js_UpdateStream(NULL, nats->js, &config, NULL, code);
}

static natsStatus ensure_stream(struct nats *nats, enum nats_fate_kind kind, const char *stream,
                                jsErrCode *code)
{
    struct subjects subjects = {0};
    jsStreamInfo *info = NULL;
    natsStatus status = js_GetStreamInfo(&info, nats->js, stream, NULL, code);

    want_subjects(nats, kind, stream, &subjects);
    if (status == NATS_NOT_FOUND)
        status = add_stream(nats, stream, &subjects, code);
    else if (status == NATS_OK && !are_covered(&subjects, info->Config))
        status = widen_stream(nats, info, &subjects, code);
    jsStreamInfo_Destroy(info);
    free(subjects.texts);
    free((void *)subjects.list);
    return status;
}

static void keep_kind(struct nats *nats, enum nats_fate_kind kind)
{
    const char *named = configured(nats, kind), *stream = named ? named : DEFAULT_STREAM;
    jsErrCode code = 0;
    natsStatus status = ensure_stream(nats, kind, stream, &code);

    if (code == JSStreamSubjectOverlapErr && strcmp(stream, DEFAULT_STREAM) != 0) {
        stream = DEFAULT_STREAM;
        status = ensure_stream(nats, kind, stream, &code);
    }
    if (status != NATS_OK) { /* told once, tried again and again */
        if (!nats->unkept[kind])
            log_warn("nats_advisories_not_kept", LOG_CSTR("kind", kinds[kind]), LOG_CSTR("stream", stream),
                     LOG_CSTR("error", nats_GetLastError(NULL)), LOG_INT("code", code));
        nats->unkept[kind] = true;
        return;
    }
    nats->unkept[kind] = false;
    if (strcmp(nats->kept_in[kind], stream) == 0)
        return;
    if (named && strcmp(named, stream) != 0)
        log_warn("nats_advisories_elsewhere", LOG_CSTR("stream", stream), LOG_CSTR("not", named));
    snprintf(nats->kept_in[kind], sizeof nats->kept_in[kind], "%s", stream);
    pthread_mutex_lock(&nats->lock);
    for (size_t i = 0; i < nats->reader_count; i++)
        nats->readers[i]->doubt |= is_watched(nats->readers[i]); /* its watches can be made now */
    pthread_mutex_unlock(&nats->lock);
}

/* Two processes that add their subjects to a named stream at the same time both write the whole list: the subjects of the first
 * are lost and added again here. The default stream has one subject for all. */
void bus_nats_advisories_keep(struct nats *nats)
{
    bool wanted = false;

    for (size_t i = 0; i < nats->reader_count; i++)
        wanted |= is_watched(nats->readers[i]);
    for (enum nats_fate_kind kind = 0; kind < FATE_KINDS && wanted; kind++)
        if (!nats->kept_in[kind][0] || strcmp(nats->kept_in[kind], DEFAULT_STREAM) != 0)
            keep_kind(nats, kind);
}

/* ---- their consumers ---- */

/* A group's name has no '@', so no two of them are called the same. */
static void durable_of(const struct nats_watch *watch, char out[SUBJECT_BYTES])
{
    char group[NATS_NAME_BYTES];

    bus_nats_durable(group, watch->slot->reader, watch->slot->partition);
    snprintf(out, SUBJECT_BYTES, "%s@%s@%s", group, watch->slot->reader->topic->stream, kinds[watch->kind]);
}

static natsStatus add_consumer(const struct nats_watch *watch, const char *stream, const char *durable)
{
    struct nats *nats = watch->slot->reader->nats;
    char subject[SUBJECT_BYTES], group[NATS_NAME_BYTES];
    jsConsumerConfig config;

    bus_nats_durable(group, watch->slot->reader, watch->slot->partition);
    snprintf(subject, sizeof subject, PREFIX "%s.%s.%s", kinds[watch->kind],
             watch->slot->reader->topic->stream, group);
    jsConsumerConfig_Init(&config);
    config.Durable = durable;
    config.FilterSubject = subject;
    config.AckPolicy = js_AckExplicit;
    config.AckWait = nats->config.ack_wait_ms * 1000000;
    config.MaxDeliver = -1;
    config.DeliverPolicy = js_DeliverAll;
    return js_AddConsumer(NULL, nats->js, stream, &config, NULL, NULL);
}

static void on_end_of_request(struct nats_watch *watch, natsMsg *message)
{
    struct nats *nats = watch->slot->reader->nats;
    const char *code = NULL;
    bool none = natsMsg_IsNoResponders(message);

    if (!none && natsMsgHeader_Get(message, "Status", &code) != NATS_OK)
        return;
    pthread_mutex_lock(&nats->lock);
    watch->asked = 0;
    if (none || (code && strcmp(code, "409") == 0)) {
        nats->doubt = true; /* the stream or the consumer is gone */
        watch->slot->reader->doubt = true;
    }
    bus_nats_kick(nats);
    pthread_mutex_unlock(&nats->lock);
}

static bool parse_fate(natsMsg *message, struct nats_fate *fate)
{
    struct str text = str_of(natsMsg_GetData(message), (size_t)natsMsg_GetDataLength(message));
    struct json_value object, sequence, deliveries;

    if (json_parse(text, JSON_DEPTH_MAX, &object, NULL) != STATUS_OK ||
        !json_get(&object, STR("stream_seq"), &sequence) || !json_to_i64(&sequence, &fate->sequence))
        return false;
    if (!json_get(&object, STR("deliveries"), &deliveries) || !json_to_i64(&deliveries, &fate->deliveries))
        fate->deliveries = 0;
    return fate->sequence > 0;
}

static void on_advisory(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                        void *closure)
{
    struct nats_watch *watch = closure;
    struct nats_slot *slot = watch->slot;
    struct nats *nats = slot->reader->nats;
    struct nats_fate fate = {.kind = watch->kind, .advisory = message};
    struct nats_origin origin;

    (void)connection;
    (void)subscription;
    if (!natsMsg_GetReply(message) || !bus_nats_origin_parse(natsMsg_GetReply(message), &origin)) {
        on_end_of_request(watch, message);
        natsMsg_Destroy(message);
        return;
    }
    bool parsed = parse_fate(message, &fate);
    fate.told_us = (int64_t)(origin.time_ns / 1000);
    pthread_mutex_lock(&nats->lock);
    watch->asked -= watch->asked > 0;
    bool taken = parsed && slot->state != SLOT_AWAY && !nats->stopping;
    if (taken) {
        slot->fates = memory_realloc_array(slot->fates, slot->fate_count + 1, sizeof slot->fates[0]);
        slot->fates[slot->fate_count++] = fate;
        bus_nats_reader_wake(slot->reader);
    }
    pthread_mutex_unlock(&nats->lock);
    if (taken)
        return;
    if (parsed)
        bus_nats_refuse(nats, message);
    else
        bus_nats_tell(nats, message, "+TERM");
    natsMsg_Destroy(message);
}

static bool ensure_watch(struct nats_watch *watch)
{
    struct nats *nats = watch->slot->reader->nats;
    const char *stream = nats->kept_in[watch->kind];
    char durable[SUBJECT_BYTES];
    jsConsumerInfo *info = NULL;

    if (!stream[0])
        return true; /* it is called again when there is one */
    durable_of(watch, durable);
    natsStatus status = js_GetConsumerInfo(&info, nats->js, stream, durable, NULL, NULL);
    jsConsumerInfo_Destroy(info);
    if (status == NATS_NOT_FOUND)
        status = add_consumer(watch, stream, durable);
    if (status == NATS_OK)
        status = bus_nats_inbox_open(nats, &watch->inbox, watch->inbox_subject, on_advisory, watch);
    if (status != NATS_OK) /* without them the group works all the same */
        log_warn("nats_advisories_not_read", LOG_CSTR("stream", stream), LOG_CSTR("consumer", durable),
                 LOG_CSTR("error", nats_GetLastError(NULL)));
    pthread_mutex_lock(&nats->lock);
    watch->asked = 0;
    snprintf(watch->stream, sizeof watch->stream, "%s", status == NATS_OK ? stream : "");
    pthread_mutex_unlock(&nats->lock);
    return status == NATS_OK || status == NATS_NOT_FOUND;
}

bool bus_nats_watches_ensure(struct nats_slot *slot)
{
    bool good = true;

    for (enum nats_fate_kind kind = 0; kind < FATE_KINDS && is_watched(slot->reader); kind++) {
        slot->watches[kind].slot = slot;
        slot->watches[kind].kind = kind;
        good &= ensure_watch(&slot->watches[kind]);
    }
    return good;
}

static void pull(struct nats_watch *watch)
{
    struct nats *nats = watch->slot->reader->nats;
    char subject[2 * SUBJECT_BYTES], durable[SUBJECT_BYTES], body[96];
    int64_t now_ns = clock_mono_ns();

    pthread_mutex_lock(&nats->lock);
    bool open = watch->asked > 0 && now_ns < watch->asked_until_ns;
    bool wanted = !open && watch->stream[0] && watch->slot->state != SLOT_AWAY && !nats->stopping;
    if (wanted) {
        watch->asked = PULL_SIZE;
        watch->asked_until_ns = now_ns + (nats->config.ack_wait_ms + PULL_SLACK_MS) * CLOCK_NS_PER_MS;
    }
    pthread_mutex_unlock(&nats->lock);
    if (!wanted)
        return;
    durable_of(watch, durable);
    snprintf(subject, sizeof subject, "$JS.API.CONSUMER.MSG.NEXT.%s.%s", watch->stream, durable);
    snprintf(body, sizeof body, "{\"batch\":%d,\"expires\":%lld}", PULL_SIZE,
             (long long)nats->config.ack_wait_ms * 1000000);
    natsConnection_PublishRequestString(nats->connection, subject, watch->inbox_subject, body);
}

void bus_nats_watches_pull(struct nats_slot *slot)
{
    for (enum nats_fate_kind kind = 0; kind < FATE_KINDS && is_watched(slot->reader); kind++)
        if (slot->watches[kind].inbox)
            pull(&slot->watches[kind]);
}
