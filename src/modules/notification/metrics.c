/* What notification counts. */
#include "modules/notification/notification.h"

static struct metric_family events_family = {
    .name = "freshet_notifications_events_total",
    .help =
        "Events of entitlements: created a notification, were a duplicate, or terminated (no event at all).",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};
static struct metric_family lag_family = {
    .name = "freshet_notifications_lag_seconds",
    .help = "From when an event happened to the commit of its notification, in seconds.",
    .type = METRIC_HISTOGRAM,
};
static struct metric_family deliveries_family = {
    .name = "freshet_notifications_deliveries_total",
    .help = "Tries to deliver: sent, retried, refused for good, left (the process stops).",
    .type = METRIC_COUNTER,
    .labels = {"channel", "result", NULL},
};
static struct metric_family delivery_seconds_family = {
    .name = "freshet_notifications_delivery_seconds",
    .help = "Time of one batch of deliveries, in seconds.",
    .type = METRIC_HISTOGRAM,
    .labels = {"channel", NULL},
};
static struct metric_family letters_family = {
    .name = "freshet_notifications_dead_letters_total",
    .help = "Messages of the bus that were put into notification_nats_dlq: terminated, max_deliver.",
    .type = METRIC_COUNTER,
    .labels = {"kind", NULL},
};
static struct metric_family dead_family = {
    .name = "freshet_notifications_dlq",
    .help =
        "Dead letters that wait for a decision: terminated, max_deliver (of the bus), delivery. Anything above 0 alerts.",
    .type = METRIC_GAUGE,
    .labels = {"kind", NULL},
};
static struct metric_family overdue_family = {
    .name = "freshet_notifications_overdue",
    .help = "Notifications older than retention keeps them that are neither sent nor failed.",
    .type = METRIC_GAUGE,
};

struct metric_family *const notification_metrics[] = {
    &events_family,  &lag_family,  &deliveries_family, &delivery_seconds_family,
    &letters_family, &dead_family, &overdue_family,    NULL,
};

static const char *const channel_names[] = {[NOTIFICATION_LOG] = "log", [NOTIFICATION_WEBHOOK] = "webhook"};

void notification_count_events(enum notification_event_result result, uint64_t count)
{
    static const char *const names[] = {[NOTIFICATION_CREATED] = "created",
                                        [NOTIFICATION_DUPLICATE] = "duplicate",
                                        [NOTIFICATION_TERMINATED] = "terminated"};
    if (count > 0)
        metric_add(metric_series_get(&events_family, (struct str[]){str_from(names[result])}), count);
}

void notification_observe_lag(double seconds)
{
    metric_observe(metric_series_get(&lag_family, NULL), seconds > 0 ? seconds : 0);
}

void notification_count_delivery(enum notification_channel channel, enum notification_delivery_result result)
{
    static const char *const names[] = {[NOTIFICATION_SENT] = "sent",
                                        [NOTIFICATION_RETRIED] = "retried",
                                        [NOTIFICATION_REFUSED] = "refused",
                                        [NOTIFICATION_LEFT] = "left"};
    metric_add(metric_series_get(&deliveries_family,
                                 (struct str[]){str_from(channel_names[channel]), str_from(names[result])}),
               1);
}

void notification_observe_delivery(enum notification_channel channel, double seconds)
{
    metric_observe(
        metric_series_get(&delivery_seconds_family, (struct str[]){str_from(channel_names[channel])}),
        seconds);
}

void notification_count_letters(const char *kind, uint64_t count)
{
    metric_add(metric_series_get(&letters_family, (struct str[]){str_from(kind)}), count);
}

void notification_set_dead(const char *kind, int64_t count)
{
    metric_set(metric_series_get(&dead_family, (struct str[]){str_from(kind)}), (double)count);
}

void notification_set_overdue(int64_t count)
{
    metric_set(metric_series_get(&overdue_family, NULL), (double)count);
}
