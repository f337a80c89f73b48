/* Names in JetStream, the streams of topics, and the bucket of leases.
 *
 *   topic "refdata.commands"              stream  "refdata_commands"
 *   partition 3 of it                     subject "refdata.commands.3"
 *   group "refdata-apply", partition 3    durable "refdata-apply_3"
 *
 * A topic whose stream and subject are configured (bus_nats_names) has exactly these, and with one partition the durables of its
 * groups have the names of the groups: other programs use them too. Names of streams and consumers have no dots, so a dot becomes
 * '_'; the subjects of a stream and the description of a consumer distinguish "a.b" from "a_b".
 *
 * Streams are created when they are missing, at the start and whenever an answer raises a doubt. One that exists must be ours and
 * have as many partitions; it stays as it is, but for a configured duplicate window. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define DUPLICATES_NS (INT64_C(120) * 1000000000)
#define WINDOW_MS_MAX (INT64_C(366) * 24 * 3600 * 1000)
#define LEASES_BUCKET "freshet_leases"

/* ---- names ---- */

enum { NAME_MAX_LEN = 170 /* with what is added to it JetStream still accepts it */ };

static void replace_dots(char *text)
{
    for (; *text; text++)
        if (*text == '.')
            *text = '_';
}

static bool is_clean(struct str name, const char *forbidden)
{
    for (size_t i = 0; i < name.len; i++)
        if (name.ptr[i] <= ' ' || name.ptr[i] >= 0x7f || strchr(forbidden, name.ptr[i]))
            return false;
    return name.len > 0;
}

/* Tokens between dots, none of them empty. */
static bool is_subject(struct str name)
{
    return name.len > 0 && name.ptr[0] != '.' && name.ptr[name.len - 1] != '.' && !strstr(name.ptr, "..");
}

static bool is_stream_name(const char *name)
{
    return !name || (strlen(name) <= NAME_MAX_LEN && is_clean(str_from(name), ".*>/\\"));
}

/* The names of dead letters are those of their topic, with the suffix, unless they have a row of their own. */
static enum status name_topic(struct nats_topic *out, struct str topic, const struct bus_nats_config *config,
                              struct error *error)
{
    bool is_dead = str_ends_with(topic, STR(BUS_DEAD_SUFFIX));
    struct str base = str_of(topic.ptr, topic.len - (is_dead ? strlen(BUS_DEAD_SUFFIX) : 0));

    if (!is_subject(topic))
        return error_set(error, STATUS_CONFIG, "topic %.*s has an empty part, which NATS does not allow",
                         STR_ARG(topic));
    snprintf(out->subject, sizeof out->subject, "%.*s", STR_ARG(topic));
    snprintf(out->stream, sizeof out->stream, "%.*s", STR_ARG(topic));
    for (size_t i = 0; i < config->name_count; i++) {
        const struct bus_nats_names *names = &config->names[i];
        bool is_own = str_eq(str_from(names->topic), topic);
        const char *suffix = is_own ? "" : BUS_DEAD_SUFFIX;
        if (!is_own && !(is_dead && !out->exact && str_eq(str_from(names->topic), base)))
            continue;
        struct str subject = str_from(names->subject ? names->subject : names->topic);
        if (!is_stream_name(names->stream))
            return error_set(
                error, STATUS_CONFIG,
                "topic %s: the name of a NATS stream has 1 to %d characters, no spaces, dots, '*', "
                "'>', '/' and '\\'",
                names->topic, NAME_MAX_LEN);
        if (!is_subject(subject) || subject.len > NAME_MAX_LEN || !is_clean(subject, "*>") ||
            subject.ptr[0] == '$')
            return error_set(
                error, STATUS_CONFIG,
                "topic %s: a NATS subject has 1 to %d characters, parts between dots, no spaces, '*' "
                "and '>', and does not begin with '$'",
                names->topic, NAME_MAX_LEN);
        if (names->duplicate_window_ms < 0 || names->duplicate_window_ms > WINDOW_MS_MAX)
            return error_set(error, STATUS_CONFIG, "topic %s: a duplicate window is at most a year",
                             names->topic);
        if (names->stream)
            snprintf(out->stream, sizeof out->stream, "%s%s", names->stream, suffix);
        if (names->subject)
            snprintf(out->subject, sizeof out->subject, "%s%s", names->subject, suffix);
        out->window_ns = names->duplicate_window_ms * 1000000;
        out->exact = true;
    }
    replace_dots(out->stream);
    return STATUS_OK;
}

enum status bus_nats_names_init(struct nats *nats, const struct bus_nats_config *config, struct error *error)
{
    const char *advisories[] = {config->advisory_stream, config->terminated_stream};
    struct bus *bus = &nats->bus;

    nats->topics = memory_zalloc(bus->topic_count * sizeof nats->topics[0]);
    for (size_t i = 0; i < 2; i++)
        if (!is_stream_name(advisories[i]))
            return error_set(
                error, STATUS_CONFIG,
                "nats: %.80s cannot be a stream of advisories: no spaces, dots, '*', '>', '/', '\\'",
                advisories[i]);
    for (size_t i = 0; i < bus->topic_count; i++) {
        enum status status = name_topic(&nats->topics[i], bus->topics[i].name, config, error);
        if (status != STATUS_OK)
            return status;
        for (size_t before = 0; before < i; before++)
            if (strcmp(nats->topics[before].stream, nats->topics[i].stream) == 0)
                return error_set(error, STATUS_CONFIG, "topics %s and %s would be one stream, %s",
                                 bus->topics[before].spec.name, bus->topics[i].spec.name,
                                 nats->topics[i].stream);
    }
    return STATUS_OK;
}

struct nats_topic *bus_nats_topic(const struct nats *nats, const struct bus_topic_state *topic)
{
    return &nats->topics[topic - nats->bus.topics];
}

void bus_nats_subject(char out[NATS_NAME_BYTES], const struct nats *nats, const struct bus_topic_state *topic,
                      unsigned partition)
{
    const struct nats_topic *there = bus_nats_topic(nats, topic);
    int len = snprintf(out, NATS_NAME_BYTES, "%s", there->subject);

    if (!there->exact || topic->spec.partitions != 1)
        snprintf(out + len, NATS_NAME_BYTES - (size_t)len, ".%u", partition);
}

void bus_nats_durable(char out[NATS_NAME_BYTES], const struct nats_reader *reader, unsigned partition)
{
    int len = snprintf(out, NATS_NAME_BYTES, "%s", reader->consumer.spec.group);

    if (!reader->topic->exact || reader->partition_count != 1)
        snprintf(out + len, NATS_NAME_BYTES - (size_t)len, "_%u", partition);
    replace_dots(out);
}

/* ---- streams ---- */

/* The server does not remember ids for longer than it keeps messages. */
static int64_t duplicate_window_ns(const struct nats_topic *there, int64_t age_ns)
{
    int64_t window_ns = there->window_ns ? there->window_ns : DUPLICATES_NS;

    return age_ns > 0 && age_ns < window_ns ? age_ns : window_ns;
}

static natsStatus create_stream(struct nats *nats, const struct bus_topic_state *topic, jsStreamInfo **info,
                                jsErrCode *code)
{
    const struct bus_topic *spec = &topic->spec;
    int64_t keep_ms = spec->keep_ms_hard ? spec->keep_ms_hard : spec->keep_ms;
    char(*subjects)[NATS_NAME_BYTES] = memory_alloc(spec->partitions * sizeof subjects[0]);
    const char *list[BUS_PARTITIONS_MAX];
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
    config.MaxAge = keep_ms > INT64_MAX / 1000000 ? 0 : keep_ms * 1000000;
    config.Duplicates = duplicate_window_ns(bus_nats_topic(nats, topic), config.MaxAge);
    if (spec->keep_messages_hard)
        config.MaxMsgsPerSubject = spec->keep_messages_hard;
    else if (spec->keep_messages && config.MaxAge == 0) /* a limit by age alone is enough */
        config.MaxMsgsPerSubject = spec->keep_messages;
    natsStatus status = js_AddStream(info, nats->js, &config, NULL, code);
    free(subjects);
    return status;
}

static bool ensure_topic(struct nats *nats, struct bus_topic_state *topic)
{
    struct nats_topic *there = bus_nats_topic(nats, topic);
    jsStreamInfo *info = NULL;
    jsErrCode code = 0;
    char problem[sizeof there->problem] = "", subject[NATS_NAME_BYTES];
    natsStatus status = js_GetStreamInfo(&info, nats->js, there->stream, NULL, &code);

    if (status == NATS_NOT_FOUND)
        status = create_stream(nats, topic, &info, &code);
    if (code == JSStreamSubjectOverlapErr) {
        snprintf(problem, sizeof problem, "another stream of NATS has the subject of topic %s, %.150s",
                 topic->spec.name, there->subject);
    } else if (status != NATS_OK) {
        log_debug("nats_stream_waits", LOG_CSTR("stream", there->stream),
                  LOG_CSTR("error", natsStatus_GetText(status)), LOG_INT("code", code));
        return false;
    } else {
        const jsStreamConfig *found = info->Config;
        bus_nats_subject(subject, nats, topic, 0);
        if (found->SubjectsLen < 1 || strcmp(found->Subjects[0], subject) != 0)
            snprintf(problem, sizeof problem, "stream %s of NATS is not topic %s's: it has no subject %.100s",
                     found->Name, topic->spec.name, subject);
        else if (found->SubjectsLen != (int)topic->spec.partitions)
            snprintf(problem, sizeof problem, "topic %s has %d partitions in NATS, not %u", topic->spec.name,
                     found->SubjectsLen, topic->spec.partitions);
        jsStreamConfig config = *found;
        config.Duplicates = duplicate_window_ns(there, config.MaxAge);
        if (!problem[0] && there->window_ns && config.Duplicates != found->Duplicates) {
            if (js_UpdateStream(NULL, nats->js, &config, NULL, NULL) == NATS_OK)
                log_info("nats_stream_updated", LOG_CSTR("stream", there->stream),
                         LOG_INT("duplicateWindowMs", config.Duplicates / 1000000));
            else /* the stream works without */
                log_warn("nats_stream_not_updated", LOG_CSTR("stream", there->stream),
                         LOG_CSTR("error", nats_GetLastError(NULL)));
        }
    }
    jsStreamInfo_Destroy(info);
    pthread_mutex_lock(&nats->lock);
    bool is_new = strcmp(problem, there->problem) != 0;
    memcpy(there->problem, problem, sizeof problem);
    atomic_store(&topic->known, !problem[0]);
    pthread_cond_broadcast(&nats->changed);
    pthread_mutex_unlock(&nats->lock);
    if (is_new && problem[0])
        log_error("nats_stream_refused", LOG_CSTR("topic", topic->spec.name), LOG_CSTR("error", problem));
    return true;
}

/* The process that creates the bucket of leases decides how long they are, for all. */
bool bus_nats_streams_ensure(struct nats *nats)
{
    kvConfig config;
    kvStatus *bucket = NULL;

    for (size_t i = 0; i < nats->bus.topic_count; i++)
        if (!ensure_topic(nats, &nats->bus.topics[i]))
            return false;
    memset(nats->advisory_streams, 0, sizeof nats->advisory_streams);
    bus_nats_advisory_streams_ensure(nats);
    if (nats->reader_count == 0)
        return true;
    kvStore_Destroy(nats->leases);
    nats->leases = NULL;
    kvConfig_Init(&config);
    config.Bucket = LEASES_BUCKET;
    config.Description = "which member handles which partition";
    config.TTL = 2 * nats->config.ack_wait_ms * 1000000;
    config.History = 1;
    config.StorageType = js_FileStorage;
    config.Replicas = (int)nats->config.replicas;
    if ((js_KeyValue(&nats->leases, nats->js, LEASES_BUCKET) != NATS_OK &&
         js_CreateKeyValue(&nats->leases, nats->js, &config) != NATS_OK) ||
        kvStore_Status(&bucket, nats->leases) != NATS_OK)
        return false;
    nats->lease_ns = kvStatus_TTL(bucket);
    kvStatus_Destroy(bucket);
    return nats->lease_ns > 0;
}
