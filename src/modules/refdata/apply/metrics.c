/* Apply's metrics. */
#include <pthread.h>

#include "base/clock.h"
#include "base/metrics.h"
#include "modules/refdata/apply/batch.h"

static const double batch_buckets[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000, 0};

static struct metric_family total_family = {
    .name = "refdata_apply_total",
    .help = "Commands by what became of them: committed, failed, staged (a chunk), duplicate, unreadable.",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};
static struct metric_family size_family = {.name = "refdata_apply_batch_size",
                                           .help = "Commands in one transaction.",
                                           .type = METRIC_HISTOGRAM,
                                           .buckets = batch_buckets};
static struct metric_family seconds_family = {
    .name = "refdata_apply_seconds",
    .help = "Time from a batch's first statement to its commit being asked for, in seconds.",
    .type = METRIC_HISTOGRAM};

static struct metric_series *totals[APPLY_RESULTS], *sizes, *seconds;

static void get_series(void)
{
    static const char *const names[APPLY_RESULTS] = {[APPLY_COMMITTED] = "committed",
                                                     [APPLY_FAILED] = "failed",
                                                     [APPLY_STAGED] = "staged",
                                                     [APPLY_DUPLICATE] = "duplicate",
                                                     [APPLY_UNREADABLE] = "unreadable"};
    metrics_register(&total_family);
    metrics_register(&size_family);
    metrics_register(&seconds_family);
    for (size_t i = 0; i < APPLY_RESULTS; i++)
        totals[i] = metric_series_get(&total_family, &(struct str){names[i], strlen(names[i])});
    sizes = metric_series_get(&size_family, NULL);
    seconds = metric_series_get(&seconds_family, NULL);
}

void refdata_apply_metrics_register(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, get_series);
}

void refdata_apply_metrics_count(enum apply_result result, size_t count)
{
    metric_add(totals[result], count);
}

void refdata_apply_metrics_run(size_t commands, int64_t begun_ns)
{
    metric_observe(sizes, (double)commands);
    metric_observe(seconds, (double)(clock_mono_ns() - begun_ns) / 1e9);
}
