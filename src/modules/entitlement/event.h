/* Events as they stand in the outbox (JSON) and on the bus (protobuf, api/entitlement.proto). */
#ifndef FRESHET_ENTITLEMENT_EVENT_H
#define FRESHET_ENTITLEMENT_EVENT_H

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

/* What the row around a payload says of itself; the payload must say the same. */
struct entitlement_event_row {
    struct str event_id, event_type, tenant_id;
};

struct entitlement_event {
    struct str message;     /* protobuf */
    struct str occurred_at; /* RFC 3339 */
};

/* Makes the message of a payload; texts in the arena. False when it is no JSON, lacks something or makes no sense, and
 * *reason says which: such a one can never be published. */
bool entitlement_event_encode(struct str payload, const struct entitlement_event_row *row,
                              struct arena *arena, struct entitlement_event *event, const char **reason);

/* "tenant/user/sku", each percent-encoded so that the slashes between are the only ones and no part has a control character:
 * the aggregate's name in the outbox, and the key on the bus. */
struct str entitlement_aggregate_key(struct str tenant, struct str user, struct str sku, struct arena *arena);
/* What stands behind the tenant in a key, "user/sku", taken apart: in the arena. False where it is not exactly as the function
 * above writes it. */
bool entitlement_id_read(struct str id, struct arena *arena, struct str *user, struct str *sku);

#endif
