/* The bus's metric families; the same whatever the driver. */
#include "bus/bus_inside.h"

static struct metric_family published_family = {
    .name = "bus_published_total",
    .help = "Messages handed to the bus, dead letters included.",
    .type = METRIC_COUNTER,
    .labels = {"topic"},
};
static struct metric_family consumed_family = {
    .name = "bus_consumed_total",
    .help = "Messages by the verdict that was committed; a retried one counts each time.",
    .type = METRIC_COUNTER,
    .labels = {"topic", "group", "verdict"},
};
static struct metric_family lag_family = {
    .name = "bus_lag",
    .help = "Messages committed and not yet handled by the group, or by this process where each handles all.",
    .type = METRIC_GAUGE,
    .labels = {"topic", "group"},
};
static struct metric_family batch_family = {
    .name = "bus_batch_seconds",
    .help = "Time a handler took for a batch.",
    .type = METRIC_HISTOGRAM,
    .labels = {"topic", "group"},
};
static struct metric_family dead_family = {
    .name = "bus_dead_letters_total",
    .help = "Messages moved to the dead-letter topic.",
    .type = METRIC_COUNTER,
    .labels = {"topic", "group"},
};

struct metric_series *bus_metrics_published(struct str topic)
{
    metrics_register(&published_family);
    return metric_series_get(&published_family, &topic);
}

void bus_metrics_attach(struct bus_consumer *consumer)
{
    static const struct str verdicts[] = {
        [BUS_ACK] = STR("ack"), [BUS_RETRY] = STR("retry"), [BUS_TERM] = STR("term")};
    struct str labels[] = {consumer->topic->name, str_from(consumer->spec.group), STR_NONE};

    metrics_register(&consumed_family);
    metrics_register(&lag_family);
    metrics_register(&batch_family);
    metrics_register(&dead_family);
    consumer->lag = metric_series_get(&lag_family, labels);
    consumer->batch_seconds = metric_series_get(&batch_family, labels);
    consumer->dead_letters = metric_series_get(&dead_family, labels);
    for (int kind = BUS_ACK; kind <= BUS_TERM; kind++) {
        labels[2] = verdicts[kind];
        consumer->consumed[kind] = metric_series_get(&consumed_family, labels);
    }
}
