/* What the files of the Redis driver share.
 *
 *   redis.c    the driver's life: configuration, start, stop
 *   publish.c  XADD and PUBLISH; the caller waits for the replies
 *   reader.c   a subscription: its consumer group, its entries, the handler
 *   pods.c     removes the consumer groups of dead pods
 *   channel.c  the Pub/Sub subscription, which wakes readers
 *   cluster.c, link.c, reply.c  nodes, connections, protocol
 *
 * Everything but the handlers and the waiting of publishers happens on the driver's own loop, so it needs no locks. */
#ifndef FRESHET_BUS_REDIS_INSIDE_H
#define FRESHET_BUS_REDIS_INSIDE_H

#include <pthread.h>

#include "bus/bus_redis.h"
#include "bus/delivery.h"
#include "bus/redis/cluster.h"
#include "loop/task.h"

struct redis_topic {
    struct bus_topic_state *state;
    char *stream, *channel;
    struct redis_route route;
    /* The server's clock, by the ids it generates, minus our monotonic clock: entries are old by the clock that made their ids.
     * 0 = not known yet. */
    atomic_llong clock_ahead_ms;
};

/* ---- readers ---- */

/*  JOINING  ─▶ IDLE      joined for the first time
 *           ─▶ HOLDING   joined again: messages may be missing, which is a gap
 *  IDLE     ─▶ READING   woken by the channel, or the poll is due
 *  READING  ─▶ HOLDING   there are entries, or a gap
 *           ─▶ IDLE      there are none, or the request failed
 *           ─▶ JOINING   NOGROUP: Redis lost its data, or another pod removed the group
 *  HOLDING  ─▶ HANDLING  a worker takes them
 *  HANDLING ─▶ IDLE      all are settled
 *           ─▶ HOLDING   some are not: they are handed over again after a pause
 *  any      ─▶ LEFT */
enum redis_reader_state {
    READER_JOINING,  /* creates its consumer group */
    READER_IDLE,     /* waits for the channel, the poll, or the end of a backoff */
    READER_READING,  /* has asked for entries */
    READER_HOLDING,  /* has entries or a gap, and waits for a worker or the end of a backoff */
    READER_HANDLING, /* the handler has them */
    READER_LEFT,     /* the bus stops: the group is removed */
};

enum redis_read {
    READ_NEW,          /* entries that were never delivered */
    READ_NEW_AND_INFO, /* the same, and the state of the stream: are entries missing? */
    READ_PENDING, /* after a failure: entries whose delivery or acknowledgement was lost, and the state of the stream */
};

/* Messages of the channel, for subscriptions with `hints`. */
struct redis_hints {
    struct arena arena;
    struct bus_message messages[256];
    size_t count, bytes;
};

/* The consumer group of the same subscription in another pod. */
struct redis_peer {
    char *group;
    int64_t dead_since_ns; /* since when it seems dead; 0 = it does not */
};
#define REDIS_PEERS_MAX 64

struct redis_reader {
    struct bus_consumer consumer;
    struct redis *redis;
    struct redis_topic *topic;
    char *group;        /* GROUP:POD */
    char *alive_prefix; /* of the keys that mark groups as alive, in the stream's slot */

    enum redis_reader_state state;
    bool is_woken;  /* by the channel: there are new entries */
    bool is_ready;  /* has joined once */
    bool is_unsure; /* a reply was lost: reads what is pending first */
    struct loop_timer timer;
    int64_t wait_until_ns; /* a backoff */
    int64_t poll_at_ns;
    struct backoff backoff; /* of failed requests */

    struct redis_request request; /* joins and reads; its arena has the entries */
    struct redis_request leave;
    enum redis_read read;
    unsigned count_max;   /* entries to ask for */
    struct redis_id done; /* every entry up to this one is settled */
    int64_t read_count;   /* entries ever added up to the last one read; -1: not known */
    int64_t lag;
    struct redis_entries entries;
    size_t entry_at;       /* the first that is not settled */
    struct redis_id *acks; /* acknowledged with the next read; in the request's arena */
    size_t ack_count;
    bool has_gap;
    int64_t gap_from, gap_next;
    struct metric_series *stream_lag;

    /* What the task hands to the handler: set by its prepare, read by its run. */
    struct task *task;
    struct bus_delivery delivery;
    struct redis_hints hint_sets[2], *hints, *hints_handed; /* one is filled while the other is handed over */
    /* on_ready is to be called by the next run; by this run; this run hands over entries or a gap, not only hints. */
    bool is_ready_due, hands_ready, hands_entries;
    size_t settled;  /* by this run */
    int64_t wait_ms; /* before the rest is handed over again */

    /* pods.c */
    struct redis_request pods_request;
    enum { PODS_LIST, PODS_LOOK, PODS_REMOVE } pods_step;
    int64_t pods_at_ns;
    struct redis_peer peers[REDIS_PEERS_MAX];
    size_t peer_count;
};

struct redis_channel {
    struct redis_link link; /* first */
    struct redis *redis;
    struct arena arena;
    struct loop_timer timer;
    struct backoff backoff;
    bool awaits_reply; /* of SUBSCRIBE or PING */
    bool is_down;      /* and logged */
};

struct redis {
    struct bus bus; /* first: the two share their address */
    struct bus_redis_config config;
    char *pod;
    struct redis_access access;
    struct redis_topic *topics; /* as many as the bus has, in its order */
    struct loop *loop;
    pthread_t thread;
    bool has_thread;

    /* the loop's */
    struct redis_cluster cluster;
    struct redis_channel channel;
    struct redis_reader **readers;
    size_t reader_count;
    struct loop_timer pods_timer, leave_timer;
    unsigned leaving; /* replies that the stop waits for */

    pthread_mutex_t lock; /* for the following */
    pthread_cond_t changed;
    bool is_stopping, is_interrupted, has_left;
    unsigned publishers; /* calls of bus_publish() that have not returned */
};

/* redis.c */
struct redis_topic *redis_topic_of(struct redis *redis, const struct bus_topic_state *state);
void redis_left(struct redis *redis); /* one reply less that the stop waits for */

/* publish.c */
enum status bus_redis_publish(struct bus *bus, struct bus_message *messages, size_t count,
                              int64_t deadline_ns, struct error *error);

/* reader.c */
void redis_reader_create(struct redis *redis, const struct bus_consumer *consumer);
void redis_reader_destroy(struct redis_reader *reader); /* after its task is stopped */
void redis_reader_step(struct redis_reader *reader);
void redis_reader_wake(struct redis_reader *reader);
void redis_reader_leave(struct redis_reader *reader, bool removes_group); /* then redis_left() */

/* pods.c */
void redis_pods_init(struct redis_reader *reader);
void redis_pods_deinit(struct redis_reader *reader);
void redis_pods_start(struct redis *redis);

/* channel.c */
void redis_channel_init(struct redis *redis);
void redis_channel_start(struct redis *redis);
void redis_channel_close(struct redis *redis);

#endif
