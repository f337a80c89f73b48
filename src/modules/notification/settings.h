/* `notification:` of the file. Read once, at the start. */
#ifndef FRESHET_MODULES_NOTIFICATION_SETTINGS_H
#define FRESHET_MODULES_NOTIFICATION_SETTINGS_H

#include "hydration/hydration.h"
#include "kernel/config.h"
#include "outbox/outbox.h"

enum notification_channel { NOTIFICATION_LOG, NOTIFICATION_WEBHOOK };

struct notification_webhook_settings {
    struct str url, secret_env;
    int64_t timeout_ms, connect_timeout_ms, parallel;
    struct setting_place url_place, secret_place;
};

struct notification_settings {
    struct {
        struct str stream, durable;
        int64_t ack_wait_ms, max_deliver;
        struct str advisory_stream, terminated_stream;
        struct setting_place stream_place, durable_place, advisory_place, terminated_place;
    } nats;
    struct {
        int channel; /* enum notification_channel */
        struct setting_place channel_place;
        struct notification_webhook_settings webhook;
        struct outbox_settings engine;
    } delivery;
    struct {
        bool enabled;
        int64_t days, interval_ms;
    } retention;
    struct hydration_use hydration;
};

extern const struct config_section notification_section;
enum status notification_settings_check(const struct config *config, const void *section,
                                        struct error *error) MUST_CHECK;
/* What signs webhooks; empty = nothing does. The environment's, to the process's end. */
struct str notification_webhook_secret(const struct notification_webhook_settings *webhook);

#endif
