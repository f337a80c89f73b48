/* For drivers: the topic table, consumers with their metrics, the outcome of a batch, deliveries. Nothing outside src/bus includes it. */
#ifndef FRESHET_BUS_BUS_INSIDE_H
#define FRESHET_BUS_BUS_INSIDE_H

#include <stdatomic.h>

#include "base/arena.h"
#include "base/map.h"
#include "base/metrics.h"
#include "base/turns.h"
#include "bus/bus.h"

/* ---- topics ---- */
struct bus_topic_state {
    struct bus_topic spec;
    struct str name;
    struct bus_topic_state *dead; /* the topic of its dead letters; NULL: it is such a topic itself */
    atomic_ulong wakes;           /* the driver's: how often a publication was reported */
    atomic_bool known;            /* the driver's: the engine has the topic, with as many partitions */
    atomic_bool is_held; /* the driver's: messages older than keep_ms wait for a group, which is logged */
    struct metric_series *published;
};

/* The partition of a message to a topic with 0 partitions is a number below this; the driver takes the remainder by the topic's number
 * of partitions, as Kafka's own clients do with a key's hash. */
#define BUS_PARTITIONS_UNKNOWN (1u << 31)

/* ---- a driver: a table of functions; the first member of its own struct is the struct bus ---- */
struct bus_consumer;
struct db_pool;
struct db_target;
struct bus_driver {
    const char *name;               /* for errors */
    const char *engine;             /* bus_engine() */
    bool lacks_shared, lacks_every; /* subscriptions of this mode are STATUS_CONFIG */
    bool foreign_topics; /* topics with 0 partitions are allowed: it neither creates nor checks them */
    bool can_relax;      /* bus_topic.relaxed is not ignored */
    /* The messages are checked and have their partitions. */
    enum status (*publish)(struct bus *bus, struct bus_message *messages, size_t count, int64_t deadline_ns,
                           struct error *error);
    void (*wake)(struct bus *bus,
                 struct bus_topic_state *topic); /* NULL: the engine wakes consumers by itself */
    void (*subscribe)(struct bus *bus,
                      const struct bus_consumer *consumer); /* copies it, and owns its texts */
    void (*start)(struct bus *bus);
    void (*stop)(struct bus *bus, int64_t grace_ms);
    void (*interrupt)(struct bus *bus);
    void (*destroy)(struct bus *bus);
};

struct bus {
    const struct bus_driver *driver;
    const char *database; /* that carries the messages, in metrics: host:port/name; "" = an engine does */
    struct bus_topic_state *topics;
    size_t topic_count;
    size_t message_bytes_max;
    atomic_uint turn;  /* for messages without a key */
    atomic_bool is_up; /* the driver's: the engine answers */
};

/* Copies the table and adds the dead-letter topics that are not in it. keep_dead_ms: 0 = 30 days. */
enum status bus_init(struct bus *bus, const struct bus_driver *driver, const struct bus_topic *topics,
                     size_t topic_count, int64_t keep_dead_ms, struct error *error) MUST_CHECK;
void bus_deinit(struct bus *bus);
struct bus_topic_state *bus_topic_find(const struct bus *bus, struct str name); /* NULL: none */
/* As bus_publish() does: sets their partitions. */
enum status bus_check_messages(struct bus *bus, struct bus_message *messages, size_t count,
                               struct error *error) MUST_CHECK;

/* ---- consumers ---- */
struct bus_consumer {
    struct bus_subscription spec; /* its texts are on the heap, defaults are filled in */
    struct bus_topic_state *topic;
    struct metric_series *consumed[BUS_TERM + 1], *lag, *batch_seconds, *dead_letters;
};
void bus_consumer_deinit(struct bus_consumer *consumer);
/* bus_lag of a group that shares messages, in any process, whether it reads the topic or not. Not for the hot path. */
void bus_lag_set(const struct bus *bus, struct str topic, struct str group, int64_t messages);
int64_t bus_backoff_ms(const struct bus_consumer *consumer, unsigned attempt); /* attempt: 1 … */
/* Each logs and calls the consumer's callback, if it has one. */
void bus_consumer_ready(const struct bus_consumer *consumer);
void bus_consumer_gap(const struct bus_consumer *consumer, unsigned partition, int64_t offset, int64_t next);

/* ---- the outcome of a batch ---- */
struct bus_outcome {
    size_t settled;                   /* messages[0 .. settled) are acknowledged or dead */
    bool retry;                       /* the message at `settled` is delivered again after a backoff */
    struct bus_message *dead_letters; /* dead letters, ready to be published */
    size_t dead_letter_count;
};
/* Calls the handler and reads its verdicts. Verdicts after the first RETRY are ignored; after attempts_max a RETRY is a TERM. */
void bus_batch_handle(const struct bus_consumer *consumer, struct bus_batch *batch, struct arena *arena,
                      struct bus_outcome *outcome);
/* The same without the handler: the first message has failed `attempts_max` times. `is_reported`: on_given_up is called. */
void bus_batch_give_up(const struct bus_consumer *consumer, struct bus_batch *batch, const char *reason,
                       bool is_reported, struct arena *arena, struct bus_outcome *outcome);
/* After the commit: counts, and calls on_committed. */
void bus_batch_committed(const struct bus_consumer *consumer, const struct bus_batch *batch,
                         const struct bus_outcome *outcome);
void bus_batch_uncommitted(const struct bus_consumer *consumer, const struct bus_batch *batch);

/* ---- dead letters ---- */
/* The dead letter of a message of consumer->topic, which has a dead-letter topic. It points into the message and the arena. */
struct bus_message bus_dead_letter(const struct bus_consumer *consumer, const struct bus_message *message,
                                   const char *reason, struct arena *arena);
/* A dead letter that is too large is published without its content: its headers say where the message is. */
enum status bus_dead_letters_publish(struct bus *bus, struct bus_message *letters, size_t count,
                                     int64_t deadline_ns, struct error *error) MUST_CHECK;

/* ---- memory.c: what messages take between an engine and the database. Any thread ---- */
#define BUS_HOLD_WAIT_MS 50 /* until a message for which there was no room is tried again */

struct bus_hold { /* of the messages that one handler has; {0} = none */
    size_t bytes;
    bool is_large;
};
void bus_memory_join(const struct bus_consumer *consumer); /* a subscription, and when it ends */
void bus_memory_leave(const struct bus_consumer *consumer);
size_t bus_batch_bytes_max(const struct bus_consumer *consumer); /* of a batch, unless it is one message */
/* Of each of so many queues of received messages; the last one may be past it. */
size_t bus_queue_bytes_max(const struct bus_consumer *consumer, unsigned queues);
size_t bus_client_bytes_max(
    size_t bytes_max); /* that the client of an engine may buffer for a subscription */
/* False: a message larger than a batch that has to wait, BUS_HOLD_WAIT_MS. `owner` distinguishes those that wait for a turn. */
bool bus_hold_take(struct bus_hold *hold, const void *owner, size_t bytes, size_t batch_bytes_max) MUST_CHECK;
void bus_hold_release(struct bus_hold *hold);
/* The queue has so many bytes now. *charged: 0 for a new queue. */
void bus_queue_charge(size_t *charged, size_t bytes);

/* ---- deliveries ----
 * Deliveries of one partition, for drivers whose engine cannot share a transaction with the database.
 *
 * The order of steps makes it safe: the handler writes in a transaction of the database, dead letters are published, the
 * transaction commits, and only then the driver acknowledges the messages to the engine. A crash between two steps leads to a
 * redelivery, never to a loss; so a handler's effect is recognised by its event id. Attempts are counted in the memory of this
 * process: another member of the group, or this process after a restart, begins at 0.
 *
 * One worker at a time uses a delivery: it blocks. */
struct bus_delivery {
    struct bus *bus; /* for dead letters */
    const struct bus_consumer *consumer;
    struct db_pool *pool; /* NULL: handlers get no transaction */
    int64_t handler_ms;   /* for one batch */
    unsigned attempts;    /* how often the first message was delivered before */
    /* Messages below this offset are delivered one by one: their batch failed as a whole. */
    int64_t alone_until;
    char last_error[BUS_REASON_BYTES];
    struct bus_hold hold; /* taken by bus_deliver(), or before; it is released in any case */
    bool is_out;          /* the database or the engine is not reachable, which is logged */
    bool *dead; /* NULL, or room for a batch: is set for settled messages that became dead letters */
};

/* Connections of the driver's own, with metrics of their own; *pool stays NULL when `target` is NULL. */
enum status bus_delivery_pool(const struct db_target *target, const char *driver, struct db_pool **pool,
                              struct error *error) MUST_CHECK;
/* Hands one batch of messages[0 .. count) to the handler, in order, at most the consumer's size; messages[0] is the first that is not
 * settled. Returns how many are settled now: the driver acknowledges them. *wait_ms > 0: the next one is not due before. Nothing
 * settled and nothing to wait for: try again at once. */
size_t bus_deliver(struct bus_delivery *delivery, const struct bus_message *messages, size_t count,
                   int64_t *wait_ms) MUST_CHECK;
/* The partition goes to another member, or messages were skipped: counting begins at 0. */
void bus_delivery_forget(struct bus_delivery *delivery);

/* ---- slots.c: the handlers of a consumer, and how many of them one share has (bus_subscription.shares). Not synchronized ---- */
struct bus_slots {
    unsigned (*shares)(const struct bus_message *message, uint64_t shares[BUS_SHARES_MAX]);
    struct turns turns;
    size_t free;
};
struct bus_slot { /* of a batch; {0} = none */
    struct map held;
    bool is_taken;
};
void bus_slots_init(struct bus_slots *slots, const struct bus_consumer *consumer);
void bus_slots_deinit(struct bus_slots *slots);           /* all have left */
bool bus_slots_are_scarce(const struct bus_slots *slots); /* some share may not have one more */
bool bus_slots_may_enter(const struct bus_slots *slots, const struct bus_message *message);
/* Takes a slot for the first messages, as many as may be handled now; returns how many, 0 = no slot was taken. With a slot already
 * taken it is extended to these messages. */
size_t bus_slots_enter(struct bus_slots *slots, struct bus_slot *slot, const struct bus_message *messages,
                       size_t count);
void bus_slots_leave(struct bus_slots *slots, struct bus_slot *slot);

#endif
