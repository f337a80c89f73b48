/* A database's life: created with its settings, its schema put in place when it is first reached. */
#include "modules/refdata/database.h"

#include <stdlib.h>

#include "base/hash.h"
#include "base/memory.h"

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
    struct db_target target = kernel_postgres_target(settings);
    target.name = settings->name.ptr;
    pthread_mutex_init(&database->marks.lock, NULL);
    atomic_init(&database->refs, 1);
    database->fingerprint = refdata_database_fingerprint(settings);
    enum status status = kernel_site_init(&database->site, kernel, &target, error);
    database->name = str_from(database->site.target.name);
    if (status == STATUS_OK)
        *out = database;
    else
        refdata_database_unref(database);
    return status;
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
    kernel_site_deinit(&database->site);
    pthread_mutex_destroy(&database->marks.lock);
    free(database);
}

enum status refdata_database_prepare(struct refdata_database *database, int64_t deadline_ns,
                                     struct error *error)
{
    static const struct kernel_schema schemas[] = {{"refdata", refdata_migrations}, {.module = NULL}};
    return kernel_site_prepare(&database->site, database->site.pool, schemas, deadline_ns, error);
}
