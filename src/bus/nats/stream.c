/* Streams: one for each topic, with a subject for each partition; and the bucket of leases. They are made when they are
 * missing, at the start and whenever a connection or an answer raises doubt. One that is there must be ours and have as many
 * partitions; it is left as it is, but for the duplicate window that its owner asks for. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define DUPLICATES_NS (INT64_C(120) * 1000000000)
#define LEASES_BUCKET "freshet_leases"

static int64_t age_ns(const struct bus_topic *spec)
{
    int64_t keep_ms = spec->keep_ms_hard ? spec->keep_ms_hard : spec->keep_ms;

    return keep_ms > INT64_MAX / 1000000 ? 0 : keep_ms * 1000000;
}

/* The server does not remember ids for longer than it keeps messages. */
static int64_t window_ns(const struct nats_topic *there, int64_t max_age_ns)
{
    int64_t window = there->window_ns ? there->window_ns : DUPLICATES_NS;

    return max_age_ns > 0 && max_age_ns < window ? max_age_ns : window;
}

static natsStatus add_stream(struct nats *nats, const struct bus_topic_state *topic, jsStreamInfo **info,
                             jsErrCode *code)
{
    char(*subjects)[NATS_NAME_BYTES] = memory_alloc(topic->spec.partitions * sizeof subjects[0]);
    const char *list[BUS_PARTITIONS_MAX];
    const struct bus_topic *spec = &topic->spec;
    jsStreamConfig config;

    for (unsigned i = 0; i < spec->partitions; i++) {
        bus_nats_subject(subjects[i], nats, topic, i);
        list[i] = subjects[i];
    }
    jsStreamConfig_Init(&config);
    config.Name = bus_nats_topic(nats, topic)->stream;
    config.Description = spec->name;
    config.Subjects = list;
    config.SubjectsLen = (int)spec->partitions;
    config.Storage = js_FileStorage;
    config.Replicas = nats->config.replicas;
    config.MaxAge = age_ns(spec);
    config.Duplicates = window_ns(bus_nats_topic(nats, topic), config.MaxAge);
    if (spec->keep_messages_hard || spec->keep_messages) /* either limit, where only one is there */
        config.MaxMsgsPerSubject = spec->keep_messages_hard ? spec->keep_messages_hard
                                   : age_ns(spec)           ? -1
                                                            : spec->keep_messages;
    natsStatus status = js_AddStream(info, nats->js, &config, NULL, code);
    free(subjects);
    return status;
}

/* "" = it is as it should be */
static void find_problem(const struct nats *nats, const struct bus_topic_state *topic,
                         const jsStreamInfo *info, char *out, size_t len)
{
    char subject[NATS_NAME_BYTES];

    out[0] = '\0';
    bus_nats_subject(subject, nats, topic, 0);
    if (info->Config->SubjectsLen < 1 || strcmp(info->Config->Subjects[0], subject) != 0)
        snprintf(out, len, "stream %s of NATS is not topic %s's: it has no subject %.100s",
                 info->Config->Name, topic->spec.name, subject);
    else if (info->Config->SubjectsLen != (int)topic->spec.partitions)
        snprintf(out, len, "topic %s has %d partitions in NATS, not %u", topic->spec.name,
                 info->Config->SubjectsLen, topic->spec.partitions);
}

/* It works without, so a refusal is only told. */
static void ensure_window(struct nats *nats, const struct nats_topic *there, const jsStreamInfo *info)
{
    jsStreamConfig config = *info->Config;

    config.Duplicates = window_ns(there, config.MaxAge);
    if (!there->window_ns || config.Duplicates == info->Config->Duplicates)
        return;
    if (js_UpdateStream(NULL, nats->js, &config, NULL, NULL) == NATS_OK)
        log_info("nats_stream_updated", LOG_CSTR("stream", there->stream),
                 LOG_INT("duplicateWindowMs", config.Duplicates / 1000000));
    else
        log_warn("nats_stream_not_updated", LOG_CSTR("stream", there->stream),
                 LOG_CSTR("error", nats_GetLastError(NULL)));
}

static void set_problem(struct nats *nats, struct bus_topic_state *topic, const char *problem)
{
    struct nats_topic *there = bus_nats_topic(nats, topic);

    pthread_mutex_lock(&nats->lock);
    bool news = strcmp(problem, there->problem) != 0;
    snprintf(there->problem, sizeof there->problem, "%s", problem);
    atomic_store(&topic->known, !problem[0]);
    pthread_cond_broadcast(&nats->changed);
    pthread_mutex_unlock(&nats->lock);
    if (news && problem[0])
        log_error("nats_stream_refused", LOG_CSTR("topic", topic->spec.name), LOG_CSTR("error", problem));
}

static bool ensure_stream(struct nats *nats, struct bus_topic_state *topic)
{
    struct nats_topic *there = bus_nats_topic(nats, topic);
    jsStreamInfo *info = NULL;
    jsErrCode code = 0;
    char problem[sizeof there->problem];
    natsStatus status = js_GetStreamInfo(&info, nats->js, there->stream, NULL, &code);

    if (status == NATS_NOT_FOUND)
        status = add_stream(nats, topic, &info, &code);
    if (code == JSStreamSubjectOverlapErr) {
        snprintf(problem, sizeof problem, "another stream of NATS has the subject of topic %s, %.150s",
                 topic->spec.name, there->subject);
        set_problem(nats, topic, problem);
        return true;
    }
    if (status != NATS_OK) {
        log_debug("nats_stream_waits", LOG_CSTR("stream", there->stream),
                  LOG_CSTR("error", natsStatus_GetText(status)), LOG_INT("code", code));
        return false;
    }
    find_problem(nats, topic, info, problem, sizeof problem);
    if (!problem[0])
        ensure_window(nats, there, info);
    set_problem(nats, topic, problem);
    jsStreamInfo_Destroy(info);
    return true;
}

/* How long they last was decided by whoever made the bucket. */
static bool read_lease_time(struct nats *nats)
{
    kvStatus *status = NULL;

    if (kvStore_Status(&status, nats->leases) != NATS_OK)
        return false;
    nats->lease_ns = kvStatus_TTL(status);
    kvStatus_Destroy(status);
    return nats->lease_ns > 0;
}

static bool ensure_leases(struct nats *nats)
{
    kvConfig config;

    if (nats->reader_count == 0)
        return true;
    kvStore_Destroy(nats->leases);
    nats->leases = NULL;
    if (js_KeyValue(&nats->leases, nats->js, LEASES_BUCKET) == NATS_OK)
        return read_lease_time(nats);
    kvConfig_Init(&config);
    config.Bucket = LEASES_BUCKET;
    config.Description = "who handles which partition";
    config.TTL = 2 * nats->config.ack_wait_ms * 1000000;
    config.History = 1;
    config.StorageType = js_FileStorage;
    config.Replicas = (int)nats->config.replicas;
    return js_CreateKeyValue(&nats->leases, nats->js, &config) == NATS_OK && read_lease_time(nats);
}

bool bus_nats_streams_ensure(struct nats *nats)
{
    for (size_t i = 0; i < nats->bus.topic_count; i++)
        if (!ensure_stream(nats, &nats->bus.topics[i]))
            return false;
    memset(nats->kept_in, 0, sizeof nats->kept_in);
    bus_nats_advisories_keep(nats);
    return ensure_leases(nats);
}
