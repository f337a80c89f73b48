/* A process's life: configuration → loops, workers, authentication → modules → HTTP → signals → the same backwards.
 * The order is the whole content of this file; every part lives elsewhere. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "fetch/fetch.h"
#include "idempotency/idempotency.h"
#include "kernel/engines.h"
#include "kernel/kernel_inside.h"
#include "kernel/store_inside.h"

enum { VERIFIER_THREADS = 2 };

/* ---- what modules ask for ---- */

struct loop_group *kernel_loops(struct kernel *kernel)
{
    return kernel->loops;
}

struct worker_pool *kernel_workers(struct kernel *kernel)
{
    return kernel->workers;
}

static bool list_has(struct str list, struct str wanted)
{
    struct str part;
    while (str_split(&list, ',', &part))
        if (str_eq(str_trim(part), wanted))
            return true;
    return false;
}

bool kernel_has_role(const struct kernel *kernel, const char *role)
{
    return kernel->options.roles.len == 0 || list_has(kernel->options.roles, str_from(role));
}

const struct kernel_bus_settings *kernel_bus(const struct kernel *kernel)
{
    return config_section(kernel->first, "bus");
}

bool kernel_debug_is_enabled(const struct kernel *kernel)
{
    return ((const struct kernel_debug_settings *)config_section(kernel->first, "debug"))->enabled;
}

bool kernel_migrates(const struct kernel *kernel)
{
    const struct kernel_bus_settings *bus = kernel_bus(kernel);
    enum { AUTO, ALWAYS, NEVER };
    if (bus->migrate != AUTO)
        return bus->migrate == ALWAYS;
    return bus->commands == 0 && bus->invalidations == 0 && bus->events == 0;
}

/* ---- configuration ---- */

const struct config_section *kernel_sections(const struct module *const *modules, struct arena *arena)
{
    size_t count = 0;
    struct config_section *sections =
        arena_zalloc(arena, (KERNEL_MODULES_MAX + KERNEL_SECTIONS_MAX) * sizeof *sections);
    for (const struct config_section *own = kernel_own_sections; own->name; own++)
        sections[count++] = *own;
    for (; *modules; modules++)
        if ((*modules)->section)
            sections[count++] = *(*modules)->section;
    return sections;
}

/* An address, not a name that begins like one: 127.example.com may be anywhere. */
static bool is_loopback(struct str address)
{
    size_t digits = 0;
    while (digits < address.len && memchr("0123456789.", address.ptr[digits], 11))
        digits++;
    return (str_starts_with(address, STR("127.")) && digits < address.len && address.ptr[digits] == ':') ||
           str_starts_with(address, STR("[::1]:")) || str_starts_with(address, STR("localhost:"));
}

/* C5: authentication can be switched off only together with a loopback-only listener. */
static enum status check_listen(const struct kernel_options *options, const struct config *config,
                                struct error *error)
{
    const struct kernel_http_settings *http = config_section(config, "http");
    const struct auth_settings *auth = config_section(config, "auth");
    for (size_t i = 0; i < http->listen.count; i++) {
        struct error own = {0};
        if (http_address_check(http->listen.items[i], &own) != STATUS_OK)
            return config_error_at(config, http->listen_place, "http.listen", error, "%s", own.message);
    }
    for (size_t i = 0; i < http->listen.count && !options->listen.len; i++)
        if (!auth->enabled && !is_loopback(http->listen.items[i]))
            return config_error_at(
                config, http->listen_place, "http.listen", error,
                "auth.enabled is false, which is allowed only on loopback addresses; %.*s is none",
                STR_ARG(http->listen.items[i]));
    if (options->listen.len && !auth->enabled && !is_loopback(options->listen))
        return error_set(error, STATUS_CONFIG,
                         "--listen: auth.enabled is false, which is allowed only on loopback");
    return STATUS_OK;
}

static enum status check_auth(const struct kernel_options *options, const struct config *config,
                              struct error *error)
{
    struct auth_settings settings = kernel_auth_settings(config, options->modules);
    struct setting_place place;
    struct error own = {0};
    if (auth_settings_check(&settings, &place, &own) == STATUS_OK)
        return STATUS_OK;
    return config_error_at(config, place, own.field, error, "%s", own.message);
}

static void complete_modules(const struct kernel_options *options, struct config *config)
{
    for (size_t i = 0; options->modules[i]; i++) {
        const struct module *module = options->modules[i];
        if (module->complete)
            module->complete(config, (void *)(uintptr_t)config_section(config, module->section->name));
    }
}

static enum status check_modules(const struct kernel_options *options, const struct config *config,
                                 struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; options->modules[i] && status == STATUS_OK; i++) {
        const struct module *module = options->modules[i];
        if (module->check)
            status = module->check(config, config_section(config, module->section->name), error);
    }
    return status == STATUS_OK ? kernel_events_check(config, options->modules, error) : status;
}

struct config *kernel_config_load(const struct kernel_options *options, struct buf *problems)
{
    struct arena arena;
    struct error error = {0};
    struct config *config = NULL;
    arena_init(&arena, 4096);
    const struct config_section *sections = kernel_sections(options->modules, &arena);
    enum status status = config_load(options->config_path, sections, &config, problems, &error);
    if (status == STATUS_OK) {
        complete_modules(options, config);
        status = check_listen(options, config, &error);
    }
    if (status == STATUS_OK)
        status = kernel_engines_check(config, &error);
    if (status == STATUS_OK)
        status = kernel_store_check(config, &error);
    if (status == STATUS_OK)
        status = check_modules(options, config, &error);
    if (status == STATUS_OK)
        status = check_auth(options, config, &error);
    if (status != STATUS_OK) {
        if (buf_len(problems) == 0)
            buf_printf(problems, "%s\n", error.message);
        if (config)
            config_free(config);
        config = NULL;
    }
    arena_deinit(&arena);
    return config;
}

struct config *kernel_config_load_or_say(const struct kernel_options *options)
{
    struct buf problems;
    buf_init(&problems);
    struct config *config = kernel_config_load(options, &problems);
    fprintf(stderr, "%.*s", STR_ARG(buf_str(&problems)));
    buf_deinit(&problems);
    return config;
}

/* ---- start ---- */

static bool knows_role(const struct module *const *modules, struct str wanted)
{
    for (; *modules; modules++)
        for (const char *const *role = (*modules)->roles; *role; role++)
            if (str_eq(str_from(*role), wanted))
                return true;
    return false;
}

static bool check_roles(const struct kernel_options *options)
{
    struct str rest = options->roles, role;
    while (str_split(&rest, ',', &role)) {
        if (knows_role(options->modules, str_trim(role)))
            continue;
        fprintf(stderr, "freshet: --roles: there is no role \"%.*s\"; known are:", STR_ARG(role));
        for (const struct module *const *module = options->modules; *module; module++)
            for (const char *const *known = (*module)->roles; *known; known++)
                fprintf(stderr, " %s", *known);
        fprintf(stderr, "\n");
        return false;
    }
    return true;
}

bool kernel_wants_module(const struct kernel *kernel, const struct module *module)
{
    for (const char *const *role = module->roles; *role; role++)
        if (kernel_has_role(kernel, *role))
            return true;
    return false;
}

/* Before any thread is made: they inherit the mask, and only kernel_watch() takes signals. */
static void block_signals(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static enum status add_routes(struct kernel *kernel, const struct kernel_module *entry, struct error *error)
{
    enum status status = STATUS_OK;
    for (const struct module_routes *at = entry->module->routes; at && at->role && status == STATUS_OK; at++)
        if (kernel_has_role(kernel, at->role))
            status = http_router_add(kernel->router, at->routes, entry->state, error);
    return status;
}

static enum status start_modules(struct kernel *kernel, struct error *error)
{
    for (const struct module *const *at = kernel->options.modules; *at; at++) {
        const struct module *module = *at;
        struct kernel_module *entry = &kernel->modules[kernel->module_count++];
        entry->module = module;
        if (!kernel_wants_module(kernel, module))
            continue;
        for (struct metric_family *const *family = module->metrics; family && *family; family++)
            metrics_register(*family);
        enum status status = module->start(kernel, config_section(kernel->config, module->section->name),
                                           &entry->state, error);
        if (status != STATUS_OK)
            return error_context(error, "%s", module->name);
        entry->started = true;
        if ((status = add_routes(kernel, entry, error)) != STATUS_OK)
            return status;
    }
    return http_router_add(kernel->router, kernel_actuator_routes, kernel, error);
}

static enum status start_server(struct kernel *kernel, struct error *error)
{
    const struct kernel_http_settings *http = config_section(kernel->config, "http");
    enum status status = http_server_create(
        &(struct http_server_config){
            .group = kernel->loops,
            .workers = kernel->workers,
            .router = kernel->router,
            .limits = kernel_http_limits(http),
            .gate = kernel_gate,
            .gate_context = kernel,
            .idempotency = kernel_idempotency_step,
            .on_idempotency_end = kernel_leave,
            .idempotency_context = kernel,
            .share_of = kernel_share_of,
        },
        &kernel->server, error);
    if (status == STATUS_OK && kernel->options.listen.len)
        return http_server_listen(kernel->server, kernel->options.listen, error);
    for (size_t i = 0; status == STATUS_OK && i < http->listen.count; i++)
        status = http_server_listen(kernel->server, http->listen.items[i], error);
    return status;
}

static enum status start(struct kernel *kernel, struct error *error)
{
    const struct kernel_http_settings *http = config_section(kernel->config, "http");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned loops = http->loops ? (unsigned)http->loops : (unsigned)(cores > 0 ? cores : 1);
    kernel->loops = loop_group_create(loops, (unsigned)http->parked_max);
    kernel->workers = worker_pool_create("worker", (unsigned)http->workers, (size_t)http->worker_queue);
    kernel->scrape = kernel_scrape_create();
    kernel->router = http_router_create();
    kernel->idempotency = idempotency_create(IDEMPOTENCY_WAIT_MS);
    struct auth_settings auth = kernel_auth_settings(kernel->config, kernel->options.modules);
    kernel->verifiers = worker_pool_create("verify", VERIFIER_THREADS, (size_t)http->worker_queue);
    enum status status = auth_create(&auth, kernel->loops, kernel->verifiers, &kernel->auth, error);
    if (status == STATUS_OK)
        status = kernel_store_create(kernel, error);
    if (status == STATUS_OK)
        status = start_modules(kernel, error);
    if (status == STATUS_OK)
        status = start_server(kernel, error);
    if (status != STATUS_OK)
        return status;
    kernel_store_start(kernel);
    loop_group_start(kernel->loops);
    return STATUS_OK;
}

/* ---- stop: what takes requests first, what serves them last ---- */

static void on_drained(void *arg)
{
    atomic_store((atomic_bool *)arg, true);
}

static void drain(struct kernel *kernel)
{
    const struct kernel_http_settings *http = config_section(kernel->config, "http");
    atomic_bool drained = false;
    kernel->stop_deadline_ns = clock_deadline_ms(http->stop_timeout_ms);
    http_server_drain(kernel->server, kernel->stop_deadline_ns, on_drained, &drained);
    while (!atomic_load(&drained))
        nanosleep(&(struct timespec){.tv_nsec = 2 * CLOCK_NS_PER_MS}, NULL);
}

static void stop(struct kernel *kernel)
{
    fetch_stop();
    kernel_store_begin_stop(kernel);
    for (size_t i = kernel->module_count; i-- > 0;)
        if (kernel->modules[i].started && kernel->modules[i].module->stop)
            kernel->modules[i].module->stop(kernel->modules[i].state);
    kernel_store_finish_stop(kernel);
    if (kernel->workers)
        worker_pool_stop(kernel->workers);
    if (kernel->verifiers)
        worker_pool_stop(kernel->verifiers);
    if (kernel->scrape)
        kernel_scrape_stop(kernel->scrape);
    if (kernel->loops)
        loop_group_stop(kernel->loops);
}

static void destroy(struct kernel *kernel)
{
    if (kernel->server)
        http_server_destroy(kernel->server);
    for (size_t i = kernel->module_count; i-- > 0;)
        if (kernel->modules[i].started)
            kernel->modules[i].module->destroy(kernel->modules[i].state);
    kernel_store_destroy(kernel);
    if (kernel->auth)
        auth_destroy(kernel->auth);
    if (kernel->loops)
        loop_group_destroy(kernel->loops);
    db_servers_destroy(kernel->servers); /* the loops freed the last of their users */
    if (kernel->idempotency)             /* what workers still had has left by now */
        idempotency_destroy(kernel->idempotency);
    if (kernel->workers)
        worker_pool_destroy(kernel->workers);
    if (kernel->verifiers)
        worker_pool_destroy(kernel->verifiers);
    if (kernel->scrape)
        kernel_scrape_destroy(kernel->scrape);
    if (kernel->router)
        http_router_destroy(kernel->router);
    if (kernel->first != kernel->config)
        config_free(kernel->first);
    config_free(kernel->config);
}

int kernel_serve(const struct kernel_options *options)
{
    struct kernel kernel = {.options = *options};
    struct error error = {0};
    if (!check_roles(options))
        return 1;
    kernel.config = kernel_config_load_or_say(options);
    if (!kernel.config)
        return 1;
    log_set_level(
        (enum log_level)((const struct kernel_log_settings *)config_section(kernel.config, "log"))->level);
    kernel.first = kernel.config;
    log_never_wait();
    kernel_descriptors_raise();
    block_signals();
    fetch_init();
    if (start(&kernel, &error) != STATUS_OK) {
        log_error("start_failed", LOG_ERROR_FIELDS(&error));
        stop(&kernel);
        destroy(&kernel);
        return 1;
    }
    log_info("serving", LOG_CSTR("program", FRESHET_VERSION),
             LOG_INT("port", http_server_port(kernel.server)),
             LOG_INT("loops", loop_group_count(kernel.loops)), LOG_CSTR("config", options->config_path));
    kernel_watch(&kernel);
    log_info("stopping");
    atomic_store(&kernel.stopping, true);
    drain(&kernel);
    stop(&kernel);
    destroy(&kernel);
    log_info("stopped");
    return 0;
}
