/* The Kafka driver: a topic is Kafka's own, with the same name, partitions and murmur2 keys, so that Java clients, kcat
 * and we agree where a message goes.
 *
 * Publishing: acks=all and the idempotent producer; bus_publish() returns when every message is acknowledged. Consuming:
 * a shared group is Kafka's consumer group (range assignment) whose offsets are committed after the database; BUS_EVERY
 * assigns itself every partition and commits nothing. No Kafka transactions: what comes twice is known by event id in
 * PostgreSQL. Headers are Kafka's. */
#ifndef FRESHET_BUS_BUS_KAFKA_H
#define FRESHET_BUS_BUS_KAFKA_H

#include "bus/bus.h"
#include "db/db.h"
#include "loop/worker.h"

struct bus_kafka_security {
    bool tls;
    const char *ca_file, *certificate_file, *key_file; /* NULL: the system's; no client certificate */
    const char *username, *password;                   /* SASL; NULL = without */
    const char *mechanism;                             /* PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 */
};

struct bus_kafka_config {
    struct loop *loop;           /* timers */
    struct worker_pool *workers; /* handlers; stopped after bus_stop() */
    const char *brokers;         /* HOST:PORT, joined by commas */
    const char *client_id;       /* seen in the broker's logs */
    struct bus_kafka_security security;
    /* Where handlers of shared groups write: they get a transaction each. NULL: they get none. */
    const struct db_target *target;
    /* Topics that are not there are created with their partitions, `replication` copies and keep_ms; one that is there with
     * another number of partitions is STATUS_CONFIG, but for one of partitions = 0: that is somebody else's, is never
     * created, and has as many as it has. */
    const struct bus_topic *topics;
    size_t topic_count;
    unsigned replication;     /* of topics made here; 0 = the broker's default */
    int64_t handler_ms;       /* batch->deadline_ns; 0 = 30 s */
    int64_t session_ms;       /* a member that is not heard of loses its partitions after this; 0 = 10 s */
    int64_t keep_dead_ms;     /* dead letters; 0 = 30 days */
    size_t message_bytes_max; /* key, headers and payload together; 0 = 1 MiB less what a record needs */
};

/* Connects to nobody yet. CONFIG when something cannot be understood. */
enum status bus_kafka_create(const struct bus_kafka_config *config, struct bus **bus,
                             struct error *error) MUST_CHECK;
/* Has a broker answered, and does one now? For health: never blocks. */
bool bus_kafka_is_up(const struct bus *bus);

#endif
