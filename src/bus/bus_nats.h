/* The NATS driver: a topic is a JetStream stream, a partition a subject of it (TOPIC.PARTITION).
 *
 * Streams are made at the start. Publishing is asynchronous underneath (Nats-Msg-Id is the event id, so that the server drops
 * a repetition within its window) and bus_publish() returns when every message is acknowledged. Consuming: a durable pull
 * consumer for each (group, partition), acknowledged after the database has committed; what is to come again later is NAKed
 * with a delay, a dead one is TERMed after its letter is out. One member of a group handles a partition at a time.
 *
 * Deliveries: a subscription's attempts_max is the consumer's MaxDeliver too, so deliveries that a process died of count.
 * While the database does not answer nothing is fetched, and what is in hand is kept as work in progress: an outage uses up
 * no delivery. A partition that changes hands (a stop, a new member, a server that restarts) uses up one for each message in
 * hand, at most a batch of them. What fails at its last delivery is buried here, with the handler's reason. What the server
 * gives up by itself (a process that died on the last delivery, somebody else's TERM) it tells in advisories, which a stream
 * of their own keeps while nobody listens; who holds the partition reads them there and sends the letter that is missing:
 * the message itself, by its sequence, with the reason and dlq-deliveries; without its content where that is gone. So the
 * dead-letter topic has every dead message once or more, whatever killed it: readers tell them by dlq-offset. */
#ifndef FRESHET_BUS_BUS_NATS_H
#define FRESHET_BUS_BUS_NATS_H

#include "bus/bus.h"
#include "db/db.h"
#include "loop/worker.h"

struct bus_nats_security {
    bool tls;
    const char *ca_file, *certificate_file, *key_file; /* NULL: the system's; no client certificate */
    const char *username, *password;                   /* NULL = without */
    const char *credentials_file;                      /* a user's JWT and seed; NULL = without */
};

/* What a topic is called there, where its owner says so: with one partition its stream and its subject are exactly these (its
 * dead letters': STREAM_dlq and SUBJECT.dlq, its groups' durable consumers the group's name); with more the subject is
 * SUBJECT.PARTITION, the consumer GROUP_PARTITION. NULL: the topic's name, for a stream with '_' for '.'. A stream that is
 * there must have that subject, and no other; its duplicate window is made what it should be. Topics without such a row:
 * TOPIC.PARTITION and GROUP_PARTITION always. */
struct bus_nats_names {
    const char *topic, *stream, *subject;
    int64_t duplicate_window_ms; /* how long a repeated event id is dropped by the server; 0 = 2 minutes */
};

struct bus_nats_config {
    struct loop *loop;           /* timers */
    struct worker_pool *workers; /* handlers; stopped after bus_stop() */
    const char *servers;         /* nats://HOST:PORT, joined by commas */
    const char *client_name;
    struct bus_nats_security security;
    const struct db_target *target; /* as bus_kafka's */
    const struct bus_topic *topics;
    size_t topic_count;
    const struct bus_nats_names *names; /* of topics that are not called by their own name */
    size_t name_count;
    unsigned replicas;  /* of streams made here; 0 = 1 */
    int64_t handler_ms; /* batch->deadline_ns; 0 = 30 s */
    /* What was sent to a member that is not heard of comes again after this, and its partitions are another's after twice
     * this; 0 = 5 s. The first to make the bucket of leases there decides for all. */
    int64_t ack_wait_ms;
    /* Advisories of running out of deliveries, and of being terminated, are kept in these streams; NULL: freshet_advisories
     * for both, with everybody's. Named ones get the advisories of the streams that are read here, beside what they have. */
    const char *advisory_stream, *terminated_stream;
    int64_t keep_dead_ms;     /* dead letters; 0 = 30 days */
    size_t message_bytes_max; /* 0 = 1 MiB less what headers need */
};

/* Connects to nobody yet. CONFIG when something cannot be understood. */
enum status bus_nats_create(const struct bus_nats_config *config, struct bus **bus,
                            struct error *error) MUST_CHECK;
bool bus_nats_is_up(const struct bus *bus); /* for health: never blocks */

/* ---- plain subjects: no stream, at most once, for questions that are asked again (hydration) ----
 * on_message runs on a thread of the client's and must not block. */
struct bus_nats_plain {
    struct str subject, payload;
    const struct bus_header *headers;
    unsigned header_count;
    const char *poison; /* as in struct bus_message; the listener's to refuse */
};
enum status bus_nats_send(struct bus *bus, const struct bus_nats_plain *message,
                          struct error *error) MUST_CHECK;
/* Before bus_start(). `queue`: one of its members gets each; NULL: everybody. */
enum status bus_nats_listen(struct bus *bus, const char *subject, const char *queue,
                            void (*on_message)(void *context, const struct bus_nats_plain *message),
                            void *context, struct error *error) MUST_CHECK;

#endif
