/* /actuator: health and metrics (C8); and the rows of all that is open to everyone, on every process. */
#include "kernel/kernel_inside.h"
#include "kernel/store_inside.h"

static void gather(struct kernel *kernel, struct health *health)
{
    for (size_t i = 0; i < kernel->module_count; i++) {
        const struct kernel_module *entry = &kernel->modules[i];
        if (entry->started && entry->module->health)
            entry->module->health(entry->state, health);
        else if (entry->started && entry->module->keeps_store)
            kernel_store_role_health(kernel, entry->module, health);
    }
    kernel_store_health(kernel, health);
    bool keys = auth_is_ready(kernel->auth);
    health_component(health, "auth", STR("keys"), keys,
                     keys ? STR_NONE : STR("no signing keys yet: every token is refused"));
}

static void send_health(struct http_request *request, bool is_readiness)
{
    struct kernel *kernel = request->context;
    struct health health;
    struct buf body;
    health_init(&health);
    buf_init(&body);
    gather(kernel, &health);
    if (atomic_load(&kernel->stopping) || (is_readiness && health.starting))
        health.roles_up = 0, health.roles_down++;
    health_print(&health, &body);
    bool up = health_is_up(&health);
    http_send(request, &(struct http_response){
                           .status = up ? 200 : 503,
                           .headers = up ? STR("Cache-Control: no-store\r\n")
                                         : STR("Cache-Control: no-store\r\nRetry-After: 1\r\n"),
                           .body = buf_str(&body),
                       });
    buf_deinit(&body);
    health_deinit(&health);
}

static void get_health(struct http_request *request)
{
    send_health(request, false);
}

static void get_readiness(struct http_request *request)
{
    send_health(request, true);
}

/* Alive means: a loop answers. Dependencies belong to readiness: a restart does not repair them. */
static void get_liveness(struct http_request *request)
{
    http_send(request, &(struct http_response){
                           .status = 200,
                           .headers = STR("Cache-Control: no-store\r\n"),
                           .body = STR("{\"status\":\"UP\"}"),
                       });
}

const struct http_route kernel_actuator_routes[] = {
    {HTTP_GET, "/actuator/health", get_health, .access = HTTP_PUBLIC},
    {HTTP_GET, "/actuator/health/readiness", get_readiness, .access = HTTP_PUBLIC},
    {HTTP_GET, "/actuator/health/liveness", get_liveness, .access = HTTP_PUBLIC},
    {HTTP_GET, "/actuator/prometheus", kernel_get_prometheus, .access = HTTP_PUBLIC},
    {HTTP_GET, "/openapi.yaml", kernel_get_openapi, .access = HTTP_PUBLIC},
    {.handler = NULL},
};
