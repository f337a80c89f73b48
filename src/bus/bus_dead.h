/* Dead letters for operators: read without a consumer group, and published to their topic again.
 *
 * Works without a bus, by a client of its own, so that it also works in a process that has no role: PostgreSQL by the caller's
 * connection, Kafka by a consumer without a group, NATS by reads that no consumer of a group sees. Redis carries hints, which never
 * become dead letters. A letter is named by its partition and offset; on NATS the partition is 0 and the offset its sequence in the
 * stream. Offsets ascend in the order in which letters were stored; a stream or topic that was created again begins anew, so a letter
 * is the same one only if its time is too.
 *
 * Threads: every call blocks, until the deadline at most; one thread at a time, never a loop's. Failures: UNAVAILABLE and TIMEOUT of
 * an engine, those of db.h where PostgreSQL is the engine, NOT_FOUND where the topic does not exist. */
#ifndef FRESHET_BUS_BUS_DEAD_H
#define FRESHET_BUS_BUS_DEAD_H

#include "base/arena.h"
#include "bus/bus.h"

struct bus_dead;
struct bus_kafka_config;
struct bus_nats_config;

/* ---- open and close ---- */
struct bus_dead *bus_dead_open_postgres(struct db_conn *conn); /* which it borrows; it opens no transaction */
/* These need what it takes to connect; NATS also topics and names. */
enum status bus_dead_open_kafka(const struct bus_kafka_config *config, struct bus_dead **dead,
                                struct error *error) MUST_CHECK;
enum status bus_dead_open_nats(const struct bus_nats_config *config, int64_t deadline_ns,
                               struct bus_dead **dead, struct error *error) MUST_CHECK;
void bus_dead_close(struct bus_dead *dead);               /* NULL is fine */
const char *bus_dead_engine(const struct bus_dead *dead); /* "postgres", "kafka", "nats" */

/* ---- reading ---- */
/* What a partition of a dead-letter topic has: offsets from `first` to before `next`. */
struct bus_dead_range {
    unsigned partition;
    int64_t first, next;
};
/* The ranges that are not empty, in the arena, by partition. `group`: it moves letters elsewhere, and those that it has handled are left
 * out; NULL = none does. */
enum status bus_dead_look(struct bus_dead *dead, const char *topic, const char *group, struct arena *arena,
                          struct bus_dead_range **ranges, size_t *count, int64_t deadline_ns,
                          struct error *error) MUST_CHECK;

struct bus_dead_letter {
    /* Its payload is cut at payload_max; without one, key and headers are cut too. */
    struct bus_message message;
    size_t bytes; /* of the whole payload */
};
struct bus_dead_query {
    const char *topic;
    /* Disjoint, sorted by partition and offset, none empty. The caller bounds how many letters they have. */
    const struct bus_dead_range *spans;
    size_t span_count;
    size_t payload_max; /* 0 = payloads are not wanted */
    /* Of payloads that are kept, exceeded by at most one letter; then the rest is left out. */
    size_t bytes_max;
};
/* The letters of the spans that exist, in the arena, by partition and offset. */
enum status bus_dead_read(struct bus_dead *dead, const struct bus_dead_query *query, struct arena *arena,
                          struct bus_dead_letter **letters, size_t *count, int64_t deadline_ns,
                          struct error *error) MUST_CHECK;

/* ---- publishing again ---- */
/* The message as it was before it died: its topic, key, payload and own headers; texts are the letter's. False: its content was not
 * kept. */
bool bus_dead_original(const struct bus_message *letter, struct str topic, struct arena *arena,
                       struct bus_message *message);
/* On PostgreSQL: until the caller's transaction ends nothing else is published to the topic. A transaction that publishes more than once
 * calls it first, since publishers take partitions in ascending order. Elsewhere it does nothing. */
enum status bus_dead_lock(struct bus_dead *dead, struct str topic, int64_t deadline_ns,
                          struct error *error) MUST_CHECK;
/* Publishes messages of one topic in their order; each goes to the partition of its key. On PostgreSQL it is part of the caller's
 * transaction; elsewhere they are stored when it returns, and after a failure some of them may be. */
enum status bus_dead_publish(struct bus_dead *dead, struct bus_message *messages, size_t count,
                             int64_t deadline_ns, struct error *error) MUST_CHECK;
/* After the commit on PostgreSQL: wakes the consumers. What it misses is found by their poll. */
void bus_dead_wake(struct bus_dead *dead, struct str topic, int64_t deadline_ns);

#endif
