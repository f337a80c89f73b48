/* Entitlements: rights of users, granted and revoked by keyed POSTs, with an event for each change.
 *
 *   POST ─ change.c, where it is switched on: does the item exist (hydration)?
 *        ─ change.c: body, one call of entitlement.change() through the idempotency engine ─ COMMIT ─ the outbox is woken
 *        ─ outbox engine ─ event.c: JSON to protobuf ─ bus, topic entitlement.events
 *   GET  ─ read.c, which is the owner of the entity type `entitlement` too
 *
 * All rows are written by that one function, in one transaction with the stored answer of the key. Handlers run on the server's
 * workers; the outbox and the audit's upkeep on the store's. */
#ifndef FRESHET_ENTITLEMENT_ENTITLEMENT_H
#define FRESHET_ENTITLEMENT_ENTITLEMENT_H

#include "hydration/hydration.h"
#include "idempotency/idempotency.h"
#include "kernel/config.h"
#include "kernel/kernel.h"
#include "kernel/store.h"
#include "outbox/outbox.h"

#define ENTITLEMENT_TOPIC "entitlement.events"

struct entitlement_settings {
    struct {
        struct str subject, stream; /* empty = not given: fine unless bus.events is nats */
        int64_t duplicate_window_ms;
        struct setting_place subject_place, stream_place, window_place;
    } nats;
    struct idempotency_settings idempotency;
    struct {
        int64_t months_ahead, keep_months;
    } audit;
    struct outbox_settings outbox;
    struct hydration_use hydration;
};

/* How long after the first try an event may be published once more: the longest pauses, and a lease for each claim
 * that was not settled. */
int64_t entitlement_retry_horizon_ms(const struct outbox_settings *outbox);
/* The one configured, or one that is longer than that. */
int64_t entitlement_duplicate_window_ms(const struct entitlement_settings *settings);

struct entitlement {
    struct kernel *kernel;
    const struct entitlement_settings *settings; /* as they were at the start */
    struct idempotency_table keys;
    struct hydration_policy hydration; /* of the settings, under this module's name */
    struct outbox *outbox;
};

/* ---- change.c, read.c ---- */
void entitlement_change_init(struct entitlement *entitlement);
#define ENTITLEMENT_GRANTS_PATH "/v1/entitlements/grants" /* the route of revokes has the same handler */
void entitlement_post_change(struct http_request *request);
void entitlement_get_of_user(struct http_request *request);
http_step_fn entitlement_sku_prepare; /* of the route of grants */

/* ---- as an entity (H6) ---- */
void entitlement_owner_provide(struct entitlement *entitlement);

/* ---- event.c: events as they stand in the outbox (JSON) and on the bus (protobuf, api/entitlement.proto) ---- */
extern const struct outbox_table entitlement_outbox_table;
void entitlement_publish(void *entitlement, struct outbox_batch *batch); /* of the outbox */

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

extern struct metric_family entitlement_changes_family;
extern const struct db_migration entitlement_migrations[]; /* sql/entitlement */
extern const char entitlement_grants[];

#endif
