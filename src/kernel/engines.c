/* The rows of `kafka:`, `redis:` and `nats:`, and what can be checked of them without a server. */
#include "kernel/engines.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bus/bus_kafka.h"
#include "kernel/kernel_inside.h"

#define HOUR_MS INT64_C(3600000)
#define MIB (INT64_C(1) << 20)
#define PLACE(type, member) .place_offset = 1 + offsetof(type, member)

/* ---- rows ---- */

#define TLS_ROW(member) .offset = offsetof(struct kernel_tls, member)
static const struct setting_row tls_rows[] = {
    {"enabled", SETTING_BOOL, TLS_ROW(enabled),
     "Whether the connection is encrypted, and the server's name verified.", "false"},
    {"caFile", SETTING_STRING, TLS_ROW(ca_file),
     "Certificate authorities for the server's certificate; empty = those of the system.", "",
     PLACE(struct kernel_tls, ca_place)},
    {"certificateFile", SETTING_STRING, TLS_ROW(certificate_file),
     "Client certificate, for servers that require one; needs keyFile.", "",
     PLACE(struct kernel_tls, certificate_place)},
    {"keyFile", SETTING_STRING, TLS_ROW(key_file), "Its private key.", "",
     PLACE(struct kernel_tls, key_place)},
    {.name = NULL},
};

#define USERNAME(login)                                                                          \
    {                                                                                            \
        "username", SETTING_STRING, .offset = (login) + offsetof(struct kernel_login, username), \
                                    .help = "User; empty = none.", .fallback = ""                \
    }
#define PASSWORD(login)                                                                            \
    {                                                                                              \
        "passwordFromEnv", SETTING_STRING,                                                         \
            .offset = (login) + offsetof(struct kernel_login, password_env),                       \
            .help = "Environment variable that holds the password; empty = none.", .fallback = "", \
            .place_offset = 1 + (login) + offsetof(struct kernel_login, password_place)            \
    }
#define PASSWORD_FILE(login)                                                                                             \
    {                                                                                                                    \
        "passwordFile", SETTING_STRING,                                                                                  \
            .offset = (login) + offsetof(struct kernel_login, password_file),                                            \
            .help =                                                                                                      \
                "File that holds the password. It is read at each login, so that the next one uses a changed password.", \
            .fallback = "", .place_offset = 1 + (login) + offsetof(struct kernel_login, password_file_place)             \
    }

#define KAFKA_ROW(member) .offset = offsetof(struct kernel_kafka, member)
const char *const kernel_sasl_mechanisms[] = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", NULL};
static const struct setting_row sasl_rows[] = {
    {"mechanism", SETTING_ENUM, KAFKA_ROW(mechanism), "SASL mechanism.", "PLAIN",
     .choices = kernel_sasl_mechanisms},
    USERNAME(offsetof(struct kernel_kafka, sasl)),
    PASSWORD(offsetof(struct kernel_kafka, sasl)),
    PASSWORD_FILE(offsetof(struct kernel_kafka, sasl)),
    {.name = NULL},
};
const struct setting_row kernel_kafka_rows[] = {
    {"brokers", SETTING_STRING_LIST, KAFKA_ROW(brokers),
     "HOST:PORT of brokers to contact first; the other brokers are discovered.", "", 0, 64,
     PLACE(struct kernel_kafka, brokers_place)},
    {"clientId", SETTING_STRING, KAFKA_ROW(client_id), "Name of this client in the logs of the brokers.",
     "freshet", 1, 200},
    {"replication", SETTING_INT, KAFKA_ROW(replication),
     "Copies of a topic that is created here; 0 = the broker's default.", "0", 0, 16},
    {"sessionTimeout", SETTING_DURATION_MS, KAFKA_ROW(session_timeout_ms),
     "A process that is frozen or cut off for this long loses its partitions to others.", "10s", 1000,
     HOUR_MS},
    {"messageBytes", SETTING_SIZE, KAFKA_ROW(message_bytes_max),
     "Largest message, with its key and headers; an update past it gets 413. Topics that are created here allow it; for others "
     "it is at most their max.message.bytes.",
     "9MiB", 4096, 1024 * MIB},
    {"tls", SETTING_OBJECT, KAFKA_ROW(tls), "Encryption.", "", .rows = tls_rows},
    {"sasl", SETTING_OBJECT, .help = "The login at the brokers; without a username there is no login.",
     .rows = sasl_rows, .fallback = ""},
    {.name = NULL},
};

#define REDIS_ROW(member) .offset = offsetof(struct kernel_redis, member)
const char *const kernel_redis_modes[] = {"cluster", "single", NULL};
const struct setting_row kernel_redis_rows[] = {
    {"mode", SETTING_ENUM, REDIS_ROW(mode), "Redis Cluster, or a single Redis.", "cluster",
     .choices = kernel_redis_modes},
    {"nodes", SETTING_STRING_LIST, REDIS_ROW(nodes),
     "HOST:PORT of nodes to contact first; the other nodes of a cluster are discovered.", "", 0, 64,
     PLACE(struct kernel_redis, nodes_place)},
    USERNAME(offsetof(struct kernel_redis, login)),
    PASSWORD(offsetof(struct kernel_redis, login)),
    PASSWORD_FILE(offsetof(struct kernel_redis, login)),
    {"tls", SETTING_OBJECT, REDIS_ROW(tls), "Encryption.", "", .rows = tls_rows},
    {.name = NULL},
};

#define NATS_ROW(member) .offset = offsetof(struct kernel_nats, member)
const struct setting_row kernel_nats_rows[] = {
    {"servers", SETTING_STRING_LIST, NATS_ROW(servers),
     "nats://HOST:PORT of one or more servers of a cluster.", "", 0, 64,
     PLACE(struct kernel_nats, servers_place)},
    USERNAME(offsetof(struct kernel_nats, login)),
    PASSWORD(offsetof(struct kernel_nats, login)),
    PASSWORD_FILE(offsetof(struct kernel_nats, login)),
    {"credentialsFile", SETTING_STRING, NATS_ROW(credentials_file),
     "A user's JWT and seed, instead of a password.", "", PLACE(struct kernel_nats, credentials_place)},
    {"replicas", SETTING_INT, NATS_ROW(replicas), "Copies of a stream that is created here.", "1", 1, 5},
    {"tls", SETTING_OBJECT, NATS_ROW(tls), "Encryption.", "", .rows = tls_rows},
    {.name = NULL},
};

/* ---- for callers that open connections ---- */

struct bus_security kernel_engine_security(const struct kernel_tls *tls, const struct kernel_login *login)
{
    return (struct bus_security){
        .tls = tls->enabled,
        .ca_file = str_or_null(tls->ca_file),
        .certificate_file = str_or_null(tls->certificate_file),
        .key_file = str_or_null(tls->key_file),
        .username = str_or_null(login->username),
        .password = login->password_env.len ? getenv(login->password_env.ptr) : NULL,
        .password_file = str_or_null(login->password_file),
    };
}

void kernel_engine_kafka(const struct kernel_kafka *kafka, struct arena *arena,
                         struct bus_kafka_config *config)
{
    struct str brokers = STR("");
    for (size_t i = 0; i < kafka->brokers.count; i++)
        brokers = arena_printf(arena, "%.*s%s%.*s", STR_ARG(brokers), i ? "," : "",
                               STR_ARG(kafka->brokers.items[i]));
    config->brokers = brokers.ptr;
    config->client_id = kafka->client_id.ptr;
    config->security = kernel_engine_security(&kafka->tls, &kafka->sasl);
    config->security.mechanism = kernel_sasl_mechanisms[kafka->mechanism];
}

/* ---- checks ---- */

bool kernel_address_is_good(struct str address)
{
    const char *colon = address.len ? memrchr(address.ptr, ':', address.len) : NULL;
    if (!colon || colon == address.ptr)
        return false;
    struct str host = str_of(address.ptr, (size_t)(colon - address.ptr));
    struct str port = str_of(colon + 1, address.len - host.len - 1);
    int64_t number;
    bool in_brackets = str_starts_with(host, STR("[")) && str_ends_with(host, STR("]")) && host.len > 2;
    for (size_t i = 0; i < host.len; i++)
        if (host.ptr[i] <= ' ' || strchr(in_brackets ? ",/@" : ",/@:[]", host.ptr[i]))
            return false;
    return str_to_i64(port, &number) && number >= 1 && number <= 65535;
}

/* One block, as all of them are checked. */
struct engine {
    const char *name, *list, *scheme; /* "kafka", "brokers", "" */
    bool is_used;                     /* by some flow */
    const struct setting_strings *addresses;
    struct setting_place place;
    /* Where it is used and has no address; NULL: the module that uses it may have its own. */
    const char *missing;
    struct setting_place use_place;
    const struct kernel_tls *tls;
    const struct kernel_login *login;
    const char *password; /* "sasl.passwordFromEnv" */
    struct str credentials;
    struct setting_place credentials_place;
};

static enum status check_addresses(const struct config *config, const struct engine *engine,
                                   struct error *error)
{
    char field[64];
    snprintf(field, sizeof field, "%s.%s", engine->name, engine->list);
    if (engine->is_used && engine->missing && engine->addresses->count == 0)
        return config_error_at(config, engine->use_place, field, error, "%s", engine->missing);
    for (size_t i = 0; i < engine->addresses->count; i++) {
        struct str given = engine->addresses->items[i];
        size_t skipped = strlen(engine->scheme);
        if (!str_starts_with(given, str_from(engine->scheme)) ||
            !kernel_address_is_good(str_of(given.ptr + skipped, given.len - skipped)))
            return config_error_at(config, engine->place, field, error, "\"%.*s\" is not %sHOST:PORT",
                                   STR_ARG(given), engine->scheme);
    }
    return STATUS_OK;
}

/* Files, certificates and passwords: those of an engine that is not used may be missing. */
static enum status check_secrets(const struct config *config, const struct engine *engine,
                                 struct error *error)
{
    const struct kernel_tls *tls = engine->tls;
    const struct kernel_login *login = engine->login;
    bool has_tls = engine->is_used && tls->enabled;
    const struct {
        const char *member;
        struct str path;
        struct setting_place place;
        bool is_used;
    } files[] = {
        {"tls.caFile", tls->ca_file, tls->ca_place, has_tls},
        {"tls.certificateFile", tls->certificate_file, tls->certificate_place, has_tls},
        {"tls.keyFile", tls->key_file, tls->key_place, has_tls},
        {"credentialsFile", engine->credentials, engine->credentials_place, engine->is_used},
    };
    char field[64];
    snprintf(field, sizeof field, "%s.tls.%s", engine->name,
             tls->key_file.len ? "certificateFile" : "keyFile");
    if (!tls->certificate_file.len != !tls->key_file.len)
        return config_error_at(config, tls->key_file.len ? tls->key_place : tls->certificate_place, field,
                               error, "a certificate and its private key are given together, or neither");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(field, sizeof field, "%s.%s", engine->name, files[i].member);
        if (files[i].is_used && files[i].path.len && access(files[i].path.ptr, R_OK) != 0)
            return config_error_at(config, files[i].place, field, error, "%s cannot be read",
                                   files[i].path.ptr);
    }
    snprintf(field, sizeof field, "%s.%s", engine->name, engine->password);
    if (engine->is_used && login->password_env.len && !getenv(login->password_env.ptr))
        return config_error_at(config, login->password_place, field, error,
                               "the environment variable %s is not set", login->password_env.ptr);
    snprintf(field, sizeof field, "%s.%.*spasswordFile", engine->name,
             (int)(strlen(engine->password) - strlen("passwordFromEnv")), engine->password);
    return engine->is_used ? kernel_password_file_check(config, login->password_file, login->password_env,
                                                        login->password_file_place, field, error)
                           : STATUS_OK;
}

enum status kernel_engines_check(const struct config *config, struct error *error)
{
    const struct kernel_bus_settings *bus = config_section(config, "bus");
    const struct kernel_kafka *kafka = config_section(config, "kafka");
    const struct kernel_redis *redis = config_section(config, "redis");
    const struct kernel_nats *nats = config_section(config, "nats");
    const struct engine engines[] = {
        {"kafka", "brokers", "", bus->commands == KERNEL_KAFKA, &kafka->brokers, kafka->brokers_place,
         "bus.commands is kafka: list the brokers here", bus->commands_place, &kafka->tls, &kafka->sasl,
         "sasl.passwordFromEnv", STR_NONE, .credentials_place = {0}},
        {"redis", "nodes", "", bus->invalidations == KERNEL_REDIS, &redis->nodes, redis->nodes_place, NULL,
         bus->invalidations_place, &redis->tls, &redis->login, "passwordFromEnv", STR_NONE,
         .credentials_place = {0}},
        {"nats", "servers", "nats://", bus->events == KERNEL_NATS, &nats->servers, nats->servers_place,
         "bus.events is nats: list the servers here", bus->events_place, &nats->tls, &nats->login,
         "passwordFromEnv", nats->credentials_file, nats->credentials_place},
    };
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof engines / sizeof *engines && status == STATUS_OK; i++) {
        status = check_addresses(config, &engines[i], error);
        if (status == STATUS_OK)
            status = check_secrets(config, &engines[i], error);
    }
    return status;
}

/* ---- certificates: of the server and of the clients of engines ---- */

static void give_certificate(const char *field, struct str certificate, struct str key,
                             void (*fn)(const struct kernel_certificate *certificate, void *arg), void *arg)
{
    struct http_tls *tls = NULL;
    struct error error;
    const struct http_tls_settings files = {.cert_file = certificate,
                                            .key_file = key.len ? key : certificate};
    if (certificate.len == 0 || http_tls_load(&files, &tls, &error) != STATUS_OK)
        return;
    fn(&(struct kernel_certificate){field, certificate, http_tls_certificate(tls).not_after_s}, arg);
    http_tls_unref(tls);
}

void kernel_certificates_each(const struct config *config,
                              void (*fn)(const struct kernel_certificate *certificate, void *arg), void *arg)
{
    const struct kernel_tls_settings *server =
        &((const struct kernel_http_settings *)config_section(config, "http"))->tls;
    const struct kernel_kafka *kafka = config_section(config, "kafka");
    const struct kernel_redis *redis = config_section(config, "redis");
    const struct kernel_nats *nats = config_section(config, "nats");
    const struct {
        const char *field;
        const struct kernel_tls *tls;
    } engines[] = {{"kafka.tls", &kafka->tls}, {"redis.tls", &redis->tls}, {"nats.tls", &nats->tls}};
    give_certificate("http.tls", server->cert_file, server->key_file, fn, arg);
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++)
        if (engines[i].tls->enabled)
            give_certificate(engines[i].field, engines[i].tls->certificate_file, engines[i].tls->key_file, fn,
                             arg);
}
