/* Removes the consumer groups of dead pods. Each pod marks its groups as alive by keys that expire after pod_dead_ms. A group is
 * dead when it has no mark and no consumer has read it for pod_dead_ms, and this pod has found it so for another pod_dead_ms. So
 * a group of another program, which sets no mark, is safe as long as it is read.
 *
 *   LIST   renews our own mark and lists the groups
 *   LOOK   asks for the marks and the consumers of the others
 *   REMOVE removes one that is dead
 */
#include "bus/redis/inside.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"

enum { TICK_MS = 2000 };

static void free_peers(struct redis_peer *peers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(peers[i].group);
}

/* ---- LOOK ---- */

/* The groups of the same subscription in other pods: their names, and their marks, differ from ours in the pod's id only. */
static void pods_look(struct redis_reader *reader, const struct redis_reply *groups)
{
    struct redis_request *request = &reader->pods_request;
    struct str prefix = str_of(reader->group, strlen(reader->consumer.spec.group) + 1);
    struct redis_peer peers[REDIS_PEERS_MAX];
    size_t count = 0;

    for (size_t i = 0; i < groups->count && count < REDIS_PEERS_MAX; i++) {
        struct str name = redis_reply_field(&groups->items[i], STR("name"))->text;
        if (!name.ptr || !str_starts_with(name, prefix) || str_eq(name, str_from(reader->group)))
            continue;
        peers[count] = (struct redis_peer){.group = str_dup(name)};
        for (size_t k = 0; k < reader->peer_count; k++)
            if (strcmp(reader->peers[k].group, peers[count].group) == 0)
                peers[count].dead_since_ns = reader->peers[k].dead_since_ns;
        count++;
    }
    free_peers(reader->peers, reader->peer_count);
    memcpy(reader->peers, peers, count * sizeof peers[0]);
    reader->peer_count = count;
    if (count == 0)
        return;
    reader->pods_step = PODS_LOOK;
    redis_request_begin(request, &reader->topic->route);
    redis_request_add(request, "MULTI");
    for (size_t i = 0; i < count; i++) {
        redis_request_add(request, "EXISTS %s%s", reader->alive_prefix, peers[i].group);
        redis_request_add(request, "XINFO CONSUMERS %s %s", reader->topic->stream, peers[i].group);
    }
    redis_request_add(request, "EXEC");
    redis_cluster_send(&reader->redis->cluster, request);
}

/* ---- REMOVE ---- */

static void pods_judge(struct redis_reader *reader, const struct redis_reply *reply)
{
    int64_t now_ns = clock_mono_ns(), dead_ms = reader->redis->config.pod_dead_ms;
    const char *dead = NULL;

    for (size_t i = 0; i < reader->peer_count; i++) {
        struct redis_peer *peer = &reader->peers[i];
        const struct redis_reply *exists = redis_reply_at(reply, 2 * i);
        const struct redis_reply *consumers = redis_reply_at(reply, 2 * i + 1);
        bool is_dead =
            exists->kind == REDIS_INTEGER && exists->integer == 0 && consumers->kind == REDIS_ARRAY;
        for (size_t k = 0; k < consumers->count && is_dead; k++) {
            const struct redis_reply *idle = redis_reply_field(&consumers->items[k], STR("idle"));
            is_dead = idle->kind == REDIS_INTEGER && idle->integer >= dead_ms;
        }
        if (!is_dead)
            peer->dead_since_ns = 0;
        else if (peer->dead_since_ns == 0)
            peer->dead_since_ns = now_ns;
        else if (now_ns - peer->dead_since_ns >= dead_ms * CLOCK_NS_PER_MS)
            dead = peer->group;
    }
    if (!dead)
        return;
    log_info("redis_dead_pod_removed", LOG_CSTR("group", dead), LOG_CSTR("stream", reader->topic->stream));
    reader->pods_step = PODS_REMOVE;
    redis_request_begin(&reader->pods_request, &reader->topic->route);
    redis_request_add(&reader->pods_request, "XGROUP DESTROY %s %s", reader->topic->stream, dead);
    redis_cluster_send(&reader->redis->cluster, &reader->pods_request);
}

static void on_pods_answered(struct redis_request *request, enum status status, const struct error *error)
{
    struct redis_reader *reader = CONTAINER_OF(request, struct redis_reader, pods_request);

    (void)error;
    if (status != STATUS_OK || request->reply->kind != REDIS_ARRAY)
        return; /* the next tick begins anew */
    if (reader->pods_step == PODS_LIST)
        pods_look(reader, redis_reply_at(request->reply, 1));
    else if (reader->pods_step == PODS_LOOK)
        pods_judge(reader, request->reply);
}

/* ---- LIST ---- */

/* Every pod looks at the groups of all others, so it does so rarely, and a fleet that starts together not all at once. */
static void on_pods_tick(struct loop_timer *timer)
{
    struct redis *redis = CONTAINER_OF(timer, struct redis, pods_timer);
    int64_t now_ns = clock_mono_ns(), every_ms = redis->config.pod_dead_ms / 4;

    for (size_t i = 0; i < redis->reader_count; i++) {
        struct redis_reader *reader = redis->readers[i];
        if (!reader->is_ready || reader->pods_request.is_busy || now_ns < reader->pods_at_ns)
            continue;
        bool is_first = reader->pods_at_ns == 0;
        int64_t delay_ms = is_first ? (int64_t)(random_u64() % (uint64_t)(every_ms + 1)) : every_ms;
        reader->pods_at_ns = clock_deadline_ms(delay_ms);
        if (is_first)
            continue;
        struct redis_request *request = &reader->pods_request;
        reader->pods_step = PODS_LIST;
        redis_request_begin(request, &reader->topic->route);
        redis_request_add(request, "MULTI");
        redis_request_add(request, "SET %s%s 1 PX %lld", reader->alive_prefix, reader->group,
                          (long long)redis->config.pod_dead_ms);
        redis_request_add(request, "XINFO GROUPS %s", reader->topic->stream);
        redis_request_add(request, "EXEC");
        redis_cluster_send(&redis->cluster, request);
    }
    redis_pods_start(redis);
}

void redis_pods_start(struct redis *redis)
{
    int64_t tick_ms = redis->config.pod_dead_ms / 4 < TICK_MS ? redis->config.pod_dead_ms / 4 : TICK_MS;

    loop_timer_start(redis->loop, &redis->pods_timer, clock_deadline_ms(tick_ms > 0 ? tick_ms : 1),
                     on_pods_tick);
}

void redis_pods_init(struct redis_reader *reader)
{
    redis_request_init(&reader->pods_request, on_pods_answered);
}

void redis_pods_deinit(struct redis_reader *reader)
{
    redis_request_deinit(&reader->pods_request);
    free_peers(reader->peers, reader->peer_count);
}
