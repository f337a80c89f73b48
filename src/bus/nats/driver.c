/* The NATS driver: create, subscribe, upkeep, stop, destroy. inside.h shows the rest. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define MESSAGE_BYTES ((1u << 20) - (16u << 10))

enum {
    HANDLER_MS = 30000,
    ACK_WAIT_MS = 5000,
    SYNC_MS = 50,
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

/* ---- the upkeep: the one task that waits for the server's answers about streams, consumers and leases, so that no handler does.
 * It runs every quarter of the wait for acknowledgements, at most every second, and when it is woken. ---- */

static void at_latest(int64_t *delay_ns, int64_t other_ns)
{
    if (other_ns < *delay_ns)
        *delay_ns = other_ns > 0 ? other_ns : 0;
}

/* A new connection: open requests are lost, and messages that were on their way are missing. */
static void begin_epoch(struct nats *nats)
{
    if (nats->upkeep_epoch == nats->epoch)
        return;
    nats->upkeep_epoch = nats->epoch;
    nats->connected_ns = clock_mono_ns();
    for (size_t i = 0; i < nats->reader_count; i++) {
        struct nats_reader *reader = nats->readers[i];
        reader->needs_check = true;
        for (unsigned at = 0; at < reader->partition_count; at++) {
            struct nats_partition *partition = &reader->partitions[at];
            partition->pull.requested = 0;
            partition->overdue_ns = bus_nats_overdue_ns(nats, 0);
            for (int kind = 0; kind < ADVISORY_KINDS; kind++)
                partition->watches[kind].requested = 0;
            if (!nats_reader_is_shared(reader) || partition->state == PARTITION_AWAY)
                continue;
            if (partition->state == PARTITION_RUNNING)
                bus_nats_partition_move(partition, PARTITION_SYNCING);
            bus_nats_partition_reset_sequences(partition); /* a server that crashed may count from 1 again */
        }
    }
}

/* A check may be requested again while it is made. */
static void check_failed(struct nats *nats, atomic_bool *needs_check, const char *what)
{
    *needs_check = true;
    if (!nats->upkeep_failed && task_failures(nats->upkeep) == 0)
        log_warn("nats_waits", LOG_CSTR("for", what), LOG_CSTR("error", nats_GetLastError(NULL)));
    nats->upkeep_failed = true;
}

/* Returns when it has to run again. */
static int64_t keep_reader(struct nats_reader *reader, int64_t now_ns)
{
    struct nats *nats = reader->nats;
    bool is_shared = nats_reader_is_shared(reader);
    int64_t delay_ns = TASK_IDLE;

    if (atomic_exchange(&reader->needs_check, false) && !bus_nats_consumers_ensure(reader)) {
        check_failed(nats, &reader->needs_check, "consumers");
        return delay_ns;
    }
    if (is_shared)
        bus_nats_leases_keep(reader);
    for (unsigned i = 0; i < reader->partition_count; i++) {
        struct nats_partition *partition = &reader->partitions[i];
        bus_nats_partition_sync(partition);
        bus_nats_watches_request(partition);
        int64_t wait_ns = partition->due_ns - clock_mono_ns();
        if (partition->state == PARTITION_SYNCING)
            at_latest(&delay_ns, TASK_MS(SYNC_MS));
        else if (partition->state == PARTITION_RUNNING && partition->count > 0 && wait_ns > 0)
            at_latest(&delay_ns, wait_ns);
    }
    bus_nats_reader_dispatch(reader);
    if (now_ns >= nats->look_ns)
        bus_nats_reader_look(reader);
    for (unsigned i = 0; i < reader->partition_count && is_shared && now_ns >= nats->extend_ns; i++)
        bus_nats_partition_reply(&reader->partitions[i], "+WPI");
    return delay_ns;
}

static int64_t upkeep_step(struct task *task, void *context)
{
    struct nats *nats = context;
    int64_t ack_wait_ms = nats->config.ack_wait_ms;
    int64_t delay_ns = TASK_MS(ack_wait_ms < 4000 ? ack_wait_ms / 4 : 1000);

    if (!bus_nats_connect(nats))
        return delay_ns;
    int64_t now_ns = clock_mono_ns();
    pthread_mutex_lock(&nats->lock);
    begin_epoch(nats);
    pthread_mutex_unlock(&nats->lock);
    nats->upkeep_failed = false;
    bool needs_check = atomic_exchange(&nats->needs_check, false);
    bool is_good = !needs_check || bus_nats_streams_ensure(nats);
    if (!is_good)
        check_failed(nats, &nats->needs_check, "streams");
    else if (now_ns >= nats->look_ns)
        bus_nats_advisory_streams_ensure(nats);
    pthread_mutex_lock(&nats->lock);
    if (is_good) {
        for (size_t i = 0; i < nats->reader_count && !task_is_stopping(nats->upkeep); i++)
            at_latest(&delay_ns, keep_reader(nats->readers[i], now_ns));
        if (now_ns >= nats->look_ns)
            nats->look_ns = clock_deadline_ms(ack_wait_ms / 2); /* lag, gaps, advisories */
        if (now_ns >= nats->extend_ns)
            nats->extend_ns = clock_deadline_ms(ack_wait_ms / 4);
    }
    pthread_mutex_unlock(&nats->lock);
    if (nats->upkeep_failed)
        at_latest(&delay_ns, task_retry(task));
    else if (task_failures(task) > 0)
        log_info("nats_goes_on");
    return delay_ns;
}

/* ---- start and stop ---- */

static void nats_start(struct bus *bus)
{
    struct nats *nats = (struct nats *)bus;

    nats->upkeep_thread = worker_pool_create("nats", 1, 1);
    nats->upkeep = task_create(&(struct task_config){.name = "nats-upkeep",
                                                     .loop = nats->config.loop,
                                                     .pool = nats->upkeep_thread,
                                                     .run = upkeep_step,
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
        clock_cond_wait(&nats->changed, &nats->lock, deadline_ns);
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
    pthread_mutex_lock(&nats->lock);
    for (size_t i = 0; i < nats->reader_count && atomic_load(&nats->bus.is_up); i++)
        if (nats_reader_is_shared(nats->readers[i]))
            bus_nats_leases_release(nats->readers[i], deadline_ns);
    pthread_mutex_unlock(&nats->lock);
    if (atomic_load(&nats->bus.is_up) && nats->connection)
        natsConnection_FlushTimeout(nats->connection, NATS_API_MS / 4);
    bus_nats_disconnect(nats);
}

static void nats_destroy(struct bus *bus)
{
    struct nats *nats = (struct nats *)bus;

    task_destroy(nats->upkeep);
    if (nats->upkeep_thread)
        worker_pool_destroy(nats->upkeep_thread);
    for (size_t i = 0; i < nats->reader_count; i++) {
        struct nats_reader *reader = nats->readers[i];
        for (unsigned at = 0; at < reader->partition_count; at++)
            bus_nats_partition_deinit(&reader->partitions[at]);
        natsSubscription_Destroy(reader->members_inbox);
        natsSubscription_Destroy(reader->own_inbox);
        bus_consumer_deinit(&reader->consumer);
        free(reader->members);
        free(reader->partitions);
        free(reader);
    }
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
    free((char *)nats->config.security.username);
    free((char *)nats->config.security.password_file);
    free((char *)nats->config.advisory_stream);
    free((char *)nats->config.terminated_stream);
    pthread_cond_destroy(&nats->changed);
    pthread_mutex_destroy(&nats->lock);
    bus_deinit(&nats->bus);
    free(nats);
}

static const struct bus_driver driver = {
    .engine = "nats",
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

enum status bus_nats_create(const struct bus_nats_config *config, struct bus **out, struct error *error)
{
    struct nats *nats = memory_zalloc(sizeof *nats);
    struct bus_nats_config *copy = &nats->config;

    *out = NULL;
    pthread_mutex_init(&nats->lock, NULL);
    pthread_cond_init(&nats->changed, NULL);
    *copy = (struct bus_nats_config){
        /* the client has its own copies of the other texts */
        .loop = config->loop,
        .workers = config->workers,
        .servers = copy_text(config->servers),
        .security.username = copy_text(config->security.username),
        .security.password_file = copy_text(config->security.password_file),
        .advisory_stream = copy_text(config->advisory_stream),
        .terminated_stream = copy_text(config->terminated_stream),
        .replicas = config->replicas ? config->replicas : 1,
        .handler_ms = config->handler_ms ? config->handler_ms : HANDLER_MS,
        .ack_wait_ms = config->ack_wait_ms ? config->ack_wait_ms : ACK_WAIT_MS,
    };
    nats->bus.message_bytes_max = config->message_bytes_max ? config->message_bytes_max : MESSAGE_BYTES;
    snprintf(nats->id, sizeof nats->id, "%016llx", (unsigned long long)random_u64());
    metrics_register(&reconnects_family);
    nats->reconnects = metric_series_get(&reconnects_family, NULL);
    enum status status =
        bus_init(&nats->bus, &driver, config->topics, config->topic_count, config->keep_dead_ms, error);
    if (status == STATUS_OK)
        status = bus_nats_names_init(nats, config, error);
    if (status == STATUS_OK)
        status = bus_nats_options_create(nats, config, error);
    if (status == STATUS_OK)
        status = bus_delivery_pool(config->target, "nats", &nats->pool, error);
    if (status != STATUS_OK) {
        nats_destroy(&nats->bus);
        return status;
    }
    *out = &nats->bus;
    return STATUS_OK;
}
