/* Intake: items that come in by POST, once each (I8, seed 002), and the event that tells of each.
 *
 * An item and its `item_created` commit together, by one function in PostgreSQL (sql/intake); the stored answer to its
 * Idempotency-Key goes with them (src/idempotency). An outbox engine in every process of the role publishes events behind the
 * commit, on the topic intake.events. */
#ifndef FRESHET_INTAKE_H
#define FRESHET_INTAKE_H

#include "idempotency/idempotency.h"
#include "kernel/kernel.h"
#include "outbox/outbox.h"

#define INTAKE_EVENTS "intake.events"

struct intake_settings {
    struct {
        int64_t ttl_ms, cleanup_ms;
    } idempotency;
    struct outbox_settings outbox;
};

struct intake {
    struct kernel *kernel;
    const struct intake_settings *settings; /* as at the start */
    struct idempotency_table keys;
    struct outbox *publisher;
};

extern const struct module intake_module;
extern const struct config_section intake_section;
extern const struct db_migration intake_migrations[]; /* sql/intake */

/* ---- items.c ---- */
extern const struct http_route intake_routes[];
extern struct metric_family intake_items_family;
/* On a thread that may block: one row, one column, the item as everybody sees it; no row: there is none. */
enum status intake_item_find(const struct intake *intake, struct str tenant, struct str sku,
                             int64_t deadline_ns, struct db_result **rows, struct error *error) MUST_CHECK;

/* ---- source.c: items for whoever lacks one (H6) ---- */
void intake_source_provide(struct intake *intake);
enum status intake_source_follow(struct intake *intake, struct bus *events, struct error *error) MUST_CHECK;
/* The sku of an event's aggregate_key, in the arena; false: it is none of ours. */
bool intake_source_read_key(struct str key, struct arena *arena, struct str *sku);

/* ---- events.c ---- */
extern const struct outbox_table intake_outbox_table;
enum status intake_publisher_create(struct intake *intake, struct error *error) MUST_CHECK;

#endif
