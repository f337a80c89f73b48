/* Hydration's metrics (H7). Each thread caches the series of the consumers that it counts for. */
#include <pthread.h>

#include "base/clock.h"
#include "hydration/inside.h"

#define FAMILY(variable, kind, text, sentence, ...) \
    static struct metric_family variable = {        \
        .name = text, .help = sentence, .type = kind, .labels = {__VA_ARGS__}}

FAMILY(requests, METRIC_COUNTER, "freshet_hydration_requests_total", "Lookups by consumer and result.",
       "consumer", "result");
FAMILY(hits, METRIC_COUNTER, "freshet_hydration_hits_total",
       "Lookups answered without the owner: from memory or from the ledger in PostgreSQL.", "consumer",
       "way");
FAMILY(negative_hits, METRIC_COUNTER, "freshet_hydration_negative_hits_total",
       "Lookups of entities that memory or the ledger has as absent.", "consumer", "way");
FAMILY(collapsed, METRIC_COUNTER, "freshet_hydration_collapsed_total",
       "Lookups that joined a question under way, in this process or another.", "consumer");
FAMILY(timeouts, METRIC_COUNTER, "freshet_hydration_timeouts_total",
       "Lookups that ended without an answer in time.", "consumer");
FAMILY(unknowns, METRIC_COUNTER, "freshet_hydration_unknowns_total",
       "Questions to owners (entity/unknown), direct or over the bus: first ones and retries.", "consumer",
       "try");
FAMILY(ignored, METRIC_COUNTER, "freshet_hydration_ignored_total", "Events without effect, by reason.",
       "reason");
FAMILY(waiting, METRIC_GAUGE, "freshet_hydration_waiters",
       "Callers that wait for an answer, including deferred ones.", NULL);
FAMILY(latency, METRIC_HISTOGRAM, "freshet_hydration_seconds",
       "Duration of lookups that were not answered from memory.", "consumer");

struct metric_family *const hydration_metrics[] = {&requests, &hits,    &negative_hits, &collapsed, &timeouts,
                                                   &unknowns, &ignored, &waiting,       &latency,   NULL};

static struct metric_series *waiting_series;

static void register_all(void)
{
    for (struct metric_family *const *family = hydration_metrics; *family; family++)
        metrics_register(*family);
    waiting_series = metric_series_get(&waiting, NULL);
}

void hydration_metrics_register(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_all);
}

const char *hydration_result_name(enum hydration_result result)
{
    static const char *const names[] = {
        [HYDRATION_UPDATED] = "updated",
        [HYDRATION_NOT_FOUND] = "not-found",
        [HYDRATION_TIMEOUT] = "timeout",
        [HYDRATION_UNAVAILABLE] = "unavailable",
    };
    return names[result];
}

/* ---- a consumer's series ---- */

enum { RESULTS = HYDRATION_UNAVAILABLE + 1, KNOWN_WAYS = HYDRATION_BY_LEDGER + 1, CONSUMERS_CACHED = 8 };

struct consumer {
    const char *module; /* a literal: compared by its address */
    struct metric_series *requests[RESULTS], *hits[KNOWN_WAYS], *negative_hits[KNOWN_WAYS];
    struct metric_series *collapsed, *timeouts, *unknowns[2], *latency;
};

static struct metric_series *series_of(struct metric_family *family, const char *module, const char *label)
{
    return metric_series_get(family, (const struct str[]){str_from(module), str_from(label)});
}

static void find_series(struct consumer *consumer, const char *module)
{
    static const char *const ways[] = {[HYDRATION_BY_MEMORY] = "memory", [HYDRATION_BY_LEDGER] = "ledger"};

    hydration_metrics_register();
    for (int result = 0; result < RESULTS; result++)
        consumer->requests[result] =
            series_of(&requests, module, hydration_result_name((enum hydration_result)result));
    for (int way = 0; way < KNOWN_WAYS; way++) {
        consumer->hits[way] = series_of(&hits, module, ways[way]);
        consumer->negative_hits[way] = series_of(&negative_hits, module, ways[way]);
    }
    consumer->collapsed = series_of(&collapsed, module, NULL);
    consumer->timeouts = series_of(&timeouts, module, NULL);
    consumer->unknowns[false] = series_of(&unknowns, module, "first");
    consumer->unknowns[true] = series_of(&unknowns, module, "retry");
    consumer->latency = series_of(&latency, module, NULL);
    consumer->module = module;
}

static const struct consumer *consumer_of(const struct hydration_policy *policy)
{
    static _Thread_local struct consumer cached[CONSUMERS_CACHED];
    static _Thread_local unsigned oldest;

    for (unsigned i = 0; i < CONSUMERS_CACHED; i++)
        if (cached[i].module == policy->module)
            return &cached[i];
    struct consumer *consumer = &cached[oldest++ % CONSUMERS_CACHED];
    find_series(consumer, policy->module);
    return consumer;
}

/* ---- counting ---- */

void hydration_count_outcome(const struct hydration_policy *policy, const struct hydration_outcome *outcome,
                             int64_t begun_ns, int64_t now_ns)
{
    const struct consumer *consumer = consumer_of(policy);

    metric_add(consumer->requests[outcome->result], 1);
    if (outcome->result == HYDRATION_TIMEOUT)
        metric_add(consumer->timeouts, 1);
    if (outcome->way == HYDRATION_BY_JOINING && outcome->result != HYDRATION_UNAVAILABLE)
        metric_add(consumer->collapsed, 1);
    if (outcome->way <= HYDRATION_BY_LEDGER && outcome->result == HYDRATION_UPDATED)
        metric_add(consumer->hits[outcome->way], 1);
    if (outcome->way <= HYDRATION_BY_LEDGER && outcome->result == HYDRATION_NOT_FOUND)
        metric_add(consumer->negative_hits[outcome->way], 1);
    if (outcome->way != HYDRATION_BY_MEMORY)
        metric_observe(consumer->latency, (double)(now_ns - begun_ns) / (double)CLOCK_NS_PER_S);
}

void hydration_count_asked(const struct hydration_policy *policy, bool is_retry)
{
    metric_add(consumer_of(policy)->unknowns[is_retry], 1);
}

void hydration_count_waiters(int by)
{
    metric_change(waiting_series, by);
}

void hydration_count_ignored(const char *why)
{
    const struct str reason = str_from(why);
    hydration_metrics_register();
    metric_add(metric_series_get(&ignored, &reason), 1);
}
