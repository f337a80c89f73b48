/* Opening the buses of a database. Nothing here waits for a server: a bus connects by itself, whenever its engine is there. */
#include "modules/refdata/buses.h"

#include <stdio.h>

#include "base/arena.h"
#include "base/turns.h"
#include "bus/bus_postgres.h"
#include "bus/bus_redis.h"
#include "kernel/store.h"
#include "modules/refdata/refdata.h"

enum {
    OWN_CONNECTIONS = 3, /* of the embedded bus: publishing, upkeep, invalidations */
    INVALIDATION_PARTITIONS = 4,
};

unsigned refdata_buses_parallel(const struct refdata_settings *settings,
                                const struct kernel_bus_settings *bus)
{
    return (unsigned)turns_places(
        (size_t)(bus->commands == KERNEL_KAFKA ? settings->kafka.handlers : bus->handlers));
}

/* It carries the topics that no engine does. */
static enum status open_postgres(struct refdata_database *database, struct bus **bus, struct error *error)
{
    const struct kernel_bus_settings *settings = kernel_bus(database->refdata->kernel);
    struct db_target target = database->site.target;
    struct bus_topic topics[2];
    size_t topic_count = 0;
    target.connections_max = (unsigned)turns_places((size_t)settings->handlers) + OWN_CONNECTIONS;
    if (settings->commands == KERNEL_POSTGRES)
        topics[topic_count++] = (struct bus_topic){
            .name = REFDATA_COMMANDS,
            .partitions = (unsigned)settings->partitions,
            .keep_ms = settings->keep_ms,
            .keep_ms_hard =
                settings->keep_unread_ms > settings->keep_ms ? settings->keep_unread_ms : settings->keep_ms,
            .group = REFDATA_APPLY_GROUP};
    if (settings->invalidations == KERNEL_POSTGRES)
        topics[topic_count++] = (struct bus_topic){.name = REFDATA_INVALIDATIONS,
                                                   .partitions = INVALIDATION_PARTITIONS,
                                                   .keep_ms = settings->keep_ms,
                                                   .keep_ms_hard = settings->keep_ms,
                                                   .relaxed = true};
    return bus_postgres_create(
        &(struct bus_postgres_config){
            .loop = database->refdata->home,
            .workers = database->site.workers,
            .target = &target,
            .topics = topics,
            .topic_count = topic_count,
            .poll_ms = settings->poll_ms,
            .keep_dead_ms = settings->keep_dead_ms,
            .message_bytes_max = REFDATA_MESSAGE_BYTES_MAX,
        },
        bus, error);
}

unsigned refdata_buses_invalidation_partition(struct str tenant, struct str code, struct arena *arena)
{
    struct str key = arena_printf(arena, "%.*s:%.*s", STR_ARG(tenant), STR_ARG(code));
    return bus_partition_of(key, INVALIDATION_PARTITIONS);
}

/* ---- engines ---- */

enum status refdata_buses_open_kafka(const struct refdata *refdata, const struct bus_kafka_config *own,
                                     struct bus **bus, struct error *error)
{
    const struct kernel_kafka *kafka = kernel_section(refdata->kernel, "kafka");
    struct bus_kafka_config config = *own;
    struct arena arena = ARENA(1024);
    kernel_engine_kafka(kafka, &arena, &config);
    config.loop = refdata->home;
    config.replication = (unsigned)kafka->replication;
    config.session_ms = kafka->session_timeout_ms;
    config.keep_dead_ms = kernel_bus(refdata->kernel)->keep_dead_ms;
    config.message_bytes_max = (size_t)kafka->message_bytes_max;
    enum status status = bus_kafka_create(&config, bus, error);
    arena_deinit(&arena);
    return status;
}

/* One stream, with the specification's name: every pod reads all of it anyway. */
static enum status open_redis(struct refdata_database *database, struct bus **bus, struct error *error)
{
    const struct refdata *refdata = database->refdata;
    const struct kernel_redis *redis = kernel_section(refdata->kernel, "redis");
    const struct refdata_redis_settings *settings = &refdata->first->redis;
    const struct setting_strings *nodes = refdata_settings_redis_nodes(refdata->first, redis);
    const struct bus_topic topic = {.name = REFDATA_INVALIDATIONS,
                                    .partitions = 1,
                                    .keep_ms = settings->keep_ms,
                                    .keep_messages_hard = settings->keep_messages};
    struct arena arena = ARENA(1024);
    const char **addresses = arena_alloc(&arena, nodes->count * sizeof *addresses);
    for (size_t i = 0; i < nodes->count; i++)
        addresses[i] = nodes->items[i].ptr;
    enum status status = bus_redis_create(
        &(struct bus_redis_config){
            .workers = database->site.workers,
            .nodes = addresses,
            .node_count = nodes->count,
            .cluster = (settings->mode_place.line ? settings->mode : redis->mode) == KERNEL_REDIS_CLUSTER,
            .security = kernel_engine_security(&redis->tls, &redis->login),
            .pod = kernel_pod_id(refdata->kernel),
            .topics = &topic,
            .topic_count = 1,
            .stream = settings->stream.ptr,
            .channel = settings->channel.ptr,
            .keep_dead_ms = kernel_bus(refdata->kernel)->keep_dead_ms,
        },
        bus, error);
    arena_deinit(&arena);
    return status;
}

/* ---- all of them ---- */

/* A process has nothing to do with an engine whose bus no role of its own uses: a thousand pods that only read are no load to
 * Kafka. */
static bool is_needed(const struct refdata *refdata, enum refdata_need bus)
{
    if (bus == REFDATA_NEEDS_COMMANDS)
        return kernel_has_role(refdata->kernel, "command") || kernel_has_role(refdata->kernel, "adapter") ||
               kernel_has_role(refdata->kernel, "apply");
    return kernel_has_role(refdata->kernel, "relay") || kernel_has_role(refdata->kernel, "query");
}

void refdata_buses_name_group(const struct refdata_settings *settings, struct str database, struct str group,
                              int engine, char out[REFDATA_GROUP_BYTES])
{
    const struct kernel_postgres *blocks = settings->postgres.items;
    bool is_plain = engine == KERNEL_POSTGRES || str_eq(database, blocks[0].name);
    snprintf(out, REFDATA_GROUP_BYTES, "%.*s%s%.*s", STR_ARG(group), is_plain ? "" : ".",
             is_plain ? 0 : (int)database.len, database.ptr);
}

enum status refdata_buses_open(struct refdata_database *database, struct error *error)
{
    const struct refdata_settings *settings = database->refdata->first;
    const struct refdata_kafka_settings *kafka = &settings->kafka;
    const struct kernel_bus_settings *bus = kernel_bus(database->refdata->kernel);
    const struct kernel_postgres *blocks = settings->postgres.items;
    struct kernel_site *site = &database->site;
    struct refdata_buses *buses = &database->buses;
    enum status status = STATUS_OK;
    buses->shared = bus->commands == KERNEL_KAFKA;
    buses->dead_letters = !buses->shared || str_eq(database->name, blocks[0].name);
    buses->commands_topic = buses->shared ? kafka->commands_topic.ptr : REFDATA_COMMANDS;
    /* No more than there are connections for: a handler that waits for one takes a thread from those that accept updates. */
    buses->parallel = refdata_buses_parallel(settings, bus);
    refdata_buses_name_group(settings, database->name,
                             buses->shared ? kafka->group : STR(REFDATA_APPLY_GROUP), bus->commands,
                             buses->apply_group);
    refdata_buses_name_group(settings, database->name, settings->redis.group, bus->invalidations,
                             buses->pods_group);

    if (!buses->shared) {
        status = open_postgres(database, &buses->commands, error);
    } else if (is_needed(database->refdata, REFDATA_NEEDS_COMMANDS)) {
        const struct bus_topic topic = {.name = kafka->commands_topic.ptr,
                                        .partitions = (unsigned)kafka->partitions,
                                        .keep_ms = kafka->keep_ms,
                                        .group = buses->apply_group};
        struct db_target target = site->target;
        target.connections_max = buses->parallel;
        status = refdata_buses_open_kafka(database->refdata,
                                          &(struct bus_kafka_config){.workers = site->workers,
                                                                     .target = &target,
                                                                     .by_locks = true,
                                                                     .topics = &topic,
                                                                     .topic_count = 1},
                                          &buses->commands, error);
    }
    if (buses->commands)
        kernel_site_add_bus(site, buses->commands);
    if (status != STATUS_OK)
        return status;
    if (!buses->shared && bus->invalidations == KERNEL_POSTGRES)
        buses->invalidations = buses->commands;
    else if (is_needed(database->refdata, REFDATA_NEEDS_INVALIDATIONS))
        status = bus->invalidations == KERNEL_REDIS ? open_redis(database, &buses->invalidations, error)
                                                    : open_postgres(database, &buses->invalidations, error);
    if (buses->invalidations && buses->invalidations != buses->commands)
        kernel_site_add_bus(site, buses->invalidations);
    return status;
}

/* ---- health ---- */

bool refdata_buses_are_up(const struct refdata_database *database, enum refdata_need needs)
{
    const struct kernel_bus_settings *settings = kernel_bus(database->refdata->kernel);
    if (needs == REFDATA_NEEDS_COMMANDS && settings->commands == KERNEL_KAFKA)
        return bus_is_up(database->buses.commands);
    if (needs == REFDATA_NEEDS_INVALIDATIONS && settings->invalidations == KERNEL_REDIS)
        return bus_is_up(database->buses.invalidations);
    if (needs == REFDATA_NEEDS_SOURCES && database->refdata->first->adapter.sources.count > 0)
        return database->adapter && refdata_adapter_is_up(database->adapter);
    return true;
}

static void put_engine(const struct refdata_database *database, const char *engine, enum refdata_need needs,
                       struct health *health)
{
    bool runs = refdata_database_runs(database);
    health_component(health, engine, database->name, runs && refdata_buses_are_up(database, needs),
                     runs ? STR_NONE : STR("waiting for PostgreSQL"));
}

void refdata_buses_health(const struct refdata *refdata, const struct refdata_database *database,
                          struct health *health)
{
    const struct kernel_bus_settings *settings = kernel_bus(refdata->kernel);
    if (settings->commands == KERNEL_KAFKA && is_needed(refdata, REFDATA_NEEDS_COMMANDS))
        put_engine(database, "kafka", REFDATA_NEEDS_COMMANDS, health);
    if (settings->invalidations == KERNEL_REDIS && is_needed(refdata, REFDATA_NEEDS_INVALIDATIONS))
        put_engine(database, "redis", REFDATA_NEEDS_INVALIDATIONS, health);
}
