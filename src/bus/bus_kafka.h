/* The Kafka driver: a topic is a topic of Kafka with the same name, partitions and murmur2 keys, so that Java clients, kcat and
 * freshet agree on the partition of a message.
 *
 * Publishing: the idempotent producer with acks=all; bus_publish() returns when every message is acknowledged. Consuming: shared
 * groups only; a group is Kafka's consumer group (range assignment) or, by_locks, only its offsets are. They are committed after
 * the database. No Kafka transactions: PostgreSQL recognises a repeated message by its event id. Headers are Kafka's. */
#ifndef FRESHET_BUS_BUS_KAFKA_H
#define FRESHET_BUS_BUS_KAFKA_H

#include "bus/bus.h"
#include "db/db.h"
#include "loop/worker.h"

struct bus_kafka_config {
    struct loop *loop;           /* timers */
    struct worker_pool *workers; /* handlers; stopped after bus_stop() */
    const char *brokers;         /* HOST:PORT, joined by commas */
    const char *client_id;       /* in the broker's logs */
    struct bus_security security;
    /* Where handlers of shared groups write: they get a transaction each. NULL: they get none. */
    const struct db_target *target;
    /* All members of its groups use this target, and Kafka has no other members of these groups: a partition belongs to the member
     * that holds its advisory lock there, which a process that dies loses at once. Else Kafka assigns partitions, and waits for the
     * end of a dead member's session. */
    bool by_locks;
    /* Missing topics are created with their partitions, `replication` copies and keep_ms; an existing one with another number of
     * partitions is STATUS_CONFIG. One of partitions = 0 belongs to other programs: it is never created, and has as many as it
     * has. */
    const struct bus_topic *topics;
    size_t topic_count;
    unsigned replication; /* of topics made here; 0 = the broker's default */
    int64_t handler_ms;   /* batch->deadline_ns; 0 = 30 s */
    int64_t session_ms;   /* a member that is frozen or cut off loses its partitions after this; 0 = 10 s */
    int64_t keep_dead_ms; /* dead letters; 0 = 30 days */
    size_t message_bytes_max; /* key, headers and payload together; 0 = 1 MiB less what a record needs */
};

/* Does not connect yet. CONFIG when a setting is invalid. */
enum status bus_kafka_create(const struct bus_kafka_config *config, struct bus **bus,
                             struct error *error) MUST_CHECK;

/* Blocking, without a bus; of the configuration it needs the brokers and what it takes to connect. */
struct bus_kafka_position {
    int64_t end;       /* the offset of the next message */
    int64_t committed; /* the group has settled all before it; -1 = it has no position */
};
/* `positions` has room for BUS_PARTITIONS_MAX; *count is 0 where there is no such topic. UNAVAILABLE when no broker answers. */
enum status bus_kafka_positions(const struct bus_kafka_config *config, const char *topic, const char *group,
                                int64_t deadline_ns, struct bus_kafka_position *positions, unsigned *count,
                                struct error *error) MUST_CHECK;

#endif
