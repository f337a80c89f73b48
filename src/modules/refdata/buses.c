/* Opening the buses of a flow. Nothing here waits for a server: a bus connects by itself, whenever its engine is there. */
#include "modules/refdata/buses.h"

#include <stdio.h>

#include "bus/bus_postgres.h"
#include "modules/refdata/flow.h"

enum {
    OWN_CONNECTIONS = 3, /* of the bus: publishing, upkeep, invalidations */
    INVALIDATION_PARTITIONS = 4,
};

/* What was not handled yet outlives everything but this. */
#define KEEP_HARD_MS (INT64_C(7) * 24 * 3600 * 1000)

static enum status open_postgres(struct refdata_flow *flow, struct bus **bus, struct error *error)
{
    const struct kernel_bus_settings *settings = kernel_bus(flow->refdata->kernel);
    const struct bus_topic topics[] = {
        {.name = REFDATA_COMMANDS,
         .partitions = (unsigned)settings->partitions,
         .keep_ms = settings->keep_ms,
         .keep_ms_hard = KEEP_HARD_MS},
        {.name = REFDATA_INVALIDATIONS,
         .partitions = INVALIDATION_PARTITIONS,
         .keep_ms = settings->keep_ms,
         .keep_ms_hard = settings->keep_ms},
    };
    struct db_target target = flow->database->target;
    target.connections_max = (unsigned)settings->handlers + OWN_CONNECTIONS;
    return bus_postgres_create(
        &(struct bus_postgres_config){
            .loop = flow->refdata->home,
            .workers = flow->workers,
            .target = &target,
            .topics = topics,
            .topic_count = sizeof topics / sizeof topics[0],
            .poll_ms = settings->poll_ms,
            .keep_dead_ms = settings->keep_dead_ms,
            .message_bytes_max = REFDATA_MESSAGE_BYTES_MAX,
        },
        bus, error);
}

enum status refdata_buses_open(struct refdata_flow *flow, struct error *error)
{
    struct refdata_buses *buses = &flow->buses;
    buses->commands_topic = REFDATA_COMMANDS;
    buses->buries = true;
    snprintf(buses->apply_group, sizeof buses->apply_group, "%s", REFDATA_APPLY_GROUP);
    snprintf(buses->pods_group, sizeof buses->pods_group, "%s", REFDATA_PODS_GROUP);
    enum status status = open_postgres(flow, &buses->commands, error);
    buses->invalidations = buses->commands;
    return status;
}

static bool has_two(const struct refdata_buses *buses)
{
    return buses->invalidations != buses->commands;
}

void refdata_buses_start(struct refdata_buses *buses)
{
    bus_start(buses->commands);
    if (has_two(buses))
        bus_start(buses->invalidations);
}

void refdata_buses_stop(struct refdata_buses *buses, int64_t grace_ms)
{
    bus_stop(buses->commands, grace_ms);
    if (has_two(buses))
        bus_stop(buses->invalidations, grace_ms);
}

void refdata_buses_interrupt(struct refdata_buses *buses)
{
    bus_interrupt(buses->commands);
    if (has_two(buses))
        bus_interrupt(buses->invalidations);
}

void refdata_buses_close(struct refdata_buses *buses)
{
    if (has_two(buses))
        bus_destroy(buses->invalidations);
    bus_destroy(buses->commands);
    *buses = (struct refdata_buses){0};
}
