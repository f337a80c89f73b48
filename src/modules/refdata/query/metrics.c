/* refdata's metrics (R20). Series per (tenant, dictionary) pair live as long as the pair is held. */
#include "base/clock.h"
#include "modules/refdata/adapter/adapter.h"
#include "modules/refdata/command/command.h"
#include "modules/refdata/query/query.h"
#include "modules/refdata/query/watch.h"

#define PAIR_LABELS                 \
    {                               \
        "tenant", "dict_code", NULL \
    }

static struct metric_family version_lag = {
    .name = "dict_version_lag",
    .help = "Versions that this pod was behind dictionary_meta.version at the last sweep.",
    .type = METRIC_GAUGE,
    .labels = PAIR_LABELS,
};
static struct metric_family version = {.name = "dict_version",
                                       .help = "Version served from memory.",
                                       .type = METRIC_GAUGE,
                                       .labels = PAIR_LABELS};
static struct metric_family items = {
    .name = "dict_items", .help = "Items held in memory.", .type = METRIC_GAUGE, .labels = PAIR_LABELS};
static struct metric_family memory = {.name = "dict_memory_bytes",
                                      .help = "Memory held, in bytes.",
                                      .type = METRIC_GAUGE,
                                      .labels = PAIR_LABELS};
static struct metric_family drift_value = {
    .name = "dict_drift_value",
    .help = "Last result of driftCheckSql; for diagnosis only.",
    .type = METRIC_GAUGE,
    .labels = PAIR_LABELS,
};
static struct metric_family drift_refused = {
    .name = "dict_drift_check_refused",
    .help = "1 while PostgreSQL refuses the dictionary's driftCheckSql.",
    .type = METRIC_GAUGE,
    .labels = {"dict_code", NULL},
};
static struct metric_family unavailable = {
    .name = "dict_unavailable",
    .help = "1 while PostgreSQL refuses the dictionary's templates, else 0.",
    .type = METRIC_GAUGE,
    .labels = {"dict_code", NULL},
};
static struct metric_family reload_duration = {
    .name = "cache_reload_duration",
    .help = "Time of a successful load, in seconds; mode is full, or delta (changed keys only).",
    .type = METRIC_HISTOGRAM,
    .labels = {"dict_code", "mode", NULL},
};
static struct metric_family reload_errors = {.name = "cache_reload_errors",
                                             .help = "Loads that failed.",
                                             .type = METRIC_COUNTER,
                                             .labels = {"dict_code", NULL}};
static struct metric_family freshness = {
    .name = "refdata_freshness_seconds",
    .help = "Time from the commit of a change until this pod serves it, in seconds.",
    .type = METRIC_HISTOGRAM,
    .labels = {"dict_code", NULL},
};
static struct metric_family fallback_reads = {
    .name = "postgres_fallback_reads",
    .help = "Reads answered from PostgreSQL because the demanded version was not in memory yet.",
    .type = METRIC_COUNTER,
    .labels = {"dict_code", NULL},
};
static struct metric_family regressions = {
    .name = "dict_version_regressions_total",
    .help =
        "Times the version served was found to be lost: a lower one is committed, or another event made it.",
    .type = METRIC_COUNTER,
    .labels = {"dict_code", NULL},
};
static struct metric_family mismatches = {
    .name = "dict_digest_mismatches_total",
    .help = "Times the content in memory differed from the database after DELTA loads.",
    .type = METRIC_COUNTER,
    .labels = {"dict_code", NULL},
};
static struct metric_family unreadable = {
    .name = "refdata_invalidations_unreadable_total",
    .help = "Invalid messages on refdata.invalidations.",
    .type = METRIC_COUNTER,
    .labels = {"database", NULL},
};

struct metric_family *const refdata_metrics[] = {
    &version_lag,
    &version,
    &items,
    &memory,
    &drift_value,
    &unavailable,
    &drift_refused,
    &reload_duration,
    &reload_errors,
    &freshness,
    &regressions,
    &fallback_reads,
    &mismatches,
    &unreadable,
    &refdata_watchers,
    &refdata_watch_lines,
    &refdata_watch_cuts,
    &refdata_adapter_messages_family,
    &refdata_updates_family,
    &refdata_commit_size_family,
    &refdata_commit_seconds_family,
    NULL,
};

/* With the first load: before it there is no version to speak of. */
static void attach(struct refdata_holding *holding)
{
    const struct str labels[] = {holding->tenant, holding->code};
    holding->lag = metric_series_get(&version_lag, labels);
    holding->version_gauge = metric_series_get(&version, labels);
    holding->items = metric_series_get(&items, labels);
    holding->memory_gauge = metric_series_get(&memory, labels);
}

void refdata_metrics_detach(struct refdata_holding *holding)
{
    if (!holding->lag)
        return;
    metric_series_drop(holding->lag);
    metric_series_drop(holding->version_gauge);
    metric_series_drop(holding->items);
    metric_series_drop(holding->memory_gauge);
    if (holding->drift)
        metric_series_drop(holding->drift);
}

void refdata_metrics_loaded(struct refdata_holding *holding, const struct refdata_loaded *loaded,
                            bool is_update)
{
    const struct cache_info *info = cache_snapshot_info(loaded->snapshot);
    if (!holding->lag)
        attach(holding);
    metric_set(holding->version_gauge, (double)info->version);
    metric_set(holding->items, (double)info->item_count);
    metric_set(holding->memory_gauge, (double)info->memory_bytes);
    const struct str labels[] = {holding->code, refdata_loaded_is_delta(loaded) ? STR("delta") : STR("full")};
    metric_observe(metric_series_get(&reload_duration, labels), loaded->seconds);
    if (is_update && loaded->committed_at_us)
        metric_observe(metric_series_get(&freshness, &holding->code),
                       (double)(clock_unix_us() - loaded->committed_at_us) / 1e6);
    refdata_metrics_lag(holding, info->version);
}

void refdata_metrics_load_failed(const struct refdata_holding *holding)
{
    metric_add(metric_series_get(&reload_errors, &holding->code), 1);
}

void refdata_metrics_lag(const struct refdata_holding *holding, int64_t local_version)
{
    int64_t behind = holding->committed_version - (local_version > 0 ? local_version : 0);
    if (!holding->lag)
        return;
    metric_set(holding->lag, behind > 0 ? (double)behind : 0);
}

void refdata_metrics_fallback(const struct refdata_holding *holding)
{
    metric_add(metric_series_get(&fallback_reads, &holding->code), 1);
}

void refdata_metrics_regression(const struct refdata_holding *holding)
{
    metric_add(metric_series_get(&regressions, &holding->code), 1);
}

void refdata_metrics_mismatch(const struct refdata_holding *holding)
{
    metric_add(metric_series_get(&mismatches, &holding->code), 1);
}

void refdata_metrics_unreadable(struct str database)
{
    metric_add(metric_series_get(&unreadable, &database), 1);
}

void refdata_metrics_drift(struct refdata_holding *holding)
{
    if (!holding->drift) /* a series only where there is a check */
        holding->drift =
            metric_series_get(&drift_value, (const struct str[]){holding->tenant, holding->code});
    metric_set(holding->drift, (double)holding->drift_value);
}

void refdata_metrics_dictionary(const struct refdata_dictionary *dictionary)
{
    /* At 0 from the start, so that the first error is a step that rate() sees. */
    metric_add(metric_series_get(&reload_errors, &dictionary->code), 0);
    metric_add(metric_series_get(&regressions, &dictionary->code), 0);
    metric_add(metric_series_get(&mismatches, &dictionary->code), 0);
    metric_add(metric_series_get(&unreadable, &dictionary->database->name), 0);
    metric_add(metric_series_get(&fallback_reads, &dictionary->code), 0);
    metric_set(metric_series_get(&drift_refused, &dictionary->code),
               atomic_load(&dictionary->drift_refused) ? 1 : 0);
    metric_set(metric_series_get(&unavailable, &dictionary->code),
               atomic_load(&dictionary->state) == REFDATA_DISABLED ? 1 : 0);
}
