/* Consumer groups of dead pods are removed. Each pod marks itself as alive by a key that expires. A group is dead when its mark
 * has expired, no consumer has read it for as long, and this pod has seen it so for as long again: a group of another program
 * that sets no mark is safe as long as it is read.
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

static void forget_candidates(struct redis_reader *reader)
{
    for (size_t i = 0; i < reader->candidate_count; i++)
        free(reader->candidates[i]);
    reader->candidate_count = 0;
}

/* ---- looking ---- */

/* The marks of groups of the same subscription in other pods: their names differ from ours in the pod's id only. */
static void put_alive_key(const struct redis_reader *reader, const char *group, struct buf *key)
{
    buf_put(key, reader->alive_key, strlen(reader->alive_key) - strlen(reader->group));
    buf_put_str(key, str_from(group));
}

static void pods_look(struct redis_reader *reader, const struct redis_reply *groups)
{
    struct redis_request *request = &reader->pods_request;
    size_t prefix_len = strlen(reader->consumer.spec.group) + 1;
    struct str prefix = str_of(reader->group, prefix_len);
    struct buf key;

    forget_candidates(reader);
    for (size_t i = 0; i < groups->count && reader->candidate_count < REDIS_SUSPECTS_MAX; i++) {
        struct str name = redis_reply_field(&groups->items[i], STR("name"))->text;
        if (name.ptr && str_starts_with(name, prefix) && !str_eq(name, str_from(reader->group)))
            reader->candidates[reader->candidate_count++] = str_dup(name);
    }
    if (reader->candidate_count == 0)
        return;
    buf_init(&key);
    reader->pods_step = PODS_LOOK;
    redis_request_begin(request, &reader->topic->route);
    REDIS_ADD(request, STR("MULTI"));
    for (size_t i = 0; i < reader->candidate_count; i++) {
        buf_clear(&key);
        put_alive_key(reader, reader->candidates[i], &key);
        REDIS_ADD(request, STR("EXISTS"), buf_str(&key));
        REDIS_ADD(request, STR("XINFO"), STR("CONSUMERS"), str_from(reader->topic->stream),
                  str_from(reader->candidates[i]));
    }
    REDIS_ADD(request, STR("EXEC"));
    buf_deinit(&key);
    redis_cluster_send(&reader->redis->cluster, request);
}

static bool looks_dead(const struct redis_reader *reader, const struct redis_reply *exists,
                       const struct redis_reply *consumers)
{
    bool is_dead = exists->kind == REDIS_INTEGER && exists->integer == 0 && consumers->kind == REDIS_ARRAY;

    for (size_t i = 0; i < consumers->count && is_dead; i++) {
        const struct redis_reply *idle = redis_reply_field(&consumers->items[i], STR("idle"));
        is_dead = idle->kind == REDIS_INTEGER && idle->integer >= reader->redis->config.pod_dead_ms;
    }
    return is_dead;
}

/* ---- removing ---- */

/* Since when the group looks dead; the suspects are replaced by those that still do. */
static int64_t suspect_since(const struct redis_reader *reader, uint64_t hash, int64_t now_ns)
{
    for (size_t i = 0; i < reader->suspect_count; i++)
        if (reader->suspects[i].name_hash == hash)
            return reader->suspects[i].since_ns;
    return now_ns;
}

static void pods_judge(struct redis_reader *reader, const struct redis_reply *reply)
{
    struct redis_suspect suspects[REDIS_SUSPECTS_MAX];
    size_t count = 0;
    int64_t now_ns = clock_mono_ns();
    const char *dead = NULL;

    for (size_t i = 0; i < reader->candidate_count; i++) {
        if (!looks_dead(reader, redis_reply_at(reply, 2 * i), redis_reply_at(reply, 2 * i + 1)))
            continue;
        uint64_t hash = hash_seeded(str_from(reader->candidates[i]));
        suspects[count] = (struct redis_suspect){hash, suspect_since(reader, hash, now_ns)};
        if (now_ns - suspects[count++].since_ns >= reader->redis->config.pod_dead_ms * CLOCK_NS_PER_MS)
            dead = reader->candidates[i];
    }
    memcpy(reader->suspects, suspects, count * sizeof suspects[0]);
    reader->suspect_count = count;
    if (!dead)
        return;
    log_info("redis_dead_pod_removed", LOG_CSTR("group", dead), LOG_CSTR("stream", reader->topic->stream));
    reader->pods_step = PODS_REMOVE;
    redis_request_begin(&reader->pods_request, &reader->topic->route);
    REDIS_ADD(&reader->pods_request, STR("XGROUP"), STR("DESTROY"), str_from(reader->topic->stream),
              str_from(dead));
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

/* ---- the clock ---- */

static void pods_list(struct redis_reader *reader)
{
    struct redis_request *request = &reader->pods_request;
    struct redis_number alive_ms;

    reader->pods_step = PODS_LIST;
    redis_request_begin(request, &reader->topic->route);
    REDIS_ADD(request, STR("MULTI"));
    REDIS_ADD(request, STR("SET"), str_from(reader->alive_key), STR("1"), STR("PX"),
              redis_number_str(&alive_ms, reader->redis->config.pod_dead_ms));
    REDIS_ADD(request, STR("XINFO"), STR("GROUPS"), str_from(reader->topic->stream));
    REDIS_ADD(request, STR("EXEC"));
    redis_cluster_send(&reader->redis->cluster, request);
}

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
        if (!is_first)
            pods_list(reader);
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
    reader->candidates = memory_alloc(REDIS_SUSPECTS_MAX * sizeof reader->candidates[0]);
}

void redis_pods_deinit(struct redis_reader *reader)
{
    redis_request_deinit(&reader->pods_request);
    forget_candidates(reader);
    free(reader->candidates);
}
