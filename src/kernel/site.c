/* A site's address, pool and schema. What runs on it is its owner's: store.c, refdata's flow.c. */
#include "kernel/site.h"

#include "base/log.h"
#include "kernel/kernel_inside.h"

enum status kernel_site_init(struct kernel_site *site, struct kernel *kernel, const struct db_target *target,
                             struct error *error)
{
    *site = (struct kernel_site){.target = *target, .migrates = kernel && kernel_migrates(kernel)};
    arena_init(&site->arena, 1024);
    site->target.name = arena_str(&site->arena, str_from(target->name)).ptr;
    site->target.url = arena_str(&site->arena, target->url);
    site->target.username = arena_str(&site->arena, target->username);
    site->target.password = arena_str(&site->arena, target->password);
    site->target.schema = arena_str(&site->arena, target->schema);
    site->target.fixed_plans = true;
    site->target.server = kernel ? db_server_find(&kernel->servers, target) : NULL;
    return db_pool_create(&site->target, &site->pool, error);
}

void kernel_site_deinit(struct kernel_site *site)
{
    db_pool_destroy(site->pool);
    arena_deinit(&site->arena);
}

static enum status prepare_schema(const struct kernel_site *site, struct db_pool *pool,
                                  const struct kernel_schema *schema, int64_t deadline_ns,
                                  struct error *error)
{
    unsigned applied = 0, missing = 0;
    if (site->migrates) {
        enum status status =
            db_migrate(pool, schema->module, schema->migrations, deadline_ns, &applied, error);
        if (status == STATUS_OK && applied)
            log_info("schema_migrated", LOG_CSTR("database", site->target.name),
                     LOG_CSTR("module", schema->module), LOG_INT("applied", applied));
        return status;
    }
    enum status status =
        db_migrate_check(pool, schema->module, schema->migrations, deadline_ns, &missing, error);
    if (status == STATUS_OK && missing)
        return error_set(error, STATUS_CONFIG, "migration %u of %s is not applied: run `freshet migrate`",
                         missing, schema->module);
    return status;
}

enum status kernel_site_prepare(struct kernel_site *site, struct db_pool *pool,
                                const struct kernel_schema *schemas, int64_t deadline_ns, struct error *error)
{
    enum status status = STATUS_OK;
    if (atomic_load(&site->is_ready))
        return STATUS_OK;
    for (; schemas->module && status == STATUS_OK; schemas++)
        status = prepare_schema(site, pool, schemas, deadline_ns, error);
    atomic_store(&site->is_ready, status == STATUS_OK);
    return status;
}
