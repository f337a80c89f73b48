/* What the files of the Redis driver share.
 *
 *   redis.c    the driver's life: configuration, start, stop
 *   publish.c  XADD and PUBLISH; the caller waits for the replies
 *   reader.c   a subscription: its consumer group, its entries, the handler
 *   pods.c     removes the consumer groups of dead pods
 *   channel.c  the Pub/Sub subscription, which wakes readers
 *   cluster.c  nodes, and requests to them
 *   link.c     one connection
 *   reply.c    the protocol
 *
 * Handlers run on workers, and publishers wait on their own threads. Everything else runs on the driver's own loop and needs no locks. */
#ifndef FRESHET_BUS_REDIS_INSIDE_H
#define FRESHET_BUS_REDIS_INSIDE_H

#include <pthread.h>
#include <stdarg.h>

#include "base/backoff.h"
#include "base/buf.h"
#include "base/list.h"
#include "bus/bus_inside.h"
#include "bus/bus_redis.h"
#include "loop/loop.h"
#include "loop/task.h"

/* ---- reply.c: the protocol without sockets ----
 * hiredis reads replies and formats commands; this file also interprets the replies. A reply lives in the caller's arena; one that is larger
 * than the caller's limit is an error, so that a server cannot make us allocate more. */
enum redis_kind { REDIS_NIL, REDIS_TEXT, REDIS_ERROR, REDIS_INTEGER, REDIS_ARRAY };

struct redis_reply {
    enum redis_kind kind;
    struct str text; /* of a text or an error */
    int64_t integer;
    struct redis_reply *items;
    size_t count;
};

/* Never NULL: a nil where there is no such item, or `reply` is not an array. */
const struct redis_reply *redis_reply_at(const struct redis_reply *reply, size_t at);
/* The value after a name in [name, value, name, value …]. */
const struct redis_reply *redis_reply_field(const struct redis_reply *reply, struct str name);
/* The text of an error reply as our error. */
enum status redis_reply_error(const struct redis_reply *reply, enum status status, struct error *error);

struct redisReader;
struct redis_parser {
    struct redisReader *reader;
    struct arena *arena; /* of the reply that is being read */
    size_t bytes, bytes_max;
};

void redis_parser_init(struct redis_parser *parser, size_t reply_bytes_max);
void redis_parser_deinit(struct redis_parser *parser);
void redis_parser_feed(struct redis_parser *parser, struct str bytes);
/* *reply is NULL while the next one is incomplete: call again with the same arena. IO: not the Redis protocol, or over the
 * limit. */
enum status redis_parser_next(struct redis_parser *parser, struct arena *arena,
                              const struct redis_reply **reply, struct error *error) MUST_CHECK;

void redis_command_put(struct buf *out, const struct str *arguments, size_t count);
/* Spaces of the format separate the arguments; texts that are inserted have no NUL and may have spaces. */
void redis_command_vprintf(struct buf *out, const char *format, va_list arguments);

struct redis_id { /* MS-SEQ, ascending */
    uint64_t ms, seq;
};
#define REDIS_ID_BYTES 44

bool redis_id_parse(struct str text, struct redis_id *id);
struct str redis_id_put(struct redis_id id, char out[REDIS_ID_BYTES]);
int redis_id_compare(struct redis_id a, struct redis_id b);
/* MS << 20 | SEQ, at most INT64_MAX; exact for ids that Redis generates. */
int64_t redis_id_offset(struct redis_id id);

struct redis_stream_info { /* of XINFO STREAM */
    int64_t added, length; /* added: since the stream was created; -1: not known before Redis 7 */
    struct redis_id last;
};
bool redis_stream_info_parse(const struct redis_reply *reply, struct redis_stream_info *info);

struct redis_entries {
    struct bus_message *messages;
    struct redis_id *ids; /* of the messages */
    size_t count;
};
/* [[id, [field, value …]] …] into the arena; texts stay in the reply. An entry without the field `event` is a message
 * without payload, which the handler refuses. IO: not a list of entries. */
enum status redis_entries_parse(const struct redis_reply *reply, struct str topic, struct arena *arena,
                                struct redis_entries *entries, struct error *error) MUST_CHECK;

struct redis_address {
    char host[256];
    uint16_t port;
};
/* HOST:PORT; the last colon counts, so that an IPv6 address needs no brackets (and may have them). */
bool redis_address_parse(struct str text, struct redis_address *address);
/* A node of CLUSTER SLOTS: [host, port, …]. A node without a host has the host that was asked. */
bool redis_address_of_node(const struct redis_reply *node, const struct redis_address *asked,
                           struct redis_address *address);

struct redis_redirect {
    bool is_ask;             /* for this request only; otherwise the stream has moved */
    struct redis_address to; /* host "": the host that answered */
};
bool redis_redirect_parse(struct str error, struct redis_redirect *redirect); /* false: not a redirect */

/* ---- link.c: one connection ----
 * A non-blocking socket, TLS and AUTH where configured. Commands are buffered and sent together at the end of the tick; replies arrive
 * one by one, in order, in on_reply. When the server or an error ends the connection, on_closed is called once with the reason;
 * redis_link_close() calls nothing. Resolving a host's name blocks the thread; addresses cost nothing. */
struct ssl_ctx_st;
struct ssl_st;

/* The same for all links of a driver. */
struct redis_access {
    struct ssl_ctx_st *tls; /* NULL = without */
    char *username, *password, *password_file;
    size_t reply_bytes_max;
};
enum status redis_access_init(struct redis_access *access, const struct bus_security *security,
                              size_t reply_bytes_max, struct error *error) MUST_CHECK;
void redis_access_deinit(struct redis_access *access);

/* CLOSED ─▶ CONNECTING ─▶ [HANDSHAKE ─▶] [AUTHENTICATING ─▶] OPEN; any ─▶ CLOSED */
enum redis_link_state {
    REDIS_LINK_CLOSED,
    REDIS_LINK_CONNECTING,
    REDIS_LINK_HANDSHAKE,      /* of TLS */
    REDIS_LINK_AUTHENTICATING, /* as OPEN, and the next reply is AUTH's */
    REDIS_LINK_OPEN,
};

struct redis_link {
    struct loop_io io; /* first: the two share their address */
    struct loop_tick tick;
    struct loop *loop;
    const struct redis_access *access;
    enum redis_link_state state;
    bool was_open; /* since the last redis_link_open(): commands may have been sent */
    struct ssl_st *ssl;
    unsigned address_turn; /* which of a name's addresses is next */
    struct buf out;
    struct redis_parser parser;
    struct arena auth_arena;
    struct arena *arena;                      /* the owner's, for the next reply; NULL: none is expected */
    void (*on_open)(struct redis_link *link); /* optional; buffered commands are sent from here on */
    void (*on_reply)(struct redis_link *link, const struct redis_reply *reply);
    void (*on_closed)(struct redis_link *link, const struct error *error);
};

void redis_link_init(struct redis_link *link, struct loop *loop, const struct redis_access *access);
void redis_link_deinit(struct redis_link *link);
enum status redis_link_open(struct redis_link *link, const struct redis_address *address,
                            struct error *error) MUST_CHECK;
void redis_link_send(struct redis_link *link, struct str commands); /* the link is not CLOSED */
void redis_link_close(struct redis_link *link);

static inline bool redis_link_is_open(const struct redis_link *link)
{
    return link->state >= REDIS_LINK_AUTHENTICATING;
}

/* ---- cluster.c: requests, and the nodes that answer them ----
 * A request is one or more commands for the stream of one topic. It goes to the node that answered last for that stream, else to any
 * known node; MOVED and ASK lead it to the right one. It is sent again only when no node can have executed it: after MOVED and ASK, and
 * when the connection could not be opened. When a connection ends or a node does not answer in time, its requests fail (DB_DOWN,
 * TIMEOUT: they may have been executed). A node that failed is avoided for a moment: requests that only it can answer fail at once. */
struct redis_topic {
    struct bus_topic_state *state;
    char *stream, *channel;
    struct redis_node *node; /* the node that answered last for the stream; NULL: not known */
    /* The server's clock, as in the ids that it generates, minus our monotonic clock. The age of an entry is measured by the clock that
     * made its id. 0 = not known yet. */
    atomic_llong clock_ahead_ms;
};

/* Embedded in its owner, one use at a time. Every use ends in one call of on_done. */
struct redis;
struct redis_request;
typedef void redis_done_fn(struct redis_request *request, const struct error *error);

struct redis_request {
    STAILQ_ENTRY(redis_request) link;
    bool is_busy;
    struct buf commands;
    size_t reply_count; /* how many replies the commands have */
    struct redis_topic *topic;
    redis_done_fn *on_done; /* error NULL: done. DB_ERROR: the reply is an error and not a redirect */
    const struct redis_reply *reply; /* the first error, else the last reply */
    struct arena arena;              /* of the replies; reset by the next send */
    size_t replies_seen;
    unsigned sends;
    bool is_asking; /* after ASK: the first reply is ASKING's */
    int64_t answer_by_ns;
};
STAILQ_HEAD(redis_requests, redis_request);

void redis_request_init(struct redis_request *request, redis_done_fn *on_done);
void redis_request_deinit(struct redis_request *request);
void redis_request_begin(struct redis_request *request, struct redis_topic *topic); /* no commands yet */
void redis_request_add(struct redis_request *request, const char *format, ...) PRINTF_LIKE(2, 3);
void redis_request_add_list(struct redis_request *request, const struct str *arguments, size_t count);

struct redis_node {
    struct redis_link link; /* first: the two share their address */
    struct redis_cluster *cluster;
    struct redis_address address;
    /* Configured, listed by the last CLUSTER SLOTS, or named by MOVED or ASK since then. Otherwise the struct may be reused for another address. */
    bool is_known;
    struct redis_requests requests; /* sent, not answered */
    struct loop_timer timer;        /* of the connection, or of the first request's answer */
    struct backoff backoff;
    int64_t opened_ns; /* when its connection was last opened */
    int64_t avoided_until_ns;
    bool is_down; /* and logged */
    char reason[200];
};

struct redis_cluster {
    struct loop *loop;
    const struct redis_access *access;
    const struct bus_redis_config *config;
    struct redis_address *configured;
    size_t configured_count;
    struct redis_node **nodes; /* freed at the end only */
    size_t node_count;
    unsigned turn; /* of redis_cluster_next() */
    bool is_closing;
    /* In a cluster, requests wait until a node has answered the probe. A server that is not part of a cluster refuses the probe, which is
     * reported as an error: no request is sent to it. */
    bool has_probed;
    struct redis_requests waiting;
    struct redis_request probe;
    struct loop_timer probe_timer;
    unsigned probe_failures; /* in a row */
    struct metric_series *connections, *redirects;
};

void redis_cluster_init(struct redis_cluster *cluster, struct redis *redis);
/* Probes the topic's stream every few seconds: health is known without traffic, and the cluster's other nodes are learned. */
void redis_cluster_start(struct redis_cluster *cluster, struct redis_topic *topic);
/* Every request that is under way, and every later one, ends as CANCELLED. */
void redis_cluster_close(struct redis_cluster *cluster);
void redis_cluster_deinit(struct redis_cluster *cluster);

void redis_cluster_send(struct redis_cluster *cluster, struct redis_request *request); /* may call on_done */
/* The next node that is not avoided, else any; another one on each call. */
struct redis_node *redis_cluster_next(struct redis_cluster *cluster);

/* ---- reader.c: subscriptions ---- */

/*  JOINING  ─▶ IDLE      joined
 *           ─▶ HOLDING   joined again, and entries may have been missed, which is a gap
 *  IDLE     ─▶ READING   woken by the channel, or the poll is due
 *  READING  ─▶ HOLDING   there are entries, or a gap
 *           ─▶ IDLE      there are none
 *           ─▶ JOINING   the request failed, and Redis may have marked entries as delivered that this process did not
 *                        receive; or NOGROUP: Redis lost its data, or another pod removed the group
 *  HOLDING  ─▶ HANDLING  a worker takes them
 *  HANDLING ─▶ IDLE      all are settled
 *           ─▶ HOLDING   some are not: they are handed over again after a pause
 *  any      ─▶ LEFT */
enum redis_reader_state {
    READER_JOINING,  /* creates its consumer group, or waits for the end of a backoff to do so */
    READER_IDLE,     /* waits for the channel or the poll */
    READER_READING,  /* has asked for entries */
    READER_HOLDING,  /* has entries or a gap, and waits for a worker or the end of a backoff */
    READER_HANDLING, /* the handler has them */
    READER_LEFT,     /* the bus stops: the group is removed */
};

/* Messages of the channel, for subscriptions with `hints`. */
struct redis_hints {
    struct arena arena;
    struct bus_message messages[256];
    size_t count, bytes;
};

struct redis_reader {
    struct bus_consumer consumer;
    struct redis *redis;
    struct redis_topic *topic;
    char *group; /* GROUP:POD */

    enum redis_reader_state state;
    bool is_woken; /* there may be new entries: reads without waiting for the poll */
    bool is_ready; /* has joined once */
    struct loop_timer timer;
    int64_t wait_until_ns; /* a backoff */
    int64_t poll_at_ns;
    struct backoff backoff; /* of failed requests */

    struct redis_request request; /* joins and reads; its arena has the entries */
    struct redis_request leave;
    bool is_polling;      /* this read also asks for the state of the stream, to detect missed entries */
    unsigned count_max;   /* entries to ask for */
    struct redis_id done; /* every entry up to this one is settled */
    int64_t read_count;   /* entries ever added up to the last one read; -1: not known */
    int64_t lag;          /* entries that were not read yet, when the stream was last polled */
    struct redis_entries entries; /* acknowledged by the next read */
    size_t entry_at;              /* the first that is not settled */
    size_t charged;               /* for them */
    bool has_gap;                 /* entries were missed; on_gap is called before the next entries */
    int64_t gap_from;
    struct metric_series *stream_lag;

    struct task *task;
    struct bus_delivery delivery;
    struct redis_hints hint_sets[2], *hints, *hints_handed; /* one is filled while the other is handed over */
    bool is_reported;                                       /* on_ready was called; used only by the task */
    bool hands_entries; /* this run hands over entries or a gap, not only hints */
    size_t settled;     /* by this run */
    int64_t wait_ms;    /* before the rest is handed over again */

    /* pods.c */
    struct redis_request pods_request;
    struct redis_node *node; /* where the last read was answered */
    int64_t steady_ns; /* start of the unbroken series of reads answered by this node on one connection */
    int64_t pods_at_ns;
};

void redis_reader_create(struct bus *bus, const struct bus_consumer *consumer);
void redis_reader_destroy(struct redis_reader *reader); /* after its task is stopped */
void redis_reader_step(struct redis_reader *reader);
void redis_reader_wake(struct redis_reader *reader);
void redis_reader_leave(struct redis_reader *reader,
                        bool removes_group); /* calls redis_leave_replied() when it is done */

/* ---- pods.c ---- */
void redis_pods_check(struct redis_reader *reader); /* after each read */
redis_done_fn redis_pods_answered;

/* ---- channel.c ---- */
struct redis_channel {
    struct redis_link link; /* first */
    struct redis *redis;
    struct arena arena;
    struct loop_timer timer;
    struct backoff backoff;
    bool awaits_reply; /* of SUBSCRIBE or PING */
    bool is_down;      /* and logged */
};

void redis_channel_init(struct redis *redis);
void redis_channel_start(struct redis *redis);
void redis_channel_close(struct redis *redis);

/* ---- publish.c ---- */
enum status bus_redis_publish(struct bus *bus, struct bus_message *messages, size_t count,
                              int64_t deadline_ns, struct error *error);

/* ---- redis.c ---- */
struct redis {
    struct bus bus; /* first: the two share their address */
    struct bus_redis_config config;
    char *pod;
    struct redis_access access;
    struct redis_topic *topics; /* as many as the bus has, in its order */
    struct loop *loop;
    pthread_t thread;
    bool has_thread;
    struct loop_message start, leave; /* to the loop */

    /* the loop's */
    struct redis_cluster cluster;
    struct redis_channel channel;
    struct redis_reader **readers;
    size_t reader_count;
    struct loop_timer leave_timer;
    unsigned leaving; /* replies that the stop waits for */

    pthread_mutex_t lock; /* for the following */
    pthread_cond_t changed;
    bool is_stopping, is_interrupted, has_left;
    unsigned publishers; /* calls of bus_publish() that have not returned */
};

struct redis_topic *redis_topic_of(struct redis *redis, const struct bus_topic_state *state);
/* One of the replies that the stop waits for has arrived, or is not needed. */
void redis_leave_replied(struct redis *redis);

#endif
