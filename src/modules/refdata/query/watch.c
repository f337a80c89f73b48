/* GET …/watch on the request's loop, and the home loop's half: from which position a follower may start, and publishing. */
#include "modules/refdata/query/watch.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/query/barrier.h"
#include "modules/refdata/query/watch_inside.h"

struct metric_family refdata_watchers = {
    .name = "refdata_watchers",
    .help = "Streams of changes that are open.",
    .type = METRIC_GAUGE,
    .labels = {"dict_code", NULL},
};
struct metric_family refdata_watch_lines = {
    .name = "refdata_watch_lines_total",
    .help = "Changes given to watchers, each counted for each of them.",
    .type = METRIC_COUNTER,
    .labels = {"dict_code", NULL},
};
struct metric_family refdata_watch_cuts = {
    .name = "refdata_watch_cuts_total",
    .help = "Watchers cut off because they fell too far behind.",
    .type = METRIC_COUNTER,
    .labels = {"dict_code", NULL},
};

static int64_t local_version(const struct refdata_holding *holding)
{
    const struct cache_snapshot *snapshot = cache_slot_read(&holding->slot);
    return snapshot ? cache_snapshot_info(snapshot)->version : -1;
}

/* ---- from the home loop back to a request that is not admitted ---- */

struct refusal_message {
    struct loop_message message;
    struct loop_park_ref ref;
    enum status status; /* OK = start over */
    int64_t after, current;
};

static void send_refusal(struct http_request *request, const struct refusal_message *refusal)
{
    struct error error = {.status = refusal->status};
    char members[96] = "";
    if (refusal->status == STATUS_VERSION_TOO_OLD) {
        error_set(&error, refusal->status, "changes since version %lld are no longer kept",
                  (long long)refusal->after);
        snprintf(members, sizeof members, ",\"requestedVersion\":%lld,\"currentVersion\":%lld",
                 (long long)refusal->after, (long long)refusal->current);
    }
    http_send_error_with(request, &error, STR_NONE, str_from(members));
}

static void on_refusal(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct refusal_message *refusal = (struct refusal_message *)message;
    struct http_request *request = http_request_unpark(refusal->ref);
    if (request && refusal->status == STATUS_OK)
        request->route->handler(request);
    else if (request)
        send_refusal(request, refusal);
    free(refusal);
}

void refdata_watch_refuse(struct refdata_follower *follower, enum status status, int64_t current)
{
    struct refusal_message *refusal = memory_alloc(sizeof *refusal);
    *refusal = (struct refusal_message){
        .message.on_message = on_refusal,
        .ref = follower->ref,
        .status = status,
        .after = follower->after,
        .current = current,
    };
    loop_post(follower->ref.loop, &refusal->message);
    stream_segment_unref(follower->opening);
    free(follower);
}

void refdata_watch_start_over(struct refdata_follower *follower)
{
    refdata_watch_refuse(follower, STATUS_OK, 0);
}

static void start_all_over(struct refdata_follower **list)
{
    while (*list) {
        struct refdata_follower *follower = *list;
        *list = follower->next;
        refdata_watch_start_over(follower);
    }
}

/* ---- a watch's life ---- */

static void on_admitted(struct http_request *request, struct stream_subscriber *subscriber, int64_t position)
{
    char headers[96];
    snprintf(headers, sizeof headers, "X-Dict-Version: %lld\r\nX-Data-Source: memory\r\n",
             (long long)position);
    stream_send(subscriber, request,
                &(struct http_response){
                    .status = 200, .content_type = STR("application/x-ndjson"), .headers = str_from(headers)},
                kernel_identity(request)->expires_at_s);
}

static void on_idle(void *context)
{
    refdata_watch_settle(context);
}

static struct stream_limits limits_of(const struct refdata *refdata)
{
    return (struct stream_limits){
        .positions_max = refdata_watch_settings(refdata)->versions_max,
        .bytes_max = (size_t)refdata_watch_settings(refdata)->buffer_bytes_max,
        .heartbeat_ms = refdata_watch_settings(refdata)->heartbeat_ms,
    };
}

static struct refdata_watch *watch_of(struct refdata_holding *holding)
{
    struct refdata *refdata = holding->refdata;
    struct refdata_watch *watch = holding->watch;
    if (watch)
        return watch;
    watch = memory_zalloc(sizeof *watch);
    watch->refs = 1;
    watch->refdata = refdata;
    watch->holding = holding;
    watch->change_last = &watch->change_first;
    watch->topic = stream_topic_create(
        &(struct stream_config){
            .loops = refdata->loops,
            .owner = refdata->home,
            .limits = limits_of(refdata),
            .put_greeting = refdata_watch_put_up_to_date,
            .put_heartbeat = refdata_watch_put_heartbeat,
            .on_admitted = on_admitted,
            .on_idle = on_idle,
            .context = watch,
            .subscribers = metric_series_get(&refdata_watchers, &holding->code),
            .lines = metric_series_get(&refdata_watch_lines, &holding->code),
            .cuts = metric_series_get(&refdata_watch_cuts, &holding->code),
        },
        local_version(holding));
    return holding->watch = watch;
}

void refdata_watch_unref(struct refdata_watch *watch)
{
    if (--watch->refs == 0)
        free(watch);
}

void refdata_watch_dissolve(struct refdata_holding *holding)
{
    struct refdata_watch *watch = holding->watch;
    if (!watch)
        return;
    holding->watch = NULL;
    watch->holding = NULL;
    stream_topic_close(watch->topic);
    watch->topic = NULL;
    refdata_watch_forget(watch);
    start_all_over(&watch->waiting);
    start_all_over(&watch->queued); /* those asked start over when their query ends */
    struct refdata_watch_change *change = watch->change_first;
    watch->change_first = NULL;
    if (watch->writing) /* the worker's, which brings it back */
        change = change->next;
    while (change) {
        struct refdata_watch_change *next = change->next;
        refdata_watch_change_destroy(change);
        change = next;
    }
    refdata_watch_unref(watch);
}

void refdata_watch_settle(struct refdata_watch *watch)
{
    bool is_used = watch->holding &&
                   (stream_topic_count(watch->topic) || watch->waiting || watch->queued || watch->asked);
    if (watch->holding && !is_used)
        refdata_watch_dissolve(watch->holding);
}

void refdata_watch_adopt(struct refdata *refdata)
{
    const struct stream_limits limits = limits_of(refdata);
    for (size_t i = 0; i <= refdata->own->mask; i++)
        if (refdata->own->slots[i] && refdata->own->slots[i]->watch)
            stream_topic_set_limits(refdata->own->slots[i]->watch->topic, &limits);
}

/* ---- home: where a follower starts ---- */

void refdata_watch_place(struct refdata_watch *watch, struct refdata_follower *follower)
{
    int64_t local = local_version(watch->holding);
    if (follower->after > local) { /* the version went back: the barrier decides */
        refdata_watch_start_over(follower);
    } else if (follower->after > 0 && follower->after < local &&
               follower->after <= watch->holding->lost_version) {
        refdata_watch_refuse(follower, STATUS_VERSION_TOO_OLD, local); /* perhaps a version that was lost */
    } else if (follower->after > stream_topic_position(watch->topic)) {
        follower->next = watch->waiting;
        watch->waiting = follower;
    } else if (stream_topic_reaches(watch->topic, follower->after)) {
        stream_topic_admit(watch->topic, &(struct stream_entry){.ref = follower->ref,
                                                                .after = follower->after,
                                                                .opening = follower->opening,
                                                                .opening_offset = follower->opening_offset});
        stream_segment_unref(follower->opening);
        free(follower);
    } else if (follower->opening) { /* what its opening leads to is no longer kept: it takes a newer one */
        refdata_watch_start_over(follower);
    } else if (local - follower->after > refdata_watch_settings(watch->refdata)->versions_max) {
        refdata_watch_refuse(follower, STATUS_VERSION_TOO_OLD, local);
    } else if (!refdata_watch_recall(watch, follower, local)) {
        follower->next = watch->queued;
        watch->queued = follower;
        refdata_watch_ask(watch);
    }
}

struct follow_message {
    struct loop_message message;
    struct refdata *refdata;
    struct loop_park_ref ref;
    int64_t after; /* -1 = from now on */
    size_t tenant_len, code_len;
    char text[]; /* tenant, code */
};

static void on_follow(struct loop *loop, struct loop_message *loop_message)
{
    (void)loop;
    struct follow_message *message = (struct follow_message *)loop_message;
    struct refdata_holding *holding =
        refdata_table_find(message->refdata->own, str_of(message->text, message->tenant_len),
                           str_of(message->text + message->tenant_len, message->code_len));
    bool is_loaded = holding && cache_slot_read(&holding->slot);
    struct refdata_follower *follower = memory_zalloc(sizeof *follower);
    follower->ref = message->ref;
    follower->after = message->after;
    if (is_loaded) {
        struct refdata_watch *watch = watch_of(holding);
        if (message->after < 0)
            follower->after = local_version(holding);
        refdata_watch_place(watch, follower);
        refdata_watch_settle(watch);
    } else {
        refdata_watch_start_over(follower);
    }
    free(message);
}

/* ---- home: feeding ---- */

static void feed(struct refdata_watch *watch);

static void change_written(struct refdata_watch *watch, struct refdata_watch_change *change)
{
    watch->change_first = change->next;
    if (!watch->change_first)
        watch->change_last = &watch->change_first;
    if (change->segment) {
        stream_segment_ref(change->segment);
        stream_topic_publish(watch->topic, change->segment);
        struct refdata_follower *waiting = watch->waiting;
        watch->waiting = NULL;
        while (waiting) {
            struct refdata_follower *next = waiting->next;
            refdata_watch_place(watch, waiting);
            waiting = next;
        }
    } else if (!change->is_nothing) { /* a client that needs all of it reads /all */
        log_info("watch_change_too_large", LOG_STR("tenantId", watch->holding->tenant),
                 LOG_STR("dictCode", watch->holding->code), LOG_INT("bytesMax", change->bytes_max));
        refdata_watch_dissolve(watch->holding);
    }
    refdata_watch_change_destroy(change);
}

static void run_write(struct worker_job *job)
{
    refdata_watch_change_write((struct refdata_watch_change *)job);
}

static void write_done(struct worker_job *job)
{
    struct refdata_watch_change *change = (struct refdata_watch_change *)job;
    struct refdata_watch *watch = change->watch;
    watch->writing = false;
    if (!watch->holding) {
        refdata_watch_change_destroy(change);
    } else if (
        job->cancelled) { /* the process is stopping; it is still the first of those that go with the watch */
        refdata_watch_dissolve(watch->holding);
    } else {
        change_written(watch, change);
        feed(watch);
    }
    refdata_watch_unref(watch);
}

/* Writes down what waits, in order: small changes here, large ones on a worker. */
static void feed(struct refdata_watch *watch)
{
    while (watch->holding && watch->change_first && !watch->writing) {
        struct refdata_watch_change *change = watch->change_first;
        if (refdata_watch_change_is_small(change)) {
            refdata_watch_change_write(change);
            change_written(watch, change);
            continue;
        }
        change->job = (struct worker_job){.loop = watch->refdata->home, .run = run_write, .done = write_done};
        change->watch = watch;
        watch->writing = worker_pool_submit(watch->refdata->loaders, &change->job);
        if (watch->writing)
            watch->refs++;
        else
            refdata_watch_dissolve(watch->holding); /* the process is stopping */
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
    struct refdata_watch_change *made = refdata_watch_change_create(
        before, after, change, (size_t)refdata_watch_settings(holding->refdata)->buffer_bytes_max);
    if (!made)
        return;
    refdata_watch_forget(watch);
    *watch->change_last = made;
    watch->change_last = &made->next;
    watch->refs++;
    feed(watch);
    refdata_watch_unref(watch);
}

/* ---- the request's own loop ---- */

static void on_late(struct http_request *request, void *context)
{
    (void)context;
    struct error error;
    error_set(&error, STATUS_UNAVAILABLE, "what changed since that version could not be read in time");
    http_send_error(request, &error);
}

static void follow(struct http_request *request, const struct refdata_reading *reading, int64_t after)
{
    struct refdata *refdata = request->context;
    struct str tenant = reading->holding->tenant, code = reading->holding->code;
    struct follow_message *message = memory_alloc(sizeof *message + tenant.len + code.len);
    *message = (struct follow_message){
        .message.on_message = on_follow,
        .refdata = refdata,
        .after = after,
        .tenant_len = tenant.len,
        .code_len = code.len,
    };
    memcpy(message->text, tenant.ptr, tenant.len);
    memcpy(message->text + tenant.len, code.ptr, code.len);
    int64_t deadline_ns =
        loop_now_ns(request->loop) + 2 * atomic_load(&refdata->barrier_timeout_ms) * CLOCK_NS_PER_MS;
    if (http_request_park(request, deadline_ns, on_late, NULL, &message->ref))
        loop_post(refdata->home, &message->message);
    else
        free(message);
}

static enum status read_after(const struct http_request *request, int64_t *after, struct error *error)
{
    bool found = false;
    struct str text;
    uint64_t number;
    *after = -1;
    enum status status = http_request_query(request, STR("after"), &found, &text, error);
    if (status != STATUS_OK || !found)
        return status;
    if (!str_to_u64(text, &number) || number > INT64_MAX)
        return error_set_field(error, STATUS_BAD_REQUEST, "after", "a version: a whole number, not negative");
    *after = (int64_t)number;
    return STATUS_OK;
}

void refdata_get_watch(struct http_request *request)
{
    static const char *const known[] = {"after", NULL};
    struct refdata_reading reading;
    struct error error;
    int64_t after;
    if (!refdata_reading_begin(request, known, &reading))
        return;
    if (read_after(request, &after, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    if (refdata_barrier_pass(request, &reading, NULL, 0) &&
        refdata_barrier_reach(request, &reading, after, NULL, 0))
        follow(request, &reading, after);
}
