/* entitlement's settings: seed 004's keys, and ours beside them. */
#ifndef FRESHET_ENTITLEMENT_SETTINGS_H
#define FRESHET_ENTITLEMENT_SETTINGS_H

#include "base/setting.h"
#include "hydration/hydration.h"
#include "idempotency/idempotency.h"
#include "kernel/config.h"
#include "outbox/outbox.h"

struct entitlement_settings {
    struct {
        struct str subject, stream; /* empty = not given: fine unless bus.events is nats */
        int64_t duplicate_window_ms;
        struct setting_place subject_place, stream_place, window_place;
    } nats;
    struct {
        int64_t ttl_ms, cleanup_ms;
    } idempotency;
    struct {
        int64_t months_ahead, keep_months;
    } audit;
    struct outbox_settings outbox;
    struct hydration_use hydration;
};

extern const struct config_section entitlement_section;

/* How long after the first try an event may be published once more: all pauses at their longest, and a lease for each claim
 * that nobody came back from. */
int64_t entitlement_retry_horizon_ms(const struct outbox_settings *outbox);
/* The one configured, or one that is longer than that. */
int64_t entitlement_duplicate_window_ms(const struct entitlement_settings *settings);
enum status entitlement_settings_check(const struct config *config, const void *section,
                                       struct error *error) MUST_CHECK;

#endif
