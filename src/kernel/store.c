/* The store's life. It opens nothing by itself: look.c finds PostgreSQL, and tells the modules when all stands.
 *
 * The end, in this order, each step while what it needs still works:
 *   1. no look and no retention from now on, and the clock of the grace runs: when it is over, whatever waits for PostgreSQL
 *      or NATS is given up; who waits for an entity is told that none comes, so that no thread of a module's waits for one;
 *   2. outbox engines finish what they claimed, for which the bus must still publish; modules stop;
 *   3. the bus stops: handlers of events run till here, so what they touch lives until a module's destroy();
 *   4. the pool is interrupted, the workers end. */
#include <pthread.h>
#include <semaphore.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "hydration/hydration.h"
#include "kernel/kernel_inside.h"
#include "kernel/store_inside.h"

enum {
    OWN_THREADS = 12, /* beside handlers of events: four outboxes with two jobs each, retention, upkeep */
    GRACE_MS = 3000,
    GRACE_MIN_MS = 200,
    HOST_BYTES = 256,
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
    target->fixed_plans = true;
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
                               "is missing: who connects is said, but not to where");
    if (own->url.len && db_target_check(&target, &reason) != STATUS_OK)
        return config_error_at(config, own->place, "postgres.jdbcUrl", error, "%s", reason.message);
    return STATUS_OK;
}

/* ---- what modules ask for ---- */

struct loop *kernel_store_loop(struct kernel *kernel)
{
    return kernel->store->home;
}

struct db_pool *kernel_store_pool(struct kernel *kernel)
{
    return kernel->store->pool;
}

struct worker_pool *kernel_store_workers(struct kernel *kernel)
{
    return kernel->store->workers;
}

bool kernel_store_is_ready(const struct kernel *kernel)
{
    return kernel->store && atomic_load(&kernel->store->ready);
}

bool kernel_store_is_up(const struct kernel *kernel)
{
    return kernel_store_is_ready(kernel) && atomic_load(&kernel->store->reachable);
}

struct bus *kernel_events(struct kernel *kernel)
{
    return kernel->store ? atomic_load(&kernel->store->events) : NULL;
}

int64_t kernel_stop_grace_ms(const struct kernel *kernel)
{
    int64_t left_ms = (kernel->store->stop_deadline_ns - clock_mono_ns()) / CLOCK_NS_PER_MS;
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

/* The texts outlive the configuration they came from, and the environment. */
static void copy_target(struct kernel_store *store, const struct db_target *target)
{
    store->target = *target;
    store->target.server = kernel_server_of(store->kernel, target);
    store->target.url = arena_str(&store->arena, target->url);
    store->target.username = arena_str(&store->arena, target->username);
    store->target.password = arena_str(&store->arena, target->password);
}

static enum status create_pools(struct kernel_store *store, struct error *error)
{
    struct db_target look = store->target;
    look.name = "store-look";
    look.connections_max = 1;
    enum status status = db_pool_create(&store->target, &store->pool, error);
    if (status == STATUS_OK)
        status = db_pool_create(&look, &store->look_pool, error);
    return status == STATUS_OK ? status : error_context(error, "postgres");
}

enum status kernel_store_create(struct kernel *kernel, struct error *error)
{
    struct db_target target;
    bool kept = is_kept(kernel);
    if (!kept && !is_used(kernel))
        return STATUS_OK;
    bool found = kernel_store_find(kernel->config, kernel->options.modules, &target);
    if (!found && !kept)
        return STATUS_OK;
    if (!found)
        return error_set_field(error, STATUS_CONFIG, "postgres.jdbcUrl",
                               "these roles keep tables of their own: say in which PostgreSQL");
    struct kernel_store *store = kernel->store = memory_zalloc(sizeof *store);
    arena_init(&store->arena, 1024);
    store->kernel = kernel;
    copy_target(store, &target);
    store->home = loop_group_loop(kernel->loops, 0);
    store->workers = worker_pool_create("store", kernel_events_handlers(kernel) + OWN_THREADS, SIZE_MAX);
    store->looker = worker_pool_create("store-look", 1, 1);
    enum status status = create_pools(store, error);
    if (status == STATUS_OK)
        kernel_hydration_create(store);
    return status;
}

void kernel_store_start(struct kernel *kernel)
{
    if (!kernel->store)
        return;
    kernel_hydration_warn(kernel->store);
    kernel_look_start(kernel->store);
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
    if (!loop_group_is_running(store->kernel->loops)) { /* a start that failed: nobody else is there */
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
    if (store->pool)
        db_pool_interrupt(store->pool);
    if (store->look_pool)
        db_pool_interrupt(store->look_pool);
}

static void on_grace_over(struct loop_timer *timer)
{
    struct kernel_store *store =
        (struct kernel_store *)((char *)timer - offsetof(struct kernel_store, grace));
    struct bus *events = atomic_load(&store->events);
    interrupt_pools(store);
    if (events)
        bus_interrupt(events);
}

static void begin_stop(struct kernel_store *store)
{
    store->stopping = true;
    loop_timer_stop(store->home, &store->look);
    kernel_retention_stop(store);
    loop_timer_start(store->home, &store->grace, store->stop_deadline_ns, on_grace_over);
    if (store->look_pool)
        db_pool_interrupt(store->look_pool);
}

static void end_grace(struct kernel_store *store)
{
    loop_timer_stop(store->home, &store->grace);
}

void kernel_store_begin_stop(struct kernel *kernel)
{
    if (!kernel->store)
        return;
    int64_t longest_ns = clock_deadline_ms(GRACE_MS), least_ns = clock_deadline_ms(GRACE_MIN_MS);
    int64_t deadline_ns = kernel->stop_deadline_ns < longest_ns ? kernel->stop_deadline_ns : longest_ns;
    kernel->store->stop_deadline_ns = deadline_ns > least_ns ? deadline_ns : least_ns;
    call_home(kernel->store, begin_stop);
    if (kernel->store->hydration)
        hydration_stop(kernel->store->hydration);
    kernel_outboxes_stop(kernel->store);
}

void kernel_store_finish_stop(struct kernel *kernel)
{
    struct kernel_store *store = kernel->store;
    struct bus *events = kernel_events(kernel);
    if (!store)
        return;
    if (events)
        bus_stop(events, kernel_stop_grace_ms(kernel));
    interrupt_pools(store);
    worker_pool_stop(store->workers);
    worker_pool_stop(store->looker);
    call_home(store, end_grace); /* behind whatever the workers posted */
}

void kernel_store_destroy(struct kernel *kernel)
{
    struct kernel_store *store = kernel->store;
    if (!store)
        return;
    hydration_destroy(store->hydration);
    bus_destroy(kernel_events(kernel));
    kernel_outboxes_destroy(store);
    kernel_retention_destroy(store);
    worker_pool_destroy(store->workers);
    worker_pool_destroy(store->looker);
    db_pool_destroy(store->pool);
    db_pool_destroy(store->look_pool);
    arena_deinit(&store->arena);
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
    if (!atomic_load(&store->looked)) /* the first look is under way: in a moment it is known */
        health_starting(health);
}

void kernel_store_role_health(const struct kernel *kernel, const struct module *module, struct health *health)
{
    bool up = kernel_store_is_up(kernel);
    for (const char *const *role = module->roles; *role; role++)
        if (kernel_has_role(kernel, *role))
            health_role(health, *role, up, up ? STR_NONE : STR("waiting for PostgreSQL"));
}
