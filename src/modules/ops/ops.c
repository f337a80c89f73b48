/* The module: settings, routes, life. */
#include "modules/ops/ops.h"

#include <stdlib.h>

#include "base/memory.h"
#include "modules/ops/console.h"

enum { THREADS = 2, ASKERS = 6, QUEUE_MAX = 64, DEADLINE_MS = 15000 };

#define ROW(member) .offset = offsetof(struct ops_settings, member)

static const struct setting_row rows[] = {
    {"enabled", SETTING_BOOL, ROW(enabled),
     "Serves the operator's API under /v1/ops; with false the role serves nothing.", "true"},
    {"console", SETTING_BOOL, ROW(console), "Serves the pages for operators at /console, which use that API.",
     "true"},
    {"databaseTimeout", SETTING_DURATION_MS, ROW(database_timeout_ms),
     "How long the operator's API waits for one database before it is shown as unavailable.", "2s",
     .min = 100, .max = 10000},
    {.name = NULL},
};

static const struct config_section section = {
    .name = "ops", .help = "The operator's API.", .rows = rows, .struct_bytes = sizeof(struct ops_settings)};

static struct worker_pool *pool_of(void *context)
{
    return ((struct ops *)context)->workers;
}

static enum http_step check_enabled(struct http_request *request, void *context)
{
    if (((const struct ops *)context)->settings->enabled)
        return HTTP_STEP_PASS;
    http_send_error(request, &(struct error){.status = STATUS_NOT_FOUND});
    return HTTP_STEP_ANSWERED;
}

#define OPS_GET(path, handler)                                                                            \
    {                                                                                                     \
        HTTP_GET, "/v1/ops/" path, handler, HTTP_WORKER, .scope = "ops:read", .deadline_ms = DEADLINE_MS, \
                                                         .prepare = check_enabled, .pool = pool_of        \
    }

#define OPS_POST(path, handler)                                                                             \
    {                                                                                                       \
        HTTP_POST, "/v1/ops/" path, handler, HTTP_WORKER, .scope = "ops:write", .deadline_ms = DEADLINE_MS, \
                                                          .prepare = check_enabled, .pool = pool_of         \
    }

static const struct http_route routes[] = {
    OPS_GET("overview", ops_get_overview),
    OPS_GET("pods", ops_get_view),
    OPS_GET("dictionaries", ops_get_view),
    OPS_GET("dictionaries/{tenant_id}/{dict_code}/keys", ops_get_keys),
    OPS_GET("dictionaries/{tenant_id}/{dict_code}/items/{key}/history", ops_get_view),
    OPS_GET("updates", ops_get_view),
    OPS_GET("updates/{tenant_id}/{event_id}", ops_get_view),
    OPS_GET("outboxes", ops_get_outboxes),
    OPS_GET("outboxes/{table}/events", ops_get_outbox_events),
    OPS_GET("outboxes/{table}/events/{id}", ops_get_outbox_event),
    OPS_GET("dead-letters", ops_get_dead_letter_stores),
    OPS_GET("dead-letters/{source}", ops_get_dead_letters),
    OPS_GET("dead-letters/{source}/{id}", ops_get_dead_letter),
    OPS_POST("dead-letters/{source}/requeue", ops_change_dead_letters),
    OPS_POST("dead-letters/{source}/discard", ops_change_dead_letters),
    OPS_POST("outboxes/{table}/retry", ops_change_outbox),
    OPS_POST("outboxes/{table}/discard", ops_change_outbox),
    OPS_POST("outboxes/{table}/republish", ops_change_outbox),
    OPS_POST("outboxes/{table}/unlock", ops_change_outbox),
    OPS_GET("idempotency-keys", ops_get_view),
    OPS_GET("hydration", ops_get_view),
    OPS_POST("hydration/forget", ops_forget_entity),
    OPS_GET("streams", ops_get_view),
    OPS_GET("lag", ops_get_view),
    OPS_GET("audit", ops_get_view),
    OPS_GET("config", ops_get_config),
    {.handler = NULL},
};

/* ---- life ---- */

/* Processes report themselves there, also one that has this role alone. */
static bool uses_store(const struct kernel *kernel, const void *settings)
{
    (void)kernel;
    return ((const struct ops_settings *)settings)->enabled;
}

static enum status start_ops(struct kernel *kernel, const void *settings, void **state, struct error *error)
{
    (void)error;
    struct ops *ops = memory_zalloc(sizeof *ops);
    ops->kernel = kernel;
    ops->settings = settings;
    ops->modules = kernel_modules(kernel);
    ops->workers = worker_pool_create("ops", (unsigned)turns_places(THREADS), QUEUE_MAX);
    ops->askers = worker_pool_create("ops-ask", ASKERS, SIZE_MAX);
    pthread_mutex_init(&ops->lock, NULL);
    ops->sites = ops_sites_create(ops, kernel_config(kernel));
    ops_config_take(ops, kernel_config(kernel));
    *state = ops;
    return STATUS_OK;
}

static void reload_ops(void *state, struct config *config, const void *settings)
{
    (void)settings;
    struct ops *ops = state;
    struct ops_sites *fresh = ops_sites_create(ops, config);
    pthread_mutex_lock(&ops->lock);
    struct ops_sites *before = ops->sites;
    ops->sites = fresh;
    pthread_mutex_unlock(&ops->lock);
    ops_sites_unref(before);
    ops_config_take(ops, config);
}

/* What waits for a database ends now. */
static void stop_ops(void *state)
{
    struct ops *ops = state;
    for (size_t i = 0; i < ops->sites->count; i++)
        db_pool_interrupt(ops->sites->items[i].pool);
    worker_pool_stop(ops->askers);
    worker_pool_stop(ops->workers);
}

static void destroy_ops(void *state)
{
    struct ops *ops = state;
    worker_pool_destroy(ops->askers);
    worker_pool_destroy(ops->workers);
    ops_sites_unref(ops->sites);
    buf_deinit(&ops->config);
    pthread_mutex_destroy(&ops->lock);
    free(ops);
}

/* It works without any database: it then shows which do not answer. */
static void health_ops(void *state, struct health *health)
{
    (void)state;
    health_side_role(health, "ops", true, STR_NONE);
}

const struct module ops_module = {
    .name = "ops",
    .roles = (const char *const[]){"ops", NULL},
    .section = &section,
    .routes = (const struct module_routes[]){{"ops", routes}, {"ops", ops_console_routes}, {.role = NULL}},
    .start = start_ops,
    .reload = reload_ops,
    .stop = stop_ops,
    .destroy = destroy_ops,
    .health = health_ops,
    .uses_store = uses_store,
    .views = ops_views,
};
