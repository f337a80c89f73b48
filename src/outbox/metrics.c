/* The outbox's metric families (O5). */
#include "base/metrics.h"

#include "outbox/outbox_inside.h"

static const double latency_buckets[] = {1,   2,    5,    10,   25,    50,    100, 250,
                                         500, 1000, 2500, 5000, 10000, 60000, 0};

static struct metric_family pending = {
    .name = "outbox_pending_count",
    .help = "Events committed and not yet published; those that failed for good do not count.",
    .type = METRIC_GAUGE,
    .labels = {"module", "event_type"},
};
static struct metric_family oldest = {
    .name = "outbox_oldest_pending_age_seconds",
    .help = "Age of the oldest event that is not yet published; 0 = none.",
    .type = METRIC_GAUGE,
    .labels = {"module", "event_type"},
};
static struct metric_family success = {
    .name = "outbox_publish_success_total",
    .help = "Events published, by the verdict that was committed.",
    .type = METRIC_COUNTER,
    .labels = {"module", "event_type"},
};
static struct metric_family failed = {
    .name = "outbox_publish_failed_total",
    .help = "Attempts to publish an event that failed.",
    .type = METRIC_COUNTER,
    .labels = {"module", "event_type"},
};
static struct metric_family dead = {
    .name = "outbox_dead_lettered_total",
    .help = "Events given up: `freshet outbox` lists them. Worth an alert.",
    .type = METRIC_COUNTER,
    .labels = {"module", "event_type"},
};
static struct metric_family latency = {
    .name = "outbox_publish_latency_ms",
    .help =
        "From an event's creation to the verdict that it is published, in milliseconds of the database's clock.",
    .type = METRIC_HISTOGRAM,
    .labels = {"module", "event_type"},
    .buckets = latency_buckets,
};

void outbox_metrics_init(void)
{
    metrics_register(&pending);
    metrics_register(&oldest);
    metrics_register(&success);
    metrics_register(&failed);
    metrics_register(&dead);
    metrics_register(&latency);
}

void outbox_metrics_of(const char *module, struct str event_type, struct outbox_counters *counters)
{
    const struct str labels[] = {str_from(module), event_type};
    counters->success = metric_series_get(&success, labels);
    counters->failed = metric_series_get(&failed, labels);
    counters->dead = metric_series_get(&dead, labels);
    counters->latency = metric_series_get(&latency, labels);
    (void)metric_series_get(&pending, labels); /* 0 until something waits, rather than nothing */
    (void)metric_series_get(&oldest, labels);
}

void outbox_metrics_pending(const char *module, struct str event_type, int64_t count, int64_t age_ms)
{
    const struct str labels[] = {str_from(module), event_type};
    metric_set(metric_series_get(&pending, labels), (double)count);
    metric_set(metric_series_get(&oldest, labels), (double)age_ms / 1000);
}
