/* The kernel's own settings: `http`, `log`, `bus`, `postgres`, `limits`, `debug`; engines.c and traces.c have theirs, modules bring theirs. How
 * the file is loaded and checked, and what the system lets the process have of the limits in it. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/log.h"
#include "base/secret.h"
#include "kernel/engines.h"
#include "kernel/kernel_inside.h"
#include "kernel/traces.h"

enum { EXTRA_CONNECTIONS_MAX = 256 };

/* The rows write numbers of 64 bits into the limits of the server. */
_Static_assert(sizeof(size_t) == sizeof(int64_t), "a size has 64 bits");
#define HTTP_ROW(member) .offset = offsetof(struct kernel_http_settings, member)
#define MIB (1024 * 1024)
#define HOUR_MS (3600 * 1000)

static const struct setting_row http_limit_rows[] = {
    {"body", SETTING_SIZE, HTTP_ROW(limits.body_bytes_max), "Largest request body; past it 413.", "8MiB",
     1024, 1024 * MIB},
    {"bodies", SETTING_SIZE, HTTP_ROW(limits.bodies_bytes_max),
     "Memory for all bodies together, until they are answered, and never more than limits.memory has for them; past it 503. One tenant takes at most half, two take at most a third each, and so on. Less than four times body counts as four times body.",
     "256MiB", MIB, 1024 * (int64_t)MIB * 1024},
    {"unsent", SETTING_SIZE, HTTP_ROW(limits.unsent_bytes_max),
     "Memory for all answers that clients have not read yet, and never more than limits.memory has for them; past it the clients of the tenant that holds most which have not read for longest are disconnected.",
     "128MiB", MIB, 1024 * (int64_t)MIB * 1024},
    {"target", SETTING_SIZE, HTTP_ROW(limits.target_bytes_max), "Longest request target; past it 414.",
     "64KiB", 256, MIB},
    {"headers", SETTING_SIZE, HTTP_ROW(limits.header_bytes_max), "Largest header section; past it 431.",
     "32KiB", 1024, MIB},
    {"headerCount", SETTING_INT, HTTP_ROW(limits.header_count_max), "Most header lines; past it 431.", "100",
     8, 1000},
    {"connections", SETTING_INT, HTTP_ROW(limits.connections_max),
     "Most connections at once over all loops; past it an idle one is closed, else a new one gets 503. Requests of one tenant that wait or stream hold at most half.",
     "50000", 1, 1000000},
    {"reservedDescriptors", SETTING_INT, HTTP_ROW(reserved_descriptors),
     "File descriptors that connections of clients leave to databases, engines and files; at most half of the process's limit.",
     "256", 16, 1000000},
    {"parked", SETTING_INT, HTTP_ROW(parked_max),
     "Most requests waiting for something at once, per loop; past it 503. Those of one tenant take at most half.",
     "65536", 10000, 1000000},
    {"headerTimeout", SETTING_DURATION_MS, HTTP_ROW(limits.header_timeout_ms),
     "Time for a whole header section to arrive, first byte to last; past it 408.", "10s", 10, HOUR_MS},
    {"bodyTimeout", SETTING_DURATION_MS, HTTP_ROW(limits.body_timeout_ms),
     "Time that a body may pause, or arrive slower than bodyRate; past it 408.", "10s", 10, HOUR_MS},
    {"bodyRate", SETTING_SIZE, HTTP_ROW(limits.body_rate_min),
     "Lowest rate of a body in bytes per second, on average over bodyTimeout.", "16KiB", 1, 1024 * MIB},
    {"idleTimeout", SETTING_DURATION_MS, HTTP_ROW(limits.idle_timeout_ms),
     "Time a connection may wait for its next request.", "75s", 10, 24 * HOUR_MS},
    {"writeTimeout", SETTING_DURATION_MS, HTTP_ROW(limits.write_timeout_ms),
     "Time that a client may read slower than writeRate before it is disconnected.", "30s", 10, HOUR_MS},
    {"writeRate", SETTING_SIZE, HTTP_ROW(limits.write_rate_min),
     "Lowest rate in bytes per second at which a client must read waiting answers, on average over writeTimeout.",
     "16KiB", 1, 1024 * MIB},
    {"requestTimeout", SETTING_DURATION_MS, HTTP_ROW(limits.deadline_ms),
     "Time for an answer that needs a worker or a wait; past it 503.", "10s", 10, HOUR_MS},
    {.name = NULL},
};

static const struct setting_row http_rows[] = {
    {"listen", SETTING_STRING_LIST, HTTP_ROW(listen),
     "Addresses to listen on, HOST:PORT or [IPV6]:PORT; port 0 takes any free one.", "127.0.0.1:8080", 1, 64,
     .place_offset = 1 + offsetof(struct kernel_http_settings, listen_place)},
    {"loops", SETTING_INT, HTTP_ROW(loops),
     "Event loops, one thread each; 0 = one per processor of the machine or of the cgroup's quota, rounded up.",
     "0", 0, 256},
    {"workers", SETTING_INT, HTTP_ROW(workers),
     "Threads that handlers of one tenant may block; a fifth more are for the other tenants. More threads let more writes share one disk flush.",
     "64", 1, 256},
    {"workerQueue", SETTING_INT, HTTP_ROW(worker_queue),
     "Jobs that may wait for a worker; past it the tenant with most of them gets 503.", "10000", 16, 1000000},
    {"drainDelay", SETTING_DURATION_MS, HTTP_ROW(drain_delay_ms),
     "On SIGTERM: time between readiness turning 503 and the listener closing, in which requests are still served. Behind a "
     "balancer: longer than it takes to notice. A second signal skips it.",
     "0s", 0, HOUR_MS},
    {"stopTimeout", SETTING_DURATION_MS, HTTP_ROW(stop_timeout_ms),
     "After that: time for running requests to finish before their connections are closed.", "10s", 0,
     HOUR_MS},
    {"gzip", SETTING_BOOL, HTTP_ROW(gzip),
     "Compress answers for clients that ask for it: whole dictionaries, metrics, and files that never change. Off, where a proxy "
     "does it, or where a network is faster than the processors.",
     "true"},
    {"tls", SETTING_OBJECT, .help = "TLS on every address; without certFile connections are plain.",
     .rows = kernel_tls_rows, .fallback = ""},
    {"cors", SETTING_OBJECT,
     .help = "Answers that scripts of other origins may read (CORS); without allowedOrigins none.",
     .rows = kernel_cors_rows, .fallback = ""},
    {"limits", SETTING_OBJECT, .help = "Bounds on what a peer may send or hold.", .rows = http_limit_rows,
     .fallback = ""},
    {.name = NULL},
};

static const char *const log_levels[] = {"debug", "info", "warn", "error", NULL};
static const char *const access_logs[] = {"off", "errors", "all", NULL};
static const struct setting_row log_rows[] = {
    {"level", SETTING_ENUM, offsetof(struct kernel_log_settings, level), "Lowest level that is written.",
     "info", .choices = log_levels, .reloadable = true},
    {"access", SETTING_ENUM, offsetof(struct kernel_log_settings, access),
     "A line `http_request` for each request: all of them, or errors: those answered by 400 and above, or not at all. Its level "
     "is info.",
     "off", .choices = access_logs, .reloadable = true},
    {.name = NULL},
};

static const struct setting_row limit_rows[] = {
    {"memory", SETTING_SIZE, .offset = offsetof(struct kernel_limit_settings, memory_bytes),
     .help =
         "Memory that clients may make the process hold, with what the process needs itself; dictionaries come on "
         "top, see refdata.cache.memory. Past an account's share 503, or slow clients are disconnected. At "
         "least 64MiB and eight times http.limits.body; 0 = a quarter of what the machine or the cgroup has.",
     .fallback = "0", .min = 0, .max = INT64_MAX,
     .place_offset = 1 + offsetof(struct kernel_limit_settings, memory_place)},
    {"rates", SETTING_OBJECT_LIST, .offset = offsetof(struct kernel_limit_settings, rates),
     .help =
         "Most requests of a tenant to routes; past it 429. The first rule that holds for a request counts.",
     .fallback = "", .rows = kernel_rate_rows, .element_bytes = sizeof(struct kernel_rate_settings),
     .max = 64, .reloadable = true},
    {.name = NULL},
};

static const struct setting_row debug_rows[] = {
    {"enabled", SETTING_BOOL, .offset = offsetof(struct kernel_debug_settings, enabled),
     .help =
         "Whether routes below /debug answer: they show the stored notifications and dead letters of one tenant.",
     .fallback = "false"},
    {.name = NULL},
};

static const char *const command_engines[] = {"postgres", "kafka", NULL};
static const char *const invalidation_engines[] = {"postgres", "redis", NULL};
static const char *const event_engines[] = {"postgres", "nats", NULL};
static const char *const migrate_modes[] = {"auto", "always", "never", NULL};
#define BUS_ROW(member) .offset = offsetof(struct kernel_bus_settings, member)
#define BUS_PLACE(member) .place_offset = 1 + offsetof(struct kernel_bus_settings, member)
static const struct setting_row bus_postgres_rows[] = {
    {"partitions", SETTING_INT, BUS_ROW(partitions),
     "Partitions of the topic of commands: at most this many are handled at once. The number of an existing topic does not change.",
     "16", 1, 256},
    {"handlers", SETTING_INT, BUS_ROW(handlers),
     "Partitions with updates of one tenant, or of one dictionary, that this process handles at once, per database; each "
     "uses a connection. A fifth is added for the others.",
     "4", 1, 64},
    {"pollInterval", SETTING_DURATION_MS, BUS_ROW(poll_ms), "How often messages are read without a notice.",
     "1s", 10, HOUR_MS},
    {"keep", SETTING_DURATION_MS, BUS_ROW(keep_ms), "How long handled messages are kept.", "10m", 1000,
     30 * 24 * (int64_t)HOUR_MS},
    {"keepUnread", SETTING_DURATION_MS, BUS_ROW(keep_unread_ms),
     "How long updates and events are kept for a group that has not handled them, or has never run. Less than keep counts as keep.",
     "7d", 1000, 365 * 24 * (int64_t)HOUR_MS},
    {"keepDead", SETTING_DURATION_MS, BUS_ROW(keep_dead_ms), "How long dead letters are kept.", "30d", 1000,
     365 * 24 * (int64_t)HOUR_MS},
    {.name = NULL},
};
static const struct setting_row bus_rows[] = {
    {"commands", SETTING_ENUM, BUS_ROW(commands),
     "What carries refdata's commands; `kafka` needs kafka.brokers.", "postgres", .choices = command_engines,
     BUS_PLACE(commands_place)},
    {"invalidations", SETTING_ENUM, BUS_ROW(invalidations),
     "What carries invalidations to query pods; `redis` needs redis.nodes or refdata.redis.nodes.",
     "postgres", .choices = invalidation_engines, BUS_PLACE(invalidations_place)},
    {"events", SETTING_ENUM, BUS_ROW(events), "What carries the modules' events; `nats` needs nats.servers.",
     "postgres", .choices = event_engines, BUS_PLACE(events_place)},
    {"migrate", SETTING_ENUM, BUS_ROW(migrate),
     "Whether `serve` creates and migrates schemas: auto = when everything goes through PostgreSQL; else run "
     "`freshet migrate`.",
     "auto", .choices = migrate_modes},
    {"postgres", SETTING_OBJECT, .help = "How topics are kept in PostgreSQL.", .rows = bus_postgres_rows,
     .fallback = ""},
    {.name = NULL},
};

#define PG_ROW(member) .offset = offsetof(struct kernel_postgres, member)
static const struct setting_row postgres_pool_rows[] = {
    {"maxSize", SETTING_INT, PG_ROW(connections_max),
     "Most connections to this database; one tenant's requests have about five sixths of them.", "16", 2,
     1000},
    {"idleTimeout", SETTING_DURATION_MS, PG_ROW(idle_timeout_ms),
     "The last two unused connections are closed after this, others after 10 seconds.", "5m", 1000,
     24 * HOUR_MS},
    {.name = NULL},
};

#define PASSWORD_FILE_ROW                                                                                                  \
    {                                                                                                                      \
        "passwordFile", SETTING_STRING, PG_ROW(password_file),                                                             \
            "File that holds the password. It is read for each connection, so that the next one uses a changed password.", \
            "", .place_offset = 1 + offsetof(struct kernel_postgres, password_file_place)                                  \
    }

const struct setting_row kernel_postgres_rows[] = {
    {"name", SETTING_STRING, PG_ROW(name), "Name of this block, where there are several.", "main", 1, 64},
    {"jdbcUrl", SETTING_STRING, PG_ROW(url),
     "Where the database is: jdbc:postgresql://HOST:PORT/DB or a postgresql:// URI.", NULL, 1, 4096,
     .place_offset = 1 + offsetof(struct kernel_postgres, place), .secret = true},
    {"username", SETTING_STRING, PG_ROW(username), "User; empty = from the URL.", ""},
    {"passwordFromEnv", SETTING_STRING, PG_ROW(password_env),
     "Environment variable that holds the password; empty = from the URL.", "",
     .place_offset = 1 + offsetof(struct kernel_postgres, password_place)},
    PASSWORD_FILE_ROW,
    {"schema", SETTING_STRING, PG_ROW(schema),
     "search_path of the dictionaries' SQL; empty = the server's default.", ""},
    {"connectTimeout", SETTING_DURATION_MS, PG_ROW(connect_timeout_ms),
     "Time limit for opening a connection.", "3s", 10, HOUR_MS},
    {"statementTimeout", SETTING_DURATION_MS, PG_ROW(statement_timeout_ms),
     "Time for a statement, loads of whole dictionaries excepted.", "5s", 10, HOUR_MS},
    {"pool", SETTING_OBJECT, .help = "Connection pool.", .rows = postgres_pool_rows, .fallback = ""},
    {.name = NULL},
};

/* The same for the store, where all may be absent and whose SQL is our own. */
static const struct setting_row store_rows[] = {
    {"jdbcUrl", SETTING_STRING, PG_ROW(url), "As refdata.postgres.jdbcUrl.", "", 1, 4096,
     .place_offset = 1 + offsetof(struct kernel_postgres, place), .secret = true},
    {"username", SETTING_STRING, PG_ROW(username), "User; empty = from the URL.", "",
     .place_offset = 1 + offsetof(struct kernel_postgres, username_place)},
    {"passwordFromEnv", SETTING_STRING, PG_ROW(password_env),
     "Environment variable that holds the password; empty = from the URL.", "",
     .place_offset = 1 + offsetof(struct kernel_postgres, password_place)},
    PASSWORD_FILE_ROW,
    {"connectTimeout", SETTING_DURATION_MS, PG_ROW(connect_timeout_ms),
     "Time limit for opening a connection.", "3s", 10, HOUR_MS},
    {"statementTimeout", SETTING_DURATION_MS, PG_ROW(statement_timeout_ms), "Time for a statement.", "5s", 10,
     HOUR_MS},
    {"pool", SETTING_OBJECT,
     .help = "Connection pool of requests and upkeep; outboxes and the bus have their own.",
     .rows = postgres_pool_rows, .fallback = ""},
    {.name = NULL},
};

const struct config_section kernel_own_sections[] = {
    {"http", "The HTTP server.", http_rows, sizeof(struct kernel_http_settings)},
    {"log", "Logs: one JSON object per line on standard error.", log_rows,
     sizeof(struct kernel_log_settings)},
    {"auth", "Authentication: tokens, keys, mTLS clients.", auth_setting_rows, sizeof(struct auth_settings)},
    {"bus", "What carries commands, invalidations and events.", bus_rows, sizeof(struct kernel_bus_settings)},
    {"postgres",
     "The PostgreSQL that all modules keep their tables in, unless refdata.postgres names others for reference data. "
     "Without this block: the first of refdata.postgres.",
     store_rows, sizeof(struct kernel_postgres)},
    {"traces", "Spans for an OpenTelemetry collector.", kernel_traces_rows,
     sizeof(struct kernel_traces_settings)},
    {"limits", "What clients may use.", limit_rows, sizeof(struct kernel_limit_settings)},
    {"debug", "Routes for development.", debug_rows, sizeof(struct kernel_debug_settings)},
    {"kafka", "Where Kafka is. Turns nothing on: see bus.commands.", kernel_kafka_rows,
     sizeof(struct kernel_kafka)},
    {"redis", "Where Redis is. Turns nothing on: see bus.invalidations.", kernel_redis_rows,
     sizeof(struct kernel_redis)},
    {"nats", "Where NATS is. Turns nothing on: see bus.events.", kernel_nats_rows,
     sizeof(struct kernel_nats)},
    {.name = NULL},
};

struct db_target kernel_postgres_target(const struct kernel_postgres *settings)
{
    const char *password = settings->password_env.len ? getenv(settings->password_env.ptr) : NULL;
    return (struct db_target){
        .name = settings->name.ptr,
        .url = settings->url,
        .username = settings->username,
        .password = str_from(password),
        .password_file = settings->password_file,
        .schema = settings->schema,
        .connections_max = (unsigned)settings->connections_max,
        .connect_timeout_ms = settings->connect_timeout_ms,
        .statement_timeout_ms = settings->statement_timeout_ms,
        .idle_timeout_ms = settings->idle_timeout_ms,
        .backoff_min_ms = 100,
        .backoff_max_ms = 2000,
    };
}

enum status kernel_password_file_check(const struct config *config, struct str path, struct str variable,
                                       struct setting_place place, const char *field, struct error *error)
{
    struct error reason = {0};
    struct secret password;

    if (!path.len)
        return STATUS_OK;
    if (variable.len)
        return config_error_at(config, place, field, error, "passwordFromEnv is set too: use one of them");
    if (secret_read(&password, path.ptr, &reason) != STATUS_OK)
        return config_error_at(config, place, field, error, "%s", reason.message);
    secret_wipe(&password);
    return STATUS_OK;
}

enum status kernel_postgres_check(const struct config *config, const struct kernel_postgres *settings,
                                  const char *block, struct error *error)
{
    const struct db_target target = kernel_postgres_target(settings);
    struct error reason = {0};
    char field[64];
    if (settings->password_env.len && !target.password.ptr) {
        snprintf(field, sizeof field, "%s.passwordFromEnv", block);
        return config_error_at(config, settings->password_place, field, error,
                               "the environment variable %s is not set", settings->password_env.ptr);
    }
    snprintf(field, sizeof field, "%s.passwordFile", block);
    if (kernel_password_file_check(config, settings->password_file, settings->password_env,
                                   settings->password_file_place, field, error) != STATUS_OK)
        return STATUS_CONFIG;
    if (settings->url.len && db_target_check(&target, &reason) != STATUS_OK) {
        snprintf(field, sizeof field, "%s.jdbcUrl", block);
        return config_error_at(config, settings->place, field, error, "%s", reason.message);
    }
    return STATUS_OK;
}

struct auth_settings kernel_auth_settings(const struct config *config, const struct module *const *modules)
{
    struct auth_settings settings = *(const struct auth_settings *)config_section(config, "auth");
    settings.asks_clients = kernel_tls_asks_clients(config);
    for (; *modules; modules++)
        if ((*modules)->adjust_auth)
            (*modules)->adjust_auth(config_section(config, (*modules)->section->name), &settings);
    return settings;
}

/* ---- loading and checking ---- */

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

struct str kernel_http_address(const struct config *config)
{
    return ((const struct kernel_http_settings *)config_section(config, "http"))->listen.items[0];
}

struct str kernel_http_url(const struct config *config, struct str address, struct str host,
                           struct arena *arena)
{
    static const struct {
        const char *prefix, *own;
    } all[] = {{"0.0.0.0:", "127.0.0.1"}, {"[::]:", "[::1]"}};
    const struct kernel_http_settings *http = config_section(config, "http");
    const char *scheme = http->tls.cert_file.len ? "https" : "http";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (str_starts_with(address, str_from(all[i].prefix))) {
            struct str port = str_skip(address, strlen(all[i].prefix));
            host = host.len ? host : str_from(all[i].own);
            return arena_printf(arena, "%s://%.*s:%.*s", scheme, STR_ARG(host), STR_ARG(port));
        }
    return arena_printf(arena, "%s://%.*s", scheme, STR_ARG(address));
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
        if (!auth->enabled && !options->listen.len && !is_loopback(http->listen.items[i]))
            return config_error_at(
                config, http->listen_place, "http.listen", error,
                "auth.enabled is false, which is allowed only on loopback addresses; %.*s is not one",
                STR_ARG(http->listen.items[i]));
    }
    if (options->listen.len && !auth->enabled && !is_loopback(options->listen))
        return error_set(error, STATUS_CONFIG,
                         "--listen: auth.enabled is false, which is allowed only on loopback");
    return STATUS_OK;
}

/* What the file alone allows to be checked. */
static enum status check_config(const struct kernel_options *options, const struct config *config,
                                struct error *error)
{
    static enum status (*const checks[])(const struct config *config, struct error *error) = {
        kernel_tls_check,    kernel_cors_check,    kernel_memory_check,
        kernel_traces_check, kernel_engines_check, kernel_store_check};
    struct error own = {0};
    struct setting_place place;
    enum status status = check_listen(options, config, error);
    for (size_t i = 0; i < sizeof checks / sizeof *checks && status == STATUS_OK; i++)
        status = checks[i](config, error);
    if (status == STATUS_OK)
        status = kernel_rates_check(config, options->modules, error);
    for (const struct module *const *at = options->modules; *at && status == STATUS_OK; at++)
        if ((*at)->check)
            status = (*at)->check(config, config_section(config, (*at)->section->name), error);
    if (status == STATUS_OK)
        status = kernel_events_check(config, options->modules, error);
    struct auth_settings auth = kernel_auth_settings(config, options->modules);
    if (status == STATUS_OK && auth_settings_check(&auth, &place, &own) != STATUS_OK)
        status = config_error_at(config, place, own.field, error, "%s", own.message);
    return status;
}

struct config *kernel_config_load(const struct kernel_options *options, struct buf *problems)
{
    struct arena arena = ARENA(4096);
    struct error error = {0};
    struct config *config = NULL;
    const struct config_section *sections = kernel_sections(options->modules, &arena);
    enum status status = config_load(options->config_path, sections, &config, problems, &error);
    for (const struct module *const *at = options->modules; *at && status == STATUS_OK; at++)
        if ((*at)->complete)
            (*at)->complete(config, (void *)(uintptr_t)config_section(config, (*at)->section->name));
    if (status == STATUS_OK)
        status = check_config(options, config, &error);
    if (status != STATUS_OK) {
        if (buf_len(problems) == 0)
            buf_printf(problems, "%s\n", error.message);
        config_free(config);
        config = NULL;
    }
    arena_deinit(&arena);
    return config;
}

struct config *kernel_config_load_or_print(const struct kernel_options *options)
{
    struct buf problems = {0};
    struct config *config = kernel_config_load(options, &problems);
    fprintf(stderr, "%.*s", STR_ARG(buf_str(&problems)));
    buf_deinit(&problems);
    return config;
}

/* ---- limits of the HTTP server ----
 * Every client is a descriptor. So that clients never take the last one, some are kept for databases, engines and files:
 * the connections of clients are bounded by RLIMIT_NOFILE less that reserve. */

void kernel_descriptors_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* One tenant may have half of the places, so that some are left for others. */
static struct http_limits with_held(struct http_limits limits, size_t parked_max)
{
    limits.held_max = ((limits.connections_max < parked_max ? limits.connections_max : parked_max) + 1) / 2;
    return limits;
}

struct http_limits kernel_http_limits(const struct kernel_http_settings *http)
{
    struct http_limits limits = http->limits;
    uint64_t most = UINT32_MAX, reserved = (uint64_t)http->reserved_descriptors;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        uint64_t half = limit.rlim_cur / 2;
        most = limit.rlim_cur - (reserved < half ? reserved : half); /* more than half is half */
    }
    size_t wanted = limits.connections_max;
    limits.connections_extra = EXTRA_CONNECTIONS_MAX;
    if (wanted + EXTRA_CONNECTIONS_MAX <= most)
        return with_held(limits, (size_t)http->parked_max);
    if (limits.connections_extra > most / 8)
        limits.connections_extra = most / 8;
    most -= limits.connections_extra;
    limits.connections_max = most < wanted ? most : wanted;
    if (limits.connections_max < wanted)
        log_info("connections_bounded_by_descriptors", LOG_INT("connections", limits.connections_max),
                 LOG_INT("configured", wanted));
    return with_held(limits, (size_t)http->parked_max);
}
