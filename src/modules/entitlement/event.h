/* Events as they stand in the outbox (JSON) and on the bus (protobuf, api/entitlement.proto). */
#ifndef FRESHET_ENTITLEMENT_EVENT_H
#define FRESHET_ENTITLEMENT_EVENT_H

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

/* Of the row; the payload must have the same. */
struct entitlement_event_row {
    struct str event_id, event_type, tenant_id;
};

struct entitlement_event {
    struct str message;     /* protobuf */
    struct str occurred_at; /* RFC 3339 */
};

/* Encodes a payload; texts in the arena. False with *reason when it is not valid: it can never be published. */
bool entitlement_event_encode(struct str payload, const struct entitlement_event_row *row,
                              struct arena *arena, struct entitlement_event *event, const char **reason);

/* "tenant/user/sku", as outbox_key() writes it: the aggregate's name in the outbox, and the key on the bus. */
struct str entitlement_aggregate_key(struct str tenant, struct str user, struct str sku, struct arena *arena);
/* The part of a key after the tenant, "user/sku", decoded into the arena. False where the function above would write it
 * differently. */
bool entitlement_id_read(struct str id, struct arena *arena, struct str *user, struct str *sku);

#endif
