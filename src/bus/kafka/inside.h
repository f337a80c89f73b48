/* Inside the Kafka driver.
 *
 *   driver.c     create, start, stop, destroy
 *   client.c     handles of librdkafka: settings, errors, log lines, end
 *   publish.c    the producer and bus_publish()
 *   topic.c      the upkeep task: creates and checks topics, and whether a broker answers
 *   reader.c     one subscription: its consumer and the thread that polls it
 *   group.c      its membership in Kafka's group, positions, commits, lag
 *   locks.c      the same without Kafka's group: partitions by locks of PostgreSQL
 *   partition.c  one partition of it: the queue, and the job that hands batches to the handler
 *   positions.c  ends and committed offsets, for audits
 *   dead.c       dead letters for operators
 *
 * Threads: one polls the producer, one runs the upkeep, one polls each reader, beside those of librdkafka. Handlers run on
 * workers. A reader's thread waits for a handler only when a partition goes to another member:
 *
 *   broker ─ librdkafka ─▶ reader ─▶ partition's queue ─▶ worker: handler, database ─▶ position ─▶ reader ─ commit ─▶ broker
 */
#ifndef FRESHET_BUS_KAFKA_INSIDE_H
#define FRESHET_BUS_KAFKA_INSIDE_H

#include <librdkafka/rdkafka.h>
#include <pthread.h>

#include "bus/bus_inside.h"
#include "bus/bus_kafka.h"
#include "loop/task.h"

#define KAFKA_ASK_MS 1000       /* one request to a broker, before a retry; a stop may wait so long */
#define KAFKA_LOG_MS 30000      /* between two lines about errors of a reader */
#define KAFKA_RECORD_BYTES 1024 /* what a record needs beside key, headers and payload, at most */

struct kafka;
struct kafka_reader;

/* ---- a partition ----
 *
 *   items:  | free |  taken  |  waiting …  |
 *                head     head+taken    head+count
 *
 * The taken ones belong to a job, which frees them even when the partition is given up meanwhile. */
struct kafka_partition {
    struct worker_job work; /* first */
    struct kafka_reader *reader;
    unsigned number;
    struct bus_delivery delivery; /* the job's */
    unsigned tried_in;            /* the job's: the generation whose attempts it counts */
    /* under reader->lock */
    bool is_owned, is_busy;
    bool is_leaving;     /* no new batch: it is returned once the last one is committed */
    int64_t leave_by_ns; /* also without a commit; 0: its handler runs */
    unsigned generation; /* a job of another one changes nothing */
    rd_kafka_message_t **items;
    size_t head, count, capacity, taken, bytes, charged;
    int64_t position;     /* the first that is not settled; -1: not known yet */
    int64_t fetch_at;     /* the first that is not here yet */
    int64_t due_ns;       /* no batch before */
    struct bus_slot slot; /* of the job */
    bool has_gap;         /* after `before_gap` items, up to gap_next */
    size_t before_gap;
    int64_t gap_from, gap_next;
    /* the reader's thread */
    bool is_paused;
    bool is_out_of_range; /* the broker does not have fetch_at */
    int64_t committed;    /* the group's offset, by the broker's last answer; -1: not known */
    int64_t committing;   /* the offset of the commit under way */
};

/* ---- a subscription ---- */
enum kafka_reader_state {
    READER_CLOSED,     /* no consumer */
    READER_JOINING,    /* without partitions */
    READER_ASSIGNED,   /* its positions are not known yet */
    READER_POSITIONED, /* reads */
};

struct kafka_reader {
    struct bus_consumer consumer;
    struct kafka *kafka;
    struct metric_series *kafka_lag;
    pthread_t thread;
    bool is_started;
    bool uses_locks;                /* locks.c; else Kafka assigns its partitions */
    _Atomic(int64_t) held_until_ns; /* from then on its partitions may be another's */

    pthread_mutex_t lock;
    pthread_cond_t idle;                 /* a job ended */
    struct kafka_partition **partitions; /* by number; created when first owned, freed at the end */
    unsigned partition_count;
    unsigned running; /* jobs queued or running */
    struct bus_slots slots;
    unsigned turn;
    bool is_halted; /* no new jobs: a rebalance, or the end */

    /* its thread's */
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue, *commits;
    enum kafka_reader_state state;
    bool was_ready;     /* on_ready was called */
    bool is_committing; /* a commit is under way */
    bool is_broken;     /* the consumer is opened again */
    bool is_closing;    /* the consumer is being closed */
    int64_t position_at_ns, commit_at_ns, commit_all_at_ns, lag_at_ns, log_at_ns;
    size_t charged;            /* for what librdkafka reads ahead */
    unsigned topic_partitions; /* that the topic has */
    struct db_conn *session;   /* its locks; NULL: it has none, and no partitions */
    unsigned members;          /* at the last look */
    int64_t look_ms, look_at_ns;
    int64_t up_ns; /* Kafka answered */
};

/* ---- publishing ---- */
struct kafka_topic {
    char fault[256];        /* why it cannot be used; "" = it can. Under kafka->lock */
    atomic_uint partitions; /* that it has, once known */
    atomic_bool is_wanted;  /* created by others, and messages are published to it */
    bool exists, was_lost;  /* a broker has it; it was there before. Under kafka->lock */
    bool is_refusal_logged; /* the upkeep's */
};

enum kafka_phase {
    KAFKA_RUNNING,
    KAFKA_STOPPING, /* no new calls and batches */
    KAFKA_CLOSING,  /* its threads end */
};

struct kafka {
    struct bus bus; /* first */
    struct bus_kafka_config config;
    rd_kafka_conf_t *conf;            /* common to all handles */
    struct db_pool *pool, *lock_pool; /* of handlers; of readers that use locks, else NULL */
    struct kafka_reader **readers;
    size_t reader_count;
    pthread_t producer_thread;
    bool is_started;
    struct worker_pool *upkeep_thread;
    struct task *upkeep;
    _Atomic(enum kafka_phase) phase;
    atomic_bool is_interrupted, is_producer_broken;
    atomic_llong log_at_ns; /* the last line of librdkafka */
    atomic_uint log_dropped;

    pthread_mutex_t lock; /* for the rest, and the topics' `known` */
    pthread_cond_t changed;
    rd_kafka_t *producer;       /* NULL: none yet, or replaced */
    unsigned producer_users;    /* it is closed when there is none */
    struct kafka_topic *topics; /* as bus.topics */
    unsigned publishing;        /* callers that have not returned */
    bool is_up_logged;          /* the upkeep's */
    int64_t lag_at_ns;          /* the upkeep's */
};

static inline bool kafka_is_ending(const struct kafka *kafka)
{
    return atomic_load(&kafka->is_interrupted) || atomic_load(&kafka->phase) == KAFKA_CLOSING;
}

/* ---- client.c ---- */
enum status bus_kafka_conf_create(const struct bus_kafka_config *config, rd_kafka_conf_t **conf,
                                  struct error *error) MUST_CHECK;
struct kafka_setting {
    const char *name, *value; /* value NULL: leave it; name NULL ends the list */
};
/* `settings` are added to the common ones. NULL: it cannot be created, and the reason is logged. */
rd_kafka_t *bus_kafka_client_open(struct kafka *kafka, rd_kafka_type_t type,
                                  const struct kafka_setting *settings, void *opaque);
/* librdkafka may wait for ever for parts of its own (a topic that was deleted under a consumer): such a handle is leaked, so that
 * a stop ends. Nothing of it calls us afterwards. */
void bus_kafka_client_close(rd_kafka_t *rk);
/* The same of a consumer that has not answered a rebalance: without that the handle would never end. */
void bus_kafka_client_close_assigned(rd_kafka_t *rk);

/* ---- publish.c ---- */
enum status bus_kafka_publish(struct bus *bus, struct bus_message *messages, size_t count,
                              int64_t deadline_ns, struct error *error);
/* Copies the message to its partition; `opaque` is that of its report. */
rd_kafka_resp_err_t bus_kafka_produce(rd_kafka_t *rk, const char *topic, const struct bus_message *message,
                                      void *opaque);
void bus_kafka_on_delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *kafka);
void *bus_kafka_producer_run(void *kafka);                   /* its thread, until CLOSING */
rd_kafka_t *bus_kafka_producer_acquire(struct kafka *kafka); /* NULL: there is none now */
void bus_kafka_producer_release(struct kafka *kafka);

/* ---- topic.c ---- */
task_run_fn bus_kafka_upkeep_step;
void bus_kafka_upkeep_wake(struct kafka *kafka); /* is a broker there? Under the lock */
void bus_kafka_topic_missing(struct kafka *kafka,
                             const char *name); /* a broker reports so; not under the lock */
unsigned bus_kafka_topic_partitions(struct kafka *kafka,
                                    const struct bus_topic_state *topic); /* 0: not known yet */
/* The partition of a message: a dead-letter topic may have fewer than ours, one created by others as many as it has. */
unsigned bus_kafka_topic_partition(struct kafka *kafka, const struct bus_topic_state *topic,
                                   unsigned partition);
/* Under the lock: CONFIG when it cannot be used; is_known becomes false when it is not known yet. One created by others is looked
 * for from now on. */
enum status bus_kafka_topic_check(struct kafka *kafka, const struct bus_topic_state *topic, bool *is_known,
                                  struct error *error) MUST_CHECK;

/* ---- lag.c ---- */
void bus_kafka_lag_measure(struct kafka *kafka, rd_kafka_t *rk); /* on the upkeep's thread */

/* ---- reader.c ---- */
void bus_kafka_reader_create(struct bus *bus, const struct bus_consumer *consumer);
void bus_kafka_reader_start(struct kafka_reader *reader);
void bus_kafka_reader_wake(struct kafka_reader *reader); /* under its lock */
void bus_kafka_reader_move(struct kafka_reader *reader, enum kafka_reader_state to);
void bus_kafka_reader_destroy(struct kafka_reader *reader); /* its thread has ended */

/* ---- positions.c ---- */
/* 0: the topic does not exist. */
rd_kafka_resp_err_t bus_kafka_partitions_count(rd_kafka_t *rk, const char *topic, int64_t deadline_ns,
                                               unsigned *count);

/* ---- partition.c: under reader->lock, but for the first ---- */
/* Points into `from` and the arena. */
void bus_kafka_message_read(const rd_kafka_message_t *from, struct str topic, struct arena *arena,
                            struct bus_message *to);
struct kafka_partition *bus_kafka_partition_get(struct kafka_reader *reader,
                                                unsigned number); /* creates it */
struct kafka_partition *bus_kafka_partition_find(const struct kafka_reader *reader,
                                                 int32_t number);                             /* NULL: none */
void bus_kafka_partition_put(struct kafka_partition *partition, rd_kafka_message_t *message); /* owns it */
bool bus_kafka_partition_is_full(const struct kafka_partition *partition);
bool bus_kafka_partition_is_low(const struct kafka_partition *partition);
void bus_kafka_partition_gap(struct kafka_partition *partition, int64_t next);
void bus_kafka_partition_own(struct kafka_partition *partition);     /* its position is not known yet */
void bus_kafka_partition_give_up(struct kafka_partition *partition); /* it is another member's */
void bus_kafka_partitions_dispatch(struct kafka_reader *reader);
int64_t bus_kafka_partitions_due_ns(const struct kafka_reader *reader); /* the end of the next backoff */
void bus_kafka_partition_destroy(struct kafka_partition *partition);

/* ---- group.c: on the reader's thread ---- */
void bus_kafka_on_rebalance(rd_kafka_t *rk, rd_kafka_resp_err_t what, rd_kafka_topic_partition_list_t *list,
                            void *reader);
void bus_kafka_group_position(struct kafka_reader *reader);   /* ASSIGNED to POSITIONED */
void bus_kafka_group_reposition(struct kafka_reader *reader); /* partitions that are out of range */
void bus_kafka_group_commit(struct kafka_reader *reader);     /* begins or ends one, never waits */
bool bus_kafka_group_assign(struct kafka_reader *reader);     /* reads on in its partitions, and only there */
/* Gives all partitions up, after the handlers have ended and their offsets are committed; at once if others have them. */
void bus_kafka_group_leave(struct kafka_reader *reader, bool is_lost);
void bus_kafka_group_measure_lag(struct kafka_reader *reader);

/* ---- locks.c: on the reader's thread ---- */
void bus_kafka_locks_keep(struct kafka_reader *reader);  /* looks, takes and returns partitions */
void bus_kafka_locks_leave(struct kafka_reader *reader); /* unlocks all */

#endif
