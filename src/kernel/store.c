/* The store's life. A task looks at PostgreSQL: until the schema is in place (put there by this process, or by others where
 * migrations are not ours), then whether it answers, so that a process without requests knows when it went and when it is
 * back. When the schema is in place the bus is opened, the modules are called, and the outbox engines start.
 *
 * The end, in this order, each step while what it needs still works:
 *   1. no look and no retention begins, and the clock of the grace runs: when it is over, whatever waits for PostgreSQL
 *      or NATS is interrupted; lookups of hydration end, so that no thread of a module waits for one;
 *   2. outbox engines finish what they claimed, for which the bus must still publish; modules stop;
 *   3. the bus stops: handlers of events run till here, so what they touch lives until a module's destroy();
 *   4. the pool is interrupted, the workers end. */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/bus_postgres.h"
#include "hydration/hydration.h"
#include "kernel/kernel_inside.h"
#include "kernel/store_inside.h"
#include "outbox/outbox.h"

enum {
    OWN_THREADS = 12, /* beside handlers of events: four outboxes with two tasks each, retention, upkeep */
    GRACE_MS = 3000,
    GRACE_MIN_MS = 200,
    HOST_BYTES = 256,
    LOOK_MS = 1000,
    LOOK_TIMEOUT_MS = 3000,
    MIGRATE_TIMEOUT_MS = 120000,
};

/* ---- where it is ---- */

static void take_first(const struct db_target *target, void *arg)
{
    struct db_target *first = arg;
    if (!first->url.len)
        *first = *target;
}

bool kernel_store_find(struct config *config, const struct module *const *modules, struct db_target *target)
{
    const struct kernel_postgres *own = config_section(config, "postgres");
    *target = (struct db_target){0};
    if (own->url.len)
        *target = kernel_postgres_target(own);
    for (; *modules && !target->url.len; modules++)
        if ((*modules)->each_database)
            (*modules)->each_database(config, config_section(config, (*modules)->section->name), take_first,
                                      target);
    target->name = "store";
    target->fixed_plans = true; /* every name in our SQL is qualified, whatever the schema */
    return target->url.len > 0;
}

enum status kernel_store_check(const struct config *config, struct error *error)
{
    const struct kernel_postgres *own = config_section(config, "postgres");
    const struct db_target target = kernel_postgres_target(own);
    struct error reason = {0};
    if (own->password_env.len && !getenv(own->password_env.ptr))
        return config_error_at(config, own->password_place, "postgres.passwordFromEnv", error,
                               "the environment variable %s is not set", own->password_env.ptr);
    if (!own->url.len && (own->username.len || own->password_env.len))
        return config_error_at(config, own->username.len ? own->username_place : own->password_place,
                               "postgres.jdbcUrl", error,
                               "is missing: username or passwordFromEnv is set, but not the server");
    if (own->url.len && db_target_check(&target, &reason) != STATUS_OK)
        return config_error_at(config, own->place, "postgres.jdbcUrl", error, "%s", reason.message);
    return STATUS_OK;
}

/* ---- what modules use ---- */

struct loop *kernel_store_loop(struct kernel *kernel)
{
    return kernel->store->home;
}

struct db_pool *kernel_store_pool(struct kernel *kernel)
{
    return kernel->store->site.pool;
}

struct worker_pool *kernel_store_workers(struct kernel *kernel)
{
    return kernel->store->workers;
}

bool kernel_store_is_ready(const struct kernel *kernel)
{
    return kernel->store && atomic_load(&kernel->store->state) >= STORE_GONE;
}

bool kernel_store_is_up(const struct kernel *kernel)
{
    return kernel->store && atomic_load(&kernel->store->state) == STORE_UP;
}

struct bus *kernel_events(struct kernel *kernel)
{
    return kernel->store ? atomic_load(&kernel->store->events) : NULL;
}

static int64_t grace_left_ms(const struct kernel_store *store)
{
    int64_t left_ms = (store->stop_deadline_ns - clock_mono_ns()) / CLOCK_NS_PER_MS;
    return left_ms > GRACE_MIN_MS ? left_ms : GRACE_MIN_MS;
}

static char host_name[HOST_BYTES];

static void find_host_name(void)
{
    const char *from_environment = getenv("HOSTNAME");
    if (from_environment && *from_environment && str_is_utf8(str_from(from_environment)))
        snprintf(host_name, sizeof host_name, "%s", from_environment);
    else if (gethostname(host_name, sizeof host_name - 1) != 0 || !*host_name)
        snprintf(host_name, sizeof host_name, "unknown");
}

const char *kernel_host_name(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_host_name);
    return host_name;
}

enum status kernel_outbox_create(struct kernel *kernel, const struct outbox_config *config,
                                 struct outbox **outbox, struct error *error)
{
    struct kernel_store *store = kernel->store;
    struct outbox_config whole = *config;
    whole.loop = store->home;
    whole.workers = store->workers;
    whole.target = &store->site.target;
    if (store->outbox_count == KERNEL_OUTBOXES_MAX)
        return error_set(error, STATUS_INTERNAL, "more than %d outboxes", KERNEL_OUTBOXES_MAX);
    enum status status = outbox_create(&whole, outbox, error);
    if (status == STATUS_OK)
        store->outboxes[store->outbox_count++] = *outbox;
    return status;
}

/* ---- the look, on a thread and a connection of its own: a busy database must not look like a dead one ---- */

/* Of all modules, whichever roles run here: any other process finds what it needs. */
static enum status prepare_schemas(struct kernel_store *store)
{
    struct kernel_schema schemas[KERNEL_MODULES_MAX + 2] = {{"platform", platform_migrations}};
    size_t count = 1;
    for (const struct module *const *at = store->kernel->options.modules; *at; at++)
        if ((*at)->keeps_store && (*at)->migrations)
            schemas[count++] = (struct kernel_schema){(*at)->name, (*at)->migrations};
    return kernel_site_prepare(&store->site, store->look_pool, schemas, clock_deadline_ms(MIGRATE_TIMEOUT_MS),
                               &store->look_error);
}

static const struct db_statement answer_sql = DB_STATEMENT("select 1");

static enum status ask_for_answer(struct kernel_store *store)
{
    int64_t deadline_ns = clock_deadline_ms(LOOK_TIMEOUT_MS);
    struct db_conn *conn = NULL;
    enum status status = db_acquire(store->look_pool, deadline_ns, &conn, &store->look_error);
    if (status == STATUS_OK)
        status = db_exec(conn, &answer_sql, NULL, deadline_ns, NULL, &store->look_error);
    db_release(conn);
    return status;
}

static int64_t store_look(struct task *task, void *context)
{
    struct kernel_store *store = context;
    store->look_error = (struct error){0};
    store->look_status = atomic_load(&store->site.is_ready) ? ask_for_answer(store) : prepare_schemas(store);
    return store->look_status == STATUS_OK ? TASK_MS(LOOK_MS) : task_retry(task);
}

/* When it begins, when the reason is another, and when it is over. */
static void log_look(struct kernel_store *store)
{
    const char *address = db_pool_address(store->site.pool);
    bool is_known = strcmp(store->logged, store->look_error.message) == 0;
    snprintf(store->logged, sizeof store->logged, "%s", store->look_error.message);
    if (store->look_status != STATUS_OK && !is_known)
        log_error("store_unavailable", LOG_CSTR("address", address), LOG_ERROR_FIELDS(&store->look_error));
    if (store->look_status == STATUS_OK && !is_known)
        log_info("store_available", LOG_CSTR("address", address));
}

static void start_users(struct kernel_store *store)
{
    struct kernel *kernel = store->kernel;
    kernel_hydration_start(store);
    for (size_t i = 0; i < kernel->module_count; i++)
        if (kernel->modules[i].started && kernel->modules[i].module->on_store)
            kernel->modules[i].module->on_store(kernel->modules[i].state);
    for (size_t i = 0; i < store->outbox_count; i++)
        outbox_start(store->outboxes[i]);
    log_info("store_ready", LOG_CSTR("address", db_pool_address(store->site.pool)));
}

/* On the home loop. */
static void store_looked(void *context)
{
    struct kernel_store *store = context;
    bool was_ready = kernel_store_is_ready(store->kernel);
    if (store->look_status == STATUS_OK && !was_ready)
        store->look_status = kernel_events_open(store, &store->look_error);
    log_look(store);
    bool is_up = store->look_status == STATUS_OK;
    if (is_up && !was_ready)
        start_users(store);
    atomic_store(&store->state, is_up ? STORE_UP : was_ready ? STORE_GONE : STORE_AWAITED);
}

/* ---- life ---- */

static bool is_kept(const struct kernel *kernel)
{
    for (const struct module *const *at = kernel->options.modules; *at; at++)
        if ((*at)->keeps_store && kernel_wants_module(kernel, *at))
            return true;
    return false;
}

static bool is_used(const struct kernel *kernel)
{
    for (const struct module *const *at = kernel->options.modules; *at; at++)
        if ((*at)->uses_store && kernel_wants_module(kernel, *at) &&
            (*at)->uses_store(kernel, config_section(kernel->config, (*at)->section->name)))
            return true;
    return false;
}

enum status kernel_store_create(struct kernel *kernel, struct error *error)
{
    struct db_target target, look;
    bool kept = is_kept(kernel);
    if (!kept && !is_used(kernel))
        return STATUS_OK;
    bool found = kernel_store_find(kernel->config, kernel->options.modules, &target);
    if (!found && !kept)
        return STATUS_OK;
    if (!found)
        return error_set_field(error, STATUS_CONFIG, "postgres.jdbcUrl",
                               "is missing: these roles keep tables in a PostgreSQL of the modules");
    struct kernel_store *store = kernel->store = memory_zalloc(sizeof *store);
    store->kernel = kernel;
    store->home = loop_group_loop(kernel->loops, 0);
    store->workers = worker_pool_create("store", kernel_events_handlers(kernel) + OWN_THREADS, SIZE_MAX);
    store->looker = worker_pool_create("store-look", 1, 1);
    store->look = task_create(&(struct task_config){.name = "store-look",
                                                    .loop = store->home,
                                                    .pool = store->looker,
                                                    .run = store_look,
                                                    .finish = store_looked,
                                                    .context = store});
    enum status status = kernel_site_init(&store->site, kernel, &target, error);
    look = store->site.target;
    look.name = "store-look";
    look.connections_max = 1;
    if (status == STATUS_OK)
        status = db_pool_create(&look, &store->look_pool, error);
    if (status != STATUS_OK)
        return error_context(error, "postgres");
    kernel_hydration_create(store);
    return STATUS_OK;
}

void kernel_store_start(struct kernel *kernel)
{
    if (!kernel->store)
        return;
    kernel_hydration_warn(kernel->store);
    task_start(kernel->store->look, TASK_NOW);
}

/* ---- the end ---- */

struct home_call {
    struct loop_message message;
    struct kernel_store *store;
    void (*fn)(struct kernel_store *store);
    sem_t done;
};

static void on_home_call(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct home_call *call = (struct home_call *)message;
    call->fn(call->store);
    sem_post(&call->done);
}

static void call_home(struct kernel_store *store, void (*fn)(struct kernel_store *store))
{
    if (!loop_group_is_running(store->kernel->loops)) { /* the start failed: no other thread is there */
        fn(store);
        return;
    }
    struct home_call call = {.message.on_message = on_home_call, .store = store, .fn = fn};
    sem_init(&call.done, 0, 0);
    loop_post(store->home, &call.message);
    while (sem_wait(&call.done) != 0)
        ; /* interrupted by a signal */
    sem_destroy(&call.done);
}

static void interrupt_pools(struct kernel_store *store)
{
    if (store->site.pool)
        db_pool_interrupt(store->site.pool);
    if (store->look_pool)
        db_pool_interrupt(store->look_pool);
}

static void on_grace_over(struct loop_timer *timer)
{
    struct kernel_store *store = CONTAINER_OF(timer, struct kernel_store, grace);
    struct bus *events = atomic_load(&store->events);
    interrupt_pools(store);
    if (events)
        bus_interrupt(events);
}

static void start_grace(struct kernel_store *store)
{
    loop_timer_start(store->home, &store->grace, store->stop_deadline_ns, on_grace_over);
}

static void end_grace(struct kernel_store *store)
{
    loop_timer_stop(store->home, &store->grace);
}

void kernel_store_begin_stop(struct kernel *kernel)
{
    struct kernel_store *store = kernel->store;
    if (!store)
        return;
    int64_t longest_ns = clock_deadline_ms(GRACE_MS), least_ns = clock_deadline_ms(GRACE_MIN_MS);
    int64_t deadline_ns = kernel->stop_deadline_ns < longest_ns ? kernel->stop_deadline_ns : longest_ns;
    store->stop_deadline_ns = deadline_ns > least_ns ? deadline_ns : least_ns;
    if (store->look_pool)
        db_pool_interrupt(store->look_pool);
    (void)!task_stop(store->look, TASK_FOREVER); /* no retention is added any more */
    (void)!kernel_retention_stop(store, 0);
    call_home(store, start_grace);
    if (store->hydration)
        hydration_stop(store->hydration);
    for (size_t i = 0; i < store->outbox_count; i++)
        outbox_stop(store->outboxes[i], grace_left_ms(store));
}

void kernel_store_finish_stop(struct kernel *kernel)
{
    struct kernel_store *store = kernel->store;
    struct bus *events = kernel_events(kernel);
    if (!store)
        return;
    if (events)
        bus_stop(events, grace_left_ms(store));
    interrupt_pools(store);
    (void)!kernel_retention_stop(store, TASK_FOREVER);
    worker_pool_stop(store->workers);
    worker_pool_stop(store->looker);
    call_home(store, end_grace); /* after whatever the workers posted */
}

void kernel_store_destroy(struct kernel *kernel)
{
    struct kernel_store *store = kernel->store;
    if (!store)
        return;
    hydration_destroy(store->hydration);
    bus_destroy(kernel_events(kernel));
    for (size_t i = 0; i < store->outbox_count; i++)
        outbox_destroy(store->outboxes[i]);
    kernel_retention_destroy(store);
    task_destroy(store->look);
    worker_pool_destroy(store->workers);
    worker_pool_destroy(store->looker);
    db_pool_destroy(store->look_pool);
    kernel_site_deinit(&store->site);
    free(store);
    kernel->store = NULL;
}

/* ---- health ---- */

void kernel_store_health(const struct kernel *kernel, struct health *health)
{
    const struct kernel_store *store = kernel->store;
    if (!store)
        return;
    bool up = kernel_store_is_up(kernel), ready = kernel_store_is_ready(kernel);
    health_component(health, "postgres", STR("store"), up,
                     up      ? STR_NONE
                     : ready ? STR("PostgreSQL does not answer")
                             : STR("waiting for PostgreSQL and its schema"));
    if (kernel_bus(kernel)->events == KERNEL_NATS)
        health_component(health, "nats", STR("events"), kernel_events_are_up(kernel),
                         ready ? STR_NONE : STR("waiting for PostgreSQL"));
    if (atomic_load(&store->state) == STORE_UNKNOWN) /* the first look is under way */
        health_starting(health);
}

void kernel_store_role_health(const struct kernel *kernel, const struct module *module, struct health *health)
{
    bool up = kernel_store_is_up(kernel);
    for (const char *const *role = module->roles; *role; role++)
        if (kernel_has_role(kernel, *role))
            health_role(health, *role, up, up ? STR_NONE : STR("waiting for PostgreSQL"));
}
