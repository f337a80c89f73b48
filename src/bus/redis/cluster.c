/* Requests and nodes: choice of the node, redirects, time limits; and the probe, a request every few seconds that finds out whether
 * Redis answers and which nodes the cluster has. */
#include "bus/redis/inside.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"

enum {
    SENDS_MAX = 16, /* of one request: redirects, and nodes that cannot be reached */
    AVOID_MIN_MS = 20,
    AVOID_MAX_MS = 2000,
    NODES_MAX = 1024,
    PROBE_MS = 5000,
    PROBE_RETRY_MS = 250,
    PROBE_FAILURES_LOGGED = 3, /* in a row; a failover has fewer */
};

static void request_send_to(struct redis_node *node, struct redis_request *request);
static void on_node_open(struct redis_link *link);
static void on_node_reply(struct redis_link *link, const struct redis_reply *reply);
static void on_node_closed(struct redis_link *link, const struct error *error);

/* ---- requests ---- */

void redis_request_init(struct redis_request *request, redis_done_fn *on_done)
{
    *request = (struct redis_request){.on_done = on_done, .arena = ARENA(4096)};
}

void redis_request_deinit(struct redis_request *request)
{
    buf_deinit(&request->commands);
    arena_deinit(&request->arena);
}

void redis_request_begin(struct redis_request *request, struct redis_topic *topic)
{
    buf_clear(&request->commands);
    request->topic = topic;
    request->reply_count = 0;
}

void redis_request_add(struct redis_request *request, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    redis_command_vprintf(&request->commands, format, arguments);
    va_end(arguments);
    request->reply_count++;
}

void redis_request_add_list(struct redis_request *request, const struct str *arguments, size_t count)
{
    redis_command_put(&request->commands, arguments, count);
    request->reply_count++;
}

/* `error`: there is no reply. */
static void request_finish(struct redis_cluster *cluster, struct redis_request *request,
                           const struct error *error)
{
    const struct redis_reply *reply = request->reply;
    struct error refusal;

    request->is_busy = false;
    if (!error && reply->kind == REDIS_ERROR) {
        (void)redis_reply_error(reply, STATUS_DB_ERROR, &refusal);
        error = &refusal;
    } else {
        atomic_store(&CONTAINER_OF(cluster, struct redis, cluster)->bus.is_up, !error);
    }
    request->on_done(request, error);
}

/* ---- known nodes ---- */

/* The node of the address; NULL: there are too many. */
static struct redis_node *cluster_node(struct redis_cluster *cluster, const struct redis_address *address)
{
    struct redis_node *node = NULL;

    for (size_t i = 0; i < cluster->node_count; i++) {
        struct redis_node *at = cluster->nodes[i];
        if (at->address.port == address->port && strcmp(at->address.host, address->host) == 0) {
            at->is_known = true;
            return at;
        }
        if (!at->is_known && at->link.state == REDIS_LINK_CLOSED)
            node = at;
    }
    if (!node && cluster->node_count == NODES_MAX)
        return NULL;
    if (!node) {
        node = memory_zalloc(sizeof *node);
        redis_link_init(&node->link, cluster->loop, cluster->access);
        node->link.on_open = on_node_open;
        node->link.on_reply = on_node_reply;
        node->link.on_closed = on_node_closed;
        node->cluster = cluster;
        STAILQ_INIT(&node->requests);
        cluster->nodes =
            memory_realloc_array(cluster->nodes, cluster->node_count + 1, sizeof cluster->nodes[0]);
        cluster->nodes[cluster->node_count++] = node;
    }
    node->is_known = true;
    node->address = *address;
    node->backoff = (struct backoff){.min_ms = AVOID_MIN_MS, .max_ms = AVOID_MAX_MS};
    node->avoided_until_ns = 0;
    node->is_down = false;
    return node;
}

struct redis_node *redis_cluster_next(struct redis_cluster *cluster)
{
    struct redis_node *any = NULL;
    int64_t now_ns = clock_mono_ns();

    for (size_t i = 0; i < cluster->node_count; i++) {
        struct redis_node *node = cluster->nodes[cluster->turn++ % cluster->node_count];
        if (node->is_known && node->avoided_until_ns <= now_ns)
            return node;
        any = node->is_known ? node : any;
    }
    return any;
}

/* ---- a node's connection ---- */

static void on_overdue(struct loop_timer *timer);

/* The next reply belongs to the first request. */
static void node_expect(struct redis_node *node)
{
    struct redis_request *first = STAILQ_FIRST(&node->requests);

    node->link.arena = first ? &first->arena : NULL;
    if (!redis_link_is_open(&node->link))
        return; /* the timer is the connection's */
    if (first)
        loop_timer_start(node->cluster->loop, &node->timer, first->answer_by_ns, on_overdue);
    else
        loop_timer_stop(node->cluster->loop, &node->timer);
}

/* The connection is closed. `was_open`: requests may have been executed; else they are sent to other nodes. An idle
 * connection that ended is not a failure: the next request opens it. */
static void node_lost(struct redis_node *node, bool was_open, const struct error *error)
{
    struct redis_cluster *cluster = node->cluster;
    struct redis_requests lost = STAILQ_HEAD_INITIALIZER(lost);
    struct redis_request *request, *after;

    loop_timer_stop(cluster->loop, &node->timer);
    STAILQ_CONCAT(&lost, &node->requests);
    node->link.arena = NULL;
    if (STAILQ_EMPTY(&lost))
        return;
    struct str reason = str_utf8_cut(str_from(error->message), sizeof node->reason - 1);
    snprintf(node->reason, sizeof node->reason, "%.*s", STR_ARG(reason));
    node->avoided_until_ns = clock_deadline_ms(backoff_next_ms(&node->backoff));
    if (!cluster->is_closing && node->backoff.failures > 1 && !node->is_down) {
        node->is_down = true;
        log_warn("redis_node_down", LOG_CSTR("host", node->address.host), LOG_INT("port", node->address.port),
                 LOG_ERROR_FIELDS(error));
    }
    STAILQ_FOREACH_SAFE(request, &lost, link, after) {
        if (request->topic->node == node)
            request->topic->node = NULL;
        struct redis_node *next = was_open || cluster->is_closing ? NULL : redis_cluster_next(cluster);
        if (next && next->avoided_until_ns <= clock_mono_ns() && ++request->sends < SENDS_MAX)
            request_send_to(next, request);
        else
            request_finish(cluster, request, error);
    }
}

static void on_overdue(struct loop_timer *timer)
{
    struct redis_node *node = CONTAINER_OF(timer, struct redis_node, timer);
    struct error error;

    error_set(&error, STATUS_TIMEOUT, "%s:%u does not answer", node->address.host,
              (unsigned)node->address.port);
    redis_link_close(&node->link);
    node->backoff.failures +=
        node->backoff.failures == 0; /* a node that does not answer is logged at the first failure */
    node_lost(node, node->link.was_open, &error);
}

static void on_node_closed(struct redis_link *link, const struct error *error)
{
    node_lost((struct redis_node *)link, link->was_open, error);
}

static void on_node_open(struct redis_link *link)
{
    struct redis_node *node = (struct redis_node *)link;
    int64_t answer_by_ns = clock_deadline_ms(node->cluster->config->answer_ms);
    struct redis_request *request;

    metric_add(node->cluster->connections, 1);
    node->opened_ns = clock_mono_ns();
    STAILQ_FOREACH(request, &node->requests, link)
        request->answer_by_ns = answer_by_ns;
    node_expect(node);
}

/* ---- replies ---- */

/* The node has executed none of the commands, so they may be sent to another one. */
static void request_redirect(struct redis_node *node, struct redis_request *request,
                             struct redis_redirect *redirect)
{
    struct redis_cluster *cluster = node->cluster;
    struct error error;

    metric_add(cluster->redirects, 1);
    if (!redirect->to.host[0])
        memcpy(redirect->to.host, node->address.host, sizeof redirect->to.host);
    struct redis_node *next = !cluster->config->cluster ? NULL : cluster_node(cluster, &redirect->to);
    if (!next || ++request->sends >= SENDS_MAX) {
        if (!cluster->config->cluster)
            error_set(&error, STATUS_DB_DOWN,
                      "redis.mode is single, but the node is part of a cluster: set it to cluster");
        else if (!next)
            error_set(&error, STATUS_DB_DOWN, "the cluster has more than %d nodes", NODES_MAX);
        else
            error_set(&error, STATUS_DB_DOWN,
                      "the request was sent %d times and redirected again: check the cluster's slots",
                      SENDS_MAX);
        request_finish(cluster, request, &error);
        return;
    }
    if (!redirect->is_ask)
        request->topic->node = next;
    request->is_asking = redirect->is_ask;
    FAILPOINT("redis.before_redirected");
    request_send_to(next, request);
}

static void on_node_reply(struct redis_link *link, const struct redis_reply *reply)
{
    /* Errors of the node's state, not of the commands. */
    static const char *const node_errors[] = {"CLUSTERDOWN", "TRYAGAIN",   "LOADING",
                                              "READONLY",    "MASTERDOWN", "NOREPLICAS"};
    struct redis_node *node = (struct redis_node *)link;
    struct redis_request *request = STAILQ_FIRST(&node->requests);
    struct redis_redirect redirect;
    bool is_node_error = false;
    struct error error;

    if (node->is_down)
        log_info("redis_node_up", LOG_CSTR("host", node->address.host), LOG_INT("port", node->address.port));
    node->is_down = false;
    backoff_reset(&node->backoff);
    if (request->is_asking) { /* ASKING's own reply */
        request->is_asking = false;
        return;
    }
    if (!request->reply || request->reply->kind != REDIS_ERROR)
        request->reply = reply;
    if (++request->replies_seen < request->reply_count)
        return;
    STAILQ_REMOVE_HEAD(&node->requests, link);
    node_expect(node);
    reply = request->reply;
    for (size_t i = 0; i < sizeof node_errors / sizeof node_errors[0] && reply->kind == REDIS_ERROR; i++)
        is_node_error |= str_starts_with(reply->text, str_from(node_errors[i]));
    if (reply->kind == REDIS_ERROR && redis_redirect_parse(reply->text, &redirect)) {
        request_redirect(node, request, &redirect);
    } else if (is_node_error) {
        request->topic->node = NULL;
        (void)redis_reply_error(reply, STATUS_DB_DOWN, &error);
        request_finish(node->cluster, request, &error);
    } else {
        if (!request->topic->node)
            request->topic->node = node;
        request_finish(node->cluster, request, NULL);
    }
}

/* ---- sending ---- */

static void request_send_to(struct redis_node *node, struct redis_request *request)
{
    struct redis_cluster *cluster = node->cluster;
    struct error error;

    request->reply = NULL;
    request->replies_seen = 0;
    arena_reset(&request->arena);
    if (node->avoided_until_ns > clock_mono_ns()) {
        if (request->topic->node == node)
            request->topic->node = NULL;
        error_set(&error, STATUS_DB_DOWN, "%s:%u failed a moment ago: %s", node->address.host,
                  (unsigned)node->address.port, node->reason);
        request_finish(cluster, request, &error);
        return;
    }
    STAILQ_INSERT_TAIL(&node->requests, request, link);
    if (node->link.state == REDIS_LINK_CLOSED) {
        if (redis_link_open(&node->link, &node->address, &error) != STATUS_OK) {
            node_lost(node, false, &error);
            return;
        }
        loop_timer_start(cluster->loop, &node->timer, clock_deadline_ms(cluster->config->connect_ms),
                         on_overdue);
    }
    request->answer_by_ns = clock_deadline_ms(cluster->config->answer_ms);
    if (request->is_asking)
        redis_link_send(&node->link, STR("*1\r\n$6\r\nASKING\r\n"));
    redis_link_send(&node->link, buf_str(&request->commands));
    node_expect(node);
}

void redis_cluster_send(struct redis_cluster *cluster, struct redis_request *request)
{
    struct redis_node *node = request->topic->node;
    struct error error;

    request->is_busy = true;
    request->is_asking = false;
    request->sends = 0;
    if (cluster->is_closing) {
        error_set(&error, STATUS_CANCELLED, "the bus is stopping");
        request_finish(cluster, request, &error);
    } else if (!cluster->has_probed && request != &cluster->probe) {
        STAILQ_INSERT_TAIL(&cluster->waiting, request, link);
    } else {
        request_send_to(node && node->is_known ? node : redis_cluster_next(cluster), request);
    }
}

/* Sends the requests that wait for the first probe, or fails them. */
static void cluster_release(struct redis_cluster *cluster, const struct error *error)
{
    struct redis_requests waiting = STAILQ_HEAD_INITIALIZER(waiting);
    struct redis_request *request, *next;

    STAILQ_CONCAT(&waiting, &cluster->waiting);
    STAILQ_FOREACH_SAFE(request, &waiting, link, next) {
        if (error)
            request_finish(cluster, request, error);
        else
            redis_cluster_send(cluster, request);
    }
}

/* ---- the probe ---- */

static void on_probe_due(struct loop_timer *timer);

static void probe_in(struct redis_cluster *cluster, int64_t ms)
{
    if (!cluster->is_closing)
        loop_timer_start(cluster->loop, &cluster->probe_timer, clock_deadline_ms(ms), on_probe_due);
}

/* Of CLUSTER SLOTS: [[first, last, [host, port, …] …] …], masters and replicas. Nodes that it no longer lists, and that are not
 * configured, are forgotten. */
static void learn_nodes(struct redis_cluster *cluster, const struct redis_reply *slots,
                        struct redis_address asked)
{
    struct redis_address address;

    for (size_t i = 0; i < cluster->node_count; i++)
        cluster->nodes[i]->is_known = false;
    for (size_t i = 0; i < cluster->configured_count; i++)
        cluster_node(cluster, &cluster->configured[i]);
    for (size_t i = 0; i < slots->count; i++)
        for (size_t at = 2; at < slots->items[i].count; at++)
            if (redis_address_of_node(redis_reply_at(&slots->items[i], at), &asked, &address))
                cluster_node(cluster, &address);
    for (size_t i = 0; i < cluster->node_count; i++)
        if (!cluster->nodes[i]->is_known && STAILQ_EMPTY(&cluster->nodes[i]->requests))
            redis_link_close(&cluster->nodes[i]->link); /* its timer does not run without requests */
}

static void on_probed(struct redis_request *request, const struct error *error)
{
    struct redis_cluster *cluster = CONTAINER_OF(request, struct redis_cluster, probe);
    /* An error reply to the whole transaction, or to CLUSTER SLOTS: Redis is not usable. */
    const struct redis_reply *slots =
        error || !cluster->config->cluster ? request->reply : redis_reply_at(request->reply, 0);
    struct error refused;

    if (slots && slots->kind == REDIS_ERROR && (!error || error->status == STATUS_DB_ERROR)) {
        (void)redis_reply_error(slots, STATUS_DB_DOWN, &refused);
        error = &refused;
        atomic_store(&CONTAINER_OF(cluster, struct redis, cluster)->bus.is_up, false);
    }
    if (error) {
        cluster_release(cluster, error);
        if (++cluster->probe_failures == PROBE_FAILURES_LOGGED && !cluster->is_closing)
            log_error("redis_unreachable", LOG_ERROR_FIELDS(error));
        probe_in(cluster, PROBE_RETRY_MS);
        return;
    }
    if (cluster->probe_failures >= PROBE_FAILURES_LOGGED)
        log_info("redis_reachable");
    cluster->probe_failures = 0;
    if (cluster->config->cluster && request->topic->node)
        learn_nodes(cluster, slots, request->topic->node->address);
    cluster->has_probed = true;
    cluster_release(cluster, NULL);
    probe_in(cluster, PROBE_MS);
}

static void on_probe_due(struct loop_timer *timer)
{
    struct redis_cluster *cluster = CONTAINER_OF(timer, struct redis_cluster, probe_timer);
    struct redis_request *request = &cluster->probe;

    redis_request_begin(request, request->topic);
    if (cluster->config->cluster) {
        redis_request_add(request, "MULTI");
        redis_request_add(request, "CLUSTER SLOTS");
    }
    redis_request_add(request, "XLEN %s", request->topic->stream);
    if (cluster->config->cluster)
        redis_request_add(request, "EXEC");
    redis_cluster_send(cluster, request);
}

/* ---- life ---- */

void redis_cluster_init(struct redis_cluster *cluster, struct redis *redis)
{
    cluster->loop = redis->loop;
    cluster->access = &redis->access;
    cluster->config = &redis->config;
    cluster->has_probed = !cluster->config->cluster;
    STAILQ_INIT(&cluster->waiting);
    redis_request_init(&cluster->probe, on_probed);
    for (size_t i = 0; i < cluster->configured_count; i++)
        cluster_node(cluster, &cluster->configured[i]);
}

void redis_cluster_start(struct redis_cluster *cluster, struct redis_topic *topic)
{
    cluster->probe.topic = topic;
    probe_in(cluster, 0);
}

void redis_cluster_close(struct redis_cluster *cluster)
{
    struct error error;

    cluster->is_closing = true;
    loop_timer_stop(cluster->loop, &cluster->probe_timer);
    error_set(&error, STATUS_CANCELLED, "the bus is stopping");
    cluster_release(cluster, &error);
    for (size_t i = 0; i < cluster->node_count; i++) {
        redis_link_close(&cluster->nodes[i]->link);
        node_lost(cluster->nodes[i], true, &error);
    }
}

void redis_cluster_deinit(struct redis_cluster *cluster)
{
    for (size_t i = 0; i < cluster->node_count; i++) {
        redis_link_deinit(&cluster->nodes[i]->link);
        free(cluster->nodes[i]);
    }
    free(cluster->nodes);
    redis_request_deinit(&cluster->probe);
}
