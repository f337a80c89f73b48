#include "app/sites.h"

#include <string.h>

#include "app/commands.h"
#include "kernel/store.h"

struct site_walk {
    struct app_sites *sites;
    const struct db_server *servers[APP_SITES_MAX];
};

static void add_site(const struct db_target *target, const struct module *module, void *arg)
{
    struct site_walk *walk = arg;
    struct app_sites *sites = walk->sites;
    if (sites->count == APP_SITES_MAX)
        return;
    struct app_site *site = &sites->items[sites->count];
    *site = (struct app_site){.target = *target, .module = module};
    struct db_server *server = db_server_find(&sites->servers, target);
    for (size_t i = 0; i < sites->count && !site->is_twin; i++) {
        site->is_twin = server && walk->servers[i] == server;
        site->twin_of = i;
    }
    walk->servers[sites->count++] = server;
}

void app_sites_init(struct app_sites *sites, struct config *config)
{
    struct site_walk walk = {.sites = sites};
    struct db_target store;
    *sites = (struct app_sites){0};
    kernel_each_database(config, app_modules, add_site, &walk);
    if (kernel_store_find(config, app_modules, &store))
        add_site(&store, NULL, &walk);
}

void app_sites_deinit(struct app_sites *sites)
{
    db_servers_destroy(sites->servers);
    sites->servers = NULL;
}

enum status app_site_open(const struct app_site *site, unsigned connections_max, int64_t limit_ms,
                          struct db_pool **pool, struct error *error)
{
    struct db_target target = site->target;
    target.connections_max = connections_max;
    if (target.connect_timeout_ms > limit_ms)
        target.connect_timeout_ms = limit_ms;
    return db_pool_create(&target, pool, error);
}

const char *app_site_shown(const struct app_site *site, const struct db_pool *pool, struct arena *arena)
{
    return pool ? arena_printf(arena, "%s at %s", site->target.name, db_pool_address(pool)).ptr
                : site->target.name;
}

bool app_site_keeps(const struct app_site *site, const struct module *module)
{
    return site->module ? site->module == module : module->keeps_store;
}

bool app_site_has(const struct app_site *site, const struct module *module, enum ops_place place)
{
    return place == OPS_ANYWHERE ? !site->is_twin
           : place == OPS_STORE  ? !site->module
                                 : site->module == module;
}

const struct ops_view *app_view_find(const char *name, const struct module **module)
{
    for (const struct module *const *at = app_modules; *at; at++)
        for (const struct ops_view *view = (*at)->views; view && view->name; view++)
            if (strcmp(view->name, name) == 0) {
                *module = *at;
                return view;
            }
    return NULL;
}
