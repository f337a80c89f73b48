#include "kernel/traces.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/metrics.h"
#include "fetch/fetch.h"
#include "kernel/kernel_inside.h"
#include "kernel/otlp.h"
#include "loop/task.h"

enum {
    TRIES_MAX = 5, /* of a batch */
    RETRY_MIN_MS = 1000,
    RETRY_MAX_MS = 30000, /* also of a Retry-After */
    WARN_EVERY_MS = 60000,
    STOP_MS = 2000,
    CONNECT_MS = 2000,
    ANSWER_BYTES_MAX = 65536,
    HEADERS_MAX = 16, /* of each source */
    HEADERS_FILE_BYTES_MAX = 16384,
};

/* ---- settings ---- */

#define ROW(member) .offset = offsetof(struct kernel_traces_settings, member)
#define PLACE(member) .place_offset = 1 + offsetof(struct kernel_traces_settings, member)
const struct setting_row kernel_traces_rows[] = {
    {"endpoint", SETTING_STRING, ROW(endpoint),
     "Where spans are posted to by OTLP/HTTP, with its path: http://HOST:4318/v1/traces. Empty = no spans are recorded; a "
     "traceparent is still passed on.",
     "", 0, 2048, PLACE(endpoint_place)},
    {"headers", SETTING_STRING_LIST, ROW(headers),
     "Further request headers for the collector, \"Name: value\" each.", "", 0, HEADERS_MAX,
     PLACE(headers_place), .secret = true},
    {"headersFile", SETTING_STRING, ROW(headers_file),
     "File with such headers, one per line; it is read for each export, so that a credential in it can be replaced.",
     "", PLACE(headers_file_place)},
    {"serviceName", SETTING_STRING, ROW(service_name), "service.name of the spans.", "freshet", 1, 200},
    {"instanceId", SETTING_STRING, ROW(instance_id),
     "service.instance.id of the spans; empty = HOSTNAME, or the machine's name, and the process id.", "", 0,
     200},
    {"samplePercent", SETTING_DECIMAL, ROW(sample_share),
     "How many of the requests without a traceparent are traced, in percent. A traceparent decides for itself by its sampled "
     "flag.",
     "1", 0, 100000, .reloadable = true},
    {"batchSize", SETTING_INT, ROW(batch_size), "Most spans of one export.", "512", 1, 10000},
    {"interval", SETTING_DURATION_MS, ROW(interval_ms),
     "How often spans are exported; sooner while a thread has many of them.", "1s", 10, 60000},
    {"timeout", SETTING_DURATION_MS, ROW(timeout_ms), "Time for the collector to answer an export.", "5s", 10,
     60000},
    {"queueSize", SETTING_INT, ROW(queue_size),
     "Spans of each thread that wait for their export; those that do not fit are dropped and counted.",
     "1024", 16, 65536},
    {.name = NULL},
};

/* A regular one: a read from anything else could wait for ever, and a stop with it. */
static bool is_file(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0 || access(path, R_OK) != 0)
        return false;
    errno = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
    return S_ISREG(info.st_mode);
}

static bool is_header(struct str line)
{
    struct str name;
    for (size_t i = 0; i < line.len; i++)
        if ((unsigned char)line.ptr[i] < ' ' || line.ptr[i] == 0x7f)
            return false;
    return memchr(line.ptr, ':', line.len) && str_split(&line, ':', &name) && name.len > 0 &&
           !memchr(name.ptr, ' ', name.len) && str_trim(line).len > 0;
}

enum status kernel_traces_check(const struct config *config, struct error *error)
{
    const struct kernel_traces_settings *settings = config_section(config, "traces");
    if (settings->endpoint.len && !fetch_is_url(settings->endpoint))
        return config_error_at(config, settings->endpoint_place, "traces.endpoint", error,
                               "must be an http or https URL, as http://127.0.0.1:4318/v1/traces");
    for (size_t i = 0; i < settings->headers.count; i++)
        if (!is_header(settings->headers.items[i]))
            return config_error_at(config, settings->headers_place, "traces.headers", error,
                                   "entry %zu is not \"Name: value\"", i + 1);
    if (settings->headers_file.len && !is_file(settings->headers_file.ptr))
        return config_error_at(config, settings->headers_file_place, "traces.headersFile", error,
                               "cannot be read: %s", strerror(errno));
    return STATUS_OK;
}

/* ---- a batch ---- */

struct kernel_traces {
    const struct kernel_traces_settings *settings; /* of the first configuration */
    struct otlp_resource resource;
    char host[256], instance[300];
    struct worker_pool *pool;
    struct task *task;
    struct fetch_session *session;
    struct buf body; /* of the batch that is to be exported; empty = none */
    size_t count;    /* its spans */
    unsigned tries;
    struct backoff backoff;
    bool is_failing;
    int64_t warn_from_ns;
};

enum export_result { EXPORT_OK, EXPORT_RETRIED, EXPORT_FAILED, EXPORT_RESULTS };
static struct metric_family exports_family = {
    .name = "freshet_trace_exports_total",
    .help = "Requests to the collector of traces: ok, retried, failed.",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};

static const char *const results[] = {
    [EXPORT_OK] = "ok", [EXPORT_RETRIED] = "retried", [EXPORT_FAILED] = "failed"};
static struct metric_series *exports[EXPORT_RESULTS];

static void put_span(void *context, const struct span *span)
{
    otlp_put_span(context, span);
}

/* False: there are no spans. */
static bool fill_batch(struct kernel_traces *traces)
{
    if (traces->count > 0)
        return true;
    buf_clear(&traces->body);
    otlp_begin(&traces->body, &traces->resource);
    traces->count = span_take((size_t)traces->settings->batch_size, put_span, &traces->body);
    otlp_end(&traces->body);
    traces->tries = 0;
    return traces->count > 0;
}

static void end_batch(struct kernel_traces *traces, enum span_result result, int64_t rejected)
{
    if (rejected > (int64_t)traces->count)
        rejected = (int64_t)traces->count;
    span_count(result, traces->count - (size_t)rejected);
    span_count(SPAN_REJECTED, (size_t)rejected);
    traces->count = 0;
}

/* ---- one request ---- */

/* NULL-terminated, in the arena. Lines of the file that are not headers are left out. */
static const char *const *request_headers(const struct kernel_traces *traces, struct arena *arena)
{
    const struct kernel_traces_settings *settings = traces->settings;
    const char **headers = arena_zalloc(arena, (2 * HEADERS_MAX + 3) * sizeof *headers);
    size_t count = 0, from_file = 0;
    struct buf file = {0};
    headers[count++] = "Content-Type: application/json";
    headers[count++] = "Expect:";
    for (size_t i = 0; i < settings->headers.count; i++)
        headers[count++] = settings->headers.items[i].ptr;
    if (settings->headers_file.len && is_file(settings->headers_file.ptr) &&
        buf_read_file(&file, settings->headers_file.ptr, HEADERS_FILE_BYTES_MAX)) {
        struct str rest = buf_str(&file), line;
        while (from_file < HEADERS_MAX && str_split(&rest, '\n', &line)) {
            line.len -= line.len > 0 && line.ptr[line.len - 1] == '\r';
            if (is_header(str_trim(line)) && ++from_file)
                headers[count++] = arena_printf(arena, "%.*s", STR_ARG(str_trim(line))).ptr;
        }
    }
    buf_deinit(&file);
    return headers;
}

static bool is_worth_a_retry(enum status status, int http_status)
{
    if (status != STATUS_OK)
        return status != STATUS_CANCELLED;
    return http_status == 408 || http_status == 429 || http_status >= 500;
}

static void note_result(struct kernel_traces *traces, bool is_ok, int http_status, const struct error *error)
{
    int64_t now_ns = clock_mono_ns();
    if (is_ok && traces->is_failing)
        log_info("traces_exported_again");
    if (!is_ok && (!traces->is_failing || now_ns >= traces->warn_from_ns)) {
        traces->warn_from_ns = now_ns + WARN_EVERY_MS * CLOCK_NS_PER_MS;
        log_warn("traces_not_exported", LOG_STR("endpoint", traces->settings->endpoint),
                 LOG_INT("httpStatus", http_status), LOG_CSTR("error", error->message),
                 LOG_INT("spans", (int64_t)traces->count));
    }
    traces->is_failing = !is_ok;
}

/* The batch is exported or given up: 0. Otherwise: after how many milliseconds it is tried again. */
static int64_t export_batch(struct kernel_traces *traces, int64_t timeout_ms)
{
    struct arena arena = ARENA(4096);
    struct fetch_answer answer = {0};
    struct error error = {0};
    int64_t wait_ms = 0;
    enum status status = fetch_run(
        &(struct fetch_request){.method = "POST",
                                .url = traces->settings->endpoint,
                                .headers = request_headers(traces, &arena),
                                .body = buf_str(&traces->body),
                                .connect_timeout_ms = timeout_ms < CONNECT_MS ? timeout_ms : CONNECT_MS,
                                .timeout_ms = timeout_ms,
                                .answer_bytes_max = ANSWER_BYTES_MAX,
                                .session = traces->session},
        &answer, &error);
    bool is_ok = status == STATUS_OK && answer.status >= 200 && answer.status <= 299;
    note_result(traces, is_ok, answer.status, &error);
    if (is_ok) {
        metric_add(exports[EXPORT_OK], 1);
        backoff_reset(&traces->backoff);
        end_batch(traces, SPAN_EXPORTED, otlp_read_rejected(buf_str(&answer.body)));
    } else {
        wait_ms = backoff_next_ms(&traces->backoff);
        if (answer.retry_after_s > 0)
            wait_ms = answer.retry_after_s < RETRY_MAX_MS / 1000 ? answer.retry_after_s * 1000 : RETRY_MAX_MS;
        bool is_kept = is_worth_a_retry(status, answer.status) && ++traces->tries < TRIES_MAX;
        metric_add(exports[is_kept ? EXPORT_RETRIED : EXPORT_FAILED], 1);
        if (!is_kept)
            end_batch(traces, SPAN_FAILED, 0);
    }
    buf_deinit(&answer.body);
    arena_deinit(&arena);
    return wait_ms;
}

/* ---- life ---- */

static int64_t export_step(struct task *task, void *context)
{
    struct kernel_traces *traces = context;
    while (!task_is_stopping(task) && fill_batch(traces)) {
        bool was_full = traces->count == (size_t)traces->settings->batch_size;
        int64_t wait_ms = export_batch(traces, traces->settings->timeout_ms);
        if (wait_ms > 0) {
            task_hold(task, TASK_MS(wait_ms)); /* full rings do not shorten it */
            return TASK_MS(wait_ms);
        }
        if (!was_full)
            break;
    }
    return TASK_MS(traces->settings->interval_ms);
}

static void wake_exporter(void *context)
{
    task_wake(((struct kernel_traces *)context)->task);
}

static void name_resource(struct kernel_traces *traces)
{
    kernel_host_name(traces->host, sizeof traces->host);
    snprintf(traces->instance, sizeof traces->instance, "%s/%ld", traces->host, (long)getpid());
    traces->resource = (struct otlp_resource){
        .service_name = traces->settings->service_name,
        .instance_id =
            traces->settings->instance_id.len ? traces->settings->instance_id : str_from(traces->instance),
        .version = STR(FRESHET_VERSION),
        .host_name = str_from(traces->host),
        .pid = getpid(),
    };
}

struct kernel_traces *kernel_traces_start(struct kernel *kernel)
{
    const struct kernel_traces_settings *settings = kernel_section(kernel, "traces");
    span_metrics_register();
    metrics_register(&exports_family);
    for (size_t i = 0; i < EXPORT_RESULTS; i++) /* 0, not missing, without a collector */
        exports[i] = metric_series_get(&exports_family, (struct str[]){str_from(results[i])});
    if (!settings->endpoint.len)
        return NULL;
    struct kernel_traces *traces = memory_zalloc(sizeof *traces);
    traces->settings = settings;
    traces->backoff = (struct backoff){.min_ms = RETRY_MIN_MS, .max_ms = RETRY_MAX_MS};
    name_resource(traces);
    traces->session = fetch_session_open();
    traces->pool = worker_pool_create("traces", 1, 4);
    traces->task = task_create(&(struct task_config){.name = "traces",
                                                     .loop = loop_group_loop(kernel->loops, 0),
                                                     .pool = traces->pool,
                                                     .run = export_step,
                                                     .context = traces});
    span_open(&(struct span_settings){.ring_spans = (size_t)settings->queue_size,
                                      .sample_share = settings->sample_share,
                                      .on_half_full = wake_exporter,
                                      .context = traces});
    task_start(traces->task, TASK_MS(settings->interval_ms));
    return traces;
}

void kernel_traces_reload(const struct config *config)
{
    span_set_share(((const struct kernel_traces_settings *)config_section(config, "traces"))->sample_share);
}

void kernel_traces_stop(struct kernel_traces *traces)
{
    int64_t deadline_ns = clock_deadline_ms(STOP_MS);
    if (!traces)
        return;
    bool is_ended = task_stop(traces->task, TASK_MS(STOP_MS));
    while (is_ended && clock_ms_left(deadline_ns) > 0 && fill_batch(traces))
        if (export_batch(traces, clock_ms_left(deadline_ns)) > 0)
            break;
    span_close();
}

void kernel_traces_destroy(struct kernel_traces *traces)
{
    if (!traces)
        return;
    task_stop(traces->task, TASK_FOREVER); /* fetch_stop() has ended its request */
    worker_pool_stop(traces->pool);
    task_destroy(traces->task);
    worker_pool_destroy(traces->pool);
    fetch_session_close(traces->session);
    buf_deinit(&traces->body);
    span_free();
    free(traces);
}
