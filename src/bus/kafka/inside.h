/* What the files of the Kafka driver share.
 *
 *   kafka.c     life: configuration, start, stop
 *   client.c    librdkafka's handles: settings, its errors and logs as ours
 *   message.c   messages both ways
 *   publish.c   the producer, and who waits for it
 *   upkeep.c    topics made and checked, is a broker there
 *   reader.c    one subscription: its thread, what it polls, its end
 *   lane.c      one partition of it: what waits there, handed to the workers
 *   group.c     which partitions, from where, and commits
 *   tsan.c      what ThreadSanitizer has to be told of librdkafka; in no other build
 *
 * Threads: one that serves the producer, one for upkeep, one for each subscription (the pump), beside librdkafka's own.
 * Handlers run on workers. The pump never waits for a handler but when a partition goes to another member:
 *
 *   broker ─ librdkafka ─▶ pump ─▶ lane's queue ─▶ worker: handler, database ─▶ lane's position ─▶ pump ─ commit ─▶ broker
 */
#ifndef FRESHET_BUS_KAFKA_INSIDE_H
#define FRESHET_BUS_KAFKA_INSIDE_H

#include <librdkafka/rdkafka.h>
#include <pthread.h>

#include "bus/bus_inside.h"
#include "bus/bus_kafka.h"
#include "bus/delivery.h"

#define KAFKA_ASK_MS 1000 /* a question to the broker, before it is asked again; a stop may wait so long */
#define KAFKA_RECORD_BYTES 1024 /* what a record needs beside key, headers' texts and payload, at most */

struct kafka;
struct kafka_reader;

/* ---- a partition ----
 *
 *   items:  | free |  taken  |  waiting …  |
 *                head     head+taken    head+count
 *
 * Those taken are a job's; whatever happens to the partition meanwhile, the job ends them. */
struct kafka_lane {
    struct worker_job work;
    struct kafka_reader *reader;
    unsigned partition;
    struct bus_delivery delivery; /* the job's, as the following */
    unsigned tried_in;            /* the epoch whose attempts it counts */
    /* under reader->lock */
    bool owned;
    bool busy;      /* its job is queued or runs */
    unsigned epoch; /* a job that began in another one changes nothing */
    rd_kafka_message_t **items;
    size_t head, count, capacity, taken, bytes;
    int64_t position; /* the first that is not settled; -1: not known yet */
    int64_t fetch_at; /* the first that is not here yet */
    int64_t due_ns;   /* not before */
    bool gap;         /* once `before_gap` items are settled there is one, up to gap_next */
    size_t before_gap;
    int64_t gap_from, gap_next;
    /* the pump's */
    bool paused;
    bool lost;         /* the broker does not have what is at fetch_at */
    int64_t committed; /* the group's offset, as far as the broker said so; -1: not known */
    int64_t offered;   /* what a commit under way offers */
};

struct kafka_reader {
    struct bus_consumer consumer;
    struct kafka *kafka;
    struct metric_series *kafka_lag;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;
    pthread_cond_t idle;       /* a job ended */
    struct kafka_lane **lanes; /* by partition; made when first owned, never freed before the end */
    unsigned lane_count;
    unsigned running; /* jobs queued or running */
    unsigned turn;
    bool halted; /* no new jobs: a rebalance, or the end */

    /* the pump's */
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue, *commits;
    bool assigned, positioned, ready, committing, reopen;
    int64_t position_at_ns, commit_at_ns, lag_at_ns, look_at_ns, said_at_ns;
    unsigned partitions; /* as many as the topic has */
};

/* ---- publishing ---- */
struct kafka_producer {
    rd_kafka_t *rk;
    unsigned users; /* under kafka->lock; the producer's thread ends it when nobody is in it */
};

struct kafka_topic {
    char fault[256];        /* why it cannot be used; "" = nothing wrong. Under kafka->lock */
    atomic_uint partitions; /* as many as it has, once it is known */
    atomic_bool wanted;     /* created by others, and messages are published to it */
    bool gone;              /* a broker said it has none; under kafka->lock */
    bool there;             /* a broker has it; upkeep's */
    bool again;             /* it was there before; upkeep's */
    bool refused;           /* to make it, as the log says; upkeep's */
};

struct kafka {
    struct bus bus; /* first: the two share their address */
    struct bus_kafka_config config;
    rd_kafka_conf_t *conf; /* what all handles have in common */
    struct db_pool *pool;
    struct kafka_reader **readers;
    size_t reader_count;
    pthread_t producer_thread, upkeep_thread;
    bool started;
    atomic_bool up, stopping, interrupted, closing, broken;
    atomic_llong log_at_ns; /* librdkafka's lines, one now and then */
    atomic_uint log_dropped;

    pthread_mutex_t lock; /* for what follows, and the topics' `known` */
    pthread_cond_t changed;
    struct kafka_producer *producer; /* NULL: none yet, or being made anew */
    struct kafka_topic *topics;      /* by the place in bus.topics */
    unsigned publishing;             /* callers that have not returned */
    bool probe;                      /* look at once whether a broker is there */
    bool told;                       /* that it is, or is not */
};

/* ---- client.c ---- */
enum status bus_kafka_conf_create(const struct bus_kafka_config *config, rd_kafka_conf_t **conf,
                                  struct error *error) MUST_CHECK;
/* `settings` come on top of the common ones. NULL: it cannot be made, and the log says why. */
struct kafka_setting {
    const char *name, *value; /* value NULL: leave it; name NULL ends the list */
};
rd_kafka_t *bus_kafka_client_open(struct kafka *kafka, rd_kafka_type_t type,
                                  const struct kafka_setting *settings, void *opaque,
                                  void (*set_callbacks)(rd_kafka_conf_t *conf));
/* Ends it. librdkafka may wait for ever for parts of its own (a topic that was deleted under a consumer): such a handle is
 * left behind, so that whoever stops does stop. Nothing of it calls us afterwards. */
void bus_kafka_client_close(rd_kafka_t *rk);
/* A cond wait of at most `ms`. */
void bus_kafka_wait_ms(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ms);
void bus_kafka_cond_init(pthread_cond_t *cond);

/* ---- message.c ---- */
void bus_kafka_message_read(const rd_kafka_message_t *from, struct str topic, struct arena *arena,
                            struct bus_message *to);
rd_kafka_resp_err_t bus_kafka_message_send(rd_kafka_t *rk, const char *topic,
                                           const struct bus_message *message, void *opaque);

/* ---- publish.c ---- */
enum status bus_kafka_publish(struct bus *bus, struct bus_message *messages, size_t count,
                              int64_t deadline_ns, struct error *error);
void *bus_kafka_producer_run(void *kafka);                              /* its thread, until `closing` */
struct kafka_producer *bus_kafka_producer_acquire(struct kafka *kafka); /* NULL: there is none now */
void bus_kafka_producer_release(struct kafka *kafka, struct kafka_producer *producer);

/* ---- upkeep.c ---- */
void *bus_kafka_upkeep_run(void *kafka); /* its thread, until `closing` */
void bus_kafka_probe(struct kafka *kafka);
/* A broker does not know it. Any thread, not under the lock. */
void bus_kafka_topic_gone(struct kafka *kafka, const char *name);
/* Where a message for `partition` goes: a dead-letter topic may have fewer than ours, one created by others as many as it has. */
unsigned bus_kafka_topic_partition(struct kafka *kafka, const struct bus_topic_state *topic,
                                   unsigned partition);
/* Under the lock: CONFIG when the topic cannot be used; whether it is there. One created by others is looked for from now on. */
enum status bus_kafka_topic_check(struct kafka *kafka, const struct bus_topic_state *topic, bool *known,
                                  struct error *error) MUST_CHECK;

/* ---- reader.c ---- */
void bus_kafka_reader_create(struct kafka *kafka, const struct bus_consumer *consumer);
void bus_kafka_reader_start(struct kafka_reader *reader);
void bus_kafka_reader_wake(struct kafka_reader *reader);    /* any thread while it runs */
void bus_kafka_reader_destroy(struct kafka_reader *reader); /* its thread has ended */
bool bus_kafka_reader_is_shared(const struct kafka_reader *reader);

/* ---- lane.c: under reader->lock, but for what is the pump's ---- */
struct kafka_lane *bus_kafka_lane_get(struct kafka_reader *reader, unsigned partition); /* made if need be */
void bus_kafka_lane_put(struct kafka_lane *lane, rd_kafka_message_t *message);          /* takes it over */
bool bus_kafka_lane_is_full(const struct kafka_lane *lane);
bool bus_kafka_lane_is_low(const struct kafka_lane *lane);
void bus_kafka_lane_place(struct kafka_lane *lane, int64_t offset); /* what comes next is this one */
void bus_kafka_lane_gap(struct kafka_lane *lane, int64_t next);
void bus_kafka_lane_leave(struct kafka_lane *lane); /* it is not ours any more */
void bus_kafka_lanes_dispatch(struct kafka_reader *reader);
int64_t bus_kafka_lanes_due_ns(const struct kafka_reader *reader); /* when one's backoff is over */
void bus_kafka_lane_destroy(struct kafka_lane *lane);

/* ---- group.c: the pump's ---- */
void bus_kafka_group_callbacks(rd_kafka_conf_t *conf);
void bus_kafka_group_position(struct kafka_reader *reader); /* once the partitions are known: from where */
void bus_kafka_group_lost(struct kafka_reader *reader);     /* lanes whose place is gone at the broker */
void bus_kafka_group_commit(struct kafka_reader *reader);   /* begins or ends one, never waits */
void bus_kafka_group_commit_now(struct kafka_reader *reader, int64_t deadline_ns);
void bus_kafka_group_leave(struct kafka_reader *reader, int64_t wait_ms); /* gives all partitions up */
void bus_kafka_group_look(struct kafka_reader *reader); /* are there more partitions? what is the lag? */

#endif
