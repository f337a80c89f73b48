/* Opening the buses of a flow. Nothing here waits for a server: a bus connects by itself, whenever its engine is there. */
#include "modules/refdata/buses.h"

#include <stdio.h>

#include "base/arena.h"
#include "bus/bus_postgres.h"
#include "bus/bus_redis.h"
#include "kernel/store.h"
#include "modules/refdata/flow.h"
#include "modules/refdata/kafka.h"

enum {
    OWN_CONNECTIONS = 3, /* of the embedded bus: publishing, upkeep, invalidations */
    INVALIDATION_PARTITIONS = 4,
};

/* ---- PostgreSQL ---- */

/* The topics it carries: those that no engine does. */
static size_t list_topics(const struct kernel_bus_settings *settings, struct bus_topic topics[2])
{
    size_t count = 0;
    if (settings->commands == KERNEL_POSTGRES)
        topics[count++] = (struct bus_topic){.name = REFDATA_COMMANDS,
                                             .partitions = (unsigned)settings->partitions,
                                             .keep_ms = settings->keep_ms,
                                             .keep_ms_hard = settings->keep_unread_ms > settings->keep_ms
                                                                 ? settings->keep_unread_ms
                                                                 : settings->keep_ms,
                                             .group = REFDATA_APPLY_GROUP};
    if (settings->invalidations == KERNEL_POSTGRES)
        topics[count++] = (struct bus_topic){.name = REFDATA_INVALIDATIONS,
                                             .partitions = INVALIDATION_PARTITIONS,
                                             .keep_ms = settings->keep_ms,
                                             .keep_ms_hard = settings->keep_ms,
                                             .relaxed = true};
    return count;
}

static enum status open_postgres(struct refdata_flow *flow, struct bus **bus, struct error *error)
{
    const struct kernel_bus_settings *settings = kernel_bus(flow->refdata->kernel);
    struct bus_topic topics[2];
    size_t topic_count = list_topics(settings, topics);
    struct db_target target = flow->database->site.target;
    target.connections_max = (unsigned)settings->handlers + OWN_CONNECTIONS;
    return bus_postgres_create(
        &(struct bus_postgres_config){
            .loop = flow->refdata->home,
            .workers = flow->database->site.workers,
            .target = &target,
            .topics = topics,
            .topic_count = topic_count,
            .poll_ms = settings->poll_ms,
            .keep_dead_ms = settings->keep_dead_ms,
            .message_bytes_max = REFDATA_MESSAGE_BYTES_MAX,
        },
        bus, error);
}

/* ---- engines ---- */

static enum status open_kafka(struct refdata_flow *flow, struct bus **bus, struct error *error)
{
    const struct refdata_kafka_settings *settings = &flow->refdata->first->kafka;
    const struct bus_topic topic = {.name = settings->commands_topic.ptr,
                                    .partitions = (unsigned)settings->partitions,
                                    .keep_ms = settings->keep_ms};
    struct db_target target = flow->database->site.target;
    target.connections_max = (unsigned)settings->handlers;
    return refdata_kafka_open(
        flow->refdata,
        &(struct bus_kafka_config){
            .workers = flow->database->site.workers, .target = &target, .topics = &topic, .topic_count = 1},
        bus, error);
}

static struct bus_redis_security redis_security(const struct kernel_redis *redis)
{
    return (struct bus_redis_security){
        .tls = redis->tls.enabled,
        .ca_file = str_or_null(redis->tls.ca_file),
        .certificate_file = str_or_null(redis->tls.certificate_file),
        .key_file = str_or_null(redis->tls.key_file),
        .username = str_or_null(redis->login.username),
        .password = kernel_login_password(&redis->login),
    };
}

/* One stream, with the seed's own name: every pod reads all of it anyway. */
static enum status open_redis(struct refdata_flow *flow, struct bus **bus, struct error *error)
{
    const struct refdata *refdata = flow->refdata;
    const struct kernel_redis *redis = kernel_redis(refdata->kernel);
    const struct refdata_redis_settings *settings = &refdata->first->redis;
    const struct setting_strings *nodes = refdata_settings_redis_nodes(refdata->first, redis);
    const struct bus_topic topic = {.name = REFDATA_INVALIDATIONS,
                                    .partitions = 1,
                                    .keep_ms = settings->keep_ms,
                                    .keep_messages_hard = settings->keep_messages};
    const struct bus_redis_names names = {REFDATA_INVALIDATIONS, settings->stream.ptr, settings->channel.ptr};
    struct arena arena;
    arena_init(&arena, 1024);
    const char **addresses = arena_alloc(&arena, nodes->count * sizeof *addresses);
    for (size_t i = 0; i < nodes->count; i++)
        addresses[i] = nodes->items[i].ptr;
    enum status status = bus_redis_create(
        &(struct bus_redis_config){
            .workers = flow->database->site.workers,
            .nodes = addresses,
            .node_count = nodes->count,
            .cluster = (settings->mode_place.line ? settings->mode : redis->mode) == KERNEL_REDIS_CLUSTER,
            .security = redis_security(redis),
            .pod = refdata->pod_id,
            .topics = &topic,
            .topic_count = 1,
            .names = &names,
            .name_count = 1,
            .keep_dead_ms = kernel_bus(refdata->kernel)->keep_dead_ms,
        },
        bus, error);
    arena_deinit(&arena);
    return status;
}

/* ---- both ---- */

/* The first database of the file has the names as they are, whatever a reload puts before it; others have theirs behind. */
static void name_groups(struct refdata_flow *flow)
{
    const struct refdata_settings *settings = flow->refdata->first;
    const struct kernel_postgres *blocks = settings->postgres.items;
    const struct kernel_bus_settings *bus = kernel_bus(flow->refdata->kernel);
    struct refdata_buses *buses = &flow->buses;
    bool is_first = str_eq(flow->database->name, blocks[0].name);
    const char *name = flow->database->name.ptr;
    buses->shared = bus->commands != KERNEL_POSTGRES;
    buses->buries = !buses->shared || is_first;
    bool alone = is_first || bus->commands == KERNEL_POSTGRES;
    struct str apply = buses->shared ? settings->kafka.group : STR(REFDATA_APPLY_GROUP);
    snprintf(buses->apply_group, sizeof buses->apply_group, "%.*s%s%s", STR_ARG(apply), alone ? "" : ".",
             alone ? "" : name);
    alone = is_first || bus->invalidations == KERNEL_POSTGRES;
    snprintf(buses->pods_group, sizeof buses->pods_group, "%.*s%s%s", STR_ARG(settings->redis.group),
             alone ? "" : ".", alone ? "" : name);
}

/* A process has nothing to do with an engine whose bus no role of its own uses: a thousand pods that only read are no load to
 * Kafka. */
static bool is_needed(const struct refdata *refdata, enum refdata_need bus)
{
    if (bus == REFDATA_NEEDS_COMMANDS)
        return refdata_has_role(refdata, "command") || refdata_has_role(refdata, "adapter") ||
               refdata_has_role(refdata, "apply");
    return refdata_has_role(refdata, "relay") || refdata_has_role(refdata, "query");
}

static enum status open_commands(struct refdata_flow *flow, struct error *error)
{
    struct refdata_buses *buses = &flow->buses;
    if (kernel_bus(flow->refdata->kernel)->commands == KERNEL_POSTGRES)
        return open_postgres(flow, &buses->commands, error);
    return is_needed(flow->refdata, REFDATA_NEEDS_COMMANDS) ? open_kafka(flow, &buses->commands, error)
                                                            : STATUS_OK;
}

static enum status open_invalidations(struct refdata_flow *flow, struct error *error)
{
    const struct kernel_bus_settings *settings = kernel_bus(flow->refdata->kernel);
    struct refdata_buses *buses = &flow->buses;
    if (settings->commands == KERNEL_POSTGRES && settings->invalidations == KERNEL_POSTGRES)
        buses->invalidations = buses->commands;
    else if (!is_needed(flow->refdata, REFDATA_NEEDS_INVALIDATIONS))
        return STATUS_OK;
    else if (settings->invalidations == KERNEL_REDIS)
        return open_redis(flow, &buses->invalidations, error);
    else
        return open_postgres(flow, &buses->invalidations, error);
    return STATUS_OK;
}

enum status refdata_buses_open(struct refdata_flow *flow, struct error *error)
{
    const struct refdata_kafka_settings *kafka = &flow->refdata->first->kafka;
    struct refdata_buses *buses = &flow->buses;
    bool by_kafka = kernel_bus(flow->refdata->kernel)->commands == KERNEL_KAFKA;
    buses->commands_topic = by_kafka ? kafka->commands_topic.ptr : REFDATA_COMMANDS;
    /* No more than there are connections for: a handler that waits for one keeps a thread from those who accept updates. */
    buses->parallel = (unsigned)(by_kafka ? kafka->handlers : kernel_bus(flow->refdata->kernel)->handlers);
    name_groups(flow);
    enum status status = open_commands(flow, error);
    if (buses->commands)
        kernel_site_add_bus(&flow->database->site, buses->commands);
    if (status == STATUS_OK)
        status = open_invalidations(flow, error);
    if (buses->invalidations && buses->invalidations != buses->commands)
        kernel_site_add_bus(&flow->database->site, buses->invalidations);
    return status;
}

/* ---- health ---- */

bool refdata_buses_are_up(const struct refdata_flow *flow, enum refdata_need needs)
{
    const struct kernel_bus_settings *settings = kernel_bus(flow->refdata->kernel);
    if (needs == REFDATA_NEEDS_COMMANDS && settings->commands == KERNEL_KAFKA)
        return bus_kafka_is_up(flow->buses.commands);
    if (needs == REFDATA_NEEDS_INVALIDATIONS && settings->invalidations == KERNEL_REDIS)
        return bus_redis_is_up(flow->buses.invalidations);
    return true;
}

static void put_engine(const struct refdata_flow *flow, const char *engine, struct str database,
                       enum refdata_need needs, struct health *health)
{
    health_component(health, engine, database, flow && refdata_buses_are_up(flow, needs),
                     flow ? STR_NONE : STR("waiting for PostgreSQL"));
}

void refdata_buses_health(const struct refdata *refdata, const struct refdata_database *database,
                          struct health *health)
{
    const struct kernel_bus_settings *settings = kernel_bus(refdata->kernel);
    const struct refdata_flow *flow = refdata_flow_of(database);
    if (settings->commands == KERNEL_KAFKA && is_needed(refdata, REFDATA_NEEDS_COMMANDS))
        put_engine(flow, "kafka", database->name, REFDATA_NEEDS_COMMANDS, health);
    if (settings->invalidations == KERNEL_REDIS && is_needed(refdata, REFDATA_NEEDS_INVALIDATIONS))
        put_engine(flow, "redis", database->name, REFDATA_NEEDS_INVALIDATIONS, health);
}
