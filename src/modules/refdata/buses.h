/* The buses of a database: which engine carries its commands and which its invalidations (C2), and what things are called
 * there. Where PostgreSQL carries both they are one bus.
 *
 * With an engine several databases share its topics: each reads them by groups of its own, takes what is its
 * own and leaves the rest to the others. */
#ifndef FRESHET_REFDATA_BUSES_H
#define FRESHET_REFDATA_BUSES_H

#include "bus/bus.h"
#include "bus/bus_kafka.h"

struct health;
struct refdata;
struct refdata_database;

/* As they are called in PostgreSQL, and elsewhere unless the file has other names. */
#define REFDATA_COMMANDS "refdata.commands"
#define REFDATA_INVALIDATIONS "refdata.invalidations"
#define REFDATA_APPLY_GROUP "refdata-apply"
#define REFDATA_PODS_GROUP "refdata-query-pods"
#define REFDATA_GROUP_BYTES 65 /* with the NUL */

struct arena;
struct refdata_buses {
    struct bus *commands, *invalidations; /* NULL until opened, and where no role of this process uses it */
    const char *commands_topic;
    unsigned parallel; /* bus_subscription's, of apply */
    bool shared;       /* with other databases: commands_topic may have what is theirs */
    bool dead_letters; /* makes them of invalid commands; of databases that share a topic, one does */
    char apply_group[REFDATA_GROUP_BYTES], pods_group[REFDATA_GROUP_BYTES];
};

/* Handlers of commands: as many as are set for one tenant, and some for the others. */
struct refdata_settings;
struct kernel_bus_settings;
unsigned refdata_buses_parallel(const struct refdata_settings *settings,
                                const struct kernel_bus_settings *bus);
/* On the home loop; from then on they are the site's. CONFIG when an engine's settings cannot be understood. */
enum status refdata_buses_open(struct refdata_database *database, struct error *error) MUST_CHECK;
/* The name of a database's own group: the first of the file has the name as it is, whatever a reload puts before it; others have
 * their own name appended where an engine is shared. */
void refdata_buses_name_group(const struct refdata_settings *settings, struct str database, struct str group,
                              int engine, char out[REFDATA_GROUP_BYTES]);
/* The partition of a pair's invalidations where PostgreSQL carries them. */
unsigned refdata_buses_invalidation_partition(struct str tenant, struct str code, struct arena *arena);
/* A Kafka bus that connects by the file's `kafka:`. Workers, target and topics are the caller's; the rest is filled in. */
enum status refdata_buses_open_kafka(const struct refdata *refdata, const struct bus_kafka_config *own,
                                     struct bus **bus, struct error *error) MUST_CHECK;
/* On any loop: does the engine of that bus answer? PostgreSQL's own is not asked. */
enum refdata_need {
    REFDATA_NEEDS_NO_BUS,
    REFDATA_NEEDS_COMMANDS,
    REFDATA_NEEDS_INVALIDATIONS,
    REFDATA_NEEDS_SOURCES /* the adapter's, where the file has some */
};
bool refdata_buses_are_up(const struct refdata_database *database, enum refdata_need needs);
/* On any loop: the engines of a database, where there are any. */
void refdata_buses_health(const struct refdata *refdata, const struct refdata_database *database,
                          struct health *health);

#endif
