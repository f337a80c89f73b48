/* `freshet migrate`, and the list of routes: what needs the configuration and the modules but no running process. */
#include <stdio.h>

#include "base/clock.h"
#include "bus/bus_postgres.h"
#include "kernel/kernel_inside.h"

enum { MIGRATE_TIMEOUT_MS = 10 * 60 * 1000 };

struct migration_run {
    const struct module *module; /* NULL: those that keep their tables in the store */
    const struct module *const *modules;
    bool has_platform; /* its tables were migrated as another's */
    int exit_status;
};

static enum status migrate_schema(struct db_pool *pool, const char *schema,
                                  const struct db_migration *migrations, struct error *error)
{
    unsigned applied = 0;
    enum status status =
        db_migrate(pool, schema, migrations, clock_deadline_ms(MIGRATE_TIMEOUT_MS), &applied, error);
    if (status == STATUS_OK)
        printf("%s on %s: %u applied, up to date\n", schema, db_pool_address(pool), applied);
    else
        error_context(error, "%s", schema);
    return status;
}

static bool is_in(const struct migration_run *run, const struct module *module)
{
    return module->migrations && (run->module ? run->module == module : module->keeps_store);
}

/* Every database has the platform's tables beside the modules': its embedded bus. */
static void migrate_database(const struct db_target *target, void *arg)
{
    struct migration_run *run = arg;
    struct error error = {0};
    struct db_pool *pool = NULL;
    enum status status = db_pool_create(target, &pool, &error);
    if (status == STATUS_OK && !run->has_platform)
        status = migrate_schema(pool, "platform", platform_migrations, &error);
    for (const struct module *const *at = run->modules; *at && status == STATUS_OK; at++)
        if (is_in(run, *at))
            status = migrate_schema(pool, (*at)->name, (*at)->migrations, &error);
    if (status != STATUS_OK) {
        fprintf(stderr, "freshet: cannot migrate database \"%s\": %s\n", target->name, error.message);
        run->exit_status = 1;
    }
    db_pool_destroy(pool);
}

int kernel_migrate(const struct kernel_options *options)
{
    struct config *config = kernel_config_load_or_print(options);
    if (!config)
        return 1;
    int exit_status = 0;
    for (const struct module *const *at = options->modules; *at; at++) {
        struct migration_run run = {.module = *at, .modules = options->modules};
        if ((*at)->migrations && (*at)->each_database)
            (*at)->each_database(config, config_section(config, (*at)->section->name), migrate_database,
                                 &run);
        exit_status |= run.exit_status;
    }
    /* The store; without a database for it nothing is reported, since no role that needs one can start. */
    const struct kernel_postgres *own = config_section(config, "postgres");
    struct migration_run run = {.modules = options->modules, .has_platform = !own->url.len};
    struct db_target target;
    bool is_kept = false;
    for (const struct module *const *at = options->modules; *at; at++)
        is_kept |= is_in(&run, *at);
    if (is_kept && kernel_store_find(config, options->modules, &target))
        migrate_database(&target, &run);
    config_free(config);
    return exit_status | run.exit_status;
}

static void print_routes(const struct http_route *route)
{
    for (; route->handler; route++) {
        const char *needs = route->access == HTTP_PUBLIC ? "public" : route->needs_user ? "user" : "token";
        printf("%-7s %-70s %s\n", http_method_name(route->method), route->path,
               route->scope ? route->scope : needs);
    }
}

int kernel_print_routes(const struct kernel_options *options)
{
    for (const struct module *const *at = options->modules; *at; at++)
        for (const struct module_routes *routes = (*at)->routes; routes && routes->role; routes++)
            print_routes(routes->routes);
    print_routes(kernel_actuator_routes);
    return 0;
}
