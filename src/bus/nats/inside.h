/* Inside the NATS driver: one connection, one upkeep task, and a struct nats_partition for each partition of each reader.
 *
 *   client's threads ──message──▶ partition (queue by sequence) ──job──▶ worker: bus_deliver() ──▶ +ACK, -NAK, +TERM
 *                                   ▲                                upkeep: streams, consumers, leases, +WPI, lag
 *                                   └── pull requests
 *   advisories ──▶ partition ──▶ the same job: dead letters of messages that the server has given up
 *
 *   driver.c      create, start, stop, destroy; the upkeep   partition.c   a partition: states, queue, and its job
 *   connection.c  connect, subscriptions, pull requests      consumer.c    its consumer; gaps, lag
 *   stream.c      names; streams of topics; lease bucket     lease.c       members of a group; leases of partitions
 *   message.c     encode and decode; plain subjects          advisories.c  messages that the server has given up
 *   publish.c     bus_publish()                              settled.c     has a group read all? For books
 *
 * nats->lock protects all of it. The upkeep and the jobs hold it and release it while they wait: for an answer of the server, and
 * for handlers. What is only sent (a pull request, an acknowledgement) may be sent under it. */
#ifndef FRESHET_BUS_NATS_INSIDE_H
#define FRESHET_BUS_NATS_INSIDE_H

#include <nats/nats.h>
#include <pthread.h>

#include "base/list.h"
#include "bus/bus_inside.h"
#include "bus/bus_nats.h"
#include "loop/task.h"

#define NATS_NAME_BYTES 256
#define NATS_LONG_NAME_BYTES (3 * NATS_NAME_BYTES) /* of several names */
#define NATS_API_MS 2000                           /* for one reply of the server */
#define NATS_DEAD_KEPT 4096 /* several batches: their advisories arrive one by one, after them */

struct nats;
struct nats_reader;

/* ---- topics ---- */
struct nats_topic {
    char stream[NATS_NAME_BYTES - 32], subject[NATS_NAME_BYTES - 32]; /* there is room for a partition */
    bool exact;        /* named by configuration: with one partition nothing is added */
    int64_t window_ns; /* the server drops a repeated id within this; 0 = the default */
    char problem[256]; /* why it cannot be used; "" = it can */
};

/* ---- pull requests to one consumer: its messages arrive at the inbox ---- */
struct nats_pull {
    struct nats_partition *partition;
    natsSubscription *inbox;
    char inbox_subject[NATS_NAME_BYTES];
    char stream[NATS_NAME_BYTES], consumer[NATS_LONG_NAME_BYTES]; /* consumer "": there is none yet */
    int64_t requested, until_ns; /* messages that the open request may still bring */
};

/* Where a message comes from, by its reply subject. */
struct nats_origin {
    struct str consumer;
    uint64_t delivered, sequence, time_ns;
    uint64_t consumer_sequence; /* the consumer's count of what it has sent */
};

/* ---- messages that are here and not settled ---- */
struct nats_item {
    int64_t sequence, created_us;
    /* How often. More than once: perhaps to a process that crashed by it, so it is handled alone. */
    uint64_t delivered;
    uint64_t consumer_sequence; /* when it was last sent; 0 = on an earlier connection */
    bool is_redelivery_over;    /* an advisory said so: the server does not send it again */
    natsMsg *message;           /* NULL: returned to the server (-NAK), which sends it again */
};

/* ---- advisories: the server stops sending a message that was not acknowledged ---- */
enum nats_advisory_kind { ADVISORY_MAX_DELIVERIES, ADVISORY_TERMINATED, ADVISORY_KINDS };

struct nats_advisory {
    enum nats_advisory_kind kind;
    int64_t sequence, deliveries, sent_us;
    natsMsg *message; /* acknowledged after the dead letter is stored */
};

/* ---- a partition of a reader ----
 *
 *            lease                 all here
 *   AWAY ──────────▶ SYNCING ───────────────▶ RUNNING      SYNCING, RUNNING ──▶ LEAVING ──▶ AWAY
 *                       ▲  new connection, message missing  │
 *                       └───────────────────────────────────┘        BUS_EVERY: AWAY ──▶ RUNNING, no lease */
enum nats_partition_state {
    PARTITION_AWAY,    /* of another member, or of none */
    PARTITION_SYNCING, /* ours; messages that the server has sent are missing here, and must be handled first */
    PARTITION_RUNNING, /* ours; the message that arrives next is the next in order */
    PARTITION_LEAVING, /* its last job runs */
};

struct nats_partition {
    struct worker_job work; /* first */
    struct nats_reader *reader;
    unsigned number;
    enum nats_partition_state state;
    bool is_busy; /* its job is queued or runs */
    int64_t busy_since_ns;
    struct bus_delivery delivery; /* the job's */

    struct nats_pull pull;
    struct nats_item *items; /* by sequence */
    size_t count, capacity;
    size_t bytes, charged;      /* of their messages */
    int64_t settled;            /* all messages up to this sequence are done */
    int64_t due_ns;             /* no batch before */
    int64_t overdue_ns;         /* a message returned to the server should have been sent again by then */
    uint64_t consumer_sequence; /* of the message that arrived last */
    int64_t missing;            /* SYNCING: sent by the server, and not here */
    bool is_database_down;      /* no further messages are requested */
    uint64_t pending;           /* lag at the last look */

    int64_t stream_created_ns; /* another value: the stream was created again, and counts from 1 */
    int64_t next_before;       /* the sequence that was next when the stream was last asked for */
    bool is_stream_replaced;   /* nothing is read: the stream is another one, and a job of the old one runs */
    bool has_gap;              /* on_gap is to be called with: */
    int64_t gap_from, gap_next;

    struct nats_pull watches[ADVISORY_KINDS]; /* of a durable consumer of the advisories of each kind */
    struct nats_advisory *advisories;
    size_t advisory_count;
    int64_t dead_sequences[NATS_DEAD_KEPT]; /* the last dead letters: their advisories need no other one */
    unsigned dead_next;

    char lease_key[2 * NATS_NAME_BYTES];
    uint64_t lease_revision;
    bool is_inherited; /* its holder died: the server waits for acknowledgements that no process sends */
    int64_t lease_until_ns;
};

/* Another process of the group, by its announcements. */
struct nats_member {
    char id[17];
    bool listens; /* to questions whether it is there; older versions do not */
    int64_t seen_ns;
};

enum nats_reader_state {
    READER_STARTING,
    READER_READY,     /* its consumers exist */
    READER_ANNOUNCED, /* on_ready was called */
};

struct nats_reader {
    struct bus_consumer consumer;
    struct nats *nats;
    const struct nats_topic *topic;
    struct nats_partition *partitions;
    unsigned partition_count, busy, turn;
    enum nats_reader_state state;
    atomic_bool needs_check; /* of its consumers */
    struct nats_member *members;
    size_t member_count;
    natsSubscription *members_inbox, *own_inbox; /* announcements; questions whether this member is there */
    char asked[17]; /* the member that was asked last and is there, until ask_ns */
    int64_t ask_ns, members_ask_ns;
    char members_subject[NATS_LONG_NAME_BYTES];
    int64_t announce_ns; /* the next announcement of this member */
};

struct nats_publication; /* publish.c */

/* ---- a plain subject ---- */
struct nats_listener {
    LIST_ENTRY(nats_listener) link;
    char *subject, *queue;
    void (*on_message)(void *context, const struct bus_message *message);
    void *context;
    natsSubscription *subscription;
};

/* A connection that the client has closed: calls that still use it fail. Freed with the bus. */
struct nats_old_connection {
    SLIST_ENTRY(nats_old_connection) link;
    natsConnection *connection;
    jsCtx *js;
};

struct nats {
    struct bus bus; /* first */
    struct bus_nats_config config;
    struct db_pool *pool; /* NULL: handlers get no transaction */
    struct nats_topic *topics;
    char id[17]; /* of this member */
    natsOptions *options;
    _Atomic(natsConnection *) connection; /* NULL until the first attempt */
    _Atomic(jsCtx *) js;
    natsSubscription *last_subscription; /* ends after all others */
    SLIST_HEAD(, nats_old_connection) old_connections;
    struct metric_series *reconnects;

    /* the upkeep's */
    struct worker_pool *upkeep_thread; /* its own: handlers may wait for what it does */
    struct task *upkeep;
    unsigned upkeep_epoch;
    bool upkeep_failed;
    int64_t look_ns, extend_ns, connect_ns, connected_ns;
    kvStore *leases;
    int64_t lease_ns;
    char advisory_streams[ADVISORY_KINDS][NATS_NAME_BYTES]; /* "" = none yet */
    bool advisory_stream_failed[ADVISORY_KINDS];            /* and that is logged */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* for all that wait */
    struct nats_reader **readers;
    size_t reader_count;
    LIST_HEAD(, nats_publication) publications;
    LIST_HEAD(, nats_listener) listeners;
    bool is_stopping, is_cancelled;
    atomic_bool needs_check; /* of streams */
    atomic_bool is_failure_logged;
    unsigned epoch;            /* counts connections */
    unsigned busy;             /* partitions whose job runs */
    atomic_uint subscriptions; /* for which the client may still call us */
    bool is_closed;
};

static inline bool nats_reader_is_shared(const struct nats_reader *reader)
{
    return reader->consumer.spec.mode == BUS_SHARED;
}

/* connection.c */
enum status bus_nats_options_create(struct nats *nats, const struct bus_nats_config *config,
                                    struct error *error) MUST_CHECK;
bool bus_nats_connect(struct nats *nats); /* the upkeep's; false = not connected */
void bus_nats_disconnect(struct nats *nats);
/* Calls `handler` on the client's threads until bus_nats_disconnect(). */
natsStatus bus_nats_subscribe(struct nats *nats, natsSubscription **subscription, const char *subject,
                              const char *queue, natsMsgHandler handler, void *closure);
void bus_nats_unsubscribe(natsSubscription **subscription);
void bus_nats_wake(struct nats *nats); /* under the lock: the upkeep, and all that wait */
/* its pull requests; _set(), _request() and _info() under the lock */
bool bus_nats_origin_parse(natsMsg *message, struct nats_origin *origin);
void bus_nats_reply(struct nats *nats, natsMsg *message, const char *text);
void bus_nats_nak(struct nats *nats, natsMsg *message, int64_t delay_ms);
void bus_nats_pull_set(struct nats_pull *pull, const char *stream, const char *consumer);
/* Its inbox; one that is open stays as it is. Also without the lock. */
natsStatus bus_nats_pull_open(struct nats_pull *pull, natsMsgHandler handler); /* whose closure is the pull */
/* Requests messages, unless a request is open or there is no consumer. */
void bus_nats_pull_request(struct nats_pull *pull, int64_t count, int64_t bytes_max);
/* The server's answer about the consumer; the lock is released meanwhile. */
natsStatus bus_nats_pull_info(const struct nats_pull *pull, jsConsumerInfo **info);
/* The message is the server's end of the request, perhaps since the consumer does not exist; it is destroyed. */
void bus_nats_pull_end(struct nats_pull *pull, natsMsg *message);

/* stream.c */
enum status bus_nats_names_init(struct nats *nats, const struct bus_nats_config *config,
                                struct error *error) MUST_CHECK;
void bus_nats_subject(char out[NATS_NAME_BYTES], const struct nats *nats, const struct bus_topic_state *topic,
                      unsigned partition);
void bus_nats_durable(char out[NATS_NAME_BYTES], const struct nats_reader *reader, unsigned partition);
struct nats_topic *bus_nats_topic(const struct nats *nats, const struct bus_topic_state *topic);
bool bus_nats_streams_ensure(struct nats *nats);

/* message.c */
natsStatus bus_nats_encode(const struct bus_message *message, const char *subject, const char *id,
                           natsMsg **out, size_t *bytes);
void bus_nats_decode(natsMsg *from, struct arena *arena, struct bus_message *message); /* all but its place */
natsStatus bus_nats_listeners_subscribe(struct nats *nats);
void bus_nats_listeners_free(struct nats *nats);

/* publish.c */
enum status bus_nats_publish(struct bus *bus, struct bus_message *messages, size_t count, int64_t deadline_ns,
                             struct error *error);
void bus_nats_on_ack(jsCtx *js, natsMsg *message, jsPubAck *ack, jsPubAckErr *refusal, void *closure);

/* partition.c; under the lock */
void bus_nats_partition_init(struct nats_partition *partition, struct nats_reader *reader, unsigned number);
void bus_nats_partition_deinit(struct nats_partition *partition);
void bus_nats_reader_dispatch(struct nats_reader *reader); /* starts jobs */
void bus_nats_partition_move(struct nats_partition *partition, enum nats_partition_state to);
struct nats_item *bus_nats_partition_find(struct nats_partition *partition, int64_t sequence);
bool bus_nats_partition_is_complete(struct nats_partition *partition, const jsConsumerInfo *info);
void bus_nats_partition_reset_sequences(struct nats_partition *partition);
void bus_nats_partition_clear(struct nats_partition *partition);
natsStatus bus_nats_partition_open(struct nats_partition *partition); /* its inbox */
void bus_nats_partition_request(struct nats_partition *partition);    /* messages, as there is room */
/* To all messages that are here; "+WPI": the server does not send them to another member meanwhile. */
void bus_nats_partition_reply(const struct nats_partition *partition, const char *text);
void bus_nats_partition_drop(struct nats_partition *partition, bool give_back);

/* consumer.c, on the upkeep, under the lock, which is released meanwhile */
bool bus_nats_consumers_ensure(struct nats_reader *reader);
void bus_nats_partition_sync(struct nats_partition *partition); /* then requests messages */
void bus_nats_reader_look(struct nats_reader *reader);          /* lag, gaps */

/* advisories.c; under the lock but for the first, which is released meanwhile by _ensure() and _settle() */
void bus_nats_advisory_streams_ensure(struct nats *nats);
bool bus_nats_watches_ensure(struct nats_partition *partition);
void bus_nats_watches_request(struct nats_partition *partition);
void bus_nats_advisories_settle(struct nats_partition *partition);
bool bus_nats_advisories_are_due(const struct nats_partition *partition, int64_t now_ns);
void bus_nats_advisories_drop(struct nats_partition *partition);
void bus_nats_dead_note(struct nats_partition *partition, int64_t sequence);
int64_t bus_nats_overdue_ns(const struct nats *nats, int64_t wait_ms);

/* lease.c, on the upkeep, under the lock, which is released meanwhile */
void bus_nats_leases_keep(struct nats_reader *reader);
void bus_nats_leases_release(struct nats_reader *reader, int64_t deadline_ns);
natsStatus bus_nats_members_subscribe(struct nats_reader *reader);

#endif
