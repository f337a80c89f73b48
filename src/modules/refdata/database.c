/* A database's life: created with its settings, its schema put in place when it is first reached; then it runs the parts below. */
#include "modules/refdata/database.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/refdata.h"

enum {
    /* Beside handlers of commands, all at once: the committer, changes, two of the commands' outbox and two of the relay's,
     * invalidations, rereading decisions, upkeep of the bus and of apply. */
    OWN_THREADS = 10,
    STOP_GRACE_MS = 5000,
};

uint64_t refdata_database_fingerprint(const struct kernel_postgres *settings)
{
    struct buf text = {0};
    const struct str parts[] = {settings->name,         settings->url,           settings->username,
                                settings->password_env, settings->password_file, settings->schema};
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
    pthread_mutex_init(&database->hydrated.lock, NULL);
    pthread_mutex_init(&database->expected.lock, NULL);
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
    pthread_mutex_destroy(&database->hydrated.lock);
    pthread_mutex_destroy(&database->expected.lock);
    free(database);
}

enum status refdata_database_prepare(struct refdata_database *database, int64_t deadline_ns,
                                     struct error *error)
{
    static const struct db_schema schemas[] = {{"refdata", refdata_migrations}, {.module = NULL}};
    return kernel_site_prepare(&database->site, database->site.pool, schemas, deadline_ns, error);
}

/* ---- running ---- */

/* What accepts updates stops first, what delivers decisions stops last. The parts know nothing of each other but what goes
 * through refdata_database_decided(). */
static const struct kernel_part *const parts[] = {
    &refdata_decisions_part,     &refdata_apply_part,    &refdata_relay_part,
    &refdata_invalidations_part, &refdata_commands_part, &refdata_changes_part,
    &refdata_committer_part,     &refdata_adapter_part,  NULL};

void refdata_database_start(struct refdata_database *database)
{
    const struct refdata *refdata = database->refdata;
    const struct kernel_bus_settings *bus = kernel_bus(refdata->kernel);
    struct kernel_site *site = &database->site;
    struct error error = {0};
    unsigned handlers = refdata_buses_parallel(refdata->first, bus);
    if (database->is_started || database->is_closing)
        return;
    database->is_started = true;
    site->workers = worker_pool_create("flow", handlers + OWN_THREADS, SIZE_MAX);
    enum status status = refdata_buses_open(database, &error);
    if (status == STATUS_OK)
        status = kernel_site_run(site, parts, database, &error);
    if (status != STATUS_OK) { /* the sweep is left, and what is in memory */
        log_error("flow_not_started", LOG_STR("database", database->name), LOG_ERROR_FIELDS(&error));
        kernel_site_close(site);
    }
}

void refdata_databases_open(struct refdata *refdata, struct refdata_catalog *catalog)
{
    for (size_t i = 0; i < catalog->database_count; i++) {
        struct refdata_database *database = catalog->databases[i];
        struct refdata_catalog *before = database->catalog;
        if (!before)
            database->refdata = refdata;
        atomic_fetch_add(&catalog->refs, 1);
        pthread_mutex_lock(&refdata->catalog_lock);
        database->catalog = catalog;
        pthread_mutex_unlock(&refdata->catalog_lock);
        if (before)
            refdata_catalog_unref(before);
        else if (atomic_load(&database->site.is_ready))
            refdata_database_start(database);
    }
}

struct refdata_catalog *refdata_database_catalog(const struct refdata_database *database)
{
    pthread_mutex_lock(&database->refdata->catalog_lock);
    struct refdata_catalog *catalog = database->catalog;
    atomic_fetch_add(&catalog->refs, 1);
    pthread_mutex_unlock(&database->refdata->catalog_lock);
    return catalog;
}

void refdata_database_decided(struct refdata_database *database, const struct refdata_outcome *outcomes,
                              const bool *waited, size_t count)
{
    size_t published = 0, versions = 0;
    bool is_left = false, is_hydrated = false; /* is_left: to the relay */
    refdata_decisions_made(database->decisions, outcomes, waited, count);
    for (size_t i = 0; i < count; i++) {
        if (outcomes[i].state.decision != REFDATA_COMMITTED)
            continue;
        published += outcomes[i].is_published;
        versions += outcomes[i].makes_version;
        is_left |= !outcomes[i].is_published;
        is_hydrated |= outcomes[i].is_hydrated;
        struct uuid event;
        bool is_known = outcomes[i].makes_version && uuid_parse(str_from(outcomes[i].state.event_id), &event);
        if (database->invalidations)
            refdata_invalidations_hint(database->invalidations, outcomes[i].tenant, outcomes[i].dict_code,
                                       outcomes[i].state.version, is_known ? &event : NULL,
                                       outcomes[i].traceparent);
    }
    refdata_relay_enqueued(versions);
    if (published)
        refdata_relay_published(database, published);
    if (is_left)
        refdata_relay_wake(database);
    if (is_hydrated)
        refdata_decisions_notify_changed_items(database->decisions);
}

/* ---- the end ---- */

struct closing {
    struct refdata *refdata;
    struct refdata_database **databases;
    size_t count;
    bool stops; /* the process does */
};

static void close_begin(void *arg)
{
    const struct closing *closing = arg;
    closing->refdata->stopping = closing->stops;
    for (size_t i = 0; i < closing->count; i++) {
        closing->databases[i]->is_closing = true;
        atomic_store(&closing->databases[i]->site.is_running, false);
    }
}

static void close_end(void *arg)
{
    const struct closing *closing = arg;
    for (size_t i = 0; i < closing->count; i++) {
        struct refdata_database *database = closing->databases[i];
        kernel_site_close(&database->site);
        refdata_sweep_destroy(database->sweep);
        database->sweep = NULL;
        if (database->catalog)
            refdata_catalog_unref(database->catalog);
        database->catalog = NULL;
    }
}

void refdata_databases_close(struct refdata *refdata, const struct refdata_catalog *catalog,
                             const struct refdata_catalog *next)
{
    struct refdata_database **databases = memory_alloc((catalog->database_count + 1) * sizeof(void *));
    struct closing closing = {.refdata = refdata, .databases = databases, .stops = !next};
    for (size_t i = 0; i < catalog->database_count; i++)
        if (!refdata_catalog_names(next, catalog->databases[i]))
            databases[closing.count++] = catalog->databases[i];
    loop_group_call(refdata->loops, close_begin, &closing);
    loop_group_wait(refdata->loops); /* no handler uses its parts any more */
    for (size_t i = 0; i < closing.count; i++)
        kernel_site_stop_begin(&databases[i]->site, STOP_GRACE_MS); /* one time for all of them */
    for (size_t i = 0; i < closing.count; i++) {
        kernel_site_stop_senders(&databases[i]->site);
        kernel_site_stop(&databases[i]->site);
        refdata_sweep_stop(databases[i]->sweep);
    }
    loop_group_wait(refdata->loops); /* what they posted has been handled */
    loop_group_call(refdata->loops, close_end, &closing);
    free(databases);
}

void refdata_databases_free(struct refdata *refdata)
{
    struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    close_end(&(struct closing){.databases = catalog->databases, .count = catalog->database_count});
}
