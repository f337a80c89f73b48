/* One way to open a Kafka bus, whatever it carries. */
#include "modules/refdata/kafka.h"

#include "base/arena.h"
#include "kernel/engines.h"

static const char *join(const struct setting_strings *list, struct arena *arena)
{
    struct str text = STR("");
    for (size_t i = 0; i < list->count; i++)
        text = arena_printf(arena, "%.*s%s%.*s", STR_ARG(text), i ? "," : "", STR_ARG(list->items[i]));
    return text.ptr;
}

static struct bus_kafka_security security_of(const struct kernel_kafka *kafka)
{
    return (struct bus_kafka_security){
        .tls = kafka->tls.enabled,
        .ca_file = str_or_null(kafka->tls.ca_file),
        .certificate_file = str_or_null(kafka->tls.certificate_file),
        .key_file = str_or_null(kafka->tls.key_file),
        .username = str_or_null(kafka->sasl.username),
        .password = kernel_login_password(&kafka->sasl),
        .mechanism = kernel_sasl_mechanisms[kafka->mechanism],
    };
}

enum status refdata_kafka_open(const struct refdata *refdata, const struct bus_kafka_config *own,
                               struct bus **bus, struct error *error)
{
    const struct kernel_kafka *kafka = kernel_kafka(refdata->kernel);
    struct bus_kafka_config config = *own;
    struct arena arena;
    arena_init(&arena, 1024);
    config.loop = refdata->home;
    config.brokers = join(&kafka->brokers, &arena);
    config.client_id = kafka->client_id.ptr;
    config.security = security_of(kafka);
    config.replication = (unsigned)kafka->replication;
    config.session_ms = kafka->session_timeout_ms;
    config.keep_dead_ms = kernel_bus(refdata->kernel)->keep_dead_ms;
    config.message_bytes_max = (size_t)kafka->message_bytes_max;
    enum status status = bus_kafka_create(&config, bus, error);
    arena_deinit(&arena);
    return status;
}
