/* Intake: items that are created by POST, once each (I8, seed 002), with an event for each.
 *
 * An item and its `item_created` commit together, by one function in PostgreSQL (sql/intake); the stored answer to its
 * Idempotency-Key commits with them (src/idempotency). An outbox engine in every process of the role publishes the events on the
 * topic intake.events. */
#ifndef FRESHET_INTAKE_H
#define FRESHET_INTAKE_H

#include "idempotency/idempotency.h"
#include "kernel/kernel.h"
#include "outbox/outbox.h"

#define INTAKE_EVENTS "intake.events"

struct intake_settings {
    struct idempotency_settings idempotency;
    struct outbox_settings outbox;
};

struct intake {
    struct kernel *kernel;
    const struct intake_settings *settings; /* as at the start */
    struct idempotency_table keys;
    struct outbox *publisher;
};

extern const struct module intake_module;
extern const struct db_migration intake_migrations[]; /* sql/intake */
extern const struct outbox_table intake_outbox_table;

/* ---- items.c ---- */
extern const struct http_route intake_routes[];
extern struct metric_family intake_items_family;
void intake_owner_provide(struct intake *intake);
/* The sku of an event's aggregate_key, in the arena; false: the key is not of an item. */
bool intake_sku_of_key(struct str key, struct arena *arena, struct str *sku);

#endif
