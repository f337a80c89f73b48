/* refdata's metrics (R20). Series per (tenant, dictionary) pair live as long as the pair is held. */
#include "base/clock.h"
#include "modules/refdata/adapter/adapter.h"
#include "modules/refdata/command/command.h"
#include "modules/refdata/query/query.h"

#define BY_PAIR "tenant", "dict_code"
#define BY_CODE "dict_code"
#define FAMILY(family, text, kind, ...)                                             \
    &(struct metric_family)                                                         \
    {                                                                               \
        .name = family, .help = text, .type = kind, .labels = { __VA_ARGS__, NULL } \
    }

enum {
    VERSION_LAG = REFDATA_METRICS, /* this and the next four: holding->series */
    VERSION,
    ITEMS,
    MEMORY,
    DRIFT_VALUE,
    UNAVAILABLE,
    DRIFT_REFUSED,
    RELOAD_SECONDS,
    FRESHNESS, /* the last of ours */
};

struct metric_family *const refdata_metrics[] = {
    [REFDATA_RELOAD_ERRORS] = FAMILY("cache_reload_errors", "Loads that failed.", METRIC_COUNTER, BY_CODE),
    [REFDATA_REGRESSIONS] = FAMILY(
        "dict_version_regressions_total",
        "Times the version served was found to be lost: a lower one is committed, or another event made it.",
        METRIC_COUNTER, BY_CODE),
    [REFDATA_MISMATCHES] = FAMILY("dict_digest_mismatches_total",
                                  "Times the content in memory differed from the database after DELTA loads.",
                                  METRIC_COUNTER, BY_CODE),
    [REFDATA_FALLBACK_READS] =
        FAMILY("postgres_fallback_reads",
               "Reads answered from PostgreSQL because the demanded version was not in memory yet.",
               METRIC_COUNTER, BY_CODE),
    [REFDATA_UNREADABLE] = FAMILY("refdata_invalidations_unreadable_total",
                                  "Invalid messages on refdata.invalidations.", METRIC_COUNTER, "database"),
    [REFDATA_WATCHERS] =
        FAMILY("refdata_watchers", "Streams of changes that are open.", METRIC_GAUGE, BY_CODE),
    [REFDATA_WATCH_LINES] =
        FAMILY("refdata_watch_lines_total", "Changes given to watchers, each counted for each of them.",
               METRIC_COUNTER, BY_CODE),
    [REFDATA_WATCH_CUTS] =
        FAMILY("refdata_watch_cuts_total", "Watchers cut off because they fell too far behind.",
               METRIC_COUNTER, BY_CODE),
    [VERSION_LAG] = FAMILY("dict_version_lag",
                           "Versions that this pod was behind dictionary_meta.version at the last sweep.",
                           METRIC_GAUGE, BY_PAIR),
    [VERSION] = FAMILY("dict_version", "Version served from memory.", METRIC_GAUGE, BY_PAIR),
    [ITEMS] = FAMILY("dict_items", "Items held in memory.", METRIC_GAUGE, BY_PAIR),
    [MEMORY] = FAMILY("dict_memory_bytes", "Memory held, in bytes.", METRIC_GAUGE, BY_PAIR),
    [DRIFT_VALUE] = FAMILY("dict_drift_value", "Last result of driftCheckSql; for diagnosis only.",
                           METRIC_GAUGE, BY_PAIR),
    [UNAVAILABLE] =
        FAMILY("dict_unavailable", "1 while PostgreSQL refuses the dictionary's templates, else 0.",
               METRIC_GAUGE, BY_CODE),
    [DRIFT_REFUSED] =
        FAMILY("dict_drift_check_refused", "1 while PostgreSQL refuses the dictionary's driftCheckSql.",
               METRIC_GAUGE, BY_CODE),
    [RELOAD_SECONDS] =
        FAMILY("cache_reload_duration",
               "Time of a successful load, in seconds; mode is full, or delta (changed keys only).",
               METRIC_HISTOGRAM, BY_CODE, "mode"),
    [FRESHNESS] = FAMILY("refdata_freshness_seconds",
                         "Time from the commit of a change until this pod serves it, in seconds.",
                         METRIC_HISTOGRAM, BY_CODE),
    &refdata_adapter_messages_family,
    &refdata_updates_family,
    &refdata_commit_size_family,
    &refdata_commit_seconds_family,
    NULL,
};

/* The series of a pair are there from its first load: before it there is no version. That of its drift: from its first check. */
static struct metric_series *series_of(struct refdata_holding *holding, unsigned family)
{
    struct metric_series **series = &holding->series[family - VERSION_LAG];
    if (!*series)
        *series =
            metric_series_get(refdata_metrics[family], (const struct str[]){holding->tenant, holding->code});
    return *series;
}

void refdata_metrics_detach(struct refdata_holding *holding)
{
    for (size_t i = 0; i < sizeof holding->series / sizeof *holding->series; i++)
        if (holding->series[i])
            metric_series_drop(holding->series[i]);
}

void refdata_metrics_loaded(struct refdata_holding *holding, const struct refdata_loaded *loaded,
                            bool is_update)
{
    const struct cache_info *info = cache_snapshot_info(loaded->snapshot);
    const struct str load[] = {holding->code, refdata_loaded_is_delta(loaded) ? STR("delta") : STR("full")};
    metric_set(series_of(holding, VERSION), (double)info->version);
    metric_set(series_of(holding, ITEMS), (double)info->item_count);
    metric_set(series_of(holding, MEMORY), (double)info->memory_bytes);
    metric_observe(metric_series_get(refdata_metrics[RELOAD_SECONDS], load), loaded->seconds);
    if (is_update && loaded->committed_at_us) {
        int64_t fresh_us = clock_unix_us() - loaded->committed_at_us;
        holding->freshness_us = fresh_us > 0 ? fresh_us : 0; /* by two clocks */
        metric_observe(metric_series_get(refdata_metrics[FRESHNESS], &holding->code), (double)fresh_us / 1e6);
    }
    (void)series_of(holding, VERSION_LAG);
    refdata_metrics_lag(holding, info->version);
}

const double *refdata_metrics_freshness(uint64_t counts[METRIC_BUCKETS_MAX])
{
    return metrics_buckets(refdata_metrics[FRESHNESS], counts);
}

static void add_watchers(void *arg, const struct str *labels, double value)
{
    (void)labels;
    *(double *)arg += value;
}

double refdata_metrics_watchers(void)
{
    double sum = 0;
    metrics_each(refdata_metrics[REFDATA_WATCHERS]->name, add_watchers, &sum);
    return sum;
}

void refdata_metrics_lag(const struct refdata_holding *holding, int64_t local_version)
{
    int64_t behind = holding->committed_version - (local_version > 0 ? local_version : 0);
    if (holding->series[0])
        metric_set(holding->series[0], behind > 0 ? (double)behind : 0);
}

void refdata_metrics_count(enum refdata_metric counter, struct str label)
{
    metric_add(metric_series_get(refdata_metrics[counter], &label), 1);
}

void refdata_metrics_drift(struct refdata_holding *holding)
{
    metric_set(series_of(holding, DRIFT_VALUE), (double)holding->drift_value);
}

void refdata_metrics_dictionary(const struct refdata_dictionary *dictionary)
{
    /* At 0 from the start, so that the first error is a step that rate() sees. */
    for (size_t i = 0; i < REFDATA_COUNTERS; i++)
        metric_add(metric_series_get(refdata_metrics[i], i == REFDATA_UNREADABLE ? &dictionary->database->name
                                                                                 : &dictionary->code),
                   0);
    metric_set(metric_series_get(refdata_metrics[DRIFT_REFUSED], &dictionary->code),
               atomic_load(&dictionary->drift_refused) ? 1 : 0);
    metric_set(metric_series_get(refdata_metrics[UNAVAILABLE], &dictionary->code),
               atomic_load(&dictionary->state) == REFDATA_DISABLED ? 1 : 0);
}
