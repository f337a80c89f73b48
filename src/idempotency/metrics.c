/* Metrics of I7, by route. A thread mostly counts one route: it keeps that one's series at hand. */
#include <pthread.h>

#include "base/log.h"
#include "base/metrics.h"
#include "idempotency/idempotency_inside.h"

#define FAMILY(variable, metric, text, label) \
    struct metric_family variable = {.name = metric, .help = text, .type = METRIC_COUNTER, .labels = {label}}

FAMILY(idempotency_hit_family, "idempotency_hit_total",
       "Requests answered from the stored answer of their Idempotency-Key.", "route");
FAMILY(idempotency_miss_family, "idempotency_miss_total", "Requests whose Idempotency-Key was new.", "route");
FAMILY(idempotency_conflict_family, "idempotency_conflict_total",
       "Requests refused since their Idempotency-Key came with another body before.", "route");
FAMILY(idempotency_collision_family, "idempotency_processing_collision_total",
       "Requests refused since one with their Idempotency-Key was being processed.", "route");
FAMILY(idempotency_cleanup_family, "idempotency_cleanup_count_total",
       "Expired idempotency keys that were deleted.", "route");

static struct metric_family *const families[IDEMPOTENCY_EVENTS] = {
    [IDEMPOTENCY_HIT] = &idempotency_hit_family,
    [IDEMPOTENCY_MISS] = &idempotency_miss_family,
    [IDEMPOTENCY_CONFLICT] = &idempotency_conflict_family,
    [IDEMPOTENCY_COLLISION] = &idempotency_collision_family,
};

static void register_all(void)
{
    for (int event = 0; event < IDEMPOTENCY_EVENTS; event++)
        metrics_register(families[event]);
    metrics_register(&idempotency_cleanup_family);
}

void idempotency_metrics_register(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_all);
}

void idempotency_count(const struct http_route *route, enum idempotency_event event)
{
    static _Thread_local const char *last; /* paths are literals of the route tables */
    static _Thread_local struct metric_series *series[IDEMPOTENCY_EVENTS];

    if (last != route->path) {
        struct str path = str_from(route->path);
        idempotency_metrics_register();
        for (int each = 0; each < IDEMPOTENCY_EVENTS; each++)
            series[each] = metric_series_get(families[each], &path);
        last = route->path;
    }
    metric_add(series[event], 1);
}

void idempotency_count_cleaned(struct str route, int64_t count)
{
    idempotency_metrics_register();
    metric_add(metric_series_get(&idempotency_cleanup_family, &route), (uint64_t)count);
}

void idempotency_log_cleaned(struct str table, int64_t count)
{
    log_info("idempotency_keys_cleaned", LOG_STR("table", table), LOG_INT("count", count));
}
