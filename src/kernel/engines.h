/* Connections to the engines: `kafka:`, `redis:` and `nats:` of the file. They turn nothing on; `bus:` does (C2). What is
 * carried over them, and what it is called there, is defined by the modules. */
#ifndef FRESHET_KERNEL_ENGINES_H
#define FRESHET_KERNEL_ENGINES_H

#include "bus/bus.h"
#include "kernel/kernel.h"

struct kernel_tls {
    bool enabled;
    struct str ca_file, certificate_file, key_file; /* empty: the system's; no client certificate */
    struct setting_place ca_place, certificate_place, key_place;
};

struct kernel_login {
    struct str username, password_env, password_file; /* empty = without */
    struct setting_place password_place, password_file_place;
};

struct kernel_kafka {
    struct setting_strings brokers; /* HOST:PORT */
    struct setting_place brokers_place;
    struct str client_id;
    int64_t replication, session_timeout_ms, message_bytes_max;
    struct kernel_tls tls;
    struct kernel_login sasl;
    int mechanism; /* kernel_sasl_mechanisms */
};

struct kernel_redis {
    int mode;                     /* enum kernel_redis_mode */
    struct setting_strings nodes; /* HOST:PORT */
    struct setting_place nodes_place;
    struct kernel_tls tls;
    struct kernel_login login;
};

struct kernel_nats {
    struct setting_strings servers; /* nats://HOST:PORT */
    struct setting_place servers_place;
    int64_t replicas;
    struct kernel_tls tls;
    struct kernel_login login;
    struct str credentials_file; /* empty = without */
    struct setting_place credentials_place;
};

enum kernel_redis_mode { KERNEL_REDIS_CLUSTER, KERNEL_REDIS_SINGLE };
extern const char *const kernel_redis_modes[], *const kernel_sasl_mechanisms[];

/* As the drivers of the bus take it; the password is read from the environment, or by the driver from its file. */
struct bus_security kernel_engine_security(const struct kernel_tls *tls, const struct kernel_login *login);

/* How the file's `kafka:` is reached; texts are the file's or in the arena. The rest of *config stays. */
struct bus_kafka_config;
void kernel_engine_kafka(const struct kernel_kafka *kafka, struct arena *arena,
                         struct bus_kafka_config *config);

/* `passwordFile` stands alone and can be read. `variable`: `passwordFromEnv` of the same login. */
enum status kernel_password_file_check(const struct config *config, struct str path, struct str variable,
                                       struct setting_place place, const char *field,
                                       struct error *error) MUST_CHECK;
/* HOST:PORT or [IPV6]:PORT, with a port that one can connect to. */
bool kernel_address_is_good(struct str address);
/* Checks what the file allows: addresses, files that are there, passwords of engines that are used. */
enum status kernel_engines_check(const struct config *config, struct error *error) MUST_CHECK;

extern const struct setting_row kernel_kafka_rows[], kernel_redis_rows[], kernel_nats_rows[];

#endif
