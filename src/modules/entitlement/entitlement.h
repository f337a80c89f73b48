/* entitlement's own layout: what the files of this module share.
 *
 *   POST ─ sku.c, where it is switched on: is there such an item?
 *        ─ change.c: body, one call of entitlement.change() by way of the idempotency engine ─ COMMIT ─ publisher.c is woken
 *        ─ outbox engine ─ event.c: JSON to protobuf ─ bus, topic entitlement.events
 *
 * Everything is written by that one function, in one transaction with the answer that its key stands for. Handlers run on the
 * server's workers; the outbox and the audit's upkeep on the store's. */
#ifndef FRESHET_ENTITLEMENT_ENTITLEMENT_H
#define FRESHET_ENTITLEMENT_ENTITLEMENT_H

#include <stdatomic.h>

#include "hydration/hydration.h"
#include "kernel/kernel.h"
#include "kernel/store.h"
#include "modules/entitlement/settings.h"

#define ENTITLEMENT_TOPIC "entitlement.events"

struct entitlement {
    struct kernel *kernel;
    const struct entitlement_settings *settings; /* as they were at the start */
    struct idempotency_table keys;
    struct hydration_policy hydration; /* of the settings, under this module's name */
    struct db_statement change, refuse, list, look, audit_make, audit_drop;
    struct metric_series *granted, *revoked;
    struct outbox *outbox;
    struct loop_timer audit_timer; /* home loop */
    struct worker_job audit_job;
    bool audit_failed; /* the job's, then the home loop's */
    atomic_bool stopping;
};

/* ---- change.c, list.c ---- */
enum { ENTITLEMENT_USER_ID, ENTITLEMENT_SKU, ENTITLEMENT_REASON, ENTITLEMENT_PURCHASE_ID, ENTITLEMENT_TEXTS };
/* What a body asks for. Read once: by sku.c, whose handler_data it is then, or by the handler. */
struct entitlement_order {
    struct str texts[ENTITLEMENT_TEXTS];
    enum hydration_result item; /* HYDRATION_UPDATED: there is such an item, or nobody wants to know */
};
enum status entitlement_order_read(const struct http_request *request, struct entitlement_order *order,
                                   struct error *error) MUST_CHECK;
void entitlement_change_init(struct entitlement *entitlement);
void entitlement_list_init(struct entitlement *entitlement);
void entitlement_post_grant(struct http_request *request);
void entitlement_post_revoke(struct http_request *request);
void entitlement_get_of_user(struct http_request *request);

/* One row of these columns, of entitlements as `e`, as everybody sees it: a JSON object. */
#define ENTITLEMENT_COLUMNS "e.stock_keeping_unit, e.status, e.version, platform.rfc3339(e.updated_at)"
void entitlement_put(struct buf *out, const struct db_result *rows, size_t row);

/* ---- source.c: entitlements for whoever lacks one (H6) ---- */
void entitlement_source_provide(struct entitlement *entitlement);
enum status entitlement_source_follow(struct entitlement *entitlement, struct bus *events,
                                      struct error *error) MUST_CHECK;

/* ---- sku.c: the row's prepare of grants ---- */
void entitlement_sku_init(struct entitlement *entitlement);
http_step_fn entitlement_sku_prepare;

/* ---- publisher.c ---- */
extern const struct outbox_table entitlement_outbox_table;
enum status entitlement_publisher_create(struct entitlement *entitlement, struct error *error) MUST_CHECK;

/* ---- audit.c: partitions made ahead, and dropped ---- */
void entitlement_audit_init(struct entitlement *entitlement);
void entitlement_audit_start(struct entitlement *entitlement); /* home loop */
void entitlement_audit_end(struct entitlement *entitlement);   /* the loops have ended */

extern struct metric_family entitlement_changes_family, entitlement_audit_family;
extern const struct db_migration entitlement_migrations[]; /* sql/entitlement */
extern const struct module entitlement_module;

#endif
