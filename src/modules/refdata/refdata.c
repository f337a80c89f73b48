/* The module: routes, life and health of reference data. */
#include "modules/refdata/refdata.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernel/dead_letters.h"
#include "modules/refdata/adapter/adapter.h"
#include "modules/refdata/apply/apply.h"
#include "modules/refdata/command/command.h"
#include "modules/refdata/commands.h"
#include "modules/refdata/query/query.h"
#include "modules/refdata/query/reading.h"
#include "modules/refdata/refdata.h"

enum {
    PREPARE_MS = 3000, /* of a reload, for a database that is new */
};

#define DICTIONARIES "/v1/tenants/{tenantId}/dictionaries"
#define DICTIONARY DICTIONARIES "/{dictCode}"

const struct http_route refdata_query_routes[] = {
    {HTTP_GET, DICTIONARIES, refdata_get_dictionaries, .tenant_param = "tenantId"},
    {HTTP_GET, DICTIONARY "/items/{key}", refdata_get_item, .tenant_param = "tenantId"},
    {HTTP_GET, DICTIONARY "/items", refdata_get_items, .tenant_param = "tenantId"},
    {HTTP_GET, DICTIONARY "/all", refdata_get_all, .tenant_param = "tenantId", .gzip = HTTP_GZIP_STREAMS},
    {HTTP_GET, DICTIONARY "/version", refdata_get_version, .tenant_param = "tenantId"},
    {HTTP_GET, DICTIONARY "/watch", refdata_get_watch, HTTP_STREAM, .tenant_param = "tenantId"},
    {.handler = NULL},
};

/* ---- configuration ---- */

/* Dictionaries that name no scope have those for all. Without refdata.postgres the dictionaries live where the other modules keep
 * their tables. */
static void refdata_module_complete(struct config *config, void *section)
{
    struct refdata_settings *settings = section;
    struct refdata_dictionary_settings *all = settings->dictionaries.items;
    for (size_t i = 0; i < settings->dictionaries.count; i++) {
        if (all[i].read_scope_place.line == 0)
            all[i].read_scope = settings->read_scope;
        if (all[i].write_scope_place.line == 0)
            all[i].write_scope = settings->write_scope;
    }
    const struct kernel_postgres *store = config_section(config, "postgres");
    if (settings->postgres.count > 0 || store->url.len == 0)
        return;
    struct kernel_postgres *block = arena_alloc(config_arena(config), sizeof *block);
    struct setting_place *place = arena_alloc(config_arena(config), sizeof *place);
    *block = *store;
    block->name = STR("main");
    *place = store->place;
    settings->postgres.items = block;
    settings->postgres.places = place;
    settings->postgres.count = 1;
}

static enum status refdata_module_check(const struct config *config, const void *section, struct error *error)
{
    enum status status = refdata_settings_check_engines(config, section, error);
    if (status == STATUS_OK)
        status = refdata_catalog_check(config, section, error);
    return status == STATUS_OK ? refdata_sources_check(config, section, error) : status;
}

static void adjust_auth(const void *section, struct auth_settings *auth)
{
    const struct refdata_settings *settings = section;
    auth->tenant_claim = settings->tenant_claim;
    auth->allow_tenant_header = settings->allow_tenant_header;
}

static struct str pod_id(const void *section)
{
    return ((const struct refdata_settings *)section)->pod_id;
}

static void each_database(struct config *config, const void *section,
                          void (*fn)(const struct db_target *target, void *arg), void *arg)
{
    (void)config;
    const struct refdata_settings *settings = section;
    for (size_t i = 0; i < settings->postgres.count; i++) {
        struct db_target target =
            kernel_postgres_target((const struct kernel_postgres *)settings->postgres.items + i);
        fn(&target, arg);
    }
}

/* Commands and invalidations have the tenant in their keys; messages of other systems may have it nowhere. */
static void each_dead_topic(const struct config *config, const void *section,
                            void (*fn)(const struct kernel_dead_topic *topic, void *arg), void *arg)
{
    const struct refdata_settings *settings = section;
    const struct kernel_bus_settings *bus = config_section(config, "bus");
    const struct refdata_source_settings *sources = settings->adapter.sources.items;
    fn(&(struct kernel_dead_topic){.topic = REFDATA_COMMANDS, .key_tenant_end = ':'}, arg);
    fn(&(struct kernel_dead_topic){.topic = REFDATA_INVALIDATIONS, .key_tenant_end = ':'}, arg);
    if (bus->commands == KERNEL_KAFKA)
        fn(&(struct kernel_dead_topic){.topic = settings->kafka.commands_topic.ptr,
                                       .engine = KERNEL_ON_KAFKA,
                                       .key_tenant_end = ':'},
           arg);
    for (size_t i = 0; i < settings->adapter.sources.count; i++)
        fn(&(struct kernel_dead_topic){.topic = sources[i].topic.ptr, .engine = KERNEL_ON_KAFKA}, arg);
}

/* Where it owns an entity type of hydration: items are looked up, and their changes published. */
static bool uses_store(const struct kernel *kernel, const void *section)
{
    (void)section;
    return kernel_has_role(kernel, "command");
}

/* ---- life ---- */

struct refdata_catalog *refdata_catalog_hold(struct refdata *refdata)
{
    pthread_mutex_lock(&refdata->catalog_lock);
    struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    atomic_fetch_add(&catalog->refs, 1);
    pthread_mutex_unlock(&refdata->catalog_lock);
    return catalog;
}

static void init_queue(struct refdata_queue *queue)
{
    turns_init(&queue->urgent);
    turns_init(&queue->rest);
}

static void deinit_queue(struct refdata_queue *queue)
{
    turns_deinit(&queue->urgent);
    turns_deinit(&queue->rest);
}

/* A reading takes the dictionary of the request before where only the path's last segment is another one. */
static void check_routes(void)
{
    for (const struct http_route *route = refdata_query_routes; route->handler; route++)
        assert(!str_ends_with(str_from(route->path), STR("{dictCode}")));
}

static enum status refdata_module_start(struct kernel *kernel, const void *section, void **state,
                                        struct error *error)
{
    const struct refdata_settings *settings = section;
    struct refdata_catalog *catalog = NULL;
    enum status status = refdata_catalog_create(settings, kernel, NULL, &catalog, error);
    if (status != STATUS_OK)
        return status;
    check_routes();
    struct refdata *refdata = memory_zalloc(sizeof *refdata);
    refdata->kernel = kernel;
    refdata->loops = kernel_loops(kernel);
    refdata->home = loop_group_loop(refdata->loops, 0);
    refdata->first = settings;
    init_queue(&refdata->full_loads);
    init_queue(&refdata->delta_loads);
    TAILQ_INIT(&refdata->retired);
    TAILQ_INIT(&refdata->committed_reads.by_age);
    refdata->own = refdata_table_create(64);
    pthread_mutex_init(&refdata->catalog_lock, NULL);
    atomic_init(&refdata->catalog, catalog);
    atomic_init(&refdata->table, refdata_table_copy(refdata->own));
    /* Room for every parallel load, full and delta, and every database's sweep and checks, so that none of them can hold up
     * another. */
    unsigned threads = 2 * (unsigned)turns_places((size_t)settings->cache.parallel_reloads) +
                       2 * (unsigned)settings->postgres.count + 1;
    refdata->loaders = worker_pool_create("loader", threads, SIZE_MAX);
    refdata->readers =
        worker_pool_create("primary", (unsigned)turns_places((size_t)settings->barrier.parallel_reads),
                           (size_t)settings->barrier.queue_max);
    /* The loops do not run yet, so this thread may stand in for the home loop. */
    if (kernel_has_role(refdata->kernel, "query"))
        refdata_keeper_preload(refdata);
    if (kernel_has_role(refdata->kernel, "command"))
        refdata_owner_provide(refdata);
    if (kernel_has_role(refdata->kernel, "apply"))
        refdata_apply_metrics_register();
    refdata_databases_open(refdata, catalog);
    refdata_sweeps_start(refdata);
    *state = refdata;
    return STATUS_OK;
}

struct reload {
    struct refdata *refdata;
    struct refdata_catalog *catalog;
};

static void free_catalog(void *arg)
{
    refdata_catalog_unref(arg);
}

static void reload_on_home(void *arg)
{
    struct reload *reload = arg;
    struct refdata *refdata = reload->refdata;
    refdata_databases_open(refdata, reload->catalog); /* before a request can use it */
    pthread_mutex_lock(&refdata->catalog_lock);
    struct refdata_catalog *before = atomic_exchange(&refdata->catalog, reload->catalog);
    pthread_mutex_unlock(&refdata->catalog_lock);
    refdata_keeper_adopt(refdata, reload->catalog);
    if (kernel_has_role(refdata->kernel, "query"))
        refdata_keeper_preload(refdata);
    refdata_keeper_trim(refdata, NULL);
    refdata_sweeps_start(refdata);
    loop_group_synchronize(refdata->loops, free_catalog, before);
}

static void refdata_module_reload(void *state, struct config *config, const void *section)
{
    (void)config;
    struct refdata *refdata = state;
    struct reload reload = {.refdata = refdata};
    struct refdata_catalog *before = refdata_catalog_hold(refdata);
    struct error error = {0};
    enum status status = refdata_catalog_create(section, refdata->kernel, before, &reload.catalog, &error);
    if (status == STATUS_OK) {
        /* A new database takes updates from its first moment on. One that is out of reach waits for its sweep. */
        for (size_t i = 0; i < reload.catalog->database_count; i++)
            if (!refdata_catalog_names(before, reload.catalog->databases[i]))
                (void)!refdata_database_prepare(reload.catalog->databases[i], clock_deadline_ms(PREPARE_MS),
                                                &error);
        loop_group_call(refdata->loops, reload_on_home, &reload);
        refdata_databases_close(refdata, before,
                                reload.catalog); /* what they accepted is committed, loads end now */
    } else {
        log_error("refdata_reload_failed", LOG_ERROR_FIELDS(&error));
    }
    refdata_catalog_unref(before);
}

static void refdata_module_stop(void *state)
{
    struct refdata *refdata = state;
    refdata_databases_close(refdata, atomic_load(&refdata->catalog),
                            NULL); /* loads under way end now, not at their deadline */
    worker_pool_stop(refdata->loaders);
    worker_pool_stop(refdata->readers);
}

static void destroy_refdata(void *state)
{
    struct refdata *refdata = state;
    worker_pool_destroy(refdata->loaders);
    worker_pool_destroy(refdata->readers);
    refdata_databases_free(refdata);
    refdata_keeper_clear(refdata);
    refdata_versions_clear(refdata);
    deinit_queue(&refdata->full_loads);
    deinit_queue(&refdata->delta_loads);
    cache_drain();
    refdata_catalog_unref(atomic_load(&refdata->catalog));
    pthread_mutex_destroy(&refdata->catalog_lock);
    free(refdata);
}

static bool is_reachable(const struct refdata_database *database)
{
    return db_pool_is_up(database->site.pool) && atomic_load(&database->site.state) != SITE_DOWN;
}

/* A role of writing, and what it can do nothing without, in some database. Commands are accepted without a bus: they wait in
 * PostgreSQL. */
static void put_role(struct refdata *refdata, const struct refdata_catalog *catalog, const char *role,
                     enum refdata_need needs, struct health *health)
{
    const struct kernel_bus_settings *bus = kernel_bus(refdata->kernel);
    struct str detail = STR("waiting for PostgreSQL");
    bool works = false;
    if (!kernel_has_role(refdata->kernel, role))
        return;
    for (size_t i = 0; i < catalog->database_count && !works; i++) {
        const struct refdata_database *database = catalog->databases[i];
        works = refdata_database_runs(database) && is_reachable(database) &&
                refdata_buses_are_up(database, needs);
    }
    if (needs == REFDATA_NEEDS_SOURCES || (needs == REFDATA_NEEDS_COMMANDS && bus->commands == KERNEL_KAFKA))
        detail = STR("waiting for PostgreSQL or Kafka");
    else if (needs == REFDATA_NEEDS_INVALIDATIONS && bus->invalidations == KERNEL_REDIS)
        detail = STR("waiting for PostgreSQL or Redis");
    health_role(health, role, works, works ? STR_NONE : detail);
}

/* On any loop: atomics only. */
static void refdata_module_health(void *state, struct health *health)
{
    struct refdata *refdata = state;
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    bool is_up = atomic_load(&refdata->query_up), adapters_are_up = true;
    if (kernel_has_role(refdata->kernel, "query"))
        health_role(health, "query", is_up,
                    is_up ? STR_NONE : STR("waiting for PostgreSQL or for preloaded dictionaries"));
    if (kernel_has_role(refdata->kernel, "query") && !is_up)
        health->starting = true;
    put_role(refdata, catalog, "command", REFDATA_NEEDS_NO_BUS, health);
    put_role(refdata, catalog, "apply", REFDATA_NEEDS_COMMANDS, health);
    put_role(refdata, catalog, "relay", REFDATA_NEEDS_INVALIDATIONS, health);
    put_role(refdata, catalog, "adapter", REFDATA_NEEDS_SOURCES, health);
    for (size_t i = 0; i < catalog->database_count; i++) {
        const struct refdata_database *database = catalog->databases[i];
        adapters_are_up &= !refdata_database_runs(database) || !database->adapter ||
                           refdata_adapter_is_up(database->adapter);
    }
    if (kernel_has_role(refdata->kernel, "adapter") && refdata->first->adapter.sources.count)
        health_component(health, "kafka", STR("adapter"), adapters_are_up, STR_NONE);
    for (size_t i = 0; i < catalog->database_count; i++) {
        const struct refdata_database *database = catalog->databases[i];
        health_component(health, "postgres", database->name, is_reachable(database), STR_NONE);
        refdata_buses_health(refdata, database, health);
    }
    for (size_t i = 0; i < catalog->dictionary_count; i++) {
        const struct refdata_dictionary *dictionary = catalog->dictionaries[i];
        bool disabled = atomic_load(&dictionary->state) == REFDATA_DISABLED;
        struct str detail = STR_NONE;
        if (disabled)
            detail =
                STR("PostgreSQL refuses its SQL: see the log for dictionary_disabled. What was loaded before "
                    "is served");
        else if (atomic_load(&dictionary->drift_refused))
            detail = STR("PostgreSQL refuses its driftCheckSql: see the log for drift_check_refused");
        health_component(health, "dictionary", dictionary->code, !disabled, detail);
    }
}

const struct module refdata_module = {
    .name = "refdata",
    .roles = (const char *const[]){"command", "adapter", "apply", "relay", "query", NULL},
    .section = &refdata_section,
    .routes = (const struct module_routes[]){{"command", refdata_command_routes},
                                             {"query", refdata_query_routes},
                                             {.role = NULL}},
    .metrics = refdata_metrics,
    .migrations = refdata_migrations,
    .grants = refdata_grants,
    .complete = refdata_module_complete,
    .check = refdata_module_check,
    .adjust_auth = adjust_auth,
    .pod_id = pod_id,
    .each_database = each_database,
    .each_dead_topic = each_dead_topic,
    .start = refdata_module_start,
    .reload = refdata_module_reload,
    .stop = refdata_module_stop,
    .destroy = destroy_refdata,
    .health = refdata_module_health,
    .uses_store = uses_store,
    .provides = (const char *const[]){REFDATA_ENTITY_TYPE, NULL},
    .outboxes = (const struct outbox_table *const[]){&refdata_outbox_table, &refdata_command_table, NULL},
    .books = refdata_books,
    .try_sql = refdata_try_sql,
    .views = refdata_views,
    .report = refdata_report,
    .list_keys = refdata_list_keys,
};
