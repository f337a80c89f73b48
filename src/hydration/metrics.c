/* Hydration's metrics (H7). Each thread caches the series of the consumers that it counts. */
#include "base/clock.h"
#include "hydration/inside.h"

#define FAMILY(variable, kind, text, sentence, ...) \
    static struct metric_family variable = {        \
        .name = text, .help = sentence, .type = kind, .labels = {__VA_ARGS__}}

FAMILY(requests, METRIC_COUNTER, "hydration_requests_total", "Lookups by consumer and result.", "consumer",
       "result");
FAMILY(hits, METRIC_COUNTER, "hydration_hits_total",
       "Lookups answered without the owner: from memory or from the ledger in PostgreSQL.", "consumer",
       "way");
FAMILY(negative_hits, METRIC_COUNTER, "hydration_negative_hits_total",
       "Lookups of entities that memory or the ledger has as absent.", "consumer", "way");
FAMILY(collapsed, METRIC_COUNTER, "hydration_collapsed_total",
       "Lookups that joined a question under way, in this process or another.", "consumer");
FAMILY(timeouts, METRIC_COUNTER, "hydration_timeouts_total", "Lookups that ended without an answer in time.",
       "consumer");
FAMILY(unknowns, METRIC_COUNTER, "hydration_unknowns_total",
       "Questions to owners (entity.unknown), in this process or over the bus: first ones and retries.",
       "consumer", "try");
FAMILY(ignored, METRIC_COUNTER, "hydration_ignored_total", "Events without effect, by reason.", "reason");
FAMILY(waiting, METRIC_GAUGE, "hydration_waiters",
       "Callers that wait for an answer, including deferred ones.", NULL);
FAMILY(latency, METRIC_HISTOGRAM, "hydration_seconds",
       "Duration of lookups that were not answered from memory.", "consumer");

struct metric_family *const hydration_metrics[] = {&requests, &hits,    &negative_hits, &collapsed, &timeouts,
                                                   &unknowns, &ignored, &waiting,       &latency,   NULL};

static struct metric_series *waiting_series;

void hydration_metrics_register(void)
{
    for (struct metric_family *const *family = hydration_metrics; *family; family++)
        metrics_register(*family);
    waiting_series = metric_series_get(&waiting, NULL);
}

/* ---- a consumer's series ---- */

enum {
    REQUESTS,
    HITS = REQUESTS + HYDRATION_UNAVAILABLE + 1,
    NEGATIVE_HITS = HITS + HYDRATION_BY_LEDGER + 1,
    UNKNOWNS = NEGATIVE_HITS + HYDRATION_BY_LEDGER + 1,
    COLLAPSED = UNKNOWNS + 2,
    TIMEOUTS,
    LATENCY,
    SERIES,
    CONSUMERS_CACHED = 8
};

static const struct {
    struct metric_family *family;
    const char *label;
} series_rows[SERIES] = {
    [REQUESTS + HYDRATION_UPDATED] = {&requests, "updated"},
    [REQUESTS + HYDRATION_NOT_FOUND] = {&requests, "not-found"},
    [REQUESTS + HYDRATION_TIMEOUT] = {&requests, "timeout"},
    [REQUESTS + HYDRATION_UNAVAILABLE] = {&requests, "unavailable"},
    [HITS + HYDRATION_BY_MEMORY] = {&hits, "memory"},
    [HITS + HYDRATION_BY_LEDGER] = {&hits, "ledger"},
    [NEGATIVE_HITS + HYDRATION_BY_MEMORY] = {&negative_hits, "memory"},
    [NEGATIVE_HITS + HYDRATION_BY_LEDGER] = {&negative_hits, "ledger"},
    [UNKNOWNS + false] = {&unknowns, "first"},
    [UNKNOWNS + true] = {&unknowns, "retry"},
    [COLLAPSED] = {&collapsed, NULL},
    [TIMEOUTS] = {&timeouts, NULL},
    [LATENCY] = {&latency, NULL},
};

const char *hydration_result_name(enum hydration_result result)
{
    return series_rows[REQUESTS + result].label;
}

struct consumer {
    const char *module; /* a literal: compared by its address */
    struct metric_series *series[SERIES];
};

static struct metric_series *const *series_of(const struct hydration_policy *policy)
{
    static _Thread_local struct consumer cached[CONSUMERS_CACHED];
    static _Thread_local unsigned oldest;

    for (unsigned i = 0; i < CONSUMERS_CACHED; i++)
        if (cached[i].module == policy->module)
            return cached[i].series;
    struct consumer *consumer = &cached[oldest++ % CONSUMERS_CACHED];
    consumer->module = policy->module;
    for (int i = 0; i < SERIES; i++)
        consumer->series[i] =
            metric_series_get(series_rows[i].family,
                              (const struct str[]){str_from(policy->module), str_from(series_rows[i].label)});
    return consumer->series;
}

/* ---- counting ---- */

void hydration_count_outcome(const struct hydration_policy *policy, const struct hydration_outcome *outcome,
                             int64_t begun_ns, int64_t now_ns)
{
    struct metric_series *const *series = series_of(policy);

    metric_add(series[REQUESTS + outcome->result], 1);
    if (outcome->result == HYDRATION_TIMEOUT)
        metric_add(series[TIMEOUTS], 1);
    if (outcome->way == HYDRATION_BY_JOINING && outcome->result != HYDRATION_UNAVAILABLE)
        metric_add(series[COLLAPSED], 1);
    if (outcome->way <= HYDRATION_BY_LEDGER && outcome->result == HYDRATION_UPDATED)
        metric_add(series[HITS + outcome->way], 1);
    if (outcome->way <= HYDRATION_BY_LEDGER && outcome->result == HYDRATION_NOT_FOUND)
        metric_add(series[NEGATIVE_HITS + outcome->way], 1);
    if (outcome->way != HYDRATION_BY_MEMORY)
        metric_observe(series[LATENCY], (double)(now_ns - begun_ns) / (double)CLOCK_NS_PER_S);
}

void hydration_count_asked(const struct hydration_policy *policy, bool is_retry)
{
    metric_add(series_of(policy)[UNKNOWNS + is_retry], 1);
}

void hydration_count_waiters(int by)
{
    metric_change(waiting_series, by);
}

void hydration_count_ignored(const char *why)
{
    const struct str reason = str_from(why);
    metric_add(metric_series_get(&ignored, &reason), 1);
}
