/* The adapter's life: a Kafka bus of its own for each database that a source writes to, so that positions commit behind
 * that database's transactions, and threads of its own, so that a burst outside holds up nobody here. */
#include "modules/refdata/adapter/adapter.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/kafka.h"

enum { OWN_THREADS = 2, STOP_GRACE_MS = 3000 };

struct refdata_adapter {
    struct refdata_flow *flow;
    struct arena arena; /* of the sources */
    struct worker_pool *workers;
    struct bus *bus; /* NULL: it could not be made */
    size_t count;
    struct refdata_reader readers[];
};

/* ---- what is read for this flow ---- */

static bool is_of(const struct refdata_flow *flow, const struct refdata_source_settings *source)
{
    const struct refdata_settings *settings = flow->refdata->first;
    const struct kernel_postgres *blocks = settings->postgres.items;
    int block = refdata_source_database(settings, source);
    return block >= 0 && str_eq(blocks[block].name, flow->database->name);
}

static enum status add_reader(struct refdata_adapter *adapter, size_t index, struct error *error)
{
    static const char *const results[] = {
        [REFDATA_NEW] = "accepted", [REFDATA_KNOWN] = "replayed", [REFDATA_REFUSED] = "refused"};
    const struct refdata_source_settings *sources = adapter->flow->refdata->first->adapter.sources.items;
    struct refdata_adapter_source *source = arena_alloc(&adapter->arena, sizeof *source);
    struct refdata_reader *reader = &adapter->readers[adapter->count++];
    enum status status = refdata_source_init(source, &sources[index], index, NULL, &adapter->arena, error);
    *reader = (struct refdata_reader){.flow = adapter->flow, .source = source};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        reader->outcomes[i] = metric_series_get(&refdata_adapter_messages_family,
                                                (struct str[]){source->topic, str_from(results[i])});
    return status;
}

static enum status add_readers(struct refdata_adapter *adapter, struct error *error)
{
    const struct setting_objects *sources = &adapter->flow->refdata->first->adapter.sources;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sources->count && status == STATUS_OK; i++)
        if (is_of(adapter->flow, (const struct refdata_source_settings *)sources->items + i))
            status = add_reader(adapter, i, error);
    return status;
}

/* ---- the bus ---- */

static int64_t handlers_of(const struct refdata_adapter *adapter)
{
    return adapter->flow->refdata->first->adapter.handlers;
}

static enum status open_bus(struct refdata_adapter *adapter, struct error *error)
{
    struct bus_topic *topics = arena_zalloc(&adapter->arena, adapter->count * sizeof *topics);
    struct db_target target = adapter->flow->database->target;
    for (size_t i = 0; i < adapter->count; i++)
        topics[i].name = adapter->readers[i].source->topic.ptr; /* its partitions are not ours to count */
    target.connections_max = (unsigned)handlers_of(adapter);
    return refdata_kafka_open(
        adapter->flow->refdata,
        &(struct bus_kafka_config){
            .workers = adapter->workers, .target = &target, .topics = topics, .topic_count = adapter->count},
        &adapter->bus, error);
}

/* What is in a topic when the group is new is wanted too. */
static enum status subscribe(struct refdata_adapter *adapter, struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < adapter->count && status == STATUS_OK; i++) {
        struct refdata_reader *reader = &adapter->readers[i];
        status = bus_subscribe(adapter->bus,
                               &(struct bus_subscription){.topic = reader->source->topic.ptr,
                                                          .group = reader->source->group.ptr,
                                                          .mode = BUS_SHARED,
                                                          .from = BUS_FROM_START,
                                                          .parallel = (unsigned)handlers_of(adapter),
                                                          .context = reader,
                                                          .handler = refdata_reader_handle,
                                                          .on_committed = refdata_reader_committed,
                                                          .on_uncommitted = refdata_reader_uncommitted,
                                                          .on_gap = refdata_reader_gap},
                               error);
    }
    return status;
}

/* ---- life ---- */

struct refdata_adapter *refdata_adapter_create(struct refdata_flow *flow)
{
    size_t sources = flow->refdata->first->adapter.sources.count;
    struct refdata_adapter *adapter = memory_zalloc(sizeof *adapter + sources * sizeof adapter->readers[0]);
    struct error error = {0};
    adapter->flow = flow;
    arena_init(&adapter->arena, 4096);
    enum status status = add_readers(adapter, &error);
    if (adapter->count == 0)
        return adapter;
    adapter->workers = worker_pool_create("adapter", (unsigned)handlers_of(adapter) + OWN_THREADS, SIZE_MAX);
    if (status == STATUS_OK)
        status = open_bus(adapter, &error);
    if (status == STATUS_OK)
        status = subscribe(adapter, &error);
    if (status != STATUS_OK) { /* the others go on without it */
        log_error("adapter_not_started", LOG_STR("database", flow->database->name), LOG_ERROR_FIELDS(&error));
        bus_destroy(adapter->bus);
        adapter->bus = NULL;
    }
    return adapter;
}

void refdata_adapter_start(struct refdata_adapter *adapter)
{
    if (adapter->bus)
        bus_start(adapter->bus);
}

void refdata_adapter_stop(struct refdata_adapter *adapter)
{
    if (adapter->bus)
        bus_stop(adapter->bus, STOP_GRACE_MS);
    if (adapter->workers)
        worker_pool_stop(adapter->workers);
}

void refdata_adapter_interrupt(struct refdata_adapter *adapter)
{
    if (adapter->bus)
        bus_interrupt(adapter->bus);
}

void refdata_adapter_destroy(struct refdata_adapter *adapter)
{
    bus_destroy(adapter->bus);
    if (adapter->workers)
        worker_pool_destroy(adapter->workers);
    arena_deinit(&adapter->arena);
    free(adapter);
}

bool refdata_adapter_reads(const struct refdata_adapter *adapter)
{
    return adapter->count > 0;
}

bool refdata_adapter_is_up(const struct refdata_adapter *adapter)
{
    return adapter->count == 0 || (adapter->bus && bus_kafka_is_up(adapter->bus));
}
