/* Handles of librdkafka: settings, log lines, errors, the end. */
#include <stdio.h>
#include <stdlib.h>
#include <syslog.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/secret.h"
#include "bus/kafka/inside.h"

#define LOG_EVERY_NS (10 * CLOCK_NS_PER_S)
#define END_S 3 /* it takes some milliseconds, or for ever */

/* ---- settings ---- */

/* The message names the setting, never its value: it may be a password. */
static enum status set_all(rd_kafka_conf_t *conf, const struct kafka_setting *settings, struct error *error)
{
    char why[256];

    for (; settings->name; settings++)
        if (settings->value &&
            rd_kafka_conf_set(conf, settings->name, settings->value, why, sizeof why) != RD_KAFKA_CONF_OK)
            return error_set(error, STATUS_CONFIG, "kafka: %s is not accepted", settings->name);
    return STATUS_OK;
}

/* ---- log lines and errors ---- */

/* A consumer's opaque is its reader. */
static struct kafka *kafka_of(const rd_kafka_t *rk)
{
    void *opaque = rd_kafka_opaque(rk);

    if (opaque && rd_kafka_type(rk) == RD_KAFKA_CONSUMER)
        return ((struct kafka_reader *)opaque)->kafka;
    return opaque;
}

/* For details: kafka_up and kafka_down (topic.c) report the changes. */
static void on_log(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
    struct kafka *kafka = kafka_of(rk);
    int64_t now_ns = clock_mono_ns();
    long long last_ns;

    if (!kafka || level > LOG_NOTICE)
        return;
    last_ns = atomic_load(&kafka->log_at_ns);
    if (now_ns - last_ns < LOG_EVERY_NS ||
        !atomic_compare_exchange_strong(&kafka->log_at_ns, &last_ns, now_ns)) {
        atomic_fetch_add(&kafka->log_dropped, 1);
        return;
    }
    log_info("kafka_client", LOG_CSTR("facility", facility), LOG_CSTR("text", text),
             LOG_INT("dropped", atomic_exchange(&kafka->log_dropped, 0)));
}

/* Since the password may have been rotated, a handle that has lost a broker or was refused logs in with what the file holds now. */
static void renew_password(const struct kafka *kafka, rd_kafka_t *rk)
{
    const struct bus_security *security = &kafka->config.security;
    struct secret password;
    struct error error = {0};

    if (!security->username || !security->password_file)
        return;
    if (secret_read(&password, security->password_file, &error) != STATUS_OK) {
        log_warn("kafka_password_unreadable", LOG_CSTR("error", error.message));
        return;
    }
    rd_kafka_error_destroy(rd_kafka_sasl_set_credentials(rk, security->username, password.text));
    secret_wipe(&password);
}

static void on_error(rd_kafka_t *rk, int error, const char *reason, void *opaque)
{
    struct kafka *kafka = kafka_of(rk);

    (void)reason;
    (void)opaque;
    if (rd_kafka_type(rk) == RD_KAFKA_PRODUCER && error == RD_KAFKA_RESP_ERR__FATAL)
        atomic_store(&kafka->is_producer_broken, true);
    renew_password(kafka, rk);
    pthread_mutex_lock(&kafka->lock);
    bus_kafka_upkeep_wake(kafka);
    pthread_mutex_unlock(&kafka->lock);
}

/* ---- handles ---- */

/* A handle is opened for a try, since librdkafka checks certificates and mechanisms only then. */
static enum status try_conf(const rd_kafka_conf_t *conf, struct error *error)
{
    char why[256];
    rd_kafka_conf_t *copy = rd_kafka_conf_dup(conf);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_CONSUMER, copy, why, sizeof why);

    if (!rk) {
        rd_kafka_conf_destroy(copy);
        return error_set(error, STATUS_CONFIG, "kafka: %s", why);
    }
    rd_kafka_destroy(rk);
    return STATUS_OK;
}

enum status bus_kafka_conf_create(const struct bus_kafka_config *config, rd_kafka_conf_t **out,
                                  struct error *error)
{
    const struct bus_security *security = &config->security;
    const bool tls = security->tls, sasl = security->username != NULL;
    struct secret password = {{0}};
    const struct kafka_setting settings[] = {
        {"bootstrap.servers", config->brokers},
        {"client.id", config->client_id ? config->client_id : "freshet"},
        {"security.protocol", sasl  ? tls ? "sasl_ssl" : "sasl_plaintext"
                              : tls ? "ssl"
                                    : "plaintext"},
        {"ssl.endpoint.identification.algorithm",
         tls ? "https" : NULL}, /* older versions do not check the name */
        {"ssl.ca.location", tls ? security->ca_file : NULL},
        {"ssl.certificate.location", tls ? security->certificate_file : NULL},
        {"ssl.key.location", tls ? security->key_file : NULL},
        {"sasl.mechanisms", sasl ? (security->mechanism ? security->mechanism : "PLAIN") : NULL},
        {"sasl.username", security->username},
        {"sasl.password", sasl ? (security->password ? security->password : password.text) : NULL},
        /* a broker that is dead, frozen or half-open is noticed within seconds; reconnects every second */
        {"socket.timeout.ms", "10000"},
        {"socket.connection.setup.timeout.ms", "5000"},
        {"socket.keepalive.enable", "true"},
        {"socket.nagle.disable", "true"},
        {"reconnect.backoff.ms", "50"},
        {"reconnect.backoff.max.ms", "1000"},
        {"log.connection.close", "false"},
        {"log_level", "5"},
        {NULL, NULL},
    };

    *out = NULL;
    if (!config->brokers || !config->brokers[0])
        return error_set(error, STATUS_CONFIG, "kafka: no brokers are named");
    if (sasl && security->password_file &&
        secret_read(&password, security->password_file, error) != STATUS_OK)
        return STATUS_CONFIG;
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_log_cb(conf, on_log);
    enum status status = set_all(conf, settings, error);
    secret_wipe(&password);
    if (status == STATUS_OK)
        status = try_conf(conf, error);
    if (status == STATUS_OK)
        *out = conf;
    else
        rd_kafka_conf_destroy(conf);
    return status;
}

rd_kafka_t *bus_kafka_client_open(struct kafka *kafka, rd_kafka_type_t type,
                                  const struct kafka_setting *settings, void *opaque)
{
    char why[256] = "";
    struct error error = {0};
    rd_kafka_conf_t *conf = rd_kafka_conf_dup(kafka->conf);
    rd_kafka_t *rk = NULL;

    rd_kafka_conf_set_opaque(conf, opaque);
    rd_kafka_conf_set_error_cb(conf, on_error);
    if (type == RD_KAFKA_PRODUCER)
        rd_kafka_conf_set_dr_msg_cb(conf, bus_kafka_on_delivered);
    else
        rd_kafka_conf_set_rebalance_cb(conf, bus_kafka_on_rebalance);
    if (set_all(conf, settings, &error) == STATUS_OK)
        rk = rd_kafka_new(type, conf, why, sizeof why);
    if (!rk) {
        rd_kafka_conf_destroy(conf);
        log_error("kafka_client_failed", LOG_CSTR("error", error.message[0] ? error.message : why));
        return NULL;
    }
    renew_password(kafka, rk); /* the one in conf is of the start */
    return rk;
}

/* ---- the end ---- */

static void *end_handle(void *rk)
{
    rd_kafka_destroy_flags(rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    return NULL;
}

static void *end_assigned(void *rk)
{
    rd_kafka_assign(rk, NULL); /* may wait for ever too: see assign_and_settle() */
    return end_handle(rk);
}

static void close_by(rd_kafka_t *rk, void *(*end)(void *rk))
{
    struct timespec limit;
    pthread_t thread;

    rd_kafka_set_log_level(rk, 0); /* the bus may not exist any more */
    if (pthread_create(&thread, NULL, end, rk) != 0) {
        end(rk);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += END_S;
    if (pthread_timedjoin_np(thread, NULL, &limit) == 0)
        return;
    pthread_detach(thread);
    log_warn("kafka_handle_left", LOG_CSTR("error", "librdkafka does not end it"));
}

void bus_kafka_client_close(rd_kafka_t *rk)
{
    close_by(rk, end_handle);
}

void bus_kafka_client_close_assigned(rd_kafka_t *rk)
{
    close_by(rk, end_assigned);
}
