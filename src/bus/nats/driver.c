/* The NATS driver: create, subscribe, start, stop, destroy. inside.h shows the rest. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define MESSAGE_BYTES ((1u << 20) - (16u << 10))
#define KEEP_DEAD_MS (INT64_C(30) * 24 * 3600 * 1000)

enum {
    HANDLER_MS = 30000,
    ACK_WAIT_MS = 5000,
    RETRY_MIN_MS = 50,
    RETRY_MAX_MS = 2000,
    RELEASE_MS = 1500, /* of all leases, at the end */
};

static struct metric_family reconnects_family = {
    .name = "nats_reconnects_total",
    .help = "Reconnections to NATS.",
    .type = METRIC_COUNTER,
};

/* ---- readers ---- */

static void nats_subscribe(struct bus *bus, const struct bus_consumer *consumer)
{
    struct nats *nats = (struct nats *)bus;
    struct nats_reader *reader = memory_zalloc(sizeof *reader);

    reader->consumer = *consumer;
    reader->nats = nats;
    reader->topic = bus_nats_topic(nats, consumer->topic);
    reader->needs_check = true;
    reader->partition_count = consumer->topic->spec.partitions;
    reader->partitions = memory_zalloc(reader->partition_count * sizeof reader->partitions[0]);
    for (unsigned i = 0; i < reader->partition_count; i++)
        bus_nats_partition_init(&reader->partitions[i], reader, i);
    nats->readers = memory_realloc_array(nats->readers, nats->reader_count + 1, sizeof nats->readers[0]);
    nats->readers[nats->reader_count++] = reader;
}

static void free_reader(struct nats_reader *reader)
{
    for (unsigned i = 0; i < reader->partition_count; i++) {
        struct nats_partition *partition = &reader->partitions[i];
        bus_nats_partition_clear(partition);
        bus_nats_advisories_drop(partition);
        natsSubscription_Destroy(partition->pull.inbox);
        for (int kind = 0; kind < ADVISORY_KINDS; kind++)
            natsSubscription_Destroy(partition->watches[kind].pull.inbox);
        free(partition->items);
        free(partition->dead);
    }
    natsSubscription_Destroy(reader->members_inbox);
    bus_consumer_deinit(&reader->consumer);
    free(reader->members);
    free(reader->partitions);
    free(reader);
}

/* ---- start and stop ---- */

static void nats_start(struct bus *bus)
{
    struct nats *nats = (struct nats *)bus;

    nats->upkeep_thread = worker_pool_create("nats", 1, 1);
    nats->upkeep = task_create(&(struct task_config){.name = "nats-upkeep",
                                                     .loop = nats->config.loop,
                                                     .pool = nats->upkeep_thread,
                                                     .run = bus_nats_upkeep_step,
                                                     .context = nats,
                                                     .retry_min_ms = RETRY_MIN_MS,
                                                     .retry_max_ms = RETRY_MAX_MS});
    task_start(nats->upkeep, TASK_NOW);
}

static void nats_interrupt(struct bus *bus)
{
    struct nats *nats = (struct nats *)bus;

    if (nats->pool)
        db_pool_interrupt(nats->pool);
    pthread_mutex_lock(&nats->lock);
    nats->is_cancelled = true;
    bus_nats_wake(nats);
    pthread_mutex_unlock(&nats->lock);
}

static void await_idle(struct nats *nats, int64_t deadline_ns)
{
    pthread_mutex_lock(&nats->lock);
    while ((nats->busy > 0 || !LIST_EMPTY(&nats->publications)) &&
           (deadline_ns == CLOCK_NEVER || (!nats->is_cancelled && clock_mono_ns() < deadline_ns)))
        bus_nats_wait(nats, deadline_ns);
    pthread_mutex_unlock(&nats->lock);
}

/* Messages of handlers that end are acknowledged before their leases are released. */
static void nats_stop(struct bus *bus, int64_t grace_ms)
{
    struct nats *nats = (struct nats *)bus;
    int64_t deadline_ns = clock_deadline_ms(grace_ms);

    pthread_mutex_lock(&nats->lock);
    nats->is_stopping = true;
    pthread_mutex_unlock(&nats->lock);
    await_idle(nats, deadline_ns);
    nats_interrupt(bus);
    await_idle(nats, CLOCK_NEVER);
    if (nats->upkeep)
        task_stop(nats->upkeep, TASK_FOREVER);
    deadline_ns = clock_deadline_ms(RELEASE_MS);
    for (size_t i = 0; i < nats->reader_count && atomic_load(&nats->is_up); i++)
        if (nats_reader_is_shared(nats->readers[i]))
            bus_nats_leases_release(nats->readers[i], deadline_ns);
    if (atomic_load(&nats->is_up) && nats->connection)
        natsConnection_FlushTimeout(nats->connection, NATS_API_MS / 4);
    bus_nats_disconnect(nats);
}

static void nats_destroy(struct bus *bus)
{
    struct nats *nats = (struct nats *)bus;

    task_destroy(nats->upkeep);
    if (nats->upkeep_thread)
        worker_pool_destroy(nats->upkeep_thread);
    for (size_t i = 0; i < nats->reader_count; i++)
        free_reader(nats->readers[i]);
    free(nats->readers);
    bus_nats_listeners_free(nats);
    natsSubscription_Destroy(nats->last_subscription);
    kvStore_Destroy(nats->leases);
    jsCtx_Destroy(nats->js);
    natsConnection_Destroy(nats->connection);
    while (!SLIST_EMPTY(&nats->old_connections)) {
        struct nats_old_connection *old = SLIST_FIRST(&nats->old_connections);
        SLIST_REMOVE_HEAD(&nats->old_connections, link);
        jsCtx_Destroy(old->js);
        natsConnection_Destroy(old->connection);
        free(old);
    }
    natsOptions_Destroy(nats->options);
    db_pool_destroy(nats->pool);
    free(nats->topics);
    free((char *)nats->config.servers);
    free((char *)nats->config.advisory_stream);
    free((char *)nats->config.terminated_stream);
    pthread_cond_destroy(&nats->changed);
    pthread_mutex_destroy(&nats->lock);
    bus_deinit(&nats->bus);
    free(nats);
}

bool bus_nats_is_up(const struct bus *bus)
{
    return atomic_load(&((const struct nats *)bus)->is_up);
}

static const struct bus_driver driver = {
    .publish = bus_nats_publish,
    .subscribe = nats_subscribe,
    .start = nats_start,
    .stop = nats_stop,
    .interrupt = nats_interrupt,
    .destroy = nats_destroy,
};

/* ---- create ---- */

static char *copy_text(const char *text)
{
    return text ? str_dup(str_from(text)) : NULL;
}

/* The client has its own copies of the other texts. */
static void copy_config(struct nats *nats, const struct bus_nats_config *config)
{
    struct bus_nats_config *copy = &nats->config;

    *copy = *config;
    copy->target = NULL;
    copy->topics = NULL;
    copy->names = NULL;
    copy->client_name = NULL;
    copy->security = (struct bus_nats_security){0};
    copy->servers = copy_text(config->servers);
    copy->advisory_stream = copy_text(config->advisory_stream);
    copy->terminated_stream = copy_text(config->terminated_stream);
    copy->replicas = config->replicas ? config->replicas : 1;
    copy->handler_ms = config->handler_ms ? config->handler_ms : HANDLER_MS;
    copy->ack_wait_ms = config->ack_wait_ms ? config->ack_wait_ms : ACK_WAIT_MS;
    nats->bus.message_bytes_max = config->message_bytes_max ? config->message_bytes_max : MESSAGE_BYTES;
    snprintf(nats->id, sizeof nats->id, "%016llx", (unsigned long long)random_u64());
}

static void init_lock(struct nats *nats)
{
    pthread_mutex_init(&nats->lock, NULL);
    pthread_cond_init(&nats->changed, NULL);
}

/* Its metrics are not those of the caller's pool. */
static enum status create_pool(struct nats *nats, const struct db_target *target, struct error *error)
{
    struct db_target own = *target;
    char name[64];

    snprintf(name, sizeof name, "%s-nats", target->name);
    own.name = name;
    return db_pool_create(&own, &nats->pool, error);
}

enum status bus_nats_create(const struct bus_nats_config *config, struct bus **out, struct error *error)
{
    struct nats *nats = memory_zalloc(sizeof *nats);

    *out = NULL;
    init_lock(nats);
    copy_config(nats, config);
    metrics_register(&reconnects_family);
    nats->reconnects = metric_series_get(&reconnects_family, NULL);
    enum status status = bus_init(&nats->bus, &driver, config->topics, config->topic_count,
                                  config->keep_dead_ms ? config->keep_dead_ms : KEEP_DEAD_MS, error);
    if (status == STATUS_OK)
        status = bus_nats_names_init(nats, config, error);
    if (status == STATUS_OK)
        status = bus_nats_options_create(nats, config, error);
    if (status == STATUS_OK && config->target)
        status = create_pool(nats, config->target, error);
    if (status != STATUS_OK) {
        nats_destroy(&nats->bus);
        return status;
    }
    *out = &nats->bus;
    return STATUS_OK;
}
