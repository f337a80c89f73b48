/* Auth's metrics. Label values come from fixed tables, so their number is bounded. */
#include "auth/state.h"

static struct metric_family tokens = {
    .name = "auth_tokens_total",
    .help = "Tokens whose signature and claims were checked (those found in the cache are not), by result.",
    .type = METRIC_COUNTER,
    .labels = {"result"},
};
static struct metric_family verify_seconds = {
    .name = "auth_verify_seconds",
    .help = "Time one check of a token took on a worker, in seconds.",
    .type = METRIC_HISTOGRAM,
};
static struct metric_family keys = {
    .name = "auth_keys",
    .help = "Keys that tokens may be signed by.",
    .type = METRIC_GAUGE,
};
static struct metric_family refreshes = {
    .name = "auth_jwks_refresh_total",
    .help = "Readings of the key file or URL, by result (changed, unchanged, failed).",
    .type = METRIC_COUNTER,
    .labels = {"result"},
};

static struct metric_series *token_series[AUTH_REASONS];
static struct metric_series *verify_series, *keys_series;

void auth_metrics_register(void)
{
    metrics_register(&tokens);
    metrics_register(&verify_seconds);
    metrics_register(&keys);
    metrics_register(&refreshes);
    for (int i = 0; i < AUTH_REASONS; i++) {
        struct str label = str_from(auth_reason_label((enum auth_reason)i));
        token_series[i] = metric_series_get(&tokens, &label);
    }
    verify_series = metric_series_get(&verify_seconds, NULL);
    keys_series = metric_series_get(&keys, NULL);
}

void auth_metrics_token(enum auth_reason reason, double seconds)
{
    metric_add(token_series[reason], 1);
    metric_observe(verify_series, seconds);
}

void auth_metrics_refresh(const char *result)
{
    struct str label = str_from(result);
    metric_add(metric_series_get(&refreshes, &label), 1);
}

void auth_metrics_keys(size_t count)
{
    metric_set(keys_series, (double)count);
}
