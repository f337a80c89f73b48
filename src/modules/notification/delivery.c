/* Delivery (N3): the outbox engine over notification.notifications. Claim, lease, fence, backoff and FAILED are the
 * engine's; here is what a row is, and the channel. Order is not kept: every notification stands for itself. */
#include "base/failpoint.h"
#include "base/log.h"
#include "modules/notification/notification.h"

const struct outbox_table notification_delivery_table = {
    .module = "notification",
    .name = "notification.notifications",
    .id = {"notification_id", "uuid"},
    .aggregate = {{"tenant_id", "text"}, {"user_id", "text"}},
    .event_type = "e.event_type",
    .payload = "e.payload_json",
    .extra = {[NOTIFICATION_EXTRA_EVENT_ID] = "e.event_id",
              [NOTIFICATION_EXTRA_TENANT] = "e.tenant_id",
              [NOTIFICATION_EXTRA_TRACEPARENT] = "e.traceparent"},
    .logged = {{"eventId", "e.event_id", false}, {"tenantId", "e.tenant_id", false}},
    .words = {"status", "PENDING", "PROCESSING", "SENT", "FAILED"},
    .published_at = "sent_at",
    .attempts = "attempt_count",
    OUTBOX_LEASE_COLUMNS,
};

/* Ids only: who was told what is in the table. */
void notification_delivery_log_sent(const struct outbox_event *event)
{
    log_info("notification_sent", LOG_STR("notificationId", event->id),
             LOG_STR("eventId", event->extra[NOTIFICATION_EXTRA_EVENT_ID]),
             LOG_STR("eventType", event->event_type),
             LOG_STR("tenantId", event->extra[NOTIFICATION_EXTRA_TENANT]));
}

static void count(enum notification_channel channel, const struct outbox_batch *batch)
{
    static const enum notification_delivery_result results[] = {[OUTBOX_DONE] = NOTIFICATION_SENT,
                                                                [OUTBOX_RETRY] = NOTIFICATION_RETRIED,
                                                                [OUTBOX_POISON] = NOTIFICATION_REFUSED,
                                                                [OUTBOX_RELEASE] = NOTIFICATION_LEFT,
                                                                [OUTBOX_OUTAGE] = NOTIFICATION_LEFT};
    for (size_t i = 0; i < batch->count; i++)
        notification_count_delivery(channel, results[batch->results[i].kind]);
}

static void publish(void *context, struct outbox_batch *batch)
{
    const struct notification *notification = context;
    enum notification_channel channel = (enum notification_channel)notification->settings->delivery.channel;
    FAILPOINT("delivery.after_claim");
    if (channel == NOTIFICATION_WEBHOOK)
        notification_webhook_send(&notification->settings->delivery.webhook, batch);
    else
        for (size_t i = 0; i < batch->count; i++)
            notification_delivery_log_sent(&batch->events[i]);
    FAILPOINT("delivery.after_send");
    count(channel, batch);
}

static void on_settled(void *context, size_t settled)
{
    (void)context, (void)settled;
    FAILPOINT("delivery.after_settle");
}

enum status notification_delivery_create(struct notification *notification, struct error *error)
{
    return kernel_outbox_create(notification->kernel,
                                &(struct outbox_config){.table = &notification_delivery_table,
                                                        .settings = &notification->settings->delivery.engine,
                                                        .context = notification,
                                                        .publish = publish,
                                                        .on_settled = on_settled},
                                &notification->delivery, error);
}
