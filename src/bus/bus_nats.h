/* The NATS driver: a topic is a JetStream stream, a partition a subject of it (TOPIC.PARTITION).
 *
 * Missing streams are created at the start. Publishing: bus_publish() returns when every message is acknowledged; Nats-Msg-Id is
 * the event id, so that the server drops a repetition within its duplicate window. Consuming: a durable pull consumer for each
 * group and partition; messages are acknowledged after the commit of the database, returned with a delay (-NAK) for a retry, and
 * terminated after their dead letter is stored. One member of a group handles a partition at a time.
 *
 * Deliveries: attempts_max of a subscription is MaxDeliver of the consumer, so that deliveries to a process that crashed count.
 * While the database does not answer no messages are requested, and those that are here are kept as work in progress: an outage
 * uses up no delivery. A partition that changes hands (a stop, a new member, a restart of the server) uses up one delivery of
 * each message that is here, at most a batch. A message that fails at its last delivery becomes a dead letter here, with the
 * handler's reason. Messages that the server gives up by itself (the process crashed at the last delivery, or another client
 * terminated them) are reported in advisories, which a stream of their own keeps; the holder of the partition reads them and
 * stores the dead letter: the message by its sequence, with the reason and dlq-deliveries; without content where the message is
 * deleted. So the dead-letter topic has every dead message at least once, with its place in dlq-offset. */
#ifndef FRESHET_BUS_BUS_NATS_H
#define FRESHET_BUS_BUS_NATS_H

#include "bus/bus.h"
#include "db/db.h"
#include "loop/worker.h"

/* Configured names of a topic. With one partition its stream and subject are exactly these (of its dead letters: STREAM_dlq and
 * SUBJECT.dlq; the durable consumers have the names of their groups); with more the subject is SUBJECT.PARTITION, the consumer
 * GROUP_PARTITION. NULL: the topic's name, for a stream with '_' for '.'. An existing stream must have that subject and no other;
 * its duplicate window is updated. Topics without such a row: always TOPIC.PARTITION and GROUP_PARTITION. */
struct bus_nats_names {
    const char *topic, *stream, *subject;
    int64_t duplicate_window_ms; /* the server drops a repeated event id within this; 0 = 2 minutes */
};

struct bus_nats_config {
    struct loop *loop;           /* timers */
    struct worker_pool *workers; /* handlers; stopped after bus_stop() */
    const char *servers;         /* nats://HOST:PORT, joined by commas */
    const char *client_name;
    struct bus_security security;
    const struct db_target *target; /* as bus_kafka's */
    const struct bus_topic *topics;
    size_t topic_count;
    const struct bus_nats_names *names; /* of topics that have other names there */
    size_t name_count;
    unsigned replicas;  /* of streams made here; 0 = 1 */
    int64_t handler_ms; /* batch->deadline_ns; 0 = 30 s */
    /* Messages of a member that is frozen are redelivered after this, and its partitions change hands after twice this; those of one whose
     * connection has ended, at once (ADR 17). 0 = 5 s. The process that creates the bucket of leases decides for all. */
    int64_t ack_wait_ms;
    /* The streams that keep advisories of used up deliveries and of terminated messages; NULL: freshet_advisories for both, with
     * the advisories of all streams. Named ones get those of the streams that are read here, beside what they have. */
    const char *advisory_stream, *terminated_stream;
    int64_t keep_dead_ms;     /* dead letters; 0 = 30 days */
    size_t message_bytes_max; /* 0 = 1 MiB less what headers need */
};

/* Does not connect yet. CONFIG when a setting is invalid. */
enum status bus_nats_create(const struct bus_nats_config *config, struct bus **bus,
                            struct error *error) MUST_CHECK;

/* Blocking, without a bus; of the configuration it needs the servers, topics and names. *is_settled: the group has settled all messages that
 * the topic had when this was called. False: not before the deadline. UNAVAILABLE when no server answers. */
enum status bus_nats_is_settled(const struct bus_nats_config *config, const char *topic, const char *group,
                                int64_t deadline_ns, bool *is_settled, struct error *error) MUST_CHECK;

/* ---- plain subjects: no stream, at most once, for requests that are repeated (hydration) ----
 * on_message runs on a thread of the client and must not block; it refuses a message with `poison`. */
enum status bus_nats_send(struct bus *bus, const struct bus_message *message,
                          struct error *error) MUST_CHECK; /* its topic is the subject; the key is not sent */
/* Before bus_start(). `queue`: one of its members gets each message; NULL: every listener does. */
enum status bus_nats_listen(struct bus *bus, const char *subject, const char *queue,
                            void (*on_message)(void *context, const struct bus_message *message),
                            void *context, struct error *error) MUST_CHECK;

#endif
