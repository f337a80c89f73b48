/* Asks one node after another for the map of slots until one answers: at the start, when something was not where it should
 * be, and every few seconds, so that health is known without traffic. A single Redis has no map: it is asked for a PONG. */
#include "bus/redis/map.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

enum {
    REFRESH_MS = 5000,
    REFRESH_GAP_MS = 50,    /* between two of them */
    REFRESH_RETRY_MS = 250, /* when nobody answers */
};

static void ask_next(struct redis_cluster *cluster);
static void on_refresh_due(struct loop_timer *timer);

/* ---- nodes ---- */

struct redis_node *redis_map_node(struct redis_cluster *cluster, const struct redis_address *address)
{
    struct redis_node *spare = NULL;

    for (size_t i = 0; i < cluster->node_count; i++) {
        if (cluster->nodes[i]->used && redis_address_eq(&cluster->nodes[i]->address, address))
            return cluster->nodes[i];
        if (!cluster->nodes[i]->used)
            spare = cluster->nodes[i];
    }
    if (!spare) {
        spare = memory_zalloc(sizeof *spare);
        redis_node_init(spare, cluster);
        cluster->nodes =
            memory_realloc_array(cluster->nodes, cluster->node_count + 1, sizeof cluster->nodes[0]);
        cluster->nodes[cluster->node_count++] = spare;
    }
    spare->used = true;
    spare->address = *address;
    spare->shunned_until_ns = 0;
    spare->failures = 0;
    spare->is_down = false;
    return spare;
}

static bool is_seed(const struct redis_cluster *cluster, const struct redis_node *node)
{
    for (size_t i = 0; i < cluster->seed_count; i++)
        if (redis_address_eq(&cluster->seeds[i], &node->address))
            return true;
    return false;
}

/* Nodes that own nothing, were not configured and have nothing under way are forgotten. */
static void forget_unused(struct redis_cluster *cluster)
{
    for (size_t i = 0; i < cluster->node_count; i++) {
        struct redis_node *node = cluster->nodes[i];
        bool needed = node->first || is_seed(cluster, node);
        for (size_t slot = 0; slot < REDIS_SLOTS && !needed; slot++)
            needed = cluster->owner[slot] == node;
        if (needed || !node->used)
            continue;
        redis_link_close(&node->link);
        node->used = false;
    }
}

/* Up: the map is whole and nobody who owns a part of it is known to be away. */
void redis_map_judge(struct redis_cluster *cluster)
{
    bool up = cluster->known;

    for (size_t slot = 0; slot < REDIS_SLOTS && up; slot++)
        up = cluster->owner[slot] && cluster->owner[slot]->failures == 0;
    atomic_store(&cluster->is_up, up);
}

const struct redis_address *redis_cluster_any(struct redis_cluster *cluster, unsigned turn)
{
    const struct redis_node *first = NULL;
    size_t seen = 0;

    for (size_t i = 0; i < cluster->node_count; i++) {
        const struct redis_node *node = cluster->nodes[(turn + i) % cluster->node_count];
        if (!node->used)
            continue;
        first = first ? first : node;
        if (node->failures == 0 && seen++ == 0)
            return &node->address;
    }
    return first ? &first->address : &cluster->seeds[turn % cluster->seed_count];
}

/* ---- asking ---- */

static void again_in(struct redis_cluster *cluster, int64_t ms)
{
    if (!cluster->closing)
        loop_timer_start(cluster->loop, &cluster->refresh_timer, clock_deadline_ms(ms), on_refresh_due);
}

static void release_waiting(struct redis_cluster *cluster, const struct error *error)
{
    struct redis_request *request = cluster->waiting;

    cluster->waiting = NULL;
    cluster->waiting_last = &cluster->waiting;
    while (request) {
        struct redis_request *next = request->next;
        if (error) {
            request->busy = false;
            request->on_done(request, error->status, error);
        } else {
            redis_cluster_ask(cluster, request);
        }
        request = next;
    }
}

static void take_map(struct redis_cluster *cluster, const struct redis_topology *topology)
{
    struct redis_node **masters = memory_alloc((topology->count + 1) * sizeof masters[0]);

    for (size_t i = 0; i < topology->count; i++)
        masters[i] = redis_map_node(cluster, &topology->masters[i]);
    for (size_t slot = 0; slot < REDIS_SLOTS; slot++)
        cluster->owner[slot] = topology->owner[slot] ? masters[topology->owner[slot] - 1] : NULL;
    free(masters);
    forget_unused(cluster);
}

static void refreshed(struct redis_cluster *cluster)
{
    cluster->known = true;
    if (cluster->complained)
        log_info("redis_reachable");
    cluster->complained = false;
    cluster->refreshed_ns = clock_mono_ns();
    cluster->refresh_tries = 0;
    redis_map_judge(cluster);
    again_in(cluster, REFRESH_MS);
    release_waiting(cluster, NULL);
}

/* The next one may know better; when none does, whoever waits need not wait longer. */
static void refresh_failed(struct redis_cluster *cluster, const struct error *error)
{
    if (cluster->closing)
        return;
    cluster->refresh_turn++;
    if (++cluster->refresh_tries < cluster->seed_count + cluster->node_count) {
        ask_next(cluster);
        return;
    }
    cluster->refresh_tries = 0;
    if (!cluster->complained)
        log_error("redis_unreachable", LOG_ERROR_FIELDS(error));
    cluster->complained = true;
    atomic_store(&cluster->is_up, false);
    again_in(cluster, REFRESH_RETRY_MS);
    release_waiting(cluster, error);
}

static void on_refresh(struct redis_request *request, enum status status, const struct error *error)
{
    struct redis_cluster *cluster =
        (struct redis_cluster *)((char *)request - offsetof(struct redis_cluster, refresh));
    const struct redis_reply *reply = request->replies[0];
    struct redis_topology topology;
    struct error own;

    if (status != STATUS_OK) {
        refresh_failed(cluster, error);
        return;
    }
    if (cluster->single) {
        if (reply->kind == REDIS_ERROR) {
            error_set(&own, STATUS_DB_DOWN, "%.*s", STR_ARG(str_utf8_cut(reply->text, 200)));
            refresh_failed(cluster, &own);
        } else {
            refreshed(cluster);
        }
        return;
    }
    if (redis_topology_parse(reply, &request->node->address, &topology, &own) != STATUS_OK) {
        refresh_failed(cluster, &own);
        return;
    }
    take_map(cluster, &topology);
    redis_topology_deinit(&topology);
    refreshed(cluster);
}

/* The configured ones and the known ones, in turn. */
static struct redis_node *next_to_ask(struct redis_cluster *cluster)
{
    size_t turn = cluster->refresh_turn % (cluster->seed_count + cluster->node_count);

    if (turn < cluster->seed_count)
        return redis_map_node(cluster, &cluster->seeds[turn]);
    struct redis_node *node = cluster->nodes[turn - cluster->seed_count];
    return node->used ? node : redis_map_node(cluster, &cluster->seeds[0]);
}

static void ask_next(struct redis_cluster *cluster)
{
    struct redis_request *request = &cluster->refresh;

    redis_request_begin(request, 0, 1);
    if (cluster->single)
        REDIS_COMMAND(&request->commands, STR("PING"));
    else
        REDIS_COMMAND(&request->commands, STR("CLUSTER"), STR("SLOTS"));
    request->node = next_to_ask(cluster);
    redis_cluster_ask(cluster, request);
}

static void on_refresh_due(struct loop_timer *timer)
{
    struct redis_cluster *cluster =
        (struct redis_cluster *)((char *)timer - offsetof(struct redis_cluster, refresh_timer));

    if (!cluster->refresh.busy)
        ask_next(cluster);
}

void redis_map_want(struct redis_cluster *cluster)
{
    int64_t at_ns = cluster->refreshed_ns + REFRESH_GAP_MS * CLOCK_NS_PER_MS, now_ns = clock_mono_ns();

    if (cluster->closing || cluster->refresh.busy || cluster->refresh_tries > 0)
        return;
    at_ns = at_ns > now_ns ? at_ns : now_ns;
    if (cluster->refresh_timer.heap_at == 0 || cluster->refresh_timer.deadline_ns > at_ns)
        loop_timer_start(cluster->loop, &cluster->refresh_timer, at_ns, on_refresh_due);
}

void redis_map_wait(struct redis_cluster *cluster, struct redis_request *request)
{
    *cluster->waiting_last = request;
    cluster->waiting_last = &request->next;
    redis_map_want(cluster);
}

void redis_map_init(struct redis_cluster *cluster)
{
    redis_request_init(&cluster->refresh, on_refresh);
    cluster->waiting_last = &cluster->waiting;
    for (size_t i = 0; i < cluster->seed_count; i++)
        redis_map_node(cluster, &cluster->seeds[i]);
    for (size_t slot = 0; slot < REDIS_SLOTS && cluster->single; slot++)
        cluster->owner[slot] = cluster->nodes[0];
}

void redis_map_close(struct redis_cluster *cluster, const struct error *error)
{
    loop_timer_stop(cluster->loop, &cluster->refresh_timer);
    release_waiting(cluster, error);
}
