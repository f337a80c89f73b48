/* The NATS driver's life: made of its configuration, started, stopped, freed. What it does meanwhile is in nats_*.c;
 * inside.h draws it. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define MESSAGE_BYTES ((1u << 20) - (16u << 10))

static struct metric_family reconnects_family = {
    .name = "nats_reconnects_total",
    .help = "Connections to NATS that were lost and made again.",
    .type = METRIC_COUNTER,
};

/* ---- subscriptions ---- */

static void init_slot(struct nats_slot *slot, struct nats_reader *reader, unsigned partition)
{
    struct nats *nats = reader->nats;
    bool shared = reader->consumer.spec.mode == BUS_SHARED;

    slot->reader = reader;
    slot->partition = partition;
    slot->dead = memory_zalloc(reader->consumer.spec.batch_max * sizeof slot->dead[0]);
    slot->delivery = (struct bus_delivery){.bus = &nats->bus,
                                           .consumer = &reader->consumer,
                                           .pool = shared ? nats->pool : NULL,
                                           .handler_ms = nats->config.handler_ms,
                                           .dead = slot->dead};
    bus_nats_job_init(slot);
}

static void nats_subscribe(struct bus *bus, const struct bus_consumer *consumer)
{
    struct nats *nats = (struct nats *)bus;
    struct nats_reader *reader = memory_zalloc(sizeof *reader);
    unsigned partitions = consumer->topic->spec.partitions;

    reader->consumer = *consumer;
    reader->nats = nats;
    reader->topic = bus_nats_topic(nats, consumer->topic);
    reader->doubt = true;
    reader->slots = memory_zalloc(partitions * sizeof reader->slots[0]);
    for (unsigned i = 0; i < partitions; i++)
        init_slot(&reader->slots[i], reader, i);
    nats->readers = memory_realloc_array(nats->readers, nats->reader_count + 1, sizeof nats->readers[0]);
    nats->readers[nats->reader_count++] = reader;
}

static void free_reader(struct nats_reader *reader)
{
    for (unsigned i = 0; i < reader->consumer.topic->spec.partitions; i++) {
        struct nats_slot *slot = &reader->slots[i];
        for (size_t at = 0; at < slot->count; at++)
            bus_nats_item_free(&slot->items[at]);
        natsSubscription_Destroy(slot->inbox);
        for (int kind = 0; kind < FATE_KINDS; kind++)
            natsSubscription_Destroy(slot->watches[kind].inbox);
        bus_nats_fates_drop(slot);
        free(slot->items);
        free(slot->dead);
    }
    natsSubscription_Destroy(reader->members_inbox);
    bus_consumer_deinit(&reader->consumer);
    free(reader->members);
    free(reader->slots);
    free(reader);
}

/* ---- life ---- */

/* JetStream tells consumers by itself. */
static void nats_wake(struct bus *bus, struct bus_topic_state *topic)
{
    (void)bus;
    (void)topic;
}

static void nats_start(struct bus *bus)
{
    struct nats *nats = (struct nats *)bus;

    nats->started = pthread_create(&nats->keeper, NULL, bus_nats_keeper_run, nats) == 0;
}

static void nats_interrupt(struct bus *bus)
{
    struct nats *nats = (struct nats *)bus;

    if (nats->pool)
        db_pool_interrupt(nats->pool);
    pthread_mutex_lock(&nats->lock);
    nats->cancelled = true;
    bus_nats_kick(nats);
    pthread_mutex_unlock(&nats->lock);
}

static void nats_stop(struct bus *bus, int64_t grace_ms)
{
    struct nats *nats = (struct nats *)bus;
    int64_t deadline_ns = clock_deadline_ms(grace_ms);

    pthread_mutex_lock(&nats->lock);
    nats->stopping = true;
    bus_nats_kick(nats);
    while ((nats->busy > 0 || nats->publications) && !nats->cancelled && clock_mono_ns() < deadline_ns)
        bus_nats_wait(nats, deadline_ns);
    pthread_mutex_unlock(&nats->lock);
    nats_interrupt(bus);
    pthread_mutex_lock(&nats->lock);
    while (nats->busy > 0 || nats->publications)
        bus_nats_wait(nats, CLOCK_NEVER);
    pthread_mutex_unlock(&nats->lock);
    if (nats->started)
        pthread_join(nats->keeper, NULL);
    nats->started = false;
    bus_nats_disconnect(nats);
}

static void free_config(struct bus_nats_config *config)
{
    struct bus_nats_security *security = &config->security;

    free((char *)config->servers);
    free((char *)config->client_name);
    free((char *)config->advisory_stream);
    free((char *)config->terminated_stream);
    free((char *)security->ca_file);
    free((char *)security->certificate_file);
    free((char *)security->key_file);
    free((char *)security->username);
    free((char *)security->password);
    free((char *)security->credentials_file);
}

static void nats_destroy(struct bus *bus)
{
    struct nats *nats = (struct nats *)bus;

    for (size_t i = 0; i < nats->reader_count; i++)
        free_reader(nats->readers[i]);
    free(nats->readers);
    bus_nats_plain_free(nats);
    natsSubscription_Destroy(nats->guard);
    kvStore_Destroy(nats->leases);
    jsCtx_Destroy(nats->js);
    natsConnection_Destroy(nats->connection);
    while (nats->graves) {
        struct nats_grave *grave = nats->graves;
        nats->graves = grave->next;
        jsCtx_Destroy(grave->js);
        natsConnection_Destroy(grave->connection);
        free(grave);
    }
    natsOptions_Destroy(nats->options);
    db_pool_destroy(nats->pool);
    free(nats->topics);
    free_config(&nats->config);
    pthread_cond_destroy(&nats->changed);
    pthread_mutex_destroy(&nats->lock);
    bus_deinit(&nats->bus);
    free(nats);
}

bool bus_nats_is_up(const struct bus *bus)
{
    return atomic_load(&((const struct nats *)bus)->up);
}

static const struct bus_driver driver = {
    .name = "NATS",
    .publish = bus_nats_publish,
    .wake = nats_wake,
    .subscribe = nats_subscribe,
    .start = nats_start,
    .stop = nats_stop,
    .interrupt = nats_interrupt,
    .destroy = nats_destroy,
};

/* ---- creation ---- */

static char *own(const char *text)
{
    return text ? str_dup(str_from(text)) : NULL;
}

static void take_config(struct nats *nats, const struct bus_nats_config *config)
{
    struct bus_nats_config *mine = &nats->config;

    *mine = *config;
    mine->target = NULL;
    mine->topics = NULL;
    mine->names = NULL;
    mine->advisory_stream = own(config->advisory_stream);
    mine->terminated_stream = own(config->terminated_stream);
    mine->servers = own(config->servers);
    mine->client_name = own(config->client_name);
    mine->security.ca_file = own(config->security.ca_file);
    mine->security.certificate_file = own(config->security.certificate_file);
    mine->security.key_file = own(config->security.key_file);
    mine->security.username = own(config->security.username);
    mine->security.password = own(config->security.password);
    mine->security.credentials_file = own(config->security.credentials_file);
    mine->replicas = config->replicas ? config->replicas : 1;
    mine->handler_ms = config->handler_ms ? config->handler_ms : 30000;
    mine->ack_wait_ms = config->ack_wait_ms ? config->ack_wait_ms : 5000;
    nats->bus.message_bytes_max = config->message_bytes_max ? config->message_bytes_max : MESSAGE_BYTES;
    snprintf(nats->id, sizeof nats->id, "%016llx", (unsigned long long)random_u64());
}

static void init_sync(struct nats *nats)
{
    pthread_condattr_t attributes;

    pthread_mutex_init(&nats->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&nats->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    metrics_register(&reconnects_family);
    nats->reconnects = metric_series_get(&reconnects_family, NULL);
}

static enum status create_pool(struct nats *nats, const struct db_target *target, struct error *error)
{
    struct db_target mine;
    char name[64];

    if (!target)
        return STATUS_OK;
    mine = *target;
    snprintf(name, sizeof name, "%s-nats", target->name);
    mine.name = name; /* its metrics are not those of the caller's pool */
    return db_pool_create(&mine, &nats->pool, error);
}

static enum status check_advisories(const struct bus_nats_config *config, struct error *error)
{
    const char *streams[] = {config->advisory_stream, config->terminated_stream};

    for (size_t i = 0; i < 2; i++)
        if (streams[i] && !bus_nats_is_stream_name(streams[i]))
            return error_set(
                error, STATUS_CONFIG,
                "nats: %.80s cannot be a stream of advisories: no spaces, dots, '*', '>', '/', '\\'",
                streams[i]);
    return STATUS_OK;
}

enum status bus_nats_create(const struct bus_nats_config *config, struct bus **out, struct error *error)
{
    struct nats *nats = memory_zalloc(sizeof *nats);
    int64_t keep_dead_ms = config->keep_dead_ms ? config->keep_dead_ms : INT64_C(30) * 24 * 3600 * 1000;

    *out = NULL;
    init_sync(nats);
    take_config(nats, config);
    enum status status =
        bus_init(&nats->bus, &driver, config->topics, config->topic_count, keep_dead_ms, error);
    if (status == STATUS_OK)
        status = check_advisories(config, error);
    if (status == STATUS_OK)
        status = bus_nats_names_init(nats, config, error);
    if (status == STATUS_OK)
        status = bus_nats_options(nats, error);
    if (status == STATUS_OK)
        status = create_pool(nats, config->target, error);
    if (status == STATUS_OK)
        *out = &nats->bus;
    else
        nats_destroy(&nats->bus);
    return status;
}
