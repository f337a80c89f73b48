/* Traces (C9): the settings `traces`, and the exporter. One task on a thread of its own takes spans out of the rings of base/span.h
 * and posts them to an OpenTelemetry collector by OTLP/HTTP (JSON), at most batchSize at once.
 *
 *     a batch ─ 2xx ─▶ exported
 *             ─ 408, 429, 5xx, no answer ─▶ tried again after a backoff, or after the collector's Retry-After; after TRIES_MAX: failed
 *             ─ any other answer ─▶ failed
 *
 * Meanwhile the rings fill up, and what does not fit is dropped. All of it is counted. No request ever waits for the collector. */
#ifndef FRESHET_KERNEL_TRACES_H
#define FRESHET_KERNEL_TRACES_H

#include "base/setting.h"
#include "base/status.h"
#include "kernel/config.h"

struct kernel;
struct kernel_traces;

struct kernel_traces_settings {
    struct str endpoint, headers_file, service_name, instance_id;
    struct setting_strings headers;
    struct setting_place endpoint_place, headers_place, headers_file_place;
    int64_t sample_share; /* thousandths of a percent */
    int64_t batch_size, queue_size, interval_ms, timeout_ms;
};
extern const struct setting_row kernel_traces_rows[];

enum status kernel_traces_check(const struct config *config, struct error *error) MUST_CHECK;
/* Before the loops run. NULL: no endpoint is configured. */
struct kernel_traces *kernel_traces_start(struct kernel *kernel);
void kernel_traces_reload(const struct config *config); /* the share that is sampled */
/* While the loops run, before fetch_stop(): exports what is there, for two seconds at most. NULL is fine, as for the next one. */
void kernel_traces_stop(struct kernel_traces *traces);
void kernel_traces_destroy(struct kernel_traces *traces); /* after all other threads */

#endif
