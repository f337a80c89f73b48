/* A site's life. What is particular to the store or to a database of refdata is in their tables of parts. */
#include "kernel/site.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "bus/bus_postgres.h"
#include "kernel/kernel_inside.h"

enum { GRACE_MIN_MS = 200, SCHEMA_EVERY_MS = 5000, SCHEMA_TIMEOUT_MS = 5000 };

enum status kernel_site_init(struct kernel_site *site, struct kernel *kernel, const struct db_target *target,
                             struct error *error)
{
    *site = (struct kernel_site){
        .kernel = kernel, .arena = ARENA(1024), .migrates = kernel && kernel_migrates(kernel)};
    site->target = db_target_copy(target, NULL, &site->arena);
    site->target.fixed_plans = true;
    if (kernel) {
        site->home = loop_group_loop(kernel->loops, 0);
        site->target.server = db_server_find(&kernel->servers, target);
    }
    return db_pool_create(&site->target, &site->pool, error);
}

void kernel_site_deinit(struct kernel_site *site)
{
    db_pool_destroy(site->pool);
    arena_deinit(&site->arena);
}

/* ---- schema and health ---- */

static enum status prepare_schema(const struct kernel_site *site, struct db_pool *pool,
                                  const struct db_schema *schema, int64_t deadline_ns, struct error *error)
{
    unsigned missing = 0, count = 0;
    enum status status =
        db_migrate_check(pool, schema->module, schema->migrations, deadline_ns, &missing, error);
    if (status != STATUS_OK || missing == 0)
        return status;
    if (!site->migrates)
        return error_set(error, STATUS_CONFIG, "migration %u of %s is not applied: run `freshet migrate`",
                         missing, schema->module);
    status = db_migrate(pool, schema->module, schema->migrations, deadline_ns, &count, error);
    if (status != STATUS_OK || count == 0) /* 0: another process was quicker */
        return status;
    log_info("schema_migrated", LOG_CSTR("database", site->target.name), LOG_CSTR("module", schema->module),
             LOG_INT("applied", count));
    return STATUS_OK;
}

enum status kernel_site_prepare(struct kernel_site *site, struct db_pool *pool,
                                const struct db_schema *schemas, int64_t deadline_ns, struct error *error)
{
    size_t count = 0;
    if (atomic_load(&site->is_ready))
        return STATUS_OK;
    site->schemas[count++] = (struct db_schema){"platform", platform_migrations};
    while (schemas->module && count < KERNEL_SCHEMAS_MAX - 1)
        site->schemas[count++] = *schemas++;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        status = prepare_schema(site, pool, &site->schemas[i], deadline_ns, error);
    atomic_store(&site->is_ready, status == STATUS_OK);
    return status;
}

/* A later release may have changed the schema in a way that this program does not survive, although it should have ended
 * before. What runs cannot be taken back for one database, so the process stops; when it is started again, it refuses that
 * database and serves the others. */
static int64_t schema_step(struct task *task, void *context)
{
    struct kernel_site *site = context;
    struct error error = {0};
    (void)task;
    if (db_schemas_check_age(site->pool, site->schemas, clock_deadline_ms(SCHEMA_TIMEOUT_MS), &error) ==
        STATUS_CONFIG) {
        log_error("schema_too_new", LOG_CSTR("database", site->target.name), LOG_ERROR_FIELDS(&error));
        atomic_store(&site->kernel->must_stop, true);
    }
    return TASK_MS(SCHEMA_EVERY_MS);
}

void kernel_site_report(struct kernel_site *site, enum status status, const struct error *error)
{
    const char *address = db_pool_address(site->pool);
    bool is_down = status != STATUS_OK;
    bool was_down = atomic_exchange(&site->state, is_down ? SITE_DOWN : SITE_UP) == SITE_DOWN;
    /* Before it ran for the first time, another kind of failure is logged too: where the server was away, the schema may be. */
    bool is_known = was_down && (atomic_load(&site->is_running) || site->logged == status);
    if (is_down && !is_known && status != STATUS_CANCELLED) {
        site->logged = status;
        log_error(site->is_store ? "store_unavailable" : "database_unavailable",
                  LOG_CSTR("database", site->target.name), LOG_CSTR("address", address),
                  LOG_ERROR_FIELDS(error));
    }
    if (!is_down && was_down)
        log_info(site->is_store ? "store_available" : "database_available",
                 LOG_CSTR("database", site->target.name), LOG_CSTR("address", address));
}

/* ---- what runs ---- */

void kernel_site_add_bus(struct kernel_site *site, struct bus *bus)
{
    site->buses[site->bus_count++] = bus;
}

enum status kernel_site_add_outbox(struct kernel_site *site, const struct outbox_config *config,
                                   struct outbox **outbox, struct error *error)
{
    struct outbox_config whole = *config;
    whole.loop = site->home;
    whole.workers = site->workers;
    whole.target = &site->target;
    if (site->outbox_count == KERNEL_OUTBOXES_MAX)
        return error_set(error, STATUS_INTERNAL, "more than %d outboxes", KERNEL_OUTBOXES_MAX);
    enum status status = outbox_create(&whole, outbox, error);
    if (status == STATUS_OK)
        site->outboxes[site->outbox_count++] = *outbox;
    return status;
}

struct task *kernel_site_task(const struct kernel_site *site, const char *name, task_run_fn *run,
                              void *context)
{
    return task_create(&(struct task_config){
        .name = name, .loop = site->home, .pool = site->workers, .run = run, .context = context});
}

void kernel_site_adopt_task(struct kernel_site *site, struct task *task, int64_t delay_ns)
{
    if (site->task_count == KERNEL_TASKS_MAX)
        abort();
    site->tasks[site->task_count++] = (struct kernel_site_task){task, delay_ns};
}

void kernel_site_add_task(struct kernel_site *site, const char *name, task_run_fn *run, void *context,
                          int64_t delay_ns)
{
    kernel_site_adopt_task(site, kernel_site_task(site, name, run, context), delay_ns);
}

static void destroy_parts(struct kernel_site *site)
{
    for (; site->part_count > 0; site->part_count--) {
        size_t i = site->part_count - 1;
        if (site->made[i] && site->parts[i]->destroy)
            site->parts[i]->destroy(site->made[i]);
    }
}

static void destroy_buses(struct kernel_site *site)
{
    while (site->bus_count > 0)
        bus_destroy(site->buses[--site->bus_count]);
}

enum status kernel_site_run(struct kernel_site *site, const struct kernel_part *const *parts, void *owner,
                            struct error *error)
{
    site->parts = parts;
    error->status = STATUS_OK;
    for (; parts[site->part_count] && error->status == STATUS_OK; site->part_count++) {
        const struct kernel_part *part = parts[site->part_count];
        bool is_wanted = !part->roles[0];
        for (const char *const *role = part->roles; *role; role++)
            is_wanted |= kernel_has_role(site->kernel, *role);
        site->made[site->part_count] = is_wanted ? part->create(owner, error) : NULL;
    }
    if (error->status != STATUS_OK) {
        destroy_parts(site);
        destroy_buses(site);
        return error->status;
    }
    site->pod = kernel_pod_writer_create(site);
    kernel_site_add_task(site, "schema", schema_step, site, TASK_MS(SCHEMA_EVERY_MS));
    for (size_t i = 0; i < site->bus_count; i++)
        bus_start(site->buses[i]);
    for (size_t i = 0; i < site->part_count; i++)
        if (site->made[i] && parts[i]->start)
            parts[i]->start(site->made[i]);
    for (size_t i = 0; i < site->outbox_count; i++)
        outbox_start(site->outboxes[i]);
    for (size_t i = 0; i < site->task_count; i++)
        task_start(site->tasks[i].task, site->tasks[i].delay_ns);
    atomic_store(&site->is_running, true);
    return STATUS_OK;
}

/* ---- the end ---- */

static void on_grace_over(struct loop_timer *timer)
{
    struct kernel_site *site = CONTAINER_OF(timer, struct kernel_site, grace);
    db_pool_interrupt(site->pool);
    for (size_t i = 0; i < site->bus_count; i++)
        bus_interrupt(site->buses[i]);
    for (size_t i = 0; i < site->outbox_count; i++)
        outbox_interrupt(site->outboxes[i]);
    for (size_t i = 0; i < site->part_count; i++)
        if (site->made[i] && site->parts[i]->interrupt)
            site->parts[i]->interrupt(site->made[i]);
}

static void start_grace(void *arg)
{
    struct kernel_site *site = arg;
    loop_timer_start(site->home, &site->grace, site->stop_deadline_ns, on_grace_over);
}

static void end_grace(void *arg)
{
    struct kernel_site *site = arg;
    loop_timer_stop(site->home, &site->grace);
}

static int64_t grace_left_ms(const struct kernel_site *site)
{
    int64_t left_ms = (site->stop_deadline_ns - clock_mono_ns()) / CLOCK_NS_PER_MS;
    return left_ms > GRACE_MIN_MS ? left_ms : GRACE_MIN_MS;
}

static void stop_tasks(struct kernel_site *site, int64_t grace_ns)
{
    for (size_t i = 0; i < site->task_count; i++)
        (void)task_stop(site->tasks[i].task, grace_ns);
}

void kernel_site_stop_begin(struct kernel_site *site, int64_t grace_ms)
{
    int64_t deadline_ns = clock_deadline_ms(grace_ms), least_ns = clock_deadline_ms(GRACE_MIN_MS);
    if (deadline_ns > site->kernel->stop_deadline_ns)
        deadline_ns = site->kernel->stop_deadline_ns;
    site->stop_deadline_ns = deadline_ns > least_ns ? deadline_ns : least_ns;
    stop_tasks(site, TASK_NOW);
    loop_group_call(site->kernel->loops, start_grace, site);
}

static void stop_parts(struct kernel_site *site, bool outlives_buses)
{
    for (size_t i = site->part_count; i-- > 0;)
        if (site->made[i] && site->parts[i]->stop && site->parts[i]->outlives_buses == outlives_buses)
            site->parts[i]->stop(site->made[i]);
}

void kernel_site_stop_senders(struct kernel_site *site)
{
    stop_parts(site, false);
    for (size_t i = 0; i < site->outbox_count; i++)
        outbox_stop(site->outboxes[i], grace_left_ms(site));
}

void kernel_site_stop(struct kernel_site *site)
{
    for (size_t i = site->bus_count; i-- > 0;) /* the last may publish to the first */
        bus_stop(site->buses[i], grace_left_ms(site));
    stop_parts(site, true);
    kernel_pod_writer_stop(site->pod);
    if (site->pool)
        db_pool_interrupt(site->pool);
    stop_tasks(site, TASK_FOREVER);
    if (site->workers)
        worker_pool_stop(site->workers);
    loop_group_call(site->kernel->loops, end_grace, site); /* after whatever the workers posted */
}

void kernel_site_close(struct kernel_site *site)
{
    destroy_parts(site);
    while (site->outbox_count > 0)
        outbox_destroy(site->outboxes[--site->outbox_count]);
    destroy_buses(site);
    while (site->task_count > 0)
        task_destroy(site->tasks[--site->task_count].task);
    kernel_pod_writer_destroy(site->pod);
    site->pod = NULL;
    if (site->workers)
        worker_pool_destroy(site->workers);
    site->workers = NULL;
}
