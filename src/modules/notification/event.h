/* An event of entitlements on the bus (api/entitlement.proto). Most random bytes are valid protobuf, so all fields and headers are
 * checked. */
#ifndef FRESHET_MODULES_NOTIFICATION_EVENT_H
#define FRESHET_MODULES_NOTIFICATION_EVENT_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/uuid.h"
#include "bus/bus.h"

struct notification_event {
    char event_id[UUID_TEXT_BYTES], notification_id[UUID_TEXT_BYTES];
    struct str event_type, user_id, sku, source, source_id, tenant;
    struct str item_title; /* of the item, not of the event; empty = not known */
    int64_t occurred_us, version;
    struct str traceparent; /* empty = none, or invalid */
};

#define NOTIFICATION_TEXT_BYTES_MAX 1024 /* of a user's or a sku's name, a reason, a purchase */

/* Texts live in `arena`. BAD_REQUEST with the reason if it is invalid; the message quotes nothing of the payload. */
enum status notification_event_read(const struct bus_message *message, struct arena *arena,
                                    struct notification_event *event, struct error *error) MUST_CHECK;
/* The event as JSON, as receivers get it. */
void notification_event_put(const struct notification_event *event, struct buf *out);

#endif
