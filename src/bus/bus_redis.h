/* The Redis driver: a topic is one stream and one Pub/Sub channel of a Redis Cluster, or of a single Redis. It carries hints:
 * every process reads every message (BUS_EVERY). It has no shared groups (BUS_SHARED is STATUS_CONFIG), and a topic has one
 * partition.
 *
 * Publishing: XADD, then PUBLISH of the payload, in one transaction for each stream; bus_publish() returns when Redis has
 * answered. The entry's fields are `event` (the payload), `key`, and one for each header; entries of other programs need only
 * `event`. Reading: each process has a consumer group of its own (`GROUP:POD`), read by XREADGROUP and acknowledged by XACK,
 * created again when it is gone, removed by other pods when its pod is dead. One subscription to the channels per process wakes
 * the readers. An offset is the entry's id: milliseconds << 20 | sequence.
 *
 * Redis may lose what it has acknowledged (a master that dies before its replica has it, a restart without its data): on_gap
 * reports it where it can be seen; a reader that must not miss anything also compares with the database. A message without a
 * key must not have a header called `key`: that field is the key's. */
#ifndef FRESHET_BUS_BUS_REDIS_H
#define FRESHET_BUS_BUS_REDIS_H

#include "bus/bus.h"
#include "loop/worker.h"

struct bus_redis_config {
    struct worker_pool *workers; /* handlers; stopped after bus_stop() */
    const char *const *nodes;    /* HOST:PORT; a cluster's others are learned from them */
    size_t node_count;
    bool cluster; /* false: nodes[0] is a single Redis */
    struct bus_security security;
    const char *pod; /* part of the names of this process's groups; unique among live processes */
    const struct bus_topic *topics; /* keep_ms and keep_messages_hard trim the stream */
    size_t topic_count;
    const char *stream,
        *channel; /* names of topics[0] in Redis; NULL, and all others: TOPIC:stream and TOPIC:pub */
    int64_t connect_ms, answer_ms; /* 0 = 2 s each */
    int64_t poll_ms;               /* how often streams are read without a message on the channel; 0 = 1 s */
    int64_t pod_dead_ms;      /* a pod's group that is unread for so long is removed by others; 0 = 10 min */
    int64_t handler_ms;       /* 0 = 30 s */
    int64_t keep_dead_ms;     /* 0 = 30 days */
    size_t message_bytes_max; /* 0 = 4 MiB */
};

/* Opens no connection yet. CONFIG when the configuration is invalid. */
enum status bus_redis_create(const struct bus_redis_config *config, struct bus **bus,
                             struct error *error) MUST_CHECK;

#endif
