/* The look at the store: repeated, with a growing pause, until the schema stands (put in place here, or by somebody else where
 * that is not ours); then the bus is opened and the modules are told. From then on once a second whether PostgreSQL answers,
 * so that a process nobody asks anything of knows when it went and when it is back. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "bus/bus_postgres.h"
#include "kernel/kernel_inside.h"
#include "kernel/store_inside.h"

enum {
    LOOK_MS = 1000,
    PAUSE_MIN_MS = 100,
    PAUSE_MAX_MS = 2000,
    LOOK_TIMEOUT_MS = 3000,
    MIGRATE_TIMEOUT_MS = 120000,
};

/* ---- on a worker ---- */

static enum status prepare_schema(struct kernel_store *store, const char *module,
                                  const struct db_migration *migrations)
{
    int64_t deadline_ns = clock_deadline_ms(MIGRATE_TIMEOUT_MS);
    unsigned applied = 0, missing = 0;
    if (kernel_migrates(store->kernel)) {
        enum status status =
            db_migrate(store->look_pool, module, migrations, deadline_ns, &applied, &store->error);
        if (status == STATUS_OK && applied)
            log_info("schema_migrated", LOG_CSTR("database", store->target.name), LOG_CSTR("module", module),
                     LOG_INT("applied", applied));
        return status;
    }
    enum status status =
        db_migrate_check(store->look_pool, module, migrations, deadline_ns, &missing, &store->error);
    if (status == STATUS_OK && missing)
        return error_set(&store->error, STATUS_CONFIG,
                         "migration %u of %s is not applied: run `freshet migrate`", missing, module);
    return status;
}

/* Of all modules, whichever roles run here: any other process finds what it needs. */
static enum status prepare(struct kernel_store *store)
{
    enum status status = prepare_schema(store, "platform", platform_migrations);
    for (const struct module *const *at = store->kernel->options.modules; *at && status == STATUS_OK; at++)
        if ((*at)->keeps_store && (*at)->migrations)
            status = prepare_schema(store, (*at)->name, (*at)->migrations);
    return status;
}

static enum status ask(struct kernel_store *store)
{
    int64_t deadline_ns = clock_deadline_ms(LOOK_TIMEOUT_MS);
    struct db_conn *conn = NULL;
    struct db_statement statement;
    db_statement_init(&statement, "select 1", 0, NULL);
    enum status status = db_acquire(store->look_pool, deadline_ns, &conn, &store->error);
    if (status == STATUS_OK)
        status = db_exec(conn, &statement, NULL, deadline_ns, NULL, &store->error);
    db_release(conn);
    return status;
}

static void run_look(struct worker_job *job)
{
    struct kernel_store *store = (struct kernel_store *)((char *)job - offsetof(struct kernel_store, job));
    store->status = store->stands ? ask(store) : prepare(store);
    store->stands |= store->status == STATUS_OK;
}

/* ---- back on the home loop ---- */

static void on_due(struct loop_timer *timer);

static void look_again(struct kernel_store *store)
{
    int64_t pause_ms = LOOK_MS;
    if (store->status == STATUS_OK) {
        store->pause_ms = PAUSE_MIN_MS;
    } else {
        pause_ms = store->pause_ms / 2 + (int64_t)(random_u64() % (uint64_t)store->pause_ms);
        store->pause_ms = store->pause_ms * 2 < PAUSE_MAX_MS ? store->pause_ms * 2 : PAUSE_MAX_MS;
    }
    loop_timer_start(store->home, &store->look, clock_deadline_ms(pause_ms), on_due);
}

/* Said when it begins, when the reason is another, and when it is over. */
static void tell(struct kernel_store *store)
{
    bool failed = store->status != STATUS_OK;
    bool is_known = strcmp(store->told, store->error.message) == 0;
    snprintf(store->told, sizeof store->told, "%s", store->error.message);
    if (failed && !is_known)
        log_error("store_unavailable", LOG_CSTR("address", db_pool_address(store->pool)),
                  LOG_ERROR_FIELDS(&store->error));
    if (!failed && !is_known)
        log_info("store_available", LOG_CSTR("address", db_pool_address(store->pool)));
}

static void tell_modules(struct kernel_store *store)
{
    struct kernel *kernel = store->kernel;
    kernel_hydration_start(store);
    for (size_t i = 0; i < kernel->module_count; i++)
        if (kernel->modules[i].started && kernel->modules[i].module->on_store)
            kernel->modules[i].module->on_store(kernel->modules[i].state);
    kernel_outboxes_start(store);
    atomic_store(&store->ready, true);
    log_info("store_ready", LOG_CSTR("address", db_pool_address(store->pool)));
}

static void look_done(struct worker_job *job)
{
    struct kernel_store *store = (struct kernel_store *)((char *)job - offsetof(struct kernel_store, job));
    bool opens = store->status == STATUS_OK && !atomic_load(&store->ready);
    if (job->cancelled || store->stopping)
        return;
    if (opens)
        store->status = kernel_events_open(store, &store->error);
    tell(store);
    atomic_store(&store->reachable, store->status == STATUS_OK);
    if (opens && store->status == STATUS_OK)
        tell_modules(store);
    atomic_store(&store->looked, true);
    look_again(store);
}

static void on_due(struct loop_timer *timer)
{
    struct kernel_store *store = (struct kernel_store *)((char *)timer - offsetof(struct kernel_store, look));
    store->error = (struct error){0};
    store->job = (struct worker_job){.loop = store->home, .run = run_look, .done = look_done};
    (void)!worker_pool_submit(store->looker, &store->job); /* refused: it has stopped */
}

void kernel_look_start(struct kernel_store *store)
{
    store->pause_ms = PAUSE_MIN_MS;
    loop_timer_start(store->home, &store->look, clock_mono_ns(), on_due);
}
