/* A process's life: configuration → loops, workers, authentication → modules → HTTP → signals → the same backwards.
 * The order is the whole content of this file; every part lives elsewhere. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "fetch/fetch.h"
#include "idempotency/idempotency.h"
#include "kernel/audit.h"
#include "kernel/kernel_inside.h"
#include "kernel/traces.h"

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

bool kernel_has_role(const struct kernel *kernel, const char *role)
{
    struct str rest = kernel->options.roles, part;
    bool has = rest.len == 0;
    while (!has && str_split(&rest, ',', &part))
        has = str_eq(str_trim(part), str_from(role));
    return has;
}

const void *kernel_section(const struct kernel *kernel, const char *name)
{
    return config_section(kernel->first, name);
}

struct config *kernel_config(struct kernel *kernel)
{
    return kernel->config;
}

const struct config *kernel_config_first(const struct kernel *kernel)
{
    return kernel->first;
}

const struct module *const *kernel_modules(const struct kernel *kernel)
{
    return kernel->options.modules;
}

bool kernel_refused_config(struct kernel *kernel, struct buf *problems, int64_t *at_us)
{
    pthread_mutex_lock(&kernel->refused_lock);
    buf_put_str(problems, buf_str(&kernel->refused));
    *at_us = kernel->refused_us;
    pthread_mutex_unlock(&kernel->refused_lock);
    return buf_len(problems) > 0;
}

void *kernel_module_state(const struct kernel *kernel, const struct module *module)
{
    for (size_t i = 0; i < kernel->module_count; i++)
        if (kernel->modules[i].module == module && kernel->modules[i].started)
            return kernel->modules[i].state;
    return NULL;
}

const struct kernel_bus_settings *kernel_bus(const struct kernel *kernel)
{
    return kernel_section(kernel, "bus");
}

bool kernel_debug_is_enabled(const struct kernel *kernel)
{
    const struct kernel_debug_settings *debug = kernel_section(kernel, "debug");
    return debug->enabled;
}

bool kernel_migrates(const struct kernel *kernel)
{
    const struct kernel_bus_settings *bus = kernel_bus(kernel);
    enum { AUTO, ALWAYS, NEVER };
    if (bus->migrate != AUTO)
        return bus->migrate == ALWAYS;
    return bus->commands == 0 && bus->invalidations == 0 && bus->events == 0;
}

/* ---- start ---- */

static bool check_roles(const struct kernel_options *options)
{
    struct str rest = options->roles, wanted;
    while (str_split(&rest, ',', &wanted)) {
        struct buf known = {0};
        bool is_known = false;
        for (const struct module *const *module = options->modules; *module; module++)
            for (const char *const *role = (*module)->roles; *role; role++) {
                is_known |= str_eq(str_from(*role), str_trim(wanted));
                buf_printf(&known, " %s", *role);
            }
        if (!is_known)
            fprintf(stderr, "freshet serve: --roles: there is no role \"%.*s\"; known are:%.*s\n",
                    STR_ARG(wanted), STR_ARG(buf_str(&known)));
        buf_deinit(&known);
        if (!is_known)
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

/* Blocked before any thread is made: they inherit the mask, and only kernel_watch() takes signals. */
static sigset_t handled_signals(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    return signals;
}

static void set_log(const struct config *config)
{
    const struct kernel_log_settings *log = config_section(config, "log");
    log_set_level((enum log_level)log->level);
    http_set_access_log((enum http_access_log)log->access);
}

static enum status start_modules(struct kernel *kernel, struct error *error)
{
    metrics_register(&kernel_audit_family);
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
        for (const struct module_routes *routes = module->routes;
             routes && routes->role && status == STATUS_OK; routes++)
            if (kernel_has_role(kernel, routes->role))
                status = http_router_add(kernel->router, routes->routes, entry->state, error);
        if (status != STATUS_OK)
            return status;
    }
    return http_router_add(kernel->router, kernel_actuator_routes, kernel, error);
}

static enum status start_server(struct kernel *kernel, struct error *error)
{
    const struct kernel_http_settings *http = config_section(kernel->config, "http");
    struct http_cors *cors = kernel_cors_create(kernel->config);
    enum status status = http_server_create(
        &(struct http_server_config){
            .group = kernel->loops,
            .workers = kernel->workers,
            .router = kernel->router,
            .tls = kernel_tls_current(kernel),
            .cors = cors,
            .limits = kernel_http_limits(http),
            .gzip = http->gzip,
            .context = kernel,
            .gate = kernel_gate,
            .idempotency = kernel_idempotency_step,
            .on_idempotency_end = idempotency_leave,
            .share_of = kernel_share_of,
            .tenant_of = kernel_tenant_of,
        },
        &kernel->server, error);
    http_cors_unref(cors);
    if (status == STATUS_OK && kernel->options.listen.len)
        return http_server_listen(kernel->server, kernel->options.listen, error);
    for (size_t i = 0; status == STATUS_OK && i < http->listen.count; i++)
        status = http_server_listen(kernel->server, http->listen.items[i], error);
    return status;
}

static enum status kernel_start(struct kernel *kernel, struct error *error)
{
    const struct kernel_http_settings *http = config_section(kernel->config, "http");
    unsigned loops = http->loops ? (unsigned)http->loops : kernel_processors();
    kernel->loops = loop_group_create(loops, (unsigned)http->parked_max);
    kernel->workers = worker_pool_create("worker", (unsigned)turns_places((size_t)http->workers),
                                         (size_t)http->worker_queue);
    kernel_process_metrics_register(kernel->options.commit);
    kernel->scrape = kernel_scrape_create(loop_group_loop(kernel->loops, 0));
    kernel->router = http_router_create();
    kernel->traces = kernel_traces_start(kernel);
    kernel->idempotency = idempotency_create(IDEMPOTENCY_WAIT_MS);
    struct auth_settings auth = kernel_auth_settings(kernel->config, kernel->options.modules);
    kernel->verifiers =
        worker_pool_create("verify", (unsigned)turns_places(VERIFIER_THREADS), (size_t)http->worker_queue);
    kernel->pods = kernel_pods_create(kernel);
    kernel_rates_set(kernel, kernel->config);
    enum status status = auth_create(&auth, kernel->loops, kernel->verifiers, &kernel->auth, error);
    if (status == STATUS_OK)
        status = kernel_store_create(kernel, error);
    if (status == STATUS_OK)
        status = start_modules(kernel, error);
    if (status == STATUS_OK)
        status = kernel_tls_create(kernel, error);
    if (status == STATUS_OK)
        status = start_server(kernel, error);
    if (status != STATUS_OK)
        return status;
    kernel_pods_set_address(kernel);
    kernel->memory = kernel_memory_create(kernel);
    kernel_store_start(kernel);
    loop_group_start(kernel->loops);
    return STATUS_OK;
}

/* ---- while it serves: signals, and a configuration file that changed ---- */

struct kernel_file_mark kernel_file_mark(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return (struct kernel_file_mark){0};
    return (struct kernel_file_mark){info.st_mtim, info.st_ino, info.st_size};
}

bool kernel_file_changed(const struct kernel_file_mark *before, const struct kernel_file_mark *now)
{
    return now->inode != 0 && (before->modified.tv_sec != now->modified.tv_sec ||
                               before->modified.tv_nsec != now->modified.tv_nsec ||
                               before->inode != now->inode || before->size != now->size);
}

static void changed_setting(const char *field, void *arg)
{
    (void)arg;
    log_warn("config_needs_restart", LOG_CSTR("field", field));
}

/* Why the last reload was refused; empty = it was not. */
static void note_refusal(struct kernel *kernel, struct str problems)
{
    pthread_mutex_lock(&kernel->refused_lock);
    buf_clear(&kernel->refused);
    config_show_message(&kernel->refused, problems);
    kernel->refused_us = clock_unix_us();
    pthread_mutex_unlock(&kernel->refused_lock);
}

static void kernel_reload(struct kernel *kernel)
{
    const char *path = kernel->options.config_path;
    struct buf problems = {0};
    struct config *fresh = kernel_config_load(&kernel->options, &problems);
    struct str rest = buf_str(&problems), line;
    while (!fresh && str_split(&rest, '\n', &line))
        if (line.len)
            log_error("config_refused", LOG_CSTR("file", path), LOG_STR("error", line),
                      LOG_CSTR("effect", "the configuration in force stays"));
    note_refusal(kernel, fresh ? STR_NONE : buf_str(&problems));
    buf_deinit(&problems);
    if (!fresh) {
        kernel_process_reloaded(false);
        return;
    }
    struct error error = {0};
    struct auth_settings auth = kernel_auth_settings(fresh, kernel->options.modules);
    if (auth_reload(kernel->auth, &auth, &error) != STATUS_OK) {
        log_error("config_refused", LOG_CSTR("file", path), LOG_ERROR_FIELDS(&error));
        note_refusal(kernel, str_from(error.message));
        kernel_process_reloaded(false);
        config_free(fresh);
        return;
    }
    config_each_restart(kernel->config, fresh, changed_setting, NULL);
    set_log(fresh);
    kernel_rates_set(kernel, fresh);
    kernel_traces_reload(fresh);
    kernel_tls_reload(kernel, fresh);
    kernel_cors_reload(kernel, fresh);
    for (size_t i = 0; i < kernel->module_count; i++) {
        struct kernel_module *entry = &kernel->modules[i];
        if (entry->started && entry->module->reload)
            entry->module->reload(entry->state, fresh, config_section(fresh, entry->module->section->name));
    }
    if (kernel->config != kernel->first)
        config_free(kernel->config);
    kernel->config = fresh;
    kernel_process_reloaded(true);
    log_info("config_reloaded", LOG_CSTR("file", path));
}

/* Returns when it is time to stop. */
static void kernel_watch(struct kernel *kernel)
{
    sigset_t signals = handled_signals();
    struct kernel_file_mark seen = kernel_file_mark(kernel->options.config_path);
    for (;;) {
        int signal = sigtimedwait(&signals, NULL, &(struct timespec){.tv_sec = 1});
        if (signal == SIGTERM || signal == SIGINT || atomic_load(&kernel->must_stop))
            return;
        struct kernel_file_mark now = kernel_file_mark(kernel->options.config_path);
        if (signal == SIGHUP || kernel_file_changed(&seen, &now)) {
            seen = now;
            kernel_reload(kernel);
        }
        kernel_tls_watch(kernel);
    }
}

/* ---- stop: what takes requests first, what serves them last ---- */

/* Readiness falls at once; requests are served until those that follow it have noticed. A second signal ends the wait. */
static void kernel_leave(struct kernel *kernel, int64_t delay_ms)
{
    int64_t until_ns = clock_deadline_ms(delay_ms), left_ns;
    sigset_t signals = handled_signals();
    sigdelset(&signals, SIGHUP);
    log_info("stopping", LOG_INT("drainDelayMs", delay_ms));
    atomic_store(&kernel->stopping, true);
    if (delay_ms > 0)
        http_server_leave(kernel->server);
    while (delay_ms > 0 && (left_ns = until_ns - clock_mono_ns()) > 0) {
        const struct timespec left = {.tv_sec = left_ns / CLOCK_NS_PER_S,
                                      .tv_nsec = left_ns % CLOCK_NS_PER_S};
        if (sigtimedwait(&signals, NULL, &left) > 0) {
            log_info("drain_delay_skipped");
            return;
        }
    }
}

static void on_drained(void *arg)
{
    atomic_store((atomic_bool *)arg, true);
}

static void kernel_stop(struct kernel *kernel)
{
    kernel_traces_stop(kernel->traces);
    fetch_stop();
    kernel_store_begin_stop(kernel);
    for (size_t i = kernel->module_count; i-- > 0;)
        if (kernel->modules[i].started && kernel->modules[i].module->stop)
            kernel->modules[i].module->stop(kernel->modules[i].state);
    kernel_store_finish_stop(kernel);
    kernel_memory_stop(kernel->memory);
    worker_pool_stop(kernel->workers);
    worker_pool_stop(kernel->verifiers);
    kernel_scrape_stop(kernel->scrape);
    loop_group_stop(kernel->loops);
}

static void kernel_destroy(struct kernel *kernel)
{
    if (kernel->server)
        http_server_destroy(kernel->server);
    for (size_t i = kernel->module_count; i-- > 0;)
        if (kernel->modules[i].started)
            kernel->modules[i].module->destroy(kernel->modules[i].state);
    kernel_store_destroy(kernel);
    if (kernel->auth)
        auth_destroy(kernel->auth);
    kernel_scrape_destroy(kernel->scrape);
    kernel_traces_destroy(kernel->traces);
    kernel_memory_destroy(kernel->memory);
    loop_group_destroy(kernel->loops);
    db_servers_destroy(kernel->servers);      /* the loops freed the last of their users */
    idempotency_destroy(kernel->idempotency); /* what workers still had has left by now */
    worker_pool_destroy(kernel->workers);
    worker_pool_destroy(kernel->verifiers);
    http_router_destroy(kernel->router);
    kernel_tls_destroy(kernel);
    kernel_rates_destroy(kernel);
    kernel_pods_destroy(kernel->pods);
    buf_deinit(&kernel->refused);
    if (kernel->first != kernel->config)
        config_free(kernel->first);
    config_free(kernel->config);
}

int kernel_serve(const struct kernel_options *options)
{
    struct kernel kernel = {.options = *options, .refused_lock = PTHREAD_MUTEX_INITIALIZER};
    struct error error = {0};
    sigset_t signals = handled_signals();
    atomic_bool drained = false;
    if (!check_roles(options))
        return 2; /* called wrongly, as in docs/CLI.md */
    kernel.config = kernel_config_load_or_print(options);
    if (!kernel.config)
        return 1;
    set_log(kernel.config);
    kernel.first = kernel.config;
    log_never_wait();
    kernel_descriptors_raise();
    kernel_memory_prepare();
    signal(SIGPIPE, SIG_IGN);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    fetch_init();
    if (kernel_start(&kernel, &error) != STATUS_OK) {
        log_error("start_failed", LOG_ERROR_FIELDS(&error));
        kernel_stop(&kernel);
        kernel_destroy(&kernel);
        return 1;
    }
    log_info("serving", LOG_CSTR("program", FRESHET_VERSION),
             LOG_INT("port", http_server_port(kernel.server)),
             LOG_INT("loops", loop_group_count(kernel.loops)), LOG_CSTR("config", options->config_path));
    kernel.stop_deadline_ns = CLOCK_NEVER;
    kernel_watch(&kernel);
    const struct kernel_http_settings *http = config_section(kernel.config, "http");
    kernel_leave(&kernel, http->drain_delay_ms);
    kernel.stop_deadline_ns = clock_deadline_ms(http->stop_timeout_ms);
    http_server_drain(kernel.server, kernel.stop_deadline_ns, on_drained, &drained);
    while (!atomic_load(&drained))
        nanosleep(&(struct timespec){.tv_nsec = 2 * CLOCK_NS_PER_MS}, NULL);
    kernel_stop(&kernel);
    kernel_destroy(&kernel);
    log_info("stopped");
    return atomic_load(&kernel.must_stop) ? 1 : 0;
}
