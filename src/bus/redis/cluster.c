/* Requests between callers and nodes: routing, redirects, time limits. The map of slots is in map.c. */
#include "bus/redis/cluster.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/redis/map.h"

enum {
    REDIRECTS_MAX = 8,
    SHUN_MIN_MS = 20,
    SHUN_MAX_MS = 2000,
};

/* ---- requests ---- */

void redis_request_init(struct redis_request *request, redis_done_fn *on_done)
{
    *request = (struct redis_request){.on_done = on_done};
    buf_init(&request->commands);
    arena_init(&request->arena, 4096);
}

void redis_request_deinit(struct redis_request *request)
{
    buf_deinit(&request->commands);
    arena_deinit(&request->arena);
}

void redis_request_begin(struct redis_request *request, unsigned slot, size_t reply_count)
{
    buf_clear(&request->commands);
    arena_reset(&request->arena);
    request->slot = slot;
    request->reply_count = reply_count;
    request->last_count = reply_count < REDIS_REPLIES_MAX ? reply_count : REDIS_REPLIES_MAX;
    request->node = NULL;
    request->got = 0;
    request->redirects = 0;
    request->asking = false;
}

static void finish(struct redis_request *request, enum status status, const struct error *error)
{
    request->busy = false;
    request->on_done(request, status, error);
}

static void finish_failed(struct redis_request *request, enum status status, const char *text)
{
    struct error error;

    error_set(&error, status, "%s", text);
    finish(request, status, &error);
}

/* ---- a node's time limits ---- */

static void on_overdue(struct loop_timer *timer);

static void arm(struct redis_node *node)
{
    struct redis_cluster *cluster = node->cluster;

    if (node->link.state == REDIS_LINK_OPEN && node->first)
        loop_timer_start(cluster->loop, &node->timer, node->first->answer_by_ns, on_overdue);
    else if (node->link.state == REDIS_LINK_OPEN)
        loop_timer_stop(cluster->loop, &node->timer);
}

/* The next reply belongs to the first request. */
static void expect(struct redis_node *node)
{
    node->link.arena = node->first ? &node->first->arena : NULL;
    arm(node);
}

static int64_t shun_ms(const struct redis_node *node)
{
    int64_t wait_ms = SHUN_MIN_MS;

    for (unsigned i = 1; i < node->failures && wait_ms < SHUN_MAX_MS; i++)
        wait_ms *= 2;
    return wait_ms / 2 + (int64_t)(random_u64() % (uint64_t)wait_ms);
}

static void log_down(struct redis_node *node, const struct error *error)
{
    if (node->is_down)
        return;
    node->is_down = true;
    log_warn("redis_node_down", LOG_CSTR("host", node->address.host), LOG_INT("port", node->address.port),
             LOG_ERROR_FIELDS(error));
}

/* The connection is closed already. An idle one that ended is opened again when it is needed, and nobody's failure. */
static void lose(struct redis_node *node, enum status status, const struct error *error)
{
    struct redis_cluster *cluster = node->cluster;
    struct redis_request *lost = node->first;

    loop_timer_stop(cluster->loop, &node->timer);
    node->first = NULL;
    node->last = &node->first;
    node->link.arena = NULL;
    if (!lost)
        return;
    node->failures++;
    struct str reason = str_utf8_cut(str_from(error->message), sizeof node->reason - 1);
    snprintf(node->reason, sizeof node->reason, "%.*s", STR_ARG(reason));
    node->shunned_until_ns = clock_deadline_ms(shun_ms(node));
    if (!cluster->closing && node->failures > 1)
        log_down(node, error);
    redis_map_want(cluster);
    redis_map_judge(cluster);
    while (lost) {
        struct redis_request *request = lost;
        lost = request->next;
        finish(request, status, error);
    }
}

static void on_overdue(struct loop_timer *timer)
{
    struct redis_node *node = (struct redis_node *)((char *)timer - offsetof(struct redis_node, timer));
    struct error error;

    error_set(&error, STATUS_TIMEOUT, "%s:%u does not answer", node->address.host,
              (unsigned)node->address.port);
    redis_link_close(&node->link);
    node->failures = node->failures ? node->failures : 1; /* silence is worse than a cut */
    lose(node, STATUS_TIMEOUT, &error);
}

static void on_closed(struct redis_link *link, const struct error *error)
{
    lose((struct redis_node *)link, error->status == STATUS_IO ? STATUS_IO : STATUS_DB_DOWN, error);
}

static void on_open(struct redis_link *link)
{
    struct redis_node *node = (struct redis_node *)link;
    int64_t answer_by_ns = clock_deadline_ms(node->cluster->answer_ms);

    metric_add(node->cluster->reconnects, 1);
    for (struct redis_request *request = node->first; request; request = request->next)
        request->answer_by_ns = answer_by_ns;
    expect(node);
}

/* ---- sending ---- */

static bool open_link(struct redis_node *node, struct error *error)
{
    struct redis_cluster *cluster = node->cluster;

    if (node->link.state != REDIS_LINK_CLOSED)
        return true;
    if (redis_link_open(&node->link, &node->address, error) != STATUS_OK)
        return false;
    loop_timer_start(cluster->loop, &node->timer, clock_deadline_ms(cluster->connect_ms), on_overdue);
    return true;
}

static void send_to(struct redis_node *node, struct redis_request *request)
{
    static const char asking[] = "*1\r\n$6\r\nASKING\r\n";
    struct error error;

    if (node->shunned_until_ns > clock_mono_ns()) {
        error_set(&error, STATUS_DB_DOWN, "%s:%u was away a moment ago: %s", node->address.host,
                  (unsigned)node->address.port, node->reason);
        finish(request, STATUS_DB_DOWN, &error);
        return;
    }
    request->next = NULL;
    *node->last = request;
    node->last = &request->next;
    if (!open_link(node, &error)) {
        lose(node, STATUS_DB_DOWN, &error);
        return;
    }
    request->answer_by_ns = clock_deadline_ms(node->cluster->answer_ms);
    if (request->asking)
        redis_link_send(&node->link, STR(asking));
    redis_link_send(&node->link, buf_str(&request->commands));
    expect(node);
}

void redis_cluster_ask(struct redis_cluster *cluster, struct redis_request *request)
{
    struct redis_node *node = request->node ? request->node : cluster->owner[request->slot];

    request->busy = true;
    request->next = NULL;
    if (cluster->closing)
        finish_failed(request, STATUS_CANCELLED, "the bus is stopping");
    else if (node)
        send_to(node, request);
    else if (!cluster->known)
        redis_map_wait(cluster, request);
    else {
        redis_map_want(cluster);
        finish_failed(request, STATUS_DB_DOWN, "no node has this key's slot");
    }
}

/* ---- replies ---- */

static struct redis_request *pop(struct redis_node *node)
{
    struct redis_request *request = node->first;

    node->first = request->next;
    if (!node->first)
        node->last = &node->first;
    expect(node);
    return request;
}

/* Nothing of it was done where it was asked, so it may be asked elsewhere. */
static void lead_on(struct redis_node *node, struct redis_request *request,
                    const struct redis_redirect *redirect)
{
    struct redis_cluster *cluster = node->cluster;
    struct redis_address to = redirect->to;

    metric_add(cluster->redirects, 1);
    if (cluster->single || ++request->redirects > REDIRECTS_MAX) {
        finish_failed(request, STATUS_DB_DOWN,
                      cluster->single ? "a node of a cluster is configured as a single Redis"
                                      : "redirected too often");
        return;
    }
    if (!to.host[0])
        memcpy(to.host, node->address.host, sizeof to.host);
    struct redis_node *next = redis_map_node(cluster, &to);
    request->got = 0;
    request->asking = redirect->ask;
    arena_reset(&request->arena);
    if (!redirect->ask) {
        cluster->owner[redirect->slot] = next;
        redis_map_want(cluster);
    }
    FAILPOINT("redis.before_redirected");
    send_to(next, request);
}

/* The request as a whole is refused because of where it was asked. */
static bool is_refusal(const struct redis_reply *reply)
{
    static const char *const prefixes[] = {"CLUSTERDOWN", "TRYAGAIN",   "LOADING",
                                           "READONLY",    "MASTERDOWN", "NOREPLICAS"};

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (redis_reply_is_error(reply, prefixes[i]))
            return true;
    return false;
}

static void answered(struct redis_node *node, struct redis_request *request)
{
    const struct redis_reply *refused = NULL;
    struct redis_redirect redirect;
    struct error error;

    for (size_t i = 0; i < request->last_count; i++) {
        const struct redis_reply *reply = request->replies[i];
        if (reply->kind == REDIS_ERROR && redis_redirect_parse(reply->text, &redirect)) {
            lead_on(node, request, &redirect);
            return;
        }
        if (is_refusal(reply))
            refused = reply;
    }
    if (!refused) {
        finish(request, STATUS_OK, NULL);
        return;
    }
    redis_map_want(node->cluster);
    error_set(&error, STATUS_DB_DOWN, "%.*s", STR_ARG(str_utf8_cut(refused->text, 200)));
    finish(request, STATUS_DB_DOWN, &error);
}

static void come_up(struct redis_node *node)
{
    if (node->is_down)
        log_info("redis_node_up", LOG_CSTR("host", node->address.host), LOG_INT("port", node->address.port));
    node->is_down = false;
    node->failures = 0;
    redis_map_judge(node->cluster);
}

/* Of a long row of replies the last are kept, and the first error of those before them takes the place of the first: there
 * it says why the others are as they are. */
static void keep(struct redis_request *request, const struct redis_reply *reply)
{
    size_t first_kept = request->reply_count - request->last_count;
    size_t at = request->got >= first_kept ? request->got - first_kept : 0;
    bool early = request->got <= first_kept && at == 0;

    if (!early || request->got == 0 || request->replies[0]->kind != REDIS_ERROR)
        request->replies[at] = reply;
    request->got++;
}

static void on_reply(struct redis_link *link, const struct redis_reply *reply)
{
    struct redis_node *node = (struct redis_node *)link;
    struct redis_request *request = node->first;

    if (node->failures || node->is_down)
        come_up(node);
    if (request->asking && request->got == 0) { /* ASKING's own +OK */
        request->asking = false;
        return;
    }
    keep(request, reply);
    if (request->got == request->reply_count)
        answered(node, pop(node));
}

/* ---- life ---- */

void redis_node_init(struct redis_node *node, struct redis_cluster *cluster)
{
    redis_link_init(&node->link, cluster->loop, cluster->access);
    node->link.on_open = on_open;
    node->link.on_reply = on_reply;
    node->link.on_closed = on_closed;
    node->cluster = cluster;
    node->last = &node->first;
}

void redis_cluster_init(struct redis_cluster *cluster, struct loop *loop, const struct redis_access *access)
{
    cluster->loop = loop;
    cluster->access = access;
    redis_map_init(cluster);
}

void redis_cluster_start(struct redis_cluster *cluster)
{
    redis_map_want(cluster);
}

void redis_cluster_close(struct redis_cluster *cluster)
{
    struct error error;

    cluster->closing = true;
    error_set(&error, STATUS_CANCELLED, "the bus is stopping");
    redis_map_close(cluster, &error);
    for (size_t i = 0; i < cluster->node_count; i++) {
        redis_link_close(&cluster->nodes[i]->link);
        lose(cluster->nodes[i], STATUS_CANCELLED, &error);
    }
}

void redis_cluster_deinit(struct redis_cluster *cluster)
{
    for (size_t i = 0; i < cluster->node_count; i++) {
        redis_link_deinit(&cluster->nodes[i]->link);
        free(cluster->nodes[i]);
    }
    free(cluster->nodes);
    redis_request_deinit(&cluster->refresh);
}
