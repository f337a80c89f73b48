/* Certificates that the configuration names, for operators: when does each expire? */
#include "kernel/engines.h"
#include "kernel/kernel_inside.h"

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
