/* The nodes of a Redis Cluster, or the one node of a single Redis. A request goes to the node that answered last for its
 * stream, else to any known node; MOVED and ASK lead it to the right one. Every request ends in one call of on_done. All of
 * it on one loop's thread.
 *
 * A request is one or more commands for one stream. It is sent again only when no node can have executed it: after MOVED and
 * ASK, and when the connection could not be opened. When a connection ends or a node does not answer in time, its requests
 * fail (DB_DOWN, TIMEOUT: they may have been executed), and the next request for their stream asks any known node. A node
 * that failed is avoided for a moment, and requests that only it can answer fail at once. */
#ifndef FRESHET_BUS_REDIS_CLUSTER_H
#define FRESHET_BUS_REDIS_CLUSTER_H

#include <stdatomic.h>

#include "base/backoff.h"
#include "base/list.h"
#include "base/metrics.h"
#include "bus/redis/link.h"

/* Where a stream is: the node that answered last; NULL: not known. One for each stream, it outlives its requests. */
struct redis_route {
    struct redis_node *node;
};

/* ---- requests: embedded in their owner, one use at a time ---- */
struct redis_request;
typedef void redis_done_fn(struct redis_request *request, enum status status, const struct error *error);

struct redis_request {
    STAILQ_ENTRY(redis_request) link;
    bool is_busy;
    struct buf commands;
    size_t reply_count; /* how many replies the commands have */
    struct redis_route *route;
    redis_done_fn *on_done;          /* DB_ERROR: the reply is an error and not a redirect */
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
void redis_request_begin(struct redis_request *request, struct redis_route *route); /* no commands yet */
void redis_request_add(struct redis_request *request, const char *format, ...) PRINTF_LIKE(2, 3);
void redis_request_add_list(struct redis_request *request, const struct str *arguments, size_t count);

/* ---- nodes ---- */
struct redis_node {
    struct redis_link link; /* first: the two share their address */
    struct redis_cluster *cluster;
    struct redis_address address;
    bool is_used;                   /* otherwise free for another address */
    bool is_listed;                 /* by the last CLUSTER SLOTS, or configured */
    struct redis_requests requests; /* sent, not answered */
    struct loop_timer timer;        /* of the connection, or of the first request's answer */
    struct backoff backoff;
    int64_t avoided_until_ns;
    bool is_down; /* and logged */
    char reason[200];
};

struct redis_cluster {
    struct loop *loop;
    const struct redis_access *access;
    bool is_single;
    int64_t connect_ms, answer_ms;
    struct redis_address *seeds; /* the configured nodes */
    size_t seed_count;
    struct redis_node **nodes; /* freed at the end only */
    size_t node_count;
    unsigned turn;
    bool is_closing;
    atomic_bool is_up;             /* the last request was answered */
    bool is_known;                 /* a single Redis, or a node of the cluster has answered the probe */
    struct redis_requests waiting; /* for the first answer to the probe */
    struct redis_request probe;
    struct redis_route *probe_route;
    const char *probe_key;
    struct loop_timer probe_timer;
    unsigned probe_failures; /* in a row */
    struct metric_series *connections, *redirects;
};

void redis_cluster_init(struct redis_cluster *cluster, struct loop *loop, const struct redis_access *access);
/* Probes the stream `key` every few seconds: health is known without traffic, and the cluster's other nodes are learned. */
void redis_cluster_start(struct redis_cluster *cluster, struct redis_route *route, const char *key);
/* Every request that is under way, and every later one, ends as CANCELLED. */
void redis_cluster_close(struct redis_cluster *cluster);
void redis_cluster_deinit(struct redis_cluster *cluster);

void redis_cluster_send(struct redis_cluster *cluster, struct redis_request *request); /* may call on_done */
/* The next node that is not avoided, else any; another one on each call. */
struct redis_node *redis_cluster_next(struct redis_cluster *cluster);

#endif
