/* The module: routes, life and health of entitlements. */
#include "modules/entitlement/entitlement.h"

#include <stdlib.h>

#include "base/memory.h"
#include "kernel/retention.h"

enum { PARTITIONS = 4, BODY_BYTES_MAX = 64 * 1024 };

static const struct http_route routes[] = {
    {HTTP_POST, "/v1/entitlements/grants", entitlement_post_grant, HTTP_WORKER, .scope = "entitlement:write",
     .idempotency = HTTP_KEY_SERIALIZE, .key_required = true, .key_stores_failures = true,
     .body_bytes_max = BODY_BYTES_MAX, .prepare = entitlement_sku_prepare},
    {HTTP_POST, "/v1/entitlements/revokes", entitlement_post_revoke, HTTP_WORKER,
     .scope = "entitlement:write", .idempotency = HTTP_KEY_SERIALIZE, .key_required = true,
     .key_stores_failures = true, .body_bytes_max = BODY_BYTES_MAX},
    {HTTP_GET, "/v1/users/{user_id}/entitlements", entitlement_get_of_user, .kind = HTTP_WORKER},
    {.handler = NULL},
};

static void each_topic(const void *section, void (*fn)(const struct kernel_topic *topic, void *arg),
                       void *arg)
{
    const struct entitlement_settings *settings = section;
    struct kernel_topic topic = {
        .topic = {.name = ENTITLEMENT_TOPIC, .partitions = PARTITIONS, .relaxed = true},
        .stream = settings->nats.stream.len ? settings->nats.stream.ptr : NULL,
        .subject = settings->nats.subject.len ? settings->nats.subject.ptr : NULL,
        .duplicate_window_ms = entitlement_duplicate_window_ms(settings),
    };
    fn(&topic, arg);
}

static enum status start(struct kernel *kernel, const void *section, void **state, struct error *error)
{
    struct entitlement *entitlement = memory_zalloc(sizeof *entitlement);
    entitlement->kernel = kernel;
    entitlement->settings = section;
    entitlement->keys = (struct idempotency_table){
        .name = "entitlement.idempotency_keys",
        .ttl_ms = entitlement->settings->idempotency.ttl_ms,
        .expires_inclusive = true,
    };
    enum status status = entitlement_publisher_create(entitlement, error);
    if (status != STATUS_OK) {
        free(entitlement);
        return status;
    }
    entitlement_change_init(entitlement);
    entitlement_sku_init(entitlement);
    entitlement_list_init(entitlement);
    entitlement_audit_init(entitlement);
    entitlement_source_provide(entitlement);
    *state = entitlement;
    return STATUS_OK;
}

static enum status subscribe(void *state, struct bus *events, struct error *error)
{
    return entitlement_source_follow(state, events, error);
}

static void on_store(void *state)
{
    struct entitlement *entitlement = state;
    entitlement_audit_start(entitlement);
    kernel_retention_add_keys(entitlement->kernel, &entitlement->keys,
                              entitlement->settings->idempotency.cleanup_ms);
}

static void stop(void *state)
{
    struct entitlement *entitlement = state;
    atomic_store(&entitlement->stopping, true);
}

static void destroy(void *state)
{
    struct entitlement *entitlement = state;
    entitlement_audit_end(entitlement);
    free(entitlement);
}

const struct module entitlement_module = {
    .name = "entitlement",
    .roles = (const char *const[]){"entitlement", NULL},
    .section = &entitlement_section,
    .routes = (const struct module_routes[]){{"entitlement", routes}, {.role = NULL}},
    .metrics = (struct metric_family *const[]){&entitlement_changes_family, &entitlement_audit_family, NULL},
    .migrations = entitlement_migrations,
    .check = entitlement_settings_check,
    .start = start,
    .stop = stop,
    .destroy = destroy,
    .keeps_store = true,
    .provides = (const char *const[]){"entitlement", NULL},
    .each_topic = each_topic,
    .subscribe = subscribe,
    .on_store = on_store,
    .outboxes = (const struct outbox_table *const[]){&entitlement_outbox_table, NULL},
};
