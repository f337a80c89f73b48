/* What the command role counts. */
#include "modules/refdata/command/command.h"

struct metric_family refdata_updates_family = {
    .name = "refdata_updates_total",
    .help = "POSTed updates: accepted, replayed (known before), rejected (4xx), unavailable (503).",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};
struct metric_family refdata_commit_size_family = {
    .name = "refdata_commit_batch_size",
    .help = "Updates that shared one commit.",
    .type = METRIC_HISTOGRAM,
    .buckets = (const double[]){1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 0},
};
struct metric_family refdata_commit_seconds_family = {
    .name = "refdata_commit_seconds",
    .help = "Time of one such transaction with all its retries, in seconds.",
    .type = METRIC_HISTOGRAM,
};

void refdata_command_metrics_count(enum refdata_update_result result)
{
    static const char *const names[REFDATA_UPDATE_RESULTS] = {
        [REFDATA_UPDATE_ACCEPTED] = "accepted",
        [REFDATA_UPDATE_REPLAYED] = "replayed",
        [REFDATA_UPDATE_REJECTED] = "rejected",
        [REFDATA_UPDATE_UNAVAILABLE] = "unavailable",
    };
    metric_add(metric_series_get(&refdata_updates_family, (struct str[]){str_from(names[result])}), 1);
}

void refdata_command_metrics_commit(size_t posts, double seconds)
{
    metric_observe(metric_series_get(&refdata_commit_size_family, NULL), (double)posts);
    metric_observe(metric_series_get(&refdata_commit_seconds_family, NULL), seconds);
}
