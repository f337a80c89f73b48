/* What drivers are built on: the topic table, consumers with their metrics, and what a batch's verdicts come
 * to. Nothing outside src/bus includes it. */
#ifndef FRESHET_BUS_BUS_INSIDE_H
#define FRESHET_BUS_BUS_INSIDE_H

#include <stdatomic.h>

#include "base/arena.h"
#include "base/metrics.h"
#include "bus/bus.h"

/* ---- topics ---- */
struct bus_topic_state {
    struct bus_topic spec;
    struct str name;
    struct bus_topic_state *dead; /* where its dead letters go; NULL: it is such a topic itself */
    atomic_ulong wakes;           /* the driver's: how often somebody said that something was published */
    atomic_bool known;            /* the driver's: the engine has it, with as many partitions */
    atomic_bool is_held; /* the driver's: messages older than keep_ms wait for a group, and that is logged */
    struct metric_series *published;
};

/* Of a topic with 0 partitions: a message's partition is a number below this, and the driver takes the remainder by as many as the
 * topic has. That is what Kafka's own clients do with a key's hash. */
#define BUS_PARTITIONS_UNKNOWN (1u << 31)

/* ---- a driver: rows of functions; the first member of its own struct is the struct bus ---- */
struct bus_consumer;
struct bus_driver {
    const char *name;               /* for errors */
    bool lacks_shared, lacks_every; /* subscriptions of this mode are STATUS_CONFIG */
    /* It can use topics of other programs: those of 0 partitions, which it neither makes nor checks. */
    bool foreign_topics;
    bool can_relax; /* bus_topic.relaxed means something */
    /* Messages are checked and have their partitions. */
    enum status (*publish)(struct bus *bus, struct bus_message *messages, size_t count, int64_t deadline_ns,
                           struct error *error);
    enum status (*publish_in_tx)(struct bus *bus, struct db_conn *conn, struct bus_message *messages,
                                 size_t count, int64_t deadline_ns, struct error *error); /* NULL: cannot */
    enum status (*publish_and_commit)(struct bus *bus, struct db_conn *conn, struct bus_message *message,
                                      int64_t deadline_ns, struct error *error); /* NULL: cannot */
    enum status (*own_ask)(struct bus *bus, struct db_conn *conn, const struct bus_topic_state *topic,
                           const char *group, const unsigned *partitions, size_t count, uint64_t *mark,
                           struct error *error); /* NULL: cannot */
    enum status (*own_commit)(struct bus *bus, struct db_conn *conn, struct bus_topic_state *topic,
                              uint64_t mark, int64_t deadline_ns, struct error *error);
    bool (*is_private)(const struct bus *bus); /* NULL: not known */
    void (*wake)(struct bus *bus, struct bus_topic_state *topic);
    void (*subscribe)(struct bus *bus,
                      const struct bus_consumer *consumer); /* copies it; the texts are its own then */
    void (*start)(struct bus *bus);
    void (*stop)(struct bus *bus, int64_t grace_ms);
    void (*interrupt)(struct bus *bus);
    void (*destroy)(struct bus *bus);
};

struct bus {
    const struct bus_driver *driver;
    struct bus_topic_state *topics;
    size_t topic_count;
    size_t message_bytes_max;
    atomic_uint turn; /* for messages without a key */
};

/* Copies the table and adds the dead-letter topics that are not in it. */
enum status bus_init(struct bus *bus, const struct bus_driver *driver, const struct bus_topic *topics,
                     size_t topic_count, int64_t keep_dead_ms, struct error *error) MUST_CHECK;
void bus_deinit(struct bus *bus);
struct bus_topic_state *bus_topic_find(const struct bus *bus, struct str name); /* NULL: none */

/* ---- consumers ---- */
struct bus_consumer {
    struct bus_subscription spec; /* its texts are on the heap, defaults are filled in */
    struct bus_topic_state *topic;
    struct metric_series *consumed[BUS_TERM + 1], *lag, *batch_seconds, *dead_letters;
};
void bus_consumer_deinit(struct bus_consumer *consumer);
int64_t bus_backoff_ms(const struct bus_consumer *consumer, unsigned attempt); /* attempt: 1 … */

/* ---- what verdicts come to ---- */
struct bus_outcome {
    size_t settled;              /* messages[0 .. settled) are acknowledged or dead */
    bool retry;                  /* the one at `settled` comes again after a backoff */
    struct bus_message *letters; /* the dead ones, ready to be published */
    size_t letter_count;
};
/* Calls the handler and judges. A verdict past the first RETRY counts for nothing; a RETRY too many is a
 * TERM. */
void bus_batch_handle(const struct bus_consumer *consumer, struct bus_batch *batch, struct arena *arena,
                      struct bus_outcome *outcome);
/* The same without asking the handler: the first message has failed `attempts_max` times. `is_told`: on_given_up is
 * called. */
void bus_batch_give_up(const struct bus_consumer *consumer, struct bus_batch *batch, const char *reason,
                       bool is_told, struct arena *arena, struct bus_outcome *outcome);
/* After the commit: counts, and tells on_committed. */
void bus_batch_committed(const struct bus_consumer *consumer, const struct bus_batch *batch,
                         const struct bus_outcome *outcome);
void bus_batch_uncommitted(const struct bus_consumer *consumer, const struct bus_batch *batch);

/* ---- dead letters ---- */
/* What goes to the dead-letter topic of a message of consumer->topic, which has one; of the message's memory and the arena's. */
struct bus_message bus_dead_letter(const struct bus_consumer *consumer, const struct bus_message *message,
                                   const char *reason, struct arena *arena);
/* A letter that there is no room for goes without its content, which still stands where the letter says. */
enum status bus_dead_letters_publish(struct bus *bus, struct bus_message *letters, size_t count,
                                     int64_t deadline_ns, struct error *error) MUST_CHECK;

/* ---- metrics ---- */
struct metric_series *bus_metrics_published(struct str topic);
void bus_metrics_attach(struct bus_consumer *consumer);

#endif
