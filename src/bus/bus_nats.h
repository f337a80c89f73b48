/* The NATS driver: a topic is a JetStream stream, a partition a subject of it (TOPIC.PARTITION).
 *
 * Streams are made at the start. Publishing is asynchronous underneath (Nats-Msg-Id is the event id, so that the server drops
 * a repetition within its window) and bus_publish() returns when every message is acknowledged. Consuming: a durable pull
 * consumer for each (group, partition), acknowledged after the database has committed; what is to come again later is NAKed
 * with a delay, a dead one is TERMed after its letter is out. One member of a group handles a partition at a time.
 * Advisories about messages that ran out of deliveries are kept in a stream of their own. */
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

struct bus_nats_config {
    struct loop *loop;           /* timers */
    struct worker_pool *workers; /* handlers; stopped after bus_stop() */
    const char *servers;         /* nats://HOST:PORT, joined by commas */
    const char *client_name;
    struct bus_nats_security security;
    const struct db_target *target; /* as bus_kafka's */
    const struct bus_topic *topics;
    size_t topic_count;
    unsigned replicas;  /* of streams made here; 0 = 1 */
    int64_t handler_ms; /* batch->deadline_ns; 0 = 30 s */
    /* What was sent to a member that is not heard of comes again after this, and its partitions are another's after twice
     * this; 0 = 5 s. The first to make the bucket of leases there decides for all. */
    int64_t ack_wait_ms;
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
};
enum status bus_nats_send(struct bus *bus, const struct bus_nats_plain *message,
                          struct error *error) MUST_CHECK;
/* Before bus_start(). `queue`: one of its members gets each; NULL: everybody. */
enum status bus_nats_listen(struct bus *bus, const char *subject, const char *queue,
                            void (*on_message)(void *context, const struct bus_nats_plain *message),
                            void *context, struct error *error) MUST_CHECK;

#endif
