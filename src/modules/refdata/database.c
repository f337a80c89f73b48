/* A database's life: created with its settings, its schema put in place when it is first reached. */
#include "modules/refdata/database.h"

#include <stdlib.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/bus_postgres.h"

uint64_t refdata_database_fingerprint(const struct kernel_postgres *settings)
{
    struct buf text;
    buf_init(&text);
    const struct str parts[] = {settings->name, settings->url, settings->username, settings->password_env,
                                settings->schema};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        buf_printf(&text, "%zu:%.*s,", parts[i].len, STR_ARG(parts[i]));
    buf_printf(&text, "%lld %lld %lld %lld", (long long)settings->connections_max,
               (long long)settings->connect_timeout_ms, (long long)settings->statement_timeout_ms,
               (long long)settings->idle_timeout_ms);
    uint64_t fingerprint = hash_content(buf_str(&text));
    buf_deinit(&text);
    return fingerprint;
}

enum status refdata_database_create(const struct kernel_postgres *settings, struct kernel *kernel,
                                    struct refdata_database **out, struct error *error)
{
    struct refdata_database *database = memory_zalloc(sizeof *database);
    pthread_mutex_init(&database->marks.lock, NULL);
    atomic_init(&database->refs, 1);
    arena_init(&database->arena, 1024);
    database->fingerprint = refdata_database_fingerprint(settings);
    database->migrates = kernel && kernel_migrates(kernel);
    struct db_target target = kernel_postgres_target(settings);
    database->name = arena_str(&database->arena, settings->name);
    target.name = database->name.ptr;
    target.url = arena_str(&database->arena, target.url);
    target.username = arena_str(&database->arena, target.username);
    target.password = arena_str(&database->arena, target.password);
    target.schema = arena_str(&database->arena, target.schema);
    target.fixed_plans = true;
    target.server = kernel ? kernel_server_of(kernel, &target) : NULL;
    database->target = target;
    enum status status = db_pool_create(&target, &database->pool, error);
    if (status != STATUS_OK) {
        refdata_database_unref(database);
        return status;
    }
    *out = database;
    return STATUS_OK;
}

struct refdata_database *refdata_database_ref(struct refdata_database *database)
{
    atomic_fetch_add(&database->refs, 1);
    return database;
}

void refdata_database_unref(struct refdata_database *database)
{
    if (atomic_fetch_sub(&database->refs, 1) != 1)
        return;
    if (database->pool)
        db_pool_destroy(database->pool);
    arena_deinit(&database->arena);
    pthread_mutex_destroy(&database->marks.lock);
    free(database);
}

static enum status check_schema(struct refdata_database *database, const char *module,
                                const struct db_migration *migrations, int64_t deadline_ns,
                                struct error *error)
{
    unsigned missing = 0;
    enum status status = db_migrate_check(database->pool, module, migrations, deadline_ns, &missing, error);
    if (status == STATUS_OK && missing)
        return error_set(error, STATUS_CONFIG, "migration %u of %s is not applied: run `freshet migrate`",
                         missing, module);
    return status;
}

static enum status prepare_schema(struct refdata_database *database, const char *module,
                                  const struct db_migration *migrations, int64_t deadline_ns,
                                  struct error *error)
{
    unsigned applied = 0;
    if (!database->migrates)
        return check_schema(database, module, migrations, deadline_ns, error);
    enum status status = db_migrate(database->pool, module, migrations, deadline_ns, &applied, error);
    if (status == STATUS_OK && applied)
        log_info("schema_migrated", LOG_STR("database", database->name), LOG_CSTR("module", module),
                 LOG_INT("applied", applied));
    return status;
}

enum status refdata_database_prepare(struct refdata_database *database, int64_t deadline_ns,
                                     struct error *error)
{
    if (atomic_load(&database->schema_ready))
        return STATUS_OK;
    enum status status = prepare_schema(database, "platform", platform_migrations, deadline_ns, error);
    if (status == STATUS_OK)
        status = prepare_schema(database, "refdata", refdata_migrations, deadline_ns, error);
    if (status != STATUS_OK)
        return status;
    atomic_store(&database->schema_ready, true);
    return STATUS_OK;
}
