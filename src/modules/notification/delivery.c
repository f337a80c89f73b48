/* Delivery (N3): the outbox engine over notification.notifications. Claims, leases, retries and FAILED are the engine's; here are the
 * table and the channel log; webhook.c is the other one. There is no order between notifications; tenants take turns. */
#include "base/failpoint.h"
#include "base/log.h"
#include "modules/notification/notification.h"

const struct outbox_table notification_delivery_table = {
    .module = "notification",
    .name = "notification.notifications",
    .id = {"notification_id", "uuid"},
    .aggregate = {{"tenant_id", "text"}, {"user_id", "text"}},
    .turn = "tenant_id",
    .event_type = "e.event_type",
    .payload = "e.payload_json",
    .size = "pg_column_size(e.payload_json)",
    .extra = {[NOTIFICATION_EXTRA_EVENT_ID] = "e.event_id",
              [NOTIFICATION_EXTRA_TENANT] = "e.tenant_id",
              [NOTIFICATION_EXTRA_TRACEPARENT] = "e.traceparent"},
    .logged = {{"eventId", "e.event_id", false}, {"tenantId", "e.tenant_id", false}, OUTBOX_LOGGED_TRACE},
    .words = {"status", "PENDING", "PROCESSING", "SENT", "FAILED"},
    .published_at = "sent_at",
    .attempts = "attempt_count",
    OUTBOX_LEASE_COLUMNS,
};

struct metric_family notification_deliveries_family = {
    .name = "notification_deliveries_total",
    .help =
        "Attempts to deliver: sent, retried, refused (FAILED at once), left (the process stops or the receiver is not reached).",
    .type = METRIC_COUNTER,
    .labels = {"channel", "result", NULL},
};
struct metric_family notification_delivery_seconds_family = {
    .name = "notification_delivery_seconds",
    .help = "Time of one delivery, in seconds.",
    .type = METRIC_HISTOGRAM,
    .labels = {"channel", NULL},
};
static const char *const channel_names[] = {[NOTIFICATION_LOG] = "log", [NOTIFICATION_WEBHOOK] = "webhook"};

void notification_log_sent(const struct outbox_event *event)
{
    log_info("notification_sent", LOG_STR("notificationId", event->id),
             LOG_STR("eventId", event->extra[NOTIFICATION_EXTRA_EVENT_ID]),
             LOG_STR("eventType", event->event_type),
             LOG_STR("tenantId", event->extra[NOTIFICATION_EXTRA_TENANT]),
             LOG_TRACE(event->extra[NOTIFICATION_EXTRA_TRACEPARENT]));
}

/* ---- the engine ---- */

static void count_result(enum notification_channel channel, const struct outbox_result *result)
{
    static const char *const names[] = {[OUTBOX_DONE] = "sent",
                                        [OUTBOX_RETRY] = "retried",
                                        [OUTBOX_POISON] = "refused",
                                        [OUTBOX_RELEASE] = "left",
                                        [OUTBOX_OUTAGE] = "left"};
    if (result->kind != OUTBOX_UNDER_WAY)
        metric_add(metric_series_get(
                       &notification_deliveries_family,
                       (struct str[]){str_from(channel_names[channel]), str_from(names[result->kind])}),
                   1);
}

static void deliver_batch(void *context, struct outbox_batch *batch)
{
    const struct notification *notification = context;
    enum notification_channel channel = (enum notification_channel)notification->settings->delivery.channel;
    if (batch->count > 0)
        FAILPOINT("delivery.after_claim");
    if (channel == NOTIFICATION_WEBHOOK)
        notification_webhooks_send(notification->webhooks, batch);
    else
        for (size_t i = 0; i < batch->count; i++)
            notification_log_sent(&batch->events[i]);
    FAILPOINT("delivery.after_send");
    for (size_t i = 0; i < batch->count; i++)
        count_result(channel, &batch->results[i]);
    for (size_t i = 0; i < batch->late_count; i++)
        count_result(channel, &batch->late[i].result);
}

static bool may_claim(void *context, struct buf *left_out)
{
    return notification_webhooks_may_claim(((struct notification *)context)->webhooks, left_out);
}

static void wake_delivery(void *context)
{
    notification_webhooks_wake(((struct notification *)context)->webhooks);
}

void notification_delivery_create(struct notification *notification)
{
    static const struct outbox_later later = {.may_claim = may_claim, .wake = wake_delivery};
    bool is_webhook = notification->settings->delivery.channel == NOTIFICATION_WEBHOOK;
    if (is_webhook)
        notification->webhooks = notification_webhooks_create(&notification->settings->delivery.webhook);
    notification->delivery = kernel_outbox_add(
        notification->kernel, &(struct outbox_config){.table = &notification_delivery_table,
                                                      .settings = &notification->settings->delivery.engine,
                                                      .publish = deliver_batch,
                                                      .later = is_webhook ? &later : NULL,
                                                      .context = notification});
}
