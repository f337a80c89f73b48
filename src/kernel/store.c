/* The store's life. A task probes PostgreSQL: until the schema is in place (put there by this process, or by others where
 * migrations are not ours), then whether it answers, so that a process without requests knows when it went and when it is
 * back. When the schema is in place the bus is opened and the site runs: modules subscribe, hydration is open,
 * outbox engines start. Its end is a site's; modules stop while the bus still works, after lookups of hydration have ended, so
 * that no thread of a module waits for one. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/bus_postgres.h"
#include "hydration/hydration.h"
#include "kernel/audit.h"
#include "kernel/kernel_inside.h"
#include "outbox/outbox.h"

enum {
    OWN_THREADS =
        24, /* beside handlers of events: four outboxes with two tasks each, owners' looks, retention, upkeep */
    GRACE_MS = 3000,
    CLEANUP_MS = 15000, /* of hydration */
    PROBE_MS = 1000,
    PROBE_TIMEOUT_MS = 3000,
    MIGRATE_TIMEOUT_MS = 120000,
};

/* ---- where it is ---- */

struct database_walk {
    const struct module *module;
    kernel_database_fn *fn;
    void *arg;
};

static void visit_database(const struct db_target *target, void *arg)
{
    const struct database_walk *walk = arg;
    walk->fn(target, walk->module, walk->arg);
}

void kernel_each_database(struct config *config, const struct module *const *modules, kernel_database_fn *fn,
                          void *arg)
{
    for (; *modules; modules++)
        if ((*modules)->each_database && !(*modules)->keeps_store)
            (*modules)->each_database(config, config_section(config, (*modules)->section->name),
                                      visit_database, &(struct database_walk){*modules, fn, arg});
}

static void take_first(const struct db_target *target, const struct module *module, void *arg)
{
    struct db_target *first = arg;
    (void)module;
    if (!first->url.len)
        *first = *target;
}

bool kernel_store_find(struct config *config, const struct module *const *modules, struct db_target *target)
{
    const struct kernel_postgres *own = config_section(config, "postgres");
    *target = (struct db_target){0};
    if (own->url.len)
        *target = kernel_postgres_target(own);
    kernel_each_database(config, modules, take_first, target);
    target->name = "store";
    target->fixed_plans = true; /* every name in our SQL is qualified, whatever the schema */
    return target->url.len > 0;
}

enum status kernel_store_check(const struct config *config, struct error *error)
{
    const struct kernel_postgres *own = config_section(config, "postgres");
    if (!own->url.len && (own->username.len || own->password_env.len || own->password_file.len))
        return config_error_at(config,
                               own->username.len       ? own->username_place
                               : own->password_env.len ? own->password_place
                                                       : own->password_file_place,
                               "postgres.jdbcUrl", error,
                               "is missing: username or a password is set, but not the server");
    return kernel_postgres_check(config, own, "postgres", error);
}

/* ---- what modules use ---- */

struct kernel_site *kernel_store(struct kernel *kernel)
{
    return &kernel->store->site;
}

static bool is_ready(const struct kernel *kernel)
{
    return kernel->store && atomic_load(&kernel->store->site.is_running);
}

static bool is_up(const struct kernel *kernel)
{
    return kernel->store && atomic_load(&kernel->store->site.state) == SITE_UP;
}

enum status kernel_store_require(const struct kernel *kernel, struct error *error)
{
    return is_ready(kernel) ? STATUS_OK
                            : error_set(error, STATUS_UNAVAILABLE, "the database is not ready yet");
}

enum status kernel_store_query(struct kernel *kernel, const struct db_statement *statement,
                               const struct db_param *params, int64_t deadline_ns, struct db_result **rows,
                               struct error *error)
{
    enum status status = kernel_store_require(kernel, error);
    *rows = NULL;
    return status == STATUS_OK
               ? db_pool_query(kernel->store->site.pool, statement, params, deadline_ns, rows, error)
               : status;
}

struct bus *kernel_events(struct kernel *kernel)
{
    return kernel->store ? atomic_load(&kernel->store->events) : NULL;
}

struct outbox *kernel_outbox_add(struct kernel *kernel, const struct outbox_config *config)
{
    struct outbox *outbox = NULL;
    struct error error;
    if (kernel_site_add_outbox(&kernel->store->site, config, &outbox, &error) != STATUS_OK)
        abort(); /* the target is valid, since kernel_site_init() has made a pool of it */
    return outbox;
}

struct outbox *kernel_outbox_create(struct kernel *kernel, const struct outbox_table *table,
                                    const struct outbox_settings *settings,
                                    void (*publish)(void *context, struct outbox_batch *batch), void *context)
{
    return kernel_outbox_add(
        kernel, &(struct outbox_config){
                    .table = table, .settings = settings, .publish = publish, .context = context});
}

void kernel_store_task(struct kernel *kernel, const char *name, task_run_fn *run, void *context)
{
    kernel_site_add_task(&kernel->store->site, name, run, context, TASK_NOW);
}

/* ---- the probe, on a thread and a connection of its own: a busy database must not look like a dead one ---- */

static const struct db_statement answer_sql = DB_STATEMENT("select 1");

static int64_t store_probe(struct task *task, void *context)
{
    struct kernel_store *store = context;
    struct error *error = &store->probe_error;
    *error = (struct error){0};
    if (atomic_load(&store->site.is_ready)) {
        int64_t deadline_ns = clock_deadline_ms(PROBE_TIMEOUT_MS);
        struct db_conn *conn = NULL;
        store->probe_status = db_acquire(store->probe_pool, deadline_ns, &conn, error);
        if (conn)
            store->probe_status = db_exec(conn, &answer_sql, NULL, deadline_ns, NULL, error);
        db_release(conn);
    } else { /* the schemas of all modules, whichever roles run here: any other process finds what it needs */
        struct db_schema schemas[KERNEL_MODULES_MAX + 1] = {{.module = NULL}};
        size_t count = 0;
        for (const struct module *const *at = store->kernel->options.modules; *at; at++)
            if ((*at)->keeps_store && (*at)->migrations)
                schemas[count++] = (struct db_schema){(*at)->name, (*at)->migrations};
        store->probe_status = kernel_site_prepare(&store->site, store->probe_pool, schemas,
                                                  clock_deadline_ms(MIGRATE_TIMEOUT_MS), error);
    }
    return store->probe_status == STATUS_OK ? TASK_MS(PROBE_MS) : task_retry(task);
}

/* ---- hydration: one engine, for every module that looks entities up or owns them ----
 * Modules register the types they look up in start(); before the loops run, a type without an owner is logged. */

struct hydration *kernel_hydration(struct kernel *kernel)
{
    return kernel->store ? kernel->store->hydration : NULL;
}

static const struct hydration_settings *settings_of(const struct kernel_store *store)
{
    return config_section(store->kernel->first, "hydration");
}

static bool is_consumed(const struct kernel_store *store, struct str type)
{
    for (size_t i = 0; i < store->consumed_count; i++)
        if (str_eq(str_from(store->consumed[i]), type))
            return true;
    return false;
}

void kernel_hydration_consumes(struct kernel *kernel, const char *entity_type)
{
    struct kernel_store *store = kernel->store;
    if (!store)
        return;
    store->consumes = true;
    if (entity_type && store->consumed_count < KERNEL_CONSUMED_MAX &&
        !is_consumed(store, str_from(entity_type)))
        store->consumed[store->consumed_count++] = entity_type;
}

static void warn_of(const struct kernel_store *store, struct str type)
{
    const struct setting_strings *outside = &settings_of(store)->outside;
    bool is_outside = false, is_provided = false;
    for (size_t i = 0; i < outside->count; i++)
        is_outside |= str_eq(outside->items[i], type);
    /* by any module, whether its role runs here or in another process */
    for (const struct module *const *at = store->kernel->options.modules; *at; at++)
        for (const char *const *own = (*at)->provides; own && *own; own++)
            is_provided |= str_eq(str_from(*own), type);
    if (is_provided || (is_outside && kernel_bus(store->kernel)->events == KERNEL_NATS))
        return;
    const char *advice =
        is_outside
            ? "it is listed in hydration.outside, but modules outside answer over NATS: set bus.events to nats"
            : "no module provides it, so that asking for it can only time out: take it out of the configuration,"
              " or have a module outside answer entity.unknown over NATS and list it in hydration.outside";
    log_warn("hydration_type_without_owner", LOG_STR("entity_type", type), LOG_CSTR("advice", advice));
}

/* ---- the one part of it: modules and hydration read the bus of events ---- */

static void *subscribe(void *owner, struct error *error)
{
    struct kernel_store *store = owner;
    for (size_t i = 0; i < store->kernel->module_count; i++) {
        const struct kernel_module *entry = &store->kernel->modules[i];
        if (entry->started && entry->module->subscribe &&
            entry->module->subscribe(entry->state, store->site.buses[0], error) != STATUS_OK) {
            (void)!error_context(error, "%s", entry->module->name);
            return NULL;
        }
    }
    if (store->hydration &&
        hydration_open(store->hydration, store->site.buses[0], store->consumes, error) != STATUS_OK)
        (void)!error_context(error, "hydration");
    return store;
}

static void hand_out_events(void *part)
{
    struct kernel_store *store = part;
    atomic_store(&store->events, store->site.buses[0]);
}

static const struct kernel_part events_part = {.create = subscribe, .start = hand_out_events};
static const struct kernel_part *const store_parts[] = {&events_part, NULL};

/* On the home loop. */
static void store_probed(void *context)
{
    struct kernel_store *store = context;
    struct kernel_site *site = &store->site;
    if (store->probe_status == STATUS_OK && !atomic_load(&site->is_running)) {
        store->probe_status = kernel_events_open(store, &store->probe_error);
        if (store->probe_status == STATUS_OK)
            store->probe_status = kernel_site_run(site, store_parts, store, &store->probe_error);
        if (store->probe_status == STATUS_OK)
            log_info("store_ready", LOG_CSTR("address", db_pool_address(site->pool)));
        else
            (void)!error_context(&store->probe_error, "bus of events");
    }
    kernel_site_report(site, store->probe_status, &store->probe_error);
}

/* ---- life ---- */

enum status kernel_store_create(struct kernel *kernel, struct error *error)
{
    struct db_target target, probe;
    bool kept = false, used = false;
    for (const struct module *const *at = kernel->options.modules; *at; at++) {
        bool wanted = kernel_wants_module(kernel, *at);
        kept |= wanted && (*at)->keeps_store;
        used |= wanted && (*at)->uses_store &&
                (*at)->uses_store(kernel, config_section(kernel->config, (*at)->section->name));
    }
    if (!kept && !used)
        return STATUS_OK;
    bool found = kernel_store_find(kernel->config, kernel->options.modules, &target);
    if (!found && !kept)
        return STATUS_OK;
    if (!found)
        return error_set_field(error, STATUS_CONFIG, "postgres.jdbcUrl",
                               "is missing: these roles keep tables in a PostgreSQL of the modules");
    struct kernel_store *store = kernel->store = memory_zalloc(sizeof *store);
    store->kernel = kernel;
    enum status status = kernel_site_init(&store->site, kernel, &target, error);
    store->site.is_store = true;
    store->site.workers =
        worker_pool_create("store", (unsigned)kernel_bus(kernel)->handlers + OWN_THREADS, SIZE_MAX);
    store->gaps = kernel_gaps_create(kernel, &store->site);
    store->prober = worker_pool_create("store-probe", 1, 1);
    store->probe = task_create(&(struct task_config){.name = "store-probe",
                                                     .loop = store->site.home,
                                                     .pool = store->prober,
                                                     .run = store_probe,
                                                     .finish = store_probed,
                                                     .context = store});
    probe = store->site.target;
    probe.name = "store-probe";
    probe.connections_max = 1;
    if (status == STATUS_OK)
        status = db_pool_create(&probe, &store->probe_pool, error);
    if (status != STATUS_OK)
        return error_context(error, "postgres");
    if (settings_of(store)) /* NULL: a program without that module */
        store->hydration = hydration_create(&(struct hydration_config){
            .loops = kernel->loops,
            .workers = store->site.workers,
            .pool = store->site.pool,
            .settings = settings_of(store),
            .is_plain = kernel_bus(kernel)->events == KERNEL_NATS,
        });
    return STATUS_OK;
}

/* Where a module looks entities up: rows are cleaned up, and a type without an owner is logged. */
static void prepare_hydration(const struct kernel_store *store)
{
    const struct hydration_settings *settings = settings_of(store);
    if (!settings || !store->consumes)
        return;
    const struct retention_rule rules[] = {
        {"hydration.absences", hydration_absences_cleanup_sql, settings->negative_rows_max, CLEANUP_MS,
         .is_quiet = true},
        {"hydration.copies", hydration_copies_cleanup_sql, settings->copy_rows_max, CLEANUP_MS,
         .is_quiet = true},
        {"hydration.flights", hydration_flights_cleanup_sql, settings->flight_rows_max, CLEANUP_MS,
         .is_quiet = true},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        kernel_retention_add(store->kernel, &rules[i]);
    for (size_t i = 0; i < store->consumed_count; i++)
        warn_of(store, str_from(store->consumed[i]));
    for (size_t i = 0; i < settings->required.count; i++)
        if (!is_consumed(store, settings->required.items[i]))
            warn_of(store, settings->required.items[i]);
}

void kernel_store_start(struct kernel *kernel)
{
    if (!kernel->store)
        return;
    prepare_hydration(kernel->store);
    task_start(kernel->store->probe, TASK_NOW);
}

/* ---- the end ---- */

void kernel_store_begin_stop(struct kernel *kernel)
{
    struct kernel_store *store = kernel->store;
    if (!store)
        return;
    if (store->probe_pool)
        db_pool_interrupt(store->probe_pool);
    (void)!task_stop(store->probe, TASK_FOREVER); /* the site does not begin to run any more */
    kernel_site_stop_begin(&store->site, GRACE_MS);
    if (store->hydration)
        hydration_stop(store->hydration);
    kernel_site_stop_senders(&store->site);
}

void kernel_store_finish_stop(struct kernel *kernel)
{
    if (!kernel->store)
        return;
    kernel_site_stop(&kernel->store->site);
    worker_pool_stop(kernel->store->prober);
}

void kernel_store_destroy(struct kernel *kernel)
{
    struct kernel_store *store = kernel->store;
    if (!store)
        return;
    hydration_destroy(store->hydration);
    kernel_site_close(&store->site);
    task_destroy(store->probe);
    worker_pool_destroy(store->prober);
    db_pool_destroy(store->probe_pool);
    kernel_site_deinit(&store->site);
    kernel_gaps_destroy(store->gaps);
    free(store);
    kernel->store = NULL;
}

/* ---- health ---- */

void kernel_store_health(const struct kernel *kernel, struct health *health)
{
    const struct kernel_store *store = kernel->store;
    if (!store)
        return;
    bool up = is_up(kernel), ready = is_ready(kernel);
    health_component(health, "postgres", STR("store"), up,
                     up      ? STR_NONE
                     : ready ? STR("PostgreSQL does not answer")
                             : STR("waiting for PostgreSQL and its schema"));
    if (kernel_bus(kernel)->events == KERNEL_NATS)
        health_component(health, "nats", STR("events"), kernel_events_are_up(kernel),
                         ready ? STR_NONE : STR("waiting for PostgreSQL"));
    if (atomic_load(&store->site.state) == SITE_UNKNOWN) /* the first probe is under way */
        health->starting = true;
}

void kernel_store_role_health(const struct kernel *kernel, const struct module *module, struct health *health)
{
    bool up = is_up(kernel), reads = !module->reads_events || kernel_events_are_up(kernel);
    for (const char *const *role = module->roles; *role; role++)
        if (kernel_has_role(kernel, *role))
            health_role(health, *role, up && reads,
                        !up      ? STR("waiting for PostgreSQL")
                        : !reads ? STR("waiting for NATS")
                                 : STR_NONE);
}
