/* The nodes of a Redis Cluster, or the one of a single Redis: requests go to the node that has their key, are led on when
 * it has moved, and always end in one call of on_done. All of it on one loop's thread.
 *
 * A request is one or more commands that belong to one key and are answered together. It is sent again only where no node
 * can have done it: after MOVED and ASK. When a connection ends or a node is silent for too long, what had been asked fails
 * (DB_DOWN, TIMEOUT: it may have been done), the connection is closed and the map of slots is asked for again. A node that
 * cannot be reached is let be for a while, and what is for it fails at once. */
#ifndef FRESHET_BUS_REDIS_CLUSTER_H
#define FRESHET_BUS_REDIS_CLUSTER_H

#include <stdatomic.h>

#include "base/metrics.h"
#include "bus/redis/link.h"

struct redis_node;

/* ---- requests: embedded in their owner; one at a time ---- */
struct redis_request;
typedef void redis_done_fn(struct redis_request *request, enum status status, const struct error *error);
#define REDIS_REPLIES_MAX 4

struct redis_request {
    struct redis_request *next;
    bool busy;
    struct buf commands;
    unsigned slot;
    size_t reply_count;      /* how many the commands bring … */
    size_t last_count;       /* … of which the last so many, at most REDIS_REPLIES_MAX, are kept */
    struct redis_node *node; /* NULL: the one that has the slot */
    redis_done_fn *on_done;  /* status OK: there are replies, none of which is a redirect */
    /* what came of it */
    struct arena arena;
    const struct redis_reply *replies[REDIS_REPLIES_MAX];
    size_t got;
    unsigned redirects;
    bool asking;
    int64_t answer_by_ns;
};
void redis_request_init(struct redis_request *request, redis_done_fn *on_done);
void redis_request_deinit(struct redis_request *request);
/* Empties it for new commands. */
void redis_request_begin(struct redis_request *request, unsigned slot, size_t reply_count);

/* ---- nodes ---- */
struct redis_cluster;
struct redis_node {
    struct redis_link link; /* first: the two share their address */
    struct redis_cluster *cluster;
    struct redis_address address;
    bool used;
    struct redis_request *first, **last; /* asked, not answered */
    struct loop_timer timer;             /* the first one's answer, or the connection, is overdue */
    int64_t shunned_until_ns;
    unsigned failures; /* in a row */
    bool is_down;      /* and the log has said so */
    char reason[200];  /* of the last one */
};

struct redis_cluster {
    struct loop *loop;
    const struct redis_access *access;
    bool single;
    int64_t connect_ms, answer_ms;
    struct redis_address *seeds; /* whoever gave them frees them */
    size_t seed_count;
    struct redis_node **nodes; /* never freed before the end: an unused one gets another address */
    size_t node_count;
    struct redis_node *owner[REDIS_SLOTS];
    bool known; /* the map was answered at least once */
    struct redis_request refresh;
    struct redis_request *waiting, **waiting_last; /* for the first map */
    unsigned refresh_turn, refresh_tries;
    struct loop_timer refresh_timer;
    int64_t refreshed_ns;
    atomic_bool is_up;
    bool closing, complained;
    struct metric_series *reconnects, *redirects;
};

void redis_cluster_init(struct redis_cluster *cluster, struct loop *loop, const struct redis_access *access);
void redis_cluster_start(struct redis_cluster *cluster);
/* Everything under way ends as CANCELLED, and so does whatever is asked from now on. */
void redis_cluster_close(struct redis_cluster *cluster);
void redis_cluster_deinit(struct redis_cluster *cluster);

/* on_done may be called before this returns. */
void redis_cluster_ask(struct redis_cluster *cluster, struct redis_request *request);
/* Somebody to listen to: another one each time, one that is not known to be down if there is any. */
const struct redis_address *redis_cluster_any(struct redis_cluster *cluster, unsigned turn);

#endif
