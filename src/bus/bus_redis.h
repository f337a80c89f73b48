/* The Redis driver: a partition is a stream. Redis Cluster, or a single Redis.
 *
 * Publishing: XADD, then PUBLISH of the payload; what a call has for one stream is one transaction, and bus_publish() returns
 * when it is answered. The entry's fields are `event` (the payload), `key`, and one for each header by its name; foreign
 * entries need only `event`. Consuming: BUS_EVERY has a consumer group of its own for each process (`GROUP:POD`), read by
 * XREADGROUP and acknowledged by XACK, made again when it is gone, removed by others when its pod is dead; one subscription to
 * the channel per process says when to read. BUS_SHARED has one group, and a lease on each stream so that it is handled by one
 * member at a time. An offset is the entry's id: milliseconds << 20 | sequence.
 *
 * Redis may lose what it has acknowledged (a master that dies before its copy has it, a restart without its data): on_gap
 * says so where it can be seen, and whoever must not miss anything compares with the database besides. A message without a
 * key must not have a header called `key`: that is where it would be. */
#ifndef FRESHET_BUS_BUS_REDIS_H
#define FRESHET_BUS_BUS_REDIS_H

#include "bus/bus.h"
#include "db/db.h"
#include "loop/worker.h"

struct bus_redis_security {
    bool tls;
    const char *ca_file, *certificate_file, *key_file; /* NULL: the system's; no client certificate */
    const char *username, *password;                   /* NULL = without */
};

/* What a topic is called there; NULL: TOPIC:stream and TOPIC:pub, with :PARTITION behind where there are several. */
struct bus_redis_names {
    const char *topic;
    const char *stream, *channel;
};

struct bus_redis_config {
    struct loop *loop;           /* not needed: the driver has one of its own */
    struct worker_pool *workers; /* handlers; stopped after bus_stop() */
    const char *const *nodes;    /* HOST:PORT; any that answers tells of the others */
    size_t node_count;
    bool cluster; /* false: nodes[0] is a single Redis */
    struct bus_redis_security security;
    const char *pod;                /* names this process's groups; unique among those alive */
    const struct db_target *target; /* as bus_kafka's */
    const struct bus_topic *topics; /* keep_ms and keep_messages_hard trim the stream */
    size_t topic_count;
    const struct bus_redis_names *names;
    size_t name_count;
    int64_t connect_ms, answer_ms; /* 0 = 2 s each */
    int64_t poll_ms;               /* the safety net behind the channel; 0 = 1 s */
    int64_t pod_dead_ms;           /* a pod's group unread for so long is removed by others; 0 = 10 min */
    int64_t lease_ms;              /* a shared group's stream moves so long after its holder died; 0 = 8 s */
    int64_t handler_ms;            /* 0 = 30 s */
    int64_t keep_dead_ms;          /* 0 = 30 days */
    size_t message_bytes_max;      /* 0 = 4 MiB */
};

/* Connects to nobody yet. CONFIG when something cannot be understood. */
enum status bus_redis_create(const struct bus_redis_config *config, struct bus **bus,
                             struct error *error) MUST_CHECK;
bool bus_redis_is_up(const struct bus *bus); /* for health: never blocks */

#endif
