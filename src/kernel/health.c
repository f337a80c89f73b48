/* Health (C8): the modules' health in one JSON body, and the routes that answer it. */
#include "base/json.h"
#include "kernel/kernel_inside.h"

enum { REPORT_BYTES_MAX = 8 * 1024 /* of components, in a process's own row */ };

static void put_state(struct buf *out, struct str name, bool up, struct str detail)
{
    json_put_key(out, name);
    buf_put_char(out, '{');
    json_put_member_str(out, "status", up ? STR("UP") : STR("DOWN"));
    if (detail.len)
        json_put_member_str(out, "detail", detail);
    buf_put_char(out, '}');
}

void health_side_role(struct health *health, const char *role, bool up, struct str detail)
{
    put_state(&health->roles, str_from(role), up, detail);
    buf_printf(&health->lines, "%d\trole\t%s\n", up, role);
}

void health_role(struct health *health, const char *role, bool up, struct str detail)
{
    health_side_role(health, role, up, detail);
    *(up ? &health->roles_up : &health->roles_down) += 1;
}

void health_component(struct health *health, const char *kind, struct str name, bool up, struct str detail)
{
    struct buf label = {0};
    buf_printf(&label, "%s:%.*s", kind, STR_ARG(name));
    put_state(&health->components, buf_str(&label), up, detail);
    if (strcmp(kind, "dictionary") != 0) /* there may be thousands, and dict_unavailable shows them */
        buf_printf(&health->lines, "%d\tcomponent\t%.*s\n", up, STR_ARG(buf_str(&label)));
    buf_deinit(&label);
}

/* True: there are keys. */
static bool gather_health(struct kernel *kernel, struct health *health)
{
    for (size_t i = 0; i < kernel->module_count; i++) {
        const struct kernel_module *entry = &kernel->modules[i];
        if (entry->started && entry->module->health)
            entry->module->health(entry->state, health);
        else if (entry->started && entry->module->keeps_store)
            kernel_store_role_health(kernel, entry->module, health);
    }
    kernel_store_health(kernel, health);
    kernel_tls_health(kernel, health);
    bool keys = auth_is_ready(kernel->auth);
    health_component(health, "auth", STR("keys"), keys,
                     keys ? STR_NONE : STR("no signing keys yet: every token is refused"));
    return keys;
}

static void free_health(struct health *health)
{
    buf_deinit(&health->roles);
    buf_deinit(&health->components);
    buf_deinit(&health->lines);
}

void kernel_health_lines(struct kernel *kernel, struct buf *out)
{
    struct health health = {0};
    (void)gather_health(kernel, &health);
    buf_clear(out);
    buf_put_str(out, buf_str(&health.lines));
    free_health(&health);
}

/* Readiness: keys and preloads are there, and one of the roles can work. */
static bool is_up(struct kernel *kernel, const struct health *health, bool has_keys, bool is_readiness)
{
    if (has_keys || !auth_needs_keys(kernel->auth))
        atomic_store(&kernel->had_keys, true);
    bool is_starting = health->starting || !atomic_load(&kernel->had_keys);
    return !atomic_load(&kernel->stopping) && !(is_readiness && is_starting) &&
           (health->roles_up > 0 || health->roles_down == 0);
}

bool kernel_health_report(struct kernel *kernel, struct buf *out)
{
    struct health health = {0};
    bool is_ready = is_up(kernel, &health, gather_health(kernel, &health), true);
    bool fits = buf_len(&health.components) <= REPORT_BYTES_MAX;
    buf_printf(out, "{\"roles\":{%.*s},\"components\":{%.*s}}", STR_ARG(buf_str(&health.roles)),
               fits ? (int)buf_len(&health.components) : 0, buf_str(&health.components).ptr);
    free_health(&health);
    return is_ready;
}

/* ---- routes ---- */

/* {"status":"UP","roles":{…},"components":{…}} */
static void send_health(struct http_request *request, bool is_readiness)
{
    struct kernel *kernel = request->context;
    struct health health = {0};
    struct buf body = {0};
    bool keys = gather_health(kernel, &health);
    bool is_stopping = atomic_load(&kernel->stopping);
    if (is_stopping)
        health_component(&health, "process", STR("life"), false,
                         STR("the process is stopping: send requests to another one"));
    bool up = is_up(kernel, &health, keys, is_readiness);
    buf_put_char(&body, '{');
    json_put_member_str(&body, "status", up ? STR("UP") : STR("DOWN"));
    buf_printf(&body, ",\"roles\":{%.*s},\"components\":{%.*s}}", STR_ARG(buf_str(&health.roles)),
               STR_ARG(buf_str(&health.components)));
    http_send(request, &(struct http_response){
                           .status = up ? 200 : 503,
                           .headers = up ? STR("Cache-Control: no-store\r\n")
                                         : STR("Cache-Control: no-store\r\nRetry-After: 1\r\n"),
                           .body = buf_str(&body),
                       });
    buf_deinit(&body);
    free_health(&health);
}

void kernel_get_health(struct http_request *request)
{
    send_health(request, false);
}

void kernel_get_readiness(struct http_request *request)
{
    send_health(request, true);
}

/* Alive means: a loop answers. Dependencies belong to readiness: a restart does not repair them. */
void kernel_get_liveness(struct http_request *request)
{
    http_send(request, &(struct http_response){
                           .status = 200,
                           .headers = STR("Cache-Control: no-store\r\n"),
                           .body = STR("{\"status\":\"UP\"}"),
                       });
}
