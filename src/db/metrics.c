/* What the pools tell Prometheus. */
#include "base/metrics.h"

#include <pthread.h>

#include "db/db_inside.h"

static struct metric_family connections = {
    .name = "db_connections",
    .help = "Open PostgreSQL connections by state.",
    .type = METRIC_GAUGE,
    .labels = {"database", "state"},
};
static struct metric_family acquire_wait = {
    .name = "db_acquire_wait_seconds",
    .help = "Time to get a connection from the pool, in seconds.",
    .type = METRIC_HISTOGRAM,
    .labels = {"database"},
};
static struct metric_family errors = {
    .name = "db_errors_total",
    .help = "Failed database calls by status.",
    .type = METRIC_COUNTER,
    .labels = {"database", "status"},
};
static struct metric_family breaker_open = {
    .name = "db_breaker_open",
    .help = "1 while the circuit breaker is open: no connection attempts after failures.",
    .type = METRIC_GAUGE,
    .labels = {"database"},
};

static void register_all(void)
{
    metrics_register(&connections);
    metrics_register(&acquire_wait);
    metrics_register(&errors);
    metrics_register(&breaker_open);
}

void db_metrics_init(struct db_metrics *metrics, const char *database)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct str name = str_from(database);

    pthread_once(&once, register_all);
    metrics->database = name;
    metrics->used = metric_series_get(&connections, (struct str[]){name, STR("used")});
    metrics->acquire_wait = metric_series_get(&acquire_wait, &name);
    metrics->breaker_open = metric_series_get(&breaker_open, &name);
}

struct metric_series *db_metrics_idle(const char *database)
{
    return metric_series_get(&connections, (struct str[]){str_from(database), STR("idle")});
}

void db_metrics_error(const struct db_metrics *metrics, enum status status)
{
    struct str labels[] = {metrics->database, str_from(status_name(status))};

    metric_add(metric_series_get(&errors, labels), 1);
}
