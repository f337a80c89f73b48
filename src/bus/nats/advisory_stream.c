/* Streams that keep advisories, which the server sends once. Those that configuration names keep the advisories of our streams
 * only; several programs may add their subjects. Two streams cannot have the same subject: where another stream has it, the
 * default stream is tried. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define DEFAULT_STREAM "freshet_advisories"
#define KEEP_NS (INT64_C(30) * 24 * 3600 * 1000000000)

const char *const bus_nats_advisory_names[ADVISORY_KINDS] = {
    [ADVISORY_MAX_DELIVERIES] = "MAX_DELIVERIES",
    [ADVISORY_TERMINATED] = "MSG_TERMINATED",
};

/* Dead letters have no dead-letter topic; the consumer of a reader of everything has no acknowledgements. */
bool bus_nats_is_watched(const struct nats_reader *reader)
{
    return nats_reader_is_shared(reader) && reader->consumer.topic->dead;
}

/* Does the pattern match everything that `subject` matches? */
static bool covers(const char *pattern, const char *subject)
{
    struct str patterns = str_from(pattern), subjects = str_from(subject), left, right;

    for (;;) {
        bool has_left = str_split(&patterns, '.', &left), has_right = str_split(&subjects, '.', &right);
        if (!has_left || !has_right)
            return has_left == has_right;
        if (str_eq(left, STR(">")))
            return true;
        if (!str_eq(left, right) && (!str_eq(left, STR("*")) || str_eq(right, STR(">"))))
            return false;
    }
}

static bool is_covered(const char *subject, const char *const *by, int count)
{
    for (int i = 0; i < count; i++)
        if (covers(by[i], subject))
            return true;
    return false;
}

struct subjects {
    char (*texts)[NATS_LONG_NAME_BYTES];
    const char **ours, **joined; /* joined: with those that the stream has */
    int our_count, joined_count;
};

static void list_subjects(const struct nats *nats, enum nats_advisory_kind kind, const char *stream,
                          struct subjects *out)
{
    bool is_default = strcmp(stream, DEFAULT_STREAM) == 0;

    out->texts = memory_alloc((nats->reader_count + 1) * sizeof out->texts[0]);
    out->ours = memory_alloc((nats->reader_count + 1) * sizeof out->ours[0]);
    for (size_t i = 0; i < nats->reader_count; i++) {
        char *text = out->texts[i];
        if (is_default)
            snprintf(text, sizeof out->texts[0], NATS_ADVISORY_PREFIX "%s.>", bus_nats_advisory_names[kind]);
        else
            snprintf(text, sizeof out->texts[0], NATS_ADVISORY_PREFIX "%s.%s.*",
                     bus_nats_advisory_names[kind], nats->readers[i]->topic->stream);
        if (bus_nats_is_watched(nats->readers[i]) && !is_covered(text, out->ours, out->our_count))
            out->ours[out->our_count++] = text;
    }
}

/* The stream's own subjects that ours do not replace, then those of ours that the list does not cover yet: a stream has no two
 * subjects that overlap. False: the stream covers ours already. */
static bool join_subjects(struct subjects *subjects, const char **had, int had_count)
{
    bool is_wider = false;

    subjects->joined =
        memory_alloc((size_t)(subjects->our_count + had_count + 1) * sizeof subjects->joined[0]);
    for (int i = 0; i < had_count; i++)
        if (!is_covered(had[i], subjects->ours, subjects->our_count))
            subjects->joined[subjects->joined_count++] = had[i];
    for (int i = 0; i < subjects->our_count; i++) {
        is_wider |= !is_covered(subjects->ours[i], had, had_count);
        if (!is_covered(subjects->ours[i], subjects->joined, subjects->joined_count))
            subjects->joined[subjects->joined_count++] = subjects->ours[i];
    }
    return is_wider;
}

static natsStatus ensure_stream(struct nats *nats, enum nats_advisory_kind kind, const char *stream,
                                jsErrCode *code)
{
    struct subjects subjects = {0};
    jsStreamConfig config;
    jsStreamInfo *info = NULL;
    natsStatus status = js_GetStreamInfo(&info, nats->js, stream, NULL, code);

    list_subjects(nats, kind, stream, &subjects);
    bool is_wider =
        join_subjects(&subjects, info ? info->Config->Subjects : NULL, info ? info->Config->SubjectsLen : 0);
    jsStreamConfig_Init(&config);
    if (info) {
        config = *info->Config;
    } else {
        config.Name = stream;
        config.Description = "messages that were given up";
        config.MaxAge = KEEP_NS;
        config.Replicas = nats->config.replicas;
    }
    config.Subjects = subjects.joined;
    config.SubjectsLen = subjects.joined_count;
    if (status == NATS_NOT_FOUND)
        status = js_AddStream(NULL, nats->js, &config, NULL, code);
    else if (status == NATS_OK && is_wider)
        status = js_UpdateStream(NULL, nats->js, &config, NULL, code);
    jsStreamInfo_Destroy(info);
    free(subjects.texts);
    free((void *)subjects.ours);
    free((void *)subjects.joined);
    return status;
}

static void ensure_kind(struct nats *nats, enum nats_advisory_kind kind)
{
    const char *named =
        kind == ADVISORY_MAX_DELIVERIES ? nats->config.advisory_stream : nats->config.terminated_stream;
    const char *stream = named ? named : DEFAULT_STREAM;
    jsErrCode code = 0;
    natsStatus status = ensure_stream(nats, kind, stream, &code);

    if (code == JSStreamSubjectOverlapErr && strcmp(stream, DEFAULT_STREAM) != 0) {
        stream = DEFAULT_STREAM;
        status = ensure_stream(nats, kind, stream, &code);
    }
    bool is_logged = nats->advisory_stream_failed[kind];
    nats->advisory_stream_failed[kind] = status != NATS_OK;
    if (status != NATS_OK && !is_logged)
        log_warn("nats_advisories_not_kept", LOG_CSTR("kind", bus_nats_advisory_names[kind]),
                 LOG_CSTR("stream", stream), LOG_CSTR("error", nats_GetLastError(NULL)),
                 LOG_INT("code", code));
    if (status != NATS_OK || strcmp(nats->advisory_streams[kind], stream) == 0)
        return;
    if (named && strcmp(named, stream) != 0)
        log_warn("nats_advisories_elsewhere", LOG_CSTR("stream", stream), LOG_CSTR("not", named));
    snprintf(nats->advisory_streams[kind], sizeof nats->advisory_streams[kind], "%s", stream);
    pthread_mutex_lock(&nats->lock);
    for (size_t i = 0; i < nats->reader_count; i++)
        nats->readers[i]->needs_check |=
            bus_nats_is_watched(nats->readers[i]); /* its watches can be created now */
    pthread_mutex_unlock(&nats->lock);
}

/* Two processes that add their subjects to a named stream at the same time both write the whole list: the subjects of the first
 * are lost, and added again by the next call. The default stream has one subject for all. */
void bus_nats_advisory_streams_ensure(struct nats *nats)
{
    bool is_any_watched = false;

    for (size_t i = 0; i < nats->reader_count; i++)
        is_any_watched |= bus_nats_is_watched(nats->readers[i]);
    for (enum nats_advisory_kind kind = 0; kind < ADVISORY_KINDS && is_any_watched; kind++)
        if (strcmp(nats->advisory_streams[kind], DEFAULT_STREAM) != 0)
            ensure_kind(nats, kind);
}
