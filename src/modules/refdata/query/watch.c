/* GET …/watch on the request's loop, and the home loop's half: from which position a follower may start, and publishing. */
#include "modules/refdata/query/watch.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/query/reading.h"

/* ---- a watch's life ---- */

static struct stream_limits limits_of(const struct refdata *refdata)
{
    return (struct stream_limits){
        .positions_max = refdata_watch_settings(refdata)->versions_max,
        .bytes_max = (size_t)refdata_watch_settings(refdata)->buffer_bytes_max,
        .heartbeat_ms = refdata_watch_settings(refdata)->heartbeat_ms,
    };
}

void refdata_watch_unref(struct refdata_watch *watch)
{
    if (--watch->refs == 0)
        free(watch);
}

static void close_topic(struct refdata_watch *watch, unsigned format)
{
    if (watch->topics[format])
        stream_topic_close(watch->topics[format]);
    watch->topics[format] = NULL;
}

void refdata_watch_dissolve(struct refdata_holding *holding)
{
    struct refdata_watch *watch = holding->watch;
    if (!watch)
        return;
    holding->watch = NULL;
    watch->holding = NULL;
    for (unsigned i = 0; i < STREAM_FORMATS; i++)
        close_topic(watch, i);
    refdata_watch_forget(watch);
    refdata_asks_again(&watch->waiting);
    refdata_asks_again(&watch->queued); /* those asked start over when their query ends */
    for (struct refdata_watch_change *change; (change = STAILQ_FIRST(&watch->changes)) != NULL;) {
        STAILQ_REMOVE_HEAD(&watch->changes, next);
        refdata_watch_change_destroy(change);
    }
    refdata_watch_unref(watch);
}

void refdata_watch_settle(void *context)
{
    struct refdata_watch *watch = context;
    bool is_followed = false;
    if (!watch->holding || !STAILQ_EMPTY(&watch->waiting) || !STAILQ_EMPTY(&watch->queued) ||
        !STAILQ_EMPTY(&watch->asked))
        return;
    for (unsigned i = 0; i < STREAM_FORMATS; i++) { /* a format without followers is not written */
        if (watch->topics[i] && !stream_topic_count(watch->topics[i]))
            close_topic(watch, i);
        is_followed |= watch->topics[i] != NULL;
    }
    if (!is_followed)
        refdata_watch_dissolve(watch->holding);
}

void refdata_watch_adopt(struct refdata *refdata)
{
    const struct stream_limits limits = limits_of(refdata);
    for (size_t i = 0; i <= refdata->own->mask; i++) {
        const struct refdata_holding *holding = refdata->own->slots[i];
        for (unsigned k = 0; holding && holding->watch && k < STREAM_FORMATS; k++)
            if (holding->watch->topics[k])
                stream_topic_set_limits(holding->watch->topics[k], &limits);
    }
}

/* ---- home: where a follower starts ---- */

void refdata_watch_place(struct refdata_watch *watch, struct refdata_ask *ask)
{
    int64_t local = refdata_holding_version(watch->holding), after = ask->version;
    struct stream_topic *topic = watch->topics[ask->format];
    ask->current = local;
    if (after > local) { /* the version went back: the barrier decides */
        refdata_ask_again(ask);
    } else if (after > 0 && after < local && after <= watch->holding->lost_version) {
        refdata_ask_refuse(ask, STATUS_VERSION_TOO_OLD, ""); /* perhaps a version that was lost */
    } else if (after > stream_topic_position(topic)) {
        STAILQ_INSERT_TAIL(&watch->waiting, ask, next);
    } else if (stream_topic_reaches(topic, after)) {
        stream_topic_admit(topic, &(struct stream_entry){.ref = ask->ref,
                                                         .after = after,
                                                         .opening = ask->opening,
                                                         .opening_offset = ask->opening_offset});
        refdata_ask_free(ask);
    } else if (ask->opening) { /* what its opening leads to is no longer kept: it takes a newer one */
        refdata_ask_again(ask);
    } else if (local - after > refdata_watch_settings(watch->refdata)->versions_max) {
        refdata_ask_refuse(ask, STATUS_VERSION_TOO_OLD, "");
    } else if (!refdata_watch_recall(watch, ask, local)) {
        STAILQ_INSERT_TAIL(&watch->queued, ask, next);
        refdata_watch_ask(watch);
    }
}

static void on_admitted(struct http_request *request, struct stream_subscriber *subscriber, int64_t position)
{
    char headers[160];
    snprintf(headers, sizeof headers, "X-Dict-Version: %lld\r\nX-Data-Source: memory\r\n" STREAM_HEADERS,
             (long long)position);
    stream_send(subscriber, request,
                &(struct http_response){.status = 200,
                                        .content_type = stream_format_type(stream_format_of(request)),
                                        .headers = str_from(headers)},
                kernel_identity(request)->expires_at_s);
}

static struct stream_topic *create_topic(struct refdata_watch *watch, enum stream_format format,
                                         int64_t version)
{
    const struct refdata *refdata = watch->refdata;
    const struct str *code = &watch->holding->code;
    return stream_topic_create(
        &(struct stream_config){
            .loops = refdata->loops,
            .owner = refdata->home,
            .limits = limits_of(refdata),
            .format = format,
            .greeting = REFDATA_WATCH_UP_TO_DATE,
            .heartbeat = "{\"heartbeat\":%lld}",
            .stopping = "{\"heartbeat\":%lld,\"stopping\":true}",
            .on_admitted = on_admitted,
            .on_idle = refdata_watch_settle,
            .context = watch,
            .subscribers = metric_series_get(refdata_metrics[REFDATA_WATCHERS], code),
            .lines = metric_series_get(refdata_metrics[REFDATA_WATCH_LINES], code),
            .cuts = metric_series_get(refdata_metrics[REFDATA_WATCH_CUTS], code),
        },
        version);
}

static void follow(struct refdata_ask *ask)
{
    struct refdata *refdata = ask->refdata;
    struct refdata_holding *holding = refdata_ask_holding(ask);
    int64_t local = holding ? refdata_holding_version(holding) : -1;
    if (local < 0) {
        refdata_ask_again(ask);
        return;
    }
    struct refdata_watch *watch = holding->watch;
    if (!watch) {
        watch = holding->watch = memory_zalloc(sizeof *watch);
        *watch = (struct refdata_watch){.refs = 1, .refdata = refdata, .holding = holding};
        STAILQ_INIT(&watch->changes);
        STAILQ_INIT(&watch->waiting);
        STAILQ_INIT(&watch->queued);
        STAILQ_INIT(&watch->asked);
    }
    if (!watch->topics[ask->format])
        watch->topics[ask->format] = create_topic(watch, (enum stream_format)ask->format, local);
    if (ask->version < 0)
        ask->version = local;
    refdata_watch_place(watch, ask);
    refdata_watch_settle(watch);
}

/* ---- home: feeding ---- */

static void feed(struct refdata_watch *watch);

/* Takes the change over. */
static void change_written(struct refdata_watch *watch, struct refdata_watch_change *change)
{
    struct refdata_asks waiting = STAILQ_HEAD_INITIALIZER(waiting);
    int64_t from = cache_snapshot_info(change->before)->version;
    for (unsigned i = 0; i < STREAM_FORMATS; i++) {
        struct stream_topic *topic = watch->topics[i];
        /* A topic that is younger than the change begins with a later version. */
        if (!change->segments[i] || !topic || stream_topic_position(topic) != from)
            continue;
        stream_segment_ref(change->segments[i]);
        stream_topic_publish(topic, change->segments[i]);
    }
    STAILQ_CONCAT(&waiting, &watch->waiting);
    for (struct refdata_ask *ask; (ask = refdata_asks_take(&waiting)) != NULL;)
        refdata_watch_place(watch, ask);
    if (change->is_too_large) { /* a client that needs all of it reads /all */
        log_info("watch_change_too_large", LOG_STR("tenantId", watch->holding->tenant),
                 LOG_STR("dictCode", watch->holding->code), LOG_INT("bytesMax", change->bytes_max));
        refdata_watch_dissolve(watch->holding);
    }
    refdata_watch_change_destroy(change);
}

static void write_done(struct worker_job *job)
{
    struct refdata_watch_change *change = CONTAINER_OF(job, struct refdata_watch_change, job);
    struct refdata_watch *watch = change->watch;
    watch->is_writing = false;
    if (watch->holding && job->cancelled) /* the process is stopping */
        refdata_watch_dissolve(watch->holding);
    if (watch->holding)
        change_written(watch, change);
    else
        refdata_watch_change_destroy(change);
    feed(watch);
    refdata_watch_unref(watch);
}

/* Writes down what waits, in order: small changes here, large ones on a worker. */
static void feed(struct refdata_watch *watch)
{
    struct refdata_watch_change *change;
    while (watch->holding && !watch->is_writing && (change = STAILQ_FIRST(&watch->changes)) != NULL) {
        STAILQ_REMOVE_HEAD(&watch->changes, next);
        if (refdata_watch_change_is_small(change)) {
            refdata_watch_change_write(&change->job);
            change_written(watch, change);
            continue;
        }
        change->job = (struct worker_job){.loop = watch->refdata->home,
                                          .share = hash_seeded(watch->holding->tenant),
                                          .run = refdata_watch_change_write,
                                          .done = write_done};
        change->watch = watch;
        watch->is_writing = worker_pool_submit(watch->refdata->loaders, &change->job);
        if (watch->is_writing) {
            watch->refs++;
        } else { /* the process is stopping */
            refdata_watch_change_destroy(change);
            refdata_watch_dissolve(watch->holding);
        }
    }
}

void refdata_watch_published(struct refdata_holding *holding, const struct cache_snapshot *before,
                             const struct cache_snapshot *after, const struct refdata_change *change)
{
    struct refdata_watch *watch = holding->watch;
    if (!watch)
        return;
    if (!before || change->is_fork ||
        cache_snapshot_info(after)->version < cache_snapshot_info(before)->version) {
        refdata_watch_dissolve(holding);
        return;
    }
    unsigned formats = 0;
    for (unsigned i = 0; i < STREAM_FORMATS; i++)
        formats |= watch->topics[i] ? 1u << i : 0;
    struct refdata_watch_change *made = refdata_watch_change_create(
        before, after, change, formats, (size_t)refdata_watch_settings(holding->refdata)->buffer_bytes_max);
    if (!made)
        return;
    refdata_watch_forget(watch);
    STAILQ_INSERT_TAIL(&watch->changes, made, next);
    watch->refs++;
    feed(watch);
    refdata_watch_unref(watch);
}

/* ---- the request's own loop ---- */

void refdata_get_watch(struct http_request *request)
{
    static const char *const known[] = {"after", NULL};
    struct refdata *refdata = request->context;
    struct refdata_reading reading;
    struct error error;
    int64_t after = -1; /* from now on */
    if (!refdata_reading_begin(request, known, &reading))
        return;
    if (stream_after_read(request, "version", &after, &error) != STATUS_OK)
        http_send_error(request, &error);
    else if (refdata_barrier_pass(request, &reading, NULL, 0) &&
             refdata_barrier_reach(request, &reading, after, NULL, 0))
        refdata_ask_post(
            request, 2 * atomic_load(&refdata->catalog)->barrier.timeout_ms, refdata_ask_late, follow,
            &(struct refdata_demand){
                .version = after, .code = reading.holding->code, .format = stream_format_of(request)});
}
