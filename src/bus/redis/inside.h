/* What the files of the Redis driver share.
 *
 *   redis.c     life: a loop and a thread of its own
 *   stop.c      its end
 *   publish.c   XADD and PUBLISH, waited for
 *   stream.c    one stream of a subscription: what it does next
 *   answer.c    what it is answered
 *   script.c    the questions a stream asks, as scripts
 *   entries.c   entries to messages
 *   work.c      handlers and callbacks, on workers
 *   channel.c   the subscription that says when to read
 *   upkeep.c    leases renewed, dead pods' groups removed, lag
 *   cluster.c, map.c, slots.c, link.c, reply.c  the way to the servers
 *
 * Everything but publishing's waiting and the handlers happens on the driver's own loop, so it needs no locks. A reader
 * is a subscription; it has a stream for each partition, which does one thing at a time:
 *
 *   idle ── due, woken ──▶ asking (group, entries) ──▶ idle ──▶ handling (on a worker) ──▶ idle ──▶ asking …
 *
 * A shared group's stream holds a lease while it has entries in hand, which the question for them takes and an empty
 * answer gives back. */
#ifndef FRESHET_BUS_REDIS_INSIDE_H
#define FRESHET_BUS_REDIS_INSIDE_H

#include <pthread.h>

#include "bus/bus_redis.h"
#include "bus/delivery.h"
#include "bus/redis/cluster.h"

struct redis;
struct redis_reader;

/* A stream's names, for whoever publishes to it or reads it. */
struct redis_names {
    char *stream, *channel;
    unsigned slot;
    /* The server's clock, by the ids it gave, less our monotonic one: what is old is old by the clock that made the ids. 0 = it
     * gave none yet. */
    atomic_llong ahead_ms;
};
struct redis_topic {
    struct bus_topic_state *state;
    struct redis_names *partitions;
};

enum redis_activity { REDIS_IDLE, REDIS_ASKING, REDIS_HANDLING };

/* A group that nobody reads, and since when it has been so. */
struct redis_suspect {
    uint64_t name_hash;
    int64_t since_ns;
};
#define REDIS_SUSPECTS_MAX 256

struct redis_stream {
    struct redis_reader *reader;
    const struct redis_names *names;
    unsigned partition;
    char *group, *lease, *alive; /* keys of the last two are in the stream's slot */

    enum redis_activity activity;
    bool has_turn, waits_for_turn;
    struct redis_stream *next_waiting;
    struct loop_timer timer;
    int64_t wait_until_ns; /* nothing before this: a backoff */
    int64_t poll_at_ns, check_at_ns;
    bool checking; /* what is asked is more than what is new */
    bool woken, leaving, ack_refused;
    unsigned failures;

    bool grouped;          /* its group is there */
    bool regroup;          /* it was there and is gone */
    bool held;             /* shared: the lease is ours … */
    int64_t held_until_ns; /* … as far as we know */
    bool gap;              /* on_gap is due: */
    int64_t gap_from, gap_next;
    int64_t read_count; /* every: which entry of all that were ever added is next; -1: not known */
    int64_t lag;
    struct redis_id done; /* all up to this one are settled */
    unsigned count_max;   /* entries asked for at once */

    struct redis_request ask; /* group, entries; its arena has the messages in hand */
    struct bus_message *messages;
    struct redis_id *ids;
    size_t message_count, message_at;
    struct redis_request ack;
    struct redis_id *acks; /* settled, not acknowledged; the first `acking` are being so */
    size_t ack_count, ack_capacity, acking;
    struct redis_request renew, upkeep;
    int64_t look_at_ns;
    struct redis_suspect *suspects;
    size_t suspect_count;

    struct bus_delivery delivery;
    struct worker_job job;
    size_t settled;
    int64_t wait_ms;
};

struct redis_hint {
    unsigned partition;
    char *payload;
    size_t len;
};
#define REDIS_HINTS_MAX 256

struct redis_reader {
    struct bus_consumer consumer;
    struct redis *redis;
    const struct redis_topic *topic;
    struct redis_stream *streams; /* one for each partition */
    unsigned turns_used;          /* of consumer.spec.parallel */
    struct redis_stream *first_waiting, **last_waiting;
    bool ready, ready_due;
    /* What the channel told, for those who want it at once. */
    struct redis_hint hints[REDIS_HINTS_MAX];
    size_t hint_count, hint_bytes;
    struct redis_hint *hints_taken; /* by the job */
    size_t hints_taken_count;
    struct worker_job job;
    bool job_busy;
    struct metric_series *lag;
};

struct redis_channel {
    struct redis_link link; /* first */
    struct redis *redis;
    struct arena arena;
    struct loop_timer timer;
    unsigned turn, failures;
    bool subscribed, ping_sent, complained;
};

struct redis {
    struct bus bus; /* first: the two share their address */
    struct bus_redis_config config;
    char *pod, instance[17];
    struct redis_access access;
    struct redis_topic *topics; /* as many as the bus has, in its order */
    struct db_pool *pool;
    struct loop *loop;
    pthread_t thread;
    bool has_thread;

    /* the loop's */
    struct redis_cluster cluster;
    struct redis_channel channel;
    struct redis_reader **readers;
    size_t reader_count;
    struct loop_timer upkeep_timer, farewell_timer;
    unsigned farewells; /* answers a stop waits for */
    bool quiet;         /* no more reading */

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t changed;
    bool started, stopping, interrupted, said_farewell, ended;
    unsigned publishers; /* callers that have not returned */
    unsigned handling;   /* jobs on workers */
};

/* ---- redis.c ---- */
struct redis_errand {
    struct loop_message message; /* first */
    struct redis *redis;
};
void redis_run_on_loop(struct redis *redis, loop_message_fn *fn); /* which frees its errand */
void redis_each_stream(struct redis *redis, void (*fn)(struct redis_stream *stream));
struct redis_topic *redis_topic_of(struct redis *redis, const struct bus_topic_state *state);
/* Around jobs on workers; counted so that a stop can wait for them. The loop's thread. */
bool redis_job_submit(struct redis *redis, struct worker_job *job) MUST_CHECK;
void redis_job_ended(struct redis *redis);

/* ---- stop.c ---- */
void bus_redis_stop(struct bus *bus, int64_t grace_ms);
void bus_redis_interrupt(struct bus *bus);
void redis_stream_leave(struct redis_stream *stream);

/* ---- publish.c ---- */
enum status bus_redis_publish(struct bus *bus, struct bus_message *messages, size_t count,
                              int64_t deadline_ns, struct error *error);

/* ---- stream.c ---- */
void redis_stream_init(struct redis_stream *stream, struct redis_reader *reader, unsigned partition);
void redis_stream_deinit(struct redis_stream *stream);
void redis_stream_step(struct redis_stream *stream);
void redis_stream_wake(struct redis_stream *stream);
void redis_stream_handled(struct redis_stream *stream); /* by its job, on the loop again */
void redis_stream_failed(struct redis_stream *stream, enum status status, const struct error *error);
void redis_stream_give_turn(struct redis_stream *stream);
void redis_stream_remember_ack(struct redis_stream *stream, struct redis_id id);
void redis_stream_lost_lease(struct redis_stream *stream);
void redis_stream_flush_acks(struct redis_stream *stream);
bool redis_stream_is_shared(const struct redis_stream *stream);

/* ---- answer.c ---- */
void redis_answer_take(struct redis_stream *stream, enum status status, const struct error *error);

/* ---- script.c: fill stream->ask or another of its requests ---- */
void redis_script_group(struct redis_stream *stream, struct redis_request *request);
void redis_script_read(struct redis_stream *stream, struct redis_request *request); /* what is new */
void redis_script_check(struct redis_stream *stream,
                        struct redis_request *request); /* all there is to know */
void redis_script_ack(struct redis_stream *stream, struct redis_request *request);
void redis_script_renew(struct redis_stream *stream, struct redis_request *request);
void redis_script_release(struct redis_stream *stream, struct redis_request *request); /* the lease */
void redis_script_leave(struct redis_stream *stream, struct redis_request *request);   /* the group */
void redis_script_look(struct redis_stream *stream, struct redis_request *request);    /* who is there? */
void redis_script_bury(struct redis_stream *stream, struct redis_request *request, struct str group);

/* ---- entries.c ---- */
struct redis_entries {
    struct bus_message *messages;
    struct redis_id *ids;
    size_t count;
    struct redis_id *gone; /* entries that were taken away before they were handled */
    size_t gone_count;
};
/* [[id, [field, value …]] …] into the arena; texts stay where they are. IO: they make no sense. */
enum status redis_entries_parse(const struct redis_reply *reply, struct arena *arena,
                                struct redis_entries *entries, struct error *error) MUST_CHECK;

/* ---- work.c ---- */
bool redis_work_stream(struct redis_stream *stream) MUST_CHECK; /* false: the workers are swamped */
void redis_work_reader(struct redis_reader *reader);
void redis_hint_add(struct redis_reader *reader, unsigned partition, struct str payload);

/* ---- channel.c ---- */
void redis_channel_init(struct redis *redis);
void redis_channel_start(struct redis *redis);
void redis_channel_close(struct redis *redis);

/* ---- upkeep.c ---- */
void redis_upkeep_init(struct redis_stream *stream);
void redis_upkeep_start(struct redis *redis);
void redis_upkeep_attach(struct redis *redis);
void redis_upkeep_show_lag(struct redis_reader *reader);

#endif
